//! A minimal tar writer: a daemon accepts files in no other form.

use std::io::{self, Read as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use tokio::sync::mpsc;

/// The size of an archive block in bytes.
pub(super) const BLOCK_BYTES: usize = 512;
/// The bytes of a file that are sent at once.
const PIECE_BYTES: usize = 256 << 10;
/// The maximum length of a name in a header.
const MAX_NAME_BYTES: usize = 100;
/// The maximum depth of folders.
const MAX_DEPTH: usize = 64;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File {
        size: u64,
        executable: bool,
    },
    Folder,
    Link,
    /// The name of the next entry, when it is too long for the header.
    LongName {
        size: u64,
    },
    /// The target of the next link, when it is too long for the header.
    LongLink {
        size: u64,
    },
}

/// Returns the header of an entry. `modified` is in seconds since 1970.
fn head(name: &[u8], kind: Kind, modified: u64) -> [u8; BLOCK_BYTES] {
    let (mode, size, letter) = match kind {
        Kind::File { size, executable: true } => ("0000755", size, "0"),
        Kind::File {
            size,
            executable: false,
        } => ("0000644", size, "0"),
        Kind::Folder => ("0000755", 0, "5"),
        Kind::Link => ("0000777", 0, "2"),
        Kind::LongName { size } => ("0000644", size, "L"),
        Kind::LongLink { size } => ("0000644", size, "K"),
    };
    let mut head = [0; BLOCK_BYTES];
    let mut field = |at: usize, len: usize, bytes: &[u8]| {
        for (place, byte) in head.iter_mut().skip(at).take(len).zip(bytes) {
            *place = *byte;
        }
    };
    field(0, MAX_NAME_BYTES, name);
    field(100, 8, mode.as_bytes());
    // The owner is root, and no sandbox runs as root.
    field(108, 8, b"0000000");
    field(116, 8, b"0000000");
    field(124, 12, number(size).as_bytes());
    field(136, 12, number(modified).as_bytes());
    field(156, 1, letter.as_bytes());
    field(257, 8, b"ustar  \0");
    seal(&mut head);
    head
}

/// Formats eleven octal digits: up to 8 GiB, more than any file here has.
fn number(number: u64) -> String {
    format!("{:011o}", number.min((8 << 30) - 1))
}

/// Returns the headers that an entry with this name needs.
pub(super) fn heads(name: &[u8], kind: Kind, modified: u64) -> Vec<u8> {
    let mut heads = Vec::with_capacity(BLOCK_BYTES);
    if name.len() > MAX_NAME_BYTES {
        let size = u64::try_from(name.len()).unwrap_or(u64::MAX);
        heads.extend_from_slice(&head(b"././@LongLink", Kind::LongName { size }, 0));
        heads.extend_from_slice(name);
        heads.resize(heads.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    heads.extend_from_slice(&head(name, kind, modified));
    heads
}

/// Returns the end of an archive.
pub(super) fn end() -> Bytes {
    Bytes::from_static(&[0; 2 * BLOCK_BYTES])
}

/// Returns an archive of one program.
pub(super) fn of_program(name: &str, bytes: &[u8]) -> Vec<u8> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let mut archive = heads(name.as_bytes(), Kind::File { size, executable: true }, 0);
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
    archive.extend_from_slice(&end());
    archive
}

/// The part of a folder that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderContent {
    /// Its regular files and folders.
    Files,
    /// Its regular files, folders and links. `world_readable_only`: only those that everybody may read.
    Copy { world_readable_only: bool },
}

/// Sends an archive of a folder, which is called `name` in it. Blocks; ends early when the receiver is dropped.
pub(super) fn of_folder(
    folder: &Path,
    name: &str,
    content: FolderContent,
    pieces: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    add(folder, name.as_bytes().to_vec(), 0, content, pieces)?;
    send(pieces, end())
}

/// Returns the header of a link.
fn link(name: &[u8], to: &[u8], modified: u64) -> Vec<u8> {
    let mut all = Vec::new();
    if to.len() > MAX_NAME_BYTES {
        let size = u64::try_from(to.len()).unwrap_or(u64::MAX);
        all.extend_from_slice(&head(b"././@LongLink", Kind::LongLink { size }, 0));
        all.extend_from_slice(to);
        all.resize(all.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    let mut own = heads(name, Kind::Link, modified);
    let start = own.len().saturating_sub(BLOCK_BYTES);
    if let Some(last) = own.get_mut(start..) {
        for (place, byte) in last.iter_mut().skip(157).take(MAX_NAME_BYTES).zip(to) {
            *place = *byte;
        }
        seal(last);
    }
    all.extend_from_slice(&own);
    all
}

/// Writes a header's checksum into it; the checksum counts its own field as spaces.
fn seal(head: &mut [u8]) {
    for place in head.iter_mut().skip(148).take(8) {
        *place = b' ';
    }
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    for (place, byte) in head.iter_mut().skip(148).zip(format!("{sum:06o}\0 ").bytes()) {
        *place = byte;
    }
}

fn send(pieces: &mpsc::Sender<Bytes>, piece: Bytes) -> io::Result<()> {
    pieces
        .blocking_send(piece)
        .map_err(|_| io::ErrorKind::BrokenPipe.into())
}

fn add(
    path: &Path,
    name: Vec<u8>,
    depth: usize,
    content: FolderContent,
    pieces: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("folders lie too deep in each other"));
    }
    let about = path.symlink_metadata()?;
    let modified = about
        .modified()?
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    if about.is_symlink() && matches!(content, FolderContent::Copy { .. }) {
        let to = path.read_link()?;
        return send(pieces, link(&name, &own::target(&to)?, modified).into());
    }
    if content
        == (FolderContent::Copy {
            world_readable_only: true,
        })
        && !own::world_readable_only(&about)
    {
        return Ok(());
    }
    if about.is_dir() {
        send(pieces, heads(&name, Kind::Folder, modified).into())?;
        let mut entries: Vec<_> = path.read_dir()?.collect::<io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let mut below = name.clone();
            below.push(b'/');
            below.extend_from_slice(&own::name(&entry.file_name())?);
            add(&entry.path(), below, depth + 1, content, pieces)?;
        }
        return Ok(());
    }
    if !about.is_file() {
        return Ok(());
    }
    let executable = own::executable(&about);
    let size = about.len();
    send(pieces, heads(&name, Kind::File { size, executable }, modified).into())?;
    let mut file = std::fs::File::open(path)?.take(size);
    let mut sent = 0_u64;
    loop {
        let mut piece = Vec::new();
        let read = file
            .by_ref()
            .take(PIECE_BYTES.try_into().unwrap_or(u64::MAX))
            .read_to_end(&mut piece)?;
        if read == 0 {
            break;
        }
        sent = sent.saturating_add(u64::try_from(read).unwrap_or(0));
        send(pieces, piece.into())?;
    }
    if sent != size {
        return Err(io::Error::other("a file changed while it was read"));
    }
    let padding = usize::try_from(size.next_multiple_of(512) - size).unwrap_or(0);
    match padding {
        0 => Ok(()),
        padding => send(pieces, vec![0; padding].into()),
    }
}

