use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

fn execution(answer: &Answer) -> String {
    answer.meta()["execution_id"].as_str().unwrap().to_owned()
}

/// Starts a program whose stdin stays open.
fn open(server: &Client, line: &str) -> String {
    let started = server.call("run_command", json!({"command": line, "keep_stdin": true, "wait_s": 0}));
    assert_eq!(started.status(), "running", "{started:?}");
    execution(&started)
}

fn write(server: &Client, id: &str, more: Value) -> Answer {
    let mut arguments = json!({"execution_id": id});
    arguments
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    server.call("write_stdin", arguments)
}

#[test]
fn a_string_is_run_by_a_shell_and_a_list_is_not() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let line = server.call(
        "run_command",
        json!({"command": "echo $((6 * 7)) $0; echo err >&2; exit 7"}),
    );
    assert_eq!(
        (line.status(), &line.meta()["exit_code"]),
        ("error", &json!(7)),
        "{line:?}"
    );
    assert_eq!(
        (&line.meta()["stdout"], &line.meta()["stderr"], &line.meta()["language"]),
        (&json!("42 bash\n"), &json!("err\n"), &json!("command"))
    );
    let words = json!({"argv": ["printf", "[%s]", "$HOME", "", "a b"], "env": {"OWN": "1"}, "cwd": "/tmp"});
    assert_eq!(server.call("run_command", words).output(), "[$HOME][][a b]");
    let history = server.call("get_execution_history", json!({"last_n": 1})).all();
    assert!(history.contains("printf '[%s]' '$HOME' '' 'a b'"), "{history}");
    let input = json!({"argv": ["od", "-An", "-tx1"], "stdin_base64": "AP8="});
    assert_eq!(server.call("run_command", input).output().trim(), "00 ff");
}

#[test]
fn a_command_that_cannot_start_is_reported_and_not_run_elsewhere() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let missing = server.call("run_command", json!({"argv": ["no-such-program"]}));
    assert_eq!(
        (missing.status(), &missing.meta()["exit_code"], missing.cause()),
        ("error", &json!(127), "not_found"),
        "{missing:?}"
    );
    assert!(missing.all().contains("no-such-program"), "{missing:?}");
    let data = server.call("run_command", json!({"argv": ["/etc/passwd"]}));
    assert_eq!(
        (&data.meta()["exit_code"], data.cause()),
        (&json!(126), "invalid_argument"),
        "{data:?}"
    );
    for wait in [0, 30] {
        let elsewhere = json!({"command": "touch /tmp/started", "cwd": "no/such/folder", "wait_s": wait});
        let text = server.call("run_command", elsewhere).refused("not_found");
        assert!(text.contains("/home/user/no/such/folder"), "{text}");
        let file = json!({"command": "touch /tmp/started", "cwd": "/etc/passwd", "wait_s": wait});
        server.call("run_command", file).refused("invalid_argument");
    }
    let seen = server.call("run_command", json!({"command": "ls /tmp"}));
    assert_eq!(seen.output(), "", "{seen:?}");
}

#[test]
fn an_open_input_is_written_in_parts_until_it_is_closed() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let id = open(
        &server,
        "while read -r line; do echo got $line; echo $line > last; done; echo end",
    );
    assert!(!write(&server, &id, json!({"data": "one\ntw"})).is_error());
    let rest = write(
        &server,
        &id,
        json!({"data_base64": STANDARD.encode("o\n"), "close": true}),
    );
    assert_eq!(
        rest.0["_meta"]["sandcell/stdin"],
        json!({"execution_id": id, "written": 2, "closed": true})
    );
    let ended = server.call("get_execution", json!({"execution_id": id}));
    assert_eq!(ended.meta()["stdout"], "got one\ngot two\nend\n", "{ended:?}");
    let late = write(&server, &id, json!({"data": "three"})).refused("expired");
    assert!(late.contains(&id), "{late}");

    let closed = open(&server, "cat; exec sleep 1000");
    write(&server, &closed, json!({"close": true}));
    write(&server, &closed, json!({"data": "late"})).refused("invalid_argument");
    server.call("cancel_execution", json!({"execution_id": closed}));
    // A program without `keep_stdin` has no open stdin.
    let never = server.call("run_command", json!({"command": "cat; exec sleep 1000", "wait_s": 0}));
    write(&server, &execution(&never), json!({"data": "x"})).refused("invalid_argument");
    let cancelled = server.call("cancel_execution", json!({"execution_id": execution(&never)}));
    assert_eq!(cancelled.status(), "cancelled", "{cancelled:?}");
    write(&server, "ex0000", json!({"data": "x"})).refused("not_found");
    let code = server.call(
        "execute_code",
        json!({"code": "import time; time.sleep(1000)", "wait_s": 0}),
    );
    write(&server, &execution(&code), json!({"data": "x"})).refused("invalid_argument");
}

