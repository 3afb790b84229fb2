use std::io::{BufReader, Read, Write};

use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::SESSION_PROTOCOL;
use sandcell_e2e::http::{Reply, STATELESS_PROTOCOL, Server, connect, token};
use sandcell_e2e::test_dir::TestDir;

/// Returns the reply to a request that succeeds with a correct head.
fn listing(server: &Server, host: &str, more: &str) -> String {
    let caller = server.caller();
    let message = caller.message("tools/list", json!({}));
    let body = message.to_string();
    let head = caller.head(&message, body.len(), &format!("{more}Connection: close\r\n"));
    let head = head.replace(&format!("Host: {}\r\n", server.address), host);
    format!("{head}{body}")
}

#[test]
fn dns_rebinding_to_the_loopback_is_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let port = server.address.port();
    let host = |host: String| server.raw(listing(&server, &format!("Host: {host}\r\n"), ""));
    for good in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("LocalHost:{port}"),
    ] {
        assert_eq!(host(good.clone()).status, 200, "{good}");
    }
    for bad in [
        format!("evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("evil.example.:{port}"),
        format!("localhost@evil.example:{port}"),
        format!("127.0.0.1.nip.io:{port}"),
        format!("0.0.0.0:{port}"),
        format!("127.0.0.2:{port}"),
        format!("0x7f000001:{port}"),
        "localhost:1".to_owned(),
        "localhost".to_owned(),
        String::new(),
    ] {
        let reply = host(bad.clone());
        assert!(matches!(reply.status, 400 | 403), "{bad}: {reply:?}");
    }
    // No Host header, two headers, two hosts in one header, and a target that names another server than the header.
    let own = server.address;
    assert!(server.raw(listing(&server, "", "")).status >= 400);
    let twice = format!("Host: {own}\r\nHost: evil.example\r\n");
    assert_eq!(server.raw(listing(&server, &twice, "")).status, 400);
    let listed = format!("Host: {own}, evil.example\r\n");
    assert!(server.raw(listing(&server, &listed, "")).status >= 400);
    let target = listing(&server, &format!("Host: {own}\r\n"), "").replace("POST /mcp", "POST http://evil.example/mcp");
    assert!(server.raw(target).status >= 400);
    let forwarded = "X-Forwarded-Host: localhost\r\nForwarded: host=localhost\r\n";
    assert_eq!(
        server.raw(listing(&server, "Host: evil.example\r\n", forwarded)).status,
        403
    );
}

#[test]
fn other_origins_are_refused_and_allowed_origins_may_read() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nallowed_origins = [\"http://localhost:6274\"]\n");
    let server = Server::start(&place, &[]);
    let own = server.address;
    let with = |more: &str| server.raw(listing(&server, &format!("Host: {own}\r\n"), more));
    for bad in [
        "http://evil.example",
        "null",
        "http://localhost:6275",
        "https://localhost:6274",
        "file://",
    ] {
        let reply = with(&format!("Origin: {bad}\r\n"));
        reply.refused(403);
        assert_eq!(reply.header("access-control-allow-origin"), None, "{bad}");
    }
    assert_eq!(with("Sec-Fetch-Site: cross-site\r\n").status, 403);
    assert_eq!(
        with("Origin: http://localhost:6274\r\nOrigin: http://evil.example\r\n").status,
        400
    );
    assert_eq!(with(&format!("Origin: http://{own}\r\n")).status, 200);
    let allowed = with("Origin: http://localhost:6274\r\n");
    assert_eq!(allowed.status, 200);
    assert_eq!(
        allowed.header("access-control-allow-origin"),
        Some("http://localhost:6274")
    );
    let preflight = |origin: &str| {
        server.raw(format!(
            "OPTIONS /mcp HTTP/1.1\r\nHost: {own}\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Connection: close\r\n\r\n"
        ))
    };
    assert_eq!(preflight("http://localhost:6274").status, 204);
    assert_eq!(preflight("http://evil.example").status, 403);
    // Requests that a form of a foreign page could send without a preflight.
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/json",
    ] {
        let form =
            listing(&server, &format!("Host: {own}\r\n"), "").replace("application/json\r\n", &format!("{kind}\r\n"));
        server.raw(form).refused(415);
    }
}

