//! Watched folders: streams of changes, and watchers whose changes are fetched.

use std::time::Duration;

use hyper::{HeaderMap, Response, StatusCode};
use sandcell_engine::FolderWatch;
use sandcell_mcp::{EndpointBody, channel_body};
use sandcell_sandbox::{ChangeKind, Code, FileChange, SandboxPath};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::InSandbox;
use crate::limits::STREAM_CAPACITY;
use crate::problem::Problem;
use crate::secrets::secret;
use crate::{answer, connect};

/// The time that a change needs at most, usually, from the file system to its watcher.
const ARRIVAL: Duration = Duration::from_millis(5);

/// Begins a watch.
async fn begin(call: &InSandbox, path: &SandboxPath, recursive: bool) -> Result<FolderWatch, Problem> {
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let watch = engine
        .watch_folder(&sandbox.owner, Some(&sandbox.id), path, recursive)
        .await;
    watch.map(|answer| answer.value).map_err(|failure| match failure.code {
        Code::NotFound => Problem::not_found(format!("path {path} not found")),
        Code::InvalidArgument => Problem::invalid(format!("path {path} is not a directory")),
        _ => failure.into(),
    })
}

/// Answers with the changes in a folder from now on.
pub(crate) async fn stream(
    call: &InSandbox,
    path: &SandboxPath,
    recursive: bool,
    headers: &HeaderMap,
) -> Result<Response<EndpointBody>, Problem> {
    let deadline = connect::deadline(headers).map(|left| Instant::now() + left);
    let keep_alive = connect::keep_alive(headers);
    let mut watch = begin(call, path, recursive).await?;
    let (parts, body) = channel_body(STREAM_CAPACITY, None);
    tokio::spawn(async move {
        let mut frame = connect::frame(&json!({"start": {}}));
        loop {
            if parts.send(frame).await.is_err() {
                return;
            }
            frame = tokio::select! {
                biased;
                () = parts.closed() => return,
                () = connect::sleep_until_some(deadline) => {
                    let late = Problem::new(StatusCode::GATEWAY_TIMEOUT, "the deadline of the watch has passed");
                    let _gone = parts.send(connect::failed(&late)).await;
                    return;
                }
                change = watch.next() => match change.map(|change| event(&change)) {
                    Some(Some(event)) => connect::frame(&json!({"filesystem": event})),
                    // The SDKs have no word for lost changes.
                    Some(None) => continue_frame(),
                    None => {
                        let _gone = parts.send(connect::end()).await;
                        return;
                    }
                },
                () = tokio::time::sleep(keep_alive) => continue_frame(),
            };
        }
    });
    Ok(answer::with_body(StatusCode::OK, connect::STREAM_TYPE, body))
}

fn continue_frame() -> bytes::Bytes {
    connect::frame(&json!({"keepalive": {}}))
}

/// Makes a watcher. Returns its id.
pub(crate) async fn create(call: &InSandbox, path: &SandboxPath, recursive: bool) -> Result<Value, Problem> {
    let watchers = &call.sandbox.watchers;
    watchers.check_room()?;
    let watch = begin(call, path, recursive).await?;
    let id = secret()?;
    watchers.add(&id, watch)?;
    Ok(json!({"watcherId": id}))
}

/// Returns the changes of a watcher since the last call.
pub(crate) async fn events(call: &InSandbox, id: &str) -> Result<Value, Problem> {
    // A change that was made before this call may still be on its way.
    tokio::time::sleep(ARRIVAL).await;
    let changes = call.sandbox.watchers.take(id)?;
    let events: Vec<Value> = changes.iter().filter_map(event).collect();
    Ok(json!({"events": events}))
}

/// Ends a watcher.
pub(crate) fn remove(call: &InSandbox, id: &str) -> Result<Value, Problem> {
    call.sandbox.watchers.remove(id).map(|()| json!({}))
}

/// Returns a change in the words of `envd`.
fn event(change: &FileChange) -> Option<Value> {
    let kind = match change.kind {
        ChangeKind::Create => "EVENT_TYPE_CREATE",
        ChangeKind::Write => "EVENT_TYPE_WRITE",
        ChangeKind::Remove => "EVENT_TYPE_REMOVE",
        ChangeKind::Rename => "EVENT_TYPE_RENAME",
        ChangeKind::Chmod => "EVENT_TYPE_CHMOD",
        ChangeKind::Overflow => return None,
    };
    Some(json!({"name": change.name, "type": kind}))
}
