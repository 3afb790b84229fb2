use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::machine::{ProcessIdentity, descendants};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, until};

const SEGFAULT_CODE: &str = "import ctypes\nctypes.string_at(0)";

/// Without automatic checkpoints, each of which is a copy of a session.
const NO_UNDO: &str = "[sessions]\nundo = 0\n";

/// Allocates memory until it is killed. If a resource limit stops it earlier, it continues with memory outside that
/// limit.
const HOARD_CODE: &str = "import mmap\nhoard, piece = [], bytes(4 << 20)\n\
                     try:\n    while True: hoard.append(bytearray(4 << 20))\n\
                     except MemoryError:\n    while True:\n        hoard.append(mmap.mmap(-1, 4 << 20))\n        hoard[-1].write(piece)";

/// A server whose sessions keep snapshots, and the snapshots that a test has seen.
struct Kept {
    server: Client,
    copies: BTreeSet<ProcessIdentity>,
}

impl Kept {
    fn start(place: &TestDir) -> Self {
        Self {
            server: Client::start(&mut place.command(&["serve"])),
            copies: BTreeSet::new(),
        }
    }

    fn copies(&self) -> BTreeSet<ProcessIdentity> {
        let mut found = descendants(self.server.pid());
        found.retain(|seen| seen.name == "sandcell-copy" && seen.lives());
        found
    }

    /// Runs code that must succeed, and waits until the session has made a snapshot.
    fn text(&mut self, code: &str) -> String {
        let text = self.server.text(code);
        self.copied();
        text
    }

    /// Waits for a new snapshot.
    fn copied(&mut self) {
        self.copies = until(DEFAULT_TIMEOUT, "the session has a new copy", || {
            let now = self.copies();
            // Automatic checkpoints are earlier copies.
            (!now.is_subset(&self.copies)).then_some(now)
        });
    }

    fn dies(&self, code: &str) -> Answer {
        let answer = self.server.call("execute_code", json!({"code": code, "timeout_s": 1}));
        assert!(!answer.is_error(), "code that dies is a normal result: {answer:?}");
        assert_ne!(answer.status(), "ok", "{answer:?}");
        answer
    }
}

/// Checks that nothing was lost, and that both the text and the object report it.
#[track_caller]
fn restored(answer: &Answer, cause: &str) -> Value {
    assert_eq!(answer.cause(), cause, "{answer:?}");
    assert!(!answer.state_lost(), "{answer:?}");
    assert!(!answer.verdict().contains("state_lost"), "{}", answer.verdict());
    assert!(
        answer.verdict().contains("\nrestored: variables"),
        "{}",
        answer.verdict()
    );
    let restored = answer.meta()["restored"].clone();
    assert!(restored.is_object(), "{answer:?}");
    restored
}

#[track_caller]
fn lost(answer: &Answer, why: &str) {
    assert!(answer.state_lost(), "{answer:?}");
    assert!(answer.meta()["restored"].is_null(), "{answer:?}");
    let verdict = answer.verdict();
    assert!(verdict.contains("state_lost") && verdict.contains(why), "{verdict}");
}

#[test]
fn variables_survive_every_kind_of_death() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 192\n");
    let mut kept = Kept::start(&place);
    kept.text("import random\nrandom.seed(5)\nfirst = random.random()\nrows = {'a': [1, 2]}");
    let id = kept.server.run("rows['b'] = [3]");
    kept.copied();
    for (death, cause) in [
        (SEGFAULT_CODE, "crashed"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "crashed"),
        ("import os\nos._exit(3)", "crashed"),
        (HOARD_CODE, "out_of_memory"),
        (
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
        ),
    ] {
        // Where the watchdog enforces limits, a limit of the process stops every allocation first.
        if death == HOARD_CODE && !rustix::process::geteuid().is_root() {
            continue;
        }
        let code = format!("print('last words', flush=True)\nrows.clear()\n{death}");
        let answer = kept.dies(&code);
        let back = restored(&answer, cause);
        assert_eq!(back["missed"], 0, "{death}: {answer:?}");
        assert!(answer.output().contains("last words"), "{death}: {answer:?}");
        kept.copied();
        assert_eq!(kept.text("print(rows)").trim(), "{'a': [1, 2], 'b': [3]}", "{death}");
    }
    let answer = kept.dies(&format!("rows = 1\n{SEGFAULT_CODE}"));
    assert_ne!(restored(&answer, "crashed")["execution_id"], id.meta()["execution_id"]);
    // The state of `random` is restored like a variable.
    let text = kept
        .server
        .text("again = random.Random(5)\nprint(again.random() == first, again.random() == random.random())");
    assert_eq!(text.trim(), "True True");
}