#[test]
fn every_request_without_a_valid_token_is_refused() {
    let _turn = begin!();
    let place = TestDir::new();
    let (id, good) = token(&place, &["good"]);
    let (_, metrics) = token(&place, &["watcher", "--metrics"]);
    let server = Server::start(&place, &[]);
    assert_eq!(server.with_token(&good).request("tools/list", json!({})).status, 200);
    let own = server.address;
    let with = |more: &str| server.raw(listing(&server, &format!("Host: {own}\r\n"), more));
    let missing = with("");
    missing.refused(401);
    assert!(missing.header("www-authenticate").unwrap().starts_with("Bearer"));
    let shorter = &good[..good.len() - 1];
    let other_end = if good.ends_with('a') { "b" } else { "a" };
    for bad in [
        format!("Bearer {shorter}"),
        format!("Bearer {shorter}{other_end}"),
        format!("Bearer {good}{good}"),
        format!("Bearer {id}"),
        format!("Basic {good}"),
        format!("Token {good}"),
        good.clone(),
        "Bearer ".to_owned(),
        "Bearer null".to_owned(),
    ] {
        let reply = with(&format!("Authorization: {bad}\r\n"));
        reply.refused(401);
        assert!(
            reply.header("www-authenticate").unwrap().contains("invalid_token"),
            "{bad}"
        );
    }
    // Two tokens, tokens in other places, and a token for another use.
    let both = format!("Authorization: Bearer {good}\r\nAuthorization: Bearer x\r\n");
    assert_eq!(with(&both).status, 400);
    assert_eq!(
        with(&format!("X-Authorization: Bearer {good}\r\nCookie: token={good}\r\n")).status,
        401
    );
    let in_query = listing(&server, &format!("Host: {own}\r\n"), "")
        .replace("POST /mcp", &format!("POST /mcp?access_token={good}"));
    assert_eq!(server.raw(in_query).status, 400);
    assert_eq!(server.with_token(&metrics).request("tools/list", json!({})).status, 403);
    // The server answers wrong guesses, then slows them down; a caller with a token is not slowed down.
    let guesses: Vec<u16> = (0..40)
        .map(|n| with(&format!("Authorization: Bearer guess{n}\r\n")).status)
        .collect();
    assert!(guesses.iter().all(|status| matches!(status, 401 | 429)), "{guesses:?}");
    assert_eq!(guesses.last(), Some(&429));
    assert_eq!(server.with_token(&good).request("tools/list", json!({})).status, 200);
    assert!(!server.log().contains(&good), "a token is in the log");
}

