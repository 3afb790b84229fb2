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
use rustix::process::{pidfd_open, pidfd_send_signal, waitid};

use super::{Jail, Keeper, State};
use crate::calls::Handed;
use crate::cgroup::Group;
use crate::launcher::attach::view;
use crate::launcher::namespaces::Namespaces;
use crate::launcher::parent::{FromParent, Parent, ToParent};
use crate::plan::place;
use crate::watch;
use crate::wire::{AtDoor, FromLauncher, StepError, pair, receive, send};

/// The maximum time until the launcher learns of a worker.
const ENTER_DEADLINE: Duration = Duration::from_secs(5);

/// A worker in a sandbox, or on its way into it.
pub(super) enum Visitor {
    /// The zygote was asked for it.
    Called {
        parent: u64,
        /// A message on this socket lets it continue, with the mount namespace, the adoption socket, and the files by
        /// which it joins the cgroup. Closing it ends the worker.
        go: OwnedFd,
        /// The number of the sandbox's PID namespace.
        namespace: u64,
        /// The number of the zygote's socket.
        channel: u64,
        since: Instant,
        /// The worker's host id, if the zygote reported it before the sandbox was complete.
        told: Option<i32>,
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

impl Visitor {
    fn is_joining(&self) -> bool {
        matches!(self, Self::Inside { joining: Some(_), .. })
    }

    /// Returns the number of its zygote's socket, once it runs.
    pub(super) fn channel(&self) -> Option<u64> {
        match self {
            Self::Inside { channel, .. } => Some(*channel),
            Self::Called { .. } => None,
        }
    }

    /// Returns true if this zygote was asked for it and has not reported it.
    fn is_awaited_from(&self, number: u64) -> bool {
        matches!(self, Self::Called { parent, told: None, .. } if *parent == number)
    }

    /// Returns true if a zygote was asked for it long ago and has not reported it.
    fn is_late(&self) -> bool {
        matches!(self, Self::Called { since, told: None, .. } if since.elapsed() > ENTER_DEADLINE)
    }

    /// Returns its host id, if it runs.
    pub(super) fn pid(&self) -> Option<Pid> {
        match self {
            Self::Called { told, .. } => told.and_then(|told| Pid::from_raw(told.max(0))),
            Self::Inside { pid, .. } => Some(*pid),
        }
    }
}

fn missing(what: &str) -> StepError {
    StepError::new(what, None, &io::Error::from_raw_os_error(libc::ESRCH))
}

impl Keeper {
    /// Starts a zygote. Returns false if the server is gone.
    pub(super) fn warm(
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
                .and_then(|host_id| Parent::start(&self.prepared, argv, views, descriptors, host_id))
                .map_err(|error| StepError::new("start a warmed parent", None, &error))
        });
        match started {
            Ok(parent) => {
                self.parents.insert(number, parent);
                self.listen_to_parent(number);
                true
            }
            Err(error) => {
                let error = Some(error);
                self.tell(&FromLauncher::Cooled { parent: number, error }).is_ok()
            }
        }
    }

    /// Asks a zygote for a worker in this sandbox. Returns false if the server is gone.
    pub(super) fn enter(&mut self, id: u64, number: u64) -> bool {
        match self.call_visitor(id, number) {
            Ok(()) => true,
            Err(error) => {
                let error = Some(error);
                self.tell(&FromLauncher::Entered { id, error }).is_ok()
            }
        }
    }

    /// Handles a change of a sandbox in creation: requests the worker as soon as the sandbox can be entered, and lets
    /// it enter as soon as the sandbox is complete.
    pub(super) fn see_to_visitor(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        let made = matches!(jail.state, State::Running { .. });
        if let Some(Visitor::Called { told: Some(child), .. }) = jail.visitor
            && made
        {
            self.let_in(id, child);
        } else if (made || jail.namespaces.as_ref().is_some_and(Namespaces::are_open))
            && let Some(number) = jail.invited.take()
        {
            self.enter(id, number);
        }
    }

