//! Each step of making a sandbox fails in a running server with three tenants and twenty busy sandboxes. Only that
//! sandbox is not made. Its caller gets the reached limit, other callers are not affected, the next call works, and
//! nothing is left.
//!
//! Only in builds with `fault-injection`, where `SANDCELL_TEST_FAULT` names a file with the error to inject.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests may panic and print; that is how they fail. Parts are shared with the end-to-end tests"
)]

use std::io::BufReader;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sandcell_jail::spec::{Fault, Site};
use serde_json::{Value, json};

use sandcell_e2e::client::Answer;
use sandcell_e2e::http::{Caller, Reply, Server, token};
use sandcell_e2e::machine::{self, ProcessIdentity};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

/// ENOMEM, EAGAIN, ENFILE, EMFILE, ENOSPC.
const RESOURCE_ERRORS: [i32; 5] = [12, 11, 23, 24, 28];
/// The promised recovery time is two seconds; a busy machine gets more.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
/// The number of busy sandboxes of each tenant: twenty in all.
const BUSY_SANDBOXES: [usize; 3] = [7, 7, 6];
/// The number of sandboxes to warm up: more than a launcher keeps control groups for.
const WARM_UP_SANDBOXES: usize = 40;
const WORK_CODE: &str = "open('started', 'w').close()
import os, time
while not os.path.exists('stop'): time.sleep(0.02)
print('done')";

struct Tenant {
    caller: Caller,
    sandboxes: Vec<Value>,
    calls: Vec<BufReader<TcpStream>>,
}

impl Tenant {
    fn at_work(caller: Caller, count: usize) -> Self {
        let made = caller.call("create_sandbox", json!({"count": count}));
        assert!(!made.is_error(), "{made:?}");
        let sandboxes = made.data()["sandbox_ids"].as_array().unwrap().clone();
        let begin = |id: &Value| {
            let call = json!({"code": WORK_CODE, "sandbox_id": id, "timeout_s": 600, "wait_s": 600});
            caller.begin(&caller.tool("execute_code", &call), "Connection: close\r\n")
        };
        let calls = sandboxes.iter().map(begin).collect();
        for id in &sandboxes {
            until(DEFAULT_TIMEOUT, "the code runs", || {
                let files = caller.call("list_files", json!({"sandbox_id": id}));
                files.all().contains("started").then_some(())
            });
        }
        Self {
            caller,
            sandboxes,
            calls,
        }
    }

    /// Ends the work and checks that it was not disturbed.
    fn finish(&mut self) {
        for id in &self.sandboxes {
            let file = json!({"sandbox_id": id, "path": "stop", "content": ""});
            let written = self.caller.call("write_file", file);
            assert!(!written.is_error(), "{written:?}");
        }
        for mut call in std::mem::take(&mut self.calls) {
            let answer = Answer(Reply::read(&mut call).unwrap().message()["result"].clone());
            assert_eq!((answer.status(), answer.output().trim()), ("ok", "done"), "{answer:?}");
        }
    }
}

/// The machine's resources that a server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerResources {
    processes: usize,
    groups: usize,
    descriptors_of_server: usize,
    descriptors_of_launcher: usize,
    mounts_of_launcher: usize,
}

impl ServerResources {
    fn no_more_than(&self, other: &Self) -> bool {
        self.processes <= other.processes
            && self.groups <= other.groups
            && self.descriptors_of_server <= other.descriptors_of_server
            && self.descriptors_of_launcher <= other.descriptors_of_launcher
            && self.mounts_of_launcher <= other.mounts_of_launcher
    }
}

struct Busy {
    server: Server,
    tenants: Vec<Tenant>,
    place: TestDir,
    launcher: u32,
    turn: usize,
}

impl Busy {
    fn start(settings: &str) -> Self {
        let place = TestDir::with_settings(&format!(
            "[limits]\nmemory_mb = 64\nsandboxes = 200\nsandboxes_per_caller = 100\n[pool]\nparked = 0\n{settings}"
        ));
        let tokens: Vec<String> = ["ann", "bob", "cyd"].map(|name| token(&place, &[name]).1).into();
        let mut serve = place.command(&["serve", "--http", "127.0.0.1:0"]);
        let server = Server::spawn(serve.env("SANDCELL_TEST_FAULT", place.path("fault.json")));
        let tenants = tokens.iter().zip(BUSY_SANDBOXES);
        let tenants = tenants.map(|(token, count)| Tenant::at_work(server.with_token(token), count));
        let tenants = tenants.collect();
        let launcher = launcher(server.pid());
        Self {
            server,
            tenants,
            place,
            launcher,
            turn: 0,
        }
    }

    fn fault_file(&self) -> PathBuf {
        self.place.path("fault.json")
    }

    /// Returns the next caller, in turn.
    fn next_caller(&mut self) -> &Caller {
        self.turn += 1;
        &self.tenants[self.turn % self.tenants.len()].caller
    }

    /// Makes a sandbox while this site fails. Returns false if this machine has no such site, so that the sandbox was
    /// made.
    fn fail(&mut self, at: Site, errno: i32) -> bool {
        let file = self.fault_file();
        // A server that reads a partly written file would find no fault.
        let draft = file.with_extension("draft");
        std::fs::write(&draft, serde_json::to_vec(&json!(Fault { at, errno })).unwrap()).unwrap();
        std::fs::rename(&draft, &file).unwrap();
        let answer = self.next_caller().call("create_sandbox", json!({}));
        std::fs::remove_file(&file).unwrap();
        if answer.is_error() {
            let text = answer.refused("limit_reached");
            assert!(!text.contains("restart"), "{at:?} with {errno}: {text}");
            return true;
        }
        let id = &answer.data()["sandbox_ids"][0];
        let closed = self.tenants[self.turn % self.tenants.len()]
            .caller
            .call("close_sandbox", json!({"sandbox_id": id}));
        assert!(!closed.is_error(), "{closed:?}");
        false
    }

