//! `cargo xtask test | soak | bench`: builds the real binary once and puts it under test.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

use crate::alone;
use crate::command::{cargo, must, nothing_may_be_skipped, output, root, watched, works};
use crate::ordinary_user::{self, Stage};
use crate::tally::Tally;

/// The variable with the binary that the end-to-end tests drive.
const BINARY_VARIABLE: &str = "SANDCELL_TEST_BIN";
/// The variable with the number of tests that run at once. Retried tests run alone.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";
/// The variable with the file to which a skipped test writes `test: reason`.
const SKIPS_VARIABLE: &str = "SANDCELL_TEST_SKIPS";

/// The variable with the program that runs a command on a kernel with cgroups v2, where this machine may have v1.
const MACHINE_VARIABLE: &str = "SANDCELL_TEST_VM";

/// Tests that do not depend on the server's user, and take minutes: Python in a notebook, messages to waiting clients, the
/// treatment of output, npm packages, tools of the host, access over HTTP, its callers, REST, bad HTTP requests, the page,
/// E2B's service and clients, Docker beyond the contract of back ends, and pulled images.
const SAME_FOR_EVERYBODY: [&str; 21] = [
    "docker::",
    "docker_images::",
    "e2b::",
    "host_tools::",
    "http::accessibility::",
    "http::attacks::",
    "http::browser::",
    "http::e2b_server::",
    "http::forward::",
    "http::oauth::",
    "http::owners::",
    "http::page_approvals::",
    "http::page_work::",
    "http::pressure::",
    "http::rest::",
    "inspector::",
    "notebooks::",
    "notifications::",
    "npm::",
    "output::",
    "own_output::",
];

/// End-to-end tests that depend on the cgroup version: zygote workers that enter a sandbox, are confined there,
/// accounted and killed. Each takes half a minute or more on an emulated processor, so the others are left out.
const ON_VERSION_2: [&str; 8] = [
    "zygote::a_forked_session_enters_a_sandbox_with_a_session_of_another_language",
    "zygote::a_forked_session_holds_no_descriptor_to_the_outside",
    "zygote::a_forked_session_is_placed_and_locked_down_like_a_started_program",
    "zygote::a_killed_zygote_costs_only_time",
    "zygote::sessions_are_forked_by_default_and_their_warm_up_leaves_no_trace",
    "zygote::with_the_zygote_disabled_or_threaded_every_session_starts_separately",
    "zygote::a_session_killed_during_its_start_fails_only_its_own_call",
    "zygote::sandboxes_made_ahead_have_low_cpu_weight_until_they_are_idle",
];

/// Tests of a program that is never shipped: those that can make single steps and layers fail or leave them out, and the
/// one with traces.
const SPECIAL_TESTS: [&str; 4] = ["launch", "layers", "injected", "traces"];
/// All tests are built with the features of that program, so that the workspace is built once. The others test the release
/// build, which has none of them.
pub const SPECIAL_FEATURES: &str = "sandcell/fault-injection,sandcell/otel,sandcell-backends/kubernetes,sandcell-e2e/fault-injection,sandcell-e2e/otel";
/// The arguments of that build. A part of the workspace would be built with other features of shared crates.
const WORKSPACE_ARGUMENTS: [&str; 3] = ["--workspace", "--features", SPECIAL_FEATURES];
/// An integration test of the package `sandcell`. Cargo builds the binary only for tests of its own package.
const TEST_BESIDE_BINARY: &str = "commands";

/// Builds all tests, so that something else can be built at the same time.
pub fn build() -> Result<()> {
    println!("test: building");
    let build = || {
        let mut command = cargo();
        command.args(["test", "--no-run", "--quiet"]).args(WORKSPACE_ARGUMENTS);
        command
    };
    must(&mut build())?;
    must(build().args(["--test", "groups"]))
}

/// Runs the tests of the Kubernetes back end on the cluster that `.ci/kubernetes` started. Those that kill parts of the cluster
/// come last, one after another.
pub fn cluster() -> Result<()> {
    for chosen in [["--test-threads=2", "--skip=alone_"], ["--test-threads=1", "alone_"]] {
        let mut command = cargo();
        command.arg("test").args(WORKSPACE_ARGUMENTS);
        must(
            command
                .args(["--test", "kubernetes", "--color=never", "--"])
                .args(chosen),
        )?;
    }
    Ok(())
}

