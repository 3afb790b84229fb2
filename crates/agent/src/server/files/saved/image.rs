//! Images of saved files: one file without a name. The host reads it and passes it to other sandboxes, whose drivers write
//! the files (`languages/src/python/driver/images.py`).

use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use serde::Serialize;

use super::super::Step;
use super::super::open::Root;
use super::walk::TopFolders;
use super::{Content, Key, NodeKind, PAGE_BYTES, PIECE_BYTES, SavedState, count, new_store, step_of, work, write_at};
use crate::protocol::{ErrorCode, ImageReply, MAX_IMAGE_TABLE, WireError};

/// The work on one image.
pub(in crate::server) struct Image {
    file: OwnedFd,
    end: u64,
    max_bytes: u64,
    saved: Arc<SavedState>,
    /// The saved entry that was written last, and the position in the next file.
    last: Option<Key>,
    position: u64,
    index: Index,
    buffer: Vec<u8>,
}

/// The table of contents, as JSON at the end of the image.
#[derive(Default, Serialize)]
struct Index {
    folders: Vec<String>,
    files: Vec<File>,
}

/// A file or folder.
#[derive(Serialize)]
struct File {
    folder: usize,
    path: Vec<u8>,
    kind: &'static str,
    mode: u32,
    modified: (i64, i64),
    size: u64,
    offset: u64,
    target: Vec<u8>,
}

impl Image {
    /// Begins an image of a saved state. `real` are the paths of its folders in this system.
    pub(in crate::server) fn new(
        root: &Root,
        saved: Arc<SavedState>,
        real: &[String],
        max_bytes: u64,
    ) -> Result<Self, WireError> {
        let file = new_store(&TopFolders::open(root, saved.folders(), real)?);
        Ok(Self {
            file: file.map_err(|error| failed("make the image", error))?,
            end: 0,
            max_bytes,
            last: None,
            position: 0,
            index: Index {
                folders: saved.folders().to_vec(),
                files: Vec::new(),
            },
            saved,
            buffer: vec![0; PIECE_BYTES],
        })
    }

    pub(in crate::server) fn slice(&mut self) -> Step {
        let worked = work(|| self.advance());
        step_of(worked, || self.finish())
    }

    /// Copies a saved entry, or a piece of its content. Returns false at the end.
    fn advance(&mut self) -> Result<bool, WireError> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let Some((key, node)) = self.saved.entries.range::<Key, _>((after, Bound::Unbounded)).next() else {
            return Ok(false);
        };
        let mut file = File {
            folder: key.0,
            path: key.1.clone(),
            kind: "socket",
            mode: node.mode,
            modified: node.modified,
            size: 0,
            offset: 0,
            target: Vec::new(),
        };
        match &node.kind {
            NodeKind::Folder => file.kind = "folder",
            NodeKind::Fifo => file.kind = "fifo",
            NodeKind::Socket => {}
            NodeKind::Link(target) => (file.kind, file.target) = ("link", target.clone()),
            NodeKind::File(content) => {
                if self.position == 0 && self.end.saturating_add(content.size) > self.max_bytes {
                    let message = format!(
                        "{} bytes are free for a copy of the files, which is too little",
                        self.max_bytes
                    );
                    return Err(WireError::new(ErrorCode::TooLarge, message));
                }
                if !copy_piece(content, &self.file, self.end, &mut self.position, &mut self.buffer)? {
                    return Ok(true);
                }
                (file.kind, file.size, file.offset) = ("file", content.size, self.end);
                self.end = self.end.saturating_add(content.size).next_multiple_of(PAGE_BYTES);
                self.position = 0;
            }
        }
        self.last = Some(key.clone());
        if file.kind != "socket" {
            self.index.files.push(file);
        }
        Ok(true)
    }

    fn finish(&mut self) -> Step {
        let index = serde_json::to_vec(&self.index).unwrap_or_default();
        let (position, bytes) = (self.end, count(index.len()));
        if bytes > MAX_IMAGE_TABLE {
            return Step::Failed(WireError::new(
                ErrorCode::TooLarge,
                "the names of the files are too long in all",
            ));
        }
        let written = write_at(&self.file, &index, position);
        match written.and_then(|()| rustix::io::fcntl_dupfd_cloexec(&self.file, 3)) {
            Ok(file) => Step::Imaged(file, ImageReply { position, bytes }),
            Err(error) => Step::Failed(failed("write the image", error)),
        }
    }
}

/// Copies a piece of a file. Returns true at its end.
fn copy_piece(
    content: &Content,
    to: &OwnedFd,
    offset: u64,
    position: &mut u64,
    buffer: &mut [u8],
) -> Result<bool, WireError> {
    let read = content
        .read(buffer, *position)
        .map_err(|error| failed("read a saved file", error))?;
    let piece = buffer.get(..read).unwrap_or_default();
    // Pages of zeros take no memory.
    if piece.iter().any(|byte| *byte != 0) {
        write_at(to, piece, offset.saturating_add(*position)).map_err(|error| failed("write the image", error))?;
    }
    *position = position.saturating_add(count(read));
    Ok(read < buffer.len())
}

fn failed(step: &str, error: Errno) -> WireError {
    WireError::new(ErrorCode::Failed, format!("{step}: {error}"))
}
