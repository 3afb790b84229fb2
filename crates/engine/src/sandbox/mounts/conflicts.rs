//! Decides what a commit does with each change. Pure: it knows the change and the host's state, and does nothing.

use sandcell_host_folder::{HostKind, HostStatus, SET_ID_BITS};
use sandcell_sandbox::{MountEntry, MountEntryKind, SavedChangeKind};

use super::MountChange;
use crate::RefusalCode;

/// The kernel's clock for files is behind the exact time by up to one tick.
const CLOCK_TICK_NS: i128 = 20_000_000;
const NANOSECONDS_PER_SECOND: i128 = 1_000_000_000;
/// The permission bits that a new file or folder can have: others never get the right to write.
const NEW_MODE_BITS: u32 = 0o755;
/// The owner's rights to a new folder. Without them its entries could not be made.
const OWN_FOLDER_BITS: u32 = 0o700;

/// The state of the host at the path of a change.
#[derive(Debug, Clone, Default)]
pub(super) struct HostFacts {
    /// The entry. None: there is none.
    pub(super) entry: Option<HostStatus>,
    /// The last change of the folder that it is in.
    pub(super) parent_modified_ns: Option<i128>,
    /// The folders above that were renamed, or got other rights, since the sandbox was made: another folder can have taken
    /// the place of the one that the sandbox knows.
    pub(super) moved_folders: Vec<(String, HostStatus)>,
    /// The folders from the one that hides the entry down to it that the host has changed since the sandbox was made. One of
    /// them can be another folder.
    pub(super) changed_folders: Vec<(String, HostStatus)>,
    /// True if the entry is the one that an earlier commit of this sandbox has left.
    pub(super) left_by_commit: bool,
    /// True if the sandbox has removed files, so that a file which was made of one of the host can have come from another
    /// place.
    pub(super) may_have_moved: bool,
    /// True if the link of the change would lead out of the folder.
    pub(super) link_leads_out: bool,
}

/// A reason to leave a change out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: RefusalCode,
    pub(super) reason: String,
}

/// The work for one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// Removes the host's entry.
    Remove(HostStatus),
    Make(Make),
}

/// An entry that a commit makes. A file and a link replace one another at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Make {
    File {
        replaces: Option<HostStatus>,
        mode: u32,
    },
    Folder {
        mode: u32,
    },
    Link {
        target: String,
        replaces: Option<HostStatus>,
    },
}

/// The decision about one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The host has this state already.
    Unchanged,
    Refused(Refusal),
    Apply {
        work: Work,
        /// The reason why the host's state is not the one that the sandbox began with.
        conflict: Option<String>,
    },
}

/// Decides about a change in a folder of the host. `path` is relative to that folder, `began_ns` is the time when the
/// sandbox was made.
pub(super) fn decide(path: &str, change: &MountChange, host: &HostFacts, began_ns: i128) -> Decision {
    if let Err(refusal) = check_entry(path, change, host) {
        return Decision::Refused(refusal);
    }
    if is_unchanged(change, host) {
        return match only_mode(change) {
            Some(refusal) => Decision::Refused(refusal),
            None => Decision::Unchanged,
        };
    }
    Decision::Apply {
        work: match work(change, host) {
            Some(work) => work,
            None => return Decision::Unchanged,
        },
        conflict: conflict(change, host, began_ns),
    }
}

/// Returns the refusal of a change whose content the host has already.
pub(super) fn only_mode(change: &MountChange) -> Option<Refusal> {
    let (now, before) = (change.now.as_ref()?, change.before.as_ref()?);
    (now.kind == before.kind && now.kind != MountEntryKind::Link && now.mode != before.mode).then(|| {
        refusal(
            RefusalCode::Mode,
            format!(
                "only its mode differs ({:o} instead of {:o}); a commit keeps the modes of the host",
                now.mode, before.mode
            ),
        )
    })
}

