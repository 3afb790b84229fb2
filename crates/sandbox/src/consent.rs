//! The user's consent to actions that the operator leaves to the user. A call carries it; it covers exactly the names
//! in it.
//!
//! The package and network policies check it. Code inside a sandbox cannot give consent.

use crate::{Code, Failure};

/// The user's answer to the packages and hosts of a call that need consent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Consent {
    /// Nobody asked the user. This is always so for requests by code inside a sandbox.
    #[default]
    NotAsked,
    /// The client cannot ask its user.
    CannotAsk,
    /// The user said no.
    Declined,
    /// The user did not answer in time.
    NoAnswer,
    /// The user agreed to these names, spelled as in the call, and to nothing else.
    Given(Vec<String>),
}

/// The packages, hosts and changes of a call that need the user's consent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsentRequired {
    /// Packages, as the call names them.
    pub packages: Vec<String>,
    /// Hosts, as the call names them.
    pub hosts: Vec<String>,
    /// Changes that the call applies to folders of the host.
    pub changes: Option<ChangesToCommit>,
}

/// Changes of a sandbox that are applied to folders of the host after the user has agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesToCommit {
    /// The name of exactly these changes. Consent to it covers no others.
    pub name: String,
    /// A description for the user. Names from the sandbox are escaped.
    pub text: String,
}

impl ConsentRequired {
    /// Returns true if nothing needs consent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.hosts.is_empty() && self.changes.is_none()
    }
}

impl ConsentRequired {
    /// Returns everything that the user has to agree to, by name.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let changes = self.changes.iter().map(|changes| &changes.name);
        self.packages.iter().chain(&self.hosts).chain(changes)
    }
}

impl Consent {
    /// Returns true if the user agreed to this name.
    #[must_use]
    pub fn covers(&self, wanted: &str) -> bool {
        match self {
            Self::Given(all) => all.iter().any(|one| one == wanted),
            Self::NotAsked | Self::CannotAsk | Self::Declined | Self::NoAnswer => false,
        }
    }

    /// Builds the failure for a name without consent. `how` is the tool that asks the user, such as `install_package`.
    /// `setting` is the operator's list that would make the question unnecessary.
    #[must_use]
    pub fn refusal(&self, code: Code, wanted: &str, how: &str, setting: &str) -> Failure {
        let (why, remedy) = match self {
            Self::Declined => (
                "the user was asked and declined",
                "continue without it; ask again only for something that the user agreed to".to_owned(),
            ),
            Self::NoAnswer => (
                "the user was asked and did not answer in time",
                "make the same call again when the user is available: the question is repeated".to_owned(),
            ),
            Self::CannotAsk => (
                "the user decides, and this client has no way to ask (MCP elicitation)",
                format!("use a client that can ask its user, or let the operator name it in {setting}"),
            ),
            Self::NotAsked | Self::Given(_) => (
                "the user decides, and was not asked about it",
                format!("call {how}, which asks the user; code inside cannot"),
            ),
        };
        Failure::new(code, format!("{wanted} is not allowed yet: {why}"), remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_covers_only_the_named_items() {
        let yes = Consent::Given(vec!["six==1.0".to_owned()]);
        assert!(yes.covers("six==1.0") && !yes.covers("six") && !yes.covers("six==1.0 "));
        for no in [
            Consent::NotAsked,
            Consent::CannotAsk,
            Consent::Declined,
            Consent::NoAnswer,
        ] {
            assert!(!no.covers("six==1.0"), "{no:?}");
        }
    }

    #[test]
    fn every_refusal_says_what_to_do_next() {
        for (consent, word) in [
            (Consent::NotAsked, "install_package"),
            (Consent::CannotAsk, "packages.allow"),
            (Consent::Declined, "without it"),
            (Consent::NoAnswer, "again"),
        ] {
            let failure = consent.refusal(Code::PackageNotAllowed, "six", "install_package", "packages.allow");
            assert!(failure.remedy.contains(word), "{failure}");
        }
    }
}
