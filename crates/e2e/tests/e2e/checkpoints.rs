use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::machine::{descendants, descriptors, kill};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, name_of, skip, until};

pub(crate) const THREAD_CODE: &str =
    "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait); t.start()";

/// Defines `state()`, which describes all reachable variables (with shared references and cycles) and all files, and
/// `mutate(seed)`, a random program.
pub(crate) const GENERATOR_CODE: &str = r#"
import hashlib, os, random
def state():
    seen, out = {}, []
    def walk(v):
        if type(v) in (int, str, float, bool, bytes, type(None)):
            out.append(repr(v)); return
        if id(v) in seen:
            out.append('<%d>' % seen[id(v)]); return
        seen[id(v)] = len(seen)
        out.append(type(v).__name__)
        if isinstance(v, dict):
            for k in v: walk(k); walk(v[k])
        elif isinstance(v, (list, tuple)):
            for i in v: walk(i)
        elif isinstance(v, set):
            for i in sorted(v): walk(i)
        elif isinstance(v, bytearray):
            out.append(hashlib.sha256(v).hexdigest())
        elif isinstance(v, Node):
            walk(v.__dict__)
        elif callable(v):
            walk([c.cell_contents for c in v.__closure__ or ()]); out.append(v.__code__.co_code.hex())
    walk({k: v for k, v in globals().items() if k.startswith('v_')})
    out.append(repr(random.getstate()))
    for top, dirs, files in sorted(os.walk('/home/user')):
        out.append(top)
        for f in sorted(files):
            p = os.path.join(top, f)
            out.append('%s %o %d %s' % (f, os.lstat(p).st_mode, os.lstat(p).st_mtime_ns,
                os.readlink(p) if os.path.islink(p) else hashlib.sha256(open(p, 'rb').read()).hexdigest()))
    return hashlib.sha256('\n'.join(out).encode()).hexdigest()
class Node: pass
def counter(start):
    def count(by=1):
        nonlocal start; start += by; return start
    return count
def mutate(seed):
    r, g = random.Random(seed), globals()
    for _ in range(r.randrange(3, 15)):
        name = 'v_%d' % r.randrange(8)
        other = g.get('v_%d' % r.randrange(8))
        what = r.randrange(14)
        old = g.get(name)
        if what == 0: g[name] = [r.random() for _ in range(r.randrange(50))]
        elif what == 1: g[name] = {'a': other, 'n': r.randrange(9)}
        elif what == 2: g[name] = bytearray(r.randbytes(r.randrange(200000)))
        elif what == 3: g.pop(name, None)
        elif what == 4: n = Node(); n.me, n.other = n, other; g[name] = n
        elif what == 5: g[name] = counter(r.randrange(100))
        elif what == 6 and callable(old): old(r.randrange(5))
        elif what == 7 and isinstance(old, list): old.append(other)
        elif what == 8 and isinstance(old, bytearray) and old: old[r.randrange(len(old))] ^= 1
        elif what == 9: random.random()
        elif what == 10: g[name] = (other, {r.randrange(5) for _ in range(9)})
        else:
            p = 'd%d/f%d' % (r.randrange(2), r.randrange(4))
            try:
                if what == 11: os.makedirs(os.path.dirname(p), exist_ok=True); open(p, 'wb').write(r.randbytes(r.randrange(9000)))
                elif what == 12: os.remove(p)
                else: os.rename(p, 'f%d' % r.randrange(4))
            except OSError: pass
"#;

