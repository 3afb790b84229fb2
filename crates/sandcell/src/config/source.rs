//! The sources of settings, in order of precedence: defaults < `/etc/sandcell/config.toml` <
//! `~/.config/sandcell/config.toml` (`%APPDATA%\sandcell\config.toml` on Windows) < `--config` < `.env` in the working
//! folder < environment < flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use sandcell_sandbox::System;
use sandcell_settings::{Kind, OtherName, Setting, Value, mount};

use super::dotenv;
use super::error::ConfigError;
use super::folders;
use super::table;

/// The maximum number of bytes read of one file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The prefix of our environment variables.
const VARIABLE_PREFIX: &str = "SANDCELL_";
/// The prefix of the test suite's variables, which are not settings.
const TEST_PREFIX: &str = "SANDCELL_TEST_";
/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The table of settings.
    Default,
    /// A TOML file.
    File(PathBuf),
    /// A variable in a `.env` file.
    DotEnv(PathBuf, String),
    /// A variable of the environment.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::DotEnv(path, name) => write!(f, "{name} in {}", path.display()),
            Self::Environment(name) => write!(f, "{name} in the environment"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// A setting given by a flag.
#[derive(Debug, Clone)]
pub(crate) struct FlagValue {
    /// The setting's key.
    pub(crate) key: &'static str,
    /// The flag, for messages.
    pub(crate) flag: &'static str,
    /// The flag's values, one for each time it was given.
    pub(crate) texts: Vec<String>,
}

/// The sources from which this process reads settings.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    /// Files that may exist, the weakest first.
    pub(crate) files: Vec<PathBuf>,
    /// The file that `--config` names; it must exist.
    pub(crate) named_file: Option<PathBuf>,
    /// The `.env` file of the working folder.
    pub(crate) dotenv: Option<PathBuf>,
    /// The environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Flags.
    pub(crate) flags: Vec<FlagValue>,
}

impl Surroundings {
    /// Returns the sources of this process.
    pub(crate) fn of_this_process(named_file: Option<PathBuf>, flags: Vec<FlagValue>) -> Self {
        let user = folders::settings(System::of_this_machine(), |name| std::env::var_os(name))
            .map(|folder| folder.join("config.toml"));
        // On Windows every user may create such a folder.
        let system = cfg!(unix).then(|| PathBuf::from("/etc/sandcell/config.toml"));
        Self {
            files: system.into_iter().chain(user).collect(),
            named_file,
            dotenv: std::env::current_dir().ok().map(|folder| folder.join(".env")),
            env: std::env::vars_os().collect(),
            flags,
        }
    }
}

/// Every setting with its value and origin.
pub(crate) type Layered = BTreeMap<&'static str, (Value, Origin)>;

/// Reads all layers.
pub(crate) fn read(around: &Surroundings) -> Result<Layered, ConfigError> {
    let mut layered = defaults()?;
    for file in &around.files {
        if let Some(text) = read_if_there(file)? {
            merge_toml(&mut layered, file, &text)?;
        }
    }
    if let Some(file) = &around.named_file {
        let text = read_if_there(file)?.ok_or_else(|| ConfigError::Unreadable {
            file: file.clone(),
            source: std::io::Error::other("there is no such file"),
        })?;
        merge_toml(&mut layered, file, &text)?;
    }
    if let Some(file) = &around.dotenv {
        // A folder or a pipe of this name is no settings file, and reading a pipe might never end.
        if file.is_file()
            && let Some(text) = read_if_there(file)?
        {
            merge_dotenv(&mut layered, file, &text)?;
        }
    }
    merge_environment(&mut layered, &around.env)?;
    for flag in &around.flags {
        merge_flag(&mut layered, flag)?;
    }
    Ok(layered)
}

fn defaults() -> Result<Layered, ConfigError> {
    let mut layered = Layered::new();
    for setting in table::settings() {
        let value = parse_text(setting, setting.declaration.default, "the table of settings")?;
        layered.insert(setting.key, (value, Origin::Default));
    }
    Ok(layered)
}

/// Checks each setting of a file's text.
pub(crate) fn check(file: &Path, text: &str) -> Result<(), ConfigError> {
    merge_toml(&mut defaults()?, file, text)
}

/// Returns the text of a settings file; none if the file does not exist.
pub(crate) fn read_if_there(file: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        file: file.to_owned(),
        source,
    };
    let open = match std::fs::File::open(file) {
        Ok(open) => open,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    let read = open
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(read).is_ok_and(|read| read > MAX_FILE_BYTES) {
        return Err(ConfigError::TooLarge {
            file: file.to_owned(),
            limit: MAX_FILE_BYTES,
        });
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(std::io::ErrorKind::InvalidData.into()))?;
    Ok(Some(text))
}

