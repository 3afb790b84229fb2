//! `cargo xtask e2b-compat FOLDER`: runs E2B's own test suites against the E2B server, and writes
//! `docs/reference/e2b-compatibility.md`.
//!
//! The server has a domain whose names lead to this machine, and a certificate for them: some tests open addresses such as
//! `https://3000-ID.DOMAIN`. The suites are not part of this project. FOLDER has checkouts of E2B's repositories: `E2B` (the SDKs) and
//! `code-interpreter`. The SDKs come from the package index, in the versions that the project's own tests use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::command::{cargo, must, output, root};

/// The page that is written.
const PAGE_PATH: &str = "docs/reference/e2b-compatibility.md";
/// The SDKs.
const SDK_RELEASES: [Release; 3] = [
    Release {
        name: "newest",
        words: "newest",
    },
    Release {
        name: "august",
        words: "August 2026, checks keys",
    },
    Release {
        name: "april",
        words: "April 2026",
    },
];
/// The packages that the suites need in addition to the SDK.
const PYTEST_PLUGINS: [&str; 5] = [
    "pytest-asyncio==1.5.0",
    "pytest-dotenv==0.5.2",
    "pytest-reportlog==1.0.0",
    "pytest-timeout==2.4.0",
    "pytest-xdist==3.8.0",
];
/// The tests that need the internet. They are left out on a machine without it.
const INTERNET_TESTS: [&str; 7] = [
    "test_internet_access_default",
    "test_internet_access_enabled",
    "test_allow_specific_ip_with_deny_all",
    "test_allow_takes_precedence_over_deny",
    "test_deny_specific_ip",
    "test_update_network_applies_restrictions",
    "test_update_network_clears_existing_rules",
];
/// The addresses that these tests use.
const INTERNET_ADDRESSES: [&str; 2] = ["1.1.1.1", "8.8.8.8"];
/// The name of the file with the certificate of the authority.
const AUTHORITY_FILE: &str = "authority.pem";
/// The domain of the server. Some of the SDKs' libraries know that names below `localhost` lead to this machine.
const SERVER_DOMAIN: &str = "sandcell.localhost";
/// Tells this to Python, too.
const RESOLVER_CODE: &str = "import socket\n\
                        real = socket.getaddrinfo\n\
                        def getaddrinfo(host, *args, **more):\n    \
                            name = host.decode() if isinstance(host, bytes) else host\n    \
                            here = isinstance(name, str) and name.endswith('.localhost')\n    \
                            return real('127.0.0.1' if here else host, *args, **more)\n\
                        socket.getaddrinfo = getaddrinfo\n";
/// The time limit of one test, in seconds.
const TEST_SECONDS: &str = "60";
/// The time limit for the start of the server.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The words with which the server answers calls that it does not have.
const UNSUPPORTED_PHRASE: &str = "does not support ";

#[derive(Args)]
pub struct CompatArguments {
    /// A folder with checkouts of E2B's repositories `E2B` and `code-interpreter`
    folder: PathBuf,
    /// Tries this program instead of a release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only SDKs of these names
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// A version of E2B's SDK.
struct Release {
    /// The name of its requirements.
    name: &'static str,
    /// The words for the table.
    words: &'static str,
}

/// A suite of E2B.
struct Suite {
    name: &'static str,
    /// Its folder, from FOLDER.
    folder: &'static str,
    /// The parts of it that are about sandboxes; others build templates, or test the SDK alone.
    parts: &'static [&'static str],
}

const TEST_SUITES: [Suite; 2] = [
    Suite {
        name: "code interpreter",
        folder: "code-interpreter/python/tests",
        parts: &["."],
    },
    Suite {
        name: "sandboxes",
        folder: "E2B/packages/python-sdk/tests",
        parts: &[
            "async/api_async",
            "async/sandbox_async",
            "sync/api_sync",
            "sync/sandbox_sync",
        ],
    },
];

/// The results of a suite with one SDK.
#[derive(Default)]
struct Outcome {
    passed: usize,
    skipped: usize,
    /// The failed tests, by reason.
    failed: BTreeMap<String, BTreeSet<String>>,
}

