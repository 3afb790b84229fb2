//! The part of the event loop that makes spares and assigns each to a requested sandbox.

use std::path::Component;

use super::fork_server_handle::ForkServer;
use super::restart::Restart;
use super::*;
use crate::launcher::base::devices;
use crate::launcher::base::fork::SIGCHLD;
use crate::launcher::base::messages::{FromForkServer, ToSpare};
use crate::launcher::spare;
use crate::own_limits::oom;
use crate::spec::Site;
use crate::steps::single_copy_of;
use crate::sys::clone::{Forked, fork};

/// The maximum number of open requests to the fork server: requests and answers must fit into the socket.
const MAX_OPEN_ORDERS: usize = 16;
/// The maximum time for the fork server to make one process.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a stopped fork server.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before the next spare after a failure. It doubles with each failure.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The maximum of that pause.
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(800);
/// The timeout of a sandbox whose descriptors the kernel refuses to pass (ETOOMANYREFS).
const FLOOD_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of dead spares that a sandbox may meet before it is refused.
const MAX_LOST_SPARES: u32 = 8;

/// A spare that waits to become a sandbox, or a first process that waits for its specification.
pub(super) struct Spare {
    pub(super) pid: u32,
    pub(super) socket: OwnedFd,
    pub(super) pidfd: OwnedFd,
    pub(super) group: Option<Group>,
    pub(super) host_id: u32,
    /// True if it is already the first process. Its namespaces follow in a message.
    pub(super) is_first: bool,
    /// The request that it prepares for. None: any request.
    pub(super) ahead: Option<Request>,
}

/// A process that the fork server was asked for.
struct Order {
    /// The socket to the process.
    socket: OwnedFd,
    group: Option<Group>,
    host_id: u32,
    is_first: bool,
    ahead: Option<Request>,
    since: Instant,
}

/// A requested sandbox that waits for a spare.
pub(super) struct SandboxRequest {
    id: u64,
    message: ToSpare,
    request: Request,
    descriptors: Vec<OwnedFd>,
    /// The zygote whose worker enters it during its creation.
    entered_by: Option<u64>,
    /// Its share of the processors.
    load: Load,
    /// The number of dead spares it has met.
    lost: u32,
    since: Instant,
}

/// The spares, and the requests that wait for one.
#[derive(Default)]
pub(super) struct Spares {
    waiting: VecDeque<Spare>,
    orders: VecDeque<Order>,
    requests: VecDeque<SandboxRequest>,
    /// The fork server. None if the launcher forks by itself, or between two fork servers.
    pub(super) fork_server: Option<ForkServer>,
    pub(super) restart: Restart,
    /// The time before which no spare is made in advance, and the last pause.
    failure_pause: Option<(Instant, Duration)>,
    /// The last request, if it shows the system's files, and true if the request before was the same.
    last: Option<(Request, bool)>,
}

