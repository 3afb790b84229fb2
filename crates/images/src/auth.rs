//! Logs in to registries: finds the user's login, and parses the registry's challenge. Secrets leave this module only in
//! a header.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandcell_broker::{RegistryLogin, registry_login};
use sandcell_sandbox::Secret;

/// A user name and password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: Secret,
}

/// Returns the user name and password for a registry from the first of these files that has them. A file may be absent.
/// A faulty one is reported and skipped: most images need no login.
pub(crate) async fn login(files: &[PathBuf], registry: &str) -> Option<Login> {
    for file in files {
        match registry_login(file, registry).await {
            Ok(Some(RegistryLogin {
                username: Some(name),
                password: Some(password),
                ..
            })) => {
                let password = Secret::new(password);
                return Some(Login { name, password });
            }
            Ok(Some(_)) => tracing::warn!(registry, "a login without a password is not supported and not used"),
            Ok(None) => {}
            Err(reason) => tracing::warn!(registry, reason, "no login"),
        }
    }
    None
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
    fn challenges_are_parsed() {
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

    #[tokio::test]
    async fn the_first_file_with_a_usable_login_gives_it() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let files = [
            folder.path().join("none"),
            put("broken.json", "{"),
            put("helped.json", r#"{"credHelpers": {"docker.io": "no-such-helper"}}"#),
            put("token.json", r#"{"auths": {"docker.io": {"identitytoken": "t"}}}"#),
            put(
                "config.json",
                r#"{"auths":{"https://index.docker.io/v1/":{"auth":"bWU6c2VjcmV0"}}}"#,
            ),
            put(
                "later.json",
                r#"{"auths":{"docker.io":{"username":"u","password":"p"}, "127.0.0.1:5000":{}}}"#,
            ),
        ];
        let found = login(&files, "docker.io").await.unwrap();
        assert_eq!((found.name.as_str(), found.password.expose()), ("me", "secret"));
        assert!(login(&files, "127.0.0.1:5000").await.is_none());
        assert!(login(&files, "other.example").await.is_none());
    }
}
