//! Faults around a server: its launcher is killed, stopped or frozen, other servers start and end, processes run out.
//! Each caller gets the reason, other callers lose nothing, the server recovers by itself, and nothing is left.

use std::collections::BTreeSet;
use std::io::BufReader;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::http::{Caller, Reply, Server, token};
use sandcell_e2e::machine::{self, ProcessIdentity};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, is_root, name_of, not_required, until};

/// The promised recovery time is two seconds; a busy machine gets more.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// The time limit for killed processes to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const BUSY_CODE: &str = "open('started', 'w').close()\nimport time\nwhile True: time.sleep(0.01)";

fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal);
}

/// The launchers of a server.
fn launchers(server: u32) -> Vec<ProcessIdentity> {
    let is_launcher = |seen: &ProcessIdentity| {
        let line = std::fs::read(format!("/proc/{}/cmdline", seen.pid)).unwrap_or_default();
        let parent = machine::status(seen.pid, "PPid").unwrap_or_default();
        line.starts_with(b"sandcell-launcher\0") && parent == server.to_string()
    };
    machine::descendants(server).into_iter().filter(is_launcher).collect()
}

fn launcher(server: u32) -> ProcessIdentity {
    until(DEFAULT_TIMEOUT, "the server has one launcher", || {
        <[ProcessIdentity; 1]>::try_from(launchers(server)).ok()
    })
    .into_iter()
    .next()
    .unwrap()
}

