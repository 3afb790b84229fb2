//! The usual addresses of daemons, as data: program, system, path and the command that starts it.

use std::path::PathBuf;

use sandcell_sandbox::System;

/// Returns the advice for starting a daemon on a system.
pub(super) const fn start_advice(system: System) -> &'static str {
    match system {
        Linux => {
            "start Docker (`sudo systemctl start docker`, Docker Desktop, Colima, or `podman system service`), or set `docker.host` or DOCKER_HOST to where it listens"
        }
        MacOs => {
            "start Docker Desktop (`open -a Docker`), OrbStack (`orb start`), Colima (`colima start`), Rancher Desktop or Podman (`podman machine start`), or set `docker.host` or DOCKER_HOST to where it listens"
        }
        Windows => {
            "start Docker Desktop, Rancher Desktop or Podman (`podman machine start`), or set `docker.host` or DOCKER_HOST to where it listens"
        }
    }
}

/// The base of a place's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathBase {
    Root,
    Home,
    /// `XDG_RUNTIME_DIR`.
    Runtime,
    /// `XDG_CONFIG_HOME`, else `.config`.
    Config,
    /// `TMPDIR`, which is per user on macOS.
    Temporary,
    /// The system's named pipes.
    Pipes,
}

/// System, program, base, path, and the command that starts the daemon.
struct KnownAddress(System, &'static str, PathBase, &'static str, &'static str);

use PathBase::{Config, Home, Pipes, Root, Runtime, Temporary};
use System::{Linux, MacOs, Windows};

/// In order of preference.
#[rustfmt::skip]
const KNOWN_ADDRESSES: [KnownAddress; 20] = [
    KnownAddress(Linux, "Docker", Root, "var/run/docker.sock", "`sudo systemctl start docker`"),
    KnownAddress(Linux, "rootless Docker", Runtime, "docker.sock", "`systemctl --user start docker`"),
    KnownAddress(Linux, "Docker Desktop", Home, ".docker/desktop/docker.sock", "`systemctl --user start docker-desktop`"),
    KnownAddress(Linux, "rootless Docker", Home, ".docker/run/docker.sock", "`systemctl --user start docker`"),
    KnownAddress(Linux, "Rancher Desktop", Home, ".rd/docker.sock", "start Rancher Desktop"),
    KnownAddress(Linux, "Colima", Home, ".colima/default/docker.sock", "`colima start`"),
    KnownAddress(Linux, "Colima", Config, "colima/default/docker.sock", "`colima start`"),
    KnownAddress(Linux, "rootless Podman", Runtime, "podman/podman.sock", "`systemctl --user start podman.socket`"),
    KnownAddress(Linux, "Podman", Root, "run/podman/podman.sock", "`sudo systemctl start podman.socket`"),
    KnownAddress(MacOs, "Docker", Root, "var/run/docker.sock", "`open -a Docker`"),
    KnownAddress(MacOs, "Docker Desktop", Home, ".docker/run/docker.sock", "`open -a Docker`"),
    KnownAddress(MacOs, "OrbStack", Home, ".orbstack/run/docker.sock", "`orb start`"),
    KnownAddress(MacOs, "Rancher Desktop", Home, ".rd/docker.sock", "`open -a 'Rancher Desktop'`"),
    KnownAddress(MacOs, "Colima", Home, ".colima/default/docker.sock", "`colima start`"),
    KnownAddress(MacOs, "Colima", Config, "colima/default/docker.sock", "`colima start`"),
    KnownAddress(MacOs, "Podman", Temporary, "podman/podman-machine-default-api.sock", "`podman machine start`"),
    KnownAddress(MacOs, "Podman", Home, ".local/share/containers/podman/machine/podman.sock", "`podman machine start`"),
    KnownAddress(Windows, "Docker", Pipes, "docker_engine", "start Docker Desktop or Rancher Desktop"),
    KnownAddress(Windows, "Docker Desktop", Pipes, "dockerDesktopLinuxEngine", "start Docker Desktop"),
    KnownAddress(Windows, "Podman", Pipes, "podman-machine-default", "`podman machine start`"),
];

/// The user's folders; unknown ones are none.
#[derive(Debug, Clone, Default)]
pub(super) struct Folders {
    pub(super) home: Option<PathBuf>,
    pub(super) runtime: Option<PathBuf>,
    pub(super) config: Option<PathBuf>,
    pub(super) temporary: Option<PathBuf>,
}

impl Folders {
    pub(super) fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        Self {
            home: std::env::home_dir(),
            runtime: variable("XDG_RUNTIME_DIR"),
            config: variable("XDG_CONFIG_HOME"),
            temporary: variable("TMPDIR"),
        }
    }
}

