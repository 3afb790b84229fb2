//! The wheel: the Python package of `python/` and the program, so that `pip install` gives both. The metadata for
//! registries comes from `python/pyproject.toml`, the version from the workspace.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::archive::{Member, zip};
use super::packages::{NOTICES_FILE, PACKAGE_KEYWORDS, PACKAGE_SUMMARY, readme};
use super::{Build, Machine, Release};
use crate::command::root;

/// The C libraries whose systems a static binary runs on, as Python names them: all of them.
const LIBC_TAGS: [&str; 2] = ["manylinux2014", "musllinux_1_1"];
/// The one file of the package that is written here, so that wheel and package cannot differ in it.
const VERSION_FILE: &str = "sandcell/_version.py";

pub(super) fn name(release: &Release, machine: &Machine) -> String {
    let platforms: Vec<String> = platforms(machine).collect();
    format!("sandcell-{}-py3-none-{}.whl", release.version, platforms.join("."))
}

pub(super) fn make(release: &Release, build: &Build) -> Result<Vec<u8>> {
    let version = &release.version;
    let info = format!("sandcell-{version}.dist-info");
    let project = project()?;
    let tags: String = platforms(build.machine)
        .map(|platform| format!("Tag: py3-none-{platform}\n"))
        .collect();
    let mut members = package(version)?;
    members.extend([
        Member::program(format!("sandcell-{version}.data/scripts/sandcell"), &build.binary),
        Member::text(format!("{info}/licenses/LICENSE"), release.licence.clone()),
        Member::text(format!("{info}/licenses/{NOTICES_FILE}"), build.notices.clone()),
        Member::text(
            format!("{info}/METADATA"),
            metadata(&project, version, &readme(release))?,
        ),
        Member::text(
            format!("{info}/WHEEL"),
            format!("Wheel-Version: 1.0\nGenerator: sandcell-xtask\nRoot-Is-Purelib: false\n{tags}"),
        ),
    ]);
    let entry_points = entry_points(&project)?;
    if !entry_points.is_empty() {
        members.push(Member::text(format!("{info}/entry_points.txt"), entry_points));
    }
    let line = |member: &Member| {
        let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(&member.bytes));
        format!("{},sha256={hash},{}\n", member.path, member.bytes.len())
    };
    let record: String = members.iter().map(line).collect();
    let own = format!("{info}/RECORD");
    members.push(Member::text(own.clone(), format!("{record}{own},,\n")));
    zip(&members)
}

fn platforms(machine: &Machine) -> impl Iterator<Item = String> {
    LIBC_TAGS
        .into_iter()
        .map(move |library| format!("{library}_{}", machine.name))
}

/// The files of the package, in the order of their names.
fn package(version: &str) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    let source = root().join("python/src");
    add_folder(&source.join("sandcell"), "sandcell", &mut members)?;
    members.sort_by(|one, other| one.path.cmp(&other.path));
    let own = members.iter_mut().find(|member| member.path == VERSION_FILE);
    let own = own.with_context(|| format!("{} has no {VERSION_FILE}", source.display()))?;
    own.bytes = version_file(version).into_bytes();
    Ok(members)
}

fn version_file(version: &str) -> String {
    format!("\"\"\"The version of the package.\"\"\"\n\nVERSION = \"{version}\"\n")
}

fn add_folder(folder: &Path, name: &str, members: &mut Vec<Member>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{name}/{file}");
        if entry.file_type()?.is_dir() {
            if file != "__pycache__" {
                add_folder(&entry.path(), &path, members)?;
            }
        } else {
            members.push(Member::text(path, fs::read(entry.path())?));
        }
    }
    Ok(())
}

fn project() -> Result<Table> {
    let text = fs::read_to_string(root().join("python/pyproject.toml"))?;
    let mut settings: Table = text.parse().context("python/pyproject.toml")?;
    match settings.remove("project") {
        Some(Value::Table(project)) => Ok(project),
        _ => anyhow::bail!("python/pyproject.toml has no [project]"),
    }
}

