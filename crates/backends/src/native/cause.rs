//! Explains why a step of creating sandboxes fails on a host, and gives the remedy. The inputs are the step, the
//! kernel's error number and the facts about the host. Pure, so that each kind of host has a test.
//!
//! A remedy is one text with every required option: a missing option would be the next failure. It names a kernel
//! version only if the version is the cause.

use rustix::io::Errno;
use sandcell_jail::wire::{MOUNTED_BELOW_STEP, StepError};

use super::facts::{Container, HostFacts};
use super::options::{CAP_SYS_ADMIN, Cause, allowed, or_process_level};

/// The part of the system that a step concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepSubject {
    Namespaces,
    Proc,
    Landlock,
    Processes,
    Devices,
    Root,
}

const CAP_SETFCAP: u32 = 31;
const CAP_MKNOD: u32 = 27;

/// A limit that no machine exhausts.
const ENDLESS_LIMIT: i64 = 1_000_000;

/// The oldest kernel with all features: overlays in user namespaces (5.11), attributes of mounts (5.12), Landlock
/// (5.13).
const OLDEST_KERNEL: (u32, u32) = (5, 13);

/// Explains a failed step; none if no fact about this host explains it.
pub(super) fn explain(error: &StepError, facts: &HostFacts) -> Option<Cause> {
    let subject = subject_of(error);
    let errno = Errno::from_raw_os_error(error.errno);
    if error.step.starts_with("set a separate user id") {
        return Some(Cause {
            cause: "at the level `process` root gives each sandbox a separate id on the host".to_owned(),
            remedy: "run the server as an ordinary user".to_owned(),
        });
    }
    if error.step.starts_with(MOUNTED_BELOW_STEP) {
        return Some(Cause {
            cause: "a base or a set of packages is shown as one file system".to_owned(),
            remedy: "unmount what is mounted there and start the server again, or build the base again".to_owned(),
        });
    }
    by_number(errno, subject, error.layer.as_deref(), facts).or_else(|| match subject {
        StepSubject::Landlock => landlock(facts),
        _ if facts.container == Some(Container::Sandcell) => Some(nested()),
        _ if !refused(errno) => None,
        StepSubject::Namespaces => namespaces(errno, facts),
        StepSubject::Proc => proc(facts),
        StepSubject::Root if errno == Errno::INVAL && error.step.starts_with("prepare the mount /") => Some(folder()),
        StepSubject::Root => root(facts),
        StepSubject::Devices => devices(facts),
        StepSubject::Processes => None,
    })
}

const fn refused(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL)
}

fn subject_of(error: &StepError) -> StepSubject {
    const NAMESPACE_STEPS: [&str; 7] = [
        "make namespaces",
        "make a mount namespace",
        "enter the common namespace",
        "map ids",
        "wait for ids",
        "take the",
        "hand namespaces over",
    ];
    const PROC_STEPS: [&str; 4] = ["/proc", "forbid user namespaces", "limit watches", "limit buffers"];
    let step = error.step.as_str();
    if error.layer.as_deref() == Some("landlock") {
        StepSubject::Landlock
    } else if PROC_STEPS.iter().any(|part| step.contains(part)) {
        StepSubject::Proc
    } else if NAMESPACE_STEPS.iter().any(|name| step.starts_with(name)) {
        StepSubject::Namespaces
    } else if step.contains("start a process") {
        StepSubject::Processes
    } else if step.contains("device") || step.ends_with("/dev") {
        StepSubject::Devices
    } else {
        StepSubject::Root
    }
}

/// Explains the error numbers that identify the cause by themselves.
fn by_number(errno: Errno, subject: StepSubject, layer: Option<&str>, facts: &HostFacts) -> Option<Cause> {
    let limit = |limit: Option<u64>| limit.map_or_else(|| "not limited here".to_owned(), |limit| limit.to_string());
    let explained = |cause: String, remedy: &str| {
        Some(Cause {
            cause,
            remedy: remedy.to_owned(),
        })
    };
    match errno {
        Errno::NOSPC | Errno::USERS if subject == StepSubject::Namespaces => Some(used_up(layer, facts)),
        Errno::ROFS if matches!(subject, StepSubject::Namespaces | StepSubject::Proc) => proc(facts),
        Errno::NODEV if matches!(subject, StepSubject::Root | StepSubject::Namespaces) => explained(
            "this kernel has no overlay file system".to_owned(),
            "load it: `sudo modprobe overlay` (lasting: `echo overlay | sudo tee /etc/modules-load.d/overlay.conf`)",
        ),
        Errno::MFILE => explained(
            format!("the limit of open files (ulimit -Hn) is {}", limit(facts.open_files)),
            "raise it where the server is started: `ulimit -Hn 65536`, systemd `LimitNOFILE=65536`, Docker `--ulimit nofile=65536`",
        ),
        Errno::NFILE => explained(
            "the machine has no more open files to give (fs.file-max)".to_owned(),
            "sudo sysctl -w fs.file-max=1000000",
        ),
        Errno::FBIG => explained(
            format!(
                "the limit of a file's size (ulimit -f) is {} bytes",
                limit(facts.file_size)
            ),
            "raise it where the server is started: `ulimit -f unlimited`, systemd `LimitFSIZE=infinity`",
        ),
        Errno::NOMEM => explained(
            "no memory is left, on the machine or in the server's control group".to_owned(),
            "end what uses it, or give the server's control group more (systemd `MemoryMax=`, Docker `--memory`)",
        ),
        _ => None,
    }
}

