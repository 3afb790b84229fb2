//! The official MCP conformance suite against the real server over HTTP, in every revision that has requirements.
//!
//! The suite needs a server with certain tools, resources and prompts; `serve --conformance` adds them, in builds with
//! the feature of that name, which is on by default.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "tests may panic and print; that is how they fail"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A server that is ended when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(data: &Path) -> Self {
        let mut child = Command::new(sandcell_e2e::binary())
            .args(["serve", "--http", "127.0.0.1:0", "--conformance"])
            .env_clear()
            .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/nonexistent")])
            .env("SANDCELL_DATA_DIR", data)
            .current_dir(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let url = loop {
            let mut line = String::new();
            assert!(err.read_line(&mut line).unwrap() > 0, "the server ended: {said}");
            if let Some(url) = line.strip_prefix("listening on ") {
                break url.trim().to_owned();
            }
            said.push_str(&line);
        };
        std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::sink()));
        Self { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _asked = Command::new("kill").args(["-TERM", &pid]).status();
        let _ended = self.child.wait();
    }
}

/// Returns the folder with the suite and its interpreter; none if the environment names none.
fn suite() -> Option<(PathBuf, PathBuf)> {
    let of = |name| std::env::var_os(name).map(PathBuf::from);
    Some((of("SANDCELL_TEST_NODE")?, of("SANDCELL_TEST_NODE_MODULES")?))
}

fn skip(test: &str, reason: &str) {
    let required = std::env::var("SANDCELL_TEST_REQUIRE").as_deref() == Ok("1");
    assert!(!required, "{test} cannot run here: {reason}");
    println!("skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os("SANDCELL_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Returns every failed check of a run (scenario, check, fault), and the number of passed ones.
fn checks(results: &Path) -> (Vec<String>, usize) {
    let (mut bad, mut good) = (Vec::new(), 0);
    for scenario in std::fs::read_dir(results).unwrap() {
        let folder = scenario.unwrap().path();
        let text = std::fs::read_to_string(folder.join("checks.json")).unwrap();
        let all: Vec<Value> = serde_json::from_str(&text).unwrap();
        for check in all {
            match check["status"].as_str().unwrap() {
                "SUCCESS" => good += 1,
                "INFO" | "SKIPPED" => {}
                status => bad.push(format!(
                    "{} {status} {} {}",
                    folder.file_name().unwrap().to_string_lossy(),
                    check["id"],
                    check["errorMessage"]
                )),
            }
        }
    }
    (bad, good)
}

/// Runs the requirements of a revision, and the scenarios of its extensions.
fn conforms(test: &str, revision: &str, at_least: usize) {
    let Some((node, modules)) = suite() else {
        skip(
            test,
            "no conformance suite (see CONTRIBUTING.md; SANDCELL_TEST_NODE and SANDCELL_TEST_NODE_MODULES name it)",
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let results = folder.path().join("results");
    let mut run = Command::new(node)
        .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args([
            "server",
            "--url",
            &server.url,
            "--requirements",
            revision,
            "--output-dir",
        ])
        .arg(&results)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut said = String::new();
    run.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let ended_well = run.wait().unwrap().success();
    let (bad, good) = checks(&results);
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(ended_well, "{said}");
    // A suite that makes no check must not pass.
    assert!(good >= at_least, "only {good} checks were made:\n{said}");
}

#[test]
fn the_server_conforms_to_protocol_2025_11_25() {
    conforms("conformance::2025-11-25", "2025-11-25", 83);
}

#[test]
fn the_server_conforms_to_protocol_2026_07_28() {
    conforms("conformance::2026-07-28", "2026-07-28", 195);
}
