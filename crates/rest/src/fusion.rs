//! `POST /run_code` in the format of SandboxFusion, which trainers of language models use. It runs a whole program once
//! in a fresh sandbox, and compiles it first if its language is compiled.
//!
//! `message` has the facts for which the format has no field. If a caller is at its limit of sandboxes, its further
//! requests wait in a queue: these clients send many requests at once, and do not retry rejected ones.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::{Response, StatusCode};
use sandcell_engine::{Artifact, Engine, ExecutionView, Phase, ProgramRequest, Status, Watch};
use sandcell_mcp::{EndpointBody, RequestBody, holding};
use sandcell_sandbox::{ByteSize, Consent, Failure, OutputStream, SandboxPath, SessionEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::commands::stdin_of;
use crate::model;
use crate::problem::Problem;
use crate::request::{Call, mebibytes, path, seconds};
use crate::{respond, run};

/// The path of the route.
pub(crate) const RUN_CODE_PATH: &str = "/run_code";
/// The maximum bytes of each stream in an answer, as in SandboxFusion.
const OUTPUT_BYTES: u64 = 1 << 20;
/// Answers with more output than this count as large.
const LARGE_OUTPUT_BYTES: u64 = 128 << 10;
/// The capacity of a program's event channel. The engine keeps the output, so the channel can be small.
const EVENT_CAPACITY: usize = 16;
/// The exit code of a killed program, as Python's `subprocess` reports it.
const KILLED_EXIT_CODE: i32 = -9;

/// SandboxFusion's language names, and this server's. None: this server has no such language.
const LANGUAGE_NAMES: [(&str, Option<&str>); 31] = [
    ("python", Some("python")),
    ("cpp", Some("cpp")),
    ("nodejs", Some("javascript")),
    ("js", Some("javascript")),
    ("go", Some("go")),
    ("java", Some("java")),
    ("php", Some("php")),
    ("csharp", Some("csharp")),
    ("bash", Some("bash")),
    ("typescript", Some("typescript")),
    ("ts", Some("typescript")),
    ("sql", Some("sql")),
    ("rust", Some("rust")),
    ("lua", Some("lua")),
    ("R", Some("r")),
    ("perl", Some("perl")),
    ("ruby", Some("ruby")),
    ("scala", Some("scala")),
    ("julia", Some("julia")),
    ("racket", Some("racket")),
    ("go_test", None),
    ("cuda", None),
    ("D_ut", None),
    ("pytest", None),
    ("junit", None),
    ("kotlin_script", None),
    ("jest", None),
    ("verilog", None),
    ("python_gpu", None),
    ("lean", None),
    ("swift", None),
];

/// A program to run, in the format of SandboxFusion. Fields that are not listed are ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RunCodeRequest")]
pub(crate) struct Request {
    /// The program.
    code: String,
    /// One of SandboxFusion's language names, such as `python`, `cpp`, `nodejs` or `R`, or one of this server's.
    language: String,
    /// Standard input.
    stdin: Option<String>,
    /// The time limit of the compiler in seconds.
    #[serde(default = "ten_seconds")]
    compile_timeout: f64,
    /// The time limit of the program in seconds.
    #[serde(default = "ten_seconds")]
    run_timeout: f64,
    /// The memory limit of compiler and program in MiB; -1 and 0 mean the server's default.
    #[serde(rename = "memory_limit_MB", default = "default_memory")]
    memory_limit_mb: i64,
    /// Files that are written before the program runs: path to content in base64.
    #[serde(default)]
    files: BTreeMap<String, Option<String>>,
    /// Paths of files to return.
    #[serde(default)]
    fetch_files: Vec<String>,
}

const fn ten_seconds() -> f64 {
    10.0
}

const fn default_memory() -> i64 {
    -1
}

/// The result of a program, in the format of SandboxFusion.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunCodeResponse")]
pub(crate) struct Answer {
    status: RunStatus,
    /// The reason for a failure that `compile_result` and `run_result` do not show.
    message: String,
    compile_result: Option<CommandResult>,
    run_result: Option<CommandResult>,
    /// Always null.
    executor_pod_name: Option<String>,
    /// The files of `fetch_files` that exist, in base64.
    files: BTreeMap<String, String>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
enum RunStatus {
    /// Compiler and program exited with 0.
    Success,
    /// The compiler or the program failed or took too long.
    Failed,
    /// The program could not be run.
    SandboxError,
}

/// The result of the compiler or the program.
#[derive(Debug, Serialize, JsonSchema)]
struct CommandResult {
    status: CommandStatus,
    /// The run time in seconds.
    execution_time: Option<f64>,
    /// The exit code; -9 after a kill, null after a timeout.
    return_code: Option<i32>,
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
enum CommandStatus {
    /// It exited by itself, or was killed at its memory limit.
    Finished,
    /// The server could not run it.
    Error,
    TimeLimitExceeded,
}

/// A request with invalid fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HTTPValidationError")]
pub(crate) struct InvalidRequest {
    detail: Vec<InvalidField>,
}

/// An invalid field.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ValidationError")]
struct InvalidField {
    r#type: &'static str,
    /// `body`, followed by the path of the field.
    loc: Vec<String>,
    msg: String,
    input: Value,
}

impl InvalidRequest {
    fn field(kind: &'static str, field: &str, message: String, input: Value) -> Self {
        let names = field.split('.').filter(|name| !name.is_empty());
        Self {
            detail: vec![InvalidField {
                r#type: kind,
                loc: std::iter::once("body").chain(names).map(str::to_owned).collect(),
                msg: message,
                input,
            }],
        }
    }

    fn into_response(self) -> Response<EndpointBody> {
        respond::json(StatusCode::UNPROCESSABLE_ENTITY, &self)
    }
}

impl Answer {
    fn sandbox_error(message: String) -> Self {
        Self {
            status: RunStatus::SandboxError,
            message,
            compile_result: None,
            run_result: None,
            executor_pod_name: None,
            files: BTreeMap::new(),
        }
    }

    /// Sets the status that SandboxFusion derives from both results.
    fn set_status(&mut self) {
        let results = || self.compile_result.iter().chain(&self.run_result);
        self.status = if results().any(|result| result.status == CommandStatus::Error) {
            RunStatus::SandboxError
        } else if results().all(|result| result.return_code == Some(0)) {
            RunStatus::Success
        } else {
            RunStatus::Failed
        };
    }
}

/// Runs a program.
pub(crate) async fn run_code(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked = match &call.body {
        RequestBody::Whole(bytes) => read(bytes),
        RequestBody::Nothing | RequestBody::Stream(_) | RequestBody::Raw(_) => read(&Bytes::new()),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(invalid) => return Ok(invalid.into_response()),
    };
    let language = match language(&asked.language, call.engine) {
        Ok(Some(language)) => language,
        Ok(None) => {
            let message = format!("the language {} is not available here", asked.language);
            return Ok(respond::json(StatusCode::OK, &Answer::sandbox_error(message)));
        }
        Err(invalid) => return Ok(invalid.into_response()),
    };
    match program(&call, asked, language).await {
        Ok(response) => Ok(response),
        Err(failure) => Ok(respond::json(
            StatusCode::OK,
            &Answer::sandbox_error(failure.to_string()),
        )),
    }
}

fn read(bytes: &Bytes) -> Result<Request, InvalidRequest> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        let kind = if error.is_data() { "value_error" } else { "json_invalid" };
        InvalidRequest::field(kind, path.trim_matches('.'), error.to_string(), Value::Null)
    })?;
    let ended = reader.end();
    ended.map_err(|error| InvalidRequest::field("json_invalid", "", error.to_string(), Value::Null))?;
    Ok(read)
}

