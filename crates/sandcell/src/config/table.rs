//! The settings of this build. Parsing, `sandcell config`, the names of environment variables and the reference in
//! `docs/reference/settings.md` all come from the fields declared here. A back end declares its own table in its folder.

use std::path::PathBuf;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Cpus, Degree, Level, Mount};
use sandcell_settings::{Kind, Setting, SettingType, Value, operator, project, whole};

/// The maximum of `limits.file_mb`.
pub(crate) const MAX_FILE_MB: u64 = 15;

/// A list of packages.
const REQUIREMENTS_KIND: Kind = Kind::Requirements {
    check: check_requirement,
};

fn check_requirement(text: &str) -> Result<(), String> {
    #[cfg(all(target_os = "linux", feature = "native"))]
    if let Err(error) = text.parse::<sandcell_packages::Entry>() {
        return Err(error.to_string());
    }
    let _ = text;
    Ok(())
}

fn check_templates(table: &toml::Table) -> Result<(), String> {
    sandcell_e2b_server::check_templates(table)
}

fn check_tools(table: &toml::Table) -> Result<(), String> {
    #[cfg(feature = "tools")]
    return sandcell_host_tools::check_servers(table);
    #[cfg(not(feature = "tools"))]
    match table.is_empty() {
        true => Ok(()),
        false => Err("this build of sandcell has no tools".to_owned()),
    }
}

/// Says which images are pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    /// Those that are absent.
    Missing,
    /// None.
    Never,
}

impl SettingType for PullPolicy {
    fn from_value(_key: &str, value: &Value) -> Option<Self> {
        match value {
            Value::Word(word) if word == "missing" => Some(Self::Missing),
            Value::Word(word) if word == "never" => Some(Self::Never),
            _ => None,
        }
    }
}

