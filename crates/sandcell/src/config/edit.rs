//! Changes of one setting in a settings file. Everything else stays: comments, order, spacing.

use std::path::{Path, PathBuf};

use sandcell_sandbox::System;
use sandcell_settings::{Kind, Setting, Value};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike};

use super::error::ConfigError;
use super::folders;
pub(crate) use super::source::check;
use super::source::known;

/// Returns the path of the user's own settings file.
pub(crate) fn users_file() -> Option<PathBuf> {
    let folder = folders::settings(System::of_this_machine(), |name| std::env::var_os(name));
    folder.map(|folder| folder.join("config.toml"))
}

/// Returns the setting with this key.
pub(crate) fn setting(key: &str) -> Result<&'static Setting, ConfigError> {
    known("the command line", key)
}

/// Returns the file's text with this value of the setting. Words are written as in an environment variable, and
/// several make a list. A word that begins like TOML is read as TOML.
pub(crate) fn set(file: &Path, text: &str, setting: &'static Setting, words: &[String]) -> Result<String, ConfigError> {
    if matches!(setting.declaration.kind, Kind::Mounts | Kind::Tables { .. }) {
        return Err(invalid(
            setting,
            "has separate tables: write them with `sandcell config edit`".to_owned(),
        ));
    }
    let value = read(setting, words).map_err(|reason| invalid(setting, reason))?;
    let item = item(&value).ok_or_else(|| invalid(setting, "cannot be written in TOML".to_owned()))?;
    let mut document = parse(file, text)?;
    let (table, name) = place(&mut document, setting, file)?;
    match table.get_mut(name).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = item;
            *old.decor_mut() = decor;
        }
        None => drop(table.insert(name, Item::Value(item))),
    }
    checked(file, document)
}

/// Returns the file's text without the setting; none if the file does not contain it.
pub(crate) fn unset(file: &Path, text: &str, setting: &'static Setting) -> Result<Option<String>, ConfigError> {
    let mut document = parse(file, text)?;
    let (table, name) = place(&mut document, setting, file)?;
    if table.remove(name).is_none() {
        return Ok(None);
    }
    checked(file, document).map(Some)
}

/// The result of adding tables of tools to a settings file.
#[derive(Debug, PartialEq, Eq)]
#[cfg(feature = "tools")]
pub(crate) struct AddedTools {
    /// The whole new text of the file.
    pub(crate) text: String,
    /// The text of the new tables alone.
    pub(crate) new: String,
    /// The names of tables that the file has already, with other content. They are unchanged.
    pub(crate) different: Vec<String>,
}

/// Adds tables of tools to the text of a settings file. Keeps a table that the file has already.
#[cfg(feature = "tools")]
pub(crate) fn add_tools(file: &Path, text: &str, tables: &[(String, toml::Table)]) -> Result<AddedTools, ConfigError> {
    // The check of the result below refuses a text that is not TOML.
    let present: toml::Table = text.parse().unwrap_or_default();
    let present = present.get("tools").and_then(toml::Value::as_table);
    let mut added = AddedTools {
        text: text.to_owned(),
        new: String::new(),
        different: Vec::new(),
    };
    for (name, table) in tables {
        match present.and_then(|tools| tools.get(name)) {
            Some(toml::Value::Table(old)) if old == table => {}
            Some(_) => added.different.push(name.clone()),
            None => {
                let mut tools = toml::Table::new();
                tools.insert(name.clone(), table.clone().into());
                let mut whole = toml::Table::new();
                whole.insert("tools".to_owned(), tools.into());
                added.new.push('\n');
                added.new.push_str(&whole.to_string());
            }
        }
    }
    if !added.new.is_empty() && !added.text.is_empty() && !added.text.ends_with('\n') {
        added.text.push('\n');
    }
    added.text.push_str(&added.new);
    // TOML cannot add tables to an inline table `tools = {…}`. The error names its line.
    check(file, &added.text)?;
    Ok(added)
}

fn read(setting: &Setting, words: &[String]) -> Result<Value, String> {
    let separator = match setting.declaration.kind {
        Kind::Requirements { .. } => ";",
        _ => ",",
    };
    let text = words.join(separator);
    if text.starts_with(['[', '"', '\'']) {
        let table = format!("value = {text}").parse::<toml::Table>();
        let value = table.ok().and_then(|mut table| table.remove("value"));
        return match value {
            Some(value) => setting.declaration.kind.read_toml(&value),
            None => Err("is no value in TOML: mind the quotes and brackets".to_owned()),
        };
    }
    setting.declaration.kind.read_text(&text)
}

fn invalid(setting: &Setting, reason: String) -> ConfigError {
    ConfigError::Invalid {
        place: "the command line".to_owned(),
        key: setting.key.to_owned(),
        reason,
    }
}

/// Returns the value as TOML; none for mounts and other tables.
fn item(value: &Value) -> Option<toml_edit::Value> {
    match value {
        Value::Mounts(_) | Value::Tables(..) => None,
        // The JSON form of a secret hides it.
        Value::Secret(secret) => Some(secret.as_ref().map_or("", |secret| secret.expose()).into()),
        other => from_json(other.to_json()),
    }
}

