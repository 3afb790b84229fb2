//! Errors of the contract, and the one place that turns them into `{code, message, remedy}`.

use serde::{Deserialize, Serialize};

/// The kind of a failure: the closed list that every interface uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "the names are the documentation; the reference lists each with its meaning"
)]
pub enum Code {
    InvalidArgument,
    NotFound,
    Expired,
    Unauthorized,
    DeniedByPolicy,
    CodeRejected,
    LimitReached,
    BackendUnavailable,
    IsolationUnavailable,
    LanguageUnavailable,
    ImageUnavailable,
    CodeFailed,
    Crashed,
    Timeout,
    OutOfMemory,
    ProcessLimit,
    DiskFull,
    OutputLimit,
    Cancelled,
    SessionLost,
    CheckpointUnavailable,
    PackageNotAllowed,
    PackageFailed,
    NetworkDenied,
    ToolDenied,
    ToolFailed,
    ToolUnavailable,
    Busy,
    Internal,
}

impl Code {
    /// Every code, in the order of the reference.
    pub const ALL: [Self; 29] = [
        Self::InvalidArgument,
        Self::NotFound,
        Self::Expired,
        Self::Unauthorized,
        Self::DeniedByPolicy,
        Self::CodeRejected,
        Self::LimitReached,
        Self::BackendUnavailable,
        Self::IsolationUnavailable,
        Self::LanguageUnavailable,
        Self::ImageUnavailable,
        Self::CodeFailed,
        Self::Crashed,
        Self::Timeout,
        Self::OutOfMemory,
        Self::ProcessLimit,
        Self::DiskFull,
        Self::OutputLimit,
        Self::Cancelled,
        Self::SessionLost,
        Self::CheckpointUnavailable,
        Self::PackageNotAllowed,
        Self::PackageFailed,
        Self::NetworkDenied,
        Self::ToolDenied,
        Self::ToolFailed,
        Self::ToolUnavailable,
        Self::Busy,
        Self::Internal,
    ];

    /// Returns the name on the wire, in `snake_case`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::Expired => "expired",
            Self::Unauthorized => "unauthorized",
            Self::DeniedByPolicy => "denied_by_policy",
            Self::CodeRejected => "code_rejected",
            Self::LimitReached => "limit_reached",
            Self::BackendUnavailable => "backend_unavailable",
            Self::IsolationUnavailable => "isolation_unavailable",
            Self::LanguageUnavailable => "language_unavailable",
            Self::ImageUnavailable => "image_unavailable",
            Self::CodeFailed => "code_failed",
            Self::Crashed => "crashed",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::ProcessLimit => "process_limit",
            Self::DiskFull => "disk_full",
            Self::OutputLimit => "output_limit",
            Self::Cancelled => "cancelled",
            Self::SessionLost => "session_lost",
            Self::CheckpointUnavailable => "checkpoint_unavailable",
            Self::PackageNotAllowed => "package_not_allowed",
            Self::PackageFailed => "package_failed",
            Self::NetworkDenied => "network_denied",
            Self::ToolDenied => "tool_denied",
            Self::ToolFailed => "tool_failed",
            Self::ToolUnavailable => "tool_unavailable",
            Self::Busy => "busy",
            Self::Internal => "internal",
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure as callers see it, in every interface: the event, its place and the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message} ({remedy})")]
pub struct Failure {
    /// The kind of failure.
    pub code: Code,
    /// The event and its place, in one or two sentences.
    pub message: String,
    /// The caller's next step, in the imperative.
    pub remedy: String,
}

impl Failure {
    /// Builds a failure from its three parts.
    pub fn new(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// Builds the failure for an invalid argument.
    pub fn invalid(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message, remedy)
    }
}

