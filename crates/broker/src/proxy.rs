//! What code in a sandbox speaks to reach hosts: HTTP with absolute addresses, CONNECT, and SOCKS 5, on one port.
//!
//! A request over HTTP is read whole and said again: its target comes from the request line alone, `Host` is written anew,
//! and what belongs to one hop is left out. So no two programs can read two different requests in the same bytes.

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
use crate::socks;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(20);
/// Bytes of a request's head.
const HEAD_MAX: usize = 64 << 10;
/// The first byte of SOCKS 5; no method of HTTP begins so.
const SOCKS: u8 = 5;

/// Headers that belong to one hop, beside those that `Connection` names.
const HOP: [HeaderName; 10] = [
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
    /// Serves one connection from inside until it is over.
    pub async fn serve(self: Arc<Self>, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Some(place) = self.place().await else { return };
        let mut first = [0];
        if !matches!(timeout(HEAD, stream.read(&mut first)).await, Ok(Ok(1))) {
            return;
        }
        if first == [SOCKS] {
            socks::serve(&self, stream).await;
            return;
        }
        let stream = Rewound {
            first: Some(first),
            stream,
        };
        let egress = Arc::clone(&self);
        // A tunnel lives longer than the conversation that opened it, and keeps its place.
        let place = Arc::new(place);
        let service = hyper::service::service_fn(move |request| {
            let (egress, place) = (Arc::clone(&egress), Arc::clone(&place));
            async move { Ok::<_, Infallible>(answer(egress, request, place).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the network proxy broke off");
        }
    }
}

async fn answer(egress: Arc<Egress>, request: Request<Incoming>, place: Arc<OwnedSemaphorePermit>) -> Response<Body> {
    if request.method() == Method::CONNECT {
        return connect(egress, request, place).await;
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
    let Some(request) = said_again(request, &host) else {
        return plain(StatusCode::BAD_REQUEST, "the request cannot be passed on");
    };
    match exchange(&egress, stream, request).await {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => response,
        Ok(_) => plain(StatusCode::BAD_GATEWAY, "the host wants another protocol than HTTP"),
        Err(error) => plain(StatusCode::BAD_GATEWAY, &format!("{target} broke off: {error}")),
    }
}

/// One request and its answer on a fresh connection.
async fn exchange(
    egress: &Egress,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<Response<Body>, hyper::Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with its connection, which ends when nothing moves.
    tokio::spawn(egress.while_open(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a host broke off");
        }
    }));
    let (mut head, body) = sender.send_request(request).await?.into_parts();
    head.headers = of_the_message(&head.headers);
    head.extensions.clear();
    Ok(Response::from_parts(head, body.boxed()))
}

/// The request as the host gets it.
fn said_again(request: Request<Incoming>, host: &str) -> Option<Request<Body>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    // `OPTIONS http://host` has no path.
    let path = if path.is_empty() { "/" } else { path };
    let mut again = Request::new(body.boxed());
    *again.method_mut() = head.method;
    *again.uri_mut() = path.parse::<Uri>().ok()?;
    *again.headers_mut() = of_the_message(&head.headers);
    again
        .headers_mut()
        .insert(header::HOST, HeaderValue::from_str(host).ok()?);
    Some(again)
}

/// Headers without those of one hop. A length stays unless the body said its own.
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
        HOP.contains(name)
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

async fn connect(egress: Arc<Egress>, request: Request<Incoming>, place: Arc<OwnedSemaphorePermit>) -> Response<Body> {
    if announces_content(request.headers()) {
        // Where the tunnel's bytes begin would be anybody's guess, so nothing after this head is read.
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
        Ok(target) => egress.connect(&target).await,
        Err(refused) => Err(refused),
    };
    let mut upstream = match connected {
        Ok(stream) => stream,
        Err(refused) => return refusal(&refused),
    };
    let tunnel = egress.while_open(async move {
        let _place = place;
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        let mut inside = TokioIo::new(upgraded);
        // How it ends is the business of both ends.
        let _end = copy_bidirectional(&mut inside, &mut upstream).await;
    });
    tokio::spawn(tunnel);
    Response::new(whole(""))
}

/// Returns true if a head announces content. Some clients write a length of 0 into a CONNECT; that is no content.
fn announces_content(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING) || lengths.iter().any(|length| length != "0")
}

/// The answer to what is not allowed or not there. Where a client only shows the reason, that says it too.
fn refusal(refused: &Refused) -> Response<Body> {
    let (status, reason, text) = match refused {
        Refused::Denied(denial) => (
            StatusCode::FORBIDDEN,
            format!("network_denied: {} {}", denial.what, denial.why),
            format!("network_denied: {} {}; {}\n", denial.what, denial.why, denial.remedy()),
        ),
        Refused::Unreachable(why) => (StatusCode::BAD_GATEWAY, why.clone(), format!("{why}\n")),
    };
    let mut answer = plain(status, &text);
    // Nothing but visible ASCII can stand there.
    let reason: String = reason.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    if let Ok(reason) = ReasonPhrase::try_from(reason) {
        answer.extensions_mut().insert(reason);
    }
    answer
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut answer = Response::new(whole(text));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn whole(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned()))
        .map_err(|never| match never {})
        .boxed()
}

/// A stream whose first byte was read already.
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