fn from_json(value: serde_json::Value) -> Option<toml_edit::Value> {
    Some(match value {
        // An empty text means none in all kinds that allow no value.
        serde_json::Value::Null => "".into(),
        serde_json::Value::Bool(flag) => flag.into(),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        serde_json::Value::String(text) => text.into(),
        serde_json::Value::Array(items) => {
            let items: Option<Array> = items.into_iter().map(from_json).collect();
            items?.into()
        }
        serde_json::Value::Object(_) => return None,
    })
}

fn parse(file: &Path, text: &str) -> Result<DocumentMut, ConfigError> {
    // An error in the file is reported as by every other command, and nothing is changed.
    check(file, text)?;
    text.parse::<DocumentMut>().map_err(|error| ConfigError::Syntax {
        file: file.to_owned(),
        line: 1,
        reason: error.message().to_owned(),
    })
}

/// Returns the setting's table, which is made if absent, and the setting's name in it.
fn place<'a>(
    document: &'a mut DocumentMut,
    setting: &'static Setting,
    file: &Path,
) -> Result<(&'a mut dyn TableLike, &'static str), ConfigError> {
    let root = document.as_table_mut();
    let Some((table, name)) = setting.key.split_once('.') else {
        return Ok((root, setting.key));
    };
    let table = root.entry(table).or_insert(Item::Table(Table::new()));
    let found = table.as_table_like_mut().ok_or_else(|| ConfigError::Invalid {
        place: file.display().to_string(),
        key: setting.key.to_owned(),
        reason: "has no table to stand in".to_owned(),
    })?;
    Ok((found, name))
}

fn checked(file: &Path, document: DocumentMut) -> Result<String, ConfigError> {
    let text = document.to_string();
    check(file, &text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE_FILE: &str = "# mine\nbase = \"old\" # for work\n\n[limits]\n# enough\nmemory_mb = 256\n\n[network]\nallow = [\"a.example\"]\n";

    fn set_in(text: &str, key: &str, words: &[&str]) -> Result<String, ConfigError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        set(Path::new("config.toml"), text, setting(key)?, &words)
    }

    #[test]
    fn one_value_changes_and_comments_stay() {
        let text = set_in(SAMPLE_FILE, "base", &["data"]).unwrap();
        assert_eq!(text, SAMPLE_FILE.replace("\"old\"", "\"data\""));
        let text = set_in(SAMPLE_FILE, "limits.memory_mb", &["1024"]).unwrap();
        assert_eq!(text, SAMPLE_FILE.replace("256", "1024"));
        let text = set_in(SAMPLE_FILE, "limits.cpus", &["2"]).unwrap();
        assert!(text.starts_with("# mine\nbase = \"old\" # for work\n"), "{text}");
        assert!(text.contains("memory_mb = 256\ncpus = 2"), "{text}");
    }

    #[test]
    fn a_new_key_finds_its_place_also_in_an_empty_file() {
        assert_eq!(set_in("", "base", &["data"]).unwrap(), "base = \"data\"\n");
        let text = set_in("", "http.page", &["false"]).unwrap();
        assert_eq!(text, "[http]\npage = false\n");
        let text = set_in("[limits]\ncpus = 1\n", "base", &["data"]).unwrap();
        assert_eq!(text, "base = \"data\"\n[limits]\ncpus = 1\n");
        let text = set_in("limits.cpus = 1\n", "limits.memory_mb", &["99"]).unwrap();
        assert_eq!(text, "limits.cpus = 1\nlimits.memory_mb = 99\n");
    }

    #[test]
    fn lists_may_be_words_or_toml() {
        for words in [
            &["a.example", "b.example"][..],
            &["a.example,b.example"],
            &["[\"a.example\", \"b.example\"]"],
        ] {
            let text = set_in("", "network.allow", words).unwrap();
            assert_eq!(text, "[network]\nallow = [\"a.example\", \"b.example\"]\n");
        }
        let text = set_in("", "packages.allow", &["numpy>=1,<2", "pandas"]).unwrap();
        assert_eq!(text, "[packages]\nallow = [\"numpy>=1,<2\", \"pandas\"]\n");
        assert_eq!(set_in("", "base", &[""]).unwrap(), "base = \"\"\n");
    }

    #[test]
    fn an_invalid_change_is_refused_with_the_reason() {
        for (text, key, words, expected) in [
            ("", "limits.memory", &["1"][..], "no setting `limits.memory`"),
            ("", "limits.memory_mb", &["much"], "a whole number from"),
            ("", "network.allow", &["[oops"], "no value in TOML"),
            ("", "mount", &["/data"], "config edit"),
            ("nonsense = 1\n", "base", &["data"], "no setting `nonsense`"),
            ("base = \n", "base", &["data"], "config.toml, line 1"),
        ] {
            let error = set_in(text, key, words).unwrap_err().to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
    }

    #[test]
    fn removing_a_setting_leaves_the_others() {
        let out = |text: &str, key| unset(Path::new("config.toml"), text, setting(key).unwrap()).unwrap();
        let text = out(SAMPLE_FILE, "limits.memory_mb").unwrap();
        assert!(
            !text.contains("memory_mb") && text.contains("[limits]") && text.contains("a.example"),
            "{text}"
        );
        assert_eq!(out(SAMPLE_FILE, "limits.cpus"), None);
    }
}
