//! Errors of requests.

use hyper::StatusCode;
use sandcell_mcp::Refusal;
use sandcell_sandbox::{Code, Failure};

/// An error of a request.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: ConnectCode,
    pub(crate) message: String,
    /// The failure's own code, for programs.
    pub(crate) error_code: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            code: ConnectCode::of_status(status),
            message: message.into(),
            error_code: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The answer to calls that this server does not have.
    pub(crate) fn unimplemented(what: &str) -> Self {
        Self {
            error_code: Some("unimplemented".to_owned()),
            ..Self::new(
                StatusCode::NOT_IMPLEMENTED,
                format!("this server does not support {what}"),
            )
        }
    }

    /// The answer when the sandbox ended during a request.
    pub(crate) fn gone() -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "The sandbox was not found")
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.code {
            Code::InvalidArgument | Code::CodeRejected | Code::PackageNotAllowed => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::DeniedByPolicy | Code::NetworkDenied => StatusCode::FORBIDDEN,
            Code::LimitReached | Code::Busy | Code::ProcessLimit => StatusCode::TOO_MANY_REQUESTS,
            Code::CheckpointUnavailable => StatusCode::CONFLICT,
            Code::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
            Code::Expired | Code::SessionLost => StatusCode::NOT_FOUND,
            Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Code::LanguageUnavailable => StatusCode::NOT_IMPLEMENTED,
            Code::BackendUnavailable | Code::IsolationUnavailable | Code::ImageUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::from(Refusal { status, failure })
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let Failure { code, message, remedy } = refusal.failure;
        let message = if remedy.is_empty() {
            message
        } else {
            format!("{message} ({remedy})")
        };
        Self {
            // E2B's clients compare some refusals as a whole.
            error_code: (code != Code::Unauthorized).then(|| code.as_str().to_owned()),
            ..Self::new(refusal.status, message)
        }
    }
}

/// An error code of Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectCode {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    Unauthenticated,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
    Internal,
}

impl ConnectCode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::Unauthenticated => "unauthenticated",
            Self::ResourceExhausted => "resource_exhausted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented => "unimplemented",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }

    /// The status of a single answer with this code.
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The code for a status of plain HTTP.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            400 | 405 | 413 | 415 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            409 => Self::AlreadyExists,
            429 | 507 => Self::ResourceExhausted,
            408 | 504 => Self::DeadlineExceeded,
            501 => Self::Unimplemented,
            502 | 503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_and_its_code_agree() {
        for code in [
            ConnectCode::InvalidArgument,
            ConnectCode::NotFound,
            ConnectCode::AlreadyExists,
            ConnectCode::PermissionDenied,
            ConnectCode::Unauthenticated,
            ConnectCode::ResourceExhausted,
            ConnectCode::DeadlineExceeded,
            ConnectCode::Unimplemented,
            ConnectCode::Unavailable,
            ConnectCode::Internal,
        ] {
            assert_eq!(ConnectCode::of_status(code.status()), code);
        }
    }
}
