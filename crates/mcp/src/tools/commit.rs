//! `commit_changes`: applies the changes of a sandbox in copy-on-write mounts to the host's folders, after a person has
//! agreed to exactly these changes. Unlisted: a program of the operator calls it.

use std::fmt::Write as _;
use std::sync::Arc;

use futures::FutureExt as _;
use sandcell_engine::{CommitAuthority, CommitRequest, CommitView, Engine, OnConflict, Principal};
use sandcell_sandbox::{ChangesToCommit, Code, Failure};
use serde_json::{Map, Value, json};

use super::executions::one_line;
use super::{Call, Effect, Tool, sandbox_field};
use crate::answer::Answer;
use crate::arguments::Arguments;
use crate::auth::STDIO_PRINCIPAL;
use crate::schema::{self, Field, Kind, ListOf};

const TOOL_NAME: &str = "commit_changes";
/// The maximum number of changes that an answer lists of each kind. The rest is counted.
const MAX_LISTED: usize = 1000;
/// The maximum number of lines of each kind in the text.
const MAX_LINES: usize = 50;

pub(super) fn commit_changes() -> Tool {
    Tool {
        name: TOOL_NAME,
        description:
            "Apply what the sandbox has changed in folders that are mounted copy-on-write to the folders of the \
                      user's machine. The user is asked first. Works only for mounts with commit = \"ask\"."
                .into(),
        fields: vec![
            sandbox_field(),
            Field::new("paths", Kind::Texts(ListOf::Paths), json!(["/mnt/project/src"]))
                .about("Files and folders in the sandbox; default all changes"),
            Field::new("force", Kind::Flag, json!(true))
                .about("Overwrite files that the host has changed since the sandbox was made; one that the sandbox has removed must be in paths"),
            Field::new("dry_run", Kind::Flag, json!(true)).about("Show what would happen, and change nothing"),
        ],
        output: Some(schema::output(&[
            ("sandbox_id", "string"),
            ("dry_run", "boolean"),
            ("applied", "array"),
            ("applied_count", "integer"),
            ("refused", "array"),
            ("refused_count", "integer"),
            ("unchanged", "integer"),
            ("omitted", "integer"),
        ])),
        effect: Effect::Removes,
        run: |call| commit(call).boxed(),
    }
}

/// The arguments of a call.
struct Asked {
    sandbox: Option<String>,
    request: CommitRequest,
    dry_run: bool,
}

impl Asked {
    fn read(arguments: &mut Arguments) -> Self {
        Self {
            sandbox: arguments.text("sandbox_id"),
            request: CommitRequest {
                paths: arguments.texts("paths"),
                on_conflict: match arguments.flag("force") {
                    true => OnConflict::Overwrite,
                    false => OnConflict::Refuse,
                },
            },
            dry_run: arguments.flag("dry_run"),
        }
    }
}

/// Returns the changes that the user has to agree to before a call. None: nothing would be applied, or it is a call of
/// another tool. Invalid arguments are left to the call.
pub(crate) async fn changes_to_commit(
    tool: &Tool,
    engine: &Arc<Engine>,
    caller: &Principal,
    given: &Map<String, Value>,
) -> Result<Option<ChangesToCommit>, Failure> {
    if tool.name != TOOL_NAME {
        return Ok(None);
    }
    let Ok(mut arguments) = Arguments::check(tool.name, &tool.fields, given.clone()) else {
        return Ok(None);
    };
    let asked = Asked::read(&mut arguments);
    if asked.dry_run {
        return Ok(None);
    }
    if !is_users_own(caller) {
        // The call itself is refused.
        return Ok(None);
    }
    let question = engine
        .commit_question(caller, asked.sandbox.as_deref(), &asked.request)
        .await?;
    Ok(question.map(|question| ChangesToCommit {
        name: question.name,
        text: question.text,
    }))
}

/// Returns true for the client of the server's own user: the program that started it. A client over HTTP answers questions,
/// too, but for itself.
fn is_users_own(caller: &Principal) -> bool {
    &*caller.0 == STDIO_PRINCIPAL
}

fn not_the_user() -> Failure {
    Failure::new(
        Code::DeniedByPolicy,
        "the changes are not applied: over HTTP, nobody can approve a commit for the user of the server",
        "let the operator run `sandcell commit` on the server's machine; dry_run shows what it would apply",
    )
}

async fn commit(mut call: Call) -> Result<Answer, Failure> {
    let asked = Asked::read(&mut call.arguments);
    let authority = match asked.dry_run {
        true => CommitAuthority::DryRun,
        false if is_users_own(&call.caller) => CommitAuthority::Person(call.consent.clone()),
        false => return Err(not_the_user()),
    };
    let view = call
        .engine
        .commit(&call.caller, asked.sandbox.as_deref(), &asked.request, authority)
        .await?;
    let data = json!({
        "sandbox_id": view.sandbox_id,
        "dry_run": view.fingerprint.is_some(),
        "fingerprint": view.fingerprint,
        "applied": view.applied.iter().take(MAX_LISTED).collect::<Vec<_>>(),
        "applied_count": view.applied.len(),
        "refused": view.refused.iter().take(MAX_LISTED).collect::<Vec<_>>(),
        "refused_count": view.refused.len(),
        "unchanged": view.unchanged,
        "omitted": view.omitted,
    });
    Ok(Answer::data(text(&view), data))
}

fn text(view: &CommitView) -> String {
    let verb = match view.fingerprint {
        Some(_) => "would be applied",
        None => "applied",
    };
    let mut text = format!(
        "{}: {} changes {verb}, {} refused",
        view.sandbox_id,
        view.applied.len(),
        view.refused.len()
    );
    for change in view.applied.iter().take(MAX_LINES) {
        let _ = write!(text, "\n{} {}", change.kind.as_str(), one_line(&change.path));
    }
    for change in view.refused.iter().take(MAX_LINES) {
        let path = one_line(&change.path);
        let _ = write!(text, "\nrefused {path}: {} [{}]", change.reason, change.code.as_str());
    }
    let more = |count: usize| count.saturating_sub(MAX_LINES);
    if let more @ 1.. = more(view.applied.len()) + more(view.refused.len()) {
        let _ = write!(text, "\nand {more} more");
    }
    if view.omitted > 0 {
        let _ = write!(
            text,
            "\n{} further changes could not be listed and were left out",
            view.omitted
        );
    }
    text
}