fn nested() -> Cause {
    Cause {
        cause: "this is inside a sandbox of sandcell, where no other can be made".to_owned(),
        remedy: "run sandcell outside of the sandbox".to_owned(),
    }
}

/// Explains that no more namespaces of a layer's kind, or of any kind, can be created.
fn used_up(layer: Option<&str>, facts: &HostFacts) -> Cause {
    let of_layer = match layer.and_then(|layer| layer.strip_suffix("_namespace")) {
        Some("network") => "user.max_net_namespaces".to_owned(),
        Some("mount") => "user.max_mnt_namespaces".to_owned(),
        Some(kind) => format!("user.max_{kind}_namespaces"),
        None => "user.max_user_namespaces".to_owned(),
    };
    let cause = match facts.settings.get(&of_layer) {
        Some(0) => format!("the kernel makes none: {of_layer} is 0"),
        // Limits of enclosing namespaces count as well, but cannot be read.
        Some(most) if *most > ENDLESS_LIMIT => {
            format!("there are no more of them: {of_layer} of a namespace around this one is reached")
        }
        Some(most) => format!("there are no more of them: {of_layer} is {most}, and they are used up"),
        None => format!("there are no more of them: {of_layer} is reached"),
    };
    let place = if facts.container.is_some() || !facts.first_user_namespace {
        ", where the limit is set: on the host, or in the container or user namespace around this one"
    } else {
        ""
    };
    Cause {
        cause,
        remedy: or_process_level(
            format!("`sudo sysctl -w {of_layer}=10000` (lasting in /etc/sysctl.d){place}"),
            facts,
        ),
    }
}

fn namespaces(errno: Errno, facts: &HostFacts) -> Option<Cause> {
    let setting = |name: &str| facts.settings.get(name).copied();
    let ordinary = !facts.holds(CAP_SYS_ADMIN);
    let explained = |cause: &str, remedy: String| {
        Some(Cause {
            cause: cause.to_owned(),
            remedy: or_process_level(remedy, facts),
        })
    };
    if facts.chrooted && errno == Errno::PERM {
        return explained(
            "this process is in a chroot, where the kernel makes no user namespaces",
            "start it in a separate root (`systemd-nspawn`, `bwrap`, a container, `unshare -m` with pivot_root)"
                .to_owned(),
        );
    }
    if ordinary && setting("kernel.unprivileged_userns_clone") == Some(0) {
        return explained(
            "kernel.unprivileged_userns_clone is 0: only root may make user namespaces",
            "`sudo sysctl -w kernel.unprivileged_userns_clone=1` (lasting in /etc/sysctl.d), or run the server as root"
                .to_owned(),
        );
    }
    if facts.filtered {
        return Some(filtered(facts));
    }
    if ordinary && setting("kernel.apparmor_restrict_unprivileged_userns").is_some_and(|value| value != 0) {
        return explained(
            "AppArmor denies capabilities in user namespaces to programs without their own profile \
             (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "give sandcell a profile (docs/guides/hosts.md has it), or `sudo sysctl -w \
             kernel.apparmor_restrict_unprivileged_userns=0`, or run the server as root"
                .to_owned(),
        );
    }
    if facts.root && !facts.holds(CAP_SETFCAP) && errno == Errno::PERM {
        return explained(
            "root without CAP_SETFCAP may not map its own id into a user namespace",
            "run the server as an ordinary user (Docker: `--user 1000:1000`), or add the capability (Docker: `--cap-add SETFCAP`)"
                .to_owned(),
        );
    }
    if let Some(confined) = confined(facts) {
        return Some(confined);
    }
    if errno == Errno::INVAL {
        return explained(
            "this kernel was built without one of the namespaces that sandboxes need",
            "use a kernel with all of them, as distributions have".to_owned(),
        );
    }
    // The trial created a complete sandbox, so a restricted /proc may be the cause.
    (facts.proc_read_only || !facts.proc_covered.is_empty()).then(|| proc(facts))?
}

fn root(facts: &HostFacts) -> Option<Cause> {
    if facts.kernel < OLDEST_KERNEL {
        return Some(too_old(facts));
    }
    if facts.filtered {
        return Some(filtered(facts));
    }
    confined(facts)
}

/// An operator's folder, which a root server shows with mapped ids.
fn folder() -> Cause {
    Cause {
        cause: "the kernel cannot show this folder's file system with other ids (idmapped mounts)".to_owned(),
        remedy: "take a folder on another file system (ext4, xfs, btrfs), or run the server as an ordinary user"
            .to_owned(),
    }
}