/// Waits until all of these processes have ended and all of these folders are removed.
#[track_caller]
fn are_gone(processes: &BTreeSet<ProcessIdentity>, groups: &BTreeSet<PathBuf>) {
    let start = Instant::now();
    loop {
        let living: Vec<_> = processes.iter().filter(|seen| seen.lives()).collect();
        let there: Vec<_> = groups.iter().filter(|folder| folder.exists()).collect();
        if living.is_empty() && there.is_empty() {
            return;
        }
        assert!(start.elapsed() < END_TIMEOUT, "left: {living:?} {there:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn cause(answer: &Answer) -> (String, String) {
    let cause = &answer.meta()["cause"];
    let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

/// Repeats the call until it succeeds. A call that began before the server noticed the launcher's end may lose its
/// sandbox.
fn soon(call: impl Fn() -> Answer) {
    let answer = until(RECOVERY_TIMEOUT, "a call ends well", || {
        let answer = call();
        let well = answer.status() == "ok";
        assert!(well || cause(&answer).0 == "session_lost", "{answer:?}");
        well.then_some(answer)
    });
    assert!(answer.output().trim_end().ends_with("42"), "{answer:?}");
}

/// Three tenants with two busy sandboxes each, and a call in each of them.
struct Tenants {
    server: Server,
    callers: Vec<Caller>,
    calls: Vec<BufReader<TcpStream>>,
    place: TestDir,
}

impl Tenants {
    fn at_work() -> Self {
        let place = TestDir::new();
        let tokens: Vec<String> = ["ann", "bob", "cyd"].map(|name| token(&place, &[name]).1).into();
        let server = Server::start(&place, &[]);
        let callers: Vec<Caller> = tokens.iter().map(|token| server.with_token(token)).collect();
        let mut calls = Vec::new();
        for caller in &callers {
            let made = caller.call("create_sandbox", json!({"count": 2}));
            assert!(!made.is_error(), "{made:?}");
            for id in made.data()["sandbox_ids"].as_array().unwrap() {
                let call = json!({"code": BUSY_CODE, "sandbox_id": id, "timeout_s": 100, "wait_s": 50});
                calls.push(caller.begin(&caller.tool("execute_code", &call), "Connection: close\r\n"));
                until(DEFAULT_TIMEOUT, "the code runs", || {
                    let files = caller.call("list_files", json!({"sandbox_id": id}));
                    files.all().contains("started").then_some(())
                });
            }
        }
        Self {
            server,
            callers,
            calls,
            place,
        }
    }

    /// Returns the answers to the running calls.
    fn answers(&mut self) -> Vec<Answer> {
        let calls = std::mem::take(&mut self.calls);
        let answer = |mut call| Answer(Reply::read(&mut call).unwrap().message()["result"].clone());
        calls.into_iter().map(answer).collect()
    }

    /// Checks that every caller can continue without any action.
    fn all_work(&self) {
        for caller in &self.callers {
            let once = json!({"code": "print(6 * 7)"});
            soon(|| caller.call("create_run_close", once.clone()));
            soon(|| caller.run("print(6 * 7)"));
        }
    }
}

fn every_tenant_goes_on(fault: impl Fn(u32), said: &str) {
    let mut tenants = Tenants::at_work();
    let first = launcher(tenants.server.pid());
    let processes = machine::descendants(tenants.server.pid());
    let groups = machine::groups_of(&processes);
    fault(first.pid);
    tenants.all_work();
    let answers = tenants.answers();
    assert_eq!(answers.len(), 6);
    for answer in &answers {
        let (code, message) = cause(answer);
        assert_eq!(code, "session_lost", "{answer:?}");
        assert!(message.contains(said), "{message}");
        assert!(!answer.all().contains("restart"), "{answer:?}");
    }
    assert_ne!(launcher(tenants.server.pid()).pid, first.pid);
    let log = tenants.server.log();
    assert!(!log.contains("zygote does not work"), "{log}");
    let mut all = processes;
    are_gone(&all, &groups);
    all = machine::descendants(tenants.server.pid());
    all.insert(machine::process(tenants.server.pid()));
    let groups = machine::groups_of(&all);
    tenants.server.signal("-TERM");
    tenants.server.wait(END_TIMEOUT);
    are_gone(&all, &groups);
    assert_eq!(tenants.place.temporary_files(), Vec::<PathBuf>::new());
}

#[test]
fn every_caller_sees_that_the_launcher_was_killed_and_continues() {
    let _turn = begin!(alone);
    every_tenant_goes_on(|launcher| signal(launcher, Signal::KILL), "was killed from outside");
}

#[test]
fn every_caller_sees_that_the_launcher_hung_and_continues() {
    let _turn = begin!(alone);
    every_tenant_goes_on(|launcher| signal(launcher, Signal::STOP), "did not answer");
}

#[test]
fn launchers_that_are_killed_in_a_row_are_all_replaced() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    for _ in 0..5 {
        signal(launcher(server.pid()).pid, Signal::KILL);
        soon(|| server.call("create_run_close", json!({"code": "print(6 * 7)"})));
    }
}

#[test]
fn a_lost_launcher_is_replaced_without_a_call() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let first = launcher(server.pid());
    signal(first.pid, Signal::KILL);
    until(RECOVERY_TIMEOUT, "another launcher runs", || {
        launchers(server.pid())
            .iter()
            .any(|seen| seen.pid != first.pid)
            .then_some(())
    });
}

/// Ends a server whose launcher is stopped, and checks that nothing is left.
fn ends_with_its_stopped_launcher(end: impl Fn(&Client)) {
    let place = TestDir::new();
    let mut server = Client::start(&mut place.command(&["serve"]));
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    let mut all = machine::descendants(server.pid());
    all.insert(machine::process(server.pid()));
    let groups = machine::groups_of(&all);
    signal(launcher(server.pid()).pid, Signal::STOP);
    end(&server);
    server.wait(END_TIMEOUT);
    are_gone(&all, &groups);
}

#[test]
fn an_ending_server_does_not_leave_its_stopped_launcher() {
    let _turn = begin!(alone);
    ends_with_its_stopped_launcher(Client::hang_up);
}

#[test]
fn a_killed_server_does_not_leave_its_stopped_launcher() {
    let _turn = begin!(alone);
    ends_with_its_stopped_launcher(|server| signal(server.pid(), Signal::KILL));
}

/// A control group of version 1, removed afterwards.
struct Group(PathBuf);

impl Group {
    fn of(controller: &str) -> Option<Self> {
        let parent = Path::new("/sys/fs/cgroup").join(controller);
        let folder = parent.join(format!("test-{}-{controller}", std::process::id()));
        (parent.join("tasks").exists() && std::fs::create_dir(&folder).is_ok()).then_some(Self(folder))
    }

    fn set(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        let parent = self.0.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = std::fs::write(&parent, pid);
        }
        // Remove the groups that a killed launcher has left.
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(entry.path());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn while_a_launcher_is_frozen_another_one_makes_sandboxes() {
    fn here() {}
    let _turn = begin!(alone);
    let Some(freezer) = Group::of("freezer") else {
        not_required(&name_of(here), "no control group of version 1 can be made that freezes");
        return;
    };
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Client::start(&mut place.command(&["serve"]));
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    let first = launcher(server.pid());
    freezer.set("cgroup.procs", &first.pid.to_string());
    freezer.set("freezer.state", "FROZEN");
    let begun = Instant::now();
    let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    assert!(begun.elapsed() < RECOVERY_TIMEOUT, "{:?}", begun.elapsed());
    freezer.set("freezer.state", "THAWED");
    soon(|| server.run("print(6 * 7)"));
}

/// Returns the same command in a new PID namespace, with the cgroups of this process.
fn in_pid_namespace(command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    inside.arg(command.get_program()).args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap_or_default());
    }
    inside.current_dir(command.get_current_dir().unwrap());
    inside
}

