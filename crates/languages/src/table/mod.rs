//! The table of languages: the programs they need and the steps that run their code, as data.
//!
//! `languages.toml` is built in; an operator's files extend it or replace its entries by name. A step is always an
//! argument list, and a placeholder stands for a part of one argument: no shell ever reads it. Unknown keys, unknown
//! placeholders and ambiguous names are errors, never skipped.

mod drawn;
mod find;
mod language;
mod naming;
mod one_shot;
mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcell_sandbox::{Code, Failure};
use serde::Deserialize;

pub use find::{Finder, covered_folder};
pub(crate) use find::{config, reason};
use language::Absent;
pub use language::TableLanguage;
pub use versions::{ask_versions, decide};

use crate::{Detected, Missing};

const BUILT_IN: &str = include_str!("languages.toml");
const PROOFS_TOML: &str = include_str!("proofs.toml");
/// The names of Python, which is not in the table.
const RESERVED_NAMES: [&str; 3] = ["python", "python3", "py"];
/// The maximum size of an operator's file in bytes, and the maximum number of files per folder.
const FILE_MAX: u64 = 256 << 10;
const FILES_MAX: usize = 200;
/// Placeholders that are not names of programs.
const PLACEHOLDER_NAMES: [&str; 8] = ["src", "bin", "dir", "class", "args", "memory_mb", "heap_mb", "cpus"];

/// A language's entry in the table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    pub(crate) extensions: Vec<String>,
    #[serde(default)]
    pub(crate) hashbang: Vec<String>,
    pub(crate) install: String,
    #[serde(default)]
    pub(crate) memory_mb: u64,
    #[serde(default)]
    pub(crate) naming: Naming,
    pub(crate) prepend: Option<Prepend>,
    #[serde(default)]
    pub(crate) config: Vec<String>,
    pub(crate) pictures: Option<String>,
    pub(crate) session: Option<Driver>,
    pub(crate) way: Vec<Way>,
    /// The programs that prove that it works; only tests read them.
    pub(crate) proof: Option<Proof>,
}

/// The rule for naming the source file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Naming {
    /// With the first extension.
    #[default]
    Plain,
    /// By the public class.
    Java,
    /// By the kind of module.
    Node,
}

/// Text that is prepended to code that lacks it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prepend {
    pub(crate) text: String,
    pub(crate) unless: String,
}

/// A driver that keeps variables between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driver {
    Node,
    Bash,
}

/// One way to run a language.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Way {
    pub(crate) programs: Vec<String>,
    #[serde(default)]
    pub(crate) version: Vec<String>,
    pub(crate) version_input: Option<String>,
    pub(crate) min_version: Option<String>,
    pub(crate) before_version: Option<String>,
    #[serde(default)]
    pub(crate) compile: Vec<String>,
    #[serde(default = "compile_timeout_s")]
    pub(crate) compile_timeout_s: u64,
    pub(crate) run: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) apart: bool,
    #[serde(default)]
    pub(crate) shows: Vec<PathBuf>,
}

const fn compile_timeout_s() -> u64 {
    30
}

/// Programs that prove that a language works here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// Prints `héllo ☃`, then a line of standard input in capitals (`MOIN`), then its first argument if the language
    /// has arguments, then the content of the file `note.txt`, and ends with exit status `exit`.
    pub works: String,
    /// The abilities that `works` can use.
    #[serde(default = "everything")]
    pub can: Vec<Ability>,
    /// Ends with an error that it raises, and a status other than 0.
    pub fails: String,
    /// Is not a program of this language.
    pub broken: String,
    /// Never ends.
    pub endless: String,
}

/// An ability of a language's programs besides printing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Read standard input.
    Stdin,
    /// See their arguments.
    Args,
    /// Read files.
    Files,
    /// Choose their exit status.
    Exit,
}

