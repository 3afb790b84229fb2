//! Which back ends a sandbox could not be made by, before the one that made it.

use sandcell_sandbox::{Backend, Code, Failure, SandboxError};
use serde::Serialize;

/// A back end that was preferred and did not make the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// Its name.
    pub backend: String,
    /// The kind of failure.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to do so that it is used.
    pub remedy: String,
}

impl PassedOver {
    /// For this reason.
    #[must_use]
    pub fn new(backend: impl Into<String>, failure: Failure) -> Self {
        Self {
            backend: backend.into(),
            code: failure.code,
            message: failure.message,
            remedy: failure.remedy,
        }
    }
}

/// A back end that the operator wants and that does not work here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentBackend {
    /// How many of the working ones are preferred to it.
    pub after: usize,
    /// Its name, and why it does not work.
    pub passed: PassedOver,
}

/// The absent ones that are preferred to the working one with this name.
pub(crate) fn absent_before(
    absent: &[AbsentBackend],
    backends: &[std::sync::Arc<dyn Backend>],
    name: &str,
) -> Vec<PassedOver> {
    let Some(position) = backends.iter().position(|backend| backend.name() == name) else {
        return Vec::new();
    };
    let before = absent.iter().filter(|absent| absent.after <= position);
    before.map(|absent| absent.passed.clone()).collect()
}

/// What several back ends that all failed come to: the failure that says most, and beside it the others' reasons. That
/// one lacks a feature says less than why one that has it could not work.
pub(crate) fn together(failed: Vec<(PassedOver, bool)>) -> Option<Failure> {
    let most = failed.iter().position(|(_, cannot)| !cannot).unwrap_or(0);
    let (chosen, _) = failed.get(most)?;
    let mut failure = Failure::new(chosen.code, chosen.message.clone(), chosen.remedy.clone());
    for (at, (other, _)) in failed.iter().enumerate() {
        if at != most && other.message != chosen.message {
            failure.message.push_str("; ");
            failure.message.push_str(&other.message);
        }
    }
    Some(failure)
}

/// Whether the back end only lacks what was asked for.
pub(crate) const fn lacks(error: &SandboxError) -> bool {
    matches!(error, SandboxError::Unsupported(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str, code: Code) -> PassedOver {
        PassedOver::new(
            name,
            Failure::new(code, format!("{name} says no"), format!("mend {name}")),
        )
    }

    #[test]
    fn the_reason_of_one_that_has_the_feature_counts_and_the_others_are_told() {
        assert_eq!(together(Vec::new()), None);
        let failure = together(vec![
            (passed("plain", Code::InvalidArgument), true),
            (passed("down", Code::BackendUnavailable), false),
        ]);
        let failure = failure.unwrap();
        assert_eq!(
            (failure.code, failure.remedy.as_str()),
            (Code::BackendUnavailable, "mend down")
        );
        assert_eq!(failure.message, "down says no; plain says no");
    }
}
