//! A stand-in for a back end that does not work here: it refuses every sandbox with the reason. So the server itself
//! tells the client why nothing runs, and nothing ever runs with less isolation.

use std::sync::Arc;

use sandcell_sandbox::{
    Backend, Code, Failure, Isolation, LayerReport, LayerState, Level, Sandbox, SandboxError, SandboxSpec,
};

/// A back end that refuses every request with the reason of its absence.
#[derive(Debug)]
pub(super) struct AbsentBackend {
    isolation: Isolation,
    layers: Vec<LayerReport>,
    failure: Failure,
}

impl AbsentBackend {
    /// Creates a stand-in with this reason.
    pub(super) fn new(failure: Failure) -> Self {
        let (name, reason) = match failure.message.split_once(" is not available: ") {
            Some((subject, reason)) if subject.starts_with("isolation layer ") => {
                (subject.trim_start_matches("isolation layer "), reason)
            }
            _ => ("sandbox", failure.message.as_str()),
        };
        Self {
            isolation: Isolation {
                backend: ABSENT_NAME.to_owned(),
                level: Level::None,
                memory: None,
                layers: Vec::new(),
                degraded: Vec::new(),
            },
            layers: vec![LayerReport {
                name: name.to_owned(),
                state: LayerState::Missing,
                reason: Some(reason.to_owned()),
                remedy: Some(failure.remedy.clone()),
            }],
            failure,
        }
    }
}

const ABSENT_NAME: &str = "none";

#[async_trait::async_trait]
impl Backend for AbsentBackend {
    fn name(&self) -> &'static str {
        ABSENT_NAME
    }

    fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    fn layers(&self) -> &[LayerReport] {
        &self.layers
    }

    async fn create(&self, _spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let remedy = self.failure.remedy.clone();
        // The message was made from such an error; its prefix must not be repeated.
        let message = self.failure.message.as_str();
        let (subject, reason) = message.split_once(" is not available: ").unwrap_or(("", message));
        let reason = reason.to_owned();
        Err(match self.failure.code {
            Code::IsolationUnavailable => SandboxError::Isolation {
                layer: subject.strip_prefix("isolation layer ").unwrap_or("sandbox").to_owned(),
                reason,
                remedy,
            },
            _ => SandboxError::Unavailable {
                backend: subject.strip_prefix("back end ").unwrap_or("native").to_owned(),
                reason,
                remedy,
            },
        })
    }

    async fn shutdown(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_absent_back_end_makes_no_sandbox_and_gives_the_reason() {
        for code in [Code::IsolationUnavailable, Code::BackendUnavailable] {
            let backend = AbsentBackend::new(Failure::new(code, "no user namespaces", "sysctl x=1"));
            let failure = Failure::from(backend.create(&SandboxSpec::default()).await.unwrap_err());
            assert_eq!(failure.code, code);
            assert!(failure.message.contains("no user namespaces"), "{failure}");
            assert_eq!(failure.remedy, "sysctl x=1");
        }
    }

    #[tokio::test]
    async fn a_reason_is_not_wrapped_twice() {
        let reason = SandboxError::Isolation {
            layer: "user_namespace".to_owned(),
            reason: "the kernel forbids it".to_owned(),
            remedy: "sysctl x=1".to_owned(),
        };
        let failure = Failure::from(reason);
        let backend = AbsentBackend::new(failure.clone());
        let error = backend.create(&SandboxSpec::default()).await.unwrap_err();
        assert_eq!(Failure::from(error), failure);
    }
}
