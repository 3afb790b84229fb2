//! Remedies: the complete options that make a host allow sandboxes, one text for each kind of container.

use super::facts::{Container, HostFacts};

/// The cause of a failure, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) cause: String,
    pub(super) remedy: String,
}

pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// The capabilities (number, name) that root needs to run each sandbox under a separate host user.
const ROOT_CAPABILITIES: [(u32, &str); 6] = [
    (CAP_SYS_ADMIN, "SYS_ADMIN"),
    (19, "SYS_PTRACE"),
    (7, "SETUID"),
    (6, "SETGID"),
    (27, "MKNOD"),
    (5, "KILL"),
];

const PROCESS_LEVEL: &str = "if the weaker level without namespaces is enough (THREAT_MODEL.md says what it does not stop), \
                             set `isolation_min = \"process\"`";

/// Returns every option that a container or a unit needs to create sandboxes.
pub(super) fn allowed(facts: &HostFacts) -> String {
    let label = if facts.selinux {
        " --security-opt label=disable"
    } else {
        ""
    };
    match facts.container {
        Some(Container::Docker) => format!(
            "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt \
             systempaths=unconfined{label}`"
        ),
        Some(Container::Podman) => format!(
            "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt \
             unmask=ALL{label}`"
        ),
        Some(Container::Kubernetes) => "give the container `securityContext: {seccompProfile: {type: Unconfined}, \
             appArmorProfile: {type: Unconfined}, procMount: Unmasked}` and its pod `hostUsers: false`; where the cluster has \
             no user namespaces, `securityContext: {privileged: true}`"
            .to_owned(),
        Some(Container::Lxc) => "allow nesting: `incus config set NAME security.nesting=true` (LXD: `lxc config set NAME \
             security.nesting=true`; Proxmox: `pct set ID --features nesting=1`; LXC: `lxc.include = \
             /usr/share/lxc/config/nesting.conf`), and restart the container"
            .to_owned(),
        Some(Container::Nspawn) => "start the container with `systemd-nspawn --system-call-filter=\"landlock_create_ruleset \
             landlock_add_rule landlock_restrict_self\"` (in a .nspawn file: SystemCallFilter=)"
            .to_owned(),
        Some(Container::Sandcell) => "run sandcell outside of the sandbox".to_owned(),
        Some(Container::Service) | None => "start it without that filter; in a unit of systemd leave out SystemCallFilter=, \
             RestrictNamespaces=, ProtectKernelTunables=, ProtectProc= and ProcSubset="
            .to_owned(),
    }
}

/// Adds the alternative of the `process` level, if this host supports it.
pub(super) fn or_process_level(remedy: String, facts: &HostFacts) -> String {
    if facts.landlock_has_scopes {
        format!("{remedy}; or, {PROCESS_LEVEL}")
    } else {
        remedy
    }
}

/// Explains why sandboxes share the server's host user, for a server that is not the machine's root.
pub(super) fn no_own_user(facts: &HostFacts) -> Cause {
    let lacking: Vec<&str> = ROOT_CAPABILITIES
        .iter()
        .filter(|(number, _)| !facts.holds(*number))
        .map(|(_, name)| *name)
        .collect();
    if !facts.root {
        return Cause {
            cause: "sandboxes run as your own user on the host, not as a separate user".to_owned(),
            remedy: "run the server as root to give each sandbox a separate host user".to_owned(),
        };
    }
    if !facts.first_user_namespace {
        return Cause {
            cause: "sandboxes run as the server's user: its root is that of a user namespace, not the machine's"
                .to_owned(),
            remedy: "start the server, or its container, as the machine's root and without a separate user namespace"
                .to_owned(),
        };
    }
    let adds: Vec<String> = lacking.iter().map(|name| format!("--cap-add {name}")).collect();
    Cause {
        cause: format!(
            "sandboxes run as the server's own user, root: to give each another one it lacks CAP_{}",
            lacking.join(" and CAP_")
        ),
        remedy: match facts.container {
            Some(Container::Kubernetes) => {
                format!(
                    "give the container `securityContext: {{capabilities: {{add: [{}]}}}}`",
                    lacking.join(", ")
                )
            }
            Some(Container::Docker | Container::Podman) => format!("start the container with `{}`", adds.join(" ")),
            _ => format!(
                "start the server with CAP_{} (Docker: `{}`)",
                lacking.join(" and CAP_"),
                adds.join(" ")
            ),
        },
    }
}

/// The remedy for missing control groups.
pub(super) fn no_groups(facts: &HostFacts) -> &'static str {
    match (facts.root, facts.container) {
        (true, Some(Container::Docker | Container::Podman)) => {
            "let the container write control groups: `--cgroupns host -v /sys/fs/cgroup:/sys/fs/cgroup`"
        }
        (true, _) => "make the control groups below /sys/fs/cgroup writable for the server",
        (false, Some(Container::Docker | Container::Podman | Container::Kubernetes)) => {
            "run the server as the container's root with writable control groups (Docker: `--cgroupns host -v \
             /sys/fs/cgroup:/sys/fs/cgroup`)"
        }
        (false, _) => {
            "run as root, or on a systemd host start it with `systemd-run --user --scope -p Delegate=yes sandcell …`"
        }
    }
}
