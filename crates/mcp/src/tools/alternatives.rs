//! `execute_code` with alternatives: several pieces of code from the same state, and their results side by side.

use std::fmt::Write as _;

use sandcell_engine::{AlternativeView, AlternativesRequest, AlternativesView, VariableChange, VariableChangeKind};
use sandcell_sandbox::{ByteSize, Failure, SavedChangeKind, SavedChanges};
use serde_json::{Value, json};

use super::executions::one_line;
use super::{Call, checkpoints};
use crate::answer::{Answer, Block};
use crate::content::execution;
use crate::content::text::shorten;

/// The maximum number of changed variables and of changed files that the text names, for each alternative.
const CHANGES_SHOWN: usize = 12;

/// The maximum length of a path or a name in the text.
const PATH_CHARS: usize = 120;

pub(super) async fn run(call: Call, request: AlternativesRequest) -> Result<Answer, Failure> {
    let view = call
        .engine
        .try_alternatives(&call.caller, request, call.cancel.clone())
        .await?;
    let inline = call.engine.config().output_inline.as_bytes() / u64::try_from(view.alternatives.len()).unwrap_or(1);
    let mut blocks = Vec::new();
    let mut objects = Vec::new();
    for (one, number) in view.alternatives.iter().zip(1..) {
        let mut object = data(one);
        let Some(ran) = &one.execution else {
            blocks.push(Block::Text(format!(
                "alternative {number}: not run, there was no time left"
            )));
            objects.push(object);
            continue;
        };
        let answer = execution::answer(ran, ByteSize::bytes(inline), &[changes_text(one)], &call.room).await;
        if let (Some(object), Some(execution)) = (object.as_object_mut(), answer.meta.get("sandcell/execution")) {
            object.insert("execution".to_owned(), execution.clone());
        }
        objects.push(object);
        blocks.push(Block::Text(format!("alternative {number}:")));
        blocks.extend(answer.blocks);
    }
    blocks.push(Block::Text(summary(&view)));
    let answer = Answer {
        blocks,
        ..Answer::default()
    };
    Ok(answer.with_meta(
        "sandcell/alternatives",
        json!({
            "sandbox_id": view.sandbox_id,
            "base": checkpoints::data(&view.base),
            "alternatives": objects,
            "dropped": view.dropped,
        }),
    ))
}

fn summary(view: &AlternativesView) -> String {
    let dropped = match view.dropped.as_slice() {
        [] => String::new(),
        names => format!("checkpoints dropped to make room: {}\n", names.join(", ")),
    };
    dropped + &result_line(view)
}

fn result_line(view: &AlternativesView) -> String {
    let kept = view.alternatives.iter().filter_map(|one| one.checkpoint.as_deref());
    let kept = kept.collect::<Vec<_>>().join(", ");
    if kept.is_empty() {
        return format!(
            "[{}: variables and files are as before; no alternative can be kept]",
            view.sandbox_id
        );
    }
    format!(
        "[{}: variables and files are as before. Keep an alternative with reset_session_state(to=NAME): {kept}. \
         Changes inside large values are not listed]",
        view.sandbox_id
    )
}

fn changes_text(one: &AlternativeView) -> String {
    let mut text = variables_text(&one.variables) + &files_text(&one.files);
    match (&one.checkpoint, &one.not_kept) {
        (Some(name), _) => {
            let _ = write!(text, "\nstate: {name}");
        }
        (None, Some(why)) => {
            let _ = write!(text, "\nstate: not kept: {why}");
        }
        (None, None) => {}
    }
    text.trim_start().to_owned()
}

fn variables_text(changes: &[VariableChange]) -> String {
    let shown = changes.iter().take(CHANGES_SHOWN).map(|one| {
        let sign = match one.change {
            VariableChangeKind::Created => "+",
            VariableChangeKind::Modified => "~",
            VariableChangeKind::Removed => "-",
        };
        format!(
            "{sign}{} ({})",
            one_line(&one.variable.name),
            one_line(&one.variable.kind)
        )
    });
    list("variables", shown.collect(), changes.len())
}

fn files_text(changes: &SavedChanges) -> String {
    let shown = changes.changes.iter().take(CHANGES_SHOWN).map(|one| {
        let (sign, size) = match one.kind {
            SavedChangeKind::Created => ("+", one.bytes),
            SavedChangeKind::Modified => ("~", one.bytes),
            SavedChangeKind::Removed => ("-", one.bytes_before),
        };
        format!("{sign}{} ({size} bytes)", shorten(&one_line(&one.path), PATH_CHARS))
    });
    let more = usize::try_from(changes.omitted).unwrap_or(usize::MAX);
    list("files", shown.collect(), changes.changes.len().saturating_add(more))
}

fn list(what: &str, shown: Vec<String>, all: usize) -> String {
    if all == 0 {
        return String::new();
    }
    let more = match all.saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("\n{what}: {}{more}", shown.join(", "))
}

fn data(one: &AlternativeView) -> Value {
    json!({
        "execution": null,
        "checkpoint": one.checkpoint,
        "not_kept": one.not_kept,
        "variables": one.variables,
        "files": one.files.changes,
        "files_omitted": one.files.omitted,
    })
}
