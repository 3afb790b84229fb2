use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;

use sandcell_e2e::client::Client;
use sandcell_e2e::machine::{self, ProcessIdentity};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, settled, settles, until};

/// The promised time after any end of the server until all its resources are gone.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The resources of a running server and its sandboxes, for checks afterwards.
struct ServerResources {
    server: ProcessIdentity,
    processes: BTreeSet<ProcessIdentity>,
    groups: BTreeSet<PathBuf>,
    mounts: BTreeSet<String>,
}

impl ServerResources {
    /// Records the resources of a server that has sandboxes; `mounts` lists the mounts without it.
    fn by(server: &Client, mounts: &BTreeSet<String>) -> Self {
        let processes = machine::descendants(server.pid());
        assert!(processes.len() >= 2, "a launcher and what it made: {processes:?}");
        assert_eq!(machine::mounts(), *mounts, "a sandbox's mounts never show on the host");
        Self {
            server: machine::process(server.pid()),
            groups: machine::groups_of(&processes),
            processes,
            mounts: mounts.clone(),
        }
    }

    /// Waits until all of these resources are gone.
    #[track_caller]
    fn is_gone(&self, place: &TestDir) {
        let left = || -> Vec<String> {
            let processes = self.processes.iter().chain([&self.server]).filter(|seen| seen.lives());
            let groups = self.groups.iter().filter(|folder| folder.exists());
            processes
                .map(|seen| format!("{seen:?}"))
                .chain(groups.map(|folder| folder.display().to_string()))
                .chain(place.temporary_files().iter().map(|file| file.display().to_string()))
                .collect()
        };
        let start = std::time::Instant::now();
        while !left().is_empty() {
            assert!(
                start.elapsed() < CLEANUP_TIMEOUT,
                "left after {CLEANUP_TIMEOUT:?}: {:#?}",
                left()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(machine::mounts(), self.mounts);
    }
}

/// Starts a server in a new process group with three sandboxes: one idle, one with processes that resist their end,
/// one in the middle of a call.
fn busy(place: &TestDir) -> Client {
    let server = Client::start(place.command(&["serve"]).process_group(0));
    let made = server.call("create_sandbox", json!({"count": 2}));
    assert!(!made.is_error(), "{made:?}\n{}", server.log());
    let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
    server.text("idle = True");
    let stubborn = "import os, signal, time\n\
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE): signal.signal(s, signal.SIG_IGN)\n\
        for _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n            while True: time.sleep(1)\n        while True: time.sleep(1)\n\
        print('ready')";
    let answer = server.call("execute_code", json!({"code": stubborn, "sandbox_id": ids[0]}));
    assert!(answer.output().contains("ready"), "{answer:?}");
    let running = "open('started', 'w').close()\nwhile True: pass";
    server.begin_call(
        "execute_code",
        json!({"code": running, "sandbox_id": ids[1], "timeout_s": 600}),
    );
    until(DEFAULT_TIMEOUT, "the call is under way", || {
        let answer = server.call("read_file", json!({"path": "started", "sandbox_id": ids[1]}));
        (!answer.is_error()).then_some(())
    });
    server
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    // A process may have ended already because another one did.
    assert!(matches!(
        kill_process(pid, signal),
        Ok(()) | Err(rustix::io::Errno::SRCH)
    ));
}

#[test]
fn end_of_input_leaves_nothing() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    let mut server = busy(&place);
    let held = ServerResources::by(&server, &mounts);
    server.hang_up();
    held.is_gone(&place);
    assert_eq!(server.wait(DEFAULT_TIMEOUT), Some(0), "{}", server.log());
}

#[test]
fn sigterm_leaves_nothing() {
    let _turn = begin!(alone);
    for polite in [Signal::TERM, Signal::INT] {
        let (place, mounts) = (TestDir::new(), machine::mounts());
        let server = busy(&place);
        let held = ServerResources::by(&server, &mounts);
        signal(server.pid(), polite);
        reaped(server, &held, &place);
    }
}

#[test]
fn a_killed_server_leaves_nothing() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    let server = busy(&place);
    let held = ServerResources::by(&server, &mounts);
    signal(server.pid(), Signal::KILL);
    reaped(server, &held, &place);
}

