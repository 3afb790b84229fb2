//! Settings: read from all layers, checked, and converted to complete types before any other code uses them.

mod dotenv;
pub(crate) mod edit;
mod error;
mod folders;
mod source;
pub(crate) mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcell_engine::{Analysis, EngineConfig, PoolConfig, Quota, SavedConfig};
use sandcell_mcp::{HttpLimits, Interpreters, OauthOptions, Page, Toolset};
use sandcell_sandbox::{
    ByteSize, Code, CommitRule, Cpus, Degree, Failure, Level, Limits, MAX_TIMEOUT, Mount, System, ToolLimits,
};
use sandcell_settings::{Value, WrongType};
use sha2::{Digest as _, Sha256};

pub(crate) use error::ConfigError;
pub(crate) use source::{FlagValue, Layered, Origin, Surroundings, read, read_if_there};
pub(crate) use table::{ImageSettings, NetworkSettings, PackageSettings, QuotaSettings};

/// The path of the user's own settings file, as people write it.
pub(crate) const USERS_FILE: &str = if cfg!(windows) {
    r"%APPDATA%\sandcell\config.toml"
} else {
    "~/.config/sandcell/config.toml"
};

/// The maximum number of modules in `preload`.
const MAX_MODULES: usize = 64;

/// Settings that require a minimum of isolation.
const ISOLATION_FLOORS: [&str; 2] = ["isolation_min", "limits_min"];

/// All settings of this build.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Back ends in the order of preference.
    pub(crate) backends: Vec<String>,
    /// Settings without an explicit value.
    pub(crate) implicit: ImplicitSettings,
    /// The weakest level that is accepted.
    pub(crate) isolation_min: Level,
    /// The minimum enforcement degree for limits on amounts.
    #[cfg_attr(
        not(any(feature = "docker", all(target_os = "linux", feature = "native"))),
        expect(dead_code, reason = "only back ends that are here have degrees")
    )]
    pub(crate) limits_min: Degree,
    /// The Python to use; none: find one.
    pub(crate) python: Option<PathBuf>,
    /// Folders with tables of languages that add to the built-in one.
    pub(crate) language_tables: Vec<PathBuf>,
    /// The data folder; none when the environment gives no folder.
    pub(crate) data_dir: Option<PathBuf>,
    /// The log filter; empty: the default.
    pub(crate) log: String,
    /// Folders that sandboxes see.
    pub(crate) mounts: Vec<Mount>,
    /// The base whose packages sandboxes start with.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end installs packages")
    )]
    pub(crate) base: Option<String>,
    /// Quotas of one caller.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end installs packages")
    )]
    pub(crate) quota: QuotaSettings,
    /// Packages that may be installed, and their limits.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end installs packages")
    )]
    pub(crate) packages: PackageSettings,
    /// Hosts that sandboxes may reach.
    #[cfg_attr(
        not(any(feature = "docker", all(target_os = "linux", feature = "native"))),
        allow(dead_code, reason = "only back ends that are here have network")
    )]
    pub(crate) network: NetworkSettings,
    /// Servers of tools.
    #[cfg_attr(not(feature = "tools"), expect(dead_code, reason = "only that feature has tools"))]
    pub(crate) tools: toml::Table,
    /// Images that need no container daemon.
    pub(crate) images: ImageSettings,
    /// Folders whose images calls may name.
    pub(crate) image_folders: Vec<PathBuf>,
    /// True when sessions are restored after a crash.
    pub(crate) restore: bool,
    /// The tools that `serve` offers.
    pub(crate) toolset: Toolset,
    /// The default wait of a call.
    pub(crate) wait: Duration,
    /// The values from which all others are made. Back ends read their own tables.
    #[cfg_attr(
        not(any(feature = "docker", feature = "e2b")),
        expect(dead_code, reason = "only back ends that are here have tables")
    )]
    pub(crate) values: Layered,
    /// Addresses and access of `serve --http`.
    pub(crate) http: HttpSettings,
    /// The destination of traces, if any.
    pub(crate) traces: Option<String>,
    /// Servers in the background.
    pub(crate) service: ServiceSettings,
    /// The permanent history; none: the history is kept in memory.
    #[cfg_attr(
        not(all(unix, feature = "history")),
        expect(dead_code, reason = "only that feature keeps it")
    )]
    pub(crate) history: Option<HistorySettings>,
    /// The security audit log; none: no log is written.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix systems keep it"))]
    pub(crate) audit: Option<AuditSettings>,
    /// The engine's configuration.
    pub(crate) engine: EngineConfig,
}

