//! The agent, which is the first process of a sandbox, and the host's client for it.
//!
//! The agent starts programs, moves files, reaps orphans and reports usage. It knows no language and no isolation. A
//! back end starts [`server::serve`] in its sandbox and hands the two byte streams to [`client::AgentClient`].
//! [`protocol`] defines their content, and `docs/design/protocol.md` describes it in words.
#![forbid(unsafe_code)]

pub mod protocol;

#[cfg(feature = "client")]
pub mod client;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(target_os = "linux")]
pub mod unpack;