#[test]
fn unread_input_of_a_program_is_bounded() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let id = open(&server, "while ! [ -e go ]; do sleep 0.01; done; wc -c");
    let part = "x".repeat(1 << 20);
    let mut taken = 0;
    while taken < 16 {
        let answer = write(&server, &id, json!({"data": part, "wait_s": 0.2}));
        if answer.is_error() {
            answer.refused("busy");
            break;
        }
        taken += 1;
    }
    assert!(
        (1..=4).contains(&taken),
        "{taken} MiB wait for a program that does not read"
    );
    let long = "x".repeat((1 << 20) + 1);
    write(&server, &id, json!({"data": long})).refused("limit_reached");
    server
        .call("run_command", json!({"command": "cat", "stdin": long}))
        .refused("limit_reached");
    // Another call waits until the program reads.
    let waiting = server.begin_call("write_stdin", json!({"execution_id": id, "data": part}));
    server.call("run_command", json!({"command": "touch go"}));
    assert!(!waiting.answer().is_error());
    write(&server, &id, json!({"close": true}));
    let ended = server.call("get_execution", json!({"execution_id": id}));
    let counted: usize = ended.output().trim().parse().unwrap();
    assert_eq!(counted, (taken + 1) << 20, "a part that was refused was not written");
}

#[test]
fn commands_run_in_parallel_with_each_other_and_a_busy_session() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let busy = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)\nprint('stopped')";
    let session = server.begin_call("execute_code", json!({"code": busy}));
    let meet = "touch $0; while ! [ -e a -a -e b -a -e c ]; do sleep 0.01; done; echo $0";
    let calls: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| server.begin_call("run_command", json!({"argv": ["bash", "-c", meet, name]})))
        .collect();
    let said: Vec<String> = calls.into_iter().map(|call| call.answer().output()).collect();
    assert_eq!(said, ["a\n", "b\n", "c\n"]);
    server.call("run_command", json!({"command": "touch stop"}));
    assert_eq!(session.answer().output(), "stopped\n");
}

#[test]
fn a_command_ends_with_its_call_or_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let gone = |marker: &str| {
        let look = format!("while pgrep -fx 'sleep {marker}' > /dev/null; do sleep 0.01; done; echo gone");
        server.call("run_command", json!({"command": look})).output()
    };
    server.call("run_command", json!({"command": "true"}));
    let call = server.begin_call("run_command", json!({"command": "touch begun; exec sleep 4331"}));
    server.call(
        "run_command",
        json!({"command": "while ! [ -e begun ]; do sleep 0.01; done"}),
    );
    server.notify("notifications/cancelled", json!({"requestId": call.id}));
    assert_eq!(gone("4331"), "gone\n");
    let limited = server.call(
        "run_command",
        json!({"command": "sleep 4332 & sleep 4332", "timeout_s": 0.5}),
    );
    assert_eq!(
        (limited.status(), limited.cause()),
        ("timeout", "timeout"),
        "{limited:?}"
    );
    assert_eq!(gone("4332"), "gone\n");
    let sandbox = limited.sandbox();
    let id = open(&server, "exec sleep 1000");
    server.call("close_sandbox", json!({"sandbox_id": sandbox}));
    let ended = server.call("get_execution", json!({"execution_id": id}));
    assert_ne!(ended.status(), "running", "{ended:?}");
    write(&server, &id, json!({"data": "x"})).refused("expired");
}
