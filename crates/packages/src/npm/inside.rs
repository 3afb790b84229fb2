//! Installs packages of npm with the sandbox's own npm, under the operator's lists.
//!
//! npm first writes a lock file with exact versions. The server checks every entry of the lock file, and npm then
//! installs exactly those entries. No script of a package runs. The packages lie in one folder below the home folder and
//! are linked into `node_modules` of the home folder.

use std::time::SystemTime;

use sandcell_sandbox::{Failure, Installed, PackageVersion, rfc3339};

use super::LINK_SCRIPT;
use super::lock::{self, Lock};
use super::policy::NpmPolicy;
use super::spec::Spec;
use crate::coordinator::compare;

/// The shell script that runs npm in the sandbox.
const NPM_SCRIPT: &str = include_str!("../inside/npm.sh");

fn program(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let words = ["sh", "-c", NPM_SCRIPT, "sh"].map(str::to_owned);
    words.into_iter().chain(arguments).collect()
}

/// Returns the command that resolves packages and prints both lock files.
pub(super) fn resolve(policy: &NpmPolicy, specs: &[Spec]) -> Vec<String> {
    // Names and ranges never begin with a dash, so none of them is an option.
    let wanted = specs.iter().map(|spec| format!("{}@{}", spec.name, spec.range));
    let age = policy
        .min_age
        .map(|age| format!("--before={}", rfc3339(SystemTime::now() - age)));
    program(std::iter::once("resolve".to_owned()).chain(age).chain(wanted))
}

/// Checks the printed lock files. Returns the command that installs the new one, if it has new packages.
pub(super) fn install(
    policy: &NpmPolicy,
    specs: &[Spec],
    printed: &[u8],
) -> Result<(Option<Vec<String>>, Installed), Failure> {
    let text = String::from_utf8_lossy(printed);
    let (before, after) = text.split_once('\0').unwrap_or(("", ""));
    // Code in the sandbox can destroy the old lock file. Then all packages count as new.
    let before = lock::parse(before).map(top).unwrap_or_default();
    let lock = lock::parse(after)?;
    policy.check_lock(&lock.all)?;
    let asked: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let installed = compare(top(lock), &before, &asked, "loaded");
    let argv = (!installed.added.is_empty()).then(|| program(["install".to_owned(), LINK_SCRIPT.to_owned()]));
    Ok((argv, installed))
}

fn top(lock: Lock) -> Vec<PackageVersion> {
    lock.top.iter().map(crate::lock::Locked::held).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandcell_sandbox::Code;

    use super::super::spec::parse_all;
    use super::*;

    const OLD_LOCK: &str =
        r#"{"packages": {"": {}, "node_modules/a": {"version": "1.0.0", "integrity": "sha512-aa=="}}}"#;
    const NEW_LOCK: &str = r#"{"packages": {"": {}, "node_modules/a": {"version": "1.1.0", "integrity": "sha512-ab=="},
        "node_modules/b": {"version": "2.0.0", "integrity": "sha512-bb=="}}}"#;

    fn specs(texts: &[&str]) -> Vec<Spec> {
        parse_all(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn printed(before: &str, after: &str) -> Vec<u8> {
        format!("{before}\0{after}").into_bytes()
    }

    #[test]
    fn packages_listed_by_npm_are_checked_and_installed_and_changes_are_reported() {
        let asked = specs(&["b", "a@^1"]);
        let argv = resolve(&NpmPolicy::default(), &asked);
        assert_eq!(argv[3..], ["sh", "resolve", "b@*", "a@^1"]);
        let (argv, installed) = install(&NpmPolicy::default(), &asked, &printed(OLD_LOCK, NEW_LOCK)).unwrap();
        assert_eq!(argv.unwrap()[4], "install");
        assert_eq!(installed.added.len(), 2);
        assert!(installed.notes[0].contains("changed from 1.0.0 to 1.1.0"));
        let (argv, installed) = install(&NpmPolicy::default(), &specs(&["a"]), &printed(OLD_LOCK, OLD_LOCK)).unwrap();
        assert!(argv.is_none());
        assert_eq!(installed.present[0].name, "a");
    }

    #[test]
    fn lists_apply_to_dependencies_and_a_forged_list_is_refused() {
        let policy = NpmPolicy {
            deny: vec!["b".parse().unwrap()],
            ..NpmPolicy::default()
        };
        let refused = install(&policy, &specs(&["a"]), &printed(OLD_LOCK, NEW_LOCK)).unwrap_err();
        assert_eq!(refused.code, Code::PackageNotAllowed);
        for forged in ["", "x", "\0", "{}\0{}", NEW_LOCK] {
            let text = forged.as_bytes();
            assert!(
                install(&NpmPolicy::default(), &specs(&["a"]), text).is_err(),
                "{forged}"
            );
        }
    }

    #[test]
    fn npm_selects_versions_of_the_configured_age() {
        let policy = NpmPolicy {
            min_age: Some(Duration::from_secs(86_400)),
            ..NpmPolicy::default()
        };
        assert!(resolve(&policy, &specs(&["a"]))[5].starts_with("--before=20"));
    }
}
