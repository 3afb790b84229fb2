use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use sandcell_e2e::http::{Caller, Server, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, until};

/// One of two tenants: its number of concurrent calls, and their action.
struct Flood<'a> {
    caller: &'a Caller,
    at_once: usize,
    code: &'static str,
    /// The counters of completed calls.
    counts: ShareUnit,
}

/// The unit of a share.
#[derive(Clone, Copy)]
enum ShareUnit {
    Calls,
    /// Milliseconds of processor time, as each result reports them.
    ProcessorTime,
}

/// Stops the floods on every exit of the test, since the test waits for their threads.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets both tenants flood the server at the same time. Returns the completed work of each while both were active.
fn shares(floods: [Flood<'_>; 2], enough_of_both: u64) -> [u64; 2] {
    let over = AtomicBool::new(false);
    let done = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for (flood, done) in floods.iter().zip(&done) {
            for _ in 0..flood.at_once {
                let over = &over;
                scope.spawn(move || {
                    let made = flood.caller.call("create_sandbox", json!({"memory_mb": 64}));
                    let sandbox = made.data()["sandbox_id"].clone();
                    let call = json!({"code": flood.code, "sandbox_id": sandbox});
                    while !over.load(Ordering::Relaxed) {
                        let answer = flood.caller.call("execute_code", call.clone());
                        assert_eq!(answer.status(), "ok", "{}", answer.all());
                        let amount = match flood.counts {
                            ShareUnit::Calls => 1,
                            ShareUnit::ProcessorTime => answer.meta()["cpu_ms"].as_f64().unwrap() as u64,
                        };
                        done.fetch_add(amount, Ordering::Relaxed);
                    }
                });
            }
        }
        let _ends = StopOnDrop(&over);
        let now = || [0, 1].map(|n: usize| done[n].load(Ordering::Relaxed));
        let begun = floods.each_ref().map(|flood| match flood.counts {
            ShareUnit::Calls => 4,
            ShareUnit::ProcessorTime => 1000,
        });
        until(DEFAULT_TIMEOUT, "both are under way", || {
            let now = now();
            (now[0] > begun[0] && now[1] > begun[1]).then_some(())
        });
        let before = now();
        until(Duration::from_secs(120), "both get something done", || {
            let now = now();
            let share = [now[0] - before[0], now[1] - before[1]];
            (share[0] + share[1] >= 2 * enough_of_both).then_some(share)
        })
    })
}

/// Two tenants of a server with two permits.
fn two(place: &TestDir) -> (Server, Caller, Caller) {
    let (_, ann) = token(place, &["ann"]);
    let (_, bob) = token(place, &["bob"]);
    let server = Server::start(place, &[]);
    let callers = (server.with_token(&ann), server.with_token(&bob));
    (server, callers.0, callers.1)
}

const TWO_PERMITS: &str = "[limits]\nexecutions = 2\nexecutions_per_caller = 2\n[pool]\nparked = 0\n";

#[track_caller]
fn even(what: &str, [one, other]: [u64; 2]) {
    println!("{what}: {one} and {other}");
    let (less, more) = (one.min(other), one.max(other));
    assert!(less * 10 >= more * 8, "{what}: {one} and {other}");
}

#[test]
fn cpu_time_is_shared_evenly_for_any_length_and_number_of_calls() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings(TWO_PERMITS);
    let (_server, ann, bob) = two(&place);
    let long = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass";
    let short = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass";
    let floods = [
        Flood {
            caller: &ann,
            at_once: 10,
            code: long,
            counts: ShareUnit::ProcessorTime,
        },
        Flood {
            caller: &bob,
            at_once: 4,
            code: short,
            counts: ShareUnit::ProcessorTime,
        },
    ];
    even("milliseconds of processor time", shares(floods, 5000));
}

#[test]
fn a_flood_of_small_calls_does_not_crowd_out_fewer() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings(TWO_PERMITS);
    let (_server, ann, bob) = two(&place);
    let small = "import time\ntime.sleep(0.02)";
    let flood = |caller, at_once| Flood {
        caller,
        at_once,
        code: small,
        counts: ShareUnit::Calls,
    };
    even("calls", shares([flood(&ann, 14), flood(&bob, 4)], 150));
}

#[test]
fn more_busy_sandboxes_get_a_caller_no_more_cpu_time() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let (_server, ann, bob) = two(&place);
    let seen = ann.call("create_run_close", json!({"code": "1"}));
    if seen.meta()["isolation"]["degraded"]
        .to_string()
        .contains("memory_limit: watched")
    {
        // Without control groups there are no weights; the test also runs as root.
        return;
    }
    let code = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass";
    let flood = |caller, at_once| Flood {
        caller,
        at_once,
        code,
        counts: ShareUnit::ProcessorTime,
    };
    let [anns, bobs] = shares([flood(&ann, 12), flood(&bob, 3)], 6000);
    println!("milliseconds of processor time: {anns} with twelve sandboxes and {bobs} with three");
    // A division by sandboxes would give one to four.
    assert!(bobs * 3 >= anns * 2, "{anns} and {bobs}");
}
