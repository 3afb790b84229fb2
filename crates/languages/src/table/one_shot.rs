//! One-shot sessions, for languages that keep no state: each cell is a separate program with access to the sandbox's
//! files.
//!
//! The source is in the home folder while the cell runs, next to the caller's files. Afterwards it is removed together
//! with its build results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Cell, CellError, CellOutcome, CellStatus, Channel, Command, Compile, EndReason, Exit, Gathered, Interrupter,
    Language as _, OutputStream, Process, ProcessEvent, ProcessHandle, Program, Sandbox, SandboxError, SandboxPath,
    Session, SessionError, SessionEvent, SessionFeatures, Signal, SignalScope, StdinMode, WriteMode, gather,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::TableLanguage;
use super::drawn::Drawn;

/// The kept bytes of each stream of a compiler.
const MAX_COMPILER_OUTPUT_BYTES: usize = 64 << 10;
/// The maximum pause of output after the program's end.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time in which leftover processes of a program may still write, such as `tee` in Bash's `> >(tee log)`. There is
/// no wait if none are left.
const GRACE_TIME: Duration = Duration::from_millis(250);
/// The deadlines of a program's start and of the clean-up.
const SPAWN_TIMEOUT: Duration = Duration::from_secs(30);
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of standard input that are written at once.
const STDIN_PIECE_BYTES: usize = 64 << 10;

/// See the module's documentation.
pub(super) struct OneShotSession {
    language: TableLanguage,
    sandbox: Arc<dyn Sandbox>,
    running: Arc<Running>,
}

/// The running step, shared with interrupters.
#[derive(Default)]
struct Running {
    handle: Mutex<Option<Arc<dyn ProcessHandle>>>,
    /// The cell is to end: no further step may start.
    ending: AtomicBool,
}

impl std::fmt::Debug for OneShotSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneShotSession")
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

impl OneShotSession {
    pub(super) fn new(language: TableLanguage, sandbox: Arc<dyn Sandbox>) -> Self {
        Self {
            language,
            sandbox,
            running: Arc::default(),
        }
    }

    /// Starts a step, which can be interrupted from now on.
    async fn start(&self, command: Command) -> Result<Process, SessionError> {
        let program = command.argv.first().cloned().unwrap_or_default();
        let process = match timeout(SPAWN_TIMEOUT, self.sandbox.spawn(command)).await {
            Ok(process) => process?,
            Err(_) => {
                return Err(SessionError::Sandbox(SandboxError::Spawn {
                    program,
                    source: std::io::ErrorKind::TimedOut.into(),
                }));
            }
        };
        *self.running.lock() = Some(process.handle.clone());
        Ok(process)
    }

    /// Compiles; returns the end of the cell if it must not run.
    async fn compile(
        &self,
        compile: Compile,
        events: &mpsc::Sender<SessionEvent>,
    ) -> Result<Option<CellStatus>, SessionError> {
        let process = self.start(compile.command).await?;
        let handle = process.handle.clone();
        let Ok(compiled) = timeout(compile.timeout, gather(process, MAX_COMPILER_OUTPUT_BYTES)).await else {
            end(&handle).await;
            return Ok(Some(CellStatus::Error(CellError {
                name: "CompileTimeout".to_owned(),
                message: format!("the compiler was not done after {} s", compile.timeout.as_secs()),
                class: "compile".to_owned(),
                ..CellError::default()
            })));
        };
        match compiled.exit {
            Some(Exit::Code(0)) => {
                let words = words(compiled);
                if !words.is_empty() {
                    hand_on(
                        events,
                        SessionEvent::Output {
                            stream: OutputStream::Stderr,
                            bytes: words.into(),
                        },
                    )
                    .await;
                }
                Ok(None)
            }
            Some(Exit::Code(_)) if !self.running.is_ending() => Ok(Some(CellStatus::Error(CellError {
                name: "CompileError".to_owned(),
                traceback: String::from_utf8_lossy(&words(compiled)).trim_end().to_owned(),
                class: "compile".to_owned(),
                ..CellError::default()
            }))),
            Some(exit) => Ok(Some(CellStatus::Ended(exit))),
            None => Err(SandboxError::Gone(EndReason::AgentLost).into()),
        }
    }

