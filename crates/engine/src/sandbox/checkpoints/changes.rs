//! Compares the files of a sandbox with those of a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Failure, Sandbox, SandboxPath, SavedChange, SavedChanges, SavedFiles};
use similar::TextDiff;

use super::{Checkpoint, unsupported};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::{ChangedFile, ChangesView, Principal, RewindTo};

/// The maximum size of a file whose lines are compared, in bytes.
const MAX_DIFF_FILE: u64 = 256 << 10;
/// The maximum length of all comparisons of one answer, in bytes.
const MAX_DIFFS: usize = 256 << 10;
/// The time after which lines are compared coarsely.
const DIFF_TIMEOUT: Duration = Duration::from_millis(100);
/// The number of unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

impl Sandboxes {
    /// Returns the files that differ from those of a checkpoint, with the changed lines of text files.
    pub(crate) async fn changes(
        &self,
        principal: &Principal,
        id: Option<&str>,
        since: &RewindTo,
        max: usize,
    ) -> Result<ChangesView, Failure> {
        let record = self.existing(principal, id)?;
        let _guard = record.start_use()?;
        let sandbox = record.ready().await?;
        let checkpoint = record.checkpoints.find(since)?;
        let saved = sandbox.saved_files().ok_or_else(unsupported)?;
        let found = saved.changes(checkpoint.number, max).await?;
        let mut files = Vec::with_capacity(found.changes.len());
        let mut left = MAX_DIFFS;
        for change in found.changes {
            let diff = match left {
                0 => None,
                _ => diff(sandbox.as_ref(), saved, &checkpoint, &change).await,
            };
            let diff = diff.filter(|diff| diff.len() <= left);
            left -= diff.as_ref().map_or(0, String::len);
            files.push(ChangedFile { change, diff });
        }
        Ok(ChangesView {
            sandbox_id: record.id.clone(),
            checkpoint: checkpoint.view(),
            files,
            omitted: found.omitted,
        })
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

fn unified(path: &str, old: &[u8], new: &[u8]) -> Option<String> {
    let text = |bytes| std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let (old, new) = (text(old)?, text(new)?);
    let lines = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let mut diff = lines.unified_diff();
    let (from, to) = (format!("a{path}"), format!("b{path}"));
    let text = diff.context_radius(CONTEXT_LINES).header(&from, &to).to_string();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compared_by_lines_and_other_content_is_not() {
        let diff = unified("/home/user/a", b"one\ntwo\nthree\n", b"one\n2\nthree").unwrap();
        assert_eq!(
            diff,
            "--- a/home/user/a\n+++ b/home/user/a\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n"
        );
        assert_eq!(unified("/a", b"\xff", b"x"), None);
        assert_eq!(unified("/a", b"a\0", b"x"), None);
        assert_eq!(unified("/a", b"same", b"same"), None);
    }
}
