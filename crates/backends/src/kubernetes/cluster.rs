//! The cluster as this server sees it: its Pods, and the watch that reports their states.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use sandcell_sandbox::{EndReason, Ended};
use tokio::sync::watch;

use super::labels;
use super::objects::Objects;
use super::view::View;

/// The state of one Pod, shared by its task, its sandbox and the watch.
#[derive(Debug)]
pub(super) struct PodState {
    pub(super) name: String,
    /// Turns true when a caller asks it to end.
    pub(super) asked: watch::Sender<bool>,
    /// What the cluster says about it.
    pub(super) view: watch::Sender<View>,
    pub(super) ended: watch::Sender<Option<Ended>>,
    /// Turns true when nothing of it is left, or its removal was given up.
    pub(super) removed: watch::Sender<bool>,
    /// Turns true when the watch reported its deletion.
    deleted: watch::Sender<bool>,
}

impl PodState {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            asked: watch::Sender::new(false),
            view: watch::Sender::new(View::Waiting { why: None }),
            ended: watch::Sender::new(None),
            removed: watch::Sender::new(false),
            deleted: watch::Sender::new(false),
        }
    }

    pub(super) fn ask(&self) {
        self.asked.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits until a caller asks it to end.
    pub(super) async fn asked(&self) {
        // The sender lives as long as this borrow, here and below.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Waits until the cluster says that it has ended.
    pub(super) async fn over(&self) -> EndReason {
        let mut view = self.view.subscribe();
        let seen = view.wait_for(|view| matches!(view, View::Ended { .. })).await;
        match seen.as_deref() {
            Ok(View::Ended { reason }) => *reason,
            _ => EndReason::AgentLost,
        }
    }

    /// Waits until the cluster has forgotten it.
    pub(super) async fn deleted(&self) {
        let _ = self.deleted.subscribe().wait_for(|deleted| *deleted).await;
    }

    /// Waits until nothing of it is left.
    pub(super) async fn removed(&self) {
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    pub(super) async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        let seen = ended.wait_for(Option::is_some).await;
        let seen = seen.ok().and_then(|ended| ended.clone());
        seen.unwrap_or(Ended {
            reason: EndReason::AgentLost,
        })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) objects: Objects,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<String, Arc<PodState>>,
    closed: bool,
}

impl Cluster {
    /// Watches the Pods of `server` in a separate task.
    pub(super) fn new(objects: Objects, server: &str) -> Arc<Self> {
        let cluster = Arc::new(Self {
            objects,
            state: Mutex::default(),
        });
        tokio::spawn(follow(Arc::downgrade(&cluster), labels::pods_of(server)));
        cluster
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a Pod; returns false once the server is ending.
    pub(super) fn add(&self, pod: &Arc<PodState>) -> bool {
        let mut state = self.state();
        if !state.closed {
            state.pods.insert(pod.name.clone(), Arc::clone(pod));
        }
        !state.closed
    }

    pub(super) fn forget(&self, name: &str) {
        self.state().pods.remove(name);
    }

    /// Asks all Pods to end and refuses new ones.
    pub(super) fn close(&self) -> Vec<Arc<PodState>> {
        let mut state = self.state();
        state.closed = true;
        let all: Vec<_> = state.pods.values().cloned().collect();
        for pod in &all {
            pod.ask();
        }
        all
    }

    fn seen(&self, pod: &Pod) {
        let Some(name) = &pod.metadata.name else { return };
        let state = self.state().pods.get(name).cloned();
        if let Some(state) = state {
            state.set(View::of(pod));
        }
    }

    fn is_deleted(&self, name: &str) {
        let state = self.state().pods.get(name).cloned();
        if let Some(state) = state {
            state.set(View::Ended {
                reason: EndReason::Removed,
            });
            state.deleted.send_replace(true);
        }
    }
}

impl PodState {
    /// Records a state. The first end stays: a deletion follows most ends.
    fn set(&self, view: View) {
        self.view.send_if_modified(|current| {
            let changes = !matches!(current, View::Ended { .. }) && *current != view;
            if changes {
                *current = view;
            }
            changes
        });
    }
}

/// Follows the states of the Pods until the cluster is dropped. After a break the watch lists all Pods again: one that is not
/// listed, and was seen before, has been deleted meanwhile.
async fn follow(cluster: Weak<Cluster>, selector: String) {
    let Some(api) = cluster.upgrade().map(|cluster| cluster.objects.api::<Pod>()) else {
        return;
    };
    let mut events = Box::pin(watcher(api, watcher::Config::default().labels(&selector)).default_backoff());
    let mut known = HashSet::new();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        let Some(cluster) = cluster.upgrade() else { return };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.metadata.name.clone());
                cluster.seen(&pod);
            }
            Ok(Event::InitDone) => {
                for name in known.difference(&listed) {
                    cluster.is_deleted(name);
                }
                known.clone_from(&listed);
            }
            Ok(Event::Apply(pod)) => {
                known.extend(pod.metadata.name.clone());
                cluster.seen(&pod);
            }
            Ok(Event::Delete(pod)) => {
                if let Some(name) = &pod.metadata.name {
                    known.remove(name);
                    cluster.seen(&pod);
                    cluster.is_deleted(name);
                }
            }
            Err(error) => tracing::debug!(%error, "the watch of Pods broke off and begins again"),
        }
    }
}
