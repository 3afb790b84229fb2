//! Resolves shims on the search path to the programs that they would start outside of any project.
//!
//! Version managers put shims there (pyenv, rbenv, nodenv, goenv, asdf, mise, volta), and users put scripts. A shim
//! reads files and variables that do not exist in a sandbox. It is therefore read here and never run: the server still
//! starts in a millisecond, and a project's files cannot choose a program.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The maximum number of bytes read of a script or a manager's file.
const TEXT_MAX: u64 = 16 << 10;
/// The maximum number of a manager's tools or versions that are examined.
const ENTRIES_MAX: usize = 500;

/// The kind of a file on the search path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A program, or a script that does more than start one.
    Program,
    /// A shim of this program.
    StandsFor(PathBuf),
    /// A shim that chooses no program outside of a project, or one that does not exist.
    Nothing,
}

/// Examines the file `name` in a folder of the search path. `variable` reads the environment.
pub(crate) fn follow(folder: &Path, name: &str, variable: impl Fn(&str) -> Option<String>) -> Found {
    let file = folder.join(name);
    let called = file.canonicalize().ok();
    let real = called.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    let behind = match (real, folder.file_name().and_then(OsStr::to_str)) {
        (Some("volta-shim" | "volta"), _) if name != "volta" => folder.parent().and_then(|root| of_volta(root, name)),
        (Some("snap"), _) if name != "snap" => None,
        (_, Some("shims")) => folder
            .parent()
            .and_then(|root| of_manager(root, &file, name, &variable)),
        _ => match text_of(&file).as_deref().and_then(started) {
            Some(other) if other.file_name() != file.file_name() || other != file => Some(other),
            _ => return Found::Program,
        },
    };
    match behind.filter(|path| path.metadata().is_ok_and(|found| found.is_file())) {
        Some(path) => Found::StandsFor(path),
        None => Found::Nothing,
    }
}

/// Returns the program of a script that only executes it: `exec /path/python3 "$@"`.
fn started(script: &str) -> Option<PathBuf> {
    let lines = script.strip_prefix("#!")?.lines().skip(1).map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.next()?.strip_prefix("exec ")?;
    let path = line.strip_suffix("\"$@\"")?.trim().trim_matches(['"', '\'']);
    (lines.next().is_none() && path.starts_with('/') && !path.contains(['$', ' ', '`', '\\'])).then(|| path.into())
}

fn of_manager(root: &Path, file: &Path, name: &str, variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let versions = root.join("versions");
    if versions.is_dir() {
        // pyenv and its imitations. Each has its own variable, and at most one of them is set.
        let manager = root.file_name()?.to_str()?.trim_start_matches('.').to_uppercase();
        let chosen = variable(&format!("{manager}_VERSION")).or_else(|| text_of(&root.join("version")))?;
        let mut chosen = chosen
            .split([':', ' ', '\n', '\t', '\r'])
            .filter(|version| !version.is_empty());
        return chosen.find_map(|version| in_version(&versions, version, name));
    }
    let installs = root.join("installs");
    let tools = entries(&installs);
    let tools = tools.iter().filter(|tool| {
        let versions = entries(&installs.join(tool));
        versions
            .iter()
            .any(|version| installs.join(tool).join(version).join("bin").join(name).exists())
    });
    let shim = text_of(file).unwrap_or_default();
    tools.into_iter().find_map(|tool| {
        // An asdf shim names its tool.
        let other = shim.contains("asdf-plugin: ") && !shim.contains(&format!("asdf-plugin: {tool} "));
        let version = chosen_version(root, tool, variable).filter(|_| !other)?;
        in_version(&installs.join(tool), &version, name)
    })
}

