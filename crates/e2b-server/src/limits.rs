//! The versions and bounds of this server.

use std::time::Duration;

/// The version of `envd` whose calls this server has. The SDKs select their calls by it.
pub const ENVD_VERSION: &str = "0.6.4";
/// The name of this server in the field `clientID`.
pub(crate) const CLIENT_ID: &str = "sandcell";
/// The port of processes and files.
pub(crate) const ENVD_PORT: u16 = 49_983;
/// The port of the code interpreter.
pub(crate) const INTERPRETER_PORT: u16 = 49_999;
/// The lifetime of a sandbox whose request names none.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// The same for the first version of the call.
pub(crate) const OLD_DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
/// The user of all programs.
pub(crate) const USER_NAME: &str = "user";
/// The id of root; every other owner of a file is shown as [`USER_NAME`].
pub(crate) const ROOT_ID: u32 = 0;
/// The maximum length of a sandbox's id.
pub(crate) const MAX_ID_BYTES: usize = 64;
/// The number of parts of a streamed answer that wait for the connection.
pub(crate) const STREAM_CAPACITY: usize = 4;
/// The length of the head of a frame of Connect: flags, and the length of the message.
pub(crate) const FRAME_HEAD_BYTES: usize = 5;
