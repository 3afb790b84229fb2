//! Compares the private files with a saved state, in slices of work.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::readlinkat;
use rustix::io::Errno;
use sandcell_sandbox::{SavedChange, SavedChangeKind, SavedChanges};

use super::super::Step;
use super::super::open::Root;
use super::walk::{Found, Next, TopFolders, Walk, open_readable};
use super::{Content, Key, NodeKind, PIECE_BYTES, SavedState, attributes, count, failed, fill, size_of, step_of, work};
use crate::protocol::WireError;

/// A comparison in progress.
pub(in crate::server) struct Changes {
    state: Arc<SavedState>,
    walk: Walk,
    seen: BTreeSet<Key>,
    max: usize,
    found: Vec<SavedChange>,
    omitted: u64,
    file: Option<OpenFile>,
    live: Vec<u8>,
    saved: Vec<u8>,
}

/// The file in progress.
struct OpenFile {
    key: Key,
    file: OwnedFd,
    content: Content,
    position: u64,
}

impl Changes {
    pub(in crate::server) fn new(
        root: &Root,
        state: Arc<SavedState>,
        real: &[String],
        max: usize,
    ) -> Result<Self, WireError> {
        Ok(Self {
            walk: Walk::new(TopFolders::open(root, &state.folders, real)?),
            state,
            seen: BTreeSet::new(),
            max,
            found: Vec::new(),
            omitted: 0,
            file: None,
            live: vec![0; PIECE_BYTES],
            saved: vec![0; PIECE_BYTES],
        })
    }

    pub(in crate::server) fn slice(&mut self) -> Step {
        let worked = work(|| self.advance());
        step_of(worked, || self.finish())
    }

    fn advance(&mut self) -> Result<bool, WireError> {
        if let Some(mut file) = self.file.take() {
            match self.piece(&mut file) {
                Ok(None) => self.file = Some(file),
                Ok(Some(true)) => {}
                Ok(Some(false)) => self.add(
                    &file.key,
                    SavedChangeKind::Modified,
                    file.content.size,
                    file.content.size,
                ),
                Err(error) => return Err(failed(&self.state.path_of(&file.key), error)),
            }
            return Ok(true);
        }
        match self.walk.next()? {
            Next::End => Ok(false),
            Next::Nothing => Ok(true),
            Next::Found(found) => self.compare(*found).map(|()| true),
        }
    }

    /// Compares an entry; of a file that may be unchanged, begins to compare the content.
    fn compare(&mut self, found: Found) -> Result<(), WireError> {
        let state = Arc::clone(&self.state);
        let size = size_of(&found.status);
        let named = |error| failed(&state.path_of(&found.key), error);
        let (mode, _) = attributes(&found.status);
        match state.entries.get(&found.key) {
            Some(node) if node.kind.has_type(found.kind) => {
                self.seen.insert(found.key.clone());
                let same = match &node.kind {
                    NodeKind::Folder | NodeKind::Fifo | NodeKind::Socket => true,
                    NodeKind::Link(target) => match readlinkat(&found.entry, "", Vec::new()) {
                        Ok(now) => now.as_bytes() == target.as_slice(),
                        Err(error) => return Err(named(error)),
                    },
                    NodeKind::File(content) if content.size == size && mode == node.mode => {
                        match open_readable(self.walk.folders(), &found.key, mode) {
                            Ok(file) => {
                                self.file = Some(OpenFile {
                                    content: content.clone(),
                                    key: found.key,
                                    file,
                                    position: 0,
                                });
                                return Ok(());
                            }
                            Err(Errno::NOENT) => return Ok(()),
                            Err(error) => return Err(named(error)),
                        }
                    }
                    NodeKind::File(_) => false,
                };
                if !same {
                    self.add(&found.key, SavedChangeKind::Modified, size, node.kind.size());
                }
            }
            Some(node) => {
                self.seen.insert(found.key.clone());
                self.add(&found.key, SavedChangeKind::Modified, size, node.kind.size());
            }
            None => {
                let size = if found.kind.is_file() { size } else { 0 };
                self.add(&found.key, SavedChangeKind::Created, size, 0);
            }
        }
        Ok(())
    }

    /// Compares a piece of a file. Returns whether the file is unchanged, once that is known.
    fn piece(&mut self, file: &mut OpenFile) -> Result<Option<bool>, Errno> {
        let saved = file.content.read(&mut self.saved, file.position)?;
        let live = fill(&file.file, &mut self.live, file.position)?;
        if self.live.get(..live) != self.saved.get(..saved) {
            return Ok(Some(false));
        }
        file.position += count(saved);
        Ok((saved < PIECE_BYTES).then_some(true))
    }

    fn add(&mut self, key: &Key, kind: SavedChangeKind, bytes: u64, bytes_before: u64) {
        if self.found.len() >= self.max {
            self.omitted += 1;
            return;
        }
        self.found.push(SavedChange {
            path: self.state.path_of(key),
            kind,
            bytes,
            bytes_before,
        });
    }

    fn finish(&mut self) -> Step {
        let state = Arc::clone(&self.state);
        for (key, node) in &state.entries {
            if !self.seen.contains(key) {
                self.add(key, SavedChangeKind::Removed, 0, node.kind.size());
            }
        }
        let mut changes = std::mem::take(&mut self.found);
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        Step::Compared(SavedChanges {
            changes,
            omitted: self.omitted,
        })
    }
}
