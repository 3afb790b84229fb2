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

/// The most that `limits.file_mb` can be.
pub(crate) const MOST_FILE_MB: u64 = 15;

/// The settings of this build, in the order of the reference.
pub(crate) const SETTINGS: &[Setting] = &[
    plain(
        "backend",
        Kind::ListOf(&["native", "docker", "e2b"]),
        if cfg!(target_os = "linux") { "native" } else { "docker" },
        "Back ends that make sandboxes, the preferred one first (`docker` where this is not Linux); the next one is used where the one before it cannot work or is below `isolation_min`. The flag is `--backend`; `INTERPRETER_TYPE` means the same.",
    ),
    operator(
        "isolation_min",
        Kind::OneOf(&["microvm", "gvisor", "container", "namespace", "process", "none"]),
        "namespace",
        "The weakest isolation that is accepted. Where a machine cannot give it, sandcell refuses to run code.",
    ),
    operator(
        "limits_min",
        Kind::OneOf(&["watched", "enforced"]),
        "watched",
        "Who must hold the limits on memory, processor and processes: `enforced` takes control groups only, `watched` also a watcher outside that ends what is over.",
    ),
    plain(
        "toolset",
        Kind::OneOf(&["sandbox", "container", "script"]),
        "sandbox",
        "The set of tools that `serve` offers: `sandbox` has all, `container` starts, uses and stops one sandbox from an image (with the back end docker unless `backend` says otherwise), `script` runs Python scripts and looks at them first (`analysis` is `strict` unless it is set). The flag is `--toolset`.",
    ),
    operator(
        "python",
        Kind::Path,
        "",
        "The Python that sandboxes run, also of a virtual environment: it and its packages are visible read-only inside. Empty: the machine's own is found.",
    ),
    operator(
        "analysis",
        Kind::OneOf(&["off", "advisory", "strict"]),
        "advisory",
        "What becomes of what is noticed about Python code before it runs: `advisory` tells it beside the result, `strict` does not run code that imports or calls what is on the list of `sandcell check --profile strict`. Advice, never protection: the sandbox is what holds.",
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
        "Where sandcell keeps what outlives a server, such as what it knows of the machine's Python. Empty: `/var/lib/sandcell` for root, else `$XDG_DATA_HOME/sandcell` (`~/.local/share/sandcell`, on Windows `%LOCALAPPDATA%\\sandcell`).",
    ),
    operator(
        "log",
        Kind::Text,
        "",
        "What is logged to stderr: `error`, `warn`, `info`, `debug`, or a filter such as `sandcell_engine=debug`. Empty: `warn`.",
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
        "Python modules that waiting sandboxes have loaded before they are handed out, such as `numpy, pandas, matplotlib.pyplot`: importing them then costs a call nothing. They must be installed for the interpreter or in the `base`; one that cannot be loaded is logged and left out. Each waiting sandbox takes their memory (`pool.memory_mb`).",
    ),
    operator(
        "packages.allow",
        Kind::Requirements,
        "",
        "Packages that may be installed, dependencies included: names with versions and extras (`numpy>=1.24,<2`, `requests[socks]`) or patterns (`acme-*`). Empty: all that are not denied. In the environment, entries are separated by `;`.",
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
        "Packages about which the user is asked (MCP elicitation), written in the same way, `*` for all: those that `packages.allow` does not name and `packages.deny` does not deny. The yes holds for one call and brings what the package needs along; without one they are refused, as always to code inside.",
    ),
    operator(
        "packages.min_age_days",
        whole(0, 3650),
        "0",
        "Releases younger than this are not installed, in days; those of unknown age neither. 0: all are.",
    ),
    operator(
        "packages.only_binary",
        Kind::Flag,
        "true",
        "Whether only wheels are installed. `false` also builds source distributions, whose build scripts then run in the installer's sandbox.",
    ),
    operator(
        "packages.npm_allow",
        Kind::Texts,
        "",
        "Packages of npm that may be installed, their dependencies included: `lodash`, `@acme/*`, and after `@` the beginning of versions, as in `zod@3`. Empty: all may be, unless `packages.allow` has entries: then none.",
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
        "Packages of npm about which the user is asked, written in the same way. Empty: none, unless `packages.ask` has entries and `packages.npm_allow` has none: then all.",
    ),
    operator(
        "packages.origins",
        Kind::Texts,
        "",
        "Origins to which package indexes may lead wherever they lie, such as `http://files.corp.example:8081`. An index leads to itself and to public hosts (ports 80 and 443) without being named here.",
    ),
    plain(
        "packages.disk_mb",
        whole(16, 1 << 20),
        "4096",
        "What one installation may unpack to, in MiB.",
    ),
    plain(
        "packages.file_mb",
        whole(1, 1 << 20),
        "1024",
        "What one file of a package may have, in MiB.",
    ),
    plain(
        "packages.download_mb",
        whole(1, 1 << 20),
        "4096",
        "What one installation may download, in MiB.",
    ),
    plain(
        "packages.kept_mb",
        whole(64, 1 << 24),
        "20480",
        "What installed packages of all callers may take in the data folder, in MiB. Those that were not used for longest go first.",
    ),
    operator(
        "network.allow",
        Kind::Texts,
        "",
        "The most that a call may ask to reach: `api.example.com`, `*.example.org` (what lies below it), `*` (every name) or an address, each with `:PORT` or `:*`; without it ports 80 and 443 are meant. Empty: no network at all.",
    ),
    operator(
        "network.ask",
        Kind::Texts,
        "",
        "Hosts about which the user is asked when a sandbox is made that may reach them (MCP elicitation), written in the same way: those that `network.allow` does not name. Without a yes they are refused.",
    ),
    operator(
        "network.deny",
        Kind::Texts,
        "",
        "Hosts and ranges of addresses that are never reached, written in the same way or like `203.0.113.0/24`; without a port all ports are meant. Wins over `network.allow`.",
    ),
    operator(
        "network.private",
        Kind::Texts,
        "",
        "Addresses that may be reached though they are private, local or this machine's own, where `network.allow` names a host that leads to them: `10.1.2.3`, `10.1.0.0/16`, or `db.example.com=10.1.2.3` for a name that is not looked up.",
    ),
    operator(
        "network.connections",
        whole(1, 64),
        "32",
        "Connections of one sandbox to hosts at once; more wait in line.",
    ),
    operator(
        "network.total_mb",
        whole(1, 1 << 20),
        "1024",
        "What one sandbox may send and receive together, in MiB.",
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
        "Private writable files of a sandbox, in MiB; not taken out of its memory.",
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
        "How long an execution may run when the call does not say, in seconds.",
    ),
    plain(
        "limits.output_inline_kb",
        whole(1, 512),
        "20",
        "Text of one execution that is handed back inline, in KiB.",
    ),
    plain(
        "limits.output_kept_mb",
        whole(1, 1024),
        "16",
        "Output that is kept of a stream for later reading, in MiB; streams of one sandbox that run at once share it.",
    ),
    plain(
        "limits.file_mb",
        // The agent moves at most 16 MiB at once, and a file that is too large must be distinct from one that just
        // fits.
        whole(1, MOST_FILE_MB),
        "10",
        "What one call reads, writes or uploads, in MiB.",
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
        "Executions of one caller that run at once; more wait for their turn.",
    ),
    plain(
        "limits.executions",
        whole(1, 100_000),
        "256",
        "Executions of all callers that run at once. Who has none running does not wait; further places go to the caller with the fewest. Processor time is shared by caller where sandboxes have control groups; elsewhere as many places as the machine has cores share it evenly.",
    ),
    plain(
        "limits.idle_s",
        whole(1, 30 * 86_400),
        "1800",
        "A sandbox in which nothing runs ends after this time without a call, in seconds.",
    ),
    plain(
        "limits.history_rows",
        whole(1, 10_000_000),
        "10000",
        "Finished executions that the history keeps.",
    ),
    plain(
        "limits.history_days",
        whole(1, 36_500),
        "30",
        "How long the history keeps them, in days.",
    ),
    plain(
        "limits.history_mb",
        whole(1, 1 << 20),
        "256",
        "What the history takes of the data folder, in MiB; the oldest executions of the caller that has most go first.",
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
        "Processor time that one caller's executions may take in an hour, in seconds; what runs when it is used up may end. 0: as much as there is.",
    ),
    operator(
        "quota.packages_mb",
        whole(0, 1 << 30),
        "0",
        "What one caller's installed packages may take in the data folder, in MiB; what it did not use for a day makes room. 0: as much as `packages.kept_mb` leaves.",
    ),
    operator(
        "quota.packages",
        whole(0, 1 << 30),
        "0",
        "How many packages one caller may have installed, those that others need included; two versions are two. 0: any number.",
    ),
    operator(
        "history.store",
        Kind::OneOf(&["file", "memory"]),
        "file",
        "Where the history is: `file` keeps executions, with their code and what was shown of their output, in `history.db` of the data folder, so that they outlive the server; `memory` writes nothing.",
    ),
    operator(
        "audit.enabled",
        Kind::Flag,
        "true",
        "Whether `serve` and `token` write down what matters for security: sandboxes made and closed, calls refused, limits hit, callers not let in, connections denied, tokens made and revoked, history deleted.",
    ),
    operator(
        "audit.file",
        Kind::Path,
        "",
        "Where that log is; `sandcell audit verify` checks it. Empty: `audit.jsonl` in the data folder.",
    ),
    operator(
        "audit.kept_mb",
        whole(1, 1 << 20),
        "64",
        "What the log takes, in MiB. When half of it is full, it is put aside as `audit.jsonl.1`, in place of the one before.",
    ),
    plain(
        "sessions.restore",
        Kind::Switch,
        "true",
        "Whether a Python session keeps a frozen copy of itself between calls, and is restored from it when its interpreter crashes or is killed: variables are then as they were before the call. The copy counts as a process of the sandbox. Off, calls that follow each other at once are faster by some milliseconds.",
    ),
    plain(
        "pool.parked",
        Kind::Demand { max: 1000 },
        "",
        "Sandboxes with the default limits that `serve` makes ahead, an interpreter ready in each: 0 for none, empty for as many as demand asks for within `pool.memory_mb`.",
    ),
    plain(
        "pool.memory_mb",
        whole(0, 1_048_576),
        "256",
        "Memory that waiting sandboxes may use together, in MiB, when demand decides how many wait.",
    ),
    plain(
        "pool.warm_parents",
        Kind::Switch,
        "true",
        "Whether sessions begin as copies of one interpreter that stands in no sandbox, runs nobody's code and has loaded the modules of `preload`: its hash seed and the layout of its memory are those of up to 1,000 sessions. With `false`, and where that cannot be had (kernels before 6.12), each starts an interpreter of its own, and each waiting sandbox loads the modules for itself.",
    ),
    plain(
        "mcp.wait_s",
        whole(1, 55),
        "45",
        "How long a call waits for code that runs before it answers `running`, in seconds, when it does not say (`wait_s`). Less than the time after which the client gives up: 4 for OpenAI Agents, AutoGen and Google ADK as they are. docs/guides/frameworks.md has each one's setting.",
    ),
    plain(
        "script.persistent",
        Kind::Flag,
        "false",
        "Whether variables stay from one `run_code` call to the next in the toolset `script`. `false`: each call is a process of its own.",
    ),
    operator(
        "service.on_demand",
        Kind::Flag,
        "false",
        "Whether `sandcell serve` passes everything on to a server in the background, and starts it where there is none: sandboxes and their variables then outlive the client. Clients with the same flags and variables share one; `sandcell service` shows and ends them.",
    ),
    operator(
        "service.idle_s",
        whole(1, 30 * 86_400),
        "600",
        "A server in the background ends when there was no sandbox and no call for so long, in seconds.",
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
        "Where the E2B service is; `E2B_DOMAIN` means the same.",
    ),
    operator(
        "e2b.api_url",
        Kind::Text,
        "",
        "The address of its interface, for a service of one's own; `E2B_API_URL` means the same. Empty: `https://api.` and the domain.",
    ),
    operator(
        "e2b.sandbox_url",
        Kind::Text,
        "",
        "One address for all ports of all sandboxes; `E2B_SANDBOX_URL` means the same. Empty: each port has its own below the domain.",
    ),
    operator(
        "e2b.debug",
        Kind::Flag,
        "false",
        "Whether the one sandbox is this machine's own ports 49983 and 49999, without any service; `E2B_DEBUG` means the same.",
    ),
    plain(
        "e2b.template",
        Kind::Text,
        "code-interpreter-v1",
        "What E2B sandboxes are made of: a template with a code interpreter.",
    ),
    plain(
        "e2b.timeout_s",
        whole(15, 86_400),
        "300",
        "How long an E2B sandbox outlives a server that vanished, in seconds. While the server holds it, it is kept alive.",
    ),
    operator(
        "e2b.level",
        Kind::OneOf(&["auto", "microvm", "gvisor", "container"]),
        "auto",
        "How strongly the service isolates. `auto`: `microvm` at E2B's own domain, `container` elsewhere.",
    ),
    operator(
        "e2b.internet",
        Kind::Flag,
        "false",
        "Whether E2B sandboxes reach the internet.",
    ),
    operator(
        "docker.host",
        Kind::Text,
        "",
        "Where the Docker daemon listens, such as `unix:///var/run/docker.sock` or `tcp://127.0.0.1:2375`; `DOCKER_HOST` means the same. Empty: the first of the usual places where one answers (Docker, rootless Docker, Docker Desktop, OrbStack, Rancher Desktop, Colima, Podman); on Windows `npipe:////./pipe/docker_engine` and the like.",
    ),
    operator(
        "docker.cert_path",
        Kind::Path,
        "",
        "The folder with `ca.pem`, `cert.pem` and `key.pem` for a daemon that is reached over TCP: then always encrypted and verified. `DOCKER_CERT_PATH` means the same.",
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
        "Whether images that the daemon does not have are pulled, with the logins that `docker login` keeps for the user who runs the server.",
    ),
    operator(
        "docker.languages",
        Kind::ListOf(&["python", "javascript", "bash", "ruby", "perl"]),
        "python",
        "Languages that every image gets: where one lacks them and has `apt-get` or `apk`, they are installed once, in a container of its own that is thrown away, and kept as another image. Empty: images stay as they are.",
    ),
    operator(
        "docker.mirrors",
        Kind::Texts,
        "deb.debian.org,security.debian.org,archive.ubuntu.com,security.ubuntu.com,ports.ubuntu.com,dl-cdn.alpinelinux.org",
        "The hosts that such an installation may reach, written as in `network.allow`; `network.deny` and `network.private` hold for it, too. Empty: nothing is installed.",
    ),
    operator(
        "images.allow",
        Kind::Texts,
        "docker.io/library/*",
        "Container images that calls may name where the native back end makes sandboxes of images: a repository (`ghcr.io/team/tool`), one of its tags or digests (`python:3.13-slim`), all below a name (`ghcr.io/team/*`), or `*` for every registry. Local ones (`oci:/folder`, `docker-archive:/file.tar`) may be named where they lie in a folder of `upload_from`. `sandcell run --image` and `sandcell images` are not bound by it.",
    ),
    operator(
        "images.pull",
        Kind::OneOf(&["missing", "never"]),
        "missing",
        "Whether images that are not kept here are pulled when a call names them. `never`: only those of `sandcell images pull`.",
    ),
    operator(
        "images.mirrors",
        Kind::Texts,
        "",
        "Registries that are asked before another one, as `REGISTRY=MIRROR`, such as `docker.io=mirror.example:5000`.",
    ),
    operator(
        "images.insecure",
        Kind::Texts,
        "",
        "Registries (`host` or `host:port`) that are asked without TLS. Those on the loopback address always are.",
    ),
    operator(
        "images.auth_file",
        Kind::Path,
        "",
        "The file with the logins of registries, as `docker login` and `podman login` write it. Empty: theirs, of the server's user.",
    ),
    plain(
        "images.download_mb",
        whole(1, 1 << 20),
        "4096",
        "What the layers of one image may have as they are downloaded, in MiB.",
    ),
    plain(
        "images.unpacked_mb",
        whole(1, 1 << 20),
        "16384",
        "What one image may have unpacked, in MiB.",
    ),
    plain(
        "images.kept_mb",
        whole(64, 1 << 24),
        "20480",
        "What unpacked images of all callers may take in the data folder, in MiB. Those that were not used for longest go first.",
    ),
    operator(
        "http.allowed_hosts",
        Kind::Texts,
        "",
        "Names that `serve --http` may be called by beside its own address, such as `sandcell.example.com` behind a proxy; with a port, only that port. A request with another Host header is refused.",
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
        "Whether `serve --http` has a page at `/`: each caller sees its own sandboxes, files and executions there, can end them and run code. `--page` means the same.",
    ),
    operator(
        "http.rest",
        Kind::Flag,
        "true",
        "Whether `serve --http` answers REST calls below `/v1` and `POST /run_code` in the form of SandboxFusion, beside MCP and with the same tokens and limits.",
    ),
    operator(
        "http.tls_certificate",
        Kind::Path,
        "",
        "The server's certificate, with those that lead to an authority after it (PEM). It is read again when the file changes. Empty: plain HTTP.",
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
        "Connections of all callers together. When all are taken, the oldest that was not let in yet makes room, or one of whoever has most that waits for its next request.",
    ),
    operator(
        "http.requests_per_caller",
        whole(1, 65_536),
        "512",
        "Requests of one caller that are answered at once, open streams included.",
    ),
    operator(
        "http.requests_per_s",
        whole(1, 1_000_000),
        "1000",
        "Requests that one caller may send in a second for long; twice as many at once.",
    ),
    operator(
        "http.sessions_per_caller",
        whole(1, 65_536),
        "512",
        "Sessions of one caller, in protocols up to 2025-11-25. When all are taken, the one that was abandoned longest ago makes room.",
    ),
    operator(
        "http.session_idle_s",
        whole(10, 30 * 86_400),
        "14400",
        "A session ends after this time without a message, in seconds. Its sandboxes stay.",
    ),
    operator(
        "http.drain_s",
        whole(0, 3600),
        "10",
        "How long calls that are under way may take when the server is told to end, in seconds.",
    ),
    operator(
        "traces.endpoint",
        Kind::Text,
        "",
        "Where `serve` sends traces of calls and executions by OpenTelemetry's protocol over HTTP, such as `http://127.0.0.1:4318/v1/traces`; only in builds with the feature `otel`. Ids, tools, ends and times are in them, never code, output or results. Empty: nowhere.",
    ),
    operator(
        "auth.issuer",
        Kind::Text,
        "",
        "The OAuth 2.1 authorization server whose access tokens `serve --http` takes, exactly as its tokens name it in `iss`, such as `https://id.example.com/realms/team`. From then on nobody gets in without a token. Its subjects are callers of their own; tokens of `sandcell token create` stay valid beside it. Empty: none.",
    ),
    operator(
        "auth.resource",
        Kind::Text,
        "",
        "The address of this server's `/mcp` as callers know it, such as `https://sandcell.example.com/mcp`: what clients ask the issuer tokens for. Needed with `auth.issuer`.",
    ),
    operator(
        "auth.audience",
        Kind::Text,
        "",
        "What an access token must have in `aud`. Empty: `auth.resource`.",
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
        "Where the issuer's public keys are. Empty: where its metadata says (`/.well-known/oauth-authorization-server` or `openid-configuration`).",
    ),
];

/// Words that a known setting will take once more is built. They are refused with that said.
pub(crate) const WORDS_NOT_YET: &[(&str, &[&str])] = &[("backend", &["kubernetes"])];

/// Variables of the environment that begin like settings and are none.
pub(crate) const OTHER_VARIABLES: &[(&str, &str)] = &[
    (
        "SANDCELL_TOKEN",
        "The token that `serve --connect` sends to the server.",
    ),
    ("SANDCELL_BIN", "The program that the Python package starts."),
];

/// The setting of this name.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The name that was most likely meant. A key without its table means the setting of that name, that of `limits` first.
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
    fn a_misspelt_key_finds_the_one_that_was_meant() {
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
    fn nothing_is_both_known_and_not_yet() {
        for (key, words) in WORDS_NOT_YET {
            let setting = find(key).unwrap();
            for word in *words {
                assert!(setting.kind.read_text(word).is_err(), "{key} = {word}");
            }
        }
    }
}
