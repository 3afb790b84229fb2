//! The operator's policy for Python packages. Pure.
//!
//! An entry is a requirement (`numpy>=1.24,<2`, `requests[socks]`) or a pattern of names (`acme-*`). A package may be
//! installed if no entry of the deny-list covers it and, if there is an allow-list, one of its entries does. The
//! policy is checked three times: for the request, for the index's files, and for every exact version to install,
//! dependencies included. The last check is the decisive one.

use std::str::FromStr;
use std::time::Duration;

use pep440_rs::{Operator, Version, VersionSpecifiers};
use pep508_rs::{ExtraName, VersionOrUrl};
use sandcell_sandbox::{Code, Consent, Failure};

use crate::lock::Locked;
use crate::spec::Spec;

/// The maximum number of entries in a refusal.
const MAX_SHOWN_ENTRIES: usize = 20;

/// One entry of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    text: String,
    name: Pattern,
    extras: Vec<ExtraName>,
    versions: Option<VersionSpecifiers>,
}

#[derive(Debug, Clone, PartialEq)]
enum Pattern {
    Name(String),
    /// The parts between stars.
    Glob(Vec<String>),
}

/// The error of an invalid entry in the operator's lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EntryError(String);

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        let text = text.trim();
        if text.contains('*') && !text.contains(['=', '<', '>', '!', '~', '[']) {
            let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*');
            if !text.chars().all(sound) {
                return Err(EntryError("a pattern has letters, digits, - and * only".to_owned()));
            }
            let parts = text.split('*').map(normalise).collect();
            return Ok(Self {
                text: text.to_owned(),
                name: Pattern::Glob(parts),
                extras: Vec::new(),
                versions: None,
            });
        }
        let parsed = crate::spec::requirement(text).map_err(EntryError)?;
        let versions = match &parsed.version_or_url {
            None => None,
            Some(VersionOrUrl::VersionSpecifier(versions)) => Some(versions.clone()),
            Some(VersionOrUrl::Url(_)) => return Err(EntryError("an address is no entry".to_owned())),
        };
        if !parsed.marker.is_true() {
            return Err(EntryError("a marker (after ;) has no meaning in an entry".to_owned()));
        }
        Ok(Self {
            text: text.to_owned(),
            name: Pattern::Name(parsed.name.to_string()),
            extras: parsed.extras.clone(),
            versions,
        })
    }
}

/// Normalises like package names: any run of `-`, `_` and `.` becomes one dash.
fn normalise(part: &str) -> String {
    let mut text = part.to_ascii_lowercase().replace(['_', '.'], "-");
    while text.contains("--") {
        text = text.replace("--", "-");
    }
    text
}

impl Entry {
    fn is_about(&self, name: &str) -> bool {
        match &self.name {
            Pattern::Name(own) => own == name,
            Pattern::Glob(parts) => fits(parts, name),
        }
    }

    /// Returns true if the entry allows a version. A pre-release needs an entry that names one: `>=1,<2` does not
    /// include `2rc1`.
    fn allows(&self, version: &Version) -> bool {
        let Some(versions) = &self.versions else {
            return !version.any_prerelease();
        };
        let names_one = versions.iter().any(|one| one.version().any_prerelease());
        versions.contains(version) && (names_one || !version.any_prerelease())
    }

    /// Returns true if the entry denies a version. Pre-releases have no special rule here.
    fn denies(&self, version: &Version) -> bool {
        self.versions.as_ref().is_none_or(|versions| {
            versions.contains(version) || (version.any_prerelease() && versions.contains(&version.only_release()))
        })
    }
}

