//! Requests and answers about copy-on-write mounts. Plain data.

use sandcell_sandbox::{Consent, MountEntry, MountEntryKind, SavedChangeKind};
use serde::Serialize;

use crate::SandboxId;

/// The changes of a sandbox in its copy-on-write mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountChangesView {
    /// The files and folders: a folder precedes its entries.
    pub files: Vec<MountFile>,
    /// The number of further ones, and of folders that could not be read.
    pub omitted: u64,
}

/// A file or folder of a mount that differs from the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountFile {
    /// Its absolute path inside the sandbox.
    pub path: String,
    /// The difference.
    pub kind: SavedChangeKind,
    /// Its size in the sandbox, in bytes.
    pub bytes: u64,
    /// The size of the host's file, in bytes.
    pub bytes_before: u64,
    /// The entry in the sandbox. None if it was removed.
    pub now: Option<MountEntry>,
    /// The entry on the host. None if it is new.
    pub before: Option<MountEntry>,
    /// The changed lines as a unified diff. None for other content than text, and for files of more than 256 KiB.
    pub diff: Option<String>,
}

impl MountFile {
    /// Returns the type of the entry, in words: `file`, or `file instead of a folder`.
    #[must_use]
    pub fn type_name(&self) -> String {
        let name = |entry: &MountEntry| entry.kind.as_str();
        match (&self.now, &self.before) {
            (Some(now), Some(before)) if now.kind != before.kind => {
                format!("{} instead of a {}", name(now), name(before))
            }
            (Some(now), Some(before)) if now.kind == MountEntryKind::File && now.mode != before.mode => {
                format!("file, mode {:o} instead of {:o}", now.mode, before.mode)
            }
            (Some(one), _) | (None, Some(one)) => name(one).to_owned(),
            (None, None) => String::new(),
        }
    }
}

/// The treatment of a host file that has changed since the sandbox was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// The change is not applied.
    #[default]
    Refuse,
    /// The sandbox's state replaces the host's.
    Overwrite,
}

/// A request to apply changes to the host's folders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitRequest {
    /// The files and folders to apply, as absolute paths inside the sandbox. Empty: everything.
    pub paths: Vec<String>,
    /// The treatment of conflicts.
    pub on_conflict: OnConflict,
}

/// The authority of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitAuthority {
    /// The operator, on the server's machine.
    Operator {
        /// The fingerprint of the dry run that the operator has seen. None: whatever the changes are now.
        expected: Option<Fingerprint>,
    },
    /// A person whom the client has asked about exactly these changes.
    Person(Consent),
    /// Nobody: the answer shows what would happen, and nothing is changed.
    DryRun,
}

/// The name of exactly these changes: of their paths, types, modes and contents, and of the host's entries that they
/// replace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fingerprint(pub String);

impl Fingerprint {
    /// Returns the name of the changes for a consent.
    pub(crate) fn name(&self) -> String {
        format!("changes {}", self.0)
    }
}

/// The question to a person about a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitQuestion {
    /// The name of exactly these changes, for the consent.
    pub name: String,
    /// The changes, a line for each. Names from the sandbox are escaped.
    pub text: String,
}

/// The result of a commit, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitView {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// The fingerprint of the changes, in a dry run only.
    pub fingerprint: Option<Fingerprint>,
    /// The applied changes; in a dry run those that would be applied.
    pub applied: Vec<AppliedChange>,
    /// The changes that were not applied.
    pub refused: Vec<RefusedChange>,
    /// The number of changes that the host's folders had already.
    pub unchanged: u64,
    /// The number of changes that could not be listed, and so were not applied.
    pub omitted: u64,
}

/// A change that was applied to the host's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AppliedChange {
    /// Its absolute path inside the sandbox.
    pub path: String,
    /// The difference.
    pub kind: SavedChangeKind,
    /// The size of the written file, in bytes.
    pub bytes: u64,
}

/// A change that was not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedChange {
    /// Its absolute path inside the sandbox.
    pub path: String,
    /// The difference. None: there is no change at a path of the request.
    pub kind: Option<SavedChangeKind>,
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
    pub reason: String,
}

/// The reasons why a change is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The host's entry has changed since the sandbox was made.
    Conflict,
    /// There is no change at this path.
    NotFound,
    /// Its mount allows no commits.
    NotAllowed,
    /// The type of the entry is never applied: a FIFO, socket or device.
    Type,
    /// A folder has become a file or link, or the other way round.
    TypeChange,
    /// A link that leads out of the folder.
    Link,
    /// The host's file has set-uid or set-gid bits.
    SetId,
    /// Only the mode differs.
    Mode,
    /// The name is not UTF-8, or too long for the host.
    Name,
    /// The file changed while it was read, or since the person was asked.
    Changing,
    /// The host's file system or its rights do not allow it.
    Host,
    /// The host's disk is full.
    DiskFull,
    /// The time of the commit ran out.
    Timeout,
    /// Nothing is removed while other changes are refused.
    Incomplete,
}

impl RefusalCode {
    /// Returns its name in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "not_found",
            Self::NotAllowed => "not_allowed",
            Self::Type => "type",
            Self::TypeChange => "type_change",
            Self::Link => "link",
            Self::SetId => "set_id",
            Self::Mode => "mode",
            Self::Name => "name",
            Self::Changing => "changing",
            Self::Host => "host",
            Self::DiskFull => "disk_full",
            Self::Timeout => "timeout",
            Self::Incomplete => "incomplete",
        }
    }
}
