//! Image names: parsing, and the operator's list of names that callers may use.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::error::ImageError;
use crate::manifest::Digest;

/// The registry of names without a registry.
pub(crate) const DEFAULT_REGISTRY: &str = "docker.io";
const MAX_NAME_BYTES: usize = 512;

/// The location of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageName {
    /// An image in a registry.
    Registry(Reference),
    /// An image in a folder of the OCI layout, by its name in the index. None: the only image of the index.
    Layout(PathBuf, Option<String>),
    /// An image in an archive of `docker save`, by one of its names. None: the only image of the archive.
    Archive(PathBuf, Option<String>),
}

/// A reference to an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// `host` or `host:port`. The default is `docker.io`.
    pub(crate) registry: String,
    /// The repository, such as `library/python`.
    pub(crate) repository: String,
    /// The tag. The default is `latest` if the name has neither a tag nor a digest.
    pub(crate) tag: Option<String>,
    /// The digest.
    pub(crate) digest: Option<Digest>,
}

impl FromStr for ImageName {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        if text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control) {
            return Err(ImageError::Name("it is too long, or has control characters"));
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            return local(rest).map(|(path, name)| Self::Layout(path, name));
        }
        if let Some(rest) = text.strip_prefix("docker-archive:") {
            return local(rest).map(|(path, name)| Self::Archive(path, name));
        }
        Reference::parse(text.strip_prefix("docker://").unwrap_or(text)).map(Self::Registry)
    }
}

/// Parses `/path[:name]`. The path cannot contain a colon, as with other tools.
fn local(text: &str) -> Result<(PathBuf, Option<String>), ImageError> {
    let (path, name) = match text.split_once(':') {
        Some((path, name)) => (path, Some(name.to_owned()).filter(|name| !name.is_empty())),
        None => (text, None),
    };
    let path = Path::new(path);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return Err(ImageError::Name("a local path is absolute and has no `..`"));
    }
    Ok((path.to_owned(), name))
}

impl Reference {
    pub(crate) fn parse(text: &str) -> Result<Self, ImageError> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let digest = digest
                    .parse()
                    .map_err(|()| ImageError::Name("the digest is not sha256: and 64 hexadecimal digits"))?;
                (rest, Some(digest))
            }
            None => (text, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(ImageError::Name(
                "the tag has other characters than letters, digits and ._-",
            ));
        }
        let (registry, repository) = match path.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
            _ => (DEFAULT_REGISTRY, path.to_owned()),
        };
        let registry = match registry {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        if !is_host(registry) {
            return Err(ImageError::Name("the registry is not host or host:port"));
        }
        let repository = if registry == DEFAULT_REGISTRY && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository
        };
        if repository.len() > 255 || !repository.split('/').all(is_part) {
            return Err(ImageError::Name(
                "parts of a name have lower-case letters, digits and single . _ - between them",
            ));
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some("latest".to_owned()),
        };
        Ok(Self {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }
}

fn is_tag(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-'])
}

fn is_part(text: &str) -> bool {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let double = text.contains("..") || text.contains("._") || text.contains("_.") || text.contains("___");
    text.starts_with(ends) && text.ends_with(ends) && text.bytes().all(fits) && !double
}

/// Returns true for `name`, `name:port` and `[address]:port`.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            (
                "v6",
                rest.strip_prefix(':').or(Some(rest).filter(|rest| !rest.is_empty())),
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !label.is_empty() && label.bytes().all(fits) && !label.starts_with('-') && !label.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(label) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|n| n != 0))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, path, name) = match self {
            Self::Registry(reference) => return reference.fmt(f),
            Self::Layout(path, name) => ("oci", path, name),
            Self::Archive(path, name) => ("docker-archive", path, name),
        };
        write!(f, "{kind}:{}", path.display())?;
        match name {
            Some(name) => write!(f, ":{name}"),
            None => Ok(()),
        }
    }
}

/// An entry of the list of images that callers may use: `docker.io/library/*`, `ghcr.io/team/tool`,
/// `ghcr.io/team/tool:1.2`, or `*` for every registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allow {
    /// Every image of every registry.
    All,
    /// Every image below this prefix of a registry. The prefix ends with a slash.
    Below(String),
    /// One repository. If the entry has a tag or digest, only that image.
    One(Reference, TagScope),
}

/// The scope of an entry for one repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagScope {
    /// The entry has a tag or digest, and covers only that image.
    This,
    /// The entry has neither, and covers every tag and digest.
    Any,
}

