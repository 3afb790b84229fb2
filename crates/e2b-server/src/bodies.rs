//! Bodies of answers that are sent while they are made.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use sandcell_mcp::EndpointBody;
use tokio::sync::mpsc;

/// The number of parts of an answer that wait for the connection.
const CAPACITY: usize = 4;

/// Makes a body and its sender. The sender's channel closes when the client stops reading. With a known length, the
/// connection is aborted if the sender ends before.
pub(crate) fn channel(length: Option<u64>) -> (mpsc::Sender<Bytes>, EndpointBody) {
    let (sender, parts) = mpsc::channel(CAPACITY);
    (sender, ChannelBody { parts, left: length }.boxed())
}

struct ChannelBody {
    parts: mpsc::Receiver<Bytes>,
    left: Option<u64>,
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
