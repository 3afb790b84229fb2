//! The architecture test: checks the promises of ARCHITECTURE.md about the source against the source.
//!
//! There are three kinds of promise: allowed dependencies, places of `unsafe`, and the maximum length of a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::root;

/// Allowed dependencies between crates, tests included. An unlisted crate is an error, so a new one is a decision.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 17] = [
    ("sandbox", &[]),
    ("jail", &[]),
    ("agent", &["jail", "sandbox"]),
    ("backends", &["agent", "jail", "sandbox"]),
    ("languages", &["sandbox"]),
    ("broker", &[]),
    ("packages", &["broker", "sandbox"]),
    ("images", &["broker", "sandbox"]),
    // Tests of the engine use the engine on a scripted world.
    ("engine", &["sandbox", "testkit"]),
    ("testkit", &["engine", "sandbox"]),
    ("audit", &["engine", "sandbox"]),
    ("history", &["engine", "sandbox"]),
    ("mcp", &["engine", "sandbox", "testkit"]),
    ("rest", &["engine", "mcp", "sandbox"]),
    (
        "sandcell",
        &[
            "agent",
            "audit",
            "backends",
            "broker",
            "engine",
            "history",
            "images",
            "jail",
            "languages",
            "mcp",
            "packages",
            "rest",
            "sandbox",
        ],
    ),
    ("local-backend", &["agent", "sandbox"]),
    ("xtask", &[]),
];

/// Folders of a crate from the top down: a file uses only its own folder and those below it.
const FLOORS: [(&str, &[&str]); 1] = [(
    "crates/engine/src",
    &["execution", "sandbox", "records", "output", "admission", "api"],
)];

/// The only crate that may hold `unsafe`, and where in it.
const UNSAFE_CRATE: &str = "jail";
const UNSAFE_FOLDER: &str = "crates/jail/src/sys";

/// Lines that a source file may have; the house style asks for half of it.
const MAX_FILE_LINES: usize = 800;
/// A file with a higher limit: each file of the driver adds to every interpreter's start.
const LONG_FILE: (&str, usize) = ("crates/languages/src/python/driver/core.py", 976);

pub fn run() -> Result<()> {
    let faults = faults(&root())?;
    if !faults.is_empty() {
        bail!("architecture:\n  {}", faults.join("\n  "));
    }
    println!("  arrows, unsafe code and file lengths are as promised");
    Ok(())
}

/// Returns every broken promise, as `path: description`.
fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, folder) in crates(root)? {
        arrows(&name, &folder, &mut faults)?;
        unsafe_is_forbidden(root, &name, &folder, &mut faults)?;
        for file in sources(&folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
            let path = file.strip_prefix(root).unwrap_or(&file);
            faults.extend(faults_of_file(&name, path, &text));
            faults.extend(arrows_up(path, &text));
        }
    }
    Ok(faults)
}

