//! One installation of Python packages in a separate sandbox: resolve, download, unpack, compile, and stream the files
//! out.
//!
//! The sandbox contains no files of the caller. Its only network access is one port to the broker. It is made for one
//! installation and ends with it, also if the installation is cancelled.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sandcell_broker::Index;
use sandcell_sandbox::{
    Backend, Channel, Code, Command, Exit, Failure, LAYERS, Limits, PackageVersion, Process, ProcessEvent, Sandbox,
    SandboxPath, SandboxSpec, StdinMode, WriteMode,
};
use tokio::sync::{mpsc, watch};

use crate::index_port::IndexPort;
use crate::lock::{self, Locked};
use crate::spec::Spec;
use crate::store::Draft;
use crate::tool::Tool;
use crate::unpack::{UnpackError, Unpacked, Unpacker};

const PACK_SCRIPT: &str = include_str!("inside/pack.py");
const PIP_SCRIPT: &str = include_str!("inside/pip.py");
const WANTED_FILE: &str = "/tmp/wanted.txt";
const HELD_FILE: &str = "/tmp/held.txt";
const LOCKED_FILE: &str = "/tmp/locked.txt";
const REPORT_FILE: &str = "/tmp/report.json";
const SITE_FOLDER: &str = "/tmp/site";
/// The maximum size of a tool's output that is examined, in bytes.
const MAX_KEPT_OUTPUT_BYTES: usize = 64 << 10;
/// The maximum length of a tool's output in a caller's message, in bytes.
const MAX_SHOWN_OUTPUT_BYTES: usize = 1500;
/// The maximum size of a report or list in bytes.
const LIST_MAX: u64 = 8 << 20;
/// The capacity of the queue to the writer, in pieces of the finished files.
const QUEUE_CAPACITY: usize = 64;

/// The settings of an installation.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) backend: Arc<dyn Backend>,
    /// The path of the interpreter inside.
    pub(crate) python: String,
    pub(crate) limits: Limits,
    pub(crate) tool: Tool,
    /// A folder that contains only uv.
    pub(crate) tool_folder: Option<std::path::PathBuf>,
    /// True if source distributions may be built.
    pub(crate) sources: bool,
}

/// A running installer.
pub(crate) struct Installer {
    setup: Setup,
    sandbox: Arc<dyn Sandbox>,
    index_port: IndexPort,
}

/// The end of a program inside.
pub(crate) struct ProgramEnd {
    pub(crate) ok: bool,
    pub(crate) killed: bool,
    pub(crate) output: String,
}

impl Installer {
    /// Makes the sandbox.
    pub(crate) async fn start(setup: Setup, index: Arc<Index>) -> Result<Self, Failure> {
        let spec = SandboxSpec {
            limits: setup.limits.clone(),
            ..SandboxSpec::default()
        };
        let sandbox = setup.backend.create(&spec).await?;
        if let Some(folder) = &setup.tool_folder {
            sandbox.attach(folder).await?;
        }
        let serve = move |connection, _port| Arc::clone(&index).serve(connection);
        let index_port = IndexPort::open(sandbox.as_ref(), serve).await?;
        Ok(Self {
            setup,
            sandbox,
            index_port,
        })
    }