sandcell_settings::settings! {
    /// The settings without a table.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct GeneralSettings in "" {
        /// Back ends that make sandboxes, the preferred one first (the default is `docker` on systems other than
        /// Linux). The next one is used if the one before it does not work or is below `isolation_min`. The flag is
        /// `--backend`; `INTERPRETER_TYPE` means the same.
        "backend" => backends: Vec<String> = project(Kind::ListOf(&["native", "docker", "e2b"]), if cfg!(target_os = "linux") { "native" } else { "docker" }).also("INTERPRETER_TYPE"),

        /// The weakest accepted isolation. On a machine that cannot provide it, sandcell refuses to run code.
        "isolation_min" => isolation_min: Level = operator(Kind::OneOf(&["microvm", "gvisor", "container", "namespace", "process", "none"]), "namespace"),

        /// The required enforcement of the limits on memory, processor and processes: `enforced` accepts control groups
        /// only, `watched` also accepts a watchdog outside the sandbox that kills processes over a limit.
        "limits_min" => limits_min: Degree = operator(Kind::OneOf(&["watched", "enforced"]), "watched"),

        /// The set of tools that `serve` offers: `sandbox` has all, `container` starts, uses and stops one sandbox from
        /// an image (with the back end docker unless `backend` says otherwise), `script` runs Python scripts after a
        /// static analysis (`analysis` is `strict` unless it is set). The flag is `--toolset`.
        "toolset" => toolset: String = project(Kind::OneOf(&["sandbox", "container", "script"]), "sandbox"),

        /// The Python that sandboxes run; it may belong to a virtual environment. It and its packages are visible
        /// read-only inside. Empty: sandcell finds the machine's own.
        "python" => python: Option<PathBuf> = operator(Kind::Path, ""),

        /// The handling of static-analysis findings in Python code: `advisory` returns them with the result, `strict`
        /// refuses code with a finding of `sandcell check --profile strict`. The findings are advice, not
        /// protection: the sandbox protects.
        "analysis" => analysis: String = operator(Kind::OneOf(&["off", "advisory", "strict"]), "advisory").live(),

        /// Folders whose `.toml` files add languages or replace built-in ones. Empty: `/etc/sandcell/languages.d` and
        /// `~/.config/sandcell/languages.d` (on Windows `%APPDATA%\sandcell\languages.d`).
        "languages" => language_tables: Vec<PathBuf> = operator(Kind::Paths, ""),

        /// Folders of the host that `upload_file` may read with `local_path`. Empty: none.
        "upload_from" => upload_from: Vec<PathBuf> = operator(Kind::Paths, "").live(),

        /// The folder for data that outlives a server, such as the history and installed packages. Empty:
        /// `/var/lib/sandcell` for root, else `$XDG_DATA_HOME/sandcell` (`~/.local/share/sandcell`, on Windows
        /// `%LOCALAPPDATA%\sandcell`).
        "data_dir" => data_dir: Option<PathBuf> = operator(Kind::Path, ""),

        /// The log filter for stderr: `error`, `warn`, `info`, `debug`, or a filter such as `sandcell_engine=debug`.
        /// Empty: `warn`.
        "log" => log: String = operator(Kind::Text, "").live(),

        /// Folders of the host that sandboxes see: `[[mount]]` with `host`, `sandbox` (default `/mnt/` and the folder's
        /// name) and `mode`, `ro` (read-only) or `cow` (a private copy-on-write view). Code never writes to the host's
        /// folder. With `commit = "ask"` a person can apply a sandbox's changes to the folder of a `cow` mount
        /// (`sandcell commit`); the default is `never`. `--mount` adds to them.
        "mount" => mounts: Vec<Mount> = operator(Kind::Mounts, ""),

        /// Servers of tools (MCP) that code in sandboxes may call: `[tools.NAME]` with `command`, `args`, `env` and `cwd`,
        /// or `url` and `headers`. `allow`, `ask` and `deny` are lists of patterns of tool names (`get_*`); `deny` wins
        /// over `ask`, and `ask` over `allow`. A tool that no list names needs the approval of a person.
        /// `read_only = "allow"` also allows the tools that the server describes as read-only. `callers` names the callers
        /// whose code may use the server (the default is all), `timeout_s` is the time limit of a call (60), and
        /// `description` is a line for the code that looks for tools. `${NAME}` in a value of `env` or `headers` is a
        /// variable of sandcell's environment.
        "tools" => tools: toml::Table = operator(Kind::Tables { check: check_tools, secret: &["env", "headers"] }, "").live(),

        /// The prepared base (`sandcell base build NAME …`) whose packages every sandbox has from the start. Empty:
        /// none.
        "base" => base: Option<String> = project(Kind::Name, ""),

        /// Python modules that idle sandboxes have already loaded, such as `numpy, pandas, matplotlib.pyplot`. An
        /// import then costs a call no time. The modules must be installed for the interpreter or in the `base`. A
        /// module that cannot be loaded is logged and left out. Each idle sandbox uses their memory (`pool.memory_mb`).
        "preload" => preload: Vec<String> = operator(Kind::Texts, "").live(),
    }
}

sandcell_settings::settings! {
    /// The operator's settings for packages.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct PackageSettings in "packages." {
        /// Packages that may be installed, dependencies included: names with versions and extras (`numpy>=1.24,<2`,
        /// `requests[socks]`) or patterns (`acme-*`). Empty: all packages that are not denied. In the environment,
        /// entries are separated by `;`.
        "allow" => allow: Vec<String> = operator(REQUIREMENTS_KIND, "").live(),

        /// Packages that may not be installed, written in the same way; wins over `packages.allow`.
        "deny" => deny: Vec<String> = operator(REQUIREMENTS_KIND, "").live(),

        /// Packages that need the user's consent (MCP elicitation), written in the same way, `*` for all. The setting
        /// applies to packages that are neither in `packages.allow` nor in `packages.deny`. The consent holds for one
        /// call and includes dependencies. Without consent the packages are refused. Code inside never gets them.
        "ask" => ask: Vec<String> = operator(REQUIREMENTS_KIND, "").live(),

        /// The minimum age of a release, in days. Younger releases and those of unknown age are not installed. 0: no
        /// minimum.
        "min_age_days" => min_age: Duration = operator(whole(0, 3650), "0").live(),

        /// Installs only wheels. `false` also builds source distributions, whose build scripts then run in the
        /// installer's sandbox.
        "only_binary" => only_binary: bool = operator(Kind::Flag, "true").live(),

        /// Packages of npm that may be installed, their dependencies included: `lodash`, `@acme/*`, or with a version
        /// prefix after `@`, as in `zod@3`. Empty: all packages, or none if `packages.allow` has entries.
        "npm_allow" => npm_allow: Vec<String> = operator(Kind::Texts, "").live(),

        /// Packages of npm that may not be installed, written in the same way; wins over `packages.npm_allow`.
        "npm_deny" => npm_deny: Vec<String> = operator(Kind::Texts, "").live(),

        /// Packages of npm that need the user's consent, written in the same way. Empty: none, or all if `packages.ask`
        /// has entries and `packages.npm_allow` has none.
        "npm_ask" => npm_ask: Vec<String> = operator(Kind::Texts, "").live(),

        /// Origins to which package indexes may link in any address range, such as `http://files.corp.example:8081`.
        /// Links to the index itself and to public hosts (ports 80 and 443) need no entry.
        "origins" => origins: Vec<String> = operator(Kind::Texts, "").live(),

        /// The maximum unpacked size of one installation, in MiB.
        "disk_mb" => disk: ByteSize = project(whole(16, 1 << 20), "4096").live(),

        /// The maximum size of one file of a package, in MiB.
        "file_mb" => file: ByteSize = project(whole(1, 1 << 20), "1024").live(),

        /// The maximum download of one installation, in MiB.
        "download_mb" => download: ByteSize = project(whole(1, 1 << 20), "4096").live(),

        /// The maximum size of all callers' installed packages in the data folder, in MiB. The least recently used ones
        /// are removed first.
        "kept_mb" => kept: ByteSize = project(whole(64, 1 << 24), "20480").live(),
    }
}

