//! The first process of a sandbox, and the host's end of the line to it.
//!
//! The agent starts programs, moves files, reaps orphans and reports. It knows no language and no isolation: whoever makes a sandbox
//! starts [`server::serve`] in it and hands the two byte streams to [`client::AgentClient`]. What goes over them is
//! in [`protocol`], and in words in `docs/design/protocol.md`.
#![forbid(unsafe_code)]

pub mod protocol;

#[cfg(feature = "client")]
pub mod client;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(target_os = "linux")]
pub mod unpack;
