use std::io::{BufReader, Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use sandcell_e2e::http::{Caller, Server, connect, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, until};

/// Returns the server's complete reply to these bytes.
fn said(server: &Server, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(server.address);
    let _maybe_broken_off = stream.write_all(bytes.as_ref());
    // A half-open connection would keep the read waiting.
    let _no_more = stream.shutdown(std::net::Shutdown::Write);
    let mut text = Vec::new();
    let _to_its_end = BufReader::new(stream).read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_request_in_the_body_of_one_for_the_page_is_not_answered() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &["--page"]);
    let own = server.address;
    let hidden = format!("GET /metrics HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n");
    let length = hidden.len();
    for start in [
        "GET /",
        "GET /page/page.js",
        "GET /api/overview",
        "POST /api/executions/x/cancel",
        "POST /api/sandboxes/x/close",
    ] {
        for framing in [
            format!("Content-Length: {length}\r\n"),
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n".to_owned(),
            "Transfer-Encoding: chunked\r\n".to_owned(),
        ] {
            let body = if framing.contains("chunked") {
                format!("0\r\n\r\n{hidden}")
            } else {
                hidden.clone()
            };
            let answer = said(
                &server,
                format!("{start} HTTP/1.1\r\nHost: {own}\r\nSandcell-Page: 1\r\n{framing}\r\n{body}"),
            );
            assert!(!answer.contains("sandcell_sandboxes"), "{start} {framing}: {answer}");
        }
    }
}

#[test]
fn malformed_requests_and_other_protocols_get_no_access() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &["--page"]);
    let own = server.address;
    for bytes in [
        "GET /metrics\r\n\r\n".to_owned(),
        "GET /metrics HTTP/1.0\r\n\r\n".to_owned(),
        format!("GET /metrics HTTP/2.0\r\nHost: {own}\r\n\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
        format!("CONNECT {own} HTTP/1.1\r\nHost: {own}\r\n\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"),
        format!("GET http://evil.example/metrics HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\r\nHost : {own}\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\r\n Host: {own}\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\r\nX: a\r\n Host: {own}\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\r\nHost: {own}\0\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics\0 HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\r\nHost: {own}\r\nHost: {own}\r\nConnection: close\r\n\r\n"),
        format!("GET /metrics HTTP/1.1\rHost: {own}\r\rConnection: close\r\n\r\n"),
        "\r\n".repeat(1000),
        "\x16\x03\x01\x02\0\x01\0\x01\x7c\x03\x03".to_owned(),
    ] {
        let mut stream = connect(own);
        let _maybe_broken_off = stream.write_all(bytes.as_bytes());
        let _no_more = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _to_its_end = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            !answer.contains("sandcell_sandboxes") && !answer.starts_with("HTTP/1.1 200"),
            "{bytes:?}: {answer}"
        );
    }
    // An upgrade is refused: the answer is HTTP/1.1.
    let upgrade = format!(
        "GET /metrics HTTP/1.1\r\nHost: {own}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
    );
    let mut stream = BufReader::new(connect(own));
    stream.get_mut().write_all(upgrade.as_bytes()).unwrap();
    assert_eq!(sandcell_e2e::http::Reply::read(&mut stream).unwrap().status, 200);
    assert_eq!(server.caller().text("print('well')").trim(), "well");
}

/// Returns a request of a client that supports tasks.
fn with_tasks(caller: &Caller, method: &str, params: Value) -> Value {
    let mut message = caller.message(method, params);
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    message
}

#[test]
fn a_foreign_task_answers_exactly_like_an_unknown_one() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let code = "import time\ntime.sleep(20)\nprint('secret of ann')";
    let call = with_tasks(
        &ann,
        "tools/call",
        json!({"name": "execute_code", "arguments": {"code": code}}),
    );
    let begun = ann.send(&call, "").message();
    let task = begun["result"]["taskId"]
        .as_str()
        .unwrap_or_else(|| panic!("{begun}"))
        .to_owned();
    let asked = |who: &Caller, method: &str, id: &str| {
        let mut message = with_tasks(who, method, json!({"taskId": id}));
        message["id"] = json!(7);
        who.send(&message, &format!("Mcp-Name: {id}\r\n")).message()
    };
    let never = format!(
        "{}{}",
        &task[..task.len() - 1],
        if task.ends_with('a') { "b" } else { "a" }
    );
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let foreign = asked(&bob, method, &task);
        assert!(foreign["error"].is_object(), "{foreign}");
        let unknown = asked(&bob, method, &never).to_string().replace(&never, "ID");
        assert_eq!(foreign.to_string().replace(&task, "ID"), unknown, "{method}");
    }
    // The owner's task continues in spite of Bob's attempts, and ends when its owner cancels it.
    assert_eq!(asked(&ann, "tasks/get", &task)["result"]["status"], "working");
    asked(&ann, "tasks/cancel", &task);
    until(Duration::from_secs(30), "the task ends", || {
        (asked(&ann, "tasks/get", &task)["result"]["status"] == "cancelled").then_some(())
    });
}

