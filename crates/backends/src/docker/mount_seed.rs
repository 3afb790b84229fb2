//! Copies the operator's copy-on-write folders into a sandbox when it is created.
//!
//! Containers cannot mount overlays: this takes rights that no sandbox has, and the files below would keep their
//! owners, so the sandbox could not change them. A copy belongs to the sandbox, counts against its disk limit, works
//! with a daemon that cannot see this machine's folders, and is removed with the container. It has the folder's content
//! at that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::{Channel, Command, Exit, Gathered, Mount, MountMode, SandboxError, StdinMode, gather};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{agent, connect, tar};

/// The deadline of all copies of a sandbox together.
const COPY_TIMEOUT: Duration = Duration::from_secs(25);
/// Archive pieces in the queue, and captured bytes of the unpacker's output.
const PIECE_QUEUE_CAPACITY: usize = 8;
const MAX_OUTPUT_BYTES: usize = 1000;

/// Returns the mounts that are copied.
pub(super) fn copied_mounts(mounts: &[Mount]) -> impl Iterator<Item = &Mount> {
    mounts.iter().filter(|mount| mount.mode == MountMode::Cow)
}

/// Copies the folders into a container.
pub(super) async fn seed(client: &AgentClient, mounts: &[Mount]) -> Result<(), SandboxError> {
    let all = async {
        for mount in copied_mounts(mounts) {
            copy(client, mount).await?;
        }
        Ok(())
    };
    timeout(COPY_TIMEOUT, all).await.unwrap_or_else(|_| {
        Err(connect::unavailable(
            format!(
                "the folders that are mounted \"cow\" were not copied within {} s",
                COPY_TIMEOUT.as_secs()
            ),
            "mount smaller folders, or large ones with mode \"ro\"",
        ))
    })
}

async fn copy(client: &AgentClient, mount: &Mount) -> Result<(), SandboxError> {
    let (host, target) = (mount.host.display(), &mount.sandbox);
    let process = client
        .spawn(Command {
            argv: vec![agent::AGENT_PATH.to_owned(), "unpack".to_owned(), target.clone()],
            env: BTreeMap::new(),
            cwd: "/".to_owned(),
            stands_alone: false,
            stdin: StdinMode::Piped,
            control: false,
            terminal: None,
        })
        .await?;
    let handle = process.handle.clone();
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECE_QUEUE_CAPACITY);
    let from = mount.host.clone();
    let content = tar::FolderContent::Copy {
        world_readable_only: world_readable_only(),
    };
    let reading = tokio::task::spawn_blocking(move || tar::of_folder(&from, ".", content, &sender));
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
    let read = reading.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let Gathered { exit, stderr, .. } = gathered;
    match (exit, read) {
        (Some(Exit::Code(0)), Ok(())) => Ok(()),
        (Some(Exit::Code(DISK_FULL_STATUS)), _) => Err(connect::unavailable(
            format!("{host} is mounted \"cow\", and does not fit on the sandbox's disk"),
            "make the sandbox with a larger disk (limits.disk_mb, disk_mb), or mount the folder with mode \"ro\"",
        )),
        (Some(Exit::Code(0)) | None, Err(error)) => Err(connect::unavailable(
            format!("{host} is mounted \"cow\" and cannot be read: {error}"),
            "let the user who runs this server read it, or leave the mount out",
        )),
        _ => Err(connect::unavailable(
            format!(
                "{host} could not be copied to {target}: {}",
                connect::one_line(&String::from_utf8_lossy(&stderr))
            ),
            "`sandcell doctor` on the host checks the daemon; the mount can be left out",
        )),
    }
}

/// Returns true if only files that everybody may read are copied. Root can read everything, but that does not mean that
/// it wants to expose everything.
#[cfg(unix)]
fn world_readable_only() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
const fn world_readable_only() -> bool {
    false
}
