//! A live interpreter behind a driver.
//!
//! One decision is taken here: a session whose driver breaks the protocol is over; it is killed and never repaired. If
//! only its interpreter has ended, the session continues from the driver's snapshot if there is one (`snapshots`);
//! otherwise it is over. Every wait for the inside has a deadline or is ended by [`Interrupter::kill`].

mod ask;
mod checkpoints;
mod images;
mod interrupter;
mod restore;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Aftermath, Cell, CellOutcome, CellStatus, Channel, Command, Degree, EndReason, Exit, ImageMade, Interrupter,
    MimeBundle, NotLoaded, OutputStream, Process, ProcessEvent, ProcessHandle, Sandbox, SandboxError, Session,
    SessionError, SessionEvent, SessionFeatures, Signal, SignalScope, Variable,
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use self::ask::Late;
use self::checkpoints::Checkpoint;
use self::interrupter::DriverInterrupter;
use super::frame::{Decoder, Done, Frame, encode};
use super::snapshot_state::SnapshotState;

/// The deadline for an interpreter to become ready.
const START_MAX: Duration = Duration::from_secs(30);
/// The time for reading output after the interpreter's end, while descendants hold its pipes open.
const DRAIN_MAX: Duration = Duration::from_millis(250);
/// The maximum delay between the end of the control channel and that of the process.
const EXIT_MAX: Duration = Duration::from_secs(1);
/// A session above this many tenths of the memory limit keeps no snapshot.
const COPY_TENTHS: u64 = 7;
/// The same bound, in bytes, if no limit is known.
const COPY_ANY: u64 = 1 << 40;
/// The time for which the server polls for the answer, while nothing else runs, before it sleeps.
const POLL_TIME: Duration = Duration::from_micros(300);
const DISPLAYS_MAX: u32 = 65;
const SHOWN_BYTES_MAX: usize = 16 << 20;
const STDERR_KEPT: usize = 2000;

/// The parameters for starting a driver.
#[derive(Debug, Clone)]
pub struct Start {
    /// The language's name, for errors.
    pub language: String,
    /// The program; `control` must be set.
    pub command: Command,
    /// The first bytes on its control channel; may be empty.
    pub boot: Bytes,
    /// The snapshot mode, as far as the sandbox supports snapshots.
    pub snapshots: Snapshots,
    /// The place of a cell's code.
    pub code: CodeIn,
    /// The features of its sessions.
    pub features: SessionFeatures,
}

/// The snapshot mode of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshots {
    /// It keeps snapshots.
    Kept,
    /// The settings forbid it.
    TurnedOff,
    /// Its driver does not support it.
    Unsupported,
}

/// The place of the code and the standard input of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeIn {
    /// In the header of the frame.
    Header,
    /// As raw bytes after the header, for drivers that cannot read JSON: the code, then standard input if there is one.
    Blobs,
}

/// A session on top of a driver, in any language.
#[derive(Debug)]
pub struct DriverSession {
    events: mpsc::Receiver<ProcessEvent>,
    decoder: Decoder,
    link: Arc<Link>,
    nonce_base: String,
    cells: u64,
    version: String,
    over: Option<Exit>,
    /// The output to stdout and stderr while no cell ran.
    late: (Late, Late),
    /// The control channel ended while no cell ran.
    control_closed: bool,
    /// The interpreter ended between cells, and this is not reported yet.
    untold: Option<Exit>,
    /// The number of channels that have not ended.
    open: u8,
    /// The driver keeps a snapshot below this memory, in bytes; 0: never.
    copy_below: u64,
    /// The pause between a cell and its snapshot, in milliseconds, which leaves the processors to others.
    copy_after: u64,
    /// Code that exhausts its memory gets an error and continues.
    watched: bool,
    aftermath: Aftermath,
    /// Kept snapshots, by the caller's numbers.
    checkpoints: BTreeMap<u32, Checkpoint>,
    /// The reason why the session keeps no snapshots.
    without_snapshots: Option<&'static str>,
    code: CodeIn,
    features: SessionFeatures,
    /// The modules loaded before its first cell.
    preloaded: Arc<PreloadedModules>,
}

