use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::packages::{command, stocked};
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::index::Wheel;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, is_root, machine, settled, until};

/// The interpreter has no parent inside: it entered from outside.
const CAME_FROM_OUTSIDE: &str = "import os\nassert os.getppid() == 0, os.getppid()\n";

/// Starts a server whose sessions are forks of a zygote with these modules.
fn with_zygote(place: &TestDir) -> Client {
    let server = Client::start(&mut place.command(&["serve"]));
    until(DEFAULT_TIMEOUT, "a session begins as a copy", || {
        let answer = fresh(&server, "import os\nprint(os.getppid())");
        (answer.output().trim() == "0").then_some(())
    });
    server
}

fn place(modules: &str) -> TestDir {
    TestDir::with_settings(&format!(
        "preload = [{modules}]\n[pool]\nparked = 0\nwarm_parents = true\n"
    ))
}

fn fresh(server: &Client, code: &str) -> Answer {
    let answer = server.call("create_run_close", json!({"code": code}));
    assert_eq!(answer.status(), "ok", "{answer:?}\n{}", server.log());
    answer
}

fn fresh_json(server: &Client, code: &str) -> Value {
    let answer = fresh(server, &format!("{CAME_FROM_OUTSIDE}{code}"));
    serde_json::from_str(answer.output().trim()).unwrap()
}

#[test]
fn a_forked_session_has_the_modules_and_no_state_of_another_session() {
    let _turn = begin!();
    let place = place("\"wave\", \"decimal\"");
    let server = with_zygote(&place);
    let answer = fresh(
        &server,
        &format!(
            "{CAME_FROM_OUTSIDE}import sys\nprint('wave' in sys.modules, 'decimal' in sys.modules)\n\
             import wave\nwave.mark = 1\nsys.secret = 'left behind'\nopen('note.txt', 'w').write('x')"
        ),
    );
    assert!(answer.output().starts_with("True True\n"), "{answer:?}");
    let answer = fresh(
        &server,
        &format!(
            "{CAME_FROM_OUTSIDE}import sys, wave\n\
             print(hasattr(wave, 'mark'), hasattr(sys, 'secret'), os.path.exists('note.txt'), os.getcwd(), os.environ['HOME'])"
        ),
    );
    assert_eq!(answer.output().trim(), "False False False /home/user /home/user");
}

#[test]
fn sessions_are_forked_by_default_and_their_warm_up_leaves_no_trace() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = with_zygote(&place);
    let answer = fresh_json(
        &server,
        "import json, sys\n\
         names = sorted(name for name in globals() if name[:2] != '__')\n\
         print(json.dumps([names, len(In), Out, sys.stdin.readable(), sorted(os.listdir('.')), \
         [name for name in ('last_type', 'last_value', 'last_traceback', 'last_exc') if hasattr(sys, name)]]))",
    );
    let names = [
        "In", "Out", "_", "__", "___", "_i", "_i1", "_ih", "_ii", "_iii", "_oh", "json", "os", "sys",
    ];
    let left: Vec<&str> = answer[0]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .filter(|name| !names.contains(name))
        .collect();
    assert_eq!(left, [""; 0]);
    // Any failure falls back to starting an interpreter, so the result alone would not show it.
    for _ in 0..20 {
        let answer = fresh(&server, "import os\nprint(os.getppid())");
        assert_eq!(answer.output().trim(), "0", "{answer:?}");
    }
    assert_eq!(
        json!([answer[1], answer[2], answer[3], answer[4], answer[5]]),
        json!([2, {}, true, [], []])
    );
}

#[test]
fn forked_sessions_share_no_randomness() {
    let _turn = begin!();
    let place = place("\"random\", \"tempfile\", \"uuid\", \"multiprocessing\", \"ssl\", \"secrets\"");
    let server = with_zygote(&place);
    let seen: Vec<Value> = (0..4)
        .map(|_| {
            fresh_json(
                &server,
                "import random, tempfile, uuid, multiprocessing, ssl, secrets, json\n\
                 print(json.dumps([random.random(), next(tempfile._get_candidate_names()), str(uuid.uuid4()), \
                 uuid.getnode(), multiprocessing.current_process().authkey.hex(), ssl.RAND_bytes(8).hex(), \
                 secrets.token_hex(8)]))",
            )
        })
        .collect();
    for at in 0..7 {
        let different: BTreeSet<String> = seen.iter().map(|values| values[at].to_string()).collect();
        assert_eq!(different.len(), seen.len(), "{at}: {seen:?}");
    }
}

