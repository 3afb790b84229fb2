//! The part of the event loop that lets zygotes' workers enter sandboxes.
//!
//! The launcher does not trust a zygote. It asks the kernel which process the worker is, that it is the launcher's
//! child, and that it is in the sandbox's PID namespace. Only then may the worker continue. If anything fails, the
//! sandbox is unchanged and its session starts in the usual way.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::stat;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd, pidfd_open, pidfd_send_signal, waitid};

use super::attach::view;
use super::zygote_handle::Zygote;
use super::{Jail, State, Supervisor};
use crate::cgroup::Group;
use crate::kernel_files::small_file;
use crate::launcher::base::messages::{FromZygote, ToZygote};
use crate::launcher::base::namespaces::Namespaces;
use crate::paths;
use crate::steps::enter_program::DescriptorCounts;
use crate::watchdog;
use crate::wire::{EntryMessage, FromLauncher, StepError, is_gone, pair, receive, send, send_patiently};

/// The maximum time until the launcher learns of a worker.
const ENTER_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker in a sandbox, or on its way into it.
pub(super) enum Worker {
    /// The zygote was asked for it.
    Requested {
        zygote: u64,
        /// A message on this socket lets it continue, with the mount namespace, the entry socket, and the files by
        /// which it joins the cgroup. Closing it ends the worker.
        go: OwnedFd,
        /// The number of the sandbox's PID namespace.
        namespace: u64,
        /// The number of the zygote's socket.
        channel: u64,
        since: Instant,
        /// The worker's host id, if the zygote reported it before the sandbox was complete.
        reported_pid: Option<i32>,
        /// The files that the worker keeps.
        files: Vec<OwnedFd>,
    },
    /// It runs. Only the launcher reaps it.
    Inside {
        pid: Pid,
        pidfd: OwnedFd,
        /// The number of its zygote's socket.
        channel: u64,
        /// Set while it joins the cgroup.
        joining: Option<Joining>,
    },
}

/// The remaining work for a worker that joins the cgroup.
pub(super) struct Joining {
    /// The socket on which it reports that it has joined.
    socket: OwnedFd,
    /// Its id in the sandbox.
    inside: i32,
    since: Instant,
}

impl Worker {
    fn is_joining(&self) -> bool {
        matches!(self, Self::Inside { joining: Some(_), .. })
    }

    /// Returns the number of its zygote's socket, once it runs.
    pub(super) fn channel(&self) -> Option<u64> {
        match self {
            Self::Inside { channel, .. } => Some(*channel),
            Self::Requested { .. } => None,
        }
    }

    /// Returns true if this zygote was asked for it and has not reported it.
    fn is_pending_from(&self, number: u64) -> bool {
        matches!(self, Self::Requested { zygote, reported_pid: None, .. } if *zygote == number)
    }

    /// Returns true if a zygote was asked for it long ago and has not reported it.
    fn is_late(&self) -> bool {
        matches!(self, Self::Requested { since, reported_pid: None, .. } if since.elapsed() > ENTER_TIMEOUT)
    }

    /// Returns its host id, if it runs.
    pub(super) fn pid(&self) -> Option<Pid> {
        match self {
            Self::Requested { reported_pid, .. } => {
                reported_pid.and_then(|reported_pid| Pid::from_raw(reported_pid.max(0)))
            }
            Self::Inside { pid, .. } => Some(*pid),
        }
    }
}

/// Copies a descriptor of a child of the first process. Processes are named by their ids inside, which they can reuse at any
/// time; code inside can only exchange its own descriptors by that.
fn copy_descriptor(first: u32, process: i32, number: i32) -> io::Result<OwnedFd> {
    let first = i32::try_from(first).ok().and_then(Pid::from_raw);
    let pid = first.and_then(|first| {
        let proc = |pid: &Pid| format!("{}/proc/{}", paths::host(), pid.as_raw_nonzero());
        let mut children = watchdog::children(first).into_iter();
        children.find(|child| id_inside(&proc(child)) == Some(process))
    });
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?)
}

fn not_found(what: &str) -> StepError {
    StepError::new(what, None, &io::Error::from_raw_os_error(libc::ESRCH))
}

