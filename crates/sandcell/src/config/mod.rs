//! Settings: read from all layers, checked, and converted to complete types before any other code uses them.

mod dotenv;
mod e2b;
pub(crate) mod edit;
mod error;
mod folders;
mod mount;
mod rest;
mod source;
pub(crate) mod table;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use sandcell_engine::{Analysis, EngineConfig, PoolConfig, Quota};
use sandcell_mcp::{HttpLimits, Interpreters, OauthOptions, Page, Toolset};
use sandcell_sandbox::{ByteSize, Code, Cpus, Degree, Failure, Level, Limits, MAX_TIMEOUT, Mount, System};
use sha2::{Digest as _, Sha256};

pub(crate) use e2b::E2bSettings;
pub(crate) use error::ConfigError;
pub(crate) use rest::RestResources;
pub(crate) use source::{FlagValue, Layered, Origin, Surroundings, read, read_if_there};
pub(crate) use value::Value;

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
    /// Packages that may be installed, and their limits.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "native")),
        expect(dead_code, reason = "only the native back end installs packages")
    )]
    pub(crate) packages: PackageSettings,
    /// Hosts that sandboxes may reach.
    #[cfg_attr(
        not(any(feature = "docker", all(target_os = "linux", feature = "native"))),
        expect(dead_code, reason = "only back ends that are here have network")
    )]
    pub(crate) network: NetworkSettings,
    /// The container daemon and image.
    #[cfg_attr(
        not(any(feature = "docker", all(target_os = "linux", feature = "native"))),
        expect(dead_code, reason = "only the Docker back end makes containers")
    )]
    pub(crate) docker: DockerSettings,
    /// Images that need no container daemon.
    pub(crate) images: ImageSettings,
    /// True when sessions are restored after a crash.
    pub(crate) restore: bool,
    /// The tools that `serve` offers.
    pub(crate) toolset: Toolset,
    /// The default wait of a call.
    pub(crate) wait: Duration,
    /// The E2B service.
    #[cfg_attr(
        not(feature = "e2b"),
        expect(dead_code, reason = "only the back end e2b looks at it")
    )]
    pub(crate) e2b: E2bSettings,
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

/// The operator's settings for packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackageSettings {
    /// The base that sandboxes start with.
    pub(crate) base: Option<String>,
    /// Entries whose syntax was already checked.
    pub(crate) allow: Vec<String>,
    /// Like `allow`.
    pub(crate) deny: Vec<String>,
    /// Like `allow`.
    pub(crate) ask: Vec<String>,
    /// Like `allow`, for npm packages.
    pub(crate) npm_allow: Vec<String>,
    /// Like `npm_allow`.
    pub(crate) npm_deny: Vec<String>,
    /// Like `npm_allow`.
    pub(crate) npm_ask: Vec<String>,
    /// Hosts to which an index may point.
    pub(crate) origins: Vec<String>,
    /// The minimum age of a release.
    pub(crate) min_age: Duration,
    /// True when source distributions are never installed.
    pub(crate) only_binary: bool,
    /// The maximum unpacked size of one installation.
    pub(crate) disk: ByteSize,
    /// The maximum size of one file.
    pub(crate) file: ByteSize,
    /// The maximum download of one installation.
    pub(crate) download: ByteSize,
    /// The maximum size of all layers.
    pub(crate) kept: ByteSize,
    /// The maximum size of one caller's layers; none: unlimited.
    pub(crate) caller_kept: Option<ByteSize>,
    /// The maximum number of packages of one caller; none: unlimited.
    pub(crate) caller_packages: Option<usize>,
}

/// The operator's settings for the network of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkSettings {
    /// The hosts that a call may request.
    pub(crate) allow: Vec<String>,
    /// Hosts that need the user's consent.
    pub(crate) ask: Vec<String>,
    /// Hosts that are never reached.
    pub(crate) deny: Vec<String>,
    /// Addresses that are not public and may be reached.
    pub(crate) private: Vec<String>,
    /// The maximum number of concurrent connections of a sandbox.
    pub(crate) connections: usize,
    /// The maximum number of bytes that a sandbox transfers.
    pub(crate) total: ByteSize,
}