/// A built-in language, for the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// The extensions of its files.
    pub extensions: Vec<String>,
    /// True if it keeps variables.
    pub session: bool,
    /// The steps of each way, as in the table.
    pub ways: Vec<String>,
    /// The instruction for installing it.
    pub install: String,
}

/// Returns the built-in table, by name. Empty if it cannot be read, which a test rules out.
#[must_use]
pub fn built_in() -> Vec<Described> {
    let entries = parse(BUILT_IN, Path::new("languages.toml")).unwrap_or_default();
    let describe = |(name, entry): (String, Entry)| Described {
        name,
        aliases: entry.aliases,
        extensions: entry.extensions,
        session: entry.session.is_some(),
        ways: entry
            .way
            .iter()
            .map(|way| {
                let steps = [way.compile.join(" "), way.run.join(" ")];
                let steps: Vec<String> = steps.into_iter().filter(|step| !step.is_empty()).collect();
                steps.join(" && ")
            })
            .collect(),
        install: entry.install,
    };
    entries.into_iter().map(describe).collect()
}

/// Returns the proof of a built-in language. Only tests read it.
#[must_use]
pub fn built_in_proof(language: &str) -> Option<Proof> {
    let mut proofs: BTreeMap<String, Proof> = toml::from_str(PROOFS_TOML).ok()?;
    proofs.remove(language)
}

fn everything() -> Vec<Ability> {
    vec![Ability::Stdin, Ability::Args, Ability::Files, Ability::Exit]
}

/// All entries, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(BTreeMap<String, Entry>);

impl Table {
    /// Loads the built-in entries, extended by the `.toml` files of these folders, in order.
    ///
    /// # Errors
    /// `invalid_argument` names the file and its fault.
    pub fn load(folders: &[PathBuf]) -> Result<Self, Failure> {
        let mut entries = parse(BUILT_IN, Path::new("languages.toml"))?;
        for folder in folders {
            for file in files(folder)? {
                entries.extend(parse(&read(&file)?, &file)?);
            }
        }
        let table = Self(entries);
        table.check_names()?;
        Ok(table)
    }

