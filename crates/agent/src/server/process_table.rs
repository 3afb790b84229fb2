//! Lists the processes of /proc.

use std::io;

use rustix::process::Pid;

/// The maximum number of processes in one walk.
const MAX_PROCESSES: usize = 65_536;

/// One process, from its `stat` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// The start time. Together with the id it identifies a process permanently.
    pub(super) started: u64,
    pub(super) threads: u32,
    pub(super) state: u8,
    /// True for a process that is about to end: it exits, or SIGKILL is on its way to it.
    pub(super) is_ending: bool,
}

/// The kernel's flag of a process that exits.
const PF_EXITING: u64 = 0x4;

/// The bit of SIGKILL in a set of signals.
const KILL_BIT: u64 = 1 << 8;

impl Entry {
    /// Returns true for a process that has ended and waits to be reaped.
    pub(super) fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Returns false for a process that has ended, and for one that was killed and has not noticed yet.
    pub(super) fn lives_on(self) -> bool {
        !self.is_dead() && !self.is_ending
    }

    pub(super) fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    pub(super) fn id(self) -> Option<Pid> {
        Pid::from_raw(self.pid)
    }
}

/// A walk through /proc.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) entries: Vec<Entry>,
    /// True if the entries contain every process that lived during the whole walk, and every descendant of such a
    /// process or a dead ancestor of it. False if a listed process vanished before it was read, or if process ids
    /// restarted from the beginning: then a process that forks repeatedly may have escaped the reader.
    pub(super) complete: bool,
}

/// Reads all processes.
pub(super) fn read() -> io::Result<Table> {
    let mut entries = Vec::new();
    let newest_before = newest_id();
    let mut complete = true;
    for entry in std::fs::read_dir("/proc")?.take(MAX_PROCESSES) {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => entries.extend(parse(pid, &stat)),
            Err(error) if matches!(error.raw_os_error(), Some(2 | 3)) => complete = false,
            Err(error) => return Err(error),
        }
    }
    let wrapped = newest_before
        .zip(newest_id())
        .is_none_or(|(before, after)| after < before);
    complete &= !wrapped && entries.len() < MAX_PROCESSES;
    Ok(Table { entries, complete })
}

/// Returns the last assigned id of this process namespace.
fn newest_id() -> Option<i32> {
    std::fs::read_to_string("/proc/loadavg")
        .ok()?
        .split_ascii_whitespace()
        .last()?
        .parse()
        .ok()
}

/// Parses a `stat` file. The process chooses the name in the second field, which may contain spaces, parentheses and
/// line feeds. The last closing parenthesis ends it.
fn parse(pid: i32, stat: &[u8]) -> Option<Entry> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(29).collect();
    Some(Entry {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        is_ending: fields.get(6)?.parse::<u64>().ok()? & PF_EXITING != 0
            || fields.get(28)?.parse::<u64>().ok()? & KILL_BIT != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_forge_the_fields_behind_it() {
        let stat =
            b"42 (x) Z 1 1 1 (y) S 7 42 40 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 3 0 5555 1000 200 9 1 2 3 4 5 0 0\n";
        let entry = parse(42, stat).unwrap();
        assert_eq!(
            entry,
            Entry {
                pid: 42,
                parent: 7,
                session: 40,
                started: 5555,
                threads: 3,
                state: b'S',
                is_ending: false
            }
        );
        assert_eq!(parse(1, b"1 (cut off"), None);
        assert_eq!(parse(1, b"1 (a) S 0"), None);
    }

    #[test]
    fn a_killed_process_does_not_live_on() {
        let stat = |state: &str, flags: u64, pending: u64| {
            format!("1 (a) {state} 0 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 {pending} 0 0")
        };
        let lives_on = |state, flags, pending| parse(1, stat(state, flags, pending).as_bytes()).unwrap().lives_on();
        assert!(lives_on("T", 0x40_0040, 1 << 9));
        assert!(!lives_on("Z", 0x40_0040, 0));
        assert!(!lives_on("R", 0x40_0044, 0));
        assert!(!lives_on("T", 0x40_0040, 1 << 8));
    }

    #[test]
    fn the_table_holds_this_very_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(
            read()
                .unwrap()
                .entries
                .iter()
                .any(|entry| entry.pid == me && !entry.is_dead())
        );
    }
}