/// Returns the refusal of a folder instead of a file or link, and the other way round. Linux cannot exchange them and their
/// entries in one step, so a failure in between would lose one of them.
pub(super) fn type_changes() -> Refusal {
    refusal(
        RefusalCode::TypeChange,
        "a folder has become a file or link, or the other way round; rename the host's entry and commit again",
    )
}

pub(super) fn refusal(code: RefusalCode, reason: impl Into<String>) -> Refusal {
    let reason = reason.into();
    Refusal { code, reason }
}

fn check_entry(path: &str, change: &MountChange, host: &HostFacts) -> Result<(), Refusal> {
    if change.escaped {
        return Err(refusal(
            RefusalCode::Name,
            "its name, or the target of the link, is not UTF-8",
        ));
    }
    let has_set_id = |status: &HostStatus| status.kind == HostKind::File && status.mode & SET_ID_BITS != 0;
    if host.entry.as_ref().is_some_and(has_set_id) && change.kind != SavedChangeKind::Removed {
        let reason = "the host's file has set-uid or set-gid bits, so its content is not replaced";
        return Err(refusal(RefusalCode::SetId, reason));
    }
    let Some(now) = &change.now else { return Ok(()) };
    let was_folder = host.entry.as_ref().map(|entry| entry.kind == HostKind::Folder);
    if was_folder.is_some_and(|was| was != (now.kind == MountEntryKind::Folder)) {
        return Err(type_changes());
    }
    match now.kind {
        MountEntryKind::File | MountEntryKind::Folder => Ok(()),
        MountEntryKind::Link => check_link(path, now, host),
        MountEntryKind::Fifo | MountEntryKind::Socket | MountEntryKind::Device => Err(refusal(
            RefusalCode::Type,
            format!("a {} is never applied", now.kind.as_str()),
        )),
    }
}

/// Refuses a link that can lead out of the folder.
fn check_link(path: &str, link: &MountEntry, host: &HostFacts) -> Result<(), Refusal> {
    let target = link.target.as_deref().unwrap_or_default();
    if host.link_leads_out || leads_out(path, target) {
        let reason = "the link leads out of the mounted folder, or could do so";
        return Err(refusal(RefusalCode::Link, reason));
    }
    Ok(())
}

/// Returns true if a link can lead out of the folder by its text. A `..` after a name counts as a way out, because the
/// name can be a link.
pub(super) fn leads_out(path: &str, target: &str) -> bool {
    let depth = path.split('/').count() - 1;
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return true;
    }
    let mut ups = 0;
    let mut names = false;
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if names => return true,
            ".." => ups += 1,
            _ => names = true,
        }
    }
    ups > depth
}

