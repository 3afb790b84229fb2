//! A back end in two files, to show what one takes: its "sandboxes" are plain processes of this machine.
//!
//! **It isolates nothing.** Code runs with all the rights of whoever started it, in a folder that only looks like a home. So it
//! says level `none`, and does not start unless the operator accepts that; it is in no build of sandcell. What makes it
//! small is the agent: a back end that can start one program and has its two streams gets processes, files and sessions
//! from there. `docs/guides/add-a-back-end.md` goes through it.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod place;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use sandcell_agent::server::{ServeEnd, ServerConfig, serve};
use sandcell_sandbox::{Backend, HOME, Isolation, LayerReport, LayerState, Level, Sandbox, SandboxError, SandboxSpec};

use place::{LocalSandbox, Place};

/// The name in settings and results.
pub const NAME: &str = "local";
/// The word by which this program knows that it is to be an agent.
const AGENT: &str = "sandcell-local-agent";

/// Runs the agent if this process was started as one, and then does not return. Call it first in `main`.
pub fn become_agent_if_asked() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == AGENT)
        && let Some(folder) = words.next()
    {
        std::process::exit(agent(Path::new(&folder)));
    }
}

/// Serves the host over standard input and output. Without a root of its own, paths are moved into its folder.
fn agent(folder: &Path) -> i32 {
    use std::os::fd::AsFd as _;
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let config = ServerConfig {
        home: at("home"),
        private: vec![PathBuf::from(at("home"))],
        moved_folders: vec![(HOME.to_owned(), at("home")), ("/tmp".to_owned(), at("tmp"))],
        ..ServerConfig::default()
    };
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let output = std::io::stdout().as_fd().try_clone_to_owned();
    match (input, output) {
        (Ok(input), Ok(output)) => match serve(input, output, config) {
            ServeEnd::HostClosed => 0,
            ServeEnd::ProtocolError(_) | ServeEnd::DiskFull | ServeEnd::Failed(_) => 1,
        },
        (Err(_), _) | (_, Err(_)) => 1,
    }
}

/// Makes "sandboxes" that are none.
#[derive(Debug)]
pub struct LocalBackend {
    isolation: Isolation,
    layers: Vec<LayerReport>,
    /// Those that live; none when no more are made.
    places: Mutex<Option<Vec<Weak<Place>>>>,
}

impl LocalBackend {
    /// Says what it gives before it gives anything.
    ///
    /// # Errors
    /// [`SandboxError::Isolation`] unless `isolation_min` is `none`: nothing weaker than asked for is ever a default.
    pub fn start(isolation_min: Level) -> Result<Arc<Self>, SandboxError> {
        if !Level::None.satisfies(isolation_min) {
            return Err(SandboxError::Isolation {
                layer: isolation_min.to_string(),
                reason: format!("back end {NAME} isolates nothing"),
                remedy: "choose another back end; this one is an example".to_owned(),
            });
        }
        Ok(Arc::new(Self {
            isolation: Isolation {
                backend: NAME.to_owned(),
                level: Level::None,
                memory: None,
                layers: Vec::new(),
                degraded: vec!["everything: code has all rights of the server's user".to_owned()],
            },
            layers: vec![LayerReport {
                name: "everything".to_owned(),
                state: LayerState::Missing,
                reason: Some("an example does not isolate".to_owned()),
                remedy: Some("choose another back end".to_owned()),
            }],
            places: Mutex::new(Some(Vec::new())),
        }))
    }

    /// Takes a place in, so that the end of all finds it; false when there are to be no more.
    fn keep(&self, place: &Arc<Place>) -> bool {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(places) = places.as_mut() else { return false };
        places.retain(|one| one.strong_count() > 0);
        places.push(Arc::downgrade(place));
        true
    }
}

#[async_trait]
impl Backend for LocalBackend {
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
        if let Some(image) = &spec.image {
            return Err(SandboxError::Unsupported(format!("the image {image}")));
        }
        let (place, client) = Place::make().await?;
        if !self.keep(&place) {
            place.end().await;
            return Err(SandboxError::Unavailable {
                backend: NAME.to_owned(),
                reason: "the server is ending".to_owned(),
                remedy: "start it again".to_owned(),
            });
        }
        Ok(Arc::new(LocalSandbox::new(place, client, self.isolation.clone(), spec)))
    }

    async fn shutdown(&self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).take();
        for place in places.into_iter().flatten().filter_map(|place| place.upgrade()) {
            place.end().await;
        }
    }
}
