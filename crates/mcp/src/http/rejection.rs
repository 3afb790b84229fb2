//! Responses to rejected requests: the HTTP status, its headers, and a body with the problem and its remedy, in the
//! common format of failures.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use sandcell_engine::{EventKind, SecurityEvent};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::body::{Body, whole_body};
use super::endpoints::Refusal;
use crate::auth::oauth::ResourceMetadata;
use crate::limits::{MESSAGE_DEPTH, MESSAGE_MARKS};

/// The JSON-RPC error code of rejections. Servers may define codes in this range; the text states the meaning.
const REJECTED_ERROR: i32 = -32000;

/// The response to a rejected request.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) status: StatusCode,
    /// The label in the metrics.
    pub(crate) reason: &'static str,
    code: Code,
    rpc_code: i32,
    message: Box<str>,
    remedy: Cow<'static, str>,
    /// The id of the request, if it was already read.
    id: Option<Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Rejection {
    fn new(status: StatusCode, reason: &'static str, code: Code, message: &str, remedy: &'static str) -> Self {
        Self {
            status,
            reason,
            code,
            rpc_code: REJECTED_ERROR,
            message: message.into(),
            remedy: remedy.into(),
            id: None,
            headers: Vec::new(),
        }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// Closes the connection after the answer. The client may still be sending, and the server does not read the rest.
    fn closing(self) -> Self {
        self.with(CONNECTION, "close")
    }

    fn later(mut self, wait: Duration) -> Self {
        let seconds = wait.as_secs().max(1);
        self.headers.push((RETRY_AFTER, HeaderValue::from(seconds)));
        self
    }

    /// Returns the event for the audit log, if the sender was denied access.
    pub(crate) fn event(&self, peer: IpAddr) -> Option<SecurityEvent> {
        let kept_out = self.code == Code::Unauthorized || self.status == StatusCode::FORBIDDEN;
        kept_out.then(|| SecurityEvent {
            code: Some(self.code),
            ..SecurityEvent::new(EventKind::AuthFailed, format!("{peer}: {}", self.message))
        })
    }

    /// Sets the id of the request.
    pub(crate) fn about(mut self, id: Option<Value>) -> Self {
        self.id = id;
        self
    }

    pub(crate) fn no_host() -> Self {
        let remedy = "send exactly one Host header with the name and port of this server";
        Self::new(
            StatusCode::BAD_REQUEST,
            "host",
            Code::InvalidArgument,
            "the request has no Host header",
            remedy,
        )
        .closing()
    }

    pub(crate) fn twice(name: &'static str) -> Self {
        let message = format!("the header {name} appears more than once");
        let remedy = "send it once";
        Self::new(
            StatusCode::BAD_REQUEST,
            "headers",
            Code::InvalidArgument,
            &message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn unreadable(name: &'static str) -> Self {
        let message = format!("the header {name} is not plain text");
        let remedy = "use visible ASCII characters only";
        Self::new(
            StatusCode::BAD_REQUEST,
            "headers",
            Code::InvalidArgument,
            &message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn foreign_host() -> Self {
        let message = "the Host header does not name this server";
        let remedy = "use the address that the server printed at its start, or let the operator add the name to \
                      http.allowed_hosts";
        Self::new(StatusCode::FORBIDDEN, "host", Code::DeniedByPolicy, message, remedy).closing()
    }

    pub(crate) fn foreign_origin() -> Self {
        let message = "web pages of this origin may not use this server";
        let remedy = "let the operator add the origin to http.allowed_origins if it is theirs";
        Self::new(StatusCode::FORBIDDEN, "origin", Code::DeniedByPolicy, message, remedy).closing()
    }

    pub(crate) fn foreign_target() -> Self {
        let message = "the request's target names another server than its Host header";
        let remedy = "send requests to this server directly; it is no proxy";
        Self::new(
            StatusCode::BAD_REQUEST,
            "headers",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn token_in_address() -> Self {
        let message = "the address of this server takes no query";
        let remedy = "send the token as `Authorization: Bearer …`; addresses end up in logs";
        Self::new(StatusCode::BAD_REQUEST, "query", Code::InvalidArgument, message, remedy).closing()
    }

    pub(crate) fn unknown_query() -> Self {
        let message = "the query of the address has a field that is unknown or appears twice";
        let remedy =
            "use the fields that the page uses; send the token as `Authorization: Bearer …`, never in an address";
        Self::new(StatusCode::BAD_REQUEST, "query", Code::InvalidArgument, message, remedy).closing()
    }

    pub(crate) fn unknown_field_of_query() -> Self {
        let message = "the query of the address has a field that is unknown or appears twice";
        let remedy = "use the fields that /v1/openapi.json lists; send the token as `Authorization: Bearer …`, never in an \
                      address";
        Self::new(StatusCode::BAD_REQUEST, "query", Code::InvalidArgument, message, remedy).closing()
    }

    pub(crate) fn no_token() -> Self {
        let message = "this server wants a token";
        let remedy = "send `Authorization: Bearer TOKEN`; the operator makes one with `sandcell token create NAME`";
        Self::new(StatusCode::UNAUTHORIZED, "token", Code::Unauthorized, message, remedy)
            .with(WWW_AUTHENTICATE, "Bearer realm=\"sandcell\"")
            .closing()
    }

    pub(crate) fn wrong_token() -> Self {
        let message = "the token is not valid: it is unknown, revoked or has expired";
        let remedy = "ask the operator for a new one (`sandcell token create NAME`)";
        let challenge = "Bearer realm=\"sandcell\", error=\"invalid_token\"";
        Self::new(StatusCode::UNAUTHORIZED, "token", Code::Unauthorized, message, remedy)
            .with(WWW_AUTHENTICATE, challenge)
            .closing()
    }

    pub(crate) fn expired_token() -> Self {
        let message = "the access token has expired";
        let remedy = "get a new one from the same issuer and repeat the request";
        let challenge = "Bearer realm=\"sandcell\", error=\"invalid_token\", error_description=\"expired\"";
        Self::new(StatusCode::UNAUTHORIZED, "token", Code::Unauthorized, message, remedy)
            .with(WWW_AUTHENTICATE, challenge)
            .closing()
    }

    pub(crate) fn scope_missing() -> Self {
        let message = "the access token lacks a scope that this server wants";
        let remedy = "ask the issuer for a token with the scopes that the WWW-Authenticate header names";
        let challenge = "Bearer realm=\"sandcell\", error=\"insufficient_scope\"";
        Self::new(StatusCode::FORBIDDEN, "scope", Code::Unauthorized, message, remedy)
            .with(WWW_AUTHENTICATE, challenge)
            .closing()
    }

    pub(crate) fn issuer_unreachable() -> Self {
        let message = "the issuer's keys are not available at the moment, so its tokens cannot be checked";
        let remedy = "try again soon; the server's log has the reason";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "issuer",
            Code::Unauthorized,
            message,
            remedy,
        )
        .later(Duration::from_secs(5))
        .closing()
    }

    /// Adds the address of the resource metadata to every challenge.
    pub(crate) fn with_resource_metadata(mut self, resource_metadata: Option<&ResourceMetadata>) -> Self {
        let Some(resource_metadata) = resource_metadata else {
            return self;
        };
        for (_, value) in self.headers.iter_mut().filter(|(name, _)| name == WWW_AUTHENTICATE) {
            let text = value
                .to_str()
                .map(|text| format!("{text}, {}", resource_metadata.challenge));
            if let Ok(Ok(longer)) = text.map(HeaderValue::try_from) {
                *value = longer;
            }
        }
        self
    }

    pub(crate) fn token_for_other_use() -> Self {
        let message = "the token is not for this address";
        let remedy = "use a token of `sandcell token create NAME` for /mcp, and one of `sandcell token create NAME \
                      --metrics` for /metrics";
        let challenge = "Bearer realm=\"sandcell\", error=\"insufficient_scope\"";
        Self::new(StatusCode::FORBIDDEN, "scope", Code::Unauthorized, message, remedy)
            .with(WWW_AUTHENTICATE, challenge)
            .closing()
    }

    pub(crate) fn tokens_unreadable() -> Self {
        let message = "the server cannot read its list of tokens, and refuses every caller";
        let remedy = "tell the operator; the server's log has the reason";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "tokens",
            Code::Unauthorized,
            message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn guessing(wait: Duration) -> Self {
        let message = "too many requests with wrong tokens came from this address";
        let remedy = "wait, and send a valid token";
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "guessing",
            Code::Unauthorized,
            message,
            remedy,
        )
        .later(wait)
        .closing()
    }

    pub(crate) fn old_transport() -> Self {
        let message = "this server does not speak the HTTP+SSE transport of 2024-11-05";
        let remedy = "set the client's transport to Streamable HTTP (`type: \"http\"`) and its address to /mcp";
        Self::new(
            StatusCode::GONE,
            "old transport",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn stream_without_session() -> Self {
        let message = "a GET of /mcp opens the stream of a session, and this request names none";
        let remedy = "speak Streamable HTTP: POST to /mcp; the HTTP+SSE transport of 2024-11-05 is not served";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .with(ALLOW, "POST")
    }

    pub(crate) fn method(allowed: &'static str) -> Self {
        let message = "this address does not take that method";
        let remedy = "see the Allow header";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .with(ALLOW, allowed)
        .closing()
    }

    pub(crate) fn no_such_address() -> Self {
        let message = "there is nothing at this address";
        let remedy = "MCP is at /mcp, health at /healthz and /readyz, metrics at /metrics";
        Self::new(StatusCode::NOT_FOUND, "path", Code::NotFound, message, remedy).closing()
    }

    pub(crate) fn no_such_resource() -> Self {
        let message = "there is nothing at this address";
        let remedy = "/v1/openapi.json lists what there is";
        Self::new(StatusCode::NOT_FOUND, "path", Code::NotFound, message, remedy).closing()
    }

    pub(crate) fn not_the_page() -> Self {
        let message = "this address is for the server's own page";
        let remedy = "open / in a browser; programs use MCP at /mcp";
        Self::new(StatusCode::FORBIDDEN, "page", Code::InvalidArgument, message, remedy).closing()
    }

    pub(crate) fn not_json() -> Self {
        let message = "the body must be JSON";
        let remedy = "send `Content-Type: application/json` and one JSON-RPC message";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "content type",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn body_not_json() -> Self {
        let message = "the body must be JSON";
        let remedy = "send `Content-Type: application/json` and one JSON object";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "content type",
            Code::InvalidArgument,
            message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn too_many_values() -> Self {
        let message = format!(
            "the body has too many values: {MESSAGE_MARKS} brackets, commas and colons and {MESSAGE_DEPTH} levels are taken"
        );
        let remedy = "send data as text or as a file";
        Self::new(StatusCode::BAD_REQUEST, "body", Code::InvalidArgument, &message, remedy)
    }

    pub(crate) fn too_large(most: usize) -> Self {
        let message = format!("the body is too large: at most {most} bytes are taken");
        let remedy = "send files in parts with append=true";
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body",
            Code::InvalidArgument,
            &message,
            remedy,
        )
        .closing()
    }

    pub(crate) fn slow_body() -> Self {
        let message = "the body did not arrive in time";
        let remedy = "send it faster, or files in parts with append=true";
        Self::new(StatusCode::REQUEST_TIMEOUT, "slow", Code::Timeout, message, remedy).closing()
    }

    pub(crate) fn broken_body() -> Self {
        let message = "the body ended before its end";
        let remedy = "send it again";
        Self::new(StatusCode::BAD_REQUEST, "body", Code::InvalidArgument, message, remedy).closing()
    }

    pub(crate) fn message(rpc_code: i32, text: &str) -> Self {
        let remedy = "send one JSON-RPC 2.0 message";
        let mut rejection = Self::new(StatusCode::BAD_REQUEST, "message", Code::InvalidArgument, text, remedy);
        rejection.rpc_code = rpc_code;
        rejection
    }

    pub(crate) fn same_id() -> Self {
        let message = "a request with this id is still being answered";
        let mut rejection = Self::new(
            StatusCode::BAD_REQUEST,
            "same id",
            Code::InvalidArgument,
            message,
            "use a new id",
        );
        rejection.rpc_code = -32600;
        rejection
    }

    pub(crate) fn no_session() -> Self {
        let message = "there is no such session: it has ended, or it never was";
        let remedy = "initialize a new one; sandboxes, variables and files are still there";
        Self::new(StatusCode::NOT_FOUND, "session", Code::NotFound, message, remedy)
    }

    pub(crate) fn too_many_sessions() -> Self {
        let message = "this caller has as many sessions as it may have, all in use";
        let remedy = "end one with DELETE, or use one that is open";
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "sessions",
            Code::LimitReached,
            message,
            remedy,
        )
        .later(Duration::from_secs(10))
    }

    pub(crate) fn too_fast(wait: Duration) -> Self {
        let message = "this caller sends requests faster than it may";
        let remedy = "wait as long as Retry-After says";
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "rate",
            Code::LimitReached,
            message,
            remedy,
        )
        .later(wait)
    }

    pub(crate) fn too_many_requests() -> Self {
        let message = "this caller has as many requests under way as it may have";
        let remedy = "wait for one to be answered";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "requests", Code::Busy, message, remedy).later(Duration::from_secs(1))
    }

    pub(crate) fn server_full() -> Self {
        let message = "the server has no memory left for another message of this size just now";
        let remedy = "try again soon";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "memory", Code::Busy, message, remedy)
            .later(Duration::from_secs(1))
            .closing()
    }

    pub(crate) fn ending() -> Self {
        let message = "the server is ending and takes no more requests";
        let remedy = "repeat the call when it is back";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ending", Code::Busy, message, remedy)
            .later(Duration::from_secs(5))
            .closing()
    }

    /// Builds the rejection of endpoints.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        let Failure { code, message, remedy } = refusal.failure;
        Self {
            remedy: remedy.into(),
            ..Self::new(refusal.status, "endpoint", code, &message, "")
        }
    }

    /// Returns the rejection in plain words.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal {
            status: self.status,
            failure: Failure::new(self.code, self.message.as_ref(), self.remedy.as_ref()),
        }
    }

    /// Adds this rejection's headers to an answer.
    pub(crate) fn with_headers(self, mut response: Response<Body>) -> Response<Body> {
        response.headers_mut().extend(self.headers);
        response
    }

    /// Returns the answer for callers that do not use JSON-RPC.
    pub(crate) fn into_plain_response(self) -> Response<Body> {
        let body = json!({"code": self.code, "message": self.message, "remedy": self.remedy});
        answer(self.status, self.headers, &body)
    }

    /// Returns the answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let data = json!({"code": self.code, "message": self.message, "remedy": self.remedy});
        let text = format!("{}: {} ({})", self.code, self.message, self.remedy);
        let mut answer = json!({"jsonrpc": "2.0", "error": {"code": self.rpc_code, "message": text, "data": data}});
        // Without an id the field is left out. Clients would take null for an id.
        if let (Some(id), Some(object)) = (self.id, answer.as_object_mut()) {
            object.insert("id".into(), id);
        }
        self::answer(self.status, self.headers, &answer)
    }
}

fn answer(status: StatusCode, more: Vec<(HeaderName, HeaderValue)>, body: &Value) -> Response<Body> {
    let mut response = Response::new(whole_body(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in more {
        headers.insert(name, value);
    }
    response
}