impl FromStr for Allow {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        if text == "*" {
            return Ok(Self::All);
        }
        if let Some(prefix) = text.strip_suffix("/*") {
            // `ghcr.io/*` is a registry. `python/*` is a folder of the default registry.
            let registry = prefix.contains(['.', ':']) || prefix == "localhost";
            if !prefix.contains('/') && registry && is_host(prefix) {
                return Ok(Self::Below(format!("{prefix}/")));
            }
            let probe = Reference::parse(&format!("{prefix}/x"))?;
            let folder = probe.repository.strip_suffix('x').unwrap_or_default();
            return Ok(Self::Below(format!("{}/{folder}", probe.registry)));
        }
        let reference = Reference::parse(text)?;
        let last = text.rsplit('/').next().unwrap_or(text);
        let exactly = if last.contains([':', '@']) {
            TagScope::This
        } else {
            TagScope::Any
        };
        Ok(Self::One(reference, exactly))
    }
}

impl Allow {
    pub(crate) fn covers(&self, wanted: &Reference) -> bool {
        match self {
            Self::All => true,
            Self::Below(prefix) => format!("{}/{}", wanted.registry, wanted.repository).starts_with(prefix),
            Self::One(own, exactly) => {
                let same = own.registry == wanted.registry && own.repository == wanted.repository;
                let fits = match exactly {
                    TagScope::Any => true,
                    // If the entry has a digest, its tag is ignored.
                    TagScope::This => match &own.digest {
                        Some(digest) => wanted.digest.as_ref() == Some(digest),
                        None => own.tag == wanted.tag && wanted.digest.is_none(),
                    },
                };
                same && fits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        text.parse::<ImageName>().unwrap().to_string()
    }

    #[test]
    fn short_names_mean_docker_hub() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (short, long) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
            ("team/tool", "docker.io/team/tool:latest"),
            ("index.docker.io/library/a", "docker.io/library/a:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000/a/b:c"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("docker://ghcr.io/a/b", "ghcr.io/a/b:latest"),
            ("oci:/srv/images/a", "oci:/srv/images/a"),
            ("oci:/srv/a:3.1", "oci:/srv/a:3.1"),
            ("docker-archive:/a.tar:b:1", "docker-archive:/a.tar:b:1"),
        ] {
            assert_eq!(full(short), long);
        }
        assert_eq!(full(&format!("a@{digest}")), format!("docker.io/library/a@{digest}"));
        assert_eq!(
            full(&format!("a:1@{digest}")),
            format!("docker.io/library/a:1@{digest}")
        );
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in [
            "",
            "A",
            "a/../b",
            "../a",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:b c",
            "a@sha256:0",
            "a@md5:00",
            "host:0/a",
            "host:99999/a",
            "-h.io/a",
            "a..b/c",
            "[::g]:1/a",
            "a?x=1",
            "a#b",
            "a%2e",
            "oci:relative",
            "oci:/a/../b",
            "docker-archive:",
            "u@h.io/a",
            "h.io:80:80/a",
            "a\n",
        ] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
        assert!("a".repeat(600).parse::<ImageName>().is_err());
    }

    #[test]
    fn callers_may_use_only_the_images_an_entry_covers() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let allowed = |entry: &str, name: &str| {
            let entry: Allow = entry.parse().unwrap();
            entry.covers(&Reference::parse(name).unwrap())
        };
        assert!(allowed("docker.io/library/*", "python:3"));
        assert!(!allowed("docker.io/library/*", "team/python"));
        assert!(!allowed("docker.io/library/*", "evil.io/library/python"));
        assert!(!allowed("docker.io/library/*", "docker.io.evil.io/library/python"));
        assert!(allowed("ghcr.io/*", "ghcr.io/a/b"));
        assert!(!allowed("ghcr.io/*", "ghcr.io.evil.io/a/b"));
        assert!(allowed("python", "python:3.12"));
        assert!(!allowed("python", "pythonista"));
        assert!(allowed("python:3.12", "python:3.12"));
        assert!(!allowed("python:3.12", "python:3.13"));
        assert!(!allowed("python:3.12", &format!("python:3.12@{digest}")));
        assert!(allowed(&format!("python@{digest}"), &format!("python:1@{digest}")));
        assert!(allowed("*", "evil.io/a"));
        assert!(
            "ghcr.io"
                .parse::<Allow>()
                .is_ok_and(|one| !one.covers(&Reference::parse("ghcr.io/a").unwrap()))
        );
    }
}
