//! Writes the installer's output into a draft folder that no sandbox uses yet.
//!
//! The stream comes from inside and is hostile. Each name is checked part by part. Only new regular files and folders
//! are created, never a link. Files and bytes are counted. So no name in the stream can lead out of the folder.

use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::{Buf as _, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

const PATH_MAX: usize = 1024;
const DEPTH_MAX: usize = 40;
const FILES_MAX: u32 = 300_000;

/// The reason that a stream is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("the installer's output is invalid: {0}")]
    Breach(&'static str),
    #[error("the packages unpack to more than {0} bytes")]
    TooLarge(u64),
    #[error("the packages have more than {FILES_MAX} files")]
    TooMany,
    #[error("the packages could not be written to {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The result of unpacking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u32,
    pub(crate) bytes: u64,
    /// SHA-256 of all names, modes and bytes, in order.
    pub(crate) hash: String,
}

/// Parses and writes the stream piece by piece.
pub(crate) struct Unpacker {
    root: PathBuf,
    limit: u64,
    buffer: BytesMut,
    open: Option<(std::fs::File, u64)>,
    made: std::collections::HashSet<PathBuf>,
    done: Unpacked,
    hash: Sha256,
    ended: bool,
}

const HEAD_BYTES: usize = 14;

impl Unpacker {
    /// Creates an unpacker for the folder `root`, which must not exist yet and is in a draft. `limit` is the maximum
    /// number of bytes.
    pub(crate) fn new(root: &Path, limit: u64) -> Self {
        Self {
            root: root.to_owned(),
            limit,
            buffer: BytesMut::new(),
            open: None,
            made: std::collections::HashSet::new(),
            done: Unpacked {
                files: 0,
                bytes: 0,
                hash: String::new(),
            },
            hash: Sha256::new(),
            ended: false,
        }
    }

    /// Adds the next piece of the stream.
    pub(crate) fn push(&mut self, piece: &Bytes) -> Result<(), UnpackError> {
        let mut piece = piece.clone();
        if self.buffer.is_empty() {
            // Most of a large file is written directly, without the buffer.
            self.fill(&mut piece)?;
        }
        self.buffer.extend_from_slice(&piece);
        while self.step()? {}
        Ok(())
    }

    /// Writes the available bytes of the open file.
    fn fill(&mut self, from: &mut Bytes) -> Result<(), UnpackError> {
        let Some((file, left)) = &mut self.open else {
            return Ok(());
        };
        let count = from.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        let part = from.split_to(count);
        file.write_all(&part).map_err(|source| UnpackError::Write {
            path: self.root.clone(),
            source,
        })?;
        self.hash.update(&part);
        *left -= u64::try_from(count).unwrap_or(0);
        if *left == 0 {
            self.open = None;
        }
        Ok(())
    }

    /// Handles one record or part of a file. Returns false if it needs more input.
    fn step(&mut self) -> Result<bool, UnpackError> {
        if self.open.is_some() {
            let mut all = self.buffer.split().freeze();
            self.fill(&mut all)?;
            self.buffer.extend_from_slice(&all);
            return Ok(self.open.is_none());
        }
        match self.buffer.first() {
            None => Ok(false),
            Some(_) if self.ended => Err(UnpackError::Breach("something follows its end")),
            Some(b'E') => self.end(),
            Some(b'F') => self.begin(),
            Some(_) => Err(UnpackError::Breach("an unknown record")),
        }
    }

    fn end(&mut self) -> Result<bool, UnpackError> {
        let Some((_, rest)) = self.buffer.split_first() else {
            return Ok(false);
        };
        let Some((count, _)) = rest.split_first_chunk::<4>() else {
            return Ok(false);
        };
        if u32::from_le_bytes(*count) != self.done.files {
            return Err(UnpackError::Breach("the number of files is wrong"));
        }
        self.buffer.advance(5);
        self.ended = true;
        Ok(true)
    }

    fn begin(&mut self) -> Result<bool, UnpackError> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(false);
        };
        let [_, a, b, c, d, executable, size @ ..] = *head;
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let size = u64::from_le_bytes(size);
        if length > PATH_MAX {
            return Err(UnpackError::Breach("a path is too long"));
        }
        let Some(name) = rest.get(..length) else {
            return Ok(false);
        };
        let path = harmless(name).ok_or(UnpackError::Breach("a path is not harmless"))?;
        self.done.bytes = self.done.bytes.saturating_add(size);
        if self.done.bytes > self.limit {
            return Err(UnpackError::TooLarge(self.limit));
        }
        self.done.files += 1;
        if self.done.files > FILES_MAX {
            return Err(UnpackError::TooMany);
        }
        let file = self.create(&path, executable == 1)?;
        self.hash.update([executable]);
        self.hash.update(size.to_le_bytes());
        self.hash.update(u64::try_from(length).unwrap_or(0).to_le_bytes());
        self.hash.update(path.as_os_str().as_encoded_bytes());
        self.buffer.advance(HEAD_BYTES + length);
        self.open = (size > 0).then_some((file, size));
        Ok(true)
    }

    fn create(&mut self, path: &Path, executable: bool) -> Result<std::fs::File, UnpackError> {
        let full = self.root.join(path);
        let failed = |source| UnpackError::Write {
            path: full.clone(),
            source,
        };
        if let Some(folder) = full.parent() {
            self.folder(folder).map_err(failed)?;
        }
        let mode = if executable { 0o555 } else { 0o444 };
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&full).map_err(failed)?;
        // Independent of the umask: sandboxes read the file as another user.
        file.set_permissions(std::fs::Permissions::from_mode(mode))
            .map_err(failed)?;
        Ok(file)
    }

    /// Creates a folder and its missing parents below the root.
    fn folder(&mut self, folder: &Path) -> io::Result<()> {
        if self.made.contains(folder) {
            return Ok(());
        }
        if folder != self.root
            && let Some(above) = folder.parent()
        {
            self.folder(above)?;
        }
        std::fs::create_dir(folder)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
        self.made.insert(folder.to_owned());
        Ok(())
    }

    /// Ends the stream, and returns the result.
    pub(crate) fn finish(mut self) -> Result<Unpacked, UnpackError> {
        if !self.ended || self.open.is_some() {
            return Err(UnpackError::Breach("it is truncated"));
        }
        let digest = self.hash.finalize();
        self.done.hash = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(self.done)
    }
}

