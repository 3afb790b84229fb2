//! A sandbox that isolates nothing: programs run on the host, with pipes on descriptors 3 and 4. Only for tests of the
//! inside of sandboxes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::process::{Pid, kill_process, kill_process_group};
use sandcell_languages::python::{PythonLanguage, locate};
use sandcell_sandbox::{
    Cell, CellError, CellStatus, Channel, Command, EndReason, Ended, Entry, Exit, FileChunk, FileError, Files,
    Interrupter, Isolation, Level, Listing, MimeBundle, OutputStream, Process, ProcessEvent, ProcessHandle, Sandbox,
    SandboxError, SandboxPath, Session, SessionError, SessionEvent, Signal, SignalScope, Usage, WriteMode,
};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};

/// The unconfined sandbox, with a private home folder.
#[derive(Debug)]
pub(crate) struct HostSandbox {
    home: tempfile::TempDir,
    env: BTreeMap<String, String>,
    isolation: Isolation,
}

impl HostSandbox {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_variables(&[])
    }

    /// Creates a sandbox whose programs have these variables, too.
    pub(crate) fn with_variables(more: &[(&str, &str)]) -> Arc<Self> {
        let home = tempfile::tempdir().unwrap();
        // matplotlib takes a second or more to build its list of fonts, so all sandboxes of the tests share one.
        let fonts = std::env::temp_dir().join("sandcell-tests-matplotlib");
        let env = [
            ("MPLCONFIGDIR", fonts.to_str().unwrap()),
            ("HOME", home.path().to_str().unwrap()),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
        ];
        let env = env.iter().chain(more);
        Arc::new(Self {
            env: env
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            home,
            isolation: Isolation {
                backend: "test".to_owned(),
                level: Level::None,
                memory: None,
                layers: Vec::new(),
                degraded: Vec::new(),
            },
        })
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.home.path().canonicalize().unwrap()
    }
}

/// Returns true if sessions keep snapshots. All tests run either way.
pub(crate) fn with_snapshots() -> bool {
    std::env::var_os("SANDCELL_TEST_SNAPSHOTS").is_some()
}

#[derive(Debug)]
struct HostProcess {
    /// The group of the program, or of the snapshot that has replaced it.
    group: std::sync::Mutex<Pid>,
    control: Mutex<Option<pipe::Sender>>,
    events: mpsc::Sender<ProcessEvent>,
    /// The value of HOME, which identifies its processes.
    home: String,
    /// Kept snapshots.
    kept: std::sync::Mutex<Vec<i32>>,
}

