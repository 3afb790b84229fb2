//! The output files and pictures of a run.

use std::collections::BTreeMap;

use bytes::Bytes;
use sandcell_sandbox::{Failure, MimeBundle, Pictures, Sandbox, SandboxPath, SessionEvent};
use tokio::time::timeout;

use crate::EngineConfig;
use crate::admission::policy::{MAX_OUTPUT_BYTES, bytes_of};
use crate::execution::state::Execution;
use crate::sandbox::files::{FILE_CALL_TIMEOUT, read};
use crate::sandbox::state::Record;

/// The maximum number of pictures of one program.
const MAX_PICTURES: usize = 16;
/// The maximum number of folder entries that are searched for pictures.
const MAX_PICTURE_ENTRIES: usize = 5000;

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
        return Err(format!("{path} has {size} bytes; at most {limit} can be returned"));
    }
    if size > room {
        return Err(format!(
            "{path} has {size} bytes; all outputs together may have {MAX_OUTPUT_BYTES}"
        ));
    }
    Ok(chunk.bytes)
}
