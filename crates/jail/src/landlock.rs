//! Landlock: restricts the files that a sandbox reaches, and keeps its signals and abstract sockets inside.
//!
//! With namespaces, it is a second barrier around files. Without namespaces it is the only one: the kernel must support
//! every rule, and a sandbox's programs get stricter rules than the agent, which is out of their reach.

use std::io;
use std::os::fd::OwnedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::plan::{ReachableFiles, Signals};
use crate::wire::DescribedError;

/// The Landlock version with scopes for signals. Sandboxes without namespaces require it.
pub const WITH_SCOPES: i32 = 6;

/// Returns the kernel's Landlock version. Below 1 if there is none.
#[must_use]
pub fn available() -> i32 {
    crate::sys::misc::landlock_abi()
}

/// Returns the kernel's error number if Landlock is unavailable; none if it is available.
#[must_use]
pub fn refusal() -> Option<i32> {
    crate::sys::misc::landlock_version().err()?.raw_os_error()
}

type Built<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Restricts the files of a sandbox that has a private root.
pub(crate) fn files(writable: &[String], readable: &[String], signals: Signals) -> io::Result<()> {
    let abi = ABI::V6;
    let build = || -> Built<RulesetStatus> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .scope(Scope::AbstractUnixSocket)?;
        if signals == Signals::Inside {
            rules = rules.scope(Scope::Signal)?;
        }
        let mut rules = rules.create()?.no_new_privs(false);
        for path in readable {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, AccessFs::from_read(abi)))?;
        }
        for path in writable {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, AccessFs::from_all(abi)))?;
        }
        // Programs list the root to see which folders exist. Listing it shows no file.
        rules = rules.add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::ReadDir))?;
        Ok(rules.restrict_self()?.ruleset)
    };
    let programs = match signals {
        Signals::Inside => None,
        Signals::ToWorkers => Some(signals_stay().map_err(|error| refused(&*error))?),
    };
    match build() {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {
            programs.map_or(Ok(()), crate::spawn::restrict_programs)
        }
        Ok(RulesetStatus::NotEnforced) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(refused(&*error)),
    }
}

/// Makes rules that restrict signals only. Without a rule for it, Landlock forbids moving files between folders.
fn signals_stay() -> Built<OwnedFd> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)?
        .scope(Scope::Signal)?
        .create()?
        .no_new_privs(false)
        .add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::Refer))?;
    let rules: Option<OwnedFd> = rules.into();
    rules.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported).into())
}

/// Applies the rules of a sandbox without namespaces, completely or not at all. Sets the rules of programs that are
/// started later.
pub(crate) fn without_namespaces(files: &ReachableFiles) -> io::Result<()> {
    let build = || -> Built<(Option<OwnedFd>, RulesetStatus)> {
        let programs = rules(files, &[])?;
        let agent = rules(files, &files.agent)?;
        Ok((programs.into(), agent.restrict_self()?.ruleset))
    };
    match build() {
        Ok((Some(programs), RulesetStatus::FullyEnforced)) => crate::spawn::restrict_programs(programs),
        Ok(_) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(refused(&*error)),
    }
}

fn rules(files: &ReachableFiles, more: &[String]) -> Built<RulesetCreated> {
    let abi = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::AbstractUnixSocket)?
        .scope(Scope::Signal)?
        .create()?
        .no_new_privs(false);
    for path in files.readable.iter().chain(more) {
        let found = match std::fs::metadata(path) {
            // The path is in a folder that not everybody may enter (a toolchain in root's home). The sandbox's id
            // cannot enter it either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            found => found?,
        };
        let access = if found.is_dir() {
            AccessFs::from_read(abi)
        } else {
            AccessFs::from_read(abi) & AccessFs::from_file(abi)
        };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
    }
    for path in &files.devices {
        let access = AccessFs::ReadFile | AccessFs::WriteFile;
        rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
    }
    let everything = AccessFs::from_all(abi) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock);
    rules = rules.add_rule(PathBeneath::new(PathFd::new(&files.private)?, everything))?;
    Ok(rules)
}

/// Converts the library's error, with the system's error number from its chain of sources.
fn refused(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let text = error.to_string();
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(found) = error.downcast_ref::<io::Error>()
            && let Some(errno) = found.raw_os_error()
        {
            let what = text.strip_suffix(&format!(": {found}")).unwrap_or(&text).to_owned();
            return DescribedError { what, errno }.into();
        }
        at = error.source();
    }
    io::Error::new(io::ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StepError;

    #[test]
    fn a_refused_landlock_call_is_reported_with_the_system_error() {
        let error = PathFd::new("/dev/null/at/all").map(drop).unwrap_err();
        let told = StepError::new("restrict files", Some("landlock"), &refused(&error));
        assert_eq!(told.errno, libc::ENOTDIR);
        assert!(told.to_string().contains("/dev/null/at/all"), "{told}");
        assert!(told.to_string().ends_with("Not a directory (os error 20)"), "{told}");
    }
}
