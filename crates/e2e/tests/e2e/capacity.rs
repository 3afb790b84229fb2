//! A machine with few descriptors: a sandbox that does not fit is refused with the reason, and other callers are not
//! affected.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root, machine, python, until};

const MANY_SANDBOXES: &str = "[limits]\nsandboxes_per_caller = 200\nsandboxes = 200\n";

/// Executes a program with this limit of open files, which it cannot raise.
const FEW_FILES: &str = r#"
import ctypes, os, resource, sys
files = int(sys.argv[1])
# Root loses the capability to raise the hard limit (PR_CAPBSET_DROP, CAP_SYS_RESOURCE).
ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
os.execv(sys.argv[2], sys.argv[2:])
"#;

fn with_files(files: u32, command: &Command) -> Command {
    let mut outer = Command::new(python().unwrap());
    outer.args(["-I", "-S", "-c", FEW_FILES, &files.to_string()]);
    outer.arg(command.get_program()).args(command.get_args()).env_clear();
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    outer
}

fn launcher(server: &Client) -> u32 {
    let children = machine::descendants(server.pid());
    let is_launcher = |pid: u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sandcell-launcher\0"))
    };
    let mut launchers: Vec<u32> = children
        .iter()
        .map(|seen| seen.pid)
        .filter(|pid| is_launcher(*pid))
        .collect();
    // A fork of the launcher has the same name until it executes another program.
    launchers.sort_unstable();
    launchers[0]
}

fn id_of(made: &Answer) -> Value {
    made.data()["sandbox_ids"][0].clone()
}

fn set(server: &Client, sandbox: &Value, value: usize) {
    let answer = server.call(
        "execute_code",
        json!({"code": format!("x = {value}"), "sandbox_id": sandbox}),
    );
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
}

fn has(server: &Client, sandbox: &Value, value: usize) {
    let answer = server.call("execute_code", json!({"code": "print(x)", "sandbox_id": sandbox}));
    assert_eq!(
        answer.output().trim(),
        value.to_string(),
        "{answer:?}\n{}",
        server.log()
    );
}

fn only_what_does_not_fit_is_refused(files: u32) {
    let place = TestDir::with_settings(MANY_SANDBOXES);
    let server = Client::start(&mut with_files(files, &place.command(&["serve"])));
    let first = id_of(&server.call("create_sandbox", json!({})));
    set(&server, &first, 41);
    let before = launcher(&server);
    let calls: Vec<_> = (0..120)
        .map(|_| server.begin_call("create_sandbox", json!({})))
        .collect();
    let mut made = Vec::new();
    for call in calls {
        let answer = call.answer();
        if answer.is_error() {
            let text = answer.refused("limit_reached");
            assert!(text.contains("open files"), "{text}");
            assert!(text.contains("LimitNOFILE="), "{text}");
        } else {
            made.push(id_of(&answer));
        }
    }
    assert!(
        !made.is_empty() && made.len() < 120,
        "{} of 120\n{}",
        made.len(),
        server.log()
    );
    for (value, sandbox) in made.iter().enumerate() {
        set(&server, sandbox, value);
    }
    // A refused caller gets an error, and existing sandboxes keep their resources.
    let refused = server.call("create_sandbox", json!({"count": 50}));
    refused.refused("limit_reached");
    has(&server, &first, 41);
    for (value, sandbox) in made.iter().enumerate() {
        has(&server, sandbox, value);
    }
    for sandbox in made.iter().rev().take(2) {
        assert!(!server.call("close_sandbox", json!({"sandbox_id": sandbox})).is_error());
    }
    let again = server.call("create_sandbox", json!({}));
    assert!(!again.is_error(), "{again:?}\n{}", server.log());
    set(&server, &id_of(&again), 7);
    assert_eq!(launcher(&server), before, "{}", server.log());
    let log = server.log();
    assert!(log.contains("limits.sandboxes = 200, and "), "{log}");
    assert!(!log.contains("could not be made"), "{log}");
}

#[test]
fn with_128_open_files_only_the_sandboxes_that_do_not_fit_are_refused() {
    let _turn = begin!();
    only_what_does_not_fit_is_refused(128);
}

