//! The architecture test: checks the promises of ARCHITECTURE.md about the source against the source.
//!
//! There are four kinds of promise: allowed dependencies, files that belong to one crate, places of `unsafe`, and the
//! maximum length of a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::root;
use crate::{circles, rust_paths};

/// Allowed dependencies between crates, tests included. An unlisted crate is an error, so a new one is a decision.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 27] = [
    ("attacks", &[]),
    ("sandbox", &[]),
    ("settings", &["sandbox"]),
    ("jail", &[]),
    ("link", &[]),
    ("agent", &["fuzz", "jail", "link", "sandbox"]),
    (
        "backends",
        &[
            "agent", "broker", "contract", "fake-e2b", "jail", "link", "sandbox", "settings",
        ],
    ),
    ("languages", &["fuzz", "sandbox"]),
    ("broker", &[]),
    ("packages", &["broker", "sandbox"]),
    ("images", &["broker", "sandbox"]),
    ("host-folder", &[]),
    ("host-tools", &["sandbox"]),
    // Tests of the engine use the engine on a scripted world.
    ("engine", &["host-folder", "sandbox", "testkit"]),
    ("testkit", &["engine", "sandbox"]),
    ("audit", &["engine", "sandbox"]),
    ("history", &["engine", "sandbox"]),
    ("mcp", &["engine", "sandbox", "testkit"]),
    ("rest", &["engine", "mcp", "sandbox"]),
    ("e2b-server", &["engine", "mcp", "sandbox"]),
    (
        "sandcell",
        &[
            "agent",
            "attacks",
            "audit",
            "backends",
            "broker",
            "e2b-server",
            "engine",
            "history",
            "host-tools",
            "images",
            "jail",
            "languages",
            "mcp",
            "packages",
            "rest",
            "sandbox",
            "settings",
        ],
    ),
    ("contract", &["sandbox"]),
    ("fake-e2b", &[]),
    ("fuzz", &[]),
    ("e2e", &["attacks", "fake-e2b", "fuzz", "jail"]),
    ("local-backend", &["agent", "contract", "sandbox"]),
    ("xtask", &[]),
];

/// Crates for tests: other crates may use them as dev-dependencies only, so that no program contains them.
const TEST_ONLY_CRATES: [&str; 5] = ["contract", "e2e", "fake-e2b", "fuzz", "testkit"];

/// Modules of a folder from the top down: a file uses only its own module and those below it. A module is a folder or a
/// file. A folder within a listed one may be listed too.
const MODULE_ORDER: [(&str, &[&str]); 3] = [
    (
        "crates/engine/src",
        &[
            "tool_calls",
            "checkpoint_calls",
            "file_calls",
            "execution",
            "sandbox",
            "records",
            "output",
            "admission",
            "api",
        ],
    ),
    (
        "crates/jail/src",
        &[
            "launcher",
            "container",
            "watchdog",
            "own_limits",
            "cgroup",
            "steps",
            "landlock",
            "spawn",
            "plan",
            "masked_paths",
            "direct_pipes",
            "wire",
            "spec",
            "claim",
            "kernel_files",
            "paths",
            "sys",
            "seccomp",
        ],
    ),
    (
        "crates/jail/src/launcher",
        &[
            "server",
            "supervisor",
            "fork_server",
            "spare",
            "subreaper",
            "first_process",
            "zygote",
            "root_setup",
            "base",
        ],
    ),
];

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
    println!("  dependencies, the order of modules, unsafe code and file lengths keep the rules");
    Ok(())
}

/// Returns every broken promise, as `path: description`.
fn faults(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut all = Vec::new();
    for (name, folder) in crates(root)? {
        arrows(&name, &folder, &mut faults)?;
        unsafe_is_forbidden(root, &name, &folder, &mut faults)?;
        for file in sources(&folder)? {
            let text = std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
            let path = file.strip_prefix(root).unwrap_or(&file);
            faults.extend(faults_of_file(&name, path, &text));
            faults.extend(arrows_up(path, &text));
            faults.extend(foreign_files(path, folder.strip_prefix(root).unwrap_or(&folder), &text));
            if path.extension().is_some_and(|extension| extension == "rs") {
                all.push((path.to_string_lossy().replace('\\', "/"), text));
            }
        }
    }
    faults.extend(circles::faults(&all));
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
    for used in dependencies(&manifest, &[&PROGRAM_TABLES[..], &[TEST_TABLE]].concat()) {
        if used != name && !allowed.contains(&used.as_str()) {
            faults.push(format!(
                "{name} depends on {used}, which is not in ALLOWED_DEPENDENCIES"
            ));
        }
    }
    faults.extend(test_crates_in_programs(name, &manifest));
    Ok(())
}

