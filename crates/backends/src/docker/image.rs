//! Images: inspected before each use, and pulled if they are missing and the operator allows pulls.
//!
//! A pull outlives the call that started it (see [`jobs`](super::jobs)). It uses the registry login of the user who
//! runs this server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::StreamExt;
use sandcell_sandbox::{Preparing, SandboxError};

use super::config::Pull;
use super::connect::{Address, failed, one_line};
use super::container_request::Image;
use super::credentials::CredentialSource;
use super::jobs::{JobState, Jobs, ProgressReporter, WaitLimit};

/// The deadline of a pull.
const PULL_TIMEOUT: Duration = Duration::from_secs(1800);
/// The maximum number of layers per image whose progress is counted.
const MAX_COUNTED_LAYERS: usize = 256;

/// The images of a daemon.
#[derive(Debug)]
pub(super) struct Images {
    docker: Docker,
    address: Address,
    pull: Pull,
    credentials: CredentialSource,
    pulls: Arc<Jobs>,
}

impl Images {
    pub(super) fn new(docker: Docker, address: Address, pull: Pull, credentials: CredentialSource) -> Self {
        Self {
            docker,
            address,
            pull,
            credentials,
            pulls: Arc::default(),
        }
    }

    /// Returns the progress of an image's pull.
    pub(super) fn progress(&self, name: &str) -> Option<Preparing> {
        self.pulls.progress(name)
    }

    /// Aborts an image's pull that no caller waits for. The daemon stops it when the requesting connection closes.
    pub(super) fn abandon(&self, name: &str) {
        self.pulls.abandon(name);
    }

    /// Inspects the image, pulls it if needed, and waits until the pull is done.
    pub(super) async fn pull_image(self: &Arc<Self>, name: &str) -> Result<(), SandboxError> {
        self.found(name, WaitLimit::UntilDone).await.map(drop)
    }

    /// Inspects the image, and pulls it if needed. Waits at most as long as one call may.
    pub(super) async fn find(self: &Arc<Self>, name: &str) -> Result<Image, SandboxError> {
        self.found(name, WaitLimit::Call).await
    }

    async fn found(self: &Arc<Self>, name: &str, wait_limit: WaitLimit) -> Result<Image, SandboxError> {
        if let Some(found) = self.look(name).await? {
            return Ok(found);
        }
        if self.pull == Pull::Never {
            return Err(SandboxError::Image {
                image: name.to_owned(),
                reason: "the daemon does not have it, and `docker.pull` is \"never\"".to_owned(),
                remedy: format!("`docker pull {name}` on the daemon's machine, or choose an image that it has"),
            });
        }
        self.pulled(name, wait_limit).await?;
        self.look(name).await?.ok_or_else(|| SandboxError::Image {
            image: name.to_owned(),
            reason: "it was pulled, but has been removed since".to_owned(),
            remedy: "call again; check whether another program removes images on the daemon's machine".to_owned(),
        })
    }

    async fn look(&self, name: &str) -> Result<Option<Image>, SandboxError> {
        if !is_reference(name) {
            return Err(SandboxError::Image {
                image: one_line(name),
                reason: "this is not an image name".to_owned(),
                remedy: "write it like alpine:3.20 or registry.example/name@sha256:…".to_owned(),
            });
        }
        match self.docker.inspect_image(name).await {
            Ok(found) => Ok(Image::from_daemon(found)),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(failed(&self.address, &error)),
        }
    }

    async fn pulled(self: &Arc<Self>, name: &str, wait_limit: WaitLimit) -> Result<(), SandboxError> {
        let (images, own) = (Arc::clone(self), name.to_owned());
        let found = self.pulls.join(name, wait_limit, PULL_TIMEOUT, |progress| async move {
            images.run(&own, &progress).await
        });
        let (reason, remedy) = match found.await {
            JobState::Done => return Ok(()),
            JobState::Running(progress) => (
                format!("it is being pulled: {}", shown(&progress)),
                "call again in a moment: the pull continues, and the call waits for it".to_owned(),
            ),
            JobState::TooMany(most) => (
                format!("{most} other images are being pulled"),
                "call again in a moment".to_owned(),
            ),
            JobState::Failed(reason) => {
                let remedy = remedy(name, &reason);
                (reason, remedy)
            }
        };
        Err(SandboxError::Image {
            image: name.to_owned(),
            reason,
            remedy,
        })
    }

    async fn run(&self, name: &str, progress: &ProgressReporter) -> Result<(), String> {
        let login = self.credentials.for_image(name).await?;
        tracing::info!(image = name, login = login.is_some(), "pulling");
        let options = CreateImageOptionsBuilder::default().from_image(&tagged(name)).build();
        let mut steps = self.docker.create_image(Some(options), None, login);
        let mut layers: HashMap<String, Layer> = HashMap::new();
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| match error {
                Error::DockerResponseServerError { message, .. } => one_line(&message),
                Error::DockerStreamError { error } => one_line(&error),
                other => one_line(&other.to_string()),
            })?;
            note(&mut layers, step)?;
            progress.report(sum(name, &layers));
        }
        Ok(())
    }
}

/// The progress of a layer, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Layer {
    done: u64,
    total: u64,
}

