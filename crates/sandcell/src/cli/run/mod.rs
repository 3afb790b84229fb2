//! `sandcell run`: one program in a fresh sandbox, its streams passed through as they come.

mod streams;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use sandcell_engine::{Engine, ExecutionView, Hints, Principal, ProgramRequest, Status};
use sandcell_languages::Detected;
use sandcell_sandbox::{ByteSize, Code, Consent, Failure, MAX_TIMEOUT, SandboxPath};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::bar::Bar;
use super::{RUN_FAILED, SandboxArgs, output};
use crate::config::table::MOST_FILE_MB;
use crate::config::{FlagValue, Settings};
use crate::signals;
use crate::wiring::{self, Launcher};
use streams::{Collected, Sink};

/// Runs one program in a fresh sandbox, and removes the sandbox
///
/// The program's output is streamed as it comes, and its stdin is the command's. The exit status is the program's;
/// 128 and the number of the signal that ended it; 124 when its time was over; 137 when it was killed for memory;
/// 125 when sandcell itself could not run it.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The program's source; `-` or nothing: stdin holds it
    #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
    program: PathBuf,

    /// Arguments for the program
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,

    /// The language; by default told from the file's name or its `#!` line, else `python`
    #[arg(long, value_name = "NAME")]
    language: Option<String>,

    /// A package to install first, such as `numpy`, `pandas>=2,<3` or, of npm, `npm:zod@^3`. Repeatable
    #[arg(long = "package", value_name = "REQUIREMENT")]
    packages: Vec<String>,

    /// Seconds that the program may run, at most 3600
    #[arg(long, value_name = "S", value_parser = parse_timeout)]
    timeout: Option<Duration>,

    /// Memory that it may use, in MiB
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    memory: Option<u64>,

    /// Hosts that the program may reach, such as `api.example.com,*.example.org`, within the setting `network.allow`;
    /// `none` (the default) is none. Ports 80 and 443 unless `HOST:PORT` says more
    #[arg(long, value_name = "none|HOST[,HOST…]", value_delimiter = ',')]
    network: Vec<String>,

    /// A file of this machine to copy into the sandbox before the start. Repeatable
    #[arg(long = "file", value_name = "HOST:SANDBOX")]
    files: Vec<String>,

    /// A file of the sandbox to copy back after the end. Repeatable
    #[arg(long = "out", value_name = "SANDBOX:HOST")]
    outs: Vec<String>,

    /// A container image whose programs run it, such as `python:3.13-slim`, `oci:/folder` or `docker-archive:/file.tar`;
    /// needs no container daemon
    #[arg(long, value_name = "NAME")]
    image: Option<String>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    /// Prints one JSON object at the end instead of the output: what was run, how it ended, stdout, stderr
    #[arg(long)]
    json: bool,
}

/// Runs the command; every failure of ours is told and exits with 125.
pub(super) fn main(
    args: RunArgs,
    load: impl FnOnce(Vec<FlagValue>) -> Result<Settings, Failure>,
    launcher: Launcher,
) -> ExitCode {
    let result = load(args.sandbox.flags()).and_then(|settings| {
        let runtime = wiring::runtime()?;
        let result = runtime.block_on(run(&args, settings, launcher));
        // A thread may still wait for stdin.
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
            ExitCode::from(RUN_FAILED)
        }
    }
}

