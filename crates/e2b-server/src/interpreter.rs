//! The code interpreter: runs code in contexts that keep their variables. An answer is lines of JSON, sent as the code
//! runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::{Method, Response, StatusCode};
use sandcell_engine::{ExecuteRequest, ExecutionView, InHistory, Status, Utf8, Watch};
use sandcell_mcp::{BodySender, Disconnected, EndpointBody, EndpointRequest, channel_body, whole_body};
use sandcell_sandbox::{Code, Failure, MAX_TIMEOUT, OutputStream, rfc3339_millis};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use crate::answer;
use crate::call::InSandbox;
use crate::contexts::{Context, DEFAULT_CWD, new_context};
use crate::limits::STREAM_CAPACITY;
use crate::paths::path;
use crate::problem::Problem;
use crate::values::{self, ascii};

/// The type of the answer's lines.
const LINES_TYPE: &str = "application/x-ndjson";
/// The language of requests that name none.
const DEFAULT_LANGUAGE: &str = "python";
/// Languages whose default contexts are listed from the start.
const LISTED_LANGUAGES: [&str; 2] = ["python", "javascript"];
/// E2B's short names of languages.
const LANGUAGE_ALIASES: [(&str, &str); 3] = [("js", "javascript"), ("ts", "typescript"), ("py", "python")];
/// The interval of keep-alive lines.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The maximum bytes of output in one line.
const LINE_BYTES: usize = 32 << 10;
/// The time limit of code that prepares a context.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// A request to run code.
#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// A request for a context.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

/// Returns the name of a language that this server has.
fn language(call: &InSandbox, asked: Option<&str>) -> Result<String, Problem> {
    let asked = asked
        .map(str::to_ascii_lowercase)
        .unwrap_or_else(|| DEFAULT_LANGUAGE.to_owned());
    let name = LANGUAGE_ALIASES
        .iter()
        .find(|(alias, _)| *alias == asked)
        .map_or(asked.as_str(), |(_, name)| name);
    let known = call.state.engine.languages();
    if known.iter().any(|language| language.name == name) {
        return Ok(name.to_owned());
    }
    let shown: String = name.chars().take(32).collect();
    Err(Problem::unimplemented(&format!(
        "the language {shown:?}: it is not installed on this machine"
    )))
}

/// Runs code.
pub(crate) async fn execute(call: InSandbox, request: EndpointRequest<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: Execute = answer::read(&request.body)?;
    let contexts = &call.sandbox.contexts;
    let context = match (asked.context_id, asked.language) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("Only one of context_id or language can be provided"));
        }
        (Some(id), None) => contexts.find(&id)?,
        (None, language_name) => contexts.default_of(&language(&call, language_name.as_deref())?)?,
    };
    if asked.code.trim().is_empty() {
        let count = context.count.fetch_add(1, Ordering::Relaxed) + 1;
        return Ok(empty_execution(count));
    }
    let env = asked.env_vars.unwrap_or_default();
    let change = match env.is_empty() {
        true => None,
        false => Some(EnvChange::new(&context.language, &env)?),
    };
    let lock = Arc::clone(&context.turn).lock_owned().await;
    let set = change.as_ref().map(|change| change.set.clone());
    let turn = Turn(Some(TurnState {
        call: call.clone(),
        context: Arc::clone(&context),
        change,
        lock,
    }));
    if let Some(set) = set {
        run_quietly(&call, &context, &set).await?;
    }
    let watch = Watch::default();
    let request = ExecuteRequest {
        keep_values: true,
        watch: watch.clone(),
        ..request_for(&call, &context, asked.code, MAX_TIMEOUT)
    };
    let (engine, owner) = (Arc::clone(&call.state.engine), call.sandbox.owner.clone());
    let mut running: Running = async move { engine.execute(&owner, request, CancellationToken::new()).await }.boxed();
    let ended = tokio::select! {
        biased;
        ended = &mut running => Some(ended?),
        _admitted = watch.admitted() => None,
    };
    let count = context.count.fetch_add(1, Ordering::Relaxed) + 1;
    let (parts, body) = channel_body(STREAM_CAPACITY, None);
    tokio::spawn(async move {
        let lines = Lines {
            call,
            parts: parts.clone(),
            stdout: StreamProgress::new("stdout", OutputStream::Stdout),
            stderr: StreamProgress::new("stderr", OutputStream::Stderr),
            values: 0,
        };
        tokio::select! {
            // Dropping the call interrupts the code.
            () = parts.closed() => {}
            sent = lines.send_all(count, running, ended, &watch) => {
                if matches!(sent, Ok(Sent::UntilGone)) {
                    // The SDKs then ask whether the sandbox lives.
                    parts.break_off().await;
                }
            }
        }
        drop(turn);
    });
    Ok(answer::with_body(StatusCode::OK, LINES_TYPE, body))
}

