//! Files of a caller's sandbox.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sandcell_sandbox::{
    Code, Command, Entry, Exit, Failure, FileChange, FileChunk, FileError, FileWatch, Files, Listing, Sandbox,
    SandboxError, SandboxPath, StdinMode, WriteMode, gather,
};
use tokio::time::timeout;

use crate::admission::policy::{bytes_of, file_size};
use crate::sandbox::registry::Target;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::{Record, Terminated, UseGuard};
use crate::{FileAnswer, Principal};

/// The maximum time of one file call.
pub(crate) const FILE_CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum bytes of the messages of a program that moves a file.
const MAX_MOVE_OUTPUT: usize = 4096;
/// The maximum number of entries of one listing.
const MAX_LISTING_ENTRIES: usize = 10_000;

impl Sandboxes {
    /// Records that a call has written files. Automatic checkpoints from before the call lack them.
    fn files_written(self: &Arc<Self>, record: &Arc<Record>) {
        record.checkpoints.files_written();
        self.schedule_checkpoint(record);
    }

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
        let _alone = self.no_alternatives(principal, sandbox).await;
        file_size(&self.config(), path, bytes.len())?;
        let target = self.target(principal, sandbox).await?;
        let (target, live) = ready(target).await?;
        let size = in_time(live.files().write(path, bytes, mode)).await?;
        self.files_written(&target.record);
        Ok(answer(&target, size))
    }

    pub(crate) async fn entry(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<Entry>, Failure> {
        let (target, live) = ready(self.target(principal, sandbox).await?).await?;
        let entry = in_time(live.files().entry(path)).await?;
        Ok(answer(&target, entry))
    }

    /// Describes a file without resuming a paused sandbox. None: it is paused.
    pub(crate) async fn entry_unless_paused(
        &self,
        principal: &Principal,
        sandbox: &str,
        path: &SandboxPath,
    ) -> Result<Option<Entry>, Failure> {
        let record = self.registry.find(principal, sandbox)?.record;
        let Some(_running) = record.running() else {
            return Ok(None);
        };
        let live = record.made().await?;
        in_time(live.files().entry(path)).await.map(Some)
    }

    pub(crate) async fn make_folder(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<bool>, Failure> {
        let _alone = self.no_alternatives(principal, sandbox).await;
        let (target, live) = ready(self.target(principal, sandbox).await?).await?;
        let made = in_time(live.files().make_folder(path)).await?;
        self.files_written(&target.record);
        Ok(answer(&target, made))
    }

    pub(crate) async fn move_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<FileAnswer<()>, Failure> {
        let _alone = self.no_alternatives(principal, sandbox).await;
        let (target, live) = ready(self.target(principal, sandbox).await?).await?;
        in_time(rename_or_move(&live, from, to)).await?;
        self.files_written(&target.record);
        Ok(answer(&target, ()))
    }

    pub(crate) async fn remove_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<()>, Failure> {
        let _alone = self.no_alternatives(principal, sandbox).await;
        let (target, live) = ready(self.target(principal, sandbox).await?).await?;
        in_time(live.files().remove(path)).await?;
        self.files_written(&target.record);
        Ok(answer(&target, ()))
    }

    pub(crate) async fn watch_folder(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
    ) -> Result<FileAnswer<FolderWatch>, Failure> {
        let (target, live) = ready(self.target(principal, sandbox).await?).await?;
        let watch = in_time(live.files().watch(path, recursive)).await?;
        let without_value = answer(&target, ());
        Ok(FileAnswer {
            sandbox_id: without_value.sandbox_id,
            new_sandbox: without_value.new_sandbox,
            notices: without_value.notices,
            value: FolderWatch {
                watch,
                _guard: target.guard,
            },
        })
    }
}

/// A watched folder of a sandbox. Dropping it ends the watch.
#[derive(Debug)]
pub struct FolderWatch {
    watch: FileWatch,
    _guard: UseGuard,
}

impl FolderWatch {
    /// Returns the next change. None: the folder is gone, or the sandbox has ended.
    pub async fn next(&mut self) -> Option<FileChange> {
        self.watch.next().await
    }
}

/// Renames a file. Where its new path is on another file system, the sandbox's `mv` copies it.
async fn rename_or_move(live: &Arc<dyn Sandbox>, from: &SandboxPath, to: &SandboxPath) -> Result<(), FileError> {
    let other = match live.files().rename(from, to).await {
        Err(other @ FileError::OtherFileSystem { .. }) => other,
        result => return result,
    };
    let argv = ["mv", "-T", "--", from.as_str(), to.as_str()];
    let command = Command {
        argv: argv.map(str::to_owned).to_vec(),
        env: live.base_env().clone(),
        cwd: "/".to_owned(),
        stands_alone: true,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    };
    let process = match live.spawn(command).await {
        Ok(process) => process,
        // An image without this program.
        Err(SandboxError::Spawn { .. }) => return Err(other),
        Err(error) => return Err(error.into()),
    };
    let ended = gather(process, MAX_MOVE_OUTPUT).await;
    if ended.exit == Some(Exit::Code(0)) {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    if output.contains("No space left") {
        return Err(FileError::DiskFull { path: to.to_string() });
    }
    Err(FileError::Other {
        path: from.to_string(),
        reason: format!("it could not be moved to {to}: {}", output.trim()),
    })
}

pub(crate) async fn ready(target: Target) -> Result<(Target, Arc<dyn Sandbox>), Failure> {
    let live = target.record.ready().await?;
    Ok((target, live))
}

async fn in_time<T>(call: impl Future<Output = Result<T, FileError>>) -> Result<T, Failure> {
    match timeout(FILE_CALL_TIMEOUT, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(too_slow("the back end did not answer the file call")),
    }
}

pub(crate) fn too_slow(what: &str) -> Failure {
    Failure::new(
        Code::Timeout,
        format!("{what} within {} s", FILE_CALL_TIMEOUT.as_secs()),
        "try again; if it fails again, close the sandbox and use a new one",
    )
}

fn answer<T>(target: &Target, value: T) -> FileAnswer<T> {
    let replaces = target.record.params.replaces.as_ref().filter(|_| target.new);
    let left = target.record.expiry().and_then(|expiry| expiry.ends_soon());
    let ending = left.map(|left| {
        format!(
            "this sandbox ends in {} s with its variables and files, even if it is in use",
            left.as_secs()
        )
    });
    FileAnswer {
        sandbox_id: target.record.id.clone(),
        new_sandbox: target.new,
        notices: replaces
            .map(Terminated::replacement_notice)
            .into_iter()
            .chain(ending)
            .collect(),
        value,
    }
}

/// Reads up to `len` bytes, with several reads if the back end returns small pieces.
pub(crate) async fn read(files: &dyn Files, path: &SandboxPath, offset: u64, len: u64) -> Result<FileChunk, FileError> {
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
