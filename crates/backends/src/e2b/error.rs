//! Errors of the service and their translation into sandbox errors. They contain no address and no key.

use std::time::Duration;

use sandcell_sandbox::{EndReason, FileError, SandboxError};
use serde_json::Value;

use super::NAME;
use super::frames::ConnectError;

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ServiceError {
    /// The service was unreachable, or the connection broke.
    #[error("{0}")]
    Connection(String),
    /// It did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// It answered with an error status.
    #[error("status {status}: {message}")]
    Status { status: u16, message: String },
    /// An error of the Connect protocol.
    #[error("{}: {}", .0.code, .0.message)]
    Connect(ConnectError),
    /// The answer violates the protocol.
    #[error("{0}")]
    Garbled(String),
    /// The sandbox does not exist any more.
    #[error("the sandbox no longer exists")]
    Gone,
}

/// The maximum number of characters kept of the service's message.
const MAX_MESSAGE_CHARS: usize = 300;

impl ServiceError {
    /// Reads an answer with an error status.
    pub(super) fn of(status: u16, body: &[u8]) -> Self {
        let value: Option<Value> = serde_json::from_slice(body).ok();
        if let Some(value) = &value
            && value.get("code").is_some_and(Value::is_string)
        {
            return Self::Connect(ConnectError::of(value));
        }
        let said = value.as_ref().and_then(|value| {
            ["message", "detail", "error"]
                .iter()
                .find_map(|key| value.get(key).and_then(Value::as_str))
        });
        let text = said.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
        let message: String = text
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_MESSAGE_CHARS)
            .collect();
        Self::Status { status, message }
    }

    /// Translates an error of the HTTP client.
    pub(super) fn from_client(error: reqwest::Error) -> Self {
        // The address is removed, since it may contain secrets that do not belong in a log.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            text = inner.to_string();
            cause = inner.source();
        }
        Self::Connection(text.chars().take(MAX_MESSAGE_CHARS).collect())
    }

    /// Returns true if the service reports that the sandbox does not exist.
    pub(super) fn is_sandbox_gone(&self) -> bool {
        match self {
            Self::Gone => true,
            Self::Status { status: 502, message } => message.contains("was not found"),
            Self::Connect(error) => error.code == "unavailable" && error.message.contains("was not found"),
            _ => false,
        }
    }

    /// Returns it as an error of the sandbox.
    pub(super) fn into_sandbox_error(self) -> SandboxError {
        match self {
            Self::Gone => SandboxError::Gone(EndReason::Expired),
            other => unavailable(other.to_string(), "try again; see the status page of the service"),
        }
    }

    /// Returns it as an error of the service's API.
    pub(super) fn into_service_error(self, template: &str) -> SandboxError {
        match &self {
            Self::Status { status: 401 | 403, .. } => unavailable(
                format!("the API key is refused ({self})"),
                "set E2B_API_KEY to a valid key of the account at E2B_DOMAIN",
            ),
            Self::Status { status: 429, .. } => unavailable(
                format!("the account is at its limit ({self})"),
                "close sandboxes that are not needed, or try again later",
            ),
            Self::Status { status: 400 | 404, .. } => unavailable(
                format!("no sandbox could be made of the template {template} ({self})"),
                "set e2b.template to a template of the account, such as code-interpreter-v1",
            ),
            Self::Connection(_) | Self::Slow(_) => unavailable(
                format!("the service cannot be reached: {self}"),
                "check the network, E2B_DOMAIN and E2B_API_URL",
            ),
            _ => unavailable(self.to_string(), "try again; see the status page of the service"),
        }
    }

    /// Returns it as an error about a file.
    pub(super) fn into_file_error(self, path: &str) -> FileError {
        let path = path.to_owned();
        let (word, message) = match &self {
            Self::Connect(error) => (error.code.as_str(), error.message.as_str()),
            Self::Status { status, message } => {
                let word = match status {
                    404 => "not_found",
                    401 | 403 => "permission_denied",
                    507 => "resource_exhausted",
                    400 => "invalid_argument",
                    _ => "",
                };
                (word, message.as_str())
            }
            _ => return FileError::Sandbox(self.into_sandbox_error()),
        };
        match word {
            "not_found" => FileError::NotFound { path },
            "permission_denied" => FileError::Denied { path },
            "resource_exhausted" => FileError::DiskFull { path },
            "invalid_argument" if message.contains("directory") && message.contains("not a directory") => {
                FileError::NotDirectory { path }
            }
            "invalid_argument" if message.contains("is a directory") => FileError::IsDirectory { path },
            "already_exists" => FileError::Exists { path },
            "invalid_argument" => FileError::Other {
                path,
                reason: message.to_owned(),
            },
            _ => FileError::Sandbox(self.into_sandbox_error()),
        }
    }
}

/// Returns the error of a back end that is currently unusable.
pub(super) fn unavailable(reason: impl Into<String>, remedy: impl Into<String>) -> SandboxError {
    SandboxError::Unavailable {
        backend: NAME.to_owned(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}