/// Settings without an explicit value. Their values then follow from the kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImplicitSettings {
    /// `backend`.
    pub(crate) backend: bool,
    /// `analysis`.
    pub(crate) analysis: bool,
}

/// The settings of the security audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditSettings {
    /// The file's path.
    pub(crate) file: PathBuf,
    /// The maximum size.
    pub(crate) size: ByteSize,
}

/// The settings of the permanent history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HistorySettings {
    /// The folder of the history's file.
    pub(crate) folder: PathBuf,
    /// The maximum number of rows.
    pub(crate) rows: usize,
    /// The maximum age of entries.
    pub(crate) age: Duration,
    /// The maximum size.
    pub(crate) size: ByteSize,
}

/// Servers in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceSettings {
    /// True when `serve` uses a server in the background.
    pub(crate) on_demand: bool,
    /// The time without a sandbox or a call after which the server ends.
    pub(crate) idle: Duration,
    /// A digest of the client's own settings. Clients with equal digests share a server.
    pub(crate) mark: String,
}

/// Addresses and access of `serve --http`.
#[derive(Debug, Clone)]
pub(crate) struct HttpSettings {
    /// Host names that are accepted in addition to the server's address.
    pub(crate) hosts: Vec<String>,
    /// Origins of web pages that may use the server.
    pub(crate) origins: Vec<String>,
    /// Enables or disables the web page.
    pub(crate) page: Page,
    /// Enables or disables the REST resources next to MCP.
    pub(crate) rest: bool,
    /// The server for E2B's SDKs.
    pub(crate) e2b: table::E2bServerSettings,
    /// The certificate and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// The limits of callers.
    pub(crate) limits: HttpLimits,
    /// The accepted issuer of access tokens.
    pub(crate) oauth: Option<OauthOptions>,
}

impl Settings {
    /// Sets defaults that the served toolset promises, where the settings have no explicit value, and sets the
    /// toolset's hints.
    pub(crate) fn apply_toolset(&mut self) {
        match self.toolset {
            Toolset::Container if self.implicit.backend => self.backends = vec!["docker".to_owned()],
            Toolset::Script(_) if self.implicit.analysis => self.engine.analysis = Analysis::Strict,
            Toolset::Container | Toolset::Script(_) | Toolset::Sandbox => {}
        }
        self.engine.hints = self.toolset.hints();
    }

    /// True if the HTTP service has a way to answer questions about tool calls.
    pub(crate) fn answers_tool_questions(&self) -> bool {
        self.http.rest || self.http.page == Page::Served
    }

    /// Reads the settings of this process.
    pub(crate) fn load(around: &Surroundings) -> Result<Self, ConfigError> {
        Self::from_layers(&read(around)?)
    }

    /// Returns the reason that the data folder is unusable. None if it is usable or can be made.
    pub(crate) fn data_problem(&self) -> Option<Failure> {
        let Some(folder) = &self.data_dir else {
            return Some(Failure::new(
                Code::InvalidArgument,
                "no data folder is known (HOME is not set), so no history, package or base is stored",
                "set HOME, or SANDCELL_DATA_DIR to a folder that can be written",
            ));
        };
        let there = folder.ancestors().find(|place| place.exists())?;
        let error = tempfile::tempfile_in(there).err()?;
        Some(Failure::new(
            Code::InvalidArgument,
            format!(
                "the data folder {} cannot be used: {} cannot be written: {}",
                folder.display(),
                there.display(),
                error.kind()
            ),
            "check its owner and the room on its disk, or set data_dir (SANDCELL_DATA_DIR) to another folder",
        ))
    }

