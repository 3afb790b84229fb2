//! Tools for executions: waiting for one, reading its output in parts, stopping it, and the history.

use std::fmt::Write as _;
use std::time::Duration;

use futures::FutureExt as _;
use sandcell_engine::{ExecutionView, HistoryRecord, HistoryView, Status, StreamName, StreamPart, StreamSlice};
use sandcell_sandbox::Failure;
use serde_json::{Value, json};

use super::checkpoints;
use super::code::wait_field;
use super::{Call, Effect, Tool, ToolFacts, count_field, sandbox_field};
use crate::answer::{Answer, Block};
use crate::content::execution::{self, status_name};
use crate::content::text::shorten;
use crate::limits::{HISTORY_RECORDS, STREAM_BYTES};
use crate::schema::{self, Field, Kind};

fn execution_field() -> Field {
    Field::new("execution_id", Kind::Text, json!("ex7d…"))
}

pub(super) fn get_execution(facts: &ToolFacts) -> Tool {
    let streams = ["stdout", "stderr", "result", "code"].map(str::to_owned).to_vec();
    Tool {
        name: "get_execution",
        description: "Wait for a running execution and get its result, or read a part of a long output. Without \
                      execution_id: your newest one, even if the client cut its call off. Alone: the whole result, \
                      waiting up to wait_s. With stream, offset, limit or find: that part of the stream at once, with \
                      next_offset and eof."
            .into(),
        fields: vec![
            execution_field(),
            wait_field(facts),
            Field::new("stream", Kind::Choice(streams), json!("stderr")).default(json!("stdout")),
            Field::new(
                "offset",
                Kind::Integer {
                    min: i64::MIN,
                    max: i64::MAX,
                },
                json!(0),
            )
            .about("Bytes; negative counts from the end"),
            count_field("limit", 1, STREAM_BYTES).about("Bytes"),
            Field::new("find", Kind::Content, json!("Error")).about("Start at the first line with this text"),
        ],
        output: None,
        effect: Effect::Reads,
        run: |call| get(call).boxed(),
    }
}

async fn get(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let given = arguments.text("execution_id");
    let is_patient = arguments.has("wait_s");
    let waits = call.wait_limits.of(arguments);
    let part_wanted = ["stream", "offset", "limit", "find"]
        .iter()
        .any(|name| arguments.has(name));
    let wait = if part_wanted && !is_patient {
        Duration::ZERO
    } else {
        waits.time
    };
    let part = StreamPart {
        stream: stream(arguments.text("stream"))?,
        offset: arguments.integer("offset").unwrap_or(0),
        limit: arguments.count("limit").unwrap_or(STREAM_BYTES).min(STREAM_BYTES),
        find: arguments.text("find").filter(|text| !text.is_empty()),
    };
    let id = match given {
        Some(id) => id,
        None => newest(&call).await?,
    };
    call.engine.watch(&call.caller, &id, &call.watch)?;
    let view = tokio::select! {
        view = call.engine.execution(&call.caller, &id, wait) => view?,
        // Cancelling a wait must not stop the execution: only the execution's own call decides that.
        () = call.cancel.cancelled() => return Err(cancelled_by_client()),
    };
    if part_wanted {
        let name = part.stream;
        let slice = call.engine.stream(&call.caller, &id, &part).await?;
        return Ok(slice_answer(&view, name, &slice));
    }
    let total = view.stdout.total_bytes;
    let finished = view.status != Status::Running;
    let position = format!("stdout: total_bytes {total}, next_offset {total}, eof {finished}");
    let notes: Vec<String> = std::iter::once(position).chain(waits.notes(&view)).collect();
    let answer = execution::answer(&view, call.engine.config().output_inline, &notes, &call.room).await;
    Ok(answer.with_meta(
        "sandcell/stream",
        json!({"stream": "stdout", "offset": 0, "next_offset": total, "total_bytes": total, "eof": finished}),
    ))
}