    fn index_url(&self) -> String {
        format!("http://127.0.0.1:{}/simple/", self.index_port.port)
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.sandbox.base_env().clone();
        let own = [
            ("UV_CACHE_DIR", "/tmp/uv-cache"),
            ("UV_NO_CONFIG", "1"),
            ("UV_PYTHON_DOWNLOADS", "never"),
            ("UV_HTTP_TIMEOUT", "60"),
            ("UV_HTTP_RETRIES", "0"),
            ("UV_NO_PROGRESS", "1"),
            ("PIP_CONFIG_FILE", "/dev/null"),
            ("PIP_NO_INPUT", "1"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_CACHE_DIR", "/tmp/pip-cache"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
            ("NO_COLOR", "1"),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env
    }

    async fn put(&self, path: &str, text: String) -> Result<(), Failure> {
        let path = SandboxPath::parse(path).map_err(|error| internal(&error.to_string()))?;
        self.sandbox
            .files()
            .write(&path, text.into(), WriteMode::Replace)
            .await?;
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<String, Failure> {
        let path = SandboxPath::parse(path).map_err(|error| internal(&error.to_string()))?;
        let chunk = self.sandbox.files().read(&path, 0, LIST_MAX).await?;
        if chunk.total > LIST_MAX {
            return Err(internal("the list of versions is too long"));
        }
        String::from_utf8(chunk.bytes.to_vec()).map_err(|_| internal("the list of versions is not text"))
    }

    async fn spawn(&self, argv: Vec<String>) -> Result<Process, Failure> {
        let command = Command {
            argv,
            env: self.environment(),
            cwd: "/tmp".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Null,
            control: false,
            terminal: None,
        };
        Ok(self.sandbox.spawn(command).await?)
    }

    /// Runs a program to its end, and returns the last part of its output.
    async fn run(&self, argv: Vec<String>) -> Result<ProgramEnd, Failure> {
        run_to_completion(self.spawn(argv).await?).await
    }

    fn tool(&self, pip: bool, arguments: &[&str]) -> Vec<String> {
        let head: Vec<String> = match &self.setup.tool {
            Tool::Uv(_) if pip => vec![format!("{LAYERS}/0/uv"), "pip".into()],
            Tool::Uv(_) => vec![format!("{LAYERS}/0/uv")],
            Tool::Pip => [&self.setup.python, "-I", "-B", "-c", PIP_SCRIPT]
                .map(str::to_owned)
                .to_vec(),
        };
        head.into_iter()
            .chain(arguments.iter().map(|text| (*text).to_owned()))
            .collect()
    }

    /// Resolves exact versions. Packages in the sandbox keep their versions if possible.
    pub(crate) async fn resolve(&self, specs: &[Spec], held: &[PackageVersion]) -> Result<Vec<Locked>, Failure> {
        let wanted: Vec<&str> = specs.iter().map(|spec| spec.text.as_str()).collect();
        self.put(WANTED_FILE, wanted.join("\n") + "\n").await?;
        let pins: Vec<String> = held
            .iter()
            .map(|one| format!("{}=={}\n", one.name, one.version))
            .collect();
        self.put(HELD_FILE, pins.concat()).await?;
        let first = self.resolve_once(!held.is_empty()).await?;
        let output = match first {
            Ok(locked) => return Ok(locked),
            Err(_) if !held.is_empty() => match self.resolve_once(false).await? {
                Ok(locked) => return Ok(locked),
                Err(output) => output,
            },
            Err(output) => output,
        };
        Err(self.failed("the packages could not be resolved", output))
    }

    async fn resolve_once(&self, keep: bool) -> Result<Result<Vec<Locked>, ProgramEnd>, Failure> {
        let url = self.index_url();
        let kept = if keep { &["-c", HELD_FILE][..] } else { &[] };
        let binary = if self.setup.sources {
            &[][..]
        } else {
            &["--only-binary", ":all:"][..]
        };
        let common = [&["--index-url", &url], kept, binary].concat();
        let own: &[&str] = match self.setup.tool {
            Tool::Uv(_) => &[
                "compile",
                "--quiet",
                "--no-header",
                "--no-annotate",
                "--generate-hashes",
                "--python",
                &self.setup.python,
                "-o",
                LOCKED_FILE,
                WANTED_FILE,
            ],
            Tool::Pip => &[
                "install",
                "--quiet",
                "--dry-run",
                "--ignore-installed",
                "--report",
                REPORT_FILE,
                "-r",
                WANTED_FILE,
            ],
        };
        let (first, rest) = own.split_first().ok_or_else(|| internal("no arguments"))?;
        let arguments = [&[*first], common.as_slice(), rest].concat();
        let ended = self.run(self.tool(true, &arguments)).await?;
        if !ended.ok {
            return Ok(Err(ended));
        }
        match self.setup.tool {
            Tool::Uv(_) => lock::parse(&self.get(LOCKED_FILE).await?).map(Ok),
            Tool::Pip => lock::parse(&of_report(&self.get(REPORT_FILE).await?)?).map(Ok),
        }
    }

    /// Downloads, unpacks and compiles exactly these versions, and writes the files into the draft.
    pub(crate) async fn build(
        &self,
        locked: &[Locked],
        draft: &Draft,
        limit: u64,
        progress: &watch::Sender<String>,
    ) -> Result<Unpacked, Failure> {
        self.put(LOCKED_FILE, lock::render(locked)).await?;
        let url = self.index_url();
        let mut arguments = vec![
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--target",
            SITE_FOLDER,
        ];
        arguments.extend(["--index-url", &url, "-r", LOCKED_FILE]);
        if !self.setup.sources {
            arguments.extend(["--only-binary", ":all:"]);
        }
        if matches!(self.setup.tool, Tool::Uv(_)) {
            arguments.extend(["--python", &self.setup.python, "--link-mode", "hardlink"]);
        } else {
            arguments.push("--no-compile");
        }
        progress.send_replace(format!("downloading {} packages", locked.len()));
        let ended = self.run(self.tool(true, &arguments)).await?;
        if !ended.ok {
            return Err(self.failed("the packages could not be downloaded and unpacked", ended));
        }
        progress.send_replace("preparing them for import".to_owned());
        self.compile().await?;
        progress.send_replace("storing them".to_owned());
        self.stream_files(draft, limit).await
    }

    /// Compiles to byte code, because the folder is read-only later. Tests of packages are not compiled: few programs
    /// import them. A file that does not compile (a template, code for another version) is not an error.
    async fn compile(&self) -> Result<(), Failure> {
        let workers = self.setup.limits.cpus.as_milli().div_ceil(1000).max(1).to_string();
        let argv = [
            &self.setup.python,
            "-I",
            "-B",
            "-m",
            "compileall",
            "-qq",
            "-j",
            &workers,
            "--invalidation-mode",
            "unchecked-hash",
            "-x",
            "/tests?/",
            SITE_FOLDER,
        ];
        let ended = self.run(argv.map(str::to_owned).to_vec()).await?;
        if ended.killed {
            return Err(self.failed("the packages could not be compiled", ended));
        }
        Ok(())
    }

    /// Streams the finished files out. A separate thread writes them, because the server's threads must not wait for
    /// the disk.
    async fn stream_files(&self, draft: &Draft, limit: u64) -> Result<Unpacked, Failure> {
        let argv = [&self.setup.python, "-I", "-S", "-B", "-c", PACK_SCRIPT, SITE_FOLDER]
            .map(str::to_owned)
            .to_vec();
        let process = self.spawn(argv).await?;
        receive_files(process, draft, limit)
            .await?
            .map_err(|ended| self.failed("the packages could not be read out of the installer's sandbox", ended))
    }

    /// Returns the failure of a step, with the tool's own output.
    fn failed(&self, what: &str, ended: ProgramEnd) -> Failure {
        let output = ended.output.replace(&self.index_url(), "the package index ");
        let output = output.replace(
            &format!("http://127.0.0.1:{}", self.index_port.port),
            "the package index",
        );
        failure_of(what, &ProgramEnd { output, ..ended }, &self.setup.limits)
    }

    /// Closes the sandbox and waits for its end.
    pub(crate) async fn close(self) {
        drop(self.index_port);
        if let Err(error) = self.sandbox.close().await {
            tracing::debug!(%error, "an installer's sandbox did not close in order");
        }
    }
}

/// Receives the finished files from a program inside.
pub(crate) async fn receive_files(
    mut process: Process,
    draft: &Draft,
    limit: u64,
) -> Result<Result<Unpacked, ProgramEnd>, Failure> {
    let (pieces, mut waiting) = mpsc::channel::<Bytes>(QUEUE_CAPACITY);
    let mut unpacker = Unpacker::new(&draft.site(), limit);
    let writer = tokio::task::spawn_blocking(move || {
        while let Some(piece) = waiting.blocking_recv() {
            unpacker.push(&piece)?;
        }
        unpacker.finish()
    });
    let mut output = Vec::new();
    let exit = read_output(&mut process, &mut output, Some(pieces)).await?;
    let written = writer
        .await
        .map_err(|_| internal("the task that wrote the packages ended unexpectedly"))?;
    let ended = ended(exit, &output);
    match written {
        Ok(unpacked) if ended.ok => Ok(Ok(unpacked)),
        Ok(_) => Ok(Err(ended)),
        Err(UnpackError::Write { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
            Err(Failure::new(
                Code::DiskFull,
                "the disk of the server's data folder is full",
                "tell the operator: free space there, or set data_dir to another disk",
            ))
        }
        Err(error) => Err(Failure::new(
            Code::PackageFailed,
            with_source(&error),
            "choose other packages, or tell the operator",
        )),
    }
}

/// Runs a program inside to its end, and returns the last part of its output.
pub(crate) async fn run_to_completion(mut process: Process) -> Result<ProgramEnd, Failure> {
    let mut output = Vec::new();
    let exit = read_output(&mut process, &mut output, None).await?;
    Ok(ended(exit, &output))
}

/// Returns the failure of a program inside, recognized by the tools' own output. `limits` are the installer's.
pub(crate) fn failure_of(what: &str, ended: &ProgramEnd, limits: &Limits) -> Failure {
    let disk = limits.disk.as_mib();
    if ["No space left on device", "os error 28", "ENOSPC"]
        .iter()
        .any(|sign| ended.output.contains(sign))
    {
        return Failure::new(
            Code::DiskFull,
            format!("{what}: they need more than the {disk} MiB of the installer's disk"),
            "ask for fewer or smaller packages (such as a CPU-only build), or ask the operator to raise packages.disk_mb",
        );
    }
    if ended.killed {
        return Failure::new(
            Code::OutOfMemory,
            format!(
                "{what}: the installer was killed at its limit of {} MiB of memory",
                limits.memory.as_mib()
            ),
            "ask for fewer packages at once",
        );
    }
    Failure::new(
        Code::PackageFailed,
        format!("{what}: {}", ended.output),
        "choose other packages or versions",
    )
}

/// Reads a program's output to its end. Sends stdout to `pieces` if given, and appends everything else to `output`, of
/// which the last part is kept.
async fn read_output(
    process: &mut Process,
    output: &mut Vec<u8>,
    mut pieces: Option<mpsc::Sender<Bytes>>,
) -> Result<Exit, Failure> {
    let (mut exit, mut open) = (None, 2);
    loop {
        match process.events.recv().await {
            Some(ProcessEvent::Output { channel, bytes }) => match (&pieces, channel) {
                (Some(to), Channel::Stdout) => {
                    // The writer failed and reports its own error, so reading ends here.
                    if to.send(bytes).await.is_err() {
                        return Ok(Exit::Code(0));
                    }
                }
                _ => {
                    output.extend_from_slice(&bytes);
                    let extra = output.len().saturating_sub(MAX_KEPT_OUTPUT_BYTES);
                    output.drain(..extra);
                }
            },
            Some(ProcessEvent::Closed { channel }) => {
                if channel == Channel::Stdout {
                    pieces = None;
                }
                open -= 1;
            }
            Some(ProcessEvent::Exited { exit: how }) => exit = Some(how),
            None => return exit.ok_or_else(|| internal("the installer's sandbox ended")),
        }
        if let Some(exit) = exit.filter(|_| open <= 0) {
            return Ok(exit);
        }
    }
}

fn ended(exit: Exit, output: &[u8]) -> ProgramEnd {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut output: String = lines.join(" ").chars().filter(|c| !c.is_control()).collect();
    if output.len() > MAX_SHOWN_OUTPUT_BYTES {
        output = output.chars().take(MAX_SHOWN_OUTPUT_BYTES).collect::<String>() + " …";
    }
    ProgramEnd {
        ok: exit == Exit::Code(0),
        killed: matches!(exit, Exit::Signal(_)) || exit == Exit::Code(137),
        output,
    }
}

/// Converts pip's report to a list of requirements.
fn of_report(text: &str) -> Result<String, Failure> {
    let report: serde_json::Value =
        serde_json::from_str(text).map_err(|_| internal("pip's report could not be read"))?;
    let mut list = String::new();
    for item in report
        .get("install")
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
    {
        let text = |path: &str| {
            item.pointer(path)
                .and_then(serde_json::Value::as_str)
                .unwrap_or_default()
        };
        let (name, version) = (text("/metadata/name"), text("/metadata/version"));
        let hash = text("/download_info/archive_info/hashes/sha256");
        list.push_str(&format!("{name}=={version} --hash=sha256:{hash}\n"));
    }
    Ok(list)
}

fn with_source(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn internal(what: &str) -> Failure {
    Failure::new(
        Code::PackageFailed,
        what,
        "try again; tell the operator if it happens again",
    )
}
