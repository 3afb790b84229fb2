//! Unguessable ids: two letters for the kind, then 130 bits of randomness in base 32.
//!
//! They contain only lower-case letters and digits, so they fit into file names, host names and URLs.

use std::sync::Arc;

use sandcell_sandbox::{Code, Failure};

use crate::{ExecutionId, Principal, SandboxId};

const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const ID_LENGTH: usize = 26;

impl SandboxId {
    pub(crate) fn random() -> Result<Self, Failure> {
        random("sb").map(Self)
    }
}

impl ExecutionId {
    pub(crate) fn random() -> Result<Self, Failure> {
        random("ex").map(Self)
    }
}

impl Principal {
    /// Creates a principal from a name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

fn random(kind: &str) -> Result<Arc<str>, Failure> {
    let mut bytes = [0; ID_LENGTH];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("the system gave no random bytes for an id: {error}"),
            "try again",
        )
    })?;
    let mut id = String::with_capacity(kind.len() + ID_LENGTH);
    id.push_str(kind);
    // 256 is a multiple of 32: every letter is equally likely.
    id.extend(
        bytes
            .iter()
            .filter_map(|byte| ID_ALPHABET.get(usize::from(byte % 32)).copied().map(char::from)),
    );
    Ok(Arc::from(id))
}

/// Prepares an id from a caller for a message: bounded, and only visible ASCII.
pub(crate) fn quote_for_error(id: &str) -> String {
    let mut text: String = id
        .chars()
        .take(40)
        .map(|c| if c.is_ascii_graphic() { c } else { '?' })
        .collect();
    if id.chars().nth(40).is_some() {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_a_kind_and_26_lower_case_letters_and_digits() {
        for _ in 0..200 {
            let sandbox = SandboxId::random().unwrap();
            let execution = ExecutionId::random().unwrap();
            for (id, kind) in [(sandbox.as_str(), "sb"), (execution.as_str(), "ex")] {
                assert!(id.starts_with(kind) && id.len() == 28, "{id}");
                assert!(id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{id}");
            }
        }
    }

    #[test]
    fn no_two_ids_share_randomness() {
        let ids: HashSet<_> = (0..1000).map(|_| SandboxId::random().unwrap().0).collect();
        assert_eq!(ids.len(), 1000);
        let ends: HashSet<_> = ids
            .iter()
            .flat_map(|id| [id[2..15].to_owned(), id[15..].to_owned()])
            .collect();
        assert_eq!(ends.len(), 2000);
    }

    #[test]
    fn an_echoed_id_is_short_and_harmless() {
        assert_eq!(quote_for_error("sb1"), "sb1");
        assert_eq!(quote_for_error("a\nb\u{202e}"), "a?b?");
        assert_eq!(quote_for_error(&"x".repeat(5000)).len(), 43);
    }
}