impl Supervisor {
    /// Starts a zygote. Returns false if the server is gone.
    pub(super) fn start_zygote(
        &mut self,
        number: u64,
        argv: &[String],
        folders: &[PathBuf],
        descriptors: Vec<OwnedFd>,
    ) -> bool {
        let host_id = self.next_host_id();
        let mounts = &self.prepared.mounts;
        let views = folders
            .iter()
            .zip(0..)
            .map(|(folder, place)| view(mounts, folder, place));
        let started = views.collect::<Result<Vec<_>, _>>().and_then(|views| {
            host_id
                .and_then(|host_id| Zygote::start(&self.prepared, argv, views, descriptors, host_id))
                .map_err(|error| StepError::new("start a zygote", None, &error))
        });
        match started {
            Ok(zygote) => {
                self.zygotes.insert(number, zygote);
                self.listen_to_zygote(number);
                true
            }
            Err(error) => {
                let error = Some(error);
                self.send_to_server(&FromLauncher::ZygoteEnded { zygote: number, error })
                    .is_ok()
            }
        }
    }

    /// Sends the server a copy of a descriptor of a process in the sandbox. Returns false if the server is gone.
    pub(super) fn take_descriptor(&self, id: u64, process: i32, number: i32) -> bool {
        let taken = match self.jails.get(&id).map(|jail| &jail.state) {
            // It is an unreaped child of this process, so its number is not reused.
            Some(State::Running { pid, guarded: None, .. }) => copy_descriptor(*pid, process, number),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        };
        let error = match taken {
            Ok(file) => {
                let message = FromLauncher::Descriptor { id, error: None };
                match send_patiently(self.socket.as_fd(), &message, &[file.as_fd()]) {
                    Err(error) if is_gone(&error) => return false,
                    Ok(()) => return true,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        let error = Some(StepError::new(
            "copy a descriptor of a process in the sandbox",
            None,
            &error,
        ));
        self.send_to_server(&FromLauncher::Descriptor { id, error }).is_ok()
    }

    /// Asks a zygote for a worker in this sandbox. Returns false if the server is gone.
    pub(super) fn request_entry(&mut self, id: u64, number: u64, files: Vec<OwnedFd>) -> bool {
        match self.request_worker(id, number, files) {
            Ok(()) => true,
            Err(error) => {
                let error = Some(error);
                self.send_to_server(&FromLauncher::Entered { id, error }).is_ok()
            }
        }
    }

    /// Handles a change of a sandbox in creation: requests the worker as soon as the sandbox can be entered, and lets
    /// it enter as soon as the sandbox is complete.
    pub(super) fn advance_entry(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        let made = matches!(jail.state, State::Running { .. });
        if let Some(Worker::Requested {
            reported_pid: Some(child),
            ..
        }) = jail.worker
            && made
        {
            self.admit_worker(id, child);
        } else if (made || jail.namespaces.as_ref().is_some_and(Namespaces::are_open))
            && let Some(number) = jail.entering_zygote.take()
        {
            self.request_entry(id, number, Vec::new());
        }
    }

    fn request_worker(&mut self, id: u64, number: u64, files: Vec<OwnedFd>) -> Result<(), StepError> {
        let zygote = self
            .zygotes
            .get_mut(&number)
            .ok_or_else(|| not_found("find the zygote"))?;
        let lives = |jail: &&mut Jail| !matches!(jail.state, State::Ended { .. });
        let jail = self.jails.get_mut(&id).filter(lives);
        let jail = jail.ok_or_else(|| not_found("find the sandbox"))?;
        let open = jail.namespaces.as_mut().filter(|namespaces| namespaces.are_open());
        let namespaces = open.ok_or_else(|| not_found("find the sandbox's namespaces"))?;
        let ways = namespaces.entrances();
        let ways = ways.map_err(|error| StepError::new("open the sandbox's namespaces", None, &error))?;
        if !zygote.is_single() {
            zygote.kill();
            return Err(not_found("find a zygote with one thread"));
        }
        let counts = DescriptorCounts {
            namespaces: ways.all.len(),
            groups: jail.group.as_ref().map_or(0, Group::count_entrances),
            files: files.len(),
        };
        zygote.send_enter_program(&self.prepared, jail.request, counts)?;
        jail.worker_requested = true;
        let mut ask = || -> io::Result<OwnedFd> {
            let (go, wait) = pair()?;
            let handed = ways.descriptors().chain([wait.as_fd()]);
            send(zygote.socket.as_fd(), &ToZygote::Enter {}, &handed.collect::<Vec<_>>())?;
            zygote.requested_for.push_back(id);
            Ok(go)
        };
        let go = ask().map_err(|error| StepError::new("ask the zygote", None, &error))?;
        jail.worker = Some(Worker::Requested {
            zygote: number,
            go,
            namespace: ways.pid_number,
            channel: zygote.channel,
            since: Instant::now(),
            reported_pid: None,
            files,
        });
        Ok(())
    }

    /// Handles a message of a zygote.
    pub(super) fn handle_zygote(&mut self, number: u64) {
        let Some(zygote) = self.zygotes.get_mut(&number) else {
            return;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = receive(zygote.socket.as_fd(), &mut buffer);
        self.buffer = buffer;
        match received {
            Ok(Some((FromZygote::Forked { child }, _))) => match zygote.requested_for.pop_front() {
                Some(id) => self.worker_forked(number, id, child),
                // It has reported more workers than were requested.
                None => zygote.kill(),
            },
            Ok(Some((FromZygote::Failed(error), _))) => {
                zygote.error = Some(error);
                zygote.kill();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => zygote.end(),
        }
    }

    fn worker_forked(&mut self, number: u64, id: u64, child: i32) {
        let is_pending = |worker: &Worker| worker.is_pending_from(number);
        let found = self.jails.get_mut(&id);
        let Some(jail) = found.filter(|jail| jail.worker.as_ref().is_some_and(is_pending)) else {
            // It is not expected. It exits when its socket closes.
            self.strays = true;
            return;
        };
        if let (State::Starting { .. }, Some(Worker::Requested { reported_pid, .. })) = (&jail.state, &mut jail.worker)
        {
            *reported_pid = Some(child);
        } else {
            self.admit_worker(id, child);
        }
    }

    fn admit_worker(&mut self, id: u64, child: i32) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        let admitted = jail.admit(child);
        self.listen(id);
        self.report_entry(id, admitted);
    }

    /// Handles an event of a worker: it has joined the cgroup, or has ended.
    pub(super) fn handle_worker(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        if !jail.worker.as_ref().is_some_and(Worker::is_joining) {
            jail.reap_worker();
            return;
        }
        let joined = jail.joined().map(|()| true);
        self.report_entry(id, joined);
    }

    /// Reports the result of an entry to the server, once it is known.
    fn report_entry(&mut self, id: u64, admitted: Result<bool, StepError>) {
        let error = match admitted {
            Ok(false) => return,
            Ok(true) => None,
            Err(error) => {
                self.strays = true;
                Some(error)
            }
        };
        let _ = self.send_to_server(&FromLauncher::Entered { id, error });
    }

    /// Handles the end of a zygote.
    pub(super) fn zygote_ended(&mut self, number: u64) {
        let Some(zygote) = self.zygotes.remove(&number) else {
            return;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(zygote.pidfd.as_fd()), options);
        let signal = status.ok().flatten().and_then(|status| status.terminating_signal());
        if let (Some(signal), false) = (signal, zygote.killed.get()) {
            self.report_helper_killed("a zygote", signal);
        }
        self.fail_entries(|worker| worker.is_pending_from(number), "hear from the zygote");
        let error = zygote.error;
        let _ = self.send_to_server(&FromLauncher::ZygoteEnded { zygote: number, error });
    }

    /// Reports that another process killed a helper process of the launcher.
    pub(super) fn report_helper_killed(&self, what: &str, signal: i32) {
        let what = what.to_owned();
        let _ = self.send_to_server(&FromLauncher::HelperKilled { what, signal });
    }

    /// Fails the entries of these workers.
    fn fail_entries(&mut self, late: impl Fn(&Worker) -> bool, step: &str) {
        let found = self.jails.iter_mut();
        let found = found.filter(|(_, jail)| jail.worker.as_ref().is_some_and(&late));
        let ids: Vec<u64> = found
            .map(|(id, jail)| {
                jail.worker = None;
                *id
            })
            .collect();
        for id in ids {
            self.strays = true;
            let error = Some(not_found(step));
            let _ = self.send_to_server(&FromLauncher::Entered { id, error });
        }
    }

    /// Does the work that is due by time.
    pub(super) fn check_workers(&mut self) {
        let stuck = self.jails.values().filter_map(|jail| match &jail.worker {
            Some(worker @ Worker::Requested { zygote, .. }) if worker.is_late() => Some(*zygote),
            _ => None,
        });
        for number in stuck.collect::<Vec<_>>() {
            if let Some(zygote) = self.zygotes.get(&number) {
                zygote.kill();
            }
        }
        self.fail_entries(Worker::is_late, "hear from the zygote in time");
        let slow = |worker: &Worker| {
            let is_late = |joining: &Joining| joining.since.elapsed() > ENTER_TIMEOUT;
            matches!(worker, Worker::Inside { joining: Some(joining), .. } if is_late(joining))
        };
        for jail in self.jails.values() {
            if let Some(Worker::Inside { pidfd, .. }) = jail.worker.as_ref().filter(|worker| slow(worker)) {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        self.fail_entries(slow, "join the control group in time");
        if self.strays {
            self.reap_strays();
        }
    }

    /// Reaps unknown children of this process: workers of a zygote that died before it reported them. A PID namespace
    /// does not end before all of its processes are reaped.
    pub(super) fn reap_strays(&mut self) {
        let me = rustix::process::getpid();
        let own_children = self.own_children();
        let number = |child: &Pid| child.as_raw_nonzero().get().unsigned_abs();
        let strays = watchdog::children(me)
            .into_iter()
            .filter(|child| !own_children.contains(&number(child)));
        let mut left = false;
        for stray in strays {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            left |= matches!(waitid(WaitId::Pid(stray), options), Ok(None));
        }
        self.strays = left;
    }

    /// Returns the processes that the launcher has made or let in.
    fn own_children(&self) -> BTreeSet<u32> {
        let mut own_children: BTreeSet<u32> = self.spares.pids().collect();
        own_children.extend(self.zygotes.values().map(|zygote| zygote.pid));
        for jail in self.jails.values() {
            match &jail.state {
                State::Starting { first, .. } => {
                    own_children.insert(jail.spare);
                    own_children.extend(first.as_ref().map(|(pid, _)| *pid));
                }
                State::Running { pid, .. } => {
                    own_children.insert(*pid);
                }
                State::Ended { .. } => {}
            }
            if jail.folder.is_some() {
                own_children.insert(jail.spare);
            }
            let worker = jail.worker.as_ref().and_then(Worker::pid);
            own_children.extend(worker.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()));
        }
        own_children
    }
}

impl Jail {
    /// Checks a worker and lets it continue. Returns false while it joins the cgroup.
    fn admit(&mut self, child: i32) -> Result<bool, StepError> {
        let requested = self.worker.take();
        let Some(Worker::Requested {
            go,
            namespace,
            channel,
            files: kept,
            ..
        }) = requested
        else {
            return Err(not_found("expect a child"));
        };
        let (Some(pid), State::Running { pid: first, .. }) = (Pid::from_raw(child.max(0)), &self.state) else {
            return Err(not_found("make a child"));
        };
        let named = |step: &'static str| move |error: io::Error| StepError::new(step, None, &error);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| named("find the child")(error.into()))?;
        // The kernel refuses this for all but children of this process. No other process can get their numbers.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(|error| named("look at the child")(error.into()))?;
        let proc = format!("{}/proc/{child}", paths::host());
        let stands = stat(format!("{proc}/ns/pid")).map_err(|error| named("look at the child")(error.into()))?;
        if stands.st_ino != namespace || i64::from(*first) == i64::from(child) {
            return Err(not_found("find the child in the sandbox"));
        }
        let inside = id_inside(&proc).ok_or_else(|| not_found("learn the child's id"))?;
        let cgroup_files = match &self.group {
            Some(group) => group.entrances().map_err(named("join the control group"))?,
            None => Vec::new(),
        };
        match &self.group {
            // Moving another process blocks all forks and exits, for which the kernel waits long.
            Some(_) if !cgroup_files.is_empty() => {}
            Some(group) => {
                let number = child.unsigned_abs();
                group.join(number).map_err(named("join the control group"))?;
            }
            None => same_cores(*first, pid).map_err(named("limit cores"))?,
        }
        let joins = !cgroup_files.is_empty();
        if !joins {
            self.announce(inside)?;
        }
        // Not earlier: before the sandbox is complete, its mount namespace still exposes the host, and its socket still
        // reaches the launcher.
        let (Some(namespaces), Some(entry_socket)) = (&self.namespaces, &self.entry_socket) else {
            return Err(not_found("find the sandbox's entry socket"));
        };
        let files = namespaces.mount().map_err(named("open the sandbox's namespaces"))?;
        let fds: Vec<_> = [&files, entry_socket]
            .into_iter()
            .chain(&cgroup_files)
            .chain(&kept)
            .map(AsFd::as_fd)
            .collect();
        send(go.as_fd(), &1, &fds).map_err(named("let the child go on"))?;
        self.release_descriptors();
        let joining = joins.then(|| Joining {
            socket: go,
            inside,
            since: Instant::now(),
        });
        self.worker = Some(Worker::Inside {
            pid,
            pidfd,
            channel,
            joining,
        });
        Ok(!joins)
    }

    /// Handles a worker's report that it has joined the cgroup. The report is verified.
    fn joined(&mut self) -> Result<(), StepError> {
        let Some(Worker::Inside { pid, joining, .. }) = &mut self.worker else {
            return Err(not_found("expect a child"));
        };
        let Some(joining) = joining.take() else {
            return Err(not_found("expect a child"));
        };
        let groups = small_file(&format!("{}/proc/{}/cgroup", paths::host(), pid.as_raw_nonzero()));
        let joined = self.group.as_ref().is_some_and(|group| group.contains_process(&groups));
        let announced = if joined {
            self.announce(joining.inside)
        } else {
            Err(not_found("find the child in the control group"))
        };
        // It may already run, so it does not exit by itself.
        if announced.is_err()
            && let Some(Worker::Inside { pidfd, .. }) = self.worker.take()
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        announced
    }

    /// Tells the sandbox which worker has entered. Without the entry socket the agent would not learn of its end.
    fn announce(&self, inside: i32) -> Result<(), StepError> {
        let entry_socket = self
            .entry_socket
            .as_ref()
            .ok_or_else(|| not_found("find the sandbox's entry socket"))?;
        let message = EntryMessage::Entered { pid: inside };
        send(entry_socket.as_fd(), &message, &[]).map_err(|error| StepError::new("tell the sandbox", None, &error))
    }

    /// Returns the descriptor that reports the worker's end.
    pub(super) fn worker_end(&self) -> Option<&OwnedFd> {
        match &self.worker {
            Some(Worker::Inside {
                joining: Some(joining), ..
            }) => Some(&joining.socket),
            Some(Worker::Inside { pidfd, .. }) => Some(pidfd),
            Some(Worker::Requested { .. }) | None => None,
        }
    }

    /// Reaps the worker if it has ended, and tells the first process, which is not its parent.
    pub(super) fn reap_worker(&mut self) {
        let Some(Worker::Inside { pidfd, .. }) = &self.worker else {
            return;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
            Ok(None) => return,
            Ok(Some(status)) => Some(status),
            Err(_) => None,
        };
        self.worker = None;
        if let Some(entry_socket) = &self.entry_socket {
            let _ = send(entry_socket.as_fd(), &end_message(status.as_ref()), &[]);
        }
        self.close_entry_socket();
    }
}

fn end_message(status: Option<&WaitIdStatus>) -> EntryMessage {
    const SIGKILL: u8 = 9;
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    let code = status.and_then(WaitIdStatus::exit_status);
    let signal = status.and_then(WaitIdStatus::terminating_signal);
    EntryMessage::Ended {
        status: code.or(signal).map_or(SIGKILL, byte),
        signal: code.is_none(),
    }
}

/// Returns the process's id in its innermost PID namespace.
fn id_inside(proc: &str) -> Option<i32> {
    let status = small_file(&format!("{proc}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Gives a process the cores of another process.
fn same_cores(first: u32, pid: Pid) -> io::Result<()> {
    let first = i32::try_from(first).ok().and_then(Pid::from_raw);
    let cores = rustix::thread::sched_getaffinity(first)?;
    Ok(rustix::thread::sched_setaffinity(Some(pid), &cores)?)
}
