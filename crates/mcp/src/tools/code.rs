//! Running code: in a session that keeps its variables, or once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use sandcell_engine::{AlternativesRequest, Engine, ExecuteRequest, ExecutionView, RunRequest, Status, Watch};
use sandcell_sandbox::{Consent, Failure, MAX_TIMEOUT};
use serde_json::{Value, json};

use super::packages::packages_field;
use super::{Call, Effect, Tool, ToolFacts, memory_field, network_field, sandbox_field, seconds_field};
use crate::answer::Answer;
use crate::arguments::{Arguments, sandbox_path};
use crate::content::execution;
use crate::limits::{MAX_RESULT_LINKS, MAX_WAIT, MIN_ANSWER_TIME};
use crate::schema::{Field, Kind, ListOf, MapOf};

/// The shortest timeout that a call may request.
const LEAST_TIMEOUT_S: f64 = 0.001;

fn code_field() -> Field {
    Field::new("code", Kind::Content, json!("print(1)")).required()
}

fn language_field(facts: &ToolFacts) -> Field {
    let default = facts.default_language();
    Field::new("language", Kind::Choice(facts.languages.clone()), json!(default)).default(json!(default))
}

fn stdin_field() -> Field {
    Field::new("stdin", Kind::Content, json!("yes\n")).about("What input() reads")
}

pub(super) fn timeout_field(facts: &ToolFacts) -> Field {
    seconds_field("timeout_s", LEAST_TIMEOUT_S, MAX_TIMEOUT.as_secs_f64(), 60).default(json!(facts.timeout_s))
}

pub(super) fn wait_field(facts: &ToolFacts) -> Field {
    seconds_field("wait_s", 0.0, f64::INFINITY, 45)
        .default(json!(facts.wait.as_secs()))
        .bounds(0, MAX_WAIT.as_secs())
}

/// The waits of calls, always shorter than the client's time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitLimits {
    /// For a call without a requested wait.
    pub(crate) usual: Duration,
    /// For any call.
    pub(crate) most: Duration,
}

/// The wait of one call.
pub(super) struct CallWait {
    pub(super) time: Duration,
    /// The requested wait, if it is longer.
    asked: Option<Duration>,
}

impl WaitLimits {
    /// Returns waits that fit a client which gives up after `limit`.
    pub(crate) fn new(usual: Duration, limit: Option<Duration>) -> Self {
        let left = limit.map(|limit| limit.saturating_sub(MIN_ANSWER_TIME.max(limit / 10)));
        let most = left.unwrap_or(MAX_WAIT).min(MAX_WAIT);
        Self {
            usual: usual.min(most),
            most,
        }
    }

    pub(super) fn of(self, arguments: &mut Arguments) -> CallWait {
        let asked = arguments.seconds("wait_s");
        CallWait {
            time: asked.unwrap_or(self.usual).min(self.most),
            asked: asked.filter(|asked| *asked > self.most),
        }
    }
}

impl CallWait {
    /// Returns a note if the call waited less than requested and the code still runs.
    pub(super) fn notes(&self, view: &ExecutionView) -> Option<String> {
        let asked = self.asked.filter(|_| view.status == Status::Running)?;
        Some(format!(
            "wait_s: {} s is more than a call can wait; it waited {} s",
            asked.as_secs(),
            self.time.as_secs_f64()
        ))
    }
}

/// Adds a sentence about the host's tools to a description.
fn with_tools(description: &str, facts: &ToolFacts) -> String {
    match facts.tool_servers.is_empty() {
        true => description.to_owned(),
        false => format!(
            "{description} Python code can call the host's tools as tools.SERVER.TOOL(name=value), many in one run: see \
             the server's instructions."
        ),
    }
}

