//! Packages for Python, and of npm for JavaScript: what may be asked for, how it is fetched, and where it is kept.
//!
//! A request goes through the grammar and the operator's policy (`spec`, `policy`: pure), is resolved and downloaded in a
//! sandbox of its own whose only way out is the broker (`installer`), is checked again as a list of exact versions (`lock`),
//! and becomes a folder that never changes again (`store`), shared by the sandboxes of one owner.
//!
//! The decision taken here: nothing of a package is unpacked or run outside. The files come out of the installer as a plain
//! stream of names and bytes, and only regular files with harmless names are written.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod bases;
mod desk;
mod inside;
mod installer;
mod lock;
mod names;
mod npm;
mod outlet;
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
pub use store::KeptMax;
pub use tool::{Tool, find_uv};