impl Spare {
    /// Returns the reason that it sent for its end, if any.
    fn end_reason(&self, buffer: &mut Vec<u8>) -> Option<StepError> {
        while readable(&self.socket) {
            match receive::<FromSpare>(self.socket.as_fd(), buffer) {
                Ok(Some((FromSpare::Failed(error), _))) => return Some(error),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
        None
    }

    /// Kills it. Returns its group, which is then empty.
    fn end(self) -> Option<Group> {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        self.group
    }
}

impl SandboxRequest {
    /// Returns true if a process that prepares for `ahead` can become this sandbox. Preparation is only for the
    /// system's files.
    fn suits(&self, ahead: Option<Request>) -> bool {
        if faults::needs_own(&self.request) {
            return ahead == Some(self.request);
        }
        ahead.is_none_or(
            |ahead| matches!(self.message, ToSpare::Make(sandbox_request, Shows::System) if sandbox_request == ahead),
        )
    }
}

impl Spares {
    /// Returns the expected next request.
    fn expected_request(&self) -> Option<Request> {
        self.last.and_then(|(request, again)| again.then_some(request))
    }

    /// Records a request.
    fn record_request(&mut self, sandbox_request: Option<Request>) {
        self.last = sandbox_request.map(|request| (request, self.last.is_some_and(|(last, _)| last == request)));
    }

    /// Takes the first request with a suitable spare, and that spare.
    fn pair(&mut self) -> Option<(Spare, SandboxRequest)> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut pairs = self
            .requests
            .iter()
            .enumerate()
            .filter_map(|(of_wanted, sandbox_request)| {
                let found = self
                    .waiting
                    .iter()
                    .position(|spare| sandbox_request.suits(spare.ahead))?;
                Some((found, of_wanted))
            });
        let (found, of_wanted) = pairs.next()?;
        self.waiting.remove(found).zip(self.requests.remove(of_wanted))
    }

    /// Returns the number of further processes to make for the requests, none of which suits a spare that waits.
    fn missing(&self) -> usize {
        let suits = |order: &&Order| {
            self.requests
                .iter()
                .any(|sandbox_request| sandbox_request.suits(order.ahead))
        };
        let coming = self.orders.iter().filter(suits).count();
        let missing = self.requests.len().saturating_sub(coming);
        missing.min(MAX_OPEN_ORDERS.saturating_sub(self.orders.len()))
    }

    /// Returns true if there is, or will be, a process for the first request.
    fn first_is_served(&self) -> bool {
        let ahead = self.orders.iter().map(|order| order.ahead);
        let mut ahead = ahead.chain(self.waiting.iter().map(|spare| spare.ahead));
        self.requests
            .front()
            .is_none_or(|first| ahead.any(|ahead| first.suits(ahead)))
    }

    /// Returns true if the first request may still wait.
    fn first_may_wait(&self) -> bool {
        let first = self.requests.front();
        first.is_some_and(|first| first.since.elapsed() < FLOOD_TIMEOUT)
    }

    /// Returns the remaining pause after a failure.
    pub(super) fn remaining_pause(&self, now: Instant) -> Duration {
        self.failure_pause
            .map_or(Duration::ZERO, |(until, _)| until.saturating_duration_since(now))
    }

    /// Records a failure.
    pub(super) fn record_failure(&mut self) {
        let pause = self
            .failure_pause
            .map_or(FIRST_RETRY_PAUSE, |(_, last)| (last * 2).min(MAX_RETRY_PAUSE));
        self.failure_pause = Some((Instant::now() + pause, pause));
    }

    /// Returns true if requests to the fork server are open.
    pub(super) fn are_ordered(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Returns the number of spares, including requested ones.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.orders.len()
    }

    /// Returns the process ids of the spares and of the fork server.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        let fork_server = self.fork_server.iter().map(|fork_server| fork_server.pid);
        fork_server.chain(self.waiting.iter().map(|spare| spare.pid))
    }

    /// Returns the host ids of the spares, including requested ones.
    pub(super) fn host_ids(&self) -> impl Iterator<Item = u32> {
        let ordered = self.orders.iter().map(|order| order.host_id);
        ordered.chain(self.waiting.iter().map(|spare| spare.host_id))
    }

    /// Removes the request of a sandbox that is no longer wanted.
    pub(super) fn forget(&mut self, id: u64) {
        self.requests.retain(|sandbox_request| sandbox_request.id != id);
    }

    /// Returns the load record of a requested sandbox.
    pub(super) fn load_mut(&mut self, id: u64) -> Option<&mut Load> {
        let found = self
            .requests
            .iter_mut()
            .find(|sandbox_request| sandbox_request.id == id);
        found.map(|sandbox_request| &mut sandbox_request.load)
    }
}

impl Supervisor {
    /// Starts the fork server, if sandboxes have namespaces.
    pub(super) fn start_fork_server(&mut self) {
        if self.prepared.private_folders.is_some() {
            return;
        }
        self.spares.fork_server = ForkServer::start(&mut self.prepared, self.entry).ok();
        if self.spares.fork_server.is_some() {
            self.spares.restart.record_start(Instant::now());
        } else {
            self.spares.restart.record_end(Instant::now());
        }
        self.listen_to_fork_server();
    }

    pub(super) fn listen_to_fork_server(&mut self) {
        if let Some(fork_server) = &self.spares.fork_server {
            self.must_poll |= self
                .listener
                .listen(Token::ForkServer, &fork_server.socket, Interest::Messages)
                .is_err();
        }
    }