fn nothing_of_another_pid_namespace_is_ended(server: fn(&Command) -> Command, other: fn(&Command) -> Command) {
    let place = TestDir::with_settings("[limits]\nsandboxes_per_caller = 24\n");
    let server = Client::start(&mut server(&place.command(&["serve"])));
    let made = server.call("create_sandbox", json!({"count": 20}));
    let ids: Vec<Value> = made.data()["sandbox_ids"].as_array().unwrap().clone();
    for id in &ids {
        let answer = server.call("execute_code", json!({"code": "x = 6", "sandbox_id": id}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
    }
    let processes = machine::descendants(server.pid());
    let beside = TestDir::new();
    let script = beside.write("a.py", "print('hi')");
    let run = || {
        let mut command = other(&beside.command(&["run", script.to_str().unwrap()]));
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "hi", "{output:?}");
    };
    for _ in 0..3 {
        run();
        // A sandbox that needs pre-made groups.
        let fresh = server.call("create_run_close", json!({"code": "print(7)"}));
        assert_eq!(fresh.status(), "ok", "{fresh:?}");
    }
    for id in &ids {
        let answer = server.call("execute_code", json!({"code": "print(x)", "sandbox_id": id}));
        assert_eq!((answer.status(), answer.output().trim()), ("ok", "6"), "{answer:?}");
    }
    // All processes are killed at once, so that none can clean up.
    let groups = machine::groups_of(&processes);
    processes.iter().for_each(|seen| signal(seen.pid, Signal::KILL));
    signal(server.pid(), Signal::KILL);
    until(END_TIMEOUT, "all are dead", || {
        (!processes.iter().any(ProcessIdentity::lives)).then_some(())
    });
    run();
    are_gone(&processes, &groups);
}

#[test]
fn a_server_in_a_pid_namespace_loses_nothing_to_a_run_outside() {
    fn here() {}
    let _turn = begin!(alone);
    if !is_root() {
        not_required(&name_of(here), "only root shares control groups here");
        return;
    }
    nothing_of_another_pid_namespace_is_ended(in_pid_namespace, copy_of);
}

#[test]
fn a_server_loses_nothing_to_a_run_in_a_pid_namespace() {
    fn here() {}
    let _turn = begin!(alone);
    if !is_root() {
        not_required(&name_of(here), "only root shares control groups here");
        return;
    }
    nothing_of_another_pid_namespace_is_ended(copy_of, in_pid_namespace);
}

/// Returns a copy of the command.
fn copy_of(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        copy.env(name, value.unwrap_or_default());
    }
    copy.current_dir(command.get_current_dir().unwrap());
    copy
}

