use std::io::{BufReader, Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use sandcell_e2e::http::{Reply, Server, connect, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, until};

#[test]
fn idle_connections_do_not_block_authenticated_clients() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nconnections = 8\n");
    let (_, secret) = token(&place, &["ann"]);
    let server = Server::start(&place, &[]);
    let ann = server.with_token(&secret);
    let own = server.address;
    // Requests without a token: an empty one, half a head, a head that grows, a body that never arrives.
    let starts = [
        String::new(),
        "POST /mcp HT".to_owned(),
        format!("POST /mcp HTTP/1.1\r\nHost: {own}\r\nX-A: 1\r\n"),
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {own}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        ),
    ];
    let mut strangers = Vec::new();
    for round in 0..40 {
        let mut stream = connect(own);
        let _maybe_closed = stream.write_all(starts[round % starts.len()].as_bytes());
        strangers.push(stream);
        if round % 8 == 7 {
            assert_eq!(ann.text("print('in')").trim(), "in");
        }
    }
    for stream in &mut strangers {
        let _maybe_closed = stream.write_all(b"X-B: 2\r\n");
    }
    assert_eq!(ann.text("print('in')").trim(), "in");
    // An accepted connection stays open, regardless of later ones.
    let mut kept = BufReader::new(connect(own));
    let message = ann.message("tools/list", json!({}));
    let body = message.to_string();
    let request = format!("{}{body}", ann.head(&message, body.len(), ""));
    kept.get_mut().write_all(request.as_bytes()).unwrap();
    assert_eq!(Reply::read(&mut kept).unwrap().status, 200);
    let _more: Vec<_> = (0..20).map(|_| connect(own)).collect();
    assert_eq!(ann.text("print('in')").trim(), "in");
    kept.get_mut().write_all(request.as_bytes()).unwrap();
    assert_eq!(Reply::read(&mut kept).unwrap().status, 200);
}

#[test]
fn bodies_without_a_token_or_too_large_are_not_read() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, secret) = token(&place, &["ann"]);
    let server = Server::start(&place, &[]);
    let own = server.address;
    let head = |more: &str| {
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {own}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{more}\r\n"
        )
    };
    // The body never arrives, but the answer does.
    server.raw(head("Content-Length: 1000000\r\n")).refused(401);
    let auth = format!("Authorization: Bearer {secret}\r\n");
    server
        .raw(head(&format!("{auth}Content-Length: 99999999999\r\n")))
        .refused(413);
    let huge = head(&format!("{auth}Content-Length: 999999999999999999999999\r\n"));
    assert!(server.raw(huge).status >= 400);
    // A body without a length, for as long as the server reads.
    let mut stream = connect(own);
    stream
        .write_all(head(&format!("{auth}Transfer-Encoding: chunked\r\n")).as_bytes())
        .unwrap();
    let piece = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    let sent = (0..200)
        .take_while(|_| stream.write_all(piece.as_bytes()).is_ok())
        .count();
    assert!(sent < 100, "{sent} MiB were taken");
    // Heads are limited, too.
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    assert_eq!(server.raw(head(&many)).status, 431);
    let long = format!("X: {}\r\n", "y".repeat(200_000));
    assert_eq!(server.raw(head(&long)).status, 431);
    let address = server.raw(format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(70_000)));
    assert!(matches!(address.status, 414 | 431), "{address:?}");
    assert_eq!(server.with_token(&secret).text("print(1)").trim(), "1");
}

#[test]
fn the_flood_of_one_caller_is_refused_and_others_are_unaffected() {
    let _turn = begin!();
    let place =
        TestDir::with_settings("[http]\nrequests_per_caller = 4\nrequests_per_s = 20\nsessions_per_caller = 3\n");
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    // Concurrent requests.
    let sleeping = || {
        let call = ann.tool("create_run_close", &json!({"code": "import time\ntime.sleep(4)"}));
        ann.begin(&call, "Connection: close\r\n")
    };
    let mut asleep: Vec<_> = (0..8).map(|_| sleeping()).collect();
    let refused = asleep.split_off(4);
    for mut stream in refused {
        let reply = Reply::read(&mut stream).unwrap();
        assert!(reply.header("retry-after").is_some());
        reply.refused(429);
    }
    assert_eq!(bob.text("print('bob')").trim(), "bob");
    for mut stream in asleep {
        assert_eq!(Reply::read(&mut stream).unwrap().status, 200);
    }
    // Requests per second.
    let statuses: Vec<u16> = (0..80).map(|_| ann.request("tools/list", json!({})).status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(bob.text("print('bob')").trim(), "bob");
    // Sessions.
    let open: Vec<_> = (0..3)
        .map(|_| server.with_token(bob.token.as_deref().unwrap()).in_session())
        .collect();
    bob.initialize().refused(429);
    let end = format!(
        "DELETE /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nMcp-Session-Id: {}\r\nConnection: close\r\n\r\n",
        server.address,
        bob.token.as_deref().unwrap(),
        open[0].session.as_deref().unwrap()
    );
    assert_eq!(server.raw(end).status, 204);
    assert_eq!(bob.initialize().status, 200);
}

#[test]
fn announced_large_messages_that_never_arrive_block_no_client() {
    let _turn = begin!();
    let place = TestDir::new();
    let tokens: Vec<String> = (0..6).map(|n| token(&place, &[&format!("t{n}")]).1).collect();
    let server = Server::start(&place, &[]);
    let mut announced = Vec::new();
    for token in &tokens[..5] {
        let caller = server.with_token(token);
        for _ in 0..5 {
            let head = caller.head(&json!({}), 20_000_000, "");
            let mut stream = connect(server.address);
            stream.write_all(head.as_bytes()).unwrap();
            announced.push(stream);
        }
    }
    // Each caller may announce up to its limit, and gets an error above that.
    until(Duration::from_secs(20), "some are told", || {
        let told = announced.iter_mut().filter(|stream| {
            stream.set_nonblocking(true).unwrap();
            let answered = stream.peek(&mut [0]).is_ok();
            stream.set_nonblocking(false).unwrap();
            answered
        });
        (told.count() >= 5).then_some(())
    });
    let other = server.with_token(&tokens[5]);
    assert_eq!(other.text("print('in')").trim(), "in");
    let first = server.with_token(&tokens[0]);
    assert_eq!(
        first.text("print('in')").trim(),
        "in",
        "its own bound is not used up by rounding"
    );
}

#[test]
fn disconnecting_does_not_evade_the_limits() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nrequests_per_caller = 2\n");
    let server = Server::start(&place, &[]);
    let caller = server.caller().in_session();
    let call = |code: &str| caller.tool("create_run_close", &json!({"code": code}));
    for _ in 0..2 {
        let mut stream = caller.begin(&call("import time\ntime.sleep(3)"), "");
        assert_eq!(Reply::head(&mut stream).unwrap().status, 200);
    }
    caller.send(&call("print(1)"), "").refused(429);
    until(Duration::from_secs(30), "there is room again", || {
        (caller.send(&call("print(1)"), "").status == 200).then_some(())
    });
}

