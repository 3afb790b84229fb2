use std::collections::BTreeSet;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, machine};

const MANY_SANDBOXES: &str = "[limits]\nsandboxes_per_caller = 128\nsandboxes = 128\n";

#[test]
fn each_of_sixty_sandboxes_has_its_own_variables_though_idle_interpreters_are_killed() {
    let _turn = begin!();
    let place = TestDir::with_settings(&format!("{MANY_SANDBOXES}[pool]\nparked = 8\n"));
    let server = Client::start(&mut place.command(&["serve"]));
    server.call("execute_code", json!({"code": "1"}));
    let creations: Vec<_> = (0..60)
        .map(|number| server.begin_call("create_sandbox", json!({"env": {"NUMBER": number.to_string()}})))
        .collect();
    for _ in 0..20 {
        for process in machine::descendants(server.pid()) {
            if process.name.starts_with("python") && process.lives() {
                machine::kill(process.pid);
            }
        }
    }
    let ids: Vec<Value> = creations
        .into_iter()
        .map(|creation| {
            let made = creation.answer();
            assert!(!made.is_error(), "{made:?}\n{}", server.log());
            made.data()["sandbox_id"].clone()
        })
        .collect();
    for (number, id) in ids.iter().enumerate() {
        let code =
            "import os, subprocess\nprint(os.environ['NUMBER'], subprocess.check_output(['printenv', 'NUMBER']))";
        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
        assert_eq!(answer.output().trim(), format!("{number} b'{number}\\n'"), "{answer:?}");
    }
}

#[test]
fn a_hundred_sandboxes_at_once_never_mix_their_output() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings(MANY_SANDBOXES);
    let server = Client::start(&mut place.command(&["serve"]));
    let made = server.call("create_sandbox", json!({"count": 100}));
    assert!(!made.is_error(), "{made:?}\n{}", server.log());
    let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
    let distinct: BTreeSet<&str> = ids.iter().filter_map(Value::as_str).collect();
    assert_eq!(distinct.len(), 100);
    for round in 0..2 {
        let calls: Vec<_> = ids
            .iter()
            .enumerate()
            .map(|(n, id)| {
                let code = if round == 0 {
                    format!("me = {n}\nfor i in range(2000): print(f'out {{me}} {{i}}')\nopen('f', 'w').write(str(me))")
                } else {
                    "import sys\nfor i in range(300):\n    print(f'out {me} {i}', flush=True)\n    print(f'err {me} {i}', file=sys.stderr)\nprint('file', open('f').read())".to_owned()
                };
                server.begin_call("execute_code", json!({"code": code, "sandbox_id": id}))
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate() {
            let answer = call.answer();
            assert_eq!(answer.status(), "ok", "{n}: {answer:?}");
            assert_eq!(answer.sandbox(), ids[n].as_str().unwrap());
            let text = answer.output();
            for line in text
                .lines()
                .filter(|line| line.starts_with("out ") || line.starts_with("err "))
            {
                assert_eq!(
                    line.split(' ').nth(1),
                    Some(n.to_string().as_str()),
                    "sandbox {n} has another's line: {line}"
                );
            }
            assert!(text.contains(&format!("out {n} 0\n")), "{n}: {text:.200}");
            if round == 1 {
                assert!(text.contains(&format!("file {n}")), "{n}: {text}");
            }
        }
    }
}

#[test]
fn concurrent_throwaway_runs_get_their_own_answers() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let calls: Vec<_> = (0..12)
        .map(|n| server.begin_call("create_run_close", json!({"code": format!("print({n} * 1000)")})))
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = call.answer();
        assert_eq!(answer.output().trim(), (n * 1000).to_string(), "{answer:?}");
    }
}

#[test]
fn calls_of_one_session_run_one_after_the_other_in_order() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    server.text("seen = []");
    let calls: Vec<_> = (0..8)
        .map(|n| {
            server.begin_call(
                "execute_code",
                json!({"code": format!("seen.append({n})\nprint(seen)")}),
            )
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let expected: Vec<usize> = (0..=n).collect();
        assert_eq!(call.answer().output().trim(), format!("{expected:?}"));
    }
}

#[test]
fn a_busy_sandbox_does_not_block_another() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let busy = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    let call = server.begin_call(
        "execute_code",
        json!({"code": "import time\ntime.sleep(600)", "sandbox_id": busy, "timeout_s": 600}),
    );
    assert_eq!(server.text("print('free')").trim(), "free");
    assert_eq!(
        server
            .call("create_run_close", json!({"code": "print('also free')"}))
            .output()
            .trim(),
        "also free"
    );
    // Closing the sandbox ends its running call, and the caller gets an answer.
    assert!(!server.call("close_sandbox", json!({"sandbox_id": busy})).is_error());
    let answer = call.wait();
    assert_ne!(
        answer["result"]["_meta"]["sandcell/execution"]["status"], "ok",
        "{answer}"
    );
}

#[test]
fn closing_during_creation_and_execution_leaves_a_clean_state() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    for _ in 0..5 {
        let made = server.call("create_sandbox", json!({"count": 3}));
        let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
        let calls: Vec<_> = ids
            .iter()
            .flat_map(|id| {
                [
                    server.begin_call("execute_code", json!({"code": "print(1)", "sandbox_id": id})),
                    server.begin_call("close_sandbox", json!({"sandbox_id": id})),
                    server.begin_call("close_sandbox", json!({"sandbox_id": id})),
                    server.begin_call("list_files", json!({"sandbox_id": id})),
                ]
            })
            .collect();
        for call in calls {
            let answer = call.wait();
            assert!(answer.get("result").is_some(), "{answer}");
        }
    }
    assert!(
        !server.call("create_sandbox", json!({"count": 16})).is_error(),
        "all sixteen places are free again"
    );
}