/// Returns the arguments that choose all tests but those of the special program and the examples in the documentation.
fn ordinary_tests() -> Result<Vec<String>> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--quiet"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let targets = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    let tests = targets.filter(|target| target["kind"][0] == "test" && target["test"] == true);
    let names: BTreeSet<&str> = tests.filter_map(|target| target["name"].as_str()).collect();
    let ordinary = names.into_iter().filter(|name| !SPECIAL_TESTS.contains(name));
    let mut arguments = ["--lib", "--bins", "--examples"].map(str::to_owned).to_vec();
    arguments.extend(ordinary.flat_map(|name| ["--test".to_owned(), name.to_owned()]));
    Ok(arguments)
}

pub fn run(filters: &[String]) -> Result<()> {
    let binary = release_binary()?;
    let skips = tempfile::Builder::new().prefix("cell-skips-").tempdir()?;
    let mut tally = Tally::default();
    let mut good = everything(&binary, &skips.path().join("all"), filters, &mut tally)?;
    good &= as_ordinary_user(&binary, filters, &mut tally)?;
    good &= on_version_2(&binary, filters, &mut tally)?;
    for skipped in &tally.skipped {
        println!("skipped: {skipped}");
    }
    for flaky in &tally.flaky {
        println!("flaky: {flaky} failed amid the others and passed when it ran again");
    }
    for said in tally.panics.take() {
        println!("a failing test said: {said}");
    }
    println!("{}", tally.summary());
    if !good || tally.failed > 0 || !tally.seen {
        bail!("not every test passed");
    }
    let required = |line: &String| !line.contains(": not required: ");
    if nothing_may_be_skipped() && tally.skipped.iter().any(required) {
        bail!("tests were skipped although SANDCELL_TEST_REQUIRE=1 says that nothing may be");
    }
    Ok(())
}

/// Runs unit, property and end-to-end tests of the whole workspace, as the current user.
fn everything(binary: &Path, skips: &Path, filters: &[String], tally: &mut Tally) -> Result<bool> {
    println!("test: the whole workspace");
    let ordinary = ordinary_tests()?;
    let tests = |runner: &[&str]| {
        let mut command = cargo();
        command.args(runner).args(WORKSPACE_ARGUMENTS).args(&ordinary);
        command
            .args(["--no-fail-fast", "--color=never"])
            .env(BINARY_VARIABLE, binary)
            .env(SKIPS_VARIABLE, skips)
            .env("INSTA_UPDATE", "no");
        command
    };
    let nextest = works(cargo().args(["nextest", "--version"]));
    let settings = tempfile::Builder::new().suffix(".toml").tempfile()?;
    let mut command = match nextest {
        true => {
            std::fs::write(&settings, alone::nextest_settings(&alone::names()?))?;
            let mut command = tests(&["nextest", "run", "--no-tests=pass"]);
            let mut tool = OsString::from("sandcell:");
            tool.push(settings.path());
            command.arg("--tool-config-file").arg(tool);
            command
        }
        false => tests(&["test"]),
    };
    if !nextest {
        command.arg("--");
    }
    let mut good = watched(command.args(filters), |line| tally.see(line))?;
    if !good && !nextest {
        let again = tally.take_second_chances();
        let mut command = tests(&["test"]);
        command.args(["--", "--exact"]).args(&again).env(THREADS_VARIABLE, "1");
        good = passes_again(&mut command, again, "", tally)?;
    }
    if filters.is_empty() {
        let mut command = cargo();
        command
            .arg("test")
            .args(WORKSPACE_ARGUMENTS)
            .args(["--doc", "--quiet", "--color=never"]);
        good &= watched(&mut command, |line| tally.see(line))?;
    }
    if cfg!(target_os = "linux") {
        let special = special_binary()?;
        for test in SPECIAL_TESTS {
            let mut command = cargo();
            command.arg("test").args(WORKSPACE_ARGUMENTS).args(["--test", test]);
            command
                .args(["--color=never", "--"])
                .args(filters)
                .env(BINARY_VARIABLE, &special)
                .env(SKIPS_VARIABLE, skips);
            good &= watched(&mut command, |line| tally.see(line))?;
        }
    }
    tally.skip("", &std::fs::read_to_string(skips).unwrap_or_default());
    Ok(good)
}

