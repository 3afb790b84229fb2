//! Packages for Python, and npm packages for JavaScript: policy, installation and storage.
//!
//! A request is parsed and checked against the operator's policy (`spec`, `policy`: pure). An installer resolves and
//! downloads the packages in a separate sandbox, which can reach only the broker (`installer`). The resulting list of
//! exact versions is checked again (`lock`). The files become a folder that never changes (`store`), shared by the
//! sandboxes of one owner.
//!
//! The decision taken here: no package is unpacked and no code of a package runs outside a sandbox. The installer's
//! output is a plain stream of names and bytes, and only regular files with safe names are written.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod base_part;
mod bases;
mod coordinator;
mod index_port;
mod inside;
mod installer;
mod lock;
mod names;
mod npm;
mod policy;
mod service;
mod spec;
mod store;
mod tool;
mod unpack;

pub use bases::{BaseInfo, Bases};
pub use npm::{NpmConfig, NpmEntry, NpmPackages, NpmPolicy, NpmTools, find_npm};
pub use policy::{Entry, EntryError, Policy};
pub use service::{Bounds, Config, PythonPackages};
pub use store::StoreLimits;
pub use tool::{Tool, find_uv};
