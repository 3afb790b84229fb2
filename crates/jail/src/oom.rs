//! Who goes first when the kernel runs out of memory and has to kill somebody: what runs in sandboxes, then their first
//! processes, then other programs of the machine, and only then the server and its launcher, with which every sandbox would go.
//!
//! Anybody may raise its own score. Lowering it takes `CAP_SYS_RESOURCE` on the machine, and is left undone where somebody
//! (systemd, Kubernetes) has chosen a score already.

use crate::cgroup::own_memory_kills;
use crate::steps::write_once;

/// The score of the server and its launcher where they may have it.
const PROTECTED: i32 = -500;
/// The `oom_score_adj` of a sandbox's first process and of the processes that make sandboxes.
pub(crate) const FIRST_PROCESS: i32 = 100;
/// The `oom_score_adj` of a warmed interpreter, the same that the agent gives to programs.
pub(crate) const INTERPRETER: i32 = 300;
/// The highest score.
const MAX_SCORE: i32 = 1000;

fn path(host: &str) -> String {
    format!("{host}/proc/self/oom_score_adj")
}

fn score(host: &str) -> Option<i32> {
    std::fs::read_to_string(path(host)).ok()?.trim().parse().ok()
}

/// Lets all others go before this process, if it may.
pub fn protect_self() {
    if score("") == Some(0) {
        // Without the right to do it nothing is lost but a preference.
        let _ = write_once(&path(""), &PROTECTED.to_string());
    }
}

/// Lets this process go before the server, whose score it was started with.
pub(crate) fn go_first(host: &str, by: i32) {
    if let Some(score) = score(host) {
        let _ = write_once(&path(host), &raised(score, by).to_string());
    }
}

fn raised(score: i32, by: i32) -> i32 {
    let usual = if score == PROTECTED { 0 } else { score };
    usual.saturating_add(by).min(MAX_SCORE)
}

/// Counts what the kernel kills for memory in this process' own control group.
#[derive(Debug)]
pub struct Kills {
    seen: Option<u64>,
}

impl Kills {
    /// Counts from now on.
    #[must_use]
    pub fn from_now() -> Self {
        Self {
            seen: own_memory_kills(),
        }
    }

    /// Whether there was one since the last call. Unknown where no group counts them (that of the machine on version 2).
    #[must_use]
    pub fn any(&mut self) -> Option<bool> {
        let now = own_memory_kills();
        let before = std::mem::replace(&mut self.seen, now);
        Some(now? > before?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_by_a_protected_process_is_not_protected() {
        assert_eq!(raised(PROTECTED, FIRST_PROCESS), FIRST_PROCESS);
        assert_eq!(raised(0, INTERPRETER), INTERPRETER);
        assert_eq!(raised(-100, FIRST_PROCESS), 0, "somebody chose that score");
        assert_eq!(raised(950, FIRST_PROCESS), MAX_SCORE);
    }

    #[test]
    fn nothing_of_this_group_was_killed_for_memory_meanwhile() {
        assert_ne!(Kills::from_now().any(), Some(true));
    }
}