#[test]
fn no_resource_address_leaves_its_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let secret = place.write("secret-of-the-host.txt", "hush-of-the-host");
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    let sandbox = caller
        .run("import os\nos.symlink('/proc/1/root', 'out')\nos.symlink('/', 'all')")
        .sandbox();
    let secret = secret.to_str().unwrap();
    let encoded = secret.replace('/', "%2f");
    let up = "../".repeat(20);
    for path in [
        secret.to_owned(),
        format!("/home/user/{up}{secret}"),
        format!("/{}{secret}", up.replace("..", "%2e%2e")),
        format!("/{encoded}"),
        format!("//{secret}"),
        format!("/home/user/out{secret}"),
        format!("/home/user/all{secret}"),
        format!("/proc/1/root{secret}"),
        format!("/proc/self/root{secret}"),
        format!("/proc/self/cwd{secret}"),
        "/proc/1/environ".to_owned(),
        "/proc/self/environ".to_owned(),
        "/proc/kcore".to_owned(),
        "/dev/mem".to_owned(),
        "/sys/kernel/notes".to_owned(),
        format!("{secret}%00.txt"),
    ] {
        let read = caller.request("resources/read", json!({"uri": format!("sandcell://{sandbox}{path}")}));
        let message = read.message();
        assert!(message["error"].is_object(), "{path}: {message}");
        let text = message.to_string();
        assert!(
            !text.contains("hush-of-the-host") && !text.contains(sandcell_e2e::test_dir::SECRET_VALUE),
            "{path}: {text}"
        );
    }
    for uri in [
        format!("file://{secret}"),
        format!("sandcell://{secret}"),
        format!("sandcell://{up}{secret}"),
        format!("sandcell://executions/{up}{secret}/0"),
        format!("sandcell://executions/{sandbox}/0"),
        format!("sandcell://{sandbox}@executions/x/0"),
        format!("SANDCELL://{sandbox}{secret}"),
        format!("sandcell://{sandbox}?path={secret}"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        String::new(),
    ] {
        let message = caller.request("resources/read", json!({"uri": uri})).message();
        assert!(
            message["error"].is_object() && !message.to_string().contains("hush-of-the-host"),
            "{uri}: {message}"
        );
    }
}

#[test]
fn sessions_cannot_be_guessed_and_guessing_does_not_affect_others() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let ann = server.with_token(&ann).in_session();
    let open: Vec<String> = (0..3)
        .map(|_| {
            server
                .with_token(ann.token.as_deref().unwrap())
                .in_session()
                .session
                .unwrap()
        })
        .collect();
    assert!(open.iter().all(|id| id.len() >= 32), "{open:?}");
    let starts: std::collections::BTreeSet<&str> = open.iter().map(|id| &id[..8]).collect();
    assert_eq!(starts.len(), 3, "{open:?}");
    let own = ann.session.clone().unwrap();
    for n in 0..200_u32 {
        let guess = Caller {
            session: Some(format!("{}{n:04x}", &own[..own.len() - 4])),
            ..server.with_token(&bob)
        };
        guess.request("tools/list", json!({})).refused(404);
    }
    assert_eq!(ann.request("tools/list", json!({})).status, 200);
}

#[test]
fn slow_heads_and_bodies_time_out() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, secret) = token(&place, &["ann"]);
    let server = Server::start(&place, &["--page"]);
    let own = server.address;
    let starts = [
        String::new(),
        format!("GET / HTTP/1.1\r\nHost: {own}\r\n"),
        format!("POST /mcp HTTP/1.1\r\nHost: {own}\r\nX-A: "),
        format!("GET /api/overview HTTP/1.1\r\nHost: {own}\r\nAuthorization: Bearer {secret}\r\n"),
    ];
    let mut slow: Vec<_> = starts
        .iter()
        .map(|start| {
            let mut stream = connect(own);
            stream.write_all(start.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, false)
        })
        .collect();
    until(Duration::from_secs(60), "all are given up", || {
        std::thread::sleep(Duration::from_millis(500));
        for (stream, gone) in &mut slow {
            // A byte at a time does not count as progress.
            let sent = stream.write_all(b"a");
            let ended = matches!(stream.read(&mut [0; 512]), Ok(0))
                || sent.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock);
            *gone = *gone || ended;
        }
        slow.iter().all(|(_, gone)| *gone).then_some(())
    });
    assert_eq!(server.with_token(&secret).text("print('well')").trim(), "well");
}
