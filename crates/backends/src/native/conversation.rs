//! The conversation with the launcher: requests out, answers and ends in, matched by number.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandcell_jail::lane::Lane;
use sandcell_jail::launcher::Launcher;
use sandcell_jail::spec::{Request, Template};
use sandcell_jail::wire::{self, FromLauncher, Report, StepError, ToLauncher};
use sandcell_sandbox::{EndReason, Ended, SandboxError, Usage};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::{NativeBackend, report};

/// How long the launcher may take to get ready.
const CONFIGURE_DEADLINE: Duration = Duration::from_secs(10);
/// How long it may take to say what a sandbox uses.
const USAGE_DEADLINE: Duration = Duration::from_secs(5);

/// How long it may take to show a folder in a sandbox.
const ATTACH_DEADLINE: Duration = Duration::from_secs(10);

/// How long to wait after a message could not be taken.
const TAKE_AGAIN: Duration = Duration::from_millis(1);

/// How far a jail is.
#[derive(Debug, Clone)]
enum Stage {
    Making,
    /// With its private folder on the host, where it has no root of its own.
    Made(Option<String>),
    Failed(StepError),
    /// It is being ended for this reason, and there may still be something of it.
    Ending(Ended),
    Ended(Ended),
}

/// How making a jail went.
pub(super) enum Answer {
    /// It is there, with its private folder on the host where it has no root of its own.
    Made(Option<String>),
    /// It is not, and nothing is left.
    Failed(StepError),
    /// The launcher has ended.
    LauncherLost,
}

#[derive(Debug)]
struct Entry {
    stage: watch::Sender<Stage>,
    /// The near ends of its lane, until somebody takes them.
    lane: Option<Lane>,
    usage: Vec<oneshot::Sender<Option<wire::Usage>>>,
    attaching: Vec<(usize, oneshot::Sender<Option<StepError>>)>,
    entering: Vec<oneshot::Sender<Option<StepError>>>,
}

