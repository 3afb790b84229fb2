//! Signals to a program's tree.
//!
//! A process that detaches itself has lost its ancestors, so the rule is the other way round: as process 1 the tree of a program is everybody but the
//! agent and those who can be seen to belong to another started program: it, its living descendants, and its session. Without a
//! process namespace it is the program, its living descendants and its session.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

use super::process_table::{self, Entry};

/// How often the table is read while new processes keep appearing, before everybody is stopped at once.
const GENTLE_ROUNDS: usize = 8;

/// With more processes than this, everybody is stopped at once.
const CALM: usize = 512;

/// How often it is read then.
const ROUNDS: usize = 64;

/// No chain of ancestors is followed further.
const MAX_ANCESTORS: usize = 4096;

/// A program's tree, and what must not be taken for it.
pub(super) struct Tree<'a> {
    pub(super) program: Pid,
    /// The other started programs, whether they have ended or not, while their streams live.
    pub(super) others: &'a [Pid],
    /// Whether the agent is process 1 and so owns everybody it sees.
    pub(super) first_process: bool,
}

impl Tree<'_> {
    /// Sends a signal to the tree once; KILL so that nothing of it is left.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        if signal == Signal::KILL {
            return self.kill();
        }
        self.send_to_members(signal)
    }

    fn kill(&self) -> io::Result<()> {
        if !self.first_process {
            return self.kill_descent();
        }
        if self.others.is_empty() {
            return to_everybody(Signal::KILL);
        }
        // A table this long takes so long to read that a storm outruns the reader; it is not even tried.
        let calm = process_table::read()?.entries.len() <= CALM;
        if calm && self.sweep(GENTLE_ROUNDS)? {
            return Ok(());
        }
        // Somebody forks himself away faster than he is read. With everybody stopped in one step (a fork under way passes that on to the
        // child) nobody does.
        let stopped = process_table::read()?
            .entries
            .into_iter()
            .filter(|entry| entry.is_stopped());
        let stopped: Vec<Entry> = stopped.collect();
        to_everybody(Signal::STOP)?;
        if !self.sweep(ROUNDS).unwrap_or(false) {
            // Nobody can be told apart. Nothing may outlive a kill, so the others go too.
            return to_everybody(Signal::KILL);
        }
        to_everybody(Signal::CONT)?;
        for entry in stopped {
            send(entry, Signal::STOP);
        }
        Ok(())
    }

    /// Kills whoever is found until a whole walk has found only those who were killed before it began. Whoever has a KILL pending completes no fork; so
    /// a survivor could only descend from one who forked himself away under the walk, and that leaves somebody unknown in
    /// it, dead or alive, or a gap. False when there was no such walk.
    fn sweep(&self, rounds: usize) -> io::Result<bool> {
        let mut known = BTreeSet::new();
        for _ in 0..rounds {
            let table = process_table::read()?;
            let mut news = false;
            for entry in self.members(&table.entries) {
                if known.insert((entry.pid, entry.started)) {
                    news = true;
                    send(entry, Signal::KILL);
                }
            }
            for dead in table.entries.iter().filter(|entry| entry.is_dead()) {
                news |= known.insert((dead.pid, dead.started));
            }
            if table.complete && !news {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Without a process namespace: stopped before they are killed, since who is orphaned is not found again.
    fn kill_descent(&self) -> io::Result<()> {
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

    /// The living members of the tree.
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

/// Sends a signal to a program's group, which may have nobody left. Whether somebody was there.
pub(super) fn group(program: Pid, signal: Signal) -> bool {
    program != Pid::INIT && kill_process_group(program, signal).is_ok()
}

/// Sends a signal to one process. One that has just ended is no error.
pub(super) fn one(pid: Pid, signal: Signal) {
    let _gone = kill_process(pid, signal);
}

fn send(entry: Entry, signal: Signal) {
    if let Some(pid) = entry.id() {
        one(pid, signal);
    }
}

/// Sends a signal to every process of this namespace but this one, in one step that no fork outruns. Refuses to do so anywhere but in process 1.
pub(super) fn to_everybody(signal: Signal) -> io::Result<()> {
    if getpid() != Pid::INIT {
        return Err(Errno::PERM.into());
    }
    // The group of process 1 is kill(-1): everybody whom the caller may signal.
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
            threads: 1,
            state: b'S',
        }
    }

    fn pids(tree: &Tree<'_>, table: &[Entry]) -> Vec<i32> {
        tree.members(table).iter().map(|entry| entry.pid).collect()
    }

    #[test]
    fn a_daemon_that_belongs_to_nobody_goes_with_whoever_is_killed() {
        let me = getpid().as_raw_pid();
        let base = me + 10;
        let table = [
            entry(me, 0, 0),
            entry(base, me, base),
            entry(base + 1, base, base),
            entry(base + 2, base, base + 2),
            // Another program, its child with a session of its own, and an orphan in its session.
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
    fn the_dead_and_rings_of_parents_do_no_harm() {
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
    fn everybody_is_only_ever_signalled_by_process_one() {
        assert!(to_everybody(Signal::CONT).is_err());
    }
}