#[test]
fn a_forked_session_is_placed_and_locked_down_like_a_started_program() {
    let _turn = begin!();
    let place = place("\"wave\"");
    let server = with_zygote(&place);
    let look = "import os, json, resource\n\
        names = ['Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Cpus_allowed_list']\n\
        lines = dict(line.rstrip('\\n').split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)\n\
        limits = [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith('RLIMIT_')]\n\
        spaces = {name: os.readlink('/proc/self/ns/' + name) for name in sorted(os.listdir('/proc/self/ns'))}\n\
        open_ones = sorted(os.readlink('/proc/self/fd/%d' % n).split(':')[0] for n in range(3))\n\
        print(json.dumps([{name: lines[name].strip() for name in names}, limits, spaces, open_ones, os.environ['PATH'][-30:]]))";
    let made = server.call("create_sandbox", json!({}));
    let sandbox = made.data()["sandbox_id"].clone();
    let run = |code: &str| {
        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": sandbox}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        answer.output().trim().to_owned()
    };
    let copy = run(&format!("{CAME_FROM_OUTSIDE}{look}"));
    // Only one process can enter; any later one is started inside.
    server.call("reset_session_state", json!({"sandbox_id": sandbox}));
    assert_eq!(run("import os\nprint(os.getppid())"), "1");
    assert_eq!(copy, run(look));
}

#[test]
fn a_forked_session_holds_no_descriptor_to_the_outside() {
    let _turn = begin!();
    let place = place("\"wave\"");
    let server = with_zygote(&place);
    let found = fresh_json(
        &server,
        "import json, ctypes, signal\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def refused(*call):\n    return libc.syscall(*call) == -1 and ctypes.get_errno() in (1, 38)\n\
         out = {'environ': open('/proc/self/environ').read(), 'children': len([p for p in os.listdir('/proc') if p.isdigit()])}\n\
         out['fds'] = [os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)]\n\
         out['setns'] = all(refused(308, fd, 0) for fd in range(64))\n\
         out['pidfd'] = refused(308, libc.syscall(434, 1, 0), 0x10000000)\n\
         out['setgroups'] = refused(116, 0, 0)\n\
         out['unshare'] = refused(272, 0x10000000)\n\
         out['clone'] = refused(56, 0x8000 | 17, 0, 0, 0, 0)\n\
         out['ptrace'] = refused(101, 16, 1, 0, 0)\n\
         out['maps'] = [words[5] for words in map(str.split, open('/proc/self/maps')) if len(words) > 5 and not words[5].startswith(('[', '/usr/', '/lib'))]\n\
         print(json.dumps(out))",
    );
    assert_eq!(found["environ"], "");
    assert_eq!(found["maps"], json!([]), "no file but the system's");
    for name in ["setns", "pidfd", "setgroups", "unshare", "clone", "ptrace"] {
        assert_eq!(found[name], true, "{name}: {found}");
    }
    for descriptor in found["fds"].as_array().unwrap() {
        let name = descriptor.as_str().unwrap();
        assert!(
            name.starts_with("pipe:") || name.starts_with("/dev/null") || name.starts_with("/proc/"),
            "{found}"
        );
    }
}

