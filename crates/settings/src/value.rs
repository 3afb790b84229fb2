//! Kinds of setting values, and the conversion of a TOML value or a line of text to a value.

use std::path::PathBuf;

use sandcell_sandbox::{Mount, Secret};
use serde_json::json;

use crate::mount;

/// The values that a setting accepts. They are checked here, so that files, the environment and flags follow the same
/// rules. Only the form of `Text` and `Texts` is checked by the code that uses them.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of at least one of these words. Duplicates are dropped.
    ListOf(&'static [&'static str]),
    /// A whole number in this range.
    Integer {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// A whole number up to this one, or empty: the demand determines the number.
    Demand {
        /// The greatest.
        max: u64,
    },
    /// A number in this range.
    Number {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// An absolute path, or empty for none.
    Path,
    /// A list of absolute paths.
    Paths,
    /// Folders of the host that sandboxes see.
    Mounts,
    /// A table of named tables. Only files have it. The code that uses the setting reads it.
    Tables {
        /// Checks the table, and returns the reason to refuse it.
        check: fn(&toml::Table) -> Result<(), String>,
        /// The keys whose values are secrets, at any depth.
        secret: &'static [&'static str],
    },
    /// `true` or `false`.
    Flag,
    /// A short name, or empty for none.
    Name,
    /// A list of requirements of packages. As text they are separated by `;`, since versions have commas.
    Requirements {
        /// Checks one entry, and returns the reason to refuse it.
        check: fn(&str) -> Result<(), String>,
    },
    /// A list of texts; the code that uses the setting checks their form.
    Texts,
    /// A text in one line, or empty for none; the code that uses the setting checks its form.
    Text,
    /// A text in one line that is not empty; the code that uses the setting checks its form.
    RequiredText,
    /// A key or token without control characters, or empty for none. No output shows it.
    Secret,
}

/// Returns the kind of whole numbers in this range.
#[must_use]
pub const fn whole(min: u64, max: u64) -> Kind {
    Kind::Integer { min, max }
}

/// The text shown in place of a secret that is set.
const HIDDEN_SECRET: &str = "(set, not shown)";

