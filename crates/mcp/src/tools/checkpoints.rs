//! Checkpoints: the unlisted tools that make and drop them, for programs such as the Python package. Models use the
//! `checkpoint` of `execute_code` and the `to` of `reset_session_state`.

use std::fmt::Write as _;

use futures::FutureExt as _;
use sandcell_engine::{CheckpointView, RewindTo};
use sandcell_sandbox::{ByteSize, Failure, rfc3339};
use serde_json::{Value, json};

use super::executions::one_line;
use super::{Call, Effect, Tool, count_field, sandbox_field};
use crate::answer::Answer;
use crate::content::execution;
use crate::schema::{self, Field, Kind};

/// The maximum number of changed files in an answer.
const MAX_CHANGES: usize = 1000;

pub(super) fn create_checkpoint() -> Tool {
    Tool {
        name: "create_checkpoint",
        description: "Keep the variables and files of a sandbox as they are now. reset_session_state with to brings \
                      them back, any number of times. A checkpoint of the same name is replaced."
            .into(),
        fields: vec![
            sandbox_field(),
            Field::new("name", Kind::Content, json!("before-merge")),
        ],
        output: Some(schema::output(&[
            ("sandbox_id", "string"),
            ("checkpoint", "object"),
            ("dropped", "array"),
        ])),
        effect: Effect::ChangesSandbox,
        run: |call| create(call).boxed(),
    }
}

async fn create(mut call: Call) -> Result<Answer, Failure> {
    let (sandbox, name) = (call.arguments.text("sandbox_id"), call.arguments.text("name"));
    let made = call
        .engine
        .checkpoint(&call.caller, sandbox.as_deref(), name.as_deref())
        .await?;
    let mut text = format!("{}: checkpoint {}", made.sandbox_id, line(&made.checkpoint));
    if !made.dropped.is_empty() {
        let _ = write!(text, "\ndropped to make room: {}", made.dropped.join(", "));
    }
    let data = json!({
        "sandbox_id": made.sandbox_id,
        "checkpoint": data(&made.checkpoint),
        "dropped": made.dropped,
    });
    Ok(Answer::data(text, data))
}

pub(super) fn drop_checkpoint() -> Tool {
    Tool {
        name: "drop_checkpoint",
        description: "Drop a checkpoint of a sandbox. Frees its memory.".into(),
        fields: vec![
            sandbox_field(),
            Field::new("name", Kind::Content, json!("before-merge")).required(),
        ],
        output: None,
        effect: Effect::Removes,
        run: |call| remove(call).boxed(),
    }
}

async fn remove(mut call: Call) -> Result<Answer, Failure> {
    let sandbox = call.arguments.text("sandbox_id");
    let name = call.arguments.required_text("name")?;
    call.engine
        .drop_checkpoint(&call.caller, sandbox.as_deref(), &name)
        .await?;
    Ok(Answer::text(format!("dropped the checkpoint {name}")))
}

pub(super) fn file_changes() -> Tool {
    Tool {
        name: "file_changes",
        description:
            "The files of a sandbox that differ from those of a checkpoint, and the files of copy-on-write mounts \
                      that differ from the host's, with the changed lines of text files as unified diffs. Without \
                      since: only those of mounts."
                .into(),
        fields: vec![
            sandbox_field(),
            Field::new("since", Kind::Content, json!("before-merge")),
            count_field("limit", 1, 100),
        ],
        output: Some(schema::output(&[
            ("sandbox_id", "string"),
            ("files", "array"),
            ("omitted", "integer"),
        ])),
        effect: Effect::Reads,
        run: |call| changes(call).boxed(),
    }
}