/// What a result tells the caller to do, in the words of this command.
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
    // Here the caller is the operator: files may be as large as they can be moved.
    settings.engine.file_bytes = ByteSize::mib(MOST_FILE_MB);
    settings.engine.hints = hints();
    settings.images.allow = vec!["*".to_owned()];
    settings.images.folders = vec![PathBuf::from("/")];
    let kept = settings.engine.output_kept;
    let found = wiring::languages(&settings);
    let (mut request, outs) = request(args, &settings, &found)?;
    let own = settings.clone();
    let mut wired = wiring::wire_once(settings, launcher, found).await;
    let mut problem = wired.problems.drain(..).next();
    if problem.is_none() {
        problem = bring_image(args, &own, &wired, &mut stop).await.err();
    }
    if let Some(problem) = problem {
        wired.engine.shutdown().await;
        return Err(problem);
    }
    let cancel = CancellationToken::new();
    let sink = if args.json { Sink::Collect(kept) } else { Sink::Pass };
    let stdin = if args.program == Path::new("-") {
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
    let (events, writer) = streams::writer(sink, cancel.clone());
    let who = Principal("cli".into());
    let mut signal = None;
    let view = {
        // Who types the command is the user, and has said yes by naming them.
        let left = wired
            .engine
            .left_to_user(Some(&request.language), &request.packages, &request.network);
        request.consent = Consent::Given([left.packages, left.hosts].concat());
        let running = wired.engine.run_program(&who, request, stdin, events, cancel.clone());
        tokio::pin!(running);
        loop {
            tokio::select! {
                view = &mut running => break view,
                number = stop.next(), if signal.is_none() => {
                    signal = Some(number);
                    cancel.cancel();
                }
            }
        }
    };
    let written = writer.await;
    let result = match view {
        Ok(view) => finish(args, &view, &outs, written),
        Err(failure) => Err(failure),
    };
    shutdown(&wired.engine, &mut stop).await;
    match signal {
        Some(number) => Ok(128 + number),
        None => result,
    }
}

/// Pulls the image if it is not here, for as long as it takes.
#[cfg(all(target_os = "linux", feature = "native"))]
async fn bring_image(
    args: &RunArgs,
    settings: &Settings,
    wired: &wiring::Wired,
    stop: &mut signals::Stop,
) -> Result<(), Failure> {
    let (Some(name), Some(backend)) = (&args.image, &wired.images) else {
        return bring_of_daemon(args, wired, stop).await;
    };
    if let Some(images) = wiring::images::of(settings)?
        && settings.images.pull
        && !images.has(name)
    {
        super::images::pull(&images, name, backend, stop).await?;
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", feature = "native")))]
async fn bring_image(
    args: &RunArgs,
    _: &Settings,
    wired: &wiring::Wired,
    stop: &mut signals::Stop,
) -> Result<(), Failure> {
    bring_of_daemon(args, wired, stop).await
}

/// The same where somebody else keeps the images. Given up when the user wants that.
async fn bring_of_daemon(args: &RunArgs, wired: &wiring::Wired, stop: &mut signals::Stop) -> Result<(), Failure> {
    let Some(backend) = &wired.preferred else {
        return Ok(());
    };
    let image = args.image.as_deref();
    let mut bar = Bar::new();
    let mut tick = tokio::time::interval(Duration::from_millis(250));
    let bringing = backend.bring(image);
    tokio::pin!(bringing);
    loop {
        tokio::select! {
            brought = &mut bringing => {
                bar.clear();
                return brought.map_err(Failure::from);
            }
            _ = tick.tick() => {
                if let Some(preparing) = backend.preparing(image) {
                    bar.show(&preparing);
                }
            }
            _ = stop.next() => {
                bar.clear();
                return Err(Failure::new(
                    Code::Cancelled,
                    "the image was not brought here, so the program did not run",
                    "run it again",
                ));
            }
        }
    }
}

/// Ends everything; a further signal does not wait for that.
async fn shutdown(engine: &Engine, stop: &mut signals::Stop) {
    tokio::select! {
        () = engine.shutdown() => {}
        _impatient = stop.next() => {}
    }
}

/// What the engine is asked, and where files go afterwards.
fn request(args: &RunArgs, settings: &Settings, found: &Detected) -> Result<(ProgramRequest, Vec<Out>), Failure> {
    let outs: Vec<Out> = args
        .outs
        .iter()
        .map(|text| Out::parse(text))
        .collect::<Result<_, _>>()?;
    let limit = settings.engine.file_bytes;
    let mut files = Vec::new();
    for text in &args.files {
        let (host, sandbox) = text.rsplit_once(':').ok_or_else(|| {
            Failure::invalid(
                format!("--file {text}: there is no `:`"),
                "give it as HOST:SANDBOX, such as data.csv:data.csv",
            )
        })?;
        let path = sandbox_path("--file", sandbox)?;
        files.push((path, Bytes::from(read_bounded(Path::new(host), limit)?)));
    }
    let code = read_bounded(&args.program, settings.engine.code_bytes)?;
    let code = String::from_utf8(code).map_err(|error| {
        Failure::invalid(
            format!(
                "{} is not UTF-8: byte {} breaks it",
                name(&args.program),
                error.utf8_error().valid_up_to()
            ),
            "save the program as UTF-8",
        )
    })?;
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
        memory: args.memory.map(ByteSize::mib),
        network: args.network.clone(),
        image: args.image.clone(),
        consent: Consent::NotAsked,
    };
    Ok((request, outs))
}

/// A file to bring back.
#[derive(Debug)]
struct Out {
    sandbox: SandboxPath,
    host: PathBuf,
}

impl Out {
    fn parse(text: &str) -> Result<Self, Failure> {
        let (sandbox, host) = text
            .split_once(':')
            .filter(|(_, host)| !host.is_empty())
            .ok_or_else(|| {
                Failure::invalid(
                    format!("--out {text}: there is no `:HOST`"),
                    "give it as SANDBOX:HOST, such as plot.png:plot.png",
                )
            })?;
        let sandbox = sandbox_path("--out", sandbox)?;
        let mut host = PathBuf::from(host);
        if host.is_dir() {
            host.push(sandbox.name());
        }
        Ok(Self { sandbox, host })
    }
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

/// Reads a file, or stdin for `-`, that may not be larger than `limit`.
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

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(timeout) if !timeout.is_zero() && timeout <= MAX_TIMEOUT => Ok(timeout),
        _ => Err(format!(
            "must be more than 0 and at most {} seconds",
            MAX_TIMEOUT.as_secs()
        )),
    }
}