#[test]
fn variables_survive_a_death_right_after_the_call_that_made_them() {
    let _turn = begin!();
    let place = TestDir::new();
    let kept = Kept::start(&place);
    let bomb = "import os\nclass Bomb:\n    def __repr__(self): os._exit(1)\n    __iadd__ = __radd__ = __del__ = lambda self, other=0: \
                os._exit(1)\nbomb, keep = Bomb(), 1";
    for (setup, death) in [
        ("keep = 1", "import os\nos._exit(1)"),
        ("keep = 1", SEGFAULT_CODE),
        ("keep = 1", "import os, signal\nos.kill(0, signal.SIGKILL)"),
        (
            "keep = 1",
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        ),
        (bomb, "bomb"),
        (bomb, "bomb += 1"),
        (bomb, "keep = 1 + bomb"),
        (bomb, "bomb = 1"),
        (bomb, "print(bomb)"),
    ] {
        let sandbox = kept.server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
        let call = |code: &str| {
            let arguments = json!({"code": code, "sandbox_id": sandbox, "timeout_s": 1});
            kept.server.call("execute_code", arguments)
        };
        // No pauses: each call follows the answer before it.
        for round in 0..if setup == bomb { 1 } else { 3 } {
            assert_eq!(call(setup).status(), "ok");
            for _ in 0..5 {
                assert_eq!(call("keep += 1").status(), "ok");
            }
            let answer = call(death);
            assert_ne!(answer.status(), "ok", "{death}: {answer:?}");
            assert!(!answer.state_lost(), "{death}, round {round}: {answer:?}");
            assert_eq!(
                answer.meta()["restored"]["missed"],
                0,
                "{death}, round {round}: {answer:?}"
            );
            assert_eq!(call("print(keep)").output().trim(), "6", "{death}, round {round}");
        }
        kept.server.call("close_sandbox", json!({"sandbox_id": sandbox}));
    }
}

#[test]
fn threads_of_the_last_call_prevent_a_snapshot_and_the_result_states_it() {
    let _turn = begin!();
    let place = TestDir::new();
    let kept = Kept::start(&place);
    kept.server
        .text("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()");
    lost(&kept.dies("import os\nos._exit(1)"), "threads");
}

#[test]
fn without_memory_for_a_snapshot_an_older_one_is_restored_and_the_result_states_the_loss() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nprocesses = 16\n");
    let mut kept = Kept::start(&place);
    kept.text("import os, subprocess, time\nkeep = 1");
    let full = "children, keep = [], 2\n\
                try:\n    while True: children.append(subprocess.Popen(['sleep', '600']))\nexcept OSError: pass";
    assert_eq!(kept.server.run(full).status(), "ok");
    let answer = kept.dies("os._exit(1)");
    assert_eq!(restored(&answer, "crashed")["missed"], 1, "{answer:?}");
    let said = "changes by the call after it are lost, because no process could be started for a snapshot";
    assert!(answer.verdict().contains(said), "{}", answer.verdict());
    assert_eq!(kept.server.text("print(keep)").trim(), "1");
}

#[test]
fn sessions_without_snapshots_report_why_variables_are_lost() {
    let _turn = begin!();
    let place = TestDir::with_settings("[sessions]\nrestore = false\n");
    let kept = Kept::start(&place);
    let call = |language: &str, code: &str| {
        let arguments = json!({"code": code, "language": language});
        kept.server.call("execute_code", arguments)
    };
    for (language, setup, death, why) in [
        (
            "python",
            "keep = 1",
            "import os\nos.kill(os.getpid(), 9)",
            "`sessions.restore` is off",
        ),
        ("bash", "keep=1", "kill -9 $$", "only Python sessions have snapshots"),
    ] {
        assert_eq!(call(language, setup).status(), "ok");
        lost(&call(language, death), why);
    }
}