/// The operator's settings for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DockerSettings {
    /// The daemon's address; none: the usual address of daemons.
    pub(crate) host: Option<String>,
    /// The folder with the certificates for a daemon that is reached over TCP.
    pub(crate) certificates: Option<PathBuf>,
    /// The image of sandboxes that name none.
    pub(crate) image: String,
    /// The runtime, if not the daemon's own choice.
    pub(crate) runtime: Option<String>,
    /// True when missing images are pulled.
    pub(crate) pull: bool,
    /// Languages that every image has or gets.
    pub(crate) languages: Vec<String>,
    /// The hosts from which these languages may be installed.
    pub(crate) mirrors: Vec<String>,
}

/// The operator's settings for images that need no container daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageSettings {
    /// Images that calls may name.
    pub(crate) allow: Vec<String>,
    /// Folders whose images calls may name.
    pub(crate) folders: Vec<PathBuf>,
    /// True when missing images are pulled.
    pub(crate) pull: bool,
    /// The mirrors of registries, tried first, as `REGISTRY=MIRROR`.
    pub(crate) mirrors: Vec<String>,
    /// Registries that are reached without TLS.
    pub(crate) insecure: Vec<String>,
    /// The file with logins; none: the usual ones.
    pub(crate) auth_file: Option<PathBuf>,
    /// The maximum download of one image.
    pub(crate) download: ByteSize,
    /// The maximum unpacked size of one image.
    pub(crate) unpacked: ByteSize,
    /// The maximum size of all images.
    pub(crate) kept: ByteSize,
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
    pub(crate) rest: RestResources,
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
        let get = Getter(layered);
        let mib = |key| Ok::<_, ConfigError>(ByteSize::mib(get.integer(key)?));
        let limits = Limits {
            memory: mib("limits.memory_mb")?,
            cpus: cpus(get.number("limits.cpus")?),
            processes: get.small("limits.processes")?,
            disk: mib("limits.disk_mb")?,
            inodes: get.integer("limits.inodes")?,
        };
        Ok(Self {
            backends: get.words("backend")?,
            implicit: ImplicitSettings {
                backend: get.is_default("backend"),
                analysis: get.is_default("analysis"),
            },
            isolation_min: get.level()?,
            limits_min: match get.word("limits_min")?.as_str() {
                "enforced" => Degree::Enforced,
                "watched" => Degree::Watched,
                _ => return Err(wrong("limits_min")),
            },
            python: get.path("python")?,
            language_tables: match get.value("languages")? {
                Value::Paths(paths) if paths.is_empty() => default_language_tables(),
                Value::Paths(paths) => paths.clone(),
                _ => return Err(wrong("languages")),
            },
            data_dir: get.path("data_dir")?.or_else(default_data_dir),
            log: get.text("log")?.unwrap_or_default(),
            mounts: match get.value("mount")? {
                Value::Mounts(mounts) => mounts.clone(),
                _ => return Err(wrong("mount")),
            },
            packages: PackageSettings {
                base: match get.value("base")? {
                    Value::Name(name) => name.clone(),
                    _ => return Err(wrong("base")),
                },
                allow: get.requirements("packages.allow")?,
                deny: get.requirements("packages.deny")?,
                ask: get.requirements("packages.ask")?,
                npm_allow: get.texts("packages.npm_allow")?,
                npm_deny: get.texts("packages.npm_deny")?,
                npm_ask: get.texts("packages.npm_ask")?,
                origins: get.texts("packages.origins")?,
                min_age: Duration::from_secs(get.integer("packages.min_age_days")?.saturating_mul(86_400)),
                only_binary: match get.value("packages.only_binary")? {
                    Value::Flag(flag) => *flag,
                    _ => return Err(wrong("packages.only_binary")),
                },
                disk: mib("packages.disk_mb")?,
                file: mib("packages.file_mb")?,
                download: mib("packages.download_mb")?,
                kept: mib("packages.kept_mb")?,
                caller_kept: match get.integer("quota.packages_mb")? {
                    0 => None,
                    mib => Some(ByteSize::mib(mib)),
                },
                caller_packages: Some(get.count("quota.packages")?).filter(|count| *count > 0),
            },
            network: NetworkSettings {
                allow: get.texts("network.allow")?,
                ask: get.texts("network.ask")?,
                deny: get.texts("network.deny")?,
                private: get.texts("network.private")?,
                connections: get.count("network.connections")?,
                total: mib("network.total_mb")?,
            },
            docker: DockerSettings {
                host: get.text("docker.host")?,
                certificates: get.path("docker.cert_path")?,
                image: get.text("docker.image")?.ok_or_else(|| ConfigError::Invalid {
                    place: "the settings".to_owned(),
                    key: "docker.image".to_owned(),
                    reason: "is needed: the image of sandboxes that name none".to_owned(),
                })?,
                runtime: get.text("docker.runtime")?,
                pull: get.word("docker.pull")? == "missing",
                languages: get.words("docker.languages")?,
                mirrors: get.texts("docker.mirrors")?,
            },
            images: ImageSettings {
                allow: get.texts("images.allow")?,
                folders: match get.value("upload_from")? {
                    Value::Paths(paths) => paths.clone(),
                    _ => return Err(wrong("upload_from")),
                },
                pull: get.word("images.pull")? == "missing",
                mirrors: get.texts("images.mirrors")?,
                insecure: get.texts("images.insecure")?,
                auth_file: get.path("images.auth_file")?,
                download: mib("images.download_mb")?,
                unpacked: mib("images.unpacked_mb")?,
                kept: mib("images.kept_mb")?,
            },
            restore: match get.value("sessions.restore")? {
                Value::Switch(on) => *on,
                _ => return Err(wrong("sessions.restore")),
            },
            toolset: toolset(&get)?,
            wait: Duration::from_secs(get.integer("mcp.wait_s")?),
            e2b: E2bSettings::read(&get)?,
            http: http(&get)?,
            traces: get.text("traces.endpoint")?,
            service: ServiceSettings {
                on_demand: matches!(get.value("service.on_demand")?, Value::Flag(true)),
                idle: Duration::from_secs(get.integer("service.idle_s")?),
                mark: mark(layered),
            },
            history: history(&get)?,
            audit: audit(&get)?,
            engine: EngineConfig {
                max_limits: max_limits(&limits),
                limits,
                timeout: seconds(get.number("limits.timeout_s")?).min(MAX_TIMEOUT),
                output_inline: ByteSize::kib(get.integer("limits.output_inline_kb")?),
                output_kept: mib("limits.output_kept_mb")?,
                file_bytes: mib("limits.file_mb")?,
                code_bytes: ByteSize::mib(1),
                sandboxes_per_caller: get.count("limits.sandboxes_per_caller")?,
                sandboxes: get.count("limits.sandboxes")?,
                executions_per_caller: get.count("limits.executions_per_caller")?,
                executions: get.count("limits.executions")?,
                quota: quota(&get)?,
                idle: Duration::from_secs(get.integer("limits.idle_s")?),
                history_rows: get.count("limits.history_rows")?,
                history_age: Duration::from_secs(get.integer("limits.history_days")?.saturating_mul(86_400)),
                queue: 32,
                upload_from: match get.value("upload_from")? {
                    Value::Paths(paths) => paths.clone(),
                    _ => return Err(wrong("upload_from")),
                },
                pool: PoolConfig {
                    parked: match get.value("pool.parked")? {
                        Value::Demand(number) => number
                            .map(usize::try_from)
                            .transpose()
                            .map_err(|_| wrong("pool.parked"))?,
                        _ => return Err(wrong("pool.parked")),
                    },
                    memory: mib("pool.memory_mb")?,
                    preload: modules(get.texts("preload")?)?,
                    warm: match get.value("pool.warm_parents")? {
                        Value::Switch(warm) => *warm,
                        _ => return Err(wrong("pool.warm_parents")),
                    },
                },
                analysis: match get.word("analysis")?.as_str() {
                    "off" => Analysis::Off,
                    "advisory" => Analysis::Advisory,
                    "strict" => Analysis::Strict,
                    _ => return Err(wrong("analysis")),
                },
                ..EngineConfig::default()
            },
        })
    }
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