#[test]
fn a_killed_process_group_leaves_nothing() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    let server = busy(&place);
    let held = ServerResources::by(&server, &mounts);
    kill_process_group(Pid::from_raw(server.pid().try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    reaped(server, &held, &place);
}

#[test]
fn a_killed_idle_interpreter_is_not_handed_out() {
    let _turn = begin!();
    for warm in ["true", "false"] {
        let place = TestDir::with_settings(&format!("[pool]\nparked = 1\nwarm_parents = {warm}\n"));
        let server = Client::start(&mut place.command(&["serve"]));
        // The kernel may choose it when memory runs out; a zygote is killed with it here.
        let killed = until(DEFAULT_TIMEOUT, "an interpreter waits", || {
            let mut found = machine::descendants(server.pid());
            let inside = |seen: &ProcessIdentity| {
                machine::status(seen.pid, "NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1)
            };
            found.retain(|seen| seen.name.starts_with("python"));
            found.iter().any(inside).then_some(found)
        });
        // Wait until its warm-up cell has ended.
        std::thread::sleep(Duration::from_millis(300));
        for seen in &killed {
            signal(seen.pid, Signal::KILL);
        }
        until(DEFAULT_TIMEOUT, "they are gone", || {
            (!killed.iter().any(ProcessIdentity::lives)).then_some(())
        });
        std::thread::sleep(Duration::from_millis(100));
        let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
        assert_eq!(answer.output().trim(), "42", "{warm}: {answer:?}");
    }
}

#[test]
fn the_launcher_may_be_killed_at_any_time() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::with_settings("[pool]\nparked = 0\n"), machine::mounts());
    let server = Client::start(&mut place.command(&["serve"]));
    let mut held = BTreeSet::new();
    for round in 0..4 {
        let ids = server.call("create_sandbox", json!({"count": 3}));
        let ids = ids.data()["sandbox_ids"].as_array().expect("identifiers").clone();
        // Children of the launcher outside any sandbox: spare processes, and the fork server that makes them.
        let launcher = server.pid().to_string();
        let parent = |seen: &ProcessIdentity| machine::status(seen.pid, "PPid").unwrap_or_default();
        let outside = |seen: &&ProcessIdentity| {
            let inner = machine::status(seen.pid, "NSpid").unwrap_or_default();
            inner.split_whitespace().count() == 1 && parent(seen) != launcher && !seen.name.starts_with("python")
        };
        let makers = until(DEFAULT_TIMEOUT, "somebody waits to become a sandbox", || {
            let living = machine::descendants(server.pid());
            held.extend(living.clone());
            let found: Vec<ProcessIdentity> = living.iter().filter(outside).cloned().collect();
            (!found.is_empty()).then_some(found)
        });
        for seen in makers {
            signal(seen.pid, Signal::KILL);
        }
        for id in ids {
            let answer = server.call("execute_code", json!({"code": "print(6 * 7)", "sandbox_id": id}));
            assert_eq!(answer.output().trim(), "42", "{round}: {answer:?}");
        }
        let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
        assert_eq!(answer.output().trim(), "42", "{round}: {answer:?}");
    }
    let mut all = ServerResources::by(&server, &mounts);
    all.groups.extend(machine::groups_of(&held));
    all.processes.extend(held);
    server.hang_up();
    all.is_gone(&place);
}

#[test]
fn killing_the_server_processes_one_by_one_leaves_nothing() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    let server = busy(&place);
    let mut held = ServerResources::by(&server, &mounts);
    // The server and its helpers, but no process inside a sandbox: those must end by themselves.
    let outside = held
        .processes
        .iter()
        .filter(|seen| machine::status(seen.pid, "NSpid").is_none_or(|inner| inner.split_whitespace().count() == 1));
    for seen in outside {
        signal(seen.pid, Signal::KILL);
    }
    signal(server.pid(), Signal::KILL);
    // Folders of control groups may stay until the next start, because no process remains that could remove them.
    let groups = std::mem::take(&mut held.groups);
    reaped(server, &held, &place);
    // The launcher's process id stays in use until its adoptive parent has reaped it.
    for seen in held.processes.iter().filter(|seen| seen.name.contains("sandcell")) {
        until(DEFAULT_TIMEOUT, "it is reaped", || {
            (!std::path::Path::new(&format!("/proc/{}", seen.pid)).exists()).then_some(())
        });
    }
    let next = Client::start(&mut place.command(&["serve"]));
    assert_eq!(next.text("print('up again')").trim(), "up again");
    drop(next);
    // The next start sweeps the folders that the crash left.
    let left = || {
        groups
            .iter()
            .filter(|folder| folder.exists())
            .cloned()
            .collect::<Vec<_>>()
    };
    settles(left, &Vec::new());
}

#[test]
fn a_killed_launcher_loses_its_sandboxes_and_is_replaced() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    let launcher = || {
        let all = machine::descendants(server.pid());
        let mut found = all.into_iter().filter(|seen| {
            let line = std::fs::read(format!("/proc/{}/cmdline", seen.pid)).unwrap_or_default();
            let parent = machine::status(seen.pid, "PPid").unwrap_or_default();
            line.starts_with(b"sandcell-launcher\0") && parent.trim() == server.pid().to_string()
        });
        found.next()
    };
    let first = launcher().unwrap();
    signal(first.pid, Signal::KILL);
    until(DEFAULT_TIMEOUT, "it is gone", || (!first.lives()).then_some(()));
    let again = until(DEFAULT_TIMEOUT, "another launcher makes sandboxes", || {
        let answer = server.call("execute_code", json!({"code": "print('x' in globals(), 'again')"}));
        (answer.status() == "ok").then_some(answer)
    });
    let output = again.output();
    assert!(output.contains("the previous one was lost"), "{output}");
    assert!(output.trim().ends_with("False again"), "{output}");
    assert_ne!(launcher().unwrap().pid, first.pid);
    assert_eq!(server.text("print(2)").trim(), "2");
}