/// The core metadata, version 2.4.
fn metadata(project: &Table, version: &str, readme: &str) -> Result<String> {
    let requires = project.get("requires-python").and_then(Value::as_str);
    let requires = requires.context("python/pyproject.toml has no requires-python")?;
    let mut text = format!(
        "Metadata-Version: 2.4\nName: sandcell\nVersion: {version}\nSummary: {PACKAGE_SUMMARY}\nLicense-Expression: MIT\n\
         License-File: LICENSE\nLicense-File: {NOTICES_FILE}\nKeywords: {}\nRequires-Python: {requires}\n\
         Classifier: Operating System :: POSIX :: Linux\n",
        PACKAGE_KEYWORDS.join(",")
    );
    let classifiers = texts(project.get("classifiers"))?;
    for classifier in classifiers.iter().filter(|one| !one.starts_with("Operating System")) {
        writeln!(text, "Classifier: {classifier}")?;
    }
    for requirement in texts(project.get("dependencies"))? {
        writeln!(text, "Requires-Dist: {requirement}")?;
    }
    if let Some(extras) = project.get("optional-dependencies") {
        for (extra, requirements) in extras.as_table().context("optional-dependencies is no table")? {
            writeln!(text, "Provides-Extra: {extra}")?;
            for requirement in texts(Some(requirements))? {
                let (requirement, marker) = match requirement.split_once(';') {
                    Some((requirement, marker)) => (requirement.trim(), format!("({}) and ", marker.trim())),
                    None => (requirement, String::new()),
                };
                writeln!(text, "Requires-Dist: {requirement}; {marker}extra == '{extra}'")?;
            }
        }
    }
    write!(text, "Description-Content-Type: text/markdown\n\n{readme}")?;
    Ok(text)
}

/// Returns the entry points by which frameworks find the package; empty when it has none.
fn entry_points(project: &Table) -> Result<String> {
    ensure!(
        !project.contains_key("scripts"),
        "python/pyproject.toml has scripts, but the wheel brings the program"
    );
    let mut text = String::new();
    let Some(groups) = project.get("entry-points") else {
        return Ok(text);
    };
    for (group, points) in groups.as_table().context("entry-points is no table")? {
        writeln!(text, "[{group}]")?;
        for (name, target) in points.as_table().context("a group of entry points is no table")? {
            writeln!(
                text,
                "{name} = {}",
                target.as_str().context("an entry point is no text")?
            )?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn texts(value: Option<&Value>) -> Result<Vec<&str>> {
    let Some(value) = value else {
        return Ok(Vec::new());
    };
    let items = value
        .as_array()
        .context("a list is expected in python/pyproject.toml")?;
    let mut texts = Vec::new();
    for item in items {
        texts.push(item.as_str().context("a text is expected in python/pyproject.toml")?);
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_the_source_tree_has_the_version_of_the_workspace() {
        let file = fs::read_to_string(root().join("python/src").join(VERSION_FILE)).unwrap();
        assert_eq!(file, version_file(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn the_wheel_holds_every_module_in_order_and_no_cached_bytecode() {
        let members = package("7.8.9").unwrap();
        let paths: Vec<&str> = members.iter().map(|member| member.path.as_str()).collect();
        for path in ["sandcell/__init__.py", "sandcell/py.typed", VERSION_FILE] {
            assert!(paths.contains(&path), "{path}");
        }
        assert!(
            paths.is_sorted() && !paths.iter().any(|path| path.contains("__pycache__")),
            "{paths:?}"
        );
        let version = members.iter().find(|member| member.path == VERSION_FILE).unwrap();
        assert!(String::from_utf8_lossy(&version.bytes).contains("VERSION = \"7.8.9\""));
    }

    #[test]
    fn extras_and_entry_points_are_in_the_format_of_installers() {
        let project: Table = "requires-python = '>=3.9'\nclassifiers = ['Typing :: Typed']\n\
            [optional-dependencies]\none = ['a>=1', \"b; python_version < '3.11'\"]\n\
            [entry-points.'some.group']\nsandcell = 'sandcell.one:Two'\n"
            .parse()
            .unwrap();
        let text = metadata(&project, "1.0.0", "Readme").unwrap();
        for line in [
            "Requires-Python: >=3.9\n",
            "Classifier: Typing :: Typed\n",
            "Provides-Extra: one\nRequires-Dist: a>=1; extra == 'one'\n",
            "Requires-Dist: b; (python_version < '3.11') and extra == 'one'\n",
            "\n\nReadme",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(
            entry_points(&project).unwrap(),
            "[some.group]\nsandcell = sandcell.one:Two\n\n"
        );
    }
}
