//! One sandbox in the launcher: its messages during creation, its end, and its usage.

use rustix::process::{PidfdFlags, WaitIdStatus, kill_process, pidfd_open};

use super::ready::Interest;
use super::*;
use crate::launcher::base::messages::ToSpare;
use crate::launcher::first_process::PRIVATE_FILES_INSIDE;
use crate::spec::Site;

impl Jail {
    /// Handles the next message of a sandbox in creation. Returns true if it is complete. `group_id` is its host group;
    /// none if a test skips its user namespace, so that there is nothing to map.
    pub(super) fn advance(&mut self, buffer: &mut Vec<u8>, group_id: Option<u32>, enterable: bool) -> bool {
        let State::Starting {
            spare, socket, first, ..
        } = &mut self.state
        else {
            return false;
        };
        let message = receive::<FromSpare>(socket.as_fd(), buffer);
        let error = match message {
            Ok(Some((FromSpare::Cloned { pid }, mut descriptors))) => {
                let Some(pidfd) = descriptors.pop() else { return false };
                let (_, pidfd) = first.insert((pid, pidfd));
                // Without namespaces no folder can be attached.
                let found = self
                    .folder
                    .is_none()
                    .then(|| {
                        faults::at(Some(&self.request), Site::Namespaces)?;
                        Namespaces::of(pid, enterable)
                    })
                    .transpose();
                let mapped = found.and_then(|found| {
                    self.namespaces = found;
                    faults::at(Some(&self.request), Site::Ids)?;
                    group_id.map_or(Ok(()), |group| shared_userns::map_ids(pid, self.host_id, group))
                });
                match mapped.and_then(|()| send(socket.as_fd(), &ToSpare::Mapped, &[])) {
                    Ok(()) => {
                        // The spare exits now, unless it stays as the subreaper. The first process need not wait for
                        // that.
                        if let (None, Some(spare)) = (&self.folder, &spare) {
                            let _ = waitid(WaitId::PidFd(spare.as_fd()), WaitIdOptions::EXITED);
                        }
                        return false;
                    }
                    Err(error) => shared_userns::not_mapped(pidfd.as_fd(), &error),
                }
            }
            Ok(Some((FromSpare::InPlace, handed))) => {
                let pid = first.as_ref().map_or(0, |(pid, _)| *pid);
                match Namespaces::received(pid, handed) {
                    Ok(found) => {
                        self.namespaces = Some(found);
                        return false;
                    }
                    Err(error) => StepError::new("hand namespaces over", None, &error),
                }
            }
            Ok(Some((FromSpare::DirectPipes, pipes))) => {
                self.direct_pipes = pipes;
                return false;
            }
            Ok(Some((FromSpare::Files, mut folder))) => {
                if let (Some(group), Some(folder)) = (&mut self.group, folder.pop()) {
                    group.keep_private_files(folder);
                }
                return false;
            }
            Ok(Some((FromSpare::Ready, _))) => {
                let Some((pid, pidfd)) = first.take() else { return false };
                self.run(pid, pidfd);
                return true;
            }
            Ok(Some((FromSpare::Failed(error), _))) => error,
            Ok(Some((FromSpare::Full, _))) => return false,
            Ok(None) => StepError::process_ended(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return false,
            Err(error) => StepError::new("hear from the sandbox's process", None, &error),
        };
        self.fail(error);
        false
    }

    /// Fails the creation and kills its processes.
    fn fail(&mut self, error: StepError) {
        self.kill();
        self.worker = None;
        self.reap_now();
        self.state = State::Ended {
            since: Instant::now(),
            error: Some(error),
        };
    }

    /// Fails a sandbox whose spare has exited without a message. A first process that it may have cloned sees its
    /// socket close, and is reaped as a stray. Returns true if the sandbox failed.
    pub(super) fn fail_without_spare(&mut self) -> bool {
        let State::Starting {
            spare: Some(spare),
            socket,
            first: None,
            ..
        } = &self.state
        else {
            return false;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let lives = matches!(waitid(WaitId::PidFd(spare.as_fd()), options), Ok(None));
        // Its last message is read first.
        if lives || readable(socket) {
            return false;
        }
        self.fail(StepError::process_ended());
        true
    }

    /// Records the killer of a sandbox whose first process was ended by this signal. Processes inside cannot signal or
    /// end it.
    pub(super) fn record_killer(&mut self, signal: Option<i32>) {
        if self.asked || self.disk_full || signal != Some(Signal::KILL.as_raw()) {
            return;
        }
        let outer = |group: &Group| self.watch_record.kills == 0 && group.was_killed_from_above();
        if self.group.as_ref().is_some_and(outer) {
            self.killed = Some(Killer::OuterMemory);
        } else if self.watch_record.events == 0 && self.watch_record.task_kills == 0 {
            self.killed = Some(Killer::Unknown);
        }
    }

    /// Marks the sandbox as running. A subreaper stays between it and the launcher.
    pub(super) fn run(&mut self, pid: u32, first: OwnedFd) {
        let over = State::Ended {
            since: Instant::now(),
            error: None,
        };
        self.watch_record.begin();
        if self.group.is_some() {
            // It has run nothing yet.
            self.watch_record.due = Some(Instant::now() + watchdog::MAX_CHECK_INTERVAL);
        }
        self.state = match std::mem::replace(&mut self.state, over) {
            State::Starting {
                spare: Some(spare),
                socket,
                ..
            } if self.folder.is_some() => State::Running {
                pid,
                pidfd: Some(spare),
                guarded: Some(Guarded { first, socket }),
            },
            State::Starting { socket, .. } => {
                let entered = self.worker.is_some() || self.namespaces.as_ref().is_some_and(Namespaces::are_open);
                // Processes inside cannot block the launcher. If there is an entry socket, its hang-up reports the
                // sandbox's end.
                let nonblocking = rustix::fs::OFlags::NONBLOCK;
                self.entry_socket =
                    (entered && rustix::fs::fcntl_setfl(&socket, nonblocking).is_ok()).then_some(socket);
                State::Running {
                    pid,
                    pidfd: self.entry_socket.is_none().then_some(first),
                    guarded: None,
                }
            }
            other => other,
        };
        if self.worker.is_none() {
            self.release_descriptors();
        }
    }

    /// Closes descriptors that can be opened again when needed.
    pub(super) fn release_descriptors(&mut self) {
        let (State::Running { pid, .. }, None) = (&self.state, &self.folder) else {
            return;
        };
        if let Some(namespaces) = &mut self.namespaces {
            namespaces.release();
        }
        if let Some(group) = &mut self.group {
            group.name_private_files(format!("{}/proc/{pid}/root{}", paths::host(), PRIVATE_FILES_INSIDE));
        }
    }

    /// Closes the entry socket, which is no longer needed. Keeps it and returns false if the first process's end
    /// cannot be detected otherwise.
    pub(super) fn close_entry_socket(&mut self) -> bool {
        let State::Running { pid, pidfd, .. } = &mut self.state else {
            return true;
        };
        if pidfd.is_none() {
            let first = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            *pidfd = first.and_then(|first| pidfd_open(first, PidfdFlags::empty()).ok());
        }
        if pidfd.is_some() {
            self.entry_socket = None;
        }
        pidfd.is_some()
    }

    pub(super) fn kill(&mut self) {
        match &self.state {
            // Its subreaper kills the rest.
            State::Running {
                guarded: Some(guarded), ..
            } => {
                let _ = pidfd_send_signal(&guarded.first, Signal::KILL);
            }
            State::Running { pidfd: Some(pidfd), .. } => {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
            // It is an unreaped child of this process, so its number is not reused.
            State::Running { pid, pidfd: None, .. } => {
                if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            State::Starting { spare, first, .. } => {
                let first = first.as_ref().map(|(_, pidfd)| pidfd);
                for pidfd in spare.iter().chain(first) {
                    let _ = pidfd_send_signal(pidfd, Signal::KILL);
                }
            }
            State::Ended { .. } => {}
        }
    }

    /// Waits for killed processes. Does not wait for a PID namespace that may contain a zygote's worker: the namespace
    /// ends only after the worker is reaped. Both are then reaped as strays.
    fn reap_now(&self) {
        if let State::Starting { spare, first, .. } = &self.state {
            if let Some(spare) = spare {
                let _ = waitid(WaitId::PidFd(spare.as_fd()), WaitIdOptions::EXITED);
            }
            if let (Some((_, pidfd)), false) = (first, self.worker_requested) {
                let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            }
        }
    }

    /// Reaps the sandbox's processes. Returns true if none runs any more.
    pub(super) fn reap(&mut self) -> bool {
        let gone = |pidfd: &OwnedFd| {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            !matches!(waitid(WaitId::PidFd(pidfd.as_fd()), options), Ok(None))
        };
        // Its PID namespace does not end earlier.
        self.reap_worker();
        match &self.state {
            State::Running { .. } => !matches!(self.state.ended(), Ok(None)),
            State::Starting { spare, first, .. } => {
                // A worker that was requested for it is reaped as a stray.
                self.worker = None;
                let over = spare.as_ref().is_none_or(gone) & first.as_ref().is_none_or(|(_, pidfd)| gone(pidfd));
                if over {
                    // A first process that was never reported sees its socket close.
                    self.state = State::Ended {
                        since: Instant::now(),
                        error: None,
                    };
                }
                over
            }
            State::Ended { .. } => true,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let mut usage = match (&self.group, &self.state) {
            (Some(group), _) => group.usage(),
            (None, State::Running { pid, .. }) => watchdog::usage(*pid, self.worker_pid(), self.request.memory),
            (None, _) => Usage::default(),
        };
        usage.memory_events += self.watch_record.kills;
        usage.process_events += self.watch_record.task_kills;
        usage.memory_peak = usage.memory_peak.max(self.watch_record.peak);
        usage
    }

    /// Returns the descriptors that report its events. An ended sandbox has none.
    pub(super) fn wake_descriptors(&self, id: u64) -> impl Iterator<Item = (Token, &OwnedFd, Interest)> {
        let messages = |fd| (Token::Jail(id), fd, Interest::Messages);
        let (first, second) = match &self.state {
            State::Starting { socket, .. } => (Some(messages(socket)), None),
            State::Running { pidfd, guarded, .. } => {
                let guardian = guarded.as_ref().filter(|_| !self.disk_full);
                let by_entry_socket = self
                    .entry_socket
                    .as_ref()
                    .map(|entry_socket| (Token::Jail(id), entry_socket, Interest::HangUp));
                let direct = pidfd.as_ref().map(messages).or(by_entry_socket);
                (direct, guardian.map(|guarded| messages(&guarded.socket)))
            }
            State::Ended { .. } => (None, None),
        };
        let worker = first.and_then(|_| self.worker_end());
        let worker = worker.map(|fd| (Token::Worker(id), fd, Interest::Messages));
        first.into_iter().chain(second).chain(worker)
    }

    pub(super) fn worker_pid(&self) -> Option<Pid> {
        self.worker.as_ref().and_then(Worker::pid)
    }

    /// Returns the time of the next memory check; now for the first one.
    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Running { .. } => Some(self.watch_record.due.unwrap_or(now)),
            State::Starting { .. } | State::Ended { .. } => None,
        }
    }

    /// Returns the time of the next work for it: a check, or its removal.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Ended { .. } => Some(now + RETRY_INTERVAL),
            State::Running { .. } | State::Starting { .. } => self.next_check(now),
        }
    }

    /// Returns the roots of its process trees while it runs.
    pub(super) fn roots(&self) -> Option<watchdog::ProcessRoots> {
        let State::Running { pid, .. } = &self.state else {
            return None;
        };
        Some(watchdog::ProcessRoots {
            first: Pid::from_raw(i32::try_from(*pid).ok()?)?,
            worker: self.worker_pid(),
        })
    }

    /// Kills the largest processes if all together exceed the limit. `keeps_counters` is true if an idle sandbox may keep
    /// a descriptor for its checks.
    pub(super) fn check_memory(&mut self, keeps_counters: bool) {
        let Some(roots) = self.roots() else {
            return;
        };
        let first = roots.first;
        match &self.group {
            Some(group) => {
                let guardian = self.folder.as_ref().and(i32::try_from(self.spare).ok());
                let guardian = guardian.and_then(Pid::from_raw);
                self.watch_record.check_group(group, first, guardian, keeps_counters);
            }
            None => self.watch_record.check_tree(
                roots,
                watchdog::Bounds {
                    memory: self.request.memory,
                    cores: u64::from(self.request.cpu_milli.div_ceil(1000)),
                    tasks: self.folder.as_ref().map(|_| u64::from(self.request.processes)),
                    own_network: self.folder.is_none(),
                    channel: self.worker.as_ref().and_then(Worker::channel),
                },
            ),
        }
    }
}

impl State {
    /// Reaps the process whose end is the sandbox's end. Returns its exit status if it has just ended; only the first
    /// call gets it.
    pub(super) fn ended(&self) -> rustix::io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match self {
            Self::Running { pidfd: Some(pidfd), .. } => waitid(WaitId::PidFd(pidfd.as_fd()), options),
            Self::Running { pid, pidfd: None, .. } => match i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                Some(pid) => waitid(WaitId::Pid(pid), options),
                None => Err(rustix::io::Errno::CHILD),
            },
            Self::Starting { .. } | Self::Ended { .. } => Ok(None),
        }
    }
}