    /// Makes complete types from values that were checked one by one.
    pub(crate) fn from_layers(layered: &Layered) -> Result<Self, ConfigError> {
        let value = value_in(layered);
        let general = table::GeneralSettings::read(value)?;
        let limit = table::LimitSettings::read(value)?;
        let quota = QuotaSettings::read(value)?;
        let pool = table::PoolSettings::read(value)?;
        let session = table::SessionSettings::read(value)?;
        let service = table::ServiceTable::read(value)?;
        let limits = Limits {
            memory: limit.memory,
            cpus: limit.cpus,
            processes: limit.processes,
            disk: limit.disk,
            inodes: limit.inodes,
        };
        let data_dir = general.data_dir.or_else(default_data_dir);
        check_commits(&general.mounts, data_dir.as_deref())?;
        let saved = data_dir.as_ref().map(|folder| folder.join("saved"));
        let is_default = |key: &str| matches!(layered.get(key), Some((_, Origin::Default)));
        Ok(Self {
            backends: general.backends,
            implicit: ImplicitSettings {
                backend: is_default("backend"),
                analysis: is_default("analysis"),
            },
            isolation_min: general.isolation_min,
            limits_min: general.limits_min,
            python: general.python,
            language_tables: match general.language_tables {
                folders if folders.is_empty() => default_language_tables(),
                folders => folders,
            },
            log: general.log,
            mounts: general.mounts.clone(),
            base: general.base,
            packages: PackageSettings::read(value)?,
            network: NetworkSettings::read(value)?,
            tools: general.tools,
            images: ImageSettings::read(value)?,
            image_folders: general.upload_from.clone(),
            restore: session.restore,
            toolset: match general.toolset.as_str() {
                "container" => Toolset::Container,
                "script" if table::ScriptSettings::read(value)?.persistent => Toolset::Script(Interpreters::Kept),
                "script" => Toolset::Script(Interpreters::Fresh),
                "sandbox" => Toolset::Sandbox,
                _ => return Err(WrongType { key: "toolset" }.into()),
            },
            wait: table::McpSettings::read(value)?.wait,
            values: layered.clone(),
            http: http(layered)?,
            traces: table::TraceSettings::read(value)?.endpoint,
            service: ServiceSettings {
                on_demand: service.on_demand,
                idle: service.idle,
                mark: mark(layered),
            },
            history: history(layered, &limit, data_dir.as_deref())?,
            audit: audit(layered, data_dir.as_deref())?,
            data_dir,
            engine: EngineConfig {
                max_limits: max_limits(&limits),
                limits,
                timeout: limit.timeout.min(MAX_TIMEOUT),
                output_inline: limit.output_inline,
                output_kept: limit.output_kept,
                file_bytes: limit.file,
                code_bytes: ByteSize::mib(1),
                sandboxes_per_caller: limit.sandboxes_per_caller,
                sandboxes: limit.sandboxes,
                executions_per_caller: limit.executions_per_caller,
                executions: limit.executions,
                quota: engine_quota(&quota),
                idle: limit.idle,
                history_rows: limit.history_rows,
                history_age: limit.history_age,
                queue: 32,
                checkpoints: session.checkpoints,
                automatic_checkpoints: session.undo,
                saved: SavedConfig {
                    folder: saved,
                    states: session.saved,
                    size: session.saved_size,
                },
                upload_from: general.upload_from,
                mounts: general.mounts,
                pool: PoolConfig {
                    parked: pool.parked,
                    memory: pool.memory,
                    preload: modules(general.preload)?,
                    warm: pool.warm_parents,
                },
                analysis: match general.analysis.as_str() {
                    "off" => Analysis::Off,
                    "advisory" => Analysis::Advisory,
                    "strict" => Analysis::Strict,
                    _ => return Err(WrongType { key: "analysis" }.into()),
                },
                tools: ToolLimits {
                    calls: limit.tool_calls,
                    calls_at_once: limit.tool_calls_at_once,
                    call_size: limit.tool_call,
                    total_size: limit.tool_total,
                    approval: limit.tool_approval,
                    answered_elsewhere: false,
                },
                ..EngineConfig::default()
            },
            quota,
        })
    }
}