    /// Handles a request for a sandbox. Returns false if the server is gone.
    pub(super) fn make(
        &mut self,
        id: u64,
        request: Request,
        image: Option<&Path>,
        entered_by: Option<u64>,
        mut descriptors: Vec<OwnedFd>,
    ) -> bool {
        let complete = descriptors.len() == 2;
        let refused = match (self.broken.clone(), faults::at(Some(&request), Site::Request)) {
            (None, Err(error)) => Some(StepError::new("take the request", None, &error)),
            (None, Ok(())) if !complete || !self.can_queue() => Some(self.no_descriptors()),
            (broken, _) => broken,
        };
        if let Some(error) = refused {
            return self.send_to_server(&FromLauncher::Failed { id, error }).is_ok();
        }
        let shows = match image.map(|image| self.open_image(image)).transpose() {
            Ok(None) => Shows::System,
            Ok(Some(tree)) => {
                descriptors.push(tree);
                Shows::Image
            }
            Err(error) => return self.send_to_server(&FromLauncher::Failed { id, error }).is_ok(),
        };
        self.spares.record_request((shows == Shows::System).then_some(request));
        self.spares.requests.push_back(SandboxRequest {
            id,
            message: ToSpare::Make(request, shows),
            request,
            descriptors,
            entered_by,
            load: Load::default(),
            lost: 0,
            since: Instant::now(),
        });
        self.serve_requests()
    }

    fn open_image(&self, image: &Path) -> Result<OwnedFd, StepError> {
        if self.prepared.private_folders.is_some() {
            return Err(StepError::new(
                "show an image (the process level has no root of its own)",
                Some("mount_namespace"),
                &io::ErrorKind::Unsupported.into(),
            ));
        }
        tree_of_image(image).map_err(|error| StepError::new("show the image", Some("private_root"), &error))
    }

    /// Assigns spares to the requests, and asks for missing ones. Returns false if the server is gone.
    pub(super) fn serve_requests(&mut self) -> bool {
        while !self.spares.requests.is_empty() {
            if self.can_begin()
                && let Some((spare, sandbox_request)) = self.spares.pair()
            {
                let id = sandbox_request.id;
                match self.begin(spare, sandbox_request) {
                    Ok(()) => self.listen(id),
                    Err(error) => {
                        if self.send_to_server(&FromLauncher::Failed { id, error }).is_err() {
                            return false;
                        }
                    }
                }
                continue;
            }
            let free_slots = self.free_slots();
            if free_slots == 0 {
                if self.slots_may_free() || self.spares.are_ordered() {
                    return true;
                }
                if !self.spares.waiting.is_empty() {
                    self.kill_spares();
                } else if !self.fail_oldest_request(self.no_descriptors()) {
                    return false;
                }
                continue;
            }
            let mut failed = None;
            for _ in 0..self
                .spares
                .missing()
                .min(usize::try_from(free_slots).unwrap_or(usize::MAX))
            {
                failed = self.make_spare().err();
                if failed.is_some() {
                    break;
                }
                self.kill_excess_spare();
            }
            if let Some(error) = failed
                && !self.spares.first_is_served()
            {
                if too_many_in_flight(&error) && self.spares.first_may_wait() {
                    self.kill_floods();
                    return true;
                }
                if !self.fail_oldest_request(StepError::new("start a process", None, &error)) {
                    return false;
                }
            } else if !self.spares.orders.is_empty() {
                return true;
            }
            // Without a fork server the new spares exist already.
        }
        true
    }

    /// Kills all spares, to free their descriptors.
    fn kill_spares(&mut self) {
        for spare in std::mem::take(&mut self.spares.waiting) {
            let group = spare.end();
            self.give_up(group);
        }
        self.spares.record_failure();
    }

    /// Kills one spare that suits no request if there are too many, since a new one was just made.
    fn kill_excess_spare(&mut self) {
        let spares = &mut self.spares;
        let unwanted = |spare: &Spare| {
            !spares
                .requests
                .iter()
                .any(|sandbox_request| sandbox_request.suits(spare.ahead))
        };
        let found = spares.waiting.iter().position(unwanted);
        let too_many = spares.len() > self.prepared.template.spares;
        let Some(spare) = found
            .filter(|_| too_many)
            .and_then(|found| spares.waiting.remove(found))
        else {
            return;
        };
        let _ = pidfd_send_signal(&spare.pidfd, Signal::KILL);
        self.strays = true;
        self.give_up(spare.group);
    }

    /// Fails the oldest request.
    fn fail_oldest_request(&mut self, error: StepError) -> bool {
        let Some(sandbox_request) = self.spares.requests.pop_front() else {
            return true;
        };
        self.send_to_server(&FromLauncher::Failed {
            id: sandbox_request.id,
            error,
        })
        .is_ok()
    }