/// An error of a back end or a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox has ended; nothing in it can be reached any more.
    #[error("the sandbox has ended: {0}")]
    Gone(crate::EndReason),
    /// This machine cannot provide a layer that the isolation floor demands.
    #[error("isolation layer {layer} is not available: {reason}")]
    Isolation {
        /// The name of the layer, as `doctor` prints it.
        layer: String,
        /// The cause.
        reason: String,
        /// The command or setting that fixes it.
        remedy: String,
    },
    /// A step of the set-up failed for a reason other than an isolation layer (no memory, no space, a limit).
    #[error("step {step} of the set-up failed")]
    Setup {
        /// The step's name in the plan.
        step: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The back end does not work at present.
    #[error("back end {backend} is not available: {reason}")]
    Unavailable {
        /// The back end's name.
        backend: String,
        /// The cause.
        reason: String,
        /// The next step for the user.
        remedy: String,
    },
    /// The container image is not available.
    #[error("image {image} is not available: {reason}")]
    Image {
        /// Its name, as requested.
        image: String,
        /// The cause.
        reason: String,
        /// The next step for the user.
        remedy: String,
    },
    /// A program could not be started inside.
    #[error("could not start {program} in the sandbox")]
    Spawn {
        /// The program's path.
        program: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The agent violated the protocol. It is no longer trusted, and the sandbox is ended.
    #[error("the sandbox's agent broke the protocol: {0}")]
    Protocol(String),
    /// A resource is exhausted that only a new sandbox has again.
    #[error("{what}")]
    Full {
        /// The exhausted resource, with its limit.
        what: String,
    },
    /// The request is refused or cannot be met. The failure is passed on unchanged.
    #[error("{}", .0.message)]
    Refused(Box<Failure>),
    /// This back end does not support the request.
    #[error("{0} is not supported by this back end")]
    Unsupported(String),
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        let message = with_sources(&error);
        match error {
            SandboxError::Gone(reason) => Self::new(
                reason.code(),
                message,
                "call again without sandbox_id for a new default sandbox, or use create_sandbox; variables and files of the old one are gone",
            ),
            SandboxError::Isolation { remedy, .. } => Self::new(Code::IsolationUnavailable, message, remedy),
            SandboxError::Setup { .. } => Self::new(
                Code::BackendUnavailable,
                message,
                "close sandboxes that are no longer needed and try again; `sandcell doctor` on the host shows what is missing",
            ),
            SandboxError::Unavailable { remedy, .. } => Self::new(Code::BackendUnavailable, message, remedy),
            SandboxError::Refused(failure) => *failure,
            SandboxError::Image { remedy, .. } => Self::new(Code::ImageUnavailable, message, remedy),
            // The system refuses new processes.
            SandboxError::Spawn { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock => Self::new(
                Code::LimitReached,
                message,
                "a limit of processes is reached, of the sandbox or around the server: end programs, close sandboxes that are no \
                 longer needed, and call again",
            ),
            SandboxError::Spawn { .. } => Self::new(
                Code::LanguageUnavailable,
                message,
                "check the program's path with `sandcell doctor` on the host",
            ),
            SandboxError::Full { .. } => Self::new(
                Code::LimitReached,
                message,
                "create_sandbox with all packages in one list",
            ),
            SandboxError::Protocol(_) => Self::new(
                Code::Internal,
                message,
                "call again without sandbox_id for a new default sandbox",
            ),
            SandboxError::Unsupported(_) => Self::new(
                Code::InvalidArgument,
                message,
                "leave that argument out or choose another back end",
            ),
        }
    }
}

/// An error of a file operation. Paths are inside the sandbox.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "each variant's message says what it is; path is always the path as asked for"
)]
pub enum FileError {
    #[error("{path} does not exist")]
    NotFound { path: String },
    #[error("{path} is a folder")]
    IsDirectory { path: String },
    #[error("{path}: a part of the path is not a folder")]
    NotDirectory { path: String },
    /// A FIFO, device or socket, or anything on a pseudo file system.
    #[error("{path} is a {kind}, not a regular file")]
    NotRegular { path: String, kind: String },
    #[error("{path} may not be read or written by the sandbox's own user")]
    Denied { path: String },
    #[error("{path} is on a read-only part of the sandbox")]
    ReadOnly { path: String },
    #[error("no space left in the sandbox while writing {path}")]
    DiskFull { path: String },
    #[error("{path} has {size} bytes, more than the {limit} that one call moves")]
    TooLarge { path: String, size: u64, limit: u64 },
    #[error("{path} goes through too many symbolic links")]
    LinkLoop { path: String },
    #[error("{path} exists already")]
    Exists { path: String },
    /// A rename between two of the sandbox's file systems, such as the home folder and `/tmp`.
    #[error("{path} is on another file system of the sandbox")]
    OtherFileSystem { path: String },
    #[error("{path}: {reason}")]
    Other { path: String, reason: String },
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        let message = error.to_string();
        let (code, remedy) = match error {
            FileError::Sandbox(inner) => return inner.into(),
            FileError::NotFound { .. } => (
                Code::NotFound,
                "list_files shows what is there; relative paths start at /home/user",
            ),
            FileError::IsDirectory { .. } => (Code::InvalidArgument, "name a file in it, or use list_files"),
            FileError::NotDirectory { .. } => (Code::InvalidArgument, "check the path with list_files"),
            FileError::NotRegular { .. } => (
                Code::InvalidArgument,
                "only regular files can be read or written by this tool",
            ),
            FileError::Denied { .. } => (Code::DeniedByPolicy, "write below /home/user or /tmp"),
            FileError::ReadOnly { .. } => (Code::DeniedByPolicy, "write below /home/user or /tmp"),
            FileError::DiskFull { .. } => (
                Code::DiskFull,
                "delete files in the sandbox, or create one with a larger disk_mb",
            ),
            FileError::TooLarge { .. } => (
                Code::LimitReached,
                "read it in parts with offset and limit, or write it in parts with append",
            ),
            FileError::LinkLoop { .. } => (Code::InvalidArgument, "name the file itself instead of a link"),
            FileError::Exists { .. } => (Code::InvalidArgument, "choose another path, or remove what is there"),
            FileError::OtherFileSystem { .. } => (
                Code::InvalidArgument,
                "copy it and remove the original, or choose a path in the same folder",
            ),
            FileError::Other { .. } => (Code::InvalidArgument, "choose another path"),
        };
        Self::new(code, message, remedy)
    }
}