/// Returns true if a name contains these parts in order, the first at its start and the last at its end.
fn fits(parts: &[String], name: &str) -> bool {
    let Some((first, rest)) = parts.split_first() else {
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

/// The operator's rules for packages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// The allow-list. Empty: all packages that are not denied.
    pub allow: Vec<Entry>,
    /// The deny-list. It has precedence over `allow` and `ask`.
    pub deny: Vec<Entry>,
    /// Packages that need the user's consent, if no entry of `allow` covers them.
    pub ask: Vec<Entry>,
    /// The minimum age of a release.
    pub min_age: Option<Duration>,
    /// True if source distributions are allowed. Their build scripts run in the installer's sandbox.
    pub sources: bool,
}

impl Policy {
    /// Returns true if this request needs the user's consent. The user does not decide about denied or allowed
    /// packages.
    pub(crate) fn needs_consent(&self, spec: &Spec) -> bool {
        let about = |entry: &&Entry| entry.is_about(&spec.name);
        let listed: Vec<&Entry> = self.allow.iter().filter(about).collect();
        let allowed = match spec.versions.as_ref().and_then(exact) {
            Some(version) => listed.iter().any(|entry| entry.allows(version)),
            None => !listed.is_empty(),
        };
        let denied = self.deny.iter().any(|entry| about(&entry) && entry.versions.is_none());
        let left = |entry: &Entry| match spec.versions.as_ref().and_then(exact) {
            // As in [`Self::settled`]: without an allow-list, the entry denies until the user consents.
            Some(version) if self.allow.is_empty() => entry.denies(version),
            Some(version) => entry.allows(version),
            None => true,
        };
        !denied && !allowed && self.ask.iter().any(|entry| about(&entry) && left(entry))
    }

    /// Refuses requests that need consent and have none.
    pub(crate) fn check_consent(&self, specs: &[Spec], consent: &Consent) -> Result<(), Failure> {
        match specs
            .iter()
            .find(|spec| self.needs_consent(spec) && !consent.covers(&spec.text))
        {
            Some(spec) => {
                Err(consent.refusal(Code::PackageNotAllowed, &spec.text, "install_package", "packages.allow"))
            }
            None => Ok(()),
        }
    }

    /// Returns the rules of one installation, without open questions. If the user consented to one of the packages,
    /// all entries of `ask` are allowed, so that the dependencies are included. Without consent, none of them is
    /// allowed.
    pub(crate) fn settled(&self, specs: &[Spec]) -> Self {
        let mut settled = self.clone();
        if self.ask.is_empty() {
            return settled;
        }
        if specs.iter().any(|spec| self.needs_consent(spec)) {
            settled.ask.clear();
            if !settled.allow.is_empty() {
                settled.allow.extend(self.ask.iter().cloned());
                // With the requested extras. The operator's versions stay.
                for spec in specs.iter().filter(|spec| self.needs_consent(spec)) {
                    let about = self.ask.iter().filter(|entry| entry.is_about(&spec.name));
                    settled.allow.extend(about.map(|entry| Entry {
                        name: Pattern::Name(spec.name.clone()),
                        extras: spec.extras.clone(),
                        ..entry.clone()
                    }));
                }
            }
        } else if settled.allow.is_empty() {
            settled.deny.extend(self.ask.iter().cloned());
        }
        settled
    }

    /// Returns the rules of an installation that the operator started. It implies consent to all entries of `ask`.
    pub(crate) fn with_operator_consent(&self) -> Self {
        let mut settled = self.clone();
        settled.ask.clear();
        if !settled.allow.is_empty() {
            settled.allow.extend(self.ask.iter().cloned());
        }
        settled
    }

    /// Returns true if this exact version may be installed.
    pub(crate) fn permits(&self, name: &str, version: &Version) -> bool {
        let denied = self
            .deny
            .iter()
            .any(|entry| entry.is_about(name) && entry.denies(version));
        let allowed = self
            .allow
            .iter()
            .any(|entry| entry.is_about(name) && entry.allows(version));
        !denied && (allowed || self.allow.is_empty())
    }

    /// Returns true if an index may offer this version. The check of the lock decides about texts that are not valid
    /// versions.
    pub(crate) fn offers(&self, name: &str, version: Option<&str>) -> bool {
        match version.map(str::parse::<Version>) {
            Some(Ok(version)) => self.permits(name, &version),
            Some(Err(_)) | None => self.deny.is_empty() && self.allow.is_empty(),
        }
    }

    /// Checks a request before anything is fetched.
    pub(crate) fn check(&self, spec: &Spec) -> Result<(), Failure> {
        let name = &spec.name;
        if self
            .deny
            .iter()
            .any(|entry| entry.is_about(name) && entry.versions.is_none())
        {
            return Err(self.refusal(format!("the operator does not allow {name}"), name));
        }
        let about: Vec<&Entry> = self.allow.iter().filter(|entry| entry.is_about(name)).collect();
        if !self.allow.is_empty() && about.is_empty() {
            return Err(self.refusal(
                format!("{name} is not among the packages that the operator allows"),
                name,
            ));
        }
        if let Some(version) = spec.versions.as_ref().and_then(exact)
            && !self.permits(name, version)
        {
            return Err(self.refusal(format!("the operator does not allow {name} {version}"), name));
        }
        let listed = |extra: &ExtraName| about.iter().any(|entry| entry.extras.contains(extra));
        match spec
            .extras
            .iter()
            .find(|extra| !self.allow.is_empty() && !listed(extra))
        {
            Some(extra) => Err(self.refusal(format!("the operator does not allow {name}[{extra}]"), name)),
            None => Ok(()),
        }
    }

    /// Checks the exact versions to install. This is the decisive check.
    pub(crate) fn check_lock(&self, locked: &[Locked]) -> Result<(), Failure> {
        for one in locked {
            let permitted = one
                .version
                .parse()
                .is_ok_and(|version| self.permits(&one.name, &version));
            if !permitted {
                let (name, version) = (&one.name, &one.version);
                let message = format!("it would install {name} {version}, which the operator does not allow");
                return Err(self.refusal(message, name));
            }
        }
        Ok(())
    }

    /// Returns a refusal that names the allowed entries.
    pub(crate) fn refusal(&self, message: String, name: &str) -> Failure {
        let denied = |entry: &Entry| entry.is_about(name) && !self.ask.contains(entry);
        let texts = |entries: &mut dyn Iterator<Item = &Entry>| {
            entries
                .take(MAX_SHOWN_ENTRIES)
                .map(|entry| entry.text.clone())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let left: Vec<&Entry> = self.ask.iter().filter(|entry| entry.is_about(name)).collect();
        if !left.is_empty() && !self.deny.iter().any(denied) {
            // The rules have no open questions, and the user was not asked about this package.
            let remedy = if left.iter().all(|entry| entry.versions.is_some()) {
                format!(
                    "the user's consent is needed for {}: name {name} with such a version among the packages of the call, so that the user is asked",
                    texts(&mut left.into_iter())
                )
            } else {
                format!(
                    "it needs the user's consent: name {name} among the packages of the call, so that the user is asked"
                )
            };
            return Failure::new(Code::PackageNotAllowed, message, remedy);
        }
        let about = texts(&mut self.allow.iter().filter(|entry| entry.is_about(name)));
        let denied = texts(&mut self.deny.iter().filter(|entry| entry.is_about(name)));
        let remedy = if !about.is_empty() && denied.is_empty() {
            format!("allowed is: {about}")
        } else if !denied.is_empty() {
            format!("denied is: {denied}; choose another version or package, or ask the operator")
        } else {
            let more = if self.allow.len() > MAX_SHOWN_ENTRIES {
                ", …"
            } else {
                ""
            };
            format!("allowed are: {}{more}", texts(&mut self.allow.iter()))
        };
        Failure::new(Code::PackageNotAllowed, message, remedy)
    }
}

/// Returns the version of a requirement with `==`, if it has one.
fn exact(versions: &VersionSpecifiers) -> Option<&Version> {
    let exact = |operator: &Operator| matches!(operator, Operator::Equal | Operator::ExactEqual);
    versions
        .iter()
        .find(|one| exact(one.operator()))
        .map(pep440_rs::VersionSpecifier::version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse;

    fn policy(allow: &[&str], deny: &[&str]) -> Policy {
        let read = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Policy {
            allow: read(allow),
            deny: read(deny),
            ..Policy::default()
        }
    }

    fn permits(policy: &Policy, name: &str, version: &str) -> bool {
        policy.permits(name, &version.parse().unwrap())
    }

    #[test]
    fn an_empty_policy_allows_everything() {
        let policy = policy(&[], &[]);
        assert!(permits(&policy, "numpy", "2.0") && permits(&policy, "numpy", "2.0rc1"));
        assert!(policy.check(&parse("numpy").unwrap()).is_ok());
    }

    #[test]
    fn an_allow_list_applies_to_versions_and_dependencies() {
        let policy = policy(&["numpy>=1.24,<2", "Pandas"], &[]);
        assert!(permits(&policy, "numpy", "1.26.4") && permits(&policy, "pandas", "2.2"));
        assert!(!permits(&policy, "numpy", "2.0") && !permits(&policy, "six", "1.0"));
        assert!(!permits(&policy, "numpy", "1.26.4rc1"), "a pre-release was not named");
        let lock = |name: &str| Locked::new(name, "1.0");
        let failure = policy.check_lock(&[lock("pandas"), lock("six")]).unwrap_err();
        assert_eq!(failure.code, Code::PackageNotAllowed);
        assert!(
            failure.message.contains("six 1.0") && failure.remedy.contains("numpy>=1.24,<2, Pandas"),
            "{failure}"
        );
        assert!(
            policy
                .check(&parse("numpy==2.1.0").unwrap())
                .unwrap_err()
                .remedy
                .contains("numpy>=1.24,<2")
        );
        assert!(policy.check(&parse("requests").unwrap()).is_err());
    }

    #[test]
    fn an_unparsable_version_is_not_allowed() {
        assert!(
            policy(&["numpy"], &[])
                .check_lock(&[Locked::new("numpy", "not-a-version")])
                .is_err()
        );
        assert!(!policy(&["numpy"], &[]).offers("numpy", None));
    }

    #[test]
    fn the_deny_list_wins_and_names_are_normalised() {
        let policy = policy(&["*"], &["Evil_Package", "numpy==1.24.0", "acme-*-internal"]);
        assert!(policy.check(&parse("evil.package").unwrap()).is_err());
        assert!(!permits(&policy, "evil-package", "1"));
        assert!(!permits(&policy, "numpy", "1.24.0") && permits(&policy, "numpy", "1.24.1"));
        assert!(
            !permits(&policy, "numpy", "1.24.0rc1"),
            "a pre-release of what is denied"
        );
        assert!(!permits(&policy, "acme-x-internal", "1") && permits(&policy, "acme-x", "1"));
    }

    #[test]
    fn no_spelling_of_a_name_or_a_version_gets_around_the_lists() {
        let denied = policy(&[], &["acme_tool", "evil__*", "torch==2.0.0", "epoch<2"]);
        for text in [
            "Acme.Tool",
            "ACME-TOOL",
            "acme__tool",
            "acme_tool[extra]",
            "acme_tool ; python_version > '3'",
            "acme_tool==1.24.*",
            "acme_tool===1",
            "Evil.one",
            "evil__two",
            "torch==2",
            "torch==2.0",
            "torch==2.0.0+cu118",
            "torch===2.0.0",
            "epoch==1.0",
            "epoch==0!1.0",
        ] {
            let answer = parse(text).map(|spec| denied.check(&spec).map_err(|failure| failure.code));
            assert_eq!(answer, Ok(Err(Code::PackageNotAllowed)), "{text}");
        }
        // A local version belongs to its public version, and epochs are compared first.
        for (name, version) in [
            ("torch", "2.0.0+cu118"),
            ("torch", "2"),
            ("torch", "0!2.0"),
            ("epoch", "1.9+x"),
        ] {
            assert!(!permits(&denied, name, version), "{name} {version}");
        }
        assert!(permits(&denied, "epoch", "1!1.0") && permits(&denied, "numpy", "1"));
        let allowed = policy(&["numpy==1.24.*", "scipy==1.11.0"], &[]);
        assert!(permits(&allowed, "numpy", "1.24.4") && permits(&allowed, "numpy", "1.24.0.post1"));
        for (name, version) in [
            ("numpy", "1.25.0"),
            ("numpy", "1!1.24.0"),
            ("numpy", "1.24.0rc1"),
            ("numpy", "1.24.0.dev1"),
            ("num-py", "1.24.0"),
            ("scipy", "1.11.0.post1"),
            ("scipy", "1.11.0rc1"),
        ] {
            assert!(!permits(&allowed, name, version), "{name} {version}");
        }
        assert!(parse("numpy @ file:///etc/passwd").is_err());
    }

    #[test]
    fn extras_must_be_listed_where_there_is_an_allow_list() {
        let policy = policy(&["requests[socks]"], &[]);
        assert!(policy.check(&parse("requests").unwrap()).is_ok());
        assert!(policy.check(&parse("requests[socks]").unwrap()).is_ok());
        assert!(policy.check(&parse("requests[security]").unwrap()).is_err());
    }

    #[test]
    fn packages_that_need_consent_are_asked_about_together_with_dependencies() {
        let read = |texts: &[&str]| texts.iter().map(|text| parse(text).unwrap()).collect::<Vec<_>>();
        let yes = |texts: &[&str]| Consent::Given(texts.iter().map(|&text| text.to_owned()).collect());
        let open = Policy {
            ask: vec!["acme-*".parse().unwrap()],
            ..policy(&[], &["acme-evil"])
        };
        let listed = Policy {
            ask: vec!["*".parse().unwrap()],
            ..policy(&["numpy<2"], &["evil"])
        };
        for (policy, text, needs_consent) in [
            (&open, "acme-x", true),
            (&open, "Acme_X[more]>=1", true),
            (&open, "acme-evil", false),
            (&open, "six", false),
            (&listed, "numpy", false),
            (&listed, "numpy==1.26", false),
            (&listed, "numpy==2.1", true),
            (&listed, "requests[socks]", true),
            (&listed, "evil", false),
        ] {
            let specs = read(&[text]);
            assert_eq!(policy.needs_consent(&specs[0]), needs_consent, "{text}");
            assert_eq!(
                policy.check_consent(&specs, &Consent::NotAsked).is_err(),
                needs_consent,
                "{text}"
            );
            assert_eq!(
                policy.check_consent(&specs, &Consent::Declined).is_err(),
                needs_consent,
                "{text}"
            );
            assert_eq!(
                policy.check_consent(&specs, &yes(&["other"])).is_err(),
                needs_consent,
                "{text}"
            );
            assert!(policy.check_consent(&specs, &yes(&[&specs[0].text])).is_ok(), "{text}");
        }
        // Consent includes the dependencies, and never denied packages.
        let settled = listed.settled(&read(&["requests[socks]"]));
        assert!(settled.check(&read(&["requests[socks]"])[0]).is_ok());
        assert!(permits(&settled, "urllib3", "2.0") && permits(&settled, "numpy", "2.1"));
        assert!(!permits(&settled, "evil", "1.0"));
        // Without consent, no entry of `ask` is allowed, and the refusal explains how to get consent.
        for (policy, wanted) in [(&open, "six"), (&listed, "numpy")] {
            let settled = policy.settled(&read(&[wanted]));
            let refused = settled.check_lock(&[Locked::new("acme-x", "1.0")]).unwrap_err();
            assert!(refused.remedy.contains("name acme-x among"), "{refused}");
        }
        let denied = listed.settled(&read(&["evil"])).check(&read(&["evil"])[0]).unwrap_err();
        assert!(denied.remedy.contains("denied is: evil"), "{denied}");
        assert!(permits(&open.settled(&read(&["six"])), "seven", "1.0"));
        assert!(!permits(&listed.settled(&read(&["numpy"])), "numpy", "2.1"));
    }

    #[test]
    fn the_operator_decides_the_versions_of_packages_that_need_consent() {
        let spec = |text: &str| parse(text).unwrap();
        let listed = Policy {
            ask: vec!["numpy>=2,<3".parse().unwrap()],
            ..policy(&["six"], &[])
        };
        for (text, needs_consent) in [
            ("numpy", true),
            ("numpy==2.1", true),
            ("numpy[extra]<2", true),
            ("numpy==1.26", false),
            ("numpy==3.0", false),
            ("numpy==2.1rc1", false),
        ] {
            assert_eq!(listed.needs_consent(&spec(text)), needs_consent, "{text}");
        }
        // Whatever the caller's text, the consent covers the operator's entry.
        for text in ["numpy", "numpy<2", "numpy>=1", "numpy[extra]==2.1"] {
            let settled = listed.settled(&[spec(text)]);
            assert!(
                settled.check(&spec(text)).is_ok() && permits(&settled, "numpy", "2.1"),
                "{text}"
            );
            assert!(
                !permits(&settled, "numpy", "1.26") && !permits(&settled, "numpy", "3.0"),
                "{text}"
            );
        }
        let refused = listed.settled(&[spec("numpy==1.26")]).check(&spec("numpy==1.26"));
        assert!(
            refused
                .unwrap_err()
                .remedy
                .contains("consent is needed for numpy>=2,<3")
        );
        // The extras are those of the package with the consent.
        let all = Policy {
            ask: vec!["*".parse().unwrap()],
            ..policy(&["six"], &[])
        };
        let settled = all.settled(&[spec("requests[socks]")]);
        assert!(settled.check(&spec("requests[socks]")).is_ok());
        assert!(settled.check(&spec("six[socks]")).is_err());
        // If all packages are allowed, the user decides only about these versions.
        let open = Policy {
            ask: listed.ask.clone(),
            ..policy(&[], &[])
        };
        assert!(open.needs_consent(&spec("numpy==2.1")) && open.needs_consent(&spec("numpy==2.1rc1")));
        assert!(!open.needs_consent(&spec("numpy==1.26")));
        let settled = open.settled(&[spec("numpy==1.26")]);
        assert!(permits(&settled, "numpy", "1.26") && !permits(&settled, "numpy", "2.1"));
    }

    #[test]
    fn exact_versions_of_the_operator_need_no_question() {
        let listed = Policy {
            ask: vec!["numpy>=2,<3".parse().unwrap()],
            ..policy(&["six"], &["evil"])
        };
        let settled = listed.with_operator_consent();
        let lock = |name: &str, version: &str| settled.check_lock(&[Locked::new(name, version)]);
        assert!(lock("six", "1.0").is_ok() && lock("numpy", "2.1").is_ok());
        assert!(
            lock("numpy", "1.26")
                .unwrap_err()
                .remedy
                .contains("allowed is: numpy>=2,<3")
        );
        assert!(lock("evil", "1.0").is_err() && lock("other", "1.0").is_err());
        let open = Policy {
            ask: vec!["*".parse().unwrap()],
            ..policy(&[], &["evil"])
        };
        let settled = open.with_operator_consent();
        assert!(permits(&settled, "numpy", "2.1rc1") && !permits(&settled, "evil", "1.0"));
    }

    #[test]
    fn an_unparsable_entry_is_an_error() {
        for text in ["", "numpy @ https://x", "numpy; python_version<'3'", "a b", "num*py[x"] {
            assert!(text.parse::<Entry>().is_err(), "{text}");
        }
    }
}