fn start(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

fn checkpoint(server: &Client, name: &str) -> Answer {
    server.call("create_checkpoint", json!({"name": name}))
}

#[track_caller]
fn kept(server: &Client, name: &str) {
    let answer = checkpoint(server, name);
    assert!(!answer.is_error(), "{answer:?}");
}

fn rewind(server: &Client, to: &str) -> Answer {
    server.call("reset_session_state", json!({"to": to}))
}

#[track_caller]
fn back(server: &Client, to: &str) -> Value {
    let answer = rewind(server, to);
    assert!(!answer.is_error(), "{answer:?}");
    answer.0["_meta"]["sandcell/rewind"].clone()
}

/// Returns the checkpoints of the only sandbox.
fn checkpoints(server: &Client) -> Vec<Value> {
    let status = server.call("get_sandbox_status", json!({}));
    let found = status.0["structuredContent"]["sandboxes"][0]["checkpoints"].clone();
    found.as_array().unwrap().clone()
}

fn names(server: &Client) -> Vec<String> {
    let all = checkpoints(server).into_iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits for the automatic checkpoint after the last execution.
fn settled(server: &Client, executions: u64) {
    until(DEFAULT_TIMEOUT, "an automatic checkpoint is made", || {
        let all = checkpoints(server);
        { all.iter() }
            .any(|one| one["executions"] == executions && one["automatic"] == true)
            .then_some(())
    });
}

#[test]
fn the_last_executions_are_undone_without_preparation() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = [1]\nopen('a', 'w').write('first')");
    settled(&server, 1);
    server.call("write_file", json!({"path": "uploaded", "content": "u"}));
    server.text("x.append(2); open('a', 'w').write('second')");
    settled(&server, 2);
    server.text("del x; import os; os.remove('a')");
    // Files that a call wrote after the automatic checkpoint would be lost, so it is made again.
    let undone = back(&server, "-1");
    assert_eq!(undone["undone"], 1);
    assert_eq!(
        server.text("x, open('a').read(), open('uploaded').read()").trim(),
        "result: ([1, 2], 'second', 'u')"
    );
    // The undone execution counts no more: the last one is now the one above.
    let view = back(&server, "-1");
    assert_eq!(view["checkpoint"]["executions"], 2);
    let refused = rewind(&server, "-9");
    refused.refused("not_found");
    assert_eq!(
        server.text("x").trim(),
        "result: [1, 2]",
        "a refused call changes nothing"
    );
}

/// An automatic checkpoint of many files takes a while, and has the session for that time.
#[test]
fn a_reset_during_an_automatic_checkpoint_is_not_lost() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    for pause in (280..340).step_by(2) {
        let code = "print('i' in globals())\nfor i in range(300): open(f'f{i}', 'wb').write(bytes(20000))";
        assert_eq!(server.text(code).trim(), "False", "{pause}");
        std::thread::sleep(Duration::from_millis(pause));
        server.call("reset_session_state", json!({}));
    }
}

#[test]
fn a_checkpoint_is_made_before_risky_code_and_survives_everything() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = {'n': 1}; y = x; open('f', 'w').write('data')");
    let risky =
        json!({"code": "x['n'] = 2; import shutil; shutil.rmtree('.', ignore_errors=True)", "checkpoint": "safe"});
    assert_eq!(server.call("execute_code", risky).status(), "ok");
    back(&server, "safe");
    let whole = "print(x, x is y, open('f').read())";
    assert_eq!(server.text(whole).trim(), "{'n': 1} True data");
    // A crash, an end without a snapshot, a reset, a new session.
    server.run("import ctypes\nctypes.string_at(0)");
    back(&server, "safe");
    assert_eq!(server.text(whole).trim(), "{'n': 1} True data");
    server.call("reset_session_state", json!({}));
    server.text("x = 'another session'");
    let view = back(&server, "safe");
    assert_eq!(view["ended"], json!([]));
    assert_eq!(server.text(whole).trim(), "{'n': 1} True data");
    let timed_out = json!({"code": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "timeout_s": 0.3});
    assert_eq!(server.call("execute_code", timed_out).cause(), "timeout");
    back(&server, "safe");
    assert_eq!(server.text(whole).trim(), "{'n': 1} True data");
}

#[test]
fn all_variables_and_files_are_as_before_after_a_hundred_random_programs() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text(GENERATOR_CODE);
    for seed in 0..100 {
        let before = server.text(&format!("mutate({seed})\nprint(state())"));
        kept(&server, "a");
        let changed = server.text(&format!("mutate({seed} + 1000)\nprint(state())"));
        if seed % 3 == 0 {
            kept(&server, "b");
        }
        back(&server, "a");
        assert_eq!(server.text("print(state())"), before, "seed {seed}");
        if seed % 3 == 0 {
            back(&server, "b");
            assert_eq!(server.text("print(state())"), changed, "seed {seed}");
        }
    }
}

