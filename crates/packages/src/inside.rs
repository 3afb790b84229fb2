//! Installs packages with the sandbox's own pip, under the operator's lists.
//!
//! The decision taken here: pip first reports the packages that it would install, all of them are checked as exact
//! versions, and exactly these are installed without their dependencies. The sandbox has its own network and pip, so
//! code in it can install any package. The lists apply to packages that a tool call requests.

use pep508_rs::PackageName;
use sandcell_sandbox::{Code, Failure, Installed, PackageVersion};
use serde::Deserialize;

use crate::lock::Locked;
use crate::policy::Policy;
use crate::spec::Spec;

/// The interpreter inside.
const PYTHON_PROGRAM: &str = "python3";
/// The maximum number of packages in one installation.
const MAX_PACKAGES: usize = 500;

/// pip's report of an installation.
#[derive(Deserialize)]
struct Report {
    install: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    version: String,
}

fn pip(policy: &Policy, options: &[&str], what: impl Iterator<Item = String>) -> Vec<String> {
    let mut argv: Vec<String> = [PYTHON_PROGRAM, "-m", "pip", "install", "--quiet"]
        .map(str::to_owned)
        .to_vec();
    argv.extend(["--disable-pip-version-check", "--no-input"].map(str::to_owned));
    argv.extend(options.iter().map(|&option| option.to_owned()));
    if !policy.sources {
        argv.extend(["--only-binary", ":all:"].map(str::to_owned));
    }
    argv.push("--".to_owned());
    argv.extend(what);
    argv
}

/// Returns the command that resolves packages and prints the report.
pub(crate) fn resolve(policy: &Policy, specs: &[Spec]) -> Result<Vec<String>, Failure> {
    if policy.min_age.is_some() {
        return Err(Failure::new(
            Code::PackageNotAllowed,
            "the operator wants packages of a certain age (packages.min_age_days), which pip inside such a sandbox does not check",
            "use a sandbox of another back end, or a template that has the packages",
        ));
    }
    let texts = specs.iter().map(|spec| spec.text.clone());
    Ok(pip(policy, &["--dry-run", "--report", "-"], texts))
}

/// Checks the printed report. Returns the command that installs its packages, if some are new.
pub(crate) fn install(
    policy: &Policy,
    specs: &[Spec],
    printed: &[u8],
) -> Result<(Option<Vec<String>>, Installed), Failure> {
    let garbled = |what: &str| {
        Failure::new(
            Code::PackageFailed,
            format!("pip in the sandbox reported {what}"),
            "the sandbox needs pip 22.2 or newer: use another template, or install the packages in the code",
        )
    };
    let report: Report = serde_json::from_slice(printed).map_err(|_| garbled("output that is not JSON"))?;
    if report.install.len() > MAX_PACKAGES {
        return Err(garbled("more packages than one installation allows"));
    }
    let mut locked = Vec::new();
    for Item { metadata } in report.install {
        let name: PackageName = metadata.name.parse().map_err(|_| garbled("a name that is none"))?;
        let version: pep440_rs::Version = metadata
            .version
            .parse()
            .map_err(|_| garbled("a version that is none"))?;
        locked.push(Locked {
            name: name.to_string(),
            version: version.to_string(),
            hashes: Vec::new(),
        });
    }
    policy.check_lock(&locked)?;
    let is_new = |spec: &&Spec| locked.iter().any(|one| one.name == spec.name);
    let present = specs.iter().filter(|spec| !is_new(spec)).map(|spec| PackageVersion {
        name: spec.name.clone(),
        version: String::new(),
    });
    let held = |one: &Locked| PackageVersion {
        name: one.name.clone(),
        version: one.version.clone(),
    };
    let installed = Installed {
        added: locked.iter().map(held).collect(),
        present: present.collect(),
        ..Installed::default()
    };
    let exact = locked.iter().map(|one| format!("{}=={}", one.name, one.version));
    let argv = (!locked.is_empty()).then(|| pip(policy, &["--no-deps"], exact));
    Ok((argv, installed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse_all;

    fn specs(texts: &[&str]) -> Vec<Spec> {
        parse_all(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    const TEST_REPORT: &str = r#"{"version": "1", "install": [
        {"metadata": {"name": "Python_DateUtil", "version": "2.9.0"}}, {"metadata": {"name": "six", "version": "1.17.0"}}]}"#;

    #[test]
    fn the_versions_of_the_pip_report_are_installed_exactly() {
        let policy = Policy::default();
        let asked = specs(&["python-dateutil>=2", "numpy"]);
        let resolve = resolve(&policy, &asked).unwrap();
        assert_eq!(resolve[..4], ["python3", "-m", "pip", "install"]);
        assert!(resolve.contains(&"--only-binary".to_owned()), "{resolve:?}");
        let after = resolve.iter().position(|word| word == "--").unwrap();
        assert_eq!(resolve.len() - after - 1, 2);
        let (argv, installed) = install(&policy, &asked, TEST_REPORT.as_bytes()).unwrap();
        let argv = argv.unwrap();
        assert!(argv.ends_with(&["--".into(), "python-dateutil==2.9.0".into(), "six==1.17.0".into()]));
        assert!(argv.contains(&"--no-deps".to_owned()));
        assert_eq!(installed.added.len(), 2);
        assert_eq!(installed.present[0].name, "numpy");
    }

    #[test]
    fn lists_apply_to_dependencies_and_a_forged_report_is_refused() {
        let policy = Policy {
            deny: vec!["six".parse().unwrap()],
            ..Policy::default()
        };
        let asked = specs(&["python-dateutil"]);
        let refused = install(&policy, &asked, TEST_REPORT.as_bytes()).unwrap_err();
        assert_eq!(refused.code, Code::PackageNotAllowed);
        for forged in [
            "",
            "[]",
            r#"{"install": [{"metadata": {"name": "--index-url", "version": "1"}}]}"#,
            r#"{"install": [{"metadata": {"name": "six", "version": "1 --pre"}}]}"#,
        ] {
            assert!(
                install(&Policy::default(), &asked, forged.as_bytes()).is_err(),
                "{forged}"
            );
        }
        let many = r#"{"metadata": {"name": "a", "version": "1"}},"#.repeat(600);
        let many = format!("{{\"install\": [{}]}}", many.trim_end_matches(','));
        assert!(install(&Policy::default(), &asked, many.as_bytes()).is_err());
    }

    #[test]
    fn an_age_that_cannot_be_checked_is_refused() {
        let policy = Policy {
            min_age: Some(std::time::Duration::from_secs(86_400)),
            ..Policy::default()
        };
        let refused = resolve(&policy, &specs(&["six"])).unwrap_err();
        assert_eq!(refused.code, Code::PackageNotAllowed);
    }
}