sandcell_settings::settings! {
    /// The operator's settings for the network of sandboxes.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct NetworkSettings in "network." {
        /// Hosts that a call may request: `api.example.com`, `*.example.org` (all names below it), `*` (every name) or
        /// an address, each with `:PORT` or `:*`. Without a port it means ports 80 and 443. Empty: no network.
        "allow" => allow: Vec<String> = operator(Kind::Texts, "").live(),

        /// Hosts that need the user's consent when a sandbox requests them (MCP elicitation), written in the same way.
        /// The setting applies to hosts that are not in `network.allow`. Without consent they are refused.
        "ask" => ask: Vec<String> = operator(Kind::Texts, "").live(),

        /// Hosts and ranges of addresses that are never reached, written in the same way or like `203.0.113.0/24`;
        /// without a port it means all ports. Wins over `network.allow`.
        "deny" => deny: Vec<String> = operator(Kind::Texts, "").live(),

        /// Private or local addresses, or addresses of this machine, that may be reached if `network.allow` names a
        /// host that resolves to them: `10.1.2.3`, `10.1.0.0/16`, or `db.example.com=10.1.2.3` for a name without a
        /// lookup.
        "private" => private: Vec<String> = operator(Kind::Texts, "").live(),

        /// The maximum number of concurrent connections of one sandbox; further ones are queued.
        "connections" => connections: usize = operator(whole(1, 64), "32").live(),

        /// The maximum traffic of one sandbox, sent and received, in MiB.
        "total_mb" => total: ByteSize = operator(whole(1, 1 << 20), "1024").live(),
    }
}

