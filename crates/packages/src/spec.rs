//! A caller's package request: a requirement of PEP 508 with a name, extras, versions and a marker.
//!
//! All other forms that pip accepts (options, files, folders, addresses, version control) are refused with the reason.
//! A requirement can therefore only make the installer fetch a project of the index.

use std::fmt;
use std::path::Path;

use pep508_rs::{ExtraName, Pep508Url, Requirement, VersionOrUrl};
use sandcell_sandbox::{Failure, is_named_like_standard_module, of_registry};

use crate::names;

/// The maximum number of requirements in one call.
pub(crate) const REQUIREMENTS_MAX: usize = 100;
/// The maximum length of one requirement in bytes.
const LENGTH_MAX: usize = 200;

/// A well-formed requirement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    /// The normalised name.
    pub(crate) name: String,
    pub(crate) extras: Vec<ExtraName>,
    pub(crate) versions: Option<pep440_rs::VersionSpecifiers>,
    /// The text for the installer's list. It is made of the parsed parts, not of the caller's text.
    pub(crate) text: String,
}

impl Spec {
    /// Returns true if an installed package satisfies the requirement. Only the resolver checks extras.
    pub(crate) fn is_satisfied_by(&self, held: &sandcell_sandbox::PackageVersion) -> bool {
        let version = held.version.parse::<pep440_rs::Version>();
        let fits = |version| {
            self.versions
                .as_ref()
                .is_none_or(|versions| versions.contains(&version))
        };
        held.name == self.name && self.extras.is_empty() && version.is_ok_and(fits)
    }
}

/// Parses the requirements of a call. Equal requirements count once.
pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Spec>, Failure> {
    if texts.is_empty() {
        return Err(Failure::invalid(
            "no package is named",
            "pass packages=[\"numpy\"], for example",
        ));
    }
    if texts.len() > REQUIREMENTS_MAX {
        return Err(Failure::invalid(
            format!(
                "{} packages in one call; at most {REQUIREMENTS_MAX} are possible",
                texts.len()
            ),
            "name the packages that the code imports; dependencies are installed with them",
        ));
    }
    let mut specs: Vec<Spec> = Vec::new();
    for text in texts {
        let spec = parse(text)?;
        if !specs.contains(&spec) {
            specs.push(spec);
        }
    }
    specs.sort_by(|a, b| a.text.cmp(&b.text));
    Ok(specs)
}

/// Parses one requirement.
pub(crate) fn parse(text: &str) -> Result<Spec, Failure> {
    let text = text.trim();
    refuse_other_forms(text)?;
    let parsed = requirement(text).map_err(|reason| {
        let several = text.split_whitespace().nth(1).is_some() && !text.contains(';');
        let remedy = if several {
            "pass each package as a separate item: \"numpy\", \"pandas\""
        } else {
            "write a name, with versions if needed: numpy, pandas>=2,<3, requests[socks]==2.32.3"
        };
        refused(text, &reason, remedy)
    })?;
    let versions = match &parsed.version_or_url {
        None => None,
        Some(VersionOrUrl::VersionSpecifier(versions)) => Some(versions.clone()),
        Some(VersionOrUrl::Url(_)) => return Err(an_address(text)),
    };
    let name = parsed.name.to_string();
    if name.contains("--") || name.len() > 100 {
        return Err(refused(
            text,
            "it is not a project name",
            "check the name on the package index",
        ));
    }
    known_names(&name, versions.is_some())?;
    Ok(Spec {
        name,
        extras: parsed.extras.clone(),
        versions,
        text: parsed.to_string(),
    })
}

