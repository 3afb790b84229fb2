//! The unpacker: it reads a layer and writes records of its content. It runs in a separate sandbox, made for one
//! layer, because it decompresses and parses untrusted bytes.
//!
//! The unpacker omits everything that cannot be in a sandbox: device nodes and pipes (the summary counts them),
//! owners, attributes, capabilities, and the setuid and setgid bits. The reader of the records checks the names again.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::rc::Rc;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tar::EntryType;

use crate::manifest::Digest;
use crate::record::{Path, Record, RecordKind};

/// The kind of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A layer. Names that begin with `.wh.` delete entries of lower layers.
    Layer,
    /// An archive of `docker save`. All files are taken unchanged.
    Archive,
}

impl Kind {
    /// Returns the kind's name on the unpacker's command line.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Archive => "archive",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "layer" => Ok(Self::Layer),
            "archive" => Ok(Self::Archive),
            _ => Err("layer or archive".to_owned()),
        }
    }
}

/// The content of the last record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The digest of the decompressed stream.
    pub(crate) diff_id: Option<Digest>,
    /// The number of omitted device nodes, pipes and entries of unknown kinds.
    pub(crate) left_out: u64,
    /// The number of files with a setuid or setgid bit. They are unpacked without it.
    pub(crate) setuid: u64,
}

const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
const AUFS_PREFIX: &[u8] = b".wh..wh.";
const WHITEOUT_PREFIX: &[u8] = b".wh.";

/// Reads a tar stream, compressed by gzip or Zstandard or uncompressed, and writes records. The decompressed stream is
/// limited to `limit` bytes.
///
/// # Errors
/// A description of the problem.
pub fn unpack(kind: Kind, limit: u64, input: impl Read, output: &mut dyn Write) -> Result<(), String> {
    let hash = Rc::new(RefCell::new(Sha256::new()));
    let plain = decompressed(BufReader::with_capacity(256 << 10, input)).map_err(|error| error_text(&error))?;
    let mut hashed = Hashed {
        inner: plain,
        hash: Rc::clone(&hash),
        left: limit,
    };
    let mut summary = entries(kind, &mut hashed, output)?;
    // The digest also covers the bytes after the end of the archive.
    io::copy(&mut hashed, &mut io::sink()).map_err(|error| error_text(&error))?;
    drop(hashed);
    summary.diff_id = Some(Digest::finish(hash.take()));
    let text = serde_json::to_vec(&summary).map_err(|error| error.to_string())?;
    let mut end = Record::new(RecordKind::End, Path::default());
    end.size = u64::try_from(text.len()).unwrap_or(u64::MAX);
    end.write(output)
        .and_then(|()| output.write_all(&text))
        .and_then(|()| output.flush())
        .map_err(|error| error_text(&error))
}

fn error_text(error: &io::Error) -> String {
    error.to_string()
}

/// Decompresses by the magic number of the input. The media type in the manifest is ignored.
fn decompressed<'a>(mut input: BufReader<impl Read + 'a>) -> io::Result<Box<dyn Read + 'a>> {
    let head = input.fill_buf()?;
    Ok(if head.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(input))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(Frames {
            input,
            decoder: ruzstd::decoding::FrameDecoder::new(),
            open: false,
        })
    } else {
        Box::new(input)
    })
}

/// Decodes a sequence of Zstandard frames. Skippable frames contain no data and are skipped.
struct Frames<R> {
    input: R,
    decoder: ruzstd::decoding::FrameDecoder,
    open: bool,
}

impl<R: BufRead> Frames<R> {
    /// Begins the next frame. Returns false at the end.
    fn next(&mut self) -> io::Result<bool> {
        use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut (&mut self.input).take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(broken(&error)),
            }
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        use ruzstd::decoding::BlockDecodingStrategy;
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.open {
                if !self.next()? {
                    return Ok(0);
                }
                self.open = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let most = BlockDecodingStrategy::UptoBytes(128 << 10);
                self.decoder
                    .decode_blocks(&mut self.input, most)
                    .map_err(|error| broken(&error))?;
            }
            let read = self.decoder.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            self.open = false;
        }
    }
}

/// Counts and hashes all bytes that are read.
struct Hashed<R> {
    inner: R,
    hash: Rc<RefCell<Sha256>>,
    left: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        let count = u64::try_from(read).unwrap_or(u64::MAX);
        self.left = self
            .left
            .checked_sub(count)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it unpacks to more than is allowed"))?;
        self.hash.borrow_mut().update(into.get(..read).unwrap_or_default());
        Ok(read)
    }
}

