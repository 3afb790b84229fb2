use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::machine::{descendants, descriptors, kill};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, is_root, settled, until};

use crate::checkpoints::{GENERATOR_CODE, THREAD_CODE};

fn place() -> TestDir {
    TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n")
}

/// A caller may have more sandboxes there than by default.
fn place_for_many() -> TestDir {
    TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n[limits]\nsandboxes_per_caller = 64\n")
}

fn start(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

/// A sandbox of the server.
struct Sandbox<'a> {
    server: &'a Client,
    id: Value,
}

impl<'a> Sandbox<'a> {
    fn new(server: &'a Client) -> Self {
        let id = server.call("create_sandbox", json!({})).0["structuredContent"]["sandbox_id"].clone();
        Self { server, id }
    }

    fn call(&self, tool: &str, mut arguments: Value) -> Answer {
        arguments["sandbox_id"] = self.id.clone();
        self.server.call(tool, arguments)
    }

    /// Runs code that must succeed. Returns its output.
    #[track_caller]
    fn run(&self, code: &str) -> String {
        let answer = self.call("execute_code", json!({"code": code}));
        assert_eq!(answer.status(), "ok", "{answer:?}\n{}", self.server.log());
        answer.output().trim().to_owned()
    }

    fn try_branch(&self, mut arguments: Value) -> Answer {
        arguments["from_sandbox"] = self.id.clone();
        self.server.call("create_sandbox", arguments)
    }

    #[track_caller]
    fn branches(&self, arguments: Value) -> Vec<Sandbox<'a>> {
        let answer = self.try_branch(arguments);
        assert!(!answer.is_error(), "{answer:?}\n{}", self.server.log());
        let ids = answer.0["structuredContent"]["sandbox_ids"].as_array().unwrap().clone();
        let server = self.server;
        ids.into_iter().map(|id| Sandbox { server, id }).collect()
    }

    #[track_caller]
    fn branch(&self) -> Sandbox<'a> {
        self.branches(json!({})).pop().unwrap()
    }

    fn close(&self) {
        let answer = self.call("close_sandbox", json!({}));
        assert!(!answer.is_error(), "{answer:?}");
    }
}

#[test]
fn a_branch_has_all_variables_and_files_of_random_programs() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run(GENERATOR_CODE);
    let state = "random.seed(0); print(state())";
    for seed in 0..10 {
        source.run(&format!("mutate({seed})"));
        let before = source.run(state);
        let branch = source.branch();
        assert_eq!(branch.run(state), before, "seed {seed}");
        branch.run(&format!("mutate({})", seed + 1000));
        let changed = branch.run(state);
        assert_eq!(source.run(state), before, "seed {seed}: the source sees the branch");
        source.run(&format!("mutate({})", seed + 2000));
        assert_eq!(branch.run(state), changed, "seed {seed}: the branch sees the source");
        branch.close();
    }
}