#[test]
fn a_forked_session_can_crash_be_interrupted_and_be_killed_without_the_zygote() {
    let _turn = begin!();
    let place = place("\"wave\"");
    let server = with_zygote(&place);
    let made = server.call("create_sandbox", json!({}));
    let sandbox = made.data()["sandbox_id"].clone();
    let run = |code: &str, timeout: u64| {
        server.call(
            "execute_code",
            json!({"code": code, "sandbox_id": sandbox, "timeout_s": timeout}),
        )
    };
    assert_eq!(run(&format!("{CAME_FROM_OUTSIDE}x = 5"), 30).status(), "ok");
    let answer = run("import time\nwhile True: time.sleep(1)", 1);
    assert_eq!(answer.status(), "timeout", "{answer:?}");
    assert_eq!(run("print(x)", 30).output().trim(), "5");
    let answer = run("import os\nos._exit(3)", 30);
    assert_eq!(answer.meta()["exit_code"], 3, "{answer:?}");
    assert_eq!(run("print(6 * 7)", 30).output().trim(), "42");
    server.call("close_sandbox", json!({"sandbox_id": sandbox}));
}

#[test]
fn a_killed_zygote_costs_only_time() {
    let _turn = begin!(alone);
    let place = place("\"wave\"");
    let mut server = with_zygote(&place);
    let parents = parents_of(&server);
    assert!(!parents.is_empty(), "{:?}", machine::descendants(server.pid()));
    for parent in parents {
        machine::kill(parent.pid);
    }
    for _ in 0..6 {
        let answer = fresh(&server, "print(6 * 7)");
        assert_eq!(answer.output().trim(), "42");
    }
    server.hang_up();
    assert!(server.wait(Duration::from_secs(20)).is_some());
}

/// Returns the zygotes of a server with idle sandboxes only.
fn parents_of(server: &Client) -> BTreeSet<machine::ProcessIdentity> {
    let mut found = machine::descendants(server.pid());
    found.retain(|seen| seen.name.starts_with("python"));
    found
}

#[test]
fn a_zygote_is_replaced_after_a_thousand_forks_unnoticed() {
    const AT_ONCE: usize = 4;
    const RUNS_EACH: usize = 280;
    let _turn = begin!(alone);
    let place = place("\"wave\"");
    let server = with_zygote(&place);
    let before = settled(|| parents_of(&server));
    assert_eq!(before.len(), 1, "{before:?}");
    // The old zygote still makes the workers that were requested before its successor was ready.
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for _ in 0..RUNS_EACH {
                    let answer = fresh(&server, &format!("{CAME_FROM_OUTSIDE}import wave\nprint(6 * 7)"));
                    assert_eq!(answer.output().trim(), "42", "{answer:?}\n{}", server.log());
                }
            });
        }
    });
    until(DEFAULT_TIMEOUT, "the one before ends", || {
        let after = parents_of(&server);
        (after.len() == 1 && after.is_disjoint(&before)).then_some(())
    });
}

#[test]
fn a_restart_inside_a_sandbox_does_not_count_against_the_zygote() {
    let _turn = begin!();
    let place = place("\"wave\"");
    let server = with_zygote(&place);
    let made = server.call("create_sandbox", json!({}));
    let sandbox = made.data()["sandbox_id"].clone();
    // Only one process can enter a sandbox from outside.
    for _ in 0..6 {
        let code = "import os\nprint(os.getppid())";
        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": sandbox}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        let reset = server.call("reset_session_state", json!({"sandbox_id": sandbox}));
        assert!(!reset.is_error(), "{reset:?}");
    }
    fresh(&server, CAME_FROM_OUTSIDE);
}

#[test]
fn a_session_killed_during_its_start_fails_only_its_own_call() {
    let _turn = begin!(alone);
    let place = place("\"wave\"");
    let mut server = with_zygote(&place);
    // The lasting processes of all sandboxes, without those that are ending and without spares in separate namespaces.
    let mut lasting = settled(|| machine::descendants(server.pid()));
    lasting.retain(|seen| machine::status(seen.pid, "NSpid").is_some_and(|ids| ids.split_whitespace().count() == 1));
    for round in 0..60_u64 {
        let begun = Instant::now();
        let call = server.begin_call("create_run_close", json!({"code": "print(6 * 7)"}));
        std::thread::sleep(Duration::from_micros(round % 20 * 600));
        for seen in machine::descendants(server.pid()).difference(&lasting) {
            machine::kill(seen.pid);
        }
        // The kill may have been too early or too late.
        let answer = call.answer();
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "a dead sandbox was waited for"
        );
        assert!(
            answer.is_error() || answer.status() != "ok" || answer.output().trim() == "42",
            "{answer:?}"
        );
    }
    // None of the sixty counts against the zygote. Spare processes that were killed must be gone first.
    settled(|| machine::descendants(server.pid()));
    let answer = fresh(&server, &format!("{CAME_FROM_OUTSIDE}print(6 * 7)"));
    assert_eq!(answer.output().trim(), "42");
    server.hang_up();
    assert!(server.wait(Duration::from_secs(20)).is_some());
}

