//! Unpacks one layer in a separate sandbox: the blob goes in, and records come out.
//!
//! Each layer has its own sandbox. A layer that takes over the unpacker therefore cannot affect another layer, which
//! other images may share. The host computes the digest of the blob while it streams in. `writer` treats the records
//! as hostile. If the digest is wrong, all output is deleted.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use sandcell_sandbox::{
    Backend, ByteSize, Channel, Command, Cpus, Exit, LAYERS, Limits, Process, ProcessEvent, ProcessHandle, SandboxSpec,
    StdinMode,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::error::ImageError;
use crate::inside::Kind;
use crate::manifest::Digest;
use crate::registry::Stream;
use crate::store::{Draft, UNPACKER_NAME};
use crate::writer::{UnpackLimits, Written, write};

/// The memory limit of an unpacker. Windows of Zstandard need most of it.
const UNPACKER_MEMORY: ByteSize = ByteSize::mib(512);
/// The capacity of the queue to the writer, in pieces of output.
const QUEUE_CAPACITY: usize = 64;
/// The maximum length of the unpacker's error text for a caller, in bytes.
const MAX_SHOWN_OUTPUT_BYTES: usize = 300;
/// The maximum size of a layer's archive in excess of its files: heads, padding and the end.
const MAX_ARCHIVE_OVERHEAD_BYTES: u64 = 1 << 30;

/// The input of an unpacker.
pub(crate) struct Blob {
    pub(crate) stream: Stream,
    /// The expected digest and size. None: no check.
    pub(crate) known: Option<(Digest, u64)>,
}

/// The resources for unpacking.
pub(crate) struct Unpacker<'a> {
    pub(crate) backend: &'a Arc<dyn Backend>,
    /// A folder that contains only the unpacker program.
    pub(crate) tool: &'a Path,
    pub(crate) limits: UnpackLimits,
}

impl Unpacker<'_> {
    /// Unpacks into the folder `files` of the draft. Calls `on_progress` with the number of bytes sent to the unpacker.
    pub(crate) async fn run(
        &self,
        kind: Kind,
        blob: Blob,
        draft: &Arc<Draft>,
        on_progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Written, ImageError> {
        let spec = SandboxSpec {
            limits: Limits {
                memory: UNPACKER_MEMORY,
                cpus: Cpus::milli(1000),
                processes: 16,
                disk: ByteSize::mib(16),
                inodes: 1000,
            },
            ..SandboxSpec::default()
        };
        let told = |error: sandcell_sandbox::SandboxError| ImageError::Sandbox(error.to_string());
        let sandbox = self.backend.create(&spec).await.map_err(told)?;
        let folder = sandbox.attach(self.tool).await.map_err(told)?;
        debug_assert!(folder.starts_with(LAYERS));
        let limit = self.limits.bytes.saturating_add(MAX_ARCHIVE_OVERHEAD_BYTES).to_string();
        let words = ["images", "unpack", kind.as_str(), limit.as_str()].map(str::to_owned);
        let command = Command {
            argv: std::iter::once(format!("{folder}/{UNPACKER_NAME}"))
                .chain(words)
                .collect(),
            env: sandbox.base_env().clone(),
            cwd: "/tmp".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Piped,
            control: false,
            terminal: None,
        };
        let Process { events, handle, .. } = sandbox.spawn(command).await.map_err(told)?;
        let (pieces, waiting) = mpsc::channel::<Bytes>(QUEUE_CAPACITY);
        let (files, limits, kept) = (draft.path().join("files"), self.limits, Arc::clone(draft));
        let writer = tokio::task::spawn_blocking(move || {
            let written = write(&mut PieceReader::new(waiting), &files, limits);
            // The draft outlives the thread that writes into it.
            drop(kept);
            written
        });
        let moved = tokio::try_join!(feed(blob, handle.as_ref(), on_progress), take(events, pieces));
        let written = writer
            .await
            .map_err(|_| ImageError::Unpack("the task that wrote it ended unexpectedly".to_owned()))?;
        if let Err(error) = sandbox.close().await {
            tracing::debug!(%error, "an unpacker's sandbox did not close in order");
        }
        match (moved, written) {
            // The writer stopped reading, so its error is the reason.
            (Err(ImageError::Cancelled), Err(error)) | (Err(error), _) => Err(error),
            (Ok(((), (Exit::Code(0), _))), written) => written,
            // A limit or a full disk also ends the unpacker.
            (Ok(_), Err(error @ (ImageError::TooLarge { .. } | ImageError::DiskFull | ImageError::Store { .. }))) => {
                Err(error)
            }
            (Ok(((), (Exit::Signal(_), _))), _) => Err(ImageError::Unpack(format!(
                "the unpacker was killed, as it is at {} MiB of memory",
                UNPACKER_MEMORY.as_mib()
            ))),
            (Ok(((), (Exit::Code(_), output))), _) => Err(ImageError::Unpack(output)),
        }
    }
}