#[test]
fn with_512_open_files_only_the_sandboxes_that_do_not_fit_are_refused() {
    let _turn = begin!(alone);
    only_what_does_not_fit_is_refused(512);
}

#[test]
fn idle_sandboxes_are_evicted_for_requested_ones() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings(&format!("{MANY_SANDBOXES}[pool]\nparked = 6\n"));
    let server = Client::start(&mut with_files(128, &place.command(&["serve"])));
    // Idle sandboxes have the default memory limit, so none of them fits.
    let make = || server.call("create_sandbox", json!({"memory_mb": 300}));
    let mut made = 0;
    while !make().is_error() {
        made += 1;
        assert!(made < 200, "there is no end");
    }
    // The count equals that of a server without idle sandboxes, except for one or two that were being made.
    let without = TestDir::with_settings(&format!("{MANY_SANDBOXES}[pool]\nparked = 0\n"));
    let bare = Client::start(&mut with_files(128, &without.command(&["serve"])));
    let mut alone = 0;
    while !bare.call("create_sandbox", json!({"memory_mb": 300})).is_error() {
        alone += 1;
    }
    assert!(made + 3 >= alone, "{made} beside waiting ones, {alone} without");
}

#[test]
fn an_idle_sandbox_holds_few_descriptors() {
    const SANDBOX_COUNT: usize = 24;
    let _turn = begin!(alone);
    let place = TestDir::with_settings(&format!("{MANY_SANDBOXES}[pool]\nparked = 0\n"));
    let server = Client::start(&mut place.command(&["serve"]));
    let first = id_of(&server.call("create_sandbox", json!({})));
    set(&server, &first, 0);
    let launcher = launcher(&server);
    // Idle sandboxes, and sandboxes that are ending, settle first.
    // The server opens the history's database at the first write.
    let held = || machine::descriptors_but(server.pid(), "history.db") + machine::descriptors(launcher);
    let settled = || {
        // A launcher with a watchdog opens files of /proc all the time, so the lowest count is used.
        let mut fewest = (usize::MAX, 0);
        until(sandcell_e2e::DEFAULT_TIMEOUT, "descriptors stay as they are", || {
            let now = held();
            fewest = if now < fewest.0 {
                (now, 0)
            } else {
                (fewest.0, fewest.1 + 1)
            };
            (fewest.1 > 400).then_some(fewest.0)
        })
    };
    let before = settled();
    let made = server.call("create_sandbox", json!({"count": SANDBOX_COUNT}));
    let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
    let idle = settled() - before;
    for id in &ids {
        set(&server, id, 1);
    }
    let with_session = settled() - before;
    println!("{idle} and {with_session} descriptors of {SANDBOX_COUNT} sandboxes, without and with a session");
    // An ordinary user's launcher cannot open namespaces again, so it keeps them open. With a control group there is a
    // counter, which the launcher keeps open while it has many descriptors.
    let (most, most_with_session) = if is_root() { (7, 8) } else { (15, 10) };
    // The launcher has up to four spare processes, each with a socket and a pidfd.
    let ahead = 8;
    assert!(
        idle <= most * SANDBOX_COUNT + 4,
        "{idle} descriptors of {SANDBOX_COUNT} sandboxes"
    );
    assert!(
        with_session <= most_with_session * SANDBOX_COUNT + ahead,
        "{with_session} descriptors of {SANDBOX_COUNT} sandboxes with a session"
    );
}

#[test]
fn doctor_reports_how_many_sandboxes_fit_and_the_limiting_resource() {
    let _turn = begin!();
    let place = TestDir::with_settings(MANY_SANDBOXES);
    let output = with_files(256, &place.command(&["doctor", "--json"])).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let fit = told["capacity"]["sandboxes"].as_u64().unwrap();
    assert!((1..60).contains(&fit), "{told}");
    assert_eq!(told["capacity"]["allowed"], 200);
    let tightest = &told["capacity"]["limits"][0];
    assert_eq!(tightest["name"], "open_files", "{tightest}");
    assert!(tightest["limit"].as_str().unwrap().contains("256"), "{tightest}");
    assert!(tightest["remedy"].as_str().unwrap().contains("ulimit -n"), "{tightest}");
}
