//! The life of a container as its task, its sandbox and the server see it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandcell_sandbox::{EndReason, Ended};
use tokio::sync::watch;

/// The requests to end a container, and its end.
#[derive(Debug)]
pub(crate) struct Lifetime {
    pub(crate) name: String,
    /// Turns true when a caller asks it to end.
    asked: watch::Sender<bool>,
    ended: watch::Sender<Option<Ended>>,
    /// Turns true when nothing of it is left, or its removal was given up.
    removed: watch::Sender<bool>,
}

impl Lifetime {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            asked: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            removed: watch::Sender::new(false),
        }
    }

    /// Asks the container's task to end it.
    pub(crate) fn ask(&self) {
        self.asked.send_replace(true);
    }

    /// Waits until a caller asks it to end.
    pub(crate) async fn asked(&self) {
        // The sender lives as long as this borrow, here and below.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Records that it has ended.
    pub(crate) fn end(&self, reason: EndReason) {
        self.ended.send_replace(Some(Ended { reason }));
    }

    pub(crate) fn has_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        let seen = ended.wait_for(Option::is_some).await;
        let seen = seen.ok().and_then(|ended| ended.clone());
        seen.unwrap_or(Ended {
            reason: EndReason::LauncherLost,
        })
    }

    /// Records that nothing of it is left.
    pub(crate) fn is_removed(&self) {
        self.removed.send_replace(true);
    }

    /// Waits until nothing of it is left.
    pub(crate) async fn removed(&self) {
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }
}

/// A container that has a life.
pub(crate) trait Living {
    fn life(&self) -> &Lifetime;
}

/// The containers of a server.
#[derive(Debug)]
pub(crate) struct Registry<C>(Mutex<State<C>>);

#[derive(Debug)]
struct State<C> {
    containers: HashMap<String, Arc<C>>,
    closed: bool,
}

impl<C: Living> Registry<C> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            containers: HashMap::new(),
            closed: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a container; returns false once the server is ending.
    pub(crate) fn add(&self, container: &Arc<C>) -> bool {
        let mut state = self.state();
        if !state.closed {
            let name = container.life().name.clone();
            state.containers.insert(name, Arc::clone(container));
        }
        !state.closed
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<C>> {
        self.state().containers.get(name).cloned()
    }

    pub(crate) fn forget(&self, name: &str) {
        self.state().containers.remove(name);
    }

    /// Asks all containers to end and refuses new ones.
    pub(crate) fn close(&self) -> Vec<Arc<C>> {
        let mut state = self.state();
        state.closed = true;
        let all: Vec<_> = state.containers.values().cloned().collect();
        for container in &all {
            container.life().ask();
        }
        all
    }
}
