//! The connection to the launcher: sends requests, and matches answers and ends to them by number.

mod life;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use sandcell_jail::cgroup::outer_memory_limit;
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_jail::launcher::{Launcher, Process};
use sandcell_jail::oom;
use sandcell_jail::spec::{Request, Template};
use sandcell_jail::wire::{self, FromLauncher, Killer, Report, StepError, ToLauncher};
use sandcell_sandbox::{EndReason, Ended, SandboxError, Usage};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use super::{NativeBackend, report};
use life::{attend, listen, reap};

/// The deadline of the launcher's configuration.
const CONFIGURE_DEADLINE: Duration = Duration::from_secs(10);
/// The launcher hangs if this many looks in a row (two seconds) show no activity since the previous look.
const CONFIGURE_LOOKS: u32 = 8;
/// The deadline of a usage query.
const USAGE_DEADLINE: Duration = Duration::from_secs(5);
/// The same for a doubted launcher.
const DOUBTED_DEADLINE: Duration = Duration::from_millis(100);

/// The deadline for attaching a folder to a sandbox.
const ATTACH_DEADLINE: Duration = Duration::from_secs(10);

/// The time-out of a message that the kernel refuses with ETOOMANYREFS, and the pause between two tries.
const FLOOD_DEADLINE: Duration = Duration::from_secs(1);
const FLOOD_PAUSE: Duration = Duration::from_millis(5);

/// The pause after a failed receive.
const TAKE_AGAIN: Duration = Duration::from_millis(1);

/// The state of a jail.
#[derive(Debug, Clone)]
enum Stage {
    Making,
    /// With its private folder on the host, if it has no private root.
    Made(Option<String>),
    Failed(StepError),
    /// It is ending for this reason; parts of it may still exist.
    Ending(Ended),
    Ended(Ended),
}

/// The result of making a jail.
pub(super) enum Answer {
    /// Made, with its private folder on the host if it has no private root.
    Made(Option<String>),
    /// Not made, and nothing is left.
    Failed(StepError),
    /// The launcher has ended or may hang. It is being replaced.
    LauncherLost,
}

/// The health of the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// No problem is known.
    Well,
    /// It may hang. It gets no more requests that another launcher can serve.
    Doubted,
    /// It ended for this reason, and all its sandboxes with it.
    Over(EndReason),
}

#[derive(Debug)]
struct Entry {
    stage: watch::Sender<Stage>,
    /// The server's ends of its direct pipes, until they are taken.
    lane: Option<DirectPipes>,
    usage: Vec<oneshot::Sender<Option<wire::Usage>>>,
    attaching: Vec<(usize, oneshot::Sender<Option<StepError>>)>,
    entering: Vec<oneshot::Sender<Option<StepError>>>,
    /// Requests for copies of descriptors, in order.
    taking: VecDeque<oneshot::Sender<Result<OwnedFd, Option<StepError>>>>,
}

