//! The Docker back end, and the languages of its image.

use std::sync::Arc;
use std::time::Duration;

use sandcell_backends::docker::{self, CredentialSource, DockerBackend, DockerConfig, Pull, Runtime};
use sandcell_languages::{Detected, SYSTEM_PACKAGES};
use sandcell_sandbox::{Backend, Code, Failure, Network, SandboxSpec};
use tokio::time::timeout;

use crate::config::Settings;
use crate::config::table::PullPolicy;

/// The back end's name.
pub(super) const NAME: &str = docker::NAME;

/// The time limit for inspecting the image at the start. The start does not wait for a pull.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the daemon.
pub(super) async fn backend(settings: &Settings) -> Result<Arc<dyn Backend>, Failure> {
    let own = &settings.docker;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let runtimes = SYSTEM_PACKAGES
        .iter()
        .filter(|known| own.languages.iter().any(|name| name == known.language))
        .map(|known| Runtime {
            language: known.language.to_owned(),
            programs: words(known.programs),
            apt: words(known.apt),
            apk: words(known.apk),
        });
    let config = DockerConfig {
        host: own.host.clone(),
        certificates: own.certificates.clone(),
        image: own.image.clone(),
        runtime: own.runtime.clone(),
        pull: match own.pull {
            PullPolicy::Missing => Pull::Missing,
            PullPolicy::Never => Pull::Never,
        },
        credentials: CredentialSource::of_this_user(),
        runtimes: runtimes.collect(),
        mirrors: mirrors(settings)?,
        mounts: settings.mounts.clone(),
        isolation_min: settings.isolation_min,
        limits_min: settings.limits_min,
    };
    Ok(DockerBackend::start(config).await?)
}

/// Returns the network for installing system packages.
fn mirrors(settings: &Settings) -> Result<Option<Arc<dyn Network>>, Failure> {
    super::network::reaching(&settings.docker.mirrors, &settings.network)
}

/// Returns the languages of the image. When no sandbox of the image can be made now, Python is assumed, and calls get
/// the reason. Most images that people choose have Python once they work (for example after a pull).
///
/// Also returns the reason that no sandbox can be made now.
pub(super) async fn languages(backend: &dyn Backend, settings: &Settings) -> (Detected, Option<Failure>) {
    let image = settings.docker.image.as_str();
    let wanted = super::wanted(settings);
    let spec = SandboxSpec {
        limits: settings.engine.limits.clone(),
        ..SandboxSpec::default()
    };
    let made = match timeout(INSPECT_TIMEOUT, backend.create(&spec)).await {
        Ok(made) => made.map_err(Failure::from),
        Err(_) => Err(not_ready_in_time(backend, image)),
    };
    if let Err(failure) = &made {
        tracing::warn!("the languages of the image {image} are not known: {failure}");
    }
    let (sandbox, failure) = match made {
        Ok(sandbox) => (Some(sandbox), None),
        Err(failure) => (None, Some(failure)),
    };
    let found = match &sandbox {
        Some(sandbox) => sandcell_languages::detect_in(sandbox.as_ref(), image, &wanted).await,
        None => sandcell_languages::suppose(image, &wanted),
    };
    if let Some(sandbox) = sandbox
        && let Err(error) = sandbox.close().await
    {
        tracing::debug!(%error, "the sandbox that the image was looked into from could not be closed");
    }
    (found, failure)
}

/// Returns the failure for a sandbox that was not ready in time.
fn not_ready_in_time(backend: &dyn Backend, image: &str) -> Failure {
    match backend.images().and_then(|images| images.preparing(None)) {
        Some(preparing) => Failure::new(
            Code::ImageUnavailable,
            format!("image {image} is not ready yet: {}", preparing.text),
            "wait and try again; a running server continues the preparation",
        ),
        None => Failure::new(
            Code::BackendUnavailable,
            format!(
                "no sandbox of the image {image} was ready within {} s",
                INSPECT_TIMEOUT.as_secs()
            ),
            "check whether the daemon is busy (`docker ps`, its log), and try again",
        ),
    }
}