#[test]
fn branches_are_isolated_from_one_another_and_from_their_source() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run(
        "import os, sqlite3, signal, socket, random, uuid, tempfile, mmap, decimal\n\
         big = bytearray(8 << 20); rows = [1]; shared = bytearray(4096)\n\
         try: shared = mmap.mmap(-1, 4096)\n\
         except PermissionError: pass\n\
         shared[:2] = b'ab'\n\
         log = open('log.txt', 'a+'); log.write('before;'); log.flush()\n\
         db = sqlite3.connect('t.db'); db.execute('create table t(a)'); db.commit()\n\
         os.makedirs('/tmp/deep/er', exist_ok=True); os.symlink('log.txt', 'link'); os.mkfifo('pipe')\n\
         os.chmod('log.txt', 0o640); os.chdir('/tmp/deep'); os.environ['MARK'] = 'source'; decimal.getcontext().prec = 5\n\
         random.seed(1)",
    );
    let branches = source.branches(json!({"count": 3}));
    let all = || std::iter::once(&source).chain(&branches);
    for (number, one) in all().enumerate() {
        one.run(&format!(
            "big[0] = big[-1] = big[4 << 20] = {number}; big.extend(bytes(1 << 20)); rows.append({number}); shared[0] = 48 + {number}\n\
             log.write('{number};'); log.flush(); db = sqlite3.connect('/home/user/t.db'); db.execute('insert into t values ({number})'); db.commit()\n\
             os.environ['MARK'] = '{number}'; open('own', 'w').write('{number}'); os.symlink('{number}', '/tmp/deep/er/own')\n\
             open('/dev/shm/own', 'w').write('{number}')\n\
             server = socket.create_server(('127.0.0.1', 8111))"
        ));
    }
    let mut drawn = std::collections::BTreeSet::new();
    for (number, one) in all().enumerate() {
        let text = one.run(
            "print(big[0], big[-(1 << 20) - 1], big[4 << 20], len(big), rows, bytes(shared[:2]), os.getcwd(), os.environ['MARK'])\n\
             print(open('/home/user/log.txt').read(), db.execute('select a from t').fetchall(), open('own').read())\n\
             print(os.readlink('er/own'), os.readlink('/home/user/link'), oct(os.stat('/home/user/log.txt').st_mode), \
             open('/dev/shm/own').read(), decimal.getcontext().prec, sorted(os.listdir('/home/user')))\n\
             print(len([p for p in os.listdir('/proc') if p.isdigit()]) < 6)",
        );
        let expected = format!(
            "{number} {number} {number} 9437184 [1, {number}] b'{number}b' /tmp/deep {number}\n\
             before;{number}; [({number},)] {number}\n\
             {number} log.txt 0o100640 {number} 5 ['link', 'log.txt', 'pipe', 't.db']\n\
             True"
        );
        assert_eq!(text, expected);
        drawn.insert(one.run("print(random.random(), uuid.uuid4(), tempfile.mktemp())"));
    }
    assert_eq!(drawn.len(), 4, "random states are new in each branch");
    branches[0].run("db.close()");
    // A branch does not see the processes of another branch.
    branches[0].run("import subprocess; p = subprocess.Popen(['sleep', '100'])");
    assert_eq!(
        branches[1]
            .run("names = []\nfor p in os.listdir('/proc'):\n    try: names.append(open(f'/proc/{p}/comm').read().strip())\n    except OSError: pass\n\
             print('sleep' in names)"),
        "False"
    );
    assert_eq!(
        branches[2]
            .run("import threading; t = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()"),
        "in a thread"
    );
}

#[test]
fn a_branch_outlives_its_source_and_is_a_sandbox_like_any_other() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run(
        "x = [1]; g = (i for i in range(100)); next(g); f = open('f.txt', 'w+'); f.write('0123456789'); f.seek(4); 1",
    );
    let branch = source.branch();
    // Its first code may crash.
    let first = source.branch();
    first.call("execute_code", json!({"code": "import os; os.abort()"}));
    assert_eq!(first.run("print(x, next(g))"), "[1] 1");
    source.close();
    assert_eq!(branch.run("print(x, next(g), f.read())"), "[1] 1 456789");
    // Restored after a crash, brought back, and branched again.
    let crash = branch.call("execute_code", json!({"code": "import os; os.kill(os.getpid(), 11)"}));
    assert_ne!(crash.status(), "ok");
    assert_eq!(branch.run("print(x, next(g))"), "[1] 2");
    assert!(!branch.call("create_checkpoint", json!({"name": "here"})).is_error());
    branch.run("x.append(2)");
    assert!(!branch.call("reset_session_state", json!({"to": "here"})).is_error());
    assert_eq!(branch.run("print(x)"), "[1]");
    let mut last = branch;
    for depth in 0..4 {
        let next = last.branch();
        assert_eq!(
            next.run(&format!("x.append({depth}); print(len(x), next(g))")),
            format!("{} {}", depth + 2, depth + 3)
        );
        last.close();
        last = next;
    }
    assert_eq!(
        last.run("def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\nprint(depth(900))"),
        "900"
    );
    let killed = last.call("execute_code", json!({"code": "while True: pass", "timeout_s": 1}));
    assert_eq!(killed.status(), "timeout", "{killed:?}");
    assert_eq!(last.run("print(len(x))"), "5");
}