#[test]
fn data_libraries_go_on_after_a_return() {
    let _turn = begin!();
    fn here() {}
    let Ok(data) = std::env::var("SANDCELL_TEST_DATA_PYTHON") else {
        return skip(
            &name_of(here),
            "no Python with data libraries (SANDCELL_TEST_DATA_PYTHON names it)",
        );
    };
    let place = TestDir::with_settings(&format!("python = {data:?}\n"));
    let server = start(&place);
    server.text(
        "import numpy as np, pandas as pd, matplotlib.pyplot as plt, sqlite3\nrng = np.random.default_rng(1)\n\
         a = np.arange(1_000_000.); d = pd.DataFrame({'x': [1, 2, 3]}); fig, ax = plt.subplots(); ax.plot([1, 2])\n\
         db = sqlite3.connect('t.db'); _ = db.execute('create table t(a)'); _ = db.execute('insert into t values (1)'); db.commit()",
    );
    kept(&server, "a");
    let next = server.text("print(rng.random(), (a @ a))");
    server.text("a[:] = 0; d['y'] = 5; ax.clear(); db.execute('delete from t'); db.commit(); db.close()");
    for _ in 0..2 {
        back(&server, "a");
        assert_eq!(server.text("print(rng.random(), (a @ a))"), next);
        let text = server.text("print(list(d), len(ax.lines), db.execute('select * from t').fetchall())");
        assert_eq!(text.trim(), "['x'] 1 [(1,)]");
    }
}

#[test]
fn what_cannot_be_kept_is_refused_before_anything_is_lost() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = 1");
    server.text(THREAD_CODE);
    let refused = checkpoint(&server, "a");
    refused.refused("checkpoint_unavailable");
    assert!(refused.all().contains("threads"), "{refused:?}");
    // The code of a call whose checkpoint is refused does not run.
    let refused = server.call("execute_code", json!({"code": "x = 2", "checkpoint": "a"}));
    refused.refused("checkpoint_unavailable");
    server.text("stop.set(); t.join()");
    kept(&server, "a");
    assert_eq!(server.text("x").trim(), "result: 1");
    let running = server.begin_call("execute_code", json!({"code": "import time; time.sleep(600)"}));
    until(DEFAULT_TIMEOUT, "the code runs", || {
        rewind(&server, "a").all().starts_with("busy").then_some(())
    });
    checkpoint(&server, "b").refused("busy");
    server.call("cancel_execution", json!({}));
    running.answer();
    back(&server, "a");
    for name in ["-1", "../a", "a b", &"a".repeat(65)] {
        checkpoint(&server, name).refused("invalid_argument");
    }
    rewind(&server, "nope").refused("not_found");
}

#[test]
fn checkpoints_are_bounded_and_the_oldest_are_dropped() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 256\n");
    let server = start(&place);
    server.text("big = bytearray(b'x') * (20 << 20)");
    for number in 0..10 {
        kept(&server, &format!("c{number}"));
    }
    let left = names(&server);
    assert!(
        !left.contains(&"c1".to_owned()) && left.contains(&"c2".to_owned()),
        "{left:?}"
    );
    let dropped = server.call("drop_checkpoint", json!({"name": "c5"}));
    assert!(!dropped.is_error(), "{dropped:?}");
    rewind(&server, "c5").refused("not_found");
    // Each keeps another version of the data. Together they may hold half of the memory limit.
    let mut held = Vec::new();
    for number in 0..8 {
        server.text(&format!("big[:] = bytes([{number}]) * len(big)"));
        let made = checkpoint(&server, &format!("v{number}"));
        assert!(!made.is_error(), "{made:?}");
        held = names(&server);
    }
    assert!(
        held.contains(&"v7".to_owned()) && !held.contains(&"v0".to_owned()),
        "{held:?}"
    );
    let memory: u64 = checkpoints(&server)
        .iter()
        .map(|one| one["memory_bytes"].as_u64().unwrap())
        .sum();
    assert!(memory <= 128 << 20, "{memory}");
    back(&server, "v6");
    assert_eq!(server.text("big[0]").trim(), "result: 6");
}

