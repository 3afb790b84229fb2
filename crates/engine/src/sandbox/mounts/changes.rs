//! Lists the changes of a sandbox in its copy-on-write mounts.

use std::sync::Arc;

use sandcell_sandbox::{Code, Failure, MAX_LAYER_ENTRIES, MountEntry, MountEntryKind, Sandbox, SandboxPath};

use super::apply::Target;
use super::compare::compare;
use super::{MountChange, MountFolder, has_copy_on_write, no_mounts, unsupported};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::sandbox::text_diff::{MAX_DIFF_FILE, MAX_DIFFS, unified};
use crate::{MountChangesView, MountFile};

/// The treatment of a sandbox without copy-on-write mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// An error: the mounts are the whole answer.
    Required,
    /// The answer leaves the mounts out.
    IfAny,
}

impl Sandboxes {
    /// Returns the files of copy-on-write mounts that differ from the host's, at most `max`, with the changed lines of text
    /// files. None: there are no such mounts.
    pub(crate) async fn mount_changes(
        &self,
        record: &Record,
        sandbox: &dyn Sandbox,
        max: usize,
        need: Need,
    ) -> Result<Option<MountChangesView>, Failure> {
        if !has_copy_on_write(&self.config().mounts) {
            return match need {
                Need::Required => Err(no_mounts()),
                Need::IfAny => Ok(None),
            };
        }
        if sandbox.mount_layers().is_none() {
            return match need {
                Need::Required => Err(unsupported()),
                Need::IfAny => Ok(None),
            };
        }
        let mut found = self.list_changes(record, sandbox).await?;
        let more = found.changes.len().saturating_sub(max);
        found.changes.truncate(max);
        let omitted = found.omitted.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        let mut files = Vec::with_capacity(found.changes.len());
        let mut left = MAX_DIFFS;
        for change in found.changes {
            let diff = match left {
                0 => None,
                _ => self.diff(sandbox, &change).await,
            };
            let diff = diff.filter(|diff| diff.len() <= left);
            left -= diff.as_ref().map_or(0, String::len);
            files.push(MountFile {
                bytes: change.bytes(),
                bytes_before: change.bytes_before(),
                path: change.path,
                kind: change.kind,
                now: change.now,
                before: change.before,
                diff,
            });
        }
        Ok(Some(MountChangesView { files, omitted }))
    }

    /// Lists the differences between the sandbox's layers and the host's folders.
    pub(super) async fn list_changes(&self, record: &Record, sandbox: &dyn Sandbox) -> Result<Listed, Failure> {
        let layers = sandbox.mount_layers().ok_or_else(unsupported)?;
        let layer = layers.entries(MAX_LAYER_ENTRIES).await?;
        // An incomplete list does not tell which entries are missing.
        let committed = (layer.omitted == 0).then(|| record.committed.made());
        let (entries, committed) = (Arc::new(layer.entries), Arc::new(committed));
        let mut listed = Listed {
            changes: Vec::new(),
            omitted: layer.omitted,
        };
        for folder in &self.mount_folders.0 {
            let (own, entries, committed) = (Arc::clone(folder), Arc::clone(&entries), Arc::clone(&committed));
            let compared = tokio::task::spawn_blocking(move || match &own.folder {
                Ok(folder) if !folder.is_at(&own.host) => Err(replaced(&own)),
                Ok(folder) => Ok(compare(folder, &own.inside, &entries, committed.as_deref())),
                Err(reason) => Err(not_opened(&own, reason)),
            });
            let compared = compared.await.unwrap_or_else(|_| Err(in_server()))?;
            listed.omitted = listed.omitted.saturating_add(compared.omitted);
            for (change, if_content_differs) in compared.changes {
                if !if_content_differs || !self.has_same_content(sandbox, &change).await {
                    listed.changes.push(change);
                }
            }
        }
        // A folder precedes its entries.
        listed
            .changes
            .sort_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
        Ok(listed)
    }

    /// Returns true if a file is the host's by its content. False: they differ, or code may not read one of them.
    async fn has_same_content(&self, sandbox: &dyn Sandbox, change: &MountChange) -> bool {
        let Some((folder, path)) = self.mount_folders.find(&change.path) else {
            return false;
        };
        let target = Target {
            sandbox,
            folder,
            path,
            change,
        };
        target.has_same_content().await.unwrap_or(false)
    }

    /// Compares the lines of a text file. None: it is no text, too large, or code may not read one side.
    async fn diff(&self, sandbox: &dyn Sandbox, change: &MountChange) -> Option<String> {
        let old = self.host_text(sandbox, change).await?;
        let new = content(sandbox, &change.path, change.now.as_ref()).await?;
        unified(&change.path, &old, &new)
    }

    /// Reads the host's file, if code may. Empty: there is none.
    async fn host_text(&self, sandbox: &dyn Sandbox, change: &MountChange) -> Option<Vec<u8>> {
        let Some(before) = change
            .before
            .as_ref()
            .filter(|before| before.kind == MountEntryKind::File)
        else {
            return Some(Vec::new());
        };
        if before.bytes > MAX_DIFF_FILE {
            return None;
        }
        let (folder, path) = self.mount_folders.find(&change.path)?;
        let target = Target {
            sandbox,
            folder,
            path,
            change,
        };
        target.host_text(MAX_DIFF_FILE).await.ok()
    }
}

/// The differences between the layers of a sandbox and the host's folders.
#[derive(Debug)]
pub(super) struct Listed {
    /// Sorted by path; a folder precedes its entries.
    pub(super) changes: Vec<MountChange>,
    /// The number of further ones, and of folders that could not be read.
    pub(super) omitted: u64,
}

fn not_opened(folder: &MountFolder, reason: &str) -> Failure {
    Failure::new(
        Code::Internal,
        format!("the host's folder of {} could not be opened: {reason}", folder.inside),
        "let the operator check the folder of the mount, and start the server again",
    )
}

fn replaced(folder: &MountFolder) -> Failure {
    Failure::new(
        Code::Internal,
        format!(
            "the host's folder of {} was replaced by another one, or removed",
            folder.inside
        ),
        "let the operator start the server again; then new sandboxes see the new folder",
    )
}

fn in_server() -> Failure {
    Failure::new(
        Code::Internal,
        "the comparison failed in the server",
        "try again; the log of the server has the reason",
    )
}

/// Reads the sandbox's file. Empty: there is none.
async fn content(sandbox: &dyn Sandbox, path: &str, entry: Option<&MountEntry>) -> Option<bytes::Bytes> {
    let Some(entry) = entry.filter(|entry| entry.kind == MountEntryKind::File) else {
        return Some(bytes::Bytes::new());
    };
    if entry.bytes > MAX_DIFF_FILE {
        return None;
    }
    let path = SandboxPath::parse(path).ok()?;
    let chunk = sandbox.files().read(&path, 0, MAX_DIFF_FILE).await.ok()?;
    Some(chunk.bytes)
}
