//! The launcher's event loop: takes requests, maps ids, watches memory, reaps processes, and removes ended sandboxes.
//!
//! - **Process:** the launcher itself, with one thread.
//! - **Started by:** the server, which executes its own program again ([`start`](super::start)). All
//!   processes of `launcher/` except the server are forks of this one.
//! - **Rights:** those of the server's user, without any filter. As the machine's root it has all capabilities and a
//!   private mount namespace. As an ordinary user it has a user namespace with one id mapped, and all capabilities only
//!   there. If namespaces cannot be made, it stays in the host's. Its environment is empty, and its only way to others
//!   is the server's socket.
//! - **May:** mount, make and enter namespaces, make cgroups, write the id maps of its children, signal its children,
//!   and read the host's `/proc`. It opens no network connection, and executes no program itself.
//! - **Ends:** when the server's socket hangs up or the preparation fails. It first kills all that it has started and
//!   removes all cgroups. If it is killed, the kernel kills the others (`PR_SET_PDEATHSIG`), except subreapers, which
//!   detect it by their sockets.

mod attach;
mod descriptor_budget;
mod fair;
mod fork_server_handle;
mod ids;
mod in_flight;
mod jail;
mod ready;
mod restart;
mod spares;
mod workers;
mod zygote_handle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::base::faults;
use super::base::messages::FromSpare;
use super::base::namespaces::Namespaces;
use super::base::orphans;
use super::base::prepared::Prepared;
use super::base::shared_counts;
use super::base::shared_userns;
use super::base::tree_walk;
use super::first_process::Entry;
use super::root_setup::{etc_stub, prepare};
use fair::{Balance, Load};
use ids::HostIds;
use in_flight::Floods;
use ready::{Interest, Listener, Ready, Token};
use spares::Spares;
use workers::Worker;
use zygote_handle::Zygote;

use crate::cgroup::{Group, Groups};
use crate::kernel_files::write_once;
use crate::own_limits::oom;
use crate::own_limits::open_files::OpenFiles;
use crate::paths;
use crate::plan::Shows;
use crate::spec::Request;
use crate::watchdog;
use crate::wire::{
    FromLauncher, Killer, StepError, ToLauncher, Usage, hung_up, is_gone, pair, pause, readable, receive,
    receive_what_fits, send, send_patiently, send_through_floods, too_many_in_flight,
};

/// The maximum time between two rounds of checks while sandboxes live.
const MAX_CHECK_INTERVAL: Duration = watchdog::MAX_CHECK_INTERVAL;
/// A check of a sandbox with hard limits may run early by this much, so that checks coincide.
const CHECK_TOLERANCE: Duration = Duration::from_millis(10);
/// The pause between retries, such as the removal of a cgroup whose last process is still exiting.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The launcher makes a spare in advance only after this long without events, so as not to delay a sandbox in creation.
const QUIET_TIME: Duration = Duration::from_millis(4);
/// With constant events, it makes a spare after this long.
const MAX_SPARE_DELAY: Duration = Duration::from_millis(30);
/// The time that the server needs to answer its client once it knows that sandboxes can be made.
const SERVER_HEAD_START: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};
/// The maximum time for a sandbox to lock itself.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time that an ended sandbox's cgroup may stay busy.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The same when the launcher ends, since no process can remove the cgroup later. Processes with many kernel objects
/// (millions of watches) exit slowly.
const FINAL_REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);
/// A sandbox that is in creation, is running, or has ended and is not yet cleaned up.
struct Jail {
    state: State,
    /// Its spare. Without namespaces it stays as the sandbox's subreaper.
    spare: u32,
    /// Without namespaces: its private folder.
    folder: Option<String>,
    disk_full: bool,
    /// Set if a process outside killed it.
    killed: Option<Killer>,
    group: Option<Group>,
    host_id: u32,
    request: Request,
    asked: bool,
    watch_record: watchdog::WatchRecord,
    /// Its share of the processors.
    load: Load,
    /// The namespaces for attached folders and for a worker. None before its first process is cloned.
    namespaces: Option<Namespaces>,
    /// The near ends of its direct pipes, until they are sent to the server.
    direct_pipes: Vec<OwnedFd>,
    /// The entry socket to its first process, which reports on a worker.
    entry_socket: Option<OwnedFd>,
    worker: Option<Worker>,
    /// True if a zygote was asked for a worker. The zygote may die before it reports the worker.
    worker_requested: bool,
    /// The zygote to ask for a worker as soon as the sandbox can be entered.
    entering_zygote: Option<u64>,
}

