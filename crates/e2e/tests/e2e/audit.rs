use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::client::Client;
use sandcell_e2e::http::{Server, command, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, until};

fn log(place: &TestDir) -> String {
    std::fs::read_to_string(place.path("data").join("audit.jsonl")).unwrap_or_default()
}

fn events(place: &TestDir) -> Vec<Value> {
    log(place)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_kind(place: &TestDir, kind: &str) -> Vec<Value> {
    events(place)
        .into_iter()
        .filter(|event| event["event"] == kind)
        .collect()
}

fn verify(place: &TestDir, more: &[&str]) -> (Output, Value) {
    let mut arguments = vec!["audit", "verify", "--json"];
    arguments.extend(more);
    let output = place.command(&arguments).stdin(Stdio::null()).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, report)
}

#[test]
fn refusals_and_terminations_are_logged_and_code_is_not() {
    let _turn = begin!();
    let place = TestDir::with_settings("analysis = \"strict\"\n[limits]\nsandboxes_per_caller = 2\n");
    let mut client = Client::start(&mut place.command(&["serve"]));
    let sandbox = client.run("'harmless words'").sandbox();
    client.run("import ctypes as secret_name");
    client.call("execute_code", json!({"code": "while True: pass", "timeout_s": 0.5}));
    client.call("create_sandbox", json!({"count": 5}));
    client.call("close_sandbox", json!({"sandbox_id": sandbox}));
    client.hang_up();
    assert_eq!(client.wait(Duration::from_secs(20)), Some(0));
    let kinds: Vec<String> = events(&place)
        .iter()
        .map(|event| event["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds.first().unwrap(), "server_started");
    assert_eq!(kinds.last().unwrap(), "server_stopped");
    let made = of_kind(&place, "sandbox_created");
    assert!(
        made.iter()
            .any(|event| event["sandbox"] == sandbox && event["principal"] == "stdio")
    );
    assert!(
        of_kind(&place, "sandbox_closed")
            .iter()
            .any(|event| event["sandbox"] == sandbox)
    );
    let refused: Vec<Value> = of_kind(&place, "call_refused")
        .iter()
        .map(|event| event["code"].clone())
        .collect();
    assert_eq!(refused, ["code_rejected", "limit_reached"]);
    assert_eq!(of_kind(&place, "limit_hit")[0]["code"], "timeout");
    for word in ["harmless", "secret_name", "while True"] {
        assert!(!log(&place).contains(word), "{word}");
    }
    let (output, report) = verify(&place, &[]);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["lines"], kinds.len());
}

#[test]
fn token_use_and_anonymous_calls_are_logged_and_secrets_are_not() {
    let _turn = begin!();
    let place = TestDir::new();
    let (id, secret) = token(&place, &["ann"]);
    let server = Server::start(&place, &[]);
    server.with_token("sandcell_wrong").request("tools/list", json!({}));
    server.caller().request("tools/list", json!({}));
    assert!(server.with_token(&secret).run("print(1)").status() == "ok");
    command(&place, &["token", "revoke", &id]);
    server.with_token(&secret).request("tools/list", json!({}));
    let failed = until(Duration::from_secs(5), "three callers were kept out", || {
        Some(of_kind(&place, "auth_failed")).filter(|events| events.len() == 3)
    });
    assert!(
        failed
            .iter()
            .all(|event| event["detail"].as_str().unwrap().contains("127.0.0.1"))
    );
    assert!(
        of_kind(&place, "token_created")[0]["detail"]
            .as_str()
            .unwrap()
            .contains(&id)
    );
    assert!(
        of_kind(&place, "token_revoked")[0]["detail"]
            .as_str()
            .unwrap()
            .contains(&id)
    );
    assert!(!log(&place).contains(&secret) && !log(&place).contains("sandcell_wrong"));
    // The server and the commands wrote one chain.
    assert!(verify(&place, &[]).0.status.success());
}

#[test]
fn a_changed_log_is_detected_and_a_truncated_one_by_its_saved_hash() {
    let _turn = begin!();
    let place = TestDir::new();
    for name in ["a", "b", "c"] {
        token(&place, &[name]);
    }
    let (_, before) = verify(&place, &[]);
    let hash = before["last_hash"].as_str().unwrap().to_owned();
    assert!(verify(&place, &["--hash", &hash]).0.status.success());
    let file = place.path("data").join("audit.jsonl");
    let whole = log(&place);
    std::fs::write(&file, whole.replace("for \\\"b\\\"", "for \\\"x\\\"")).unwrap();
    let (output, report) = verify(&place, &[]);
    assert!(!output.status.success());
    assert_eq!(report["faults"][0]["line"], 2, "{report}");
    let cut: String = whole.split_inclusive('\n').take(2).collect();
    std::fs::write(&file, cut).unwrap();
    assert!(
        verify(&place, &[]).0.status.success(),
        "nothing in the log itself shows it"
    );
    let (output, report) = verify(&place, &["--hash", &hash]);
    assert!(!output.status.success() && report["has_hash"] == false, "{report}");
}

#[test]
fn a_killed_server_leaves_an_intact_log() {
    let _turn = begin!();
    let place = TestDir::new();
    for round in 1..=3 {
        let mut client = Client::start(&mut place.command(&["serve"]));
        // The server writes events in batches; a server that is killed early has written none.
        until(Duration::from_secs(5), "the server's start is in the log", || {
            client.call("create_run_close", json!({"code": "1"}));
            (log(&place).matches("server_started").count() == round).then_some(())
        });
        let status = std::process::Command::new("kill")
            .args(["-9", &client.pid().to_string()])
            .status();
        assert!(status.unwrap().success());
        client.wait(Duration::from_secs(10));
    }
    token(&place, &["after"]);
    let (output, report) = verify(&place, &[]);
    assert!(output.status.success(), "{report}");
    assert_eq!(of_kind(&place, "server_started").len(), 3);
}

#[test]
fn no_log_is_written_if_the_operator_disabled_it() {
    let _turn = begin!();
    let place = TestDir::with_settings("[audit]\nenabled = false\n");
    let client = Client::start(&mut place.command(&["serve"]));
    client.run("1");
    client.hang_up();
    assert!(!place.path("data").join("audit.jsonl").exists());
    assert!(!verify(&place, &[]).0.status.success());
}