#[test]
fn a_checkpoint_can_be_branched_any_number_of_times() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = 'kept'; open('a.txt', 'w').write('kept')");
    assert!(!source.call("create_checkpoint", json!({"name": "c"})).is_error());
    source.run("x = 'later'; open('a.txt', 'w').write('later')");
    let of_checkpoint = json!({"from_checkpoint": "c"});
    for _ in 0..2 {
        let branch = source.branches(of_checkpoint.clone()).pop().unwrap();
        assert_eq!(branch.run("print(x, open('a.txt').read())"), "kept kept");
        branch.close();
    }
    assert_eq!(source.run("print(x, open('a.txt').read())"), "later later");
    // After a crash too, and the checkpoint is as it was.
    source.call("execute_code", json!({"code": "import os; os.kill(os.getpid(), 9)"}));
    let branch = source.branches(of_checkpoint).pop().unwrap();
    assert_eq!(branch.run("print(x)"), "kept");
    assert!(!source.call("reset_session_state", json!({"to": "c"})).is_error());
    assert_eq!(source.run("print(x, open('a.txt').read())"), "kept kept");
    source.try_branch(json!({"from_checkpoint": "d"})).refused("not_found");
}

#[test]
fn a_sandbox_without_a_session_is_branched_with_its_files() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.call("write_file", json!({"path": "deep/a b/ü.txt", "content": "hi"}));
    let branch = source.branch();
    assert_eq!(branch.run("print(open('deep/a b/ü.txt').read())"), "hi");
    branch.run("x = 1");
}

#[test]
fn what_cannot_be_branched_is_refused_and_nothing_is_lost() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = 1");
    for options in [
        json!({"packages": ["six"]}),
        json!({"env": {"A": "1"}}),
        json!({"memory_mb": 64}),
        json!({"key": "k"}),
    ] {
        source.try_branch(options).refused("invalid_argument");
    }
    let threads = Sandbox::new(&server);
    threads.run(THREAD_CODE);
    threads.try_branch(json!({})).refused("checkpoint_unavailable");
    assert_eq!(threads.run("stop.set(); t.join(); print(t.is_alive())"), "False");
    assert_eq!(threads.branch().run("print(t.is_alive())"), "False");
    let bash = Sandbox::new(&server);
    bash.call("execute_code", json!({"code": "x=1", "language": "bash"}));
    bash.try_branch(json!({})).refused("checkpoint_unavailable");
    // The session uses so much memory that no image of it fits into the limit.
    let large = Sandbox::new(&server);
    large.run("data = bytearray(b'x') * (300 << 20); data[5] = 7");
    large.try_branch(json!({})).refused("checkpoint_unavailable");
    assert_eq!(large.run("print(data[5], len(data))"), "7 314572800");
    // A sandbox in which code runs, and a sandbox that does not exist.
    let running = source.call(
        "execute_code",
        json!({"code": "import time; time.sleep(60)", "wait_s": 0}),
    );
    assert!(!running.is_error());
    source.try_branch(json!({})).refused("busy");
    server
        .call("create_sandbox", json!({"from_sandbox": "sbnone"}))
        .refused("not_found");
    let status = server.call("get_sandbox_status", json!({}));
    assert_eq!(
        status.0["structuredContent"]["sandboxes"].as_array().unwrap().len(),
        5,
        "no branch was left behind"
    );
}

