//! Reports the isolation layers that a daemon provides, and those that it lacks.

use bollard::models::SystemInfo;
use sandcell_sandbox::{Degree, Isolation, LayerReport, Level, SandboxError};

use super::NAME;
use crate::container::agent_program::Agent;
use crate::container::level;

/// The layers that every container has, because the request asks for them.
const CONTAINER_LAYERS: [&str; 13] = [
    "mount_namespace",
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "uts_namespace",
    "cgroup_namespace",
    "private_root",
    "private_proc",
    "resource_limits",
    "capabilities",
    "no_new_privileges",
    "hidden_agent",
    "seccomp",
];
/// The layers that limit amounts.
const AMOUNT_LAYERS: [&str; 4] = ["memory_limit", "cpu_limit", "process_limit", "disk_limit"];

/// The relevant part of the daemon's information about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonInfo {
    level: Level,
    options: Vec<String>,
    missing: Vec<(&'static str, String)>,
    /// The agent for the daemon's machine.
    pub(super) agent: &'static Agent,
    pub(super) cores_milli: u32,
}

impl DaemonInfo {
    /// Reads the daemon's information.
    pub(super) fn from_daemon(info: SystemInfo, runtime: Option<&str>) -> Result<Self, SandboxError> {
        let system = info.os_type.unwrap_or_default();
        if system != "linux" {
            return Err(super::connect::unavailable(
                format!("the daemon runs {system} containers"),
                "switch it to Linux containers",
            ));
        }
        let agent = Agent::of(&info.architecture.unwrap_or_default())
            .map_err(|lacking| super::connect::unavailable(lacking.reason, &lacking.remedy))?;
        let runtimes = info.runtimes.unwrap_or_default();
        if let Some(wanted) = runtime.filter(|wanted| !runtimes.is_empty() && !runtimes.contains_key(*wanted)) {
            let mut known: Vec<&str> = runtimes.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(super::connect::unavailable(
                format!("the daemon does not have the runtime {wanted}"),
                &format!("set `docker.runtime` to one of {}, or leave it empty", known.join(", ")),
            ));
        }
        let runtime = runtime.map(str::to_owned).or(info.default_runtime).unwrap_or_default();
        let mut missing = Vec::new();
        let held = [
            ("memory_limit", info.memory_limit),
            ("cpu_limit", info.cpu_cfs_quota),
            ("process_limit", info.pids_limit),
        ];
        for (layer, held) in held {
            if held == Some(false) {
                missing.push((layer, "the daemon's machine has no cgroup controller for it".to_owned()));
            }
        }
        let options = info.security_options.unwrap_or_default();
        let has = |name: &str| options.iter().any(|option| names(option, name));
        if !has("seccomp") {
            missing.push((
                "seccomp",
                "the daemon or its kernel has no system-call filters".to_owned(),
            ));
        } else if options.iter().any(|option| option.contains("profile=unconfined")) {
            missing.push(("seccomp", "the daemon's default profile is \"unconfined\"".to_owned()));
        }
        Ok(Self {
            level: level::of(&runtime),
            options,
            missing,
            agent,
            cores_milli: info
                .ncpu
                .and_then(|cores| u32::try_from(cores).ok())
                .map_or(1000, |cores| cores.saturating_mul(1000)),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| names(option, name))
    }
}

/// Options look like `name=seccomp,profile=default`.
fn names(option: &str, name: &str) -> bool {
    option
        .split(',')
        .any(|part| part == name || part.strip_prefix("name=") == Some(name))
}

pub(super) fn layers(found: &DaemonInfo) -> Vec<LayerReport> {
    let mut layers = Vec::new();
    if found.has("rootless") || found.has("userns") {
        layers.push(LayerReport::active("user_namespace"));
    } else if found.level == Level::Container {
        layers.push(LayerReport::missing(
            "user_namespace",
            "the daemon's containers share the host's users; each sandbox has a separate user without privileges there",
            "start the daemon with `--userns-remap=default`, or use a rootless daemon",
        ));
    }
    layers.extend(CONTAINER_LAYERS.map(LayerReport::active));
    if found.has("apparmor") {
        layers.push(LayerReport::active("apparmor"));
    }
    if found.has("selinux") {
        layers.push(LayerReport::active("selinux"));
    }
    layers.extend(AMOUNT_LAYERS.map(LayerReport::active));
    layers
}

pub(super) fn isolation(found: &DaemonInfo, layers: &[LayerReport]) -> Isolation {
    Isolation::of_layers(NAME, found.level, layers)
}

/// Refuses isolation below the operator's floor. Nothing else watches a limit that the daemon cannot enforce, so both
/// `watched` and `enforced` refuse it.
pub(super) fn check_floor(found: &DaemonInfo, isolation_min: Level, limits_min: Degree) -> Result<(), SandboxError> {
    if !found.level.satisfies(isolation_min) {
        return Err(SandboxError::Isolation {
            layer: isolation_min.to_string(),
            reason: format!(
                "isolation_min is {isolation_min}, and the daemon's runtime gives {}",
                found.level
            ),
            remedy: format!(
                "set `docker.runtime` to one that gives {isolation_min} (runsc: gvisor, kata: microvm), or isolation_min = \"{}\"",
                found.level
            ),
        });
    }
    match (found.missing.first(), limits_min) {
        (Some((layer, reason)), Degree::Watched | Degree::Enforced) => Err(SandboxError::Isolation {
            layer: (*layer).to_owned(),
            reason: reason.clone(),
            remedy: "`docker info` shows it under its warnings; give the daemon control groups (for a rootless one: delegation by systemd) and its default seccomp profile".to_owned(),
        }),
        (None, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> SystemInfo {
        SystemInfo {
            os_type: Some("linux".to_owned()),
            architecture: Some(std::env::consts::ARCH.to_owned()),
            memory_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            ncpu: Some(4),
            default_runtime: Some("runc".to_owned()),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            ..SystemInfo::default()
        }
    }

    fn refused(info: SystemInfo, min: Level) -> Option<String> {
        let found = DaemonInfo::from_daemon(info, None).unwrap();
        check_floor(&found, min, Degree::Watched)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn an_ordinary_daemon_gives_container_isolation_only() {
        assert_eq!(refused(info(), Level::Namespace), None);
        assert!(refused(info(), Level::Gvisor).unwrap().contains("gives container"));
    }

    #[test]
    fn a_missing_daemon_feature_is_refused_by_name() {
        let lacks = |change: fn(&mut SystemInfo)| {
            let mut info = info();
            change(&mut info);
            refused(info, Level::Container).unwrap()
        };
        assert!(lacks(|info| info.memory_limit = Some(false)).contains("memory_limit"));
        assert!(lacks(|info| info.pids_limit = Some(false)).contains("process_limit"));
        assert!(lacks(|info| info.security_options = None).contains("seccomp"));
        let unconfined = lacks(|info| info.security_options = Some(vec!["name=seccomp,profile=unconfined".to_owned()]));
        assert!(unconfined.contains("unconfined"));
    }

    #[test]
    fn a_foreign_machine_and_an_unknown_runtime_are_reported() {
        let mut other = info();
        other.architecture = Some("riscv64".to_owned());
        assert!(
            DaemonInfo::from_daemon(other, None)
                .unwrap_err()
                .to_string()
                .contains("riscv64")
        );
        let mut windows = info();
        windows.os_type = Some("windows".to_owned());
        assert!(DaemonInfo::from_daemon(windows, None).is_err());
        let mut known = info();
        known.runtimes = Some([("runc".to_owned(), bollard::models::Runtime::default())].into());
        let error = DaemonInfo::from_daemon(known, Some("runsc")).unwrap_err();
        assert!(error.to_string().contains("runsc"), "{error}");
    }
}
