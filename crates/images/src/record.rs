//! The unpacker's output: a stream of records. Each record is a head of fixed length, a name, a target, and content.
//!
//! The records are written inside a jail and read outside, where every byte is hostile. Lengths are checked before
//! anything is read, and names are checked part by part.

use std::io::{self, Read, Write};

use crate::error::ImageError;

const HEAD_BYTES: usize = 14;
/// The maximum length of a path in bytes, of one part of a path in bytes, and the maximum number of parts.
const PATH_MAX: usize = 4095;
const PART_MAX: usize = 255;
pub(crate) const DEPTH_MAX: usize = 100;
/// The maximum size of the summary in the last record.
pub(crate) const END_MAX: u64 = 4096;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Folder,
    File,
    Symlink,
    HardLink,
    /// The entry of a lower layer at this path is deleted.
    Whiteout,
    /// All entries of lower layers in this folder are deleted.
    Opaque,
    /// The last record. Its content is a summary.
    End,
}

impl RecordKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Folder => b'd',
            Self::File => b'f',
            Self::Symlink => b'l',
            Self::HardLink => b'h',
            Self::Whiteout => b'w',
            Self::Opaque => b'o',
            Self::End => b'e',
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            b'd' => Self::Folder,
            b'f' => Self::File,
            b'l' => Self::Symlink,
            b'h' => Self::HardLink,
            b'w' => Self::Whiteout,
            b'o' => Self::Opaque,
            b'e' => Self::End,
            _ => return None,
        })
    }
}

/// A record without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) runs: bool,
    pub(crate) path: Path,
    /// The target of a symbolic link, unchanged, or the path of a hard link's target.
    pub(crate) target: Vec<u8>,
    /// The size of the content that follows, in bytes.
    pub(crate) size: u64,
}

/// A relative path without `..`. The empty path is the root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Path(Vec<u8>);

impl Path {
    /// Parses a name from an archive. Leading slashes and `.` are dropped. Names with `..` and names above the length
    /// limits are errors.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        for part in text.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err("a name contains .."),
                part if part.len() > PART_MAX => return Err("a part of a name has more than 255 bytes"),
                part if part.contains(&0) => return Err("a name has a zero byte"),
                part => parts.push(part),
            }
        }
        let path = parts.join(&b'/');
        if path.len() > PATH_MAX || parts.len() > DEPTH_MAX {
            return Err("a name has more than 4095 bytes or 100 parts");
        }
        Ok(Self(path))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// Returns the parent folder and the last part. Returns None for the root.
    pub(crate) fn split(&self) -> Option<(Self, &[u8])> {
        let cut = self.0.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = match cut {
            Some(at) => (self.0.get(..at)?, self.0.get(at + 1..)?),
            None => (&[][..], self.0.as_slice()),
        };
        (!name.is_empty()).then(|| (Self(folder.to_vec()), name))
    }

    /// Returns the path of a child. `name` is one part.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let bytes: Option<Vec<u8>> = text
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        Self::parse(&bytes?).ok()
    }
}

impl Record {
    pub(crate) fn new(kind: RecordKind, path: Path) -> Self {
        Self {
            kind,
            runs: false,
            path,
            target: Vec::new(),
            size: 0,
        }
    }

