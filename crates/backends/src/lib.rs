//! The back ends, one folder and one feature each. This file is the list.
#![forbid(unsafe_code)]

#[cfg(feature = "docker")]
pub mod docker;
#[cfg(all(target_os = "linux", feature = "native"))]
pub mod native;

#[cfg(feature = "e2b")]
pub mod e2b;
