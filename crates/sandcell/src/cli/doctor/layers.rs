//! Tests the layers by making a real sandbox. The back end's own report is checked layer by layer. If making the
//! sandbox fails, the failing layer is known and the state of the others is not.

use std::sync::Arc;

use sandcell_sandbox::{Backend, Failure, LayerReport, LayerState, Limits, SandboxError, SandboxSpec};

/// The reason that no sandbox could be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerFailure {
    /// The layer that failed; none: the failed step belongs to no layer.
    layer: Option<String>,
    reason: String,
    /// The failure as callers see it.
    pub(super) failure: Failure,
}

/// Makes a sandbox and closes it again. Returns none on success.
pub(super) async fn failed(backend: &Arc<dyn Backend>, limits: Limits) -> Option<LayerFailure> {
    let spec = SandboxSpec {
        limits,
        ..SandboxSpec::default()
    };
    match backend.create(&spec).await {
        Ok(sandbox) => {
            if let Err(error) = sandbox.close().await {
                tracing::debug!(%error, "the sandbox that was made to see the layers could not be closed");
            }
            None
        }
        Err(error) => {
            let layer = match &error {
                SandboxError::Isolation { layer, reason, .. } => Some((layer.clone(), reason.clone())),
                _ => None,
            };
            let failure = Failure::from(error);
            let (layer, reason) = layer.map_or_else(
                || (None, failure.message.clone()),
                |(layer, reason)| (Some(layer), reason),
            );
            Some(LayerFailure { layer, reason, failure })
        }
    }
}

/// Returns the layers' reports after making a sandbox failed.
pub(super) fn after_failure(layers: Vec<LayerReport>, failed: &LayerFailure) -> Vec<LayerReport> {
    let name = failed.layer.as_deref().unwrap_or("sandbox");
    let missing = |name: &str, reason: String| LayerReport {
        name: name.to_owned(),
        state: LayerState::Missing,
        reason: Some(reason),
        remedy: Some(failed.failure.remedy.clone()),
    };
    let own = (!layers.iter().any(|layer| layer.name == name)).then(|| missing(name, failed.reason.clone()));
    let others = layers.into_iter().map(|layer| {
        if layer.name == name {
            missing(name, failed.reason.clone())
        } else {
            missing(
                &layer.name,
                format!("not seen to work: no sandbox came to life, since {name} failed"),
            )
        }
    });
    own.into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Vec<LayerReport> {
        let layer = |name: &str| LayerReport {
            name: name.to_owned(),
            state: LayerState::Active,
            reason: None,
            remedy: None,
        };
        ["user_namespace", "private_proc", "seccomp"].map(layer).to_vec()
    }

    #[test]
    fn no_layer_is_active_where_no_sandbox_could_be_made() {
        let failed = |layer: Option<&str>| LayerFailure {
            layer: layer.map(str::to_owned),
            reason: "mount /proc: no".to_owned(),
            failure: Failure::new(sandcell_sandbox::Code::IsolationUnavailable, "no", "do so"),
        };
        let seen = after_failure(layers(), &failed(Some("private_proc")));
        assert!(seen.iter().all(|layer| layer.state == LayerState::Missing), "{seen:?}");
        assert_eq!(seen[1].reason.as_deref(), Some("mount /proc: no"));
        assert!(
            seen[2].reason.as_deref().unwrap().contains("since private_proc failed"),
            "{seen:?}"
        );
        // A failure without a layer of the list is the first entry.
        for (layer, name) in [(None, "sandbox"), (Some("memory"), "memory")] {
            let seen = after_failure(layers(), &failed(layer));
            assert_eq!((seen.len(), seen[0].name.as_str()), (4, name));
            assert_eq!(seen[0].reason.as_deref(), Some("mount /proc: no"));
        }
    }
}
