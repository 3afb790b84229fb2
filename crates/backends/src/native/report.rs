//! Describes the isolation that this machine provides, layer by layer: each missing layer with its cause and remedy.

use std::time::Duration;

use sandcell_jail::outer::{Scope, nearest_process_limit};
use sandcell_jail::plan::NAMESPACE_LEVEL_LAYERS;
use sandcell_jail::plan::without_namespaces;
use sandcell_jail::wire::{Report, StepError};
use sandcell_sandbox::{
    Code, Degree, Failure, Isolation, LayerReport, LayerState, LeftOut, Level, OuterProcesses, OuterScope, SandboxError,
};

use super::NAME;
use super::cause;
use super::facts::HostFacts;
use super::options::{self, Cause};

const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
/// The Landlock version that has every right this program requests.
const FULL_LANDLOCK: i32 = 6;

/// Returns the layers of every sandbox on this machine. Layers that only limit amounts come last.
pub(super) fn layers(found: &Report, facts: &HostFacts) -> Vec<LayerReport> {
    match &found.namespaces_missing {
        None => namespace_layers(found, facts),
        Some(missing) => process_layers(found, missing, facts),
    }
}

/// Returns this machine's isolation level.
pub(super) const fn level(found: &Report) -> Level {
    match found.namespaces_missing {
        None => Level::Namespace,
        Some(_) => Level::Process,
    }
}

/// Returns the host's mounts that sandboxes do not show.
pub(super) fn left_out(found: &Report) -> Vec<LeftOut> {
    let of = |mount: &sandcell_jail::wire::SkippedPath| LeftOut {
        path: mount.path.clone(),
        reason: mount.reason.clone(),
    };
    found.left_out.iter().map(of).collect()
}

/// Returns the layers without namespaces, the missing ones included.
fn process_layers(found: &Report, missing: &StepError, facts: &HostFacts) -> Vec<LayerReport> {
    let Cause { cause, remedy } = explained(missing, facts);
    let namespaces = remedy.split("; or, if the weaker level").next().unwrap_or_default();
    let layer = |name: &str, state, reason: Option<String>, remedy: Option<&str>| LayerReport {
        name: name.to_owned(),
        state,
        reason,
        remedy: remedy.map(str::to_owned),
    };
    let mut layers: Vec<LayerReport> = NAMESPACE_LEVEL_LAYERS
        .iter()
        .map(|name| {
            if without_namespaces::PROCESS_LEVEL_LAYERS.contains(name) {
                layer(name, LayerState::Active, None, None)
            } else {
                let reason = match *name {
                    "user_namespace" => format!("{missing}: {cause}; {}", without(name)),
                    _ => without(name).to_owned(),
                };
                layer(name, LayerState::Missing, Some(reason), Some(namespaces))
            }
        })
        .collect();
    let watched = found.cgroups_missing.as_ref();
    for (name, always) in [
        ("memory_limit", false),
        ("cpu_limit", false),
        ("process_limit", false),
        ("disk_limit", true),
    ] {
        let reason = match (always, watched) {
            (true, _) => Some("watched: private files lie in a folder of the host".to_owned()),
            (false, Some(reason)) => Some(format!("watched instead of held by a control group: {reason}")),
            (false, None) => None,
        };
        layers.push(match reason {
            None => layer(name, LayerState::Active, None, None),
            Some(reason) => {
                let remedy = if always { namespaces } else { options::no_groups(facts) };
                layer(name, LayerState::Degraded, Some(reason), Some(remedy))
            }
        });
    }
    layers
}

/// Describes the effect of a missing layer.
fn without(layer: &str) -> &'static str {
    match layer {
        "user_namespace" => "no separate ids, except with root, and no way to count an owner's processes apart",
        "mount_namespace" | "private_root" => {
            "names and attributes of the host's files can be asked for, their contents only of programs and libraries"
        }
        "pid_namespace" | "private_proc" => {
            "that other processes exist can be asked for; /proc is closed but for a few files"
        }
        "network_namespace" => "sockets are refused instead, also on loopback and between a program's own parts",
        "ipc_namespace" => "shared memory, semaphores and message queues are refused instead",
        _ => "the host's name and control group can be seen",
    }
}

