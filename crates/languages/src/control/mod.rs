//! The host's end of a driver's control channel: frames, and the session that is spoken over them.
//!
//! `docs/design/driver-protocol.md` is the description. Whatever comes from the driver is hostile: code in the sandbox
//! can write any bytes to the channel, so a frame gives no authority and everything in it is checked and bounded here.

mod copies;
mod frame;
mod session;

pub use frame::{Decoder, Done, Frame, FrameError, encode};
pub use session::{Ahead, CodeIn, DriverSession, Snapshots, Start};
