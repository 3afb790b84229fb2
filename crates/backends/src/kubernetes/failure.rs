//! Explains the errors of the API server.

use kube::Error;
use sandcell_sandbox::{Code, Failure, SandboxError, with_sources};

use super::NAME;

/// The number of characters of a message that are passed on.
const MAX_MESSAGE_CHARS: usize = 500;

/// Returns the error for a cluster that does not do what it is asked.
pub(super) fn unavailable(reason: impl Into<String>, remedy: impl Into<String>) -> SandboxError {
    SandboxError::Unavailable {
        backend: NAME.to_owned(),
        reason: reason.into(),
        remedy: remedy.into(),
    }
}

/// Returns the error for a refused request. `action` says what was asked, such as `create a Pod`.
pub(super) fn failed(action: &str, error: &Error) -> SandboxError {
    let Error::Api(status) = error else {
        return unavailable(
            format!("failed to {action}: {}", shortened(&with_sources(error))),
            "check that `kubectl get pods` works with the same kubeconfig, context and network; then try again",
        );
    };
    let said = shortened(&status.message);
    match status.code {
        401 => unavailable(
            format!("the API server does not accept the credentials ({action}): {said}"),
            "renew the credentials in the kubeconfig, or the service account's token",
        ),
        403 if status.message.contains("exceeded quota") => SandboxError::Refused(Box::new(Failure::new(
            Code::LimitReached,
            format!("the namespace's quota leaves no room for another sandbox: {said}"),
            "close a sandbox that is no longer needed, ask for smaller limits, or let the operator raise the ResourceQuota",
        ))),
        403 if status.message.contains("violates PodSecurity") => unavailable(
            format!("the namespace's Pod Security level refuses sandboxes: {said}"),
            "sandboxes meet the level `restricted`; another admission rule of the cluster must be changed",
        ),
        403 => unavailable(
            format!("the credentials do not permit to {action}: {said}"),
            "give the server's account the Role that the Kubernetes guide shows",
        ),
        404 => unavailable(
            format!("failed to {action}: {said}"),
            "check `kubernetes.namespace`; the namespace must exist",
        ),
        422 | 400 => unavailable(
            format!("the cluster refuses to {action}: {said}"),
            "correct the setting that the message names (`kubernetes.image`, `kubernetes.runtime_class`, `kubernetes.node_selector`)",
        ),
        429 | 500..=599 => unavailable(
            format!("the API server is busy or failing ({action}): {said}"),
            "try again in some seconds",
        ),
        _ => unavailable(
            format!("failed to {action}: {said}"),
            "try again; the API server's log has more",
        ),
    }
}

/// Returns true if the object is not there.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// Returns text on one line, cut to a bearable length.
pub(super) fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(code: u16, message: &str) -> Failure {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        failed("create a Pod", &Error::Api(Box::new(status))).into()
    }

    #[test]
    fn each_refusal_names_its_cause_and_a_remedy() {
        let quota = refused(
            403,
            "pods \"x\" is forbidden: exceeded quota: team, requested: pods=1, used: pods=10",
        );
        assert_eq!(quota.code, Code::LimitReached);
        assert!(quota.message.contains("pods=10"), "{quota}");
        for (code, message, remedy) in [
            (
                403,
                "pods is forbidden: User \"nobody\" cannot create resource \"pods\"",
                "Role",
            ),
            (401, "Unauthorized", "credentials"),
            (404, "namespaces \"gone\" not found", "kubernetes.namespace"),
            (422, "spec.runtimeClassName: Invalid value", "kubernetes.runtime_class"),
            (503, "the server is shutting down", "try again"),
        ] {
            let told = refused(code, message);
            assert_eq!(told.code, Code::BackendUnavailable, "{told}");
            assert!(told.message.contains(message), "{told}");
            assert!(told.remedy.contains(remedy), "{told}");
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let text = shortened(&"ü ".repeat(600));
        assert_eq!(text.chars().count(), MAX_MESSAGE_CHARS + 1);
    }
}