#[test]
fn a_stopped_launcher_or_sandbox_does_not_outlive_the_server() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    let server = busy(&place);
    let held = ServerResources::by(&server, &mounts);
    for seen in &held.processes {
        let inside = machine::status(seen.pid, "NSpid").is_some_and(|inner| inner.split_whitespace().count() > 1);
        if inside {
            // Root can stop any process; an ordinary user's sandbox has the same user id.
            signal(seen.pid, Signal::STOP);
        }
    }
    signal(server.pid(), Signal::KILL);
    reaped(server, &held, &place);
}

#[test]
fn a_client_that_disconnects_during_a_call_leaves_nothing() {
    let _turn = begin!(alone);
    let (place, mounts) = (TestDir::new(), machine::mounts());
    // A separate client between the test and the server, so that all its pipes close at once when it is killed.
    let script = "import subprocess, sys, time\n\
        p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n\
        def send(m): p.stdin.write(m + b'\\n'); p.stdin.flush()\n\
        send(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"c\",\"version\":\"1\"}}}')\n\
        p.stdout.readline()\n\
        send(b'{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}')\n\
        send(b'{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"execute_code\",\"arguments\":{\"code\":\"x = 1\"}}}')\n\
        p.stdout.readline()\n\
        send(b'{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"execute_code\",\"arguments\":{\"code\":\"while True: pass\",\"timeout_s\":600}}}')\n\
        print(p.pid, flush=True)\n\
        time.sleep(600)\n";
    let like = place.command(&["serve"]);
    let python = sandcell_e2e::python().unwrap();
    let mut client = std::process::Command::new(python)
        .args(["-I", "-c", script])
        .arg(like.get_program())
        .args(like.get_args())
        .env_clear()
        .envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(place.work())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(client.stdout.take().unwrap()), &mut line).unwrap();
    let pid: u32 = line.trim().parse().expect("the server's number");
    let held = ServerResources {
        server: machine::process(pid),
        processes: machine::descendants(pid),
        groups: machine::groups_of(&machine::descendants(pid)),
        mounts,
    };
    client.kill().unwrap();
    client.wait().unwrap();
    held.is_gone(&place);
}

#[test]
fn a_closed_sandbox_and_a_throwaway_run_leave_nothing_while_the_server_lives() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[pool]\nparked = 2\n");
    let server = Client::start(&mut place.command(&["serve"]));
    let made = server.call("create_sandbox", json!({"count": 2}));
    let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
    server.call("close_sandbox", json!({"sandbox_id": ids[0]}));
    // The resources with one idle sandbox, before and after others existed.
    let holds = || {
        let processes = machine::descendants(server.pid());
        let groups = machine::groups_of(&processes).len();
        (processes.len(), groups, machine::descriptors(server.pid()))
    };
    server.call("execute_code", json!({"code": "1", "sandbox_id": ids[1]}));
    let come_and_go = || {
        for _ in 0..3 {
            let id = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
            let daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)";
            server.call("execute_code", json!({"code": daemon, "sandbox_id": id}));
            server.call("close_sandbox", json!({"sandbox_id": id}));
            server.call("create_run_close", json!({"code": daemon}));
        }
    };
    come_and_go();
    let before = settled(holds);
    come_and_go();
    settles(holds, &before);
}

#[test]
fn the_death_of_one_sandbox_does_not_affect_others() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    server.text("kept = 'mine'");
    let other = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    let first = machine::first_of_its_sandbox(&server.interpreter(&other, "doomed"));
    signal(first.pid, Signal::KILL);
    until(DEFAULT_TIMEOUT, "it is gone", || (!first.lives()).then_some(()));
    let answer = server.call("execute_code", json!({"code": "1", "sandbox_id": other}));
    assert!(answer.is_error() || answer.state_lost(), "{answer:?}");
    assert_eq!(server.text("print(kept)").trim(), "mine");
}

#[test]
fn a_lost_default_sandbox_is_replaced_and_the_text_begins_with_that() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let old = server.run("kept = 1").sandbox();
    for seen in machine::descendants(server.pid()) {
        if machine::status(seen.pid, "NSpid").is_some_and(|inner| inner.split_whitespace().count() > 1) {
            signal(seen.pid, Signal::KILL);
        }
    }
    let answer = until(DEFAULT_TIMEOUT, "a new sandbox", || {
        let answer = server.run("print('kept' in globals())");
        (answer.status() == "ok").then_some(answer)
    });
    assert_ne!(answer.sandbox(), old);
    assert!(answer.output().contains("False"), "{answer:?}");
    assert!(answer.state_lost(), "{answer:?}");
    assert!(answer.all().starts_with("new sandbox"), "{answer:?}");
}

/// Checks the end of a server that was killed from outside.
#[track_caller]
fn reaped(mut server: Client, held: &ServerResources, place: &TestDir) {
    // This test is the server's parent: without this wait the server would stay as a zombie.
    server.wait(CLEANUP_TIMEOUT);
    held.is_gone(place);
}
