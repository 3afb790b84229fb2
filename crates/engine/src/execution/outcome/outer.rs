//! Names a limit around the server that has ended a process or refused a new one, where the sandbox's own limit was not
//! the reason.

use sandcell_sandbox::{OuterScope, Usage};

/// In quarters of the sandbox's limit: the system ends a process below this for another reason.
const OWN_LIMIT_QUARTERS: u64 = 3;

/// The outer limit that has ended a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OuterLimit {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

/// Finds the outer limit behind a kill for memory. `own` is the sandbox's limit in bytes. None: that limit was the
/// reason.
pub(super) fn behind(usage: &Usage, own: u64) -> Option<OuterLimit> {
    let far_below = (1..own / 4 * OWN_LIMIT_QUARTERS).contains(&usage.memory_peak);
    let lower = usage.outer_memory.filter(|outer| *outer < own);
    match (lower, far_below) {
        // The sandbox's own limit cannot be reached.
        (Some(outer), _) => Some(OuterLimit {
            reason: format!(
                ": the server's control group allows {} MiB for all that it runs",
                outer >> 20
            ),
            remedy: "the operator can give the server's control group more memory (systemd MemoryMax=, Docker --memory); until \
                     then use less memory",
        }),
        (None, true) => Some(OuterLimit {
            reason: match usage.outer_memory {
                Some(outer) => format!(
                    ": the server's control group had no more of its {} MiB, or the machine had none",
                    outer >> 20
                ),
                None => ": the machine had no more".to_owned(),
            },
            remedy: "close sandboxes that are no longer needed and try again, or use less memory",
        }),
        (None, false) => None,
    }
}

/// Finds the outer limit behind a refused process. None: the server's limits leave more room than the sandbox's, so the
/// sandbox's limit was the reason.
pub(super) fn refused(usage: &Usage, own: u32) -> Option<OuterLimit> {
    let outer = usage
        .outer_processes
        .filter(|outer| outer.max.saturating_sub(outer.used) < u64::from(own))?;
    let (holder, remedy) = match outer.scope {
        OuterScope::Group => (
            "the server's control group",
            "start fewer at once; the operator can raise pids.max of the server's control group (systemd TasksMax=, Docker \
             --pids-limit)",
        ),
        OuterScope::User => (
            "the server's user",
            "start fewer at once; the operator can raise `ulimit -u` for the server (systemd LimitNPROC=)",
        ),
        OuterScope::Machine => (
            "the machine",
            "start fewer at once; the operator can raise kernel.pid_max and kernel.threads-max",
        ),
    };
    Some(OuterLimit {
        reason: format!(
            "; {holder} allows {} for all that it runs, and {} are in use",
            outer.max, outer.used
        ),
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandcell_sandbox::OuterProcesses;

    #[test]
    fn an_outer_process_limit_is_named_where_a_sandbox_can_reach_it() {
        let named = |scope, max, used| {
            let usage = Usage {
                outer_processes: Some(OuterProcesses { scope, max, used }),
                ..Usage::default()
            };
            refused(&usage, 128)
        };
        assert_eq!(refused(&Usage::default(), 128), None);
        assert_eq!(named(OuterScope::Group, 4096, 200), None);
        let outer = named(OuterScope::Group, 100, 40).unwrap();
        assert!(outer.reason.contains("control group allows 100") && outer.reason.contains("40 are in use"));
        assert!(outer.remedy.contains("pids.max"));
        assert!(
            named(OuterScope::User, 4096, 4090)
                .unwrap()
                .remedy
                .contains("ulimit -u")
        );
        assert!(
            named(OuterScope::Machine, 4096, 5000)
                .unwrap()
                .remedy
                .contains("pid_max")
        );
    }

    #[test]
    fn the_outer_limit_is_named_where_the_limit_of_the_sandbox_was_not_reached() {
        let own = 512 << 20;
        let named = |peak_mib: u64, outer_mib: Option<u64>| {
            let usage = Usage {
                memory_peak: peak_mib << 20,
                outer_memory: outer_mib.map(|mib| mib << 20),
                ..Usage::default()
            };
            behind(&usage, own).map(|outer| outer.reason)
        };
        assert_eq!(named(500, None), None);
        assert_eq!(named(500, Some(4096)), None);
        assert_eq!(named(0, None), None);
        assert!(named(190, Some(200)).unwrap().contains("allows 200 MiB"));
        assert!(named(490, Some(500)).unwrap().contains("allows 500 MiB"));
        assert!(named(190, Some(4096)).unwrap().contains("no more of its 4096 MiB"));
        assert!(named(190, None).unwrap().contains("the machine had no more"));
    }
}