fn merge_toml(layered: &mut Layered, file: &Path, text: &str) -> Result<(), ConfigError> {
    let parsed: toml::Table = toml::from_str(text).map_err(|error| ConfigError::Syntax {
        file: file.to_owned(),
        line: error
            .span()
            .and_then(|span| text.get(..span.start))
            .map_or(1, |before| before.matches('\n').count() + 1),
        reason: error.message().to_owned(),
    })?;
    let place = file.display().to_string();
    for (key, value) in flatten("", parsed) {
        let setting = known(&place, &key)?;
        let parsed = setting.declaration.kind.read_toml(&value).map_err(|reason| {
            let words = match &value {
                toml::Value::String(text) => vec![text.as_str()],
                toml::Value::Array(items) => items.iter().filter_map(toml::Value::as_str).collect(),
                _ => Vec::new(),
            };
            refused(setting, &place, &words, reason)
        })?;
        layered.insert(setting.key, (parsed, Origin::File(file.to_owned())));
    }
    Ok(())
}

/// Flattens `{limits: {cpus: 1}}` to `limits.cpus`, to the depth of our tables.
fn flatten(prefix: &str, table: toml::Table) -> Vec<(String, toml::Value)> {
    let mut flat = Vec::new();
    for (name, value) in table {
        let key = canonical(&format!("{prefix}{name}")).to_owned();
        let below = format!("{key}.");
        let is_ours = key == "backend" || table::settings().any(|setting| setting.key.starts_with(&below));
        match value {
            toml::Value::Table(inner) if is_ours => flat.extend(flatten(&below, inner)),
            other => flat.push((key, other)),
        }
    }
    flat
}

/// Returns the key without the prefix `backend.`: back ends' tables may also stand below `[backend]`, if that is a
/// table.
fn canonical(key: &str) -> &str {
    let Some(rest) = key.strip_prefix("backend.") else {
        return key;
    };
    let table = rest.split('.').next().unwrap_or(rest);
    match table::find("backend").map(|setting| setting.declaration.kind) {
        Some(Kind::ListOf(names)) if names.contains(&table) => rest,
        _ => key,
    }
}

pub(super) fn known(place: &str, key: &str) -> Result<&'static Setting, ConfigError> {
    if let Some(setting) = table::find(key) {
        return Ok(setting);
    }
    Err(ConfigError::Unknown {
        place: place.to_owned(),
        key: key.to_owned(),
        nearest: table::nearest(key, table::settings().map(|setting| setting.key)).map(str::to_owned),
    })
}

fn parse_text(setting: &'static Setting, text: &str, place: &str) -> Result<Value, ConfigError> {
    setting.declaration.kind.read_text(text).map_err(|reason| {
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        refused(setting, place, &words, reason)
    })
}

fn refused(setting: &Setting, place: &str, words: &[&str], reason: String) -> ConfigError {
    let later = table::WORDS_NOT_YET
        .iter()
        .filter(|(key, _)| *key == setting.key)
        .flat_map(|(_, later)| later.iter())
        .find(|later| words.contains(later));
    match later {
        Some(word) => ConfigError::NotYet {
            place: place.to_owned(),
            what: format!("{} \"{word}\"", setting.key),
        },
        None => ConfigError::Invalid {
            place: place.to_owned(),
            key: setting.key.to_owned(),
            reason,
        },
    }
}

/// Returns the setting that another program's variable of this name sets.
fn by_other_name(name: &str) -> Option<(&'static Setting, OtherName)> {
    let named = |setting: &'static Setting| Some((setting, setting.declaration.other_name?));
    table::settings()
        .filter_map(named)
        .find(|(_, other)| other.name == name)
}

/// Returns the value that the other program itself reads from the text of its variable.
fn normalize_other<'a>(name: &str, text: &'a str) -> &'a str {
    match by_other_name(name) {
        Some((_, other)) if other.is_lenient_flag && text.eq_ignore_ascii_case("true") => "true",
        Some((_, other)) if other.is_lenient_flag => "false",
        _ => text,
    }
}

fn is_ours(name: &str) -> bool {
    (name.starts_with(VARIABLE_PREFIX)
        && !name.starts_with(TEST_PREFIX)
        && !table::OTHER_VARIABLES.iter().any(|(other, _)| *other == name))
        || by_other_name(name).is_some()
}

