//! The subreaper of a sandbox without namespaces: its first process's parent, which finds all that the sandbox leaves.
//!
//! An orphan in the sandbox becomes a child of the agent, then of the subreaper, then of the launcher. So if one of the
//! three is killed, another one finds all remaining processes. The subreaper also counts and removes the private files,
//! since they have no separate file system.
//!
//! - **Process:** one for each sandbox of the `process` level. With namespaces none of this runs.
//! - **Started by:** nobody: a spare stays as the subreaper after its request.
//! - **Rights:** the launcher's: the server's user, in the host's namespaces, without any filter. The sandbox cannot
//!   signal it (Landlock's scopes), and as root has another id.
//! - **May:** fork the first process, kill and reap the sandbox's processes, read their `/proc`, and count and remove
//!   the private folder.
//! - **Ends:** after the first process or the launcher has ended, or too many private files were found. It then kills
//!   all descendants and removes the folder. It has no death signal: it detects the launcher's end by its socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{Pid, Signal};

use super::base::fork::SIGCHLD;
use super::base::messages::FromSpare;
use super::base::orphans::{kill_descendants, reap};
use super::base::prepared::Prepared;
use super::base::private_folders::PrivateFolders;
use super::base::tree_walk;
use super::first_process::{Entry, Resources, Steps, first_process, wait_for_ids};
use crate::paths;
use crate::plan::Step;
use crate::plan::without_namespaces::{self, PrivateFolder};
use crate::spec::Request;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire::{StepError, send};

/// The shortest interval between counts of private files. Counting takes at most a third of the time.
const MIN_COUNT_INTERVAL: Duration = Duration::from_millis(25);
/// The number of consecutive counts during which a process may hide its descriptors.
const MAX_HIDDEN_COUNTS: u32 = 20;

/// Runs a spare after its request: starts the first process, watches it, and removes all that it leaves.
pub(super) fn guard(
    private_folders: &PrivateFolders,
    prepared: &Prepared,
    socket: &OwnedFd,
    request: &Request,
    descriptors: Vec<OwnedFd>,
    host_id: u32,
    entry: Entry,
) -> Result<(), StepError> {
    let failed = |step: &str, error: &io::Error| StepError::new(step, None, error);
    let Ok([input, output]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Err(failed(
            "take the agent's descriptors",
            &io::ErrorKind::InvalidInput.into(),
        ));
    };
    // A subreaper outlives the launcher until its sandbox has ended. It detects the launcher's end by the socket.
    let folder = private_folders.folder_of(std::process::id());
    let ready = rustix::process::set_parent_process_death_signal(None)
        .and_then(|()| rustix::process::set_child_subreaper(Some(Pid::INIT)))
        .and_then(|()| rustix::fs::mkdir(folder.as_str(), Mode::from_raw_mode(0o700)));
    ready.map_err(|error| failed("make the subreaper", &error.into()))?;
    let own = prepared.host.root.then_some(host_id);
    if let Some(id) = own {
        let (user, group) = (rustix::process::Uid::from_raw(id), rustix::process::Gid::from_raw(id));
        rustix::fs::chown(folder.as_str(), Some(user), Some(group))
            .map_err(|error| failed("give the private folder to the sandbox", &error.into()))?;
    }
    let others = if own.is_some() { 0 } else { tasks_of(prepared.ids.0) };
    let resources = PrivateFolder {
        folder: folder.clone(),
        id: own,
        others,
    };
    let steps: Vec<Step> = without_namespaces::make(&prepared.host, request, &resources);
    match fork(0, SIGCHLD, None).map_err(|error| failed("start the first process", &error))? {
        Forked::Child => {
            let own = Resources {
                folder: Some(&folder),
                devices: None,
            };
            wait_for_ids(socket);
            first_process(
                prepared,
                socket,
                Steps::all(request, &steps),
                [input, output],
                own,
                entry,
            )
        }
        Forked::Parent { pid, pidfd } => {
            drop((input, output));
            let sent = send(socket.as_fd(), &FromSpare::Cloned { pid }, &[pidfd.as_fd()]);
            if sent.is_ok() && wait_for_end(socket, (pid, &pidfd), &folder, request) {
                let _ = send(socket.as_fd(), &FromSpare::Full, &[]);
            }
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            kill_descendants(|_| false);
            tree_walk::remove(&folder);
            if crate::wire::hung_up(socket) {
                // No other process can do it. The last subreaper succeeds.
                let _ = rustix::fs::rmdir(private_folders.folder.as_str());
            }
            exit_now(0)
        }
    }
}

/// Waits until the first process or the launcher has ended (returns false), or until there are too many private files
/// (returns true).
fn wait_for_end(socket: &OwnedFd, (agent, first): (u32, &OwnedFd), folder: &str, request: &Request) -> bool {
    let mut pause = MIN_COUNT_INTERVAL;
    let mut hidden: BTreeMap<i32, u32> = BTreeMap::new();
    loop {
        let mut fds = [
            PollFd::new(socket, PollFlags::empty()),
            PollFd::new(first, PollFlags::IN),
        ];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => {}
            Ok(_) => return false,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        }
        let began = Instant::now();
        reap(|child| child.as_raw_nonzero().get().unsigned_abs() == agent);
        let processes: Vec<Pid> = i32::try_from(agent)
            .ok()
            .and_then(Pid::from_raw)
            .map(crate::watchdog::descendants)
            .unwrap_or_default();
        let inside = processes.get(1..).unwrap_or_default();
        let deleted = tree_walk::deleted(folder, inside);
        let used = tree_walk::count(folder, request.inodes).plus(&deleted);
        // A program that is being started is briefly hidden: until exec it is a copy of the agent.
        hidden = deleted
            .hidden
            .into_iter()
            .map(|pid| (pid, hidden.get(&pid).copied().unwrap_or(0) + 1))
            .collect();
        let too_long = hidden.values().any(|counts| *counts > MAX_HIDDEN_COUNTS);
        if used.bytes > request.disk || used.inodes > request.inodes || too_long {
            return true;
        }
        pause = (began.elapsed() * 2).clamp(MIN_COUNT_INTERVAL, Duration::from_millis(200));
    }
}

/// Returns the number of processes and threads that a user has on the whole machine.
fn tasks_of(user: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(format!("{}/proc", paths::host())) else {
        return 0;
    };
    let of_user = entries.flatten().filter(|entry| {
        use std::os::unix::fs::MetadataExt;
        entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok())
            && entry.metadata().is_ok_and(|found| found.uid() == user)
    });
    of_user
        .map(|entry| {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
            threads.and_then(|text| text.trim().parse().ok()).unwrap_or(1_u64)
        })
        .sum()
}
