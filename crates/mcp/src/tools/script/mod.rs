//! The toolset `script`: Python code as scripts, each in a separate process, with a history.
//!
//! Every answer has the same fields in all cases, as structured content and as the same JSON in a text block: programs
//! and models that know this kind of server read those. Code that is rejected, fails or takes too long is `success:
//! false`, not an error of the call.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use sandcell_engine::{CodeError, Engine, ExecuteRequest, ExecutionView, InHistory, InstallRequest, Status};
use sandcell_sandbox::{Code, Failure, MAX_TIMEOUT};
use serde_json::{Value, json};

use super::toolset::Interpreters;
use super::{Call, Effect, Outcome, Tool, seconds_field};
use crate::answer::{Answer, Block, notice_lines};
use crate::content::execution;
use crate::limits::HISTORY_RECORDS;
use crate::schema::{self, Field, Kind};
use crate::time::rough;

/// The language of this toolset.
const SCRIPT_LANGUAGE: &str = "python";
/// The default timeout of code, in seconds.
const TIMEOUT_S: u64 = 10;
/// The timeout of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The tools.
pub(super) fn tools(interpreters: Interpreters) -> Vec<Tool> {
    vec![
        run_code(interpreters),
        pip_install(),
        super::executions::get_execution_history()
            .without("sandbox_id")
            .with_run(history),
        reset_session_state(),
    ]
}

/// The instructions for a model.
pub(super) fn instructions(engine: &Arc<Engine>, interpreters: Interpreters) -> Vec<String> {
    let variables = match interpreters {
        Interpreters::Fresh => {
            "Each run_code call is a separate process: variables and imports do not stay, so write whole scripts. \
             Files do stay, in the working folder /home/user."
        }
        Interpreters::Kept => "Variables, imports and files (in /home/user) stay from one run_code call to the next.",
    };
    let config = engine.config();
    let limits = &config.limits;
    vec![
        "Runs Python code in an isolated sandbox.".to_owned(),
        variables.to_owned(),
        "Code is looked at before it runs. What imports os, sys, subprocess, shutil, multiprocessing, socket, ctypes, \
         pickle, marshal, ftplib, telnetlib, http.client or urllib.request, or calls eval, exec, compile, __import__, \
         getattr or setattr, is not run: use open() for files and pip_install for packages."
            .to_owned(),
        format!(
            "Limits: {} MB memory, {} processes, {} MB disk, {TIMEOUT_S} s a run (timeout gives up to {}). There is \
             no network.",
            limits.memory.as_mib(),
            limits.processes,
            limits.disk.as_mib(),
            rough(MAX_TIMEOUT)
        ),
    ]
}

fn run_code(interpreters: Interpreters) -> Tool {
    let what_stays = match interpreters {
        Interpreters::Fresh => "Each call is a separate process: files stay, variables do not.",
        Interpreters::Kept => "Variables and files stay for the next call.",
    };
    Tool {
        name: "run_code",
        description: format!("Run Python code in the sandbox and get what it printed. {what_stays}"),
        fields: vec![
            Field::new("code", Kind::Content, json!("print(1)")).required(),
            seconds_field("timeout", 0.001, MAX_TIMEOUT.as_secs_f64(), 30)
                .default(json!(TIMEOUT_S))
                .about("Seconds"),
        ],
        output: Some(schema::output(&[
            ("success", "boolean"),
            ("stdout", "string"),
            ("stderr", "string"),
            ("error", "string"),
            ("duration_ms", "integer"),
        ])),
        effect: Effect::ChangesSandbox,
        run: match interpreters {
            Interpreters::Fresh => run_alone,
            Interpreters::Kept => run_kept,
        },
    }
}

fn run_alone(call: Call) -> Outcome {
    run(call, Interpreters::Fresh).boxed()
}

fn run_kept(call: Call) -> Outcome {
    run(call, Interpreters::Kept).boxed()
}

async fn run(mut call: Call, interpreters: Interpreters) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let request = ExecuteRequest {
        code: arguments.required_text("code")?,
        language: SCRIPT_LANGUAGE.to_owned(),
        sandbox_id: None,
        stdin: None,
        timeout: Some(arguments.seconds("timeout").unwrap_or(Duration::from_secs(TIMEOUT_S))),
        // No tool would wait for the rest.
        wait: None,
        watch: call.watch.clone(),
        ..ExecuteRequest::default()
    };
    let ran = match interpreters {
        Interpreters::Fresh => call.engine.execute_alone(&call.caller, request, call.cancel).await,
        Interpreters::Kept => call.engine.execute(&call.caller, request, call.cancel).await,
    };
    Ok(match ran {
        Ok(view) => ran_answer(&view),
        Err(failure) => refused_answer(&failure),
    })
}

fn ran_answer(view: &ExecutionView) -> Answer {
    // The fields of the answer contain the texts.
    let object = Value::Object(execution::facts(view));
    let data = if let Some(fault) = syntax_error(view) {
        // The code never ran, so it took no time.
        fields(
            "",
            "",
            &format!("the code does not parse, so it was not run: {fault}"),
            0,
        )
    } else {
        let duration = u64::try_from(view.duration.as_millis()).unwrap_or(u64::MAX);
        fields(&view.stdout.text, &stderr(view), &error(view), duration)
    };
    let mut answer = same_as_text(data).with_meta("sandcell/execution", object);
    if !view.notices.is_empty() {
        answer.blocks.push(Block::Text(notice_lines(&view.notices)));
    }
    answer
}