/// The server's end of the connection.
#[derive(Debug)]
pub(super) struct Conversation {
    /// A packet socket, which keeps message boundaries; tokio only reports readiness.
    socket: UnixStream,
    jails: Mutex<HashMap<u64, Entry>>,
    /// The live zygotes. A zygote's sender is dropped when it ends.
    zygotes: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    health: watch::Sender<Health>,
    process: Process,
    /// True once the process was reaped.
    reaped: watch::Sender<bool>,
    /// True if a message arrived since the last look.
    heard: AtomicBool,
    /// Signals a new request.
    asked: Notify,
    /// True if a request was sent and no message has arrived since.
    owes: AtomicBool,
    /// The reason for which this server killed it.
    sentence: OnceLock<EndReason>,
    /// Counts the processes that the kernel's OOM killer ends in the server's own group.
    kills: Mutex<oom::Kills>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conversation {
    /// Sends the template, waits for the answer, and starts tasks that listen and watch.
    pub(super) async fn open(launcher: Launcher, template: Template) -> Result<(Arc<Self>, Report), SandboxError> {
        let setup = |source| SandboxError::Setup {
            step: "talk to the launcher".to_owned(),
            source,
        };
        let socket = std::os::unix::net::UnixStream::from(launcher.socket);
        socket.set_nonblocking(true).map_err(setup)?;
        let conversation = Arc::new(Self {
            socket: UnixStream::from_std(socket).map_err(setup)?,
            jails: Mutex::new(HashMap::new()),
            zygotes: Mutex::new(HashMap::new()),
            health: watch::Sender::new(Health::Well),
            process: launcher.process,
            reaped: watch::Sender::new(false),
            heard: AtomicBool::new(false),
            asked: Notify::new(),
            owes: AtomicBool::new(false),
            sentence: OnceLock::new(),
            kills: Mutex::new(oom::Kills::from_now()),
        });
        tokio::spawn(reap(Arc::clone(&conversation)));
        let mut buffer = Vec::new();
        let found = conversation.configure(template, &mut buffer).await;
        if found.is_err() {
            // A launcher that refused has ended by itself; one that hangs has not.
            conversation.destroy(EndReason::LauncherLost).await;
        }
        let found = found?;
        tokio::spawn(attend(Arc::downgrade(&conversation)));
        tokio::spawn(listen(Arc::downgrade(&conversation), buffer));
        Ok((conversation, found))
    }

    async fn configure(&self, template: Template, buffer: &mut Vec<u8>) -> Result<Report, SandboxError> {
        let setup = |source| SandboxError::Setup {
            step: "talk to the launcher".to_owned(),
            source,
        };
        let unavailable = |reason: &str| Err(NativeBackend::unavailable(reason));
        self.send(&ToLauncher::Configure(template), &[]).await.map_err(setup)?;
        let received = tokio::select! {
            biased;
            received = timeout(CONFIGURE_DEADLINE, self.receive(buffer)) => received,
            () = self.stands_still(CONFIGURE_LOOKS) => {
                return unavailable("its launcher hangs: it is stopped, or waits for a file system that does not answer");
            }
        };
        match received {
            Ok(Ok(Some((FromLauncher::Configured(found), _)))) => Ok(found),
            Ok(Ok(Some((FromLauncher::Refused(error), _)))) => Err(report::step_failed(error)),
            Ok(Err(source)) => Err(setup(source)),
            Ok(Ok(None)) => unavailable("its launcher ended while it was configured"),
            Ok(Ok(Some(_))) => unavailable("its launcher said what it was not asked"),
            Err(_) => unavailable("its launcher did not answer in time"),
        }
    }

    /// Sends a message that the launcher must answer in some way.
    async fn send(&self, message: &ToLauncher, descriptors: &[OwnedFd]) -> std::io::Result<()> {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let attempt = || wire::send(self.socket.as_fd(), message, &borrowed);
        let since = Instant::now();
        loop {
            // A hanging launcher reads nothing, so the socket may be full.
            self.expect_word();
            match self.socket.async_io(Interest::WRITABLE, attempt).await {
                // The launcher ends the sandbox whose descriptors in transit cause this.
                Err(error) if wire::too_many_in_flight(&error) && since.elapsed() < FLOOD_DEADLINE => {
                    tokio::time::sleep(FLOOD_PAUSE).await;
                }
                sent => return sent,
            }
        }
    }

    async fn receive(&self, buffer: &mut Vec<u8>) -> std::io::Result<Option<(FromLauncher, Vec<OwnedFd>)>> {
        self.socket
            .async_io(Interest::READABLE, || {
                wire::receive_what_fits(self.socket.as_fd(), buffer)
            })
            .await
    }

    fn take(&self, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        self.heard.store(true, Ordering::Release);
        self.owes.store(false, Ordering::Release);
        let mut jails = lock(&self.jails);
        match message {
            FromLauncher::Made { id, folder } => {
                if let Some(entry) = jails.get_mut(&id) {
                    entry.lane = DirectPipes::of(descriptors);
                    entry.stage.send_replace(Stage::Made(folder));
                }
            }
            FromLauncher::Failed { id, error } => {
                if let Some(entry) = jails.remove(&id) {
                    entry.stage.send_replace(Stage::Failed(error));
                }
            }
            FromLauncher::Gone {
                id,
                out_of_memory,
                disk_full,
                asked,
                killed,
            } => {
                if let Some(entry) = jails.remove(&id) {
                    let reason = match (killed, out_of_memory, disk_full, asked) {
                        (Some(Killer::OuterMemory), ..) => EndReason::OuterMemory,
                        (_, true, _, _) => EndReason::OutOfMemory,
                        (_, false, true, _) => EndReason::DiskFull,
                        (_, false, false, true) => EndReason::Closed,
                        (Some(Killer::Unknown), ..) => EndReason::AgentKilled,
                        (None, false, false, false) => EndReason::AgentLost,
                    };
                    entry.stage.send_replace(Stage::Ended(Ended { reason }));
                }
            }
            FromLauncher::Full { id } => {
                if let Some(entry) = jails.get(&id) {
                    entry.stage.send_replace(Stage::Ending(Ended {
                        reason: EndReason::DiskFull,
                    }));
                }
            }
            FromLauncher::Usage { id, usage } => {
                if let Some(entry) = jails.get_mut(&id) {
                    for waiting in entry.usage.drain(..) {
                        let _ = waiting.send(usage);
                    }
                }
            }
            FromLauncher::Attached { id, number, error } => {
                if let Some(entry) = jails.get_mut(&id)
                    && let Some(place) = entry.attaching.iter().position(|(waits, _)| *waits == number)
                {
                    let (_, waiting) = entry.attaching.swap_remove(place);
                    let _ = waiting.send(error);
                }
            }
            FromLauncher::Entered { id, error } => {
                if let Some(entry) = jails.get_mut(&id) {
                    for waiting in entry.entering.drain(..) {
                        let _ = waiting.send(error.clone());
                    }
                }
            }
            FromLauncher::Descriptor { id, error } => {
                let waiting = jails.get_mut(&id).and_then(|entry| entry.taking.pop_front());
                if let Some(waiting) = waiting {
                    let mut descriptors = descriptors;
                    let _ = waiting.send(descriptors.pop().ok_or(error));
                }
            }
            FromLauncher::ZygoteEnded { zygote, error } => {
                lock(&self.zygotes).remove(&zygote);
                match error {
                    Some(error) => tracing::warn!("a zygote could not be started: {error}"),
                    None => tracing::debug!(zygote, "a zygote has ended"),
                }
            }
            FromLauncher::HelperKilled { what, signal } => {
                tracing::warn!("{what} was killed by signal {signal}{}", self.killer(signal));
            }
            FromLauncher::Pong {} | FromLauncher::Configured(_) | FromLauncher::Refused(_) => {}
        }
    }

    /// Returns the number of jails, including those in creation.
    pub(super) fn count(&self) -> u64 {
        u64::try_from(lock(&self.jails).len()).unwrap_or(u64::MAX)
    }

    /// Makes the launcher remove the leftovers of a launcher that ended late.
    pub(super) fn sweep(&self) {
        let _ = wire::send(self.socket.as_fd(), &ToLauncher::Sweep {}, &[]);
    }

    /// Requests a jail, which gets the agent's two descriptors.
    pub(super) async fn make(
        self: &Arc<Self>,
        id: u64,
        request: Request,
        image: Option<PathBuf>,
        entered_by: Option<u64>,
        descriptors: [OwnedFd; 2],
    ) -> Result<Jail, SandboxError> {
        let (stage, seen) = watch::channel(Stage::Making);
        let (entering, entered) = entered_by
            .map(|zygote| {
                let (sender, receiver) = oneshot::channel();
                (sender, (zygote, receiver))
            })
            .unzip();
        lock(&self.jails).insert(
            id,
            Entry {
                stage,
                lane: None,
                usage: Vec::new(),
                attaching: Vec::new(),
                entering: entering.into_iter().collect(),
                taking: VecDeque::new(),
            },
        );
        if let Health::Over(reason) = self.health()
            && let Some(entry) = lock(&self.jails).remove(&id)
        {
            entry.stage.send_replace(Stage::Ended(Ended { reason }));
        }
        let jail = Jail {
            id,
            conversation: Arc::clone(self),
            stage: seen,
            entered: Mutex::new(entered),
        };
        let message = ToLauncher::Make {
            id,
            request,
            image,
            entered_by,
        };
        self.send(&message, &descriptors)
            .await
            .map_err(|source| SandboxError::Setup {
                step: "ask the launcher for a sandbox".to_owned(),
                source,
            })?;
        Ok(jail)
    }

    /// Starts a zygote, which gets its control channel's two descriptors. The returned receiver fails when the zygote
    /// ends.
    pub(super) async fn start_zygote(
        &self,
        zygote: u64,
        argv: Vec<String>,
        folders: Vec<PathBuf>,
        descriptors: [OwnedFd; 2],
    ) -> Result<oneshot::Receiver<()>, SandboxError> {
        let (lives, ended) = oneshot::channel();
        lock(&self.zygotes).insert(zygote, lives);
        self.send(&ToLauncher::StartZygote { zygote, argv, folders }, &descriptors)
            .await
            .map_err(|source| SandboxError::Setup {
                step: "ask the launcher for a zygote".to_owned(),
                source,
            })?;
        Ok(ended)
    }

    /// Ends a zygote if the socket has room for the message. It ends with the launcher in any case.
    pub(super) fn stop_zygote(&self, zygote: u64) {
        let _ = wire::send(self.socket.as_fd(), &ToLauncher::StopZygote { zygote }, &[]);
    }
}

/// One jail. A drop ends it.
#[derive(Debug)]
pub(super) struct Jail {
    id: u64,
    conversation: Arc<Conversation>,
    stage: watch::Receiver<Stage>,
    /// The pending entry of the zygote's child that was requested with the jail.
    entered: Mutex<Option<(u64, oneshot::Receiver<Option<StepError>>)>>,
}

impl Jail {
    /// Waits until it is made or has failed.
    pub(super) async fn made(&self) -> Answer {
        let mut stage = self.stage.clone();
        let made = stage.wait_for(|stage| !matches!(stage, Stage::Making));
        // Another launcher would be faster. But if this one was doubted when asked, only its end counts.
        let given_up = async {
            match self.conversation.health() {
                Health::Well => drop(self.conversation.unfit().await),
                Health::Doubted | Health::Over(_) => self.conversation.over().await,
            }
        };
        let made = tokio::select! {
            biased;
            made = made => made,
            () = given_up => return Answer::LauncherLost,
        };
        match made.as_deref() {
            Ok(Stage::Made(folder)) => Answer::Made(folder.clone()),
            Ok(Stage::Failed(error)) => Answer::Failed(error.clone()),
            Ok(Stage::Ending(_) | Stage::Ended(_) | Stage::Making) | Err(_) => Answer::LauncherLost,
        }
    }