/// Sends the blob to the unpacker, and checks its digest and size.
async fn feed(
    mut blob: Blob,
    handle: &dyn ProcessHandle,
    on_progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), ImageError> {
    let (mut hash, mut count, mut reads) = (Sha256::new(), 0_u64, true);
    while let Some(piece) = blob.stream.next().await {
        let piece = piece?;
        count = count.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if blob.known.as_ref().is_some_and(|(_, size)| count > *size) {
            return Err(digest_error(&blob));
        }
        hash.update(&piece);
        on_progress(u64::try_from(piece.len()).unwrap_or(0));
        // A failed unpacker reports its own error. The rest of the blob is still hashed.
        reads = reads && handle.write(Channel::Stdin, piece).await.is_ok();
    }
    if let Some((digest, size)) = &blob.known
        && (*size != count || *digest != Digest::finish(hash))
    {
        return Err(digest_error(&blob));
    }
    // The end of input is sent only after the digest was checked.
    let _close_result = handle.close(Channel::Stdin).await;
    Ok(())
}

fn digest_error(blob: &Blob) -> ImageError {
    let what = blob
        .known
        .as_ref()
        .map_or_else(String::new, |(digest, _)| digest.to_string());
    ImageError::Digest {
        what: format!("a layer ({what})"),
    }
}

/// Receives records and error text until the unpacker exits.
async fn take(
    mut events: mpsc::Receiver<ProcessEvent>,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(Exit, String), ImageError> {
    let (mut exit, mut open, mut output) = (None, 2, Vec::new());
    while exit.is_none() || open > 0 {
        match events.recv().await {
            Some(ProcessEvent::Output {
                channel: Channel::Stdout,
                bytes,
            }) => {
                if pieces.send(bytes).await.is_err() {
                    return Err(ImageError::Cancelled);
                }
            }
            Some(ProcessEvent::Output { bytes, .. }) => {
                let room = MAX_SHOWN_OUTPUT_BYTES.saturating_sub(output.len());
                output.extend(bytes.iter().take(room));
            }
            Some(ProcessEvent::Closed { .. }) => open -= 1,
            Some(ProcessEvent::Exited { exit: how }) => exit = Some(how),
            None => break,
        }
    }
    let output = String::from_utf8_lossy(&output);
    let output: String = output
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let exit = exit.ok_or_else(|| ImageError::Sandbox("it ended early".to_owned()))?;
    Ok((exit, output))
}

/// Reads from a channel of byte pieces, for a thread.
struct PieceReader {
    waiting: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl PieceReader {
    fn new(waiting: mpsc::Receiver<Bytes>) -> Self {
        Self {
            waiting,
            piece: Bytes::new(),
        }
    }
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.waiting.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let taken = self.piece.split_to(self.piece.len().min(into.len()));
        into.get_mut(..taken.len()).unwrap_or_default().copy_from_slice(&taken);
        Ok(taken.len())
    }
}
