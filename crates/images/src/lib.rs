//! Images of containers without a container daemon: fetched, checked, unpacked in a sandbox, kept as plain folders.
//!
//! A name ([`ImageName`]) is looked up with a registry, in a folder of the OCI layout or in an archive of `docker save`.
//! What comes is checked against its digest while it streams into a sandbox of its own, where it is unpacked
//! (`inside`); what comes out of that is written below one folder (`writer`) and never followed out of it. Layers are kept
//! by the digest that was checked out here; the tree of an image is made of hard links to its layers (`tree`), so images share
//! what they have in common and a sandbox needs one read-only mount.
//!
//! *Absent on purpose:* making sandboxes of images (the native back end does), and unpacking or decompressing anything on the
//! host.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod auth;
mod error;
mod inside;
mod local;
mod manifest;
mod name;
mod record;
mod registry;
mod service;
mod store;
mod tree;
mod unpack;
mod writer;

pub use error::ImageError;
pub use inside::{Kind, unpack};
pub use name::{Allow, ImageName};
pub use service::{Config, LocalImages};
pub use store::{Kept, Pruned};
