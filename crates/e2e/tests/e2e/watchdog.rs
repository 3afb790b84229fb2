//! Limits without control groups, as for an ordinary user. Abuses are held within one and a half of the limit, as
//! measured from outside, and named.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::machine;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, is_root};

/// Returns true when the watchdog enforces limits here; root has cgroups, and the tests run again as an ordinary user.
fn watched(server: &Client) -> bool {
    is_watched(&server.run("1").meta()["isolation"])
}

fn is_watched(isolation: &Value) -> bool {
    isolation["degraded"].to_string().contains("memory_limit: watched")
}

/// Returns the peak memory of all processes called `dd` together while `call` ran, in bytes. Each holds one private
/// buffer and shares nothing, so that the kernel's numbers add up.
fn peak(server: &Client, call: impl FnOnce() -> Answer) -> (Answer, u64) {
    let (over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stop, seen, pid) = (Arc::clone(&over), Arc::clone(&most), server.pid());
    let look = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let buffers = machine::descendants(pid).into_iter().filter(|seen| seen.name == "dd");
            let sum = buffers.filter_map(|seen| machine::status(seen.pid, "RssAnon"));
            let kib = sum.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok());
            seen.fetch_max(kib.sum::<u64>() * 1024, Ordering::Relaxed);
        }
    });
    let answer = call();
    over.store(true, Ordering::Relaxed);
    look.join().unwrap();
    (answer, most.load(Ordering::Relaxed))
}

fn run(server: &Client, code: &str, memory_mb: u64) -> Answer {
    server.call(
        "create_run_close",
        json!({"code": code, "memory_mb": memory_mb, "timeout_s": 20}),
    )
}

/// Passes if one of three tries does: a busy machine may delay the watchdog.
fn held(server: &Client, code: &str, memory_mb: u64) -> Value {
    let most = memory_mb * 3 / 2 * 1024 * 1024;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (answer, peak) = peak(server, || run(server, code, memory_mb));
        seen.push(peak >> 20);
        assert!(peak > 0, "nothing was measured: {answer:?}");
        if peak <= most {
            println!("{memory_mb} MiB: at most {seen:?} MiB");
            return answer.meta()["cause"].clone();
        }
    }
    panic!("{memory_mb} MiB were passed by more than half: {seen:?} MiB");
}

#[test]
fn many_concurrent_children_stay_within_the_memory_of_one_sandbox() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Client::start(&mut place.command(&["serve"]));
    if !watched(&server) {
        assert!(
            is_root(),
            "limits are watched for ordinary users without a delegated group"
        );
        return;
    }
    // Each process is far below the limit; together they use six times as much.
    let crowd = "import subprocess\n\
        many = [subprocess.Popen(['dd', 'if=/dev/zero', 'of=/dev/null', 'bs=16M', 'count=40'], \
        stderr=subprocess.DEVNULL) for n in range(COUNT)]\n\
        ended = [one.wait() for one in many]\n\
        assert not any(code < 0 for code in ended), 'some were ended'";
    for (limit, count) in [(128, 48), (256, 96)] {
        let cause = held(&server, &crowd.replace("COUNT", &count.to_string()), limit);
        assert_eq!(cause["code"], "out_of_memory", "{cause}");
        let message = cause["message"].as_str().unwrap();
        assert!(message.contains(&format!("{limit} MiB")), "{message}");
        assert!(cause["remedy"].as_str().unwrap().contains("memory_mb"), "{cause}");
    }
}

#[test]
fn short_lived_children_stay_within_the_memory_limit() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Client::start(&mut place.command(&["serve"]));
    if !watched(&server) {
        assert!(
            is_root(),
            "limits are watched for ordinary users without a delegated group"
        );
        return;
    }
    let waves = "import subprocess, time\nend = time.time() + 2\nwhile time.time() < end:\n    \
        many = [subprocess.Popen(['dd', 'if=/dev/zero', 'of=/dev/null', 'bs=24M', 'count=5'], \
        stderr=subprocess.DEVNULL) for n in range(20)]\n    [one.wait() for one in many]";
    held(&server, waves, 128);
    // The watchdog stops processes while it counts. They run again, and the sandbox answers.
    assert_eq!(server.text("print('lives')").trim(), "lives");
}

