//! Types and helpers that several of the launcher's processes use: messages, namespaces, ids, forks, and the result of
//! the preparation.
//!
//! No process has its entry point here. Nothing here uses the folders of the processes.

pub(super) mod activity;
pub(super) mod devices;
pub(super) mod faults;
pub(super) mod folder_view;
pub(super) mod fork;
pub(super) mod host_ids;
pub(super) mod messages;
pub(super) mod mount_table;
pub(super) mod namespace_layers;
pub(super) mod namespaces;
pub(super) mod orphans;
pub(super) mod prepared;
pub(super) mod private_folders;
pub(super) mod shared_counts;
pub(super) mod shared_userns;
pub(super) mod tree_walk;
