//! Signals to a program's tree.
//!
//! A process that detaches itself has lost its ancestors, so the rule is inverted. As process 1 the tree of a program
//! is every process except the agent and the processes that visibly belong to another started program: that program,
//! its living descendants, and its session. Without a process namespace the tree is the program, its living descendants
//! and its session.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

use super::process_table::{self, Entry};

/// The number of walks while new processes keep appearing, before all processes are stopped at once.
const MAX_GENTLE_ROUNDS: usize = 8;

/// With more processes than this, all are stopped at once.
const MAX_GENTLE_PROCESSES: usize = 512;

/// The number of walks after that.
const MAX_STOPPED_ROUNDS: usize = 64;

/// The maximum length of a chain of ancestors.
const MAX_ANCESTORS: usize = 4096;

/// A program's tree, and the processes that do not belong to it.
pub(super) struct Tree<'a> {
    pub(super) program: Pid,
    /// The other started programs with open streams, whether they have ended or not.
    pub(super) others: &'a [Pid],
    /// True if the agent is process 1 and owns every visible process.
    pub(super) first_process: bool,
}

impl Tree<'_> {
    /// Sends a signal to the tree once. KILL is repeated until no process is left.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        if signal == Signal::KILL {
            return self.kill();
        }
        self.send_to_members(signal)
    }

    fn kill(&self) -> io::Result<()> {
        if !self.first_process {
            return self.kill_descendants();
        }
        if self.others.is_empty() {
            return signal_all(Signal::KILL);
        }
        // A fork bomb makes processes faster than a longer table can be read, so longer tables are not read.
        let is_small = process_table::read()?.entries.len() <= MAX_GENTLE_PROCESSES;
        if is_small && self.sweep(MAX_GENTLE_ROUNDS)? {
            return Ok(());
        }
        // A process forks faster than the table is read. After all processes are stopped in one step none can fork,
        // since a child of a fork in progress inherits the stop.
        let stopped = process_table::read()?
            .entries
            .into_iter()
            .filter(|entry| entry.is_stopped());
        let stopped: Vec<Entry> = stopped.collect();
        signal_all(Signal::STOP)?;
        if !self.sweep(MAX_STOPPED_ROUNDS).unwrap_or(false) {
            // The tree cannot be determined. No process may outlive a kill, so the others are killed too.
            return signal_all(Signal::KILL);
        }
        signal_all(Signal::CONT)?;
        for entry in stopped {
            send(entry, Signal::STOP);
        }
        Ok(())
    }

    /// Kills the tree's processes until a whole walk has found only processes that were killed before the walk. A
    /// process with a pending KILL completes no fork. So a survivor could only descend from a process that forked
    /// during the walk, and that leaves an unknown process in the walk, dead or alive, or a gap. Returns false if there
    /// was no such walk.
    fn sweep(&self, rounds: usize) -> io::Result<bool> {
        let mut known = BTreeSet::new();
        for _ in 0..rounds {
            let table = process_table::read()?;
            let mut found_new = false;
            for entry in self.members(&table.entries) {
                if known.insert((entry.pid, entry.started)) {
                    found_new = true;
                    send(entry, Signal::KILL);
                }
            }
            for dead in table.entries.iter().filter(|entry| entry.is_dead()) {
                found_new |= known.insert((dead.pid, dead.started));
            }
            if table.complete && !found_new {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Kills the tree without a process namespace. Its processes are stopped first, since an orphan cannot be found
    /// again.
    fn kill_descendants(&self) -> io::Result<()> {
        for signal in [Signal::STOP, Signal::STOP, Signal::KILL, Signal::KILL] {
            self.send_to_members(signal)?;
        }
        Ok(())
    }

    fn send_to_members(&self, signal: Signal) -> io::Result<()> {
        for entry in self.members(&process_table::read()?.entries) {
            send(entry, signal);
        }
        Ok(())
    }

    /// Returns the living members of the tree.
    fn members(&self, table: &[Entry]) -> Vec<Entry> {
        let parents: BTreeMap<i32, i32> = table.iter().map(|entry| (entry.pid, entry.parent)).collect();
        let me = getpid().as_raw_pid();
        let belongs = |entry: &Entry, programs: &[Pid]| {
            let is_program = |pid: i32| programs.iter().any(|program| program.as_raw_pid() == pid);
            let mut pid = entry.pid;
            for _ in 0..MAX_ANCESTORS {
                if is_program(pid) {
                    return true;
                }
                match parents.get(&pid) {
                    Some(parent) if *parent != me && *parent > 0 => pid = *parent,
                    _ => break,
                }
            }
            is_program(entry.session)
        };
        let is_member = |entry: &&Entry| {
            entry.pid != me
                && !entry.is_dead()
                && if self.first_process {
                    !belongs(entry, self.others)
                } else {
                    belongs(entry, &[self.program])
                }
        };
        table.iter().filter(is_member).copied().collect()
    }
}

/// Sends a signal to a program's group, which may be empty. Returns true if a process received it.
pub(super) fn signal_process_group(program: Pid, signal: Signal) -> bool {
    program != Pid::INIT && kill_process_group(program, signal).is_ok()
}

/// Sends a signal to one process. A process that has just ended is no error.
pub(super) fn signal_process(pid: Pid, signal: Signal) {
    let _gone = kill_process(pid, signal);
}

fn send(entry: Entry, signal: Signal) {
    if let Some(pid) = entry.id() {
        signal_process(pid, signal);
    }
}

/// Sends a signal to every process of this namespace except this one, in one step that no fork outruns. Works only in
/// process 1.
pub(super) fn signal_all(signal: Signal) -> io::Result<()> {
    if getpid() != Pid::INIT {
        return Err(Errno::PERM.into());
    }
    // The group of process 1 means kill(-1): every process that the caller may signal.
    match kill_process_group(Pid::INIT, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, session: i32) -> Entry {
        Entry {
            pid,
            parent,
            session,
            started: 1,
            is_ending: false,
            threads: 1,
            state: b'S',
        }
    }

    fn pids(tree: &Tree<'_>, table: &[Entry]) -> Vec<i32> {
        tree.members(table).iter().map(|entry| entry.pid).collect()
    }

    #[test]
    fn an_orphaned_daemon_is_killed_with_the_next_killed_program() {
        let me = getpid().as_raw_pid();
        let base = me + 10;
        let table = [
            entry(me, 0, 0),
            entry(base, me, base),
            entry(base + 1, base, base),
            entry(base + 2, base, base + 2),
            // Another program, its child with a separate session, and an orphan in its session.
            entry(base + 10, me, base + 10),
            entry(base + 11, base + 10, base + 11),
            entry(base + 12, me, base + 10),
            // A double-forked daemon.
            entry(base + 20, me, base + 20),
            entry(base + 21, base + 20, base + 20),
        ];
        let (program, other) = (Pid::from_raw(base).unwrap(), Pid::from_raw(base + 10).unwrap());
        let tree = Tree {
            program,
            others: &[other],
            first_process: true,
        };
        assert_eq!(pids(&tree, &table), [base, base + 1, base + 2, base + 20, base + 21]);
        let tree = Tree {
            program,
            others: &[other],
            first_process: false,
        };
        assert_eq!(pids(&tree, &table), [base, base + 1, base + 2]);
    }

    #[test]
    fn dead_processes_and_cycles_of_parents_are_handled() {
        let me = getpid().as_raw_pid();
        let mut dead = entry(me + 5, me, me + 5);
        dead.state = b'Z';
        let table = [entry(me + 1, me + 2, 7), entry(me + 2, me + 1, 7), dead];
        let tree = Tree {
            program: Pid::from_raw(me + 1).unwrap(),
            others: &[],
            first_process: true,
        };
        assert_eq!(pids(&tree, &table), [me + 1, me + 2]);
    }

    #[test]
    fn only_process_one_may_signal_all_processes() {
        assert!(signal_all(Signal::CONT).is_err());
    }
}