#[test]
fn the_result_names_the_execution_of_the_restored_state() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    kept.text("a = 1");
    let last = kept.server.run("a = 2");
    kept.copied();
    let answer = kept.dies(SEGFAULT_CODE);
    let back = restored(&answer, "crashed");
    assert_eq!(back["execution_id"], last.meta()["execution_id"], "{answer:?}");
    assert_eq!(back["cell"], 2);
    let id = last.meta()["execution_id"].as_str().unwrap();
    assert!(answer.verdict().contains(id), "{}", answer.verdict());
}

#[test]
fn a_handler_that_raises_during_a_snapshot_leaves_no_untracked_process() {
    let _turn = begin!();
    let place = TestDir::with_settings(NO_UNDO);
    let server = Kept::start(&place);
    let run = |code: &str| server.server.call("execute_code", json!({"code": code}));
    // The handler runs as soon as signals are unblocked.
    let setup = "import os, signal, subprocess\ntold = []\ndef raises(number, frame):\n    \
        if frame.f_code.co_name == 'make':\n        told.append(number)\n        raise TimeoutError\n\
        handler = signal.signal(signal.SIGUSR1, raises)\n\
        loud = subprocess.Popen(['sh', '-c', 'while :; do kill -USR1 $PPID || exit; sleep 0.0005; done'])";
    assert_eq!(run(setup).status(), "ok");
    until(DEFAULT_TIMEOUT, "the handler has raised several times", || {
        let times = run("print(len(told))").output().trim().parse::<usize>().ok()?;
        std::thread::sleep(Duration::from_millis(100));
        assert!(server.copies().len() < 3, "{:?}", server.copies());
        (times >= 5).then_some(())
    });
    assert_eq!(run("loud.kill(); loud.wait(); 1").status(), "ok");
    until(DEFAULT_TIMEOUT, "one copy is left", || {
        (server.copies().len() == 1).then_some(())
    });
}

#[test]
fn a_restored_session_prints_even_if_stdout_was_a_closed_file() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut session = Kept::start(&place);
    session.text("import os, sys\nsys.stdout = open('log', 'w')\nx = 41");
    session.dies("os.abort()");
    assert_eq!(session.server.text("print(x + 1)").trim(), "42");
}

#[test]
fn two_crashes_in_a_row_lose_nothing() {
    let _turn = begin!();
    let place = TestDir::with_settings(NO_UNDO);
    let mut kept = Kept::start(&place);
    kept.text("a = 1");
    for _ in 0..3 {
        restored(&kept.dies(SEGFAULT_CODE), "crashed");
        kept.copied();
    }
    assert_eq!(kept.text("print(a)").trim(), "1");
    until(DEFAULT_TIMEOUT, "one copy is kept, not more", || {
        (kept.copies().len() == 1).then_some(())
    });
}

#[test]
fn a_crash_of_the_first_cell_has_no_snapshot_to_restore() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    let answer = kept.dies(SEGFAULT_CODE);
    lost(&answer, "fresh interpreter");
    assert!(!answer.verdict().contains("previous sandbox"), "{}", answer.verdict());
    kept.text("a = 1");
    restored(&kept.dies(SEGFAULT_CODE), "crashed");
}

#[test]
fn open_resources_are_reported_closed_after_a_restore() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    kept.text(
        "import asyncio, os, socket, sqlite3, subprocess\n\
         log = open('log.txt', 'w'); log.write('in the buffer')\n\
         kept_file = open('kept.txt', 'w'); kept_file.write('written'); kept_file.flush()\n\
         server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n\
         number = os.open('raw.txt', os.O_WRONLY | os.O_CREAT)\n\
         base = sqlite3.connect('base.db'); base.execute('create table t (x)'); base.commit()\n\
         child = subprocess.Popen(['sleep', '600'], stdin=subprocess.PIPE)\n\
         loop = None\n\
         async def find():\n    global loop\n    loop = asyncio.get_running_loop()\n\
         await find()",
    );
    restored(&kept.dies(SEGFAULT_CODE), "crashed");
    let report = kept.server.json(
        "import json\n\
         def says(action):\n    try:\n        return action()\n    except Exception as error:\n        return type(error).__name__\n\
         def reuse():\n    new = socket.create_server(('127.0.0.1', port)); new.close(); return 'free'\n\
         async def sleeps():\n    await asyncio.sleep(0)\n    return asyncio.get_running_loop() is not loop\n\
         print(json.dumps({\n\
             'file': [log.closed, says(lambda: log.write('x'))],\n\
             'socket': [server.fileno(), says(server.accept)],\n\
             'port': says(reuse),\n\
             'number': says(lambda: os.write(number, b'x')),\n\
             'base': says(lambda: base.execute('select 1')),\n\
             'child': child.poll(),\n\
             'loop': [loop.is_closed(), asyncio.run(sleeps())],\n\
             'kept': open('kept.txt').read(),\n\
             'another': says(lambda: [open(f'new{i}.txt', 'w').fileno() for i in range(20)].count(number)),\n\
         }))",
    );
    assert_eq!(
        report,
        json!({
            "file": [true, "ValueError"],
            "socket": [-1, "OSError"],
            "port": "free",
            "number": "OSError",
            "base": "ProgrammingError",
            "child": -9,
            "loop": [true, true],
            "kept": "written",
            "another": 0,
        })
    );
    // A restored session has an event loop if the original had one, also for old code that only requests it.
    assert_eq!(
        kept.server
            .text("new = asyncio.get_event_loop()\nawait asyncio.sleep(0)\nprint(new is not loop, new.is_closed())")
            .trim(),
        "True False"
    );
}

