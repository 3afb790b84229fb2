//! The daemon's registry credentials for pulls: those of `docker login`, in the daemon's form. They go to the daemon with
//! that pull.

use std::path::PathBuf;

use bollard::auth::DockerCredentials;
use sandcell_broker::{HUB_KEY, is_hub, registry_login};

/// The place of the stored logins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialSource {
    /// The folder with `config.json`; none: pull without a login.
    pub folder: Option<PathBuf>,
}

impl CredentialSource {
    /// Returns the folder that `docker login` uses: `DOCKER_CONFIG`, else `~/.docker`.
    #[must_use]
    pub fn of_this_user() -> Self {
        let named = std::env::var_os("DOCKER_CONFIG").filter(|folder| !folder.is_empty());
        let folder = named.map(PathBuf::from);
        Self {
            folder: folder.or_else(|| std::env::home_dir().map(|home| home.join(".docker"))),
        }
    }

    /// Returns the login for the registry of an image, if there is one.
    ///
    /// # Errors
    /// Describes the fault of the file or of the credential helper.
    pub(super) async fn for_image(&self, image: &str) -> Result<Option<DockerCredentials>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let registry = registry(image);
        let login = registry_login(&folder.join("config.json"), registry).await?;
        Ok(login.map(|login| DockerCredentials {
            username: login.username,
            password: login.password,
            identitytoken: login.identity_token,
            registrytoken: login.registry_token,
            serveraddress: Some(registry.to_owned()),
            ..DockerCredentials::default()
        }))
    }
}

/// Returns the registry of an image, as stored logins name it.
pub(super) fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if is_hub(first) => HUB_KEY,
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => HUB_KEY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_an_image_is_found_as_docker_does() {
        for (image, wanted) in [
            ("python:3.13-slim", HUB_KEY),
            ("library/python", HUB_KEY),
            ("me/python@sha256:00", HUB_KEY),
            ("docker.io/library/python", HUB_KEY),
            ("ghcr.io/me/x:1", "ghcr.io"),
            ("localhost/x", "localhost"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000"),
            ("reg:5000/a/b:c", "reg:5000"),
        ] {
            assert_eq!(registry(image), wanted, "{image}");
        }
    }

    #[tokio::test]
    async fn a_stored_login_reaches_the_daemon_with_its_registry() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"auths": {"reg.example": {"username": "u", "password": "p"},
            "https://index.docker.io/v1/": {"identitytoken": "i", "registrytoken": "r"}}}"#;
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let source = CredentialSource {
            folder: Some(folder.path().to_owned()),
        };
        let own = source.for_image("reg.example/me/x:1").await.unwrap().unwrap();
        assert_eq!(
            (own.username.as_deref(), own.password.as_deref()),
            (Some("u"), Some("p"))
        );
        assert_eq!(own.serveraddress.as_deref(), Some("reg.example"));
        let hub = source.for_image("python").await.unwrap().unwrap();
        assert_eq!(
            (hub.identitytoken.as_deref(), hub.registrytoken.as_deref()),
            (Some("i"), Some("r"))
        );
        assert_eq!(hub.serveraddress.as_deref(), Some(HUB_KEY));
        assert!(source.for_image("other.example/x").await.unwrap().is_none());
    }
}