    /// Checks that each name means one language.
    fn check_names(&self) -> Result<(), Failure> {
        let mut names: BTreeMap<String, &str> = RESERVED_NAMES.map(|name| (name.to_owned(), "python")).into();
        for (name, entry) in &self.0 {
            for called in std::iter::once(name).chain(&entry.aliases) {
                if let Some(other) = names.insert(called.to_lowercase(), name) {
                    return Err(wrong(
                        Path::new("the table of languages"),
                        &format!("'{called}' means both {other} and {name}"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns a language as an image provides it. Any shell can run Bash scripts, but only Bash has sessions.
    pub(crate) fn of_image(&self, name: &str, finder: &Finder) -> Option<TableLanguage> {
        let entry = self.0.get(name)?;
        let versions = versions::VersionCache::read(None);
        let found = TableLanguage::find(name, entry, finder, &versions).ok();
        if found.is_some() || entry.session != Some(Driver::Bash) {
            return found;
        }
        let mut plain = entry.clone();
        plain.session = None;
        for way in &mut plain.way {
            way.programs = vec!["sh".to_owned()];
            way.version = Vec::new();
            way.run = ["{sh}", "{src}", "{args}"].map(str::to_owned).to_vec();
        }
        TableLanguage::find(name, &plain, finder, &versions).ok()
    }

    /// Sorts the entries into those that can run here and those that cannot.
    pub(crate) fn detect(self, finder: &Finder, memory: Option<&Path>, into: &mut Detected) {
        let versions = versions::VersionCache::read(memory);
        for (name, entry) in self.0 {
            match TableLanguage::find(&name, &entry, finder, &versions) {
                Ok(language) => {
                    into.trees.extend(language.trees().iter().cloned());
                    into.config.extend(find::config(&entry.config));
                    let paths = language.programs().filter_map(|program| program.path.parent());
                    into.programs.extend(paths.map(Path::to_owned));
                    into.choices.extend(language.choice());
                    into.table.push(language);
                }
                Err(Absent { failure, undecided }) => {
                    into.trees
                        .extend(undecided.iter().flat_map(|way| way.trees().iter().cloned()));
                    into.undecided.extend(undecided);
                    into.missing.push(Missing {
                        name,
                        aliases: entry.aliases,
                        extensions: entry.extensions,
                        hashbangs: entry.hashbang,
                        failure,
                    });
                }
            }
        }
    }
}

/// Parses and checks the entries of a file.
fn parse(text: &str, file: &Path) -> Result<BTreeMap<String, Entry>, Failure> {
    let entries: BTreeMap<String, Entry> =
        toml::from_str(text).map_err(|error| wrong(file, error.to_string().trim_end()))?;
    for (name, entry) in &entries {
        check(name, entry).map_err(|reason| wrong(file, &format!("[{name}]: {reason}")))?;
    }
    Ok(entries)
}

fn check(name: &str, entry: &Entry) -> Result<(), String> {
    let plain = |text: &str| {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+#-._".contains(&b);
        !text.is_empty() && text.len() <= 40 && text.bytes().all(fits)
    };
    if !std::iter::once(name)
        .chain(entry.aliases.iter().map(String::as_str))
        .all(plain)
    {
        return Err("names have 1 to 40 lower-case letters, digits and +#-._".to_owned());
    }
    let ending = |text: &String| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    if entry.extensions.is_empty() || !entry.extensions.iter().all(ending) {
        return Err("`extensions` needs at least one, made of letters, digits and +".to_owned());
    }
    if entry.way.is_empty() {
        return Err("there is no [[way]] to run it".to_owned());
    }
    if let Some(bad) = entry.config.iter().find(|path| !find::is_config(path)) {
        return Err(format!("`config`: {bad:?} is not a path below /etc"));
    }
    for way in &entry.way {
        if way.programs.is_empty() || way.run.is_empty() {
            return Err("a way needs `programs` and `run`".to_owned());
        }
        if !(1..=3600).contains(&way.compile_timeout_s) {
            return Err("`compile_timeout_s` is 1 to 3600".to_owned());
        }
        if let Some(bad) = way.shows.iter().find(|path| !find::may_be_shown(path)) {
            return Err(format!("`shows`: {} cannot be shown", bad.display()));
        }
        let items = way
            .version
            .iter()
            .chain(&way.compile)
            .chain(&way.run)
            .chain(way.env.values());
        for item in items {
            for part in language::placeholders(item) {
                if !PLACEHOLDER_NAMES.contains(&part) && !way.programs.iter().any(|program| program == part) {
                    return Err(format!(
                        "{{{part}}} in {item:?} is neither a placeholder nor one of `programs`"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Returns the tables in a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let listed = match std::fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(folder, &format!("cannot be read: {error}"))),
    };
    let mut files: Vec<PathBuf> = listed
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    if files.len() > FILES_MAX {
        return Err(wrong(folder, &format!("holds more than {FILES_MAX} tables")));
    }
    Ok(files)
}

fn read(file: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|open| open.take(FILE_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if u64::try_from(bytes).is_ok_and(|bytes| bytes <= FILE_MAX) => Ok(text),
        Ok(_) => Err(wrong(file, &format!("has more than {FILE_MAX} bytes"))),
        Err(error) => Err(wrong(file, &format!("cannot be read: {error}"))),
    }
}

fn wrong(file: &Path, reason: &str) -> Failure {
    Failure::new(
        Code::InvalidArgument,
        format!("{}: {reason}", file.display()),
        "correct the entry (docs/guides/add-a-language.md explains each key), or take the file away",
    )
}

impl Way {
    pub(crate) const fn compile_timeout(&self) -> Duration {
        Duration::from_secs(self.compile_timeout_s)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
