//! Selects the changes of a commit by the paths of its request.

use std::collections::BTreeSet;

use sandcell_sandbox::{Failure, MountEntry, MountEntryKind, SandboxPath, SavedChangeKind};

use super::MountChange;

/// The selected changes, and the paths at which there is none.
#[derive(Debug, Default)]
pub(super) struct Selected {
    pub(super) changes: Vec<MountChange>,
    pub(super) missing: Vec<String>,
    /// True if a file is left out that can have been moved from a place of the selection.
    pub(super) leaves_moved_files: bool,
}

/// Reads the paths of a request.
pub(super) fn parse(paths: &[String]) -> Result<Vec<SandboxPath>, Failure> {
    let parse = |path: &String| {
        SandboxPath::parse(path).map_err(|error| {
            Failure::invalid(
                format!("{}: {error}", crate::api::ids::quote_for_error(path)),
                "name files as the sandbox sees them, such as /mnt/project/src/main.py",
            )
        })
    };
    paths.iter().map(parse).collect()
}

/// Selects the changes at these paths and below them, with the new folders that they are in. No path: everything.
pub(super) fn select(changes: Vec<MountChange>, paths: &[SandboxPath]) -> Selected {
    if paths.is_empty() {
        return Selected {
            changes,
            missing: Vec::new(),
            leaves_moved_files: false,
        };
    }
    let wanted: BTreeSet<&str> = paths.iter().map(|path| path.as_str().trim_end_matches('/')).collect();
    let mut hit = BTreeSet::new();
    let mut is_chosen = |change: &MountChange| {
        let hits: Vec<&str> = with_folders(&change.path)
            .filter_map(|path| wanted.get(path).copied())
            .collect();
        hit.extend(&hits);
        !hits.is_empty()
    };
    let chosen: Vec<bool> = changes.iter().map(&mut is_chosen).collect();
    let missing = { wanted.difference(&hit) }.map(|path| (*path).to_owned()).collect();
    // The new folders above chosen entries.
    let mut above = BTreeSet::new();
    for (change, chosen) in changes.iter().zip(&chosen) {
        if *chosen && change.kind != SavedChangeKind::Removed {
            let mut path = change.path.as_str();
            while let Some((folder, _)) = path.rsplit_once('/') {
                above.insert(folder.to_owned());
                path = folder;
            }
        }
    }
    let is_new_folder = |change: &MountChange| {
        let is_folder = |entry: &MountEntry| entry.kind == MountEntryKind::Folder;
        change.now.as_ref().is_some_and(is_folder) && !change.before.as_ref().is_some_and(is_folder)
    };
    let removed = RemovedFiles::of(
        changes
            .iter()
            .zip(&chosen)
            .filter(|(_, chosen)| **chosen)
            .map(|(change, _)| change),
    );
    let is_file = |change: &MountChange| change.now.as_ref().is_some_and(|now| now.kind == MountEntryKind::File);
    let leaves_moved_files = { changes.iter().zip(&chosen) }.any(|(change, chosen)| {
        let is_moved = change.copied && change.kind == SavedChangeKind::Created;
        !chosen && is_file(change) && (is_moved || removed.may_be_source(change))
    });
    let kept = changes
        .into_iter()
        .zip(chosen)
        .filter(|(change, chosen)| *chosen || (is_new_folder(change) && above.contains(&change.path)));
    Selected {
        changes: kept.map(|(change, _)| change).collect(),
        missing,
        leaves_moved_files,
    }
}

/// Returns a path and the folders above it. The last one is empty: the root.
fn with_folders(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(above, _)| above))
}

/// The files that the sandbox has removed from their places: perhaps it has moved them.
#[derive(Debug, Default)]
pub(super) struct RemovedFiles {
    names: BTreeSet<String>,
    sizes: BTreeSet<u64>,
}

impl RemovedFiles {
    pub(super) fn of<'a>(changes: impl Iterator<Item = &'a MountChange>) -> Self {
        let mut removed = Self::default();
        for change in changes {
            let is_file = |before: &MountEntry| before.kind == MountEntryKind::File;
            if change.now.is_none() && change.before.as_ref().is_some_and(is_file) {
                removed.names.insert(name_of(&change.path).to_owned());
                removed.sizes.insert(change.bytes_before());
            }
        }
        // Empty files say nothing.
        removed.sizes.remove(&0);
        removed
    }

    /// Returns true if one of the files can have become this one: it has its name or its size.
    pub(super) fn may_be_source(&self, change: &MountChange) -> bool {
        self.names.contains(name_of(&change.path)) || self.sizes.contains(&change.bytes())
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, kind: MountEntryKind) -> MountChange {
        MountChange {
            path: path.to_owned(),
            escaped: false,
            copied: false,
            hidden_by: None,
            kind: SavedChangeKind::Created,
            now: Some(MountEntry {
                kind,
                bytes: 0,
                mode: 0o644,
                modified_ns: 0,
                target: None,
            }),
            before: None,
        }
    }

    #[test]
    fn a_path_selects_what_is_below_it_and_the_new_folders_above_it() {
        let all = || {
            [
                ("/mnt/p/new", MountEntryKind::Folder),
                ("/mnt/p/new/deep", MountEntryKind::Folder),
                ("/mnt/p/new/deep/a", MountEntryKind::File),
                ("/mnt/p/new/deeper", MountEntryKind::File),
                ("/mnt/p/other", MountEntryKind::File),
            ]
            .map(|(path, kind)| change(path, kind))
            .to_vec()
        };
        let select = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            let selected = select(all(), &parse(&paths).unwrap());
            let names: Vec<String> = selected.changes.into_iter().map(|change| change.path).collect();
            (names, selected.missing)
        };
        assert_eq!(select(&[]).0.len(), 5);
        let (names, missing) = select(&["/mnt/p/new/deep/", "/mnt/p/none"]);
        assert_eq!(names, ["/mnt/p/new", "/mnt/p/new/deep", "/mnt/p/new/deep/a"]);
        assert_eq!(missing, ["/mnt/p/none"]);
        assert_eq!(select(&["/"]).0.len(), 5);
        assert!(parse(&["/mnt/p/../x".to_owned()]).is_err());
    }
}