/// Modules that were loaded before the first cell.
#[derive(Debug, Default)]
pub struct PreloadedModules {
    /// The requested modules.
    asked: Vec<String>,
    /// The loaded top-level modules that are not part of the language.
    top: Vec<String>,
}

impl PreloadedModules {
    /// Returns true if this folder of packages contains some of them, too: perhaps in other versions.
    #[must_use]
    pub fn is_in(&self, folder: &Path) -> bool {
        // A package, a module or a compiled module: `numpy`, `six.py`, `_cffi_backend.cpython-311-x86_64-linux-gnu.so`.
        let is_here = |name: &str| self.top.iter().any(|top| name.split('.').next() == Some(top));
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        !self.top.is_empty() && { entries }.any(|entry| entry.file_name().to_str().is_some_and(is_here))
    }
}

/// Access to the process, shared with interrupters while the session lives.
#[derive(Debug)]
struct Link {
    handle: Arc<dyn ProcessHandle>,
    /// The snapshot that can become the session.
    snapshot: SnapshotState,
    /// The nonce of the running cell. Its lock must be held to write to the control channel.
    running: Mutex<Option<String>>,
    /// True if the driver received its boot frame from us, so it understands `preload`, `environment` and nudges.
    handed_over: bool,
}

/// The amount that one cell has displayed so far.
#[derive(Debug, Default)]
struct DisplayTotals {
    result: bool,
    displays: u32,
    bytes: usize,
}

/// Returns true if a per-process limit bounds memory there, so that code which exhausts it can continue.
fn is_watched(sandbox: &dyn Sandbox) -> bool {
    sandbox.isolation().memory == Some(Degree::Watched)
}

/// The reason why a session has no snapshots, as the end of a sentence.
fn reason_without_snapshots(start: &Start, process: &Process) -> Option<&'static str> {
    match start.snapshots {
        Snapshots::Kept if process.handle.has_heirs() => None,
        Snapshots::Kept => Some("this back end keeps no snapshots of sessions"),
        Snapshots::TurnedOff => Some("`sessions.restore` is off"),
        Snapshots::Unsupported => Some("only Python sessions have snapshots"),
    }
}

impl DriverSession {
    /// Starts the driver in the sandbox and waits until it is ready.
    ///
    /// # Errors
    /// [`SessionError::Start`] with the interpreter's message; [`SessionError::Sandbox`] if it could not be started.
    pub async fn open(sandbox: &dyn Sandbox, start: Start) -> Result<Self, SessionError> {
        let process = sandbox.spawn(start.command.clone()).await?;
        let mut session = Self::of(process, &start, Some(sandbox))?;
        session.be_ready(start).await?;
        Ok(session)
    }

    /// Opens a session in a zygote's worker that has entered the sandbox. The zygote has loaded these modules.
    /// `start.boot` is the worker's first input.
    ///
    /// # Errors
    /// As for [`DriverSession::open`]. The sandbox is unchanged, and the session can be started normally.
    pub async fn adopted(
        sandbox: &dyn Sandbox,
        worker: Process,
        preloaded: Arc<PreloadedModules>,
        start: Start,
    ) -> Result<Self, SessionError> {
        let mut session = Self::of(worker, &start, Some(sandbox))?;
        session.be_ready(start).await?;
        session.preloaded = preloaded;
        Ok(session)
    }