/// The caller's newest execution: a running one, else a finished one.
async fn newest(call: &Call) -> Result<String, Failure> {
    if let Some(running) = call.engine.running(&call.caller).into_iter().next() {
        return Ok(running.execution_id.as_str().to_owned());
    }
    let history = call.engine.history(&call.caller, 1, None).await?;
    let newest = history.records.into_iter().next();
    newest
        .map(|record| record.execution_id.as_str().to_owned())
        .ok_or_else(|| {
            Failure::new(
                sandcell_sandbox::Code::NotFound,
                "you have no execution yet",
                "call execute_code first",
            )
        })
}

fn stream(name: Option<String>) -> Result<StreamName, Failure> {
    match name.as_deref() {
        None | Some("stdout") => Ok(StreamName::Stdout),
        Some("stderr") => Ok(StreamName::Stderr),
        Some("result") => Ok(StreamName::Result),
        Some("code") => Ok(StreamName::Code),
        Some(other) => Err(Failure::invalid(
            format!(
                "`stream` must be stdout, stderr, result or code, not {}",
                crate::arguments::echo(other)
            ),
            "a valid example is \"stream\": \"stderr\"",
        )),
    }
}

fn cancelled_by_client() -> Failure {
    Failure::new(
        sandcell_sandbox::Code::Cancelled,
        "the client cancelled the wait",
        "the execution continues; cancel_execution stops it",
    )
}

fn slice_answer(view: &ExecutionView, stream: StreamName, slice: &StreamSlice) -> Answer {
    let mut answer = Answer::default();
    let is_empty = slice.text.is_empty();
    let text = if is_empty { "(nothing)" } else { slice.text.as_str() };
    answer.blocks.push(Block::Text(text.to_owned()));
    answer.blocks.push(Block::Text(format!(
        "[{} {}] {}: bytes {} to {}, total_bytes {}, next_offset {}, eof {}",
        status_name(view.status),
        view.id,
        stream.as_str(),
        slice.offset,
        slice.next_offset,
        slice.total_bytes,
        slice.next_offset,
        slice.eof
    )));
    answer
        .with_meta("sandcell/execution", Value::Object(execution::facts(view)))
        .with_meta(
            "sandcell/stream",
            json!({
                "text": slice.text, "stream": stream.as_str(), "offset": slice.offset, "next_offset": slice.next_offset,
                "total_bytes": slice.total_bytes, "eof": slice.eof,
            }),
        )
}

pub(super) fn cancel_execution() -> Tool {
    Tool {
        name: "cancel_execution",
        description: "Stop a running execution: it is interrupted (variables stay), and killed if it does not stop. \
                      Without execution_id: your newest running one."
            .into(),
        fields: vec![execution_field()],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| cancel(call).boxed(),
    }
}

async fn cancel(mut call: Call) -> Result<Answer, Failure> {
    let id = call.arguments.text("execution_id");
    let view = call.engine.cancel(&call.caller, id.as_deref()).await?;
    Ok(execution::answer(&view, call.engine.config().output_inline, &[], &call.room).await)
}

pub(super) fn get_execution_history() -> Tool {
    Tool {
        name: "get_execution_history",
        description: "Your past executions, newest first: id, status, time, and the start of code and output.".into(),
        fields: vec![
            // Numbers outside 1..50 are clamped rather than refused: that is the contract.
            Field::new(
                "last_n",
                Kind::Integer {
                    min: i64::MIN,
                    max: i64::MAX,
                },
                json!(10),
            )
            .about("1 to 50")
            .default(json!(10)),
            sandbox_field(),
        ],
        output: Some(schema::output_list(
            &[
                ("total", "integer"),
                ("session_start", "string"),
                ("installed_packages", "array"),
            ],
            "records",
            &[
                ("execution_id", "string"),
                ("sandbox_id?", ""),
                ("language", "string"),
                ("status", "string"),
                ("timestamp", "string"),
                ("success", "boolean"),
                ("duration_ms", "integer"),
                ("code_preview", "string"),
                ("stdout_preview", "string"),
                ("error?", ""),
            ],
        )),
        effect: Effect::Reads,
        run: |call| history(call).boxed(),
    }
}

