//! `POST /run_code` in the form of SandboxFusion, which trainers of language models speak: a whole program, compiled where
//! its language is, run once in a fresh sandbox.
//!
//! What its form has no word for goes into `message`. Requests of a caller that has as many sandboxes as it may have wait
//! for their turn, since these clients send as many as they like at once and do not repeat what was refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::{Response, StatusCode};
use sandcell_engine::{Artifact, Engine, ExecutionView, Phase, Principal, ProgramRequest, Status, Watch};
use sandcell_mcp::{EndpointBody, RequestBody, holding};
use sandcell_sandbox::{ByteSize, Code, Consent, Failure, OutputStream, SandboxPath, SessionEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::commands::given;
use crate::model;
use crate::problem::Problem;
use crate::request::{Call, mebibytes, path, seconds};
use crate::{respond, run};

/// The location.
pub(crate) const PATH: &str = "/run_code";
/// Bytes of each stream of an answer, as SandboxFusion hands back.
const OUTPUT_BYTES: u64 = 1 << 20;
/// Output from which on an answer is a large one.
const LARGE_OUTPUT_BYTES: u64 = 128 << 10;
/// The maximum time that a request waits in the queue.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Callers whose turns are kept though none is taken.
const IDLE_CALLERS: usize = 256;
/// Output on its way from a program; what matters of it is kept by the engine.
const EVENTS: usize = 16;
/// The exit code of a program that was killed, as Python's `subprocess` has it.
const KILLED: i32 = -9;

/// SandboxFusion's names of languages, and ours. None: what it names is not here.
const LANGUAGES: [(&str, Option<&str>); 31] = [
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

/// A program to run, in the form of SandboxFusion. Fields that are not listed are ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RunCodeRequest")]
pub(crate) struct Request {
    /// The program.
    code: String,
    /// One of SandboxFusion's names of languages, such as `python`, `cpp`, `nodejs` or `R`; names of this server's languages
    /// are taken as well.
    language: String,
    /// Standard input.
    stdin: Option<String>,
    /// Seconds that the compiler may take.
    #[serde(default = "ten_seconds")]
    compile_timeout: f64,
    /// Seconds that the program may run.
    #[serde(default = "ten_seconds")]
    run_timeout: f64,
    /// Memory of compiler and program in MiB; -1 and 0 mean the server's default.
    #[serde(rename = "memory_limit_MB", default = "default_memory")]
    memory_limit_mb: i64,
    /// Files that are there before it runs: path to content in base64.
    #[serde(default)]
    files: BTreeMap<String, Option<String>>,
    /// Files that are handed back.
    #[serde(default)]
    fetch_files: Vec<String>,
}

const fn ten_seconds() -> f64 {
    10.0
}

const fn default_memory() -> i64 {
    -1
}

/// What became of a program, in the form of SandboxFusion.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RunCodeResponse")]
pub(crate) struct Answer {
    status: RunStatus,
    /// Why, where `compile_result` and `run_result` do not tell.
    message: String,
    compile_result: Option<CommandResult>,
    run_result: Option<CommandResult>,
    /// Always null.
    executor_pod_name: Option<String>,
    /// Files of `fetch_files` that were there, in base64.
    files: BTreeMap<String, String>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
enum RunStatus {
    /// Compiler and program ended with 0.
    Success,
    /// The compiler or the program failed or took too long.
    Failed,
    /// The program could not be run.
    SandboxError,
}

/// How the compiler or the program ended.
#[derive(Debug, Serialize, JsonSchema)]
struct CommandResult {
    status: CommandStatus,
    /// Seconds.
    execution_time: Option<f64>,
    /// The exit code; -9 if it was killed, null if it took too long.
    return_code: Option<i32>,
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
enum CommandStatus {
    /// It ended by itself or was killed for its memory.
    Finished,
    /// The server could not run it.
    Error,
    TimeLimitExceeded,
}

/// A request that has not the right form.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "HTTPValidationError")]
pub(crate) struct Invalid {
    detail: Vec<InvalidField>,
}

/// A field that is wrong.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ValidationError")]
struct InvalidField {
    r#type: &'static str,
    /// `body`, and the names that lead to the field.
    loc: Vec<String>,
    msg: String,
    input: Value,
}

impl Invalid {
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

    /// The status that SandboxFusion derives from both results.
    fn judge(&mut self) {
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

/// Places of callers for programs that run at once.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<Principal, Arc<Semaphore>>>);

impl Turns {
    /// Waits until the caller has fewer than `places` programs under way.
    async fn take(&self, who: &Principal, places: usize) -> Result<OwnedSemaphorePermit, Failure> {
        let own = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() > IDLE_CALLERS {
                all.retain(|_, places| Arc::strong_count(places) > 1);
            }
            let own = all
                .entry(who.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(places)));
            if Arc::strong_count(own) == 1 {
                // Nobody has one of its places or waits for one: the bound can be another one by now.
                *own = Arc::new(Semaphore::new(places));
            }
            Arc::clone(own)
        };
        match tokio::time::timeout(TURN_TIMEOUT, own.acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(Failure::new(
                Code::Busy,
                format!(
                    "{places} of your programs were under way for {} s",
                    TURN_TIMEOUT.as_secs()
                ),
                "send fewer at once",
            )),
        }
    }
}

/// Runs a program.
pub(crate) async fn run_code(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked = match &call.body {
        RequestBody::Json(bytes) => read(bytes),
        RequestBody::Nothing | RequestBody::Stream(_) => read(&Bytes::new()),
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

fn read(bytes: &Bytes) -> Result<Request, Invalid> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        let kind = if error.is_data() { "value_error" } else { "json_invalid" };
        Invalid::field(kind, path.trim_matches('.'), error.to_string(), Value::Null)
    })?;
    let ended = reader.end();
    ended.map_err(|error| Invalid::field("json_invalid", "", error.to_string(), Value::Null))?;
    Ok(read)
}

/// Our name of a language; none if it is not here.
fn language(name: &str, engine: &Engine) -> Result<Option<String>, Invalid> {
    if let Some((_, ours)) = LANGUAGES.iter().find(|(theirs, _)| *theirs == name) {
        return Ok(ours.map(str::to_owned));
    }
    let here = engine.languages();
    let own = here
        .iter()
        .find(|one| one.name == name || one.aliases.iter().any(|alias| alias == name));
    if let Some(own) = own {
        return Ok(Some(own.name.clone()));
    }
    let known: Vec<&str> = LANGUAGES.iter().map(|(name, _)| *name).collect();
    let message = format!("Input should be one of: {}", known.join(", "));
    // Long ones are not repeated.
    let input: String = name.chars().take(100).collect();
    Err(Invalid::field("literal_error", "language", message, json!(input)))
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
    let places = call.engine.config().sandboxes_per_caller.max(1);
    let turn = call.turns.take(&call.who, places).await?;
    let began = Instant::now();
    let (output, events) = mpsc::channel(EVENTS);
    let stdin = given(asked.stdin);
    let running = call
        .engine
        .run_program(&call.who, request, stdin, output, CancellationToken::new());
    let (view, compiled) = tokio::join!(running, compilation(events, began));
    let view = view?;
    drop(turn);
    let shown = view.stdout.total_bytes.min(OUTPUT_BYTES) + view.stderr.total_bytes.min(OUTPUT_BYTES);
    let place = if shown > LARGE_OUTPUT_BYTES || !outputs.is_empty() {
        Some(call.large.permit().await?)
    } else {
        None
    };
    let mut answer = results(&view, &watch, &compiled, began.elapsed());
    answer.files = fetched(&view, &asked.fetch_files, &outputs);
    Ok(respond::json(StatusCode::OK, &answer).map(|body| holding(body, place)))
}

/// The memory that is asked for. Numbers that are not positive ask for the default, as with SandboxFusion.
fn memory(asked: i64) -> Result<Option<ByteSize>, Failure> {
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0);
    asked.map(|asked| mebibytes("memory_limit_MB", asked)).transpose()
}

/// What is known of the compiler, where it was right.
#[derive(Debug, Default)]
struct Compilation {
    /// How long it took; none if there was none, or it failed.
    took: Option<Duration>,
    /// Bytes that it wrote. They are the first ones of stderr.
    said: u64,
}

/// Follows the output of a program to its end.
async fn compilation(mut events: mpsc::Receiver<SessionEvent>, began: Instant) -> Compilation {
    let (mut took, mut said) = (None, 0);
    while let Some(event) = events.recv().await {
        match event {
            SessionEvent::Begun => took = Some(began.elapsed()),
            SessionEvent::Output {
                stream: OutputStream::Stderr,
                bytes,
            } if took.is_none() => said += u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            _ => {}
        }
    }
    Compilation {
        took,
        said: if took.is_some() { said } else { 0 },
    }
}

fn results(view: &ExecutionView, watch: &Watch, compiled: &Compilation, took: Duration) -> Answer {
    let text = |stream, offset, most| Some(run::text(watch, stream, offset, most).0);
    let (status, return_code) = ending(view);
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
            stderr: text(OutputStream::Stderr, 0, compiled.said),
        });
        answer.run_result = Some(CommandResult {
            status,
            execution_time: Some(view.duration.as_secs_f64()),
            return_code,
            stdout: text(OutputStream::Stdout, 0, OUTPUT_BYTES),
            stderr: text(OutputStream::Stderr, compiled.said, OUTPUT_BYTES),
        });
    }
    answer.judge();
    if let Some(cause) = view.cause.as_ref().filter(|_| answer.status != RunStatus::Success) {
        answer.message = cause.message.clone();
    }
    answer
}

/// How the step that was last ended, and its exit code.
fn ending(view: &ExecutionView) -> (CommandStatus, Option<i32>) {
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
        Status::Killed => (CommandStatus::Finished, Some(view.exit_code.unwrap_or(KILLED))),
        Status::Cancelled | Status::Running => (CommandStatus::Error, None),
    }
}

/// The files that were asked for, by the names that they were asked for with.
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
