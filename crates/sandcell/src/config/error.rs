//! Errors in settings.

use std::path::PathBuf;

use sandcell_sandbox::Failure;
use sandcell_settings::WrongType;

/// The reason that settings were refused. The first error ends the program; none is ever skipped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// A file that exists, or was named, cannot be read.
    #[error("{file} cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is too long for a settings file.
    #[error("{file} is larger than {limit} bytes, so it is no file of settings")]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The maximum number of bytes read.
        limit: u64,
    },
    /// A file does not parse.
    #[error("{file}, line {line}: {reason}")]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// An unknown key.
    #[error("{place}: there is no setting `{key}`")]
    Unknown {
        /// The file or the environment.
        place: String,
        /// The key as written.
        key: String,
        /// The most similar known name.
        nearest: Option<String>,
    },
    /// A setting of a later version.
    #[error("{place}: {what} is not supported by this build yet")]
    NotYet {
        /// The file, the environment or the flag.
        place: String,
        /// The table, key or word.
        what: String,
    },
    /// A value that its setting does not accept.
    #[error("{place}: `{key}` {reason}")]
    Invalid {
        /// The file, the environment or the flag.
        place: String,
        /// The key.
        key: String,
        /// The requirement that the value fails.
        reason: String,
    },
    /// A flag's value that its setting does not accept.
    #[error("{flag}: {reason}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// The requirement that the value fails.
        reason: String,
    },
    /// A `.env` file sets a setting that only the operator may set.
    #[error("{place}: `{key}` is not taken from a .env file, since a project folder may come from a stranger")]
    NotFromProject {
        /// The file.
        place: String,
        /// The variable.
        key: String,
    },
}

/// A disagreement between a setting's declaration and its type: a bug.
impl From<WrongType> for ConfigError {
    fn from(wrong: WrongType) -> Self {
        Self::Invalid {
            place: "the table of settings".to_owned(),
            key: wrong.key.to_owned(),
            reason: "has a type that its declaration does not fit".to_owned(),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let message = error.to_string();
        let remedy = match error {
            ConfigError::Unreadable { .. } => "check the path and its permissions, or remove it".to_owned(),
            ConfigError::TooLarge { .. } => "name another file".to_owned(),
            ConfigError::Syntax { .. } => {
                "correct that line; docs/reference/settings.md shows every setting".to_owned()
            }
            ConfigError::Unknown {
                nearest: Some(name), ..
            } => {
                format!("did you mean `{name}`? `sandcell config` lists every setting")
            }
            ConfigError::Unknown { nearest: None, .. } => "remove it; `sandcell config` lists every setting".to_owned(),
            ConfigError::NotYet { .. } => "remove it; `sandcell config` lists what this build knows".to_owned(),
            ConfigError::Invalid { .. } => "correct the value, or remove it for the default".to_owned(),
            ConfigError::Flag { flag, .. } => format!("correct {flag}, or leave it out"),
            ConfigError::NotFromProject { key, .. } => format!(
                "put it in {} or set {key} in the environment, and remove it from .env",
                super::USERS_FILE
            ),
        };
        Self::invalid(message, remedy)
    }
}
