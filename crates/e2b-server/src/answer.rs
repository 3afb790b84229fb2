//! Answers, and errors in the forms that E2B's SDKs read.

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use sandcell_mcp::{EndpointBody, RequestBody, whole_body};
use sandcell_sandbox::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::problem::Problem;

const JSON_TYPE: &str = "application/json";

impl Problem {
    /// Returns the answer: an error of Connect, or of plain HTTP.
    pub(crate) fn into_response(self, is_connect: bool) -> Response<EndpointBody> {
        let is_final = self.status.is_server_error() || self.error_code.as_deref() == Some(Code::LimitReached.as_str());
        let mut response = self.response(is_connect);
        if is_final {
            // The SDKs repeat some of these calls otherwise.
            response
                .headers_mut()
                .insert("should-retry", HeaderValue::from_static("false"));
        }
        response
    }

    fn response(self, is_connect: bool) -> Response<EndpointBody> {
        if is_connect && self.status != StatusCode::BAD_GATEWAY {
            let body = json!({"code": self.code.as_str(), "message": self.message});
            return json(self.code.status(), &body);
        }
        let mut body = json!({"code": self.status.as_u16(), "message": self.message});
        if let (Some(code), Some(object)) = (self.error_code, body.as_object_mut()) {
            object.insert("error_code".to_owned(), code.into());
        }
        json(self.status, &body)
    }
}

/// Makes an answer of JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<EndpointBody> {
    match serde_json::to_vec(value) {
        Ok(text) => with_body(status, JSON_TYPE, whole_body(text)),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Makes an answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<EndpointBody> {
    let mut response = Response::new(whole_body(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Makes an answer of plain text.
pub(crate) fn text(status: StatusCode, text: &'static str) -> Response<EndpointBody> {
    with_body(status, "text/plain; charset=utf-8", whole_body(text))
}

/// Makes an answer with a body of this type.
pub(crate) fn with_body(status: StatusCode, kind: &'static str, body: EndpointBody) -> Response<EndpointBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Reads the JSON body of a request. A missing body is an empty object. Unknown fields are ignored, as E2B does.
pub(crate) fn read<T: DeserializeOwned>(body: &RequestBody<'_>) -> Result<T, Problem> {
    let RequestBody::Whole(bytes) = body else {
        return parse(b"{}");
    };
    parse(if bytes.is_empty() { b"{}" } else { bytes })
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| Problem::invalid(format!("the body is not as expected: {error}")))
}
