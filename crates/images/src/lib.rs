//! Container images without a container daemon: images are pulled, checked, unpacked in a sandbox, and stored as plain
//! folders.
//!
//! An image is found by its name ([`ImageName`]) in a registry, in a folder of the OCI layout or in an archive of
//! `docker save`. Its blobs are checked against their digests while they stream into a separate sandbox, which unpacks
//! them (`inside`). The unpacked files are written below one folder (`writer`), and no link is followed out of it.
//! Layers are stored by the digest that the host computed. The tree of an image consists of hard links to its layers
//! (`tree`). Images therefore share common layers, and a sandbox needs one read-only mount.
//!
//! *Absent on purpose:* making sandboxes from images (the native back end does that), and unpacking or decompressing
//! on the host.
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
pub use store::{Pruned, StoredImage};
