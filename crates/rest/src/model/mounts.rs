//! The JSON types of changes in copy-on-write mounts, and of commits.

use sandcell_engine::{CommitRequest, CommitView, Fingerprint, MountChangesView, MountFile, OnConflict};
use sandcell_sandbox::MountEntry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The files of copy-on-write mounts that differ from the host's.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MountChanges {
    /// Sorted by path; a folder precedes its entries.
    files: Vec<MountedFile>,
    /// The number of further files, and of folders that could not be read.
    omitted: u64,
}

/// A file or folder of a copy-on-write mount that differs from the host's.
#[derive(Debug, Serialize, JsonSchema)]
struct MountedFile {
    path: String,
    /// `created`, `modified` or `removed`.
    kind: &'static str,
    /// The size in the sandbox; 0 for everything but files.
    bytes: u64,
    bytes_before: u64,
    /// The entry in the sandbox; null if it was removed.
    now: Option<MountedEntry>,
    /// The entry on the host; null if it is new.
    before: Option<MountedEntry>,
    /// The changed lines of a text file as a unified diff; null for other content and for files of more than 256 KiB.
    diff: Option<String>,
}

/// The type and mode of an entry.
#[derive(Debug, Serialize, JsonSchema)]
struct MountedEntry {
    /// `file`, `folder`, `link`, `FIFO`, `socket` or `device`.
    r#type: &'static str,
    /// The permission bits as a number.
    mode: u32,
    /// The target of a link.
    target: Option<String>,
}

impl From<&MountChangesView> for MountChanges {
    fn from(view: &MountChangesView) -> Self {
        Self {
            files: view.files.iter().map(MountedFile::from).collect(),
            omitted: view.omitted,
        }
    }
}

impl From<&MountFile> for MountedFile {
    fn from(file: &MountFile) -> Self {
        let entry = |entry: &MountEntry| MountedEntry {
            r#type: entry.kind.as_str(),
            mode: entry.mode,
            target: entry.target.clone(),
        };
        Self {
            path: file.path.clone(),
            kind: file.kind.as_str(),
            bytes: file.bytes,
            bytes_before: file.bytes_before,
            now: file.now.as_ref().map(entry),
            before: file.before.as_ref().map(entry),
            diff: file.diff.clone(),
        }
    }
}

/// A request to apply changes to the host's folders.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Commit {
    /// Files and folders, as absolute paths inside the sandbox. All changes if left out.
    #[serde(default)]
    paths: Vec<String>,
    /// True to overwrite files that have changed on the host since the sandbox was made.
    #[serde(default)]
    force: bool,
    /// True to change nothing and show what would happen. Anything else needs the header `Sandcell-Permit`, which
    /// `sandcell commit` sends.
    #[serde(default)]
    pub(crate) dry_run: bool,
    /// The fingerprint of a dry run with the same paths. Nothing is applied if the changes are others by now.
    #[serde(default)]
    expect: Option<String>,
}

impl Commit {
    pub(crate) fn expected(&self) -> Option<Fingerprint> {
        self.expect.clone().map(Fingerprint)
    }

    pub(crate) fn request(&self) -> CommitRequest {
        CommitRequest {
            paths: self.paths.clone(),
            on_conflict: match self.force {
                true => OnConflict::Overwrite,
                false => OnConflict::Refuse,
            },
        }
    }
}

/// The result of a commit.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Committed {
    sandbox_id: String,
    dry_run: bool,
    /// The fingerprint of the changes, for `expect`; null if they were applied.
    fingerprint: Option<String>,
    /// The applied changes; in a dry run those that would be applied.
    applied: Vec<AppliedChange>,
    refused: Vec<RefusedChange>,
    /// The number of changes that the host's folders had already.
    unchanged: u64,
    /// The number of changes that could not be listed, and so were not applied.
    omitted: u64,
}

/// A change that was applied.
#[derive(Debug, Serialize, JsonSchema)]
struct AppliedChange {
    path: String,
    /// `created`, `modified` or `removed`.
    kind: &'static str,
    /// The size of the written file.
    bytes: u64,
}

/// A change that was not applied.
#[derive(Debug, Serialize, JsonSchema)]
struct RefusedChange {
    path: String,
    /// `created`, `modified` or `removed`; null if there is no change at a path of the request.
    kind: Option<&'static str>,
    /// `conflict`, `not_found`, `not_allowed`, `type`, `type_change`, `link`, `set_id`, `mode`, `name`, `changing`, `host`, `disk_full`,
    /// `timeout` or `incomplete`.
    code: &'static str,
    /// The reason, for people.
    reason: String,
}

impl From<CommitView> for Committed {
    fn from(view: CommitView) -> Self {
        let applied = view.applied.into_iter().map(|change| AppliedChange {
            path: change.path,
            kind: change.kind.as_str(),
            bytes: change.bytes,
        });
        let refused = view.refused.into_iter().map(|change| RefusedChange {
            path: change.path,
            kind: change.kind.map(sandcell_sandbox::SavedChangeKind::as_str),
            code: change.code.as_str(),
            reason: change.reason,
        });
        Self {
            sandbox_id: view.sandbox_id.to_string(),
            dry_run: view.fingerprint.is_some(),
            fingerprint: view.fingerprint.map(|fingerprint| fingerprint.0),
            applied: applied.collect(),
            refused: refused.collect(),
            unchanged: view.unchanged,
            omitted: view.omitted,
        }
    }
}
