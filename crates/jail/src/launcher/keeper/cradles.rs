//! The part of the event loop that makes spares and assigns each to a requested sandbox.

use super::restart::Restart;
use super::*;
use crate::launcher::nursery::{FromNursery, Nursery};
use crate::oom;
use crate::spec::Site;

/// The maximum number of open requests to the fork server: requests and answers must fit into the socket.
const ORDERS: usize = 16;
/// The maximum time for the fork server to make one process.
const BIRTH_DEADLINE: Duration = Duration::from_secs(5);
/// The same for a stopped fork server.
const STOPPED_DEADLINE: Duration = Duration::from_secs(1);
/// The pause before the next spare after a failure. It doubles with each failure.
const REST: Duration = Duration::from_millis(50);
/// The maximum of that pause.
const REST_MAX: Duration = Duration::from_millis(800);
/// The timeout of a sandbox whose descriptors the kernel refuses to pass (ETOOMANYREFS).
const FLOOD_DEADLINE: Duration = Duration::from_secs(2);
/// The number of dead spares that a sandbox may meet before it is refused.
const LOST_MAX: u32 = 8;

/// A spare that waits to become a sandbox, or a first process that waits for its specification.
pub(super) struct Cradle {
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
pub(super) struct Wanted {
    id: u64,
    message: ToCradle,
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
pub(super) struct Cradles {
    waiting: VecDeque<Cradle>,
    orders: VecDeque<Order>,
    wanted: VecDeque<Wanted>,
    /// The fork server. None if the launcher forks by itself, or between two fork servers.
    pub(super) nursery: Option<Nursery>,
    pub(super) restart: Restart,
    /// The time before which no spare is made in advance, and the last pause.
    rests: Option<(Instant, Duration)>,
    /// The last request, if it shows the system's files, and true if the request before was the same.
    last: Option<(Request, bool)>,
}

impl Cradle {
    /// Returns the reason that it sent for its end, if any.
    fn last_words(&self, buffer: &mut Vec<u8>) -> Option<StepError> {
        while readable(&self.socket) {
            match receive::<FromCradle>(self.socket.as_fd(), buffer) {
                Ok(Some((FromCradle::Failed(error), _))) => return Some(error),
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

impl Wanted {
    /// Returns true if a process that prepares for `ahead` can become this sandbox. Preparation is only for the
    /// system's files.
    fn suits(&self, ahead: Option<Request>) -> bool {
        if faults::needs_own(&self.request) {
            return ahead == Some(self.request);
        }
        ahead.is_none_or(|ahead| matches!(self.message, ToCradle::Make(wanted, Shows::System) if wanted == ahead))
    }
}

impl Cradles {
    /// Returns the expected next request.
    fn usual(&self) -> Option<Request> {
        self.last.and_then(|(request, again)| again.then_some(request))
    }

    /// Records a request.
    fn learn(&mut self, wanted: Option<Request>) {
        self.last = wanted.map(|request| (request, self.last.is_some_and(|(last, _)| last == request)));
    }

    /// Takes the first request with a suitable spare, and that spare.
    fn pair(&mut self) -> Option<(Cradle, Wanted)> {
        if self.waiting.is_empty() {
            return None;
        }
        let mut pairs = self.wanted.iter().enumerate().filter_map(|(of_wanted, wanted)| {
            let found = self.waiting.iter().position(|cradle| wanted.suits(cradle.ahead))?;
            Some((found, of_wanted))
        });
        let (found, of_wanted) = pairs.next()?;
        self.waiting.remove(found).zip(self.wanted.remove(of_wanted))
    }

    /// Returns the number of further processes to make for the requests, none of which suits a spare that waits.
    fn missing(&self) -> usize {
        let suits = |order: &&Order| self.wanted.iter().any(|wanted| wanted.suits(order.ahead));
        let coming = self.orders.iter().filter(suits).count();
        let missing = self.wanted.len().saturating_sub(coming);
        missing.min(ORDERS.saturating_sub(self.orders.len()))
    }

    /// Returns true if there is, or will be, a process for the first request.
    fn first_is_served(&self) -> bool {
        let ahead = self.orders.iter().map(|order| order.ahead);
        let mut ahead = ahead.chain(self.waiting.iter().map(|cradle| cradle.ahead));
        self.wanted
            .front()
            .is_none_or(|first| ahead.any(|ahead| first.suits(ahead)))
    }

    /// Returns true if the first request may still wait.
    fn first_may_wait(&self) -> bool {
        let first = self.wanted.front();
        first.is_some_and(|first| first.since.elapsed() < FLOOD_DEADLINE)
    }

    /// Returns the remaining pause after a failure.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        self.rests
            .map_or(Duration::ZERO, |(until, _)| until.saturating_duration_since(now))
    }

    /// Records a failure.
    pub(super) fn has_failed(&mut self) {
        let pause = self.rests.map_or(REST, |(_, last)| (last * 2).min(REST_MAX));
        self.rests = Some((Instant::now() + pause, pause));
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
        let nursery = self.nursery.iter().map(|nursery| nursery.pid);
        nursery.chain(self.waiting.iter().map(|cradle| cradle.pid))
    }

    /// Returns the host ids of the spares, including requested ones.
    pub(super) fn host_ids(&self) -> impl Iterator<Item = u32> {
        let ordered = self.orders.iter().map(|order| order.host_id);
        ordered.chain(self.waiting.iter().map(|cradle| cradle.host_id))
    }

    /// Removes the request of a sandbox that is no longer wanted.
    pub(super) fn forget(&mut self, id: u64) {
        self.wanted.retain(|wanted| wanted.id != id);
    }

    /// Returns the load record of a requested sandbox.
    pub(super) fn load_of(&mut self, id: u64) -> Option<&mut Load> {
        let found = self.wanted.iter_mut().find(|wanted| wanted.id == id);
        found.map(|wanted| &mut wanted.load)
    }
}

impl Keeper {
    /// Starts the fork server, if sandboxes have namespaces.
    pub(super) fn open_nursery(&mut self) {
        if self.prepared.bare.is_some() {
            return;
        }
        self.cradles.nursery = Nursery::start(&mut self.prepared, self.entry).ok();
        if self.cradles.nursery.is_some() {
            self.cradles.restart.began(Instant::now());
        } else {
            self.cradles.restart.ended(Instant::now());
        }
        self.listen_to_nursery();
    }

    pub(super) fn listen_to_nursery(&mut self) {
        if let Some(nursery) = &self.cradles.nursery {
            self.deaf |= self
                .listener
                .listen(Token::Nursery, &nursery.socket, Interest::Messages)
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
            (None, Ok(())) if !complete || !self.may_stand_in_line() => Some(self.no_room()),
            (broken, _) => broken,
        };
        if let Some(error) = refused {
            return self.tell(&FromLauncher::Failed { id, error }).is_ok();
        }
        let shows = match image.map(|image| self.open_image(image)).transpose() {
            Ok(None) => Shows::System,
            Ok(Some(tree)) => {
                descriptors.push(tree);
                Shows::Image
            }
            Err(error) => return self.tell(&FromLauncher::Failed { id, error }).is_ok(),
        };
        self.cradles.learn((shows == Shows::System).then_some(request));
        self.cradles.wanted.push_back(Wanted {
            id,
            message: ToCradle::Make(request, shows),
            request,
            descriptors,
            entered_by,
            load: Load::default(),
            lost: 0,
            since: Instant::now(),
        });
        self.serve_wanted()
    }

    fn open_image(&self, image: &Path) -> Result<OwnedFd, StepError> {
        if self.prepared.bare.is_some() {
            return Err(StepError::new(
                "show an image (the process level has no root of its own)",
                Some("mount_namespace"),
                &io::ErrorKind::Unsupported.into(),
            ));
        }
        host::tree_of_image(image).map_err(|error| StepError::new("show the image", Some("private_root"), &error))
    }

    /// Assigns spares to the requests, and asks for missing ones. Returns false if the server is gone.
    pub(super) fn serve_wanted(&mut self) -> bool {
        while !self.cradles.wanted.is_empty() {
            if self.may_begin()
                && let Some((cradle, wanted)) = self.cradles.pair()
            {
                let id = wanted.id;
                match self.begin(cradle, wanted) {
                    Ok(()) => self.listen(id),
                    Err(error) => {
                        if self.tell(&FromLauncher::Failed { id, error }).is_err() {
                            return false;
                        }
                    }
                }
                continue;
            }
            let room = self.room();
            if room == 0 {
                if self.room_may_come() || self.cradles.are_ordered() {
                    return true;
                }
                if !self.cradles.waiting.is_empty() {
                    self.end_waiting();
                } else if !self.fail_wanted(self.no_room()) {
                    return false;
                }
                continue;
            }
            let mut failed = None;
            for _ in 0..self.cradles.missing().min(usize::try_from(room).unwrap_or(usize::MAX)) {
                failed = self.add_cradle().err();
                if failed.is_some() {
                    break;
                }
                self.let_one_go();
            }
            if let Some(error) = failed
                && !self.cradles.first_is_served()
            {
                if too_many_in_flight(&error) && self.cradles.first_may_wait() {
                    self.end_floods();
                    return true;
                }
                if !self.fail_wanted(StepError::new("start a process", None, &error)) {
                    return false;
                }
            } else if !self.cradles.orders.is_empty() {
                return true;
            }
            // Without a fork server the new spares exist already.
        }
        true
    }

    /// Kills all spares, to free their descriptors.
    fn end_waiting(&mut self) {
        for cradle in std::mem::take(&mut self.cradles.waiting) {
            let group = cradle.end();
            self.give_up(group);
        }
        self.cradles.has_failed();
    }

    /// Kills one spare that suits no request if there are too many, since a new one was just made.
    fn let_one_go(&mut self) {
        let cradles = &mut self.cradles;
        let unwanted = |cradle: &Cradle| !cradles.wanted.iter().any(|wanted| wanted.suits(cradle.ahead));
        let found = cradles.waiting.iter().position(unwanted);
        let too_many = cradles.len() > self.prepared.template.spares;
        let Some(cradle) = found
            .filter(|_| too_many)
            .and_then(|found| cradles.waiting.remove(found))
        else {
            return;
        };
        let _ = pidfd_send_signal(&cradle.pidfd, Signal::KILL);
        self.strays = true;
        self.give_up(cradle.group);
    }

    /// Fails the oldest request.
    fn fail_wanted(&mut self, error: StepError) -> bool {
        let Some(wanted) = self.cradles.wanted.pop_front() else {
            return true;
        };
        self.tell(&FromLauncher::Failed { id: wanted.id, error }).is_ok()
    }

    /// Tells a spare which sandbox to become.
    fn begin(&mut self, mut cradle: Cradle, mut wanted: Wanted) -> Result<(), StepError> {
        let borrowed: Vec<_> = wanted.descriptors.iter().map(AsFd::as_fd).collect();
        let limited = cradle
            .group
            .as_mut()
            .map_or(Ok(()), |group| group.limit(&wanted.request))
            .and_then(|()| faults::at(Some(&wanted.request), Site::Limits));
        let mut sent = limited.and_then(|()| send(cradle.socket.as_fd(), &wanted.message, &borrowed));
        if sent.as_ref().is_err_and(too_many_in_flight) {
            self.end_floods();
            sent = send_through_floods(cradle.socket.as_fd(), &wanted.message, &borrowed);
        }
        match sent {
            Ok(()) => {}
            // A spare was killed (by the kernel, for memory), or its preparation failed; take another.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                let said = cradle.last_words(&mut self.buffer);
                let group = cradle.end();
                self.give_up(group);
                drop(borrowed);
                wanted.lost += 1;
                if wanted.lost > LOST_MAX {
                    return Err(said.unwrap_or_else(|| StepError::new("start a process", None, &error)));
                }
                self.cradles.wanted.push_front(wanted);
                return Ok(());
            }
            Err(error) => {
                let group = cradle.end();
                self.give_up(group);
                return Err(StepError::new("start a process", None, &error));
            }
        }
        let folder = self.prepared.bare.as_ref().map(|bare| bare.folder_of(cradle.pid));
        let (waits, first) = if cradle.is_first {
            (None, Some((cradle.pid, cradle.pidfd)))
        } else {
            (Some(cradle.pidfd), None)
        };
        let jail = Jail {
            state: State::Starting {
                cradle: waits,
                socket: cradle.socket,
                first,
                since: Instant::now(),
            },
            cradle: cradle.pid,
            folder,
            disk_full: false,
            killed: None,
            group: cradle.group,
            host_id: cradle.host_id,
            request: wanted.request,
            asked: false,
            watched: watch::Record::default(),
            load: Load::default(),
            namespaces: None,
            lane: Vec::new(),
            door: None,
            visitor: None,
            called: false,
            invited: wanted.entered_by,
        };
        let (id, load) = (wanted.id, wanted.load);
        self.jails.insert(id, jail);
        if let Some(jail) = self.jails.get_mut(&id) {
            jail.begin_with(load);
        }
        Ok(())
    }

    /// Makes one more spare, or asks the fork server for it.
    pub(super) fn add_cradle(&mut self) -> io::Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let host_id = self.next_host_id()?;
        // The first request, if a test injects a fault into its process.
        let faulty = self.cradles.wanted.front().map(|wanted| wanted.request);
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
            Ok((ways.unwrap_or_default(), self.devices_for_first()?))
        });
        let (ways, devices) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.give_up(group);
                return Err(error);
            }
        };
        if let Some(nursery) = &self.cradles.nursery {
            // Preparation gains nothing if a request waits already.
            let ahead = self.cradles.usual();
            let ahead = ahead.filter(|_| nursery.of_first && self.cradles.wanted.is_empty());
            let ahead = faulty.or(ahead);
            let asked = fails(Site::Order).and_then(|()| nursery.ask(&theirs, host_id, ahead, devices.as_ref(), &ways));
            match asked {
                Ok(()) => {
                    self.cradles.orders.push_back(Order {
                        socket,
                        group,
                        host_id,
                        is_first: nursery.of_first,
                        ahead,
                        since: Instant::now(),
                    });
                    return Ok(());
                }
                Err(error) if is_gone(&error) => self.close_nursery(),
                Err(error) => {
                    self.give_up(group);
                    return Err(error);
                }
            }
        }
        let forked = fails(Site::Clone).and_then(|()| fork(0, SIGCHLD, ways.folder.as_ref().map(AsFd::as_fd)));
        match forked {
            Ok(Forked::Child) => {
                oom::go_first(place::host(), oom::FIRST_PROCESS);
                cradle::live(&self.prepared, theirs, &ways, host_id, self.entry)
            }
            Ok(Forked::Parent { pid, pidfd }) => {
                self.cradles.waiting.push_back(Cradle {
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
    fn devices_for_first(&self) -> io::Result<Option<OwnedFd>> {
        match &self.cradles.nursery {
            Some(nursery) if nursery.of_first => host::own_devices(&self.prepared),
            _ => Ok(None),
        }
    }

    /// Closes a fork server that has not answered in time. Starts a new one if one is due.
    pub(super) fn look_after_nursery(&mut self) {
        if self.cradles.nursery.is_none() && self.cradles.restart.is_due(Instant::now()) {
            self.open_nursery();
        }
        let Some(waits) = self.cradles.orders.front().map(|order| order.since.elapsed()) else {
            return;
        };
        let stopped = || self.cradles.nursery.as_ref().is_some_and(Nursery::is_stopped);
        if waits > BIRTH_DEADLINE || (waits > STOPPED_DEADLINE && stopped()) {
            self.close_nursery();
            self.serve_wanted();
        }
    }

    /// Handles a message of the fork server. Returns false if the server is gone.
    pub(super) fn hear_nursery(&mut self) -> bool {
        let Some(nursery) = &self.cradles.nursery else {
            return true;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = receive(nursery.socket.as_fd(), &mut buffer);
        self.buffer = buffer;
        let (answer, mut descriptors) = match received {
            Ok(Some(received)) => received,
            // The new process finds its socket closed and exits.
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                self.strays = true;
                (
                    FromNursery::Failed(StepError::new("start a process", None, &error)),
                    Vec::new(),
                )
            }
            Ok(None) | Err(_) => {
                if let Some(signal) = nursery.killed_by() {
                    self.tell_killed("the process that starts sandboxes' first processes", signal);
                }
                self.close_nursery();
                return self.serve_wanted();
            }
        };
        let Some(order) = self.cradles.orders.pop_front() else {
            return true;
        };
        match (answer, descriptors.pop()) {
            (FromNursery::Born { pid }, Some(pidfd)) => {
                self.cradles.rests = None;
                self.cradles.waiting.push_back(Cradle {
                    pid,
                    socket: order.socket,
                    pidfd,
                    group: order.group,
                    host_id: order.host_id,
                    is_first: order.is_first,
                    ahead: order.ahead,
                });
                self.serve_wanted()
            }
            (answer, _) => {
                // A process whose ids could not be mapped was killed.
                self.strays |= order.is_first;
                self.give_up(order.group);
                self.cradles.has_failed();
                // No request fails if the process was a spare made in advance.
                let was_wanted = self
                    .cradles
                    .wanted
                    .front()
                    .is_some_and(|first| first.suits(order.ahead));
                if let FromNursery::Failed(error) = answer
                    && was_wanted
                    && !self.fail_wanted(error)
                {
                    return false;
                }
                self.serve_wanted()
            }
        }
    }

    /// Discards all spares, requests and groups, at the end.
    pub(super) fn discard_cradles(&mut self) {
        self.cradles.wanted.clear();
        self.close_nursery();
        self.end_waiting();
    }

    /// Closes the fork server. The launcher forks by itself until there is a new one.
    fn close_nursery(&mut self) {
        if let Some(nursery) = self.cradles.nursery.take() {
            nursery.end();
            self.cradles.restart.ended(Instant::now());
        }
        // A process that was made but not reported finds its socket closed and exits.
        self.strays = true;
        for order in std::mem::take(&mut self.cradles.orders) {
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
