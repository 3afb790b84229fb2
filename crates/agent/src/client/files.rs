//! Files, through the agent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use sandcell_sandbox::{
    Code, Entry, Failure, FileChange, FileChunk, FileError, FileWatch, Files, ImageFile, LayerEntries, LayerEntry,
    Listing, MountLayers, SandboxError, SandboxPath, SavedChanges, SavedFiles, SavedSize, WriteMode,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};

use super::connection::{AgentConnection, AskError};
use super::forward::{OpenedStream, ask_stream};
use super::streams::{Credit, Stream};
use super::{ANSWER_TIMEOUT, AgentEnd, timed_out};
use crate::protocol::{
    BODY_CHANNEL, EmptyReply, ErrorCode, ForgetFilesReply, ImageReply, MAX_DATA, MAX_IMAGE_TABLE, MAX_TRANSFER,
    MakeFolderReply, MountLayersEnd, ReadReply, ReceiveWindow, Request, RestoreFilesReply, SAVED_FILES_FEATURE,
    WATCH_FEATURE, WireError, WriteReply,
};

/// The maximum number of changes of a watched folder that wait to be read.
const WATCH_CAPACITY: usize = 32;
/// The maximum bytes of the description of one change.
const MAX_CHANGE_BYTES: u64 = 64 << 10;

/// The maximum length of the name in a change: a path and a name.
const MAX_CHANGE_NAME: usize = 4096 + 256;

/// The files of the sandbox at the other end of a link.
#[derive(Debug, Clone)]
pub(super) struct AgentFiles {
    agent: Arc<AgentConnection>,
}

impl AgentFiles {
    pub(super) fn new(agent: Arc<AgentConnection>) -> Self {
        Self { agent }
    }

    /// Sends a request that moves no content.
    async fn ask<T: DeserializeOwned + Send>(&self, path: &SandboxPath, request: &Request) -> Result<T, FileError> {
        let asked = self.agent.ask(request).await;
        asked.map_err(|error| file_error(path, error))
    }

    /// Sends a request whose answer has contents, at most `limit` bytes.
    async fn receive(&self, path: &SandboxPath, request: &Request, limit: usize) -> Result<FileChunk, FileError> {
        let (answer, answered) = oneshot::channel();
        let (contents, received) = oneshot::channel();
        let stream = Stream::Read {
            answer,
            bytes: Vec::new(),
            limit,
            window: ReceiveWindow::default(),
            contents,
        };
        let open = self.agent.open(request, stream).await?;
        let reply: ReadReply = open
            .answer(answered, request)
            .await
            .map_err(|error| file_error(path, error))?;
        // The reader hands the contents over before the answer.
        let bytes = received.await.map_err(|_| self.agent.error())?;
        Ok(FileChunk {
            bytes: bytes.into(),
            total: reply.total,
        })
    }

    /// Sends a request about saved states.
    async fn ask_saved<T: DeserializeOwned + Send>(&self, request: &Request) -> Result<T, SandboxError> {
        if !self.agent.has(SAVED_FILES_FEATURE) {
            return Err(SandboxError::Unsupported("saving the files of a sandbox".to_owned()));
        }
        let asked = self.agent.ask(request).await;
        asked.map_err(saved_error)
    }

    /// Copies the agent's image to a file of this process. An image with contents of more than `max_bytes` ends the
    /// connection: a hostile agent must not fill the memory of this process.
    async fn copy_image(&self, image: ImageReply, max_bytes: u64) -> Result<ImageFile, SandboxError> {
        if image.position > max_bytes || image.bytes > MAX_IMAGE_TABLE {
            let end = AgentEnd::ProtocolError("a larger image than was asked for".to_owned());
            self.agent.end(end.clone());
            return Err(end.error());
        }
        let failed = |source| SandboxError::Setup {
            step: "copy the files of a sandbox".to_owned(),
            source,
        };
        let file = memory_file().map_err(failed)?;
        let total = image.position.saturating_add(image.bytes);
        let (mut offset, mut writer) = (0, &file);
        while offset < total {
            let len = total.saturating_sub(offset).min(MAX_TRANSFER);
            let request = Request::ReadImage { offset, len };
            let root = SandboxPath::parse("/").map_err(|error| SandboxError::Protocol(error.to_string()))?;
            let chunk = self.receive(&root, &request, usize::try_from(len).unwrap_or(0)).await;
            let bytes = chunk.map_err(|error| SandboxError::Protocol(error.to_string()))?.bytes;
            if bytes.is_empty() {
                return Err(SandboxError::Protocol("an image of files is cut off".to_owned()));
            }
            writer.write_all(&bytes).map_err(failed)?;
            offset = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        }
        seal(&file).map_err(failed)?;
        Ok(ImageFile {
            file: Arc::new(file),
            position: image.position,
            bytes: image.bytes,
            shared: false,
        })
    }

