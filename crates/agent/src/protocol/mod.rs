//! Frames, messages and windows, for both sides. No I/O.

mod codec;
mod messages;
mod window;

pub use codec::{Decoder, Frame, Kind, MAX_FRAME, OutBuffer};
pub use messages::{
    ADOPT_FEATURE, Connected, DIRECT_PIPES_FEATURE, EmptyReply, ErrorCode, Event, FORWARD_FEATURE, FileChangesReply,
    ForgetFilesReply, ForwardReply, Goodbye, GroupUsage, HEIRS_FEATURE, Hello, ImageReply, KEPT_HEIRS_FEATURE,
    KeptReply, ListReply, MOUNT_LAYERS_FEATURE, MakeFolderReply, MountLayersEnd, OPEN_FEATURE, PAUSE_FEATURE,
    ReadReply, Reply, Request, RequestError, RestoreFilesReply, SAVED_FILES_FEATURE, SaveFilesReply, SpawnReply,
    TERMINAL_FEATURE, UsageReply, WATCH_FEATURE, WireError, WriteReply, channel_from_number, channel_number,
    parse_request,
};
pub use window::{INITIAL_WINDOW, MAX_DATA, ReceiveWindow, SendWindow, cost};

/// The name in HELLO.
pub const PROTOCOL_NAME: &str = "sandcell-agent";

/// The version in HELLO.
pub const PROTOCOL_VERSION: u32 = 1;

/// The channel that file contents use.
pub const BODY_CHANNEL: u8 = 4;

/// The maximum number of simultaneous connections to one forwarded port.
pub const MAX_CONNECTIONS: usize = 64;

/// The maximum number of bytes that one `read` or `write` moves.
pub const MAX_TRANSFER: u64 = 16 << 20;

/// The maximum size of the table of contents of an image of saved files, in bytes.
pub const MAX_IMAGE_TABLE: u64 = 64 << 20;

/// The maximum number of entries that one `list` returns.
pub const MAX_ENTRIES: usize = 10_000;

/// The exit status of an agent in a container whose private files exceed their limit.
pub const DISK_FULL_STATUS: u8 = 28;

/// The other side violated the protocol. The connection has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolError(pub String);

impl ProtocolError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
