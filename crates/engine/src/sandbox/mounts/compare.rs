//! Compares the private layer of a copy-on-write mount with the host's folder as it is now. Contents are compared
//! elsewhere.
//!
//! The server may read more of the host than code may. So everything here is what code could find by itself:
//! [`HostFolder`] checks the rights.

use std::collections::BTreeMap;

use sandcell_host_folder::{HostFolder, HostKind, HostStatus};
use sandcell_sandbox::{LayerEntry, MountEntry, MountEntryKind, SavedChangeKind};

use super::MountChange;

/// The maximum number of entries of the host that one comparison reads.
const MAX_HOST_ENTRIES: usize = 200_000;

/// The differences between a layer and the host's folder.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Each change, and whether it is one only if the contents differ.
    pub(super) changes: Vec<(MountChange, bool)>,
    /// The number of entries that could not be compared.
    pub(super) omitted: u64,
}

struct Comparison<'a> {
    folder: &'a HostFolder,
    /// The path of the mount inside sandboxes.
    inside: &'a str,
    /// The entries of the layer, by their paths below the mount.
    layer: BTreeMap<&'a str, &'a LayerEntry>,
    found: BTreeMap<String, (MountChange, bool)>,
    read: usize,
    omitted: u64,
}

/// Compares a layer with the host's folder. `committed` are the paths inside of entries that commits of this sandbox have
/// made. None: the layer is not complete.
pub(super) fn compare(
    folder: &HostFolder,
    inside: &str,
    layer: &[LayerEntry],
    committed: Option<&[String]>,
) -> Compared {
    let below = |path: &'_ str| -> Option<usize> {
        let rest = path.strip_prefix(inside)?.strip_prefix('/')?;
        Some(path.len() - rest.len())
    };
    let entries = layer.iter().filter_map(|entry| {
        let start = below(&entry.path)?;
        Some((entry.path.get(start..)?, entry))
    });
    let mut comparison = Comparison {
        folder,
        inside,
        layer: entries.collect(),
        found: BTreeMap::new(),
        read: 0,
        omitted: 0,
    };
    comparison.run();
    for path in committed.unwrap_or_default() {
        if let Some(path) = below(path).and_then(|start| path.get(start..)) {
            comparison.lost(path);
        }
    }
    Compared {
        changes: comparison.found.into_values().collect(),
        omitted: comparison.omitted,
    }
}

impl Comparison<'_> {
    fn run(&mut self) {
        let all: Vec<(String, LayerEntry)> = { self.layer.iter() }
            .map(|(path, entry)| ((*path).to_owned(), (*entry).clone()))
            .collect();
        for (path, entry) in all {
            let hidden_by = self.hidden_by(&path);
            let before = match self.folder.status_inside(&path) {
                Ok(before) => before,
                // Another file system, or a link above. A new entry is listed, and its commit names the reason.
                Err(_) => {
                    self.omitted += u64::from(entry.entry.is_none());
                    None
                }
            };
            let is_folder = before.as_ref().is_some_and(|before| before.kind == HostKind::Folder);
            let stays_folder = entry
                .entry
                .as_ref()
                .is_some_and(|now| now.kind == MountEntryKind::Folder);
            let hides_below = match (stays_folder, &hidden_by) {
                (false, _) => None,
                (true, Some(above)) => Some(above.clone()),
                (true, None) => entry.hides.then(|| entry.path.clone()),
            };
            if is_folder && (!stays_folder || hides_below.is_some()) {
                self.removed_below(&path, hides_below.as_ref());
            }
            if let Some((change, unsure)) = difference(&entry, before.as_ref(), self.inside, &path) {
                self.found.insert(path, (MountChange { hidden_by, ..change }, unsure));
            }
        }
    }

    /// Returns the path inside of the topmost folder above that hides the host's entries.
    fn hidden_by(&self, path: &str) -> Option<String> {
        path.match_indices('/').find_map(|(end, _)| {
            let above = self.layer.get(path.get(..end)?)?;
            above.hides.then(|| above.path.clone())
        })
    }

    /// Adds the entries of a folder of the host that the layer does not have: all are removed.
    fn removed_below(&mut self, folder: &str, hidden_by: Option<&String>) {
        let mut pending = vec![folder.to_owned()];
        while let Some(folder) = pending.pop() {
            let left = MAX_HOST_ENTRIES.saturating_sub(self.read);
            let Ok((names, more)) = self.folder.list_inside(&folder, left) else {
                self.omitted += 1;
                continue;
            };
            self.omitted += more;
            self.read += names.len();
            for name in names {
                let path = format!("{folder}/{name}");
                // The layer's own entry is compared by itself.
                if self.layer.contains_key(path.as_str()) {
                    continue;
                }
                match self.folder.status_inside(&path) {
                    Ok(Some(before)) => {
                        if before.kind == HostKind::Folder {
                            pending.push(path.clone());
                        }
                        let change = MountChange {
                            hidden_by: hidden_by.cloned(),
                            ..removed(self.inside, &path, &before)
                        };
                        self.found.insert(path, (change, false));
                    }
                    Ok(None) => {}
                    Err(_) => self.omitted += 1,
                }
            }
        }
    }

    /// Adds the removal of an entry that a commit has made and that the layer no longer has. The kernel leaves no mark
    /// for it, because the host had no such entry when the sandbox made it.
    fn lost(&mut self, path: &str) {
        if self.layer.contains_key(path) || self.found.contains_key(path) {
            return;
        }
        if let Ok(Some(before)) = self.folder.status_inside(path) {
            let change = removed(self.inside, path, &before);
            self.found.insert(path.to_owned(), (change, false));
        }
    }
}

fn removed(inside: &str, path: &str, before: &HostStatus) -> MountChange {
    MountChange {
        path: format!("{inside}/{path}"),
        escaped: false,
        copied: false,
        hidden_by: None,
        kind: SavedChangeKind::Removed,
        now: None,
        before: Some(described(before)),
    }
}

/// Returns the change of an entry of the layer, and whether it is one only if the contents differ.
fn difference(
    entry: &LayerEntry,
    before: Option<&HostStatus>,
    inside: &str,
    path: &str,
) -> Option<(MountChange, bool)> {
    let old = before.map(described);
    let change = |kind| MountChange {
        path: entry.path.clone(),
        escaped: entry.escaped,
        copied: entry.copied,
        hidden_by: None,
        kind,
        now: entry.entry.clone(),
        before: old.clone(),
    };
    match (&entry.entry, before) {
        (None, None) => None,
        (None, Some(before)) => Some((removed(inside, path, before), false)),
        (Some(_), None) => Some((change(SavedChangeKind::Created), false)),
        (Some(now), Some(_)) => {
            let old = old.as_ref()?;
            let same = (now.kind, now.bytes, now.mode, &now.target) == (old.kind, old.bytes, old.mode, &old.target);
            let is_file = now.kind == MountEntryKind::File;
            (!same || is_file).then(|| (change(SavedChangeKind::Modified), same))
        }
    }
}

fn described(status: &HostStatus) -> MountEntry {
    let is_file = status.kind == HostKind::File;
    MountEntry {
        kind: match status.kind {
            HostKind::File => MountEntryKind::File,
            HostKind::Folder => MountEntryKind::Folder,
            HostKind::Link => MountEntryKind::Link,
            HostKind::Other => MountEntryKind::Device,
        },
        bytes: if is_file { status.bytes } else { 0 },
        mode: status.mode,
        modified_ns: i64::try_from(status.modified_ns).unwrap_or_default(),
        target: { status.target.as_ref() }.map(|target| String::from_utf8_lossy(target).into_owned()),
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
