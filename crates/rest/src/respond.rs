//! Makes answers. The output of code is sent as JSON, as events, or as bytes of a type that browsers do not show as a
//! document.

use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use sandcell_mcp::{EndpointBody, whole_body};
use sandcell_sandbox::{Code, Failure};
use serde::Serialize;

pub(crate) const JSON_TYPE: &str = "application/json";
pub(crate) const BYTES_TYPE: &str = "application/octet-stream";
pub(crate) const EVENTS_TYPE: &str = "text/event-stream";
/// The content security policy of all answers, in case a browser shows one.
const NO_DOCUMENT: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// Makes an answer of JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<EndpointBody> {
    match serde_json::to_vec(value) {
        Ok(text) => bytes(status, JSON_TYPE, text.into()),
        Err(error) => {
            let failure = Failure::new(
                Code::Internal,
                format!("the answer could not be written: {error}"),
                "report this",
            );
            let text = serde_json::to_vec(&failure).unwrap_or_default();
            bytes(StatusCode::INTERNAL_SERVER_ERROR, JSON_TYPE, text.into())
        }
    }
}

/// Makes an answer of bytes of this type.
pub(crate) fn bytes(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<EndpointBody> {
    with_body(status, kind, whole_body(bytes))
}

/// Makes an answer with a body of this type.
pub(crate) fn with_body(status: StatusCode, kind: &'static str, body: EndpointBody) -> Response<EndpointBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(NO_DOCUMENT));
    if kind == BYTES_TYPE {
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    }
    response
}
