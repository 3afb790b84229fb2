//! Arguments from real models and clients.

use serde_json::{Value, json};

use crate::languages::execute;
use crate::packages::{command, stocked};
use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

#[test]
fn packages_may_be_a_string() {
    let _turn = begin!();
    let (place, index) = (TestDir::new(), stocked());
    let server = Client::start(&mut command(&place, &index.url(), &["serve"]));
    for packages in [
        json!("demo_one"),
        json!("[\"demo_one\"]"),
        json!("['demo_one', 'helper_one>=1,<2']"),
        json!("demo_one==2.0, helper_one"),
        json!("demo_one helper_one"),
    ] {
        let once = json!({"code": "import demo_one; demo_one.answer", "packages": packages});
        let answer = server.call("create_run_close", once);
        assert_eq!(answer.output(), "result: 2", "{packages}: {answer:?}");
    }
    let wrapped = json!({"input": {"packages": "demo_one"}, "toolCallId": "call_1", "sessionId": "s"});
    let installed = server.call("install_package", wrapped);
    assert!(!installed.is_error(), "{installed:?}");
    assert_eq!(server.run("import demo_one; demo_one.answer").output(), "result: 2");
    let wrong = server.call("install_package", json!({"packages": {"demo_one": "2.0"}}));
    let text = wrong.refused("invalid_argument");
    assert!(text.contains("\"packages\": [\"numpy\",\"pandas>=2,<3\"]"), "{text}");
}

#[test]
fn variables_files_and_outputs_come_in_many_forms() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for env in [
        json!({"PORT": 8080, "DEBUG": true, "NOT": null}),
        json!("{\"PORT\": 8080, \"DEBUG\": \"true\"}"),
        json!("PORT=8080\nDEBUG=true"),
        json!(["PORT=8080", "DEBUG=true"]),
        json!([{"name": "PORT", "value": 8080}, {"name": "DEBUG", "value": true}]),
    ] {
        let made = server.call(
            "create_sandbox",
            json!({"env": env, "memory_mb": "128MB", "lifetime_s": "10 min"}),
        );
        let id = made.data()["sandbox_id"].clone();
        let code = "import os; print(os.environ['PORT'], os.environ['DEBUG'])";
        let ran = server.call(
            "execute_code",
            json!({"code": code, "sandbox_id": id, "timeout_s": "20s"}),
        );
        assert_eq!(ran.output(), "8080 true\n", "{env}: {made:?} {ran:?}");
        server.call("close_sandbox", json!({"sandboxId": id}));
    }
    for (files, outputs) in [
        (json!({"a.csv": "1,2\n"}), json!("b.csv")),
        (json!("{\"a.csv\": \"1,2\\n\"}"), json!("[\"b.csv\"]")),
        (json!([{"path": "a.csv", "content": "1,2\n"}]), json!("['b.csv']")),
        (json!({"a.csv": ["1,2\n"]}), json!(["b.csv", null])),
    ] {
        let code = "open('b.csv', 'w').write(open('a.csv').read())";
        let once = json!({"code": code, "files": files, "outputs": outputs, "network": "", "packages": "[]"});
        let answer = server.call("create_run_close", once);
        assert_eq!(answer.status(), "ok", "{files}: {answer:?}");
        assert_eq!(answer.of_kind("resource_link").count(), 1, "{outputs}: {answer:?}");
    }
    let json = json!({"path": "a.json", "content": {"a": [1, "é"]}});
    assert!(!server.call("write_file", json).is_error());
    assert_eq!(
        server.text("import json; print(json.load(open('a.json')))"),
        "{'a': [1, 'é']}\n"
    );
    let wrong = server.call("create_sandbox", json!({"env": "PORT=1 DEBUG=2"}));
    assert!(
        wrong.refused("invalid_argument").contains("{\"MODE\":\"test\"}"),
        "{wrong:?}"
    );
    let wrong = server.call("create_run_close", json!({"code": "1", "outputs": "a.png, b.png"}));
    assert!(
        wrong.refused("invalid_argument").contains("[\"plot.png\"]"),
        "{wrong:?}"
    );
}