impl Outcome {
    fn failures(&self) -> usize {
        self.failed.values().map(BTreeSet::len).sum()
    }
}

pub fn run(arguments: &CompatArguments) -> Result<()> {
    let binary = match &arguments.binary {
        Some(binary) => binary.canonicalize().context("there is no such program")?,
        None => release_binary()?,
    };
    let work = tempfile::Builder::new().prefix("e2b-compat-").tempdir()?;
    let server = Server::start(&binary, work.path())?;
    let has_internet = has_internet();
    let mut sections = String::new();
    let mut rows = String::new();
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for release in SDK_RELEASES.iter().filter(|release| wanted(release.name)) {
        let words = release.words;
        let python = environment(release.name)?;
        let versions = versions(&python)?;
        for suite in &TEST_SUITES {
            println!("e2b-compat: {} with {versions}", suite.name);
            let outcome = try_suite(suite, arguments, &python, &server, has_internet)?;
            let failures = outcome.failures();
            if outcome.passed + outcome.skipped + failures == 0 {
                writeln!(
                    rows,
                    "| {} | {words}: {versions} | does not load with this SDK | | |",
                    suite.name
                )?;
                continue;
            }
            writeln!(
                rows,
                "| {} | {words}: {versions} | {} | {failures} | {} |",
                suite.name, outcome.passed, outcome.skipped
            )?;
            if failures > 0 {
                write!(
                    sections,
                    "\n## {} with {versions}\n| reason | tests |\n|---|---|\n",
                    suite.name
                )?;
                for (reason, tests) in by_number(&outcome.failed) {
                    let names: Vec<&str> = tests.iter().map(String::as_str).collect();
                    writeln!(sections, "| {reason} | {}: {} |", tests.len(), names.join(", "))?;
                }
            }
        }
    }
    let page = format!(
        "# E2B's own tests\n\n\
         `cargo xtask e2b-compat FOLDER` runs E2B's test suites against `sandcell serve --e2b` and writes this page. The suites are not\n\
         part of this project: FOLDER has checkouts of E2B's repositories. Tests that build templates, and tests of the SDK alone, are\n\
         left out. A reason that begins with \"missing\" is the server's own answer (501).\n\
         The server had a domain with a certificate, and `e2b_server.public_ports`.{}\n\n\
         | suite | SDK | passed | failed | skipped |\n|---|---|---|---|---|\n{rows}{sections}",
        if has_internet {
            String::new()
        } else {
            format!(
                "\n\nThe machine had no internet, so tests that need it were left out: {}.",
                INTERNET_TESTS.join(", ")
            )
        }
    );
    if arguments.only.is_empty() {
        fs::write(root().join(PAGE_PATH), page)?;
        println!("e2b-compat: {PAGE_PATH} is written");
    } else {
        println!("{page}");
    }
    Ok(())
}