    /// Tells a spare which sandbox to become.
    fn begin(&mut self, mut spare: Spare, mut sandbox_request: SandboxRequest) -> Result<(), StepError> {
        let borrowed: Vec<_> = sandbox_request.descriptors.iter().map(AsFd::as_fd).collect();
        let limited = spare
            .group
            .as_mut()
            .map_or(Ok(()), |group| group.limit(&sandbox_request.request))
            .and_then(|()| faults::at(Some(&sandbox_request.request), Site::Limits));
        let mut sent = limited.and_then(|()| send(spare.socket.as_fd(), &sandbox_request.message, &borrowed));
        if sent.as_ref().is_err_and(too_many_in_flight) {
            self.kill_floods();
            sent = send_through_floods(spare.socket.as_fd(), &sandbox_request.message, &borrowed);
        }
        match sent {
            Ok(()) => {}
            // A spare was killed (by the kernel, for memory), or its preparation failed; take another.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let said = spare.end_reason(&mut self.buffer);
                let group = spare.end();
                self.give_up(group);
                drop(borrowed);
                sandbox_request.lost += 1;
                if sandbox_request.lost > MAX_LOST_SPARES {
                    return Err(said.unwrap_or_else(|| StepError::new("start a process", None, &error)));
                }
                self.spares.requests.push_front(sandbox_request);
                return Ok(());
            }
            Err(error) => {
                let group = spare.end();
                self.give_up(group);
                return Err(StepError::new("start a process", None, &error));
            }
        }
        let folder = self
            .prepared
            .private_folders
            .as_ref()
            .map(|private_folders| private_folders.folder_of(spare.pid));
        let (waits, first) = if spare.is_first {
            (None, Some((spare.pid, spare.pidfd)))
        } else {
            (Some(spare.pidfd), None)
        };
        let jail = Jail {
            state: State::Starting {
                spare: waits,
                socket: spare.socket,
                first,
                since: Instant::now(),
            },
            spare: spare.pid,
            folder,
            disk_full: false,
            killed: None,
            group: spare.group,
            host_id: spare.host_id,
            request: sandbox_request.request,
            asked: false,
            watch_record: watchdog::WatchRecord::default(),
            load: Load::default(),
            namespaces: None,
            direct_pipes: Vec::new(),
            entry_socket: None,
            worker: None,
            worker_requested: false,
            entering_zygote: sandbox_request.entered_by,
        };
        let (id, load) = (sandbox_request.id, sandbox_request.load);
        self.jails.insert(id, jail);
        self.unsettled.insert(id);
        if let Some(jail) = self.jails.get_mut(&id) {
            jail.begin_with(load);
        }
        Ok(())
    }

    /// Makes one more spare, or asks the fork server for it.
    pub(super) fn make_spare(&mut self) -> io::Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let host_id = self.next_host_id()?;
        // The first request, if a test injects a fault into its process.
        let faulty = self
            .spares
            .requests
            .front()
            .map(|sandbox_request| sandbox_request.request);
        let faulty = faulty.filter(faults::needs_own);
        let fails = |site| faults::at(faulty.as_ref(), site);
        fails(Site::Socket)?;
        let (socket, theirs) = pair()?;
        fails(Site::Group)?;
        let groups = self.prepared.groups.as_ref().zip(self.prepared.instance.as_ref());
        let group = groups
            .map(|(groups, instance)| groups.make(&instance.group(&number.to_string())))
            .transpose()?;
        let prepared = group.as_ref().map(Group::ways).transpose().and_then(|ways| {
            fails(Site::Ways)?;
            fails(Site::Devices)?;
            Ok((ways.unwrap_or_default(), self.first_process_devices()?))
        });
        let (ways, devices) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.give_up(group);
                return Err(error);
            }
        };
        if let Some(fork_server) = &self.spares.fork_server {
            // Preparation gains nothing if a request waits already.
            let ahead = self.spares.expected_request();
            let ahead = ahead.filter(|_| fork_server.of_first && self.spares.requests.is_empty());
            let ahead = faulty.or(ahead);
            let asked = fails(Site::Order)
                .and_then(|()| fork_server.request_process(&theirs, host_id, ahead, devices.as_ref(), &ways));
            match asked {
                Ok(()) => {
                    self.spares.orders.push_back(Order {
                        socket,
                        group,
                        host_id,
                        is_first: fork_server.of_first,
                        ahead,
                        since: Instant::now(),
                    });
                    return Ok(());
                }
                Err(error) if is_gone(&error) => self.close_fork_server(),
                Err(error) => {
                    self.give_up(group);
                    return Err(error);
                }
            }
        }
        let forked = fails(Site::Clone).and_then(|()| fork(0, SIGCHLD, ways.folder.as_ref().map(AsFd::as_fd)));
        match forked {
            Ok(Forked::Child) => {
                oom::prefer_as_victim(paths::host(), oom::FIRST_PROCESS_SCORE);
                spare::run(&self.prepared, theirs, &ways, host_id, self.entry)
            }
            Ok(Forked::Parent { pid, pidfd }) => {
                self.spares.waiting.push_back(Spare {
                    pid,
                    socket,
                    pidfd,
                    group,
                    host_id,
                    is_first: false,
                    ahead: faulty,
                });
                Ok(())
            }
            Err(error) => {
                self.give_up(group);
                Err(error)
            }
        }
    }

    /// Makes the device folder of a first process for the fork server. No process in the shared namespace can make one.
    fn first_process_devices(&self) -> io::Result<Option<OwnedFd>> {
        match &self.spares.fork_server {
            Some(fork_server) if fork_server.of_first => devices::own_devices(&self.prepared),
            _ => Ok(None),
        }
    }

    /// Closes a fork server that has not answered in time. Starts a new one if one is due.
    pub(super) fn check_fork_server(&mut self) {
        if self.spares.fork_server.is_none() && self.spares.restart.is_due(Instant::now()) {
            self.start_fork_server();
        }
        let Some(waits) = self.spares.orders.front().map(|order| order.since.elapsed()) else {
            return;
        };
        let stopped = || self.spares.fork_server.as_ref().is_some_and(ForkServer::is_stopped);
        if waits > FORK_TIMEOUT || (waits > STOPPED_TIMEOUT && stopped()) {
            self.close_fork_server();
            self.serve_requests();
        }
    }

    /// Handles a message of the fork server. Returns false if the server is gone.
    pub(super) fn handle_fork_server(&mut self) -> bool {
        let Some(fork_server) = &self.spares.fork_server else {
            return true;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = receive(fork_server.socket.as_fd(), &mut buffer);
        self.buffer = buffer;
        let (answer, mut descriptors) = match received {
            Ok(Some(received)) => received,
            // The new process finds its socket closed and exits.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                self.strays = true;
                (
                    FromForkServer::Failed(StepError::new("start a process", None, &error)),
                    Vec::new(),
                )
            }
            Ok(None) | Err(_) => {
                if let Some(signal) = fork_server.killed_by() {
                    self.report_helper_killed("the process that starts sandboxes' first processes", signal);
                }
                self.close_fork_server();
                return self.serve_requests();
            }
        };
        let Some(order) = self.spares.orders.pop_front() else {
            return true;
        };
        match (answer, descriptors.pop()) {
            (FromForkServer::Forked { pid }, Some(pidfd)) => {
                self.spares.failure_pause = None;
                self.spares.waiting.push_back(Spare {
                    pid,
                    socket: order.socket,
                    pidfd,
                    group: order.group,
                    host_id: order.host_id,
                    is_first: order.is_first,
                    ahead: order.ahead,
                });
                self.serve_requests()
            }
            (answer, _) => {
                // A process whose ids could not be mapped was killed.
                self.strays |= order.is_first;
                self.give_up(order.group);
                self.spares.record_failure();
                // No request fails if the process was a spare made in advance.
                let was_wanted = self
                    .spares
                    .requests
                    .front()
                    .is_some_and(|first| first.suits(order.ahead));
                if let FromForkServer::Failed(error) = answer
                    && was_wanted
                    && !self.fail_oldest_request(error)
                {
                    return false;
                }
                self.serve_requests()
            }
        }
    }

    /// Discards all spares, requests and groups, at the end.
    pub(super) fn discard_spares(&mut self) {
        self.spares.requests.clear();
        self.close_fork_server();
        self.kill_spares();
    }

    /// Closes the fork server. The launcher forks by itself until there is a new one.
    fn close_fork_server(&mut self) {
        if let Some(fork_server) = self.spares.fork_server.take() {
            fork_server.end();
            self.spares.restart.record_end(Instant::now());
        }
        // A process that was made but not reported finds its socket closed and exits.
        self.strays = true;
        for order in std::mem::take(&mut self.spares.orders) {
            self.give_up(order.group);
        }
    }

    /// Removes a group that has no process any more, or soon will have none.
    fn give_up(&mut self, group: Option<Group>) {
        if let Some(group) = group
            && group.remove().is_err()
        {
            self.prepared.leftovers.extend(group.folders());
        }
    }
}

/// Opens the tree of an image, a host folder, as a detached mount.
fn tree_of_image(folder: &Path) -> io::Result<OwnedFd> {
    let plain = folder.is_absolute() && !folder.components().any(|part| part == Component::ParentDir);
    if !plain {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    single_copy_of(format!("{}{}", paths::host(), folder.display()))
}