sandcell_settings::settings! {
    /// Limits of a sandbox, a caller and the server.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct LimitSettings in "limits." {
        /// Memory of a sandbox's processes together, in MiB.
        "memory_mb" => memory: ByteSize = project(whole(16, 1 << 20), "512").live(),

        /// Processor cores that a sandbox may use.
        "cpus" => cpus: Cpus = project(Kind::Number { min: 0.05, max: 1024.0 }, "1").live(),

        /// Processes and threads of a sandbox together.
        "processes" => processes: u32 = project(whole(4, 1 << 16), "128").live(),

        /// The size of a sandbox's private writable files, in MiB. They do not count as its memory.
        "disk_mb" => disk: ByteSize = project(whole(1, 1 << 20), "512").live(),

        /// Files and folders in the private writable part of a sandbox.
        "inodes" => inodes: u64 = project(whole(100, 100_000_000), "50000").live(),

        /// The time limit of an execution, if the call names none, in seconds.
        "timeout_s" => timeout: Duration = project(Kind::Number { min: 0.1, max: 3600.0 }, "30").live(),

        /// The maximum text of one execution that the result contains, in KiB.
        "output_inline_kb" => output_inline: ByteSize = project(whole(1, 512), "20").live(),

        /// The stored output of a stream for later reading, in MiB. Concurrent streams of one sandbox share it.
        "output_kept_mb" => output_kept: ByteSize = project(whole(1, 1024), "16").live(),

        /// The maximum size of a file that one call reads, writes or uploads, in MiB.
        // The agent transfers at most 16 MiB at once, and a file that is too large must be distinct from one that just
        // fits.
        "file_mb" => file: ByteSize = project(whole(1, MAX_FILE_MB), "10").live(),

        /// Sandboxes that one caller may have at once.
        "sandboxes_per_caller" => sandboxes_per_caller: usize = project(whole(1, 100_000), "16").live(),

        /// Sandboxes of the whole server.
        "sandboxes" => sandboxes: usize = project(whole(1, 100_000), "256").live(),

        /// The maximum number of concurrent executions of one caller; further ones are queued.
        "executions_per_caller" => executions_per_caller: usize = project(whole(1, 100_000), "128").live(),

        /// The maximum number of concurrent executions of all callers. A caller without a running execution does not
        /// wait. Further permits go to the caller with the fewest. With control groups, callers share the processor
        /// time; without them, one permit per core shares it evenly.
        "executions" => executions: usize = project(whole(1, 100_000), "256").live(),

        /// The time without a call after which a sandbox without a running execution ends, in seconds.
        "idle_s" => idle: Duration = project(whole(1, 30 * 86_400), "1800").live(),

        /// The maximum number of tool calls of one execution.
        "tool_calls" => tool_calls: u32 = operator(whole(1, 1_000_000), "10000").live(),

        /// The maximum number of concurrent tool calls of one execution; further ones wait.
        "tool_calls_at_once" => tool_calls_at_once: usize = operator(whole(1, 1000), "16").live(),

        /// The maximum size of the arguments of one tool call, and of its result, in MiB.
        "tool_call_mb" => tool_call: ByteSize = operator(whole(1, 32), "8").live(),

        /// The maximum size of all arguments and results of the tool calls of one execution, in MiB.
        "tool_total_mb" => tool_total: ByteSize = operator(whole(1, 1 << 20), "256").live(),

        /// The maximum time for a person to answer a question about a tool call, in seconds. Without an answer the call is
        /// refused.
        "tool_approval_s" => tool_approval: Duration = operator(whole(1, 86_400), "120").live(),

        /// The maximum number of finished executions in the history.
        "history_rows" => history_rows: usize = project(whole(1, 10_000_000), "10000"),

        /// The maximum age of executions in the history, in days.
        "history_days" => history_age: Duration = project(whole(1, 36_500), "30"),

        /// The maximum size of the history in the data folder, in MiB. The oldest executions of the caller with the
        /// most are deleted first.
        "history_mb" => history_size: ByteSize = project(whole(1, 1 << 20), "256"),
    }
}

sandcell_settings::settings! {
    /// Quotas of one caller over all of its sandboxes.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct QuotaSettings in "quota." {
        /// Memory limits of one caller's sandboxes together, in MiB. 0: as much as `limits.sandboxes_per_caller`
        /// sandboxes may have.
        "memory_mb" => memory: Option<ByteSize> = operator(whole(0, 1 << 30), "0").live(),

        /// Disk limits of one caller's sandboxes together, in MiB. 0: as much as `limits.sandboxes_per_caller`
        /// sandboxes may have.
        "disk_mb" => disk: Option<ByteSize> = operator(whole(0, 1 << 30), "0").live(),

        /// Processor time that one caller's executions may take in an hour, in seconds; executions that are running
        /// when it is used up may end. 0: no limit.
        "cpu_s" => cpu: Option<Duration> = operator(whole(0, 1 << 30), "0").live(),

        /// The maximum size of one caller's installed packages in the data folder, in MiB. Packages unused for a day
        /// are removed when space is needed. 0: only `packages.kept_mb` applies.
        "packages_mb" => package_bytes: Option<ByteSize> = operator(whole(0, 1 << 30), "0").live(),

        /// The maximum number of one caller's installed packages, dependencies included. Each version counts. 0: any
        /// number.
        "packages" => packages: Option<usize> = operator(whole(0, 1 << 30), "0").live(),
    }
}