/// Returns this server's name of a language, or none if the language is not available.
fn language(name: &str, engine: &Engine) -> Result<Option<String>, InvalidRequest> {
    if let Some((_, ours)) = LANGUAGE_NAMES.iter().find(|(theirs, _)| *theirs == name) {
        return Ok(ours.map(str::to_owned));
    }
    let here = engine.languages();
    let own = here
        .iter()
        .find(|one| one.name == name || one.aliases.iter().any(|alias| alias == name));
    if let Some(own) = own {
        return Ok(Some(own.name.clone()));
    }
    let known: Vec<&str> = LANGUAGE_NAMES.iter().map(|(name, _)| *name).collect();
    let message = format!("Input should be one of: {}", known.join(", "));
    // Long names are cut.
    let input: String = name.chars().take(100).collect();
    Err(InvalidRequest::field(
        "literal_error",
        "language",
        message,
        json!(input),
    ))
}

async fn program(call: &Call<'_>, asked: Request, language: String) -> Result<Response<EndpointBody>, Failure> {
    let files = asked
        .files
        .into_iter()
        .filter_map(|(name, content)| Some((name, content?)));
    let files = files.map(|(name, content)| Ok((path("files", &name)?, model::decode(&name, &content)?)));
    let outputs = asked.fetch_files.iter().map(|name| path("fetch_files", name));
    let outputs: Vec<SandboxPath> = outputs.collect::<Result<_, _>>()?;
    let watch = Watch::default();
    let request = ProgramRequest {
        code: asked.code,
        language,
        args: Vec::new(),
        packages: Vec::new(),
        files: files.collect::<Result<_, Failure>>()?,
        outputs: outputs.clone(),
        timeout: Some(seconds("run_timeout", asked.run_timeout)?),
        compile_timeout: Some(seconds("compile_timeout", asked.compile_timeout)?),
        memory: memory(asked.memory_limit_mb)?,
        network: Vec::new(),
        image: None,
        consent: Consent::CannotAsk,
        progress: watch::Sender::new(String::new()),
        watch: watch.clone(),
    };
    let max_running = call.engine.config().sandboxes_per_caller.max(1);
    let permit = call.queues.acquire(&call.caller, max_running).await?;
    let began = Instant::now();
    let (output, events) = mpsc::channel(EVENT_CAPACITY);
    let stdin = stdin_of(asked.stdin);
    let running = call
        .engine
        .run_program(&call.caller, request, stdin, output, CancellationToken::new());
    let (view, compiled) = tokio::join!(running, compilation(events, began));
    let view = view?;
    drop(permit);
    let shown = view.stdout.total_bytes.min(OUTPUT_BYTES) + view.stderr.total_bytes.min(OUTPUT_BYTES);
    let large_permit = if shown > LARGE_OUTPUT_BYTES || !outputs.is_empty() {
        Some(call.large.permit().await?)
    } else {
        None
    };
    let mut answer = results(&view, &watch, &compiled, began.elapsed());
    answer.files = fetched(&view, &asked.fetch_files, &outputs);
    Ok(respond::json(StatusCode::OK, &answer).map(|body| holding(body, large_permit)))
}

