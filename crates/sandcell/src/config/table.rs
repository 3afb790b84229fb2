//! Every setting, declared once: parsing, `sandcell config`, the names of environment variables and the reference in
//! `docs/reference/settings.md` all come from [`SETTINGS`].

use super::value::Kind;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name: `key` or `table.key`.
    pub(crate) key: &'static str,
    /// The kind of value.
    pub(crate) kind: Kind,
    /// The default value, as an environment variable would hold it.
    pub(crate) default: &'static str,
    /// True when a `.env` file of the working folder may set it. A project folder may come from a stranger. A setting
    /// that weakens isolation, runs a program on the host or shows host folders to sandboxes is not read from there.
    pub(crate) dotenv: bool,
    /// The purpose of the setting, as a sentence.
    pub(crate) doc: &'static str,
}

impl Setting {
    /// The environment variable that sets it.
    pub(crate) fn env_name(&self) -> String {
        format!("SANDCELL_{}", self.key.replace('.', "__").to_uppercase())
    }
}

const fn operator(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting {
        key,
        kind,
        default,
        dotenv: false,
        doc,
    }
}

const fn plain(key: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Setting {
    Setting {
        key,
        kind,
        default,
        dotenv: true,
        doc,
    }
}

const fn whole(min: u64, max: u64) -> Kind {
    Kind::Integer { min, max }
}

/// The maximum of `limits.file_mb`.
pub(crate) const MAX_FILE_MB: u64 = 15;

/// The settings of this build, in the order of the reference.
pub(crate) const SETTINGS: &[Setting] = &[
    plain(
        "backend",
        Kind::ListOf(&["native", "docker", "e2b"]),
        if cfg!(target_os = "linux") { "native" } else { "docker" },
        "Back ends that make sandboxes, the preferred one first (the default is `docker` on systems other than Linux). The next one is used if the one before it does not work or is below `isolation_min`. The flag is `--backend`; `INTERPRETER_TYPE` means the same.",
    ),
    operator(
        "isolation_min",
        Kind::OneOf(&["microvm", "gvisor", "container", "namespace", "process", "none"]),
        "namespace",
        "The weakest accepted isolation. On a machine that cannot provide it, sandcell refuses to run code.",
    ),
    operator(
        "limits_min",
        Kind::OneOf(&["watched", "enforced"]),
        "watched",
        "The required enforcement of the limits on memory, processor and processes: `enforced` accepts control groups only, `watched` also accepts a watchdog outside the sandbox that kills processes over a limit.",
    ),
    plain(
        "toolset",
        Kind::OneOf(&["sandbox", "container", "script"]),
        "sandbox",
        "The set of tools that `serve` offers: `sandbox` has all, `container` starts, uses and stops one sandbox from an image (with the back end docker unless `backend` says otherwise), `script` runs Python scripts after a static analysis (`analysis` is `strict` unless it is set). The flag is `--toolset`.",
    ),
    operator(
        "python",
        Kind::Path,
        "",
        "The Python that sandboxes run; it may belong to a virtual environment. It and its packages are visible read-only inside. Empty: sandcell finds the machine's own.",
    ),
    operator(
        "analysis",
        Kind::OneOf(&["off", "advisory", "strict"]),
        "advisory",
        "What to do with findings of the static analysis of Python code: `advisory` returns them with the result, `strict` refuses code with a finding of `sandcell check --profile strict`. The findings are advice, not protection: the sandbox protects.",
    ),
    operator(
        "languages",
        Kind::Paths,
        "",
        "Folders whose `.toml` files add languages or replace built-in ones. Empty: `/etc/sandcell/languages.d` and `~/.config/sandcell/languages.d` (on Windows `%APPDATA%\\sandcell\\languages.d`).",
    ),
    operator(
        "upload_from",
        Kind::Paths,
        "",
        "Folders of the host that `upload_file` may read with `local_path`. Empty: none.",
    ),
    operator(
        "data_dir",
        Kind::Path,
        "",
        "The folder for data that outlives a server, such as the history and installed packages. Empty: `/var/lib/sandcell` for root, else `$XDG_DATA_HOME/sandcell` (`~/.local/share/sandcell`, on Windows `%LOCALAPPDATA%\\sandcell`).",
    ),
    operator(
        "log",
        Kind::Text,
        "",
        "The log filter for stderr: `error`, `warn`, `info`, `debug`, or a filter such as `sandcell_engine=debug`. Empty: `warn`.",
    ),
    operator(
        "mount",
        Kind::Mounts,
        "",
        "Folders of the host that sandboxes see: `[[mount]]` with `host`, `sandbox` (default `/mnt/` and the folder's name) and `mode`, `ro` (read-only) or `cow` (a private copy-on-write view). The host's folder is never written. `--mount` adds to them.",
    ),
    plain(
        "base",
        Kind::Name,
        "",
        "The prepared base (`sandcell base build NAME …`) whose packages every sandbox has from the start. Empty: none.",
    ),
    operator(
        "preload",
        Kind::Texts,
        "",
        "Python modules that idle sandboxes have already loaded, such as `numpy, pandas, matplotlib.pyplot`. An import then costs a call no time. The modules must be installed for the interpreter or in the `base`. A module that cannot be loaded is logged and left out. Each idle sandbox uses their memory (`pool.memory_mb`).",
    ),
    operator(
        "packages.allow",
        Kind::Requirements,
        "",
        "Packages that may be installed, dependencies included: names with versions and extras (`numpy>=1.24,<2`, `requests[socks]`) or patterns (`acme-*`). Empty: all packages that are not denied. In the environment, entries are separated by `;`.",
    ),
    operator(
        "packages.deny",
        Kind::Requirements,
        "",
        "Packages that may not be installed, written in the same way; wins over `packages.allow`.",
    ),
    operator(
        "packages.ask",
        Kind::Requirements,
        "",
        "Packages that need the user's consent (MCP elicitation), written in the same way, `*` for all. The setting applies to packages that are neither in `packages.allow` nor in `packages.deny`. The consent holds for one call and includes dependencies. Without consent the packages are refused. Code inside never gets them.",
    ),
    operator(
        "packages.min_age_days",
        whole(0, 3650),
        "0",
        "The minimum age of a release, in days. Younger releases and those of unknown age are not installed. 0: no minimum.",
    ),
    operator(
        "packages.only_binary",
        Kind::Flag,
        "true",
        "Installs only wheels. `false` also builds source distributions, whose build scripts then run in the installer's sandbox.",
    ),
    operator(
        "packages.npm_allow",
        Kind::Texts,
        "",
        "Packages of npm that may be installed, their dependencies included: `lodash`, `@acme/*`, or with a version prefix after `@`, as in `zod@3`. Empty: all packages, or none if `packages.allow` has entries.",
    ),
    operator(
        "packages.npm_deny",
        Kind::Texts,
        "",
        "Packages of npm that may not be installed, written in the same way; wins over `packages.npm_allow`.",
    ),
    operator(
        "packages.npm_ask",
        Kind::Texts,
        "",
        "Packages of npm that need the user's consent, written in the same way. Empty: none, or all if `packages.ask` has entries and `packages.npm_allow` has none.",
    ),
    operator(
        "packages.origins",
        Kind::Texts,
        "",
        "Origins to which package indexes may link in any address range, such as `http://files.corp.example:8081`. Links to the index itself and to public hosts (ports 80 and 443) need no entry.",
    ),
    plain(
        "packages.disk_mb",
        whole(16, 1 << 20),
        "4096",
        "The maximum unpacked size of one installation, in MiB.",
    ),
    plain(
        "packages.file_mb",
        whole(1, 1 << 20),
        "1024",
        "The maximum size of one file of a package, in MiB.",
    ),
    plain(
        "packages.download_mb",
        whole(1, 1 << 20),
        "4096",
        "The maximum download of one installation, in MiB.",
    ),
    plain(
        "packages.kept_mb",
        whole(64, 1 << 24),
        "20480",
        "The maximum size of all callers' installed packages in the data folder, in MiB. The least recently used ones are removed first.",
    ),
    operator(
        "network.allow",
        Kind::Texts,
        "",
        "Hosts that a call may request: `api.example.com`, `*.example.org` (all names below it), `*` (every name) or an address, each with `:PORT` or `:*`. Without a port it means ports 80 and 443. Empty: no network.",
    ),
    operator(
        "network.ask",
        Kind::Texts,
        "",
        "Hosts that need the user's consent when a sandbox requests them (MCP elicitation), written in the same way. The setting applies to hosts that are not in `network.allow`. Without consent they are refused.",
    ),
    operator(
        "network.deny",
        Kind::Texts,
        "",
        "Hosts and ranges of addresses that are never reached, written in the same way or like `203.0.113.0/24`; without a port it means all ports. Wins over `network.allow`.",
    ),
    operator(
        "network.private",
        Kind::Texts,
        "",
        "Private or local addresses, or addresses of this machine, that may be reached if `network.allow` names a host that resolves to them: `10.1.2.3`, `10.1.0.0/16`, or `db.example.com=10.1.2.3` for a name without a lookup.",
    ),
    operator(
        "network.connections",
        whole(1, 64),
        "32",
        "The maximum number of concurrent connections of one sandbox; further ones are queued.",
    ),
    operator(
        "network.total_mb",
        whole(1, 1 << 20),
        "1024",
        "The maximum traffic of one sandbox, sent and received, in MiB.",
    ),
    plain(
        "limits.memory_mb",
        whole(16, 1 << 20),
        "512",
        "Memory of a sandbox's processes together, in MiB.",
    ),
    plain(
        "limits.cpus",
        Kind::Number { min: 0.05, max: 1024.0 },
        "1",
        "Processor cores that a sandbox may use.",
    ),
    plain(
        "limits.processes",
        whole(4, 1 << 16),
        "128",
        "Processes and threads of a sandbox together.",
    ),
    plain(
        "limits.disk_mb",
        whole(1, 1 << 20),
        "512",
        "The size of a sandbox's private writable files, in MiB. They do not count as its memory.",
    ),
    plain(
        "limits.inodes",
        whole(100, 100_000_000),
        "50000",
        "Files and folders in the private writable part of a sandbox.",
    ),
    plain(
        "limits.timeout_s",
        Kind::Number { min: 0.1, max: 3600.0 },
        "30",
        "The time limit of an execution, if the call names none, in seconds.",
    ),
    plain(
        "limits.output_inline_kb",
        whole(1, 512),
        "20",
        "The maximum text of one execution that the result contains, in KiB.",
    ),
    plain(
        "limits.output_kept_mb",
        whole(1, 1024),
        "16",
        "The stored output of a stream for later reading, in MiB. Concurrent streams of one sandbox share it.",
    ),
    plain(
        "limits.file_mb",
        // The agent transfers at most 16 MiB at once, and a file that is too large must be distinct from one that just
        // fits.
        whole(1, MAX_FILE_MB),
        "10",
        "The maximum size of a file that one call reads, writes or uploads, in MiB.",
    ),
    plain(
        "limits.sandboxes_per_caller",
        whole(1, 100_000),
        "16",
        "Sandboxes that one caller may have at once.",
    ),
    plain(
        "limits.sandboxes",
        whole(1, 100_000),
        "256",
        "Sandboxes of the whole server.",
    ),
    plain(
        "limits.executions_per_caller",
        whole(1, 100_000),
        "128",
        "The maximum number of concurrent executions of one caller; further ones are queued.",
    ),
    plain(
        "limits.executions",
        whole(1, 100_000),
        "256",
        "The maximum number of concurrent executions of all callers. A caller without a running execution does not wait. Further permits go to the caller with the fewest. With control groups, callers share the processor time; without them, one permit per core shares it evenly.",
    ),
    plain(
        "limits.idle_s",
        whole(1, 30 * 86_400),
        "1800",
        "The time without a call after which a sandbox without a running execution ends, in seconds.",
    ),
    plain(
        "limits.history_rows",
        whole(1, 10_000_000),
        "10000",
        "The maximum number of finished executions in the history.",
    ),
    plain(
        "limits.history_days",
        whole(1, 36_500),
        "30",
        "The maximum age of executions in the history, in days.",
    ),
    plain(
        "limits.history_mb",
        whole(1, 1 << 20),
        "256",
        "The maximum size of the history in the data folder, in MiB. The oldest executions of the caller with the most are deleted first.",
    ),
    operator(
        "quota.memory_mb",
        whole(0, 1 << 30),
        "0",
        "Memory limits of one caller's sandboxes together, in MiB. 0: as much as `limits.sandboxes_per_caller` sandboxes may have.",
    ),
    operator(
        "quota.disk_mb",
        whole(0, 1 << 30),
        "0",
        "Disk limits of one caller's sandboxes together, in MiB. 0: as much as `limits.sandboxes_per_caller` sandboxes may have.",
    ),
    operator(
        "quota.cpu_s",
        whole(0, 1 << 30),
        "0",
        "Processor time that one caller's executions may take in an hour, in seconds; executions that are running when it is used up may end. 0: no limit.",
    ),
    operator(
        "quota.packages_mb",
        whole(0, 1 << 30),
        "0",
        "The maximum size of one caller's installed packages in the data folder, in MiB. Packages unused for a day are removed when space is needed. 0: only `packages.kept_mb` applies.",
    ),
    operator(
        "quota.packages",
        whole(0, 1 << 30),
        "0",
        "The maximum number of one caller's installed packages, dependencies included. Each version counts. 0: any number.",
    ),
    operator(
        "history.store",
        Kind::OneOf(&["file", "memory"]),
        "file",
        "The storage of the history: `file` stores executions, with their code and the shown output, in `history.db` of the data folder, so that they outlive the server; `memory` writes nothing.",
    ),
    operator(
        "audit.enabled",
        Kind::Flag,
        "true",
        "Makes `serve` and `token` write the security audit log: sandboxes made and closed, calls refused, limits hit, callers refused, connections denied, tokens made and revoked, history deleted.",
    ),
    operator(
        "audit.file",
        Kind::Path,
        "",
        "The file of that log; `sandcell audit verify` checks it. Empty: `audit.jsonl` in the data folder.",
    ),
    operator(
        "audit.kept_mb",
        whole(1, 1 << 20),
        "64",
        "The maximum size of the log, in MiB. At half of this size, the file is renamed to `audit.jsonl.1` and replaces the earlier one.",
    ),
    plain(
        "sessions.restore",
        Kind::Switch,
        "true",
        "Keeps a snapshot (a frozen fork) of each Python session between calls. When the interpreter crashes or is killed, the session is restored from it, with the variables from before the call. The snapshot counts as a process of the sandbox. With `false`, calls in quick succession are some milliseconds faster.",
    ),
    plain(
        "pool.parked",
        Kind::Demand { max: 1000 },
        "",
        "The number of idle sandboxes with the default limits and a started interpreter that `serve` makes in advance. 0: none. Empty: the demand decides, within `pool.memory_mb`.",
    ),
    plain(
        "pool.memory_mb",
        whole(0, 1_048_576),
        "256",
        "The maximum memory of all idle sandboxes, in MiB, if the demand decides their number.",
    ),
    plain(
        "pool.warm_parents",
        Kind::Switch,
        "true",
        "Starts sessions as forks of a zygote: an interpreter outside any sandbox that runs no caller's code and has loaded the modules of `preload`. Up to 1,000 sessions share its hash seed and memory layout. With `false`, and on kernels before 6.12, each session starts a separate interpreter, and each idle sandbox loads the modules itself.",
    ),
    plain(
        "mcp.wait_s",
        whole(1, 55),
        "45",
        "The time that a call waits for running code before it answers `running`, if it names none (`wait_s`), in seconds. Choose less than the client's timeout: 4 for OpenAI Agents, AutoGen and Google ADK with their defaults. docs/guides/frameworks.md has each one's setting.",
    ),
    plain(
        "script.persistent",
        Kind::Flag,
        "false",
        "Keeps variables from one `run_code` call to the next in the toolset `script`. `false`: each call runs in a separate process.",
    ),
    operator(
        "service.on_demand",
        Kind::Flag,
        "false",
        "Makes `sandcell serve` pass all messages on to a server in the background, and start one if there is none. Sandboxes and their variables then outlive the client. Clients with the same flags and variables share one; `sandcell service` shows and ends them.",
    ),
    operator(
        "service.idle_s",
        whole(1, 30 * 86_400),
        "600",
        "The time without a sandbox and a call after which a server in the background ends, in seconds.",
    ),
    plain(
        "e2b.api_key",
        Kind::Secret,
        "",
        "The key of the E2B account, for the back end `e2b`; `E2B_API_KEY` means the same. It is never shown.",
    ),
    operator(
        "e2b.domain",
        Kind::Text,
        "e2b.app",
        "The domain of the E2B service; `E2B_DOMAIN` means the same.",
    ),
    operator(
        "e2b.api_url",
        Kind::Text,
        "",
        "The address of its API, for a self-hosted service; `E2B_API_URL` means the same. Empty: `https://api.` and the domain.",
    ),
    operator(
        "e2b.sandbox_url",
        Kind::Text,
        "",
        "One address for all ports of all sandboxes; `E2B_SANDBOX_URL` means the same. Empty: each port has a separate address below the domain.",
    ),
    operator(
        "e2b.debug",
        Kind::Flag,
        "false",
        "Uses this machine's ports 49983 and 49999 as the only sandbox, without a service; `E2B_DEBUG` means the same.",
    ),
    plain(
        "e2b.template",
        Kind::Text,
        "code-interpreter-v1",
        "The template of E2B sandboxes; it must contain a code interpreter.",
    ),
    plain(
        "e2b.timeout_s",
        whole(15, 86_400),
        "300",
        "The time that an E2B sandbox outlives a crashed server, in seconds. A running server keeps its sandboxes alive.",
    ),
    operator(
        "e2b.level",
        Kind::OneOf(&["auto", "microvm", "gvisor", "container"]),
        "auto",
        "The isolation level of the service. `auto`: `microvm` at E2B's own domain, `container` elsewhere.",
    ),
    operator(
        "e2b.internet",
        Kind::Flag,
        "false",
        "Lets E2B sandboxes reach the internet.",
    ),
    operator(
        "docker.host",
        Kind::Text,
        "",
        "The address of the Docker daemon, such as `unix:///var/run/docker.sock` or `tcp://127.0.0.1:2375`; `DOCKER_HOST` means the same. Empty: the first usual address where a daemon answers (Docker, rootless Docker, Docker Desktop, OrbStack, Rancher Desktop, Colima, Podman); on Windows `npipe:////./pipe/docker_engine` and the like.",
    ),
    operator(
        "docker.cert_path",
        Kind::Path,
        "",
        "The folder with `ca.pem`, `cert.pem` and `key.pem` for a daemon that is reached over TCP. The connection is then always encrypted and verified. `DOCKER_CERT_PATH` means the same.",
    ),
    plain(
        "docker.image",
        Kind::Text,
        "python:3.13-slim",
        "The image of sandboxes that name none. Its programs are the languages that calls can use.",
    ),
    operator(
        "docker.runtime",
        Kind::Text,
        "",
        "The daemon's runtime for sandboxes, such as `runsc` (gVisor) or one of Kata's, which raise the level of isolation. Empty: the daemon's own choice.",
    ),
    operator(
        "docker.pull",
        Kind::OneOf(&["missing", "never"]),
        "missing",
        "Pulls images that the daemon lacks, with the credentials that `docker login` stores for the server's user.",
    ),
    operator(
        "docker.languages",
        Kind::ListOf(&["python", "javascript", "bash", "ruby", "perl"]),
        "python",
        "Languages that every image gets. If an image lacks them and has `apt-get` or `apk`, they are installed once, in a temporary container, and stored as another image. Empty: images stay as they are.",
    ),
    operator(
        "docker.mirrors",
        Kind::Texts,
        "deb.debian.org,security.debian.org,archive.ubuntu.com,security.ubuntu.com,ports.ubuntu.com,dl-cdn.alpinelinux.org",
        "The hosts that such an installation may reach, written as in `network.allow`; `network.deny` and `network.private` also apply. Empty: nothing is installed.",
    ),
    operator(
        "images.allow",
        Kind::Texts,
        "docker.io/library/*",
        "Container images that calls may name on the native back end: a repository (`ghcr.io/team/tool`), one of its tags or digests (`python:3.13-slim`), all below a name (`ghcr.io/team/*`), or `*` for every registry. Local ones (`oci:/folder`, `docker-archive:/file.tar`) may be named if they are in a folder of `upload_from`. The setting does not restrict `sandcell run --image` and `sandcell images`.",
    ),
    operator(
        "images.pull",
        Kind::OneOf(&["missing", "never"]),
        "missing",
        "Pulls absent images when a call names them. `never`: only images from `sandcell images pull` are used.",
    ),
    operator(
        "images.mirrors",
        Kind::Texts,
        "",
        "Registries that are tried before another one, as `REGISTRY=MIRROR`, such as `docker.io=mirror.example:5000`.",
    ),
    operator(
        "images.insecure",
        Kind::Texts,
        "",
        "Registries (`host` or `host:port`) that are used without TLS. Registries on loopback are always used without TLS.",
    ),
    operator(
        "images.auth_file",
        Kind::Path,
        "",
        "The file with the credentials for registries, as `docker login` and `podman login` write it. Credential helpers that it names are run. Empty: the files of the server's user.",
    ),
    plain(
        "images.download_mb",
        whole(1, 1 << 20),
        "4096",
        "The maximum download of one image's layers, in MiB.",
    ),
    plain(
        "images.unpacked_mb",
        whole(1, 1 << 20),
        "16384",
        "The maximum unpacked size of one image, in MiB.",
    ),
    plain(
        "images.kept_mb",
        whole(64, 1 << 24),
        "20480",
        "The maximum size of all callers' unpacked images in the data folder, in MiB. The least recently used ones are removed first.",
    ),
    operator(
        "http.allowed_hosts",
        Kind::Texts,
        "",
        "Host names of `serve --http` in addition to its own address, such as `sandcell.example.com` behind a proxy; with a port, only that port. A request with another Host header is refused.",
    ),
    operator(
        "http.allowed_origins",
        Kind::Texts,
        "",
        "Origins of web pages that may use the server, such as `https://app.example.com`. Pages of all others are refused.",
    ),
    operator(
        "http.page",
        Kind::Flag,
        "false",
        "Serves a web page at `/` with `serve --http`: each caller sees its own sandboxes, files and executions there, can end them and run code. `--page` means the same.",
    ),
    operator(
        "http.rest",
        Kind::Flag,
        "true",
        "Serves REST calls below `/v1`, and `POST /run_code` in the form of SandboxFusion, with `serve --http`. They use the same tokens and limits as MCP.",
    ),
    operator(
        "http.tls_certificate",
        Kind::Path,
        "",
        "The server's certificate, followed by the chain to its authority (PEM). It is read again when the file changes. Empty: plain HTTP.",
    ),
    operator(
        "http.tls_key",
        Kind::Path,
        "",
        "The private key of that certificate (PEM).",
    ),
    operator(
        "http.connections",
        whole(4, 65_536),
        "1024",
        "The maximum number of connections of all callers. At the maximum, the server closes the oldest unauthenticated connection, or else an idle one of the caller with the most.",
    ),
    operator(
        "http.requests_per_caller",
        whole(1, 65_536),
        "512",
        "The maximum number of concurrent requests of one caller, open streams included.",
    ),
    operator(
        "http.requests_per_s",
        whole(1, 1_000_000),
        "1000",
        "The sustained number of requests of one caller per second. A burst may have twice as many.",
    ),
    operator(
        "http.sessions_per_caller",
        whole(1, 65_536),
        "512",
        "Sessions of one caller, in protocols up to 2025-11-25. At the maximum, the server ends the session that was abandoned longest ago.",
    ),
    operator(
        "http.session_idle_s",
        whole(10, 30 * 86_400),
        "14400",
        "The time without a message after which a session ends, in seconds. Its sandboxes stay.",
    ),
    operator(
        "http.drain_s",
        whole(0, 3600),
        "10",
        "The time that running calls get when the server is asked to end, in seconds.",
    ),
    operator(
        "traces.endpoint",
        Kind::Text,
        "",
        "The address to which `serve` sends traces of calls and executions by OpenTelemetry's protocol over HTTP, such as `http://127.0.0.1:4318/v1/traces`; only in builds with the feature `otel`. Traces contain ids, tools, ends and times, never code, output or results. Empty: no traces.",
    ),
    operator(
        "auth.issuer",
        Kind::Text,
        "",
        "The OAuth 2.1 authorization server whose access tokens `serve --http` takes, exactly as its tokens name it in `iss`, such as `https://id.example.com/realms/team`. With an issuer, every call needs a token. Each subject is a separate caller. Tokens of `sandcell token create` stay valid. Empty: none.",
    ),
    operator(
        "auth.resource",
        Kind::Text,
        "",
        "The address of this server's `/mcp` as callers know it, such as `https://sandcell.example.com/mcp`. Clients request tokens for this resource from the issuer. Required with `auth.issuer`.",
    ),
    operator(
        "auth.audience",
        Kind::Text,
        "",
        "The required value of an access token's `aud`. Empty: `auth.resource`.",
    ),
    operator(
        "auth.scopes",
        Kind::Texts,
        "",
        "Scopes that an access token must have, all of them, in `scope` or `scp`.",
    ),
    operator(
        "auth.jwks_uri",
        Kind::Text,
        "",
        "The address of the issuer's public keys. Empty: the address in its metadata (`/.well-known/oauth-authorization-server` or `openid-configuration`).",
    ),
];

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
    SETTINGS.iter().find(|setting| setting.key == key)
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
        for setting in SETTINGS {
            assert!(setting.kind.read_text(setting.default).is_ok(), "{}", setting.key);
        }
    }

    #[test]
    fn environment_names_are_the_keys_in_capitals() {
        let names: Vec<String> = SETTINGS.iter().map(Setting::env_name).collect();
        assert!(names.contains(&"SANDCELL_BACKEND".to_owned()));
        assert!(names.contains(&"SANDCELL_LIMITS__MEMORY_MB".to_owned()));
        assert!(names.contains(&"SANDCELL_DATA_DIR".to_owned()));
    }

    #[test]
    fn a_misspelt_key_suggests_the_nearest_one() {
        let keys = || SETTINGS.iter().map(|setting| setting.key);
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
                assert!(setting.kind.read_text(word).is_err(), "{key} = {word}");
            }
        }
    }
}