fn namespace_layers(found: &Report, facts: &HostFacts) -> Vec<LayerReport> {
    let active = |name: &str| LayerReport {
        name: name.to_owned(),
        state: LayerState::Active,
        reason: None,
        remedy: None,
    };
    let mut layers: Vec<LayerReport> = NAMESPACE_LEVEL_LAYERS.iter().map(|name| active(name)).collect();
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
        if layer.name == "private_root" && !found.bound.is_empty() {
            degrade(
                layer,
                format!(
                    "something is mounted below {} on the host, and an ordinary user can show that only by bind mounts: file \
                     locks and watches on files there cross between sandboxes, and the mount table tells where they come from",
                    found.bound.join(", ")
                ),
                "run the server as root, or in a mount namespace without what is mounted there".to_owned(),
            );
        }
        if layer.name == "user_namespace" && !found.root {
            let Cause { cause, remedy } = options::no_own_user(facts);
            degrade(layer, cause, remedy);
        }
    }
    for name in ["memory_limit", "cpu_limit", "process_limit"] {
        let mut layer = active(name);
        if let Some(reason) = &found.cgroups_missing {
            degrade(
                &mut layer,
                format!("watched every 50 ms instead of held by a control group: {reason}"),
                options::no_groups(facts).to_owned(),
            );
        }
        layers.push(layer);
    }
    layers
}

fn degrade(layer: &mut LayerReport, reason: String, remedy: String) {
    layer.state = LayerState::Degraded;
    layer.reason = Some(reason);
    layer.remedy = Some(remedy);
}

/// Returns the isolation as results contain it.
pub(super) fn isolation(found: &Report, layers: &[LayerReport]) -> Isolation {
    Isolation::of_layers(NAME, level(found), layers)
}

/// The smallest stack in bytes with which the launcher and the first processes work.
const LEAST_STACK: u64 = 256 << 10;
/// The smallest number of open files with which one program can be started inside.
const LEAST_FILES: u64 = 32;

/// Refuses limits of this process that would end the launcher silently or prevent every program inside.
pub(super) fn check_limits(facts: &HostFacts) -> Result<(), SandboxError> {
    let refused = |reason: String, remedy: &str| {
        Err(SandboxError::Unavailable {
            backend: NAME.to_owned(),
            reason,
            remedy: format!("raise it where the server is started: {remedy}"),
        })
    };
    match (facts.stack, facts.open_files) {
        (Some(stack), _) if stack < LEAST_STACK => refused(
            format!(
                "the hard limit of a program's stack (ulimit -Hs) is {} KiB here, and {} KiB are needed",
                stack >> 10,
                LEAST_STACK >> 10
            ),
            "`ulimit -s 8192`, systemd `LimitSTACK=8M`, Docker `--ulimit stack=8388608`",
        ),
        (_, Some(files)) if files < LEAST_FILES => refused(
            format!(
                "the hard limit of open files (ulimit -Hn) is {files} here, and {LEAST_FILES} are needed for one sandbox"
            ),
            "`ulimit -Hn 65536`, systemd `LimitNOFILE=65536`, Docker `--ulimit nofile=65536`",
        ),
        _ => Ok(()),
    }
}

/// Refuses isolation and limits below the operator's floors.
pub(super) fn check_floor(
    found: &Report,
    facts: &HostFacts,
    isolation_min: Level,
    limits_min: Degree,
) -> Result<(), SandboxError> {
    let level = level(found);
    if !level.satisfies(isolation_min) {
        return Err(SandboxError::Isolation {
            layer: isolation_min.to_string(),
            reason: format!("isolation_min is {isolation_min}, and the native back end gives {level} here"),
            remedy: format!("set isolation_min = \"{level}\", or choose a back end that gives {isolation_min}"),
        });
    }
    let missing = found.cgroups_missing.as_deref();
    let unheld = found
        .namespaces_missing
        .as_ref()
        .map(|_| "without namespaces private files lie in a folder of the host, where they can only be watched");
    match (missing.or(unheld), limits_min) {
        (Some(reason), Degree::Enforced) => Err(SandboxError::Isolation {
            layer: "memory_limit".to_owned(),
            reason: format!("limits_min is enforced, but {reason}"),
            remedy: format!("{}; or set limits_min = \"watched\"", options::no_groups(facts)),
        }),
        _ => Ok(()),
    }
}

/// Returns the error for a failed step of the server.
pub(super) fn failed(step: &str, source: std::io::Error) -> SandboxError {
    let number = source.raw_os_error();
    no_process(number).unwrap_or_else(|| SandboxError::Setup {
        step: step.to_owned(),
        source,
    })
}

