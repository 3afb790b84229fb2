//! Sandboxes: their registry and owners, the task of each one, the pool, and the parts of a sandbox: sessions, packages,
//! network, tools and files.

pub(crate) mod checkpoints;
pub(crate) mod expiry;
pub(crate) mod fallback;
pub(crate) mod files;
pub(crate) mod functions;
pub(crate) mod image_interest;
pub(crate) mod lifecycle;
pub(crate) mod mounts;
pub(crate) mod network;
pub(crate) mod packages;
pub(crate) mod pause;
pub(crate) mod pool;
pub(crate) mod ports;
pub(crate) mod registry;
pub(crate) mod sandboxes;
mod service;
pub(crate) mod session;
pub(crate) mod state;
pub(crate) mod text_diff;
pub(crate) mod tools;
pub(crate) mod usage;
