//! Sets the order in which the kernel kills processes when it runs out of memory: first the programs in sandboxes, then
//! the sandboxes' first processes, then other programs of the machine, and last the server and its launcher, whose end
//! would end every sandbox.
//!
//! Every process may raise its score. Lowering it needs `CAP_SYS_RESOURCE` on the machine. If another program (systemd,
//! Kubernetes) has set a score already, it stays.

use crate::cgroup::own_memory_kills;
use crate::kernel_files::write_once;

/// The score of the server and its launcher, if they may lower it.
const PROTECTED_SCORE: i32 = -500;
/// The `oom_score_adj` of a sandbox's first process and of the processes that make sandboxes.
pub(crate) const FIRST_PROCESS_SCORE: i32 = 100;
/// The `oom_score_adj` of a zygote, equal to the score that the agent gives to programs.
pub(crate) const INTERPRETER_SCORE: i32 = 300;
/// The highest score.
const MAX_SCORE: i32 = 1000;

fn path(host: &str) -> String {
    format!("{host}/proc/self/oom_score_adj")
}

fn score(host: &str) -> Option<i32> {
    std::fs::read_to_string(path(host)).ok()?.trim().parse().ok()
}

/// Lowers the score of this process if possible, so that the kernel kills others first.
pub fn protect_self() {
    if score("") == Some(0) {
        // Without the right to lower it, only a preference is lost.
        let _ = write_once(&path(""), &PROTECTED_SCORE.to_string());
    }
}

/// Raises the score of this process above the server's, which it inherited.
pub(crate) fn prefer_as_victim(host: &str, by: i32) {
    if let Some(score) = score(host) {
        let _ = write_once(&path(host), &raised(score, by).to_string());
    }
}

fn raised(score: i32, by: i32) -> i32 {
    let usual = if score == PROTECTED_SCORE { 0 } else { score };
    usual.saturating_add(by).min(MAX_SCORE)
}

/// Counts processes of this process's cgroup that the kernel killed for memory.
#[derive(Debug)]
pub struct Kills {
    seen: Option<u64>,
}

impl Kills {
    /// Starts the count.
    #[must_use]
    pub fn from_now() -> Self {
        Self {
            seen: own_memory_kills(),
        }
    }

    /// Returns true if there was a kill since the last call. None if no group counts kills (such as the root group on
    /// version 2).
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
    fn children_of_a_protected_process_are_not_protected() {
        assert_eq!(raised(PROTECTED_SCORE, FIRST_PROCESS_SCORE), FIRST_PROCESS_SCORE);
        assert_eq!(raised(0, INTERPRETER_SCORE), INTERPRETER_SCORE);
        assert_eq!(raised(-100, FIRST_PROCESS_SCORE), 0, "somebody chose that score");
        assert_eq!(raised(950, FIRST_PROCESS_SCORE), MAX_SCORE);
    }

    #[test]
    fn no_process_of_this_cgroup_was_killed_for_memory() {
        assert_ne!(Kills::from_now().any(), Some(true));
    }
}
