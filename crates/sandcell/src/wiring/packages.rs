//! Package installers: Python's installer, with the first available back end and the settings.

use std::sync::Arc;

use sandcell_packages::{
    Bases, Bounds, Config, NpmConfig, NpmEntry, NpmPackages, NpmPolicy, NpmTools, Policy, PythonPackages, StoreLimits,
    find_npm, find_uv,
};
use sandcell_sandbox::{Backend, BackendImages, ByteSize, Code, Cpus, Failure, Language, Limits, Packages};

use crate::config::{PackageSettings, Settings};

/// Memory of an installer. uv needs little; compiling byte code needs some for each core.
const INSTALLER_MEMORY: ByteSize = ByteSize::mib(2048);
/// The maximum number of processes and threads of an installer.
const INSTALLER_PROCESSES: u32 = 512;
/// The maximum number of files of an installer. Each file of a package exists twice, once in the cache.
const INSTALLER_INODES: u64 = 800_000;

/// Makes the installers of an engine, each if its language is available. npm's is also made if some back end installs
/// `elsewhere`. List entries that cannot be read become problems.
pub(super) fn installers(
    settings: &Settings,
    backends: &[Arc<dyn Backend>],
    elsewhere: bool,
    languages: &[Arc<dyn Language>],
    problems: &mut Vec<Failure>,
) -> Installers {
    let mut all = Installers::default();
    let Some(backend) = backends.first() else {
        return all;
    };
    match python_packages(settings, backend, languages) {
        Ok(packages) => all.python = Some(packages),
        Err(failure) => tracing::warn!("packages cannot be installed: {failure}"),
    }
    match npm_packages(settings, backend, languages, elsewhere) {
        Ok(packages) => all.npm = packages,
        Err(failure) => problems.push(failure),
    }
    all
}

/// Makes the installers of an engine whose sandboxes are all remote. There is no base, since remote sandboxes show no
/// files of this machine.
pub(super) fn installers_elsewhere(
    settings: &Settings,
    backend: &Arc<dyn Backend>,
    languages: &[Arc<dyn Language>],
    problems: &mut Vec<Failure>,
) -> Installers {
    let mut settings = settings.clone();
    settings.base = None;
    let python = python_packages(&settings, backend, languages)
        .inspect_err(|failure| tracing::warn!("packages cannot be installed: {failure}"));
    // Without languages of this machine there are no tools of it.
    let npm = npm_packages(&settings, backend, &[], true).unwrap_or_else(|failure| {
        problems.push(failure);
        None
    });
    Installers {
        python: python.ok(),
        npm,
    }
}

/// The package installers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Installers {
    python: Option<Arc<PythonPackages>>,
    npm: Option<Arc<NpmPackages>>,
}

impl Installers {
    /// Returns the installers as the engine's trait objects.
    pub(crate) fn list(&self) -> Vec<Arc<dyn Packages>> {
        let python = self.python.clone().map(|one| -> Arc<dyn Packages> { one });
        let npm = self.npm.clone().map(|one| -> Arc<dyn Packages> { one });
        python.into_iter().chain(npm).collect()
    }

    /// Returns these installers under other settings. The installers stay, and running installations continue
    /// unchanged.
    pub(crate) fn under(&self, settings: &Settings) -> Result<Self, Failure> {
        let own = &settings.packages;
        // Invalid lists are an error even if no installer uses them.
        let (python, npm) = (python_policy(own)?, npm_policy(own)?);
        Ok(Self {
            python: self.python.as_ref().map(|one| one.with_rules(python, bounds(settings))),
            npm: self.npm.as_ref().map(|one| one.with_rules(npm, bounds(settings))),
        })
    }
}

/// Returns the limits of an installation.
fn bounds(settings: &Settings) -> Bounds {
    let own = &settings.packages;
    Bounds {
        limits: limits(own.disk),
        file_max: own.file.as_bytes(),
        total_max: own.download.as_bytes(),
        kept_max: kept(settings),
        origins: own.origins.clone(),
    }
}

/// Returns this machine's Node and npm, if both exist.
fn npm_tools(languages: &[Arc<dyn Language>]) -> Result<Option<NpmTools>, Failure> {
    let javascript = languages.iter().find(|language| language.info().name == "javascript");
    let (Some(npm), Some(javascript)) = (npm(), javascript) else {
        return Ok(None);
    };
    let program = javascript.program("", &[], &std::collections::BTreeMap::new())?;
    Ok(program.run.argv.into_iter().next().map(|node| NpmTools {
        node,
        node_version: javascript.info().version.clone(),
        npm,
    }))
}

/// Makes the installer of npm packages. None if neither this machine nor a back end `elsewhere` can install them.
fn npm_packages(
    settings: &Settings,
    backend: &Arc<dyn Backend>,
    languages: &[Arc<dyn Language>],
    elsewhere: bool,
) -> Result<Option<Arc<NpmPackages>>, Failure> {
    let own = &settings.packages;
    let config = NpmConfig {
        data: settings.data_dir.clone(),
        policy: npm_policy(own)?,
        tools: npm_tools(languages)?,
        bounds: bounds(settings),
        base: settings.base.clone(),
        variable: |name| std::env::var(name).ok(),
    };
    Ok((config.tools.is_some() || elsewhere).then(|| NpmPackages::new(config, backend.clone())))
}