#[test]
fn a_session_answers_each_id_once() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let caller = server.caller().in_session();
    let call = caller.tool(
        "execute_code",
        &json!({"code": "import time\ntime.sleep(1.5)\nprint('first')"}),
    );
    let mut first = caller.begin(&call, "Connection: close\r\n");
    let mut head = Reply::head(&mut first).unwrap();
    let second = caller.send(&call, "");
    second.refused(400);
    assert_eq!(second.message()["id"], call["id"]);
    while let Some(piece) = sandcell_e2e::http::chunk(&mut first) {
        head.body.push_str(&String::from_utf8_lossy(&piece));
    }
    assert!(head.body.contains("first"), "{head:?}");
}

/// Returns the resident memory in MiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn clients_that_do_not_read_answers_use_little_memory() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let sandbox = ann.run("open('big.bin', 'wb').write(bytes(9_000_000))").sandbox();
    assert_eq!(bob.text("print('bob')").trim(), "bob");
    let before = memory(server.pid());
    let read = ann.message(
        "resources/read",
        json!({"uri": format!("sandcell://{sandbox}/home/user/big.bin")}),
    );
    let mut unread: Vec<_> = (0..40).map(|_| ann.begin(&read, "")).collect();
    until(Duration::from_secs(30), "some are answered", || {
        let mut byte = [0];
        let stream = unread[0].get_ref();
        (stream.peek(&mut byte).unwrap() == 1).then_some(())
    });
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < Duration::from_secs(2) {
        most = most.max(memory(server.pid()));
        assert_eq!(bob.text("print('bob')").trim(), "bob");
    }
    // All forty together would need gigabytes.
    assert!(most < before + 768, "{before} MiB, then {most} MiB");
    let bobs = bob.message(
        "resources/read",
        json!({"uri": format!("sandcell://{}/home/user/none", bob.run("1").sandbox())}),
    );
    assert!(bob.send(&bobs, "").message()["error"].is_object());
    // A client that disconnects in the middle leaves nothing: all permits for large answers are free again.
    unread.clear();
    ann.call("write_file", json!({"path": "small.txt", "content": "small"}));
    let small = json!({"uri": format!("sandcell://{sandbox}/home/user/small.txt")});
    for _ in 0..5 {
        let read = ann.request("resources/read", small.clone()).message();
        assert_eq!(read["result"]["contents"][0]["text"], "small", "{read}");
    }
}

#[test]
fn connections_broken_at_any_point_leave_no_trace() {
    let _turn = begin!(alone);
    // Idle sandboxes have descriptors, too.
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    caller.text("x = 1");
    // The history and the audit log are opened at the first write, which takes a while on a busy machine.
    let open = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        let names = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        names.map(|name| name.display().to_string()).collect::<Vec<_>>()
    };
    until(Duration::from_secs(20), "what is kept is open", || {
        let names = open();
        let is_open = |end: &str| names.iter().any(|name| name.ends_with(end));
        (is_open("history.db-shm") && is_open("audit.jsonl")).then_some(())
    });
    let before = open().len();
    let call = caller.tool("execute_code", &json!({"code": "x += 1\nprint(x)"}));
    let body = call.to_string();
    let request = format!("{}{body}", caller.head(&call, body.len(), ""));
    for cut in (0..request.len()).step_by(23) {
        let mut stream = connect(server.address);
        stream.write_all(&request.as_bytes()[..cut]).unwrap();
        if cut % 2 == 0 {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _whatever_it_says = stream.read_to_end(&mut Vec::new());
        }
    }
    until(Duration::from_secs(10), "all are closed", || {
        (open().len() <= before + 2).then_some(())
    });
    assert_eq!(caller.text("print(x)").trim(), "1", "half a request was carried out");
}