/// Turns EAGAIN into an error that names the nearest process limit. A sandbox's own limits never cause it during
/// creation.
pub(super) fn no_process(errno: Option<i32>) -> Option<SandboxError> {
    errno.filter(|errno| *errno == EAGAIN).map(|_| {
        let Cause { cause, remedy } = process_limit();
        SandboxError::Refused(Box::new(Failure::new(
            Code::LimitReached,
            format!("no process could be started for a sandbox: {cause}"),
            format!("close sandboxes that are no longer needed and call again; or {remedy}"),
        )))
    })
}

/// Returns the nearest limit of processes around the server, as results report it.
pub(super) fn outer_processes() -> Option<OuterProcesses> {
    let (limit, used) = nearest_process_limit()?;
    Some(OuterProcesses {
        scope: match limit.scope {
            Scope::Group(_) => OuterScope::Group,
            Scope::User(_) => OuterScope::User,
            Scope::Machine(_) => OuterScope::Machine,
        },
        max: limit.max,
        used,
    })
}

/// Describes the nearest limit of processes.
fn process_limit() -> Cause {
    match nearest_process_limit() {
        Some((limit, used)) => Cause {
            cause: format!(
                "{} allows {} processes and threads, and {used} are in use",
                limit.holder(),
                limit.max
            ),
            remedy: limit.remedy(),
        },
        None => Cause {
            cause: "a limit of processes around the server is reached".to_owned(),
            remedy: "raise it where the server is started".to_owned(),
        },
    }
}

/// Returns the error for a sandbox that was not ready in time. The back end works, but the machine is overloaded.
pub(super) fn overdue(deadline: Duration) -> SandboxError {
    SandboxError::Refused(Box::new(Failure::new(
        Code::Busy,
        format!(
            "no sandbox was ready within {} s: the machine is overloaded",
            deadline.as_secs()
        ),
        "call again in a few seconds, with fewer calls at once",
    )))
}

/// Returns the error for a failed step of the launcher's or a sandbox's set-up. It includes the cause if this host's
/// facts show it.
pub(super) fn step_failed(error: StepError) -> SandboxError {
    no_process(Some(error.errno)).unwrap_or_else(|| refusal(error, &HostFacts::read()))
}

fn refusal(error: StepError, facts: &HostFacts) -> SandboxError {
    let known = cause::explain(&error, facts);
    match (error.layer.clone(), known) {
        (Some(layer), known) => {
            let unknown = remedy(&layer);
            SandboxError::Isolation {
                layer,
                reason: known
                    .as_ref()
                    .map_or_else(|| error.to_string(), |known| format!("{error}: {}", known.cause)),
                remedy: known.map_or_else(|| unknown.to_owned(), |known| known.remedy),
            }
        }
        (None, Some(Cause { cause, remedy })) => SandboxError::Unavailable {
            backend: NAME.to_owned(),
            reason: format!("{error}: {cause}"),
            remedy,
        },
        (None, None) => SandboxError::Setup {
            source: std::io::Error::from_raw_os_error(error.errno),
            step: error.step,
        },
    }
}

/// Returns the cause of a failure, or a generic one if no fact about this host explains it.
fn explained(error: &StepError, facts: &HostFacts) -> Cause {
    if error.errno == EAGAIN {
        return process_limit();
    }
    cause::explain(error, facts).unwrap_or_else(|| Cause {
        cause: "the kernel refuses it".to_owned(),
        remedy: remedy("").to_owned(),
    })
}