    /// Makes a site fail with each error number. Returns false if this machine has no such site.
    fn fail_for_each_lack(&mut self, at: Site) -> bool {
        let failed = RESOURCE_ERRORS.map(|errno| self.fail(at, errno));
        let log = self.server.log();
        let caller = self.next_caller();
        until(RECOVERY_TIMEOUT, "the server works again", || {
            let answer = caller.call("create_run_close", json!({"code": "print(6 * 7)"}));
            (!answer.is_error() && answer.output().trim() == "42").then_some(())
        });
        assert!(failed.iter().all(|one| *one == failed[0]), "{at:?}: {failed:?}\n{log}");
        failed[0]
    }

    fn holds(&self) -> ServerResources {
        let processes = machine::descendants(self.server.pid());
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.launcher)).unwrap();
        ServerResources {
            processes: processes.len(),
            groups: machine::groups_of(&processes).len(),
            descriptors_of_server: machine::descriptors(self.server.pid()),
            descriptors_of_launcher: machine::descriptors(self.launcher),
            mounts_of_launcher: mounts.lines().count(),
        }
    }
}

fn launcher(server: u32) -> u32 {
    let is_launcher = |seen: &ProcessIdentity| {
        let line = std::fs::read(format!("/proc/{}/cmdline", seen.pid)).unwrap_or_default();
        let parent = machine::status(seen.pid, "PPid").unwrap_or_default();
        line.starts_with(b"sandcell-launcher\0") && parent == server.to_string()
    };
    let found = machine::descendants(server).into_iter().find(is_launcher);
    found.expect("the server has a launcher").pid
}

/// Waits until all of these are gone.
fn are_gone(processes: &[ProcessIdentity], groups: &[PathBuf]) {
    until(RECOVERY_TIMEOUT, "nothing is left", || {
        let left = processes.iter().any(ProcessIdentity::lives) || groups.iter().any(|folder| folder.exists());
        (!left).then_some(())
    });
}

fn each_step_fails(settings: &str) {
    let mut busy = Busy::start(settings);
    // Resources that are kept for later sandboxes exist before the count.
    let made = busy
        .next_caller()
        .call("create_sandbox", json!({"count": WARM_UP_SANDBOXES}));
    assert!(!made.is_error(), "{made:?}");
    let caller = &busy.tenants[busy.turn % busy.tenants.len()].caller;
    for id in made.data()["sandbox_ids"].as_array().unwrap() {
        assert!(!caller.call("close_sandbox", json!({"sandbox_id": id})).is_error());
    }
    let before = sandcell_e2e::settled(|| busy.holds());
    let began = Instant::now();
    let mut failed = 0;
    for site in Site::ALL.into_iter().chain(Site::OF_SERVER) {
        failed += usize::from(busy.fail_for_each_lack(site));
    }
    // An ordinary user's sandboxes have fewer sites.
    assert!(failed > 8, "{failed} sites failed");
    let mut steps = 0;
    while busy.fail_for_each_lack(Site::Step(steps)) {
        steps += 1;
    }
    assert!(steps > 30, "{steps} steps");
    println!("{failed} sites and {steps} steps failed in {:?}", began.elapsed());
    until(RECOVERY_TIMEOUT, "nothing is left of what failed", || {
        busy.holds().no_more_than(&before).then_some(())
    });
    busy.tenants.iter_mut().for_each(Tenant::finish);
    assert_eq!(launcher(busy.server.pid()), busy.launcher, "{}", busy.server.log());
    assert!(!busy.server.log().contains("panicked"), "{}", busy.server.log());
    let mut processes: Vec<ProcessIdentity> = machine::descendants(busy.server.pid()).into_iter().collect();
    let groups: Vec<PathBuf> = machine::groups_of(&processes.iter().cloned().collect())
        .into_iter()
        .collect();
    processes.push(machine::process(busy.server.pid()));
    busy.server.signal("-TERM");
    busy.server.wait(RECOVERY_TIMEOUT);
    are_gone(&processes, &groups);
    assert_eq!(busy.place.temporary_files(), Vec::<PathBuf>::new());
}

#[test]
fn a_failed_step_loses_one_sandbox_of_a_busy_server() {
    let _turn = begin!(alone);
    each_step_fails("");
}

#[test]
fn a_failed_step_loses_one_sandbox_of_a_busy_server_without_zygotes() {
    let _turn = begin!(alone);
    each_step_fails("warm_parents = false\n");
}

/// Idle sandboxes are made without a waiting caller: their faults affect no caller, and calls continue.
#[test]
fn idle_sandboxes_that_cannot_be_made_are_made_later() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[limits]\nmemory_mb = 64\n[pool]\nparked = 2\n");
    let fault = place.path("fault.json");
    std::fs::write(
        &fault,
        serde_json::to_vec(&json!(Fault {
            at: Site::Step(5),
            errno: 24
        }))
        .unwrap(),
    )
    .unwrap();
    let mut serve = place.command(&["serve", "--http", "127.0.0.1:0"]);
    let server = Server::spawn(serve.env("SANDCELL_TEST_FAULT", &fault));
    let caller = server.caller();
    caller.call("create_sandbox", json!({})).refused("limit_reached");
    std::fs::remove_file(&fault).unwrap();
    until(RECOVERY_TIMEOUT, "the server works again", || {
        let answer = caller.call("create_run_close", json!({"code": "print(6 * 7)"}));
        (!answer.is_error()).then_some(())
    });
}
