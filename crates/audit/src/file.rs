//! The log file. Each write holds a file lock. If another process wrote since, the end of the file is read again
//! first. A large file is rotated.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sandcell_engine::SecurityEvent;

use crate::line::{ChainEnd, Entry};

/// The maximum length of a line in bytes.
pub(crate) const MAX_LINE_BYTES: u64 = 16 << 10;

/// An error from writing or reading the log.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened, read or written.
    #[error("the audit log {} cannot be used", path.display())]
    File {
        /// The path of the log.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An event cannot be serialized as JSON. This is a bug in sandcell.
    #[error("an event cannot be written")]
    Event(#[source] serde_json::Error),
}

/// An audit log.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    /// The maximum size of the log in bytes, including the rotated file.
    max_bytes: u64,
    open: Option<OpenLog>,
}

/// The open file, and its end after this process's last write.
#[derive(Debug)]
struct OpenLog {
    file: File,
    end: ChainEnd,
    length: u64,
}

impl AuditFile {
    /// Returns the log at this path without opening it. `max_bytes` is the maximum size of the log and its rotated file
    /// together, in bytes.
    #[must_use]
    pub const fn new(path: PathBuf, max_bytes: u64) -> Self {
        Self {
            path,
            max_bytes,
            open: None,
        }
    }

    /// Returns the path of the rotated file.
    #[must_use]
    pub fn rotated_path(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".1");
        PathBuf::from(name)
    }

    /// Writes an event, and waits until it is on the disk.
    ///
    /// # Errors
    /// The file cannot be used, or the event cannot be serialized.
    pub fn note(&mut self, event: &SecurityEvent) -> Result<(), AuditError> {
        self.append(&[Entry::of(event)])?;
        self.sync()
    }

    /// Writes all of these entries, or none.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), AuditError> {
        let result = self.locked(|open| {
            let mut end = open.end.clone();
            let mut text = String::new();
            for entry in entries {
                text.push_str(&end.append(entry).map_err(AuditError::Event)?);
            }
            let written = open.file.write_all(text.as_bytes());
            if let Err(source) = written {
                // A partly written line would break the chain.
                let _truncated = open.file.set_len(open.length);
                return Err(AuditError::File {
                    path: PathBuf::new(),
                    source,
                });
            }
            open.end = end;
            open.length += u64::try_from(text.len()).unwrap_or(u64::MAX);
            Ok(())
        });
        if result.is_err() {
            self.open = None;
        }
        result
    }

    /// Waits until all written entries are on the disk.
    pub(crate) fn sync(&self) -> Result<(), AuditError> {
        match &self.open {
            Some(open) => self.wrap_error(open.file.sync_data()),
            None => Ok(()),
        }
    }

    fn wrap_error<T>(&self, result: io::Result<T>) -> Result<T, AuditError> {
        result.map_err(|source| AuditError::File {
            path: self.path.clone(),
            source,
        })
    }

    /// Runs `work` under the file lock, with the current end of the chain.
    fn locked<T>(&mut self, work: impl FnOnce(&mut OpenLog) -> Result<T, AuditError>) -> Result<T, AuditError> {
        let locked = self.lock();
        let mut open = self.wrap_error(locked)?;
        if open.length > self.max_bytes / 2 {
            // The new file continues the chain.
            self.wrap_error(std::fs::rename(&self.path, Self::rotated_path(&self.path)))?;
            let end = open.end.clone();
            let locked = self.lock();
            open = self.wrap_error(locked)?;
            if open.length == 0 {
                open.end = end;
            }
        }
        let result = work(&mut open);
        self.wrap_error(flock(&open.file, FlockOperation::Unlock).map_err(io::Error::from))?;
        self.open = Some(open);
        result.map_err(|error| match error {
            AuditError::File { source, .. } => AuditError::File {
                path: self.path.clone(),
                source,
            },
            other => other,
        })
    }

    /// Locks the file that is at the path now, and finds its end.
    fn lock(&mut self) -> io::Result<OpenLog> {
        // Another process may rotate the file between the open and the lock. Then a different file is at the path, and
        // this loop opens that one.
        for _ in 0..100 {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => OpenLog {
                    file: self.open_file()?,
                    end: ChainEnd::default(),
                    // No file has this length, so the end is read.
                    length: u64::MAX,
                },
            };
            flock(&open.file, FlockOperation::LockExclusive)?;
            let own = open.file.metadata()?;
            let named = std::fs::metadata(&self.path);
            if !named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino())) {
                continue;
            }
            if own.len() != open.length {
                self.read_end(&mut open, own.len())?;
            }
            return Ok(open);
        }
        Err(io::Error::other("it is replaced again and again"))
    }

    fn open_file(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)
    }

    /// Finds the end of the chain. A killed process or a full disk can leave an unfinished line. That line is removed,
    /// and a `log_repaired` line records the removal.
    fn read_end(&self, open: &mut OpenLog, length: u64) -> io::Result<()> {
        let from = length.saturating_sub(2 * MAX_LINE_BYTES);
        let mut bytes = Vec::new();
        open.file.seek(SeekFrom::Start(from))?;
        (&open.file).take(2 * MAX_LINE_BYTES).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn = bytes.len() - whole;
        bytes.truncate(whole);
        open.length = length - u64::try_from(torn).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes);
        open.end = match text.lines().next_back() {
            Some(line) => ChainEnd::of(line).unwrap_or_default(),
            None if from == 0 => self.end_of_rotated(),
            None => ChainEnd::default(),
        };
        if torn > 0 {
            open.file.set_len(open.length)?;
            let entry = Entry::about_log(
                "log_repaired",
                format!("{torn} bytes of an unfinished line were taken away"),
            );
            let line = open.end.append(&entry).map_err(io::Error::other)?;
            open.file.write_all(line.as_bytes())?;
            open.length += u64::try_from(line.len()).unwrap_or(0);
        }
        Ok(())
    }

    /// Returns the end of the rotated file's chain, which a new file continues.
    fn end_of_rotated(&self) -> ChainEnd {
        let read = || -> io::Result<Option<ChainEnd>> {
            let mut file = File::open(Self::rotated_path(&self.path))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(2 * MAX_LINE_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(2 * MAX_LINE_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes)
                .lines()
                .next_back()
                .and_then(ChainEnd::of))
        };
        read().ok().flatten().unwrap_or_default()
    }
}
