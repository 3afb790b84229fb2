//! The broker: the only part that uses the network on behalf of sandboxes. It has secrets that sandboxes never see.
//!
//! A sandbox has no route. It reaches hosts only through byte streams to this code, which speaks HTTP on the stream,
//! checks each request, and makes it itself. The broker fetches a package index ([`Index`]) with the machine's own
//! settings ([`Machine`]): index addresses, credentials, certificates and proxies. None of them goes inside. For
//! allowed hosts ([`Egress`]) it opens direct connections and relays the sandbox's own content.
//!
//! *Absent on purpose:* sandboxes. A stream is anything that can be read and written.
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
mod registry_login;
mod resolve;
mod simple;
mod socks;

pub use address::is_public;
pub use egress::{Denial, DenialReason, Egress, EgressLimits, EgressRules};
pub use fetch::Client;
pub use host::{Host, Pattern, Target};
pub use index::{Allows, FetchProblems, Index, Rules};
pub use machine::{Machine, MachineError};
pub use npm::{NpmIndex, NpmMachine};
pub use registry_login::{HUB_KEY, RegistryLogin, is_hub, registry_login};
