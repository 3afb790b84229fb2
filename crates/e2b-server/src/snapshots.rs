//! Snapshots: saved states of sandboxes, under the names that E2B gives them. A snapshot is a template for new sandboxes.

use std::sync::Arc;

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use sandcell_engine::{BranchFrom, Principal, SaveRequest, SavedView};
use sandcell_mcp::EndpointBody;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::registry::Sandbox;
use crate::secrets::secret;
use crate::{State, answer};

/// The tag of each snapshot. E2B's templates have several.
const SNAPSHOT_TAG: &str = ":default";
/// The beginning of the ids of snapshots without a name, and the number of their random characters.
const UNNAMED_ID_PREFIX: &str = "snapshot-";
const UNNAMED_CHARS: usize = 16;
/// The maximum number of snapshots on one page of the list.
const MAX_PAGE: usize = 100;

/// A request for a snapshot.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRequest {
    name: Option<String>,
    memory: Option<bool>,
}

/// Returns the name of a saved state: the id of a snapshot without its tag.
pub(crate) fn name_of(id: &str) -> &str {
    id.split(':').next().unwrap_or_default()
}

fn view(saved: &SavedView) -> Value {
    let id = format!("{}{SNAPSHOT_TAG}", saved.name);
    let names: &[&str] = if saved.name.starts_with(UNNAMED_ID_PREFIX) {
        &[]
    } else {
        &[&id]
    };
    json!({"snapshotID": id, "names": names})
}

/// Makes a snapshot of a sandbox. One of the same name is replaced.
pub(crate) async fn create(
    state: &Arc<State>,
    sandbox: &Sandbox,
    asked: SnapshotRequest,
) -> Result<Response<EndpointBody>, Problem> {
    let name = match asked.name.as_deref().map(name_of) {
        Some(name) if state.options.templates.find(name).is_some() => {
            return Err(Problem::invalid(format!(
                "'{name}' is a template of this server: use another name"
            )));
        }
        Some(name) => name.to_owned(),
        None => format!(
            "{UNNAMED_ID_PREFIX}{}",
            secret()?.chars().take(UNNAMED_CHARS).collect::<String>()
        ),
    };
    let request = SaveRequest {
        from: BranchFrom {
            sandbox_id: Some(sandbox.id.clone()),
            checkpoint: None,
        },
        name,
        only_files: asked.memory == Some(false),
    };
    let saved = state.engine.save(&sandbox.owner, &request).await?;
    Ok(answer::json(StatusCode::CREATED, &view(&saved)))
}

/// Returns a snapshot of a caller.
pub(crate) async fn find(state: &Arc<State>, caller: &Principal, name: &str) -> Result<Option<SavedView>, Problem> {
    let saved = state.engine.saved(caller).await?;
    Ok(saved.into_iter().find(|saved| saved.name == name))
}

/// Lists the snapshots of a caller, by name.
pub(crate) async fn list(
    state: &Arc<State>,
    caller: &Principal,
    query: &str,
) -> Result<Response<EndpointBody>, Problem> {
    let (mut sandbox, mut named, mut after, mut limit) = (None, None, None, MAX_PAGE);
    for (field, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*field {
            "sandboxID" => sandbox = Some(value.into_owned()),
            "name" => named = Some(name_of(&value).to_owned()),
            "nextToken" => after = Some(value.into_owned()),
            "limit" => {
                let asked = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                limit = asked.ok_or_else(|| Problem::invalid(format!("`limit` is 1 to {MAX_PAGE}")))?;
            }
            _ => {}
        }
    }
    let mut found = state.engine.saved(caller).await?;
    found.retain(|one| {
        sandbox.as_ref().is_none_or(|id| one.sandbox_id == *id)
            && named.as_ref().is_none_or(|name| one.name == *name)
            && after.as_ref().is_none_or(|after| one.name > *after)
    });
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|one| one.name.clone());
    let page: Vec<Value> = found.iter().map(view).collect();
    let mut response = answer::json(StatusCode::OK, &page);
    if let Some(Ok(next)) = next.map(HeaderValue::try_from) {
        response.headers_mut().insert("x-next-token", next);
    }
    Ok(response)
}

/// Removes a snapshot.
pub(crate) async fn remove(
    state: &Arc<State>,
    caller: &Principal,
    id: &str,
) -> Result<Response<EndpointBody>, Problem> {
    state.engine.drop_saved(caller, name_of(id)).await?;
    Ok(answer::empty(StatusCode::NO_CONTENT))
}
