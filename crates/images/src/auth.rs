//! Reads registry credentials from the files of `docker login` and `podman login`. Secrets leave this module only in a
//! header.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcell_sandbox::Secret;
use serde::Deserialize;

use crate::name::DEFAULT_REGISTRY;

const FILE_MAX: u64 = 1 << 20;

/// A user name and password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: Secret,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// Returns the credentials for a registry from the first of these files that has some. A file may be absent.
pub(crate) fn login(files: &[PathBuf], registry: &str) -> Option<Login> {
    files.iter().find_map(|file| of_file(file, registry))
}

fn of_file(path: &Path, registry: &str) -> Option<Login> {
    use std::io::Read as _;
    let mut text = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(FILE_MAX)
        .read_to_end(&mut text)
        .ok()?;
    let file: File = match serde_json::from_slice(&text) {
        Ok(file) => file,
        Err(_) => {
            // The error is not logged, because it could contain a secret.
            tracing::warn!(path = %path.display(), "a file with logins of registries cannot be read");
            return None;
        }
    };
    let wanted = |key: &str| {
        let host = key.trim_start_matches("https://").trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or(host);
        host == registry || (registry == DEFAULT_REGISTRY && matches!(host, "index.docker.io" | "registry-1.docker.io"))
    };
    let (_, entry) = file.auths.iter().find(|(key, _)| wanted(key))?;
    if let (Some(name), Some(password)) = (&entry.username, &entry.password) {
        return Some(Login {
            name: name.clone(),
            password: Secret::new(password.clone()),
        });
    }
    let decoded = STANDARD.decode(entry.auth.as_deref()?.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (name, password) = text.split_once(':')?;
    Some(Login {
        name: name.to_owned(),
        password: Secret::new(password.trim_end_matches('\0').to_owned()),
    })
}

/// The authentication that a registry requires in `WWW-Authenticate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

/// Parses `Bearer realm="…",service="…",scope="…"`, or `Basic …`.
pub(crate) fn challenge(text: &str) -> Option<Challenge> {
    let (kind, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if kind.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !kind.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let fields = fields(rest);
    Some(Challenge::Bearer {
        realm: fields.get("realm")?.clone(),
        service: fields.get("service").cloned(),
    })
}

fn fields(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = text.trim();
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim().trim_start_matches(',').trim().to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => match quoted.split_once('"') {
                Some(parts) => parts,
                None => break,
            },
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.entry(name).or_insert_with(|| value.trim().to_owned());
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let text = r#"Bearer realm="https://auth.docker.io/token", service="registry.docker.io",scope="a:b,c""#;
        assert_eq!(
            challenge(text),
            Some(Challenge::Bearer {
                realm: "https://auth.docker.io/token".into(),
                service: Some("registry.docker.io".into())
            })
        );
        assert_eq!(challenge("basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(challenge("Basic"), Some(Challenge::Basic));
        for bad in ["", "Bearer", "Bearer realm", "Negotiate x", "Bearer realm=\"x"] {
            assert_eq!(challenge(bad), None, "{bad}");
        }
    }

    #[test]
    fn logins_are_found_as_others_write_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let text = r#"{"auths":{"https://index.docker.io/v1/":{"auth":"bWU6c2VjcmV0"},
            "127.0.0.1:5000":{"username":"u","password":"p"},"helped.io":{}},"credsStore":"x"}"#;
        std::fs::write(&file, text).unwrap();
        let files = [folder.path().join("none"), file];
        let found = login(&files, "docker.io").unwrap();
        assert_eq!((found.name.as_str(), found.password.expose()), ("me", "secret"));
        assert_eq!(login(&files, "127.0.0.1:5000").unwrap().name, "u");
        assert!(login(&files, "127.0.0.1:5001").is_none());
        assert!(login(&files, "helped.io").is_none());
    }
}
