//! The host's end of a driver's control channel: its frames, and the sessions that use them.
//!
//! The specification is `docs/design/driver-protocol.md`. All input from the driver is hostile: code in the sandbox can
//! write any bytes to the channel, so a frame gives no authority, and all of its content is checked and bounded here.

mod frame;
mod session;
mod snapshot_state;

pub use frame::{Decoder, Done, Frame, FrameError, encode};
pub use session::{CodeIn, DriverSession, PreloadedModules, Snapshots, Start};
