//! Unguessable ids: two letters for the kind, then 130 bits of randomness in base 32.
//!
//! They contain only lower-case letters and digits, so they fit into file names, host names and URLs.

use std::sync::Arc;

use sandcell_sandbox::{Code, Failure};
use serde::Serialize;

const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const ID_LENGTH: usize = 26;

/// The identity of a caller. Everything belongs to a principal, and another principal's id gets the answer of an
/// unknown one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(pub Arc<str>);

/// A sandbox's id: `sb` and 26 lower-case letters and digits (130 bits of randomness).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SandboxId(pub(crate) Arc<str>);

/// An execution's id: `ex` and 26 lower-case letters and digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ExecutionId(pub(crate) Arc<str>);

impl SandboxId {
    /// Reads an id from its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_id(text, "sb").then(|| Self(text.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SandboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl ExecutionId {
    /// Reads an id from its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        is_id(text, "ex").then(|| Self(text.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == ID_LENGTH
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

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
            format!("the system returned no random bytes for an id: {error}"),
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
