//! The broker: the only part that uses the network on behalf of sandboxes, with secrets that they never see.
//!
//! A sandbox has no route. What it may reach it reaches through a stream of bytes to this code, which speaks HTTP on the
//! stream, decides, and fetches itself. A package index ([`Index`]) is fetched with the machine's own settings
//! ([`Machine`]): index addresses, credentials, certificates and proxies. None of them goes inside. Allowed hosts
//! ([`Egress`]) are connected to directly, and what is said to them is the sandbox's own.
//!
//! *Absent on purpose:* sandboxes. A stream is whatever can be read and written.
#![forbid(unsafe_code)]

mod address;
mod counted;
mod egress;
mod fetch;
mod host;
mod index;
mod link;
mod machine;
mod npm;
mod proxy;
mod resolve;
mod simple;
mod socks;

pub use address::is_public;
pub use egress::{Denial, Egress, EgressLimits, EgressRules, Why};
pub use fetch::Client;
pub use host::{Host, Pattern, Target};
pub use index::{Allows, Index, Rules, Trouble};
pub use machine::{Machine, MachineError};
pub use npm::{NpmIndex, NpmMachine};