/// The C library's heap of the interpreter that loads an image is elsewhere than that of the image, or larger.
#[test]
fn the_memory_of_a_branch_can_grow_and_shrink() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    // The first session begins before there is a zygote.
    for round in 0..3 {
        let source = Sandbox::new(&server);
        source.run(
            "import signal, os; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.umask(0o027)\n\
             for i in range(3000): open(f'file-{i}', 'w').close()",
        );
        let branch = source.branch();
        let grow = "rows = [bytes(1000) for _ in range(30000)]; many = {i: str(i) for i in range(100000)}\n\
                    big = bytearray(1 << 20); [big.extend(bytes(1 << 20)) for _ in range(30)]; del rows, many\n\
                    rows = [bytes(5000) for _ in range(5000)]; print(len(big), len(rows), oct(os.umask(0)), len(os.listdir('.')))";
        assert_eq!(branch.run(grow), "32505856 5000 0o27 3000", "round {round}");
        assert_eq!(source.run(grow), "32505856 5000 0o27 3000", "round {round}");
        branch.close();
        source.close();
    }
}

#[test]
fn a_branch_leaves_its_source_a_snapshot() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = 1; import os; pid = os.getpid()");
    source.branch().close();
    // In the pause, the session makes another snapshot, from which a killed interpreter is restored.
    until(DEFAULT_TIMEOUT, "a snapshot after the branch", || {
        source.run("x = 1");
        std::thread::sleep(std::time::Duration::from_millis(600));
        source.call("execute_code", json!({"code": "os.kill(os.getpid(), 9)"}));
        let after = source.call("execute_code", json!({"code": "print(x)"}));
        (after.status() == "ok").then_some(())
    });
}

#[test]
fn a_killed_copy_ends_its_branch_only() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = bytearray(b'1') * (60 << 20)");
    for round in 0..6_u64 {
        let making = std::thread::scope(|scope| {
            let making = scope.spawn(|| source.try_branch(json!({})));
            std::thread::sleep(std::time::Duration::from_millis(7 * round));
            if let Some(copy) = descendants(server.pid())
                .into_iter()
                .find(|process| process.name.starts_with("sandcell-kept"))
            {
                kill(copy.pid);
            }
            making.join().unwrap()
        });
        if making.is_error() {
            making.refused("checkpoint_unavailable");
        } else {
            let id = making.0["structuredContent"]["sandbox_id"].clone();
            let branch = Sandbox { server: &server, id };
            assert_eq!(branch.run("print(len(x), x[-1])"), "62914560 49");
            branch.close();
        }
        assert_eq!(source.run("print(len(x), x[-1])"), "62914560 49");
    }
}

/// The copy of a session forks the process that writes the image.
#[test]
fn a_killed_or_stopped_writer_of_an_image_ends_its_branch_only() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("import os; x = bytearray(b'1') * (60 << 20)");
    let kept = || {
        let mut found = descendants(server.pid());
        found.retain(|process| process.name.starts_with("sandcell-kept") && process.lives());
        found
    };
    let mut refused = 0;
    for signal in ["KILL", "KILL", "KILL", "STOP"] {
        let making = std::thread::scope(|scope| {
            let making = scope.spawn(|| source.try_branch(json!({})));
            let writer = until(DEFAULT_TIMEOUT, "an image is being written", || {
                let found = kept();
                let newest = found
                    .iter()
                    .max_by_key(|process| (process.started, process.pid))
                    .cloned();
                (found.len() > 1 || making.is_finished()).then_some(newest)
            });
            if let Some(writer) = writer {
                let pid = writer.pid.to_string();
                let sent = std::process::Command::new("kill")
                    .args([format!("-{signal}"), pid])
                    .output();
                assert!(sent.is_ok());
            }
            making.join().unwrap()
        });
        if making.is_error() {
            making.refused("checkpoint_unavailable");
            refused += 1;
        }
        assert_eq!(source.run("print(len(x), x[-1])"), "62914560 49");
        until(DEFAULT_TIMEOUT, "nothing of the image is left", || {
            kept().is_empty().then_some(())
        });
        let branch = source.branch();
        assert_eq!(branch.run("print(len(x), x[-1])"), "62914560 49");
        branch.close();
    }
    assert!(refused > 0);
}

