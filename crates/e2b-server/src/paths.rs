//! Paths of requests.

use sandcell_sandbox::{HOME, SandboxPath};

use crate::problem::Problem;

/// Reads a path of a request. Relative paths begin in the home folder. `..` is resolved in the text, as E2B does.
pub(crate) fn path(text: &str) -> Result<SandboxPath, Problem> {
    let absolute = match text.strip_prefix("~/") {
        Some(rest) => format!("{HOME}/{rest}"),
        None if text == "~" || text.is_empty() => HOME.to_owned(),
        None if text.starts_with('/') => text.to_owned(),
        None => format!("{HOME}/{text}"),
    };
    let mut names: Vec<&str> = Vec::new();
    for name in absolute.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let clean = format!("/{}", names.join("/"));
    SandboxPath::parse(&clean).map_err(|error| Problem::invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cleaned_and_begins_at_home() {
        for (given, expected) in [
            ("a.txt", "/home/user/a.txt"),
            ("", "/home/user"),
            (".", "/home/user"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
            ("/a/../b", "/b"),
            ("../../../etc", "/etc"),
            ("/..", "/"),
            ("a//b/./c/", "/home/user/a/b/c"),
        ] {
            assert_eq!(path(given).unwrap().as_str(), expected, "{given}");
        }
        assert!(path("a\0b").is_err());
        assert!(path(&"n".repeat(300)).is_err());
    }
}
