//! Copies the operator's copy-on-write folders into a sandbox when it is created.
//!
//! Containers cannot mount overlays: this takes rights that no sandbox has, and the files below would keep their
//! owners, so the sandbox could not change them. A copy belongs to the sandbox, counts against its disk limit, works
//! with a daemon that cannot see this machine's folders, and is removed with the container. It has the folder's content
//! at that moment.

use std::time::Duration;

use sandcell_agent::client::AgentClient;
use sandcell_sandbox::{Mount, MountMode, SandboxError};
use tokio::time::timeout;

use super::connect;
use crate::container::files::{self, CopyError};
use crate::container::tar;

/// The deadline of all copies of a sandbox together.
const COPY_TIMEOUT: Duration = Duration::from_secs(25);

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
    let content = tar::FolderContent::Copy {
        world_readable_only: world_readable_only(),
    };
    match files::copy(client, &mount.host, ".", content, target).await {
        Ok(()) => Ok(()),
        Err(CopyError::Full) => Err(connect::unavailable(
            format!("{host} is mounted \"cow\", and does not fit on the sandbox's disk"),
            "make the sandbox with a larger disk (limits.disk_mb, disk_mb), or mount the folder with mode \"ro\"",
        )),
        Err(CopyError::Unreadable(error)) => Err(connect::unavailable(
            format!("{host} is mounted \"cow\" and cannot be read: {error}"),
            "let the user who runs this server read it, or leave the mount out",
        )),
        Err(CopyError::Failed(said)) => Err(connect::unavailable(
            format!("{host} could not be copied to {target}: {}", connect::one_line(&said)),
            "`sandcell doctor` on the host checks the daemon; the mount can be left out",
        )),
        Err(CopyError::Sandbox(error)) => Err(error),
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
