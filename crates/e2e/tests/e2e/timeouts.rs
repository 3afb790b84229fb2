use std::time::Duration;

use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, until};

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

fn for_a_second(server: &Client, code: &str) -> Answer {
    server.call("execute_code", json!({"code": code, "timeout_s": 1}))
}

#[test]
fn an_endless_loop_is_interrupted_and_variables_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("kept = 'yes'");
    let answer = for_a_second(&server, "print('before', flush=True)\nwhile True: pass");
    assert!(!answer.is_error());
    assert_eq!(answer.status(), "timeout", "{answer:?}");
    assert_eq!(answer.cause(), "timeout");
    assert!(!answer.state_lost(), "{answer:?}");
    assert!(answer.output().contains("before"), "output so far is kept: {answer:?}");
    assert!(
        answer.verdict().contains("timeout_s"),
        "it says how to get more: {}",
        answer.verdict()
    );
    assert_eq!(server.text("print(kept)").trim(), "yes");
}

#[test]
fn waiting_forever_is_interrupted() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("kept = 'yes'");
    for code in [
        "import time\ntime.sleep(600)",
        "import threading\nthreading.Event().wait()",
        "import asyncio\nawait asyncio.sleep(600)",
        "import subprocess\nsubprocess.run(['sleep', '600'])",
        "import os\nr, w = os.pipe()\nos.read(r, 1)",
    ] {
        let answer = for_a_second(&server, code);
        assert_eq!(answer.status(), "timeout", "{code}: {answer:?}");
        assert!(!answer.state_lost(), "{code}: {answer:?}");
    }
    assert_eq!(server.text("print(kept)").trim(), "yes");
}

#[test]
fn code_that_ignores_the_interrupt_is_killed() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for code in [
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    ] {
        server.text("kept = 'yes'");
        let answer = for_a_second(&server, code);
        assert!(!answer.is_error());
        assert_eq!(answer.cause(), "timeout", "{code}: {answer:?}");
        // Interrupted or killed, the session answers, and the report about its variables is true.
        let kept = if answer.state_lost() { "False" } else { "True" };
        assert_eq!(
            server.text("print('kept' in globals())").trim(),
            kept,
            "{code}: {answer:?}"
        );
        server.call("reset_session_state", json!({}));
    }
}

#[test]
fn children_of_timed_out_code_are_killed() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = for_a_second(&server, "import subprocess\nsubprocess.run(['sh', '-c', 'sleep 602'])");
    assert_eq!(answer.status(), "timeout", "{answer:?}");
    let look = "import os\nfound = []\n\
                for p in os.listdir('/proc'):\n    \
                    if p.isdigit():\n        \
                        try:\n            line = open(f'/proc/{p}/cmdline').read()\n        except OSError:\n            continue\n        \
                        if 'sleep' in line: found.append(line)\n\
                print(found)";
    until(DEFAULT_TIMEOUT, "no sleeper is left", || {
        (server.text(look).trim() == "[]").then_some(())
    });
}

#[test]
fn a_cancelled_call_stops_its_code_and_keeps_variables() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("kept = 'yes'\nimport time\nturns = 0");
    let call = server.begin_call(
        "execute_code",
        json!({"code": "while True:\n    turns += 1\n    if turns == 1: open('started', 'w').close()\n    time.sleep(0.01)"}),
    );
    until(DEFAULT_TIMEOUT, "the code runs", || {
        (!server.call("read_file", json!({"path": "started"})).is_error()).then_some(())
    });
    server.notify(
        "notifications/cancelled",
        json!({"requestId": call.id, "reason": "enough"}),
    );
    // The session answers again: the loop is over, and its variables exist.
    let answer = server.run("print(kept, turns > 0)");
    assert_eq!(answer.output().trim(), "yes True", "{answer:?}");
    assert_eq!(answer.status(), "ok");
    assert!(
        call.within(Duration::from_millis(1))
            .is_none_or(|late| late.get("error").is_some()),
        "a cancelled call gets no result"
    );
    let history = server.call("get_execution_history", json!({}));
    let cancelled = history.data()["records"]
        .as_array()
        .unwrap()
        .iter()
        .any(|row| row["status"] == "cancelled");
    assert!(cancelled, "{history:?}");
}

#[test]
fn a_call_that_takes_longer_than_its_wait_answers_running() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.call(
        "execute_code",
        json!({"code": "import time\nprint('started', flush=True)\ntime.sleep(20)\nprint('done')", "wait_s": 1, "timeout_s": 3}),
    );
    assert!(!answer.is_error());
    assert_eq!(answer.status(), "running", "{answer:?}");
    assert!(answer.meta()["execution_id"].as_str().unwrap().starts_with("ex"));
    assert!(answer.output().contains("started"), "what there is so far: {answer:?}");
    // Calls of one session queue in order: this one comes after the first has timed out.
    assert_eq!(server.text("print('next')").trim(), "next");
}

#[test]
fn a_client_with_a_short_timeout_can_find_its_execution_again() {
    let _turn = begin!();
    let place = TestDir::with_settings("[mcp]\nwait_s = 1\n");
    let server = server(&place);
    let running = server.run("import time\nprint('begun', flush=True)\ntime.sleep(10)\nprint('end')");
    assert_eq!(running.status(), "running", "{running:?}");
    let id = running.meta()["execution_id"].as_str().unwrap();
    let first = running.blocks().remove(0);
    assert!(
        first.ends_with(&format!(
            "status: running: get_execution(execution_id=\"{id}\") waits for the rest"
        )),
        "{first}"
    );
    // Without an id, the call means the newest execution.
    let ended = server.call("get_execution", json!({"wait_s": 55}));
    assert_eq!(
        (ended.status(), ended.meta()["execution_id"].as_str()),
        ("ok", Some(id))
    );
    assert_eq!(ended.meta()["stdout"], "begun\nend\n");
    let told = server.notifications();
    let message = told.iter().find(|told| told["method"] == "notifications/message");
    let data = &message.expect("a message that names the execution")["params"]["data"];
    assert_eq!(
        (&data["code"], data["execution_id"].as_str()),
        (&json!("running"), Some(id))
    );
}