/// Returns the requested memory limit. Numbers that are not positive mean the default, as in SandboxFusion.
fn memory(asked: i64) -> Result<Option<ByteSize>, Failure> {
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0);
    asked.map(|asked| mebibytes("memory_limit_MB", asked)).transpose()
}

/// The facts about a successful compilation.
#[derive(Debug, Default)]
struct Compilation {
    /// The compile time. None if nothing was compiled or the compiler failed.
    took: Option<Duration>,
    /// The number of bytes that the compiler wrote. They are the first bytes of stderr.
    stderr_bytes: u64,
}

/// Reads the events of a program until it ends, and returns the facts about its compilation.
async fn compilation(mut events: mpsc::Receiver<SessionEvent>, began: Instant) -> Compilation {
    let (mut took, mut stderr_bytes) = (None, 0);
    while let Some(event) = events.recv().await {
        match event {
            SessionEvent::Begun => took = Some(began.elapsed()),
            SessionEvent::Output {
                stream: OutputStream::Stderr,
                bytes,
            } if took.is_none() => stderr_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            _ => {}
        }
    }
    Compilation {
        took,
        stderr_bytes: if took.is_some() { stderr_bytes } else { 0 },
    }
}

fn results(view: &ExecutionView, watch: &Watch, compiled: &Compilation, took: Duration) -> Answer {
    let text = |stream, offset, max_bytes| Some(run::text(watch, stream, offset, max_bytes).0);
    let (status, return_code) = last_step(view);
    let mut answer = Answer::sandbox_error(String::new());
    if view.phase == Phase::Compile {
        answer.compile_result = Some(CommandResult {
            status,
            execution_time: Some(took.as_secs_f64()),
            return_code,
            stdout: Some(String::new()),
            stderr: text(OutputStream::Stderr, 0, OUTPUT_BYTES),
        });
    } else {
        answer.compile_result = compiled.took.map(|took| CommandResult {
            status: CommandStatus::Finished,
            execution_time: Some(took.as_secs_f64()),
            return_code: Some(0),
            stdout: Some(String::new()),
            stderr: text(OutputStream::Stderr, 0, compiled.stderr_bytes),
        });
        answer.run_result = Some(CommandResult {
            status,
            execution_time: Some(view.duration.as_secs_f64()),
            return_code,
            stdout: text(OutputStream::Stdout, 0, OUTPUT_BYTES),
            stderr: text(OutputStream::Stderr, compiled.stderr_bytes, OUTPUT_BYTES),
        });
    }
    answer.set_status();
    if let Some(cause) = view.cause.as_ref().filter(|_| answer.status != RunStatus::Success) {
        answer.message = cause.message.clone();
    }
    answer
}