#[test]
fn an_exhausted_process_limit_is_named_and_nothing_is_lost() {
    fn here() {}
    let _turn = begin!(alone);
    let Some(pids) = Group::of("pids") else {
        not_required(
            &name_of(here),
            "no control group of version 1 can be made that counts processes",
        );
        return;
    };
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    // The server comes first, so that a launcher that it starts meanwhile is also in the group.
    pids.set("cgroup.procs", &server.pid().to_string());
    for seen in machine::descendants(server.pid()) {
        let inside = machine::status(seen.pid, "NSpid").is_some_and(|inner| inner.split_whitespace().count() > 1);
        if !inside {
            let _ = std::fs::write(pids.0.join("cgroup.procs"), seen.pid.to_string());
        }
    }
    pids.set("pids.max", "1");
    // The idle sandboxes are used up first.
    let refused = until(DEFAULT_TIMEOUT, "no sandbox can be made", || {
        let answer = server.call("create_sandbox", json!({}));
        answer.is_error().then_some(answer)
    });
    let text = refused.all();
    assert!(text.contains("limit_reached"), "{text}");
    assert!(text.contains(pids.0.to_str().unwrap()), "{text}");
    assert!(text.contains("pids.max"), "{text}");
    assert_eq!(server.text("print(x)").trim(), "1");
    pids.set("pids.max", "max");
    let made = until(RECOVERY_TIMEOUT, "sandboxes can be made again", || {
        let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
        (!answer.is_error()).then_some(answer)
    });
    assert_eq!(made.output().trim(), "42");
    assert_eq!(server.text("print(x)").trim(), "1");
}

#[test]
fn the_cause_of_a_killed_sandbox_is_reported() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let made = server.call("create_sandbox", json!({}));
    let id = made.data()["sandbox_ids"][0].clone();
    let inside = server.interpreter(&id, "victim");
    let call = server.begin_call(
        "execute_code",
        json!({"code": BUSY_CODE, "sandbox_id": id, "timeout_s": 100}),
    );
    until(DEFAULT_TIMEOUT, "the code runs", || {
        let files = server.call("list_files", json!({"sandbox_id": id}));
        files.all().contains("started").then_some(())
    });
    signal(machine::first_of_its_sandbox(&inside).pid, Signal::KILL);
    let (code, message) = cause(&call.answer());
    assert_eq!(code, "session_lost");
    assert!(
        message.contains("its first process was killed from outside"),
        "{message}"
    );
}

fn oom_score(pid: u32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn sandboxes_are_killed_before_the_server_when_memory_runs_out() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let sandbox = json!(server.run("x = 1").sandbox());
    let program = server.interpreter(&sandbox, "program");
    let first = machine::first_of_its_sandbox(&program);
    let launcher = launcher(server.pid());
    let [program, first, launcher, server] = [program.pid, first.pid, launcher.pid, server.pid()].map(oom_score);
    assert!(program > first && first > launcher, "{program} {first} {launcher}");
    assert_eq!(launcher, server);
}

/// Starts a server in a version 1 control group with this memory limit.
fn served_within(memory: &Group, bytes: u64, place: &TestDir) -> Client {
    memory.set("memory.limit_in_bytes", &bytes.to_string());
    started_within(memory, place)
}

/// Starts a server that is in this control group from its start.
fn started_within(group: &Group, place: &TestDir) -> Client {
    let serve = copy_of(&place.command(&["serve"]));
    let mut inside = Command::new("sh");
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    inside
        .args(["-c", &enter])
        .arg(serve.get_program())
        .args(serve.get_args());
    inside
        .env_clear()
        .envs(serve.get_envs().map(|(name, value)| (name, value.unwrap())));
    Client::start(inside.current_dir(serve.get_current_dir().unwrap()))
}

