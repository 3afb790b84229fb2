//! Metadata of files: names and values that an upload gives a file.
//!
//! E2B keeps them as extended attributes. Programs in a sandbox cannot set these, so this server keeps the metadata of the
//! newest uploads, by path. They follow calls of the API, and not what programs do with the file.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::HeaderMap;
use sandcell_sandbox::SandboxPath;

use crate::problem::Problem;

/// The beginning of the names of the headers.
const HEADER_PREFIX: &str = "x-metadata-";
/// The beginning of the names of the attributes at E2B. It counts for the size.
const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// The maximum length of a name.
const MAX_NAME_BYTES: usize = 246;
/// The maximum size of the metadata of a file.
const MAX_FILE_BYTES: usize = 4096;
/// The maximum size of the metadata of all files of a sandbox. The oldest are dropped first.
const MAX_BYTES: usize = 2 << 20;
/// The size of a file's metadata in addition to their names and values.
const FILE_BYTES: usize = 2048;

/// The metadata of a file.
pub(crate) type Metadata = BTreeMap<String, String>;

/// The metadata of the files of a sandbox.
#[derive(Default)]
pub(crate) struct FileMetadata(Mutex<Table>);

#[derive(Default, Clone)]
struct Table {
    files: BTreeMap<String, Kept>,
    bytes: usize,
    last: u64,
}

#[derive(Clone)]
struct Kept {
    metadata: Metadata,
    /// Newer metadata have larger numbers.
    number: u64,
}

/// Reads the metadata of an upload from the headers of its request.
pub(crate) fn of_request(headers: &HeaderMap) -> Result<Metadata, Problem> {
    let mut metadata = Metadata::new();
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) else {
            continue;
        };
        let is_printable = |byte: &u8| (b' '..=b'~').contains(byte);
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let message = format!("the name after `X-Metadata-` has 1 to {MAX_NAME_BYTES} characters");
            return Err(Problem::invalid(message));
        }
        if !value.as_bytes().iter().all(is_printable) {
            let message = format!("the value of `X-Metadata-{name}` has characters other than printable ASCII");
            return Err(Problem::invalid(message));
        }
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        // The first one of several counts.
        metadata.entry(name.to_owned()).or_insert(value);
    }
    if size(&metadata) > MAX_FILE_BYTES {
        let message = format!("the metadata of a file have at most {MAX_FILE_BYTES} bytes");
        return Err(Problem::invalid(message));
    }
    Ok(metadata)
}

fn size(metadata: &Metadata) -> usize {
    let of_one = |(name, value): (&String, &String)| ATTRIBUTE_PREFIX.len() + name.len() + value.len();
    metadata.iter().map(of_one).sum()
}

fn held(path: &str, metadata: &Metadata) -> usize {
    FILE_BYTES + path.len() + size(metadata)
}

impl Table {
    fn remove(&mut self, path: &str) -> Option<Metadata> {
        let kept = self.files.remove(path)?;
        self.bytes = self.bytes.saturating_sub(held(path, &kept.metadata));
        Some(kept.metadata)
    }

    fn insert(&mut self, path: &str, metadata: Metadata) {
        self.remove(path);
        self.bytes += held(path, &metadata);
        self.last += 1;
        let number = self.last;
        self.files.insert(path.to_owned(), Kept { metadata, number });
        while self.bytes > MAX_BYTES {
            let oldest = self.files.iter().min_by_key(|(_, kept)| kept.number);
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else {
                return;
            };
            self.remove(&oldest);
        }
    }

    /// Removes the metadata of an entry and of all entries below.
    fn remove_all(&mut self, path: &str) -> Vec<(String, Metadata)> {
        let below = format!("{}/", path.trim_end_matches('/'));
        let inner = self.files.range(below.clone()..).map(|(file, _)| file);
        let inner = inner.take_while(|file| file.starts_with(&below));
        let paths: Vec<String> = inner.cloned().chain([path.to_owned()]).collect();
        let removed = paths.into_iter().filter_map(|path| {
            let metadata = self.remove(&path)?;
            Some((path, metadata))
        });
        removed.collect()
    }
}

