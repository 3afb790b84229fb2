//! The default folders of a user's settings and data.
//!
//! On Windows `HOME` is ignored: only some shells set it, so a server that a client starts would use another folder
//! than one started in such a shell.

use std::ffi::OsString;
use std::path::PathBuf;

use sandcell_sandbox::System;

/// Returns the folder of the user's settings.
pub(super) fn settings(system: System, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let own = match system {
        System::Linux | System::MacOs => ("HOME", Some(".config")),
        System::Windows => ("APPDATA", None),
    };
    first([("XDG_CONFIG_HOME", None), own], variable)
}

/// Returns the folder of data that outlives a server.
pub(super) fn data(system: System, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let own = match system {
        System::Linux | System::MacOs => ("HOME", Some(".local/share")),
        System::Windows => ("LOCALAPPDATA", None),
    };
    first([("XDG_DATA_HOME", None), own], variable)
}

/// Returns our folder below the first folder that a variable names, with the path between the two.
fn first(places: [(&str, Option<&str>); 2], variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    places.into_iter().find_map(|(name, between)| {
        let folder = PathBuf::from(variable(name)?);
        let folder = between.map_or_else(|| folder.clone(), |between| folder.join(between));
        folder.is_absolute().then(|| folder.join("sandcell"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Option<OsString> {
        let value = match name {
            "HOME" => "/home/me",
            "APPDATA" => "/roaming",
            "LOCALAPPDATA" => "/local",
            _ => return None,
        };
        Some(value.into())
    }

    #[test]
    fn each_system_has_its_own_folders_and_windows_ignores_a_shell_home() {
        for (system, own, kept) in [
            (
                System::Linux,
                "/home/me/.config/sandcell",
                "/home/me/.local/share/sandcell",
            ),
            (
                System::MacOs,
                "/home/me/.config/sandcell",
                "/home/me/.local/share/sandcell",
            ),
            (System::Windows, "/roaming/sandcell", "/local/sandcell"),
        ] {
            assert_eq!(settings(system, named), Some(own.into()));
            assert_eq!(data(system, named), Some(kept.into()));
        }
    }

    #[test]
    fn an_explicit_folder_wins_and_a_relative_one_is_ignored() {
        let said = |name: &str| {
            (name == "XDG_CONFIG_HOME")
                .then(|| "/said".into())
                .or_else(|| named(name))
        };
        let relative = |name: &str| {
            (name == "XDG_CONFIG_HOME")
                .then(|| "said".into())
                .or_else(|| named(name))
        };
        for system in [System::Linux, System::MacOs, System::Windows] {
            assert_eq!(settings(system, said), Some("/said/sandcell".into()));
            assert_eq!(settings(system, relative), settings(system, named));
            assert_eq!(data(system, |_| None), None);
        }
    }
}