type Running = BoxFuture<'static, Result<ExecutionView, Failure>>;

/// Returns the answer to code that is empty: the engine takes none, and E2B runs it.
fn empty_execution(count: u64) -> Response<EndpointBody> {
    let lines = [number_line(count), end_line()];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    answer::with_body(StatusCode::OK, LINES_TYPE, whole_body(text))
}

fn number_line(count: u64) -> Value {
    json!({"type": "number_of_executions", "execution_count": count})
}

fn end_line() -> Value {
    json!({"type": "end_of_execution"})
}

fn request_for(call: &InSandbox, context: &Context, code: String, timeout: Duration) -> ExecuteRequest {
    ExecuteRequest {
        code,
        language: context.language.clone(),
        session: context.session(),
        sandbox_id: Some(call.sandbox.id.clone()),
        timeout: Some(timeout),
        ..ExecuteRequest::default()
    }
}

/// Runs code that prepares a context. It is not part of the history.
async fn run_quietly(call: &InSandbox, context: &Context, code: &str) -> Result<(), Problem> {
    let request = ExecuteRequest {
        in_history: InHistory::Unshown,
        ..request_for(call, context, code.to_owned(), SETUP_TIMEOUT)
    };
    let (engine, owner) = (&call.state.engine, &call.sandbox.owner);
    let view = engine.execute(owner, request, CancellationToken::new()).await?;
    match (view.status, view.error) {
        (Status::Ok, _) => Ok(()),
        (_, Some(error)) => Err(Problem::invalid(format!("{}: {}", error.name, error.value))),
        (_, None) => Err(Problem::invalid("the context could not be prepared")),
    }
}

/// The turn of an execution in its context. When it is dropped, the environment variables of the execution are reset, and
/// then the next execution begins.
struct Turn(Option<TurnState>);

struct TurnState {
    call: InSandbox,
    context: Arc<Context>,
    change: Option<EnvChange>,
    lock: OwnedMutexGuard<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(TurnState {
            call,
            context,
            change: Some(change),
            lock,
        }) = self.0.take()
        else {
            return;
        };
        // A client can disconnect at any moment, so this does not depend on its request.
        tokio::spawn(async move {
            if let Err(problem) = run_quietly(&call, &context, &change.unset).await {
                tracing::debug!("could not reset environment variables: {}", problem.message);
            }
            drop(lock);
        });
    }
}

/// Code that sets the environment variables of one execution, and code that takes them back.
struct EnvChange {
    set: String,
    unset: String,
}