/// An error of opening or using a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The interpreter did not become ready.
    #[error("the {language} interpreter did not start: {reason}")]
    Start {
        /// The language's name.
        language: String,
        /// The evidence: last lines of its stderr, a timeout, or its exit.
        reason: String,
    },
    /// The driver sent a frame that is not in the protocol. Code in the sandbox can cause this.
    #[error("the session's control channel was broken from inside: {0}")]
    Protocol(String),
    /// The sandbox itself failed.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::Sandbox(inner) => inner.into(),
            SessionError::Start { .. } => Self::new(
                Code::LanguageUnavailable,
                message,
                "try again; if it stays, `sandcell doctor` on the host says why",
            ),
            SessionError::Protocol(_) => Self::new(
                Code::SessionLost,
                message,
                "run the code again: the next call gets a fresh interpreter",
            ),
        }
    }
}

/// Returns an error with its sources, as one sentence. Leaves out a source that the text has already.
#[must_use]
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

/// Returns the innermost source of an error, which is the one that a person can do something about.
#[must_use]
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_limit_is_not_reported_as_a_missing_program() {
        let failed = |kind: std::io::ErrorKind| {
            Failure::from(SandboxError::Spawn {
                program: "python3".to_owned(),
                source: kind.into(),
            })
        };
        assert_eq!(failed(std::io::ErrorKind::WouldBlock).code, Code::LimitReached);
        assert_eq!(failed(std::io::ErrorKind::NotFound).code, Code::LanguageUnavailable);
    }

    #[test]
    fn every_code_has_the_name_that_serde_writes() {
        for code in Code::ALL {
            assert_eq!(format!("{code:?}").to_lowercase(), code.as_str().replace('_', ""));
        }
    }
}
