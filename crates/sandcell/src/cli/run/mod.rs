//! `sandcell run`: runs one program in a new sandbox and streams its output.

mod hints;
mod pictures;
mod streams;
mod values;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use pictures::Saved;
use sandcell_engine::{Engine, ExecutionView, Hints, Principal, ProgramRequest, Status, Watch};
use sandcell_languages::Detected;
use sandcell_sandbox::{ByteSize, Code, Consent, Failure, MAX_TIMEOUT, Preparing, SandboxPath};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use super::{RUN_FAILED_EXIT, SandboxArgs, output, unwritable};
use crate::config::table::MAX_FILE_MB;
use crate::config::{FlagValue, NetworkSettings, Settings};
use crate::signals;
use crate::wiring::{self, Launcher};
use streams::{Collected, Sink};

/// Runs one program in a new sandbox, and removes the sandbox
///
/// The program's output is streamed, and its stdin is the command's. The exit status is the program's; 128 and the
/// number of the signal that ended it; 124 after a timeout; 137 after the program exceeded its memory; 125 when
/// sandcell itself could not run it. Pictures that a Python or R program shows (`plt.show()`, `plot()`) are saved as
/// files and named on stderr; terminals that support pictures draw them.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The program's source; `-` or nothing: read from stdin
    #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
    program: PathBuf,

    /// Runs this code instead of a file's
    #[arg(
        short,
        long,
        value_name = "CODE",
        conflicts_with = "program",
        allow_hyphen_values = true
    )]
    code: Option<String>,

    /// Arguments for the program
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,

    /// The language; by default found by the file's name or its `#!` line, else `python`
    #[arg(short, long, value_name = "NAME")]
    language: Option<String>,

    /// A package to install first, such as `numpy`, `pandas>=2,<3` or, of npm, `npm:zod@^3`. Repeatable
    #[arg(long = "package", value_name = "REQUIREMENT")]
    packages: Vec<String>,

    /// The program's time limit: seconds, or a unit as in `500ms`, `5s`, `2m`; at most 3600 seconds
    #[arg(long, value_name = "S", value_parser = values::duration)]
    timeout: Option<Duration>,

    /// The program's memory limit: MiB, or a unit as in `512MB`, `2GB`
    #[arg(long, value_name = "MB", value_parser = values::memory)]
    memory: Option<ByteSize>,

    /// Hosts that the program may reach, such as `api.example.com,*.example.org`; `none` (the default) allows none.
    /// The setting `network.deny` still holds. Ports 80 and 443, unless `HOST:PORT` names another
    #[arg(long, value_name = "none|HOST[,HOST…]", value_delimiter = ',')]
    network: Vec<String>,

    /// A file of this machine to copy into the sandbox before the start; without `:SANDBOX` under its own name in the
    /// home folder. Repeatable
    #[arg(long = "file", value_name = "HOST[:SANDBOX]")]
    files: Vec<String>,

    /// A file of the sandbox to copy back after the end; without `:HOST` into the working folder. Repeatable
    #[arg(long = "out", value_name = "SANDBOX[:HOST]")]
    outs: Vec<String>,

    /// The folder for pictures that the program shows
    #[arg(long, value_name = "FOLDER", default_value = ".", hide_default_value = true)]
    pictures: PathBuf,

    /// A container image that provides the program's interpreter, such as `python:3.13-slim`, `oci:/folder` or
    /// `docker-archive:/file.tar`; needs no container daemon
    #[arg(long, value_name = "NAME")]
    image: Option<String>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    /// Prints one JSON object at the end instead of the output: the program, its end, stdout, stderr
    #[arg(long)]
    json: bool,
}

/// Runs the command. Each failure of sandcell itself is reported and exits with 125.
pub(super) fn main(args: RunArgs, load: impl FnOnce(Vec<FlagValue>) -> Result<Settings, Failure>) -> ExitCode {
    let result = load(args.sandbox.flags()).and_then(|settings| {
        let launcher = Launcher::start();
        let runtime = wiring::runtime()?;
        let result = runtime.block_on(run(&args, settings, launcher));
        // A thread may still block in a read of stdin.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if args.json {
                output::failure_json(&failure);
            } else {
                output::failure(&failure);
            }
            ExitCode::from(RUN_FAILED_EXIT)
        }
    }
}

