//! The launcher's event loop: takes requests, maps ids, watches memory, reaps processes, and removes ended sandboxes.

mod cradles;
mod fair;
mod ids;
mod in_flight;
mod jail;
mod ready;
mod restart;
mod room;
mod warm;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::attach;
use super::bare;
use super::common;
use super::config;
use super::cradle::{self, Entry, FromCradle, ToCradle};
use super::faults;
use super::folder;
use super::host::{self, Ground, Prepared, prepare};
use super::namespaces::Namespaces;
use super::parent::Parent;
use super::shared_counts;
use cradles::Cradles;
use fair::{Balance, Load};
use ids::HostIds;
pub(super) use ids::{HOST_IDS, IDS_OF_ONE};
use in_flight::Floods;
use jail::readable;
use ready::{Interest, Listener, Ready, Token};
use warm::Visitor;

use crate::cgroup::{Group, Groups};
use crate::oom;
use crate::open_files::OpenFiles;
use crate::plan::{Shows, place};
use crate::spec::{INSIDE_ID, Request};
use crate::steps::write_once;
use crate::sys::clone::{Forked, fork};
use crate::watch;
use crate::wire::{
    FromLauncher, Killer, StepError, ToLauncher, Usage, hung_up, is_gone, pair, pause, receive, receive_what_fits,
    send, send_patiently, send_through_floods, too_many_in_flight,
};

/// The maximum time between two rounds of checks while sandboxes live.
const WATCH_EVERY: Duration = watch::EVERY;
/// A check of a sandbox with hard limits may run early by this much, so that checks coincide.
const TOGETHER: Duration = Duration::from_millis(10);
/// The pause between retries, such as the removal of a cgroup whose last process is still exiting.
const SHORTEST: Duration = Duration::from_millis(1);
/// The launcher makes a spare in advance only after this long without events, so as not to delay a sandbox in creation.
const QUIET: Duration = Duration::from_millis(4);
/// With constant events, it makes a spare after this long.
const SHORT_FOR: Duration = Duration::from_millis(30);
/// The time that the server needs to answer its client once it knows that sandboxes can be made.
const GIVE_WAY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};
/// The maximum time for a sandbox to lock itself.
const SETUP_DEADLINE: Duration = Duration::from_secs(10);
/// The maximum time that an ended sandbox's cgroup may stay busy.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(2);
/// The same when the launcher ends, since no process can remove the cgroup later. Processes with many kernel objects
/// (millions of watches) exit slowly.
const LAST_DEADLINE: Duration = Duration::from_secs(120);
const SIGCHLD: u64 = 17;
/// A sandbox that is in creation, is running, or has ended and is not yet cleaned up.
struct Jail {
    state: State,
    /// Its spare. Without namespaces it stays as the sandbox's subreaper.
    cradle: u32,
    /// Without namespaces: its private folder.
    folder: Option<String>,
    disk_full: bool,
    /// Set if a process outside killed it.
    killed: Option<Killer>,
    group: Option<Group>,
    host_id: u32,
    request: Request,
    asked: bool,
    watched: watch::Record,
    /// Its share of the processors.
    load: Load,
    /// The namespaces for attached folders and for a worker. None before its first process is cloned.
    namespaces: Option<Namespaces>,
    /// The near ends of its direct pipes, until they are sent to the server.
    lane: Vec<OwnedFd>,
    /// The adoption socket to its first process, which reports on a worker.
    door: Option<OwnedFd>,
    visitor: Option<Visitor>,
    /// True if a zygote was asked for a worker. The zygote may die before it reports the worker.
    called: bool,
    /// The zygote to ask for a worker as soon as the sandbox can be entered.
    invited: Option<u64>,
}

enum State {
    Starting {
        /// None if the process is the first process.
        cradle: Option<OwnedFd>,
        socket: OwnedFd,
        first: Option<(u32, OwnedFd)>,
        since: Instant,
    },
    Running {
        pid: u32,
        /// The process whose end is the sandbox's end: the first process or its subreaper. None while the adoption
        /// socket reports the first process's end.
        pidfd: Option<OwnedFd>,
        guarded: Option<Guarded>,
    },
    Ended {
        since: Instant,
        error: Option<StepError>,
    },
}

/// The launcher's descriptors for a sandbox with a subreaper.
struct Guarded {
    /// The first process.
    first: OwnedFd,
    /// Its end tells the subreaper that the launcher has ended.
    socket: OwnedFd,
}