impl HostProcess {
    fn signal_group(&self, signal: rustix::process::Signal) {
        let _ = kill_process_group(*self.group.lock().unwrap(), signal);
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.signal_group(rustix::process::Signal::KILL);
        if !with_snapshots() {
            return;
        }
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let name = std::fs::read(entry.path().join("comm")).unwrap_or_default();
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let ours = environment
                .split(|byte| *byte == 0)
                .any(|item| item == self.home.as_bytes());
            if let Some(pid) = pid
                .and_then(Pid::from_raw)
                .filter(|_| ours && (name == b"sandcell-copy\n" || name == b"sandcell-kept\n"))
            {
                let _ = kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Returns true if a process of any parent still runs.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[async_trait]
impl ProcessHandle for HostProcess {
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError> {
        assert_eq!(channel, Channel::Control);
        if let Some(control) = self.control.lock().await.as_mut() {
            control
                .write_all(&bytes)
                .await
                .map_err(|error| SandboxError::Protocol(error.to_string()))?;
        }
        Ok(())
    }

    async fn close(&self, _channel: Channel) -> Result<(), SandboxError> {
        *self.control.lock().await = None;
        Ok(())
    }

    async fn signal(&self, signal: Signal, _scope: SignalScope) -> Result<(), SandboxError> {
        let signal = match signal {
            Signal::Interrupt => rustix::process::Signal::INT,
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Nudge => rustix::process::Signal::URG,
        };
        self.signal_group(signal);
        Ok(())
    }

    fn has_heirs(&self) -> bool {
        with_snapshots()
    }

    async fn kill_but(&self, _heir: i32) -> Result<(), SandboxError> {
        // A snapshot is in a separate group.
        self.signal_group(rustix::process::Signal::KILL);
        Ok(())
    }

    fn keeps_heirs(&self) -> bool {
        with_snapshots()
    }

    async fn keep(&self, heir: i32, expendable: bool) -> Result<(), SandboxError> {
        let pid = Pid::from_raw(heir).filter(|_| runs(heir));
        let pid = pid.ok_or_else(|| SandboxError::Unsupported("an heir that is gone".to_owned()))?;
        if !expendable {
            kill_process(pid, rustix::process::Signal::USR2).unwrap();
        }
        self.kept.lock().unwrap().push(heir);
        Ok(())
    }

    async fn kept(&self) -> Result<Vec<i32>, SandboxError> {
        let kept = self.kept.lock().unwrap().clone();
        Ok(kept.into_iter().filter(|pid| runs(*pid)).collect())
    }

    async fn release(&self, heir: i32) -> Result<(), SandboxError> {
        self.kept.lock().unwrap().retain(|kept| *kept != heir);
        kill_process(Pid::from_raw(heir).unwrap(), rustix::process::Signal::KILL).unwrap();
        Ok(())
    }

    async fn succeed(&self, heir: i32) -> Result<(), SandboxError> {
        self.signal_group(rustix::process::Signal::KILL);
        let pid = Pid::from_raw(heir).filter(|_| runs(heir));
        let pid = pid.ok_or_else(|| SandboxError::Unsupported("an heir that is gone".to_owned()))?;
        *self.group.lock().unwrap() = pid;
        kill_process(pid, rustix::process::Signal::USR1).unwrap();
        let events = self.events.clone();
        tokio::spawn(async move {
            while runs(heir) && !events.is_closed() {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            // Only its parent knows its exit status.
            let exit = Exit::Signal(9);
            let _ = events.send(ProcessEvent::Exited { exit }).await;
        });
        Ok(())
    }
}

#[async_trait]
impl Sandbox for HostSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        // Snapshots obey their parent only.
        rustix::process::set_child_subreaper(Some(Pid::INIT)).unwrap();
        let fifo = tempfile::tempdir().unwrap();
        let path = fifo.path().join("control");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let control_out = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        let (child_end, ours) = std::io::pipe().unwrap();
        let ours = OwnedFd::from(ours);
        let mut child = tokio::process::Command::new("/bin/sh")
            .args(["-c", "exec \"$@\" 3<&0 4>\"$0\" 0</dev/null"])
            .arg(&path)
            .args(&command.argv)
            .env_clear()
            .envs(&command.env)
            .current_dir(self.home.path())
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(child_end)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let group = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        let receiver = |fd: OwnedFd| pipe::Receiver::from_owned_fd(fd).unwrap();
        let stdout = receiver(child.stdout.take().unwrap().into_owned_fd().unwrap());
        let stderr = receiver(child.stderr.take().unwrap().into_owned_fd().unwrap());
        let (sender, events) = mpsc::channel(64);
        let told = sender.clone();
        tokio::spawn(async move {
            let _fifo = fifo;
            pump(child, [stdout, stderr, control_out], sender).await;
        });
        Ok(Process {
            pid: None,
            events,
            handle: Arc::new(HostProcess {
                group: std::sync::Mutex::new(group),
                control: Mutex::new(Some(pipe::Sender::from_owned_fd(ours).unwrap())),
                events: told,
                home: format!("HOME={}", self.home.path().display()),
                kept: std::sync::Mutex::default(),
            }),
        })
    }

    fn files(&self) -> &dyn Files {
        &NoFiles
    }

    async fn usage(&self) -> Result<Usage, SandboxError> {
        Ok(Usage::default())
    }

    async fn close(&self) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn ended(&self) -> Ended {
        Ended {
            reason: EndReason::Closed,
        }
    }
}

struct NoFiles;

#[async_trait]
impl Files for NoFiles {
    async fn list(&self, _: &SandboxPath, _: bool, _: usize) -> Result<Listing, FileError> {
        Ok(Listing {
            entries: Vec::<Entry>::new(),
            omitted: 0,
        })
    }

    async fn read(&self, path: &SandboxPath, _: u64, _: u64) -> Result<FileChunk, FileError> {
        Err(FileError::NotFound { path: path.to_string() })
    }

    async fn write(&self, path: &SandboxPath, _: Bytes, _: WriteMode) -> Result<u64, FileError> {
        Err(FileError::ReadOnly { path: path.to_string() })
    }

    async fn entry(&self, path: &SandboxPath) -> Result<Entry, FileError> {
        Err(FileError::NotFound { path: path.to_string() })
    }

    async fn make_folder(&self, path: &SandboxPath) -> Result<bool, FileError> {
        Err(FileError::ReadOnly { path: path.to_string() })
    }

    async fn rename(&self, from: &SandboxPath, _: &SandboxPath) -> Result<(), FileError> {
        Err(FileError::NotFound { path: from.to_string() })
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), FileError> {
        Err(FileError::NotFound { path: path.to_string() })
    }
}

/// Forwards output. Before control bytes, it forwards the content of the other pipes at that moment.
async fn pump(mut child: tokio::process::Child, pipes: [pipe::Receiver; 3], to: mpsc::Sender<ProcessEvent>) {
    const OUTPUT_CHANNELS: [Channel; 3] = [Channel::Stdout, Channel::Stderr, Channel::Control];
    let mut open = [true; 3];
    let mut alive = true;
    while alive || open.contains(&true) {
        let at = tokio::select! {
            _ = pipes[0].readable(), if open[0] => 0,
            _ = pipes[1].readable(), if open[1] => 1,
            _ = pipes[2].readable(), if open[2] => 2,
            status = child.wait(), if alive => {
                use std::os::unix::process::ExitStatusExt;
                alive = false;
                let status = status.unwrap();
                let exit = match status.code() {
                    Some(code) => Exit::Code(u8::try_from(code).unwrap()),
                    None => Exit::Signal(u8::try_from(status.signal().unwrap()).unwrap()),
                };
                let _ = to.send(ProcessEvent::Exited { exit }).await;
                continue;
            }
            () = to.closed() => return,
        };
        let Some(bytes) = read(&pipes[at]) else { continue };
        if at == 2 {
            for other in 0..2 {
                while let Some(bytes) = open[other].then(|| read_now(&pipes[other])).flatten() {
                    open[other] = tell(&to, OUTPUT_CHANNELS[other], bytes).await;
                    if !open[other] {
                        break;
                    }
                }
            }
        }
        open[at] = tell(&to, OUTPUT_CHANNELS[at], bytes).await;
    }
}

/// Returns the pipe's content, even if the runtime does not know of it yet.
fn read_now(pipe: &pipe::Receiver) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65536];
    let count = rustix::io::read(pipe, &mut buffer).ok()?;
    buffer.truncate(count);
    Some(buffer)
}