/// The server's end.
#[derive(Debug)]
pub(super) struct Conversation {
    /// Message borders are kept (it is a packet socket); tokio only tells when it is ready.
    socket: UnixStream,
    jails: Mutex<HashMap<u64, Entry>>,
    /// Flips to true when the launcher has ended.
    over: watch::Sender<bool>,
    process: sandcell_jail::launcher::Process,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conversation {
    /// Sends the template, waits for the answer, and goes on listening in a task of its own.
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
            over: watch::Sender::new(false),
            process: launcher.process,
        });
        conversation
            .send(&ToLauncher::Configure(template), &[])
            .await
            .map_err(setup)?;
        let mut buffer = Vec::new();
        let answer = timeout(CONFIGURE_DEADLINE, conversation.receive(&mut buffer)).await;
        let found = match answer {
            Ok(Ok(Some((FromLauncher::Configured(found), _)))) => found,
            Ok(Ok(Some((FromLauncher::Refused(error), _)))) => return Err(report::step_failed(error)),
            Ok(Err(source)) => return Err(setup(source)),
            Ok(Ok(None)) => {
                let _ = conversation.process.wait();
                return Err(NativeBackend::unavailable("its launcher ended while it was configured"));
            }
            Ok(Ok(Some(_))) => return Err(NativeBackend::unavailable("its launcher said what it was not asked")),
            Err(_) => return Err(NativeBackend::unavailable("its launcher did not answer in time")),
        };
        let listener = Arc::downgrade(&conversation);
        tokio::spawn(async move {
            let mut buffer = buffer;
            // The strong reference lives only while a message is waited for; hanging up wakes this through the socket.
            while let Some(conversation) = listener.upgrade() {
                match conversation.receive(&mut buffer).await {
                    Ok(Some((message, descriptors))) => conversation.take(message, descriptors),
                    // What this process lacks for a moment, or cannot read, is no reason to give up every sandbox.
                    Err(error) if !wire::is_gone(&error) => {
                        tracing::warn!(%error, "a message of the launcher could not be taken");
                        tokio::time::sleep(TAKE_AGAIN).await;
                    }
                    Ok(None) | Err(_) => {
                        conversation.lost();
                        return;
                    }
                }
            }
        });
        Ok((conversation, found))
    }

    async fn send(&self, message: &ToLauncher, descriptors: &[OwnedFd]) -> std::io::Result<()> {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let attempt = || wire::send(self.socket.as_fd(), message, &borrowed);
        self.socket.async_io(Interest::WRITABLE, attempt).await
    }

    async fn receive(&self, buffer: &mut Vec<u8>) -> std::io::Result<Option<(FromLauncher, Vec<OwnedFd>)>> {
        self.socket
            .async_io(Interest::READABLE, || {
                wire::receive_what_fits(self.socket.as_fd(), buffer)
            })
            .await
    }

    fn take(&self, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        let mut jails = lock(&self.jails);
        match message {
            FromLauncher::Made { id, folder } => {
                if let Some(entry) = jails.get_mut(&id) {
                    entry.lane = Lane::of(descriptors);
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
            } => {
                if let Some(entry) = jails.remove(&id) {
                    let reason = match (out_of_memory, disk_full, asked) {
                        (true, _, _) => EndReason::OutOfMemory,
                        (false, true, _) => EndReason::DiskFull,
                        (false, false, true) => EndReason::Closed,
                        (false, false, false) => EndReason::AgentLost,
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
            FromLauncher::Cooled { parent, error } => match error {
                Some(error) => tracing::warn!("a warmed interpreter could not be had: {error}"),
                None => tracing::debug!(parent, "a warmed interpreter has ended"),
            },
            FromLauncher::Configured(_) | FromLauncher::Refused(_) => {}
        }
    }

    /// The launcher is gone, and with it every sandbox.
    fn lost(&self) {
        let ended = Stage::Ended(Ended {
            reason: EndReason::LauncherLost,
        });
        for (_, entry) in lock(&self.jails).drain() {
            entry.stage.send_replace(ended.clone());
        }
        self.over.send_replace(true);
        let _ = self.process.wait();
    }

    /// How many jails there are, and are being made.
    pub(super) fn count(&self) -> u64 {
        u64::try_from(lock(&self.jails).len()).unwrap_or(u64::MAX)
    }

    /// Whether the launcher has ended.
    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Asks for a jail. The agent's two descriptors go to it.
    pub(super) async fn make(
        self: &Arc<Self>,
        id: u64,
        request: Request,
        image: Option<PathBuf>,
        entered_by: Option<u64>,
        descriptors: [OwnedFd; 2],
    ) -> Result<Jail, SandboxError> {
        if self.is_over() {
            return Err(NativeBackend::unavailable("its launcher has ended"));
        }
        let (stage, seen) = watch::channel(Stage::Making);
        let (entering, entered) = entered_by
            .map(|parent| {
                let (sender, receiver) = oneshot::channel();
                (sender, (parent, receiver))
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
            },
        );
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

    /// Starts a warmed parent; its control channel's two descriptors go to it.
    pub(super) async fn warm(
        &self,
        parent: u64,
        argv: Vec<String>,
        folders: Vec<PathBuf>,
        descriptors: [OwnedFd; 2],
    ) -> Result<(), SandboxError> {
        self.send(&ToLauncher::Warm { parent, argv, folders }, &descriptors)
            .await
            .map_err(|source| SandboxError::Setup {
                step: "ask the launcher for a warmed interpreter".to_owned(),
                source,
            })
    }

    /// Ends a warmed parent, if there is room to say so; it ends with the launcher in any case.
    pub(super) fn cool(&self, parent: u64) {
        let _ = wire::send(self.socket.as_fd(), &ToLauncher::Cool { parent }, &[]);
    }

    /// The launcher sees the end of the stream, removes every sandbox and exits; we see its exit.
    pub(super) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Hangs up and waits until the launcher has removed everything and ended.
    pub(super) async fn end(&self) {
        self.hang_up();
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }
}

/// One jail. Dropping it ends the jail.
#[derive(Debug)]
pub(super) struct Jail {
    id: u64,
    conversation: Arc<Conversation>,
    stage: watch::Receiver<Stage>,
    /// What becomes of the child of this parent that it is made with.
    entered: Mutex<Option<(u64, oneshot::Receiver<Option<StepError>>)>>,
}

impl Jail {
    /// Waits until it is made, or not.
    pub(super) async fn made(&self) -> Answer {
        let mut stage = self.stage.clone();
        match stage.wait_for(|stage| !matches!(stage, Stage::Making)).await.as_deref() {
            Ok(Stage::Made(folder)) => Answer::Made(folder.clone()),
            Ok(Stage::Failed(error)) => Answer::Failed(error.clone()),
            Ok(Stage::Ending(_) | Stage::Ended(_) | Stage::Making) | Err(_) => Answer::LauncherLost,
        }
    }

    /// The near ends of its lane, once, after it was made.
    pub(super) fn take_lane(&self) -> Option<Lane> {
        lock(&self.conversation.jails).get_mut(&self.id)?.lane.take()
    }

    /// Waits until it has ended and nothing of it is left.
    pub(super) async fn ended(&self) -> Ended {
        self.reached(|stage| matches!(stage, Stage::Ended(_) | Stage::Failed(_)))
            .await
    }

    /// Waits until it is known to end, and why.
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

    /// How it has ended, if it has.
    pub(super) fn has_ended(&self) -> Option<Ended> {
        match &*self.stage.borrow() {
            Stage::Ended(ended) => Some(ended.clone()),
            Stage::Failed(_) => Some(Ended {
                reason: EndReason::AgentLost,
            }),
            Stage::Making | Stage::Made(_) | Stage::Ending(_) => None,
        }
    }

    /// Asks for its end.
    pub(super) async fn kill(&self) -> std::io::Result<()> {
        self.conversation.send(&ToLauncher::Kill { id: self.id }, &[]).await
    }

    /// Says for which caller it works. A launcher that is too busy to hear it learns it never, which is no more than unfair.
    pub(super) fn belongs_to(&self, caller: u64) {
        let message = ToLauncher::Belongs { id: self.id, caller };
        let _ = wire::send(self.conversation.socket.as_fd(), &message, &[]);
    }

    /// Says whether others come first. A launcher that is too busy to hear it finds out by itself, when it has time.
    pub(super) fn comes_last(&self, last: bool) {
        let message = ToLauncher::ComesLast { id: self.id, last };
        let _ = wire::send(self.conversation.socket.as_fd(), &message, &[]);
    }

    /// Shows a folder of the host at one of the prepared mount points, read-only. The path has no symbolic link.
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

    /// The parent whose child it is made with and waits to be taken.
    pub(super) fn expects(&self) -> Option<u64> {
        lock(&self.entered).as_ref().map(|(parent, _)| *parent)
    }

    /// Lets a child of a warmed parent in.
    pub(super) async fn enter(&self, parent: u64) -> Result<(), SandboxError> {
        let gone = || SandboxError::Gone(self.has_ended().map_or(EndReason::LauncherLost, |ended| ended.reason));
        let made_with = lock(&self.entered).take();
        let receiver = match made_with {
            Some((of, receiver)) if of == parent => receiver,
            Some(_) => return Err(SandboxError::Unsupported("entering a sandbox twice".to_owned())),
            None => {
                let (sender, receiver) = oneshot::channel();
                match lock(&self.conversation.jails).get_mut(&self.id) {
                    Some(entry) => entry.entering.push(sender),
                    None => return Err(gone()),
                }
                let message = ToLauncher::Enter { id: self.id, parent };
                self.conversation.send(&message, &[]).await.map_err(|_| gone())?;
                receiver
            }
        };
        match timeout(ATTACH_DEADLINE, receiver).await {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(error))) => Err(report::step_failed(error)),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(NativeBackend::unavailable("its launcher did not answer in time")),
        }
    }

    /// What it uses, as counted from outside.
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
        match timeout(USAGE_DEADLINE, receiver).await {
            Ok(Ok(Some(usage))) => Ok(Usage {
                memory: usage.memory,
                memory_peak: usage.memory_peak,
                cpu_us: usage.cpu_us,
                processes: usage.processes,
                memory_events: usage.memory_events,
                process_events: usage.process_events,
                ..Usage::default()
            }),
            Ok(Ok(None) | Err(_)) => Err(gone()),
            Err(_) => Err(NativeBackend::unavailable("its launcher did not answer in time")),
        }
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        if self.has_ended().is_some() {
            return;
        }
        let message = ToLauncher::Kill { id: self.id };
        // Usually there is room at once; else a task waits for it.
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