    async fn run(
        &self,
        program: Program,
        stdin: Option<String>,
        events: &mpsc::Sender<SessionEvent>,
    ) -> Result<CellStatus, SessionError> {
        let mut command = program.run;
        command.stdin = if stdin.is_some() {
            StdinMode::Piped
        } else {
            StdinMode::Null
        };
        let Process {
            events: mut from,
            handle,
            ..
        } = self.start(command).await?;
        if self.running.is_ending() {
            end(&handle).await;
        }
        let feeding = feed(handle.clone(), stdin);
        tokio::pin!(feeding);
        let linger = sleep_until(Instant::now());
        tokio::pin!(linger);
        let (mut fed, mut closed, mut exit, mut swept) = (false, 0_u8, None, false);
        while exit.is_none() || closed < 2 {
            tokio::select! {
                () = &mut feeding, if !fed => fed = true,
                () = &mut linger, if exit.is_some() => {
                    if swept {
                        break;
                    }
                    // Leftover processes would hold the output open.
                    end(&handle).await;
                    swept = true;
                    linger.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
                }
                event = from.recv() => match event {
                    Some(ProcessEvent::Output { channel, bytes }) => {
                        let stream = match channel {
                            Channel::Stdout => OutputStream::Stdout,
                            Channel::Stderr => OutputStream::Stderr,
                            Channel::Stdin | Channel::Control => continue,
                        };
                        hand_on(events, SessionEvent::Output { stream, bytes }).await;
                        if swept {
                            linger.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
                        }
                    }
                    Some(ProcessEvent::Closed { channel }) => {
                        closed += u8::from(matches!(channel, Channel::Stdout | Channel::Stderr));
                    }
                    Some(ProcessEvent::Exited { exit: how }) => {
                        exit = Some(how);
                        let grace = if self.running.is_ending() { Duration::ZERO } else { GRACE_TIME };
                        linger.as_mut().reset(Instant::now() + grace);
                    }
                    None => break,
                },
            }
        }
        if !swept {
            end(&handle).await;
        }
        exit.map(CellStatus::Ended)
            .ok_or_else(|| SandboxError::Gone(EndReason::AgentLost).into())
    }

    /// Removes the cell's files. Leftovers do no harm.
    async fn clean(&self, files: &[(SandboxPath, Bytes)], env: std::collections::BTreeMap<String, String>) {
        let mut argv = vec!["/bin/rm".to_owned(), "-rf".to_owned(), "--".to_owned()];
        for (path, _) in files {
            let path = path.as_str();
            // A path inside one of the server's folders selects the whole folder.
            let ours = path
                .rsplit_once('/')
                .filter(|(folder, _)| folder.contains("/.sandcell-"));
            argv.push(ours.map_or(path, |(folder, _)| folder).to_owned());
        }
        let command = Command {
            argv,
            env,
            cwd: "/".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        };
        let cleaned = timeout(CLEANUP_TIMEOUT, async {
            Ok::<_, SandboxError>(gather(self.sandbox.spawn(command).await?, MAX_COMPILER_OUTPUT_BYTES).await)
        });
        if !matches!(cleaned.await, Ok(Ok(_))) {
            tracing::debug!("what a program was made of could not be taken away");
        }
    }
}

/// Returns a compiler's output, stdout first: most compilers write nothing there.
fn words(compiled: Gathered) -> Vec<u8> {
    let mut words = compiled.stdout;
    words.extend_from_slice(&compiled.stderr);
    if compiled.omitted > 0 {
        words.extend_from_slice(format!("\n… {} bytes more\n", compiled.omitted).as_bytes());
    }
    words
}

