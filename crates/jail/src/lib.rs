//! Linux isolation: what a jail is made of (a plan, which is data), and the launcher that makes jails.
//!
//! A jail is made by a small single-threaded process, the launcher, that holds no secret and has an empty
//! environment. The first process of a jail is a fork of it, locked by every layer before it runs anything. The only
//! crate with unsafe code, all of it in `sys`, one system call a function. It knows nothing of what runs inside.
#![cfg(target_os = "linux")]

mod calls;
pub mod cgroup;
pub mod contained;
pub mod fence;
pub mod lane;
pub mod launcher;
pub mod plan;
pub mod process_level;
pub mod seccomp;
pub mod spawn;
pub mod spec;
mod steps;
mod sys;
mod watch;
pub mod wire;

pub use sys::fd::adopt;
