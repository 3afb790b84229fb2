//! Linux isolation: the plan of a jail (as data), and the launcher that makes jails.
//!
//! A jail is made by a small single-threaded process, the launcher, that holds no secret and has an empty environment.
//! The first process of a jail is a fork of it, locked by every layer before it runs anything. This is the only crate
//! with unsafe code, all of it in `sys`, one system call a function. It knows nothing about the programs inside.

#[cfg(target_os = "linux")]
pub mod cgroup;
#[cfg(target_os = "linux")]
mod claim;
#[cfg(target_os = "linux")]
pub mod container;
#[cfg(target_os = "linux")]
pub mod direct_pipes;
#[cfg(target_os = "linux")]
mod kernel_files;
#[cfg(target_os = "linux")]
pub mod landlock;
#[cfg(target_os = "linux")]
pub mod launcher;
pub mod masked_paths;
#[cfg(target_os = "linux")]
mod own_limits;
#[cfg(target_os = "linux")]
pub mod paths;
#[cfg(target_os = "linux")]
pub mod plan;
#[cfg(target_os = "linux")]
pub mod seccomp;
#[cfg(target_os = "linux")]
pub mod spawn;
#[cfg(target_os = "linux")]
pub mod spec;
#[cfg(target_os = "linux")]
mod steps;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod watchdog;
#[cfg(target_os = "linux")]
pub mod wire;

#[cfg(target_os = "linux")]
pub use container::become_init_if_first;
#[cfg(target_os = "linux")]
pub use own_limits::{oom, open_files, outer, withstand_limits};
#[cfg(target_os = "linux")]
pub use sys::fd::adopt;
#[cfg(target_os = "linux")]
pub use sys::heap::{configure_heap, trim_heap};
#[cfg(target_os = "linux")]
pub use watchdog::{Charged, OwnSockets, SNAPSHOT_PROCESS_NAME, holds_sockets};
