//! Sandboxes of E2B, or of a service with its protocol. The service's API creates them, and services inside each
//! sandbox run code.
//!
//! Each sandbox already contains these services, so it needs no agent of ours. Sessions are contexts of its code
//! interpreter; programs and files use its process and file services. The API key never enters a sandbox; only the
//! tokens that the service issued for this sandbox do. If the server vanishes, its sandboxes end when their lifetime is
//! over.

mod config;
mod error;
mod files;
mod frames;
mod inside;
mod languages;
mod process;
mod results;
mod sandbox;
mod service;
mod session;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use sandcell_sandbox::{
    Backend, Degree, EndReason, Isolation, LayerReport, LayerState, Level, Sandbox, SandboxError, SandboxSpec,
    SessionFeatures,
};
use tokio::time::timeout;

pub use config::{Debug, E2bConfig, Internet};
use error::ServiceError;
use inside::Inside;
pub use languages::{Analyse, languages};
use sandbox::E2bSandbox;
use service::{Info, Service};

/// The back end's name in settings and results.
pub const NAME: &str = "e2b";
/// The deadline of the shutdown of all sandboxes.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The deadline of the query for a sandbox's size.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);

/// The features of this back end's sessions.
pub const FEATURES: SessionFeatures = session::SESSION_FEATURES;

/// Creates sandboxes at the service.
#[derive(Debug)]
pub struct E2bBackend {
    service: Arc<Service>,
    isolation: Isolation,
    layers: Vec<LayerReport>,
    live: Mutex<Vec<Weak<Inside>>>,
}

impl E2bBackend {
    /// Validates the settings, and checks that the service accepts the key. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`SandboxError::Unavailable`] states the fault and the setting to correct.
    pub async fn start(config: E2bConfig) -> Result<Arc<Self>, SandboxError> {
        let service = Service::new(&config)?;
        service
            .greet()
            .await
            .map_err(|error| error.into_service_error(&config.template))?;
        let level = config.level.unwrap_or_else(|| service.addresses.level());
        let layers = layers(&config, level);
        Ok(Arc::new(Self {
            service: Arc::new(service),
            isolation: isolation(level, &layers),
            layers,
            live: Mutex::default(),
        }))
    }

    /// Creates a sandbox. Runs to completion even if the caller has left.
    async fn make(service: &Arc<Service>, spec: &SandboxSpec) -> Result<(Arc<Inside>, Option<Info>), ServiceError> {
        let made = service.create(spec).await?;
        // From here on, a drop kills the sandbox.
        let guard = KillOnDrop(Some(Inside::new(service.clone(), made)));
        let info = match &guard.0 {
            Some(inside) if !service.is_debug() => {
                let asked = timeout(INFO_TIMEOUT, service.info(&inside.made.id)).await;
                asked.unwrap_or(Err(ServiceError::Slow(INFO_TIMEOUT))).map(Some)?
            }
            Some(_) | None => None,
        };
        guard.release().map(|inside| (inside, info)).ok_or(ServiceError::Gone)
    }

    fn remember(&self, inside: &Arc<Inside>) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|one| one.upgrade().is_some_and(|one| one.has_ended().is_none()));
        live.push(Arc::downgrade(inside));
    }
}

/// A sandbox without an owner yet, which a drop kills.
struct KillOnDrop(Option<Arc<Inside>>);

impl KillOnDrop {
    fn release(mut self) -> Option<Arc<Inside>> {
        self.0.take()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(inside) = self.0.take() {
            inside.dropped();
        }
    }
}

/// Reports the isolation layers that are active, and those that are not.
fn layers(config: &E2bConfig, level: Level) -> Vec<LayerReport> {
    let active = |name: &str| LayerReport {
        name: name.to_owned(),
        state: LayerState::Active,
        reason: None,
        remedy: None,
    };
    let degraded = |name: &str, reason: &str, remedy: &str| LayerReport {
        state: LayerState::Degraded,
        reason: Some(reason.to_owned()),
        remedy: Some(remedy.to_owned()),
        ..active(name)
    };
    let network = match (config.debug, config.internet) {
        (Debug::On, _) => degraded("network", "debug mode: the network is open", "leave E2B_DEBUG out"),
        (Debug::Off, Internet::Open) => degraded("network", "it is open by setting", "set e2b.internet = false"),
        (Debug::Off, Internet::Closed) => active("network"),
    };
    vec![
        active("remote_machine"),
        match level {
            Level::Microvm => active("microvm"),
            _ => degraded(
                "microvm",
                "the service is not E2B's own, so its isolation is unknown",
                "set e2b.level to its isolation level",
            ),
        },
        network,
        degraded(
            "limits",
            "memory, processor and disk are those of the template",
            "choose another e2b.template",
        ),
    ]
}

fn isolation(level: Level, layers: &[LayerReport]) -> Isolation {
    let active = |layer: &&LayerReport| layer.state == LayerState::Active;
    let reason = |layer: &LayerReport| {
        let reason = layer.reason.as_ref()?;
        Some(format!("{}: {reason}", layer.name))
    };
    Isolation {
        backend: NAME.to_owned(),
        level,
        memory: Degree::of_memory(layers),
        layers: layers.iter().filter(active).map(|layer| layer.name.clone()).collect(),
        degraded: layers.iter().filter_map(reason).collect(),
    }
}

/// Returns the isolation of one sandbox, with its size if that is known.
fn sized(isolation: &Isolation, info: Option<&Info>) -> Isolation {
    let mut isolation = isolation.clone();
    if let Some(info) = info {
        for entry in isolation
            .degraded
            .iter_mut()
            .filter(|entry| entry.starts_with("limits: "))
        {
            *entry = format!(
                "limits: those of the template ({} MB memory, {} CPU, {} MB disk)",
                info.memory_mb, info.cpu_count, info.disk_size_mb
            );
        }
    }
    isolation
}

#[async_trait]
impl Backend for E2bBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn layers(&self) -> &[LayerReport] {
        &self.layers
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if spec.image.is_some() {
            return Err(SandboxError::Unsupported("image".to_owned()));
        }
        let (service, wanted) = (self.service.clone(), spec.clone());
        // A separate task: a caller that leaves in the middle would not know what to kill.
        let making = tokio::spawn(async move {
            let (inside, info) = Self::make(&service, &wanted).await?;
            Ok((KillOnDrop(Some(inside)), info))
        });
        let made: Result<(KillOnDrop, Option<Info>), ServiceError> = making.await.unwrap_or_else(|_| {
            Err(ServiceError::Garbled(
                "the task that made it ended unexpectedly".to_owned(),
            ))
        });
        let (guard, info) = made.map_err(|error| error.into_service_error(self.service.template()))?;
        let inside = guard.release().ok_or(SandboxError::Gone(EndReason::Closed))?;
        self.remember(&inside);
        let memory = info.as_ref().map(|info| info.memory_mb.saturating_mul(1 << 20));
        let isolation = sized(&self.isolation, info.as_ref());
        Ok(Arc::new(E2bSandbox::new(inside, isolation, &spec.env, memory)))
    }

    async fn shutdown(&self) {
        let live: Vec<Arc<Inside>> = {
            let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            live.drain(..).filter_map(|one| one.upgrade()).collect()
        };
        let open = live.iter().filter(|inside| inside.end(EndReason::Closed));
        let kills = join_all(open.map(|inside| inside.kill()));
        if timeout(SHUTDOWN_TIMEOUT, kills).await.is_err() {
            tracing::warn!("sandboxes did not end within {SHUTDOWN_TIMEOUT:?}; they end at their time-out");
        }
    }
}
