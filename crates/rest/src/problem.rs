//! Converts failures to answers: the HTTP status for the code, and `{code, message, remedy}` in the body.

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{Code, Failure};

use crate::respond;

/// The seconds after which a client may retry a call that met a limit.
const RETRY_S: u64 = 1;

/// A failed call.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    failure: Failure,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self {
            status: status(failure.code),
            failure: failure_with_rest_calls(failure),
        }
    }
}

impl Problem {
    /// Returns the same failure with another status.
    pub(crate) fn with(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn into_response(self) -> Response<EndpointBody> {
        let mut response = respond::json(self.status, &self.failure);
        if matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_S));
        }
        response
    }
}

/// Returns the HTTP status of a failure.
pub(crate) const fn status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::LanguageUnavailable => StatusCode::BAD_REQUEST,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::DeniedByPolicy | Code::PackageNotAllowed | Code::NetworkDenied | Code::ToolDenied => {
            StatusCode::FORBIDDEN
        }
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Busy | Code::Cancelled | Code::SessionLost | Code::CheckpointUnavailable => StatusCode::CONFLICT,
        Code::Expired => StatusCode::GONE,
        Code::CodeRejected | Code::CodeFailed | Code::PackageFailed | Code::ImageUnavailable | Code::ToolFailed => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Code::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        Code::BackendUnavailable | Code::IsolationUnavailable | Code::ToolUnavailable => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::OutOfMemory | Code::ProcessLimit | Code::DiskFull | Code::OutputLimit => StatusCode::INSUFFICIENT_STORAGE,
        Code::Crashed | Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The MCP calls that the engine's advice names, and the REST requests with the same effect. Longer texts are replaced
/// first.
const MCP_CALLS: [(&str, &str); 16] = [
    ("; without sandbox_id the default one is used", ""),
    (
        "call again without sandbox_id for a new default sandbox, or use create_sandbox",
        "make a new one with POST /v1/sandboxes",
    ),
    ("get_sandbox_status without an id", "GET /v1/sandboxes"),
    ("get_sandbox_status", "GET /v1/sandboxes"),
    ("get_execution_history", "GET /v1/executions"),
    ("get_execution", "GET /v1/executions/{execution_id}"),
    ("cancel_execution", "POST /v1/executions/{execution_id}/cancel"),
    ("create_sandbox", "POST /v1/sandboxes"),
    ("close_sandbox", "DELETE /v1/sandboxes/{sandbox_id}"),
    ("create_run_close", "POST /v1/run"),
    ("execute_code", "POST /v1/sandboxes/{sandbox_id}/run"),
    ("list_files", "GET /v1/sandboxes/{sandbox_id}/files"),
    ("write_file", "PUT /v1/sandboxes/{sandbox_id}/file"),
    ("upload_file", "PUT /v1/sandboxes/{sandbox_id}/file"),
    ("install_package", "`packages` of POST /v1/sandboxes"),
    ("run_command", "POST /v1/sandboxes/{sandbox_id}/commands"),
];

/// Replaces MCP calls in advice by REST requests.
pub(crate) fn with_rest_calls(advice: &str) -> String {
    let mut text = advice.to_owned();
    for (theirs, ours) in MCP_CALLS {
        text = text.replace(theirs, ours);
    }
    text
}

/// Replaces MCP calls in a failure's remedy by REST requests.
pub(crate) fn failure_with_rest_calls(failure: Failure) -> Failure {
    Failure {
        remedy: with_rest_calls(&failure.remedy),
        ..failure
    }
}

/// The answer for an address without a resource.
pub(crate) fn not_found() -> Problem {
    let message = "there is nothing at this address";
    Failure::new(Code::NotFound, message, "/v1/openapi.json lists what there is").into()
}

/// The answer after a panic in a route's function. The server's log has the panic.
pub(crate) fn panicked() -> Problem {
    let message = "the server made a mistake while it answered";
    Failure::new(
        Code::Internal,
        message,
        "try again; tell the operator if it happens again",
    )
    .into()
}