#[test]
fn a_forked_session_enters_a_sandbox_with_a_session_of_another_language() {
    let _turn = begin!();
    let place = place("");
    let server = with_zygote(&place);
    let id = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    let bash = json!({"code": "echo $PPID", "language": "bash", "sandbox_id": id});
    assert_eq!(server.call("execute_code", bash).output().trim(), "1");
    let code = "import os, sys\nprint('told', file=sys.stderr)\nprint(os.getppid())";
    let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    assert!(answer.output().starts_with("0\n"), "{answer:?}");
    assert!(answer.output().contains("told"), "{answer:?}");
}

#[test]
fn a_forked_session_takes_snapshots_without_seeing_them_end() {
    let _turn = begin!();
    let place = place("");
    let server = with_zygote(&place);
    let id = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    let run = |code: &str| server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    let setup = "import os, signal, threading\nassert os.getppid() == 0\nx, ends = 41, []\n\
        handler = signal.signal(signal.SIGCHLD, lambda *told: ends.append(told))";
    assert_eq!(run(setup).status(), "ok");
    let copies = || {
        let mut found = machine::descendants(server.pid());
        found.retain(|seen| seen.name == "sandcell-copy" && seen.lives());
        found
    };
    for round in 1..4 {
        // Tasks of earlier cells are finished.
        let before = settled(copies);
        assert_eq!(run("x += 1").status(), "ok");
        until(DEFAULT_TIMEOUT, "the session has a new copy", || {
            let now = copies();
            // Automatic checkpoints are earlier copies.
            (!now.is_subset(&before)).then_some(())
        });
        let crash = run("os.abort()");
        assert_ne!(crash.status(), "ok", "{crash:?}");
        let look = "try:\n    child = os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError:\n    child = None\n\
            worker = threading.Thread(target=lambda: ends.append('ran'))\nworker.start(); worker.join(); ran = ends.pop()\n\
            native = threading.main_thread().native_id == threading.get_native_id() == os.getpid()\n\
            print(x, ends, child, ran, native, callable(signal.getsignal(signal.SIGCHLD)))";
        let answer = run(look);
        assert_eq!(
            answer.output().trim(),
            format!("{} [] None ran True True", 41 + round),
            "{answer:?}"
        );
    }
    let answer = run("print(os.system('exit 3') >> 8, len(ends))");
    assert_eq!(answer.output().trim(), "3 1", "{answer:?}");
}

#[test]
fn with_the_zygote_disabled_or_threaded_every_session_starts_separately() {
    let _turn = begin!();
    let place = TestDir::with_settings("preload = [\"wave\"]\n[pool]\nparked = 0\nwarm_parents = false\n");
    let server = Client::start(&mut place.command(&["serve"]));
    for _ in 0..3 {
        assert_eq!(fresh(&server, "import os\nprint(os.getppid())").output().trim(), "1");
    }
}

/// Returns the processor weights of a server's sandboxes, relative to the default.
fn weights(server: &Client) -> Vec<f64> {
    let mut processes = machine::descendants(server.pid());
    processes.insert(machine::process(server.pid()));
    let groups = machine::groups_of(&processes);
    let part = |folder: &std::path::PathBuf| {
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(name))
                .ok()?
                .trim()
                .parse::<f64>()
                .ok()
        };
        let shares = read("cpu.shares").map(|shares| shares / 1024.0);
        shares.or_else(|| Some(read("cpu.weight")? / 100.0))
    };
    groups.iter().filter_map(part).collect()
}