#[test]
fn the_program_does_not_see_its_snapshot() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    // Before its first snapshot a session opens the file that records a crash.
    kept.text("1");
    kept.text(
        "import os, signal, random\nheard = []\nos.register_at_fork(before=lambda: heard.append('before'), \
         after_in_parent=lambda: heard.append('parent'))\nopen_before = sorted(os.listdir('/proc/self/fd'))",
    );
    let text = kept.text(
        "def children():\n    try:\n        return os.wait()\n    except ChildProcessError:\n        return 'none'\n\
         print(heard, children(), sorted(os.listdir('/proc/self/fd')) == open_before)",
    );
    assert_eq!(text.trim(), "[] none True");
    // A signal to the interpreter's process group does not reach the snapshot.
    let answer = kept.dies("os.killpg(0, signal.SIGKILL)");
    restored(&answer, "crashed");
    // A real fork still runs the registered handlers.
    let text = kept
        .server
        .text("if os.fork() == 0: os._exit(0)\nos.wait()\nprint(heard)");
    assert_eq!(text.trim(), "['before', 'parent']");
}

#[test]
fn with_threads_there_is_no_snapshot_and_the_result_states_why() {
    let _turn = begin!();
    let place = TestDir::with_settings(NO_UNDO);
    let mut kept = Kept::start(&place);
    kept.text("a = 1\nimport threading, time");
    kept.server
        .text("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()");
    until(DEFAULT_TIMEOUT, "the copy is given up", || {
        kept.copies().is_empty().then_some(())
    });
    lost(&kept.dies(SEGFAULT_CODE), "threads");
}

#[test]
fn code_that_kills_or_imitates_the_snapshot_loses_only_its_own_state() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    let end_the_copy = "import os\nfor p in os.listdir('/proc'):\n    \
                        if p.isdigit() and int(p) not in (1, os.getpid()): os.kill(int(p), 9)\n";
    // A process that claims to be the snapshot on the session's channel.
    let imitate = "import os, time, json\npid = os.fork()\nif pid == 0:\n    \
                   os.setpgid(0, 0)\n    time.sleep(600)\n    os._exit(0)\n\
                   text = json.dumps({'type': 'copy', 'pid': pid, 'cell': 7}).encode()\n\
                   body = len(text).to_bytes(4, 'little') + text\n\
                   os.write(1001, len(body).to_bytes(4, 'little') + body)\n";
    for code in [end_the_copy, imitate] {
        kept.text("a = 1");
        let answer = kept.dies(&format!("{code}os._exit(1)"));
        lost(&answer, "could not be restored");
        assert_eq!(kept.text("print('a' in globals(), 6 * 7)").trim(), "False 42");
        assert!(
            kept.server
                .text("import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]))")
                .trim()
                .parse::<u32>()
                .unwrap()
                <= 4,
            "nobody of before is left"
        );
        kept.copied();
    }
    // Waking the snapshot has no effect.
    kept.text("a = 1");
    kept.text("import os, signal, time\nos.kill(-1, signal.SIGCONT)\ntime.sleep(0.1)");
    restored(&kept.dies(SEGFAULT_CODE), "crashed");
    assert_eq!(kept.server.text("print(a)").trim(), "1");
}