fn history(get: &Getter<'_>) -> Result<Option<HistorySettings>, ConfigError> {
    let on = get.word("history.store")? == "file";
    let folder = get.path("data_dir")?.or_else(default_data_dir);
    let settings = HistorySettings {
        folder: folder.clone().unwrap_or_default(),
        rows: get.count("limits.history_rows")?,
        age: Duration::from_secs(get.integer("limits.history_days")?.saturating_mul(86_400)),
        size: ByteSize::mib(get.integer("limits.history_mb")?),
    };
    Ok((on && folder.is_some()).then_some(settings))
}

fn audit(get: &Getter<'_>) -> Result<Option<AuditSettings>, ConfigError> {
    let on = matches!(get.value("audit.enabled")?, Value::Flag(true));
    let data = get.path("data_dir")?.or_else(default_data_dir);
    let file = get
        .path("audit.file")?
        .or_else(|| data.map(|folder| folder.join("audit.jsonl")));
    let size = ByteSize::mib(get.integer("audit.kept_mb")?);
    Ok(file.filter(|_| on).map(|file| AuditSettings { file, size }))
}

fn toolset(get: &Getter<'_>) -> Result<Toolset, ConfigError> {
    Ok(match get.word("toolset")?.as_str() {
        "sandbox" => Toolset::Sandbox,
        "container" => Toolset::Container,
        "script" => Toolset::Script(match get.value("script.persistent")? {
            Value::Flag(true) => Interpreters::Kept,
            Value::Flag(false) => Interpreters::Fresh,
            _ => return Err(wrong("script.persistent")),
        }),
        _ => return Err(wrong("toolset")),
    })
}

