//! The broker: the only part that uses the network on behalf of sandboxes, with secrets that they never see.
//!
//! A sandbox has no route. What it may reach it reaches through a stream of bytes to this code, which speaks HTTP on the
//! stream, decides, and fetches itself. Today that is a package index ([`Index`]); it is fetched with the machine's own
//! settings ([`Machine`]): index addresses, credentials, certificates and proxies. None of them goes inside.
//!
//! *Absent on purpose:* sandboxes. A stream is whatever can be read and written.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod fetch;
mod index;
mod machine;
mod simple;

pub use fetch::Client;
pub use index::{Allows, Index, Rules, Trouble};
pub use machine::{Machine, MachineError};
