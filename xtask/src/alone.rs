//! End-to-end tests that run alone: those that begin with `begin!(alone)`. They run last, one after another. Among the
//! others each of them would first wait until all running tests have ended, while no new one may begin.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::command::root;

/// The folder of the tests, below the workspace's root.
const TESTS_FOLDER: &str = "crates/e2e/tests/e2e";
/// The begin of such a test.
const ALONE_MARK: &str = "begin!(alone)";

/// Returns the full names of the tests that run alone.
pub fn names() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    collect(&root().join(TESTS_FOLDER), "", &mut found)?;
    Ok(found)
}

/// Returns settings for nextest by which these tests come last, one at a time.
pub fn nextest_settings(names: &BTreeSet<String>) -> String {
    let tests: Vec<String> = names.iter().map(|name| format!("test(={name})")).collect();
    format!(
        "[[profile.default.overrides]]\nfilter = \"package(sandcell-e2e) & binary(e2e) & ({})\"\npriority = -100\n\
         threads-required = \"num-test-threads\"\n",
        tests.join(" | ")
    )
}

fn collect(folder: &Path, module: &str, found: &mut BTreeSet<String>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else {
            continue;
        };
        let inner = match stem {
            "mod" | "main" => module.to_owned(),
            _ => format!("{module}{stem}::"),
        };
        if path.is_dir() {
            collect(&path, &inner, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
            found.extend(in_source(&text).map(|name| format!("{inner}{name}")));
        }
    }
    Ok(())
}

/// Returns the names of the tests in a file that run alone.
fn in_source(text: &str) -> impl Iterator<Item = &str> {
    let mut current = None;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("fn ") {
            current = rest.split('(').next();
        }
        line.contains(ALONE_MARK).then_some(current).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_run_alone_are_found_by_their_begin() {
        let text = "#[test]\nfn one() {\n    let _turn = begin!();\n}\n\n#[test]\nfn two() {\n    let _turn = begin!(alone);\n}\n";
        assert_eq!(in_source(text).collect::<Vec<_>>(), ["two"]);
        let names = names().unwrap();
        assert!(names.contains("endings::a_killed_server_leaves_nothing"), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("http::fair::")), "{names:?}");
    }

    #[test]
    fn nextest_runs_them_last() {
        let names = ["a::b", "c::d"].map(str::to_owned).into();
        let settings = nextest_settings(&names);
        assert!(
            settings.contains("(test(=a::b) | test(=c::d))\"\npriority = -100\n"),
            "{settings}"
        );
    }
}