/// The remedy for a missing layer whose cause is unknown.
fn remedy(layer: &str) -> &'static str {
    match layer {
        "memory" => "make the control groups writable, or run as an ordinary user to have limits watched",
        _ => {
            "the kernel's log may say why (`sudo dmesg | tail`); docs/guides/hosts.md lists what each kind of host needs"
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
            enterable: false,
            namespaces_missing: None,
            left_out: Vec::new(),
            bound: Vec::new(),
            open_files: 1024,
        }
    }

    fn isolation_of(machine: &Report) -> Isolation {
        isolation(machine, &layers(machine, &HostFacts::default()))
    }

    #[test]
    fn an_overloaded_machine_is_not_a_missing_back_end() {
        let failure = Failure::from(overdue(Duration::from_secs(20)));
        assert_eq!(failure.code, Code::Busy);
        assert!(failure.message.contains("within 20 s"), "{failure}");
    }

    #[test]
    fn without_namespaces_the_level_and_every_missing_layer_are_named() {
        let mut machine = found(Some("v2"), false);
        machine.namespaces_missing = Some(StepError {
            step: "make namespaces".to_owned(),
            layer: Some("user_namespace".to_owned()),
            errno: 28,
        });
        let isolation = isolation_of(&machine);
        assert_eq!(isolation.level, Level::Process);
        assert!(!isolation.layers.iter().any(|layer| layer.ends_with("_namespace")));
        for layer in ["user", "mount", "pid", "network", "ipc", "uts", "cgroup"] {
            let name = format!("{layer}_namespace: ");
            assert!(isolation.degraded.iter().any(|text| text.starts_with(&name)), "{name}");
        }
        assert!(
            isolation
                .degraded
                .iter()
                .any(|text| text.starts_with("disk_limit: watched"))
        );
        assert!(check_floor(&machine, &HostFacts::default(), Level::Process, Degree::Watched).is_ok());
        assert!(check_floor(&machine, &HostFacts::default(), Level::Namespace, Degree::Watched).is_err());
        assert!(check_floor(&machine, &HostFacts::default(), Level::Process, Degree::Enforced).is_err());
    }

    #[test]
    fn a_failed_step_is_reported_with_its_cause_and_the_remedy_is_not_to_run_doctor() {
        for layer in plan_layers() {
            let error = StepError {
                step: "do something".to_owned(),
                layer,
                errno: 5,
            };
            let failure = sandcell_sandbox::Failure::from(refusal(error, &HostFacts::default()));
            let is_layer = failure.code == sandcell_sandbox::Code::IsolationUnavailable;
            assert!(!is_layer || !failure.remedy.contains("sandcell doctor"), "{failure}");
        }
    }

    #[test]
    fn limits_of_the_process_that_are_too_low_are_refused_by_name() {
        let refused = |stack, open_files| {
            let facts = HostFacts {
                stack,
                open_files,
                ..HostFacts::default()
            };
            check_limits(&facts)
                .err()
                .map(|error| sandcell_sandbox::Failure::from(error).message)
        };
        assert!(
            refused(Some(64 << 10), None)
                .unwrap()
                .contains("(ulimit -Hs) is 64 KiB")
        );
        assert!(refused(None, Some(20)).unwrap().contains("(ulimit -Hn) is 20"));
        assert_eq!(refused(Some(8 << 20), Some(1024)), None);
        assert_eq!(refused(None, None), None);
    }

    fn plan_layers() -> Vec<Option<String>> {
        let named = NAMESPACE_LEVEL_LAYERS.iter().map(|layer| Some((*layer).to_owned()));
        named.chain([None, Some("memory".to_owned())]).collect()
    }

    #[test]
    fn a_process_limit_is_named_with_its_remedy() {
        for layer in [None, Some("user_namespace".to_owned())] {
            let error = StepError {
                step: "start a process".to_owned(),
                layer,
                errno: 11,
            };
            let layers = explained(&error, &HostFacts::default());
            assert!(layers.cause.contains("allows"), "{layers:?}");
            let failure = Failure::from(step_failed(error));
            assert_eq!(failure.code, Code::LimitReached);
            assert!(failure.message.contains("allows"), "{failure:?}");
            assert!(failure.remedy.contains("raise"), "{failure:?}");
        }
    }

    #[test]
    fn a_full_machine_has_nothing_degraded() {
        assert!(isolation_of(&found(Some("v1"), true)).degraded.is_empty());
    }

    #[test]
    fn folders_that_are_bound_degrade_the_private_root() {
        let mut machine = found(None, false);
        machine.bound = vec!["/usr/lib".to_owned()];
        let isolation = isolation_of(&machine);
        let told = isolation
            .degraded
            .iter()
            .find(|text| text.starts_with("private_root: "));
        assert!(told.is_some_and(|text| text.contains("/usr/lib")), "{isolation:?}");
    }

    #[test]
    fn limits_enforced_by_the_watchdog_are_reported_and_can_be_refused() {
        let machine = found(None, false);
        assert!(
            isolation_of(&machine)
                .degraded
                .iter()
                .any(|text| text.starts_with("memory_limit: watched"))
        );
        assert!(check_floor(&machine, &HostFacts::default(), Level::Namespace, Degree::Watched).is_ok());
        assert!(check_floor(&machine, &HostFacts::default(), Level::Namespace, Degree::Enforced).is_err());
        assert!(check_floor(&machine, &HostFacts::default(), Level::Gvisor, Degree::Watched).is_err());
    }
}
