//! Archives, the form in which files get into containers.

use std::io::{self, Read as _, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use tar::{Archive, Builder, EntryType, Header};
use tokio::sync::mpsc;

/// The bytes of an archive that are sent at once.
const PIECE_BYTES: usize = 256 << 10;
/// The maximum depth of folders.
const MAX_DEPTH: usize = 64;
/// The maximum size of an archive of one program without the program: headers, padding and end.
pub(crate) const MAX_OVERHEAD_BYTES: usize = 32 << 10;

/// Returns the header of an entry. The owner is root, and no sandbox runs as root. `modified` is in seconds since 1970.
fn header(kind: EntryType, mode: u32, size: u64, modified: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    // The agent reads octal numbers, of which a header has room for eleven digits (until the year 2242).
    header.set_mtime(modified.min((8 << 30) - 1));
    header
}

/// Returns an archive of one program.
pub(crate) fn of_program(name: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let mut archive = Builder::new(Vec::with_capacity(bytes.len() + MAX_OVERHEAD_BYTES));
    archive.append_data(&mut header(EntryType::Regular, 0o755, size, 0), name, bytes)?;
    archive.into_inner()
}

/// Returns true if the first entry of the archive is this program, and everybody may run it.
pub(crate) fn starts_with_program(archive: &[u8], program: &[u8]) -> bool {
    let first = || -> io::Result<bool> {
        let mut archive = Archive::new(archive);
        let Some(mut entry) = archive.entries()?.next().transpose()? else {
            return Ok(false);
        };
        let is_executable = entry.header().entry_type().is_file() && entry.header().mode()? & 0o777 == 0o755;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        Ok(is_executable && content == program)
    };
    first().unwrap_or(false)
}

/// The part of a folder that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FolderContent {
    /// Its regular files and folders.
    Files,
    /// Its regular files, folders and links. `world_readable_only`: only those that everybody may read.
    Copy { world_readable_only: bool },
}

/// Sends an archive of a folder, which is called `name` in it. Blocks; ends early when the receiver is dropped.
pub(crate) fn of_folder(
    folder: &Path,
    name: &str,
    content: FolderContent,
    pieces: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut archive = Builder::new(PieceWriter {
        pieces: Some(pieces),
        buffer: Vec::new(),
    });
    let added = add(folder, Path::new(name), 0, content, &mut archive);
    if added.is_err() {
        // The builder ends the archive when it is dropped. An incomplete archive must not look complete.
        archive.get_mut().pieces = None;
    }
    added?;
    archive.into_inner()?.flush()
}

/// Sends what is written in pieces.
struct PieceWriter<'a> {
    /// None after an error.
    pieces: Option<&'a mpsc::Sender<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for PieceWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = PIECE_BYTES.saturating_sub(self.buffer.len());
        let (taken, _) = bytes.split_at(free.min(bytes.len()));
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.buffer);
        if piece.is_empty() {
            return Ok(());
        }
        let sent = self.pieces.map(|pieces| pieces.blocking_send(piece.into()));
        sent.and_then(Result::ok)
            .ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

fn add(
    path: &Path,
    name: &Path,
    depth: usize,
    content: FolderContent,
    archive: &mut Builder<PieceWriter<'_>>,
) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("folders are nested too deeply"));
    }
    let about = path.symlink_metadata()?;
    let modified = about
        .modified()?
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    if about.is_symlink() && matches!(content, FolderContent::Copy { .. }) {
        let mut header = header(EntryType::Symlink, 0o777, 0, modified);
        return archive.append_link(&mut header, name, path.read_link()?);
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
        archive.append_data(&mut header(EntryType::Directory, 0o755, 0, modified), name, io::empty())?;
        let mut entries: Vec<_> = path.read_dir()?.collect::<io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            add(
                &entry.path(),
                &name.join(entry.file_name()),
                depth + 1,
                content,
                archive,
            )?;
        }
        return Ok(());
    }
    if !about.is_file() {
        return Ok(());
    }
    let mode = if own::executable(&about) { 0o755 } else { 0o644 };
    let mut file = std::fs::File::open(path)?.take(about.len());
    archive.append_data(
        &mut header(EntryType::Regular, mode, about.len(), modified),
        name,
        &mut file,
    )?;
    if file.limit() > 0 {
        return Err(io::Error::other("a file changed while it was read"));
    }
    Ok(())
}

/// File metadata on Unix.
#[cfg(unix)]
mod own {
    use std::fs::Metadata;
    use std::os::unix::fs::MetadataExt as _;

    pub(crate) fn world_readable_only(about: &Metadata) -> bool {
        let needed = if about.is_dir() { 0o005 } else { 0o004 };
        about.mode() & needed == needed
    }

    pub(crate) fn executable(about: &Metadata) -> bool {
        about.mode() & 0o100 != 0
    }
}

/// File metadata on systems without Unix modes.
#[cfg(not(unix))]
mod own {
    use std::fs::Metadata;

    pub(crate) const fn world_readable_only(_about: &Metadata) -> bool {
        true
    }

