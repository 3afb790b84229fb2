//! Functions of the program that made a sandbox, and tools from other languages than Python.

use std::process::Command;

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;
use serde_json::{Value, json};

use super::{output, place_with};

#[test]
fn bash_and_node_call_tools_too() {
    let _turn = begin!();
    let place = place_with("", "ask = [\"store\"]");
    let server = Client::start(&mut place.command(&["serve"]));
    let bash = |code: &str| server.call("execute_code", json!({"code": code, "language": "bash"}));
    let answer = bash(
        "tools call stub.add '{\"a\": 1, \"b\": 2}'; tools list stub | head -2; x=$(tools call stub.echo '{\"text\": \"a b\"}'); echo \"<$x>\"",
    );
    let text = output(&answer);
    assert!(
        text.contains("{\"sum\":3}") && text.contains("stub.add\t") && text.contains("<a b>"),
        "{answer:?}"
    );
    assert!(
        answer.verdict().contains("stub.add 1") && answer.verdict().contains("stub.echo 1"),
        "{}",
        answer.verdict()
    );
    let refused = bash("tools call stub.delete_all; echo \"status $?\"");
    assert!(
        refused.all().contains("does not allow") && refused.all().contains("status 1"),
        "{refused:?}"
    );
    let large = bash("tools call stub.huge '{\"mib\": 2}' | wc -c");
    assert!(
        output(&large).contains("2097153") || output(&large).contains("2097152"),
        "{large:?}"
    );
    // A command of Python code, and a program next to the sessions.
    let shell = server.run("!tools call stub.echo '{\"text\": \"from a command\"}'");
    assert!(output(&shell).contains("from a command"), "{shell:?}");
    let none = Client::start(&mut TestDir::new().command(&["serve"]));
    let absent = none.call("execute_code", json!({"code": "type tools", "language": "bash"}));
    assert!(absent.all().contains("not found"), "{absent:?}");
    let has_node = Command::new("sh")
        .args(["-c", "PATH=/usr/local/bin:/usr/bin:/bin command -v node"])
        .output()
        .unwrap();
    if !has_node.status.success() {
        sandcell_e2e::skip("bash_and_node_call_tools_too", "no node");
        return;
    }
    let code = "const one = await tools.stub.add({a: 1, b: 2}); console.log(one.sum, await tools.stub.echo({text: 'x'}));\n\
                try { await tools.stub.fail() } catch (error) { console.log(error.code, error.message) }";
    let node = server.call("execute_code", json!({"code": code, "language": "javascript"}));
    assert!(
        output(&node).contains("3 x") && output(&node).contains("tool_failed no such repository"),
        "{node:?}"
    );
    assert!(node.verdict().contains("stub.fail 1 failed"), "{}", node.verdict());
}

/// Makes a sandbox whose code may call two functions of the client.
fn with_functions(server: &Client) -> String {
    let number = json!({"type": "number"});
    let schema = json!({"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]});
    let functions = json!([
        {"name": "add", "description": "Adds two numbers.", "input_schema": schema},
        {"name": "fails", "description": "Fails.", "input_schema": {"type": "object"}},
    ]);
    let made = server.call("create_sandbox_with_functions", json!({"functions": functions}));
    assert!(!made.is_error(), "{made:?}\n{}", server.log());
    made.0["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned()
}

fn exchange(server: &Client, sandbox: &str, results: &Value) -> Vec<Value> {
    let arguments = json!({"sandbox_id": sandbox, "results": results, "wait_s": 30});
    let answer = server.call("exchange_tool_calls", arguments);
    assert!(!answer.is_error(), "{answer:?}");
    answer.0["structuredContent"]["calls"].as_array().unwrap().clone()
}

#[test]
fn code_calls_functions_of_the_program_that_made_its_sandbox() {
    let _turn = begin!();
    let server = Client::start(&mut TestDir::new().command(&["serve"]));
    let sandbox = with_functions(&server);
    let code = "print(tools.functions.add(a=1, b=41))\n\
                try: tools.functions.fails()\nexcept tools.ToolError as error: print(error.code, error)\n\
                try: tools.functions.add(a='x', b=1)\nexcept tools.ToolError as error: print(error.code)\n\
                print(tools.list('functions'))";
    let running = server.begin_call("execute_code", json!({"code": code, "sandbox_id": sandbox}));
    let calls = exchange(&server, &sandbox, &json!([]));
    assert_eq!(
        (&calls[0]["name"], &calls[0]["arguments"]),
        (&json!("add"), &json!({"a": 1, "b": 41}))
    );
    let calls = exchange(
        &server,
        &sandbox,
        &json!([{"id": calls[0]["id"], "value": {"sum": 42}}]),
    );
    assert_eq!(calls[0]["name"], "fails");
    let failed =
        json!({"sandbox_id": sandbox, "wait_s": 0, "results": [{"id": calls[0]["id"], "error": "ValueError: no"}]});
    server.call("exchange_tool_calls", failed);
    let answer = running.answer();
    let text = output(&answer);
    for part in [
        "{'sum': 42}",
        "tool_failed ValueError: no",
        "invalid_argument",
        "add(*, a: float, b: float)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        answer.verdict().contains("functions.add 1, 1 refused"),
        "{}",
        answer.verdict()
    );
    // Other sandboxes of the same caller have no functions, and no name `tools`.
    assert!(server.run("tools").all().contains("NameError"));
    let refused = server.call(
        "exchange_tool_calls",
        json!({"sandbox_id": server.run("1").sandbox(), "wait_s": 0}),
    );
    assert!(refused.refused("invalid_argument").contains("without functions"));
    server.call("close_sandbox", json!({"sandbox_id": sandbox}));
    let gone = server.call("exchange_tool_calls", json!({"sandbox_id": sandbox, "wait_s": 30}));
    assert!(gone.is_error(), "{gone:?}");
}

#[test]
fn the_end_of_an_execution_takes_its_calls_of_functions_back() {
    let _turn = begin!();
    let server = Client::start(&mut TestDir::new().command(&["serve"]));
    let sandbox = with_functions(&server);
    let code = "tools.functions.add(a=1, b=1)";
    let late = server.call(
        "execute_code",
        json!({"code": code, "sandbox_id": sandbox, "timeout_s": 1}),
    );
    assert_eq!(late.status(), "timeout", "{late:?}");
    let running = server.begin_call(
        "execute_code",
        json!({"code": "print(tools.functions.add(a=2, b=2))", "sandbox_id": sandbox}),
    );
    // The call that was given up is not handed out, and its result is nobody's.
    let calls = exchange(&server, &sandbox, &json!([{"id": 1, "value": "stale"}]));
    assert_eq!((calls.len(), &calls[0]["arguments"]["a"]), (1, &json!(2)));
    let done = json!({"sandbox_id": sandbox, "wait_s": 0, "results": [{"id": calls[0]["id"], "value": 4}]});
    server.call("exchange_tool_calls", done);
    assert_eq!(output(&running.answer()).trim(), "4");
}