/// Records a step of a pull.
fn note(layers: &mut HashMap<String, Layer>, step: CreateImageInfo) -> Result<(), String> {
    if let Some(message) = step.error_detail.and_then(|error| error.message) {
        return Err(one_line(&message));
    }
    let numbers = step.progress_detail.and_then(|detail| detail.current.zip(detail.total));
    if let (Some(layer), Some("Download complete")) = (&step.id, step.status.as_deref())
        && let Some(known) = layers.get_mut(layer)
    {
        known.done = known.total;
    }
    if let (Some(layer), Some((current, total)), Some("Downloading")) = (step.id, numbers, step.status.as_deref())
        && (layers.len() < MAX_COUNTED_LAYERS || layers.contains_key(&layer))
    {
        let (done, total) = (u64::try_from(current).unwrap_or(0), u64::try_from(total).unwrap_or(0));
        layers.insert(layer, Layer { done, total });
    }
    Ok(())
}

/// Returns the progress of all layers together. The total grows, since the daemon reports a layer only once it begins
/// it.
fn sum(name: &str, layers: &HashMap<String, Layer>) -> Preparing {
    let all = |part: fn(&Layer) -> u64| layers.values().map(part).fold(0, u64::saturating_add);
    let (done, total) = (all(|layer| layer.done), all(|layer| layer.total));
    Preparing {
        text: format!("pulling {}", one_line(name)),
        done: done.min(total),
        total,
    }
}

/// Returns the progress as a part of a sentence.
fn shown(progress: &Preparing) -> String {
    if progress.total == 0 {
        return "asking the registry".to_owned();
    }
    let (done, total) = (progress.done / 1_000_000, progress.total / 1_000_000);
    format!("{done} of {total} MB so far")
}

/// Adds the tag `latest` if there is none: without a tag or digest a daemon would pull all tags.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.contains('@') || last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

/// Returns true if a text can only be an image name. The name becomes part of a request's path.
fn is_reference(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let parts = name
        .split('/')
        .all(|part| !part.is_empty() && !part.bytes().all(|byte| byte == b'.'));
    name.len() <= 255 && name.bytes().all(fits) && parts && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn remedy(name: &str, reason: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&["the login for", "config.json"]) {
        "`docker login` again as the user who runs this server, or correct config.json in DOCKER_CONFIG or ~/.docker"
            .to_owned()
    } else if has(&[
        "denied",
        "unauthorized",
        "not found",
        "manifest unknown",
        "does not exist",
        "no basic auth credentials",
        "authentication required",
    ]) {
        let at = super::credentials::registry(name);
        format!(
            "check the name; for a private image `docker login {at}` as the user who runs this server, or `docker pull {name}` on the daemon's machine"
        )
    } else if has(&["no space left"]) {
        "free disk space in the daemon's data folder (`docker system df`, `docker system prune`)".to_owned()
    } else {
        format!(
            "check that the daemon's machine reaches the registry, or bring the image there (`docker load`) and name it: {name}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::{ErrorDetail, ProgressDetail};

    #[test]
    fn image_names_with_traversal_are_refused() {
        for good in [
            "alpine",
            "alpine:3.20",
            "localhost:5000/a/b:c",
            "a@sha256:00ff",
            "sha256:00ff",
            "Reg.io/a_b.c",
        ] {
            assert!(is_reference(good), "{good}");
        }
        for bad in [
            "",
            "../version",
            "a/../b",
            "a//b",
            "/a",
            "-a",
            "a b",
            "a?x=1",
            "a#b",
            "a%2e",
            "..",
            "a/.",
            "ä",
        ] {
            assert!(!is_reference(bad), "{bad}");
        }
        assert!(!is_reference(&"a".repeat(256)));
    }

    #[test]
    fn only_the_requested_tag_is_pulled() {
        assert_eq!(tagged("alpine"), "alpine:latest");
        assert_eq!(tagged("localhost:5000/a"), "localhost:5000/a:latest");
        assert_eq!(tagged("a:1"), "a:1");
        assert_eq!(tagged("a@sha256:0"), "a@sha256:0");
    }

    #[test]
    fn the_steps_of_a_pull_become_progress_or_an_error() {
        let mut layers = HashMap::new();
        let step = |id: &str, current, total| CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some("Downloading".to_owned()),
            progress_detail: Some(ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        };
        for number in 0..1000 {
            note(&mut layers, step(&number.to_string(), 1, 2)).unwrap();
        }
        assert_eq!(layers.len(), MAX_COUNTED_LAYERS);
        let error = CreateImageInfo {
            error_detail: Some(ErrorDetail {
                message: Some("manifest\nunknown".to_owned()),
                ..ErrorDetail::default()
            }),
            ..CreateImageInfo::default()
        };
        assert_eq!(note(&mut layers, error), Err("manifest unknown".to_owned()));
        let progress = sum("a:1", &layers);
        assert_eq!((progress.done, progress.total), (256, 512));
        let progress = Preparing {
            text: "pulling a:1".to_owned(),
            done: 4_500_000,
            total: 12_000_000,
        };
        assert_eq!(shown(&progress), "4 of 12 MB so far");
    }
}