struct Keeper {
    socket: OwnedFd,
    entry: Entry,
    prepared: Prepared,
    cradles: Cradles,
    jails: BTreeMap<u64, Jail>,
    parents: BTreeMap<u64, Parent>,
    listener: Listener,
    /// True if a descriptor could not be added to epoll (a user has a limit for this). It is then polled.
    deaf: bool,
    /// True if there may be unknown children.
    strays: bool,
    /// The reason why no sandbox can be made, found after the start.
    broken: Option<StepError>,
    /// The maximum number of open files of this process.
    files_most: u64,
    balance: Balance,
    alarm: watch::Alarm,
    floods: Floods,
    /// The time of the last event.
    stirred: Instant,
    /// The last time with enough spares, or with a spare made in advance.
    full: Instant,
    /// The time of the next round of checks. None: at once, since an event has happened.
    due: Option<Instant>,
    next_number: u64,
    ids: HostIds,
    buffer: Vec<u8>,
}

/// Runs the launcher. Returns its exit status.
pub(super) fn run(socket: OwnedFd, entry: Entry) -> i32 {
    let _ = rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC);
    let _ = rustix::process::setsid();
    crate::withstand_limits();
    // This holds for all sandboxes, and they cannot undo it. The kernel keeps a whole huge page after a program frees
    // part of it, but charges the process only for the rest. A kernel without huge pages does not need this.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // A process without an audit identity may take one, and the machine assigns it a number. So all take this one.
    let identity = "/proc/self/loginuid";
    if std::fs::read_to_string(identity).is_ok_and(|text| text.trim() == u32::MAX.to_string()) {
        let _ = write_once(identity, &rustix::process::getuid().as_raw().to_string());
    }
    oom::protect_self();
    // Each sandbox needs several descriptors here. The limit inside is set separately.
    let files_most = OpenFiles::raise().most();
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
    let ground = (!faults::POSSIBLE).then(Ground::lay);
    let mut buffer = Vec::new();
    let template = match receive(socket.as_fd(), &mut buffer) {
        Ok(Some((ToLauncher::Configure(template), _))) => template,
        _ => return 0,
    };
    let prepared = match prepare(ground, template) {
        Ok(prepared) => prepared,
        Err(error) => {
            let _ = send(socket.as_fd(), &FromLauncher::Refused(error), &[]);
            return 1;
        }
    };
    let Ok(ids) = HostIds::claim() else {
        return 1;
    };
    let Ok(listener) = Listener::new(&socket) else {
        return 1;
    };
    // If this process is stopped when the server dies, the signal continues it, so that it ends everything. Set after
    // the namespaces are made, since that resets it.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::CONT));
    let mut keeper = Keeper {
        ids,
        socket,
        listener,
        deaf: false,
        entry,
        prepared,
        cradles: Cradles::default(),
        jails: BTreeMap::new(),
        parents: BTreeMap::new(),
        strays: false,
        broken: None,
        files_most,
        balance: Balance::new(),
        alarm: watch::Alarm::default(),
        floods: Floods::default(),
        stirred: Instant::now(),
        full: Instant::now(),
        due: None,
        next_number: 0,
        buffer,
    };
    if keeper
        .tell(&FromLauncher::Configured(keeper.prepared.report.clone()))
        .is_ok()
    {
        keeper.give_way();
        keeper.complete();
        keeper.serve();
    }
    keeper.end_everything();
    0
}

impl Keeper {
    /// Sends a message to the server. An error means that the server is gone. A message that fails for another reason
    /// is lost, and only a caller that waits for it notices.
    fn tell(&self, message: &FromLauncher) -> io::Result<()> {
        match send_patiently(self.socket.as_fd(), message, &[]) {
            Err(error) if is_gone(&error) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Waits for the first request, or until the server had time to answer its client: the server may be queued behind
    /// this process on the same processor.
    fn give_way(&self) {
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&GIVE_WAY));
    }

    /// Does the work of some milliseconds that only the first sandbox needs. The server can answer its client
    /// meanwhile.
    fn complete(&mut self) {
        if self.prepared.bare.is_none()
            && let Err(error) = config::copy(&self.prepared.template.config, &self.prepared.host.copied)
        {
            self.broken = Some(StepError::new("copy configuration", Some("private_root"), &error));
        }
        if self.prepared.bare.is_none()
            && let Err(error) = self.bound_shared_counts()
        {
            self.broken = Some(StepError::new("bound shared counts", Some("user_namespace"), &error));
        }
        if self.prepared.template.enterable {
            match common::make(&self.prepared, self.ids.first()) {
                Ok(common) => self.prepared.common = Some(common),
                // Nobody can enter then. The first request for a zygote is refused.
                Err(_) => self.prepared.template.enterable = false,
            }
        }
        self.open_nursery();
    }

