//! `/files`: content of files, up and down, in parts, so that a file's size does not affect the server's memory.
//!
//! An address can carry a signature instead of a token: the hash of the path, the operation, the user, the sandbox's
//! token and the time until which it holds.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use futures::stream;
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{HeaderMap, Method, Response, StatusCode, Uri};
use sandcell_mcp::{BodySender, BodyStream, EndpointBody, EndpointRequest, RequestBody, channel_body};
use sandcell_sandbox::{Code, Failure, FileChunk, SandboxPath, WriteMode};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::call::InSandbox;
use crate::limits::STREAM_CAPACITY;
use crate::metadata::Metadata;
use crate::paths::path;
use crate::problem::Problem;
use crate::registry::Sandbox;
use crate::users::{check_user, check_user_name};
use crate::{answer, metadata};

/// The maximum bytes of a file that are moved at once.
const PART_BYTES: usize = 1 << 20;
/// The maximum bytes that are decompressed at once. They become at most a thousand times as many.
const COMPRESSED_BYTES: usize = 4096;
/// The maximum number of files of one upload.
const MAX_FILES: usize = 1000;

/// The query of an address.
#[derive(Debug, Default)]
struct FileQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    expiration: Option<String>,
}

impl FileQuery {
    fn of(uri: &Uri) -> Self {
        let mut query = Self::default();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let value = Some(value.into_owned());
            match &*name {
                "path" => query.path = value,
                "username" => query.username = value,
                "signature" => query.signature = value,
                "signature_expiration" => query.expiration = value,
                _ => {}
            }
        }
        query
    }
}

/// Returns true if the address carries a signature.
pub(crate) fn is_signed(uri: &Uri) -> bool {
    uri.path() == "/files" && FileQuery::of(uri).signature.is_some()
}

/// Returns true if the time of a signed address is over.
pub(crate) fn is_expired(uri: &Uri) -> bool {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    match FileQuery::of(uri).expiration.as_deref().map(str::parse::<u64>) {
        None => false,
        Some(Ok(end)) => Duration::from_secs(end) <= now,
        Some(Err(_)) => true,
    }
}

/// Returns true if the signature of the address is that of this sandbox. The time of the address may be over.
pub(crate) fn signature_fits(method: &Method, uri: &Uri, sandbox: &Sandbox) -> bool {
    let query = FileQuery::of(uri);
    let operation = if method == Method::GET { "read" } else { "write" };
    let expected = signature(&query, operation, &sandbox.access_token);
    let given = query.signature.unwrap_or_default();
    bool::from(expected.as_bytes().ct_eq(given.as_bytes()))
}

fn signature(query: &FileQuery, operation: &str, token: &str) -> String {
    let path = query.path.as_deref().unwrap_or_default();
    let user = query.username.as_deref().unwrap_or_default();
    let mut text = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = &query.expiration {
        text.push(':');
        text.push_str(expiration);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())))
}

/// Answers a download or an upload.
pub(crate) async fn answer(call: InSandbox, request: EndpointRequest<'_>) -> Result<Response<EndpointBody>, Problem> {
    let query = FileQuery::of(&request.parts.uri);
    check_user(&request.parts.headers)?;
    check_user_name(query.username.as_deref().unwrap_or_default())?;
    if request.parts.method == Method::GET {
        let file = query.path.as_deref().unwrap_or_default();
        return download(call, path(file)?, &request.parts.headers).await;
    }
    let RequestBody::Stream(body) = request.body else {
        return Err(Problem::invalid("the body is missing"));
    };
    // Before anything is written.
    let metadata = metadata::of_request(&request.parts.headers)?;
    let target = Upload {
        call: &call,
        metadata: &metadata,
    };
    let written = upload(target, query.path.as_deref(), &request.parts.headers, body).await?;
    let mut listed = Vec::with_capacity(written.len());
    for path in &written {
        let mut entry = json!({"name": path.name(), "type": "file", "path": path.as_str()});
        if let (false, Some(entry)) = (metadata.is_empty(), entry.as_object_mut()) {
            entry.insert("metadata".to_owned(), json!(metadata));
        }
        listed.push(entry);
    }
    Ok(answer::json(StatusCode::OK, &listed))
}

fn file_problem(path: &SandboxPath, failure: Failure) -> Problem {
    match failure.code {
        Code::NotFound => Problem::not_found(format!("path '{path}' does not exist")),
        Code::DiskFull => Problem::new(StatusCode::INSUFFICIENT_STORAGE, failure.message),
        _ => failure.into(),
    }
}