/// Returns the hints of a result, in the words of this command.
fn hints() -> Hints {
    Hints {
        more_memory: "give it more with --memory MB, or work on the data in parts".to_owned(),
        more_time: format!("give it more time with --timeout S (at most {})", MAX_TIMEOUT.as_secs()),
        more_disk: "raise limits.disk_mb in the settings, or write less".to_owned(),
        bring_data: "bring the data in with --file or --mount; the sandbox has no network".to_owned(),
        bring_packages: "--package NAME brings packages of Python and npm".to_owned(),
        give_stdin: "give the program standard input: sandcell run FILE < INPUT".to_owned(),
        read_rest: None,
    }
}

async fn run(args: &RunArgs, mut settings: Settings, launcher: Launcher) -> Result<u8, Failure> {
    let mut stop = signals::Stop::listen()?;
    // The caller is the operator here, so the file limit is the largest that can be transferred.
    settings.engine.file_bytes = ByteSize::mib(MAX_FILE_MB);
    settings.engine.hints = hints();
    settings.images.allow = vec!["*".to_owned()];
    settings.image_folders = vec![PathBuf::from("/")];
    #[cfg(any(feature = "docker", all(target_os = "linux", feature = "native")))]
    wiring::network::check(&args.network, &settings.network)?;
    allow_hosts(&mut settings.network, &args.network);
    let kept = settings.engine.output_kept;
    let found = wiring::languages(&settings);
    let (mut request, outs) = request(args, &settings, &found)?;
    use_matching_base(args, &mut settings, &request.language).await?;
    let own = settings.clone();
    let mut wired = wiring::wire_once(settings, launcher, found).await;
    let mut problem = wired.problems.drain(..).next();
    if problem.is_none() {
        problem = pull_image(args, &own, &wired, &mut stop).await.err();
    }
    if let Some(problem) = problem {
        wired.engine.shutdown().await;
        return Err(problem);
    }
    let cancel = CancellationToken::new();
    let sink = if args.json { Sink::Collect(kept) } else { Sink::Pass };
    let stdin = if args.code.is_none() && args.program == Path::new("-") {
        streams::no_stdin()
    } else {
        match streams::stdin() {
            Ok(stdin) => stdin,
            Err(failure) => {
                wired.engine.shutdown().await;
                return Err(failure);
            }
        }
    };
    let network = Network::of(&request.network);
    let (events, writer) = streams::writer(sink, cancel.clone());
    let who = Principal("cli".into());
    let mut signal = None;
    let view = {
        // The user of this command consents to the packages and hosts by naming them.
        let left = wired
            .engine
            .consent_required(Some(&request.language), &request.packages, &request.network);
        request.consent = Consent::Given([left.packages, left.hosts].concat());
        let mut steps = request.progress.subscribe();
        let mut progress = Progress::new();
        let running = wired.engine.run_program(&who, request, stdin, events, cancel.clone());
        tokio::pin!(running);
        loop {
            tokio::select! {
                view = &mut running => break view,
                Ok(()) = steps.changed() => show_step(&mut progress, &steps.borrow_and_update()),
                number = stop.next(), if signal.is_none() => {
                    signal = Some(number);
                    cancel.cancel();
                }
            }
        }
    };
    let written = writer.await;
    let result = match view {
        Ok(view) => finish(args, &view, &outs, written, network),
        Err(failure) => Err(failure),
    };
    shutdown(&wired.engine, &mut stop).await;
    match signal {
        Some(number) => Ok(128 + number),
        None => result,
    }
}

/// Shows a step of the installation; an empty one ends it.
fn show_step(progress: &mut Progress, step: &str) {
    if step.is_empty() {
        return progress.clear();
    }
    progress.show(&Preparing {
        text: format!("installing packages: {step}"),
        ..Preparing::default()
    });
}

