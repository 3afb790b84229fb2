//! Frames, messages and windows: what both sides agree on. No I/O.

mod codec;
mod messages;
mod window;

pub use codec::{Decoder, Frame, Kind, MAX_FRAME, OutBuffer};
pub use messages::{
    ADOPT, Connected, ErrorCode, Event, FORWARD, ForwardReply, Goodbye, GroupUsage, HEIRS, Hello, LANE, ListReply,
    Nothing, ReadReply, Reply, Request, RequestError, SpawnReply, UsageReply, WireError, WriteReply,
    channel_from_number, channel_number, parse_request,
};
pub use window::{MAX_DATA, ReceiveWindow, SendWindow, WINDOW, cost};

/// The name in HELLO.
pub const PROTOCOL: &str = "sandcell-agent";

/// The version in HELLO.
pub const VERSION: u32 = 1;

/// The channel that file contents use.
pub const BODY: u8 = 4;

/// Connections to one forwarded port at the same time.
pub const MAX_CONNECTIONS: usize = 64;

/// The most bytes that one `read` or `write` moves.
pub const MAX_TRANSFER: u64 = 16 << 20;

/// The most entries that one `list` returns.
pub const MAX_ENTRIES: usize = 10_000;

/// The status with which an agent in a container ends because of too many private files.
pub const DISK_FULL_STATUS: u8 = 28;

/// The other side did what the protocol forbids. The connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Breach(pub String);

impl Breach {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