/// Returns the setting of one of our variables.
fn by_variable(place: &str, name: &str) -> Result<&'static Setting, ConfigError> {
    if let Some((setting, _)) = by_other_name(name) {
        return Ok(setting);
    }
    if let Some(setting) = table::settings().find(|setting| setting.env_name() == name) {
        return Ok(setting);
    }
    let key = name
        .strip_prefix(VARIABLE_PREFIX)
        .unwrap_or(name)
        .to_lowercase()
        .replace("__", ".");
    if let Some(setting) = table::find(canonical(&key)) {
        return Ok(setting);
    }
    // Names are compared without their common prefix, which would make any two of them similar.
    let others = table::OTHER_VARIABLES.iter().map(|(other, _)| *other);
    let nearest = table::nearest(&key, table::settings().map(|setting| setting.key))
        .and_then(table::find)
        .map(Setting::env_name)
        .or_else(|| table::nearest(name, others).map(str::to_owned));
    Err(ConfigError::Unknown {
        place: place.to_owned(),
        key: name.to_owned(),
        nearest,
    })
}

/// Sorts our own names last, so that they win over the other programs' names of the same layer.
fn weakest_first<T>(variables: &mut [(String, T)]) {
    variables.sort_by_key(|(name, _)| name.starts_with(VARIABLE_PREFIX));
}

fn merge_dotenv(layered: &mut Layered, file: &Path, text: &str) -> Result<(), ConfigError> {
    let mut variables = dotenv::parse(text, is_ours).map_err(|bad| ConfigError::Syntax {
        file: file.to_owned(),
        line: bad.0,
        reason: "a quoted value does not end on its line".to_owned(),
    })?;
    weakest_first(&mut variables);
    let place = file.display().to_string();
    for (name, value) in variables {
        let setting = by_variable(&place, &name)?;
        if !setting.declaration.dotenv && by_other_name(&name).is_some() {
            // The file belongs to a project that uses the name for another purpose.
            tracing::debug!("{name} is not taken from {place}");
            continue;
        }
        if !setting.declaration.dotenv {
            return Err(ConfigError::NotFromProject { place, key: name });
        }
        let value = parse_text(setting, &value, &format!("{name} in {place}"))?;
        layered.insert(setting.key, (value, Origin::DotEnv(file.to_owned(), name)));
    }
    Ok(())
}

fn merge_environment(layered: &mut Layered, env: &[(OsString, OsString)]) -> Result<(), ConfigError> {
    let mut variables: Vec<(String, &OsString)> = env
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value)))
        .filter(|(name, _)| is_ours(name))
        .collect();
    weakest_first(&mut variables);
    for (name, value) in variables {
        let setting = by_variable("the environment", &name)?;
        let place = format!("{name} in the environment");
        let text = value.to_str().ok_or_else(|| ConfigError::Invalid {
            place: place.clone(),
            key: setting.key.to_owned(),
            reason: "must be UTF-8".to_owned(),
        })?;
        if text.is_empty() && !name.starts_with(VARIABLE_PREFIX) {
            continue;
        }
        let text = normalize_other(&name, text);
        let value = parse_text(setting, text, &place)?;
        layered.insert(setting.key, (value, Origin::Environment(name)));
    }
    Ok(())
}

fn merge_flag(layered: &mut Layered, flag: &FlagValue) -> Result<(), ConfigError> {
    let invalid = |reason| ConfigError::Flag {
        flag: flag.flag,
        reason,
    };
    let (Some(setting), false) = (table::find(flag.key), flag.texts.is_empty()) else {
        return Ok(());
    };
    let value = if let Kind::Mounts = setting.declaration.kind {
        // Each flag is one mount, commas included. Flags add to the file's mounts and win over a mount at the same
        // path.
        let mut mounts = Vec::new();
        for text in &flag.texts {
            mounts.push(mount::from_flag(text).map_err(invalid)?);
        }
        if let Some((Value::Mounts(before), _)) = layered.get(setting.key) {
            let kept = before
                .iter()
                .filter(|old| !mounts.iter().any(|new| new.sandbox == old.sandbox));
            let kept: Vec<_> = kept.cloned().collect();
            mounts.splice(0..0, kept);
        }
        Value::Mounts(mount::all(mounts).map_err(invalid)?)
    } else {
        parse_text(setting, &flag.texts.join(","), flag.flag).map_err(|error| match error {
            ConfigError::Invalid { reason, .. } => invalid(reason),
            other => other,
        })?
    };
    layered.insert(setting.key, (value, Origin::Flag(flag.flag)));
    Ok(())
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