/// Uses a prepared base that has the packages, if the settings name none. Nothing has to be installed then.
#[cfg(all(target_os = "linux", feature = "native"))]
async fn use_matching_base(args: &RunArgs, settings: &mut Settings, language: &str) -> Result<(), Failure> {
    let native = settings.backends.first().is_some_and(|name| name == "native");
    let wanted = !args.packages.is_empty() && args.image.is_none() && language == "python";
    if wanted && native && settings.base.is_none() && settings.data_dir.is_some() {
        let (bases, _) = wiring::bases(settings, None).await?;
        settings.base = bases.having(&args.packages)?;
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
async fn use_matching_base(_: &RunArgs, _: &mut Settings, _: &str) -> Result<(), Failure> {
    Ok(())
}

/// Allows the hosts that the operator names on the command line, without a setting. An address is allowed in any
/// range. A name is allowed only for public addresses, since the name's owner decides the address.
fn allow_hosts(network: &mut NetworkSettings, named: &[String]) {
    let hosts = || named.iter().filter(|host| *host != "none");
    network.allow.extend(hosts().cloned());
    let address = |host: &String| {
        host.parse()
            .ok()
            .or_else(|| Some(host.parse::<SocketAddr>().ok()?.ip()))
    };
    let addresses = hosts().filter_map(address).map(|address: IpAddr| address.to_string());
    network.private.extend(addresses);
}

/// The network of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Absent,
    Given,
}

impl Network {
    fn of(hosts: &[String]) -> Self {
        match hosts.iter().all(|host| host == "none") {
            true => Self::Absent,
            false => Self::Given,
        }
    }
}

/// Pulls the image if it is absent, without a time limit.
#[cfg(all(target_os = "linux", feature = "native"))]
async fn pull_image(
    args: &RunArgs,
    settings: &Settings,
    wired: &wiring::WiredEngine,
    stop: &mut signals::Stop,
) -> Result<(), Failure> {
    let (Some(name), Some(backend)) = (&args.image, &wired.images) else {
        return pull_from_daemon(args, wired, stop).await;
    };
    if let Some(images) = wiring::images::of(settings)?
        && settings.images.pull == crate::config::table::PullPolicy::Missing
        && !images.has(name)
    {
        super::images::pull(&images, name, backend, stop).await?;
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
async fn pull_image(
    args: &RunArgs,
    _: &Settings,
    wired: &wiring::WiredEngine,
    stop: &mut signals::Stop,
) -> Result<(), Failure> {
    pull_from_daemon(args, wired, stop).await
}

/// Pulls an image that a container daemon stores. A signal of the user cancels the pull.
async fn pull_from_daemon(
    args: &RunArgs,
    wired: &wiring::WiredEngine,
    stop: &mut signals::Stop,
) -> Result<(), Failure> {
    let Some(images) = wired.preferred.as_ref().and_then(|backend| backend.images()) else {
        return Ok(());
    };
    let image = args.image.as_deref();
    let mut progress = Progress::new();
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    let pull = images.pull(image);
    tokio::pin!(pull);
    loop {
        tokio::select! {
            pulled = &mut pull => {
                progress.clear();
                return pulled.map_err(Failure::from);
            }
            _ = tick.tick() => {
                if let Some(preparing) = images.preparing(image) {
                    progress.show(&preparing);
                }
            }
            _ = stop.next() => {
                progress.clear();
                return Err(Failure::new(
                    Code::Cancelled,
                    "the image was not pulled, so the program did not run",
                    "run it again",
                ));
            }
        }
    }
}

/// Shuts the engine down. A further signal ends the wait.
async fn shutdown(engine: &Engine, stop: &mut signals::Stop) {
    tokio::select! {
        () = engine.shutdown() => {}
        _impatient = stop.next() => {}
    }
}

/// Builds the engine's request, and the destinations of files afterwards.
fn request(
    args: &RunArgs,
    settings: &Settings,
    found: &Detected,
) -> Result<(ProgramRequest, Vec<OutputFile>), Failure> {
    let outs: Vec<OutputFile> = args
        .outs
        .iter()
        .map(|text| OutputFile::parse(text))
        .collect::<Result<_, _>>()?;
    let limit = settings.engine.file_bytes;
    let mut files = Vec::new();
    for text in &args.files {
        let (host, sandbox) = match text.rsplit_once(':').filter(|(host, _)| !is_drive(host)) {
            Some(both) => both,
            None => (text.as_str(), file_name("--file", Path::new(text))?),
        };
        let path = sandbox_path("--file", sandbox)?;
        files.push((path, Bytes::from(read_bounded(Path::new(host), limit)?)));
    }
    let code = match &args.code {
        Some(code) => code.clone(),
        None => read_code(&args.program, settings.engine.code_bytes)?,
    };
    let told = || found.language_of(&args.program, &code);
    let language = args
        .language
        .clone()
        .or_else(told)
        .unwrap_or_else(|| "python".to_owned());
    let request = ProgramRequest {
        code,
        language,
        args: args.args.clone(),
        packages: args.packages.clone(),
        files,
        outputs: outs.iter().map(|out| out.sandbox.clone()).collect(),
        timeout: args.timeout,
        memory: args.memory,
        network: args.network.clone(),
        image: args.image.clone(),
        consent: Consent::NotAsked,
        compile_timeout: None,
        progress: watch::Sender::new(String::new()),
        watch: Watch::default(),
    };
    Ok((request, outs))
}

/// A file to copy out of the sandbox.
#[derive(Debug)]
struct OutputFile {
    sandbox: SandboxPath,
    host: PathBuf,
}

impl OutputFile {
    fn parse(text: &str) -> Result<Self, Failure> {
        let (sandbox, host) = match text.split_once(':') {
            Some((_, "")) => {
                return Err(Failure::invalid(
                    format!("--out {text}: nothing follows the `:`"),
                    "give it as SANDBOX:HOST, such as plot.png:plots/plot.png, or as SANDBOX alone",
                ));
            }
            Some(both) => both,
            None => (text, file_name("--out", Path::new(text))?),
        };
        let sandbox = sandbox_path("--out", sandbox)?;
        let mut host = PathBuf::from(host);
        if host.is_dir() {
            host.push(sandbox.name());
        }
        Ok(Self { sandbox, host })
    }
}

/// Returns true for a drive letter, as in `C:\\data.csv`.
fn is_drive(text: &str) -> bool {
    cfg!(windows) && text.len() == 1
}

/// Returns the last component of a path: the file's name on the other side.
fn file_name<'a>(flag: &str, path: &'a Path) -> Result<&'a str, Failure> {
    path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        Failure::invalid(
            format!("{flag} {}: it names no file", path.display()),
            "name a file, or give both sides: --file HOST:SANDBOX, --out SANDBOX:HOST",
        )
    })
}

