//! Tool calls in the history, in REST results and in the audit log.

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::http::Server;
use serde_json::json;

use super::{DEFAULT_TIMEOUT, error_of, eventually, output, place, place_with};

#[test]
fn the_history_and_rest_show_the_number_of_calls_of_each_tool() {
    let _turn = begin!();
    let place = place();
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    let code = format!(
        "for n in range(3): tools.stub.add(a=n, b=1)\n{}{}",
        error_of("tools.stub.fail()"),
        error_of("tools.call('stub.delete_all', {})"),
    );
    let ran = caller.call("execute_code", json!({"code": code}));
    assert_eq!(ran.status(), "ok", "{}", ran.all());
    let id = ran.meta()["execution_id"].as_str().unwrap().to_owned();
    let expected = json!([
        {"tool": "stub.add", "ok": 3, "failed": 0, "refused": 0},
        {"tool": "stub.delete_all", "ok": 0, "failed": 0, "refused": 1},
        {"tool": "stub.fail", "ok": 0, "failed": 1, "refused": 0},
    ]);
    let rest = server.get(&format!("/v1/executions/{id}"), "");
    assert_eq!(rest.message()["tool_calls"], expected, "{}", rest.message());
    let show = |more: &[&str]| {
        let shown = place
            .command(&[&["history", "show", &id], more].concat())
            .output()
            .unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    eventually("the history has the execution", || !show(&[]).is_empty());
    let text = show(&[]);
    assert!(
        text.contains("tool calls:\nstub.add: 3 ok, 0 failed, 0 refused\nstub.delete_all: 0 ok, 0 failed, 1 refused\n"),
        "{text}"
    );
    let row: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    assert_eq!(row["tool_calls"], expected);
}

#[test]
fn a_call_whose_result_is_too_large_was_made_and_has_failed() {
    let _turn = begin!();
    let place = place_with("[limits]\ntool_call_mb = 1\n", "");
    let mut server = Client::start(&mut place.command(&["serve"]));
    let ran = server.run(&error_of("tools.stub.huge(mib=2)"));
    assert!(output(&ran).contains("limit_reached"), "{ran:?}");
    assert_eq!(
        ran.meta()["tool_calls"],
        json!([{"tool": "stub.huge", "ok": 0, "failed": 1, "refused": 0}])
    );
    server.hang_up();
    server.wait(DEFAULT_TIMEOUT);
    let audit = std::fs::read_to_string(place.path("data").join("audit.jsonl")).unwrap();
    let line = audit.lines().find(|line| line.contains("stub.huge")).unwrap();
    assert!(
        line.contains("tool_called") && line.contains("stub.huge: failed") && line.contains("limit_reached"),
        "{line}"
    );
}