    /// Returns the server's ends of its direct pipes. They are available once, after it was made.
    pub(super) fn take_lane(&self) -> Option<DirectPipes> {
        lock(&self.conversation.jails).get_mut(&self.id)?.lane.take()
    }

    /// Waits until it has ended and nothing of it is left.
    pub(super) async fn ended(&self) -> Ended {
        self.reached(|stage| matches!(stage, Stage::Ended(_) | Stage::Failed(_)))
            .await
    }

    /// Waits until its end is certain, and returns the reason.
    pub(super) async fn ending(&self) -> Ended {
        self.reached(|stage| matches!(stage, Stage::Ending(_) | Stage::Ended(_) | Stage::Failed(_)))
            .await
    }

    async fn reached(&self, there: impl FnMut(&Stage) -> bool) -> Ended {
        match self.stage.clone().wait_for(there).await.as_deref() {
            Ok(Stage::Ending(ended) | Stage::Ended(ended)) => ended.clone(),
            _ => Ended {
                reason: EndReason::LauncherLost,
            },
        }
    }

    /// Returns the reason of its end, if it has ended.
    pub(super) fn has_ended(&self) -> Option<Ended> {
        match &*self.stage.borrow() {
            Stage::Ended(ended) => Some(ended.clone()),
            Stage::Failed(_) => Some(Ended {
                reason: EndReason::AgentLost,
            }),
            Stage::Making | Stage::Made(_) | Stage::Ending(_) => None,
        }
    }

