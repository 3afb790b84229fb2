//! Images in a local folder: of the OCI layout, or of `docker save` after its archive was unpacked.
//!
//! These files are as untrusted as a registry's responses. Names in them cannot lead out of the folder.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt as _;
use rustix::fs::{FileType, Mode, OFlags};
use serde::Deserialize;

use crate::error::ImageError;
use crate::manifest::{CONFIG_MAX, Descriptor, Digest, Document, LAYERS_MAX, MANIFEST_MAX};
use crate::name::ImageName;
use crate::record;
use crate::registry::Stream;
use crate::writer::below;

const PIECE_BYTES: usize = 256 << 10;
/// The annotation with an image's name in an index.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A folder that contains an image.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    root: OwnedFd,
}

/// One image of a `docker save`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Saved {
    pub(crate) config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    pub(crate) layers: Vec<String>,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| ImageError::Local {
            path: path.to_owned(),
            reason: std::io::Error::from(error).to_string(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            root,
        })
    }

    fn local_error(&self, reason: impl Into<String>) -> ImageError {
        ImageError::Local {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    fn file(&self, name: &str) -> Result<std::fs::File, ImageError> {
        let path = record::Path::parse(name.as_bytes()).map_err(|reason| self.local_error(reason))?;
        let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        let file = below(&self.root, &path, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| self.local_error(format!("{shown}: {}", std::io::Error::from(error))))?;
        let regular =
            rustix::fs::fstat(&file).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile);
        if !regular {
            return Err(self.local_error(format!("{shown} is no file")));
        }
        Ok(file.into())
    }

    fn text(&self, name: &str, most: u64) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        self.file(name)?
            .take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.local_error(error.to_string()))?;
        if u64::try_from(bytes.len()).is_ok_and(|size| size > most) {
            return Err(self.local_error("a file of it is too large"));
        }
        Ok(bytes)
    }

    /// Returns the manifests of an OCI layout: those of the image with this name, or of its only image.
    pub(crate) fn index(&self, name: Option<&str>) -> Result<Vec<Descriptor>, ImageError> {
        let Document::Index(all) = Document::parse(&self.text("index.json", MANIFEST_MAX)?)? else {
            return Err(self.local_error("its index.json is not an image index"));
        };
        let Some(name) = name else {
            return Ok(all);
        };
        let called = |one: &Descriptor| {
            one.annotations
                .get(REF_NAME)
                .is_some_and(|own| own == name || own.rsplit(':').next() == Some(name))
        };
        let found: Vec<Descriptor> = all.into_iter().filter(called).collect();
        if found.is_empty() {
            return Err(self.local_error("it has no image of that name"));
        }
        Ok(found)
    }

    /// Reads a small blob of an OCI layout, and checks its digest.
    pub(crate) fn small(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let bytes = self.text(&blob_name(digest), MANIFEST_MAX.max(CONFIG_MAX))?;
        if Digest::of(&bytes) != *digest {
            return Err(ImageError::Digest {
                what: format!("{digest}"),
            });
        }
        Ok(bytes)
    }

    /// Returns the entry of `docker save` for the image with this name, or for its only image.
    pub(crate) fn saved(&self, name: Option<&str>) -> Result<Saved, ImageError> {
        let all: Vec<Saved> = serde_json::from_slice(&self.text("manifest.json", MANIFEST_MAX)?)
            .map_err(|_| self.local_error("its manifest.json cannot be read"))?;
        let named = |one: &&Saved| {
            name.is_none_or(|name| {
                let tags = one.repo_tags.iter().flatten();
                tags.into_iter()
                    .any(|tag| tag == name || tag.strip_suffix(":latest") == Some(name))
            })
        };
        let mut found = all.iter().filter(named);
        match (found.next(), found.next()) {
            (Some(one), None) if one.layers.len() <= LAYERS_MAX => Ok(one.clone()),
            (Some(_), None) => Err(self.local_error("it has more than 128 layers")),
            (None, _) => Err(self.local_error("it has no image of that name")),
            (Some(_), Some(_)) => Err(self.local_error("it has several images; name one after a colon")),
        }
    }

    /// Reads a small file.
    pub(crate) fn config(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        self.text(name, CONFIG_MAX)
    }

    /// Reads a whole file, and returns its digest and size.
    pub(crate) async fn measure(&self, name: &str) -> Result<(Digest, u64), ImageError> {
        use sha2::Digest as _;
        let mut stream = self.stream(name)?;
        let (mut hash, mut size) = (sha2::Sha256::new(), 0_u64);
        while let Some(part) = stream.next().await {
            let part = part?;
            hash.update(&part);
            size = size.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        Ok((Digest::finish(hash), size))
    }

    /// Streams a file.
    pub(crate) fn stream(&self, name: &str) -> Result<Stream, ImageError> {
        Ok(pieces(self.file(name)?, self.path.clone()))
    }
}

/// Returns the path of a blob in a layout.
pub(crate) fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Returns a stamp that changes when a local image changes. None for images of registries.
pub(crate) fn stamp(name: &ImageName) -> Option<String> {
    let file = match name {
        ImageName::Registry(_) => return None,
        ImageName::Layout(path, _) => path.join("index.json"),
        ImageName::Archive(path, _) => path.clone(),
    };
    let of = |found: std::fs::Metadata| {
        format!(
            "{} {} {}.{}",
            found.size(),
            found.ino(),
            found.mtime(),
            found.mtime_nsec()
        )
    };
    Some(file.metadata().map(of).unwrap_or_default())
}

/// Streams an archive.
pub(crate) fn archive(path: &Path) -> Result<Stream, ImageError> {
    let local_error = |reason: String| ImageError::Local {
        path: path.to_owned(),
        reason,
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| local_error(std::io::Error::from(error).to_string()))?;
    let file = std::fs::File::from(file);
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(local_error("it is no file".to_owned()));
    }
    Ok(pieces(file, path.to_owned()))
}

fn pieces(file: std::fs::File, path: PathBuf) -> Stream {
    let file = tokio::fs::File::from_std(file);
    futures::stream::unfold(Some((file, path)), |state| async move {
        use tokio::io::AsyncReadExt as _;
        let (mut file, path) = state?;
        let mut piece = vec![0; PIECE_BYTES];
        match file.read(&mut piece).await {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some((Ok(Bytes::from(piece)), Some((file, path))))
            }
            Err(error) => {
                let reason = error.to_string();
                Some((Err(ImageError::Local { path, reason }), None))
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_an_archive_stay_inside_it() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
        std::fs::create_dir(folder.path().join("dir")).unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        for bad in ["link", "../x", "/etc/passwd", "dir", "none"] {
            assert!(opened.config(bad).is_err(), "{bad}");
        }
        std::fs::write(
            folder.path().join("manifest.json"),
            r#"[{"Config":"../../etc/passwd","Layers":[]}]"#,
        )
        .unwrap();
        let saved = opened.saved(None).unwrap();
        assert!(opened.config(&saved.config).is_err());
    }

    #[test]
    fn a_blob_with_a_wrong_digest_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Digest::of(b"right");
        std::fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        std::fs::write(folder.path().join(blob_name(&digest)), b"wrong").unwrap();
        assert!(matches!(opened.small(&digest), Err(ImageError::Digest { .. })));
        std::fs::write(folder.path().join(blob_name(&digest)), b"right").unwrap();
        assert_eq!(opened.small(&digest).unwrap(), b"right");
    }
}
