//! For processes that already run in a container that others made: an init for a container without one, and the part
//! of a jail that a process can apply to itself.

mod init;
pub mod lockdown;

pub use init::become_init_if_first;