#[test]
fn a_remotely_reachable_server_does_not_start_without_a_token() {
    let _turn = begin!();
    let place = TestDir::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let output = place.command(&["serve", "--http", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("cannot be listened on") && address.starts_with('[') {
            continue; // a machine without IPv6
        }
        assert!(!output.status.success());
        assert!(
            said.contains("sandcell token create") && said.contains("unauthorized"),
            "{said}"
        );
        assert!(!said.contains("listening"), "{said}");
    }
    let open = Server::start_on(&place, "0.0.0.0:0", &["--dangerously-without-authentication"]);
    assert!(open.log().contains("listening"));
    let (_, good) = token(&place, &["late"]);
    let mut strict = Server::start_on(&place, "0.0.0.0:0", &[]);
    strict.address.set_ip([127, 0, 0, 1].into());
    assert_eq!(strict.caller().request("tools/list", json!({})).status, 401);
    assert_eq!(strict.with_token(&good).request("tools/list", json!({})).status, 200);
    // A token that is created later is then required by the open server, too.
    let mut open = open;
    open.address.set_ip([127, 0, 0, 1].into());
    assert_eq!(open.caller().request("tools/list", json!({})).status, 401);
}

#[test]
fn unknown_protocol_requests_are_refused_with_a_reason() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    // The transport of 2024-11-05.
    for path in ["/sse", "/messages", "/messages/?session_id=1", "/message"] {
        let error = server.get(path, "Accept: text/event-stream\r\n").refused(410);
        assert!(
            error["message"].as_str().unwrap().contains("Streamable HTTP"),
            "{error}"
        );
    }
    let probe = server.get("/mcp", "Accept: text/event-stream\r\n");
    probe.refused(405);
    assert_eq!(probe.header("allow"), Some("POST"));
    for path in ["/", "/mcp/", "/MCP", "//mcp", "/mcp/x", "/../mcp", "/%6dcp"] {
        server.get(path, "").refused(404);
    }
    let own = server.address;
    for method in ["PUT", "PATCH", "TRACE", "PROPFIND"] {
        let reply = server.raw(format!(
            "{method} /mcp HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(reply.status, 405, "{method}");
    }
    let old = server.caller().in_session();
    let message = old.message("tools/list", json!({}));
    let body = message.to_string();
    let unknown = old
        .head(&message, body.len(), "")
        .replace(SESSION_PROTOCOL, "1999-01-01");
    assert_eq!(server.raw(format!("{unknown}{body}")).status, 400);
    let new = server.caller();
    let mut message = new.message("tools/list", json!({}));
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2999-01-01");
    let body = message.to_string();
    let unknown = new
        .head(&message, body.len(), "")
        .replace(STATELESS_PROTOCOL, "2999-01-01");
    let reply = server.raw(format!("{unknown}{body}"));
    assert_eq!((reply.status, &reply.message()["error"]["code"]), (400, &json!(-32022)));
    // A header that contradicts the body.
    let message = new.tool("execute_code", &json!({"code": "1"}));
    let body = message.to_string();
    let head = new
        .head(&message, body.len(), "")
        .replace("Mcp-Name: execute_code", "Mcp-Name: read_file");
    let reply = server.raw(format!("{head}{body}"));
    assert_eq!((reply.status, &reply.message()["error"]["code"]), (400, &json!(-32020)));
}

#[test]
fn invalid_messages_get_an_answer_and_hold_no_resources() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let caller = server.caller().in_session();
    let send = |body: &str| {
        let head = caller.head(&json!({}), body.len(), "Connection: close\r\n");
        server.raw(format!("{head}{body}"))
    };
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_object = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"x","params":{{"a":{deep}}}}}"#);
    for (body, code) in [
        ("", -32600),
        ("{", -32700),
        ("nonsense", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600),
        ("{}", -32600),
        (deep.as_str(), -32600),
        (deep_object.as_str(), -32600),
        ("\u{0}", -32700),
    ] {
        let error = send(body).refused(400);
        assert_eq!(error["code"], code, "{body:.100}");
    }
    assert_eq!(send(&deep_object).message()["id"], 5);
    let wrong = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"execute_code","arguments":3}}"#;
    assert!(
        send(wrong).message()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("arguments")
    );
    assert_eq!(caller.text("print('still here')").trim(), "still here");
}

#[test]
fn a_second_request_hidden_in_a_body_is_not_answered() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let own = server.address;
    let hidden = format!("GET /metrics HTTP/1.1\r\nHost: {own}\r\n\r\n");
    let replies = |bytes: String| {
        let mut stream = connect(own);
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut text = String::new();
        // The server may close the connection; the replies before that count.
        let _to_its_end = BufReader::new(stream).read_to_string(&mut text);
        text
    };
    let post = |more: &str, body: &str| {
        format!("POST /mcp HTTP/1.1\r\nHost: {own}\r\nContent-Type: application/json\r\n{more}\r\n{body}")
    };
    let length = hidden.len();
    for request in [
        post(
            &format!("Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", length + 5),
            &format!("0\r\n\r\n{hidden}"),
        ),
        post(
            &format!("Transfer-Encoding: chunked\r\nContent-Length: {}\r\n", length + 5),
            &format!("0\r\n\r\n{hidden}"),
        ),
        post("Content-Length: 2\r\nContent-Length: 60\r\n", &format!("{{}}{hidden}")),
        post("Content-Length: +2\r\n", &format!("{{}}{hidden}")),
        post("Content-Length: 2, 2\r\n", &format!("{{}}{hidden}")),
        post("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{hidden}")),
        post(
            "Transfer-Encoding: chunked, identity\r\n",
            &format!("0\r\n\r\n{hidden}"),
        ),
        post("Transfer-Encoding : chunked\r\n", &format!("0\r\n\r\n{hidden}")),
    ] {
        let said = replies(request.clone());
        assert!(!said.contains("sandcell_sandboxes"), "{request}\n---\n{said}");
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{request}\n---\n{said}");
    }
    // The test can fail: without smuggling, the second request is answered.
    let plain = format!(
        "GET /healthz HTTP/1.1\r\nHost: {own}\r\n\r\nGET /metrics HTTP/1.1\r\nHost: {own}\r\nConnection: close\r\n\r\n"
    );
    assert!(replies(plain).contains("sandcell_sandboxes"));
    let mut stream = BufReader::new(connect(own));
    stream
        .get_mut()
        .write_all(post("Content-Length: 0\r\n", "").as_bytes())
        .unwrap();
    assert!(Reply::read(&mut stream).is_some());
}