enum State {
    Starting {
        /// None if the process is the first process.
        spare: Option<OwnedFd>,
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

struct Supervisor {
    socket: OwnedFd,
    entry: Entry,
    prepared: Prepared,
    spares: Spares,
    jails: BTreeMap<u64, Jail>,
    /// The sandboxes that were in creation or had ended at the last check. With thousands of sandboxes, a search among
    /// all took each creation longer than its work.
    unsettled: BTreeSet<u64>,
    zygotes: BTreeMap<u64, Zygote>,
    listener: Listener,
    /// True if a descriptor could not be added to epoll (a user has a limit for this). It is then polled.
    must_poll: bool,
    /// True if there may be unknown children.
    strays: bool,
    /// The reason why no sandbox can be made, found after the start.
    broken: Option<StepError>,
    /// The maximum number of open files of this process.
    max_files: u64,
    balance: Balance,
    alarm: watchdog::Alarm,
    floods: Floods,
    /// The time of the last event.
    last_event: Instant,
    /// The last time with enough spares, or with a spare made in advance.
    last_full: Instant,
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
    let max_files = OpenFiles::raise().most();
    let _ = rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1));
    let mut buffer = Vec::new();
    let template = match receive(socket.as_fd(), &mut buffer) {
        Ok(Some((ToLauncher::Configure(template), _))) => template,
        _ => return 0,
    };
    let prepared = match prepare(template) {
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
    let mut supervisor = Supervisor {
        ids,
        socket,
        listener,
        must_poll: false,
        entry,
        prepared,
        spares: Spares::default(),
        jails: BTreeMap::new(),
        unsettled: BTreeSet::new(),
        zygotes: BTreeMap::new(),
        strays: false,
        broken: None,
        max_files,
        balance: Balance::new(),
        alarm: watchdog::Alarm::default(),
        floods: Floods::default(),
        last_event: Instant::now(),
        last_full: Instant::now(),
        due: None,
        next_number: 0,
        buffer,
    };
    if supervisor
        .send_to_server(&FromLauncher::Configured(supervisor.prepared.report.clone()))
        .is_ok()
    {
        supervisor.wait_for_first_request();
        supervisor.complete_setup();
        supervisor.serve();
    }
    supervisor.kill_all();
    0
}

impl Supervisor {
    /// Sends a message to the server. An error means that the server is gone. A message that fails for another reason
    /// is lost, and only a caller that waits for it notices.
    fn send_to_server(&self, message: &FromLauncher) -> io::Result<()> {
        match send_patiently(self.socket.as_fd(), message, &[]) {
            Err(error) if is_gone(&error) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Waits for the first request, or until the server had time to answer its client: the server may be queued behind
    /// this process on the same processor.
    fn wait_for_first_request(&self) {
        let _ = poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            Some(&SERVER_HEAD_START),
        );
    }

    /// Does the work of some milliseconds that only the first sandbox needs. The server can answer its client
    /// meanwhile.
    fn complete_setup(&mut self) {
        if self.prepared.private_folders.is_none()
            && let Err(error) = etc_stub::copy(&self.prepared, &mut || self.send_to_server(&FromLauncher::Pong {}))
        {
            self.broken = Some(StepError::new("copy configuration", Some("private_root"), &error));
        }
        if self.prepared.private_folders.is_none()
            && let Err(error) = self.bound_shared_counts()
        {
            self.broken = Some(StepError::new("bound shared counts", Some("user_namespace"), &error));
        }
        if self.prepared.template.enterable {
            match shared_userns::make(&self.prepared, self.ids.first()) {
                Ok(shared_userns) => self.prepared.shared_userns = Some(shared_userns),
                // Nobody can enter then. The first request for a zygote is refused.
                Err(_) => self.prepared.template.enterable = false,
            }
        }
        self.start_fork_server();
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
            if ready.fork_server {
                if !self.handle_fork_server() {
                    return;
                }
                self.listen_to_fork_server();
            }
            for id in ready.workers {
                self.handle_worker(id);
                self.listen(id);
            }
            for number in ready.zygotes {
                self.handle_zygote(number);
                self.listen_to_zygote(number);
            }
            for number in ready.ended_zygotes {
                self.zygote_ended(number);
            }
            for id in ready.jails {
                self.handle_sandbox(id);
                self.listen(id);
            }
            if self.must_poll {
                self.poll_all();
            }
            self.check_alarm();
            if self.strays || self.must_poll || self.due.is_none_or(|due| due <= Instant::now()) {
                self.check_all();
            }
            self.check_fork_server();
            // Requests that waited for free descriptors.
            if !self.serve_requests() || !self.refill(ready.idle) {
                return;
            }
        }
    }