/// A part of a file: the first byte, and the last one if it is given.
fn range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    let first = first.parse().ok()?;
    match last {
        "" => Some((first, None)),
        last => last
            .parse()
            .ok()
            .filter(|last| first <= *last)
            .map(|last| (first, Some(last))),
    }
}

async fn download(call: InSandbox, path: SandboxPath, headers: &HeaderMap) -> Result<Response<EndpointBody>, Problem> {
    let range = range(headers);
    let file = File { call, path };
    let start = range.map_or(0, |(first, _)| first);
    let first = file
        .read(start, PART_BYTES)
        .await
        .map_err(|failure| file_problem(&file.path, failure))?;
    let total = first.total;
    let end = match range {
        Some((_, Some(last))) => last.saturating_add(1).min(total),
        _ => total,
    };
    if range.is_some() && start >= end {
        let mut response =
            Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, format!("the file has {total} bytes")).into_response(false);
        if let Ok(value) = HeaderValue::try_from(format!("bytes */{total}")) {
            response.headers_mut().insert(CONTENT_RANGE, value);
        }
        return Ok(response);
    }
    let (parts, body) = channel_body(STREAM_CAPACITY, Some(end - start));
    tokio::spawn(file.send(first.bytes, start, end, parts));
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let mut response = answer::with_body(status, "application/octet-stream", body);
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A browser must not show a file of a sandbox as a page of this server.
    headers.insert("content-disposition", HeaderValue::from_static("attachment"));
    if range.is_some()
        && let Ok(value) = HeaderValue::try_from(format!("bytes {start}-{}/{total}", end.saturating_sub(1)))
    {
        headers.insert(CONTENT_RANGE, value);
    }
    Ok(response)
}

/// A file of a sandbox.
struct File {
    call: InSandbox,
    path: SandboxPath,
}

impl File {
    async fn read(&self, offset: u64, length: usize) -> Result<FileChunk, Failure> {
        let (engine, sandbox) = (&self.call.state.engine, &self.call.sandbox);
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        let read = engine.read_file(&sandbox.owner, Some(&sandbox.id), &self.path, offset, length);
        Ok(read.await?.value)
    }

    /// Sends the bytes from `at` to `end`. Stops early if the file became shorter or can no longer be read.
    async fn send(self, first: Bytes, mut at: u64, end: u64, parts: BodySender) {
        let mut part = first;
        loop {
            part.truncate(usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX));
            at = at.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
            if part.is_empty() || parts.send(part).await.is_err() || at >= end {
                return;
            }
            part = match self.read(at, PART_BYTES).await {
                Ok(chunk) => chunk.bytes,
                Err(_) => return,
            };
        }
    }
}

/// An upload: its sandbox, and the metadata of its files.
#[derive(Clone, Copy)]
struct Upload<'a> {
    call: &'a InSandbox,
    metadata: &'a Metadata,
}

/// Writes a file in large parts. Bytes arrive in small ones.
struct Writer<'a> {
    target: Upload<'a>,
    path: SandboxPath,
    pending: BytesMut,
    mode: WriteMode,
}

impl<'a> Writer<'a> {
    fn new(target: Upload<'a>, path: SandboxPath) -> Self {
        Self {
            target,
            path,
            pending: BytesMut::new(),
            mode: WriteMode::Replace,
        }
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.pending.extend_from_slice(bytes);
        while self.pending.len() >= PART_BYTES {
            let part = self.pending.split_to(PART_BYTES).freeze();
            self.write(part).await?;
        }
        Ok(())
    }

    async fn write(&mut self, part: Bytes) -> Result<(), Problem> {
        let (engine, sandbox) = (&self.target.call.state.engine, &self.target.call.sandbox);
        let writing = engine.write_file(&sandbox.owner, Some(&sandbox.id), &self.path, part, self.mode);
        writing.await.map_err(|failure| file_problem(&self.path, failure))?;
        if self.mode == WriteMode::Replace {
            sandbox.file_metadata.replace(&self.path, self.target.metadata);
        }
        self.mode = WriteMode::Append;
        Ok(())
    }

    /// Writes the rest. An empty file is written, too.
    async fn finish(mut self) -> Result<SandboxPath, Problem> {
        let part = self.pending.split().freeze();
        if !part.is_empty() || self.mode == WriteMode::Replace {
            self.write(part).await?;
        }
        Ok(self.path)
    }
}

