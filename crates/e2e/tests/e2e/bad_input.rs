use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

/// Returns a server whose session holds a variable that bad input must not lose.
fn server(place: &TestDir) -> Client {
    let server = Client::start(&mut place.command(&["serve"]));
    server.text("kept = 'all of it'");
    server
}

#[track_caller]
fn nothing_is_lost(server: &Client) {
    assert_eq!(server.text("print(kept)").trim(), "all of it");
    assert_eq!(server.noise(), Vec::<String>::new(), "stdout is MCP and nothing else");
}

#[test]
fn code_that_does_not_parse_points_at_its_line() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.run("x = 1\nif x\n    pass");
    assert!(!answer.is_error());
    assert_eq!(answer.status(), "error", "{answer:?}");
    let text = answer.all();
    assert!(text.contains("SyntaxError") && text.contains('2'), "{text}");
    assert!(!text.contains("driver") && !text.contains("ast.py"), "{text}");
    for code in [
        "(",
        "'",
        "def",
        &"(".repeat(5000),
        "\u{feff}print(1)",
        "print('\u{2028}')",
        "é = 1",
    ] {
        assert!(!server.run(code).is_error(), "{code:.20}");
    }
    nothing_is_lost(&server);
}

#[test]
fn code_that_is_empty_too_long_or_holds_nul_is_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for tool in ["execute_code", "create_run_close"] {
        for code in ["", "   \n\t\n"] {
            let text = server.call(tool, json!({"code": code})).refused("invalid_argument");
            assert!(text.contains("empty"), "{text}");
        }
        let text = server
            .call(tool, json!({"code": "#".repeat((1 << 20) + 1)}))
            .refused("invalid_argument");
        assert!(
            text.contains("1048576") || text.contains("1 MiB"),
            "it names the limit: {text}"
        );
        let text = server
            .call(tool, json!({"code": "print(1)\0"}))
            .refused("invalid_argument");
        assert!(text.contains("NUL"), "{text}");
    }
    let fits = format!("print('fits')\n#{}", "x".repeat((1 << 20) - 15));
    assert_eq!(fits.len(), 1 << 20);
    assert_eq!(server.text(&fits).trim(), "fits");
    nothing_is_lost(&server);
}

#[test]
fn ids_that_are_unknown_closed_or_nonsense_answer_alike() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
    server.call("close_sandbox", json!({"sandbox_id": made}));
    let mut words = Vec::new();
    for id in [
        made.as_str().unwrap(),
        &format!("sb{}", "a".repeat(26)),
        "nonsense",
        "../../etc",
        "sb",
    ] {
        for (tool, arguments) in [
            ("execute_code", json!({"code": "1", "sandbox_id": id})),
            ("close_sandbox", json!({"sandbox_id": id})),
            ("get_sandbox_status", json!({"sandbox_id": id})),
            ("list_files", json!({"sandbox_id": id})),
            ("read_file", json!({"path": "x", "sandbox_id": id})),
            ("write_file", json!({"path": "x", "content": "x", "sandbox_id": id})),
            ("reset_session_state", json!({"sandbox_id": id})),
        ] {
            let text = server.call(tool, arguments).refused("not_found");
            if tool == "execute_code" {
                words.push(text.replace(id, "ID"));
            }
        }
    }
    words.dedup();
    assert_eq!(words.len(), 1, "one who guesses learns nothing: {words:?}");
    nothing_is_lost(&server);
}

#[test]
fn arguments_that_are_unknown_missing_or_of_the_wrong_kind_are_named() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for (arguments, word) in [
        (json!({"code": "1", "timeout": 5}), "timeout"),
        (json!({"kode": "1"}), "kode"),
        (json!({}), "code"),
        (json!({"code": true}), "code"),
        (json!({"code": null}), "code"),
        (json!({"code": [1]}), "code"),
        (json!({"code": "1", "timeout_s": "soon"}), "timeout_s"),
        (json!({"code": "1", "language": "klingon"}), "klingon"),
        (json!({"code": "1", "stdin": {"a": 1}}), "stdin"),
    ] {
        let answer = server.call("execute_code", arguments.clone());
        assert!(answer.is_error(), "{arguments}: {answer:?}");
        assert!(answer.all().contains(word), "{arguments}: {}", answer.all());
    }
    let wrong = server.request_raw("tools/call", json!({"name": "no_such_tool", "arguments": {}}));
    assert!(
        wrong.get("error").is_some() || wrong["result"]["isError"] == true,
        "{wrong}"
    );
    for arguments in [json!([]), json!("text"), json!(7)] {
        let answer = server.request_raw("tools/call", json!({"name": "execute_code", "arguments": arguments}));
        assert!(
            answer.get("error").is_some() || answer["result"]["isError"] == true,
            "{answer}"
        );
    }
    assert!(server.request_raw("no/such/method", json!({})).get("error").is_some());
    nothing_is_lost(&server);
}

#[test]
fn zero_negative_and_excessive_limits_are_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let huge = json!(u64::MAX);
    for value in [json!(0), json!(-1), huge.clone(), json!(1e300), json!(-0.5)] {
        for (tool, key) in [
            ("execute_code", "timeout_s"),
            ("create_run_close", "timeout_s"),
            ("create_run_close", "memory_mb"),
            ("create_sandbox", "memory_mb"),
            ("create_sandbox", "disk_mb"),
            ("create_sandbox", "cpus"),
            ("create_sandbox", "lifetime_s"),
            ("create_sandbox", "count"),
        ] {
            let mut arguments = json!({key: value});
            if tool != "create_sandbox" {
                arguments["code"] = json!("1");
            }
            let answer = server.call(tool, arguments);
            assert!(answer.is_error(), "{tool} {key}={value}: {answer:?}");
            let text = answer.all();
            assert!(
                text.contains(key)
                    || text.contains("time-out")
                    || text.contains("lifetime")
                    || text.contains("limit_reached"),
                "{tool} {key}={value}: {text}"
            );
        }
    }
    nothing_is_lost(&server);
}