    /// Starts a driver that becomes a zygote: it loads these modules, and runs no code afterwards. Returns those that
    /// could not be loaded.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn zygote(
        process: Process,
        start: Start,
        modules: &[String],
    ) -> Result<(Self, Vec<NotLoaded>), SessionError> {
        let mut session = Self::of(process, &start, None)?;
        session.be_ready(start).await?;
        let missing = session.ask_to_load(modules).await?;
        Ok((session, missing))
    }

    /// Returns true if its program has ended, or its connection is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.events.is_closed()
    }

    /// Returns the modules loaded before the first cell.
    #[must_use]
    pub fn preloaded(&self) -> &Arc<PreloadedModules> {
        &self.preloaded
    }

    fn of(process: Process, start: &Start, sandbox: Option<&dyn Sandbox>) -> Result<Self, SessionError> {
        let mut secret = [0_u8; 8];
        getrandom::fill(&mut secret).map_err(|error| SessionError::Start {
            language: start.language.clone(),
            reason: format!("no random numbers: {error}"),
        })?;
        let without_snapshots = reason_without_snapshots(start, &process);
        Ok(Self {
            events: process.events,
            decoder: Decoder::default(),
            link: Arc::new(Link {
                handle: process.handle,
                snapshot: without_snapshots.map_or_else(SnapshotState::default, SnapshotState::none),
                running: Mutex::new(None),
                handed_over: !start.boot.is_empty(),
            }),
            nonce_base: secret.iter().map(|byte| format!("{byte:02x}")).collect(),
            cells: 0,
            version: String::new(),
            over: None,
            late: Default::default(),
            control_closed: false,
            untold: None,
            open: 3,
            copy_below: match sandbox.and_then(|sandbox| sandbox.memory_limit()) {
                _ if without_snapshots.is_some() => 0,
                Some(limit) => limit / 10 * COPY_TENTHS,
                None => COPY_ANY,
            },
            copy_after: 0,
            watched: sandbox.is_some_and(is_watched),
            aftermath: Aftermath::Over { why: None },
            checkpoints: BTreeMap::new(),
            without_snapshots,
            code: start.code,
            features: start.features,
            preloaded: Arc::default(),
        })
    }

    async fn be_ready(&mut self, start: Start) -> Result<(), SessionError> {
        let failed = |reason: String| SessionError::Start {
            language: start.language.clone(),
            reason,
        };
        match timeout(START_MAX, self.wait_ready(start.boot.clone())).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(failed(reason)),
            Err(_) => Err(failed(format!("it was not ready after {} s", START_MAX.as_secs()))),
        }
    }

    /// The version that the interpreter reports.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    async fn wait_ready(&mut self, boot: Bytes) -> Result<(), String> {
        let handle = Arc::clone(&self.link.handle);
        let mut written = boot.is_empty();
        let mut write = handle.write(Channel::Control, boot);
        let mut stderr = Vec::new();
        let mut ready = false;
        // It may be ready before it has read everything; half a frame would end the session.
        while !(ready && written) {
            tokio::select! {
                result = &mut write, if !written => {
                    written = true;
                    if let Err(error) = result {
                        tracing::debug!(%error, "the boot frame could not be written");
                    }
                }
                event = self.events.recv() => match event {
                    Some(ProcessEvent::Output { channel: Channel::Control, bytes }) => {
                        self.decoder.push(&bytes);
                        match self.decoder.next_frame() {
                            Ok(None) => {}
                            Ok(Some(Frame::Ready { version })) => {
                                self.version = version;
                                ready = true;
                            }
                            Ok(Some(_)) => return Err("it said something else than that it is ready".to_owned()),
                            Err(error) => return Err(error.to_string()),
                        }
                    }
                    Some(ProcessEvent::Output { channel: Channel::Stderr, bytes }) => {
                        stderr.extend_from_slice(&bytes);
                        let extra = stderr.len().saturating_sub(STDERR_KEPT);
                        stderr.drain(..extra);
                    }
                    Some(ProcessEvent::Exited { exit }) => return Err(self.early_end(exit, stderr).await),
                    Some(ProcessEvent::Output { .. } | ProcessEvent::Closed { .. }) => {}
                    None => return Err("the sandbox ended".to_owned()),
                },
            }
        }
        Ok(())
    }

    /// Explains why the interpreter ended before it was ready, with the end of its stderr.
    async fn early_end(&mut self, exit: Exit, mut stderr: Vec<u8>) -> String {
        let deadline = Instant::now() + DRAIN_MAX;
        while let Ok(Some(event)) = timeout_at(deadline, self.events.recv()).await {
            match event {
                ProcessEvent::Output {
                    channel: Channel::Stderr,
                    bytes,
                } if stderr.len() < STDERR_KEPT => stderr.extend_from_slice(&bytes),
                ProcessEvent::Closed {
                    channel: Channel::Stderr,
                } => break,
                _ => {}
            }
        }
        let text = String::from_utf8_lossy(&stderr);
        let ended = match exit {
            Exit::Code(code) => format!("it ended with status {code}"),
            Exit::Signal(signal) => format!("signal {signal} ended it"),
        };
        match text.trim() {
            "" => ended,
            said => format!("{ended}: {said}"),
        }
    }

    fn next_nonce(&mut self) -> String {
        self.cells += 1;
        format!("{}-{}", self.nonce_base, self.cells)
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, SessionError> {
        self.decoder
            .next_frame()
            .map_err(|error| SessionError::Protocol(error.to_string()))
    }

    async fn end_if_broken(&mut self, error: SessionError) -> SessionError {
        match error {
            SessionError::Protocol(reason) => self.broken(reason).await,
            other => other,
        }
    }

    /// Ends a session that can no longer be trusted.
    async fn broken(&mut self, reason: String) -> SessionError {
        self.over = Some(Exit::Signal(9));
        if let Err(error) = self.link.handle.signal(Signal::Kill, SignalScope::Tree).await {
            tracing::debug!(%error, "a broken session could not be killed");
        }
        SessionError::Protocol(reason)
    }

    /// Writes the cell and forwards its events until it is over.
    async fn run(
        &mut self,
        nonce: &str,
        frame: Bytes,
        to: &mpsc::Sender<SessionEvent>,
    ) -> Result<CellStatus, SessionError> {
        let link = Arc::clone(&self.link);
        let mut shown = DisplayTotals::default();
        let exit = match self.untold.take() {
            Some(exit) => exit,
            None => match self.until_over(&link, nonce, frame, &mut shown, to).await? {
                Ok(status) => return Ok(status),
                Err(exit) => exit,
            },
        };
        match self.restore(to).await {
            Ok((cell, why)) => {
                self.aftermath = Aftermath::Restored { cell, why };
                Ok(CellStatus::Died(exit))
            }
            Err(why) => {
                self.aftermath = Aftermath::Over { why };
                self.drain(nonce, exit, &mut shown, to).await
            }
        }
    }

    /// The same, until the cell or the interpreter ends.
    async fn until_over(
        &mut self,
        link: &Link,
        nonce: &str,
        frame: Bytes,
        shown: &mut DisplayTotals,
        to: &mpsc::Sender<SessionEvent>,
    ) -> Result<Result<CellStatus, Exit>, SessionError> {
        // These frames arrived together with the end of the last cell, so they concern that cell or the snapshot.
        while let Some(frame) = self.next_frame()? {
            if let Frame::Copy { pid, why, .. } = frame {
                link.snapshot.record(pid, &why);
            }
        }
        let mut running = Some(link.running.lock().await);
        if let Some(running) = &mut running {
            **running = Some(nonce.to_owned());
        }
        let mut write = link.handle.write(Channel::Control, frame);
        let (mut writes, mut told) = (true, 0);
        let mut control_ended = self.control_closed.then(|| Instant::now() + EXIT_MAX);
        let alone = RunningCell::enter();
        let begun = Instant::now();
        loop {
            let give_up = control_ended.unwrap_or_else(Instant::now);
            if !writes && told < shown.displays {
                told = shown.displays;
                let header = json!({"type": "shown", "nonce": nonce, "count": told});
                write = link.handle.write(Channel::Control, encode(&header, &[]));
                writes = true;
            }
            tokio::select! {
                result = &mut write, if writes => {
                    drop(running.take());
                    writes = false;
                    if let Err(error) = result {
                        tracing::debug!(%error, "a cell could not be written");
                        control_ended.get_or_insert_with(|| Instant::now() + EXIT_MAX);
                    }
                }
                () = tokio::time::sleep_until(give_up), if control_ended.is_some() => {
                    return Err(SessionError::Protocol("its control channel was closed".to_owned()));
                }
                // Most cells end sooner than a sleeping processor would wake.
                () = look_again(), if alone.is_alone() && begun.elapsed() < POLL_TIME => {}
                event = self.events.recv() => match event {
                    Some(ProcessEvent::Output { channel, bytes }) => {
                        if let Some(status) = self.output(nonce, channel, bytes, shown, to).await? {
                            return Ok(Ok(status));
                        }
                    }
                    Some(ProcessEvent::Closed { channel }) => {
                        self.open = self.open.saturating_sub(1);
                        if channel == Channel::Control {
                            control_ended.get_or_insert_with(|| Instant::now() + EXIT_MAX);
                        }
                    }
                    Some(ProcessEvent::Exited { exit }) => return Ok(Err(exit)),
                    None => return Err(SandboxError::Gone(EndReason::AgentLost).into()),
                },
            }
        }
    }

    /// Forwards one piece of output; returns the status if it contains the end of the cell.
    async fn output(
        &mut self,
        nonce: &str,
        channel: Channel,
        bytes: Bytes,
        shown: &mut DisplayTotals,
        to: &mpsc::Sender<SessionEvent>,
    ) -> Result<Option<CellStatus>, SessionError> {
        let stream = match channel {
            Channel::Stdout => OutputStream::Stdout,
            Channel::Stderr => OutputStream::Stderr,
            Channel::Stdin => return Ok(None),
            Channel::Control => {
                self.decoder.push(&bytes);
                while let Some(frame) = self.next_frame()? {
                    if let Frame::Copy { pid, why, .. } = &frame {
                        self.link.snapshot.record(*pid, why);
                    }
                    if let Some(status) = deliver(nonce, frame, shown, to).await {
                        return Ok(Some(status));
                    }
                }
                return Ok(None);
            }
        };
        pass(to, SessionEvent::Output { stream, bytes }).await;
        Ok(None)
    }

    /// Reads the rest of the output after the interpreter's end, which may contain the end of the cell.
    async fn drain(
        &mut self,
        nonce: &str,
        exit: Exit,
        shown: &mut DisplayTotals,
        to: &mpsc::Sender<SessionEvent>,
    ) -> Result<CellStatus, SessionError> {
        self.over = Some(exit);
        // The interpreter's own output has arrived. Its descendants would only hold the pipes open.
        if let Err(error) = self.link.handle.signal(Signal::Kill, SignalScope::Tree).await {
            tracing::debug!(%error, "what a dead interpreter left could not be killed");
        }
        let deadline = Instant::now() + DRAIN_MAX;
        let mut status = None;
        while self.open > 0 {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some(ProcessEvent::Output { channel, bytes })) => {
                    // A broken frame at the very end does not matter: the interpreter is gone anyway.
                    if let Ok(Some(done)) = self.output(nonce, channel, bytes, shown, to).await {
                        status.get_or_insert(done);
                    }
                }
                Ok(Some(ProcessEvent::Closed { .. })) => self.open -= 1,
                Ok(Some(ProcessEvent::Exited { .. })) => {}
                Ok(None) | Err(_) => break,
            }
        }
        Ok(status.unwrap_or(CellStatus::Died(exit)))
    }
}