sandcell_settings::settings! {
    /// The storage of the history.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct HistoryTable in "history." {
        /// The storage of the history: `file` stores executions, with their code and the shown output, in `history.db`
        /// of the data folder, so that they outlive the server; `memory` writes nothing.
        "store" => store: String = operator(Kind::OneOf(&["file", "memory"]), "file"),
    }
}

sandcell_settings::settings! {
    /// The security audit log.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct AuditTable in "audit." {
        /// Makes `serve` and `token` write the security audit log: sandboxes made and closed, calls refused, limits
        /// hit, callers refused, connections denied, tokens made and revoked, history deleted.
        "enabled" => enabled: bool = operator(Kind::Flag, "true"),

        /// The file of that log; `sandcell audit verify` checks it. Empty: `audit.jsonl` in the data folder.
        "file" => file: Option<PathBuf> = operator(Kind::Path, ""),

        /// The maximum size of the log, in MiB. At half of this size, the file is renamed to `audit.jsonl.1` and
        /// replaces the earlier one.
        "kept_mb" => kept: ByteSize = operator(whole(1, 1 << 20), "64"),
    }
}

sandcell_settings::settings! {
    /// Sessions.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct SessionSettings in "sessions." {
        /// Keeps a snapshot (a frozen fork) of each Python session between calls. When the interpreter crashes or is
        /// killed, the session is restored from it, with the variables from before the call. The snapshot counts as a
        /// process of the sandbox. With `false`, calls in quick succession are some milliseconds faster.
        "restore" => restore: bool = project(Kind::Flag, "true"),

        /// The maximum number of named checkpoints of a sandbox. The oldest is dropped for a new one.
        "checkpoints" => checkpoints: usize = project(whole(1, 20), "8").live(),

        /// The number of automatic checkpoints of a sandbox, by which its last executions can be undone. Each is a
        /// process of the sandbox. 0: none.
        "undo" => undo: usize = project(whole(0, 8), "2").live(),

        /// The maximum number of saved states of a caller (`sandcell save`). They are kept in `data_dir`. 0: none can be
        /// saved.
        "saved" => saved: usize = operator(whole(0, 1000), "20").live(),

        /// The maximum size of all saved states of a caller, in MiB.
        "saved_mb" => saved_size: ByteSize = operator(whole(1, 1 << 20), "4096").live(),
    }
}

sandcell_settings::settings! {
    /// Idle sandboxes and zygotes.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct PoolSettings in "pool." {
        /// The number of idle sandboxes with the default limits and a started interpreter that `serve` makes in
        /// advance. 0: none. Empty: the demand decides, within `pool.memory_mb`.
        "parked" => parked: Option<usize> = project(Kind::Demand { max: 1000 }, "").live(),

        /// The maximum memory of all idle sandboxes, in MiB, if the demand decides their number.
        "memory_mb" => memory: ByteSize = project(whole(0, 1_048_576), "256").live(),

        /// Starts sessions as forks of a zygote: an interpreter outside any sandbox that runs no caller's code and has
        /// loaded the modules of `preload`. Up to 1,000 sessions share its hash seed and memory layout. With `false`,
        /// and on kernels before 6.12, each session starts a separate interpreter, and each idle sandbox loads the
        /// modules itself.
        "warm_parents" => warm_parents: bool = project(Kind::Flag, "true"),
    }
}

sandcell_settings::settings! {
    /// Calls of MCP tools.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct McpSettings in "mcp." {
        /// The time that a call waits for running code before it answers `running`, if it names none (`wait_s`), in
        /// seconds. Choose less than the client's timeout: 4 for OpenAI Agents, AutoGen and Google ADK with their
        /// defaults. docs/guides/frameworks.md has each one's setting.
        "wait_s" => wait: Duration = project(whole(1, 55), "45"),
    }
}

sandcell_settings::settings! {
    /// The toolset `script`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ScriptSettings in "script." {
        /// Keeps variables from one `run_code` call to the next in the toolset `script`. `false`: each call runs in a
        /// separate process.
        "persistent" => persistent: bool = project(Kind::Flag, "false"),
    }
}

