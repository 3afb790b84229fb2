//! The versions of installed languages: asked inside a sandbox, and cached on disk.
//!
//! A server's start asks no program; it uses cached answers. `sandcell languages` asks for the unknown ones, and stores
//! the answers in one file of the data folder. An answer counts only for the exact program that gave it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcell_sandbox::{Channel, Language, Sandbox, StdinMode, gather};
use tokio::time::timeout;

use super::TableLanguage;
use crate::Detected;
use crate::disk_cache::{read_own, state, write_own};

/// The file's name in the data folder.
const CACHE_FILE: &str = "languages";
/// Must change with the format.
const CACHE_HEADER: &str = "sandcell languages 1";
/// The deadline of one answer; a Java machine needs seconds on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const ANSWER_BYTES: usize = 4096;

/// The cached answers.
#[derive(Debug, Default)]
pub(super) struct VersionCache(BTreeMap<String, String>);

impl VersionCache {
    pub(super) fn read(memory: Option<&Path>) -> Self {
        let text = memory.and_then(|folder| read_own(&folder.join(CACHE_FILE)));
        let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let mut lines = text.lines();
        if lines.next() != Some(CACHE_HEADER) {
            return Self::default();
        }
        Self(
            lines
                .filter_map(|line| line.rsplit_once('\t'))
                .map(|(key, version)| (key.to_owned(), version.to_owned()))
                .collect(),
        )
    }

    pub(super) fn of(&self, language: &TableLanguage) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&key(language)?).cloned()
    }

    /// Returns this program's answer for any language: the version of a way that is not taken is never asked.
    pub(super) fn of_program(&self, program: &Path) -> Option<&str> {
        let part = format!("\t{}\t{}", program.to_str()?, state(program)?);
        let fits = |key: &&String| key.ends_with(&part) && key.matches('\t').count() == 2;
        let key = self.0.keys().find(fits)?;
        self.0.get(key).map(String::as_str)
    }

    fn keep(&self, memory: &Path) {
        let lines = self.0.iter().map(|(key, version)| format!("{key}\t{version}\n"));
        let text = std::iter::once(format!("{CACHE_HEADER}\n"))
            .chain(lines)
            .collect::<String>();
        if let Err(error) = write_own(memory, CACHE_FILE, text.as_bytes()) {
            tracing::debug!(%error, "the versions of languages could not be remembered");
        }
    }
}

/// Returns the cache key: the language and the file of every program of its way.
fn key(language: &TableLanguage) -> Option<String> {
    let mut key = language.info().name.clone();
    for program in language.programs() {
        let path = program.real.to_str().filter(|path| !path.contains(['\t', '\n']))?;
        key.push_str(&format!("\t{path}\t{}", state(&program.real)?));
    }
    Some(key)
}

/// Asks the languages with unknown versions inside this sandbox, and caches the answers.
pub async fn ask_versions(languages: &mut [TableLanguage], sandbox: &dyn Sandbox, memory: Option<&Path>) {
    let mut asked = false;
    for language in languages.iter_mut().filter(|one| one.info().version.is_empty()) {
        asked = true;
        if let Some(version) = ask(language, sandbox).await {
            language.set_version(version);
        }
    }
    if asked {
        remember(languages, memory);
    }
}

/// Asks, inside this sandbox, for the versions that decide whether a language can run, and caches the answers.
pub async fn decide(detected: &mut Detected, sandbox: &dyn Sandbox, memory: Option<&Path>) {
    let mut answers: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    let mut problems: BTreeMap<String, String> = BTreeMap::new();
    for mut way in std::mem::take(&mut detected.undecided) {
        let Some(program) = way.first_real() else { continue };
        if !answers.contains_key(&program) {
            answers.insert(program.clone(), ask(&way, sandbox).await);
        }
        let Some(version) = answers.get(&program).cloned().flatten() else {
            continue;
        };
        // If the program cannot run this language, its answer is cached under another language of the same program.
        let same =
            |one: &&mut TableLanguage| one.info().version.is_empty() && one.first_real().as_ref() == Some(&program);
        for language in detected.table.iter_mut().filter(same) {
            language.set_version(version.clone());
        }
        let name = way.info().name.clone();
        if let Some(problem) = way.unfit(&version) {
            problems.entry(name).or_insert(problem);
        } else if let Some(at) = detected.missing.iter().position(|one| one.name == name) {
            detected.missing.remove(at);
            way.set_version(version);
            detected.choices.extend(way.choice());
            detected.table.push(way);
        }
    }
    for missing in &mut detected.missing {
        if let Some(problem) = problems.get(&missing.name) {
            missing.failure.message.push_str(&format!("; {problem}"));
        }
    }
    detected
        .table
        .sort_by(|one, other| one.info().name.cmp(&other.info().name));
    remember(&detected.table, memory);
}

fn remember(languages: &[TableLanguage], memory: Option<&Path>) {
    let known = languages.iter().filter(|one| !one.info().version.is_empty());
    let known = known.filter_map(|one| Some((key(one)?, one.info().version.clone())));
    if let Some(memory) = memory {
        VersionCache(known.collect()).keep(memory);
    }
}

async fn ask(language: &TableLanguage, sandbox: &dyn Sandbox) -> Option<String> {
    let (mut command, input) = language.version_command(sandbox.base_env())?;
    command.stdin = StdinMode::Piped;
    let answer = timeout(ANSWER_TIMEOUT, async {
        let process = sandbox.spawn(command).await.ok()?;
        // A program that ends without reading has answered anyway.
        let _unread = process.handle.write(Channel::Stdin, input.into()).await;
        let _unread = process.handle.close(Channel::Stdin).await;
        Some(gather(process, ANSWER_BYTES).await)
    });
    let answer = answer.await.ok().flatten()?;
    version_in(&answer.stdout).or_else(|| version_in(&answer.stderr))
}

/// Returns the first version in a text: numbers with dots, else a single number.
fn version_in(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let numbers = || {
        text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
            .map(|part| part.trim_matches('.'))
            .filter(|part| part.len() <= 30 && part.starts_with(|c: char| c.is_ascii_digit()))
    };
    numbers()
        .find(|part| part.contains('.'))
        .or_else(|| numbers().next())
        .map(str::to_owned)
}

/// Returns true if a version is at least another one; false for an unknown one.
pub(super) fn is_at_least(version: &str, least: &str) -> bool {
    let parts = |text: &str| -> Vec<u64> { text.split('.').map_while(|part| part.parse().ok()).collect() };
    !version.is_empty() && parts(version) >= parts(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_program_output() {
        for (said, version) in [
            ("v20.20.2\n", "20.20.2"),
            ("go version go1.19.8 linux/amd64", "1.19.8"),
            ("GNU Awk 5.1.0, API: 3.0", "5.1.0"),
            ("sqlite3 says 3.40.1 2022-12-28", "3.40.1"),
            ("25", "25"),
            ("Welcome to Racket v8.6 [cs].", "8.6"),
            ("SWI-Prolog version 9.0.4 for x86_64-linux", "9.0.4"),
        ] {
            assert_eq!(version_in(said.as_bytes()).as_deref(), Some(version), "{said}");
        }
        assert_eq!(version_in(b"no idea"), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_at_least("22.18.0", "22.18") && is_at_least("24.1", "22.18"));
        assert!(!is_at_least("22.9", "22.18") && !is_at_least("", "1") && !is_at_least("20.20.2", "22.18"));
    }
}