/// Runs the end-to-end tests again as an unprivileged user. Skipped when the current user is one: they just ran.
fn as_ordinary_user(binary: &Path, filters: &[String], tally: &mut Tally) -> Result<bool> {
    if !cfg!(target_os = "linux") || !ordinary_user::is_root()? {
        return Ok(true);
    }
    if let Some(reason) = ordinary_user::impossible() {
        tally.skip(" (ordinary user)", &format!("e2e: {reason}"));
        return Ok(true);
    }
    println!("test: end to end as an ordinary user");
    let tests = end_to_end()?;
    let stage = Stage::new(binary, &tests)?;
    let skips = stage.home().join("skips");
    let these = |names: &[String], threads: &str| {
        let mut command = stage.command();
        command
            .args(["--color=never", "--exact"])
            .args(names)
            .env(THREADS_VARIABLE, threads)
            .env(BINARY_VARIABLE, stage.binary())
            .env(SKIPS_VARIABLE, &skips)
            .env("INSTA_UPDATE", "no")
            .env("INSTA_WORKSPACE_ROOT", stage.root());
        command
    };
    let list = output(Command::new(&tests).arg("--list"))?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let wanted = |name: &&str| {
        !SAME_FOR_EVERYBODY.iter().any(|same| name.starts_with(same))
            && (filters.is_empty() || filters.iter().any(|filter| name.contains(filter)))
    };
    let alone = alone::names()?;
    let (one_by_one, at_once): (Vec<_>, Vec<_>) = names
        .filter(wanted)
        .map(str::to_owned)
        .partition(|name| alone.contains(name));
    let mut good = true;
    for (chosen, threads) in [(at_once, "4"), (one_by_one, "1")] {
        // Without a name the program would run all of its tests.
        good &= chosen.is_empty() || watched(&mut these(&chosen, threads), |line| tally.see(line))?;
    }
    if !good {
        let again = tally.take_second_chances();
        good = passes_again(&mut these(&again, "1"), again, " (ordinary user)", tally)?;
    }
    tally.skip(" (ordinary user)", &std::fs::read_to_string(&skips).unwrap_or_default());
    Ok(good)
}

/// Runs the tests that depend on the cgroup version, in a separate machine if there is one.
fn on_version_2(binary: &Path, filters: &[String], tally: &mut Tally) -> Result<bool> {
    if !cfg!(target_os = "linux") || !filters.is_empty() {
        return Ok(true);
    }
    let Some(machine) = std::env::var_os(MACHINE_VARIABLE) else {
        let reason = format!("groups: no machine with control groups of version 2 ({MACHINE_VARIABLE}=.ci/vm)");
        tally.skipped.insert(reason);
        return Ok(true);
    };
    println!("test: control groups of version 2");
    let groups = test_executable(&["--test", "groups"], "groups")?;
    let end_to_end = end_to_end()?;
    let list = output(Command::new(&end_to_end).arg("--list"))?;
    for test in ON_VERSION_2 {
        if !list.lines().any(|line| line == format!("{test}: test")) {
            bail!("there is no test {test} any more: see ON_VERSION_2 in xtask/src/test.rs");
        }
    }
    let there = |tests: &Path, some: &[&str]| {
        let mut command = Command::new(&machine);
        command
            .arg(tests)
            .args(some)
            .args(["--test-threads", "1", "--color=never"]);
        command.env(BINARY_VARIABLE, binary).env("INSTA_UPDATE", "no");
        command
    };
    let shared = Mutex::new(&mut *tally);
    let see = |line: &str| {
        if let Ok(mut tally) = shared.lock() {
            tally.see(line);
        }
    };
    // An emulated machine keeps one processor busy, and most have two.
    let (zygotes_good, groups_good) = std::thread::scope(|scope| {
        let one = scope.spawn(|| watched(&mut there(&groups, &[]), see));
        let other = watched(&mut there(&end_to_end, &ON_VERSION_2), see);
        let one = one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        anyhow::Ok((other?, one?))
    })?;
    if zygotes_good && groups_good {
        return Ok(true);
    }
    // Each of these tests drives a whole server.
    let again = tally.take_second_chances_of(|_| true);
    let (zygotes, of_groups): (Vec<_>, Vec<_>) = again.into_iter().partition(|name| name.contains("::"));
    let mut good = true;
    for (tests, was_good, again) in [(&end_to_end, zygotes_good, zygotes), (&groups, groups_good, of_groups)] {
        if !was_good {
            let mut command = there(tests, &["--exact"]);
            command.args(&again);
            // Without a failed test, the machine itself failed.
            good &= passes_again(&mut command, again, " (control groups of version 2)", tally)?;
        }
    }
    Ok(good)
}

