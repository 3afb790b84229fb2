//! Copies folders of this machine into containers, by the agent inside.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::{Channel, Command, Exit, Gathered, SandboxError, StdinMode, gather};
use tokio::sync::mpsc;

use crate::container::agent_program::AGENT_PATH;
use crate::container::tar;

/// Archive pieces in the queue, and captured bytes of the unpacker's output.
const PIECE_QUEUE_CAPACITY: usize = 8;
const MAX_OUTPUT_BYTES: usize = 1000;

/// The reason why a folder was not copied.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// It does not fit.
    Full,
    /// It cannot be read on this machine.
    Unreadable(io::Error),
    /// The unpacker failed, with this message.
    Failed(String),
    Sandbox(SandboxError),
}

/// Copies `folder` to the name `name` in the folder `target` inside.
pub(crate) async fn copy(
    client: &AgentClient,
    folder: &Path,
    name: &str,
    content: tar::FolderContent,
    target: &str,
) -> Result<(), CopyError> {
    let command = Command {
        argv: [AGENT_PATH, "unpack", target].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        cwd: "/".to_owned(),
        stands_alone: false,
        stdin: StdinMode::Piped,
        control: false,
        terminal: None,
    };
    let process = client.spawn(command).await.map_err(CopyError::Sandbox)?;
    let handle = process.handle.clone();
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECE_QUEUE_CAPACITY);
    let (from, name) = (folder.to_owned(), name.to_owned());
    let reading = tokio::task::spawn_blocking(move || tar::of_folder(&from, &name, content, &sender));
    let sending = async {
        while let Some(piece) = pieces.recv().await {
            if handle.write(Channel::Stdin, piece).await.is_err() {
                break;
            }
        }
        // An unpacker that ended early reports the reason itself.
        drop(pieces);
        let _ = handle.close(Channel::Stdin).await;
    };
    let (gathered, ()) = tokio::join!(gather(process, MAX_OUTPUT_BYTES), sending);
    let read = reading.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let Gathered { exit, stderr, .. } = gathered;
    match (exit, read) {
        (Some(Exit::Code(0)), Ok(())) => Ok(()),
        (Some(Exit::Code(DISK_FULL_STATUS)), _) => Err(CopyError::Full),
        (Some(Exit::Code(0)) | None, Err(error)) => Err(CopyError::Unreadable(error)),
        _ => Err(CopyError::Failed(String::from_utf8_lossy(&stderr).into_owned())),
    }
}