/// File metadata on Unix.
#[cfg(unix)]
mod own {
    use std::ffi::OsStr;
    use std::fs::Metadata;
    use std::io;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    pub(super) fn name(name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(name.as_bytes().to_vec())
    }

    /// Returns the target of a link.
    pub(super) fn target(to: &Path) -> io::Result<Vec<u8>> {
        name(to.as_os_str())
    }

    pub(super) fn world_readable_only(about: &Metadata) -> bool {
        let needed = if about.is_dir() { 0o005 } else { 0o004 };
        about.mode() & needed == needed
    }

    pub(super) fn executable(about: &Metadata) -> bool {
        about.mode() & 0o100 != 0
    }
}

/// File metadata on systems without Unix modes, whose names are text.
#[cfg(not(unix))]
mod own {
    use std::ffi::OsStr;
    use std::fs::Metadata;
    use std::io;
    use std::path::Path;

    pub(super) fn name(name: &OsStr) -> io::Result<Vec<u8>> {
        let text = name.to_str().ok_or_else(|| io::Error::other("a name is not Unicode"))?;
        Ok(text.as_bytes().to_vec())
    }

    /// Returns the target of a link, as a sandbox reads it.
    pub(super) fn target(to: &Path) -> io::Result<Vec<u8>> {
        let text = String::from_utf8(name(to.as_os_str())?).map_err(io::Error::other)?;
        Ok(text.replace('\\', "/").into_bytes())
    }

    pub(super) const fn world_readable_only(_about: &Metadata) -> bool {
        true
    }

    /// Docker also makes all files from Windows executable, so a project's scripts can be started.
    pub(super) const fn executable(_about: &Metadata) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_reads_what_is_written_here() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("from");
        let long = "a-long-name-".repeat(12);
        std::fs::create_dir_all(folder.join(&long)).unwrap();
        let big: Vec<u8> = (0..175_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(folder.join(&long).join("big"), &big).unwrap();
        std::fs::write(folder.join("empty"), "").unwrap();
        std::fs::write(folder.join("block"), [b'x'; 512]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).unwrap();
        let (sender, mut receiver) = mpsc::channel(4);
        let from = folder.clone();
        let writing = std::thread::spawn(move || of_folder(&from, "3", FolderContent::Files, &sender));
        let mut archive = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            archive.extend_from_slice(&piece);
        }
        writing.join().unwrap().unwrap();
        assert_eq!(archive.len() % BLOCK_BYTES, 0);
        let file = place.path().join("x.tar");
        std::fs::write(&file, &archive).unwrap();
        let to = place.path().join("to");
        std::fs::create_dir(&to).unwrap();
        assert!(
            Command::new("tar")
                .arg("-xf")
                .arg(&file)
                .arg("-C")
                .arg(&to)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(std::fs::read(to.join("3").join(&long).join("big")).unwrap(), big);
        assert_eq!(std::fs::read(to.join("3/block")).unwrap().len(), 512);
        assert_eq!(std::fs::read(to.join("3/empty")).unwrap().len(), 0);
        // A link is not a regular file, so it is not sent.
        assert!(!to.join("3/link").exists());
        let time = |path: &Path| {
            path.metadata()
                .unwrap()
                .modified()
                .unwrap()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
        };
        assert_eq!(
            time(&to.join("3/block")).as_secs(),
            time(&folder.join("block")).as_secs()
        );
    }

    #[test]
    fn a_program_can_be_run_out_of_its_archive() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.tar");
        std::fs::write(&file, of_program("agent", b"#!/bin/sh\necho hi\n")).unwrap();
        assert!(
            Command::new("tar")
                .arg("-xf")
                .arg(&file)
                .arg("-C")
                .arg(place.path())
                .status()
                .unwrap()
                .success()
        );
        let said = Command::new(place.path().join("agent")).output().unwrap();
        assert_eq!(said.stdout, b"hi\n");
    }

    #[test]
    fn nobody_who_takes_it_ends_the_writing() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("x"), vec![0; 5 << 20]).unwrap();
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        assert_eq!(
            of_folder(place.path(), "0", FolderContent::Files, &sender)
                .unwrap_err()
                .kind(),
            io::ErrorKind::BrokenPipe
        );
    }
}
