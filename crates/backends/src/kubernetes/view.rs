//! Derives the state of a sandbox from the status of its Pod. No I/O.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sandcell_agent::protocol::DISK_FULL_STATUS;
use sandcell_sandbox::EndReason;

use super::failure::shortened;

/// Reasons of a waiting container that no waiting mends.
const FINAL_REASONS: [&str; 4] = [
    "ErrImageNeverPull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
];
/// Reasons that may pass: a node tries again, for example when it has not learnt of a Secret yet.
const PASSING_REASONS: [&str; 4] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImagePull",
    "RunContainerError",
];
/// The exit status of a process that signal 9 killed.
const KILLED_STATUS: i32 = 137;

/// A Pod's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum View {
    /// It has not started. `why` is the cause, if the cluster names one.
    Waiting { why: Option<String> },
    /// The node could not start the container. `is_final` is false if the node may succeed later. `is_image` is true if the image is
    /// the cause.
    Stuck {
        why: String,
        is_final: bool,
        is_image: bool,
    },
    /// Its container runs; `ip` is its address.
    Running { ip: Option<String> },
    /// It has ended, or is being deleted by somebody.
    Ended { reason: EndReason },
}

impl View {
    pub(super) fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let container = status
            .container_statuses
            .as_ref()
            .and_then(|all| all.first().cloned())
            .unwrap_or_default();
        match status.reason.as_deref() {
            Some(
                "Evicted" | "Preempting" | "NodeShutdown" | "Terminated" | "NodeAffinity" | "UnexpectedAdmissionError",
            ) => {
                return Self::Ended {
                    reason: EndReason::Evicted,
                };
            }
            Some("DeadlineExceeded") => {
                return Self::Ended {
                    reason: EndReason::Expired,
                };
            }
            Some("NodeLost") => {
                return Self::Ended {
                    reason: EndReason::NodeLost,
                };
            }
            _ => {}
        }
        if let Some(reason) = ended(&container) {
            return Self::Ended { reason };
        }
        if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
            return Self::Ended {
                reason: EndReason::AgentLost,
            };
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Self::Ended {
                reason: EndReason::Removed,
            };
        }
        if container.state.as_ref().is_some_and(|state| state.running.is_some()) {
            return Self::Running { ip: status.pod_ip };
        }
        if let Some(waiting) = container.state.and_then(|state| state.waiting) {
            let name = waiting.reason.unwrap_or_default();
            let text = shortened(&format!("{name}: {}", waiting.message.unwrap_or_default()));
            let is_final = FINAL_REASONS.contains(&name.as_str());
            if is_final || PASSING_REASONS.contains(&name.as_str()) {
                return Self::Stuck {
                    why: text,
                    is_final,
                    is_image: name.contains("Image"),
                };
            }
        }
        let conditions = status.conditions.unwrap_or_default();
        let unscheduled = conditions
            .into_iter()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        Self::Waiting {
            why: unscheduled.and_then(|condition| condition.message.map(|message| shortened(&message))),
        }
    }
}

/// Returns the reason why a container ended, if it has.
fn ended(container: &ContainerStatus) -> Option<EndReason> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(match (ended.reason.as_deref(), ended.exit_code) {
        (Some("OOMKilled"), _) => EndReason::OutOfMemory,
        (_, status) if status == i32::from(DISK_FULL_STATUS) => EndReason::DiskFull,
        (_, KILLED_STATUS) => EndReason::AgentKilled,
        _ => EndReason::AgentLost,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(metadata: Value, status: Value) -> View {
        View::of(&serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
    }

    fn of_container(state: Value) -> View {
        let status =
            json!({"name": "sandbox", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        view(
            json!({}),
            json!({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": [status]}),
        )
    }

    #[test]
    fn a_pod_runs_when_its_container_does() {
        assert_eq!(view(json!({}), json!({})), View::Waiting { why: None });
        let running = of_container(json!({"running": {}}));
        assert_eq!(
            running,
            View::Running {
                ip: Some("10.0.0.7".to_owned())
            }
        );
        let full = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(
            view(json!({}), full),
            View::Waiting {
                why: Some("0/2 nodes are available".to_owned())
            }
        );
        let creating = of_container(json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(creating, View::Waiting { why: None });
    }

    #[test]
    fn a_container_that_cannot_be_made_is_named() {
        for (reason, is_final, is_image) in [
            ("ImagePullBackOff", true, true),
            ("ErrImageNeverPull", true, true),
            ("ErrImagePull", false, true),
            ("CreateContainerConfigError", false, false),
        ] {
            let seen = of_container(json!({"waiting": {"reason": reason, "message": "because"}}));
            let wanted = View::Stuck {
                why: format!("{reason}: because"),
                is_final,
                is_image,
            };
            assert_eq!(seen, wanted);
        }
    }

    #[test]
    fn each_end_has_its_cause() {
        for (state, wanted) in [
            (json!({"exitCode": 137, "reason": "OOMKilled"}), EndReason::OutOfMemory),
            (
                json!({"exitCode": DISK_FULL_STATUS, "reason": "Error"}),
                EndReason::DiskFull,
            ),
            (json!({"exitCode": 137, "reason": "Error"}), EndReason::AgentKilled),
            (json!({"exitCode": 0, "reason": "Completed"}), EndReason::AgentLost),
        ] {
            assert_eq!(
                of_container(json!({"terminated": state})),
                View::Ended { reason: wanted }
            );
        }
        for (reason, wanted) in [
            ("Evicted", EndReason::Evicted),
            ("DeadlineExceeded", EndReason::Expired),
            ("NodeLost", EndReason::NodeLost),
        ] {
            let seen = view(json!({}), json!({"phase": "Failed", "reason": reason}));
            assert_eq!(seen, View::Ended { reason: wanted });
        }
        let deleted = view(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            json!({"phase": "Running"}),
        );
        assert_eq!(
            deleted,
            View::Ended {
                reason: EndReason::Removed
            }
        );
    }
}