impl EnvChange {
    fn new(language: &str, env: &BTreeMap<String, String>) -> Result<Self, Problem> {
        let invalid = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = env.keys().find(invalid) {
            return Err(Problem::invalid(format!(
                "{name:?} is not a name of an environment variable"
            )));
        }
        if env.values().any(|value| value.contains('\0')) {
            return Err(Problem::invalid("an environment variable has a NUL character"));
        }
        // JSON text in a JSON string: it has only printable ASCII, and is a literal of both languages.
        let literal = |value: &Value| ascii(&Value::String(value.to_string()).to_string());
        let all = literal(&json!(env));
        match language {
            "python" => Ok(Self {
                set: format!(
                    "def _sandcell_env(new):\n    import os\n    global _sandcell_old_env\n    _sandcell_old_env = \
                     {{name: os.environ.get(name) for name in new}}\n    os.environ.update(new)\n\
                     import json as _sandcell_json\n_sandcell_env(_sandcell_json.loads({all}))\n\
                     del _sandcell_env, _sandcell_json"
                ),
                unset:
                    "def _sandcell_env():\n    import os\n    for name, value in _sandcell_old_env.items():\n        \
                        if value is None:\n            os.environ.pop(name, None)\n        else:\n            \
                        os.environ[name] = value\n_sandcell_env()\ndel _sandcell_env, _sandcell_old_env"
                        .to_owned(),
            }),
            "javascript" | "typescript" => Ok(Self {
                set: format!(
                    "{{ const given = JSON.parse({all}); globalThis.__sandcellOldEnv = Object.fromEntries(\
                     Object.keys(given).map(name => [name, process.env[name]])); Object.assign(process.env, given); }} \
                     undefined"
                ),
                unset: "{ for (const [name, value] of Object.entries(globalThis.__sandcellOldEnv)) { if (value === \
                        undefined) delete process.env[name]; else process.env[name] = value; } delete \
                        globalThis.__sandcellOldEnv; } undefined"
                    .to_owned(),
            }),
            "bash" => {
                let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
                let is_name = |name: &String| {
                    let mut bytes = name.bytes();
                    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    bytes.next().is_some_and(|first| word(first) && !first.is_ascii_digit()) && bytes.all(word)
                };
                if let Some(name) = env.keys().find(|name| !is_name(name)) {
                    return Err(Problem::invalid(format!(
                        "{name:?} is not a name of a variable of bash"
                    )));
                }
                let mut set = String::from("declare -gA _SANDCELL_OLD_ENV=()\n");
                for (name, value) in env {
                    set.push_str(&format!(
                        "[[ -v {name} ]] && _SANDCELL_OLD_ENV[{name}]=${name}\nexport {name}={}\n",
                        quote(value)
                    ));
                }
                let mut unset = String::new();
                for name in env.keys() {
                    unset.push_str(&format!(
                        "if [[ -v _SANDCELL_OLD_ENV[{name}] ]]; then export {name}=${{_SANDCELL_OLD_ENV[{name}]}}; \
                         else unset {name}; fi\n"
                    ));
                }
                set.push_str("true");
                unset.push_str("unset _SANDCELL_OLD_ENV");
                Ok(Self { set, unset })
            }
            other => Err(Problem::unimplemented(&format!(
                "environment variables of one execution in {other}"
            ))),
        }
    }
}

/// Returns code that changes the working folder.
fn change_folder(language: &str, folder: &str) -> Result<String, Problem> {
    let literal = ascii(&Value::String(folder.to_owned()).to_string());
    match language {
        "python" => Ok(format!("__import__('os').chdir({literal})")),
        "javascript" | "typescript" => Ok(format!("process.chdir({literal}); undefined")),
        "bash" => Ok(format!("cd -- '{}'", folder.replace('\'', "'\\''"))),
        other => Err(Problem::unimplemented(&format!("another working folder in {other}"))),
    }
}

/// Lists contexts, or makes one.
pub(crate) async fn contexts(call: InSandbox, request: EndpointRequest<'_>) -> Result<Response<EndpointBody>, Problem> {
    if request.parts.method == Method::GET {
        // These contexts exist from the start.
        for name in LISTED_LANGUAGES {
            if let Ok(language) = language(&call, Some(name)) {
                call.sandbox.contexts.default_of(&language)?;
            }
        }
        let listed: Vec<Value> = call.sandbox.contexts.views();
        return Ok(answer::json(StatusCode::OK, &listed));
    }
    let asked: NewContext = answer::read(&request.body)?;
    let language = language(&call, asked.language.as_deref())?;
    let cwd = path(asked.cwd.as_deref().unwrap_or(DEFAULT_CWD))?;
    let context = new_context(&language, cwd.as_str(), false)?;
    call.sandbox.contexts.add(&context)?;
    if let Err(problem) = enter_folder(&call, &context).await {
        call.sandbox.contexts.remove(&context.id);
        return Err(problem);
    }
    Ok(answer::json(StatusCode::OK, &context.view()))
}

