//! Files of a caller's sandbox, and the output files of a run.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sandcell_sandbox::{
    Code, Failure, FileChunk, FileError, Files, Listing, MimeBundle, Pictures, Sandbox, SandboxPath, SessionEvent,
    WriteMode,
};
use tokio::time::timeout;

use crate::core::Core;
use crate::execution::{Execution, new_sandbox_notice};
use crate::policy::{MAX_OUTPUT_BYTES, bytes_of, file_size};
use crate::registry::Target;
use crate::state::Record;
use crate::{EngineConfig, FileAnswer, Principal};

/// The maximum time of one file call.
pub(crate) const FILE_CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of pictures of one program.
const MAX_PICTURES: usize = 16;
/// The maximum number of folder entries that are searched for pictures.
const MAX_PICTURE_ENTRIES: usize = 5000;
/// The maximum number of entries of one listing.
const MAX_LISTING_ENTRIES: usize = 10_000;

impl Core {
    pub(crate) async fn list_files(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure> {
        let target = self.target(principal, sandbox).await?;
        let max = max.clamp(1, MAX_LISTING_ENTRIES);
        let (target, live) = ready(target).await?;
        let listing = in_time(live.files().list(path, recursive, max)).await?;
        Ok(answer(&target, listing))
    }

    pub(crate) async fn read_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure> {
        let target = self.target(principal, sandbox).await?;
        let len = len.min(self.config().file_bytes.as_bytes());
        let (target, live) = ready(target).await?;
        let chunk = in_time(read(live.files(), path, offset, len)).await?;
        Ok(answer(&target, chunk))
    }

    pub(crate) async fn write_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure> {
        file_size(&self.config(), path, bytes.len())?;
        let target = self.target(principal, sandbox).await?;
        let (target, live) = ready(target).await?;
        let size = in_time(live.files().write(path, bytes, mode)).await?;
        Ok(answer(&target, size))
    }
}

async fn ready(target: Target) -> Result<(Target, Arc<dyn Sandbox>), Failure> {
    let live = target.record.ready().await?;
    Ok((target, live))
}

async fn in_time<T>(call: impl Future<Output = Result<T, FileError>>) -> Result<T, Failure> {
    match timeout(FILE_CALL_TIMEOUT, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(too_slow("the file call was not answered")),
    }
}

pub(crate) fn too_slow(what: &str) -> Failure {
    Failure::new(
        Code::Timeout,
        format!("{what} within {} s", FILE_CALL_TIMEOUT.as_secs()),
        "try again; if it stays, close the sandbox and use a new one",
    )
}

fn answer<T>(target: &Target, value: T) -> FileAnswer<T> {
    let replaces = target.record.params.replaces.as_ref().filter(|_| target.new);
    let left = target.record.expiry().and_then(|expiry| expiry.ends_soon());
    let ending = left.map(|left| {
        format!(
            "this sandbox ends in {} s with its variables and files, whatever is called",
            left.as_secs()
        )
    });
    FileAnswer {
        sandbox_id: target.record.id.clone(),
        new_sandbox: target.new,
        notices: replaces.map(new_sandbox_notice).into_iter().chain(ending).collect(),
        value,
    }
}

/// Reads up to `len` bytes, with several reads if the back end returns small pieces.
async fn read(files: &dyn Files, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
    let first = files.read(path, offset, len).await?;
    let total = first.total;
    let wanted = len.min(total.saturating_sub(offset));
    if bytes_of(first.bytes.len()) >= wanted {
        return Ok(first);
    }
    let mut bytes = BytesMut::from(first.bytes.as_ref());
    while bytes_of(bytes.len()) < wanted {
        let got = bytes_of(bytes.len());
        let next = files.read(path, offset.saturating_add(got), wanted - got).await?;
        if next.bytes.is_empty() {
            // The file became shorter meanwhile.
            break;
        }
        bytes.extend_from_slice(&next.bytes);
    }
    Ok(FileChunk {
        bytes: bytes.freeze(),
        total,
    })
}

/// Reads the requested output files into the execution. Lists those that cannot be read.
pub(crate) async fn read_outputs(
    config: &EngineConfig,
    record: &Record,
    sandbox: &dyn Sandbox,
    execution: &Execution,
    outputs: &[SandboxPath],
) {
    let mut room = MAX_OUTPUT_BYTES;
    for path in outputs {
        let reading = read_one(config, sandbox, path, room);
        let read = tokio::select! {
            biased;
            terminated = record.wait_closing() => Err(format!("{path}: the sandbox {}", terminated.description())),
            read = timeout(FILE_CALL_TIMEOUT, reading) => {
                read.unwrap_or_else(|_| Err(format!("{path} could not be read in time")))
            }
        };
        match read {
            Ok(bytes) => {
                room = room.saturating_sub(bytes_of(bytes.len()));
                execution.add_file(path.name(), bytes);
            }
            Err(reason) => execution.add_missing_output(reason),
        }
    }
}

/// Adds the pictures in a program's picture folder to its execution, at most [`MAX_PICTURES`] of them. Skips other
/// files: the program can write anything to the folder.
pub(crate) async fn read_pictures(
    config: &EngineConfig,
    record: &Record,
    sandbox: &dyn Sandbox,
    execution: &Execution,
    Pictures { folder, prefix }: &Pictures,
) {
    let reading = async {
        // Without the folder the program has shown no picture.
        let Ok(listing) = sandbox.files().list(folder, false, MAX_PICTURE_ENTRIES).await else {
            return;
        };
        let mut room = MAX_OUTPUT_BYTES;
        let named = listing
            .entries
            .into_iter()
            .filter(|entry| entry.name.starts_with(prefix));
        for entry in named.take(MAX_PICTURES) {
            let Ok(path) = SandboxPath::parse(&format!("{folder}/{}", entry.name)) else {
                continue;
            };
            let Ok(bytes) = read_one(config, sandbox, &path, room).await else {
                continue;
            };
            room = room.saturating_sub(bytes_of(bytes.len()));
            if let Some(mime) = picture_type(&bytes) {
                let bundle = MimeBundle(BTreeMap::from([(mime.to_owned(), bytes)]));
                execution.take(SessionEvent::Display(bundle));
            }
        }
    };
    tokio::select! {
        biased;
        _terminated = record.wait_closing() => {}
        _late = timeout(FILE_CALL_TIMEOUT, reading) => {}
    }
}

/// Returns the type of a picture, by its first bytes.
fn picture_type(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Some("image/png");
    }
    bytes.starts_with(b"\xff\xd8\xff").then_some("image/jpeg")
}

async fn read_one(
    config: &EngineConfig,
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
    room: u64,
) -> Result<Bytes, String> {
    let limit = config.file_bytes.as_bytes();
    // Read one byte beyond the limit, to notice a file that grows meanwhile.
    let most = limit.min(room).saturating_add(1);
    let chunk = read(sandbox.files(), path, 0, most)
        .await
        .map_err(|error| Failure::from(error).message)?;
    let size = chunk.total.max(bytes_of(chunk.bytes.len()));
    if size > limit {
        return Err(format!("{path} has {size} bytes; at most {limit} can be handed back"));
    }
    if size > room {
        return Err(format!(
            "{path} has {size} bytes; all outputs together may have {MAX_OUTPUT_BYTES}"
        ));
    }
    Ok(chunk.bytes)
}