    /// Sends contents as credit arrives, until everything is sent or the agent has answered.
    async fn send(&self, stream: u32, bytes: &Bytes, credit: &Credit) {
        for piece in bytes.chunks(MAX_DATA) {
            if !credit.spend(piece.len()).await {
                return;
            }
            self.agent.writer.send(|out| out.data(stream, BODY_CHANNEL, piece));
        }
        self.agent.writer.send(|out| out.close(stream, BODY_CHANNEL));
    }
}

/// Makes a file in memory.
#[cfg(target_os = "linux")]
fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(File::from(memfd_create("sandcell-files", flags)?))
}

/// Makes a file in memory unchangeable.
#[cfg(target_os = "linux")]
fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::WRITE | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
}

#[cfg(not(target_os = "linux"))]
fn seal(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[async_trait]
impl SavedFiles for AgentFiles {
    async fn save(&self, number: u32, folders: &[SandboxPath], max_bytes: u64) -> Result<SavedSize, SandboxError> {
        let folders = folders.iter().map(|folder| folder.as_str().to_owned()).collect();
        self.ask_saved(&Request::SaveFiles {
            number,
            folders,
            max_bytes,
        })
        .await
    }

    async fn restore(&self, number: u32) -> Result<u64, SandboxError> {
        let reply: RestoreFilesReply = self.ask_saved(&Request::RestoreFiles { number }).await?;
        Ok(reply.changed)
    }

    async fn forget(&self, number: u32) -> Result<BTreeMap<u32, u64>, SandboxError> {
        let reply: ForgetFilesReply = self.ask_saved(&Request::ForgetFiles { number }).await?;
        Ok(reply.held)
    }

    async fn changes(&self, number: u32, max: usize) -> Result<SavedChanges, SandboxError> {
        let changes: SavedChanges = self.ask_saved(&Request::FileChanges { number, max }).await?;
        if changes.changes.len() > max {
            let end = AgentEnd::ProtocolError("more changes than were asked for".to_owned());
            self.agent.end(end.clone());
            return Err(end.error());
        }
        Ok(changes)
    }

    async fn image(&self, number: u32, max_bytes: u64) -> Result<ImageFile, SandboxError> {
        let reply: ImageReply = self.ask_saved(&Request::ImageFiles { number, max_bytes }).await?;
        let copied = self.copy_image(reply, max_bytes).await;
        let dropped: Result<EmptyReply, _> = self.ask_saved(&Request::DropImage).await;
        dropped.and(copied)
    }

    async fn read(&self, number: u32, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
        let len = len.min(MAX_TRANSFER);
        let request = Request::ReadSaved {
            number,
            path: path.as_str().to_owned(),
            offset,
            len,
        };
        self.receive(path, &request, usize::try_from(len).unwrap_or(0)).await
    }
}

#[async_trait]
impl Files for AgentFiles {
    async fn list(&self, path: &SandboxPath, recursive: bool, max: usize) -> Result<Listing, FileError> {
        let request = Request::List {
            path: path.as_str().to_owned(),
            recursive,
            max,
        };
        let listing: Listing = self.ask(path, &request).await?;
        if listing.entries.len() > max {
            let end = AgentEnd::ProtocolError("more entries than were asked for".to_owned());
            self.agent.end(end.clone());
            return Err(end.error().into());
        }
        Ok(listing)
    }

    async fn read(&self, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
        let limit = usize::try_from(len.min(MAX_TRANSFER)).unwrap_or(0);
        if len > MAX_TRANSFER {
            return Err(too_large(path, len));
        }
        let request = Request::Read {
            path: path.as_str().to_owned(),
            offset,
            len,
        };
        self.receive(path, &request, limit).await
    }

    async fn write(&self, path: &SandboxPath, bytes: Bytes, mode: WriteMode) -> Result<u64, FileError> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > MAX_TRANSFER {
            return Err(too_large(path, size));
        }
        let request = Request::Write {
            path: path.as_str().to_owned(),
            mode,
        };
        let (answer, answered) = oneshot::channel();
        let credit = Arc::new(Credit::default());
        let stream = Stream::Write {
            answer,
            credit: Arc::clone(&credit),
        };
        let open = self.agent.open(&request, stream).await?;
        // The agent may answer with an error before everything is sent. Then no more credit arrives, and the answer has
        // the reason.
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, self.send(open.id, &bytes, &credit)).await;
        sent.map_err(|_| timed_out("write"))?;
        let reply: WriteReply = open
            .answer(answered, &request)
            .await
            .map_err(|error| file_error(path, error))?;
        Ok(reply.size)
    }

    async fn entry(&self, path: &SandboxPath) -> Result<Entry, FileError> {
        let request = Request::Entry {
            path: path.as_str().to_owned(),
        };
        self.ask(path, &request).await
    }

    async fn make_folder(&self, path: &SandboxPath) -> Result<bool, FileError> {
        let request = Request::MakeFolder {
            path: path.as_str().to_owned(),
        };
        let reply: MakeFolderReply = self.ask(path, &request).await?;
        Ok(reply.made)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), FileError> {
        let request = Request::Rename {
            path: from.as_str().to_owned(),
            to: to.as_str().to_owned(),
        };
        let _: EmptyReply = self.ask(from, &request).await?;
        Ok(())
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), FileError> {
        let request = Request::Remove {
            path: path.as_str().to_owned(),
        };
        let _: EmptyReply = self.ask(path, &request).await?;
        Ok(())
    }

    async fn watch(&self, path: &SandboxPath, recursive: bool) -> Result<FileWatch, FileError> {
        if !self.agent.has(WATCH_FEATURE) {
            return Err(SandboxError::Unsupported("watching folders".to_owned()).into());
        }
        let request = Request::Watch {
            path: path.as_str().to_owned(),
            recursive,
        };
        let stream = ask_stream(&self.agent, &request).await;
        let stream = stream.map_err(|error| file_error(path, error))?;
        let (changes, received) = mpsc::channel(WATCH_CAPACITY);
        tokio::spawn(async move {
            tokio::select! {
                () = changes.closed() => {}
                () = read_changes(stream, &changes) => {}
            }
        });
        Ok(FileWatch::new(received))
    }
}

