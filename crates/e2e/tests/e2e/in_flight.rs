//! A caller at its maximum of concurrent requests can still end executions and query their state.

use serde_json::{Value, json};

use sandcell_e2e::client::{Answer, Client, Pending};
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, until};

/// The maximum number of concurrent requests of one connection.
const MAX_IN_FLIGHT: usize = 256;
const BUSY_CODE: i64 = -32000;
const SLEEP_CODE: &str = "import time\ntime.sleep(600)";

/// Returns the id of an execution that is still running.
fn running(answer: &Answer) -> String {
    assert_eq!(answer.status(), "running", "{answer:?}");
    answer.meta()["execution_id"].as_str().unwrap().to_owned()
}

/// Starts code that does not end, and the maximum number of requests that wait for it.
fn fill(server: &Client) -> (Value, String, Vec<Pending>) {
    let made = server.call("create_sandbox", json!({}));
    let sandbox = made.data()["sandbox_id"].clone();
    let code = json!({"code": SLEEP_CODE, "sandbox_id": sandbox, "wait_s": 0.2, "timeout_s": 600});
    let id = running(&server.call("execute_code", code));
    let wait = json!({"execution_id": id, "wait_s": 55});
    let waiting = (0..MAX_IN_FLIGHT).map(|_| server.begin_call("get_execution", wait.clone()));
    let waiting = waiting.collect();
    (sandbox, id, waiting)
}

#[track_caller]
fn only_control_is_admitted(server: &Client) {
    let (sandbox, id, waiting) = fill(server);
    let more = server.request_raw(
        "tools/call",
        json!({"name": "get_execution", "arguments": {"execution_id": id}}),
    );
    assert_eq!(more["error"]["code"], BUSY_CODE, "{more}");
    let more = server.request_raw("tools/list", json!({}));
    assert_eq!(more["error"]["code"], BUSY_CODE, "{more}");
    server.request("ping", json!({}));
    let status = server.call("get_sandbox_status", json!({"sandbox_id": sandbox}));
    assert!(!status.is_error(), "{status:?}");
    let cancelled = server.call("cancel_execution", json!({"execution_id": id}));
    assert!(!cancelled.is_error(), "{cancelled:?}");
    let closed = server.call("close_sandbox", json!({"sandbox_id": sandbox}));
    assert!(closed.all().contains("closed"), "{closed:?}");
    // The waiting requests are answered, and the connection works as before.
    for one in waiting {
        one.answer();
    }
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn ending_requests_are_admitted_on_a_saturated_connection() {
    let _turn = begin!();
    let place = TestDir::new();
    only_control_is_admitted(&Client::start(&mut place.command(&["serve"])));
}

#[test]
fn ending_requests_are_admitted_through_the_proxy() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrequests_per_caller = 1000\n");
    let server = Server::start(&place, &[]);
    let to = format!("http://{}/mcp", server.address);
    only_control_is_admitted(&Client::start(&mut place.command(&["serve", "--connect", &to])));
}

#[test]
fn ending_requests_are_admitted_over_http() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrequests_per_caller = 3\n");
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    let made = caller.call("create_sandbox", json!({}));
    let sandbox = made.data()["sandbox_id"].clone();
    let code = json!({"code": SLEEP_CODE, "sandbox_id": sandbox, "wait_s": 0.2, "timeout_s": 600});
    let id = running(&caller.call("execute_code", code));
    let wait = json!({"execution_id": id, "wait_s": 55});
    let begin = |_| caller.begin(&caller.tool("get_execution", &wait), "Connection: close\r\n");
    let mut open: Vec<_> = (0..3).map(begin).collect();
    until(sandcell_e2e::DEFAULT_TIMEOUT, "all places are taken", || {
        (caller.request("tools/list", json!({})).status == 429).then_some(())
    });
    let status = caller.call("get_sandbox_status", json!({"sandbox_id": sandbox}));
    assert!(!status.is_error(), "{status:?}");
    let cancelled = caller.call("cancel_execution", json!({"execution_id": id}));
    assert!(!cancelled.is_error(), "{cancelled:?}");
    let closed = caller.call("close_sandbox", json!({"sandbox_id": sandbox}));
    assert!(closed.all().contains("closed"), "{closed:?}");
    for stream in &mut open {
        assert_eq!(sandcell_e2e::http::Reply::read(stream).unwrap().status, 200);
    }
}