fn read(pipe: &pipe::Receiver) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65536];
    match pipe.try_read(&mut buffer) {
        Ok(length) => {
            buffer.truncate(length);
            Some(buffer)
        }
        Err(_) => None,
    }
}

async fn tell(to: &mpsc::Sender<ProcessEvent>, channel: Channel, bytes: Vec<u8>) -> bool {
    let more = !bytes.is_empty();
    let event = match more {
        true => ProcessEvent::Output {
            channel,
            bytes: bytes.into(),
        },
        false => ProcessEvent::Closed { channel },
    };
    let _ = to.send(event).await;
    more
}

/// The events of one cell.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The output to both streams between this cell and the previous one.
    pub(crate) background: String,
    pub(crate) displays: Vec<MimeBundle>,
    pub(crate) result: Option<MimeBundle>,
    pub(crate) status: Result<CellStatus, SessionError>,
    /// The order: `b`ackground, `o`ut, `e`rr, `d`isplay, `r`esult, runs folded.
    pub(crate) order: String,
}

impl Ran {
    pub(crate) fn text(&self) -> String {
        self.result.as_ref().map(MimeBundle::text).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!(matches!(self.status, Ok(CellStatus::Ok)), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn error(&self) -> &CellError {
        match &self.status {
            Ok(CellStatus::Error(error)) => error,
            _ => panic!("not an error: {self:#?}"),
        }
    }

    #[track_caller]
    pub(crate) fn interrupted(&self) -> &CellError {
        match &self.status {
            Ok(CellStatus::Interrupted(error)) => error,
            _ => panic!("not interrupted: {self:#?}"),
        }
    }
}

/// A Python session on the host.
pub(crate) struct Python {
    pub(crate) session: Box<dyn Session>,
    pub(crate) sandbox: Arc<HostSandbox>,
    /// True if values of the next cells shall also have their complete data.
    pub(crate) exact: bool,
    /// The execution of the next cells.
    pub(crate) execution: Option<String>,
    cells: u32,
}

/// Returns the language with the Python that `SANDCELL_TEST_PYTHON` names, or else the machine's. If there is none,
/// prints a note and returns None.
pub(crate) fn language() -> Option<PythonLanguage> {
    let chosen = std::env::var_os("SANDCELL_TEST_PYTHON").map(PathBuf::from);
    match locate(chosen.as_deref()) {
        Ok(runtime) => Some(PythonLanguage::new(runtime)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

impl Python {
    pub(crate) async fn start() -> Option<Self> {
        Some(Self::with(&language()?).await)
    }

    pub(crate) async fn with(language: &PythonLanguage) -> Self {
        Self::inside(language, HostSandbox::new()).await
    }

    pub(crate) async fn inside(language: &PythonLanguage, sandbox: Arc<HostSandbox>) -> Self {
        Self {
            session: Box::new(language.open_session(sandbox.as_ref()).await.unwrap()),
            sandbox,
            exact: false,
            execution: None,
            cells: 0,
        }
    }

    /// Opens a session whose inside end is this shell script.
    pub(crate) async fn pretender(script: &str) -> Result<Self, SessionError> {
        let sandbox = HostSandbox::new();
        let start = sandcell_languages::control::Start {
            language: "python".to_owned(),
            command: Command {
                argv: vec!["/bin/bash".to_owned(), "-c".to_owned(), script.to_owned()],
                env: sandbox.base_env().clone(),
                cwd: "/".to_owned(),
                stands_alone: false,
                stdin: sandcell_sandbox::StdinMode::Null,
                control: true,
                terminal: None,
            },
            boot: Bytes::from_static(b"boot"),
            snapshots: match with_snapshots() {
                true => sandcell_languages::control::Snapshots::Kept,
                false => sandcell_languages::control::Snapshots::TurnedOff,
            },
            code: sandcell_languages::control::CodeIn::Header,
            features: sandcell_sandbox::SessionFeatures {
                result_value: true,
                display: true,
                interrupt: true,
                stdin: true,
            },
        };
        let session = sandcell_languages::control::DriverSession::open(sandbox.as_ref(), start).await?;
        Ok(Self {
            session: Box::new(session),
            sandbox,
            exact: false,
            execution: None,
            cells: 0,
        })
    }

    pub(crate) fn interrupter(&self) -> Arc<dyn Interrupter> {
        self.session.interrupter()
    }

    pub(crate) async fn run(&mut self, code: &str) -> Ran {
        self.run_with(code, None, |_| {}).await
    }

    pub(crate) async fn run_stdin(&mut self, code: &str, stdin: &str) -> Ran {
        self.run_with(code, Some(stdin), |_| {}).await
    }

    /// Runs the cell and interrupts it as soon as it has printed something.
    pub(crate) async fn run_interrupted(&mut self, code: &str) -> Ran {
        let interrupter = self.interrupter();
        self.run_with(code, None, move |_| {
            let interrupter = Arc::clone(&interrupter);
            tokio::spawn(async move { interrupter.interrupt().await });
        })
        .await
    }

    /// Runs the cell; `on_first_output` is called once.
    pub(crate) async fn run_with(
        &mut self,
        code: &str,
        stdin: Option<&str>,
        on_first_output: impl FnOnce(&[u8]),
    ) -> Ran {
        self.cells += 1;
        let (sender, mut events) = mpsc::channel(16);
        let cell = Cell {
            code: code.to_owned(),
            stdin: stdin.map(str::to_owned),
            number: self.cells,
            packages: false,
            exact: self.exact,
            execution: self.execution.clone(),
        };
        let collect = async {
            let (mut stdout, mut stderr, mut background) = (Vec::new(), Vec::new(), Vec::new());
            let (mut displays, mut result, mut order) = (Vec::new(), None, String::new());
            let mut first = Some(on_first_output);
            while let Some(event) = events.recv().await {
                let mark = match event {
                    SessionEvent::Output { stream, bytes } => {
                        if let Some(first) = first.take() {
                            first(&bytes);
                        }
                        match stream {
                            OutputStream::Stdout => {
                                stdout.extend_from_slice(&bytes);
                                'o'
                            }
                            OutputStream::Stderr => {
                                stderr.extend_from_slice(&bytes);
                                'e'
                            }
                        }
                    }
                    SessionEvent::Background { bytes, .. } => {
                        background.extend_from_slice(&bytes);
                        'b'
                    }
                    SessionEvent::Begun => continue,
                    SessionEvent::Display(bundle) => {
                        displays.push(bundle);
                        'd'
                    }
                    SessionEvent::Result(bundle) => {
                        result = Some(bundle);
                        'r'
                    }
                    SessionEvent::Install { packages } => panic!("nobody installs packages here: {packages:?}"),
                };
                if !order.ends_with(mark) {
                    order.push(mark);
                }
            }
            (stdout, stderr, background, displays, result, order)
        };
        let session = &mut self.session;
        let execute = async move {
            let outcome = session.execute(cell, &sender).await;
            drop(sender);
            outcome
        };
        let both = async { tokio::join!(execute, collect) };
        let (outcome, (stdout, stderr, background, displays, result, order)) =
            tokio::time::timeout(std::time::Duration::from_secs(120), both)
                .await
                .unwrap_or_else(|_| panic!("this cell did not end: {code}"));
        Ran {
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            background: String::from_utf8_lossy(&background).into_owned(),
            displays,
            result,
            status: outcome.map(|outcome| outcome.status),
            order,
        }
    }
}