/// Parses a requirement by the grammar of PEP 508. The parser panics at a name that ends with a dot, a dash or an
/// underscore and is followed by more text, so such names are refused before. Any other panic is caught and refuses
/// the requirement.
pub(crate) fn requirement(text: &str) -> Result<Requirement<Address>, String> {
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name = text.trim_start().split(|c| !in_name(c)).next().unwrap_or_default();
    let extras = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split(']').next())
        .unwrap_or_default();
    for word in std::iter::once(name).chain(extras.split(',').map(str::trim)) {
        if word.ends_with(['.', '-', '_']) {
            return Err(format!("{word:?} does not end with a letter or a digit"));
        }
    }
    match std::panic::catch_unwind(|| text.parse::<Requirement<Address>>()) {
        Ok(parsed) => parsed.map_err(|error: pep508_rs::Pep508Error<_>| error.message.to_string()),
        Err(_) => Err("it cannot be read".to_owned()),
    }
}

/// An address in place of versions. It is always refused, so no part of it is parsed. The library's own type would
/// insert variables of the server's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address")
    }
}

impl Pep508Url for Address {
    type Err = std::convert::Infallible;

    fn parse_url(_url: &str, _folder: Option<&Path>) -> Result<Self, Self::Err> {
        Ok(Self)
    }
}

/// Refuses the forms that pip accepts and sandcell does not, each with its reason.
fn refuse_other_forms(text: &str) -> Result<(), Failure> {
    let no = |reason: &str, remedy: &str| Err(refused(text, reason, remedy));
    if text.is_empty() {
        return no("it is empty", "pass a package's name, such as numpy");
    }
    if text.len() > LENGTH_MAX {
        return no(
            "it is longer than a requirement can be",
            "pass a name with versions, such as numpy>=2",
        );
    }
    if let Some(c) = text.chars().find(|c| c.is_control()) {
        return no(
            &format!("it holds the control character U+{:04X}", u32::from(c)),
            "pass each package as a separate item, on one line",
        );
    }
    if let Some(c) = text.chars().find(|c| !c.is_ascii()) {
        return no(
            &format!(
                "'{c}' (U+{:04X}) is not a character of package names, however much it looks like one",
                u32::from(c)
            ),
            "type the name with plain ASCII letters",
        );
    }
    if text.starts_with('-') {
        return no(
            "options are not taken, neither -r files nor --index-url: the operator's settings decide where packages come from",
            "pass names with versions only, such as numpy>=2",
        );
    }
    if of_registry(text, "npm").is_some() {
        return no(
            "npm is not on this machine",
            "tell the operator: install Node and npm so that they are on PATH (apt-get install nodejs npm)",
        );
    }
    let lower = text.to_ascii_lowercase();
    if ["git+", "hg+", "svn+", "bzr+"]
        .iter()
        .any(|prefix| lower.contains(prefix))
    {
        return no(
            "code is not fetched from version control",
            "name a release on the package index instead",
        );
    }
    if lower.contains("://") || lower.contains('@') {
        return Err(an_address(text));
    }
    let bare = lower.split([';', '[']).next().unwrap_or_default();
    let file = [".whl", ".zip", ".tar.gz", ".tgz", ".txt", ".toml"]
        .iter()
        .any(|end| bare.trim_end().ends_with(end));
    if text.starts_with(['.', '/', '~', '\\']) || bare.contains(['/', '\\']) || file {
        return no(
            "files and folders cannot be installed",
            "name a project of the package index; for a file of your own, put it in the sandbox and import it",
        );
    }
    Ok(())
}

fn an_address(text: &str) -> Failure {
    refused(
        text,
        "packages are not fetched from addresses: only from the index that the operator set",
        "name the project and a version instead, such as requests==2.32.3",
    )
}

fn refused(text: &str, reason: &str, remedy: &str) -> Failure {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
    Failure::invalid(format!("'{shown}' cannot be installed: {reason}"), remedy)
}