    fn call_visitor(&mut self, id: u64, number: u64) -> Result<(), StepError> {
        let parent = self
            .parents
            .get_mut(&number)
            .ok_or_else(|| missing("find the parent"))?;
        let lives = |jail: &&mut Jail| !matches!(jail.state, State::Ended { .. });
        let jail = self.jails.get_mut(&id).filter(lives);
        let jail = jail.ok_or_else(|| missing("find the sandbox"))?;
        let open = jail.namespaces.as_mut().filter(|namespaces| namespaces.are_open());
        let namespaces = open.ok_or_else(|| missing("find a way in"))?;
        let ways = namespaces.entrances();
        let ways = ways.map_err(|error| StepError::new("open the sandbox's namespaces", None, &error))?;
        if !parent.is_single() {
            parent.kill();
            return Err(missing("find a parent with one thread"));
        }
        let with_it = Handed {
            namespaces: ways.all.len(),
            groups: jail.group.as_ref().map_or(0, Group::count_entrances),
        };
        parent.show_the_way(&self.prepared, jail.request, with_it)?;
        jail.called = true;
        let mut ask = || -> io::Result<OwnedFd> {
            let (go, wait) = pair()?;
            let handed = ways.descriptors().chain([wait.as_fd()]);
            send(parent.socket.as_fd(), &ToParent::Enter {}, &handed.collect::<Vec<_>>())?;
            parent.asked.push_back(id);
            Ok(go)
        };
        let go = ask().map_err(|error| StepError::new("ask the parent", None, &error))?;
        jail.visitor = Some(Visitor::Called {
            parent: number,
            go,
            namespace: ways.pid_number,
            channel: parent.channel,
            since: Instant::now(),
            told: None,
        });
        Ok(())
    }

