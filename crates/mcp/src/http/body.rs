//! Bodies of requests, read within bounds of size and time, and bodies of answers. An answer's body holds its reserved
//! room until it is sent or dropped.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::rejection::Rejection;

/// The body of an answer.
pub(crate) type Body = BoxBody<Bytes, BrokenOff>;

/// The body of an answer broke off. The connection is then closed without the body's end, so that the client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub struct BrokenOff;

/// Pieces of an answer on their way from the session to the connection.
const CHANNEL_CAPACITY: usize = 4;

/// Reads a body of at most `most` bytes within the given time. Calls `grow` with the total size to reserve room.
pub(crate) async fn read(
    mut body: Incoming,
    most: usize,
    within: Duration,
    mut grow: impl FnMut(usize) -> Result<(), Rejection>,
) -> Result<Bytes, Rejection> {
    let mut bytes = BytesMut::new();
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Rejection::broken_body())?;
            let Ok(piece) = frame.into_data() else { continue };
            if bytes.len() + piece.len() > most {
                return Err(Rejection::too_large(most));
            }
            grow(bytes.len() + piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        Ok(())
    };
    match tokio::time::timeout(within, all).await {
        Ok(read) => read.map(|()| bytes.freeze()),
        Err(_) => Err(Rejection::slow_body()),
    }
}

/// A body that holds something until it is over.
struct HoldingBody<H> {
    body: Body,
    _held: H,
}

impl<H: Unpin> HttpBody for HoldingBody<H> {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Wraps a body so that `held` lives until the body was sent or dropped.
pub(crate) fn holding(body: Body, held: impl Send + Sync + Unpin + 'static) -> Body {
    HoldingBody { body, _held: held }.boxed()
}

/// A body that ends when its caller loses access.
struct CancellableBody {
    body: Body,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpBody for CancellableBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => self.ended.as_mut().poll(cx).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Wraps a body so that it ends when the token fires and no data is ready.
pub(crate) fn until(body: Body, ended: CancellationToken) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let ended = Box::pin(ended.cancelled_owned());
    CancellableBody { body, ended }.boxed()
}

/// A body that is read from a channel.
struct ChannelBody(mpsc::Receiver<Frame<Bytes>>);

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// Wraps a body so that `held` lives until its source ends, even after the client has gone: a request counts as in
/// progress until then.
pub(crate) fn to_its_end(mut body: Body, held: impl Send + 'static) -> Body {
    let (send, receive) = mpsc::channel(CHANNEL_CAPACITY);
    tokio::spawn(async move {
        let _held = held;
        let mut wanted = true;
        while let Some(Ok(frame)) = body.frame().await {
            wanted = wanted && send.send(frame).await.is_ok();
        }
    });
    ChannelBody(receive).boxed()
}

/// Makes a body of bytes that are there already.
pub fn whole_body(bytes: impl Into<Bytes>) -> Body {
    infallible(http_body_util::Full::new(bytes.into()))
}

/// Wraps a body that cannot break off.
pub(crate) fn infallible(body: impl HttpBody<Data = Bytes, Error = Infallible> + Send + Sync + 'static) -> Body {
    body.map_err(|never| match never {}).boxed()
}
