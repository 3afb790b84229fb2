//! The scripted back end and its sandboxes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Attachments, Backend, BaseEnv, Channel, Command, EndReason, Ended, Entry, EntryKind, Exit, FileChunk, FileError,
    Files, Isolation, LAYERS, LayerReport, Level, Listing, Process, ProcessEvent, ProcessHandle, Sandbox, SandboxError,
    SandboxPath, SandboxSpec, Signal, SignalScope, Usage, WriteMode,
};
use tokio::sync::{mpsc, watch};

/// The switches and counters of a test.
#[derive(Debug)]
pub struct World {
    /// Sandboxes that are not closed.
    pub live: AtomicUsize,
    pub made: AtomicUsize,
    /// Queries for usage.
    pub usage_asked: AtomicUsize,
    /// Queries for usage time out.
    pub usage_hangs: AtomicBool,
    /// Opened interpreters, and those that still live.
    pub opened: AtomicUsize,
    pub interpreters: AtomicUsize,
    pub create_delay: Mutex<Duration>,
    pub close_delay: Mutex<Duration>,
    /// The back end ends all sandboxes together at the shutdown.
    pub ends_together: AtomicBool,
    pub open_delay: Mutex<Duration>,
    /// The delay until the end of a sandbox is visible from outside.
    pub end_delay: Mutex<Duration>,
    pub open_fails: AtomicBool,
    /// The duration of a listing of variables. It ends the interpreter if the sandbox is paused meanwhile.
    pub listing_takes: Mutex<Duration>,
    /// Preloading modules ends the interpreter.
    pub preload_fails: AtomicBool,
    /// False if environment variables cannot be added to sandboxes.
    pub env_can_be_added: AtomicBool,
    /// True if interpreters end when environment variables are added.
    pub env_fails: AtomicBool,
    /// Interpreters that preloaded modules, and the memory of each one afterwards.
    pub preloaded: AtomicUsize,
    /// Warm-up cells that ran.
    pub warm_up_cells: AtomicUsize,
    /// The snapshot pauses set for sessions, one for each cell.
    pub waits: Mutex<Vec<Duration>>,
    pub weight: AtomicU64,
    /// The n-th creation (from 1) and later ones fail.
    pub fail_from: AtomicUsize,
    /// The size of one piece of a file read.
    pub read_piece: AtomicUsize,
    pub specs: Mutex<Vec<SandboxSpec>>,
    /// The programs that were started in sandboxes.
    pub commands: Mutex<Vec<Command>>,
    /// The files that were read, one for each piece.
    pub reads: Mutex<Vec<String>>,
    pub sandboxes: Mutex<Vec<Arc<Inside>>>,
    notes: watch::Sender<HashSet<String>>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            live: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            usage_asked: AtomicUsize::new(0),
            usage_hangs: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            interpreters: AtomicUsize::new(0),
            create_delay: Mutex::default(),
            close_delay: Mutex::default(),
            ends_together: AtomicBool::new(false),
            open_delay: Mutex::default(),
            end_delay: Mutex::default(),
            open_fails: AtomicBool::new(false),
            listing_takes: Mutex::default(),
            preload_fails: AtomicBool::new(false),
            env_can_be_added: AtomicBool::new(true),
            env_fails: AtomicBool::new(false),
            preloaded: AtomicUsize::new(0),
            warm_up_cells: AtomicUsize::new(0),
            waits: Mutex::default(),
            weight: AtomicU64::new(0),
            fail_from: AtomicUsize::new(usize::MAX),
            read_piece: AtomicUsize::new(usize::MAX),
            specs: Mutex::default(),
            commands: Mutex::default(),
            reads: Mutex::default(),
            sandboxes: Mutex::default(),
            notes: watch::Sender::new(HashSet::new()),
        }
    }
}

impl World {
    pub fn note(&self, note: &str) {
        self.notes.send_modify(|notes| {
            notes.insert(note.to_owned());
        });
    }