fn sandbox_path(flag: &str, text: &str) -> Result<SandboxPath, Failure> {
    SandboxPath::parse(text).map_err(|error| {
        Failure::invalid(
            format!("{flag}: {text:?}: {error}"),
            "name a path inside the sandbox; relative ones start at /home/user",
        )
    })
}

fn name(program: &Path) -> String {
    if program == Path::new("-") {
        "the program on stdin".to_owned()
    } else {
        program.display().to_string()
    }
}

fn read_code(program: &Path, limit: ByteSize) -> Result<String, Failure> {
    String::from_utf8(read_bounded(program, limit)?).map_err(|error| {
        Failure::invalid(
            format!(
                "{} is not UTF-8: byte {} breaks it",
                name(program),
                error.utf8_error().valid_up_to()
            ),
            "save the program as UTF-8",
        )
    })
}

/// Reads a file, or stdin for `-`, of at most `limit` bytes.
fn read_bounded(path: &Path, limit: ByteSize) -> Result<Vec<u8>, Failure> {
    let unreadable = |error: io::Error| {
        Failure::invalid(
            format!("{} cannot be read: {error}", name(path)),
            "check the path and its permissions",
        )
    };
    let bound = limit.as_bytes().saturating_add(1);
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::Read::read_to_end(&mut io::Read::take(io::stdin().lock(), bound), &mut bytes)
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        io::Read::read_to_end(&mut io::Read::take(file, bound), &mut bytes)
    };
    let read = read.map_err(unreadable)?;
    if u64::try_from(read).is_ok_and(|read| read > limit.as_bytes()) {
        return Err(Failure::new(
            Code::LimitReached,
            format!(
                "{} has more than the {} bytes that are possible",
                name(path),
                limit.as_bytes()
            ),
            "bring larger files in with --mount",
        ));
    }
    Ok(bytes)
}

/// The exit code of a program whose reader has closed the pipe.
const PIPE_CLOSED: u8 = 128 + 13;

