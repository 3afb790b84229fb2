//! The operator's settings for containers.

use std::path::PathBuf;

use sandcell_settings::{Kind, SettingType, Value, operator, project};

sandcell_settings::settings! {
    /// The operator's settings for containers.
    #[derive(Debug, Clone, PartialEq)]
    pub struct DockerSettings in "docker." {
        /// The address of the Docker daemon, such as `unix:///var/run/docker.sock` or `tcp://127.0.0.1:2375`;
        /// `DOCKER_HOST` means the same. Empty: the first usual address where a daemon answers (Docker, rootless
        /// Docker, Docker Desktop, OrbStack, Rancher Desktop, Colima, Podman); on Windows
        /// `npipe:////./pipe/docker_engine` and the like.
        "host" => host: Option<String> = operator(Kind::Text, "").also("DOCKER_HOST"),

        /// The folder with `ca.pem`, `cert.pem` and `key.pem` for a daemon that is reached over TCP. The connection is
        /// then always encrypted and verified. `DOCKER_CERT_PATH` means the same.
        "cert_path" => certificates: Option<PathBuf> = operator(Kind::Path, "").also("DOCKER_CERT_PATH"),

        /// The image of sandboxes that name none. Its programs are the languages that calls can use.
        "image" => image: String = project(Kind::RequiredText, "python:3.13-slim"),

        /// The daemon's runtime for sandboxes, such as `runsc` (gVisor) or one of Kata's, which raise the level of
        /// isolation. Empty: the daemon's own choice.
        "runtime" => runtime: Option<String> = operator(Kind::Text, ""),

        /// Pulls images that the daemon lacks, with the credentials that `docker login` stores for the server's user.
        "pull" => pull: Pull = operator(Kind::OneOf(&["missing", "never"]), "missing"),

        /// Languages that every image gets. If an image lacks them and has `apt-get` or `apk`, they are installed once,
        /// in a temporary container, and stored as another image. Empty: images stay as they are.
        "languages" => languages: Vec<String> = operator(Kind::ListOf(&["python", "javascript", "bash", "ruby", "perl"]), "python"),

        /// The hosts that such an installation may reach, written as in `network.allow`; `network.deny` and
        /// `network.private` also apply. Empty: nothing is installed.
        "mirrors" => mirrors: Vec<String> = operator(Kind::Texts, "deb.debian.org,security.debian.org,archive.ubuntu.com,security.ubuntu.com,ports.ubuntu.com,dl-cdn.alpinelinux.org"),
    }
}

/// The policy for images that the daemon lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Pull images that are missing.
    Missing,
    /// Use only images that the daemon has.
    Never,
}

impl SettingType for Pull {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Word(word) if word == "missing" => Some(Self::Missing),
            Value::Word(word) if word == "never" => Some(Self::Never),
            _ => None,
        }
    }
}