    /// Requests its end.
    pub(super) async fn kill(&self) -> std::io::Result<()> {
        self.conversation.send(&ToLauncher::Kill { id: self.id }, &[]).await
    }

    /// Assigns its owner for the fair share of processors. A busy launcher may miss the message; then the share is only
    /// less fair.
    pub(super) fn assign_owner(&self, caller: u64) {
        let message = ToLauncher::AssignOwner { id: self.id, caller };
        let _ = wire::send(self.conversation.socket.as_fd(), &message, &[]);
    }

    /// Sets its priority. A busy launcher may miss the message; it corrects the priority itself later.
    pub(super) fn set_low_priority(&self, low: bool) {
        let message = ToLauncher::SetPriority { id: self.id, low };
        let _ = wire::send(self.conversation.socket.as_fd(), &message, &[]);
    }

    /// Attaches a folder of the host at one of the prepared mount points, read-only. The path has no symbolic link.
    pub(super) async fn attach(&self, number: usize, folder: PathBuf) -> Result<(), SandboxError> {
        let gone = || SandboxError::Gone(self.has_ended().map_or(EndReason::LauncherLost, |ended| ended.reason));
        let (sender, receiver) = oneshot::channel();
        match lock(&self.conversation.jails).get_mut(&self.id) {
            Some(entry) => entry.attaching.push((number, sender)),
            None => return Err(gone()),
        }
        let message = ToLauncher::Attach {
            id: self.id,
            number,
            folder,
        };
        self.conversation.send(&message, &[]).await.map_err(|_| gone())?;
        match timeout(ATTACH_DEADLINE, receiver).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(error))) => Err(report::step_failed(error)),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(NativeBackend::unavailable("its launcher did not answer in time")),
        }
    }

    /// Returns the zygote whose child was requested with the jail and is not taken yet.
    pub(super) fn pending_worker(&self) -> Option<u64> {
        lock(&self.entered).as_ref().map(|(zygote, _)| *zygote)
    }

    /// Takes a copy of a descriptor of a process in it.
    pub(super) async fn take_descriptor(&self, process: i32, number: i32) -> Result<OwnedFd, SandboxError> {
        let gone = || SandboxError::Gone(self.has_ended().map_or(EndReason::LauncherLost, |ended| ended.reason));
        let (sender, receiver) = oneshot::channel();
        match lock(&self.conversation.jails).get_mut(&self.id) {
            Some(entry) => entry.taking.push_back(sender),
            None => return Err(gone()),
        }
        let id = self.id;
        let message = ToLauncher::TakeDescriptor { id, process, number };
        self.conversation.send(&message, &[]).await.map_err(|_| gone())?;
        match timeout(ATTACH_DEADLINE, receiver).await {
            Ok(Ok(Ok(descriptor))) => Ok(descriptor),
            Ok(Ok(Err(Some(error)))) => Err(report::step_failed(error)),
            Ok(Ok(Err(None)) | Err(_)) => Err(gone()),
            Err(_) => Err(NativeBackend::unavailable("its launcher did not answer in time")),
        }
    }

    /// Lets a child of a zygote enter, with these files.
    pub(super) async fn enter(&self, zygote: u64, files: &[OwnedFd]) -> Result<(), SandboxError> {
        let gone = || SandboxError::Gone(self.has_ended().map_or(EndReason::LauncherLost, |ended| ended.reason));
        let made_with = lock(&self.entered).take();
        let receiver = match made_with {
            Some((of, receiver)) if of == zygote && files.is_empty() => receiver,
            Some(_) => return Err(SandboxError::Unsupported("entering a sandbox twice".to_owned())),
            None => {
                let (sender, receiver) = oneshot::channel();
                match lock(&self.conversation.jails).get_mut(&self.id) {
                    Some(entry) => entry.entering.push(sender),
                    None => return Err(gone()),
                }
                let message = ToLauncher::Enter { id: self.id, zygote };
                self.conversation.send(&message, files).await.map_err(|_| gone())?;
                receiver
            }
        };
        let well = self.conversation.health() == Health::Well;
        let answer = tokio::select! {
            biased;
            answer = timeout(ATTACH_DEADLINE, receiver) => answer,
            // The caller can start an interpreter without the launcher.
            health = self.conversation.unfit(), if well => return Err(match health {
                Health::Over(reason) => SandboxError::Gone(reason),
                Health::Well | Health::Doubted => NativeBackend::unavailable("its launcher does not answer"),
            }),
        };
        match answer {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(error))) => Err(report::step_failed(error)),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(NativeBackend::unavailable("its launcher did not answer in time")),
        }
    }

    /// Returns its usage, as counted from outside.
    pub(super) async fn usage(&self) -> Result<Usage, SandboxError> {
        let gone = || SandboxError::Gone(self.has_ended().map_or(EndReason::LauncherLost, |ended| ended.reason));
        let (sender, receiver) = oneshot::channel();
        match lock(&self.conversation.jails).get_mut(&self.id) {
            Some(entry) => entry.usage.push(sender),
            None => return Err(gone()),
        }
        self.conversation
            .send(&ToLauncher::Usage { id: self.id }, &[])
            .await
            .map_err(|_| gone())?;
        let well = self.conversation.health() == Health::Well;
        let answer = tokio::select! {
            biased;
            answer = receiver => answer,
            // No call should wait long for numbers.
            _ = self.conversation.unfit(), if well => Ok(None),
            () = tokio::time::sleep(if well { USAGE_DEADLINE } else { DOUBTED_DEADLINE }) => Ok(None),
        };
        match answer {
            Ok(Some(usage)) => Ok(Usage {
                memory: usage.memory,
                memory_peak: usage.memory_peak,
                cpu_us: usage.cpu_us,
                processes: usage.processes,
                memory_events: usage.memory_events,
                process_events: usage.process_events,
                outer_memory: (usage.memory_events > 0).then(outer_memory_limit).flatten(),
                outer_processes: (usage.process_events > 0).then(report::outer_processes).flatten(),
                ..Usage::default()
            }),
            Ok(None) if self.has_ended().is_none() => {
                Err(NativeBackend::unavailable("its launcher did not answer in time"))
            }
            Ok(None) | Err(_) => Err(gone()),
        }
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        if self.has_ended().is_some() {
            return;
        }
        let message = ToLauncher::Kill { id: self.id };
        // Usually the socket has room at once; otherwise a task waits for it.
        if wire::send(self.conversation.socket.as_fd(), &message, &[]).is_err()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let conversation = Arc::clone(&self.conversation);
            runtime.spawn(async move {
                let _ = conversation.send(&message, &[]).await;
            });
        }
    }
}
