//! npm's `package-lock.json`: the exact packages of an installation. The file comes from the installer's sandbox, so
//! it is parsed strictly.

use sandcell_sandbox::{Code, Failure};
use serde_json::Value;

use super::spec::is_name;
use crate::lock::Locked;

/// The maximum number of packages in one installation.
const ENTRIES_MAX: usize = 3000;

/// The packages and their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    /// All packages, with version and hash. A package may occur several times.
    pub(crate) all: Vec<Locked>,
    /// The packages that code can import by name.
    pub(crate) top: Vec<Locked>,
    /// The paths, versions and hashes, one per line. The key of a layer is a hash of this text.
    pub(crate) text: String,
}

pub(crate) fn parse(text: &str) -> Result<Lock, Failure> {
    let lock: Value = serde_json::from_str(text).map_err(|_| unreadable("it is no JSON"))?;
    let packages = lock.get("packages").and_then(Value::as_object);
    let packages = packages.ok_or_else(|| unreadable("it names no packages"))?;
    if packages.len() > ENTRIES_MAX {
        return Err(Failure::new(
            Code::LimitReached,
            format!("more than {ENTRIES_MAX} packages would be installed"),
            "ask for fewer packages",
        ));
    }
    let mut lines = Vec::new();
    let (mut all, mut top) = (Vec::new(), Vec::new());
    for (place, says) in packages.iter().filter(|(place, _)| !place.is_empty()) {
        let one = entry(place, says).ok_or_else(|| unreadable(&place.chars().take(80).collect::<String>()))?;
        lines.push(format!("{place} {} {} {}", one.name, one.version, one.hashes.concat()));
        if place.matches("node_modules/").count() == 1 {
            top.push(Locked {
                // A package may be installed under another name, which code then uses.
                name: place.trim_start_matches("node_modules/").to_owned(),
                ..one.clone()
            });
        }
        all.push(one);
    }
    lines.sort();
    all.sort();
    top.sort();
    Ok(Lock {
        all,
        top,
        text: lines.join("\n"),
    })
}

fn entry(place: &str, says: &Value) -> Option<Locked> {
    // Links and folders would lead out of the tree.
    if says.get("link").is_some() || !place.starts_with("node_modules/") {
        return None;
    }
    let mut names = place
        .split("node_modules/")
        .skip(1)
        .map(|part| part.trim_end_matches('/'));
    let own = names.clone().last()?;
    if !names.all(is_name) {
        return None;
    }
    let text = |key: &str| says.get(key).and_then(Value::as_str);
    let name = text("name").unwrap_or(own);
    let version = text("version")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.+".contains(c);
    if !is_name(name) || version.is_empty() || version.len() > 100 || !version.chars().all(plain) {
        return None;
    }
    let hash = match text("integrity") {
        Some(hash) => hash.to_owned(),
        // The hash of the containing package covers a bundled package.
        None if says.get("inBundle") == Some(&Value::Bool(true)) => "bundled".to_owned(),
        None => return None,
    };
    let sound = |c: char| c.is_ascii_alphanumeric() || "+/=- ".contains(c);
    (!hash.is_empty() && hash.len() <= 500 && hash.chars().all(sound)).then(|| Locked {
        name: name.to_owned(),
        version: version.to_owned(),
        hashes: vec![hash],
    })
}

fn unreadable(what: &str) -> Failure {
    Failure::new(
        Code::PackageFailed,
        format!("npm's list of exact versions cannot be used: {what}"),
        "every package needs a name, a version and a hash; links and folders are not accepted",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_read_and_top_level_packages_are_importable() {
        let lock = parse(
            r#"{"packages": {"": {"dependencies": {}},
                "node_modules/a": {"version": "1.0.0", "integrity": "sha512-aa=="},
                "node_modules/@s/b": {"version": "2.0.0-rc.1", "integrity": "sha512-bb=="},
                "node_modules/c": {"name": "real", "version": "3.0.0", "integrity": "sha512-cc=="},
                "node_modules/a/node_modules/d": {"version": "4.0.0", "inBundle": true}}}"#,
        )
        .unwrap();
        let names = |list: &[Locked]| list.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&lock.all), ["@s/b", "a", "d", "real"]);
        assert_eq!(names(&lock.top), ["@s/b", "a", "c"]);
    }

    #[test]
    fn entries_that_leave_the_folder_are_refused() {
        for entry in [
            r#""node_modules/a": {"resolved": "../x", "link": true}"#,
            r#""../x": {"version": "1.0.0", "integrity": "sha512-aa=="}"#,
            r#""node_modules/../x": {"version": "1.0.0", "integrity": "sha512-aa=="}"#,
            r#""node_modules/a/../../x": {"version": "1.0.0", "integrity": "sha512-aa=="}"#,
            r#""node_modules/a": {"version": "1.0.0"}"#,
            r#""node_modules/a": {"integrity": "sha512-aa=="}"#,
            r#""node_modules/a": {"version": "1.0.0\nx", "integrity": "sha512-aa=="}"#,
            r#""node_modules/a": {"name": "../x", "version": "1.0.0", "integrity": "sha512-aa=="}"#,
        ] {
            assert!(parse(&format!("{{\"packages\": {{{entry}}}}}")).is_err(), "{entry}");
        }
        assert!(parse("[]").is_err() && parse("x").is_err());
    }
}
