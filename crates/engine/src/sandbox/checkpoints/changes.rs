//! Compares the files of a sandbox with those of a checkpoint.

use std::sync::Arc;

use sandcell_sandbox::{Failure, Sandbox, SandboxPath, SavedChange, SavedChanges, SavedFiles};

use super::{Checkpoint, unsupported};
use crate::sandbox::mounts::Need;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::sandbox::text_diff::{MAX_DIFF_FILE, MAX_DIFFS, unified};
use crate::{ChangedFile, ChangesView, Principal, RewindTo};

impl Sandboxes {
    /// Returns the private files that differ from those of a checkpoint, and the files of copy-on-write mounts that differ
    /// from the host's, with the changed lines of text files. At most `max` of each. None: only those of mounts.
    pub(crate) async fn changes(
        &self,
        principal: &Principal,
        id: Option<&str>,
        since: Option<&RewindTo>,
        max: usize,
    ) -> Result<ChangesView, Failure> {
        let record = self.existing(principal, id)?;
        let _guard = record.start_use()?;
        let sandbox = record.ready().await?;
        let mut view = ChangesView {
            sandbox_id: record.id.clone(),
            checkpoint: None,
            files: Vec::new(),
            omitted: 0,
            mounts: None,
        };
        if let Some(since) = since {
            let checkpoint = record.checkpoints.find(since)?;
            let saved = sandbox.saved_files().ok_or_else(unsupported)?;
            let found = saved.changes(checkpoint.number, max).await?;
            let mut left = MAX_DIFFS;
            for change in found.changes {
                let diff = match left {
                    0 => None,
                    _ => diff(sandbox.as_ref(), saved, &checkpoint, &change).await,
                };
                let diff = diff.filter(|diff| diff.len() <= left);
                left -= diff.as_ref().map_or(0, String::len);
                view.files.push(ChangedFile { change, diff });
            }
            view.checkpoint = Some(checkpoint.view());
            view.omitted = found.omitted;
        }
        let need = match since {
            Some(_) => Need::IfAny,
            None => Need::Required,
        };
        view.mounts = self.mount_changes(&record, sandbox.as_ref(), max, need).await?;
        Ok(view)
    }

    /// The same without the lines, for a sandbox of the caller.
    pub(crate) async fn changes_since(
        &self,
        record: &Arc<Record>,
        name: &str,
        max: usize,
    ) -> Result<SavedChanges, Failure> {
        let sandbox = record.ready().await?;
        let checkpoint = record.checkpoints.find(&RewindTo::Named(name.to_owned()))?;
        let saved = sandbox.saved_files().ok_or_else(unsupported)?;
        Ok(saved.changes(checkpoint.number, max).await?)
    }
}

/// Compares the lines of a text file. None: it is no text, or too large.
async fn diff(
    sandbox: &dyn Sandbox,
    saved: &dyn SavedFiles,
    checkpoint: &Checkpoint,
    change: &SavedChange,
) -> Option<String> {
    if change.bytes > MAX_DIFF_FILE || change.bytes_before > MAX_DIFF_FILE {
        return None;
    }
    let path = SandboxPath::parse(&change.path).ok()?;
    let old = saved.read(checkpoint.number, &path, 0, MAX_DIFF_FILE).await;
    let new = sandbox.files().read(&path, 0, MAX_DIFF_FILE).await;
    // A folder, a link, or a file that is missing on one side.
    let (old, new) = match (old, new) {
        (Err(_), Err(_)) => return None,
        (old, new) => (
            old.map(|chunk| chunk.bytes).unwrap_or_default(),
            new.map(|chunk| chunk.bytes).unwrap_or_default(),
        ),
    };
    unified(&change.path, &old, &new)
}
