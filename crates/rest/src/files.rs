//! Files of a sandbox: lists folders, and reads and writes files in parts of 1 MiB, so that a file's size does not
//! affect the server's memory.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{Response, StatusCode};
use sandcell_engine::{Engine, Principal};
use sandcell_mcp::{BodySender, EndpointBody, RequestBody, channel_body};
use sandcell_sandbox::{Failure, SandboxPath, WriteMode};

use crate::model::{Folder, FolderEntry, WrittenFile};
use crate::problem::Problem;
use crate::request::Call;
use crate::respond;

/// The maximum bytes of a file that are read at once.
const PART_BYTES: u64 = 1 << 20;
/// The maximum number of entries in a list.
const MAX_ENTRIES: usize = 10_000;

/// Lists a folder.
pub(crate) async fn list(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let path = call.query.path("path")?.unwrap_or_else(SandboxPath::home);
    let recursive = call.query.value("recursive", "true or false")?.unwrap_or(false);
    let listing = call
        .engine
        .list_files(&call.caller, Some(call.id()), &path, recursive, MAX_ENTRIES);
    let listing = listing.await?.value;
    let entries = listing.entries.into_iter().map(|entry| FolderEntry {
        name: entry.name,
        kind: entry.kind,
        target: entry.target,
        size: entry.size,
        modified_ms: entry.modified_ms,
    });
    let folder = Folder {
        path: path.to_string(),
        entries: entries.collect(),
        omitted: listing.omitted,
    };
    Ok(respond::json(StatusCode::OK, &folder))
}

fn required_path(call: &Call<'_>) -> Result<SandboxPath, Failure> {
    let path = call.query.path("path")?;
    path.ok_or_else(|| Failure::invalid("`path` is missing", "name a file in the query, as in ?path=data.csv"))
}

/// Returns the bytes of a file, or of the requested range.
pub(crate) async fn read(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let path = required_path(&call)?;
    let range = call
        .headers
        .get(RANGE)
        .and_then(|range| Range::parse(range.to_str().ok()?));
    let file = File {
        engine: Arc::clone(call.engine),
        caller: call.caller.clone(),
        sandbox: call.id().to_owned(),
        path,
    };
    let start = match range {
        Some(Range::From(start, _)) => start,
        Some(Range::Last(_)) | None => 0,
    };
    let mut first = file.read(start, PART_BYTES).await?;
    let total = first.total;
    let (start, end) = match range {
        None => (0, total),
        Some(Range::From(start, last)) => (start, last.saturating_add(1).min(total)),
        Some(Range::Last(length)) => (total.saturating_sub(length), total),
    };
    if range.is_some() && start >= end {
        return Ok(not_satisfiable(total));
    }
    if let Some(Range::Last(_)) = range {
        first = file.read(start, PART_BYTES).await?;
    }
    let (send, body) = channel_body(1, Some(end - start));
    tokio::spawn(file.send(first.bytes, start, end, send));
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let mut response = respond::with_body(status, respond::BYTES_TYPE, body);
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if range.is_some() {
        headers.insert(
            CONTENT_RANGE,
            content_range(&format!("{start}-{}/{total}", end.saturating_sub(1))),
        );
    }
    Ok(response)
}

fn not_satisfiable(total: u64) -> Response<EndpointBody> {
    let failure = Failure::invalid(
        format!("the file has {total} bytes, and the range is none of them"),
        "ask for bytes that the file has",
    );
    let mut response = respond::json(StatusCode::RANGE_NOT_SATISFIABLE, &failure);
    let range = content_range(&format!("*/{total}"));
    response.headers_mut().insert(CONTENT_RANGE, range);
    response
}

fn content_range(text: &str) -> HeaderValue {
    HeaderValue::try_from(format!("bytes {text}")).unwrap_or_else(|_| HeaderValue::from_static("bytes */0"))
}

/// One range of bytes. Any other header is answered with the whole file, as HTTP allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    /// From the first byte to the last one. The last one may be past the end of the file.
    From(u64, u64),
    /// The last N bytes.
    Last(u64),
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
        match (first, last) {
            ("", last) => Some(Self::Last(last.parse().ok()?)),
            (first, "") => Some(Self::From(first.parse().ok()?, u64::MAX)),
            (first, last) => {
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last).then_some(Self::From(first, last))
            }
        }
    }
}

/// A file in a caller's sandbox.
struct File {
    engine: Arc<Engine>,
    caller: Principal,
    sandbox: String,
    path: SandboxPath,
}

impl File {
    async fn read(&self, offset: u64, length: u64) -> Result<sandcell_sandbox::FileChunk, Failure> {
        let reading = self
            .engine
            .read_file(&self.caller, Some(&self.sandbox), &self.path, offset, length);
        Ok(reading.await?.value)
    }

    /// Sends the bytes from `start` to `end`. Stops early if the file became shorter or is no longer readable.
    async fn send(self, first: Bytes, start: u64, end: u64, send: BodySender) {
        let (mut part, mut at) = (first, start);
        loop {
            let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            part.truncate(left);
            at = at.saturating_add(length(&part));
            if part.is_empty() || send.send(part).await.is_err() || at >= end {
                return;
            }
            part = match self.read(at, PART_BYTES.min(end - at)).await {
                Ok(chunk) => chunk.bytes,
                Err(_) => return,
            };
        }
    }
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Writes the body to a file, or appends it.
pub(crate) async fn write(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let path = required_path(&call)?;
    let append: bool = call.query.value("append", "true or false")?.unwrap_or(false);
    let sandbox = call.id().to_owned();
    let RequestBody::Stream(mut body) = call.body else {
        return Err(Failure::invalid("the body is missing", "send the bytes of the file").into());
    };
    let max_bytes = usize::try_from(call.engine.config().file_bytes.as_bytes())
        .unwrap_or(usize::MAX)
        .max(1);
    let mut mode = if append { WriteMode::Append } else { WriteMode::Replace };
    let (mut written, mut size) = (0, None);
    loop {
        let mut part = match body.next().await? {
            Some(part) => part,
            None if size.is_none() => Bytes::new(),
            None => break,
        };
        let is_over = part.is_empty();
        loop {
            let piece = part.split_to(part.len().min(max_bytes));
            written += length(&piece);
            let writing = call.engine.write_file(&call.caller, Some(&sandbox), &path, piece, mode);
            size = Some(writing.await?.value);
            mode = WriteMode::Append;
            if part.is_empty() {
                break;
            }
        }
        if is_over {
            break;
        }
    }
    let file = WrittenFile {
        path: path.to_string(),
        bytes_written: written,
        size: size.unwrap_or(written),
    };
    Ok(respond::json(StatusCode::OK, &file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_range_is_accepted() {
        for (text, range) in [
            ("bytes=0-0", Some(Range::From(0, 0))),
            ("bytes=5-", Some(Range::From(5, u64::MAX))),
            ("bytes=-3", Some(Range::Last(3))),
            ("bytes=5-4", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=0-1,4-5", None),
            ("lines=0-1", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(Range::parse(text), range, "{text}");
        }
    }
}