    pub async fn noted(&self, note: &str) {
        let mut notes = self.notes.subscribe();
        let waiting = notes.wait_for(|notes| notes.contains(note));
        tokio::time::timeout(Duration::from_secs(60), waiting)
            .await
            .expect("the note never came")
            .unwrap();
    }

    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Waits until this many sandboxes are live.
    pub async fn live_becomes(&self, count: usize) {
        for _ in 0..10_000 {
            if self.live() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{} sandboxes are live instead of {count}", self.live());
    }

    /// The newest sandbox.
    pub fn last(&self) -> Arc<Inside> {
        self.sandboxes.lock().unwrap().last().unwrap().clone()
    }
}

#[derive(Debug)]
pub struct FakeBackend {
    name: &'static str,
    isolation: Isolation,
    world: Arc<World>,
    pub error: Mutex<Option<&'static str>>,
    pub shut: AtomicUsize,
}

impl FakeBackend {
    pub fn new(name: &'static str, world: Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            name,
            isolation: Isolation {
                backend: name.to_owned(),
                level: Level::Namespace,
                memory: None,
                layers: vec!["pretence".to_owned()],
                degraded: Vec::new(),
            },
            world,
            error: Mutex::new(None),
            shut: AtomicUsize::new(0),
        })
    }

    /// Makes every creation fail: `unavailable`, `unsupported`, `isolation` or `panic`.
    pub fn broken(name: &'static str, world: Arc<World>, error: &'static str) -> Arc<Self> {
        let backend = Self::new(name, world);
        *backend.error.lock().unwrap() = Some(error);
        backend
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn layers(&self) -> &[LayerReport] {
        &[]
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let delay = *self.world.create_delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        let error = match *self.error.lock().unwrap() {
            None => None,
            Some("panic") => panic!("as the test asked for"),
            Some("unsupported") => Some(SandboxError::Unsupported("an image".to_owned())),
            Some("isolation") => Some(SandboxError::Isolation {
                layer: "userns".to_owned(),
                reason: "forbidden".to_owned(),
                remedy: "allow it".to_owned(),
            }),
            Some(_) => Some(SandboxError::Unavailable {
                backend: self.name.to_owned(),
                reason: "it is down".to_owned(),
                remedy: "start it".to_owned(),
            }),
        };
        if let Some(error) = error {
            return Err(error);
        }
        let made = self.world.made.fetch_add(1, Ordering::SeqCst) + 1;
        if made >= self.world.fail_from.load(Ordering::SeqCst) {
            return Err(SandboxError::Setup {
                step: "cgroup".to_owned(),
                source: std::io::Error::other("no space"),
            });
        }
        self.world.live.fetch_add(1, Ordering::SeqCst);
        self.world.specs.lock().unwrap().push(spec.clone());
        let inside = Arc::new(Inside {
            world: self.world.clone(),
            usage: Mutex::new(Usage {
                memory_peak: 9 << 20,
                ..Usage::default()
            }),
            files: Mutex::default(),
            links: Mutex::default(),
            ended: watch::Sender::new(None),
            paused: AtomicBool::new(false),
        });
        let mut sandboxes = self.world.sandboxes.lock().unwrap();
        let mut env = spec.env.clone();
        env.insert("FAKE_NUMBER".to_owned(), sandboxes.len().to_string());
        sandboxes.push(inside.clone());
        Ok(Arc::new(FakeSandbox {
            inside,
            isolation: self.isolation.clone(),
            env: BaseEnv::new(env),
            attached: Mutex::default(),
        }))
    }

    fn begin_shutdown(&self) {
        if self.world.ends_together.load(Ordering::SeqCst) {
            let sandboxes = self.world.sandboxes.lock().unwrap();
            sandboxes.iter().for_each(|inside| {
                inside.end(EndReason::Closed);
            });
        }
    }

    async fn shutdown(&self) {
        self.shut.fetch_add(1, Ordering::SeqCst);
    }
}

/// The part of a sandbox that its sessions see.
#[derive(Debug)]
pub struct Inside {
    pub world: Arc<World>,
    pub usage: Mutex<Usage>,
    pub files: Mutex<BTreeMap<String, Bytes>>,
    /// Links by path, with their targets.
    pub links: Mutex<BTreeMap<String, String>>,
    pub ended: watch::Sender<Option<EndReason>>,
    pub paused: AtomicBool,
}

