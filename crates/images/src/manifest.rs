//! Parses indexes, manifests and configurations from registries and layouts. Sizes and counts are bounded, and no
//! content is trusted.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::ImageError;

/// The maximum size of a manifest or index in bytes.
pub(crate) const MANIFEST_MAX: u64 = 4 << 20;
/// The maximum size of a configuration in bytes.
pub(crate) const CONFIG_MAX: u64 = 4 << 20;
/// The maximum number of layers of one image.
pub(crate) const LAYERS_MAX: usize = 128;
/// The maximum number of environment variables of one image, and the maximum size of one in bytes.
const VARIABLES_MAX: usize = 256;
const VARIABLE_MAX: usize = 32 << 10;

/// The media types of manifests. Both kinds have the same shape for the fields that are parsed here.
pub(crate) const ACCEPT_MANIFEST: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// A SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Computes the digest of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new().chain_update(bytes))
    }

    pub(crate) fn finish(hash: Sha256) -> Self {
        Self(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the hexadecimal digits.
    pub(crate) fn hex(&self) -> &str {
        &self.0
    }
}

impl FromStr for Digest {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let hex = text.strip_prefix("sha256:").ok_or(())?;
        let fits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (hex.len() == 64 && hex.bytes().all(fits))
            .then(|| Self(hex.to_owned()))
            .ok_or(())
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map_err(|()| format!("{text:.100?} is not a SHA-256 digest"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A reference to a blob in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
}

/// An index of manifests, or one manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: u64,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

fn broken(what: &'static str, reason: impl ToString) -> ImageError {
    let reason: String = reason
        .to_string()
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    ImageError::Format { what, reason }
}

impl Document {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        const DOCUMENT_NAME: &str = "its manifest";
        let raw: Raw = serde_json::from_slice(bytes).map_err(|error| broken(DOCUMENT_NAME, error))?;
        if raw.schema_version != 2 {
            return Err(broken(DOCUMENT_NAME, "its schema version is obsolete"));
        }
        match (raw.manifests, raw.config, raw.layers) {
            (Some(manifests), None, None) => Ok(Self::Index(manifests)),
            (None, Some(config), Some(layers)) if layers.len() <= LAYERS_MAX => {
                Ok(Self::Manifest(Manifest { config, layers }))
            }
            (None, Some(_), Some(_)) => Err(ImageError::TooLarge {
                what: "the image",
                limit: 128,
                unit: "layers",
            }),
            _ => Err(broken(DOCUMENT_NAME, "it is neither an index nor an image")),
        }
    }
}

/// Returns this machine's architecture by its name in image indexes.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Returns the manifest for this machine.
pub(crate) fn choose(manifests: &[Descriptor]) -> Result<&Descriptor, ImageError> {
    let fits = |one: &&Descriptor| {
        one.platform
            .as_ref()
            .is_some_and(|own| own.os == "linux" && own.architecture == architecture())
    };
    // An index with one image and no platform refers to that image.
    let only = || {
        manifests
            .first()
            .filter(|one| manifests.len() == 1 && one.platform.is_none())
    };
    manifests.iter().find(fits).or_else(only).ok_or_else(|| {
        let mut there: Vec<String> = manifests
            .iter()
            .filter_map(|one| one.platform.as_ref())
            .map(|own| format!("{:.20}/{:.20}", own.os, own.architecture))
            .filter(|name| name != "unknown/unknown" && !name.chars().any(char::is_control))
            .take(12)
            .collect();
        there.dedup();
        ImageError::Platform {
            architecture: architecture(),
            there: if there.is_empty() {
                "none".to_owned()
            } else {
                there.join(", ")
            },
        }
    })
}

/// The used parts of an image's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The environment variables.
    pub(crate) env: BTreeMap<String, String>,
    /// The digests of the unpacked layers.
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    config: Option<RawRun>,
    rootfs: RawRoot,
}

#[derive(Deserialize)]
struct RawRun {
    #[serde(rename = "Env")]
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawRoot {
    diff_ids: Vec<Digest>,
}

impl Settings {
    /// Parses the configuration of an image with this number of layers.
    pub(crate) fn parse(bytes: &[u8], layers: usize) -> Result<Self, ImageError> {
        const DOCUMENT_NAME: &str = "its configuration";
        let raw: RawConfig = serde_json::from_slice(bytes).map_err(|error| broken(DOCUMENT_NAME, error))?;
        let listed = raw.rootfs.diff_ids.len();
        if listed != layers {
            let reason = format!("it lists {listed} layers, and the manifest {layers}");
            return Err(broken(DOCUMENT_NAME, reason));
        }
        let known = |text: &str, own: &str| text.is_empty() || text == own;
        if !known(&raw.os, "linux") || !known(&raw.architecture, architecture()) {
            return Err(ImageError::Platform {
                architecture: architecture(),
                there: format!("{:.20}/{:.20}", raw.os, raw.architecture),
            });
        }
        let pairs = raw.config.and_then(|run| run.env).unwrap_or_default();
        Ok(Self {
            env: pairs
                .iter()
                .take(VARIABLES_MAX)
                .filter_map(|pair| variable(pair))
                .collect(),
            diff_ids: raw.rootfs.diff_ids,
        })
    }
}

/// Parses an environment variable. Returns None for a variable that makes the dynamic loader load code, because it
/// would also affect sandcell's drivers.
fn variable(pair: &str) -> Option<(String, String)> {
    let (name, value) = pair.split_once('=')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let sound = !name.is_empty() && name.bytes().all(plain) && !value.contains('\0') && pair.len() <= VARIABLE_MAX;
    (sound && !name.starts_with("LD_")).then(|| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: &str) -> String {
        format!("sha256:{}", byte.repeat(32))
    }

    #[test]
    fn both_kinds_of_manifest_and_index_are_read_and_others_refused() {
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"{0}","size":2}},"layers":[{{"digest":"{0}","size":3,"mediaType":"x"}}]}}"#,
            digest("0a")
        );
        assert!(matches!(Document::parse(manifest.as_bytes()), Ok(Document::Manifest(m)) if m.layers.len() == 1));
        assert!(matches!(
            Document::parse(br#"{"schemaVersion":2,"manifests":[]}"#),
            Ok(Document::Index(_))
        ));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"schemaVersion":1,"fsLayers":[]}"#,
            r#"{"schemaVersion":2}"#,
            r#"{"schemaVersion":2,"config":{"digest":"sha256:../../x","size":1},"layers":[]}"#,
            r#"{"schemaVersion":2,"config":{"digest":"sha512:00","size":1},"layers":[]}"#,
        ] {
            assert!(Document::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = format!(r#"{{"schemaVersion":2,"x":{}"#, "[".repeat(100_000));
        assert!(Document::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn an_image_for_another_architecture_is_reported_as_such() {
        let one = |os: &str, architecture: &str| Descriptor {
            media_type: String::new(),
            digest: digest("0a").parse().unwrap(),
            size: 1,
            platform: Some(Platform {
                os: os.into(),
                architecture: architecture.into(),
            }),
            annotations: BTreeMap::new(),
        };
        let all = [
            one("windows", "amd64"),
            one("linux", "s390x"),
            one("linux", architecture()),
        ];
        assert_eq!(choose(&all).unwrap(), &all[2]);
        let error = choose(&all[..2]).unwrap_err().to_string();
        assert!(error.contains("windows/amd64, linux/s390x"), "{error}");
        assert!(choose(&[]).is_err());
    }

    #[test]
    fn image_variables_are_used_except_those_of_the_loader() {
        let text = format!(
            r#"{{"os":"linux","config":{{"Env":["PATH=/opt/bin:/bin","LD_PRELOAD=/evil.so","=x","a b=c","LANG=C.UTF-8"]}},"rootfs":{{"diff_ids":["{}"]}}}}"#,
            digest("0b")
        );
        let settings = Settings::parse(text.as_bytes(), 1).unwrap();
        let names: Vec<&str> = settings.env.keys().map(String::as_str).collect();
        assert_eq!(names, ["LANG", "PATH"]);
        assert!(Settings::parse(text.as_bytes(), 2).is_err());
        assert!(Settings::parse(text.replace("linux", "windows").as_bytes(), 1).is_err());
    }
}