    /// Limits the host user's counts that all sandboxes use together. As root each sandbox has a different id, and the
    /// shared namespace limits them, if there is one.
    fn bound_shared_counts(&self) -> io::Result<()> {
        if !self.prepared.host.root {
            shared_counts::bound_watches()?;
        }
        shared_counts::keep_half()
    }

    /// Runs until the server is gone.
    fn serve(&mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if ready.requests && !self.take_request() {
                return;
            }
            if ready.nursery {
                if !self.hear_nursery() {
                    return;
                }
                self.listen_to_nursery();
            }
            for id in ready.visitors {
                self.hear_visitor(id);
                self.listen(id);
            }
            for number in ready.parents {
                self.hear_parent(number);
                self.listen_to_parent(number);
            }
            for number in ready.ended_parents {
                self.parent_ended(number);
            }
            for id in ready.jails {
                self.look_at(id);
                self.listen(id);
            }
            if self.deaf {
                self.ask_all();
            }
            self.heed_alarm();
            if self.strays || self.deaf || self.due.is_none_or(|due| due <= Instant::now()) {
                self.tend();
            }
            self.look_after_nursery();
            // Requests that waited for free descriptors.
            if !self.serve_wanted() || !self.refill(ready.idle) {
                return;
            }
        }
    }

    /// Makes a spare in advance after a quiet period, or if none could be made for a long time. Returns false if the
    /// server is gone.
    fn refill(&mut self, idle: bool) -> bool {
        let now = Instant::now();
        if !idle {
            self.stirred = now;
        }
        if self.cradles.len() >= self.prepared.template.spares {
            self.full = now;
        } else if (now - self.stirred >= QUIET || now - self.full >= SHORT_FOR) && self.cradles.rest(now).is_zero() {
            self.full = now;
            // Leave descriptors for requested sandboxes.
            if self.room() < 2 || self.add_cradle().is_err() {
                self.cradles.has_failed();
            }
            // Serves requests that waited for a fork server that turns out to be gone.
            return self.serve_wanted();
        }
        true
    }

    /// Registers the descriptors of this sandbox for wake-ups.
    fn listen(&mut self, id: u64) {
        if let Some(jail) = self.jails.get(&id) {
            for (token, fd, interest) in jail.heard_by(id) {
                self.deaf |= self.listener.listen(token, fd, interest).is_err();
            }
        }
    }

    /// Registers the descriptors of a zygote.
    fn listen_to_parent(&mut self, number: u64) {
        if let Some(parent) = self.parents.get(&number) {
            for (token, fd) in [
                (Token::Parent(number), &parent.socket),
                (Token::ParentsEnd(number), &parent.pidfd),
            ] {
                self.deaf |= self.listener.listen(token, fd, Interest::Messages).is_err();
            }
        }
    }

    /// Polls all descriptors, and tries to register them again.
    fn ask_all(&mut self) {
        self.deaf = false;
        if self
            .cradles
            .nursery
            .as_ref()
            .is_some_and(|nursery| readable(&nursery.socket))
        {
            self.hear_nursery();
        }
        self.listen_to_nursery();
        for number in self.parents.keys().copied().collect::<Vec<_>>() {
            let Some(parent) = self.parents.get(&number) else {
                continue;
            };
            match (readable(&parent.socket), readable(&parent.pidfd)) {
                (_, true) => self.parent_ended(number),
                (true, false) => self.hear_parent(number),
                (false, false) => {}
            }
            self.listen_to_parent(number);
        }
        for id in self.jails.keys().copied().collect::<Vec<_>>() {
            let Some(jail) = self.jails.get(&id) else { continue };
            if jail.visitor_end().is_some_and(readable) {
                self.hear_visitor(id);
            }
            let own = |(token, fd, _): (Token, &OwnedFd, Interest)| token == Token::Jail(id) && readable(fd);
            if self.jails.get(&id).is_some_and(|jail| jail.heard_by(id).any(own)) {
                self.look_at(id);
            }
            self.listen(id);
        }
    }

    /// Checks every sandbox at once if the machine has lost much memory.
    fn heed_alarm(&mut self) {
        if self.is_alarmed() && self.alarm.is_raised() {
            self.due = None;
            for jail in self.jails.values_mut() {
                jail.watched.due = None;
            }
        }
    }

    /// Returns true if there are sandboxes that are rarely checked.
    fn is_alarmed(&self) -> bool {
        self.prepared.groups.is_some() && !self.jails.is_empty()
    }

    fn wait(&self) -> io::Result<Ready> {
        let nobody = self.jails.is_empty() && self.prepared.leftovers.is_empty() && !self.cradles.are_ordered();
        let due = || self.due.map(|due| due.saturating_duration_since(Instant::now()));
        let most = if self.is_alarmed() {
            watch::ALARM_INTERVAL
        } else {
            WATCH_EVERY
        };
        let next = (!nobody).then(|| due().unwrap_or_default().min(most));
        let timeout = if self.strays || self.deaf {
            Some(SHORTEST)
        } else if self.cradles.len() < self.prepared.template.spares {
            let soon = QUIET.max(self.cradles.rest(Instant::now()));
            Some(next.unwrap_or(soon).min(soon))
        } else {
            next
        };
        // No other event wakes this process when the next fork server is due.
        let restart = self
            .cradles
            .restart
            .rest(Instant::now())
            .map(|rest| rest.min(WATCH_EVERY));
        let timeout = match (timeout, restart) {
            (Some(timeout), Some(restart)) => Some(timeout.min(restart)),
            (timeout, restart) => timeout.or(restart),
        };
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        self.listener.wait(timeout.as_ref())
    }

    /// Handles one request. Returns false if the server is gone.
    fn take_request(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = receive_what_fits(self.socket.as_fd(), &mut buffer);
        self.buffer = buffer;
        match received {
            Ok(Some((
                ToLauncher::Make {
                    id,
                    request,
                    image,
                    entered_by,
                },
                descriptors,
            ))) => self.make(id, request, image.as_deref(), entered_by, descriptors),
            Ok(Some((ToLauncher::Kill { id }, _))) => self.kill(id),
            Ok(Some((ToLauncher::Usage { id }, _))) => {
                let usage = self.jails.get(&id).map(|jail| jail.usage());
                self.tell(&FromLauncher::Usage { id, usage }).is_ok()
            }
            Ok(Some((ToLauncher::Attach { id, number, folder }, _))) => {
                let error = self.attach(id, number, &folder).err();
                self.tell(&FromLauncher::Attached { id, number, error }).is_ok()
            }
            Ok(Some((ToLauncher::Warm { parent, argv, folders }, descriptors))) => {
                self.warm(parent, &argv, &folders, descriptors)
            }
            Ok(Some((ToLauncher::Cool { parent }, _))) => {
                if let Some(parent) = self.parents.get(&parent) {
                    parent.kill();
                }
                true
            }
            Ok(Some((ToLauncher::Enter { id, parent }, _))) => self.enter(id, parent),
            Ok(Some((ToLauncher::Belongs { id, caller }, _))) => {
                self.belongs(id, caller);
                true
            }
            Ok(Some((ToLauncher::ComesLast { id, last }, _))) => {
                self.comes_last(id, last);
                true
            }
            Ok(Some((ToLauncher::Ping {}, _))) => self.tell(&FromLauncher::Pong {}).is_ok(),
            Ok(Some((ToLauncher::Sweep {}, _))) => {
                let left = self.prepared.groups.as_ref().map(Groups::sweep);
                self.prepared.leftovers.extend(left.unwrap_or_default());
                true
            }
            Ok(Some((ToLauncher::Configure(_), _))) => true,
            Ok(None) => false,
            Err(error) if is_gone(&error) => false,
            // A temporary lack in this process does not end existing sandboxes.
            Err(_) => {
                pause();
                true
            }
        }
    }

    fn attach(&self, id: u64, number: usize, folder: &std::path::Path) -> Result<(), StepError> {
        let running = |jail: &&Jail| matches!(jail.state, State::Running { .. });
        match self
            .jails
            .get(&id)
            .filter(running)
            .and_then(|jail| jail.namespaces.as_ref())
        {
            Some(namespaces) => {
                let opened = namespaces.for_folders();
                let opened = opened.map_err(|error| StepError::new("open the sandbox's namespaces", None, &error))?;
                attach::attach(&self.prepared.mounts, &opened, folder, number)
            }
            None => Err(StepError {
                step: "find the sandbox".into(),
                layer: None,
                errno: libc::ESRCH,
            }),
        }
    }

    /// Returns the host id of the next sandbox's user. As root no other sandbox has it; otherwise it is the server's
    /// user.
    fn next_host_id(&mut self) -> io::Result<u32> {
        if !self.prepared.host.root {
            return Ok(self.prepared.ids.0);
        }
        let (jails, cradles, parents) = (&self.jails, &self.cradles, &self.parents);
        self.ids.next(|id| {
            jails.values().any(|jail| jail.host_id == id)
                || cradles.host_ids().any(|other| other == id)
                || parents.values().any(|parent| parent.host_id == id)
        })
    }

    /// Handles an event of this sandbox.
    fn look_at(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        match &jail.state {
            State::Running { guarded, .. } => {
                let status = jail.state.ended();
                if let Some(guarded) = guarded
                    && !jail.disk_full
                    && readable(&guarded.socket)
                {
                    let message = receive::<FromCradle>(guarded.socket.as_fd(), &mut self.buffer);
                    jail.disk_full = matches!(message, Ok(Some((FromCradle::Full, _))));
                }
                if matches!(status, Ok(None)) {
                    // The first process is ending, or it has closed its adoption socket.
                    self.deaf |= jail.door.as_ref().is_some_and(hung_up) && !jail.close_door();
                    if jail.disk_full {
                        let _ = self.tell(&FromLauncher::Full { id });
                    }
                    return;
                }
                if let Some(group) = &jail.group {
                    jail.watched.last_look_at_group(group);
                }
                jail.learn_killer(status.ok().flatten().and_then(|status| status.terminating_signal()));
                jail.state = State::Ended {
                    since: Instant::now(),
                    error: None,
                };
                // Release the namespaces, so that the kernel frees its files and their charge.
                jail.namespaces = None;
                jail.door = None;
                self.due = None;
            }
            State::Starting { .. } => {
                let group_id = if self.prepared.host.root {
                    jail.host_id
                } else {
                    self.prepared.ids.1
                };
                let unmapped =
                    self.prepared.bare.is_some() || faults::skipped(&self.prepared.template, "user_namespace");
                // With a shared namespace, the spare maps the ids.
                let enterable = self.prepared.common.is_some();
                let mapping = if unmapped || enterable { None } else { Some(group_id) };
                let mut buffer = std::mem::take(&mut self.buffer);
                let now = jail.go_on(&mut buffer, mapping, enterable);
                self.buffer = buffer;
                let ended = matches!(jail.state, State::Ended { .. });
                // Its first process may be unknown.
                self.strays |= ended && self.prepared.bare.is_none();
                if now || ended {
                    self.due = None;
                }
                if now {
                    let folder = jail.folder.clone();
                    let lane = std::mem::take(&mut jail.lane);
                    let ends: Vec<_> = lane.iter().map(AsFd::as_fd).collect();
                    let made = FromLauncher::Made { id, folder };
                    // A sandbox also works without direct pipes, more slowly.
                    if send_patiently(self.socket.as_fd(), &made, &ends).is_err() {
                        let _ = self.tell(&made);
                    }
                }
                self.see_to_visitor(id);
            }
            State::Ended { .. } => {}
        }
    }

    fn kill(&mut self, id: u64) -> bool {
        self.cradles.forget(id);
        let Some(jail) = self.jails.get_mut(&id) else {
            return self
                .tell(&FromLauncher::Gone {
                    id,
                    out_of_memory: false,
                    disk_full: false,
                    asked: true,
                    killed: None,
                })
                .is_ok();
        };
        jail.asked = true;
        jail.kill();
        true
    }

    /// Does all work that is due by time: memory checks, deadlines, and the removal of ended sandboxes. Includes checks
    /// of all sandboxes that are due soon and may run early.
    fn tend(&mut self) {
        let now = Instant::now();
        for jail in self.jails.values_mut() {
            let early = if jail.group.is_some() { TOGETHER } else { Duration::ZERO };
            if jail.watched_next(now).is_some_and(|due| due <= now + early) {
                jail.watch();
            }
        }
        self.balance(now);
        self.look_for_floods(now);
        self.tend_visitors();
        self.remove_leftovers();
        let alone = self.prepared.bare.is_none() || !bare::kill_walk(&|child| self.knows(child));
        let mut finished = Vec::new();
        for (id, jail) in &mut self.jails {
            self.strays |= jail.give_up_without_cradle();
            if let State::Starting { since, .. } = &jail.state
                && since.elapsed() > SETUP_DEADLINE
            {
                jail.kill();
            }
            if let State::Ended { since, error } = &mut jail.state {
                let removed = alone && jail.group.as_ref().is_none_or(|group| group.remove().is_ok());
                if removed || since.elapsed() > REMOVAL_DEADLINE {
                    finished.push((*id, error.take()));
                }
            }
        }
        for (id, error) in finished {
            let Some(jail) = self.jails.remove(&id) else { continue };
            if let Some(group) = &jail.group
                && group.remove().is_err()
            {
                self.prepared.leftovers.extend(group.folders());
            }
            // A killed subreaper has not removed it.
            if let Some(path) = &jail.folder {
                folder::remove(path);
            }
            let message = match error {
                Some(error) => FromLauncher::Failed { id, error },
                None => FromLauncher::Gone {
                    id,
                    out_of_memory: jail.watched.events > 0 && !jail.asked,
                    disk_full: jail.disk_full,
                    asked: jail.asked,
                    killed: jail.killed,
                },
            };
            let _ = self.tell(&message);
        }
        let now = Instant::now();
        let next = self.jails.values().filter_map(|jail| jail.due(now)).min();
        self.due = Some(next.unwrap_or(now + WATCH_EVERY).min(now + WATCH_EVERY));
    }

    /// Removes groups that were busy at their removal, of this server and of earlier ones.
    fn remove_leftovers(&mut self) {
        self.prepared
            .leftovers
            .retain(|folder| matches!(rustix::fs::rmdir(folder.as_str()), Err(rustix::io::Errno::BUSY)));
    }

    /// Returns true if a child of this process is known. Without namespaces, all other children are orphans of a
    /// sandbox whose subreaper is dead.
    fn knows(&self, child: Pid) -> bool {
        let is = |pid: u32| i32::try_from(pid).is_ok_and(|pid| pid == child.as_raw_nonzero().get());
        let guards = |jail: &Jail| is(jail.cradle) && !matches!(jail.state, State::Ended { .. });
        self.cradles.pids().any(is) || self.jails.values().any(guards)
    }

    /// Ends everything after the server is gone.
    fn end_everything(&mut self) {
        for jail in self.jails.values_mut() {
            jail.kill();
        }
        self.discard_cradles();
        for parent in self.parents.values() {
            parent.kill();
            let _ = waitid(WaitId::PidFd(parent.pidfd.as_fd()), WaitIdOptions::EXITED);
        }
        self.parents.clear();
        if self.prepared.bare.is_some() {
            // Orphans of dead subreapers are children of this process now. They would keep their cgroup busy.
            bare::end_descendants(|child| self.knows(child));
        }
        let since = Instant::now();
        while !(self.jails.is_empty() && self.prepared.leftovers.is_empty()) && since.elapsed() < LAST_DEADLINE {
            if self.prepared.bare.is_some() {
                bare::kill_walk(&|child| self.knows(child));
            }
            if self.prepared.common.is_some() {
                self.reap_strays();
            }
            let ids: Vec<u64> = self.jails.keys().copied().collect();
            for id in ids {
                if let Some(jail) = self.jails.get_mut(&id)
                    && jail.reap()
                    && jail.group.as_ref().is_none_or(|group| group.remove().is_ok())
                {
                    self.jails.remove(&id);
                }
            }
            self.remove_leftovers();
            let patient = since.elapsed() > REMOVAL_DEADLINE;
            let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: if patient { 50_000_000 } else { 1_000_000 },
            });
        }
        // Removed after the groups: without its claim, a group counts as a dead launcher's.
        if let Some(instance) = self.prepared.instance.take() {
            instance.remove();
        }
        if let Some(bare) = &self.prepared.bare {
            bare::end_descendants(|_| false);
            bare.remove();
        }
    }
}

pub(super) fn map_ids(pid: u32, user: u32, group: u32) -> io::Result<()> {
    let proc = format!("{}/proc/{pid}", place::host());
    write_once(&format!("{proc}/uid_map"), &format!("{INSIDE_ID} {user} 1"))?;
    write_once(&format!("{proc}/gid_map"), &format!("{INSIDE_ID} {group} 1"))
}