/// Files that no checkpoint has leave too little memory for an image of a session that is small enough for one.
#[test]
fn an_image_that_does_not_fit_into_the_memory_limit_ends_nothing_else() {
    let _turn = begin!();
    let place = place();
    let server = start(&place);
    let made = server.call("create_sandbox", json!({"memory_mb": 128}));
    let id = made.0["structuredContent"]["sandbox_id"].clone();
    let source = Sandbox { server: &server, id };
    source
        .run("x = bytearray(b'1') * (40 << 20); open('/dev/shm/large', 'wb').write(bytes(range(1, 256)) * (40 << 12))");
    for _ in 0..3 {
        let answer = source.try_branch(json!({}));
        if answer.is_error() {
            answer.refused("checkpoint_unavailable");
        }
        assert_eq!(source.run("print(len(x), x[-1])"), "41943040 49");
    }
}

/// With control groups, the state that branches go on from is charged to their source until they end.
#[test]
fn branches_never_use_up_the_memory_of_their_source() {
    let _turn = begin!();
    let place = place_for_many();
    let server = start(&place);
    let made = server.call("create_sandbox", json!({"memory_mb": 192}));
    let id = made.0["structuredContent"]["sandbox_id"].clone();
    let source = Sandbox { server: &server, id };
    source.run("x = bytearray(b'1') * (20 << 20)");
    let mut branches = Vec::new();
    let refused = (0..12).find_map(|_| {
        let answer = source.try_branch(json!({}));
        if answer.is_error() {
            return Some(answer.refused("checkpoint_unavailable"));
        }
        let id = answer.0["structuredContent"]["sandbox_id"].clone();
        branches.push(Sandbox { server: &server, id });
        None
    });
    // Without control groups no image is charged to the source.
    if is_root() || refused.is_some() {
        let text = refused.expect("the images are charged to their source");
        assert!(text.contains("close branches"), "{text}");
    }
    assert!(!branches.is_empty());
    // A step of some megabytes still fits.
    assert_eq!(
        source.run("y = bytes(range(256)) * (10 << 12); print(len(x), len(y))"),
        "20971520 10485760"
    );
    for branch in &branches {
        assert_eq!(branch.run("print(len(x), x[-1])"), "20971520 49");
        branch.close();
    }
    assert_eq!(source.run("del y; print(x[-1])"), "49");
    let again = until(DEFAULT_TIMEOUT, "there is room for a branch again", || {
        let answer = source.try_branch(json!({}));
        (!answer.is_error()).then_some(answer)
    });
    assert!(!again.is_error());
}

#[test]
fn many_calls_branch_one_sandbox_at_once() {
    let _turn = begin!();
    let place = place_for_many();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = bytearray(b'1') * (4 << 20)");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for branch in source.branches(json!({"count": 5})) {
                    assert_eq!(branch.run("print(len(x), x[-1])"), "4194304 49");
                    branch.close();
                }
            });
        }
    });
    source.try_branch(json!({"count": 64})).refused("limit_reached");
    assert_eq!(source.run("print(len(x), x[-1])"), "4194304 49");
}

#[test]
fn branches_leave_nothing_behind() {
    let _turn = begin!(alone);
    let place = place();
    let server = start(&place);
    let source = Sandbox::new(&server);
    source.run("x = bytearray(b'1') * (4 << 20)");
    let round = || {
        let branches = source.branches(json!({"count": 2}));
        assert_eq!(branches[1].run("print(len(x))"), "4194304");
        branches.iter().for_each(Sandbox::close);
    };
    (0..3).for_each(|_| round());
    let processes = || descendants(server.pid()).len();
    let counted = || (descriptors(server.pid()), processes());
    let before = settled(counted);
    (0..10).for_each(|_| round());
    until(DEFAULT_TIMEOUT, "descriptors and processes are as before", || {
        let (descriptors, processes) = counted();
        (descriptors <= before.0 + 2 && processes <= before.1 + 1).then_some(())
    });
}
