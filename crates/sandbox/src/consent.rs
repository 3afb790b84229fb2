//! What the operator leaves to the user of a caller: a yes that a call brings along, for what it names and nothing else.
//!
//! Whoever decides what may be installed or reached looks at it. Code inside a sandbox has none to give.

use crate::{Code, Failure};

/// What the user said to what a call wants and the operator leaves to the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Consent {
    /// Nobody was asked, as for what code inside a sandbox wants.
    #[default]
    NotAsked,
    /// The caller has no way to ask its user.
    CannotAsk,
    /// The user said no.
    Declined,
    /// The user said nothing in time.
    NoAnswer,
    /// The user said yes to these, in the words of the call, and to nothing else.
    Given(Vec<String>),
}

/// What a call wants and the operator leaves to the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftToUser {
    /// Packages, as the call names them.
    pub packages: Vec<String>,
    /// Hosts, as the call names them.
    pub hosts: Vec<String>,
}

impl LeftToUser {
    /// Whether there is nothing to ask.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.hosts.is_empty()
    }
}

impl Consent {
    /// Whether the user said yes to this.
    #[must_use]
    pub fn covers(&self, wanted: &str) -> bool {
        match self {
            Self::Given(all) => all.iter().any(|one| one == wanted),
            Self::NotAsked | Self::CannotAsk | Self::Declined | Self::NoAnswer => false,
        }
    }

    /// Refuses what the user has not allowed. `how` is what asks the user, such as `install_package`; `setting` the list of
    /// the operator's that would make the question unneeded.
    #[must_use]
    pub fn refusal(&self, code: Code, wanted: &str, how: &str, setting: &str) -> Failure {
        let (why, remedy) = match self {
            Self::Declined => (
                "the user was asked and said no",
                "go on without it, or agree on something else with the user before you ask again".to_owned(),
            ),
            Self::NoAnswer => (
                "the user was asked and did not answer in time",
                "make the same call again when the user is there: the question comes again".to_owned(),
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
    fn a_yes_holds_for_what_it_names_and_nothing_else_is_one() {
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