#[async_trait]
impl MountLayers for AgentFiles {
    async fn entries(&self, max: usize) -> Result<LayerEntries, SandboxError> {
        let root = SandboxPath::home();
        let request = Request::MountLayers { max };
        let limit = usize::try_from(MAX_TRANSFER).unwrap_or(0);
        let answer = self.receive(&root, &request, limit).await.map_err(mounts_error)?;
        layer_entries(&answer.bytes, max).map_err(|reason| {
            let end = AgentEnd::ProtocolError(reason);
            self.agent.end(end.clone());
            end.error()
        })
    }
}

/// Reads the answer to `mount_layers`.
fn layer_entries(bytes: &[u8], max: usize) -> Result<LayerEntries, String> {
    let mut lines = bytes.split(|byte| *byte == b'\n').rev();
    let bad = |error: serde_json::Error| format!("a bad answer to mount_layers: {error}");
    let end: MountLayersEnd = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(bad)?;
    let entries = lines
        .map(serde_json::from_slice)
        .collect::<Result<Vec<LayerEntry>, _>>();
    let mut entries = entries.map_err(bad)?;
    if entries.len() > max {
        return Err("more entries than were asked for".to_owned());
    }
    let is_whole = |path: &str| {
        let names = path.strip_prefix('/').unwrap_or_default();
        !names.split('/').any(|name| matches!(name, "" | "." | ".."))
    };
    if !entries.iter().all(|entry| is_whole(&entry.path)) {
        return Err("a path of an entry that no entry has".to_owned());
    }
    // A folder precedes its entries, because `/` is compared as the smallest character.
    entries.sort_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
    Ok(LayerEntries {
        entries,
        omitted: end.omitted,
    })
}