    /// Docker also makes all files from Windows executable, so a project's scripts can be started.
    pub(crate) const fn executable(_about: &Metadata) -> bool {
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
        assert_eq!(archive.len() % 512, 0);
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
        std::fs::write(&file, of_program("agent", b"#!/bin/sh\necho hi\n").unwrap()).unwrap();
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
    fn a_dropped_reader_ends_the_writing() {
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

    /// Returns a line for each entry of the folder's archive: kind, mode, size, name and target.
    fn entries_of(folder: &Path, content: FolderContent) -> Vec<String> {
        let (sender, mut receiver) = mpsc::channel(1000);
        of_folder(folder, ".", content, &sender).unwrap();
        let mut bytes = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            bytes.extend_from_slice(&piece);
        }
        let line = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
            let entry = entry.unwrap();
            let (header, size, name) = (entry.header(), entry.size(), entry.path().unwrap());
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            let target = entry.link_name().unwrap().unwrap_or_default();
            let (kind, mode) = (header.entry_type(), header.mode().unwrap());
            format!("{kind:?} {mode:o} {size} {} {}", name.display(), target.display())
        };
        Archive::new(bytes.as_slice()).entries().unwrap().map(line).collect()
    }

    #[test]
    fn a_copy_holds_links_with_long_names_and_targets_and_only_what_everybody_may_read() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (long, far) = ("l".repeat(200), "../t".repeat(60));
        symlink("/etc/passwd", place.path().join("absolute")).unwrap();
        symlink(&far, place.path().join(&long)).unwrap();
        let put = |name: &str, mode| {
            std::fs::write(place.path().join(name), "12345").unwrap();
            std::fs::set_permissions(place.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        put("program", 0o775);
        put("secret", 0o640);
        put("text", 0o604);
        let content = FolderContent::Copy {
            world_readable_only: true,
        };
        assert_eq!(
            entries_of(place.path(), content),
            [
                "Directory 755 0 . ".to_owned(),
                "Symlink 777 0 absolute /etc/passwd".to_owned(),
                format!("Symlink 777 0 ./{long} {far}"),
                "Regular 755 5 program ".to_owned(),
                "Regular 644 5 text ".to_owned(),
            ]
        );
    }

    /// The agent in a sandbox does not use the crate `tar` to unpack archives, so the two must agree.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_agent_unpacks_what_is_written_here() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        let (long, far) = ("l".repeat(200), "../t/".repeat(60));
        std::fs::create_dir_all(from.join(&long)).unwrap();
        symlink(&far, from.join(&long).join("link")).unwrap();
        std::fs::write(from.join(&long).join("program"), [b'x'; 1000]).unwrap();
        std::fs::set_permissions(from.join(&long).join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(from.join("empty"), "").unwrap();
        let far_future = UNIX_EPOCH + std::time::Duration::from_secs(9_000_000_000);
        let dated = std::fs::File::options().write(true).open(from.join("empty")).unwrap();
        dated.set_modified(far_future).unwrap();
        let (sender, mut receiver) = mpsc::channel(1000);
        let content = FolderContent::Copy {
            world_readable_only: false,
        };
        of_folder(&from, ".", content, &sender).unwrap();
        let mut archive = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            archive.extend_from_slice(&piece);
        }
        let to = place.path().join("to");
        std::fs::create_dir(&to).unwrap();
        sandcell_agent::unpack::unpack(archive.as_slice(), &to).unwrap();
        let target = to.join(&long).join("link").read_link().unwrap();
        assert_eq!(target.to_str(), Some(far.as_str()));
        assert_eq!(std::fs::read(to.join(&long).join("program")).unwrap(), [b'x'; 1000]);
        let about = |folder: &Path| folder.join(&long).join("program").metadata().unwrap();
        assert_eq!(about(&to).permissions().mode() & 0o777, 0o755);
        let seconds = |folder: &Path| {
            about(folder)
                .modified()
                .unwrap()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs()
        };
        assert_eq!(seconds(&to), seconds(&from));
        assert_eq!(std::fs::read(to.join("empty")).unwrap(), b"");
    }

    #[test]
    fn an_archive_that_failed_has_no_end() {
        let place = tempfile::tempdir().unwrap();
        let deep = (0..=MAX_DEPTH).fold(place.path().to_owned(), |folder, _| folder.join("d"));
        std::fs::create_dir_all(deep).unwrap();
        let (sender, mut receiver) = mpsc::channel(1000);
        let failed = of_folder(place.path(), ".", FolderContent::Files, &sender).unwrap_err();
        assert!(failed.to_string().contains("too deep"), "{failed}");
        drop(sender);
        while let Ok(piece) = receiver.try_recv() {
            assert!(!piece.ends_with(&[0; 1024]));
        }
    }

    #[test]
    fn a_program_is_told_from_another_one_and_from_one_that_nobody_may_run() {
        let archive = of_program("agent", b"program").unwrap();
        assert!(starts_with_program(&archive, b"program"));
        for other in [&b"programs"[..], b"prog", b"", b"Program"] {
            assert!(!starts_with_program(&archive, other), "{other:?}");
        }
        assert!(!starts_with_program(&archive[..515], b"program") && !starts_with_program(&[], b""));
        let mut plain = Builder::new(Vec::new());
        let mut header = header(EntryType::Regular, 0o644, 7, 0);
        plain.append_data(&mut header, "agent", &b"program"[..]).unwrap();
        assert!(!starts_with_program(&plain.into_inner().unwrap(), b"program"));
    }
}
