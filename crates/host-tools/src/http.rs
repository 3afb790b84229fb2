//! The HTTP client for servers that speak MCP over HTTP, with a bound for every answer.
//!
//! The protocol library brings a client for another version of our HTTP library. This one also follows no redirection:
//! the headers of the settings are credentials for one address.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
    StreamableHttpError, StreamableHttpPostResponse,
};
use sandcell_sandbox::Secret;
use sse_stream::{Sse, SseStream};

/// The maximum size of one message of a server.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// The maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the body of an error.
const MAX_ERROR_BYTES: usize = 64 << 10;
const SESSION_HEADER: &str = "mcp-session-id";
const JSON_TYPE: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";

type Error = StreamableHttpError<reqwest::Error>;

/// Returns the transport to this address.
pub(crate) fn transport(
    url: &Url,
    headers: &[(HeaderName, Secret)],
) -> Result<StreamableHttpClientTransport<HttpClient>, reqwest::Error> {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
            value.set_sensitive(true);
            all.insert(name, value);
        }
    }
    let client = reqwest::Client::builder()
        .default_headers(all)
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    Ok(StreamableHttpClientTransport::with_client(HttpClient(client), config))
}

/// A client for one server.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient(reqwest::Client);

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let mut request = self
            .0
            .post(uri.as_ref())
            .header(ACCEPT, format!("{EVENT_STREAM}, {JSON_TYPE}"))
            .header(CONTENT_TYPE, JSON_TYPE)
            .headers(custom_headers.into_iter().collect());
        let had_session = session_id.is_some();
        if let Some(session) = session_id {
            request = request.header(SESSION_HEADER, session.as_ref());
        }
        let response = request
            .body(serde_json::to_vec(&message)?)
            .send()
            .await
            .map_err(Error::Client)?;
        let status = response.status();
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            // Servers that have forgotten a session answer 404, or 400 with an error that belongs to no request.
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST if had_session => return Err(Error::SessionExpired),
            _ => {}
        }
        let session = response
            .headers()
            .get(SESSION_HEADER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let kind = content_type(&response);
        if !status.is_success() && !kind.starts_with(JSON_TYPE) {
            return Err(unexpected(format!("HTTP status {status}")));
        }
        if kind.starts_with(EVENT_STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        if !kind.starts_with(JSON_TYPE) {
            // Some servers answer a notification with an empty 200.
            if status.is_success() && response.content_length() == Some(0) {
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            return Err(Error::UnexpectedContentType(Some(kind)));
        }
        let max = if status.is_success() {
            MAX_MESSAGE_BYTES
        } else {
            MAX_ERROR_BYTES
        };
        let body = read(response, max).await?;
        if body.is_empty() && status.is_success() {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let is_of_request = || {
            let answer: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            answer.get("id").is_some_and(|id| !id.is_null())
        };
        // An error without an id would leave its request without an answer.
        if !status.is_success() && !is_of_request() {
            return Err(unexpected(format!("HTTP status {status}")));
        }
        Ok(StreamableHttpPostResponse::Json(
            serde_json::from_slice(&body)?,
            session,
        ))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        let request = self
            .0
            .delete(uri.as_ref())
            .headers(custom_headers.into_iter().collect())
            .header(SESSION_HEADER, session_id.as_ref());
        request.send().await.map_err(Error::Client)?;
        Ok(())
    }

    /// Messages that no request of ours asked for are not needed.
    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        Err(Error::ServerDoesNotSupportSse)
    }
}

fn content_type(response: &Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.map(|kind| String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase())
        .unwrap_or_default()
}

fn unexpected(text: String) -> Error {
    Error::UnexpectedServerResponse(Cow::Owned(text))
}

/// Returns the events of a body. It ends at the maximum size of a message.
fn events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut left = MAX_MESSAGE_BYTES;
    let bytes = response.bytes_stream().map(move |part| -> std::io::Result<Bytes> {
        let part = part.map_err(std::io::Error::other)?;
        left = left
            .checked_sub(part.len())
            .ok_or_else(|| std::io::Error::other("the answer is too large"))?;
        Ok(part)
    });
    SseStream::from_bytes_stream(bytes).boxed()
}

async fn read(response: Response, max: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.try_next().await.map_err(Error::Client)? {
        if body.len().saturating_add(part.len()) > max {
            return Err(Error::ResponseBodyTooLarge { max_size: max });
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}