async fn history(mut call: Call) -> Result<Answer, Failure> {
    let asked = call.arguments.integer("last_n").unwrap_or(10);
    let last_n = u64::try_from(asked).unwrap_or(1).clamp(1, HISTORY_RECORDS);
    let sandbox = call.arguments.text("sandbox_id");
    let view = call
        .engine
        .history(&call.caller, usize::try_from(last_n).unwrap_or(1), sandbox.as_deref())
        .await?;
    let data = serde_json::to_value(&view).unwrap_or_default();
    Ok(Answer::data(history_text(&view), data))
}

fn history_text(view: &HistoryView) -> String {
    let mut text = format!("{} executions since {}", view.total, view.session_start);
    if !view.installed_packages.is_empty() {
        let _ = write!(
            text,
            "; installed: {}",
            shorten(&view.installed_packages.join(", "), 1000)
        );
    }
    for record in &view.records {
        let _ = write!(text, "\n{}", record_text(record));
    }
    text
}

/// Two short lines at most, regardless of the code: line feeds are shown as `\n`.
fn record_text(record: &HistoryRecord) -> String {
    let mut text = format!(
        "{} {} {} {} {} ms: {}",
        record.timestamp,
        record.execution_id,
        status_name(record.status),
        record.language,
        record.duration_ms,
        one_line(&record.code_preview)
    );
    match &record.error {
        Some(error) => {
            let _ = write!(text, "\n  error: {}", shorten(&one_line(error), 300));
        }
        None if !record.stdout_preview.is_empty() => {
            let _ = write!(text, "\n  stdout: {}", one_line(&record.stdout_preview));
        }
        None => {}
    }
    text
}

pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() {
                c.escape_debug().collect::<Vec<_>>()
            } else {
                vec![c]
            }
        })
        .collect()
}

pub(super) fn reset_session_state(facts: &ToolFacts) -> Tool {
    Tool {
        name: "reset_session_state",
        description: "Restart the interpreters of a sandbox and delete their variables; files and packages stay. \
                      For a clean start or a session in a bad state. The history starts a new view. With to: undo \
                      instead, variables and files are as they were."
            .into(),
        fields: vec![
            sandbox_field(),
            Field::new(
                "language",
                Kind::Choice(facts.languages.clone()),
                json!(facts.default_language()),
            )
            .about("Only this language's; default all"),
            Field::new("to", Kind::Content, json!("-1"))
                .about("-1: before the last execution; or a checkpoint's name (get_sandbox_status)"),
        ],
        output: None,
        effect: Effect::Removes,
        run: |call| reset(call).boxed(),
    }
}

async fn reset(mut call: Call) -> Result<Answer, Failure> {
    let sandbox = call.arguments.text("sandbox_id");
    let language = call.arguments.text("language");
    if let Some(to) = call.arguments.text("to") {
        if language.is_some() {
            return Err(Failure::invalid(
                "`to` brings back the whole sandbox: the sessions of all languages, and the files",
                "leave out `language`",
            ));
        }
        return checkpoints::rewind(&call, sandbox.as_deref(), &to).await;
    }
    let view = call
        .engine
        .reset(&call.caller, sandbox.as_deref(), language.as_deref())
        .await?;
    let text = match (&view.sandbox_id, view.languages.as_slice()) {
        (None, _) => "you have no sandbox yet, so there was nothing to reset; the history starts a new view".to_owned(),
        (Some(id), []) => format!("no interpreter was running in {id}; the history starts a new view"),
        (Some(id), languages) => format!(
            "restarted {} in {id}: its variables are gone, files and packages stay; the history starts a new view",
            languages.join(", ")
        ),
    };
    let data = serde_json::to_value(&view).unwrap_or_default();
    Ok(Answer::text(text).with_meta("sandcell/reset", data))
}