#[test]
fn cpu_time_processes_and_descriptors_are_limited_and_named() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[pool]\nparked = 0\n[limits]\nprocesses = 24\ninodes = 2000\ndisk_mb = 16\n");
    let server = Client::start(&mut place.command(&["serve"]));
    if !watched(&server) {
        assert!(
            is_root(),
            "limits are watched for ordinary users without a delegated group"
        );
        return;
    }
    let busy = "import os, time\nend = time.time() + 1.5\nfor n in range(8):\n    if os.fork() == 0:\n        \
        while time.time() < end: pass\n        os._exit(0)\nfor n in range(8): os.wait()";
    let answer = run(&server, busy, 256);
    let time = |name: &str| answer.meta()[name].as_f64().unwrap();
    assert!(time("cpu_ms") <= time("duration_ms") * 1.5, "{answer:?}");
    for (code, cause) in [
        (
            "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(30)",
            "process_limit",
        ),
        (
            "b = bytes(1 << 20)\nf = open('f', 'wb')\nwhile True: f.write(b)",
            "disk_full",
        ),
        (
            "n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1",
            "disk_full",
        ),
    ] {
        let found = run(&server, code, 256).meta()["cause"].clone();
        assert_eq!(found["code"], cause, "{found}");
        assert!(
            found["message"]
                .as_str()
                .unwrap()
                .bytes()
                .any(|byte| byte.is_ascii_digit()),
            "{found}"
        );
    }
    let counted = server.text(
        "import os\nheld = []\ntry:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError as error: \
         print(len(held) < 4096, error.errno)\nfor fd in held: os.close(fd)",
    );
    assert_eq!(counted.trim(), "True 24");
}

/// The count includes memory that is not the program's: page tables, the session's snapshot, the first process.
#[test]
fn code_that_takes_all_memory_gets_an_error_and_keeps_its_variables() {
    let _turn = begin!();
    for _ in 0..2 {
        // The first sandbox of a server has an interpreter that started by itself.
        let place = TestDir::new();
        let server = Client::start(&mut place.command(&["serve"]));
        for fill in [
            "for size in (8 << 20, 1 << 20):\n    try:\n        while True: parts.append(b'x' * size)\n    except MemoryError: pass\nparts.append(b'x' * (8 << 20))",
            "for size in (8 << 20, 1 << 20, 64 << 10, 8 << 10, 100):\n    try:\n        while True: parts.append(b'x' * size)\n    except MemoryError: pass\nparts.append(b'x' * (8 << 20))",
            "while True: parts.append((len(parts), float(len(parts))))",
            "while True: parts = [parts, None]",
        ] {
            let made = server.call("create_sandbox", json!({"memory_mb": 128}));
            if !is_watched(&made.data()["isolation"]) {
                assert!(is_root(), "limits are watched for ordinary users: {made:?}");
                return;
            }
            let id = made.data()["sandbox_id"].as_str().expect("an id").to_owned();
            let run = |code: &str| server.call("execute_code", json!({"sandbox_id": id, "code": code}));
            // A module with the name `mmap` cannot disable the memory reserve.
            let stub = "import sys\nsys.modules['mmap'] = None";
            let full = run(&format!("{stub}\nkept, parts = 'kept', []\n{fill}"));
            assert_eq!((full.status(), full.cause()), ("error", "out_of_memory"), "{full:?}");
            for _ in 0..3 {
                let next = run("print(kept, len(parts) > 1)");
                assert_eq!(next.output().trim(), "kept True", "{next:?}");
                // A snapshot is made meanwhile, and the watchdog checks memory every 50 ms.
                std::thread::sleep(Duration::from_millis(120));
            }
            let freed = run("del parts\nprint(len(b'x' * (64 << 20)))");
            assert_eq!(freed.output().trim(), "67108864", "{freed:?}");
        }
    }
}
