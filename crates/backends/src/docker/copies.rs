//! Folders of the operator's that a sandbox sees and changes as its own: copied into it when it is made.
//!
//! A daemon's containers cannot lay one folder over another: that takes rights which no sandbox has, and what lies below
//! would keep its owners, so nothing in it could be changed. A copy is the sandbox's own, counts for its disk, needs no
//! daemon that sees this machine's folders, and goes with the container. It holds what the folder holds at that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::{Channel, Command, Exit, Gathered, Mount, MountMode, SandboxError, StdinMode, gather};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{agent, connect, tar};

/// How long all copies of a sandbox may take together.
const COPY: Duration = Duration::from_secs(25);
/// Pieces of an archive that wait to be sent, and bytes of what the unpacking says.
const PIECES: usize = 8;
const SAID: usize = 1000;

/// Those of the mounts that are copied.
pub(super) fn of(mounts: &[Mount]) -> impl Iterator<Item = &Mount> {
    mounts.iter().filter(|mount| mount.mode == MountMode::Cow)
}

/// Copies them into a container.
pub(super) async fn fill(client: &AgentClient, mounts: &[Mount]) -> Result<(), SandboxError> {
    let all = async {
        for mount in of(mounts) {
            copy(client, mount).await?;
        }
        Ok(())
    };
    timeout(COPY, all).await.unwrap_or_else(|_| {
        Err(connect::unavailable(
            format!(
                "the folders that are mounted \"cow\" were not copied within {} s",
                COPY.as_secs()
            ),
            "mount smaller folders, or large ones with mode \"ro\"",
        ))
    })
}

async fn copy(client: &AgentClient, mount: &Mount) -> Result<(), SandboxError> {
    let (host, target) = (mount.host.display(), &mount.sandbox);
    let process = client
        .spawn(Command {
            argv: vec![agent::PATH.to_owned(), "unpack".to_owned(), target.clone()],
            env: BTreeMap::new(),
            cwd: "/".to_owned(),
            stdin: StdinMode::Piped,
            control: false,
        })
        .await?;
    let handle = process.handle.clone();
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let from = mount.host.clone();
    let which = tar::Which::Copy {
        everybodys: everybodys(),
    };
    let reading = tokio::task::spawn_blocking(move || tar::of_folder(&from, ".", which, &sender));
    let sending = async {
        while let Some(piece) = pieces.recv().await {
            if handle.write(Channel::Stdin, piece).await.is_err() {
                break;
            }
        }
        // One that ended early says why itself; nobody takes the rest.
        drop(pieces);
        let _ = handle.close(Channel::Stdin).await;
    };
    let (gathered, ()) = tokio::join!(gather(process, SAID), sending);
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
            "`sandcell doctor` on the host looks at the daemon; the mount can be left out",
        )),
    }
}

/// Whether only what everybody may read is copied: root may read everything, and did not mean to hand that out.
#[cfg(unix)]
fn everybodys() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
const fn everybodys() -> bool {
    false
}