/// The end-to-end tests as they were built for the whole workspace: for this package alone its dependencies would be built again.
fn end_to_end() -> Result<PathBuf> {
    test_executable(&[], "e2e")
}

/// The program in the release profile.
fn release_binary() -> Result<PathBuf> {
    executable(
        &["build", "--release", "--package", "sandcell", "--bin", "sandcell"],
        "sandcell",
    )
}

/// The program that is never shipped.
fn special_binary() -> Result<PathBuf> {
    test_executable(&["--test", TEST_BESIDE_BINARY], "sandcell")
}

/// Runs these tests a second time, alone. True if there were any and all passed.
fn passes_again(command: &mut Command, again: Vec<String>, whose: &str, tally: &mut Tally) -> Result<bool> {
    if again.is_empty() {
        return Ok(false);
    }
    println!("test: again {}", again.join(" "));
    let good = watched(command, |line| tally.panics.see(line))?;
    if good {
        tally.passed_again(again, whose);
    }
    Ok(good)
}

/// Many sandboxes on one server, all of it; the end-to-end suite runs a part of the same test.
pub fn soak(count: u32) -> Result<()> {
    long("soak::create_run_close", &[("SANDCELL_TEST_SOAK", count)])
}

/// Many kills at random moments, of sandboxes and servers; the end-to-end suite runs a part of the same test.
pub fn soak_killing(count: u32) -> Result<()> {
    long("kills::", &[("SANDCELL_TEST_KILLS", count)])
}

/// Runs many clients over HTTP for the given number of seconds. The end-to-end suite runs a part of the same test.
pub fn soak_http(clients: u32, seconds: u32) -> Result<()> {
    let variables = [
        ("SANDCELL_TEST_SOAK_CLIENTS", clients),
        ("SANDCELL_TEST_SOAK_HTTP", seconds),
    ];
    long("http::soak::", &variables)
}

fn long(tests: &str, variables: &[(&str, u32)]) -> Result<()> {
    let binary = release_binary()?;
    must(
        cargo()
            .args([
                "test",
                "--package",
                "sandcell-e2e",
                "--test",
                "e2e",
                "--",
                "--nocapture",
                tests,
            ])
            .env(BINARY_VARIABLE, binary)
            .envs(variables.iter().map(|(name, value)| (name, value.to_string())))
            .env("SANDCELL_TEST_REQUIRE", "1"),
    )
}

/// The benchmark, of a program that is optimized like the one that is handed out.
pub fn bench(rounds: u32, write: bool, data: Option<(&Path, &str)>, uv: Option<&Path>) -> Result<()> {
    let profile = [
        "build",
        "--profile",
        "profiling",
        "--package",
        "sandcell",
        "--bin",
        "sandcell",
    ];
    let binary = executable(&profile, "sandcell")?;
    let mut command = cargo();
    command
        .args(["bench", "--package", "sandcell-e2e", "--bench", "calls"])
        .env(BINARY_VARIABLE, binary)
        .env("SANDCELL_BENCH_ROUNDS", rounds.to_string());
    if write {
        command.env("SANDCELL_BENCH_WRITE", root().join("docs/reference"));
    }
    if let Some((folder, base)) = data {
        command.env("SANDCELL_BENCH_DATA", std::path::absolute(folder)?);
        command.env("SANDCELL_BENCH_BASE", base);
    }
    if let Some(uv) = uv {
        command.env("SANDCELL_BENCH_UV", std::path::absolute(uv)?);
    }
    must(&mut command)
}

/// Builds these tests of the workspace, and returns the path of that executable.
fn test_executable(tests: &[&str], target: &str) -> Result<PathBuf> {
    let mut arguments = vec!["test", "--no-run"];
    arguments.extend(WORKSPACE_ARGUMENTS);
    arguments.extend(tests);
    executable(&arguments, target)
}

/// Builds with these arguments and says where cargo put the executable of that target.
fn executable(arguments: &[&str], target: &str) -> Result<PathBuf> {
    let mut command: Command = cargo();
    command.args(arguments).arg("--message-format=json-render-diagnostics");
    let text = output(&mut command)?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no executable for {target}"))
}
