//! Descriptors of a sandbox that are in flight between two processes. The kernel keeps one count of them for each user
//! of the host.
//!
//! The kernel reports the number of descriptors in a socket that a process has open. A socket that is itself queued in
//! another socket appears only in the namespace's list of sockets, so it counts as a full message.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;

use rustix::process::{Signal, kill_process};

use super::{MAX_PROCESSES, ProcessRoots, WatchRecord, descriptors, freeze, net_file, number_of, paths, status_of};

/// The maximum number of descriptors in one message.
const MAX_DESCRIPTORS_PER_MESSAGE: u64 = 253;

/// A sandbox's descriptors in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct InFlight {
    /// Descriptors in the queues of sockets that a process has open.
    open: u64,
    /// Sockets that no process has open.
    hidden: u64,
    /// Connections that are not accepted yet. They may hold some.
    waiting: u64,
    /// Processes other than the first.
    processes: u64,
}

/// Returns an estimate of a sandbox's descriptors in flight, without those in this socket of the launcher. 0 if there
/// is no process to kill.
pub(crate) fn estimate(roots: ProcessRoots, channel: Option<u64>) -> u64 {
    let found = count(roots, channel);
    if found.processes == 0 {
        return 0;
    }
    found.open + found.hidden * MAX_DESCRIPTORS_PER_MESSAGE + found.waiting
}

fn count(roots: ProcessRoots, channel: Option<u64>) -> InFlight {
    let channel = channel.map(descriptors::socket_link);
    let before = parse_sockets(&net_file(roots.first, "unix"));
    let (mut open, mut found) = (BTreeSet::new(), InFlight::default());
    for pid in roots.descendants() {
        let living = status_of(pid).0;
        found.processes += u64::from(pid != roots.first);
        let folder = format!("{}/proc/{}/fd", paths::host(), living.as_raw_nonzero());
        for entry in std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_PROCESSES)
        {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let name = String::from_utf8_lossy(target.as_os_str().as_bytes());
            let Some(inode) = inode_in(&name) else { continue };
            if channel.as_deref() == Some(&*name) || !open.insert(inode) {
                continue;
            }
            if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                let report = std::fs::read_to_string(descriptors::report_path(living, number)).unwrap_or_default();
                found.open += number_of(&report, "scm_fds:");
            }
        }
    }
    // Sockets appear and disappear meanwhile.
    let after = parse_sockets(&net_file(roots.first, "unix"));
    let stayed = after.named.intersection(&before.named);
    let hidden = stayed.filter(|inode| !open.contains(*inode)).count();
    found.hidden = u64::try_from(hidden).unwrap_or(u64::MAX);
    found.waiting = before.waiting.min(after.waiting);
    found
}

impl WatchRecord {
    /// Kills all processes of a sandbox except the first, as for memory.
    pub(crate) fn kill_all(&mut self, roots: ProcessRoots) {
        for sample in freeze(roots) {
            let first = sample.pid == roots.first;
            let signal = if first { Signal::CONT } else { Signal::KILL };
            let sent = kill_process(sample.pid, signal).is_ok();
            self.kills += u64::from(sent && !first);
        }
        self.events = self.events.max(self.kills);
        self.descriptors.discard();
    }
}

fn inode_in(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The sockets in the list of a network namespace.
#[derive(Debug, Default, PartialEq, Eq)]
struct SocketList {
    named: BTreeSet<u64>,
    /// The number of unaccepted connections, which have no inode.
    waiting: u64,
}

fn parse_sockets(text: &str) -> SocketList {
    let mut found = SocketList::default();
    for line in text.lines().skip(1) {
        match line.split_whitespace().nth(6).and_then(|inode| inode.parse().ok()) {
            Some(0) => found.waiting += 1,
            Some(inode) => {
                found.named.insert(inode);
            }
            None => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use rustix::process::Pid;

    use super::*;
    use crate::wire::{pair, send};

    #[test]
    fn a_socket_list_is_parsed() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01  4711 /tmp/name with blanks\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03     0\n\
                    0000000000000000: 00000003 00000000 00000000 0005 03  4712\n";
        let expected = SocketList {
            named: BTreeSet::from([4711, 4712]),
            waiting: 1,
        };
        assert_eq!(parse_sockets(text), expected);
    }

    #[test]
    fn descriptors_in_open_sockets_are_counted_except_those_of_the_launcher() {
        paths::host_is_as_it_is();
        let (ours, theirs) = pair().unwrap();
        let own = rustix::fs::fstat(&theirs).unwrap().st_ino;
        send(ours.as_fd(), &"enter", &[ours.as_fd(); 8]).unwrap();
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell
            .args(["-c", "sleep 60 <&0 & echo; wait"])
            .stdin(theirs)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let roots = ProcessRoots {
            first: Pid::from_child(&shell),
            worker: None,
        };
        let counts = [None, Some(own)].map(|channel| count(roots, channel).open);
        WatchRecord::default().kill_all(roots);
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(counts, [8, 0]);
    }
}