    pub(crate) fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let name = u16::try_from(self.path.0.len()).map_err(too_long)?;
        let target = u16::try_from(self.target.len()).map_err(too_long)?;
        to.write_all(&[self.kind.byte(), u8::from(self.runs)])?;
        to.write_all(&name.to_be_bytes())?;
        to.write_all(&target.to_be_bytes())?;
        to.write_all(&self.size.to_be_bytes())?;
        to.write_all(&self.path.0)?;
        to.write_all(&self.target)
    }

    pub(crate) fn read(from: &mut dyn Read) -> Result<Self, ImageError> {
        let wrong = |reason: &str| ImageError::Unpack(reason.to_owned());
        let cut = |_| wrong("the unpacker's output is truncated");
        let mut head = [0; HEAD_BYTES];
        from.read_exact(&mut head).map_err(cut)?;
        let [kind, runs, n1, n0, t1, t0, size @ ..] = head;
        let kind = RecordKind::of(kind).ok_or_else(|| wrong("the unpacker's output has an unknown record"))?;
        let mut name = vec![0; usize::from(u16::from_be_bytes([n1, n0]))];
        let mut target = vec![0; usize::from(u16::from_be_bytes([t1, t0]))];
        from.read_exact(&mut name).map_err(cut)?;
        from.read_exact(&mut target).map_err(cut)?;
        let record = Self {
            kind,
            runs: runs != 0,
            path: Path::parse(&name).map_err(wrong)?,
            target,
            size: u64::from_be_bytes(size),
        };
        let has_content = matches!(kind, RecordKind::File | RecordKind::End);
        let links = matches!(kind, RecordKind::Symlink | RecordKind::HardLink);
        let sound_target = !record.target.is_empty() && record.target.len() <= PATH_MAX && !record.target.contains(&0);
        let fits = (has_content || record.size == 0)
            && (sound_target == links)
            && (record.path.is_root() == (kind == RecordKind::End) || kind == RecordKind::Opaque);
        if fits {
            Ok(record)
        } else {
            Err(wrong("the unpacker contradicts itself"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_never_lead_upwards() {
        for (text, path) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("/etc/passwd", "etc/passwd"),
            ("", ""),
            ("./", ""),
            ("...", "..."),
        ] {
            assert_eq!(Path::parse(text.as_bytes()).unwrap().as_bytes(), path.as_bytes());
        }
        let long = "a".repeat(256);
        let deep = "a/".repeat(101);
        let wide = format!("{}/", "a".repeat(255)).repeat(17);
        for bad in ["..", "a/../b", "../../x", "a/..", "a\0b", &long, &deep, &wide] {
            assert!(Path::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn records_are_read_back_unchanged() {
        let mut link = Record::new(RecordKind::Symlink, Path::parse(b"a/l").unwrap());
        link.target = b"/etc/passwd".to_vec();
        let mut file = Record::new(RecordKind::File, Path::parse(b"\xff/f").unwrap());
        file.size = 7;
        file.runs = true;
        for record in [link, file, Record::new(RecordKind::Opaque, Path::default())] {
            let mut bytes = Vec::new();
            record.write(&mut bytes).unwrap();
            assert_eq!(Record::read(&mut bytes.as_slice()).unwrap(), record);
            bytes.pop();
            assert!(Record::read(&mut bytes.as_slice()).is_err());
        }
    }

    #[test]
    fn records_that_contradict_themselves_are_refused() {
        for (kind, path, target, size) in [
            (RecordKind::File, "", "", 0),
            (RecordKind::Folder, "a", "", 5),
            (RecordKind::Symlink, "a", "", 0),
            (RecordKind::File, "a", "x", 0),
            (RecordKind::End, "a", "", 0),
            (RecordKind::Symlink, "a", "x\0y", 0),
        ] {
            let mut record = Record::new(kind, Path::parse(path.as_bytes()).unwrap());
            record.target = target.as_bytes().to_vec();
            record.size = size;
            let mut bytes = Vec::new();
            record.write(&mut bytes).unwrap();
            assert!(Record::read(&mut bytes.as_slice()).is_err(), "{record:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_decode_to_a_path_outside_the_folder(bytes: Vec<u8>) {
            if let Ok(record) = Record::read(&mut bytes.as_slice()) {
                prop_assert!(record.path.parts().all(|part| part != b".." && !part.contains(&b'/')));
            }
        }

        #[test]
        fn an_encoded_path_decodes_to_the_original(bytes: Vec<u8>) {
            if let Ok(path) = Path::parse(&bytes) {
                prop_assert_eq!(Path::from_hex(&path.to_hex()), Some(path));
            }
        }
    }
}
