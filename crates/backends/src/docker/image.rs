//! Images: looked at before each use, pulled when they are missing and the operator lets that happen.
//!
//! A pull outlives the call that began it. A call waits for some seconds and is then told how far it is; the next call
//! for the same image waits on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::StreamExt;
use sandcell_sandbox::SandboxError;
use tokio::sync::watch;
use tokio::time::timeout;

use super::connect::{Address, failed, one_line};
use super::container::Image;

/// How long one call waits for a pull.
const WAIT: Duration = Duration::from_secs(20);
/// How long a pull may take.
const PULL: Duration = Duration::from_secs(1800);
/// Pulls at the same time.
const PULLS: usize = 8;
/// Layers of one image whose progress is counted.
const LAYERS: usize = 256;

/// Whether missing images are pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Those that are missing.
    Missing,
    /// None: an image must be there.
    Never,
}

/// How far a pull is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Pulling(Progress),
    Done,
    Failed(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Progress {
    done: u64,
    total: u64,
}

/// The images of a daemon.
#[derive(Debug)]
pub(super) struct Images {
    docker: Docker,
    address: Address,
    pull: Pull,
    pulls: Mutex<HashMap<String, watch::Receiver<Stage>>>,
}

impl Images {
    pub(super) fn new(docker: Docker, address: Address, pull: Pull) -> Self {
        Self {
            docker,
            address,
            pull,
            pulls: Mutex::default(),
        }
    }

    /// Looks at the image, and pulls it if that is needed.
    pub(super) async fn find(self: &Arc<Self>, name: &str) -> Result<Image, SandboxError> {
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
        self.pulled(name).await?;
        self.look(name).await?.ok_or_else(|| SandboxError::Image {
            image: name.to_owned(),
            reason: "it was pulled, and is gone again".to_owned(),
            remedy: "call again; look whether somebody removes images on the daemon's machine".to_owned(),
        })
    }

    async fn look(&self, name: &str) -> Result<Option<Image>, SandboxError> {
        if !is_reference(name) {
            return Err(SandboxError::Image {
                image: one_line(name),
                reason: "this is no image's name".to_owned(),
                remedy: "write it like alpine:3.20 or registry.example/name@sha256:…".to_owned(),
            });
        }
        match self.docker.inspect_image(name).await {
            Ok(found) => Ok(Image::from_daemon(found)),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(failed(&self.address, &error)),
        }
    }

    async fn pulled(self: &Arc<Self>, name: &str) -> Result<(), SandboxError> {
        let mut stage = self.join(name)?;
        let over = stage.wait_for(|stage| !matches!(stage, Stage::Pulling(_)));
        let over = timeout(WAIT, over).await.map(|over| over.map(|stage| stage.clone()));
        let seen = match over {
            Ok(Ok(stage)) => stage,
            Ok(Err(_)) => Stage::Failed("the pull broke off".to_owned()),
            Err(_) => stage.borrow().clone(),
        };
        match seen {
            Stage::Done => Ok(()),
            Stage::Pulling(progress) => Err(SandboxError::Image {
                image: name.to_owned(),
                reason: format!("it is being pulled: {progress}"),
                remedy: "call again in a moment: the pull goes on, and the call waits for it".to_owned(),
            }),
            Stage::Failed(reason) => Err(SandboxError::Image {
                image: name.to_owned(),
                remedy: remedy(name, &reason),
                reason,
            }),
        }
    }

    /// Begins to pull, or joins those who wait for the same.
    fn join(self: &Arc<Self>, name: &str) -> Result<watch::Receiver<Stage>, SandboxError> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stage) = pulls.get(name) {
            return Ok(stage.clone());
        }
        if pulls.len() >= PULLS {
            return Err(SandboxError::Image {
                image: name.to_owned(),
                reason: format!("{PULLS} other images are being pulled"),
                remedy: "call again in a moment".to_owned(),
            });
        }
        let (sender, stage) = watch::channel(Stage::Pulling(Progress::default()));
        pulls.insert(name.to_owned(), stage.clone());
        let (images, name) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move {
            let end = match timeout(PULL, images.run(&name, &sender)).await {
                Ok(Ok(())) => Stage::Done,
                Ok(Err(reason)) => Stage::Failed(reason),
                Err(_) => Stage::Failed(format!("it took more than {} s", PULL.as_secs())),
            };
            // The next call begins anew.
            images
                .pulls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&name);
            sender.send_replace(end);
        });
        Ok(stage)
    }

    async fn run(&self, name: &str, stage: &watch::Sender<Stage>) -> Result<(), String> {
        tracing::info!(image = name, "pulling");
        let options = CreateImageOptionsBuilder::default().from_image(&tagged(name)).build();
        let mut steps = self.docker.create_image(Some(options), None, None);
        let mut layers: HashMap<String, Progress> = HashMap::new();
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| match error {
                Error::DockerResponseServerError { message, .. } => one_line(&message),
                Error::DockerStreamError { error } => one_line(&error),
                other => one_line(&other.to_string()),
            })?;
            note(&mut layers, step)?;
            let sum = layers.values().fold(Progress::default(), |sum, layer| Progress {
                done: sum.done.saturating_add(layer.done),
                total: sum.total.saturating_add(layer.total),
            });
            stage.send_replace(Stage::Pulling(sum));
        }
        Ok(())
    }
}

/// Takes a step of a pull down.
fn note(layers: &mut HashMap<String, Progress>, step: CreateImageInfo) -> Result<(), String> {
    if let Some(message) = step.error_detail.and_then(|error| error.message) {
        return Err(one_line(&message));
    }
    let numbers = step.progress_detail.and_then(|detail| detail.current.zip(detail.total));
    if let (Some(layer), Some((current, total)), Some("Downloading")) = (step.id, numbers, step.status.as_deref())
        && (layers.len() < LAYERS || layers.contains_key(&layer))
    {
        let (done, total) = (u64::try_from(current).unwrap_or(0), u64::try_from(total).unwrap_or(0));
        layers.insert(layer, Progress { done, total });
    }
    Ok(())
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.total == 0 {
            return f.write_str("the registry is being asked");
        }
        write!(f, "{} of {} MB so far", self.done / 1_000_000, self.total / 1_000_000)
    }
}

/// Without a tag or digest a daemon would pull all tags.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.contains('@') || last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

/// Whether a text can only be the name of an image: it becomes part of a request's path.
fn is_reference(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let parts = name
        .split('/')
        .all(|part| !part.is_empty() && !part.bytes().all(|byte| byte == b'.'));
    name.len() <= 255 && name.bytes().all(fits) && parts && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn remedy(name: &str, reason: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&[
        "denied",
        "unauthorized",
        "not found",
        "manifest unknown",
        "does not exist",
    ]) {
        format!("check the name; for a private image `docker login` and `docker pull {name}` on the daemon's machine")
    } else if has(&["no space left"]) {
        "make room where the daemon keeps its data (`docker system df`, `docker system prune`)".to_owned()
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
    fn names_that_would_lead_elsewhere_are_none() {
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
    fn one_tag_is_pulled_and_not_all() {
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
        assert_eq!(layers.len(), LAYERS);
        let error = CreateImageInfo {
            error_detail: Some(ErrorDetail {
                message: Some("manifest\nunknown".to_owned()),
                ..ErrorDetail::default()
            }),
            ..CreateImageInfo::default()
        };
        assert_eq!(note(&mut layers, error), Err("manifest unknown".to_owned()));
        let progress = Progress {
            done: 4_500_000,
            total: 12_000_000,
        };
        assert_eq!(progress.to_string(), "4 of 12 MB so far");
    }
}