/// The number of running cells in this process.
static RUNNING_CELLS: AtomicUsize = AtomicUsize::new(0);

/// A running cell.
struct RunningCell {
    /// The machine has another processor for its program.
    can_watch: bool,
}

impl RunningCell {
    fn enter() -> Self {
        static CORE_COUNT: OnceLock<usize> = OnceLock::new();
        RUNNING_CELLS.fetch_add(1, Ordering::Relaxed);
        let cores = CORE_COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get));
        Self { can_watch: *cores > 1 }
    }

    /// Returns true if polling for its end takes nothing from other cells.
    fn is_alone(&self) -> bool {
        self.can_watch && RUNNING_CELLS.load(Ordering::Relaxed) == 1
    }
}

impl Drop for RunningCell {
    fn drop(&mut self) {
        RUNNING_CELLS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Yields to other tasks, and to the interpreter in case it waits for this processor.
async fn look_again() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

/// Sends an event to the caller. A caller that no longer listens does not stop the cell.
async fn pass(to: &mpsc::Sender<SessionEvent>, event: SessionEvent) {
    if to.send(event).await.is_err() {
        tracing::trace!("the caller of this cell no longer listens");
    }
}

/// Forwards a frame if it concerns this cell and is within a cell's limits.
async fn deliver(
    expected: &str,
    frame: Frame,
    shown: &mut DisplayTotals,
    to: &mpsc::Sender<SessionEvent>,
) -> Option<CellStatus> {
    match frame {
        Frame::Display { nonce, bundle } if nonce == expected && shown.displays < DISPLAYS_MAX => {
            shown.displays += 1;
            pass(to, SessionEvent::Display(shown.within(bundle))).await;
        }
        Frame::Result { nonce, bundle } if nonce == expected && !shown.result => {
            shown.result = true;
            pass(to, SessionEvent::Result(shown.within(bundle))).await;
        }
        Frame::Done { nonce, done } if nonce == expected => {
            return Some(match done {
                Done::Ok => CellStatus::Ok,
                Done::Exit(code) => CellStatus::Exit(code),
                Done::Error(error) => CellStatus::Error(error),
                Done::Interrupted(error) => CellStatus::Interrupted(error),
            });
        }
        Frame::Install { nonce, packages } if nonce == expected => {
            pass(to, SessionEvent::Install { packages }).await;
        }
        // Dropped: about another cell, beyond the limits, or unsolicited.
        Frame::Ready { .. }
        | Frame::Display { .. }
        | Frame::Result { .. }
        | Frame::Done { .. }
        | Frame::Install { .. }
        | Frame::Copy { .. }
        | Frame::Resumed { .. }
        | Frame::Kept { .. }
        | Frame::Measured { .. }
        | Frame::Imaged { .. }
        | Frame::Loading { .. }
        | Frame::Variables { .. }
        | Frame::Preloaded { .. }
        | Frame::Environment { .. } => {}
    }
    None
}

impl DisplayTotals {
    /// Returns the bundle, or only its text once the cell has displayed too many bytes.
    fn within(&mut self, mut bundle: MimeBundle) -> MimeBundle {
        let size: usize = bundle.0.values().map(Bytes::len).sum();
        if self.bytes.saturating_add(size) > SHOWN_BYTES_MAX {
            bundle.0.retain(|mime, _| mime == "text/plain");
        } else {
            self.bytes += size;
        }
        bundle
    }
}

/// Adds the execution of a cell, which its code names when it calls tools of the host.
fn with_execution(mut header: Value, execution: Option<String>) -> Value {
    if let (Some(execution), Some(fields)) = (execution, header.as_object_mut()) {
        fields.insert("execution".to_owned(), execution.into());
    }
    header
}

#[async_trait]
impl Session for DriverSession {
    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError> {
        if let Some(exit) = self.over {
            return Ok(CellOutcome {
                status: CellStatus::Died(exit),
            });
        }
        if let Err(error) = self.pass_late(events).await {
            return Err(self.end_if_broken(error).await);
        }
        let nonce = self.next_nonce();
        let frame = match self.code {
            CodeIn::Header => {
                let header = json!({
                    "type": "run", "cell": cell.number, "nonce": nonce, "code": cell.code, "stdin": cell.stdin,
                    "packages": cell.packages, "exact": cell.exact,
                    "copy_below": self.copy_below, "copy_after": self.copy_after, "watched": self.watched,
                });
                encode(&with_execution(header, cell.execution), &[])
            }
            CodeIn::Blobs => {
                // A shell's variables cannot hold NUL, and skipping it would break the count.
                let stdin = cell.stdin.map(|text| text.replace('\0', ""));
                let blobs: Vec<&[u8]> = std::iter::once(&cell.code)
                    .chain(&stdin)
                    .map(String::as_bytes)
                    .collect();
                let lengths: Vec<_> = blobs.iter().map(|blob| json!({"bytes": blob.len()})).collect();
                let header = json!({"type": "run", "cell": cell.number, "nonce": nonce, "blobs": lengths});
                encode(&with_execution(header, cell.execution), &blobs)
            }
        };
        let result = self.run(&nonce, frame, events).await;
        *self.link.running.lock().await = None;
        match result {
            Ok(status) => Ok(CellOutcome { status }),
            Err(error) => Err(self.end_if_broken(error).await),
        }
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        Arc::new(DriverInterrupter(Arc::downgrade(&self.link)))
    }

    fn features(&self) -> SessionFeatures {
        self.features
    }

    async fn variables(&mut self) -> Result<Vec<Variable>, SessionError> {
        self.list_variables().await
    }

    async fn preload(&mut self, modules: &[String]) -> Result<Vec<NotLoaded>, SessionError> {
        self.load_modules(modules).await
    }

    async fn add_env(&mut self, env: &BTreeMap<String, String>) -> Result<bool, SessionError> {
        self.add_variables(env).await
    }

    fn has_loaded_from(&self, folder: &Path) -> bool {
        self.preloaded.is_in(folder)
    }

    fn is_untouched(&self) -> bool {
        self.over.is_none() && self.events.is_empty() && !self.events.is_closed()
    }

    fn last_cell(&mut self) {
        self.copy_below = 0;
    }

    fn set_snapshot_delay(&mut self, time: Duration) {
        self.copy_after = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    }

    fn takes_snapshots(&self) -> bool {
        self.copy_below > 0
    }

    fn aftermath(&self) -> Aftermath {
        self.aftermath.clone()
    }

    fn checkpoint_obstacle(&self) -> Option<String> {
        let unsupported = || (!self.link.handle.keeps_heirs()).then(|| "this back end cannot keep it".to_owned());
        self.without_snapshots.map(str::to_owned).or_else(unsupported)
    }

    async fn checkpoint(&mut self, number: u32, expendable: bool) -> Result<Result<(), String>, SessionError> {
        self.make_checkpoint(number, expendable).await
    }

    fn checkpoints(&self) -> Vec<u32> {
        self.checkpoints.keys().copied().collect()
    }

    async fn existing_checkpoints(&mut self) -> Vec<u32> {
        self.refresh_checkpoints().await;
        self.checkpoints()
    }

    async fn checkpoint_sizes(&mut self) -> Result<Vec<(u32, u64)>, SessionError> {
        self.measure_checkpoints().await
    }

    async fn image(&mut self, number: u32, max_bytes: u64) -> Result<ImageMade, String> {
        self.make_image(number, max_bytes).await
    }

    async fn drop_image(&mut self, number: u32) {
        self.drop_image_of(number).await;
    }

    async fn drop_checkpoint(&mut self, number: u32) {
        self.release_checkpoint(number).await;
    }

    async fn halt(&mut self) {
        self.end_interpreter().await;
    }

    async fn rewind(&mut self, number: u32) -> Result<(), SessionError> {
        self.rewind_to(number).await
    }
}