/// Crates for tests among the dependencies of what may be a part of a program.
fn test_crates_in_programs(name: &str, manifest: &toml::Table) -> Vec<String> {
    if TEST_ONLY_CRATES.contains(&name) {
        return Vec::new();
    }
    dependencies(manifest, &PROGRAM_TABLES)
        .into_iter()
        .filter(|used| TEST_ONLY_CRATES.contains(&used.as_str()))
        .map(|used| format!("{name} depends on {used}, which is for tests: only a dev-dependency may be"))
        .collect()
}

/// Returns the file's paths that lead to a module above its own, in every listed folder that holds the file.
fn arrows_up(path: &Path, text: &str) -> Vec<String> {
    let mut faults = BTreeSet::new();
    for (root, floors) in MODULE_ORDER {
        let (Ok(inside), Some((crate_folder, modules))) = (path.strip_prefix(root), root.split_once("/src")) else {
            continue;
        };
        let own = inside.with_extension("");
        let own = own.iter().next().unwrap_or_default().to_string_lossy();
        if path.extension().is_none_or(|extension| extension != "rs") || matches!(&*own, "lib" | "main" | "mod") {
            continue;
        }
        let shown = path.display();
        let Some(floor) = floors.iter().position(|listed| *listed == own) else {
            faults.insert(format!(
                "{shown}: {own} is not in the order of {root} (xtask/src/arch.rs)"
            ));
            continue;
        };
        let below_src = path
            .strip_prefix(crate_folder)
            .and_then(|path| path.strip_prefix("src"));
        let modules: Vec<&str> = modules.split('/').filter(|name| !name.is_empty()).collect();
        for names in rust_paths::used(below_src.unwrap_or(path), text) {
            if names.len() <= modules.len() || !modules.iter().zip(&names).all(|(module, name)| module == name) {
                continue;
            }
            let used = names.get(modules.len()).map(String::as_str).unwrap_or_default();
            if used == "*" {
                faults.insert(format!("{shown}: uses all of {root}, so its arrows cannot be seen"));
            } else if floors.iter().take(floor).any(|above| *above == used) {
                faults.insert(format!("{shown}: uses {used}, which is above {own} in {root}"));
            }
        }
    }
    faults.into_iter().collect()
}

/// Files of another crate that the file makes its own module, and files of tests that a program contains. A crate that
/// both use has them instead.
fn foreign_files(path: &Path, own_crate: &Path, text: &str) -> Vec<String> {
    let in_program = path.starts_with(own_crate.join("src"));
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let module = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.split_once('"'))
            .map(|(module, _)| module);
        if let Some(module) = module
            && !lexically_joined(path.parent().unwrap_or(path), module).starts_with(own_crate)
        {
            faults.push(format!(
                "{}:{number}: {module} belongs to another crate",
                path.display()
            ));
        }
        let includes = !line.starts_with("//") && (line.contains("include_str!(") || line.contains("include_bytes!("));
        if in_program && includes && line.contains("/tests/") {
            faults.push(format!(
                "{}:{number}: a program contains a file of tests",
                path.display()
            ));
        }
    }
    faults
}

/// Joins a folder and a relative path, without a look at the file system.
fn lexically_joined(folder: &Path, relative: &str) -> PathBuf {
    let mut joined = folder.to_path_buf();
    for part in relative.split('/') {
        match part {
            ".." => {
                joined.pop();
            }
            "." => {}
            name => joined.push(name),
        }
    }
    joined
}

/// The dependency tables of a program, and that of its tests.
const PROGRAM_TABLES: [&str; 2] = ["dependencies", "build-dependencies"];
const TEST_TABLE: &str = "dev-dependencies";

