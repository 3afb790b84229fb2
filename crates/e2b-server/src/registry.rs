//! The sandboxes that were created by E2B's API: their secrets, and what E2B's answers tell about them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::StatusCode;
use sandcell_engine::{Principal, SandboxView};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use crate::State;
use crate::contexts::Contexts;
use crate::metadata::FileMetadata;
use crate::problem::Problem;
use crate::processes::Processes;
use crate::secrets::secret;
use crate::watchers::Watchers;

/// The maximum number of simultaneous requests without a secret for the ports of a sandbox.
const MAX_PUBLIC_REQUESTS: usize = 16;
/// The maximum number of streams of input of a sandbox at once.
const MAX_INPUT_STREAMS: usize = 16;
/// The interval of the search for sandboxes that have ended.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The part of a request for a sandbox that the engine does not know.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    pub(crate) template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Its environment variables.
    pub(crate) env: BTreeMap<String, String>,
    /// True if the ports of its programs need no secret.
    pub(crate) public: bool,
    /// The host that its programs see in requests for their ports, with `${PORT}` for the port.
    pub(crate) host: Option<String>,
    /// True if it is paused at the end of its lifetime.
    pub(crate) pauses_at_end: bool,
    /// True if requests for it resume it.
    pub(crate) resumes: bool,
}

/// A sandbox that was created by E2B's API.
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) owner: Principal,
    pub(crate) terms: Terms,
    /// The secret for processes, files and the code interpreter.
    pub(crate) access_token: String,
    /// The secret for the code interpreter and the ports of programs.
    pub(crate) traffic_token: String,
    pub(crate) processes: Processes,
    pub(crate) contexts: Contexts,
    pub(crate) watchers: Watchers,
    pub(crate) file_metadata: FileMetadata,
    /// Set when the program of its template has started.
    pub(crate) start: OnceCell<()>,
    /// Streams of input that are open at once.
    pub(crate) input_streams: Semaphore,
    /// Requests for ports without a secret that are answered at once. Without this bound they could use up the owner's.
    public: Arc<Semaphore>,
}

impl Sandbox {
    /// Makes the record of a new sandbox, with new secrets.
    pub(crate) fn new(view: &SandboxView, owner: Principal, terms: Terms) -> Result<Self, Problem> {
        Ok(Self {
            id: view.id.to_string(),
            owner,
            terms,
            access_token: secret()?,
            traffic_token: secret()?,
            processes: Processes::default(),
            contexts: Contexts::default(),
            watchers: Watchers::default(),
            file_metadata: FileMetadata::default(),
            start: OnceCell::new(),
            input_streams: Semaphore::new(MAX_INPUT_STREAMS),
            public: Arc::new(Semaphore::new(MAX_PUBLIC_REQUESTS)),
        })
    }
}

impl Sandbox {
    /// Returns a permit for a request without a secret.
    pub(crate) fn public_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.public).try_acquire_owned().map_err(|_| {
            Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("the sandbox answers at most {MAX_PUBLIC_REQUESTS} requests without a secret at a time"),
            )
        })
    }
}

/// All sandboxes that were created by E2B's API.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<String, Arc<Sandbox>>>);

impl Registry {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sandbox. If there is one with its id already, that one stays and is returned.
    pub(crate) fn add(&self, sandbox: Sandbox) -> Arc<Sandbox> {
        let id = sandbox.id.clone();
        self.all().entry(id).or_insert_with(|| Arc::new(sandbox)).clone()
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.all().get(id).cloned()
    }

    /// Returns the sandbox that this secret of a request belongs to.
    pub(crate) fn known_by(&self, known: impl Fn(&Sandbox) -> bool) -> Option<Arc<Sandbox>> {
        // Outside the lock: a signature takes a hash for each sandbox.
        let all: Vec<Arc<Sandbox>> = self.all().values().cloned().collect();
        all.into_iter().find(|sandbox| known(sandbox))
    }

    /// Returns a caller's sandbox.
    pub(crate) fn of(&self, owner: &Principal, id: &str) -> Option<Arc<Sandbox>> {
        self.find(id).filter(|sandbox| sandbox.owner == *owner)
    }

    pub(crate) fn forget(&self, id: &str) {
        self.all().remove(id);
    }
}

/// Removes sandboxes that have ended. Ends with the server.
pub(crate) async fn forget_ended(state: Weak<State>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(state) = state.upgrade() else { return };
        state
            .sandboxes
            .all()
            .retain(|id, sandbox| state.engine.has_sandbox(&sandbox.owner, id));
    }
}