    /// Makes a spare in advance after a quiet period, or if none could be made for a long time. Returns false if the
    /// server is gone.
    fn refill(&mut self, idle: bool) -> bool {
        let now = Instant::now();
        if !idle {
            self.last_event = now;
        }
        if self.spares.len() >= self.prepared.template.spares {
            self.last_full = now;
        } else if (now - self.last_event >= QUIET_TIME || now - self.last_full >= MAX_SPARE_DELAY)
            && self.spares.remaining_pause(now).is_zero()
        {
            self.last_full = now;
            // Leave descriptors for requested sandboxes.
            if self.free_slots() < 2 || self.make_spare().is_err() {
                self.spares.record_failure();
            }
            // Serves requests that waited for a fork server that turns out to be gone.
            return self.serve_requests();
        }
        true
    }

    /// Registers the descriptors of this sandbox for wake-ups.
    fn listen(&mut self, id: u64) {
        if let Some(jail) = self.jails.get(&id) {
            for (token, fd, interest) in jail.wake_descriptors(id) {
                self.must_poll |= self.listener.listen(token, fd, interest).is_err();
            }
        }
    }

    /// Registers the descriptors of a zygote.
    fn listen_to_zygote(&mut self, number: u64) {
        if let Some(zygote) = self.zygotes.get(&number) {
            for (token, fd) in [
                (Token::Zygote(number), &zygote.socket),
                (Token::ZygoteEnd(number), &zygote.pidfd),
            ] {
                self.must_poll |= self.listener.listen(token, fd, Interest::Messages).is_err();
            }
        }
    }

    /// Polls all descriptors, and tries to register them again.
    fn poll_all(&mut self) {
        self.must_poll = false;
        if self
            .spares
            .fork_server
            .as_ref()
            .is_some_and(|fork_server| readable(&fork_server.socket))
        {
            self.handle_fork_server();
        }
        self.listen_to_fork_server();
        for number in self.zygotes.keys().copied().collect::<Vec<_>>() {
            let Some(zygote) = self.zygotes.get(&number) else {
                continue;
            };
            match (readable(&zygote.socket), readable(&zygote.pidfd)) {
                (_, true) => self.zygote_ended(number),
                (true, false) => self.handle_zygote(number),
                (false, false) => {}
            }
            self.listen_to_zygote(number);
        }
        for id in self.jails.keys().copied().collect::<Vec<_>>() {
            let Some(jail) = self.jails.get(&id) else { continue };
            if jail.worker_end().is_some_and(readable) {
                self.handle_worker(id);
            }
            let own = |(token, fd, _): (Token, &OwnedFd, Interest)| token == Token::Jail(id) && readable(fd);
            if self
                .jails
                .get(&id)
                .is_some_and(|jail| jail.wake_descriptors(id).any(own))
            {
                self.handle_sandbox(id);
            }
            self.listen(id);
        }
    }

    /// Checks every sandbox at once if the machine has lost much memory.
    fn check_alarm(&mut self) {
        if self.watches_alarm() && self.alarm.is_raised() {
            self.due = None;
            for jail in self.jails.values_mut() {
                jail.watch_record.due = None;
            }
        }
    }

    /// Returns true if there are sandboxes that are rarely checked.
    fn watches_alarm(&self) -> bool {
        self.prepared.groups.is_some() && !self.jails.is_empty()
    }

    fn wait(&self) -> io::Result<Ready> {
        let is_idle = self.jails.is_empty() && self.prepared.leftovers.is_empty() && !self.spares.are_ordered();
        let due = || self.due.map(|due| due.saturating_duration_since(Instant::now()));
        let most = if self.watches_alarm() {
            watchdog::ALARM_INTERVAL
        } else {
            MAX_CHECK_INTERVAL
        };
        let next = (!is_idle).then(|| due().unwrap_or_default().min(most));
        let timeout = if self.strays || self.must_poll {
            Some(RETRY_INTERVAL)
        } else if self.spares.len() < self.prepared.template.spares {
            let soon = QUIET_TIME.max(self.spares.remaining_pause(Instant::now()));
            Some(next.unwrap_or(soon).min(soon))
        } else {
            next
        };
        // No other event wakes this process when the next fork server is due.
        let restart = self
            .spares
            .restart
            .time_left(Instant::now())
            .map(|rest| rest.min(MAX_CHECK_INTERVAL));
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
                self.send_to_server(&FromLauncher::Usage { id, usage }).is_ok()
            }
            Ok(Some((ToLauncher::Attach { id, number, folder }, _))) => {
                let error = self.attach(id, number, &folder).err();
                self.send_to_server(&FromLauncher::Attached { id, number, error })
                    .is_ok()
            }
            Ok(Some((ToLauncher::StartZygote { zygote, argv, folders }, descriptors))) => {
                self.start_zygote(zygote, &argv, &folders, descriptors)
            }
            Ok(Some((ToLauncher::StopZygote { zygote }, _))) => {
                if let Some(zygote) = self.zygotes.get(&zygote) {
                    zygote.kill();
                }
                true
            }
            Ok(Some((ToLauncher::Enter { id, zygote }, files))) => self.request_entry(id, zygote, files),
            Ok(Some((ToLauncher::TakeDescriptor { id, process, number }, _))) => {
                self.take_descriptor(id, process, number)
            }
            Ok(Some((ToLauncher::AssignOwner { id, caller }, _))) => {
                self.assign_owner(id, caller);
                true
            }
            Ok(Some((ToLauncher::SetPriority { id, low }, _))) => {
                self.set_low_priority(id, low);
                true
            }
            Ok(Some((ToLauncher::Ping {}, _))) => self.send_to_server(&FromLauncher::Pong {}).is_ok(),
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