    /// Handles a message of a zygote.
    pub(super) fn hear_parent(&mut self, number: u64) {
        let Some(parent) = self.parents.get_mut(&number) else {
            return;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = receive(parent.socket.as_fd(), &mut buffer);
        self.buffer = buffer;
        match received {
            Ok(Some((FromParent::Forked { child }, _))) => match parent.asked.pop_front() {
                Some(id) => self.arrived(number, id, child),
                // It has reported more workers than were requested.
                None => parent.kill(),
            },
            Ok(Some((FromParent::Failed(error), _))) => {
                parent.error = Some(error);
                parent.kill();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => parent.end(),
        }
    }

    fn arrived(&mut self, number: u64, id: u64, child: i32) {
        let asked = |visitor: &Visitor| visitor.is_awaited_from(number);
        let found = self.jails.get_mut(&id);
        let Some(jail) = found.filter(|jail| jail.visitor.as_ref().is_some_and(asked)) else {
            // It is not expected. It exits when its socket closes.
            self.strays = true;
            return;
        };
        if let (State::Starting { .. }, Some(Visitor::Called { told, .. })) = (&jail.state, &mut jail.visitor) {
            *told = Some(child);
        } else {
            self.let_in(id, child);
        }
    }

    fn let_in(&mut self, id: u64, child: i32) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        let admitted = jail.admit(child);
        self.listen(id);
        self.tell_admitted(id, admitted);
    }

    /// Handles an event of a worker: it has joined the cgroup, or has ended.
    pub(super) fn hear_visitor(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        if !jail.visitor.as_ref().is_some_and(Visitor::is_joining) {
            jail.reap_visitor();
            return;
        }
        let joined = jail.joined().map(|()| true);
        self.tell_admitted(id, joined);
    }

    /// Reports the result of an entry to the server, once it is known.
    fn tell_admitted(&mut self, id: u64, admitted: Result<bool, StepError>) {
        let error = match admitted {
            Ok(false) => return,
            Ok(true) => None,
            Err(error) => {
                self.strays = true;
                Some(error)
            }
        };
        let _ = self.tell(&FromLauncher::Entered { id, error });
    }

    /// Handles the end of a zygote.
    pub(super) fn parent_ended(&mut self, number: u64) {
        let Some(parent) = self.parents.remove(&number) else {
            return;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(parent.pidfd.as_fd()), options);
        let signal = status.ok().flatten().and_then(|status| status.terminating_signal());
        if let (Some(signal), false) = (signal, parent.killed.get()) {
            self.tell_killed("a warmed interpreter", signal);
        }
        self.refuse(|visitor| visitor.is_awaited_from(number), "hear from the parent");
        let error = parent.error;
        let _ = self.tell(&FromLauncher::Cooled { parent: number, error });
    }

    /// Reports that another process killed a helper process of the launcher.
    pub(super) fn tell_killed(&self, what: &str, signal: i32) {
        let what = what.to_owned();
        let _ = self.tell(&FromLauncher::HelperKilled { what, signal });
    }

    /// Fails the entries of these workers.
    fn refuse(&mut self, late: impl Fn(&Visitor) -> bool, step: &str) {
        let found = self.jails.iter_mut();
        let found = found.filter(|(_, jail)| jail.visitor.as_ref().is_some_and(&late));
        let ids: Vec<u64> = found
            .map(|(id, jail)| {
                jail.visitor = None;
                *id
            })
            .collect();
        for id in ids {
            self.strays = true;
            let error = Some(missing(step));
            let _ = self.tell(&FromLauncher::Entered { id, error });
        }
    }

    /// Does the work that is due by time.
    pub(super) fn tend_visitors(&mut self) {
        let stuck = self.jails.values().filter_map(|jail| match &jail.visitor {
            Some(visitor @ Visitor::Called { parent, .. }) if visitor.is_late() => Some(*parent),
            _ => None,
        });
        for number in stuck.collect::<Vec<_>>() {
            if let Some(parent) = self.parents.get(&number) {
                parent.kill();
            }
        }
        self.refuse(Visitor::is_late, "hear from the parent in time");
        let slow = |visitor: &Visitor| matches!(visitor, Visitor::Inside { joining: Some(joining), .. } if joining.since.elapsed() > ENTER_DEADLINE);
        for jail in self.jails.values() {
            if let Some(Visitor::Inside { pidfd, .. }) = jail.visitor.as_ref().filter(|visitor| slow(visitor)) {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        self.refuse(slow, "join the control group in time");
        if self.strays {
            self.reap_strays();
        }
    }

    /// Reaps unknown children of this process: workers of a zygote that died before it reported them. A PID namespace
    /// does not end before all of its processes are reaped.
    pub(super) fn reap_strays(&mut self) {
        let me = rustix::process::getpid();
        let own = self.own();
        let number = |child: &Pid| child.as_raw_nonzero().get().unsigned_abs();
        let strays = watch::children(me)
            .into_iter()
            .filter(|child| !own.contains(&number(child)));
        let mut left = false;
        for stray in strays {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            left |= matches!(waitid(WaitId::Pid(stray), options), Ok(None));
        }
        self.strays = left;
    }

    /// Returns the processes that the launcher has made or let in.
    fn own(&self) -> BTreeSet<u32> {
        let mut own: BTreeSet<u32> = self.cradles.pids().collect();
        own.extend(self.parents.values().map(|parent| parent.pid));
        for jail in self.jails.values() {
            match &jail.state {
                State::Starting { first, .. } => {
                    own.insert(jail.cradle);
                    own.extend(first.as_ref().map(|(pid, _)| *pid));
                }
                State::Running { pid, .. } => {
                    own.insert(*pid);
                }
                State::Ended { .. } => {}
            }
            if jail.folder.is_some() {
                own.insert(jail.cradle);
            }
            let visitor = jail.visitor.as_ref().and_then(Visitor::pid);
            own.extend(visitor.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()));
        }
        own
    }
}

impl Jail {
    /// Checks a worker and lets it continue. Returns false while it joins the cgroup.
    fn admit(&mut self, child: i32) -> Result<bool, StepError> {
        let called = self.visitor.take();
        let Some(Visitor::Called {
            go, namespace, channel, ..
        }) = called
        else {
            return Err(missing("expect a child"));
        };
        let (Some(pid), State::Running { pid: first, .. }) = (Pid::from_raw(child.max(0)), &self.state) else {
            return Err(missing("make a child"));
        };
        let named = |step: &'static str| move |error: io::Error| StepError::new(step, None, &error);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| named("find the child")(error.into()))?;
        // The kernel refuses this for all but children of this process. No other process can get their numbers.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(pidfd.as_fd()), options).map_err(|error| named("look at the child")(error.into()))?;
        let proc = format!("{}/proc/{child}", place::host());
        let stands = stat(format!("{proc}/ns/pid")).map_err(|error| named("look at the child")(error.into()))?;
        if stands.st_ino != namespace || i64::from(*first) == i64::from(child) {
            return Err(missing("find the child in the sandbox"));
        }
        let inside = id_inside(&proc).ok_or_else(|| missing("learn the child's id"))?;
        let beside = match &self.group {
            Some(group) => group.entrances().map_err(named("join the control group"))?,
            None => Vec::new(),
        };
        match &self.group {
            // Moving another process blocks all forks and exits, for which the kernel waits long.
            Some(_) if !beside.is_empty() => {}
            Some(group) => {
                let number = child.unsigned_abs();
                group.join(number).map_err(named("join the control group"))?;
            }
            None => same_cores(*first, pid).map_err(named("limit cores"))?,
        }
        let joins = !beside.is_empty();
        if !joins {
            self.announce(inside)?;
        }
        // Not earlier: before the sandbox is complete, its mount namespace still exposes the host, and its socket still
        // reaches the launcher.
        let (Some(namespaces), Some(door)) = (&self.namespaces, &self.door) else {
            return Err(missing("find the sandbox's door"));
        };
        let files = namespaces.mount().map_err(named("open the sandbox's namespaces"))?;
        let fds: Vec<_> = [&files, door].into_iter().chain(&beside).map(AsFd::as_fd).collect();
        send(go.as_fd(), &1, &fds).map_err(named("let the child go on"))?;
        self.hold_less();
        let joining = joins.then(|| Joining {
            socket: go,
            inside,
            since: Instant::now(),
        });
        self.visitor = Some(Visitor::Inside {
            pid,
            pidfd,
            channel,
            joining,
        });
        Ok(!joins)
    }

    /// Handles a worker's report that it has joined the cgroup. The report is verified.
    fn joined(&mut self) -> Result<(), StepError> {
        let Some(Visitor::Inside { pid, joining, .. }) = &mut self.visitor else {
            return Err(missing("expect a child"));
        };
        let Some(joining) = joining.take() else {
            return Err(missing("expect a child"));
        };
        let told = watch::small_file(&format!("{}/proc/{}/cgroup", place::host(), pid.as_raw_nonzero()));
        let joined = self.group.as_ref().is_some_and(|group| group.holds(&told));
        let announced = if joined {
            self.announce(joining.inside)
        } else {
            Err(missing("find the child in the control group"))
        };
        // It may already run, so it does not exit by itself.
        if announced.is_err()
            && let Some(Visitor::Inside { pidfd, .. }) = self.visitor.take()
        {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        announced
    }

    /// Tells the sandbox which worker has entered. Without the adoption socket the agent would not learn of its end.
    fn announce(&self, inside: i32) -> Result<(), StepError> {
        let door = self.door.as_ref().ok_or_else(|| missing("find the sandbox's door"))?;
        let word = AtDoor::Entered { pid: inside };
        send(door.as_fd(), &word, &[]).map_err(|error| StepError::new("tell the sandbox", None, &error))
    }

    /// Returns the descriptor that reports the worker's end.
    pub(super) fn visitor_end(&self) -> Option<&OwnedFd> {
        match &self.visitor {
            Some(Visitor::Inside {
                joining: Some(joining), ..
            }) => Some(&joining.socket),
            Some(Visitor::Inside { pidfd, .. }) => Some(pidfd),
            Some(Visitor::Called { .. }) | None => None,
        }
    }

    /// Reaps the worker if it has ended, and tells the first process, which is not its parent.
    pub(super) fn reap_visitor(&mut self) {
        let Some(Visitor::Inside { pidfd, .. }) = &self.visitor else {
            return;
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
            Ok(None) => return,
            Ok(Some(status)) => Some(status),
            Err(_) => None,
        };
        self.visitor = None;
        if let Some(door) = &self.door {
            let _ = send(door.as_fd(), &end_of(status.as_ref()), &[]);
        }
        self.close_door();
    }
}

fn end_of(status: Option<&WaitIdStatus>) -> AtDoor {
    const KILL: u8 = 9;
    let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    let code = status.and_then(WaitIdStatus::exit_status);
    let signal = status.and_then(WaitIdStatus::terminating_signal);
    AtDoor::Ended {
        status: code.or(signal).map_or(KILL, byte),
        signal: code.is_none(),
    }
}

/// Returns the process's id in its innermost PID namespace.
fn id_inside(proc: &str) -> Option<i32> {
    let status = watch::small_file(&format!("{proc}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Gives a process the cores of another process.
fn same_cores(first: u32, pid: Pid) -> io::Result<()> {
    let first = i32::try_from(first).ok().and_then(Pid::from_raw);
    let cores = rustix::thread::sched_getaffinity(first)?;
    Ok(rustix::thread::sched_setaffinity(Some(pid), &cores)?)
}