#[test]
fn sandboxes_made_ahead_have_low_cpu_weight_until_they_are_idle() {
    const IDLE_COUNT: usize = 6;
    let _turn = begin!(alone);
    let place = TestDir::with_settings(&format!("[pool]\nparked = {IDLE_COUNT}\n"));
    let server = Client::start(&mut place.command(&["serve"]));
    let mut least = 1.0_f64;
    until(DEFAULT_TIMEOUT, "all wait and weigh alike", || {
        let weights = weights(&server);
        least = weights.iter().copied().fold(least, f64::min);
        let inside = |seen: &&machine::ProcessIdentity| seen.name.starts_with("python");
        let waiting = machine::descendants(server.pid()).iter().filter(inside).count();
        (waiting > IDLE_COUNT && weights.iter().all(|weight| (weight - 1.0).abs() < 0.01)).then_some(())
    });
    // An ordinary user has no control groups here, and so no weights.
    if is_root() {
        assert!(least < 0.1, "{least}");
    }
    assert_eq!(server.text("print(6 * 7)").trim(), "42");
}

#[test]
fn a_forked_session_equals_a_separately_started_interpreter() {
    const SEEN_SCRIPT: &str = "import os, sys, json\n\
        stream = lambda it: [it.name, it.mode, it.encoding, it.errors, it.line_buffering, it.isatty(), it.buffer.raw.fileno()]\n\
        print(json.dumps([dict(os.environ), sys.path, stream(sys.stdout), stream(sys.stderr), sys.stdout is sys.__stdout__,\n\
        open('/proc/self/oom_score_adj').read(), os.getcwd(), sorted(os.listdir('/proc/self/fd'))]))";
    let _turn = begin!();
    let [copy, own] = ["true", "false"].map(|warm| {
        let place = TestDir::with_settings(&format!("[pool]\nparked = 0\nwarm_parents = {warm}\n"));
        let mut command = place.command(&["serve"]);
        let server = if warm == "true" {
            with_zygote(&place)
        } else {
            Client::start(&mut command)
        };
        let answer = fresh(&server, SEEN_SCRIPT);
        serde_json::from_str::<Value>(answer.output().trim()).unwrap()
    });
    assert_eq!(copy, own);
}

#[test]
fn a_forked_session_finds_the_stand_in_programs_of_commands() {
    let _turn = begin!();
    let place = place("");
    let server = with_zygote(&place);
    let found = fresh_json(
        &server,
        "import json, subprocess\n\
         run = lambda command: subprocess.run(command, shell=True, capture_output=True, text=True).stdout\n\
         print(json.dumps([run('command -v pip'), run('python -c \"print(6 * 7)\"'), os.environ['PATH'].split(':')[0]]))",
    );
    let [pip, answer, first] = [0, 1, 2].map(|at| found[at].as_str().unwrap().trim());
    assert_eq!(pip, format!("{first}/pip"), "{found}");
    assert_eq!(answer, "42", "{found}");
}

#[test]
fn a_forked_session_has_exactly_the_environment_of_its_sandbox() {
    let _turn = begin!();
    let place = place("");
    let server = with_zygote(&place);
    let variables = json!({"PATH": "/usr/bin", "TZ": "UTC+3", "GREETING": "grüße", "MEMORY_LIMIT_MB": "7"});
    let id = server.call("create_sandbox", json!({"env": variables})).data()["sandbox_id"].clone();
    let code = "import os, time, subprocess, json\nassert os.getppid() == 0\n\
        names = ['GREETING', 'MEMORY_LIMIT_MB', 'TZ', 'MKL_NUM_THREADS', 'POLARS_MAX_THREADS']\n\
        shown = subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout.splitlines()\n\
        print(json.dumps([[os.environ.get(name) for name in names], time.timezone, os.environ['PATH'].split(':')[-1], 'GREETING=grüße' in shown]))";
    let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
    let seen: Value = serde_json::from_str(answer.output().trim()).unwrap_or_else(|_| panic!("{answer:?}"));
    assert_eq!(
        seen,
        json!([["grüße", "7", "UTC+3", null, null], 10800, "/usr/bin", true])
    );
}

