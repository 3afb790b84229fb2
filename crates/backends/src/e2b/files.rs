//! Files of a sandbox: its file service for metadata, plain HTTP for content.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::Method;
use sandcell_sandbox::{
    Entry, EntryKind, FileChunk, FileError, Files, Listing, SandboxPath, WriteMode, parse_rfc3339, unix_millis,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::error::ServiceError;
use super::inside::Inside;
use super::process::run;
use super::service::Version;

const FILE_SERVICE: &str = "filesystem.Filesystem";
/// Deadline of the transfer of a file's content.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum depth of listings.
const MAX_DEPTH: u32 = 16;
/// The permission bits of a mode.
const PERMISSION_BITS: u32 = 0o7777;
/// The id of the service's ordinary user.
const USER_ID: u32 = 1000;
/// The separator of the parts of an upload.
const PART_BOUNDARY: &str = "sandcell-5b1f0c7e9d4a";

/// The files of a sandbox.
#[derive(Debug)]
pub(super) struct E2bFiles(pub(super) Arc<Inside>);

impl E2bFiles {
    async fn stat(&self, path: &str) -> Result<Entry, ServiceError> {
        let answer = self.0.call(FILE_SERVICE, "Stat", &json!({"path": path})).await?;
        let entry = answer.get("entry").unwrap_or(&Value::Null);
        Ok(described(text(entry, "name"), entry))
    }

    async fn fetch(&self, path: &str, offset: u64, len: u64) -> Result<Bytes, ServiceError> {
        let query = self.query(path);
        let pairs: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut response = self.0.open(|| self.0.envd(Method::GET, &["files"], &pairs)).await?;
        // The protocol defines no ranges, so the bytes before the offset are skipped here.
        let mut skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let wanted = usize::try_from(len).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        while bytes.len() < wanted {
            let Some(piece) = response.chunk().await.map_err(ServiceError::from_client)? else {
                break;
            };
            let fresh = piece.get(skip.min(piece.len())..).unwrap_or_default();
            skip = skip.saturating_sub(piece.len());
            bytes.extend(fresh.iter().take(wanted - bytes.len()));
        }
        Ok(bytes.into())
    }

    async fn put(&self, path: &str, bytes: &Bytes) -> Result<(), ServiceError> {
        let query = self.query(path);
        let pairs: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (kind, body) = if self.0.understands(Version(0, 5, 7)) {
            ("application/octet-stream".to_owned(), bytes.clone())
        } else {
            (
                format!("multipart/form-data; boundary={PART_BOUNDARY}"),
                multipart(bytes),
            )
        };
        let request = || {
            Ok(self
                .0
                .envd(Method::POST, &["files"], &pairs)?
                .header("Content-Type", &kind)
                .body(body.clone()))
        };
        self.0.ask(request, TRANSFER_TIMEOUT).await.map(drop)
    }

    fn query(&self, path: &str) -> Vec<(&'static str, String)> {
        let mut query = vec![("path", path.to_owned())];
        if !self.0.understands(Version(0, 4, 0)) {
            query.push(("username", "user".to_owned()));
        }
        query
    }
}

/// Returns one file as a form, for older versions of envd.
fn multipart(bytes: &[u8]) -> Bytes {
    let mut body = format!(
        "--{PART_BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(bytes);
    body.extend_from_slice(format!("\r\n--{PART_BOUNDARY}--\r\n").as_bytes());
    body.into()
}

fn text(entry: &Value, key: &str) -> String {
    entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the description of an entry. The service names owners, and only root's id is known.
fn described(name: String, entry: &Value) -> Entry {
    let id = |key: &str| if text(entry, key) == "root" { 0 } else { USER_ID };
    Entry {
        name,
        kind: kind(entry),
        target: entry.get("symlinkTarget").and_then(Value::as_str).map(str::to_owned),
        size: whole(entry.get("size")),
        modified_ms: milliseconds(&text(entry, "modifiedTime")),
        mode: u32::try_from(whole(entry.get("mode"))).unwrap_or(0) & PERMISSION_BITS,
        user: id("owner"),
        group: id("group"),
    }
}

fn kind(entry: &Value) -> EntryKind {
    if !text(entry, "symlinkTarget").is_empty() {
        return EntryKind::Link;
    }
    match text(entry, "type").as_str() {
        "FILE_TYPE_FILE" => EntryKind::File,
        "FILE_TYPE_DIRECTORY" => EntryKind::Folder,
        "FILE_TYPE_SYMLINK" => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

/// Reads a whole number, which protobuf's JSON may encode as a string.
fn whole(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::String(text)) => text.parse().unwrap_or(0),
        Some(value) => value.as_u64().unwrap_or(0),
        None => 0,
    }
}

/// Parses a time such as `2026-11-20T21:47:20.53Z` into milliseconds since 1970; returns 0 for anything else.
fn milliseconds(text: &str) -> i64 {
    parse_rfc3339(text).map_or(0, unix_millis)
}

#[async_trait]
impl Files for E2bFiles {
    async fn list(&self, path: &SandboxPath, recursive: bool, max: usize) -> Result<Listing, FileError> {
        let folder = path.as_str();
        let depth = if recursive { MAX_DEPTH } else { 1 };
        let body = json!({"path": folder, "depth": depth});
        let answer = self
            .0
            .call(FILE_SERVICE, "ListDir", &body)
            .await
            .map_err(|error| error.into_file_error(folder))?;
        let prefix = format!("{}/", folder.trim_end_matches('/'));
        let listed = answer.get("entries").and_then(Value::as_array);
        let mut entries: Vec<Entry> = listed
            .into_iter()
            .flatten()
            .map(|entry| {
                let name = match text(entry, "path").strip_prefix(&prefix) {
                    Some(below) if !below.is_empty() => below.to_owned(),
                    Some(_) | None => text(entry, "name"),
                };
                described(name, entry)
            })
            .collect();
        entries.sort_by(|one, two| one.name.cmp(&two.name));
        let omitted = u64::try_from(entries.len().saturating_sub(max)).unwrap_or(u64::MAX);
        entries.truncate(max);
        Ok(Listing { entries, omitted })
    }

    async fn read(&self, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
        let name = path.as_str();
        let fault = |error: ServiceError| error.into_file_error(name);
        let found = self.stat(name).await.map_err(fault)?;
        match found.kind {
            EntryKind::File | EntryKind::Link => {}
            EntryKind::Folder => return Err(FileError::IsDirectory { path: name.to_owned() }),
            EntryKind::Other => {
                return Err(FileError::NotRegular {
                    path: name.to_owned(),
                    kind: "special file".to_owned(),
                });
            }
        }
        let fetched = timeout(TRANSFER_TIMEOUT, self.fetch(name, offset, len));
        let bytes = fetched
            .await
            .unwrap_or(Err(ServiceError::Slow(TRANSFER_TIMEOUT)))
            .map_err(fault)?;
        let end = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(FileChunk {
            // The size of a link is that of the link itself, and the file may have grown.
            total: found.size.max(end),
            bytes,
        })
    }

    async fn write(&self, path: &SandboxPath, bytes: Bytes, mode: WriteMode) -> Result<u64, FileError> {
        let name = path.as_str();
        let fault = |error: ServiceError| error.into_file_error(name);
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if mode == WriteMode::Append {
            let before = match self.stat(name).await {
                Ok(found) => Some(found.size),
                Err(error) => match error.into_file_error(name) {
                    FileError::NotFound { .. } => None,
                    other => return Err(other),
                },
            };
            if let Some(before) = before {
                self.append(name, &bytes).await.map_err(fault)?;
                return Ok(before.saturating_add(size));
            }
        }
        self.put(name, &bytes).await.map_err(fault)?;
        Ok(size)
    }

    async fn entry(&self, path: &SandboxPath) -> Result<Entry, FileError> {
        let name = path.as_str();
        self.stat(name).await.map_err(|error| error.into_file_error(name))
    }

    async fn make_folder(&self, path: &SandboxPath) -> Result<bool, FileError> {
        match self.change(path, "MakeDir", &json!({"path": path.as_str()})).await {
            Ok(()) => Ok(true),
            // The service says the same of a folder and of a file.
            Err(FileError::Exists { .. }) => match self.entry(path).await?.kind {
                EntryKind::Folder => Ok(false),
                _ => Err(FileError::Exists { path: path.to_string() }),
            },
            Err(error) => Err(error),
        }
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), FileError> {
        let body = json!({"source": from.as_str(), "destination": to.as_str()});
        self.change(from, "Move", &body).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), FileError> {
        // The service removes nothing at a path without a file, and does not say so.
        self.entry(path).await?;
        self.change(path, "Remove", &json!({"path": path.as_str()})).await
    }
}

impl E2bFiles {
    async fn change(&self, path: &SandboxPath, method: &str, body: &Value) -> Result<(), FileError> {
        let changed = self.0.call(FILE_SERVICE, method, body).await;
        changed.map(drop).map_err(|error| error.into_file_error(path.as_str()))
    }

    /// Appends through a temporary file next to the target, since the service has no call that appends.
    async fn append(&self, path: &str, bytes: &Bytes) -> Result<(), ServiceError> {
        let temporary = format!("{path}.sandcell-part");
        self.put(&temporary, bytes).await?;
        let script = "cat -- \"$1\" >> \"$2\"; status=$?; rm -f -- \"$1\"; exit $status";
        match run(
            &self.0,
            &["/bin/sh", "-c", script, "sh", &temporary, path],
            TRANSFER_TIMEOUT,
        )
        .await
        {
            Err(ServiceError::Status { message, .. }) if message.contains("No space left") => {
                Err(ServiceError::Status { status: 507, message })
            }
            Err(ServiceError::Status { message, .. }) => Err(ServiceError::Status { status: 400, message }),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_parsed() {
        assert_eq!(milliseconds("1970-01-01T00:00:00Z"), 0);
        assert_eq!(milliseconds("2000-03-01T00:00:00Z"), 951_868_800_000);
        assert_eq!(milliseconds("2026-11-20T21:47:20.53Z"), 1_795_211_240_530);
        assert_eq!(milliseconds("2026-11-20T21:47:20.123456789Z"), 1_795_211_240_123);
        assert_eq!(milliseconds("yesterday"), 0);
    }
}