/// The answer to a call that failed: refused code is a result, everything else an error of the call.
fn refused_answer(failure: &Failure) -> Answer {
    let mut answer = same_as_text(fields("", "", &failure_text(failure), 0)).with_meta(
        "sandcell/error",
        json!({"code": failure.code, "message": failure.message, "remedy": failure.remedy}),
    );
    answer.failed = failure.code != Code::CodeRejected;
    answer
}

fn fields(stdout: &str, stderr: &str, error: &str, duration_ms: u64) -> Value {
    json!({
        "success": error.is_empty(),
        "stdout": stdout,
        "stderr": stderr,
        "error": error,
        "duration_ms": duration_ms,
    })
}

/// The code's stderr, including the error that an interpreter ended with.
fn stderr(view: &ExecutionView) -> String {
    let mut text = view.stderr.text.clone();
    if let Some(CodeError { traceback, .. }) = &view.error {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(traceback);
        text.push('\n');
    }
    if let Some(hint) = &view.hint {
        text.push_str("hint: ");
        text.push_str(hint);
        text.push('\n');
    }
    text
}

/// The syntax error of the code itself, with the line. A syntax error in imported code comes with the frames of the
/// importing code.
fn syntax_error(view: &ExecutionView) -> Option<String> {
    let error = view.error.as_ref().filter(|_| view.status == Status::Error)?;
    let text = error.traceback.as_str();
    let line = text.trim_start().strip_prefix("File \"<cell ")?.split("line ").nth(1)?;
    let line: String = line.chars().take_while(char::is_ascii_digit).collect();
    let last = text.lines().next_back()?.trim();
    let kinds = ["SyntaxError", "IndentationError", "TabError"];
    kinds
        .iter()
        .any(|kind| last.starts_with(kind))
        .then(|| format!("line {line}: {last}"))
}

/// The reason for the failure; empty on success.
fn error(view: &ExecutionView) -> String {
    if view.status == Status::Ok {
        return String::new();
    }
    let code = match (view.status, view.exit_code) {
        (Status::Timeout, _) => "timed out: ".to_owned(),
        (_, Some(code)) if code != 0 => format!("exit code {code}: "),
        _ => String::new(),
    };
    match &view.cause {
        Some(cause) => format!("{code}{}. {}", cause.message, cause.remedy),
        None => format!("{code}{}", execution::status_name(view.status)),
    }
}

fn failure_text(failure: &Failure) -> String {
    format!("{}: {}. {}", failure.code, failure.message, failure.remedy)
}

/// Structured content and the same JSON as text.
fn same_as_text(data: Value) -> Answer {
    Answer::data(data.to_string(), data)
}

fn pip_install() -> Tool {
    Tool {
        name: "pip_install",
        description: "Install a Python package in the sandbox, for this and all later run_code calls. A name with \
                      versions as for pip (numpy, pandas>=2,<3); no options, files or URLs."
            .into(),
        fields: vec![Field::new("package", Kind::Text, json!("numpy")).required()],
        output: Some(schema::output(&[("success", "boolean"), ("message", "string")])),
        effect: Effect::ChangesSandbox,
        run: |call| install(call).boxed(),
    }
}

async fn install(mut call: Call) -> Result<Answer, Failure> {
    let request = InstallRequest {
        packages: vec![call.arguments.required_text("package")?],
        language: SCRIPT_LANGUAGE.to_owned(),
        sandbox_id: None,
        timeout: Some(INSTALL_TIMEOUT),
        wait: None,
        in_history: InHistory::Unshown,
        consent: call.consent,
    };
    let (success, message) = match call.engine.install(&call.caller, request, call.cancel).await {
        Ok(view) if view.status == Status::Ok => (true, view.stdout.text.trim().replace('\n', "; ")),
        Ok(view) => (false, error(&view)),
        Err(failure) => (false, failure_text(&failure)),
    };
    Ok(same_as_text(json!({"success": success, "message": message})))
}

fn history(call: Call) -> Outcome {
    async move { read_history(call).await }.boxed()
}

async fn read_history(mut call: Call) -> Result<Answer, Failure> {
    let asked = call.arguments.integer("last_n").unwrap_or(10);
    let last_n = u64::try_from(asked).unwrap_or(1).clamp(1, HISTORY_RECORDS);
    let last_n = usize::try_from(last_n).unwrap_or(1);
    let view = call.engine.history(&call.caller, last_n, None).await?;
    let mut data = serde_json::to_value(&view).unwrap_or_default();
    // As in the answer of a run: the text is empty on success.
    for record in data
        .get_mut("records")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(error) = record.get_mut("error").filter(|error| error.is_null()) {
            *error = json!("");
        }
    }
    Ok(same_as_text(data))
}

fn reset_session_state() -> Tool {
    Tool {
        name: "reset_session_state",
        description: "Forget the history and the list of installed packages. Files and packages of the sandbox stay."
            .into(),
        fields: Vec::new(),
        output: Some(schema::output(&[
            ("success", "boolean"),
            ("message", "string"),
            ("note", "string"),
        ])),
        effect: Effect::Removes,
        run: |call| reset(call).boxed(),
    }
}

async fn reset(call: Call) -> Result<Answer, Failure> {
    let before = call.engine.history(&call.caller, 1, None).await?.total;
    call.engine.reset(&call.caller, None, None).await?;
    Ok(same_as_text(json!({
        "success": true,
        "message": format!("the session was reset; {before} execution records were cleared"),
        "note": "packages are not uninstalled and files are not deleted: both can still be used",
    })))
}