/// The encoding of an upload.
enum Encoding {
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

async fn upload(
    target: Upload<'_>,
    named: Option<&str>,
    headers: &HeaderMap,
    body: BodyStream<'_>,
) -> Result<Vec<SandboxPath>, Problem> {
    let header = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let encoding = match header("content-encoding") {
        "" | "identity" => Encoding::Plain,
        "gzip" => Encoding::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
        other => return Err(Problem::unimplemented(&format!("uploads with the encoding {other:?}"))),
    };
    let kind = header("content-type");
    if kind.to_ascii_lowercase().starts_with("multipart/form-data") {
        if matches!(encoding, Encoding::Gzip(_)) {
            return Err(Problem::unimplemented(
                "compressed forms: send application/octet-stream",
            ));
        }
        let boundary = multer::parse_boundary(kind).map_err(|error| Problem::invalid(error.to_string()))?;
        return form(target, named, body, boundary).await;
    }
    let Some(named) = named else {
        return Err(Problem::invalid("`path` is missing in the query"));
    };
    let writer = Writer::new(target, path(named)?);
    raw(writer, encoding, body).await.map(|path| vec![path])
}

/// Writes the body to a file.
async fn raw(mut writer: Writer<'_>, mut encoding: Encoding, mut body: BodyStream<'_>) -> Result<SandboxPath, Problem> {
    let broken = |error: std::io::Error| Problem::invalid(format!("the body is not gzip: {error}"));
    while let Some(part) = body.next().await? {
        match &mut encoding {
            Encoding::Plain => writer.push(&part).await?,
            Encoding::Gzip(decoder) => {
                for piece in part.chunks(COMPRESSED_BYTES) {
                    decoder.write_all(piece).map_err(broken)?;
                    let decoded = std::mem::take(decoder.get_mut());
                    writer.push(&decoded).await?;
                }
            }
        }
    }
    if let Encoding::Gzip(decoder) = encoding {
        let rest = decoder.finish().map_err(broken)?;
        writer.push(&rest).await?;
    }
    writer.finish().await
}

/// Writes the files of a form: to the path of the query if there is one file, else to the names of the parts.
async fn form(
    target: Upload<'_>,
    named: Option<&str>,
    body: BodyStream<'_>,
    boundary: String,
) -> Result<Vec<SandboxPath>, Problem> {
    let parts = stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match body.next().await {
            Ok(Some(part)) => Some((Ok(part), Some(body))),
            Ok(None) => None,
            Err(failure) => Some((Err(failure), None)),
        }
    });
    let mut form = multer::Multipart::new(Box::pin(parts), boundary);
    let broken = |error: multer::Error| Problem::invalid(format!("the form is broken: {error}"));
    let mut written = Vec::new();
    while let Some(mut field) = form.next_field().await.map_err(broken)? {
        if field.name() != Some("file") {
            continue;
        }
        if written.len() >= MAX_FILES || (named.is_some() && !written.is_empty()) {
            return Err(Problem::invalid(
                "`path` names one file, and a form has at most 1000: leave the path out for several files",
            ));
        }
        let name = named
            .or_else(|| field.file_name())
            .ok_or_else(|| Problem::invalid("a part has no file name"))?;
        let mut writer = Writer::new(target, path(name)?);
        while let Some(part) = field.chunk().await.map_err(broken)? {
            writer.push(&part).await?;
        }
        written.push(writer.finish().await?);
    }
    if written.is_empty() {
        return Err(Problem::invalid("the form has no part `file`"));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_covers_path_operation_user_token_and_end() {
        let query = |text: &str| FileQuery::of(&Uri::try_from(format!("/files?{text}")).unwrap());
        let base = query("path=/a&username=user&signature_expiration=99");
        let known = signature(&base, "read", "token");
        assert!(known.starts_with("v1_") && !known.ends_with('='), "{known}");
        for (text, operation, token) in [
            ("path=/b&username=user&signature_expiration=99", "read", "token"),
            ("path=/a&username=user&signature_expiration=99", "write", "token"),
            ("path=/a&signature_expiration=99", "read", "token"),
            ("path=/a&username=user&signature_expiration=98", "read", "token"),
            ("path=/a&username=user", "read", "token"),
            ("path=/a&username=user&signature_expiration=99", "read", "other"),
        ] {
            assert_ne!(
                signature(&query(text), operation, token),
                known,
                "{text} {operation} {token}"
            );
        }
    }

    #[test]
    fn only_a_single_range_from_a_first_byte_is_accepted() {
        let with = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, HeaderValue::from_static(text));
            range(&headers)
        };
        assert_eq!(with("bytes=2-5"), Some((2, Some(5))));
        assert_eq!(with("bytes=2-"), Some((2, None)));
        for other in ["bytes=-5", "bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=1-2,4-5"] {
            assert_eq!(with(other), None, "{other}");
        }
    }
}