impl Inside {
    /// Ends the sandbox as if by itself.
    pub fn end(&self, reason: EndReason) -> bool {
        let ended = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(reason);
            }
            first
        });
        if ended {
            self.world.live.fetch_sub(1, Ordering::SeqCst);
        }
        ended
    }

    async fn set_paused(&self, paused: bool) -> Result<(), SandboxError> {
        self.check()?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.paused.store(paused, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(())
    }

    pub async fn gone(&self) -> EndReason {
        let mut ended = self.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await.unwrap();
        found.unwrap()
    }

    pub fn check(&self) -> Result<(), SandboxError> {
        match *self.ended.borrow() {
            None => Ok(()),
            Some(reason) => Err(SandboxError::Gone(reason)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct FakeSandbox {
    pub inside: Arc<Inside>,
    isolation: Isolation,
    env: BaseEnv,
    attached: Mutex<Vec<PathBuf>>,
}

impl Drop for FakeSandbox {
    fn drop(&mut self) {
        self.inside.end(EndReason::Closed);
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn base_env(&self) -> &BTreeMap<String, String> {
        self.env.get()
    }

    fn add_env(&self, env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        if !self.inside.world.env_can_be_added.load(Ordering::SeqCst) {
            return Err(SandboxError::Unsupported("adding environment variables".to_owned()));
        }
        self.env.add(env)
    }

    async fn spawn(&self, command: Command) -> Result<Process, SandboxError> {
        self.inside.check()?;
        self.inside.world.commands.lock().unwrap().push(command.clone());
        let path = command.argv.get(1).cloned().unwrap_or_default();
        let code = self
            .inside
            .files
            .lock()
            .unwrap()
            .get(&path)
            .cloned()
            .unwrap_or_default();
        let (sender, events) = mpsc::channel(4);
        let (stdin, input) = mpsc::channel(4);
        let (signals, heard) = mpsc::channel(4);
        let code = String::from_utf8(code.to_vec()).unwrap();
        tokio::spawn(program(code, command, sender, input, heard, self.inside.clone()));
        Ok(Process {
            pid: Some(7),
            events,
            handle: Arc::new(FakeHandle {
                stdin: Mutex::new(Some(stdin)),
                signals,
            }),
        })
    }

    fn files(&self) -> &dyn Files {
        self.inside.as_ref()
    }

    /// Takes a moment before and after the change, so that a caller can go away meanwhile.
    async fn pause(&self) -> Result<(), SandboxError> {
        self.inside.set_paused(true).await
    }

    async fn resume(&self) -> Result<(), SandboxError> {
        self.inside.set_paused(false).await
    }

    async fn usage(&self) -> Result<Usage, SandboxError> {
        self.inside.world.usage_asked.fetch_add(1, Ordering::SeqCst);
        if self.inside.world.usage_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inside.check()?;
        Ok(*self.inside.usage.lock().unwrap())
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.inside.ended.borrow().is_some() {
            return Ok(());
        }
        let delay = *self.inside.world.close_delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        self.inside.end(EndReason::Closed);
        Ok(())
    }

    async fn ended(&self) -> Ended {
        let reason = self.inside.gone().await;
        let delay = *self.inside.world.end_delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        Ended { reason }
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }
}

/// Folders are accepted and not shown: no program reads them.
#[async_trait]
impl Attachments for FakeSandbox {
    async fn attach(&self, folder: &Path) -> Result<String, SandboxError> {
        let mut attached = self.attached.lock().unwrap();
        attached.push(folder.to_owned());
        Ok(format!("{LAYERS}/{}", attached.len() - 1))
    }

    async fn attached(&self) -> Vec<PathBuf> {
        self.attached.lock().unwrap().clone()
    }
}

#[async_trait]
impl Files for Inside {
    async fn list(&self, path: &SandboxPath, recursive: bool, max: usize) -> Result<Listing, FileError> {
        self.check()?;
        let below = format!("{}/", path.as_str());
        let entry = |name: &str, kind, target: Option<&String>, size: usize| Entry {
            name: name.to_owned(),
            kind,
            target: target.cloned(),
            size: u64::try_from(size).unwrap(),
            modified_ms: 0,
            mode: 0o644,
            user: 1000,
            group: 1000,
        };
        let files = self.files.lock().unwrap();
        let files = files
            .iter()
            .map(|(name, bytes)| (name, EntryKind::File, None, bytes.len()));
        let links = self.links.lock().unwrap();
        let links = links
            .iter()
            .map(|(name, target)| (name, EntryKind::Link, Some(target), target.len()));
        let mut own = BTreeMap::new();
        for (path, kind, target, size) in files.chain(links) {
            let Some(name) = path.strip_prefix(&below) else {
                continue;
            };
            // A file below another folder shows its folder, and itself if the whole tree is asked for.
            if let Some((folder, _)) = name.split_once('/') {
                own.insert(folder.to_owned(), entry(folder, EntryKind::Folder, None, 4096));
                if !recursive {
                    continue;
                }
            }
            own.insert(name.to_owned(), entry(name, kind, target, size));
        }
        Ok(Listing {
            omitted: u64::try_from(own.len().saturating_sub(max)).unwrap(),
            entries: own.into_values().take(max).collect(),
        })
    }

    async fn read(&self, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
        self.check()?;
        self.world.reads.lock().unwrap().push(path.to_string());
        let piece = self.world.read_piece.load(Ordering::SeqCst);
        let files = self.files.lock().unwrap();
        let bytes = files
            .get(path.as_str())
            .ok_or_else(|| FileError::NotFound { path: path.to_string() })?;
        let start = usize::try_from(offset).unwrap().min(bytes.len());
        let end = start.saturating_add(usize::try_from(len).unwrap().min(piece));
        Ok(FileChunk {
            bytes: bytes.slice(start..end.min(bytes.len())),
            total: u64::try_from(bytes.len()).unwrap(),
        })
    }

    async fn write(&self, path: &SandboxPath, bytes: Bytes, mode: WriteMode) -> Result<u64, FileError> {
        self.check()?;
        if path.as_str().starts_with("/slow") {
            std::future::pending::<()>().await;
        }
        if path.as_str().starts_with("/usr") {
            return Err(FileError::ReadOnly { path: path.to_string() });
        }
        let mut files = self.files.lock().unwrap();
        let old = files.remove(path.as_str()).unwrap_or_default();
        let new = match mode {
            WriteMode::Replace => bytes,
            WriteMode::Append => [old, bytes].concat().into(),
        };
        let size = u64::try_from(new.len()).unwrap();
        files.insert(path.to_string(), new);
        Ok(size)
    }

    async fn entry(&self, path: &SandboxPath) -> Result<Entry, FileError> {
        self.check()?;
        let not_found = || FileError::NotFound { path: path.to_string() };
        let file = self.files.lock().unwrap().get(path.as_str()).map(Bytes::len);
        let (kind, size) = match file {
            Some(size) => (EntryKind::File, size),
            None => match self.list(path, false, 1).await?.entries.is_empty() {
                true => return Err(not_found()),
                false => (EntryKind::Folder, 4096),
            },
        };
        Ok(Entry {
            name: path.name().to_owned(),
            kind,
            target: None,
            size: u64::try_from(size).unwrap(),
            modified_ms: 0,
            mode: 0o644,
            user: 1000,
            group: 1000,
        })
    }

    /// Folders exist where files are, so an empty one has a hidden file.
    async fn make_folder(&self, path: &SandboxPath) -> Result<bool, FileError> {
        self.check()?;
        match self.entry(path).await.map(|entry| entry.kind) {
            Ok(EntryKind::Folder) => Ok(false),
            Ok(_) => Err(FileError::Exists { path: path.to_string() }),
            Err(_) => {
                let name = format!("{}/.folder", path.as_str());
                self.files.lock().unwrap().insert(name, Bytes::new());
                Ok(true)
            }
        }
    }

    /// The fake `/tmp` is another file system.
    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), FileError> {
        self.check()?;
        if from.as_str().starts_with("/tmp/") != to.as_str().starts_with("/tmp/") {
            return Err(FileError::OtherFileSystem { path: from.to_string() });
        }
        let mut files = self.files.lock().unwrap();
        let bytes = files.remove(from.as_str());
        let bytes = bytes.ok_or_else(|| FileError::NotFound { path: from.to_string() })?;
        files.insert(to.to_string(), bytes);
        Ok(())
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), FileError> {
        self.check()?;
        let below = format!("{}/", path.as_str());
        let mut files = self.files.lock().unwrap();
        let before = files.len();
        files.retain(|name, _| name != path.as_str() && !name.starts_with(&below));
        if files.len() == before {
            return Err(FileError::NotFound { path: path.to_string() });
        }
        Ok(())
    }
}

#[derive(Debug)]
struct FakeHandle {
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    signals: mpsc::Sender<(Signal, SignalScope)>,
}

#[async_trait]
impl ProcessHandle for FakeHandle {
    async fn write(&self, _channel: Channel, bytes: Bytes) -> Result<(), SandboxError> {
        let stdin = self.stdin.lock().unwrap().clone();
        match stdin {
            Some(stdin) => stdin
                .send(bytes)
                .await
                .map_err(|_| SandboxError::Protocol("closed".to_owned())),
            None => Err(SandboxError::Protocol("closed".to_owned())),
        }
    }

    async fn close(&self, _channel: Channel) -> Result<(), SandboxError> {
        self.stdin.lock().unwrap().take();
        Ok(())
    }

    async fn signal(&self, signal: Signal, scope: SignalScope) -> Result<(), SandboxError> {
        // A process that has already ended is not an error.
        self.signals.send((signal, scope)).await.ok();
        Ok(())
    }
}

/// A program: its lines are `print TEXT`, `args`, `env NAME`, `cat` (stdin), `sleep MS`, `stubborn`, `flood`,
/// `exit N`, `signal N`, `oom`, `write PATH TEXT`, and `daemon` (leaves the output open after the end).
async fn program(
    code: String,
    command: Command,
    events: mpsc::Sender<ProcessEvent>,
    mut stdin: mpsc::Receiver<Bytes>,
    mut signals: mpsc::Receiver<(Signal, SignalScope)>,
    inside: Arc<Inside>,
) {
    let out = |text: String| ProcessEvent::Output {
        channel: Channel::Stdout,
        bytes: text.into(),
    };
    let mut exit = Exit::Code(0);
    let mut daemon = false;
    for line in code.lines() {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "print" => drop(events.send(out(format!("{rest}\n"))).await),
            "args" => drop(events.send(out(format!("{:?}\n", &command.argv[2..]))).await),
            "env" => drop(
                events
                    .send(out(format!("{:?} {}\n", command.env.get(rest), command.cwd)))
                    .await,
            ),
            "cat" => loop {
                let bytes = tokio::select! {
                    bytes = stdin.recv() => bytes,
                    _ = signals.recv() => { exit = Exit::Signal(2); None }
                };
                let Some(bytes) = bytes else { break };
                let event = ProcessEvent::Output {
                    channel: Channel::Stdout,
                    bytes,
                };
                drop(events.send(event).await);
            },
            "sleep" => {
                let sleep = tokio::time::sleep(Duration::from_millis(rest.parse().unwrap()));
                tokio::select! {
                    () = sleep => {}
                    _ = signals.recv() => { exit = Exit::Signal(2); break; }
                }
            }
            "stubborn" => {
                while signals.recv().await.is_some_and(|(signal, _)| signal != Signal::Kill) {}
                exit = Exit::Signal(9);
                break;
            }
            "flood" => while events.send(out("x".repeat(1000))).await.is_ok() && signals.try_recv().is_err() {},
            "exit" => {
                exit = Exit::Code(rest.parse().unwrap());
                break;
            }
            "signal" => {
                exit = Exit::Signal(rest.parse().unwrap());
                break;
            }
            "oom" => {
                inside.usage.lock().unwrap().memory_events += 1;
                exit = Exit::Signal(9);
                break;
            }
            "write" => {
                let (path, text) = rest.split_once(' ').unwrap();
                let text = Bytes::copy_from_slice(text.as_bytes());
                inside.files.lock().unwrap().insert(path.to_owned(), text);
            }
            "daemon" => daemon = true,
            "lose" => {
                inside.end(EndReason::LauncherLost);
                return;
            }
            other => panic!("the program knows no '{other}'"),
        }
    }
    drop(events.send(ProcessEvent::Exited { exit }).await);
    if daemon {
        // Its child lives until the whole tree is killed, and its last output comes late.
        while signals
            .recv()
            .await
            .is_some_and(|signal| signal != (Signal::Kill, SignalScope::Tree))
        {}
        drop(events.send(out("daemon's last words\n".to_owned())).await);
    }
    for channel in [Channel::Stdout, Channel::Stderr] {
        drop(events.send(ProcessEvent::Closed { channel }).await);
    }
}
