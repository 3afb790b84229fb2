//! The file: appended to under a lock, its end read again whenever somebody else wrote, and put aside when it is large.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sandcell_engine::SecurityEvent;

use crate::line::{End, Entry};

/// Bytes that a line has at most.
pub(crate) const LINE: u64 = 16 << 10;

/// Why the log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened, read or written.
    #[error("the audit log {} cannot be used", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An event that is no JSON: a mistake of ours.
    #[error("an event cannot be written")]
    Event(#[source] serde_json::Error),
}

/// An audit log.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    /// Bytes of the log, what was put aside included.
    most: u64,
    open: Option<Open>,
}

/// What is known of the file since it was written last.
#[derive(Debug)]
struct Open {
    file: File,
    end: End,
    length: u64,
}

impl AuditFile {
    /// The log at this path; nothing is opened yet. `most` bounds the bytes of the log and of what was put aside.
    #[must_use]
    pub const fn new(path: PathBuf, most: u64) -> Self {
        Self { path, most, open: None }
    }

    /// Where the part is that was put aside.
    #[must_use]
    pub fn put_aside(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".1");
        PathBuf::from(name)
    }

    /// Writes an event, and waits until it is there.
    ///
    /// # Errors
    /// [`AuditError`].
    pub fn note(&mut self, event: &SecurityEvent) -> Result<(), AuditError> {
        self.append(&[Entry::of(event)])?;
        self.sync()
    }

    /// Writes entries, all or none.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> Result<(), AuditError> {
        let result = self.locked(|open| {
            let mut end = open.end.clone();
            let mut text = String::new();
            for entry in entries {
                text.push_str(&end.append(entry).map_err(AuditError::Event)?);
            }
            let written = open.file.write_all(text.as_bytes());
            if let Err(source) = written {
                // What of it is there would break the chain.
                let _as_it_was = open.file.set_len(open.length);
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

    /// Waits until what was written is on the disk.
    pub(crate) fn sync(&self) -> Result<(), AuditError> {
        match &self.open {
            Some(open) => self.told(open.file.sync_data()),
            None => Ok(()),
        }
    }

    fn told<T>(&self, result: io::Result<T>) -> Result<T, AuditError> {
        result.map_err(|source| AuditError::File {
            path: self.path.clone(),
            source,
        })
    }

    /// Does something while nobody else writes, with the chain's end at hand.
    fn locked<T>(&mut self, work: impl FnOnce(&mut Open) -> Result<T, AuditError>) -> Result<T, AuditError> {
        let locked = self.lock();
        let mut open = self.told(locked)?;
        if open.length > self.most / 2 {
            // The next line goes on with the chain, in a new file.
            self.told(std::fs::rename(&self.path, Self::put_aside(&self.path)))?;
            let end = open.end.clone();
            let locked = self.lock();
            open = self.told(locked)?;
            if open.length == 0 {
                open.end = end;
            }
        }
        let result = work(&mut open);
        self.told(flock(&open.file, FlockOperation::Unlock).map_err(io::Error::from))?;
        self.open = Some(open);
        result.map_err(|error| match error {
            AuditError::File { source, .. } => AuditError::File {
                path: self.path.clone(),
                source,
            },
            other => other,
        })
    }

    /// The file that has the name now, locked, and its end.
    fn lock(&mut self) -> io::Result<Open> {
        // Each time that the file was put aside by somebody else in between, another one has the name.
        for _ in 0..100 {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => Open {
                    file: self.open_file()?,
                    end: End::default(),
                    // Not known: its end is read in any case.
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

    /// Finds the end of the chain. Half a line, left by a process that was killed or a disk that was full, is taken away,
    /// and the next line says so.
    fn read_end(&self, open: &mut Open, length: u64) -> io::Result<()> {
        let from = length.saturating_sub(2 * LINE);
        let mut bytes = Vec::new();
        open.file.seek(SeekFrom::Start(from))?;
        (&open.file).take(2 * LINE).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn = bytes.len() - whole;
        bytes.truncate(whole);
        open.length = length - u64::try_from(torn).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes);
        open.end = match text.lines().next_back() {
            Some(line) => End::of(line).unwrap_or_default(),
            None if from == 0 => self.end_of_put_aside(),
            None => End::default(),
        };
        if torn > 0 {
            open.file.set_len(open.length)?;
            let entry = Entry::own(
                "log_repaired",
                format!("{torn} bytes of an unfinished line were taken away"),
            );
            let line = open.end.append(&entry).map_err(io::Error::other)?;
            open.file.write_all(line.as_bytes())?;
            open.length += u64::try_from(line.len()).unwrap_or(0);
        }
        Ok(())
    }

    /// A new file goes on where the one before ended.
    fn end_of_put_aside(&self) -> End {
        let read = || -> io::Result<Option<End>> {
            let mut file = File::open(Self::put_aside(&self.path))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(2 * LINE)))?;
            let mut bytes = Vec::new();
            file.take(2 * LINE).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).lines().next_back().and_then(End::of))
        };
        read().ok().flatten().unwrap_or_default()
    }
}