#[test]
fn an_oom_killed_launcher_is_reported_as_such() {
    fn here() {}
    let _turn = begin!(alone);
    let Some(memory) = Group::of("memory") else {
        not_required(
            &name_of(here),
            "no control group of version 1 can be made that counts memory",
        );
        return;
    };
    let place = TestDir::new();
    let server = served_within(&memory, 200_000_000, &place);
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    // Files in memory belong to no process, so the kernel chooses its victim by this score alone.
    let score = format!("/proc/{}/oom_score_adj", launcher(server.pid()).pid);
    std::fs::write(score, "1000").unwrap();
    let fill = "with open('/tmp/x', 'wb') as f:\n    while True: f.write(bytes(1 << 20))";
    let answer = server.call("execute_code", json!({"code": fill, "timeout_s": 60}));
    let (code, message) = cause(&answer);
    assert_eq!(code, "session_lost", "{answer:?}");
    assert!(message.contains("the kernel killed the launcher"), "{message}");
    let after = until(RECOVERY_TIMEOUT, "sandboxes can be made again", || {
        let answer = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
        (!answer.is_error()).then_some(answer)
    });
    assert_eq!(after.output().trim(), "42");
}

#[test]
fn an_interpreter_killed_by_an_outer_memory_limit_is_reported_as_such() {
    fn here() {}
    let _turn = begin!(alone);
    let Some(memory) = Group::of("memory") else {
        not_required(
            &name_of(here),
            "no control group of version 1 can be made that counts memory",
        );
        return;
    };
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = served_within(&memory, 200 << 20, &place);
    assert_eq!(server.text("x = 1\nprint(x)").trim(), "1");
    let answer = server.run("x = bytearray(400 << 20)");
    let (code, message) = cause(&answer);
    assert_eq!(code, "out_of_memory", "{answer:?}");
    assert!(
        message.contains("the server's control group allows 200 MiB"),
        "{message}"
    );
    let remedy = answer.meta()["cause"]["remedy"].as_str().unwrap_or_default().to_owned();
    assert!(remedy.contains("MemoryMax="), "{remedy}");
    soon(|| server.run("print(6 * 7)"));
}

#[test]
fn a_process_refused_by_an_outer_limit_is_reported_as_such() {
    fn here() {}
    let _turn = begin!(alone);
    let Some(pids) = Group::of("pids") else {
        not_required(
            &name_of(here),
            "no control group of version 1 can be made that counts processes",
        );
        return;
    };
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = started_within(&pids, &place);
    let id = server.call("create_sandbox", json!({})).data()["sandbox_ids"][0].clone();
    let run = |code: &str| server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    assert_eq!(run("x = 1\nprint(x)").output().trim(), "1");
    let used: u64 = std::fs::read_to_string(pids.0.join("pids.current"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    pids.set("pids.max", &(used + 20).to_string());
    let answer =
        run("import subprocess\nkept = []\nfor _ in range(60): kept.append(subprocess.Popen(['sleep', '100']))");
    let (code, message) = cause(&answer);
    assert_eq!(code, "process_limit", "{answer:?}");
    assert!(
        message.contains("the sandbox may have 128 processes and threads"),
        "{message}"
    );
    assert!(
        message.contains(&format!(
            "the server's control group allows {} for all that it runs",
            used + 20
        )),
        "{message}"
    );
    let remedy = answer.meta()["cause"]["remedy"].as_str().unwrap_or_default().to_owned();
    assert!(remedy.contains("pids.max"), "{remedy}");
    pids.set("pids.max", "max");
    assert_eq!(run("for child in kept: child.kill()\nprint(x)").output().trim(), "1");
}
