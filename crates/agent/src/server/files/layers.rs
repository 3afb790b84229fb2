//! Lists the private layers of copy-on-write mounts, in slices of work.
//!
//! The private layer has only what the sandbox has changed. So a large project with few changes is cheap. The server
//! compares the entries with the host's folder, which this end does not see.
//!
//! A removed entry is a *whiteout*: a character device with the number 0. A folder that hides the host's one is *opaque*,
//! by an extended attribute (the kernel's documentation of overlayfs).

mod side;

use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;
use sandcell_jail::paths::{LAYER_OF, MOUNT_LAYERS, UPPER_LAYER};
use sandcell_sandbox::{LayerEntry, MAX_LAYER_ENTRIES, MountEntryKind};

use self::side::Side;
use super::open::Root;
use super::{Step, errors, names};
use crate::protocol::{
    BODY_CHANNEL, MAX_TRANSFER, MountLayersEnd, OutBuffer, ProtocolError, ReadReply, SendWindow, WireError,
};

/// The maximum number of entries that one list reads.
const MAX_SCANNED: u64 = 400_000;

/// The maximum length of a path below a mount, in bytes. Longer ones cannot be opened at once.
const MAX_PATH_BYTES: usize = 4000;

/// The number of entries in one slice of work.
const SLICE_STEPS: usize = 128;

/// The bytes of the answer that are kept for its last line.
const END_BYTES: u64 = 128;

/// A list in progress.
pub(in crate::server) struct Layers {
    mounts: Vec<Mount>,
    /// Folders to read: the last one first.
    pending: Vec<Folder>,
    reading: Option<(Dir, Folder)>,
    max: usize,
    found: usize,
    scanned: u64,
    omitted: u64,
    /// The answer: a line for each entry.
    lines: Vec<u8>,
    /// The position in the complete answer. None while it is made.
    sent: Option<usize>,
    window: SendWindow,
}

/// The layer of one mount.
struct Mount {
    /// The path of the mount.
    path: String,
    upper: Side,
}

/// A folder of a layer to read.
struct Folder {
    mount: usize,
    /// Its path below the mount.
    path: Vec<u8>,
}

impl Layers {
    pub(super) fn new(root: &Root, max: usize) -> Self {
        let (mounts, omitted) = mounts(root);
        let pending = (0..mounts.len()).map(|mount| Folder {
            mount,
            path: Vec::new(),
        });
        Self {
            pending: pending.collect(),
            mounts,
            reading: None,
            max: max.min(MAX_LAYER_ENTRIES),
            found: 0,
            scanned: 0,
            omitted,
            lines: Vec::new(),
            sent: None,
            window: SendWindow::default(),
        }
    }

    pub(super) fn can_go_on(&self) -> bool {
        self.sent.is_none() || self.window.room() > 0
    }

    pub(super) fn refund(&mut self, amount: u32) -> Result<(), ProtocolError> {
        self.window.refund(amount)
    }

