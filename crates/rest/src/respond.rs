//! Makes answers. The output of code is sent as JSON, as events, or as bytes of a type that browsers do not show as a
//! document.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{Code, Failure};
use serde::Serialize;
use tokio::sync::mpsc;

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
    with_body(status, kind, Full::new(bytes).boxed())
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

/// A body that is read from a channel. The channel closes when the client stops reading, so that the sender can stop.
pub(crate) struct ChannelBody {
    pub(crate) parts: mpsc::Receiver<Bytes>,
    /// The number of bytes that remain to be sent, if known. The connection is aborted if the channel ends before.
    pub(crate) left: Option<u64>,
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.poll_recv(cx);
        if let (Poll::Ready(Some(part)), Some(left)) = (&part, &mut self.left) {
            *left = left.saturating_sub(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        part.map(|part| part.map(|part| Ok(Frame::data(part))))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
