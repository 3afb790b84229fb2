//! The Docker back end, and the languages of its image.

use std::sync::Arc;
use std::time::Duration;

use sandcell_backends::docker::{self, CredentialSource, DockerBackend, DockerConfig, DockerSettings, Runtime};
use sandcell_languages::{Detected, SYSTEM_PACKAGES};
use sandcell_sandbox::{Backend, BackendImages, Code, Failure, SandboxSpec};
use tokio::time::timeout;

use crate::config::{ConfigError, Settings, value_in};

/// The back end's name.
pub(super) const NAME: &str = docker::NAME;

/// The time limit for inspecting the image at the start. The start does not wait for a pull.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the back end's table.
pub(crate) fn own_settings(settings: &Settings) -> Result<DockerSettings, ConfigError> {
    Ok(DockerSettings::read(value_in(&settings.values))?)
}

/// Connects to the daemon.
pub(super) async fn backend(settings: &Settings) -> Result<Arc<dyn Backend>, Failure> {
    let own = own_settings(settings)?;
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
        credentials: CredentialSource::of_this_user(),
        runtimes: runtimes.collect(),
        // The network for installing system packages.
        mirrors: super::network::reaching(&own.mirrors, &settings.network)?,
        mounts: settings.mounts.clone(),
        isolation_min: settings.isolation_min,
        limits_min: settings.limits_min,
        settings: own,
    };
    Ok(DockerBackend::start(config).await?)
}

/// Returns the languages of the image. When no sandbox of the image can be made now, Python is assumed, and calls get
/// the reason. Most images that people choose have Python once they work (for example after a pull).
///
/// Also returns the reason that no sandbox can be made now.
pub(super) async fn languages(backend: &dyn Backend, settings: &Settings) -> (Detected, Option<Failure>) {
    let image = backend
        .images()
        .and_then(BackendImages::default_image)
        .unwrap_or_default();
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
