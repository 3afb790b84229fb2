//! Saves the private files, in slices of work.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, ftruncate, readlinkat};
use rustix::io::Errno;
use sandcell_sandbox::SavedSize;

use super::super::open::Root;
use super::super::{Step, errors};
use super::walk::{Found, Next, TopFolders, Walk, open_readable};
use super::{
    Content, ENTRY_BYTES, Key, MAX_ENTRIES, Modified, Node, NodeKind, PAGE_BYTES, PIECE_BYTES, SavedState, SavedStates,
    attributes, count, failed, fill, new_store, size_of, step_of, work, write_at,
};
use crate::protocol::{ErrorCode, WireError};

/// A save in progress.
pub(in crate::server) struct Save {
    number: u32,
    walk: Walk,
    max_bytes: u64,
    entries: BTreeMap<Key, Node>,
    size: SavedSize,
    index_bytes: u64,
    /// The file for new contents, and its end.
    store: Option<Arc<OwnedFd>>,
    end: u64,
    /// The newest saved state. Unchanged files share its contents.
    previous: Option<Arc<SavedState>>,
    file: Option<OpenFile>,
    live: Vec<u8>,
    old: Vec<u8>,
}

/// The file in progress.
struct OpenFile {
    key: Key,
    mode: u32,
    modified: Modified,
    file: OwnedFd,
    /// The content that may be unchanged.
    old: Option<Content>,
    position: u64,
    /// The bytes that are stored.
    stored: u64,
}

impl Save {
    pub(in crate::server) fn new(
        root: &Root,
        states: &SavedStates,
        number: u32,
        (folders, real): (&[String], &[String]),
        max_bytes: u64,
    ) -> Result<Self, WireError> {
        if states.is_full() {
            return Err(WireError::new(
                ErrorCode::Limit,
                "there are too many saved states of the files",
            ));
        }
        Ok(Self {
            number,
            walk: Walk::new(TopFolders::open(root, folders, real)?),
            max_bytes,
            entries: BTreeMap::new(),
            size: SavedSize::default(),
            index_bytes: 0,
            store: None,
            end: 0,
            previous: states.newest().filter(|state| state.folders == folders),
            file: None,
            live: vec![0; PIECE_BYTES],
            old: vec![0; PIECE_BYTES],
        })
    }

    pub(in crate::server) fn slice(&mut self) -> Step {
        let worked = work(|| self.advance());
        step_of(worked, || self.finish())
    }

    fn finish(&mut self) -> Step {
        self.size.held = self.size.held.saturating_add(self.index_bytes);
        Step::Saved(
            self.number,
            SavedState {
                folders: self.walk.folders().names().to_vec(),
                entries: std::mem::take(&mut self.entries),
                index_bytes: self.index_bytes,
                size: self.size,
            },
        )
    }

    /// Saves one entry, or a piece of a file. Returns false at the end.
    fn advance(&mut self) -> Result<bool, WireError> {
        if let Some(mut file) = self.file.take() {
            match self.piece(&mut file) {
                Ok(None) => {
                    if self.size.bytes.saturating_add(file.position) > self.max_bytes {
                        return Err(too_large(self.max_bytes));
                    }
                    self.file = Some(file);
                }
                Ok(Some(content)) => self.add_file(file, content)?,
                Err(error) => return Err(failed(&self.walk.folders().path_of(&file.key), error)),
            }
            return Ok(true);
        }
        match self.walk.next()? {
            Next::End => Ok(false),
            Next::Nothing => Ok(true),
            Next::Found(found) => self.begin(*found).map(|()| true),
        }
    }

