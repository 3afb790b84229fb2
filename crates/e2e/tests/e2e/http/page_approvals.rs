use serde_json::{Value, json};

use super::browser::{EVIL_MARKUP, looked_in_at};
use crate::host_tools::{error_of, eventually, place_with};
use sandcell_e2e::http::{Caller, Reply, Server, token};
use sandcell_e2e::{begin, name_of};

/// Sends a decision of the page. `token` is empty for a server without tokens.
fn decide(server: &Server, token: &str, path: &str, body: &str) -> Reply {
    let token = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    server.raw(format!(
        "POST /api/executions/{path} HTTP/1.1\r\nHost: {}\r\n{token}Sandcell-Page: 1\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    ))
}

/// Returns the calls that wait for approval.
fn waiting(server: &Server, token: &str) -> Vec<Value> {
    let headers = match token {
        "" => "Sandcell-Page: 1\r\n".to_owned(),
        token => format!("Sandcell-Page: 1\r\nAuthorization: Bearer {token}\r\n"),
    };
    let overview = server.get("/api/overview", &headers).message();
    overview["approvals"].as_array().cloned().unwrap_or_default()
}

fn begin_calls(caller: &Caller, code: &str) -> String {
    let started = caller.call("execute_code", json!({"code": code, "wait_s": 0}));
    started.meta()["execution_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_person_approves_and_refuses_tool_calls_on_the_page() {
    fn here() {}
    let _turn = begin!();
    // The page alone is a way to ask.
    let place = place_with("[http]\nrest = false\n", "");
    let Some((_server, ann, mut browser)) = looked_in_at(&place, &name_of(here)) else {
        return;
    };
    assert_eq!(browser.value("document.getElementById('approvals-part').hidden"), true);
    let evil = json!(format!("{EVIL_MARKUP}\u{202e}")).to_string();
    let call = error_of(&format!("tools.stub.store(key={evil}, value=1)"));
    let id = begin_calls(&ann, &call.repeat(4));
    browser.wait("document.querySelector('#approvals .card bdi')?.textContent === 'stub.store'");
    browser.wait("document.title === '(1) sandcell'");
    let shown = browser.text("#approvals pre");
    assert!(shown.contains("<img src=x") && shown.contains("\\u{202e}"), "{shown}");
    assert_eq!(
        browser.value("document.querySelectorAll('#approvals img, #approvals script').length"),
        0
    );
    browser.shot("approval");
    let press = |text: &str| {
        format!("[...document.querySelectorAll('#approvals button')].find((one) => one.textContent === '{text}')")
    };
    let mut decide = |text: &str, key: &str| {
        browser.wait(&format!(
            "document.querySelector('#approvals [data-key=\"{id} {key}\"]')"
        ));
        // A new question cannot be answered at once.
        browser.wait(&format!("!{}.disabled", press(text)));
        // By keyboard.
        browser.value(&format!("{}.focus()", press(text)));
        browser.key("Enter");
        browser.wait(&format!(
            "!document.querySelector('#approvals [data-key=\"{id} {key}\"]')"
        ));
    };
    decide("Allow once", "1");
    decide("Refuse", "2");
    decide("Allow all in this run", "3");
    browser.wait("document.getElementById('approvals-part').hidden && document.title === 'sandcell'");
    let ended = ann.call("get_execution", json!({"execution_id": id, "wait_s": 30}));
    let text = ended.output();
    assert_eq!(text.matches("returned stored").count(), 3, "{text}");
    assert_eq!(text.matches("ToolDenied").count(), 1, "{text}");
    // The page of the execution shows its calls.
    browser.click(&format!("#history [data-id='{id}']"));
    browser.wait("document.querySelector('#detail pre[data-part=\"Tool calls\"]')?.textContent === 'stub.store: 3 ok, 1 refused'");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    assert!(browser.value("window.hit ?? null").is_null());
}

#[test]
fn a_decision_of_the_page_is_for_its_own_caller_and_is_checked() {
    let _turn = begin!();
    let place = place_with("", "");
    let (_, mine) = token(&place, &["mine"]);
    let (_, other) = token(&place, &["other"]);
    let server = Server::start(&place, &["--page"]);
    let ann = server.with_token(&mine);
    let id = begin_calls(&ann, &error_of("tools.stub.store(key='a', value=1)"));
    let post =
        |token: &str, number: &str, body: &str| decide(&server, token, &format!("{id}/approvals/{number}"), body);
    eventually("the call waits", || waiting(&server, &mine).len() == 1);
    assert_eq!(waiting(&server, &mine)[0]["tool"], "stub.store");
    for (token, number, body, status) in [
        (&other, "1", r#"{"decision": "once"}"#, 404),
        (&mine, "7", r#"{"decision": "once"}"#, 404),
        (&mine, "1", r#"{"decision": "yes"}"#, 400),
        (&mine, "1", r#"{}"#, 400),
        (&mine, "1", r#"{"decision": "once", "calls": 0}"#, 400),
        (&mine, "1", r#"{"decision": "once", "calls": -1}"#, 400),
        (&mine, "1", r#"{"decision": "once", "calls": 99999999999}"#, 400),
        (&mine, "1", r#"{"decision": "deny", "calls": 2}"#, 400),
        (&mine, "1", r#"{"decision": "once", "for": 2}"#, 400),
        (&mine, "-1", r#"{"decision": "once"}"#, 404),
    ] {
        let reply = post(token, number, body);
        assert_eq!(reply.status, status, "{number} {body}: {}", reply.message());
    }
    assert_eq!(waiting(&server, &mine)[0]["number"], 1, "nothing was decided");
    assert_eq!(post(&mine, "1", r#"{"decision": "once", "calls": 3}"#).status, 200);
    let ended = ann.call("get_execution", json!({"execution_id": id, "wait_s": 30}));
    assert!(ended.output().contains("returned stored a"), "{}", ended.all());
}

#[test]
fn allowing_a_run_covers_the_calls_that_wait_already() {
    let _turn = begin!();
    let place = place_with("", "");
    let server = Server::start(&place, &["--page"]);
    let code = "import threading\n\
                def work(n): print(tools.stub.store(key=f'k{n}', value=n))\n\
                threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n\
                [thread.start() for thread in threads]; [thread.join() for thread in threads]; None";
    let id = begin_calls(&server.caller(), code);
    eventually("four calls wait", || waiting(&server, "").len() == 4);
    let reply = decide(&server, "", &format!("{id}/approvals/2"), r#"{"decision": "run"}"#);
    assert_eq!(reply.status, 200, "{}", reply.message());
    let ended = server
        .caller()
        .call("get_execution", json!({"execution_id": id, "wait_s": 30}));
    assert_eq!(ended.output().matches("stored k").count(), 4, "{}", ended.all());
}

#[test]
fn two_hundred_answers_at_once_reach_their_own_calls() {
    let _turn = begin!();
    let place = place_with("[limits]\nsandboxes_per_caller = 64\n", "");
    let mut server = Server::start(&place, &["--page"]);
    let caller = server.caller();
    // Each of the executions asks four questions at once.
    let ids: Vec<String> = (0..50)
        .map(|n| {
            let code = format!(
                "import threading\nends = ['?'] * 4\n\
                 def work(k):\n    try: ends[k] = tools.stub.store(key=f'{n}-{{k}}', value=k)\n    \
                 except tools.ToolDenied: ends[k] = 'denied'\n\
                 threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]\n\
                 [thread.start() for thread in threads]; [thread.join() for thread in threads]\nprint(ends)"
            );
            let started = caller.call("create_run_close", json!({"code": code, "wait_s": 0}));
            started.meta()["execution_id"]
                .as_str()
                .unwrap_or_else(|| panic!("{}", started.all()))
                .to_owned()
        })
        .collect();
    eventually("two hundred calls wait", || waiting(&server, "").len() == 200);
    // A key of an even number is allowed, the others are refused.
    let answers: Vec<_> = waiting(&server, "")
        .into_iter()
        .map(|question| {
            let arguments: serde_json::Value = serde_json::from_str(question["arguments"].as_str().unwrap()).unwrap();
            let allowed = arguments["value"].as_u64().unwrap().is_multiple_of(2);
            let body = json!({"decision": if allowed { "once" } else { "deny" }}).to_string();
            let path = format!(
                "{}/approvals/{}",
                question["execution_id"].as_str().unwrap(),
                question["number"]
            );
            (path, body)
        })
        .collect();
    let post = |path: &str, body: &str| decide(&server, "", path, body);
    std::thread::scope(|scope| {
        for part in answers.chunks(25) {
            scope.spawn(move || {
                for (path, body) in part {
                    // A caller over its rate is told when to come again.
                    let mut reply = post(path, body);
                    while reply.status == 429 {
                        std::thread::sleep(std::time::Duration::from_millis(100));
                        reply = post(path, body);
                    }
                    assert_eq!(reply.status, 200, "{}", reply.message());
                }
            });
        }
    });
    for (n, id) in ids.iter().enumerate() {
        let ended = caller.call("get_execution", json!({"execution_id": id, "wait_s": 30}));
        let expected = format!("['stored {n}-0', 'denied', 'stored {n}-2', 'denied']");
        assert_eq!(ended.output().trim(), expected, "{}", ended.all());
    }
    assert!(waiting(&server, "").is_empty());
    server.signal("-TERM");
    assert_eq!(server.wait(sandcell_e2e::DEFAULT_TIMEOUT), Some(0), "{}", server.log());
}

#[test]
fn a_server_killed_while_calls_wait_leaves_nothing() {
    let _turn = begin!();
    let place = place_with("", "");
    let mut server = Server::start(&place, &["--page"]);
    let id = begin_calls(&server.caller(), &error_of("tools.stub.store(key='a', value=1)"));
    eventually("the call waits", || waiting(&server, "").len() == 1);
    let everybody = sandcell_e2e::machine::descendants(server.pid());
    server.signal("-KILL");
    server.wait(sandcell_e2e::DEFAULT_TIMEOUT);
    eventually("every process has ended", || {
        !everybody.iter().any(|process| process.lives())
    });
    // The next server knows no question, and the old number decides nothing.
    let server = Server::start(&place, &["--page"]);
    assert!(waiting(&server, "").is_empty());
    let reply = decide(&server, "", &format!("{id}/approvals/1"), r#"{"decision": "once"}"#);
    assert_eq!(reply.status, 404, "{}", reply.message());
}