/// Returns the policy for npm packages.
fn npm_policy(own: &PackageSettings) -> Result<NpmPolicy, Failure> {
    let entries = |texts: &[String]| -> Result<Vec<NpmEntry>, Failure> {
        let read = |text: &String| {
            text.parse().map_err(|error| {
                Failure::invalid(
                    format!("{text:?}: {error}"),
                    "correct packages.npm_allow, packages.npm_deny and packages.npm_ask",
                )
            })
        };
        texts.iter().map(read).collect()
    };
    // An operator who leaves Python packages to the user's consent leaves npm's too, unless npm has its own lists.
    let all = ["*".to_owned()];
    let ask = match own.npm_ask.as_slice() {
        [] if !own.ask.is_empty() && own.npm_allow.is_empty() => &all[..],
        listed => listed,
    };
    Ok(NpmPolicy {
        allow: entries(&own.npm_allow)?,
        ask: entries(ask)?,
        deny: entries(&own.npm_deny)?,
        min_age: Some(own.min_age).filter(|age| !age.is_zero()),
        closed: !own.allow.is_empty(),
    })
}

/// Returns the policy for Python packages.
fn python_policy(own: &PackageSettings) -> Result<Policy, Failure> {
    let entries = |texts: &[String]| -> Result<Vec<sandcell_packages::Entry>, Failure> {
        let read = |text: &String| {
            text.parse().map_err(|error| {
                Failure::invalid(
                    format!("{text}: {error}"),
                    "correct packages.allow, packages.deny and packages.ask",
                )
            })
        };
        texts.iter().map(read).collect()
    };
    Ok(Policy {
        allow: entries(&own.allow)?,
        deny: entries(&own.deny)?,
        ask: entries(&own.ask)?,
        min_age: Some(own.min_age).filter(|age| !age.is_zero()),
        sources: !own.only_binary,
    })
}

/// Returns the limits on stored installations.
fn kept(settings: &Settings) -> StoreLimits {
    let all = StoreLimits::total_only(settings.packages.kept.as_bytes());
    StoreLimits {
        caller_bytes: settings
            .quota
            .package_bytes
            .map_or(all.caller_bytes, ByteSize::as_bytes),
        caller_packages: settings.quota.packages.unwrap_or(all.caller_packages),
        ..all
    }
}

/// Returns the resource limits of an installer.
fn limits(disk: ByteSize) -> Limits {
    Limits {
        memory: INSTALLER_MEMORY,
        cpus: Cpus::milli(
            u32::try_from(sandcell_engine::processors())
                .unwrap_or(1)
                .saturating_mul(1000),
        ),
        processes: INSTALLER_PROCESSES,
        disk,
        inodes: INSTALLER_INODES,
    }
}

/// Returns the builder of bases, for the commands about them.
pub(super) fn bases(
    settings: &Settings,
    backend: &Arc<dyn Backend>,
    languages: &[Arc<dyn Language>],
) -> Result<Bases, Failure> {
    let python = python_packages(settings, backend, languages)?;
    Ok(Bases::new(python, npm_packages(settings, backend, languages, false)?))
}

/// Makes the installer of Python packages.
fn python_packages(
    settings: &Settings,
    backend: &Arc<dyn Backend>,
    languages: &[Arc<dyn Language>],
) -> Result<Arc<PythonPackages>, Failure> {
    let absent = || {
        Failure::new(
            Code::LanguageUnavailable,
            "there is no Python here",
            "`sandcell languages` shows how to install it",
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
    let config = Config {
        data: settings.data_dir.clone(),
        policy: python_policy(own)?,
        python: executable,
        python_version: python.info().version.clone(),
        // A changed image behind the same name shows in the interpreter's version, or in a digest in `docker.image`.
        image: backend
            .images()
            .and_then(BackendImages::default_image)
            .map(str::to_owned),
        bounds: bounds(settings),
        uv: uv(settings),
        base: settings.base.clone(),
        variable: |name| std::env::var(name).ok(),
    };
    Ok(PythonPackages::new(config, backend.clone()))
}

/// Returns the path of npm on this machine.
pub(crate) fn npm() -> Option<std::path::PathBuf> {
    find_npm(search_path("npm").as_deref())
}

/// Returns the path of uv on this machine.
pub(crate) fn uv(settings: &Settings) -> Option<std::path::PathBuf> {
    find_uv(search_path("uv").as_deref(), settings.data_dir.as_deref())
}

/// Returns the search path for a program, without folders on file systems that do not answer.
fn search_path(program: &str) -> Option<String> {
    use sandcell_languages::search_path::{answering, with_program};
    let path = std::env::var_os("PATH")?;
    let folders = with_program(answering(std::env::split_paths(&path).collect()), program);
    std::env::join_paths(folders).ok()?.into_string().ok()
}