#[test]
fn empty_arguments_are_ignored() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.run("x = 41");
    for nothing in [
        json!(""),
        json!(" "),
        json!(null),
        json!("null"),
        json!("None"),
        json!("undefined"),
    ] {
        let call = json!({
            "code": "x + 1", "sandbox_id": nothing, "language": nothing, "timeout_s": nothing, "wait_s": nothing, "stdin": null,
        });
        let answer = server.call("execute_code", call);
        assert_eq!(answer.output(), "result: 42", "{nothing}: {answer:?}");
    }
    let answer = server.call(
        "execute_code",
        json!({"code": "x + 1", "sandbox_id": "default", "Language": "Python"}),
    );
    assert_eq!(answer.output(), "result: 42", "{answer:?}");
    let lists =
        json!({"code": "40 + 2", "packages": ["null"], "outputs": [""], "network": false, "files": "", "env": null});
    let answer = server.call("create_run_close", lists);
    assert_eq!(answer.output(), "result: 42", "{answer:?}");
    let status = server.call("get_sandbox_status", json!({"sandbox_id": ""}));
    assert!(!status.is_error(), "{status:?}");
    let empty = server.call("write_file", json!({"path": "empty.txt", "content": ""}));
    assert!(!empty.is_error(), "an empty file is one: {empty:?}");
    let missing = server.call("close_sandbox", json!({"sandbox_id": ""}));
    assert!(
        missing.refused("invalid_argument").contains("`sandbox_id` is missing"),
        "{missing:?}"
    );
}

#[test]
fn code_may_be_lines_a_number_or_in_a_fence() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let run = |code: Value| server.call("execute_code", json!({"code": code}));
    assert_eq!(run(json!(["a = 20\n", "a + 1"])).output(), "result: 21");
    assert_eq!(run(json!(["a = 20", "a + 2"])).output(), "result: 22");
    assert_eq!(run(json!(23)).output(), "result: 23");
    assert_eq!(run(json!("```python\na + 4\n```")).output(), "result: 24");
    assert_eq!(run(json!("```\na + 5\n```\n")).output(), "result: 25");
    assert_eq!(run(json!("```bash\necho $((20 + 6))\n```")).output(), "26\n");
    assert_eq!(execute(&server, "bash", "```sh\necho 27\n```").output(), "27\n");
    assert!(run(json!({"a": 1})).refused("invalid_argument").contains("print(1)"));
}

/// Returns the answer to the raw request.
fn raw(server: &Client, arguments: &Value) -> Value {
    server.request_raw("tools/call", json!({"name": "execute_code", "arguments": arguments}))
}

#[test]
fn the_whole_arguments_may_be_json_text() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let object = json!({"code": "6 * 7", "timeout_s": "5"});
    for arguments in [
        object.clone(),
        json!(object.to_string()),
        json!(json!(object.to_string()).to_string()),
        json!("{\"code\": \"a = 6\na * 7\"}"),
        json!({"arguments": object.to_string()}),
        json!({"kwargs": object}),
        json!({"params": {"arguments": object}}),
    ] {
        let answer = Answer(raw(&server, &arguments)["result"].clone());
        assert_eq!(answer.output(), "result: 42", "{arguments}: {answer:?}");
    }
    for nothing in [json!([]), json!(""), json!("{}"), json!(null)] {
        let answer = server.request_raw(
            "tools/call",
            json!({"name": "get_sandbox_status", "arguments": nothing}),
        );
        assert!(answer["error"].is_null(), "{nothing}: {answer}");
    }
    for wrong in [json!("print(1)"), json!([1]), json!(5)] {
        let answer = raw(&server, &wrong);
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("{\"code\": \"print(1)\"}"), "{wrong}: {answer}");
    }
}