#[test]
fn nothing_grows_over_many_checkpoints() {
    let _turn = begin!();
    // Neither automatic checkpoints nor idle sandboxes, which are made at times of the server's own.
    let place = TestDir::with_settings("[sessions]\nundo = 0\n[pool]\nparked = 0\n");
    let server = start(&place);
    server.text("x = 0; open('f', 'w').write('f')");
    let turn = |number: u32| {
        server.text(&format!("x = {number}"));
        kept(&server, "a");
        server.text("x = -1");
        back(&server, "a");
    };
    let measure = || {
        let processes = descendants(server.pid());
        let all: usize = processes.iter().map(|process| descriptors(process.pid)).sum();
        (processes.len(), all, descriptors(server.pid()))
    };
    (0..20).for_each(turn);
    let before = sandcell_e2e::settled(measure);
    (20..150).for_each(turn);
    until(DEFAULT_TIMEOUT, "processes and descriptors are as before", || {
        let now = measure();
        (now.0 <= before.0 + 2 && now.1 <= before.1 + 40 && now.2 <= before.2 + 4).then_some(())
    });
}

/// Kills processes at every step of a checkpoint's life. Each time the caller learns what is lost, and another sandbox
/// keeps its checkpoint.
#[test]
fn killed_processes_lose_only_what_they_held() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    let other = server.call("create_sandbox", json!({})).0["structuredContent"]["sandbox_id"].clone();
    let on_other = |tool: &str, mut arguments: Value| {
        arguments["sandbox_id"] = other.clone();
        server.call(tool, arguments)
    };
    on_other("execute_code", json!({"code": "y = 1"}));
    assert!(!on_other("create_checkpoint", json!({"name": "o"})).is_error());
    server.text("x = 1");
    kept(&server, "a");
    let mine = || {
        let sandbox = &server.call("get_sandbox_status", json!({})).0["structuredContent"]["sandboxes"];
        sandbox.as_array().unwrap().len()
    };
    assert_eq!(mine(), 2);
    let copies = || {
        descendants(server.pid())
            .into_iter()
            .filter(|process| process.name == "sandcell-kept")
    };
    // A copy takes its name a moment after the answer.
    let known = until(DEFAULT_TIMEOUT, "both copies have their names", || {
        let known: Vec<_> = copies().collect();
        (known.len() == 2).then_some(known)
    });
    server.text("x = 2");
    kept(&server, "b");
    let newest = until(DEFAULT_TIMEOUT, "the new copy has its name", || {
        copies().find(|process| !known.contains(process))
    });
    kill(newest.pid);
    let gone = until(DEFAULT_TIMEOUT, "the loss is noticed", || {
        let answer = rewind(&server, "b");
        answer.is_error().then_some(answer)
    });
    gone.refused("not_found");
    assert_eq!(server.text("x").trim(), "result: 2", "the session goes on");
    back(&server, "a");
    assert_eq!(server.text("x").trim(), "result: 1");
    // The interpreter, in the moment of a return.
    for _ in 0..5 {
        back(&server, "a");
        server.run("import os; os.kill(os.getpid(), 9)");
        back(&server, "a");
        assert_eq!(server.text("x").trim(), "result: 1");
    }
    assert!(!on_other("reset_session_state", json!({"to": "o"})).is_error());
    assert_eq!(
        on_other("execute_code", json!({"code": "y"})).output().trim(),
        "result: 1"
    );
}

#[test]
fn alternatives_begin_in_the_same_state_and_one_can_be_kept() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("data = [3, 1, 2]; open('in', 'w').write('in')");
    let tried = server.call(
        "execute_code",
        json!({"code": "r = sorted(data); print(r)", "alternatives": [
            "data.sort(); open('out', 'w').write('o'); print(data)", "del data; import os; os.remove('in'); 1/0",
            format!("{THREAD_CODE}"),
        ]}),
    );
    assert!(!tried.is_error(), "{tried:?}");
    let data = tried.0["_meta"]["sandcell/alternatives"].clone();
    let of = |number: usize| data["alternatives"][number].clone();
    assert_eq!(
        (&of(0)["execution"]["status"], &of(2)["execution"]["status"]),
        (&json!("ok"), &json!("error"))
    );
    assert_eq!(of(0)["variables"][0]["name"], "r");
    assert_eq!(of(0)["variables"][0]["change"], "created");
    assert_eq!(of(1)["variables"][0]["change"], "modified");
    assert_eq!(of(1)["files"][0]["path"], "/home/user/out");
    assert_eq!(of(2)["variables"][0]["change"], "removed");
    assert_eq!(of(2)["files"][0]["kind"], "removed");
    assert_eq!(of(3)["checkpoint"], Value::Null);
    assert!(of(3)["not_kept"].as_str().unwrap().contains("threads"), "{data}");
    let look = "import os; print(data, 'r' in globals(), sorted(os.listdir()))";
    assert_eq!(server.text(look).trim(), "[3, 1, 2] False ['in']");
    back(&server, of(1)["checkpoint"].as_str().unwrap());
    assert_eq!(server.text(look).trim(), "[1, 2, 3] False ['in', 'out']");
    // Executions of other alternatives have the same number, and are not those before the last one here.
    let undone = back(&server, "-1");
    assert_eq!(undone["checkpoint"]["name"], "alternative-2");
}

