//! Who installs packages: the installer of Python's, with the first back end that is there and the settings.

use std::sync::Arc;

use sandcell_packages::{Config, Policy, PythonPackages, find_uv};
use sandcell_sandbox::{Backend, ByteSize, Code, Cpus, Failure, Language, Limits, Packages};

use crate::config::Settings;

/// Memory of an installer: uv needs little, compiling byte code some for each core.
const MEMORY: ByteSize = ByteSize::mib(2048);
/// Processes and threads of an installer.
const PROCESSES: u32 = 512;
/// Files of an installer's disk: those of the packages twice, once in the cache.
const INODES: u64 = 800_000;

/// The installer for an engine; none where there is no Python.
pub(super) fn installer(
    settings: &Settings,
    backends: &[Arc<dyn Backend>],
    languages: &[Arc<dyn Language>],
) -> Option<Arc<dyn Packages>> {
    let backend = backends.first()?;
    match python_packages(settings, backend, languages) {
        Ok(packages) => Some(packages),
        Err(failure) => {
            tracing::warn!("packages cannot be installed: {failure}");
            None
        }
    }
}

/// The same as its own type, for the commands about bases.
pub(crate) fn python_packages(
    settings: &Settings,
    backend: &Arc<dyn Backend>,
    languages: &[Arc<dyn Language>],
) -> Result<Arc<PythonPackages>, Failure> {
    let absent = || {
        Failure::new(
            Code::LanguageUnavailable,
            "there is no Python here",
            "sandcell languages says how to get it",
        )
    };
    let python = languages
        .iter()
        .find(|language| language.info().name == "python")
        .ok_or_else(absent)?;
    let executable = python
        .program("", &[], &std::collections::BTreeMap::new())?
        .run
        .argv
        .into_iter()
        .next()
        .ok_or_else(absent)?;
    let own = &settings.packages;
    let entries = |texts: &[String]| -> Result<Vec<sandcell_packages::Entry>, Failure> {
        let read = |text: &String| {
            text.parse().map_err(|error| {
                Failure::invalid(format!("{text}: {error}"), "correct packages.allow and packages.deny")
            })
        };
        texts.iter().map(read).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = Config {
        data: settings.data_dir.clone(),
        policy: Policy {
            allow: entries(&own.allow)?,
            deny: entries(&own.deny)?,
            min_age: Some(own.min_age).filter(|age| !age.is_zero()),
            sources: !own.only_binary,
        },
        python: executable,
        python_version: python.info().version.clone(),
        // One of another version behind the same name is told by the interpreter's, or by `docker.image` with a digest.
        image: backend.knows_images().then(|| settings.docker.image.clone()),
        limits: Limits {
            memory: MEMORY,
            cpus: Cpus::milli(u32::try_from(cores).unwrap_or(1).saturating_mul(1000)),
            processes: PROCESSES,
            disk: own.disk,
            inodes: INODES,
        },
        file_max: own.file.as_bytes(),
        total_max: own.download.as_bytes(),
        kept_max: own.kept.as_bytes(),
        uv: uv(settings),
        base: own.base.clone(),
        variable: |name| std::env::var(name).ok(),
    };
    Ok(PythonPackages::new(config, backend.clone()))
}

/// Where uv is on this machine.
pub(crate) fn uv(settings: &Settings) -> Option<std::path::PathBuf> {
    find_uv(std::env::var("PATH").ok().as_deref(), settings.data_dir.as_deref())
}