#[test]
fn a_session_that_waited_in_the_pool_gets_the_environment_of_its_sandbox() {
    let _turn = begin!();
    let place = TestDir::with_settings("preload = [\"os\", \"time\"]\n[pool]\nparked = 1\nwarm_parents = true\n");
    let server = with_zygote(&place);
    let variables = json!({
        "PATH": "/usr/bin", "TZ": "UTC+3", "GREETING": "grüße", "MEMORY_LIMIT_MB": "7", "EMPTY": "",
        "PYTHONPATH": "/home/user/modules",
    });
    let code = "import json, os, subprocess, sys, time\n\
        names = ['GREETING', 'MEMORY_LIMIT_MB', 'TZ', 'EMPTY', 'HOME']\n\
        shown = subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout.splitlines()\n\
        print(json.dumps([[os.environ.get(name) for name in names], time.timezone, os.environ['PATH'].split(':')[-1], \
        'GREETING=grüße' in shown, sys.path[:2]]))";
    until(DEFAULT_TIMEOUT, "a session of the pool is used", || {
        std::thread::sleep(Duration::from_millis(100));
        let asked = uptime();
        let id = server.call("create_sandbox", json!({"env": variables})).data()["sandbox_id"].clone();
        let call = |code: &str| server.call("execute_code", json!({"code": code, "sandbox_id": id}));
        let answer = call(code);
        let seen: Value = serde_json::from_str(answer.output().trim()).unwrap_or_else(|_| panic!("{answer:?}"));
        let expected = json!([
            ["grüße", "7", "UTC+3", "", "/home/user"],
            10800,
            "/usr/bin",
            true,
            ["", "/home/user/modules"]
        ]);
        assert_eq!(seen, expected);
        let command = json!({"command": "echo $GREETING $TZ", "sandbox_id": id});
        assert_eq!(server.call("run_command", command).output().trim(), "grüße UTC+3");
        let answer = call("%%bash\necho $GREETING $TZ");
        assert_eq!(answer.output().trim(), "grüße UTC+3");
        // A new session has them, too.
        let started = call("print(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19])");
        let started: f64 = started.output().trim().parse().unwrap();
        server.call("reset_session_state", json!({"sandbox_id": id}));
        assert_eq!(
            call("import os; print(os.environ['GREETING'])").output().trim(),
            "grüße"
        );
        server.call("close_sandbox", json!({"sandbox_id": id}));
        // In hundredths of a second since the machine started.
        (started / 100.0 + 0.02 < asked).then_some(())
    });
}

/// Returns the seconds since the machine started.
fn uptime() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_forked_session_has_working_locks_and_threads() {
    let _turn = begin!();
    let place = place("\"logging\", \"threading\", \"concurrent.futures\", \"multiprocessing.pool\", \"random\"");
    let server = with_zygote(&place);
    let seen = fresh_json(
        &server,
        "import concurrent.futures, io, json, logging, multiprocessing, random, threading\n\
         logging.basicConfig(stream=io.StringIO())\n\
         main = threading.main_thread()\n\
         threads = [threading.Thread(target=logging.warning, args=('hello',)) for _ in range(3)]\n\
         [thread.start() for thread in threads], [thread.join() for thread in threads]\n\
         with concurrent.futures.ThreadPoolExecutor(2) as some: found = list(some.map(abs, [-1, 2]))\n\
         with multiprocessing.Pool(2) as pool: found += pool.map(abs, [-3])\n\
         reader, writer = os.pipe()\n\
         if os.fork() == 0:\n    logging.warning('child')\n    os.write(writer, b'%f' % random.random())\n    os._exit(0)\n\
         os.wait()\n\
         print(json.dumps([found, main is threading.current_thread(), main.native_id == os.getpid(), threading.active_count(),\n\
         os.read(reader, 99) == b'%f' % random.random()]))",
    );
    assert_eq!(seen, json!([[1, 2, 3], true, true, 1, false]));
}