    pub(super) fn slice(&mut self, stream: u32, out: &mut OutBuffer) -> Step {
        if let Some(sent) = self.sent {
            return self.send(sent, stream, out);
        }
        for _ in 0..SLICE_STEPS {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => {
                    let end = MountLayersEnd { omitted: self.omitted };
                    // Writing to a vector cannot fail.
                    let _ = serde_json::to_writer(&mut self.lines, &end);
                    self.sent = Some(0);
                    break;
                }
                Err(error) => return Step::Failed(error),
            }
        }
        Step::Again
    }

    /// Sends at most one frame.
    fn send(&mut self, sent: usize, stream: u32, out: &mut OutBuffer) -> Step {
        let rest = self.lines.get(sent..).unwrap_or_default();
        let piece = rest.get(..self.window.room().min(rest.len())).unwrap_or_default();
        if rest.is_empty() {
            let total = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
            return Step::Read(ReadReply { total });
        }
        out.data(stream, BODY_CHANNEL, piece);
        self.window.spend(piece.len());
        self.sent = Some(sent + piece.len());
        Step::Again
    }

    /// Handles one entry. Returns false at the end.
    fn advance(&mut self) -> Result<bool, WireError> {
        let Some((dir, folder)) = &mut self.reading else {
            let Some(folder) = self.pending.pop() else {
                return Ok(false);
            };
            let opened = match self.mounts.get(folder.mount) {
                Some(mount) => mount.upper.folder(&folder.path).and_then(Dir::new),
                None => Err(Errno::NOENT),
            };
            match opened {
                Ok(dir) => self.reading = Some((dir, folder)),
                // Its mode forbids reading, or it has moved since it was listed.
                Err(_) => self.omitted += 1,
            }
            return Ok(true);
        };
        let name = match dir.read() {
            Some(Ok(entry)) => entry.file_name().to_bytes().to_vec(),
            Some(Err(Errno::INTR)) => return Ok(true),
            None => {
                self.reading = None;
                return Ok(true);
            }
            Some(Err(Errno::NOENT)) => {
                self.omitted += 1;
                self.reading = None;
                return Ok(true);
            }
            Some(Err(error)) => return Err(errors::of_file(error)),
        };
        if matches!(name.as_slice(), b"." | b"..") {
            return Ok(true);
        }
        self.scanned += 1;
        if self.scanned > MAX_SCANNED {
            self.omitted += 1;
            return Ok(false);
        }
        let mut path = folder.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let mount = folder.mount;
        match path.len() > MAX_PATH_BYTES {
            true => self.omitted += 1,
            false => self.add(mount, path),
        }
        Ok(true)
    }

    /// Adds an entry to the answer, if there is room, and its entries to the folders to read.
    fn add(&mut self, number: usize, path: Vec<u8>) {
        let Some(mount) = self.mounts.get(number) else { return };
        let entry = match mount.upper.entry(&path) {
            Ok(Some(entry)) => entry,
            // It was removed in the meantime.
            Ok(None) => return,
            Err(_) => {
                self.omitted += 1;
                return;
            }
        };
        let name = names::to_text(&path);
        let kind = entry.kind();
        let found = LayerEntry {
            escaped: name.as_bytes() != path || entry.is_escaped(),
            path: format!("{}/{name}", mount.path),
            copied: mount.upper.is_copied(&path, kind),
            hides: kind == MountEntryKind::Folder && mount.upper.is_opaque(&path),
            entry: (!entry.is_whiteout()).then(|| entry.describe()),
        };
        let start = self.lines.len();
        let written = serde_json::to_writer(&mut self.lines, &found).is_ok();
        self.lines.push(b'\n');
        let length = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
        if !written || self.found >= self.max || length > MAX_TRANSFER - END_BYTES {
            self.lines.truncate(start);
            self.omitted += 1;
        } else {
            self.found += 1;
        }
        if kind == MountEntryKind::Folder {
            self.pending.push(Folder { mount: number, path });
        }
    }
}

/// Opens the layers of all mounts. Returns the number of those that cannot be opened, too: without them the list is not
/// complete. Their folders are made with the sandbox, and code cannot change them.
fn mounts(root: &Root) -> (Vec<Mount>, u64) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut folders = match root.resolve(MOUNT_LAYERS, flags).and_then(Dir::new) {
        Ok(folders) => folders,
        // There are no such mounts.
        Err(Errno::NOENT) => return (Vec::new(), 0),
        Err(_) => return (Vec::new(), 1),
    };
    let (mut found, mut omitted) = (Vec::new(), 0);
    while let Some(entry) = folders.read() {
        let opened = entry.and_then(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.starts_with('.') {
                true => Ok(None),
                false => mount(root, &format!("{MOUNT_LAYERS}/{name}")).map(Some),
            }
        });
        match opened {
            Ok(mount) => found.extend(mount),
            Err(_) => omitted += 1,
        }
    }
    (found, omitted)
}

fn mount(root: &Root, path: &str) -> Result<Mount, Errno> {
    let upper: OwnedFd = root.resolve(&format!("{path}/{UPPER_LAYER}"), OFlags::RDONLY | OFlags::DIRECTORY)?;
    let link = root.resolve(&format!("{path}/{LAYER_OF}"), OFlags::PATH | OFlags::NOFOLLOW)?;
    let target = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(Mount {
        path: target.into_string().map_err(|_| Errno::ILSEQ)?,
        upper: Side::new(upper),
    })
}

/// Returns the type of an entry.
fn kind_of(mode: u32) -> MountEntryKind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => MountEntryKind::File,
        FileType::Directory => MountEntryKind::Folder,
        FileType::Symlink => MountEntryKind::Link,
        FileType::Fifo => MountEntryKind::Fifo,
        FileType::Socket => MountEntryKind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => MountEntryKind::Device,
    }
}