fn devices(facts: &HostFacts) -> Option<Cause> {
    if facts.kernel < OLDEST_KERNEL {
        return Some(too_old(facts));
    }
    if facts.root && facts.holds(CAP_SYS_ADMIN) && facts.holds(CAP_MKNOD) && !facts.filtered {
        return Some(Cause {
            cause: "the device rules of the server's control group forbid device nodes".to_owned(),
            remedy:
                "run the server as an ordinary user, or allow them (Docker: `--device-cgroup-rule 'c *:* m'`, systemd: \
                     `DevicePolicy=auto`)"
                    .to_owned(),
        });
    }
    root(facts)
}

fn proc(facts: &HostFacts) -> Option<Cause> {
    let cause = if facts.proc_covered.is_empty() && !facts.proc_read_only {
        return root(facts);
    } else if facts.proc_covered.is_empty() {
        "/proc is read-only here, and the kernel makes no other one that could be written".to_owned()
    } else {
        let shown: Vec<&str> = facts.proc_covered.iter().take(3).map(String::as_str).collect();
        let more = if facts.proc_covered.len() > 3 { ", …" } else { "" };
        format!(
            "parts of /proc are covered ({}{more}), and the kernel makes no other one that would show them",
            shown.join(", ")
        )
    };
    let remedy = match facts.container {
        Some(_) => allowed(facts),
        None => "take away what is mounted over /proc (`findmnt -R /proc` lists it), or have one whole /proc mounted \
                 anywhere next to it; in a systemd unit leave out ProtectKernelTunables=, ProtectProc= and ProcSubset="
            .to_owned(),
    };
    Some(Cause {
        cause,
        remedy: or_process_level(remedy, facts),
    })
}

fn landlock(facts: &HostFacts) -> Option<Cause> {
    let Some(refusal) = facts.landlock else {
        return (!facts.landlock_has_scopes).then(|| Cause {
            cause: "the level `process` needs Landlock version 6".to_owned(),
            remedy:
                "use Linux 6.12 or newer, or make namespaces possible, which need no more than Landlock version 1: \
                     `isolation_min = \"namespace\"` says what they lack here"
                    .to_owned(),
        });
    };
    match Errno::from_raw_os_error(refusal) {
        Errno::NOSYS if facts.kernel < OLDEST_KERNEL => Some(too_old(facts)),
        Errno::NOSYS if !facts.filtered => Some(Cause {
            cause: "this kernel was built without Landlock".to_owned(),
            remedy: "use a kernel with CONFIG_SECURITY_LANDLOCK=y, as distributions have".to_owned(),
        }),
        Errno::NOSYS | Errno::PERM | Errno::ACCESS => Some(Cause {
            cause: "a filter of system calls stands in front of Landlock".to_owned(),
            remedy: allowed(facts),
        }),
        // The kernel's answer if Landlock is built in but disabled.
        _ => Some(Cause {
            cause: "Landlock is in this kernel, but not switched on".to_owned(),
            remedy:
                "boot with `landlock` in front in the kernel's `lsm=` list (`cat /sys/kernel/security/lsm` shows the \
                     present one)"
                    .to_owned(),
        }),
    }
}

fn too_old(facts: &HostFacts) -> Cause {
    let ((major, minor), (oldest_major, oldest_minor)) = (facts.kernel, OLDEST_KERNEL);
    Cause {
        cause: format!(
            "this kernel is Linux {major}.{minor}, which lacks overlays in user namespaces, mount_setattr or Landlock"
        ),
        remedy: format!(
            "use Linux {oldest_major}.{oldest_minor} or newer (Debian 11: `linux-image-amd64` of bullseye-backports), or another \
             back end (`--backend docker`)"
        ),
    }
}

fn filtered(facts: &HostFacts) -> Cause {
    Cause {
        cause: match facts.container {
            None => {
                "a filter of system calls (seccomp), set by the program that started this one, refuses it".to_owned()
            }
            Some(Container::Service) => "the unit's filter of system calls (seccomp) refuses it".to_owned(),
            Some(_) => "the container's filter of system calls (seccomp) refuses it".to_owned(),
        },
        remedy: or_process_level(allowed(facts), facts),
    }
}

/// Explains a refusal by AppArmor or SELinux.
fn confined(facts: &HostFacts) -> Option<Cause> {
    let cause = match &facts.apparmor {
        Some(profile) => format!("the AppArmor profile {profile} refuses it"),
        None if facts.selinux => "SELinux refuses it".to_owned(),
        None => return None,
    };
    let remedy = match (facts.container, &facts.apparmor) {
        (Some(Container::Service) | None, Some(_)) => {
            "allow mounts and user namespaces in that profile, or start the server outside of it".to_owned()
        }
        (Some(Container::Service) | None, None) => {
            "`sudo ausearch -m avc -ts recent` shows what was refused; allow it (`audit2allow`), or start the server in a \
             domain that may make user namespaces and mounts"
                .to_owned()
        }
        (Some(_), _) => allowed(facts),
    };
    Some(Cause {
        cause,
        remedy: or_process_level(remedy, facts),
    })
}

#[cfg(test)]
#[path = "cause_tests.rs"]
mod tests;