#[test]
fn the_fork_hooks_of_modules_are_called() {
    let _turn = begin!();
    for (wants, expected) in [
        ("after_in_child=heard('child')", json!(["child"])),
        (
            "before=heard('before'), after_in_parent=heard('parent'), after_in_child=heard('child')",
            json!(["before", "child"]),
        ),
    ] {
        let settings = "base = \"tools\"\npreload = [\"asks\"]\n[pool]\nparked = 0\nwarm_parents = true\n";
        let (place, index) = (TestDir::with_settings(settings), stocked());
        let source = format!(
            "import os\nseen = []\ndef heard(word): return lambda: seen.append(word)\nos.register_at_fork({wants})\n"
        );
        index.add(&Wheel::new("asks", "1.0").file("asks.py", &source));
        let built = command(&place, &index.url(), &["base", "build", "tools", "asks"])
            .output()
            .unwrap();
        assert!(built.status.success(), "{built:?}");
        let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
        let look = "import json, os, sys\n\
                    print(os.getppid() == 0 and 'asks' in sys.modules)\nimport asks\nprint(json.dumps(asks.seen))";
        let seen = until(DEFAULT_TIMEOUT, "a session begins as a copy with the module", || {
            let said = fresh(&server, look).output();
            said.strip_prefix("True\n").map(str::to_owned)
        });
        assert_eq!(serde_json::from_str::<Value>(seen.trim()).unwrap(), expected, "{wants}");
    }
}

#[test]
fn a_forked_session_has_the_modules_of_the_base_of_its_sandbox() {
    let _turn = begin!();
    let settings = "base = \"tools\"\npreload = [\"demo_one\"]\n[pool]\nparked = 0\nwarm_parents = true\n";
    let (place, index) = (TestDir::with_settings(settings), stocked());
    let build = |package: &str| {
        let arguments = ["base", "build", "tools", package];
        let built = command(&place, &index.url(), &arguments).output().unwrap();
        assert!(built.status.success(), "{built:?}");
    };
    build("demo-one==1.0");
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    // A sandbox has its base from the start, regardless of the process that loads the module.
    let look = "import os, sys\nprint(os.getppid(), 'demo_one' in sys.modules)\nimport demo_one, helper_one\n\
                print(demo_one.answer, demo_one.__file__, len(os.listdir(os.path.dirname(helper_one.__file__))) > 1)";
    let copy_with = |answer: &str, file: &str| {
        until(
            DEFAULT_TIMEOUT,
            "a session begins as a copy with the base's module",
            || {
                let said = fresh(&server, look).output();
                let (first, second) = said.trim().split_once('\n').unwrap();
                assert_eq!(
                    second,
                    format!("{answer} /opt/sandcell/0/{file} True"),
                    "{}",
                    server.log()
                );
                (first == "0 True").then_some(())
            },
        );
    };
    copy_with("42", "demo_one.py");
    // The zygote has no open files of the folders that it was shown.
    let parents = settled(|| parents_of(&server));
    assert!(!parents.is_empty());
    let folders = parents
        .iter()
        .filter_map(|parent| std::fs::read_dir(format!("/proc/{}/fd", parent.pid)).ok());
    let mut open: Vec<_> = folders
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .collect();
    // An ordinary user cannot list its open files.
    assert!(!open.is_empty() || !is_root(), "{parents:?}");
    open.retain(|target| target.starts_with("/") && !target.starts_with("/dev"));
    assert_eq!(open, [""; 0].map(std::path::PathBuf::from));

    // A package installed later wins over the zygote's loaded module, if no session has begun yet.
    let answer = server.call(
        "create_run_close",
        json!({"code": "import demo_one\nprint(demo_one.answer)", "packages": ["demo-one==2.0"]}),
    );
    assert_eq!(answer.output().trim(), "2", "{answer:?}");

    // Another base of that name: the first sandbox already has its modules, and a zygote loads them soon.
    build("demo-one==2.0");
    let look =
        "import os, sys\nprint(os.getppid(), 'demo_one' in sys.modules)\nimport demo_one\nprint(demo_one.answer)";
    let mut last = String::new();
    until(DEFAULT_TIMEOUT, "the next parent has the new base", || {
        last = fresh(&server, look).output();
        assert!(last.ends_with("\n2\n"), "{last}\n{}", server.log());
        last.starts_with("0 True\n").then_some(())
    });
}
