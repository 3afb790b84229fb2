//! The back ends, one folder and one feature each. This file is the list.
#![forbid(unsafe_code)]

use sandcell_settings::Setting;

#[cfg(any(feature = "docker", feature = "kubernetes"))]
mod container;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(all(target_os = "linux", feature = "native"))]
pub mod native;

#[cfg(feature = "e2b")]
pub mod e2b;

/// The tables of settings that back ends of this build declare.
pub const SETTINGS: &[&[Setting]] = &[
    #[cfg(feature = "docker")]
    docker::DockerSettings::SETTINGS,
    #[cfg(feature = "e2b")]
    e2b::E2bConfig::SETTINGS,
];
