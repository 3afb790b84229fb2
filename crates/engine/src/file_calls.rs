//! The engine's interface for the files of a sandbox.

use std::sync::Arc;

use bytes::Bytes;
use sandcell_sandbox::{Entry, Failure, FileChunk, Listing, SandboxPath, WriteMode};

use crate::{Engine, FileAnswer, FolderWatch, Principal};

impl Engine {
    /// Lists a folder of a sandbox.
    ///
    /// # Errors
    /// When there is no such sandbox or folder.
    pub async fn list_files(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure> {
        self.executions
            .sandboxes
            .list_files(principal, sandbox, path, recursive, max)
            .await
    }

    /// Reads a piece of a file, at most the configured number of bytes.
    ///
    /// # Errors
    /// When there is no such sandbox, or the file cannot be read.
    pub async fn read_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure> {
        self.executions
            .sandboxes
            .read_file(principal, sandbox, path, offset, len)
            .await
    }

    /// Writes a file and returns its new size.
    ///
    /// # Errors
    /// When there is no such sandbox, or the file cannot be written.
    pub async fn write_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure> {
        self.executions
            .sandboxes
            .write_file(principal, sandbox, path, bytes, mode)
            .await
    }

    /// Describes a file or folder of a sandbox. A link is described itself, not its target.
    ///
    /// # Errors
    /// When there is no such sandbox or file.
    pub async fn entry(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<Entry>, Failure> {
        self.executions.sandboxes.entry(principal, sandbox, path).await
    }

    /// Describes a file or folder of a sandbox, and does not resume the sandbox. None: it is paused.
    ///
    /// # Errors
    /// When there is no such sandbox or file.
    pub async fn entry_unless_paused(
        &self,
        principal: &Principal,
        sandbox: &str,
        path: &SandboxPath,
    ) -> Result<Option<Entry>, Failure> {
        let sandboxes = &self.executions.sandboxes;
        sandboxes.entry_unless_paused(principal, sandbox, path).await
    }

    /// Makes a folder of a sandbox and its missing parents. The answer is false if the folder was there already.
    ///
    /// # Errors
    /// When there is no such sandbox, or the folder cannot be made.
    pub async fn make_folder(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<bool>, Failure> {
        self.executions.sandboxes.make_folder(principal, sandbox, path).await
    }

    /// Moves a file or folder of a sandbox to another path, where it replaces a file.
    ///
    /// # Errors
    /// When there is no such sandbox or file, or it cannot be moved there.
    pub async fn move_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        from: &SandboxPath,
        to: &SandboxPath,
    ) -> Result<FileAnswer<()>, Failure> {
        self.executions.sandboxes.move_file(principal, sandbox, from, to).await
    }

    /// Removes a file of a sandbox, or a folder with everything in it.
    ///
    /// # Errors
    /// When there is no such sandbox or file, or it cannot be removed.
    pub async fn remove_file(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
    ) -> Result<FileAnswer<()>, Failure> {
        self.executions.sandboxes.remove_file(principal, sandbox, path).await
    }

    /// Watches a folder of a sandbox; `recursive` with the folders in it. The sandbox is in use until the watch is
    /// dropped.
    ///
    /// # Errors
    /// When there is no such sandbox or folder, or it cannot be watched.
    pub async fn watch_folder(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
    ) -> Result<FileAnswer<FolderWatch>, Failure> {
        self.executions
            .sandboxes
            .watch_folder(principal, sandbox, path, recursive)
            .await
    }
}