    /// Returns the host id of the next sandbox's user. As root no other sandbox has it; otherwise it is the server's
    /// user.
    fn next_host_id(&mut self) -> io::Result<u32> {
        if !self.prepared.host.root {
            return Ok(self.prepared.ids.0);
        }
        let (jails, spares, zygotes) = (&self.jails, &self.spares, &self.zygotes);
        self.ids.next(|id| {
            jails.values().any(|jail| jail.host_id == id)
                || spares.host_ids().any(|other| other == id)
                || zygotes.values().any(|zygote| zygote.host_id == id)
        })
    }

    /// Handles an event of this sandbox.
    fn handle_sandbox(&mut self, id: u64) {
        let Some(jail) = self.jails.get_mut(&id) else { return };
        match &jail.state {
            State::Running { guarded, .. } => {
                let status = jail.state.ended();
                if let Some(guarded) = guarded
                    && !jail.disk_full
                    && readable(&guarded.socket)
                {
                    let message = receive::<FromSpare>(guarded.socket.as_fd(), &mut self.buffer);
                    jail.disk_full = matches!(message, Ok(Some((FromSpare::Full, _))));
                }
                if matches!(status, Ok(None)) {
                    // The first process is ending, or it has closed its entry socket.
                    self.must_poll |= jail.entry_socket.as_ref().is_some_and(hung_up) && !jail.close_entry_socket();
                    if jail.disk_full {
                        let _ = self.send_to_server(&FromLauncher::Full { id });
                    }
                    return;
                }
                if let Some(group) = &jail.group {
                    jail.watch_record.last_check_of_group(group);
                }
                jail.record_killer(status.ok().flatten().and_then(|status| status.terminating_signal()));
                jail.state = State::Ended {
                    since: Instant::now(),
                    error: None,
                };
                self.unsettled.insert(id);
                // Release the namespaces, so that the kernel frees its files and their charge.
                jail.namespaces = None;
                jail.entry_socket = None;
                self.due = None;
            }
            State::Starting { .. } => {
                let group_id = if self.prepared.host.root {
                    jail.host_id
                } else {
                    self.prepared.ids.1
                };
                let unmapped = self.prepared.private_folders.is_some()
                    || faults::skipped(&self.prepared.template, "user_namespace");
                // With a shared namespace, the spare maps the ids.
                let enterable = self.prepared.shared_userns.is_some();
                let mapping = if unmapped || enterable { None } else { Some(group_id) };
                let mut buffer = std::mem::take(&mut self.buffer);
                let now = jail.advance(&mut buffer, mapping, enterable);
                self.buffer = buffer;
                let ended = matches!(jail.state, State::Ended { .. });
                // Its first process may be unknown.
                self.strays |= ended && self.prepared.private_folders.is_none();
                if ended {
                    self.due = None;
                } else if now {
                    let due = jail.due(Instant::now());
                    self.due = self.due.zip(due).map(|(next, due)| next.min(due));
                }
                if now {
                    let folder = jail.folder.clone();
                    let direct_pipes = std::mem::take(&mut jail.direct_pipes);
                    let ends: Vec<_> = direct_pipes.iter().map(AsFd::as_fd).collect();
                    let made = FromLauncher::Made { id, folder };
                    // A sandbox also works without direct pipes, more slowly.
                    if send_patiently(self.socket.as_fd(), &made, &ends).is_err() {
                        let _ = self.send_to_server(&made);
                    }
                }
                self.advance_entry(id);
            }
            State::Ended { .. } => {}
        }
    }