/// Returns true if the host has the state of the sandbox. The contents of files are compared elsewhere.
fn is_unchanged(change: &MountChange, host: &HostFacts) -> bool {
    match (&change.now, &host.entry) {
        (None, None) => true,
        (Some(now), Some(entry)) => match (now.kind, entry.kind) {
            (MountEntryKind::Folder, HostKind::Folder) => true,
            (MountEntryKind::Link, HostKind::Link) => {
                now.target.as_ref().map(String::as_bytes) == entry.target.as_deref()
            }
            _ => false,
        },
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Returns the work. None: there is nothing to do.
fn work(change: &MountChange, host: &HostFacts) -> Option<Work> {
    let Some(now) = &change.now else {
        return host.entry.clone().map(Work::Remove);
    };
    Some(Work::Make(match now.kind {
        MountEntryKind::Folder => Make::Folder {
            mode: now.mode & NEW_MODE_BITS | OWN_FOLDER_BITS,
        },
        MountEntryKind::Link => Make::Link {
            target: now.target.clone().unwrap_or_default(),
            replaces: host.entry.clone(),
        },
        _ => Make::File {
            replaces: host.entry.clone(),
            mode: now.mode & NEW_MODE_BITS,
        },
    }))
}

/// Returns the reason why the host's state is not the one that the sandbox began with.
fn conflict(change: &MountChange, host: &HostFacts, began_ns: i128) -> Option<String> {
    if host.left_by_commit {
        return None;
    }
    if let Some((folder, _)) = host.moved_folders.first() {
        return Some(format!(
            "its folder {folder} was renamed, or got other rights or times, on the host since the sandbox was made"
        ));
    }
    if let (Some((folder, _)), Some(_)) = (host.changed_folders.first(), &host.entry) {
        return Some(format!(
            "the host has changed its folder {folder} since the sandbox was made, and the sandbox has made that folder again"
        ));
    }
    let is_recent = |time: i128| is_recent(time, began_ns);
    let Some(entry) = &host.entry else {
        let vanished = match &change.before {
            Some(_) => true,
            // It was made of a file of the host. Either that file was at this place and has vanished, or the sandbox has
            // moved it here.
            None if is_folder(change) => change.copied,
            None => change.copied && !host.may_have_moved && host.parent_modified_ns.is_some_and(is_recent),
        };
        let name = if is_folder(change) { "folder" } else { "file" };
        return vanished.then(|| format!("the host's {name} has vanished since the sandbox was made"));
    };
    let Some(before) = &change.before else {
        return Some(format!("the host has another {} of this name", kind_name(entry.kind)));
    };
    if !is_same_kind(before.kind, entry.kind) {
        return Some(format!(
            "the host's {} has become a {} since the sandbox was made",
            before.kind.as_str(),
            kind_name(entry.kind)
        ));
    }
    // The times of a folder change with its entries, so they count only if it is removed or makes way.
    let stays = entry.kind == HostKind::Folder && is_folder(change);
    if !stays && (is_recent(entry.modified_ns) || is_recent(entry.changed_ns)) {
        return Some(format!(
            "the host's {} has changed since the sandbox was made",
            kind_name(entry.kind)
        ));
    }
    None
}

/// Returns true if a folder was renamed, or got other rights, since the sandbox was made. A change of its entries sets both
/// times to the same value. So this does not see a folder that was renamed and whose entries were changed after that.
pub(super) fn is_moved(folder: &HostStatus, began_ns: i128) -> bool {
    is_recent(folder.changed_ns, began_ns) && folder.changed_ns != folder.modified_ns
}

/// Returns true if a folder or its entries were changed since the sandbox was made.
pub(super) fn is_changed(folder: &HostStatus, began_ns: i128) -> bool {
    is_recent(folder.changed_ns, began_ns)
}

/// Returns true if a time of the host may be later than the sandbox's first moment.
fn is_recent(time: i128, began_ns: i128) -> bool {
    time >= began_ns - precision_ns(time)
}

/// Returns the precision of a file's time. Some file systems have whole seconds, FAT even ones.
const fn precision_ns(time: i128) -> i128 {
    match time % NANOSECONDS_PER_SECOND {
        0 => 2 * NANOSECONDS_PER_SECOND,
        _ => CLOCK_TICK_NS,
    }
}

fn is_folder(change: &MountChange) -> bool {
    change
        .now
        .as_ref()
        .is_some_and(|now| now.kind == MountEntryKind::Folder)
}

const fn is_same_kind(inside: MountEntryKind, host: HostKind) -> bool {
    matches!(
        (inside, host),
        (MountEntryKind::File, HostKind::File)
            | (MountEntryKind::Folder, HostKind::Folder)
            | (MountEntryKind::Link, HostKind::Link)
            | (
                MountEntryKind::Fifo | MountEntryKind::Socket | MountEntryKind::Device,
                HostKind::Other
            )
    )
}

const fn kind_name(kind: HostKind) -> &'static str {
    match kind {
        HostKind::File => "file",
        HostKind::Folder => "folder",
        HostKind::Link => "link",
        HostKind::Other => "special file",
    }
}

#[cfg(test)]
mod tests;