/// The workspace's crates, examples included: name of the folder, and the folder.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = vec![("xtask".to_owned(), root.join("xtask"))];
    for place in ["crates", "examples"] {
        for entry in std::fs::read_dir(root.join(place)).with_context(|| format!("no folder {place}/"))? {
            let folder = entry?.path();
            if folder.join("Cargo.toml").is_file() {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                found.push((name, folder));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn arrows(name: &str, folder: &Path, faults: &mut Vec<String>) -> Result<()> {
    let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(listed, _)| *listed == name) else {
        faults.push(format!("crates/{name}: not in the list of arrows (xtask/src/arch.rs)"));
        return Ok(());
    };
    let text = std::fs::read_to_string(folder.join("Cargo.toml"))?;
    let manifest: toml::Table = text.parse().with_context(|| format!("{name}/Cargo.toml"))?;
    for used in dependencies(&manifest) {
        let Some(used) = used.strip_prefix("sandcell-") else {
            continue;
        };
        if used != name && !allowed.contains(&used) {
            faults.push(format!("{name} depends on {used}: nothing points that way"));
        }
    }
    Ok(())
}

/// Paths of the file that lead to a folder above its own.
fn arrows_up(path: &Path, text: &str) -> Vec<String> {
    let Some((folders, inside)) = FLOORS
        .iter()
        .find_map(|(root, folders)| Some((*folders, path.strip_prefix(root).ok()?)))
    else {
        return Vec::new();
    };
    let own = inside
        .components()
        .next()
        .map(|folder| folder.as_os_str().to_string_lossy());
    let Some(floor) = folders.iter().position(|folder| own.as_deref() == Some(*folder)) else {
        return Vec::new();
    };
    let above = folders.iter().take(floor);
    above
        .filter(|folder| {
            text.contains(&format!("crate::{folder}::")) || text.contains(&format!("super::super::{folder}"))
        })
        .map(|folder| format!("{}: uses {folder}/, which is above its own folder", path.display()))
        .collect()
}

/// The names in every dependency table, those under `[target.…]` included.
fn dependencies(table: &toml::Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (key, value) in table {
        let Some(inner) = value.as_table() else { continue };
        match key.as_str() {
            "dependencies" | "dev-dependencies" | "build-dependencies" => names.extend(inner.keys().cloned()),
            "target" => inner
                .values()
                .filter_map(toml::Value::as_table)
                .for_each(|one| names.extend(dependencies(one))),
            _ => {}
        }
    }
    names
}

fn unsafe_is_forbidden(root: &Path, name: &str, folder: &Path, faults: &mut Vec<String>) -> Result<()> {
    if name == UNSAFE_CRATE {
        return Ok(());
    }
    for head in ["src/lib.rs", "src/main.rs"] {
        let file = folder.join(head);
        if !file.is_file() {
            continue;
        }
        if !std::fs::read_to_string(&file)?.contains("#![forbid(unsafe_code)]") {
            let path = file.strip_prefix(root).unwrap_or(&file);
            faults.push(format!("{}: lacks #![forbid(unsafe_code)]", path.display()));
        }
    }
    Ok(())
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                if !matches!(
                    path.file_name().and_then(|name| name.to_str()),
                    Some("target" | "snapshots")
                ) {
                    folders.push(path);
                }
            } else if matches!(
                path.extension().and_then(|e| e.to_str()),
                Some("rs" | "py" | "js" | "sh")
            ) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn faults_of_file(name: &str, path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    let mut faults = Vec::new();
    let lines = text.lines().count();
    let max_lines = if path == Path::new(LONG_FILE.0) {
        LONG_FILE.1
    } else {
        MAX_FILE_LINES
    };
    if lines > max_lines {
        faults.push(format!("{shown}: {lines} lines, more than {max_lines}"));
    }
    if path.extension().is_none_or(|extension| extension != "rs") {
        return faults;
    }
    let may_be_unsafe = path.starts_with(UNSAFE_FOLDER);
    // Integration tests and benches talk to people; so do the binary and the chores.
    let may_print = matches!(name, "sandcell" | "xtask")
        || path.ends_with("build.rs")
        || path
            .components()
            .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches" | "examples")));
    let mut in_tests = false;
    for (number, line) in (1..).zip(text.lines()) {
        in_tests |= line.trim() == "#[cfg(test)]";
        let code = line.split("//").next().unwrap_or_default();
        if !may_be_unsafe && words(code).any(|word| word == "unsafe") {
            faults.push(format!("{shown}:{number}: `unsafe` outside {UNSAFE_FOLDER}"));
        }
        if !may_print
            && !in_tests
            && ["println!", "eprintln!", "print!", "eprint!", "dbg!"]
                .iter()
                .any(|one| code.contains(one))
        {
            faults.push(format!("{shown}:{number}: a library does not print"));
        }
    }
    faults
}

/// Identifiers outside text literals, roughly: enough to tell the keyword from `unsafe_code` and from prose.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split('"')
        .step_by(2)
        .flat_map(|part| part.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '`'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_keeps_its_promises() {
        assert_eq!(faults(&root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_arrow_that_points_back_is_found_in_every_table() {
        let manifest: toml::Table =
            "[dev-dependencies]\nsandcell-mcp = {}\n[target.'cfg(unix)'.dependencies]\nsandcell-jail = {}\n"
                .parse()
                .unwrap();
        let names = dependencies(&manifest);
        assert!(
            names.contains("sandcell-mcp") && names.contains("sandcell-jail"),
            "{names:?}"
        );
    }

    #[test]
    fn a_path_to_a_folder_above_is_found() {
        let sandbox = Path::new("crates/engine/src/sandbox/pool.rs");
        assert_eq!(arrows_up(sandbox, "use crate::execution::job::Job;").len(), 1);
        assert_eq!(
            arrows_up(sandbox, "use crate::records::spans; use crate::sandbox::state;").len(),
            0
        );
        let whole = Path::new("crates/engine/src/lib.rs");
        assert_eq!(arrows_up(whole, "use crate::execution::job::Job;").len(), 0);
    }

    #[test]
    fn unsafe_is_found_as_a_keyword_only() {
        let path = Path::new("crates/engine/src/lib.rs");
        assert_eq!(
            faults_of_file("engine", path, "#![forbid(unsafe_code)] // unsafe\n\"unsafe\"").len(),
            0
        );
        assert_eq!(faults_of_file("engine", path, "let x = unsafe { y() };").len(), 1);
        let allowed = Path::new("crates/jail/src/sys/clone.rs");
        assert_eq!(faults_of_file("jail", allowed, "unsafe { y() }").len(), 0);
    }

    #[test]
    fn a_library_that_prints_and_a_file_that_is_too_long_are_found() {
        let path = Path::new("crates/engine/src/lib.rs");
        assert_eq!(faults_of_file("engine", path, "println!();").len(), 1);
        assert_eq!(
            faults_of_file("engine", path, "#[cfg(test)]\nmod tests { println!(); }").len(),
            0
        );
        assert_eq!(faults_of_file("engine", path, &"x\n".repeat(801)).len(), 1);
    }
}
