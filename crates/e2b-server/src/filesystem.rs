//! The service `filesystem.Filesystem`: describes, lists, watches, moves and removes files.

use hyper::{Response, StatusCode};
use sandcell_engine::Principal;
use sandcell_mcp::{EndpointBody, EndpointRequest, RequestBody};
use sandcell_sandbox::{Code, EntryKind, SandboxPath};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::InSandbox;
use crate::paths::path;
use crate::problem::Problem;
use crate::users::check_user;
use crate::watchers::Watched;
use crate::{answer, connect, entries, watch};

/// The maximum number of entries of a list.
const MAX_ENTRIES: usize = 10_000;

/// A request of the service.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    path: String,
    source: String,
    destination: String,
    depth: Option<u32>,
    recursive: bool,
    include_entry: bool,
    watcher_id: String,
}

impl Asked {
    fn watched(&self) -> Result<Watched, Problem> {
        Ok(Watched {
            folder: path(&self.path)?,
            recursive: self.recursive,
            include_entry: self.include_entry,
        })
    }
}

/// Answers a call of the service.
pub(crate) async fn answer(
    call: InSandbox,
    method: String,
    request: EndpointRequest<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    if method == "WatchDir" {
        // Clients read the error of a stream in its last message only.
        let watched = watch_stream(&call, &request).await;
        return Ok(watched.unwrap_or_else(|problem| connect::failed_stream(&problem)));
    }
    check_user(&request.parts.headers)?;
    connect::check_type(&request.parts.headers, connect::UNARY_TYPE)?;
    let asked: Asked = answer::read(&request.body)?;
    let files = Files(&call);
    let value = match method.as_str() {
        "Stat" => {
            let path = path(&asked.path)?;
            json!({"entry": entries::described(&call, &path).await?})
        }
        "ListDir" => files.list(&path(&asked.path)?, asked.depth.unwrap_or(1).max(1)).await?,
        "MakeDir" => files.make_folder(&path(&asked.path)?).await?,
        "Move" => files.rename(&path(&asked.source)?, &path(&asked.destination)?).await?,
        "Remove" => files.remove(&path(&asked.path)?).await?,
        "CreateWatcher" => watch::create(&call, &asked.watched()?).await?,
        "GetWatcherEvents" => watch::events(&call, &asked.watcher_id).await?,
        "RemoveWatcher" => watch::remove(&call, &asked.watcher_id)?,
        _ => return Err(Problem::new(StatusCode::NOT_FOUND, "the service has no such method")),
    };
    Ok(answer::json(StatusCode::OK, &value))
}

async fn watch_stream(call: &InSandbox, request: &EndpointRequest<'_>) -> Result<Response<EndpointBody>, Problem> {
    let headers = &request.parts.headers;
    connect::check_type(headers, connect::STREAM_TYPE)?;
    check_user(headers)?;
    let RequestBody::Whole(body) = &request.body else {
        return Err(Problem::invalid("the body is missing"));
    };
    let asked: Asked = connect::message(body)?;
    watch::stream(call, &asked.watched()?, headers).await
}

/// A part of a recursive list.
enum Pending {
    /// An entry to list.
    Entry(Value),
    /// A folder to read, and its level.
    Folder(SandboxPath, u32),
}

/// The files of a sandbox.
struct Files<'a>(&'a InSandbox);

impl Files<'_> {
    fn owner(&self) -> &Principal {
        &self.0.sandbox.owner
    }

    fn id(&self) -> Option<&str> {
        Some(&self.0.sandbox.id)
    }

    async fn list(&self, folder: &SandboxPath, depth: u32) -> Result<Value, Problem> {
        let mut listed = Vec::new();
        // Entries and folders in the order of their paths; a folder's entries follow it.
        let mut pending = vec![Pending::Folder(folder.clone(), 1)];
        while let Some(next) = pending.pop() {
            let (folder, level) = match next {
                Pending::Entry(entry) => {
                    listed.push(entry);
                    continue;
                }
                Pending::Folder(folder, level) => (folder, level),
            };
            let waiting = pending.iter().filter(|next| matches!(next, Pending::Entry(_))).count();
            let left = MAX_ENTRIES.saturating_sub(listed.len() + waiting);
            let engine = &self.0.state.engine;
            let listing = match engine
                .list_files(self.owner(), self.id(), &folder, false, left.max(1))
                .await
            {
                Ok(answer) => answer.value,
                // A folder that was removed meanwhile, or that the user may not read, has no entries.
                Err(failure) if level > 1 && matches!(failure.code, Code::NotFound | Code::DeniedByPolicy) => continue,
                Err(failure) if failure.code == Code::NotFound => {
                    return Err(Problem::not_found(format!("path '{folder}' does not exist")));
                }
                Err(failure) => return Err(failure.into()),
            };
            if listing.omitted > 0 || listing.entries.len() > left {
                return Err(Problem::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    format!("the folder has more than {MAX_ENTRIES} entries: list a smaller one"),
                ));
            }
            let mut found = Vec::new();
            for entry in listing.entries {
                let full = format!("{}/{}", folder.as_str().trim_end_matches('/'), entry.name);
                let inner = SandboxPath::parse(&full);
                let kind = match (&entry.kind, &inner) {
                    (EntryKind::Link, Ok(link)) => entries::kind_of_target(self.0, link, &entry).await,
                    (kind, _) => *kind,
                };
                found.push(Pending::Entry(entries::value(self.0, &full, &entry, kind)));
                if let (EntryKind::Folder, true, Ok(inner)) = (entry.kind, level < depth, inner) {
                    found.push(Pending::Folder(inner, level + 1));
                }
            }
            pending.extend(found.into_iter().rev());
        }
        Ok(json!({"entries": listed}))
    }

    async fn make_folder(&self, path: &SandboxPath) -> Result<Value, Problem> {
        let made = self.0.state.engine.make_folder(self.owner(), self.id(), path).await?;
        if !made.value {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                format!("directory already exists: {path}"),
            ));
        }
        Ok(json!({"entry": entries::described(self.0, path).await?}))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<Value, Problem> {
        let engine = &self.0.state.engine;
        entries::entry(self.0, from).await?;
        if let Some((folder, _)) = to.as_str().rsplit_once('/').filter(|(folder, _)| !folder.is_empty()) {
            engine
                .make_folder(self.owner(), self.id(), &crate::paths::path(folder)?)
                .await?;
        }
        engine.move_file(self.owner(), self.id(), from, to).await?;
        self.0.sandbox.file_metadata.moved(from, to);
        Ok(json!({"entry": entries::described(self.0, to).await?}))
    }

    /// Removes a file or folder. As with E2B, it is no error if there is none.
    async fn remove(&self, path: &SandboxPath) -> Result<Value, Problem> {
        match self.0.state.engine.remove_file(self.owner(), self.id(), path).await {
            Ok(_) => {
                self.0.sandbox.file_metadata.removed(path);
                Ok(json!({}))
            }
            Err(failure) if failure.code == Code::NotFound => Ok(json!({})),
            Err(failure) => Err(failure.into()),
        }
    }
}