#[test]
fn the_common_state_of_alternatives_is_not_dropped_for_memory() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 256\n");
    let server = start(&place);
    server.text("x = 1");
    let code = |number: u32| format!("big = bytearray([{number}]) * (70 << 20)");
    let tried = server.call(
        "execute_code",
        json!({"code": code(1), "alternatives": [code(2), code(3), code(4)]}),
    );
    assert!(!tried.is_error(), "{tried:?}");
    let data = &tried.0["_meta"]["sandcell/alternatives"]["alternatives"];
    assert_eq!(data[0]["checkpoint"], Value::Null, "{data}");
    assert!(data[0]["not_kept"].as_str().unwrap().contains("dropped"), "{data}");
    assert_eq!(data[3]["checkpoint"], "alternative-4");
    assert_eq!(server.text("print(x, 'big' in globals())").trim(), "1 False");
    back(&server, "alternative-4");
    assert_eq!(server.text("big[0]").trim(), "result: 4");
}

#[test]
fn changed_files_are_shown_with_their_lines() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("open('a.txt', 'w').write('one\\ntwo\\n'); open('b.bin', 'wb').write(bytes(range(256)))");
    kept(&server, "a");
    server
        .text("open('a.txt', 'w').write('one\\n2\\n'); open('b.bin', 'wb').write(b''); open('/tmp/c', 'w').write('c')");
    let changes = server.call("file_changes", json!({"since": "a"}));
    let files = &changes.data()["files"];
    assert_eq!(files[0]["path"], "/home/user/a.txt");
    assert!(
        files[0]["diff"]
            .as_str()
            .unwrap()
            .ends_with("@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
        "{files}"
    );
    assert_eq!(
        (&files[1]["kind"], &files[1]["diff"]),
        (&json!("modified"), &Value::Null)
    );
    assert_eq!(
        (&files[2]["path"], &files[2]["kind"]),
        (&json!("/tmp/c"), &json!("created"))
    );
    assert_eq!(files.as_array().unwrap().len(), 3, "{files}");
}

/// The contents of replaced states are freed, also while a later state shares a file with them.
#[test]
fn automatic_checkpoints_do_not_use_up_the_memory() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 128\n");
    let server = start(&place);
    for number in 1..=14 {
        let code =
            format!("open('s{number}', 'w').write('x'); open('data', 'wb').write(bytes([{number}]) * (12 << 20))");
        server.text(&code);
        settled(&server, number);
    }
    assert_eq!(server.text("open('data', 'rb').read(1)").trim(), "result: b'\\x0e'");
    back(&server, "-1");
}

#[test]
fn a_session_in_a_bad_state_is_not_lost_by_a_checkpoint() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text(
        "x = 1; import os\nheld = []\ntry:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError: pass",
    );
    checkpoint(&server, "a").refused("checkpoint_unavailable");
    assert_eq!(server.text("for fd in held: os.close(fd)\nx").trim(), "result: 1");
    kept(&server, "a");
    // A read that takes long between two cells.
    server.text("import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: time.sleep(4)); signal.setitimer(signal.ITIMER_REAL, 0.2)");
    std::thread::sleep(Duration::from_millis(400));
    let sandbox = server.call("get_sandbox_status", json!({})).data()["sandboxes"][0]["sandbox_id"].clone();
    server.call("get_sandbox_status", json!({"sandbox_id": sandbox}));
    assert_eq!(server.text("x").trim(), "result: 1");
}