/// The workspace's crates in these dependency tables, those under `[target.…]` included.
fn dependencies(manifest: &toml::Table, tables: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (key, value) in manifest {
        let Some(inner) = value.as_table() else { continue };
        if tables.contains(&key.as_str()) {
            let used = inner.keys().filter_map(|used| used.strip_prefix("sandcell-"));
            names.extend(used.map(str::to_owned));
        } else if key == "target" {
            let targets = inner.values().filter_map(toml::Value::as_table);
            targets.for_each(|one| names.extend(dependencies(one, tables)));
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
    // Tests and benches talk to people; so do the binary and the chores.
    let may_print = matches!(name, "sandcell" | "xtask")
        || TEST_ONLY_CRATES.contains(&name)
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
    fn the_workspace_meets_the_architecture_rules() {
        assert_eq!(faults(&root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_backward_dependency_is_found_in_every_table() {
        let manifest: toml::Table =
            "[dev-dependencies]\nsandcell-mcp = {}\n[target.'cfg(unix)'.dependencies]\nsandcell-jail = {}\n"
                .parse()
                .unwrap();
        let names = dependencies(&manifest, &["dependencies", "dev-dependencies"]);
        assert!(names.contains("mcp") && names.contains("jail"), "{names:?}");
    }

    #[test]
    fn a_crate_for_tests_is_a_dev_dependency_or_a_fault() {
        let faults = |name: &str, text: &str| test_crates_in_programs(name, &text.parse().unwrap()).len();
        assert_eq!(faults("sandcell", "[dev-dependencies]\nsandcell-e2e = {}\n"), 0);
        assert_eq!(faults("sandcell", "[dependencies]\nsandcell-e2e = {}\n"), 1);
        assert_eq!(faults("sandcell", "[build-dependencies]\nsandcell-e2e = {}\n"), 1);
        assert_eq!(
            faults("mcp", "[target.'cfg(unix)'.dependencies]\nsandcell-e2e = {}\n"),
            1
        );
        assert_eq!(
            faults("mcp", "[target.'cfg(unix)'.dev-dependencies]\nsandcell-e2e = {}\n"),
            0
        );
        assert_eq!(faults("e2e", "[dependencies]\nsandcell-e2e = {}\n"), 0);
    }

    #[test]
    fn a_module_of_another_crate_and_a_test_file_in_a_program_are_found() {
        let own = Path::new("crates/agent");
        let tests = Path::new("crates/agent/tests/memory/main.rs");
        let path = |path: &str| format!("#[path = \"{path}\"]\nmod other;");
        assert_eq!(foreign_files(tests, own, &path("../agent/common.rs")).len(), 0);
        assert_eq!(foreign_files(tests, own, &path("../../../fuzz/src/lib.rs")).len(), 1);
        assert_eq!(foreign_files(tests, own, &path("../../../agents/common.rs")).len(), 1);
        // Not in one literal, since this file is checked as well.
        let included = format!("const X: &str = {}!(\"../tests/x.py\");", "include_str");
        assert_eq!(foreign_files(tests, own, &included).len(), 0);
        assert_eq!(
            foreign_files(Path::new("crates/agent/src/lib.rs"), own, &included).len(),
            1
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
        let grouped = "use crate::{\n    execution::job::Job,\n    records::spans,\n};";
        assert_eq!(arrows_up(sandbox, grouped).len(), 1);
        assert_eq!(arrows_up(sandbox, "use super::super::execution::job::Job;").len(), 1);
        assert_eq!(arrows_up(sandbox, "use super::super::*;").len(), 1);
        let head = Path::new("crates/engine/src/sandbox/mod.rs");
        assert_eq!(arrows_up(head, "use super::execution::job::Job;").len(), 1);
    }

    #[test]
    fn a_folder_within_a_folder_has_an_order_too() {
        let spare = Path::new("crates/jail/src/launcher/spare/spare_init.rs");
        let found = arrows_up(spare, "use crate::launcher::{base::fork, supervisor::State};");
        assert_eq!(
            found,
            [
                "crates/jail/src/launcher/spare/spare_init.rs: uses supervisor, which is above spare in crates/jail/src/launcher"
            ]
        );
        assert_eq!(arrows_up(spare, "use super::super::fork_server::run;").len(), 1);
        assert_eq!(
            arrows_up(spare, "use crate::launcher::base::fork; use crate::plan;").len(),
            0
        );
        let plan = Path::new("crates/jail/src/plan/host.rs");
        assert_eq!(
            arrows_up(plan, "use crate::launcher::base::fork; use crate::steps;").len(),
            2
        );
    }

    #[test]
    fn a_module_that_is_in_no_order_is_found() {
        assert_eq!(arrows_up(Path::new("crates/jail/src/new.rs"), "").len(), 1);
        assert_eq!(arrows_up(Path::new("crates/jail/src/launcher/new/mod.rs"), "").len(), 1);
        assert_eq!(arrows_up(Path::new("crates/jail/src/wire.rs"), "").len(), 0);
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