    fn begin(&mut self, found: Found) -> Result<(), WireError> {
        if self.entries.len() >= MAX_ENTRIES {
            let message = format!("they are more than {MAX_ENTRIES} files and folders");
            return Err(WireError::new(ErrorCode::TooLarge, message));
        }
        let (mode, modified) = attributes(&found.status);
        let kind = match found.kind {
            FileType::Directory => NodeKind::Folder,
            FileType::Symlink => match readlinkat(&found.entry, "", Vec::new()) {
                Ok(target) => NodeKind::Link(target.into_bytes()),
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => return Err(failed(&self.walk.folders().path_of(&found.key), error)),
            },
            FileType::RegularFile => {
                let file = match open_readable(self.walk.folders(), &found.key, mode) {
                    Ok(file) => file,
                    Err(Errno::NOENT) => return Ok(()),
                    Err(error) => return Err(failed(&self.walk.folders().path_of(&found.key), error)),
                };
                let known = self.previous.as_ref().and_then(|state| state.entries.get(&found.key));
                let old = known.and_then(|node| match &node.kind {
                    NodeKind::File(content) => (content.size == size_of(&found.status)).then(|| content.clone()),
                    NodeKind::Folder | NodeKind::Link(_) | NodeKind::Fifo | NodeKind::Socket => None,
                });
                self.file = Some(OpenFile {
                    key: found.key,
                    mode,
                    modified,
                    file,
                    old,
                    position: 0,
                    stored: 0,
                });
                return Ok(());
            }
            FileType::Fifo => NodeKind::Fifo,
            // No other type can be made inside.
            _ => NodeKind::Socket,
        };
        self.add(found.key, Node { mode, modified, kind })
    }

    /// Compares or copies a piece of a file. Returns its content at the end.
    fn piece(&mut self, file: &mut OpenFile) -> Result<Option<Content>, Errno> {
        let read = fill(&file.file, &mut self.live, file.position)?;
        let live = self.live.get(..read).unwrap_or_default();
        if let Some(old) = &file.old {
            let known = old.read(&mut self.old, file.position)?;
            if self.old.get(..known) == Some(live) {
                file.position += count(read);
                return Ok((read < PIECE_BYTES).then(|| old.clone()));
            }
            // It has changed, so it is copied from its beginning.
            (file.old, file.position) = (None, 0);
            return Ok(None);
        }
        let store = match &self.store {
            Some(store) => Arc::clone(store),
            None => {
                let made = new_store(self.walk.folders())?;
                Arc::clone(self.store.insert(Arc::new(made)))
            }
        };
        // Pages of zeros take no memory.
        if live.iter().any(|byte| *byte != 0) {
            write_at(&store, live, self.end.saturating_add(file.position))?;
            file.stored = file.stored.saturating_add(count(read));
        }
        file.position += count(read);
        if read == PIECE_BYTES {
            return Ok(None);
        }
        let content = Content {
            offset: self.end,
            size: file.position,
            stored: file.stored,
            store,
        };
        self.end = self.end.saturating_add(file.position).next_multiple_of(PAGE_BYTES);
        ftruncate(&content.store, self.end)?;
        self.size.held = self.size.held.saturating_add(file.stored);
        Ok(Some(content))
    }

    fn add_file(&mut self, file: OpenFile, content: Content) -> Result<(), WireError> {
        self.size.bytes = self.size.bytes.saturating_add(content.size);
        let node = Node {
            mode: file.mode,
            modified: file.modified,
            kind: NodeKind::File(content),
        };
        self.add(file.key, node)
    }

    /// Adds an entry. Its names count as well: a sandbox can have many long ones.
    fn add(&mut self, key: Key, node: Node) -> Result<(), WireError> {
        let target = match &node.kind {
            NodeKind::Link(target) => target.len(),
            NodeKind::Folder | NodeKind::File(_) | NodeKind::Fifo | NodeKind::Socket => 0,
        };
        let names = count(key.1.len().saturating_add(target));
        self.index_bytes = self.index_bytes.saturating_add(names).saturating_add(ENTRY_BYTES);
        self.size.files += 1;
        self.entries.insert(key, node);
        if self.size.bytes.saturating_add(self.index_bytes) > self.max_bytes {
            return Err(too_large(self.max_bytes));
        }
        Ok(())
    }
}

fn too_large(max_bytes: u64) -> WireError {
    let message = format!("they are larger than {max_bytes} bytes in all");
    WireError {
        errno: errors::of_file(Errno::FBIG).errno,
        ..WireError::new(ErrorCode::TooLarge, message)
    }
}