#[test]
fn folders_without_rights_are_kept_and_brought_back() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    let look =
        "import os\nprint(sorted((t, oct(os.stat(t).st_mode), sorted(f)) for t, d, f in os.walk('.')), os.getcwd())";
    server.text("import os; os.makedirs('ro/in'); open('ro/in/f', 'w').write('f'); os.chmod('ro/in', 0o555); os.mkdir('cwd'); os.chdir('cwd')");
    server.text("os.makedirs('../shut'); open('../shut/g', 'w').write('g'); os.chmod('../shut', 0)");
    kept(&server, "a");
    let before = server.text(look);
    server.text(
        "os.chdir('..'); os.rmdir('cwd'); os.chmod('shut', 0o755); os.remove('shut/g'); os.makedirs('new/x'); open('new/x/y', 'w')\n\
         os.chmod('new/x', 0o555); os.chmod('new', 0o555); os.chmod('ro/in', 0o755); open('ro/in/h', 'w'); os.chmod('ro/in', 0o500)",
    );
    back(&server, "a");
    assert_eq!(server.text(look), before);
    assert_eq!(
        server
            .text("os.chmod('../shut', 0o755); open('../shut/g').read()")
            .trim(),
        "result: 'g'"
    );
}

#[test]
fn other_calls_wait_for_alternatives() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = 0");
    let trying = server.begin_call(
        "execute_code",
        json!({"code": "x = 5; import time; time.sleep(0.4)", "alternatives": ["x = 6; import time; time.sleep(0.4)"]}),
    );
    until(DEFAULT_TIMEOUT, "the first alternative runs", || {
        let status = server.call("get_sandbox_status", json!({}));
        (status.data()["sandboxes"][0]["state"] == "busy").then_some(())
    });
    // Otherwise the return to the common state would undo them.
    let written = server.begin_call("write_file", json!({"path": "written", "content": "1"}));
    let command = server.begin_call("run_command", json!({"command": "echo 2 > by_command"}));
    assert_eq!(server.text("print(x); x = 100").trim(), "0");
    let tried = trying.answer();
    assert!(!tried.is_error(), "{tried:?}");
    for call in [written, command] {
        let answer = call.answer();
        assert!(!answer.is_error(), "{answer:?}");
    }
    assert_eq!(
        server
            .text("print(x, open('written').read(), open('by_command').read().strip())")
            .trim(),
        "100 1 2"
    );
    for name in ["alternative-1", "before-alternatives"] {
        checkpoint(&server, name).refused("invalid_argument");
    }
}

#[test]
fn calls_at_the_same_time_as_alternatives_are_not_undone() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = 0");
    let mut adding = Vec::new();
    let mut trying = Vec::new();
    for number in 0..30 {
        adding.push(server.begin_call("execute_code", json!({"code": "x += 1"})));
        if number % 10 == 5 {
            trying.push(server.begin_call(
                "execute_code",
                json!({"code": "x = -1000", "alternatives": ["x = -2000"]}),
            ));
        }
    }
    let added = adding
        .into_iter()
        .map(|call| call.answer())
        .filter(|answer| !answer.is_error());
    let added = added.count();
    for call in trying {
        let answer = call.answer();
        if answer.is_error() {
            answer.refused("busy");
        }
    }
    assert!(added > 0);
    assert_eq!(server.text("x").trim(), format!("result: {added}"));
}

#[test]
fn code_cannot_disturb_its_checkpoints() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = start(&place);
    server.text("x = 1");
    kept(&server, "a");
    // Signals of other processes than the first one are ignored, also those that wake a copy.
    server.text("import os, signal\nfor number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM, signal.SIGINT):\n    signal.signal(number, signal.SIG_IGN) if number != signal.SIGCONT else None\n    os.kill(-1, number)\nx = 2");
    assert_eq!(server.text("x").trim(), "result: 2");
    back(&server, "a");
    assert_eq!(server.text("x").trim(), "result: 1");
    // A copy that code has killed is reported as gone, and nothing else is lost.
    server.run(
        "import os, signal\nfor p in os.listdir('/proc'):\n    if p.isdigit() and open(f'/proc/{p}/comm').read().startswith('sandcell-kept'):\n        os.kill(int(p), 9)\nx = 3",
    );
    let gone = until(Duration::from_secs(5), "the loss is noticed", || {
        let answer = rewind(&server, "a");
        answer.is_error().then_some(answer)
    });
    gone.refused("not_found");
    assert_eq!(server.text("x").trim(), "result: 3");
}
