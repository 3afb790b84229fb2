//! The cluster as this server sees it: its Pods, and the watch that reports their states.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use sandcell_sandbox::EndReason;
use tokio::sync::watch;

use super::labels;
use super::objects::Objects;
use super::view::View;
use crate::container::lifetime::{Lifetime, Living, Registry};

/// A Pod, shared by its task, its sandbox and the watch.
#[derive(Debug)]
pub(super) struct PodState {
    pub(super) life: Lifetime,
    /// The state of the Pod that the cluster has reported last.
    pub(super) view: watch::Sender<View>,
    /// Turns true when the watch reported its deletion.
    deleted: watch::Sender<bool>,
}

impl Living for PodState {
    fn life(&self) -> &Lifetime {
        &self.life
    }
}

impl PodState {
    pub(super) fn new(name: String) -> Self {
        Self {
            life: Lifetime::new(name),
            view: watch::Sender::new(View::Waiting { why: None }),
            deleted: watch::Sender::new(false),
        }
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

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) objects: Objects,
    pub(super) pods: Registry<PodState>,
}

impl Cluster {
    /// Watches the Pods of `server` in a separate task.
    pub(super) fn new(objects: Objects, server: &str) -> Arc<Self> {
        let cluster = Arc::new(Self {
            objects,
            pods: Registry::new(),
        });
        tokio::spawn(follow(Arc::downgrade(&cluster), labels::pods_of(server)));
        cluster
    }

    fn seen(&self, pod: &Pod) {
        let Some(name) = &pod.metadata.name else { return };
        if let Some(state) = self.pods.get(name) {
            state.set(View::of(pod));
        }
    }

    fn is_deleted(&self, name: &str) {
        if let Some(state) = self.pods.get(name) {
            state.set(View::Ended {
                reason: EndReason::Removed,
            });
            state.deleted.send_replace(true);
        }
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