/// Lets a context begin in its folder.
async fn enter_folder(call: &InSandbox, context: &Context) -> Result<(), Problem> {
    if context.cwd == DEFAULT_CWD {
        return Ok(());
    }
    run_quietly(call, context, &change_folder(&context.language, &context.cwd)?).await
}

/// Removes a context.
pub(crate) async fn remove_context(call: &InSandbox, id: &str) -> Result<Response<EndpointBody>, Problem> {
    let context = call.sandbox.contexts.find(id)?;
    end_session(call, &context).await?;
    call.sandbox.contexts.remove(id);
    Ok(answer::empty(StatusCode::NO_CONTENT))
}

/// Restarts the interpreter of a context.
pub(crate) async fn restart_context(call: &InSandbox, id: &str) -> Result<Response<EndpointBody>, Problem> {
    let context = call.sandbox.contexts.find(id)?;
    end_session(call, &context).await?;
    context.count.store(0, Ordering::Relaxed);
    enter_folder(call, &context).await?;
    Ok(answer::json(StatusCode::OK, &context.view()))
}

async fn end_session(call: &InSandbox, context: &Context) -> Result<(), Problem> {
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let session = context.session();
    engine
        .end_session(&sandbox.owner, &sandbox.id, &context.language, session.as_deref())
        .await?;
    Ok(())
}

/// Sends the lines of an execution.
struct Lines {
    call: InSandbox,
    parts: BodySender,
    stdout: StreamProgress,
    stderr: StreamProgress,
    /// The number of sent values.
    values: usize,
}

/// A stream, and the position up to which it was sent.
struct StreamProgress {
    name: &'static str,
    stream: OutputStream,
    next: u64,
    utf8: Utf8,
}

impl StreamProgress {
    fn new(name: &'static str, stream: OutputStream) -> Self {
        Self {
            name,
            stream,
            next: 0,
            utf8: Utf8::default(),
        }
    }

    /// Returns the next text, up to this position. None if there is none yet.
    fn text(&mut self, watch: &Watch, end: u64) -> Option<String> {
        let most = usize::try_from(end.saturating_sub(self.next))
            .unwrap_or(LINE_BYTES)
            .min(LINE_BYTES);
        let part = watch
            .output(self.stream, self.next, most)
            .filter(|part| part.next_offset > self.next)?;
        let skipped = part.offset.saturating_sub(self.next);
        self.next = part.next_offset;
        let mut text = String::new();
        if skipped > 0 {
            text = format!("{}[{skipped} bytes were not kept]\n", self.utf8.end());
        }
        text.push_str(&self.utf8.text(&part.bytes));
        Some(text)
    }
}

impl Lines {
    async fn send_all(
        mut self,
        count: u64,
        mut running: Running,
        ended: Option<ExecutionView>,
        watch: &Watch,
    ) -> Result<Sent, Disconnected> {
        self.line(&number_line(count)).await?;
        let mut ended: Option<Result<_, Failure>> = ended.map(Ok);
        loop {
            self.send_new(watch).await?;
            if let Some(end) = ended {
                for rest in [self.stdout.utf8.end(), self.stderr.utf8.end()]
                    .into_iter()
                    .zip([true, false])
                {
                    let name = if rest.1 { "stdout" } else { "stderr" };
                    self.text(name, rest.0).await?;
                }
                if is_gone(&self.call, &end) {
                    return Ok(Sent::UntilGone);
                }
                if let Some(error) = error(end) {
                    self.line(&error).await?;
                }
                return self.line(&end_line()).await.map(|()| Sent::Whole);
            }
            tokio::select! {
                biased;
                end = &mut running => ended = Some(end),
                () = watch.showed_more(self.stdout.next, self.stderr.next, self.values) => {}
                () = tokio::time::sleep(KEEP_ALIVE) => self.line(&json!({"type": "keepalive"})).await?,
            }
        }
    }