sandcell_settings::settings! {
    /// Servers in the background.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ServiceTable in "service." {
        /// Makes `sandcell serve` pass all messages on to a server in the background, and start one if there is none.
        /// Sandboxes and their variables then outlive the client. Clients with the same flags and variables share one;
        /// `sandcell service` shows and ends them.
        "on_demand" => on_demand: bool = operator(Kind::Flag, "false"),

        /// The time without a sandbox and a call after which a server in the background ends, in seconds.
        "idle_s" => idle: Duration = operator(whole(1, 30 * 86_400), "600"),
    }
}

sandcell_settings::settings! {
    /// The operator's settings for images that need no container daemon.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ImageSettings in "images." {
        /// Container images that calls may name on the native back end: a repository (`ghcr.io/team/tool`), one of its
        /// tags or digests (`python:3.13-slim`), all below a name (`ghcr.io/team/*`), or `*` for every registry. Local
        /// ones (`oci:/folder`, `docker-archive:/file.tar`) may be named if they are in a folder of `upload_from`. The
        /// setting does not restrict `sandcell run --image` and `sandcell images`.
        "allow" => allow: Vec<String> = operator(Kind::Texts, "docker.io/library/*"),

        /// Pulls absent images when a call names them. `never`: only images from `sandcell images pull` are used.
        "pull" => pull: PullPolicy = operator(Kind::OneOf(&["missing", "never"]), "missing"),

        /// Registries that are tried before another one, as `REGISTRY=MIRROR`, such as `docker.io=mirror.example:5000`.
        "mirrors" => mirrors: Vec<String> = operator(Kind::Texts, ""),

        /// Registries (`host` or `host:port`) that are used without TLS. Registries on loopback are always used without
        /// TLS.
        "insecure" => insecure: Vec<String> = operator(Kind::Texts, ""),

        /// The file with the credentials for registries, as `docker login` and `podman login` write it. Credential
        /// helpers that it names are run. Empty: the files of the server's user.
        "auth_file" => auth_file: Option<PathBuf> = operator(Kind::Path, ""),

        /// The maximum download of one image's layers, in MiB.
        "download_mb" => download: ByteSize = project(whole(1, 1 << 20), "4096"),

        /// The maximum unpacked size of one image, in MiB.
        "unpacked_mb" => unpacked: ByteSize = project(whole(1, 1 << 20), "16384"),

        /// The maximum size of all callers' unpacked images in the data folder, in MiB. The least recently used ones
        /// are removed first.
        "kept_mb" => kept: ByteSize = project(whole(64, 1 << 24), "20480"),
    }
}

sandcell_settings::settings! {
    /// The server for E2B's SDKs.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct E2bServerSettings in "e2b_server." {
        /// Serves E2B's API with `serve --http`, for programs that use E2B's SDKs. It uses the same tokens and limits as
        /// MCP. `--e2b` means the same.
        "enabled" => enabled: bool = operator(Kind::Flag, "false"),

        /// The domain below which each port of a sandbox has a name, `PORT-ID.DOMAIN`, such as
        /// `sandboxes.example.com`. Its names must lead to this server. Empty: `localhost` and the server's port.
        "domain" => domain: String = operator(Kind::Text, ""),

        /// Lets everybody who reaches the server reach the ports of programs in sandboxes, without a token, as E2B does.
        /// A program can choose for its sandbox: `network={"allow_public_traffic": False}`.
        "public_ports" => public_ports: bool = operator(Kind::Flag, "false"),

        /// Kinds of sandboxes that programs name when they make one: `[e2b_server.templates.NAME]` with `image` (a container
        /// image), `packages` (of Python), `memory_mb`, `cpus`, `disk_mb`, `env` and `start`, a line for the shell that runs
        /// in the background from the start. `base` and `code-interpreter-v1` exist without a table.
        "templates" => templates: toml::Table = operator(Kind::Tables { check: check_templates, secret: &["env"] }, ""),
    }
}