impl FileMetadata {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy for a fork.
    pub(crate) fn copy(&self) -> Self {
        Self(Mutex::new(self.table().clone()))
    }

    pub(crate) fn of(&self, path: &str) -> Option<Metadata> {
        self.table().files.get(path).map(|kept| kept.metadata.clone())
    }

    /// Replaces the metadata of a file.
    pub(crate) fn replace(&self, path: &SandboxPath, metadata: &Metadata) {
        let mut table = self.table();
        if metadata.is_empty() {
            table.remove(path.as_str());
        } else {
            table.insert(path.as_str(), metadata.clone());
        }
    }

    /// Moves the metadata of an entry, and of those below, to its new path.
    pub(crate) fn moved(&self, from: &SandboxPath, to: &SandboxPath) {
        if from == to {
            return;
        }
        let mut table = self.table();
        let moved = table.remove_all(from.as_str());
        table.remove_all(to.as_str());
        for (path, metadata) in moved {
            if let Some(rest) = path.strip_prefix(from.as_str()) {
                table.insert(&format!("{}{rest}", to.as_str()), metadata);
            }
        }
    }

    /// Removes the metadata of an entry, and of those below.
    pub(crate) fn removed(&self, path: &SandboxPath) {
        self.table().remove_all(path.as_str());
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(all: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        headers
    }

    fn path(text: &str) -> SandboxPath {
        SandboxPath::parse(text).unwrap()
    }

    fn named(name: &str) -> Metadata {
        Metadata::from([("name".to_owned(), name.to_owned())])
    }

    #[test]
    fn the_headers_of_an_upload_are_metadata() {
        let read = of_request(&headers(&[
            ("X-Metadata-Author", b"a"),
            ("x-metadata-author", b"b"),
            ("x-metadata-note", b""),
            ("content-type", b"text/plain"),
        ]));
        let expected = [("author", "a"), ("note", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read.unwrap(), Metadata::from(expected));
        let long_name = format!("x-metadata-{}", "n".repeat(247));
        let long_value = vec![b'v'; 4096];
        for refused in [
            ("x-metadata-", &b"a"[..]),
            ("x-metadata-a", b"\xff"),
            ("x-metadata-a", b"a\tb"),
            (&long_name, b"a"),
            ("x-metadata-a", &long_value),
        ] {
            assert!(of_request(&headers(&[refused])).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn metadata_follow_the_calls_of_the_api() {
        let all = FileMetadata::default();
        for file in ["/a", "/a/b", "/a/c/d", "/ab", "/z"] {
            all.replace(&path(file), &named(file));
        }
        all.moved(&path("/a"), &path("/z"));
        let found = ["/a", "/a/b", "/ab", "/z", "/z/b", "/z/c/d"].map(|file| all.of(file));
        let expected = [None, None, Some("/ab"), Some("/a"), Some("/a/b"), Some("/a/c/d")];
        assert_eq!(found, expected.map(|name| name.map(named)));
        let copy = all.copy();
        all.moved(&path("/z"), &path("/z"));
        all.removed(&path("/z/c"));
        assert_eq!((all.of("/z/c/d"), all.of("/z/b")), (None, Some(named("/a/b"))));
        all.replace(&path("/z"), &Metadata::new());
        assert_eq!(all.of("/z"), None);
        all.removed(&path("/"));
        let table = all.table();
        assert_eq!((table.files.len(), table.bytes), (0, 0));
        assert_eq!(copy.of("/z/c/d"), Some(named("/a/c/d")));
    }

    #[test]
    fn the_oldest_metadata_make_room() {
        let all = FileMetadata::default();
        for file in 0..2000 {
            all.replace(&path(&format!("/{file}")), &named("v"));
        }
        assert_eq!((all.of("/0"), all.of("/1999")), (None, Some(named("v"))));
        let kept = all.table().files.len();
        assert!((900..1100).contains(&kept), "{kept}");
        // Longer paths take more.
        let long = format!("/{}", "d/".repeat(1500)).trim_end_matches('/').to_owned();
        all.moved(&path("/"), &path(&long));
        assert!(all.table().files.len() < kept);
        assert!(all.table().bytes <= MAX_BYTES);
    }
}
