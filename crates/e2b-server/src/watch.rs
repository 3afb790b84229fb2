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
use crate::watchers::Watched;
use crate::{answer, connect, entries};

/// The time that a change needs at most, usually, from the file system to its watcher.
const ARRIVAL_DELAY: Duration = Duration::from_millis(5);
/// The maximum size of the descriptions of entries in one answer, and the maximum time to make them. Later changes come
/// without one.
const MAX_ENTRY_BYTES: usize = 1 << 20;
const DESCRIBING_TIME: Duration = Duration::from_secs(2);

/// Describes the entry of a change as it is now. None if it is gone, if the sandbox is paused, or if the request did not ask
/// for it.
async fn entry(call: &InSandbox, watched: &Watched, change: &FileChange) -> Option<Value> {
    let has_entry = matches!(change.kind, ChangeKind::Create | ChangeKind::Write | ChangeKind::Chmod);
    if !watched.include_entry || !has_entry {
        return None;
    }
    let folder = watched.folder.as_str().trim_end_matches('/');
    let path = SandboxPath::parse(&format!("{folder}/{}", change.name)).ok()?;
    entries::described_unless_paused(call, &path).await
}

/// Begins a watch.
async fn begin(call: &InSandbox, watched: &Watched) -> Result<FolderWatch, Problem> {
    let (engine, sandbox) = (&call.state.engine, &call.sandbox);
    let path = &watched.folder;
    let watch = engine
        .watch_folder(&sandbox.owner, Some(&sandbox.id), path, watched.recursive)
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
    watched: &Watched,
    headers: &HeaderMap,
) -> Result<Response<EndpointBody>, Problem> {
    let deadline = connect::deadline(headers).map(|left| Instant::now() + left);
    let keep_alive = connect::keep_alive(headers);
    let mut watch = begin(call, watched).await?;
    let (call, watched) = (call.clone(), watched.clone());
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
                change = watch.next() => {
                    let Some(change) = change else {
                        let _gone = parts.send(connect::end()).await;
                        return;
                    };
                    let entry = entry(&call, &watched, &change).await;
                    match event(&change, entry) {
                        Some(event) => connect::frame(&json!({"filesystem": event})),
                        // The SDKs have no word for lost changes.
                        None => continue_frame(),
                    }
                }
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
pub(crate) async fn create(call: &InSandbox, watched: &Watched) -> Result<Value, Problem> {
    let watchers = &call.sandbox.watchers;
    watchers.check_room()?;
    let watch = begin(call, watched).await?;
    let id = secret()?;
    watchers.add(&id, watched.clone(), watch)?;
    Ok(json!({"watcherId": id}))
}

/// Returns the changes of a watcher since the last call.
pub(crate) async fn events(call: &InSandbox, id: &str) -> Result<Value, Problem> {
    // A change that was made before this call may still be on its way.
    tokio::time::sleep(ARRIVAL_DELAY).await;
    let (watched, changes) = call.sandbox.watchers.take(id)?;
    let until = Instant::now() + DESCRIBING_TIME;
    let mut left = MAX_ENTRY_BYTES;
    let mut events = Vec::with_capacity(changes.len());
    for change in &changes {
        let described = tokio::time::timeout_at(until, entry(call, &watched, change));
        let entry = match left {
            0 => None,
            _ => described.await.ok().flatten(),
        };
        left = left.saturating_sub(entry.as_ref().map_or(0, |entry| entry.to_string().len()));
        events.extend(event(change, entry));
    }
    Ok(json!({"events": events}))
}

/// Ends a watcher.
pub(crate) fn remove(call: &InSandbox, id: &str) -> Result<Value, Problem> {
    call.sandbox.watchers.remove(id).map(|()| json!({}))
}

/// Returns a change in the words of `envd`.
fn event(change: &FileChange, entry: Option<Value>) -> Option<Value> {
    let kind = match change.kind {
        ChangeKind::Create => "EVENT_TYPE_CREATE",
        ChangeKind::Write => "EVENT_TYPE_WRITE",
        ChangeKind::Remove => "EVENT_TYPE_REMOVE",
        ChangeKind::Rename => "EVENT_TYPE_RENAME",
        ChangeKind::Chmod => "EVENT_TYPE_CHMOD",
        ChangeKind::Overflow => return None,
    };
    let mut event = json!({"name": change.name, "type": kind});
    if let (Some(entry), Some(event)) = (entry, event.as_object_mut()) {
        event.insert("entry".to_owned(), entry);
    }
    Some(event)
}