sandcell_settings::settings! {
    /// Addresses and access of `serve --http`.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct HttpTable in "http." {
        /// Host names of `serve --http` in addition to its own address, such as `sandcell.example.com` behind a proxy;
        /// with a port, only that port. A request with another Host header is refused.
        "allowed_hosts" => hosts: Vec<String> = operator(Kind::Texts, ""),

        /// Origins of web pages that may use the server, such as `https://app.example.com`. Pages of all others are
        /// refused.
        "allowed_origins" => origins: Vec<String> = operator(Kind::Texts, ""),

        /// Serves a web page at `/` with `serve --http`: each caller sees its own sandboxes, files and executions
        /// there, can end them and run code. `--page` means the same.
        "page" => page: bool = operator(Kind::Flag, "false"),

        /// Serves REST calls below `/v1`, and `POST /run_code` in the form of SandboxFusion, with `serve --http`. They
        /// use the same tokens and limits as MCP.
        "rest" => rest: bool = operator(Kind::Flag, "true"),

        /// The server's certificate, followed by the chain to its authority (PEM). It is read again when the file
        /// changes. Empty: plain HTTP.
        "tls_certificate" => tls_certificate: Option<PathBuf> = operator(Kind::Path, ""),

        /// The private key of that certificate (PEM).
        "tls_key" => tls_key: Option<PathBuf> = operator(Kind::Path, ""),

        /// The maximum number of connections of all callers. At the maximum, the server closes the oldest
        /// unauthenticated connection, or else an idle one of the caller with the most.
        "connections" => connections: usize = operator(whole(4, 65_536), "1024").live(),

        /// The maximum number of concurrent requests of one caller, open streams included.
        "requests_per_caller" => requests_per_caller: usize = operator(whole(1, 65_536), "512").live(),

        /// The sustained number of requests of one caller per second. A burst may have twice as many.
        "requests_per_s" => requests_per_s: u32 = operator(whole(1, 1_000_000), "1000").live(),

        /// Sessions of one caller, in protocols up to 2025-11-25. At the maximum, the server ends the session that was
        /// abandoned longest ago.
        "sessions_per_caller" => sessions_per_caller: usize = operator(whole(1, 65_536), "512").live(),

        /// The time without a message after which a session ends, in seconds. Its sandboxes stay.
        "session_idle_s" => session_idle: Duration = operator(whole(10, 30 * 86_400), "14400").live(),

        /// The time that running calls get when the server is asked to end, in seconds.
        "drain_s" => drain: Duration = operator(whole(0, 3600), "10").live(),
    }
}

sandcell_settings::settings! {
    /// The destination of traces.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct TraceSettings in "traces." {
        /// The address to which `serve` sends traces of calls and executions by OpenTelemetry's protocol over HTTP,
        /// such as `http://127.0.0.1:4318/v1/traces`; only in builds with the feature `otel`. Traces contain ids,
        /// tools, ends and times, never code, output or results. Empty: no traces.
        "endpoint" => endpoint: Option<String> = operator(Kind::Text, ""),
    }
}

sandcell_settings::settings! {
    /// Access tokens of an OAuth issuer.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct AuthSettings in "auth." {
        /// The OAuth 2.1 authorization server whose access tokens `serve --http` takes, exactly as its tokens name it
        /// in `iss`, such as `https://id.example.com/realms/team`. With an issuer, every call needs a token. Each
        /// subject is a separate caller. Tokens of `sandcell token create` stay valid. Empty: none.
        "issuer" => issuer: String = operator(Kind::Text, ""),

        /// The address of this server's `/mcp` as callers know it, such as `https://sandcell.example.com/mcp`. Clients
        /// request tokens for this resource from the issuer. Required with `auth.issuer`.
        "resource" => resource: String = operator(Kind::Text, ""),

        /// The required value of an access token's `aud`. Empty: `auth.resource`.
        "audience" => audience: String = operator(Kind::Text, ""),

        /// Scopes that an access token must have, all of them, in `scope` or `scp`.
        "scopes" => scopes: Vec<String> = operator(Kind::Texts, ""),

        /// The address of the issuer's public keys. Empty: the address in its metadata
        /// (`/.well-known/oauth-authorization-server` or `openid-configuration`).
        "jwks_uri" => jwks_uri: String = operator(Kind::Text, ""),
    }
}

#[cfg(any(feature = "docker", feature = "e2b", feature = "native"))]
use sandcell_backends::SETTINGS as BACK_END_TABLES;
#[cfg(not(any(feature = "docker", feature = "e2b", feature = "native")))]
const BACK_END_TABLES: &[&[Setting]] = &[];