async fn end(handle: &Arc<dyn ProcessHandle>) {
    if let Ok(Err(error)) = timeout(LINGER_TIMEOUT, handle.signal(Signal::Kill, SignalScope::Tree)).await {
        tracing::debug!(%error, "what a program left behind could not be ended");
    }
}

/// Writes standard input. It is no error if the program does not read it.
async fn feed(handle: Arc<dyn ProcessHandle>, stdin: Option<String>) {
    let Some(text) = stdin else { return };
    let mut rest = Bytes::from(text);
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(STDIN_PIECE_BYTES));
        if handle.write(Channel::Stdin, piece).await.is_err() {
            return;
        }
    }
    if handle.close(Channel::Stdin).await.is_err() {
        tracing::debug!("the program's stdin was closed already");
    }
}

/// Sends an event. A caller that no longer listens does not stop the cell.
pub(super) async fn hand_on(events: &mpsc::Sender<SessionEvent>, event: SessionEvent) {
    if events.send(event).await.is_err() {
        tracing::trace!("the caller of this cell no longer listens");
    }
}

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<dyn ProcessHandle>>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    async fn signal(&self, signal: Signal, scope: SignalScope) -> Result<(), SandboxError> {
        self.ending.store(true, Ordering::SeqCst);
        let handle = self.lock().clone();
        match handle {
            Some(handle) => handle.signal(signal, scope).await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Session for OneShotSession {
    /// Nothing but files stays between two cells.
    fn checkpoint_obstacle(&self) -> Option<String> {
        None
    }

    async fn checkpoint(&mut self, _number: u32, _expendable: bool) -> Result<Result<(), String>, SessionError> {
        Ok(Ok(()))
    }

    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError> {
        self.running.ending.store(false, Ordering::SeqCst);
        let env = self.sandbox.base_env().clone();
        let stem = format!("cell{}", cell.number);
        let program = self.language.build(&stem, &cell.code, &[], &env);
        let mut program = program.map_err(|failure| SessionError::Start {
            language: self.language.info().name.clone(),
            reason: failure.message,
        })?;
        for (path, bytes) in &program.files {
            if let Err(error) = self
                .sandbox
                .files()
                .write(path, bytes.clone(), WriteMode::Replace)
                .await
            {
                return Ok(CellOutcome {
                    status: CellStatus::Error(CellError {
                        name: "OSError".to_owned(),
                        message: error.to_string(),
                        traceback: format!("{path} could not be written: {error}"),
                        class: "disk".to_owned(),
                        ..CellError::default()
                    }),
                });
            }
        }
        let files = std::mem::take(&mut program.files);
        let pictures = self.language.pictures();
        let before = match pictures {
            Some(prefix) => Drawn::look(self.sandbox.files(), prefix).await,
            None => Drawn::default(),
        };
        let compiled = match program.compile.take() {
            Some(compile) => self.compile(compile, events).await,
            None => Ok(None),
        };
        let status = match compiled {
            Ok(Some(status)) => Ok(status),
            Ok(None) => {
                hand_on(events, SessionEvent::Begun).await;
                self.run(program, cell.stdin, events).await
            }
            Err(error) => Err(error),
        };
        *self.running.lock() = None;
        let status = status?;
        if let Some(prefix) = pictures {
            let drawn = Drawn::look(self.sandbox.files(), prefix).await;
            drawn.display(&before, self.sandbox.files(), events).await;
        }
        self.clean(&files, env).await;
        Ok(CellOutcome { status })
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        Arc::new(OneShotInterrupter(self.running.clone()))
    }

    fn features(&self) -> SessionFeatures {
        SessionFeatures {
            result_value: false,
            display: false,
            interrupt: true,
            stdin: true,
        }
    }

    fn preparing(&self) -> Duration {
        self.language.compile_timeout()
    }
}

struct OneShotInterrupter(Arc<Running>);

#[async_trait]
impl Interrupter for OneShotInterrupter {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.0.signal(Signal::Interrupt, SignalScope::Group).await
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.signal(Signal::Kill, SignalScope::Tree).await
    }
}