    /// Sends output and values that are new, in their order.
    async fn send_new(&mut self, watch: &Watch) -> Result<(), Disconnected> {
        // The totals first: a value that comes later was shown after this output.
        let total = |stream| watch.output(stream, 0, 0).map_or(0, |part| part.total_bytes);
        let (stdout, stderr) = (total(OutputStream::Stdout), total(OutputStream::Stderr));
        for value in watch.values(self.values) {
            self.print(watch, value.stdout, value.stderr).await?;
            self.line(&values::result(&value)).await?;
            self.values += 1;
        }
        self.print(watch, stdout, stderr).await
    }

    /// Sends output up to these positions.
    async fn print(&mut self, watch: &Watch, stdout: u64, stderr: u64) -> Result<(), Disconnected> {
        while let Some(text) = self.stdout.text(watch, stdout) {
            self.text(self.stdout.name, text).await?;
        }
        while let Some(text) = self.stderr.text(watch, stderr) {
            self.text(self.stderr.name, text).await?;
        }
        Ok(())
    }

    async fn text(&self, name: &str, text: String) -> Result<(), Disconnected> {
        if text.is_empty() {
            return Ok(());
        }
        let timestamp = rfc3339_millis(SystemTime::now());
        self.line(&json!({"type": name, "text": text, "timestamp": timestamp}))
            .await
    }

    async fn line(&self, line: &Value) -> Result<(), Disconnected> {
        // Clients split lines at other separators of Unicode, too.
        let text = format!("{}\n", ascii(&line.to_string()));
        self.parts.send(text.into()).await
    }
}

/// The result of sending an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Whole,
    /// The sandbox has ended meanwhile.
    UntilGone,
}

/// Returns true if the sandbox of an execution has ended meanwhile, other than by an error of the code.
pub(crate) fn is_gone(call: &InSandbox, end: &Result<ExecutionView, Failure>) -> bool {
    let code = match end {
        Ok(view) => view.cause.as_ref().map(|cause| cause.code),
        Err(failure) => Some(failure.code),
    };
    let ended = matches!(code, Some(Code::Cancelled | Code::Expired | Code::NotFound));
    ended && !call.state.engine.has_sandbox(&call.sandbox.owner, &call.sandbox.id)
}

/// Returns the line of a failed execution.
fn error(end: Result<ExecutionView, Failure>) -> Option<Value> {
    let line = |name: &str, value: &str, traceback: &str| json!({"type": "error", "name": name, "value": value, "traceback": traceback});
    match end {
        Err(failure) => Some(line(&class_name(failure.code.as_str()), &failure.message, "")),
        Ok(view) => match (view.error, view.cause) {
            (Some(error), _) => Some(line(&error.name, &error.value, &error.traceback)),
            (None, Some(cause)) => Some(line(
                &class_name(cause.code.as_str()),
                &format!("{} ({})", cause.message, cause.remedy),
                "",
            )),
            (None, None) => None,
        },
    }
}

/// Returns the name of a code as the name of a class: `out_of_memory` becomes `OutOfMemory`.
fn class_name(code: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    code.split('_').map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_names_of_classes() {
        assert_eq!(class_name("out_of_memory"), "OutOfMemory");
        assert_eq!(class_name("timeout"), "Timeout");
    }

    #[test]
    fn values_of_variables_cannot_become_code() {
        let env = BTreeMap::from([("A".to_owned(), "'; rm -rf /; \"\\\n€😀".to_owned())]);
        let python = EnvChange::new("python", &env).unwrap();
        assert!(
            python.set.is_ascii() && !python.set.contains("\"; rm"),
            "{}",
            python.set
        );
        let bash = EnvChange::new("bash", &env).unwrap();
        assert!(bash.set.contains(r"export A=''\''; rm -rf /;"), "{}", bash.set);
        for name in ["", "A=B", "A\0"] {
            let env = BTreeMap::from([(name.to_owned(), String::new())]);
            assert!(EnvChange::new("python", &env).is_err(), "{name:?}");
        }
        let env = BTreeMap::from([("A B$(x)".to_owned(), String::new())]);
        assert!(EnvChange::new("bash", &env).is_err());
    }
}
