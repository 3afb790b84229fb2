//! Circles among modules: the modules of every crate, and of some folders, can be put in an order in which each uses only
//! those below it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::rust_paths;

/// Folders whose modules are checked like those of a crate.
const CHECKED_FOLDERS: [&str; 7] = [
    "crates/agent/src/client",
    "crates/agent/src/server",
    "crates/backends/src/docker",
    "crates/backends/src/e2b",
    "crates/backends/src/kubernetes",
    "crates/backends/src/native",
    "crates/mcp/src/content",
];

/// For each module of one folder the modules that it uses, and for each of these a file that uses it.
#[derive(Debug, Default)]
struct Graph(BTreeMap<String, BTreeMap<String, String>>);

/// Returns one message for each use that may be a part of a circle. Each file is its path from the workspace's root, and its text.
pub fn faults(files: &[(String, String)]) -> Vec<String> {
    let crates: BTreeSet<&str> = files
        .iter()
        .filter_map(|(path, _)| path.split_once("/src/"))
        .map(|(folder, _)| folder)
        .collect();
    let roots = crates.into_iter().map(|folder| format!("{folder}/src"));
    let all = roots.chain(CHECKED_FOLDERS.map(str::to_owned));
    all.flat_map(|folder| Graph::of(&folder, files).circles(&folder))
        .collect()
}

impl Graph {
    fn of(folder: &str, files: &[(String, String)]) -> Self {
        let (crate_folder, outer) = folder.split_once("/src").unwrap_or((folder, ""));
        let outer: Vec<&str> = outer.split('/').filter(|name| !name.is_empty()).collect();
        let inside = |path: &str| {
            let path = path.strip_prefix(folder)?.strip_prefix('/')?;
            let module = path.split('/').next()?.trim_end_matches(".rs");
            // The root of a crate or folder joins its modules, and tests use what they test.
            let counts = !matches!(module, "lib" | "main" | "mod" | "bin" | "tests") && !module.ends_with("_tests");
            counts.then(|| module.to_owned())
        };
        let modules: BTreeSet<String> = files.iter().filter_map(|(path, _)| inside(path)).collect();
        let mut graph = Self::default();
        for (path, text) in files {
            let Some(module) = inside(path) else { continue };
            let below_src = path
                .strip_prefix(crate_folder)
                .and_then(|path| path.strip_prefix("/src/"));
            for used in rust_paths::used(Path::new(below_src.unwrap_or(path)), text) {
                let Some(name) = used.get(outer.len()) else { continue };
                let is_inside = outer.iter().zip(&used).all(|(outer, name)| outer == name);
                if is_inside && *name != module && modules.contains(name) {
                    let arrows = graph.0.entry(module.clone()).or_default();
                    arrows.entry(name.clone()).or_insert_with(|| path.clone());
                }
            }
        }
        graph
    }

    /// Removes modules that use none of the others, and modules that none uses. Circles remain, and modules between two
    /// circles.
    fn circles(mut self, folder: &str) -> Vec<String> {
        loop {
            let used: BTreeSet<String> = self.0.values().flat_map(BTreeMap::keys).cloned().collect();
            let before = self.0.len();
            self.0.retain(|module, _| used.contains(module));
            let users: BTreeSet<String> = self.0.keys().cloned().collect();
            for arrows in self.0.values_mut() {
                arrows.retain(|module, _| users.contains(module));
            }
            self.0.retain(|_, arrows| !arrows.is_empty());
            if self.0.len() == before {
                break;
            }
        }
        let arrows = self.0.iter().flat_map(|(module, arrows)| {
            arrows
                .iter()
                .map(move |(used, path)| format!("{path}: {module} uses {used}, and they are in a circle in {folder}"))
        });
        arrows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        faults(&files)
    }

    #[test]
    fn modules_in_an_order_have_no_circle() {
        let files = [
            ("crates/x/src/lib.rs", "mod a; mod b; use crate::a::A;"),
            ("crates/x/src/a.rs", "use crate::b::B;"),
            ("crates/x/src/b/mod.rs", "use crate::c::C;"),
            ("crates/x/src/c.rs", ""),
            ("crates/x/src/c_tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(faults_of(&files), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_named_without_the_modules_around_it() {
        let files = [
            ("crates/x/src/top.rs", "use crate::a::A;"),
            ("crates/x/src/a.rs", "use crate::{b::B, bottom};"),
            ("crates/x/src/b.rs", "use super::c::C;"),
            ("crates/x/src/c/deep.rs", "use crate::a::A;"),
            ("crates/x/src/bottom.rs", ""),
        ];
        let found = faults_of(&files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("crates/x/src/a.rs: a uses b"), "{found:?}");
        assert!(!found.concat().contains("top") && !found.concat().contains("bottom"));
    }

    #[test]
    fn a_circle_in_a_listed_folder_is_found() {
        let files = [
            ("crates/agent/src/client/reader.rs", "use super::streams::x;"),
            (
                "crates/agent/src/client/streams/mod.rs",
                "use crate::client::reader::y;",
            ),
        ];
        assert_eq!(faults_of(&files).len(), 2);
    }
}
