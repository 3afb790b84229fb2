//! The current activity of a process, by `/proc/PID/status`.

/// The current activity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It is stopped or traced.
    Stopped,
    /// It waits for an event.
    Waits {
        /// Its count of context switches.
        runs: u64,
    },
    /// It runs, or waits for a processor.
    Runs,
}

/// Parses `/proc/PID/status`.
pub(in crate::launcher) fn activity_in(status: &str) -> Option<Activity> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    match field("State:")?.chars().next()? {
        'T' | 't' => Some(Activity::Stopped),
        'S' | 'D' | 'I' => {
            let count = |name| field(name).and_then(|text| text.parse::<u64>().ok());
            let runs = count("voluntary_ctxt_switches:")?.saturating_add(count("nonvoluntary_ctxt_switches:")?);
            Some(Activity::Waits { runs })
        }
        _ => Some(Activity::Runs),
    }
}
