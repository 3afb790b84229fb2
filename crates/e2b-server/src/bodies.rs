//! Bodies of answers that are sent while they are made.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use sandcell_mcp::{ChannelBody, EndpointBody};
use tokio::sync::mpsc;

/// The number of parts of an answer that wait for the connection.
const CAPACITY: usize = 4;

/// Makes a body and its sender. The sender's channel closes when the client stops reading. With a known length, the
/// connection is aborted if the sender ends before.
pub(crate) fn channel(length: Option<u64>) -> (mpsc::Sender<Bytes>, EndpointBody) {
    let (sender, parts) = mpsc::channel(CAPACITY);
    (sender, ChannelBody { parts, left: length }.boxed())
}