pub(crate) fn execute_code(facts: &ToolFacts) -> Tool {
    Tool {
        name: "execute_code",
        description: with_tools(
            "Run code in a sandbox and get its output, the last expression's value and its plots. Start \
                      here: nothing has to be created first. Variables, imports and files stay for the next call of \
                      the same sandbox and language; languages without sessions (see the server's instructions) keep \
                      only files. Code that takes longer than wait_s keeps running: the result \
                      then has status running and an execution_id for get_execution. The last text block is the \
                      server's own status.",
            facts,
        ),
        fields: vec![
            code_field(),
            language_field(facts),
            sandbox_field().about("Leave out for your default sandbox"),
            stdin_field(),
            timeout_field(facts).about("The code is stopped after this"),
            wait_field(facts).about("Answer after this at the latest"),
            Field::new("checkpoint", Kind::Text, json!("before-merge"))
                .about("First keep variables and files under this name, for reset_session_state"),
            Field::new("alternatives", Kind::Texts(ListOf::Words), json!(["x = 2"]))
                .about("More code to try from the same state, one after another; keeps none, see the result"),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| run_execute(call).boxed(),
    }
}

/// Returns the engine request for a call of `execute_code`, without its wait.
pub(crate) fn execute_request(
    arguments: &mut Arguments,
    engine: &Arc<Engine>,
    watch: Watch,
) -> Result<ExecuteRequest, Failure> {
    let (code, language) = code_and_language(arguments, engine)?;
    Ok(ExecuteRequest {
        code,
        language,
        sandbox_id: arguments.text("sandbox_id"),
        stdin: arguments.text("stdin"),
        timeout: arguments.seconds("timeout_s"),
        wait: None,
        watch,
        checkpoint: arguments.text("checkpoint"),
        ..ExecuteRequest::default()
    })
}

async fn run_execute(mut call: Call) -> Result<Answer, Failure> {
    let waits = call.wait_limits.of(&mut call.arguments);
    let alternatives = call.arguments.texts("alternatives");
    if !alternatives.is_empty() {
        let request = alternatives_request(&mut call, alternatives, waits.time)?;
        return super::alternatives::run(call, request).await;
    }
    let request = ExecuteRequest {
        wait: Some(waits.time),
        ..execute_request(&mut call.arguments, &call.engine, call.watch.clone())?
    };
    let view = call.engine.execute(&call.caller, request, call.cancel).await?;
    let notes = Vec::from_iter(waits.notes(&view));
    Ok(execution::answer(&view, call.engine.config().output_inline, &notes, &call.room).await)
}

fn alternatives_request(
    call: &mut Call,
    alternatives: Vec<String>,
    wait: Duration,
) -> Result<AlternativesRequest, Failure> {
    let first = execute_request(&mut call.arguments, &call.engine, call.watch.clone())?;
    if first.stdin.is_some() || first.checkpoint.is_some() {
        return Err(Failure::invalid(
            "`alternatives` cannot be combined with `stdin` or `checkpoint`",
            "leave them out; the common state is kept as the checkpoint before-alternatives",
        ));
    }
    Ok(AlternativesRequest {
        codes: std::iter::once(first.code).chain(alternatives).collect(),
        language: first.language,
        sandbox_id: first.sandbox_id,
        timeout: first.timeout,
        wait: Some(wait),
    })
}

pub(super) fn language(arguments: &mut Arguments, engine: &Arc<Engine>) -> String {
    arguments
        .text("language")
        .unwrap_or_else(|| engine.default_language().to_owned())
}

/// Returns the code and its language. A Markdown fence around the code is removed; its language counts if no other is
/// given.
fn code_and_language(arguments: &mut Arguments, engine: &Arc<Engine>) -> Result<(String, String), Failure> {
    let code = arguments.required_text("code")?;
    let Some((tag, inside)) = in_fence(&code) else {
        return Ok((code, language(arguments, engine)));
    };
    let is_tag = |name: &String| name.eq_ignore_ascii_case(tag);
    let known = { engine.languages() }
        .into_iter()
        .find(|one| is_tag(&one.name) || one.aliases.iter().any(is_tag));
    let fenced = known.filter(|_| !arguments.has("language")).map(|one| one.name);
    let language = fenced.unwrap_or_else(|| language(arguments, engine));
    Ok((inside.to_owned(), language))
}

/// Returns the tag and the text of a fence that encloses everything.
fn in_fence(code: &str) -> Option<(&str, &str)> {
    const CODE_FENCE: &str = "```";
    let (tag, rest) = code.trim().strip_prefix(CODE_FENCE)?.split_once('\n')?;
    let tag = tag.trim();
    let inside = rest.strip_suffix(CODE_FENCE)?;
    let is_word = tag.chars().all(|c| c.is_ascii_alphanumeric() || "+#-_.".contains(c));
    let is_whole = inside.is_empty() || inside.ends_with('\n');
    let is_only = !inside.lines().any(|line| line.starts_with(CODE_FENCE));
    (is_word && is_whole && is_only).then_some((tag, inside))
}

pub(crate) fn create_run_close(facts: &ToolFacts) -> Tool {
    Tool {
        name: "create_run_close",
        description: with_tools(
            "Run code once in a fresh sandbox that is removed afterwards: nothing is kept, and it sees \
                      nothing of your other sandboxes. For independent or untrusted snippets. Files named in outputs \
                      are returned as resources.",
            facts,
        ),
        fields: vec![
            code_field(),
            language_field(facts),
            Field::new("files", Kind::TextMap(MapOf::Files), json!({"data.csv": "a,b\n1,2\n"}))
                .about("Text files to write first: path to content"),
            packages_field(facts),
            stdin_field(),
            Field::new("outputs", Kind::Texts(ListOf::Paths), json!(["plot.png"])).about("Paths of files to return"),
            timeout_field(facts),
            wait_field(facts),
            memory_field(),
            network_field(facts),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| run_once(call).boxed(),
    }
}

/// Returns the engine request for a call of `create_run_close`, without its wait, and notes on invalid output paths.
pub(crate) fn once_request(
    arguments: &mut Arguments,
    engine: &Arc<Engine>,
    watch: Watch,
    consent: Consent,
) -> Result<(RunRequest, Vec<String>), Failure> {
    let files = arguments
        .text_map("files")
        .into_iter()
        .map(|(path, content)| Ok((sandbox_path("files", &path)?, Bytes::from(content))))
        .collect::<Result<Vec<_>, Failure>>()?;
    // An invalid path becomes a note, and the valid ones are still fetched.
    let (mut outputs, mut notes) = (Vec::new(), Vec::new());
    for path in arguments.texts("outputs") {
        match sandbox_path("outputs", &path) {
            Ok(path) => outputs.push(path),
            Err(failure) if notes.len() < MAX_RESULT_LINKS => {
                notes.push(format!("no output file: {}", failure.message))
            }
            Err(_) => {}
        }
    }
    let (code, language) = code_and_language(arguments, engine)?;
    let request = RunRequest {
        code,
        language,
        stdin: arguments.text("stdin"),
        packages: arguments.texts("packages"),
        files,
        outputs,
        timeout: arguments.seconds("timeout_s"),
        wait: None,
        watch,
        memory: arguments.mebibytes("memory_mb"),
        network: arguments.texts("network"),
        consent,
    };
    Ok((request, notes))
}

async fn run_once(mut call: Call) -> Result<Answer, Failure> {
    let waits = call.wait_limits.of(&mut call.arguments);
    let (request, mut notes) = once_request(&mut call.arguments, &call.engine, call.watch.clone(), call.consent)?;
    let request = RunRequest {
        wait: Some(waits.time),
        ..request
    };
    let mut view = call.engine.run_once(&call.caller, request, call.cancel).await?;
    notes.extend(waits.notes(&view));
    let object = execution::object(&view, execution::read_on);
    // The text does not offer the id of a sandbox that is gone already.
    view.new_sandbox = false;
    let answer = execution::answer(&view, call.engine.config().output_inline, &notes, &call.room).await;
    Ok(answer.with_meta("sandcell/execution", Value::Object(object)))
}

#[cfg(test)]
mod tests {
    use super::in_fence;

    #[test]
    fn only_a_fence_around_the_whole_code_is_removed() {
        assert_eq!(in_fence("```python\nprint(1)\n```"), Some(("python", "print(1)\n")));
        assert_eq!(in_fence("\n``` js \n1\n\n```\n"), Some(("js", "1\n\n")));
        assert_eq!(in_fence("```\n```"), Some(("", "")));
        for other in [
            "print(1)",
            "```python\nprint(1)",
            "`a`",
            "```a b\n1\n```",
            "```\n1\n```\ntext\n```\n2\n```",
            "```x\n1```",
        ] {
            assert_eq!(in_fence(other), None, "{other}");
        }
    }
}