/// What a program ends with whose reader has gone.
const PIPE_CLOSED: u8 = 128 + 13;

/// Brings files back, says what stopped the program if not itself, and tells the exit status.
fn finish(args: &RunArgs, view: &ExecutionView, outs: &[Out], written: io::Result<Collected>) -> Result<u8, Failure> {
    let brought = bring_back(view, outs);
    let shown = match written {
        Ok(collected) if args.json => output::json(&as_json(view, &collected)),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match shown {
        Ok(()) => {}
        // Whoever reads our output has seen enough, which is no fault.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(PIPE_CLOSED),
        Err(error) => {
            return Err(Failure::new(
                Code::Internal,
                format!("stdout cannot be written: {error}"),
                "check where stdout goes",
            ));
        }
    }
    let status = exit_status(view);
    if let (Some(cause), false) = (&view.cause, args.json)
        && !matches!(cause.code, Code::CodeFailed | Code::Cancelled)
    {
        output::failure(&Failure::new(cause.code, cause.message.clone(), cause.remedy.clone()));
    }
    if let (Some(hint), false) = (&view.hint, args.json) {
        output::hint(hint);
    }
    match brought {
        Err(failure) if status == 0 => Err(failure),
        Err(failure) => {
            output::failure(&failure);
            Ok(status)
        }
        Ok(()) => Ok(status),
    }
}

/// Writes the wanted files; the first one that is missing or cannot be written is told.
fn bring_back(view: &ExecutionView, outs: &[Out]) -> Result<(), Failure> {
    // Artifacts come in the order of the wish, without those that could not be read.
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

/// Reasons begin with the path they are about.
fn is_about(reason: &str, out: &Out) -> bool {
    reason
        .strip_prefix(out.sandbox.as_str())
        .is_some_and(|rest| rest.starts_with([' ', ':']))
}

/// The exit status as shells know it.
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
        (Status::Running, _) => RUN_FAILED,
    }
}

/// The object of `_meta["sandcell/execution"]`, and what the program wrote.
fn as_json(view: &ExecutionView, collected: &Collected) -> serde_json::Value {
    let mut object = sandcell_mcp::execution_object(view);
    object.insert("truncated".to_owned(), json!(collected.truncated));
    object.insert("stdout".to_owned(), json!(String::from_utf8_lossy(&collected.stdout)));
    object.insert("stderr".to_owned(), json!(String::from_utf8_lossy(&collected.stderr)));
    object.insert("result".to_owned(), json!(view.result));
    serde_json::Value::Object(object)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