#[test]
fn invalid_variable_names_are_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for name in ["", "A=B", "A\0B"] {
        let answer = server.call("create_sandbox", json!({"env": {name: "x"}}));
        assert!(answer.is_error(), "{name:?}: {answer:?}");
    }
    assert!(server.call("create_sandbox", json!({"env": {"A": "x\0y"}})).is_error());
    let label = "l".repeat(5000);
    assert!(server.call("create_sandbox", json!({"label": label})).is_error());
    nothing_is_lost(&server);
}

#[test]
fn lines_that_are_not_json_rpc_do_no_harm() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for line in [
        &b"not json"[..],
        b"{\"jsonrpc\": \"2.0\", \"id\": ",
        b"[]",
        b"null",
        b"7",
        b"\"text\"",
        b"{}",
        b"",
        b"   ",
        b"{\"jsonrpc\": \"1.0\", \"id\": 900001, \"method\": \"tools/list\"}",
        b"{\"jsonrpc\": \"2.0\", \"id\": {\"a\": 1}, \"method\": \"tools/list\"}",
        b"{\"jsonrpc\": \"2.0\", \"method\": \"notifications/cancelled\", \"params\": {\"requestId\": 123456}}",
        b"{\"jsonrpc\": \"2.0\", \"id\": 900002, \"result\": {}}",
        b"\xff\xfe\x00\x01",
    ] {
        server.send_line(line);
    }
    // Invalid UTF-8 inside an otherwise valid call.
    let mut line = b"{\"jsonrpc\":\"2.0\",\"id\":900003,\"method\":\"tools/call\",\"params\":{\"name\":\"execute_code\",\"arguments\":{\"code\":\"print('".to_vec();
    line.extend_from_slice(b"\xc3\x28\xff");
    line.extend_from_slice(b"')\"}}}");
    server.send_line(&line);
    nothing_is_lost(&server);
}

#[test]
fn json_of_two_hundred_thousand_levels_does_no_harm() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    server.send_line(deep.as_bytes());
    server.send_line("[".repeat(200_000).as_bytes());
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":900004,"method":"tools/call","params":{{"name":"execute_code","arguments":{{"code":"1","x":{deep}}}}}}}"#
    );
    server.send_line(call.as_bytes());
    let objects = format!("{}1{}", r#"{"a":"#.repeat(200_000), "}".repeat(200_000));
    server.send_line(objects.as_bytes());
    nothing_is_lost(&server);
}

#[test]
fn a_message_of_twenty_megabytes_does_no_harm() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let id = server.fresh_id();
    let pending = server.expect(id);
    let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "write_file", "arguments": {"path": "big", "content": "x".repeat(20 << 20)}}});
    server.send_line(message.to_string().as_bytes());
    // The server either answers with an error or drops the line, and the next call works. Both keep the session.
    nothing_is_lost(&server);
    if let Some(answer) = pending.within(std::time::Duration::from_millis(200)) {
        assert!(
            answer.get("error").is_some() || answer["result"]["isError"] == true,
            "{:.300}",
            answer.to_string()
        );
    }
    let peak = sandcell_e2e::machine::peak_memory(server.pid());
    assert!(peak < 256 << 20, "memory stays bounded: {peak}");
    server.call("read_file", json!({"path": "big"})).refused("not_found");
}

#[test]
fn an_id_that_is_used_twice_at_once_does_no_harm() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    for id in [
        json!(900_005),
        json!(900_005),
        json!("text"),
        json!("text"),
        json!(-1),
        json!(1.5),
        Value::Null,
    ] {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "execute_code", "arguments": {"code": "1"}}});
        server.send_line(message.to_string().as_bytes());
    }
    nothing_is_lost(&server);
}

#[test]
fn calls_before_the_handshake_do_no_harm() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start_silent(&mut place.command(&["serve"]));
    let early = server.request_raw(
        "tools/call",
        json!({"name": "execute_code", "arguments": {"code": "1"}}),
    );
    assert!(early.get("error").is_some() || early.get("result").is_some(), "{early}");
    server.initialize();
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn missing_resources_are_protocol_errors() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let sandbox = server.run("1").sandbox();
    for uri in [
        "sandcell://".to_owned(),
        "sandcell://executions/exnone/0".to_owned(),
        format!("sandcell://{sandbox}/none.txt"),
        format!("sandcell://{sandbox}/../../etc/passwd"),
        format!("sandcell://sb{}/x", "a".repeat(26)),
        "file:///etc/passwd".to_owned(),
        "nonsense".to_owned(),
        String::new(),
    ] {
        let answer = server.request_raw("resources/read", json!({"uri": uri}));
        assert!(answer.get("error").is_some(), "{uri}: {answer}");
    }
    nothing_is_lost(&server);
}

#[test]
fn a_settings_key_that_is_unknown_is_named_with_its_nearest() {
    let place = TestDir::with_settings("[limits]\nmemory = 5\n");
    let output = place
        .command(&["serve"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty(), "stdout is MCP and nothing else");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("memory") && text.contains("memory_mb"), "{text}");
}
