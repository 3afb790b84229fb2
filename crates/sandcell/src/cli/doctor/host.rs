//! Advice for the host: settings that make an escape harder or sandboxes possible. Only settings with another value on
//! this machine are listed, each with its command. Reading is apart from judging, so that judging is pure.

use serde::Serialize;

/// One thing that the operator could change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Advice {
    /// The setting.
    pub(super) name: &'static str,
    /// The current value.
    pub(super) now: String,
    /// The reason that the value matters here.
    pub(super) reason: String,
    /// The command that changes it.
    pub(super) remedy: String,
}

/// The inputs of advice apart from kernel settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Situation {
    /// True when the server runs as root.
    pub(super) root: bool,
    /// True when a watchdog enforces limits in place of cgroups.
    pub(super) watched: bool,
    /// True when systemd runs this machine.
    pub(super) systemd: bool,
}

/// The users that a setting concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AffectedUsers {
    AllUsers,
    /// All users except root.
    Ordinary,
}

/// A setting of the kernel, its bad values, and the recommended value.
struct Setting {
    name: &'static str,
    affects: AffectedUsers,
    bad: fn(i64) -> bool,
    better: i64,
    reason: &'static str,
}

/// User namespaces that a busy server may need.
const MIN_USER_NAMESPACES: i64 = 1024;

const KERNEL_SETTINGS: [Setting; 9] = [
    Setting {
        name: "kernel.unprivileged_userns_clone",
        affects: AffectedUsers::Ordinary,
        bad: |value| value == 0,
        better: 1,
        reason: "only root may make user namespaces, so that an ordinary user gets no sandbox at level namespace",
    },
    Setting {
        name: "kernel.apparmor_restrict_unprivileged_userns",
        affects: AffectedUsers::Ordinary,
        bad: |value| value != 0,
        better: 0,
        reason: "AppArmor takes the rights in a user namespace away from programs without a profile",
    },
    Setting {
        name: "user.max_user_namespaces",
        affects: AffectedUsers::AllUsers,
        bad: |value| value < MIN_USER_NAMESPACES,
        better: 10_000,
        reason: "each sandbox has a separate user namespace, and a second one while it is made",
    },
    Setting {
        name: "kernel.yama.ptrace_scope",
        affects: AffectedUsers::Ordinary,
        bad: |value| value == 0,
        better: 1,
        reason: "a process that escaped from a sandbox could inspect every process of your user",
    },
    Setting {
        name: "kernel.kptr_restrict",
        affects: AffectedUsers::AllUsers,
        bad: |value| value == 0,
        better: 1,
        reason: "the kernel's addresses are shown, which makes its holes easier to use",
    },
    Setting {
        name: "kernel.dmesg_restrict",
        affects: AffectedUsers::AllUsers,
        bad: |value| value == 0,
        better: 1,
        reason: "the kernel's log is shown to everybody, and may hold its addresses",
    },
    Setting {
        name: "kernel.perf_event_paranoid",
        affects: AffectedUsers::AllUsers,
        bad: |value| value < 2,
        better: 2,
        reason: "performance counters of the kernel are open to everybody; sandboxes are refused them, others are not",
    },
    Setting {
        name: "kernel.unprivileged_bpf_disabled",
        affects: AffectedUsers::AllUsers,
        bad: |value| value == 0,
        better: 1,
        reason: "every user may load BPF programs; a sandbox may not, but a process that escaped from one may",
    },
    Setting {
        name: "vm.overcommit_memory",
        affects: AffectedUsers::AllUsers,
        bad: |value| value == 2,
        better: 0,
        reason: "programs that reserve much more than they use (node, Go, Java) fail in sandboxes as outside",
    },
];

/// Returns the advice for this machine.
pub(super) fn advice(situation: Situation) -> Vec<Advice> {
    judge(situation, |name| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::read_to_string(path)
            .ok()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    })
}

/// Returns true when systemd runs this machine, by the test that systemd documents.
pub(super) fn systemd() -> bool {
    std::path::Path::new("/run/systemd/system").is_dir()
}

fn judge(situation: Situation, read: impl Fn(&str) -> Option<i64>) -> Vec<Advice> {
    let mut found: Vec<Advice> = KERNEL_SETTINGS
        .iter()
        .filter(|setting| setting.affects == AffectedUsers::AllUsers || !situation.root)
        .filter_map(|setting| {
            // A kernel that lacks a setting has nothing to change.
            let now = read(setting.name)?;
            (setting.bad)(now).then(|| Advice {
                name: setting.name,
                now: now.to_string(),
                reason: setting.reason.to_owned(),
                remedy: format!("sudo sysctl -w {}={}", setting.name, setting.better),
            })
        })
        .collect();
    if situation.watched && situation.systemd && !situation.root {
        found.push(Advice {
            name: "delegated control groups",
            now: "none".to_owned(),
            reason: "limits are watched instead of enforced; systemd can delegate a group to your user".to_owned(),
            remedy: "systemd-run --user --scope -p Delegate=yes sandcell serve".to_owned(),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_USER: Situation = Situation {
        root: false,
        watched: true,
        systemd: true,
    };

    const AS_ROOT: Situation = Situation {
        root: true,
        watched: false,
        systemd: true,
    };

    /// Returns the values of a hardened distribution.
    fn hardened(name: &str) -> Option<i64> {
        Some(match name {
            "kernel.apparmor_restrict_unprivileged_userns" | "vm.overcommit_memory" => 0,
            "user.max_user_namespaces" => 95_000,
            "kernel.perf_event_paranoid" => 3,
            "kernel.unprivileged_bpf_disabled" => 2,
            _ => 1,
        })
    }

    #[test]
    fn a_hardened_host_gets_no_advice() {
        assert_eq!(judge(AS_ROOT, hardened), []);
    }

    #[test]
    fn every_bad_setting_is_named_with_the_command_that_fixes_it() {
        for setting in &KERNEL_SETTINGS {
            let bad = [0, 1, 2, 4].into_iter().find(|value| (setting.bad)(*value)).unwrap();
            let found = judge(AS_USER, |name| {
                if name == setting.name {
                    Some(bad)
                } else {
                    hardened(name)
                }
            });
            let own = found.iter().find(|advice| advice.name == setting.name).unwrap();
            assert_eq!(
                own.remedy,
                format!("sudo sysctl -w {}={}", setting.name, setting.better)
            );
            assert_eq!(own.now, bad.to_string());
            // The recommended value is not a bad one.
            assert!(!(setting.bad)(setting.better), "{}", setting.name);
        }
    }

    #[test]
    fn advice_for_ordinary_users_is_not_given_to_root() {
        let found = judge(AS_ROOT, |name| {
            Some(i64::from(name.contains("apparmor") || name.contains("max_user")) * 9999)
        });
        let names: Vec<&str> = found.iter().map(|advice| advice.name).collect();
        assert!(!names.contains(&"kernel.unprivileged_userns_clone"), "{names:?}");
        assert!(
            !names.contains(&"kernel.apparmor_restrict_unprivileged_userns"),
            "{names:?}"
        );
        assert!(names.contains(&"kernel.dmesg_restrict"), "{names:?}");
    }

    #[test]
    fn a_setting_that_this_kernel_lacks_is_not_mentioned() {
        let found = judge(AS_USER, |_| None);
        let names: Vec<&str> = found.iter().map(|advice| advice.name).collect();
        assert_eq!(names, ["delegated control groups"]);
    }
}
