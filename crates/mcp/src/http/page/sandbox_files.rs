//! Files of a sandbox, for the page: lists a folder, sends the bytes of a file, and takes uploads. Paths are the
//! caller's text and are checked like those of the tools. Bytes leave as a download, never as a document.

use hyper::Response;
use hyper::header::{HeaderName, HeaderValue};
use sandcell_sandbox::{Failure, SandboxPath, WriteMode};
use serde_json::{Value, json};

use super::super::body::Body;
use super::api::ApiRequest;
use super::bytes;
use crate::arguments::sandbox_path;
use crate::limits::LIST_ENTRIES;
use crate::tools::list_data;

/// The header with the size of the whole file.
const SIZE_HEADER: HeaderName = HeaderName::from_static("sandcell-size");

pub(super) async fn list(ask: &ApiRequest<'_>, id: &str) -> Result<Value, Failure> {
    let path = match ask.query.text("path") {
        Some(text) => sandbox_path("path", text)?,
        None => SandboxPath::home(),
    };
    let answer = ask
        .engine
        .list_files(ask.caller, Some(id), &path, false, LIST_ENTRIES)
        .await?;
    Ok(list_data(&path, &answer))
}

fn named(ask: &ApiRequest<'_>) -> Result<SandboxPath, Failure> {
    let text = ask.query.text("path");
    sandbox_path(
        "path",
        text.ok_or_else(|| Failure::invalid("`path` is missing", "name a file"))?,
    )
}

/// A part of a file: as much as one call moves, unless the request asks for less.
pub(super) async fn read(ask: &ApiRequest<'_>, id: &str) -> Result<Response<Body>, Failure> {
    let path = named(ask)?;
    let offset = ask.query.number("offset")?.unwrap_or(0);
    let most = ask.engine.config().file_bytes.as_bytes();
    let limit = ask.query.number("limit")?.map_or(most, |limit| limit.min(most));
    let answer = ask.engine.read_file(ask.caller, Some(id), &path, offset, limit).await?;
    let mut response = bytes(answer.value.bytes);
    let total = HeaderValue::from(answer.value.total);
    response.headers_mut().insert(SIZE_HEADER, total);
    Ok(response)
}

/// Writes the body to a file, or appends it.
pub(super) async fn write(ask: &ApiRequest<'_>, id: &str) -> Result<Value, Failure> {
    let path = named(ask)?;
    let mode = if ask.query.flag("append")? {
        WriteMode::Append
    } else {
        WriteMode::Replace
    };
    let written = ask.body.len();
    let answer = ask
        .engine
        .write_file(ask.caller, Some(id), &path, ask.body.clone(), mode)
        .await?;
    Ok(json!({
        "sandbox_id": answer.sandbox_id, "path": path, "bytes_written": written, "size": answer.value,
        "notices": answer.notices,
    }))
}
