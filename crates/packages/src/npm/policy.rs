//! The operator's policy for npm packages. Pure.
//!
//! An entry is a name (`lodash`) or a pattern of names (`@acme/*`), optionally with `@` and the beginning of a version
//! (`zod@3`, `left-pad@1.3.0`). As for Python, the decisive check is that of every exact version to install.

use std::str::FromStr;
use std::time::Duration;

use sandcell_sandbox::{Code, Consent, Failure};

use super::spec::Spec;
use crate::lock::Locked;

/// The maximum number of entries in a refusal.
const MAX_SHOWN_ENTRIES: usize = 20;

/// One entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpmEntry {
    text: String,
    /// The parts between stars.
    name: Vec<String>,
    version: Option<Vec<String>>,
}

impl FromStr for NpmEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let cut = text.get(1..).and_then(|rest| rest.find('@')).map(|place| place + 1);
        let (name, version) = match cut.and_then(|place| text.split_at_checked(place)) {
            Some((name, version)) => (name, Some(version.trim_start_matches('@'))),
            None => (text, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~@/*".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err("an entry is a name such as lodash or @acme/*".to_owned());
        }
        let sound = |c: char| c.is_ascii_alphanumeric() || "-.+".contains(c);
        if version.is_some_and(|version| version.is_empty() || !version.chars().all(sound)) {
            return Err("after @ an entry has a version prefix, such as 3 or 1.2.0".to_owned());
        }
        Ok(Self {
            text: text.to_owned(),
            name: name.split('*').map(str::to_owned).collect(),
            version: version.map(|version| version.split('.').map(str::to_owned).collect()),
        })
    }
}

impl NpmEntry {
    fn is_about(&self, name: &str) -> bool {
        let Some((first, rest)) = self.name.split_first() else {
            return false;
        };
        let Some(mut left) = name.strip_prefix(first.as_str()) else {
            return false;
        };
        let Some((last, middle)) = rest.split_last() else {
            return left.is_empty();
        };
        for part in middle {
            match left.split_once(part.as_str()) {
                Some((_, after)) => left = after,
                None => return false,
            }
        }
        left.ends_with(last.as_str())
    }

    fn holds(&self, name: &str, version: &str) -> bool {
        let begins = |parts: &Vec<String>| {
            let own: Vec<&str> = version.split('.').collect();
            parts.len() <= own.len() && parts.iter().zip(own).all(|(part, own)| part == own)
        };
        self.is_about(name) && self.version.as_ref().is_none_or(begins)
    }
}

/// The operator's rules for npm packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NpmPolicy {
    /// The allow-list. If it has entries, one of them must match.
    pub allow: Vec<NpmEntry>,
    /// The deny-list. None of its entries may match.
    pub deny: Vec<NpmEntry>,
    /// Packages that need the user's consent, if no entry of `allow` covers them.
    pub ask: Vec<NpmEntry>,
    /// The minimum age of a release.
    pub min_age: Option<Duration>,
    /// If true, an empty allow-list allows no package: the operator restricts packages of another language.
    pub closed: bool,
}

impl NpmPolicy {
    /// Returns true if this request needs the user's consent. The user does not decide about denied or allowed
    /// packages.
    pub(crate) fn needs_consent(&self, spec: &Spec) -> bool {
        let about = |entry: &NpmEntry| entry.is_about(&spec.name);
        let holds = |entry: &NpmEntry| match exact(&spec.range) {
            Some(version) => entry.holds(&spec.name, version),
            None => about(entry),
        };
        let denied = self.deny.iter().any(|entry| about(entry) && entry.version.is_none());
        !denied && !self.allow.iter().any(holds) && self.ask.iter().any(holds)
    }

    /// Refuses requests that need consent and have none.
    pub(crate) fn check_consent(&self, specs: &[Spec], consent: &Consent) -> Result<(), Failure> {
        match specs
            .iter()
            .find(|spec| self.needs_consent(spec) && !consent.covers(&spec.shown()))
        {
            Some(spec) => Err(consent.refusal(
                Code::PackageNotAllowed,
                &spec.shown(),
                "install_package",
                "packages.npm_allow",
            )),
            None => Ok(()),
        }
    }

    /// Returns the rules of one installation, without open questions, as for Python.
    pub(crate) fn settled(&self, specs: &[Spec]) -> Self {
        let mut settled = self.clone();
        let open = settled.allow.is_empty() && !settled.closed;
        if specs.iter().any(|spec| self.needs_consent(spec)) {
            settled.ask.clear();
            if !open {
                settled.allow.extend(self.ask.iter().cloned());
            }
        } else if open {
            settled.deny.extend(self.ask.iter().cloned());
        }
        settled
    }

    /// Returns true if a version may be installed.
    pub(crate) fn offers(&self, name: &str, version: &str) -> bool {
        let holds = |entry: &NpmEntry| entry.holds(name, version);
        let allowed = match self.allow.as_slice() {
            [] => !self.closed,
            allow => allow.iter().any(holds),
        };
        allowed && !self.deny.iter().any(holds)
    }

    /// Checks a request, as far as this is possible before the versions are known.
    pub(crate) fn check(&self, spec: &Spec) -> Result<(), Failure> {
        let about = |entry: &NpmEntry| entry.is_about(&spec.name);
        let denied = self.deny.iter().any(|entry| about(entry) && entry.version.is_none());
        let allowed = match self.allow.as_slice() {
            [] => !self.closed,
            allow => allow.iter().any(about),
        };
        if denied || !allowed {
            return Err(self.refusal(format!("{} may not be installed", spec.name)));
        }
        Ok(())
    }

    /// Checks every exact version.
    pub(crate) fn check_lock(&self, locked: &[Locked]) -> Result<(), Failure> {
        match locked.iter().find(|one| !self.offers(&one.name, &one.version)) {
            None => Ok(()),
            Some(one) if self.is_unasked(&one.name) => Err(Failure::new(
                Code::PackageNotAllowed,
                format!("it would install {} {}", one.name, one.version),
                format!(
                    "{} needs the user's consent: name it among the packages of the call, so that the user is asked",
                    one.name
                ),
            )),
            Some(one) => Err(self.refusal(format!("{} {} may not be installed", one.name, one.version))),
        }
    }

    /// Returns true if the package would be allowed with the user's consent.
    fn is_unasked(&self, name: &str) -> bool {
        let denied = |entry: &NpmEntry| entry.is_about(name) && !self.ask.contains(entry);
        self.ask.iter().any(|entry| entry.is_about(name)) && !self.deny.iter().any(denied)
    }

    pub(crate) fn refusal(&self, what: String) -> Failure {
        let list = |entries: &[NpmEntry]| {
            let texts: Vec<&str> = entries
                .iter()
                .take(MAX_SHOWN_ENTRIES)
                .map(|entry| entry.text.as_str())
                .collect();
            texts.join(", ")
        };
        let remedy = match (self.allow.as_slice(), self.closed) {
            ([], true) => "ask the operator to name npm packages in packages.npm_allow".to_owned(),
            ([], false) => format!("not allowed are: {}", list(&self.deny)),
            (allow, _) => format!("allowed are: {}", list(allow)),
        };
        Failure::new(Code::PackageNotAllowed, what, remedy)
    }
}

/// Returns the exact version, if the range is one.
fn exact(range: &str) -> Option<&str> {
    let core = range.split(['-', '+']).next().unwrap_or_default();
    let number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let one = core.split('.').count() == 3 && core.split('.').all(number) && !range.contains(char::is_whitespace);
    one.then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<NpmEntry> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn entries_match_names_patterns_and_version_prefixes() {
        let policy = NpmPolicy {
            allow: entries(&["lodash", "@acme/*", "zod@3", "left-pad@1.3.0"]),
            deny: entries(&["@acme/secret", "lodash@4.17.0"]),
            ..NpmPolicy::default()
        };
        for (name, version) in [
            ("lodash", "4.17.21"),
            ("@acme/x", "1.0.0"),
            ("zod", "3.25.0"),
            ("left-pad", "1.3.0"),
        ] {
            assert!(policy.offers(name, version), "{name} {version}");
        }
        for (name, version) in [
            ("lodash", "4.17.0"),
            ("lodash-es", "4.17.21"),
            ("@acme/secret", "1.0.0"),
            ("@acmex/x", "1.0.0"),
            ("zod", "4.0.0"),
            ("zod", "30.0.0"),
            ("left-pad", "1.3.0-rc.1"),
            ("other", "1.0.0"),
        ] {
            assert!(!policy.offers(name, version), "{name} {version}");
        }
        let closed = NpmPolicy {
            closed: true,
            ..NpmPolicy::default()
        };
        assert!(!closed.offers("lodash", "4.17.21") && NpmPolicy::default().offers("lodash", "4.17.21"));
        for bad in ["", "a b", "a@", "a@^1", "https://x"] {
            assert!(bad.parse::<NpmEntry>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn packages_that_need_consent_are_asked_about_together_with_dependencies() {
        let spec = |text: &str| super::super::spec::parse_all(&[text.to_owned()]).unwrap();
        let policy = NpmPolicy {
            allow: entries(&["zod"]),
            deny: entries(&["evil"]),
            ask: entries(&["*"]),
            min_age: None,
            closed: true,
        };
        for (text, needs_consent) in [("zod@3", false), ("lodash@^4", true), ("evil", false)] {
            let specs = spec(text);
            assert_eq!(policy.needs_consent(&specs[0]), needs_consent, "{text}");
            assert_eq!(
                policy.check_consent(&specs, &Consent::NotAsked).is_err(),
                needs_consent,
                "{text}"
            );
            let yes = Consent::Given(vec![specs[0].shown()]);
            assert!(policy.check_consent(&specs, &yes).is_ok(), "{text}");
        }
        let settled = policy.settled(&spec("lodash@^4"));
        assert!(settled.offers("lodash", "4.0.0") && settled.offers("needed", "1.0.0"));
        assert!(!settled.offers("evil", "1.0.0"));
        let settled = policy.settled(&spec("zod"));
        let refused = settled.check_lock(&[Locked::new("needed", "1.0.0")]).unwrap_err();
        assert!(refused.remedy.contains("name it among"), "{refused}");
        let open = NpmPolicy {
            allow: Vec::new(),
            closed: false,
            ..policy
        };
        assert!(!open.settled(&spec("evil")).offers("lodash", "4.0.0"));
        assert!(open.settled(&spec("lodash")).offers("lodash", "4.0.0"));
    }
    #[test]
    fn the_user_is_asked_about_versions_the_operator_left_open() {
        let spec = |text: &str| super::super::spec::parse_all(&[text.to_owned()]).unwrap();
        let policy = NpmPolicy {
            allow: entries(&["lodash@4"]),
            ask: entries(&["zod@3", "lodash@3"]),
            ..NpmPolicy::default()
        };
        for (text, needs_consent) in [
            ("zod", true),
            ("zod@^4", true),
            ("zod@3.1.0", true),
            ("zod@4.0.0", false),
            ("zod@3.0.0 - 4.0.0", true),
            ("lodash", false),
            ("lodash@4.17.21", false),
            ("lodash@3.0.0", true),
        ] {
            assert_eq!(policy.needs_consent(&spec(text)[0]), needs_consent, "{text}");
        }
        for text in ["zod", "zod@^4", "zod@3.1.0"] {
            let settled = policy.settled(&spec(text));
            assert!(
                settled.offers("zod", "3.1.0") && !settled.offers("zod", "4.0.0"),
                "{text}"
            );
        }
    }
}
