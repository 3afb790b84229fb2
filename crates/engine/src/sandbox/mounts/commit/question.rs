//! The question to a person about a commit.

use sandcell_sandbox::{MountEntryKind, SavedChangeKind};

use super::{Commit, Item, ItemState};
use crate::OnConflict;

/// The maximum number of changes in the text of a question.
const MAX_QUESTION_LINES: usize = 40;
/// The maximum length of a path in a question, in characters.
const MAX_QUESTION_PATH: usize = 160;

impl Item {
    /// Returns true for hidden files, programs and links.
    fn is_notable(&self) -> bool {
        let is_hidden = self.change.path.contains("/.");
        let acts = self.change.now.as_ref().is_some_and(|now| match now.kind {
            MountEntryKind::File => now.mode & 0o111 != 0,
            MountEntryKind::Folder => false,
            MountEntryKind::Link | MountEntryKind::Fifo | MountEntryKind::Socket | MountEntryKind::Device => true,
        });
        is_hidden || acts
    }

    /// Describes the change to a person in one line. Names are escaped: they are text of the sandbox.
    fn described(&self) -> String {
        let change = &self.change;
        let mut text = format!("{} {}", change.kind.as_str(), shown(&change.path));
        if let Some(now) = &change.now {
            let details = match (now.kind, &now.target) {
                (MountEntryKind::Link, Some(target)) => format!(" (link to {})", shown(target)),
                (MountEntryKind::File, _) if now.mode & 0o111 != 0 => {
                    format!(" ({} bytes, executable)", change.bytes())
                }
                (MountEntryKind::File, _) => format!(" ({} bytes)", change.bytes()),
                (kind, _) => format!(" ({})", kind.as_str()),
            };
            text.push_str(&details);
        }
        if let ItemState::Waiting { overwrites: true, .. } = &self.state {
            text.push_str(", OVERWRITES a newer version on this machine");
        }
        text
    }
}

/// Returns text of the sandbox as a part of a line. Its end stays.
fn shown(text: &str) -> String {
    let escaped: String = text.escape_debug().collect();
    let length = escaped.chars().count();
    let end = escaped.chars().skip(length.saturating_sub(MAX_QUESTION_PATH));
    let cut = if length > MAX_QUESTION_PATH { "…" } else { "" };
    format!("{cut}{}", end.collect::<String>())
}

impl Commit {
    /// Describes the changes to a person. Names are escaped: they are text of the sandbox.
    pub(super) fn question(&self) -> String {
        let waiting: Vec<&Item> = self.items.iter().filter(|item| item.is_waiting()).collect();
        let count = |kind| waiting.iter().filter(|item| item.change.kind == kind).count();
        let mut text = format!(
            "{} changes of sandbox {} to folders of this machine: {} created, {} modified, {} removed",
            waiting.len(),
            self.record.id,
            count(SavedChangeKind::Created),
            count(SavedChangeKind::Modified),
            count(SavedChangeKind::Removed)
        );
        if self.on_conflict == OnConflict::Overwrite {
            text.push_str("\nNewer versions on this machine are overwritten (force)");
        }
        // First what can act without being opened: hidden files, programs and links.
        let (first, rest): (Vec<&Item>, Vec<&Item>) = waiting.iter().partition(|item| item.is_notable());
        for item in first.iter().chain(&rest).take(MAX_QUESTION_LINES) {
            text.push('\n');
            text.push_str(&item.described());
        }
        if let more @ 1.. = waiting.len().saturating_sub(MAX_QUESTION_LINES) {
            text.push_str(&format!("\nand {more} more"));
        }
        let refused = { self.items.iter() }.filter(|item| matches!(item.state, ItemState::Refused(_)));
        for (count, what) in [
            (refused.count().try_into().unwrap_or(u64::MAX), "are refused"),
            (self.omitted, "could not be listed"),
        ] {
            if count > 0 {
                text.push_str(&format!("\n{count} further changes {what} and are not applied"));
            }
        }
        text
    }
}
