//! The paths from `crate` or `super` in a Rust source file, as paths from the crate's root.
//!
//! They are read from the text, without a parser: `use` trees, paths within the code, and links in comments. One rule of
//! `rustfmt` is needed: a module within a file begins and ends at the start of a line.

use std::path::Path;

/// Returns all paths of a file, without `crate`. `path` is the file's path below its crate's `src`.
pub fn used(path: &Path, text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut module = module_of(path);
    let file_depth = module.len();
    let mut start_of_line = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with('}') {
            module.truncate(file_depth);
        } else if let Some(name) = inner_module(line) {
            module.push(name.to_owned());
        }
        for (at, _) in line.match_indices("crate::").chain(line.match_indices("super::")) {
            let before = line.get(..at).and_then(|before| before.chars().next_back());
            let is_start = !before.is_some_and(|before| is_in_name(before) || before == ':');
            if let Some(rest) = text.get(start_of_line + at..)
                && is_start
            {
                let mut paths = Vec::new();
                tree(rest, &[], &mut paths);
                found.extend(paths.iter().filter_map(|path| resolved(&module, path)));
            }
        }
        start_of_line += line.len();
    }
    found
}

/// Returns the module of a file, from the crate's root.
fn module_of(path: &Path) -> Vec<String> {
    let parts = path.with_extension("");
    let mut module: Vec<String> = parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module
        .last()
        .is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main"))
    {
        module.pop();
    }
    module
}

/// Returns the name of the module within the file that begins with this line.
fn inner_module(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_suffix(" {")?;
    let (visibility, name) = name.rsplit_once("mod ")?;
    let is_visibility = visibility.is_empty() || (visibility.starts_with("pub") && visibility.ends_with(' '));
    (is_visibility && name.chars().all(is_in_name)).then_some(name)
}

const fn is_in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Reads a path or a `use` tree at the start of `text`, and appends its paths to `found`. Returns the text after it.
fn tree<'a>(text: &'a str, prefix: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut path = prefix.to_vec();
    let mut rest = text.trim_start();
    loop {
        let (name, after) = rest.split_at(rest.find(|letter| !is_in_name(letter)).unwrap_or(rest.len()));
        if let Some(mut members) = after.strip_prefix('{').filter(|_| name.is_empty()) {
            loop {
                members = tree(members, &path, found);
                // An alias (`as name`) ends with the member.
                let end = members.find([',', '}', ';']).unwrap_or(members.len());
                let (_, next) = members.split_at(end);
                match next.strip_prefix(',') {
                    Some(next) => members = next,
                    None => return next.strip_prefix('}').unwrap_or(next),
                }
            }
        }
        if let Some(after) = after.strip_prefix('*').filter(|_| name.is_empty()) {
            path.push("*".to_owned());
            found.push(path);
            return after;
        }
        if name.is_empty() {
            return after;
        }
        path.push(name.to_owned());
        match after.strip_prefix("::") {
            Some(next) => rest = next,
            None => {
                found.push(path);
                return after;
            }
        }
    }
}

/// Converts a path that begins with `crate` or `super`, in this module. None if it leaves the crate's root.
fn resolved(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let up = path.iter().take_while(|name| *name == "super").count();
    let from_root = path.first().is_some_and(|name| name == "crate");
    let base: &[String] = if from_root {
        &[]
    } else {
        module.get(..module.len().checked_sub(up)?)?
    };
    let names = path
        .iter()
        .skip(up.max(usize::from(from_root)))
        .filter(|name| *name != "self");
    Some(base.iter().chain(names).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(path: &str, text: &str) -> Vec<String> {
        used(Path::new(path), text)
            .iter()
            .map(|names| names.join("::"))
            .collect()
    }

    #[test]
    fn a_tree_is_each_of_its_paths() {
        let text = "use crate::a::{self, b as other, c::{D, *},\n    e::F,\n};\nuse std::x::Y;\n";
        assert_eq!(paths("lib.rs", text), ["a", "a::b", "a::c::D", "a::c::*", "a::e::F"]);
    }

    #[test]
    fn super_is_the_parent_of_the_file_s_module() {
        assert_eq!(paths("a/b.rs", "use super::x;"), ["a::x"]);
        assert_eq!(paths("a/mod.rs", "use super::x;"), ["x"]);
        assert_eq!(paths("a/b/c.rs", "let y = super::super::x::y();"), ["a::x::y"]);
        assert_eq!(paths("a.rs", "use super::super::x;"), Vec::<String>::new());
    }

    #[test]
    fn a_module_within_a_file_is_one_level_deeper() {
        let text = "mod tests {\n    use super::x;\n}\npub(crate) mod more {\n    use super::y;\n}\nuse super::z;\n";
        assert_eq!(paths("a/b.rs", text), ["a::b::x", "a::b::y", "a::z"]);
    }

    #[test]
    fn a_path_in_the_code_is_found_and_a_longer_name_is_not() {
        let text = "fn f() -> crate::a::B { my_crate::c::d(); $crate::e() }";
        assert_eq!(paths("lib.rs", text), ["a::B", "e"]);
    }
}
