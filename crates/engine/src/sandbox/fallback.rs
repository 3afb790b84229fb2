//! Preferred back ends that could not make a sandbox.

use sandcell_sandbox::{Backend, Failure, SandboxError};

use crate::{AbsentBackend, SkippedBackend};

/// Returns the absent back ends that are preferred to the working one with this name.
pub(crate) fn absent_before(
    absent: &[AbsentBackend],
    backends: &[std::sync::Arc<dyn Backend>],
    name: &str,
) -> Vec<SkippedBackend> {
    let Some(position) = backends.iter().position(|backend| backend.name() == name) else {
        return Vec::new();
    };
    let before = absent.iter().filter(|absent| absent.after <= position);
    before.map(|absent| absent.skipped.clone()).collect()
}

/// Combines the failures of several back ends: the most informative one, and the others' messages after it. A real
/// failure is preferred over "unsupported".
pub(crate) fn combine_failures(failed: Vec<(SkippedBackend, bool)>) -> Option<Failure> {
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

/// True if the back end only lacks a requested feature.
pub(crate) const fn is_unsupported(error: &SandboxError) -> bool {
    matches!(error, SandboxError::Unsupported(_))
}

#[cfg(test)]
mod tests {
    use sandcell_sandbox::Code;

    use super::*;

    fn skipped(name: &str, code: Code) -> SkippedBackend {
        SkippedBackend::new(
            name,
            Failure::new(code, format!("{name} says no"), format!("mend {name}")),
        )
    }

    #[test]
    fn a_real_failure_is_preferred_over_unsupported_and_others_follow() {
        assert_eq!(combine_failures(Vec::new()), None);
        let failure = combine_failures(vec![
            (skipped("plain", Code::InvalidArgument), true),
            (skipped("down", Code::BackendUnavailable), false),
        ]);
        let failure = failure.unwrap();
        assert_eq!(
            (failure.code, failure.remedy.as_str()),
            (Code::BackendUnavailable, "mend down")
        );
        assert_eq!(failure.message, "down says no; plain says no");
    }
}