/// Refuses names that are probably a mistake.
fn known_names(name: &str, pinned: bool) -> Result<(), Failure> {
    if is_named_like_standard_module(name) {
        return Err(Failure::invalid(
            format!("{name} is part of Python: it is built in, just import it"),
            "leave it out of the list",
        ));
    }
    if let Some(project) = names::project_of_module(name) {
        return Err(Failure::invalid(
            format!("the package with the module {name} is called {project}"),
            format!("install_package(packages=[\"{project}\"])"),
        ));
    }
    if !pinned && let Some(popular) = names::slip_of(name) {
        return Err(Failure::invalid(
            format!("did you mean {popular}? '{name}' is one letter away from it, as names of hostile packages are"),
            format!("use {popular}, or, if you are sure, name a version as well: {name}==1.0"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_end_badly_are_refused_without_a_panic() {
        for text in [
            "numpy. ",
            "numpy.[x]",
            "numpy-==1",
            "numpy_ >2",
            "a[b.]",
            "a[b, c-]>1",
            "a.;python_version<'3'",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("a.b-c_d[e.f, g]>=1").is_ok());
    }

    #[test]
    fn requirements_are_taken_with_extras_versions_and_markers() {
        for (given, name, text) in [
            ("numpy", "numpy", "numpy"),
            (" Scikit_Learn ", "scikit-learn", "scikit-learn"),
            ("pandas>=2,<3", "pandas", "pandas>=2,<3"),
            ("requests[socks]==2.32.3", "requests", "requests[socks]==2.32.3"),
            (
                "tomli; python_version < '3.11'",
                "tomli",
                "tomli ; python_full_version < '3.11'",
            ),
        ] {
            let spec = parse(given).unwrap();
            assert_eq!(spec.name, name, "{given}");
            assert_eq!(
                spec.text.replace("python_version", "python_full_version"),
                text,
                "{given}"
            );
        }
    }

    #[test]
    fn everything_else_that_pip_accepts_is_refused_with_its_reason() {
        for (given, part) in [
            ("", "empty"),
            ("-r requirements.txt", "options"),
            ("--index-url=https://evil.example", "options"),
            ("-e .", "options"),
            ("git+https://example.org/x.git", "version control"),
            ("x @ git+ssh://example.org/x", "version control"),
            ("https://example.org/x.whl", "addresses"),
            ("pkg @ https://example.org/x.whl", "addresses"),
            ("pkg@file:///etc/passwd", "addresses"),
            ("./local", "files"),
            ("/etc/passwd", "files"),
            ("../x", "files"),
            ("~/x", "files"),
            ("requirements.txt", "files"),
            ("numpy-2.0-py3-none-any.whl", "files"),
            ("numpy\npandas", "control character"),
            ("numpy\0", "control character"),
            ("nump\u{443}", "not a character of package names"),
            ("ｎumpy", "not a character of package names"),
            ("numpy pandas", "cannot be installed"),
            ("numpy; rm -rf /", "cannot be installed"),
            ("$(id)", "cannot be installed"),
            ("`id`", "cannot be installed"),
            ("numpy|sh", "cannot be installed"),
            ("numpy==", "cannot be installed"),
        ] {
            let failure = parse(given).unwrap_err();
            assert!(failure.message.contains(part), "{given:?}: {failure}");
            assert!(!failure.remedy.is_empty());
        }
        assert!(parse(&"a".repeat(201)).unwrap_err().message.contains("longer"));
    }

    #[test]
    fn python_itself_standard_modules_and_misspelt_names_get_an_explanation() {
        assert!(parse("json").unwrap_err().message.contains("built in, just import it"));
        assert!(parse("sklearn").unwrap_err().remedy.contains("scikit-learn"));
        assert!(parse("nunpy").unwrap_err().message.contains("did you mean numpy"));
        assert!(parse("pandsa").unwrap_err().message.contains("did you mean pandas"));
        assert_eq!(parse("nunpy==1.0").unwrap().name, "nunpy");
    }

    #[test]
    fn a_call_has_a_bound_and_equal_requirements_count_once() {
        let many = vec!["numpy".to_owned(); 10_000];
        assert!(parse_all(&many).unwrap_err().message.contains("10000 packages"));
        let twice = ["numpy", "Numpy"].map(str::to_owned);
        assert_eq!(parse_all(&twice).unwrap().len(), 1);
        assert!(parse_all(&[]).is_err());
    }
}