fn release_binary() -> Result<PathBuf> {
    must(cargo().args([
        "build",
        "--release",
        "--package",
        "sandcell",
        "--bin",
        "sandcell",
        "--quiet",
    ]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/sandcell"))
}

/// Makes the virtual environment of an SDK, and returns its Python.
fn environment(name: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = target.join("e2b-compat").join(name);
    let python = folder.join("bin/python");
    if !python.exists() {
        must(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let requirements = root().join(format!("crates/e2e/tests/e2b_sdk/requirements/{name}.txt"));
    must(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
            .arg(requirements)
            .args(PYTEST_PLUGINS),
    )?;
    Ok(python)
}

/// Returns the versions of the SDK's packages.
fn versions(python: &Path) -> Result<String> {
    let code = "from importlib.metadata import version\n\
                print(', '.join(name + ' ' + version(name) for name in ('e2b', 'e2b-code-interpreter')))";
    Ok(output(Command::new(python).args(["-c", code]))?.trim().to_owned())
}

/// Returns true if the addresses of the tests are reached, with certificates that fit.
fn has_internet() -> bool {
    INTERNET_ADDRESSES.iter().all(|address| {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-m", "10", &format!("https://{address}")]);
        command.status().is_ok_and(|status| status.success())
    })
}

/// A running server.
struct Server {
    process: Child,
    /// Its domain, with its port.
    domain: String,
    /// Its folder: the certificate, and the module that finds the names of the domain.
    folder: PathBuf,
}

impl Server {
    fn start(binary: &Path, work: &Path) -> Result<Self> {
        let log = work.join("server.log");
        let file = File::create(&log)?;
        let [certificate, key] = make_certificate(work)?;
        fs::write(work.join("sitecustomize.py"), RESOLVER_CODE)?;
        // The domain has the port, so the port is known before the server starts.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let domain = format!("{SERVER_DOMAIN}:{port}");
        let mut command = Command::new(binary);
        command
            .args(["serve", "--e2b", "--http", &format!("127.0.0.1:{port}")])
            .env("HOME", work)
            .env("SANDCELL_DATA_DIR", work.join("data"))
            .env("SANDCELL_HTTP__TLS_CERTIFICATE", &certificate)
            .env("SANDCELL_HTTP__TLS_KEY", &key)
            .env("SANDCELL_HTTP__ALLOWED_HOSTS", format!("api.{SERVER_DOMAIN}"))
            .env("SANDCELL_E2B_SERVER__DOMAIN", &domain)
            .env("SANDCELL_E2B_SERVER__PUBLIC_PORTS", "true")
            .env("SANDCELL_NETWORK__ALLOW", format!("*,{}", INTERNET_ADDRESSES.join(",")))
            .env("SANDCELL_LIMITS__SANDBOXES", "200")
            .env("SANDCELL_LIMITS__SANDBOXES_PER_CALLER", "200")
            .current_dir(work)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        // Charts need data libraries.
        if let Some(python) = std::env::var_os("SANDCELL_TEST_DATA_PYTHON") {
            command.env("SANDCELL_PYTHON", python);
        }
        let server = Self {
            process: command.spawn().context("the server could not be started")?,
            domain,
            folder: work.to_owned(),
        };
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            let said = fs::read_to_string(&log)?;
            if said.lines().any(|line| line.starts_with("listening on ")) {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the server did not start: {}", fs::read_to_string(&log)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends its sandboxes when it is asked to end.
        let pid = self.process.id().to_string();
        let _asked = Command::new("kill").arg(pid).status();
        let _ended = self.process.wait();
    }
}

/// Makes an authority, and a certificate of it for the names of the domain. Returns the certificate and its key.
fn make_certificate(folder: &Path) -> Result<[PathBuf; 2]> {
    let request = |name: &str, extensions: &[&str]| {
        let mut command = Command::new("openssl");
        command
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-subj",
                &format!("/CN={name}"),
                "-keyout",
                &format!("{name}.key"),
            ])
            .args(extensions.iter().flat_map(|extension| ["-addext", extension]))
            .stderr(Stdio::null())
            .current_dir(folder);
        command
    };
    must(request("authority", &[]).args(["-out", AUTHORITY_FILE]))?;
    let names = format!("subjectAltName=DNS:*.{SERVER_DOMAIN}");
    must(
        request("server", &[&names, "basicConstraints=critical,CA:FALSE"]).args([
            "-CA",
            AUTHORITY_FILE,
            "-CAkey",
            "authority.key",
            "-out",
            "server.pem",
        ]),
    )?;
    Ok(["server.pem", "server.key"].map(|name| folder.join(name)))
}

fn try_suite(
    suite: &Suite,
    arguments: &CompatArguments,
    python: &Path,
    server: &Server,
    has_internet: bool,
) -> Result<Outcome> {
    let folder = arguments.folder.join(suite.folder);
    let folder = folder
        .canonicalize()
        .with_context(|| format!("{} is missing: check out E2B's repository there", folder.display()))?;
    let log = server.folder.join("tests.jsonl");
    let mut command = Command::new(python);
    command
        .args([
            "-B",
            "-m",
            "pytest",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "--timeout",
            TEST_SECONDS,
        ])
        .arg(format!("--report-log={}", log.display()))
        .args(suite.parts)
        .env("E2B_DOMAIN", &server.domain)
        .env("SSL_CERT_FILE", server.folder.join(AUTHORITY_FILE))
        .env("PYTHONPATH", &server.folder)
        .env("E2B_API_KEY", format!("e2b_{}", "0".repeat(40)))
        .env("NO_PROXY", "localhost,127.0.0.1")
        .current_dir(&folder)
        .stdin(Stdio::null());
    for other in ["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DEBUG", "E2B_ACCESS_TOKEN"] {
        command.env_remove(other);
    }
    if !has_internet {
        command
            .arg("-k")
            .arg(format!("not {}", INTERNET_TESTS.join(" and not ")));
    }
    // Failed tests are what this is about.
    let _status = command.status().context("pytest could not be started")?;
    read(&fs::read_to_string(&log).context("pytest wrote no report")?)
}

/// Reads pytest's report: a line of JSON for each part of a test.
fn read(report: &str) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for line in report.lines() {
        let event: Value = serde_json::from_str(line).context("a line of the report is not JSON")?;
        if event["$report_type"] != "TestReport" {
            continue;
        }
        let test = event["nodeid"].as_str().unwrap_or_default();
        match (event["when"].as_str(), event["outcome"].as_str()) {
            (Some("call"), Some("passed")) => outcome.passed += 1,
            (_, Some("skipped")) => outcome.skipped += 1,
            (_, Some("failed")) => {
                let known = outcome.failed.values().any(|tests| tests.contains(test));
                if !known {
                    outcome
                        .failed
                        .entry(reason(&event))
                        .or_default()
                        .insert(test.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outcome)
}

/// Returns the reason of a failure: the call that the server does not have, or the beginning of the error.
fn reason(event: &Value) -> String {
    let crash = &event["longrepr"]["reprcrash"]["message"];
    let text = crash.as_str().or(event["longrepr"].as_str()).unwrap_or_default();
    if let Some((_, missing)) = text.split_once(UNSUPPORTED_PHRASE) {
        let missing: String = missing
            .chars()
            .take_while(|letter| !matches!(letter, '"' | '(' | ':' | '\n' | '\\'))
            .collect();
        return format!("missing: {}", missing.trim());
    }
    let first = text.lines().next().unwrap_or_default();
    let short: String = first.chars().take(120).collect();
    short.replace('|', "\\|").replace('<', "&lt;")
}

/// Returns the reasons, the most frequent one first.
fn by_number(failed: &BTreeMap<String, BTreeSet<String>>) -> Vec<(&String, &BTreeSet<String>)> {
    let mut all: Vec<_> = failed.iter().collect();
    all.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_counted_and_its_failures_are_grouped() {
        let test = |name: &str, when: &str, outcome: &str, message: &str| {
            serde_json::json!({
                "$report_type": "TestReport", "nodeid": name, "when": when, "outcome": outcome,
                "longrepr": {"reprcrash": {"message": message}},
            })
            .to_string()
        };
        let lines = [
            serde_json::json!({"$report_type": "SessionStart"}).to_string(),
            test("a", "setup", "passed", ""),
            test("a", "call", "passed", ""),
            test(
                "b",
                "call",
                "failed",
                "X: 501: this server does not support snapshots (x)",
            ),
            test(
                "c",
                "setup",
                "failed",
                "X: this server does not support snapshots\nmore",
            ),
            test("c", "teardown", "failed", "other"),
            test("d", "call", "failed", "AssertionError: 1 | 2\nmore"),
            test("e", "setup", "skipped", ""),
        ];
        let outcome = read(&lines.join("\n")).unwrap();
        assert_eq!((outcome.passed, outcome.failures(), outcome.skipped), (1, 3, 1));
        let found: Vec<(&str, usize)> = by_number(&outcome.failed)
            .into_iter()
            .map(|(reason, tests)| (reason.as_str(), tests.len()))
            .collect();
        assert_eq!(found, [("missing: snapshots", 2), ("AssertionError: 1 \\| 2", 1)]);
    }
}