/// Returns the function by which tables of settings find their values.
pub(crate) fn value_in<'a>(layered: &'a Layered) -> impl Fn(&'static str) -> Option<&'a Value> + Copy {
    |key| layered.get(key).map(|(value, _)| value)
}

/// Returns a short digest of a client's flags, environment and own file. The server itself reads the files of the user
/// and the system. The exceptions are the settings in `ISOLATION_FLOORS`: a client must never get a server with less.
fn mark(layered: &Layered) -> String {
    let mut digest = Sha256::new();
    for (key, (value, origin)) in layered {
        let own = match origin {
            Origin::Default => false,
            Origin::File(path) => !path.ends_with("sandcell/config.toml") || ISOLATION_FLOORS.contains(key),
            Origin::DotEnv(..) | Origin::Environment(_) | Origin::Flag(_) => true,
        };
        if own && !key.starts_with("service.") && *key != "log" {
            match value {
                // The display form hides the secret, and two accounts must have different digests.
                Value::Secret(Some(secret)) => digest.update(format!("{key}={}\n", secret.expose())),
                value => digest.update(format!("{key}={value:?}\n")),
            }
        }
    }
    let digest = digest.finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn history(
    layered: &Layered,
    limit: &table::LimitSettings,
    data_dir: Option<&Path>,
) -> Result<Option<HistorySettings>, ConfigError> {
    let is_stored = match table::HistoryTable::read(value_in(layered))?.store.as_str() {
        "file" => true,
        "memory" => false,
        _ => return Err(WrongType { key: "history.store" }.into()),
    };
    let settings = |folder: &Path| HistorySettings {
        folder: folder.to_owned(),
        rows: limit.history_rows,
        age: limit.history_age,
        size: limit.history_size,
    };
    Ok(data_dir.filter(|_| is_stored).map(settings))
}

fn audit(layered: &Layered, data_dir: Option<&Path>) -> Result<Option<AuditSettings>, ConfigError> {
    let audit = table::AuditTable::read(value_in(layered))?;
    let file = audit.file.or_else(|| data_dir.map(|folder| folder.join("audit.jsonl")));
    let size = audit.kept;
    Ok(file.filter(|_| audit.enabled).map(|file| AuditSettings { file, size }))
}

fn http(layered: &Layered) -> Result<HttpSettings, ConfigError> {
    let http = table::HttpTable::read(value_in(layered))?;
    let half = |key| invalid(key, "is needed: http.tls_certificate and http.tls_key belong together");
    // With half of the pair the server would use clear text while its operator expects TLS.
    let tls = match (http.tls_certificate, http.tls_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err(half("http.tls_key")),
        (None, Some(_)) => return Err(half("http.tls_certificate")),
    };
    Ok(HttpSettings {
        hosts: http.hosts,
        origins: http.origins,
        page: if http.page { Page::Served } else { Page::Absent },
        rest: http.rest,
        e2b: table::E2bServerSettings::read(value_in(layered))?,
        tls,
        limits: HttpLimits {
            connections: http.connections,
            requests_per_caller: http.requests_per_caller,
            requests_per_s: http.requests_per_s,
            sessions_per_caller: http.sessions_per_caller,
            session_idle: http.session_idle,
            drain: http.drain,
        },
        oauth: oauth(layered)?,
    })
}

/// Checks module names, and removes duplicates.
fn modules(names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let part = |part: &str| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let mut kept: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        if name.len() > 200 || !name.split('.').all(part) {
            return Err(not_a_module(&format!(
                "{name:?} is no name of a module, such as \"matplotlib.pyplot\""
            )));
        }
        if !kept.contains(&name) {
            kept.push(name);
        }
    }
    if kept.len() > MAX_MODULES {
        return Err(not_a_module(&format!("names more than {MAX_MODULES} modules")));
    }
    Ok(kept)
}

fn not_a_module(reason: &str) -> ConfigError {
    invalid("preload", reason)
}

/// Refuses mounts that let a commit write into the server's data folder. It holds the operator's permits, so code could
/// approve its own changes.
fn check_commits(mounts: &[Mount], data_dir: Option<&Path>) -> Result<(), ConfigError> {
    let Some(data) = data_dir.map(resolved) else {
        return Ok(());
    };
    for mount in mounts.iter().filter(|mount| mount.commit == CommitRule::Ask) {
        let host = resolved(&mount.host);
        if data.starts_with(&host) || host.starts_with(&data) {
            return Err(invalid(
                "mount",
                &format!(
                    "has commit = \"ask\" for {}, which contains the server's data folder {} or is in it, so code could \
                     approve its own changes: mount a smaller folder, or set data_dir to another one",
                    mount.host.display(),
                    data.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Returns a path without links. Its end perhaps does not exist yet.
fn resolved(path: &Path) -> PathBuf {
    let there = path
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)));
    there.map_or_else(
        || path.to_owned(),
        |(above, real)| real.join(path.strip_prefix(above).unwrap_or(path)),
    )
}

/// Returns the error for settings that are right one by one and wrong together.
fn invalid(key: &str, reason: &str) -> ConfigError {
    ConfigError::Invalid {
        place: "the settings".to_owned(),
        key: key.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Returns one caller's quota over all of its sandboxes.
fn engine_quota(quota: &QuotaSettings) -> Quota {
    let unlimited = Quota::default();
    Quota {
        memory: quota.memory.unwrap_or(unlimited.memory),
        disk: quota.disk.unwrap_or(unlimited.disk),
        cpu: quota.cpu.unwrap_or(unlimited.cpu),
    }
}

/// Returns the OAuth issuer. OAuth settings without an issuer are refused, since they would give no protection.
fn oauth(layered: &Layered) -> Result<Option<OauthOptions>, ConfigError> {
    let auth = table::AuthSettings::read(value_in(layered))?;
    let options = OauthOptions {
        issuer: auth.issuer,
        resource: auth.resource,
        audience: auth.audience,
        scopes: auth.scopes,
        jwks_uri: auth.jwks_uri,
    };
    match (options.issuer.is_empty(), options.resource.is_empty()) {
        (false, false) => Ok(Some(options)),
        (false, true) => Err(invalid("auth.resource", "is needed with auth.issuer")),
        (true, _) if options == OauthOptions::default() => Ok(None),
        (true, _) => Err(invalid("auth.issuer", "is needed with the other settings of [auth]")),
    }
}

/// Returns the maximum that a call may request: half of the machine's memory and all of its cores, and never less than
/// the default limits.
fn max_limits(limits: &Limits) -> Limits {
    let cores = u32::try_from(sandcell_engine::processors()).unwrap_or(1).min(1024);
    let half = machine_memory().map_or(limits.memory, |all| ByteSize::bytes(all.as_bytes() / 2));
    Limits {
        memory: limits.memory.max(half),
        cpus: limits.cpus.max(Cpus::milli(cores.saturating_mul(1000))),
        processes: limits.processes.max(1024),
        disk: limits.disk.max(half),
        inodes: limits.inodes.max(1_000_000),
    }
}

/// Returns the machine's memory, if the system reports it.
fn machine_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(ByteSize::kib(kib))
}

/// Returns the default folders of language tables, which lie next to the configuration files.
fn default_language_tables() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if cfg!(unix) {
        folders.push(PathBuf::from("/etc/sandcell/languages.d"));
    }
    let own = folders::settings(System::of_this_machine(), |name| std::env::var_os(name));
    folders.extend(own.map(|folder| folder.join("languages.d")));
    folders
}

fn default_data_dir() -> Option<PathBuf> {
    #[cfg(unix)]
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/sandcell"));
    }
    folders::data(System::of_this_machine(), |name| std::env::var_os(name))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
