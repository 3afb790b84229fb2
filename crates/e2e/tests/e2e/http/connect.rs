use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use super::oauth::free_port;
use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;

/// Returns a client of a proxy to the server at this port.
fn client(place: &TestDir, port: u16, token: Option<&str>) -> Client {
    let url = format!("http://127.0.0.1:{port}/mcp");
    let mut command = place.command(&["serve", "--connect", &url]);
    command.envs(token.map(|token| ("SANDCELL_TOKEN", token)));
    Client::start(&mut command)
}

#[test]
fn a_restarted_client_finds_its_variables_and_leaves_no_processes() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let port = server.address.port();
    let mut first = client(&place, port, None);
    let made = first.run("x = 41");
    first.hang_up();
    assert_eq!(first.wait(Duration::from_secs(10)), Some(0));
    let second = client(&place, port, None);
    let kept = second.run("x + 1");
    assert!(kept.all().contains("42"), "{}", kept.all());
    assert_eq!(kept.sandbox(), made.sandbox());
    // A streamed answer: events before the result are passed on without delay.
    let slow = json!({
        "name": "execute_code",
        "arguments": {"code": "import time\ntime.sleep(2.5)\nx"},
        "_meta": {"progressToken": "token"},
    });
    let answered = second.request("tools/call", slow);
    assert!(answered["content"].to_string().contains("41"), "{answered}");
    let told = second.notifications();
    let progress = told
        .iter()
        .filter(|message| message["method"] == "notifications/progress");
    assert!(progress.count() >= 1, "{told:?}");
    // The client's last request is answered even after it closed its end.
    let last = second.begin("tools/list", json!({}));
    second.hang_up();
    assert!(last.wait()["result"]["tools"].is_array());
}

#[test]
fn a_restarted_server_is_used_without_action_of_the_client() {
    let _turn = begin!();
    let place = TestDir::new();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let server = Server::start_on(&place, &address, &[]);
    let bridged = client(&place, port, None);
    assert_eq!(bridged.text("print('before')").trim(), "before");
    drop(server);
    let refused = bridged.request_raw("tools/list", json!({}));
    let error = &refused["error"];
    assert_eq!(error["data"]["code"], "backend_unavailable", "{refused}");
    assert!(
        error["data"]["remedy"]
            .as_str()
            .unwrap()
            .contains("sandcell serve --http"),
        "{refused}"
    );
    let _again = Server::start_on(&place, &address, &[]);
    // Concurrent calls: one of them opens the new session.
    let calls: Vec<_> = (0..8)
        .map(|number| bridged.begin_call("create_run_close", json!({"code": format!("print({number} * 7)")})))
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = call.answer();
        assert!(answer.all().contains(&format!("{}", number * 7)), "{}", answer.all());
    }
    assert_eq!(bridged.text("print('after')").trim(), "after");
}

#[test]
fn the_token_of_the_environment_is_sent_and_a_wrong_one_is_reported() {
    let _turn = begin!();
    let place = TestDir::new();
    let made = place.command(&["token", "create", "bridge"]).output().unwrap();
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let server = Server::start(&place, &[]);
    let port = server.address.port();
    assert_eq!(client(&place, port, Some(&token)).text("print(6 * 7)").trim(), "42");
    for wrong in [None, Some("wrong")] {
        let url = format!("http://127.0.0.1:{port}/mcp");
        let mut command = place.command(&["serve", "--connect", &url]);
        command.envs(wrong.map(|token| ("SANDCELL_TOKEN", token)));
        let client = Client::start_silent(&mut command);
        let refused = client.request_raw("ping", json!({}));
        assert_eq!(refused["error"]["data"]["code"], "unauthorized", "{refused}");
    }
}

#[test]
fn an_invalid_connect_target_is_refused_at_startup() {
    let place = TestDir::new();
    for (arguments, said) in [
        (&["--connect", "http://sandcell.example.com/mcp"][..], "https://"),
        (&["--connect", "http://127.0.0.1.example.com/mcp"], "https://"),
        (&["--connect", "file:///etc/passwd"], "address"),
        (&["--connect", "127.0.0.1:8123"], "address"),
        (
            &["--connect", "http://127.0.0.1:1/mcp", "--backend", "native"],
            "--backend",
        ),
        (&["--connect", "http://127.0.0.1:1/mcp", "--http", "0"], "--http"),
    ] {
        let arguments = [&["serve"], arguments].concat();
        let output = place.command(&arguments).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{arguments:?}: {text}");
    }
}