/// Returns the status and the exit code of the last step.
fn last_step(view: &ExecutionView) -> (CommandStatus, Option<i32>) {
    let compiler_was_slow = view.error.as_ref().is_some_and(|error| error.name == "CompileTimeout");
    match view.status {
        Status::Ok => (CommandStatus::Finished, Some(view.exit_code.unwrap_or(0))),
        Status::Error if view.phase == Phase::Compile && compiler_was_slow => (CommandStatus::TimeLimitExceeded, None),
        Status::Error if view.phase == Phase::Compile => (CommandStatus::Finished, Some(view.exit_code.unwrap_or(1))),
        Status::Error => match view.exit_code {
            Some(code) => (CommandStatus::Finished, Some(code)),
            None => (CommandStatus::Error, None),
        },
        Status::Timeout => (CommandStatus::TimeLimitExceeded, None),
        Status::Killed => (
            CommandStatus::Finished,
            Some(view.exit_code.unwrap_or(KILLED_EXIT_CODE)),
        ),
        Status::Cancelled | Status::Running => (CommandStatus::Error, None),
    }
}

/// Returns the requested files, under the names of the request.
fn fetched(view: &ExecutionView, names: &[String], outputs: &[SandboxPath]) -> BTreeMap<String, String> {
    let mut files = view.artifacts.iter().filter(|file: &&Artifact| !file.shown);
    let is_missing = |path: &SandboxPath| {
        let rest = |reason: &String| {
            reason
                .strip_prefix(path.as_str())
                .map(|rest| rest.starts_with([' ', ':']))
        };
        view.missing_outputs.iter().any(|reason| rest(reason) == Some(true))
    };
    // Both lists are in the order of the request.
    let found = names.iter().zip(outputs).filter(|(_, path)| !is_missing(path));
    found
        .filter_map(|(name, _)| Some((name.clone(), BASE64_STANDARD.encode(&files.next()?.bytes))))
        .collect()
}