/// Returns the path if every part of it is a plain name.
fn harmless(name: &[u8]) -> Option<PathBuf> {
    let text = std::str::from_utf8(name).ok()?;
    let parts: Vec<&str> = text.split('/').collect();
    let plain = |part: &&str| {
        !part.is_empty() && *part != "." && *part != ".." && part.len() <= 255 && !part.chars().any(char::is_control)
    };
    (parts.len() <= DEPTH_MAX && parts.iter().all(plain)).then(|| parts.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str, executable: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b'F'];
        bytes.extend(u32::try_from(path.len()).unwrap().to_le_bytes());
        bytes.push(executable);
        bytes.extend(u64::try_from(data.len()).unwrap().to_le_bytes());
        bytes.extend(path.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn end(count: u32) -> Vec<u8> {
        [b"E".as_slice(), &count.to_le_bytes()].concat()
    }

    fn unpack(stream: &[u8], pieces: usize, limit: u64) -> (tempfile::TempDir, Result<Unpacked, UnpackError>) {
        let folder = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(&folder.path().join("site"), limit);
        for piece in stream.chunks(pieces) {
            if let Err(error) = unpacker.push(&Bytes::copy_from_slice(piece)) {
                return (folder, Err(error));
            }
        }
        let done = unpacker.finish();
        (folder, done)
    }

    #[test]
    fn files_are_written_however_the_stream_is_cut() {
        let stream = [record("a/b.py", 0, b"x = 1"), record("bin/run", 1, b""), end(2)].concat();
        let mut hashes = Vec::new();
        for pieces in [1, 7, 1000] {
            let (folder, done) = unpack(&stream, pieces, 1000);
            let done = done.unwrap();
            assert_eq!((done.files, done.bytes), (2, 5));
            assert_eq!(std::fs::read(folder.path().join("site/a/b.py")).unwrap(), b"x = 1");
            hashes.push(done.hash);
        }
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_name_that_leaves_the_target_folder_is_refused() {
        for path in [
            "../x", "/etc/x", "a/../b", "a//b", "", ".", "a/./b", "a/", "a\0b", "a\nb",
        ] {
            let (folder, done) = unpack(&[record(path, 0, b"x"), end(1)].concat(), 1000, 1000);
            assert!(matches!(done, Err(UnpackError::Breach(_))), "{path:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{path:?}");
        }
    }

    #[test]
    fn truncated_repeated_and_oversized_entries_are_refused() {
        let one = record("a", 0, b"12345");
        assert!(unpack(&one, 1000, 1000).1.is_err(), "no end");
        assert!(
            unpack(&[one.clone(), end(2)].concat(), 1000, 1000).1.is_err(),
            "a wrong number"
        );
        assert!(
            unpack(&[one.clone(), one.clone(), end(2)].concat(), 1000, 1000)
                .1
                .is_err(),
            "twice"
        );
        assert!(
            unpack(&[one.clone(), end(1), b"x".to_vec()].concat(), 1000, 1000)
                .1
                .is_err(),
            "a rest"
        );
        assert!(matches!(
            unpack(&[one, end(1)].concat(), 1000, 4).1,
            Err(UnpackError::TooLarge(4))
        ));
        let mut huge = record("a", 0, b"");
        huge[6..14].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(unpack(&huge, 1000, 1000).1.is_err());
    }
}