fn mounts_error(error: FileError) -> SandboxError {
    match error {
        FileError::Sandbox(error) => error,
        error => SandboxError::Refused(Box::new(error.into())),
    }
}

/// Reads changes until the agent ends the watch or sends something else.
async fn read_changes(stream: OpenedStream, changes: &mpsc::Sender<FileChange>) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_CHANGE_BYTES).read_until(b'\n', &mut line).await;
        let Ok(1..) = read else { return };
        let Ok(change) = serde_json::from_slice::<FileChange>(&line) else {
            return;
        };
        if change.name.len() > MAX_CHANGE_NAME || changes.send(change).await.is_err() {
            return;
        }
    }
}

fn too_large(path: &SandboxPath, size: u64) -> FileError {
    FileError::TooLarge {
        path: path.to_string(),
        size,
        limit: MAX_TRANSFER,
    }
}

/// Returns the error of a request about saved states.
fn saved_error(error: AskError) -> SandboxError {
    let error: WireError = match error {
        AskError::Sandbox(error) => return error,
        AskError::Refused(error) => error,
    };
    let message: String = error.message.chars().take(300).collect();
    let (code, remedy) = match error.code {
        ErrorCode::Unsupported => return SandboxError::Unsupported(message),
        ErrorCode::TooLarge | ErrorCode::Limit => (
            Code::LimitReached,
            "remove files that are not needed, or move large ones to a mount, and call again",
        ),
        ErrorCode::DiskFull => (Code::DiskFull, "remove files that are not needed, and call again"),
        ErrorCode::Denied | ErrorCode::ReadOnly => (
            Code::DeniedByPolicy,
            "give the file back to the sandbox's own user (chmod), and call again",
        ),
        ErrorCode::NotFound => (Code::NotFound, "get_sandbox_status shows the checkpoints that exist"),
        _ => (Code::Internal, "call again; if it fails again, use another sandbox"),
    };
    let failure = Failure::new(
        code,
        format!("the files of the sandbox cannot be kept or restored: {message}"),
        remedy,
    );
    SandboxError::Refused(Box::new(failure))
}

/// Translates the agent's answer into the contract's error. The text is from inside, so it appears only where no
/// variant expresses the error.
fn file_error(path: &SandboxPath, error: AskError) -> FileError {
    let error: WireError = match error {
        AskError::Sandbox(error) => return FileError::Sandbox(error),
        AskError::Refused(error) => error,
    };
    let path = path.to_string();
    match error.code {
        ErrorCode::NotFound => FileError::NotFound { path },
        ErrorCode::IsDirectory => FileError::IsDirectory { path },
        ErrorCode::NotDirectory => FileError::NotDirectory { path },
        ErrorCode::NotRegular => {
            let kind = error.kind.unwrap_or(error.message).chars().take(40).collect();
            FileError::NotRegular { path, kind }
        }
        ErrorCode::Denied => FileError::Denied { path },
        ErrorCode::ReadOnly => FileError::ReadOnly { path },
        ErrorCode::DiskFull => FileError::DiskFull { path },
        ErrorCode::LinkLoop => FileError::LinkLoop { path },
        ErrorCode::Exists => FileError::Exists { path },
        ErrorCode::OtherFileSystem => FileError::OtherFileSystem { path },
        ErrorCode::Unsupported => FileError::Sandbox(SandboxError::Unsupported(error.message)),
        ErrorCode::TooLarge | ErrorCode::Spawn | ErrorCode::Limit | ErrorCode::Invalid | ErrorCode::Failed => {
            FileError::Other {
                path,
                reason: error.message.chars().take(300).collect(),
            }
        }
    }
}