async fn changes(mut call: Call) -> Result<Answer, Failure> {
    let sandbox = call.arguments.text("sandbox_id");
    let since = call.arguments.text("since").map(|since| RewindTo::parse(&since));
    let limit = call
        .arguments
        .count("limit")
        .and_then(|limit| usize::try_from(limit).ok());
    let limit = limit.unwrap_or(MAX_CHANGES).min(MAX_CHANGES);
    let view = call
        .engine
        .changes(&call.caller, sandbox.as_deref(), since.as_ref(), limit)
        .await?;
    let mut parts = Vec::new();
    if let Some(checkpoint) = &view.checkpoint {
        let count = total(view.files.len(), view.omitted);
        let mut text = format!("{} differ from {}", counted(count, "file"), line(checkpoint));
        for file in &view.files {
            let change = &file.change;
            let _ = write!(
                text,
                "\n{} {} ({} bytes)",
                change.kind.as_str(),
                one_line(&change.path),
                change.bytes.max(change.bytes_before)
            );
        }
        parts.push(text);
    }
    if let Some(mounts) = &view.mounts {
        let count = total(mounts.files.len(), mounts.omitted);
        let mut text = format!(
            "{} of copy-on-write mounts differ from the host's",
            counted(count, "file")
        );
        for file in &mounts.files {
            let _ = write!(
                text,
                "\n{} {} ({}, {} bytes)",
                file.kind.as_str(),
                one_line(&file.path),
                file.type_name(),
                file.bytes.max(file.bytes_before)
            );
        }
        parts.push(text);
    }
    let mounts = view.mounts.as_ref();
    let data = json!({
        "sandbox_id": view.sandbox_id,
        "checkpoint": view.checkpoint.as_ref().map(data),
        "files": view.files,
        "omitted": view.omitted,
        "mounts": mounts.map(|mounts| json!({"files": mounts.files, "omitted": mounts.omitted})),
    });
    Ok(Answer::data(parts.join("\n"), data))
}

fn total(listed: usize, omitted: u64) -> u64 {
    u64::try_from(listed).unwrap_or(u64::MAX).saturating_add(omitted)
}

/// Brings back a checkpoint, for `reset_session_state`.
pub(super) async fn rewind(call: &Call, sandbox: Option<&str>, to: &str) -> Result<Answer, Failure> {
    let view = call.engine.rewind(&call.caller, sandbox, &RewindTo::parse(to)).await?;
    let mut text = format!(
        "{} is back at {}\n{} undone, {} changed back",
        view.sandbox_id,
        line(&view.checkpoint),
        counted(view.undone, "execution"),
        counted(view.files_changed, "file")
    );
    if !view.ended.is_empty() {
        let _ = write!(
            text,
            "\nended, since the checkpoint has no such session: {}",
            view.ended.join(", ")
        );
    }
    if !view.kept {
        text.push_str(
            "\nthis checkpoint cannot be used again: a session could not be copied (processes or memory ran short)",
        );
    }
    let data = json!({
        "sandbox_id": view.sandbox_id,
        "checkpoint": data(&view.checkpoint),
        "kept": view.kept,
        "ended": view.ended,
        "files_changed": view.files_changed,
        "undone": view.undone,
    });
    Ok(Answer::text(text).with_meta("sandcell/rewind", data))
}

/// `before-merge: after execution 4 (ex…), python, 3 files (12 KB), holds 2.1 MB`
fn line(one: &CheckpointView) -> String {
    let execution = one.execution_id.as_ref();
    format!(
        "{}: {}{}, {} ({} KB), holds {} MB",
        one.name,
        execution.map_or_else(
            || "before the first execution".to_owned(),
            |id| format!("after execution {} ({id})", one.executions)
        ),
        one.sessions
            .iter()
            .map(|session| format!(", {session}"))
            .collect::<String>(),
        counted(one.files, "file"),
        one.file_bytes.div_ceil(1024),
        execution::tenths_of_mib(ByteSize::bytes(one.memory_bytes))
    )
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A line for each checkpoint, for a status.
pub(super) fn lines(checkpoints: &[CheckpointView]) -> String {
    let mut text = String::new();
    for (number, one) in checkpoints.iter().enumerate() {
        if number == 0 {
            text.push_str("\ncheckpoints (reset_session_state brings them back):");
        }
        let _ = write!(text, "\n  {}", line(one));
    }
    text
}

/// All data of a checkpoint, for programs.
pub(crate) fn data(one: &CheckpointView) -> Value {
    json!({
        "name": one.name,
        "automatic": one.automatic,
        "created_at": rfc3339(one.created),
        "executions": one.executions,
        "execution_id": one.execution_id,
        "sessions": one.sessions,
        "files": one.files,
        "file_bytes": one.file_bytes,
        "memory_bytes": one.memory_bytes,
    })
}