/// A value that its [`Kind`] has accepted.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of [`Kind::OneOf`].
    Word(String),
    /// Of [`Kind::ListOf`].
    Words(Vec<String>),
    /// Of [`Kind::Integer`].
    Integer(u64),
    /// Of [`Kind::Demand`].
    Demand(Option<u64>),
    /// Of [`Kind::Number`].
    Number(f64),
    /// Of [`Kind::Path`].
    Path(Option<PathBuf>),
    /// Of [`Kind::Paths`].
    Paths(Vec<PathBuf>),
    /// Of [`Kind::Mounts`].
    Mounts(Vec<Mount>),
    /// Of [`Kind::Tables`], with the keys whose values are secrets.
    Tables(toml::Table, &'static [&'static str]),
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::Name`].
    Name(Option<String>),
    /// Of [`Kind::Requirements`].
    Requirements(Vec<String>),
    /// Of [`Kind::Texts`].
    Texts(Vec<String>),
    /// Of [`Kind::Text`] and [`Kind::RequiredText`].
    Text(Option<String>),
    /// Of [`Kind::Secret`].
    Secret(Option<Secret>),
}

impl Kind {
    /// Returns the accepted values, for people.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::OneOf(words) => format!("one of {}", quoted(words)),
            Self::ListOf(words) => format!("a list of {}", quoted(words)),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Demand { max } => format!("a whole number from 0 to {max}, or empty for by demand"),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Path => "an absolute path".to_owned(),
            Self::Paths => "a list of absolute paths of folders".to_owned(),
            Self::Mounts => "`[[mount]]` tables with host, sandbox, mode and commit".to_owned(),
            Self::Tables { .. } => "a table of named tables".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Name => "a name of lower-case letters, digits, - and _".to_owned(),
            Self::Requirements { .. } => "a list of packages, such as [\"numpy>=2,<3\", \"acme-*\"]".to_owned(),
            Self::Texts => "a list of names".to_owned(),
            Self::Text => "a text of at most 500 bytes in one line".to_owned(),
            Self::RequiredText => "a text of 1 to 500 bytes in one line".to_owned(),
            Self::Secret => "a key".to_owned(),
        }
    }

    /// Reads a value from a file.
    ///
    /// # Errors
    /// The reason to refuse it, as the end of a sentence about the setting.
    pub fn read_toml(self, value: &toml::Value) -> Result<Value, String> {
        match (self, value) {
            (
                Self::OneOf(_)
                | Self::Path
                | Self::Demand { .. }
                | Self::Name
                | Self::Text
                | Self::RequiredText
                | Self::Secret,
                toml::Value::String(text),
            ) => self.read_text(text),
            // The operator meant the value as a key, so the error never repeats it.
            (Self::Secret, _) => Err(self.refuse("something else")),
            (Self::Flag, toml::Value::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (Self::Requirements { check }, toml::Value::Array(items)) => {
                let texts = texts(items).ok_or_else(|| self.refuse("a list with something else in it"))?;
                requirements(check, texts.into_iter())
            }
            (Self::ListOf(words), toml::Value::String(text)) => list_of(words, std::iter::once(text.as_str())),
            (Self::ListOf(words), toml::Value::Array(items)) => {
                let texts = texts(items).ok_or_else(|| self.refuse("a list with something else in it"))?;
                list_of(words, texts.into_iter())
            }
            (Self::Integer { min, max }, toml::Value::Integer(number)) => match u64::try_from(*number) {
                Ok(number) => integer(number, min, max),
                Err(_) => Err(self.refuse(&number.to_string())),
            },
            (Self::Demand { .. }, toml::Value::Integer(number)) => self.read_text(&number.to_string()),
            (Self::Number { min, max }, toml::Value::Float(number)) => number_within(*number, min, max),
            (Self::Number { .. }, toml::Value::Integer(number)) => self.read_text(&number.to_string()),
            (Self::Paths, toml::Value::Array(items)) => {
                let texts = texts(items).ok_or_else(|| self.refuse("a list with something else in it"))?;
                paths(texts.into_iter())
            }
            (Self::Texts, toml::Value::Array(items)) => {
                let texts = texts(items).ok_or_else(|| self.refuse("a list with something else in it"))?;
                Ok(Value::Texts(texts.into_iter().map(str::to_owned).collect()))
            }
            (Self::Mounts, toml::Value::Array(items)) => {
                let mounts: Result<Vec<_>, _> = items.iter().map(mount::from_toml).collect();
                mounts.and_then(mount::all).map(Value::Mounts).map_err(unusable)
            }
            (Self::Tables { check, secret }, toml::Value::Table(table)) => match check(table) {
                Ok(()) => Ok(Value::Tables(table.clone(), secret)),
                Err(reason) => Err(unusable(reason)),
            },
            (_, other) => Err(self.refuse(&kind_of(other))),
        }
    }

    /// Reads a value from an environment variable or a flag. Lists are separated by commas, requirements by `;`.
    ///
    /// # Errors
    /// As [`Kind::read_toml`].
    pub fn read_text(self, text: &str) -> Result<Value, String> {
        let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
        match self {
            Self::OneOf(words) if words.contains(&text) => Ok(Value::Word(text.to_owned())),
            Self::OneOf(_) => Err(self.refuse(&shown(text))),
            Self::ListOf(words) => list_of(words, items()),
            Self::Integer { min, max } => match text.parse::<u64>() {
                Ok(number) => integer(number, min, max),
                Err(_) => Err(self.refuse(&shown(text))),
            },
            Self::Demand { .. } if text.is_empty() => Ok(Value::Demand(None)),
            Self::Demand { max } => match text.parse::<u64>() {
                Ok(number) if number <= max => Ok(Value::Demand(Some(number))),
                Ok(_) | Err(_) => Err(self.refuse(&shown(text))),
            },
            Self::Number { min, max } => match text.parse::<f64>() {
                Ok(number) => number_within(number, min, max),
                Err(_) => Err(self.refuse(&shown(text))),
            },
            Self::Path if text.is_empty() => Ok(Value::Path(None)),
            Self::Path => Ok(Value::Path(Some(absolute(text)?))),
            Self::Paths => paths(items()),
            Self::Texts => Ok(Value::Texts(items().map(str::to_owned).collect())),
            Self::RequiredText if text.trim().is_empty() => Err(self.refuse("an empty one")),
            Self::Text | Self::RequiredText if text.len() > 500 || text.chars().any(char::is_control) => {
                Err(self.refuse(&shown(text)))
            }
            Self::Text | Self::RequiredText => Ok(Value::Text(
                Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            )),
            Self::Secret if text.len() > 4096 || text.chars().any(char::is_control) => {
                Err(self.refuse("one with control characters or of more than 4,096 bytes"))
            }
            Self::Secret => Ok(Value::Secret(
                Some(text).filter(|text| !text.is_empty()).map(Secret::new),
            )),
            Self::Tables { secret, .. } if text.is_empty() => Ok(Value::Tables(toml::Table::new(), secret)),
            Self::Tables { .. } => Err("can be set in a file only".to_owned()),
            Self::Mounts => {
                let mounts: Result<Vec<_>, _> = items().map(mount::from_flag).collect();
                mounts.and_then(mount::all).map(Value::Mounts).map_err(unusable)
            }
            Self::Flag => match text {
                "true" => Ok(Value::Flag(true)),
                "false" => Ok(Value::Flag(false)),
                _ => Err(self.refuse(&shown(text))),
            },
            Self::Name if text.is_empty() => Ok(Value::Name(None)),
            Self::Name => {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
                if text.len() <= 40 && text.chars().all(plain) {
                    Ok(Value::Name(Some(text.to_owned())))
                } else {
                    Err(self.refuse(&shown(text)))
                }
            }
            Self::Requirements { check } => {
                requirements(check, text.split(';').map(str::trim).filter(|item| !item.is_empty()))
            }
        }
    }

    fn refuse(self, got: &str) -> String {
        format!("must be {}, not {got}", self.describe())
    }
}

impl Value {
    /// Returns the value as `sandcell config --json` prints it.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Word(word) => json!(word),
            Self::Words(words) => json!(words),
            Self::Integer(number) => json!(number),
            Self::Demand(number) => json!(number),
            Self::Number(number) => json!(number),
            Self::Path(path) => json!(path),
            Self::Paths(paths) => json!(paths),
            Self::Mounts(mounts) => json!(mounts),
            Self::Tables(table, secret) => json!(without_secrets(table, secret)),
            Self::Flag(flag) => json!(flag),
            Self::Name(name) => json!(name),
            Self::Requirements(list) => json!(list),
            Self::Texts(texts) => json!(texts),
            Self::Text(text) => json!(text),
            Self::Secret(secret) => json!(secret.as_ref().map(|_| HIDDEN_SECRET)),
        }
    }
}

/// Returns a table in which the values of these keys are hidden.
fn without_secrets(table: &toml::Table, secret: &[&str]) -> toml::Table {
    let hide = |(key, value): (&String, &toml::Value)| {
        let shown = match value {
            toml::Value::Table(inner) if secret.contains(&key.as_str()) => {
                let hidden = |key: &String| (key.clone(), toml::Value::String(HIDDEN_SECRET.to_owned()));
                toml::Value::Table(inner.keys().map(hidden).collect())
            }
            _ if secret.contains(&key.as_str()) => toml::Value::String(HIDDEN_SECRET.to_owned()),
            toml::Value::Table(inner) => toml::Value::Table(without_secrets(inner, secret)),
            other => other.clone(),
        };
        (key.clone(), shown)
    };
    table.iter().map(hide).collect()
}

fn unusable(reason: String) -> String {
    format!("cannot be used: {reason}")
}

fn quoted(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    words.join(", ")
}

/// Formats a piece of text for an error: quoted, control characters escaped, at most 80 characters.
#[must_use]
pub fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{dots}")
}

fn kind_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => shown(text),
        toml::Value::Array(_) => "a list".to_owned(),
        toml::Value::Table(_) => "a table".to_owned(),
        other => other.to_string(),
    }
}

fn texts(items: &[toml::Value]) -> Option<Vec<&str>> {
    items.iter().map(toml::Value::as_str).collect()
}

fn integer(number: u64, min: u64, max: u64) -> Result<Value, String> {
    if (min..=max).contains(&number) {
        Ok(Value::Integer(number))
    } else {
        Err(Kind::Integer { min, max }.refuse(&number.to_string()))
    }
}

fn number_within(number: f64, min: f64, max: f64) -> Result<Value, String> {
    // NaN is in no range.
    if (min..=max).contains(&number) {
        Ok(Value::Number(number))
    } else {
        Err(Kind::Number { min, max }.refuse(&number.to_string()))
    }
}

fn list_of<'a>(known: &'static [&'static str], words: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let mut list: Vec<String> = Vec::new();
    for word in words {
        if !known.contains(&word) {
            return Err(Kind::ListOf(known).refuse(&shown(word)));
        }
        if !list.iter().any(|seen| seen == word) {
            list.push(word.to_owned());
        }
    }
    if list.is_empty() {
        return Err(Kind::ListOf(known).refuse("an empty one"));
    }
    Ok(Value::Words(list))
}

fn paths<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let paths: Result<Vec<_>, _> = texts.map(absolute).collect();
    Ok(Value::Paths(paths?))
}

fn requirements<'a>(
    check: fn(&str) -> Result<(), String>,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Value, String> {
    let entry = |text: &str| match check(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(reason) => Err(format!("has an entry that cannot be read, {}: {reason}", shown(text))),
    };
    texts.map(entry).collect::<Result<_, _>>().map(Value::Requirements)
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    if text.contains('\0') {
        return Err("must be a path, not a text with NUL in it".to_owned());
    }
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!("must be an absolute path, not {}", shown(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_KIND: Kind = Kind::Integer { min: 16, max: 1024 };

    #[test]
    fn a_number_outside_its_range_is_refused_with_the_range() {
        for text in ["0", "15", "1025", "99999999999999999999", "-1", "abc", "", "1.5"] {
            let error = SIZE_KIND.read_text(text).unwrap_err();
            assert!(error.contains("16 to 1024"), "{text}: {error}");
        }
        for value in [
            toml::Value::Integer(-1),
            toml::Value::Integer(0),
            toml::Value::Float(20.0),
        ] {
            assert!(SIZE_KIND.read_toml(&value).unwrap_err().contains("16 to 1024"));
        }
        assert_eq!(SIZE_KIND.read_text("16"), Ok(Value::Integer(16)));
        assert_eq!(
            SIZE_KIND.read_toml(&toml::Value::Integer(1024)),
            Ok(Value::Integer(1024))
        );
    }

    #[test]
    fn a_flag_is_exactly_true_or_false() {
        assert_eq!(Kind::Flag.read_text("false"), Ok(Value::Flag(false)));
        assert_eq!(Kind::Flag.read_toml(&toml::Value::Boolean(true)), Ok(Value::Flag(true)));
        for text in ["", "0", "no", "True"] {
            assert!(
                Kind::Flag.read_text(text).unwrap_err().contains("true or false"),
                "{text}"
            );
        }
        assert!(Kind::Flag.read_toml(&toml::Value::String("false".to_owned())).is_err());
    }

    #[test]
    fn nan_is_outside_every_range() {
        let kind = Kind::Number { min: 0.1, max: 4.0 };
        for text in ["nan", "inf", "-inf", "0", "4.1"] {
            assert!(kind.read_text(text).is_err(), "{text}");
        }
        assert_eq!(kind.read_toml(&toml::Value::Integer(2)), Ok(Value::Number(2.0)));
    }

    #[test]
    fn a_list_may_be_one_word_and_drops_duplicates() {
        let kind = Kind::ListOf(&["native", "docker"]);
        let one = Ok(Value::Words(vec!["native".to_owned()]));
        assert_eq!(kind.read_toml(&toml::Value::String("native".to_owned())), one);
        assert_eq!(kind.read_text(" native,native, "), one);
        assert!(kind.read_text("").unwrap_err().contains("an empty one"));
        assert!(kind.read_text("nativ").unwrap_err().contains("\"nativ\""));
    }

    #[test]
    fn a_relative_path_is_refused() {
        assert!(
            Kind::Path
                .read_text("venv/bin/python")
                .unwrap_err()
                .contains("absolute")
        );
        assert_eq!(Kind::Path.read_text(""), Ok(Value::Path(None)));
    }
}