/// The tables of this crate, in the order of the reference.
const OWN_TABLES: &[&[Setting]] = &[
    GeneralSettings::SETTINGS,
    PackageSettings::SETTINGS,
    NetworkSettings::SETTINGS,
    LimitSettings::SETTINGS,
    QuotaSettings::SETTINGS,
    HistoryTable::SETTINGS,
    AuditTable::SETTINGS,
    SessionSettings::SETTINGS,
    PoolSettings::SETTINGS,
    McpSettings::SETTINGS,
    ScriptSettings::SETTINGS,
    ServiceTable::SETTINGS,
    ImageSettings::SETTINGS,
    HttpTable::SETTINGS,
    E2bServerSettings::SETTINGS,
    TraceSettings::SETTINGS,
    AuthSettings::SETTINGS,
];

/// Returns every setting, in the order of the reference.
pub(crate) fn settings() -> impl Iterator<Item = &'static Setting> {
    OWN_TABLES.iter().chain(BACK_END_TABLES).flat_map(|table| table.iter())
}

/// Values of known settings that a later version will accept. The error states this.
pub(crate) const WORDS_NOT_YET: &[(&str, &[&str])] = &[("backend", &["kubernetes"])];

/// Environment variables with the prefix of settings that are no settings.
pub(crate) const OTHER_VARIABLES: &[(&str, &str)] = &[
    (
        "SANDCELL_TOKEN",
        "The token that `serve --connect` sends to the server.",
    ),
    ("SANDCELL_BIN", "The program that the Python package starts."),
];

/// Returns the setting of this name.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    settings().find(|setting| setting.key == key)
}

/// Returns the most similar known name. A key without its table matches the setting of that name, in `limits` first.
pub(crate) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |left: &str, right: &str| {
        let distance = strsim::damerau_levenshtein(left, right);
        (distance <= 1 + left.len().max(right.len()) / 3).then_some(distance)
    };
    let rank = |name: &str| {
        let whole = near(key, name);
        let last = name.split_once('.').filter(|_| !key.contains('.'));
        let alone = last.and_then(|(table, last)| match table == key {
            true => Some(0),
            false => near(key, last),
        });
        let distance = whole.into_iter().chain(alone).min()?;
        Some((distance, !name.starts_with("limits.")))
    };
    known
        .filter_map(|name| Some((rank(name)?, name)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_that_its_setting_takes() {
        for setting in settings() {
            assert!(
                setting.declaration.kind.read_text(setting.declaration.default).is_ok(),
                "{}",
                setting.key
            );
        }
    }

    #[test]
    fn environment_names_are_the_keys_in_capitals() {
        let names: Vec<String> = settings().map(Setting::env_name).collect();
        assert!(names.contains(&"SANDCELL_BACKEND".to_owned()));
        assert!(names.contains(&"SANDCELL_LIMITS__MEMORY_MB".to_owned()));
        assert!(names.contains(&"SANDCELL_DATA_DIR".to_owned()));
    }

    #[test]
    fn a_misspelt_key_suggests_the_nearest_one() {
        let keys = || settings().map(|setting| setting.key);
        assert_eq!(nearest("limits.memory", keys()), Some("limits.memory_mb"));
        for (written, meant) in [
            ("memory_mb", "limits.memory_mb"),
            ("memory", "limits.memory_mb"),
            ("timeout", "limits.timeout_s"),
            ("cpus", "limits.cpus"),
            ("network", "network.allow"),
            ("packages", "packages.allow"),
            ("allowed_hosts", "http.allowed_hosts"),
            ("backends", "backend"),
            ("pool.memory", "pool.memory_mb"),
        ] {
            assert_eq!(nearest(written, keys()), Some(meant), "{written}");
        }
        assert_eq!(nearest("isolation", keys()), Some("isolation_min"));
        assert_eq!(nearest("bakend", keys()), Some("backend"));
        assert_eq!(nearest("zzzzzzzz", keys()), None);
    }

    #[test]
    fn no_value_is_both_implemented_and_announced() {
        for (key, words) in WORDS_NOT_YET {
            let setting = find(key).unwrap();
            for word in *words {
                assert!(setting.declaration.kind.read_text(word).is_err(), "{key} = {word}");
            }
        }
    }
}
