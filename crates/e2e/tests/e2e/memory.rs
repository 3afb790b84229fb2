//! Ordinary programs that make the kernel use much memory, within a small limit. No program is killed for memory that
//! is reclaimable, or already charged.

use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

#[test]
fn cached_file_names_do_not_trigger_an_oom_kill() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let code = "import os\nkept = bytearray(40 << 20)\nlooked = 0\nfor _ in range(2):\n    \
        for folder, _, names in os.walk('/usr'):\n        \
        for name in names:\n            os.lstat(os.path.join(folder, name))\n            looked += 1\nlooked > 1000, len(kept)";
    let answer = server.call(
        "create_run_close",
        json!({"code": code, "memory_mb": 128, "timeout_s": 100, "wait_s": 110}),
    );
    assert!(answer.all().contains("(True, 41943040)"), "{answer:?}");
}

#[test]
fn a_program_may_have_many_connections() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    // Without cgroups each socket counts as its maximum buffer size.
    let connections = if rustix::process::geteuid().is_root() {
        1000
    } else {
        400
    };
    let code = format!(
        "import resource, socket, time\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\nresource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n\
         listener = socket.create_server(('127.0.0.1', 0), backlog=1024)\npairs = []\nfor _ in range({connections}):\n    \
         near = socket.create_connection(listener.getsockname())\n    pairs.append((near, listener.accept()[0]))\n\
         for near, far in pairs:\n    near.sendall(b'x' * 1000)\ntime.sleep(0.5)\nsum(len(far.recv(2000)) for _, far in pairs)"
    );
    let answer = server.call("create_run_close", json!({"code": code}));
    assert!(answer.all().contains(&format!("{}", connections * 1000)), "{answer:?}");
}

/// Control groups may be reused.
#[test]
fn memory_use_and_limits_of_a_run_do_not_affect_later_runs() {
    let _turn = begin!();
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Client::start(&mut place.command(&["serve"]));
    let run =
        |code: &str, memory_mb: u64| server.call("create_run_close", json!({"code": code, "memory_mb": memory_mb}));
    let peak = |code: &str, memory_mb: u64| {
        let answer = run(code, memory_mb);
        assert_eq!(answer.status(), "ok", "{answer:?}");
        answer.meta()["peak_memory_mb"].as_f64().unwrap()
    };
    let few = "import resource\nprint(1)";
    for _ in 0..3 {
        assert!(peak("b = bytearray(150 << 20)\nprint(len(b))", 300) > 140.0);
        for _ in 0..3 {
            assert!(peak(few, 300) < 80.0, "it is told what another one used");
        }
        // A lower limit first, then a higher one.
        let refused = run("b = bytearray(b'x' * (200 << 20))\nprint(len(b))", 100);
        assert_ne!(refused.status(), "ok", "{refused:?}");
        for _ in 0..2 {
            assert!(peak(few, 100) < 80.0);
        }
        assert!(peak("b = bytearray(350 << 20)\nprint(len(b))", 500) > 340.0);
        // Files in memory are freed with their sandbox.
        peak("open('/tmp/full', 'wb').write(bytes(60 << 20))\nprint(1)", 300);
    }
}
