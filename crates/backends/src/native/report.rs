//! What this machine gives, layer by layer, in words: why something is missing and what mends it.

use sandcell_jail::plan::LAYERS;
use sandcell_jail::wire::{Report, StepError};
use sandcell_sandbox::{Degree, Isolation, LayerReport, LayerState, Level, SandboxError};

use super::NAME;

/// The kernel's Landlock version that has every right this program asks for.
const FULL_LANDLOCK: i32 = 6;

/// The layers of every sandbox on this machine. Those that only hold amounts come last.
pub(super) fn layers(found: &Report) -> Vec<LayerReport> {
    let active = |name: &str| LayerReport {
        name: name.to_owned(),
        state: LayerState::Active,
        reason: None,
        remedy: None,
    };
    let mut layers: Vec<LayerReport> = LAYERS.iter().map(|name| active(name)).collect();
    for layer in &mut layers {
        if layer.name == "landlock" && found.landlock_abi < FULL_LANDLOCK {
            degrade(
                layer,
                format!(
                    "this kernel has Landlock version {}, without scopes for signals and sockets",
                    found.landlock_abi
                ),
                "use Linux 6.12 or newer".to_owned(),
            );
        }
        if layer.name == "user_namespace" && !found.root {
            degrade(
                layer,
                "sandboxes run as your own user on the host, not as a user of their own".to_owned(),
                "run the server as root to give each sandbox a host user of its own".to_owned(),
            );
        }
    }
    for name in ["memory_limit", "cpu_limit", "process_limit"] {
        let mut layer = active(name);
        if let Some(reason) = &found.cgroups_missing {
            degrade(
                &mut layer,
                format!("watched every 50 ms instead of held by a control group: {reason}"),
                GROUP_REMEDY.to_owned(),
            );
        }
        layers.push(layer);
    }
    layers
}

const GROUP_REMEDY: &str =
    "run as root, or on a systemd host start it with `systemd-run --user --scope -p Delegate=yes sandcell …`";

fn degrade(layer: &mut LayerReport, reason: String, remedy: String) {
    layer.state = LayerState::Degraded;
    layer.reason = Some(reason);
    layer.remedy = Some(remedy);
}

/// The same as results carry it.
pub(super) fn isolation(layers: &[LayerReport]) -> Isolation {
    Isolation {
        backend: NAME.to_owned(),
        level: Level::Namespace,
        layers: layers.iter().map(|layer| layer.name.clone()).collect(),
        degraded: layers
            .iter()
            .filter_map(|layer| layer.reason.as_ref().map(|reason| format!("{}: {reason}", layer.name)))
            .collect(),
    }
}

/// Refuses what is weaker than the operator accepts.
pub(super) fn check_floor(found: &Report, isolation_min: Level, limits_min: Degree) -> Result<(), SandboxError> {
    if !Level::Namespace.satisfies(isolation_min) {
        return Err(SandboxError::Isolation {
            layer: isolation_min.to_string(),
            reason: format!(
                "isolation_min is {isolation_min}, and the native back end gives {}",
                Level::Namespace
            ),
            remedy: format!(
                "set isolation_min = \"{}\", or choose a back end that gives {isolation_min}",
                Level::Namespace
            ),
        });
    }
    match (&found.cgroups_missing, limits_min) {
        (Some(reason), Degree::Enforced) => Err(SandboxError::Isolation {
            layer: "memory_limit".to_owned(),
            reason: format!("limits_min is enforced, but {reason}"),
            remedy: format!("{GROUP_REMEDY}; or set limits_min = \"watched\""),
        }),
        _ => Ok(()),
    }
}

/// A step of the launcher's or a sandbox's set-up that failed.
pub(super) fn step_failed(error: StepError) -> SandboxError {
    match error.layer.clone() {
        Some(layer) => {
            let remedy = remedy(&layer).to_owned();
            SandboxError::Isolation {
                layer,
                reason: error.to_string(),
                remedy,
            }
        }
        None => {
            let source = std::io::Error::from_raw_os_error(error.errno);
            SandboxError::Setup {
                step: error.step,
                source,
            }
        }
    }
}

/// What mends a missing layer, on the systems where it is known to be missing.
fn remedy(layer: &str) -> &'static str {
    match layer {
        "user_namespace" => {
            "allow user namespaces: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or `sudo sysctl -w kernel.unprivileged_userns_clone=1` (older Debian) or `sudo sysctl -w user.max_user_namespaces=10000`; in Docker, start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; or run as root"
        }
        "private_proc" => {
            "a container that masks /proc cannot make a private one: start it with `--security-opt systempaths=unconfined`, or run on the host"
        }
        "landlock" => "boot with `landlock` in the kernel's `lsm=` list (Linux 5.13 or newer)",
        "memory" => "make the control groups writable, or run as an ordinary user to have limits watched",
        _ => {
            "run `sandcell doctor` on the host; a kernel of Linux 5.13 or newer with namespaces, overlayfs and seccomp is needed"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cgroups: Option<&str>, root: bool) -> Report {
        Report {
            root,
            cgroups: cgroups.map(str::to_owned),
            cgroups_missing: cgroups.is_none().then(|| "no group is delegated".to_owned()),
            landlock_abi: 7,
        }
    }

    #[test]
    fn a_full_machine_has_nothing_degraded() {
        assert!(isolation(&layers(&found(Some("v1"), true))).degraded.is_empty());
    }

    #[test]
    fn what_is_watched_is_reported_and_can_be_refused() {
        let machine = found(None, false);
        assert!(
            isolation(&layers(&machine))
                .degraded
                .iter()
                .any(|text| text.starts_with("memory_limit: watched"))
        );
        assert!(check_floor(&machine, Level::Namespace, Degree::Watched).is_ok());
        assert!(check_floor(&machine, Level::Namespace, Degree::Enforced).is_err());
        assert!(check_floor(&machine, Level::Gvisor, Degree::Watched).is_err());
    }
}
