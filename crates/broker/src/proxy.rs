//! The proxy for code in a sandbox: HTTP with absolute addresses, CONNECT, and SOCKS 5, on one port.
//!
//! The proxy parses an HTTP request and serializes it again. The target comes from the request line alone, `Host` is
//! rewritten, and hop-by-hop headers are dropped. So no two programs can read two different requests in the same
//! bytes.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::egress::{Egress, Refused};
use crate::host::Target;
use crate::socks;

/// The time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum size of a request's head in bytes.
const HEAD_MAX: usize = 64 << 10;
/// The first byte of SOCKS 5. No HTTP method begins with this byte.
const SOCKS_VERSION: u8 = 5;

/// The hop-by-hop headers, in addition to those that `Connection` names.
const HOP_BY_HOP_HEADERS: [HeaderName; 10] = [
    header::CONNECTION,
    header::HOST,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("proxy-connection"),
];

type Body = BoxBody<Bytes, hyper::Error>;

impl Egress {
    /// Serves one connection from inside until it ends.
    pub async fn serve(self: Arc<Self>, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Some(permit) = self.connection_permit().await else {
            return;
        };
        let mut first = [0];
        if !matches!(timeout(HEAD_TIMEOUT, stream.read(&mut first)).await, Ok(Ok(1))) {
            return;
        }
        if first == [SOCKS_VERSION] {
            socks::serve(&self, stream).await;
            return;
        }
        let stream = Rewound {
            first: Some(first),
            stream,
        };
        let egress = Arc::clone(&self);
        // A tunnel outlives the HTTP connection that opened it, and keeps the permit.
        let permit = Arc::new(permit);
        let service = hyper::service::service_fn(move |request| {
            let (egress, permit) = (Arc::clone(&egress), Arc::clone(&permit));
            async move { Ok::<_, Infallible>(answer(egress, request, permit).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the network proxy failed");
        }
    }
}

async fn answer(egress: Arc<Egress>, request: Request<Incoming>, permit: Arc<OwnedSemaphorePermit>) -> Response<Body> {
    if request.method() == Method::CONNECT {
        return connect(egress, request, permit).await;
    }
    let uri = request.uri();
    let Some(authority) = uri.authority().filter(|_| uri.scheme_str() == Some("http")) else {
        let text = "this is a proxy: it takes http:// addresses, CONNECT for https, and SOCKS 5";
        return plain(StatusCode::BAD_REQUEST, text);
    };
    let connected = match egress.read(authority.as_str(), Some(80)) {
        Ok(target) => egress.connect(&target).await.map(|stream| (target, stream)),
        Err(refused) => Err(refused),
    };
    let (target, stream) = match connected {
        Ok(connected) => connected,
        Err(refused) => return refusal(&refused),
    };
    let host = match target.port {
        80 => target.host.to_string(),
        port => format!("{}:{port}", target.host),
    };
    let Some(request) = rewritten_request(request, &host) else {
        return plain(StatusCode::BAD_REQUEST, "the request cannot be passed on");
    };
    match exchange(&egress, &target, stream, request).await {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => response,
        Ok(_) => plain(StatusCode::BAD_GATEWAY, "the host requires another protocol than HTTP"),
        Err(error) => plain(
            StatusCode::BAD_GATEWAY,
            &format!("the connection to {target} failed: {error}"),
        ),
    }
}

/// Sends one request on a new connection, and returns its answer.
async fn exchange(
    egress: &Egress,
    target: &Target,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<Response<Body>, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with its connection, which has an idle time-out.
    tokio::spawn(egress.while_allowed(target.clone(), async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a host failed");
        }
    }));
    let (mut head, body) = sender.send_request(request).await?.into_parts();
    head.headers = of_the_message(&head.headers);
    head.extensions.clear();
    Ok(Response::from_parts(head, body.boxed()))
}

/// Returns the request to send to the host.
fn rewritten_request(request: Request<Incoming>, host: &str) -> Option<Request<Body>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // `OPTIONS http://host` has no path.
    let path = if path.is_empty() { "/" } else { path };
    let mut rewritten = Request::new(body.boxed());
    *rewritten.method_mut() = head.method;
    *rewritten.uri_mut() = path.parse::<Uri>().ok()?;
    *rewritten.headers_mut() = of_the_message(&head.headers);
    rewritten
        .headers_mut()
        .insert(header::HOST, HeaderValue::from_str(host).ok()?);
    Some(rewritten)
}

/// Returns the end-to-end headers. A length is kept unless the body has its own encoding.
fn of_the_message(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let goes = |name: &HeaderName| {
        HOP_BY_HOP_HEADERS.contains(name)
            || name == "keep-alive"
            || named.iter().any(|named| named == name.as_str())
            || (chunked && *name == header::CONTENT_LENGTH)
    };
    headers
        .iter()
        .filter(|(name, _)| !goes(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

async fn connect(egress: Arc<Egress>, request: Request<Incoming>, permit: Arc<OwnedSemaphorePermit>) -> Response<Body> {
    if announces_content(request.headers()) {
        // The start of the tunnel's bytes would be ambiguous, so nothing after this head is read.
        let mut answer = plain(
            StatusCode::BAD_REQUEST,
            "CONNECT has no content: leave its length and encoding out",
        );
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
        return answer;
    }
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let connected = match egress.read(authority.as_deref().unwrap_or_default(), None) {
        Ok(target) => egress.connect(&target).await.map(|stream| (target, stream)),
        Err(refused) => Err(refused),
    };
    let (target, mut upstream) = match connected {
        Ok(connected) => connected,
        Err(refused) => return refusal(&refused),
    };
    let tunnel = egress.while_allowed(target, async move {
        let _permit = permit;
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        let mut inside = TokioIo::new(upgraded);
        // Both ends see an error of the relay themselves.
        let _end = copy_bidirectional(&mut inside, &mut upstream).await;
    });
    tokio::spawn(tunnel);
    Response::new(full_body(""))
}

/// Returns true if a head announces content. Some clients write a length of 0 into a CONNECT; that is no content.
fn announces_content(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING) || lengths.iter().any(|length| length != "0")
}

/// Returns the answer for a denied or unreachable target. Some clients show only the reason phrase, so it contains the
/// reason too.
fn refusal(refused: &Refused) -> Response<Body> {
    let (status, reason, text) = match refused {
        Refused::Denied(denial) => (
            StatusCode::FORBIDDEN,
            format!("network_denied: {} {}", denial.target, denial.reason),
            format!(
                "network_denied: {} {}; {}\n",
                denial.target,
                denial.reason,
                denial.remedy()
            ),
        ),
        Refused::Unreachable(reason) => (StatusCode::BAD_GATEWAY, reason.clone(), format!("{reason}\n")),
    };
    let mut answer = plain(status, &text);
    // A reason phrase may contain only visible ASCII.
    let reason: String = reason.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    if let Ok(reason) = ReasonPhrase::try_from(reason) {
        answer.extensions_mut().insert(reason);
    }
    answer
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut answer = Response::new(full_body(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn full_body(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned()))
        .map_err(|never| match never {})
        .boxed()
}

/// A stream whose first byte was already read.
struct Rewound<S> {
    first: Option<[u8; 1]>,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&first);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