fn http(get: &Getter<'_>) -> Result<HttpSettings, ConfigError> {
    let tls = match (get.path("http.tls_certificate")?, get.path("http.tls_key")?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => return Err(incomplete_tls("http.tls_key")),
        (None, Some(_)) => return Err(incomplete_tls("http.tls_certificate")),
    };
    Ok(HttpSettings {
        hosts: get.texts("http.allowed_hosts")?,
        origins: get.texts("http.allowed_origins")?,
        page: match get.value("http.page")? {
            Value::Flag(true) => Page::Served,
            Value::Flag(false) => Page::Absent,
            _ => return Err(wrong("http.page")),
        },
        rest: RestResources::read(get.value("http.rest")?).ok_or_else(|| wrong("http.rest"))?,
        tls,
        limits: HttpLimits {
            connections: get.count("http.connections")?,
            requests_per_caller: get.count("http.requests_per_caller")?,
            requests_per_s: get.small("http.requests_per_s")?,
            sessions_per_caller: get.count("http.sessions_per_caller")?,
            session_idle: Duration::from_secs(get.integer("http.session_idle_s")?),
            drain: Duration::from_secs(get.integer("http.drain_s")?),
        },
        oauth: oauth(get)?,
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
    ConfigError::Invalid {
        place: "the settings".to_owned(),
        key: "preload".to_owned(),
        reason: reason.to_owned(),
    }
}

/// Returns one caller's quota over all of its sandboxes.
fn quota(get: &Getter<'_>) -> Result<Quota, ConfigError> {
    let all = Quota::default();
    let or = |key, all| match get.integer(key)? {
        0 => Ok::<_, ConfigError>(all),
        mib => Ok(ByteSize::mib(mib)),
    };
    Ok(Quota {
        memory: or("quota.memory_mb", all.memory)?,
        disk: or("quota.disk_mb", all.disk)?,
        cpu: match get.integer("quota.cpu_s")? {
            0 => all.cpu,
            seconds => Duration::from_secs(seconds),
        },
    })
}

/// Returns the OAuth issuer. OAuth settings without an issuer are refused, since they would give no protection.
fn oauth(get: &Getter<'_>) -> Result<Option<OauthOptions>, ConfigError> {
    let text = |key| Ok::<_, ConfigError>(get.text(key)?.unwrap_or_default());
    let options = OauthOptions {
        issuer: text("auth.issuer")?,
        resource: text("auth.resource")?,
        audience: text("auth.audience")?,
        scopes: get.texts("auth.scopes")?,
        jwks_uri: text("auth.jwks_uri")?,
    };
    let needed = |key: &str, by: &str| ConfigError::Invalid {
        place: "the settings".to_owned(),
        key: key.to_owned(),
        reason: format!("is needed with {by}"),
    };
    match (options.issuer.is_empty(), options.resource.is_empty()) {
        (false, false) => Ok(Some(options)),
        (false, true) => Err(needed("auth.resource", "auth.issuer")),
        (true, _) if options == OauthOptions::default() => Ok(None),
        (true, _) => Err(needed("auth.issuer", "the other settings of [auth]")),
    }
}

/// Returns the error for half of the TLS settings: the server would use clear text while its operator expects TLS.
fn incomplete_tls(missing: &'static str) -> ConfigError {
    ConfigError::Invalid {
        place: "the settings".to_owned(),
        key: missing.to_owned(),
        reason: "is needed: http.tls_certificate and http.tls_key belong together".to_owned(),
    }
}

/// Typed reads from the layers. The table defines each key's kind; a mistake there is an error, not a default.
struct Getter<'a>(&'a Layered);

impl Getter<'_> {
    fn value(&self, key: &'static str) -> Result<&Value, ConfigError> {
        self.0.get(key).map(|(value, _)| value).ok_or_else(|| wrong(key))
    }

    /// Returns true when the key has its default.
    fn is_default(&self, key: &str) -> bool {
        matches!(self.0.get(key), Some((_, Origin::Default)))
    }

    fn integer(&self, key: &'static str) -> Result<u64, ConfigError> {
        match self.value(key)? {
            Value::Integer(number) => Ok(*number),
            _ => Err(wrong(key)),
        }
    }

    fn small(&self, key: &'static str) -> Result<u32, ConfigError> {
        u32::try_from(self.integer(key)?).map_err(|_| wrong(key))
    }

    fn count(&self, key: &'static str) -> Result<usize, ConfigError> {
        usize::try_from(self.integer(key)?).map_err(|_| wrong(key))
    }

    fn number(&self, key: &'static str) -> Result<f64, ConfigError> {
        match self.value(key)? {
            Value::Number(number) => Ok(*number),
            _ => Err(wrong(key)),
        }
    }

    fn word(&self, key: &'static str) -> Result<String, ConfigError> {
        match self.value(key)? {
            Value::Word(word) => Ok(word.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn words(&self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        match self.value(key)? {
            Value::Words(words) => Ok(words.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn requirements(&self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        match self.value(key)? {
            Value::Requirements(list) => Ok(list.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn text(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        match self.value(key)? {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn texts(&self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        match self.value(key)? {
            Value::Texts(texts) => Ok(texts.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn path(&self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        match self.value(key)? {
            Value::Path(path) => Ok(path.clone()),
            _ => Err(wrong(key)),
        }
    }

    fn level(&self) -> Result<Level, ConfigError> {
        let word = self.word("isolation_min")?;
        [
            Level::Microvm,
            Level::Gvisor,
            Level::Container,
            Level::Namespace,
            Level::Process,
            Level::None,
        ]
        .into_iter()
        .find(|level| level.as_str() == word)
        .ok_or_else(|| wrong("isolation_min"))
    }
}

/// Returns the error for a disagreement between the table of settings and this module: a bug.
fn wrong(key: &'static str) -> ConfigError {
    ConfigError::Invalid {
        place: "the table of settings".to_owned(),
        key: key.to_owned(),
        reason: "is of another kind than the code that reads it expects".to_owned(),
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(MAX_TIMEOUT)
}

/// Converts cores to thousandths of a core. The table bounds the number to 0.05 – 1024.
fn cpus(cores: f64) -> Cpus {
    let milli = Duration::try_from_secs_f64(cores).map_or(1000, |as_time| as_time.as_millis());
    Cpus::milli(u32::try_from(milli).unwrap_or(u32::MAX))
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