fn entries(kind: Kind, input: &mut dyn Read, output: &mut dyn Write) -> Result<Summary, String> {
    let mut summary = Summary::default();
    let mut archive = tar::Archive::new(input);
    for entry in archive.entries().map_err(|error| error_text(&error))? {
        let mut entry = entry.map_err(|error| error_text(&error))?;
        if is_sparse_by_pax(&mut entry)? {
            return Err("it has a sparse file in an unsupported format".to_owned());
        }
        let path = Path::parse(&entry.path_bytes()).map_err(str::to_owned)?;
        let record_kind = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => RecordKind::File,
            EntryType::Directory => RecordKind::Folder,
            EntryType::Symlink => RecordKind::Symlink,
            EntryType::Link => RecordKind::HardLink,
            EntryType::XGlobalHeader => continue,
            _ => {
                summary.left_out += 1;
                continue;
            }
        };
        let record = match kind {
            Kind::Layer => match whiteout(&path)? {
                Whiteout::None => Record::new(record_kind, path),
                Whiteout::Ignored => continue,
                Whiteout::Of(record_kind, path) => {
                    Record::new(record_kind, path)
                        .write(output)
                        .map_err(|error| error_text(&error))?;
                    continue;
                }
            },
            Kind::Archive => Record::new(record_kind, path),
        };
        // The root exists already.
        if record.path.is_root() {
            continue;
        }
        write_record(record, &mut entry, output, &mut summary)?;
    }
    Ok(summary)
}

/// Returns true for a sparse file in the pax format. Its content begins with a map of its holes, which would become
/// part of the file.
fn is_sparse_by_pax(entry: &mut tar::Entry<'_, impl Read>) -> Result<bool, String> {
    let Some(extensions) = entry.pax_extensions().map_err(|error| error_text(&error))? else {
        return Ok(false);
    };
    for extension in extensions {
        let extension = extension.map_err(|error| error_text(&error))?;
        if extension.key_bytes().starts_with(b"GNU.sparse.") {
            return Ok(true);
        }
    }
    Ok(false)
}

enum Whiteout {
    None,
    Ignored,
    Of(RecordKind, Path),
}

fn whiteout(path: &Path) -> Result<Whiteout, String> {
    let Some((folder, name)) = path.split() else {
        return Ok(Whiteout::None);
    };
    if name == OPAQUE_NAME {
        return Ok(Whiteout::Of(RecordKind::Opaque, folder));
    }
    if path.parts().any(|part| part.starts_with(AUFS_PREFIX)) {
        return Ok(Whiteout::Ignored);
    }
    match name.strip_prefix(WHITEOUT_PREFIX) {
        None => Ok(Whiteout::None),
        Some(b"" | b"." | b"..") => Err("a whiteout removes a name outside its folder".to_owned()),
        Some(name) => Ok(Whiteout::Of(RecordKind::Whiteout, folder.child(name))),
    }
}

fn write_record(
    mut record: Record,
    entry: &mut tar::Entry<'_, impl Read>,
    output: &mut dyn Write,
    summary: &mut Summary,
) -> Result<(), String> {
    let mode = entry.header().mode().map_err(|error| error_text(&error))?;
    record.runs = mode & 0o111 != 0;
    if matches!(record.kind, RecordKind::Symlink | RecordKind::HardLink) {
        let target = entry.link_name_bytes().ok_or("a link leads nowhere")?;
        record.target = match record.kind {
            RecordKind::HardLink => Path::parse(&target).map_err(str::to_owned)?.as_bytes().to_vec(),
            _ => target.into_owned(),
        };
        if record.target.is_empty() {
            return Err("a link leads nowhere".to_owned());
        }
    }
    if record.kind != RecordKind::File {
        return record.write(output).map_err(|error| error_text(&error));
    }
    if mode & 0o6000 != 0 {
        summary.setuid += 1;
    }
    record.size = entry.size();
    record.write(output).map_err(|error| error_text(&error))?;
    let copied = io::copy(entry, output).map_err(|error| error_text(&error))?;
    if copied != record.size {
        return Err("a file is truncated".to_owned());
    }
    Ok(())
}

#[cfg(test)]
#[path = "inside_tests.rs"]
mod tests;