/// Returns the version of a tool that asdf or mise is configured to use everywhere.
fn chosen_version(root: &Path, tool: &str, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let called = tool.to_uppercase().replace('-', "_");
    let named = ["ASDF", "MISE"]
        .iter()
        .find_map(|manager| variable(&format!("{manager}_{called}_VERSION")));
    let home = variable("HOME")
        .map(PathBuf::from)
        .or_else(|| root.parent().map(Path::to_owned))?;
    named
        .or_else(|| {
            let config = variable("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
            let table: toml::Table = text_of(&config.join("mise/config.toml"))?.parse().ok()?;
            let tools = table.get("tools")?.as_table()?;
            let also = if tool == "node" { "nodejs" } else { tool };
            match tools.get(tool).or_else(|| tools.get(also))? {
                toml::Value::String(version) => Some(version.clone()),
                toml::Value::Array(versions) => versions.first()?.as_str().map(str::to_owned),
                toml::Value::Table(table) => table.get("version")?.as_str().map(str::to_owned),
                _ => None,
            }
        })
        .or_else(|| {
            let text = text_of(&home.join(".tool-versions"))?;
            text.lines().find_map(|line| {
                let mut words = line.split_whitespace();
                let same = words
                    .next()
                    .is_some_and(|word| word == tool || (tool == "node" && word == "nodejs"));
                words.next().filter(|_| same).map(str::to_owned)
            })
        })
}

/// Returns a program of a version, which may be given by a prefix (`3.12`) or as `latest`.
fn in_version(versions: &Path, version: &str, name: &str) -> Option<PathBuf> {
    let version = version.trim_start_matches("python-");
    if version == "system" || version.contains('/') || version.contains("..") {
        return None;
    }
    let exact = versions.join(version);
    let folder = if exact.is_dir() {
        exact
    } else {
        let begins = |entry: &String| version == "latest" || entry.starts_with(&format!("{version}."));
        let newest = entries(versions)
            .into_iter()
            .filter(begins)
            .max_by_key(|entry| numbers(entry))?;
        versions.join(newest)
    };
    Some(folder.join("bin").join(name))
}

fn of_volta(root: &Path, name: &str) -> Option<PathBuf> {
    let platform = text_of(&root.join("tools/user/platform.json"))?;
    let platform: serde_json::Value = serde_json::from_str(&platform).ok()?;
    let version = platform.get("node")?.get("runtime")?.as_str()?;
    let plain = !version.contains('/');
    plain.then(|| root.join("tools/image/node").join(version).join("bin").join(name))
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Returns the names in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX);
    let mut names: Vec<String> = listed
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Returns the beginning of a file, if it is text.
fn text_of(file: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(file)
        .ok()?
        .take(TEXT_MAX)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn the_stand_in_of_a_version_manager_leads_to_the_global_version() {
        let place = tempfile::tempdir().unwrap();
        for (root, tool) in [
            ("pyenv", "python3"),
            ("rbenv", "ruby"),
            ("nodenv", "node"),
            ("goenv", "go"),
        ] {
            let root = place.path().join(format!(".{root}"));
            for version in ["3.9.1", "3.12.2", "3.12.10"] {
                put(&root.join("versions").join(version).join("bin").join(tool), "\x7fELF");
            }
            put(
                &root.join("shims").join(tool),
                "#!/usr/bin/env bash\nexec pyenv exec \"$program\" \"$@\"\n",
            );
            let at = |version: &str| Found::StandsFor(root.join("versions").join(version).join("bin").join(tool));
            let shims = root.join("shims");
            assert_eq!(follow(&shims, tool, none), Found::Nothing);
            put(&root.join("version"), "system\n3.9.1\n");
            assert_eq!(follow(&shims, tool, none), at("3.9.1"));
            put(&root.join("version"), "3.12\n");
            assert_eq!(follow(&shims, tool, none), at("3.12.10"));
            let variable = |name: &str| name.ends_with("ENV_VERSION").then(|| "3.12.2".to_owned());
            assert_eq!(follow(&shims, tool, variable), at("3.12.2"));
            put(&root.join("version"), "system\n");
            assert_eq!(follow(&shims, tool, none), Found::Nothing);
        }
    }

    #[test]
    fn asdf_mise_and_volta_are_followed() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().to_owned();
        let variable = |name: &str| (name == "HOME").then(|| home.display().to_string());
        let asdf = home.join(".asdf");
        put(&asdf.join("installs/nodejs/20.1.0/bin/node"), "\x7fELF");
        put(
            &asdf.join("shims/node"),
            "#!/bin/sh\n# asdf-plugin: nodejs 20.1.0\nexec asdf exec node \"$@\"\n",
        );
        assert_eq!(follow(&asdf.join("shims"), "node", variable), Found::Nothing);
        put(&home.join(".tool-versions"), "nodejs 20.1.0\n");
        let found = follow(&asdf.join("shims"), "node", variable);
        assert_eq!(found, Found::StandsFor(asdf.join("installs/nodejs/20.1.0/bin/node")));
        let mise = home.join(".local/share/mise");
        put(&mise.join("installs/go/1.27.1/bin/go"), "\x7fELF");
        put(&home.join("mise"), "\x7fELF");
        std::fs::create_dir_all(mise.join("shims")).unwrap();
        symlink(home.join("mise"), mise.join("shims/go")).unwrap();
        put(&home.join(".config/mise/config.toml"), "[tools]\ngo = \"1.27\"\n");
        let found = follow(&mise.join("shims"), "go", variable);
        assert_eq!(found, Found::StandsFor(mise.join("installs/go/1.27.1/bin/go")));
        let volta = home.join(".volta");
        put(&volta.join("tools/image/node/22.3.0/bin/node"), "\x7fELF");
        put(
            &volta.join("tools/user/platform.json"),
            r#"{"node": {"runtime": "22.3.0", "npm": null}}"#,
        );
        put(&volta.join("bin/volta-shim"), "\x7fELF");
        symlink("volta-shim", volta.join("bin/node")).unwrap();
        let found = follow(&volta.join("bin"), "node", variable);
        assert_eq!(found, Found::StandsFor(volta.join("tools/image/node/22.3.0/bin/node")));
    }

    #[test]
    fn a_wrapper_script_stands_for_its_program_and_any_other_script_is_a_program() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().join("real/python3");
        put(&real, "\x7fELF");
        let script = place.path().join("bin/python3");
        let look = || follow(&place.path().join("bin"), "python3", none);
        put(
            &script,
            &format!("#!/bin/sh\n# for us\nexec {} \"$@\"\n", real.display()),
        );
        assert_eq!(look(), Found::StandsFor(real.clone()));
        for other in [
            "exec /x/python3 -u \"$@\"",
            "export A=1\nexec /x/python3 \"$@\"",
            "exec $HOME/python3 \"$@\"",
            "echo",
        ] {
            put(&script, &format!("#!/bin/sh\n{other}\n"));
            assert_eq!(look(), Found::Program, "{other}");
        }
        put(&script, "#!/bin/sh\nexec /not/there/python3 \"$@\"\n");
        assert_eq!(look(), Found::Nothing);
    }
}