/// A possible address of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The daemon's program.
    pub(super) of: &'static str,
    /// The path of a socket, or of a named pipe on Windows.
    pub(super) path: PathBuf,
    /// The command that starts it.
    pub(super) start_command: &'static str,
}

/// Returns the candidates on a system, the preferred one first. There is at least one.
pub(super) fn candidates(system: System, folders: &Folders) -> Vec<Candidate> {
    let config = folders
        .config
        .clone()
        .or_else(|| folders.home.as_ref().map(|home| home.join(".config")));
    KNOWN_ADDRESSES
        .iter()
        .filter(|place| place.0 == system)
        .filter_map(|KnownAddress(_, of, base, path, start_command)| {
            let path = match base {
                Root => PathBuf::from("/").join(path),
                Pipes => PathBuf::from(format!("//./pipe/{path}")),
                Home => folders.home.as_ref().filter(|home| home.is_absolute())?.join(path),
                Runtime => folders.runtime.as_ref().filter(|own| own.is_absolute())?.join(path),
                Config => config.as_ref().filter(|own| own.is_absolute())?.join(path),
                Temporary => folders.temporary.as_ref().filter(|own| own.is_absolute())?.join(path),
            };
            Some(Candidate {
                of,
                path,
                start_command,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(system: System, folders: &Folders) -> Vec<String> {
        let all = candidates(system, folders);
        all.iter().map(|one| one.path.display().to_string()).collect()
    }

    #[test]
    fn the_socket_locations_of_each_system_are_searched() {
        let folders = Folders {
            home: Some("/Users/me".into()),
            runtime: Some("/run/user/7".into()),
            config: None,
            temporary: Some("/var/folders/x/T".into()),
        };
        let mac = paths(System::MacOs, &folders);
        for wanted in [
            "/var/run/docker.sock",
            "/Users/me/.docker/run/docker.sock",
            "/Users/me/.orbstack/run/docker.sock",
            "/Users/me/.colima/default/docker.sock",
            "/Users/me/.config/colima/default/docker.sock",
            "/Users/me/.rd/docker.sock",
            "/var/folders/x/T/podman/podman-machine-default-api.sock",
        ] {
            assert!(mac.iter().any(|path| path == wanted), "{wanted}: {mac:?}");
        }
        let windows = paths(System::Windows, &folders);
        assert!(windows.contains(&"//./pipe/docker_engine".to_owned()), "{windows:?}");
        assert!(windows.iter().all(|path| path.starts_with("//./pipe/")), "{windows:?}");
        let linux = paths(System::Linux, &folders);
        assert_eq!(linux[0], "/var/run/docker.sock");
        assert!(
            linux.contains(&"/run/user/7/podman/podman.sock".to_owned()),
            "{linux:?}"
        );
    }

    #[test]
    fn an_unknown_or_relative_folder_is_skipped() {
        let folders = Folders {
            home: Some("relative".into()),
            ..Folders::default()
        };
        assert_eq!(
            paths(System::Linux, &folders),
            ["/var/run/docker.sock", "/run/podman/podman.sock"]
        );
        for system in [System::Linux, System::MacOs, System::Windows] {
            assert!(!candidates(system, &Folders::default()).is_empty());
        }
    }
}
