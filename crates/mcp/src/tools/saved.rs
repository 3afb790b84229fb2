//! Saved states: the unlisted tools that save the state of a sandbox, list the saved states and drop them, for programs.
//! `from_saved` of `create_sandbox` opens one.

use std::fmt::Write as _;

use futures::FutureExt as _;
use sandcell_engine::{BranchFrom, SaveRequest, SavedView};
use sandcell_sandbox::{Failure, rfc3339};
use serde_json::{Value, json};

use super::{Call, Effect, Tool, sandbox_field};
use crate::answer::Answer;
use crate::schema::{self, Field, Kind};

pub(super) fn save_sandbox() -> Tool {
    Tool {
        name: "save_sandbox",
        description:
            "Save the variables and files of a sandbox under a name. create_sandbox with from_saved opens them, \
                      also after a restart of the server. A state of the same name is replaced."
                .into(),
        fields: vec![
            sandbox_field(),
            Field::new("name", Kind::Content, json!("analysis")).required(),
            Field::new("from_checkpoint", Kind::Text, json!("before-merge")).about("Save this checkpoint of it"),
            Field::new("only_files", Kind::Flag, json!(true)).about("Leave the variables out"),
        ],
        output: Some(schema::output(&[("saved", "object")])),
        effect: Effect::ChangesSandbox,
        run: |call| save(call).boxed(),
    }
}

async fn save(mut call: Call) -> Result<Answer, Failure> {
    let request = SaveRequest {
        from: BranchFrom {
            sandbox_id: call.arguments.text("sandbox_id"),
            checkpoint: call.arguments.text("from_checkpoint"),
        },
        name: call.arguments.required_text("name")?,
        only_files: call.arguments.flag("only_files"),
    };
    let saved = call.engine.save(&call.caller, &request).await?;
    Ok(Answer::data(
        format!("saved {}", line(&saved)),
        json!({"saved": data(&saved)}),
    ))
}

pub(super) fn list_saved() -> Tool {
    Tool {
        name: "list_saved",
        description: "The saved states, by name. create_sandbox with from_saved opens one.".into(),
        fields: Vec::new(),
        output: Some(schema::output(&[("saved", "array")])),
        effect: Effect::Reads,
        run: |call| list(call).boxed(),
    }
}

async fn list(call: Call) -> Result<Answer, Failure> {
    let saved = call.engine.saved(&call.caller).await?;
    let mut text = match saved.as_slice() {
        [] => "no state is saved".to_owned(),
        _ => "saved states (create_sandbox with from_saved opens one):".to_owned(),
    };
    for one in &saved {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}", line(one));
    }
    let saved: Vec<Value> = saved.iter().map(data).collect();
    Ok(Answer::data(text, json!({"saved": saved})))
}

pub(super) fn drop_saved() -> Tool {
    Tool {
        name: "drop_saved",
        description: "Drop a saved state. Frees its room on the disk. Sandboxes that went on from it stay.".into(),
        fields: vec![Field::new("name", Kind::Content, json!("analysis")).required()],
        output: None,
        effect: Effect::Removes,
        run: |call| remove(call).boxed(),
    }
}

async fn remove(mut call: Call) -> Result<Answer, Failure> {
    let name = call.arguments.required_text("name")?;
    call.engine.drop_saved(&call.caller, &name).await?;
    Ok(Answer::text(format!("dropped the saved state {name}")))
}

/// `analysis: sandbox sb…, 4 executions, python, 12 MB, saved at 2026-01-31T12:00:00Z`
fn line(one: &SavedView) -> String {
    if !one.is_readable {
        return format!("{}: damaged, or of another version of sandcell", one.name);
    }
    let sessions: String = one.sessions.iter().map(|session| format!(", {session}")).collect();
    format!(
        "{}: sandbox {}, {} executions{sessions}, {} MB, saved at {}",
        one.name,
        one.sandbox_id,
        one.executions,
        one.bytes.div_ceil(1 << 20),
        rfc3339(one.created)
    )
}

fn data(one: &SavedView) -> Value {
    json!({
        "name": one.name,
        "created_at": rfc3339(one.created),
        "sandbox_id": one.sandbox_id,
        "executions": one.executions,
        "sessions": one.sessions,
        "packages": one.packages,
        "bytes": one.bytes,
        "readable": one.is_readable,
    })
}