/// Copies files and pictures out, reports the reason if the program was stopped, and returns the exit status.
fn finish(
    args: &RunArgs,
    view: &ExecutionView,
    outs: &[OutputFile],
    written: io::Result<Collected>,
    network: Network,
) -> Result<u8, Failure> {
    let pulled = copy_out(view, outs);
    let saved = pictures::save(view, &args.pictures);
    let hint = hints::of(view, network);
    let shown = match written {
        Ok(collected) if args.json => output::json(&as_json(view, &collected, hint.as_deref(), &saved)),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match shown {
        Ok(()) => {}
        // A reader that closed our output is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(PIPE_CLOSED),
        Err(error) => return Err(unwritable(&error)),
    }
    if !args.json {
        pictures::name(&saved);
        hints::say(view, hint.as_deref());
    }
    let status = exit_status(view);
    match pulled {
        Err(failure) if status == 0 => Err(failure),
        Err(failure) => {
            output::failure(&failure);
            Ok(status)
        }
        Ok(()) => Ok(status),
    }
}

/// Writes the requested files. The first one that is missing or cannot be written is reported.
fn copy_out(view: &ExecutionView, outs: &[OutputFile]) -> Result<(), Failure> {
    // Artifacts are in the order of the request, without the unreadable ones.
    let mut wanted = view.artifacts.iter().filter(|artifact| !artifact.shown).peekable();
    for out in outs {
        let reason = view.missing_outputs.iter().find(|reason| is_about(reason, out));
        let found = wanted.next_if(|artifact| reason.is_none() && artifact.name == out.sandbox.name());
        let Some(artifact) = found else {
            return Err(Failure::new(
                Code::NotFound,
                format!(
                    "--out {}: {}",
                    out.sandbox,
                    reason.map_or("it did not come back", String::as_str)
                ),
                "check that the program writes it before it ends; relative paths start at /home/user",
            ));
        };
        std::fs::write(&out.host, &artifact.bytes).map_err(|error| {
            Failure::invalid(
                format!("--out: {} cannot be written: {error}", out.host.display()),
                "check the path and its permissions",
            )
        })?;
    }
    Ok(())
}

/// Returns true when a reason is about this file: reasons begin with the path.
fn is_about(reason: &str, out: &OutputFile) -> bool {
    reason
        .strip_prefix(out.sandbox.as_str())
        .is_some_and(|rest| rest.starts_with([' ', ':']))
}

/// Returns the exit status by the convention of shells.
fn exit_status(view: &ExecutionView) -> u8 {
    let program = view.exit_code.map(|code| match u8::try_from(code) {
        Ok(code) => code,
        // A negative code is the number of a signal.
        Err(_) => u8::try_from(code.unsigned_abs()).map_or(1, |signal| signal.saturating_add(128)),
    });
    let code = view.cause.as_ref().map(|cause| cause.code);
    match (view.status, code) {
        (Status::Timeout, _) => 124,
        (Status::Killed | Status::Error, Some(Code::OutOfMemory)) => 137,
        (Status::Ok, _) => program.unwrap_or(0),
        (Status::Cancelled, _) => 130,
        (Status::Killed, _) => program.unwrap_or(137),
        (Status::Error, _) => program.filter(|code| *code != 0).unwrap_or(1),
        (Status::Running, _) => RUN_FAILED_EXIT,
    }
}

/// Returns the object of `_meta["sandcell/execution"]`, with the program's output.
fn as_json(view: &ExecutionView, collected: &Collected, hint: Option<&str>, saved: &[Saved]) -> serde_json::Value {
    let mut object = sandcell_mcp::execution_object(view);
    object.insert("truncated".to_owned(), json!(collected.truncated));
    object.insert("stdout".to_owned(), json!(String::from_utf8_lossy(&collected.stdout)));
    object.insert("stderr".to_owned(), json!(String::from_utf8_lossy(&collected.stderr)));
    object.insert("result".to_owned(), json!(view.result));
    object.insert("hint".to_owned(), json!(hint));
    let pictures: Vec<String> = saved.iter().map(|one| one.path.display().to_string()).collect();
    object.insert("pictures".to_owned(), json!(pictures));
    serde_json::Value::Object(object)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