#[test]
fn a_snapshot_is_dropped_before_the_program_runs_out_of_memory() {
    let _turn = begin!();
    let place = TestDir::with_settings(&format!("[limits]\nmemory_mb = 192\n{NO_UNDO}"));
    let mut kept = Kept::start(&place);
    // Half of the limit, rewritten while a snapshot still has the first version. Then a size that fits only without
    // the snapshot.
    kept.text("big = bytearray(b'x') * (90 << 20)");
    let answer = kept.server.run(
        "for i in range(0, len(big), 4096): big[i] = 1\nimport time\ntime.sleep(0.3)\n\
         more = bytearray(b'y') * (60 << 20)\ntime.sleep(0.3)\nprint(len(big) + len(more) >> 20)",
    );
    assert_eq!(answer.status(), "ok", "{answer:?}");
    assert_eq!(answer.output().trim(), "150");
    until(DEFAULT_TIMEOUT, "no copy is kept of so large a session", || {
        kept.copies().is_empty().then_some(())
    });
    lost(&kept.dies("import os\nos._exit(1)"), "memory");
}

#[test]
fn a_large_session_is_restored_too() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    kept.text("big = bytearray(b'x') * (300 << 20)\nimport ctypes");
    restored(&kept.dies("ctypes.string_at(0)"), "crashed");
    assert_eq!(kept.text("print(len(big) >> 20, big[-1])").trim(), "300 120");
}

#[test]
fn a_reset_and_the_disabled_setting_leave_no_snapshot() {
    let _turn = begin!();
    let place = TestDir::with_settings(NO_UNDO);
    let mut kept = Kept::start(&place);
    kept.text("a = 1");
    kept.server.call("reset_session_state", json!({}));
    until(DEFAULT_TIMEOUT, "the copy goes with its session", || {
        kept.copies().is_empty().then_some(())
    });
    assert_eq!(kept.text("print('a' in globals())").trim(), "False");
    let place = TestDir::with_settings("[sessions]\nrestore = false\n");
    let kept = Kept::start(&place);
    kept.server.text("a = 1");
    kept.server.text("b = 1");
    assert!(kept.copies().is_empty());
    lost(&kept.dies(SEGFAULT_CODE), "variables are lost");
}

#[test]
fn interrupts_time_outs_and_cancelling_work_in_a_restored_session() {
    let _turn = begin!();
    let place = TestDir::new();
    let mut kept = Kept::start(&place);
    kept.text("a = 1");
    restored(&kept.dies(SEGFAULT_CODE), "crashed");
    let answer = kept.dies("while True: pass");
    assert_eq!(answer.cause(), "timeout", "{answer:?}");
    assert!(answer.verdict().contains("interrupted"), "{}", answer.verdict());
    assert!(answer.meta()["restored"].is_null(), "{answer:?}");
    let call = kept.server.begin_call(
        "execute_code",
        json!({"code": "import time\ntime.sleep(600)", "wait_s": 0.2}),
    );
    let id = call.answer().meta()["execution_id"].clone();
    let answer = kept.server.call("cancel_execution", json!({"execution_id": id}));
    assert!(!answer.is_error(), "{answer:?}");
    assert_eq!(kept.server.text("print(a, input)").trim().split(' ').next(), Some("1"));
    let answer = kept
        .server
        .call("execute_code", json!({"code": "print(input())", "stdin": "typed\n"}));
    assert_eq!(answer.output().trim(), "typed", "{answer:?}");
    let text = kept
        .server
        .text("import subprocess\nprint(subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout)");
    assert_eq!(text.trim(), "hi");
}

#[test]
fn a_crash_is_reported_at_once() {
    let _turn = begin!();
    let place = TestDir::with_settings("[sessions]\nrestore = false\n");
    let server = Client::start(&mut place.command(&["serve"]));
    // Several measurements, so that one slow moment of the machine does not count.
    let fastest = (0..8)
        .map(|_| {
            server.run("import os\nos._exit(1)").meta()["duration_ms"]
                .as_u64()
                .unwrap()
        })
        .min()
        .map(Duration::from_millis);
    // An earlier version waited a quarter of a second for pipes that were already closed.
    assert!(fastest < Some(Duration::from_millis(200)), "{fastest:?}");
}