    fn kill(&mut self, id: u64) -> bool {
        self.spares.forget(id);
        let Some(jail) = self.jails.get_mut(&id) else {
            return self
                .send_to_server(&FromLauncher::Gone {
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
    fn check_all(&mut self) {
        let now = Instant::now();
        let keeps_counters = self.has_many_descriptors();
        for jail in self.jails.values_mut() {
            let early = if jail.group.is_some() {
                CHECK_TOLERANCE
            } else {
                Duration::ZERO
            };
            if jail.next_check(now).is_some_and(|due| due <= now + early) {
                jail.check_memory(keeps_counters);
            }
        }
        self.balance(now);
        self.check_for_floods(now);
        self.check_workers();
        self.remove_leftovers();
        let alone = self.prepared.private_folders.is_none() || !orphans::kill_walk(&|child| self.is_known(child));
        let mut finished = Vec::new();
        let settled = |jail: &Jail| matches!(jail.state, State::Running { .. });
        self.unsettled
            .retain(|id| self.jails.get(id).is_some_and(|jail| !settled(jail)));
        for id in &self.unsettled {
            let Some(jail) = self.jails.get_mut(id) else { continue };
            self.strays |= jail.fail_without_spare();
            if let State::Starting { since, .. } = &jail.state
                && since.elapsed() > SETUP_TIMEOUT
            {
                jail.kill();
            }
            if let State::Ended { since, error } = &mut jail.state {
                let removed = alone && jail.group.as_ref().is_none_or(|group| group.remove().is_ok());
                if removed || since.elapsed() > REMOVAL_TIMEOUT {
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
                tree_walk::remove(path);
            }
            let message = match error {
                Some(error) => FromLauncher::Failed { id, error },
                None => FromLauncher::Gone {
                    id,
                    out_of_memory: jail.watch_record.events > 0 && !jail.asked,
                    disk_full: jail.disk_full,
                    asked: jail.asked,
                    killed: jail.killed,
                },
            };
            let _ = self.send_to_server(&message);
        }
        let now = Instant::now();
        let next = self.jails.values().filter_map(|jail| jail.due(now)).min();
        self.due = Some(next.unwrap_or(now + MAX_CHECK_INTERVAL).min(now + MAX_CHECK_INTERVAL));
    }

    /// Removes groups that were busy at their removal, of this server and of earlier ones.
    fn remove_leftovers(&mut self) {
        self.prepared
            .leftovers
            .retain(|folder| matches!(rustix::fs::rmdir(folder.as_str()), Err(rustix::io::Errno::BUSY)));
    }

    /// Returns true if a child of this process is known. Without namespaces, all other children are orphans of a
    /// sandbox whose subreaper is dead.
    fn is_known(&self, child: Pid) -> bool {
        let is = |pid: u32| i32::try_from(pid).is_ok_and(|pid| pid == child.as_raw_nonzero().get());
        let guards = |jail: &Jail| is(jail.spare) && !matches!(jail.state, State::Ended { .. });
        self.spares.pids().any(is) || self.jails.values().any(guards)
    }

    /// Ends everything after the server is gone.
    fn kill_all(&mut self) {
        for jail in self.jails.values_mut() {
            jail.kill();
        }
        self.discard_spares();
        for zygote in self.zygotes.values() {
            zygote.kill();
            let _ = waitid(WaitId::PidFd(zygote.pidfd.as_fd()), WaitIdOptions::EXITED);
        }
        self.zygotes.clear();
        if self.prepared.private_folders.is_some() {
            // Orphans of dead subreapers are children of this process now. They would keep their cgroup busy.
            orphans::kill_descendants(|child| self.is_known(child));
        }
        let since = Instant::now();
        while !(self.jails.is_empty() && self.prepared.leftovers.is_empty()) && since.elapsed() < FINAL_REMOVAL_TIMEOUT
        {
            if self.prepared.private_folders.is_some() {
                orphans::kill_walk(&|child| self.is_known(child));
            }
            if self.prepared.shared_userns.is_some() {
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
            let patient = since.elapsed() > REMOVAL_TIMEOUT;
            let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: if patient { 50_000_000 } else { 1_000_000 },
            });
        }
        // Removed after the groups: without its claim, a group counts as a dead launcher's.
        if let Some(instance) = self.prepared.instance.take() {
            instance.remove();
        }
        if let Some(private_folders) = &self.prepared.private_folders {
            orphans::kill_descendants(|_| false);
            private_folders.remove();
        }
    }
}
