use serde_json::{Value, json};

use sandcell_e2e::http::{Caller, Reply, Server, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, begin, settles, until};

/// Sends the page's requests, in the page's form.
fn ask(server: &Server, method: &str, path: &str, caller: &Caller, more: &str) -> Reply {
    let own = server.address;
    let token = caller
        .token
        .as_deref()
        .map(|token| format!("Authorization: Bearer {token}\r\n"));
    server.raw(format!(
        "{method} {path} HTTP/1.1\r\nHost: {own}\r\n{}{more}Content-Length: 0\r\nConnection: close\r\n\r\n",
        token.unwrap_or_default()
    ))
}

const PAGE_HEADER: &str = "Sandcell-Page: 1\r\n";

/// Sends a request with a body in the page's form.
fn send(server: &Server, method: &str, path: &str, caller: &Caller, kind: &str, body: &[u8]) -> Reply {
    let token = caller.token.as_deref().unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n{PAGE_HEADER}Content-Type: {kind}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        server.address,
        body.len()
    );
    server.raw([head.as_bytes(), body].concat())
}

fn post(server: &Server, path: &str, caller: &Caller, body: &Value) -> Reply {
    send(
        server,
        "POST",
        path,
        caller,
        "application/json",
        body.to_string().as_bytes(),
    )
}

/// Returns the finished state of an execution.
fn ended(server: &Server, caller: &Caller, begun: &Reply) -> Value {
    assert_eq!(begun.status, 202, "{begun:?}");
    let id = begun.message()["execution_id"].as_str().unwrap().to_owned();
    until(DEFAULT_TIMEOUT, "the execution ends", || {
        let detail = value(&get(server, &format!("/api/executions/{id}"), caller));
        (detail["live"]["about"]["status"] != "running").then_some(detail)
    })
}

fn get(server: &Server, path: &str, caller: &Caller) -> Reply {
    ask(server, "GET", path, caller, PAGE_HEADER)
}

fn value(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}

#[test]
fn the_page_exists_only_if_the_operator_enables_it() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    for path in ["/", "/page/page.js", "/api/overview"] {
        get(&server, path, &caller).refused(404);
    }
    drop(server);
    let place = TestDir::with_settings("[http]\npage = true\n");
    let server = Server::start(&place, &[]);
    let told = format!("a page to look at: http://{}/", server.address);
    until(DEFAULT_TIMEOUT, "the page is announced", || {
        server.log().contains(&told).then_some(())
    });
    let page = server.get("/", "");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self';",
        "frame-ancestors 'none'",
        "trusted-types 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (header, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("set-cookie", ""),
    ] {
        assert_eq!(page.header(header).unwrap_or_default(), value, "{header}");
    }
    for nothing in [
        "/page/",
        "/page/../page/page.js",
        "/page/page.js/",
        "//",
        "/index.html",
        "/page%2fpage.js",
    ] {
        server.get(nothing, "").refused(404);
    }
}

#[test]
fn the_page_is_for_its_own_origin_and_for_callers_with_a_token() {
    let _turn = begin!();
    let place = TestDir::with_settings("[http]\nallowed_origins = [\"https://app.example\"]\n");
    let (_, secret) = token(&place, &["ann"]);
    let (_, metrics) = token(&place, &["watcher", "--metrics"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, own) = (server.with_token(&secret), server.address);
    // A link from any page may open this page; a request with a wrong Host is refused even that.
    assert_eq!(server.get("/", "Sec-Fetch-Site: cross-site\r\n").status, 200);
    server.get("/", "Origin: https://evil.example\r\n").refused(403);
    let rebound = server.raw("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    rebound.refused(403);
    assert_eq!(get(&server, "/api/overview", &ann).status, 200);
    assert_eq!(
        ask(
            &server,
            "GET",
            "/api/overview",
            &ann,
            &format!("{PAGE_HEADER}Origin: http://{own}\r\n")
        )
        .status,
        200
    );
    let foreign = [
        "Origin: https://evil.example\r\n".to_owned(),
        // Origins that the operator allowed for MCP may not use the page's requests.
        "Origin: https://app.example\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
        "Sec-Fetch-Site: cross-site\r\n".to_owned(),
        "Sec-Fetch-Site: same-site\r\n".to_owned(),
    ];
    for more in &foreign {
        let reply = ask(&server, "GET", "/api/overview", &ann, &format!("{PAGE_HEADER}{more}"));
        reply.refused(403);
        assert_eq!(reply.header("access-control-allow-origin"), None, "{more}");
        let preflight = ask(&server, "OPTIONS", "/api/overview", &server.caller(), more);
        assert!(preflight.status >= 400 && preflight.header("access-control-allow-headers").is_none());
    }
    // Requests of a form, a picture or a script element.
    ask(&server, "GET", "/api/overview", &ann, "").refused(403);
    ask(
        &server,
        "GET",
        "/api/overview",
        &ann,
        &format!("{PAGE_HEADER}{PAGE_HEADER}"),
    )
    .refused(403);
    get(&server, "/api/overview", &server.caller()).refused(401);
    get(&server, "/api/overview", &server.with_token("wrong")).refused(401);
    get(&server, "/api/overview", &server.with_token(&metrics)).refused(403);
    get(&server, &format!("/api/overview?token={secret}"), &server.caller()).refused(400);
    // The server authenticates the caller before it checks the request.
    get(&server, "/api/nothing", &ann).refused(404);
    ask(&server, "POST", "/api/overview", &ann, PAGE_HEADER).refused(405);
    for path in [
        "/api/executions/x/cancel",
        "/api/executions/x/rerun",
        "/api/sandboxes/x/close",
        "/api/sandboxes",
        "/api/runs",
    ] {
        get(&server, path, &ann).refused(405);
    }
    for path in [
        "/api/sandboxes/x",
        "/api/sandboxes/x/notebook",
        "/api/sandboxes/x/files",
    ] {
        ask(&server, "POST", path, &ann, PAGE_HEADER).refused(405);
    }
    // For every request: other pages are refused, callers without a token are refused, and a token for metrics is not
    // accepted.
    for (method, path) in [
        ("POST", "/api/executions"),
        ("POST", "/api/runs"),
        ("POST", "/api/sandboxes"),
        ("POST", "/api/executions/x/rerun"),
        ("GET", "/api/executions?text=x"),
        ("GET", "/api/sandboxes/x"),
        ("GET", "/api/sandboxes/x/files"),
        ("GET", "/api/sandboxes/x/content?path=a"),
        ("PUT", "/api/sandboxes/x/content?path=a"),
        ("GET", "/api/sandboxes/x/notebook"),
    ] {
        for more in &foreign {
            ask(&server, method, path, &ann, &format!("{PAGE_HEADER}{more}")).refused(403);
        }
        ask(&server, method, path, &ann, "").refused(403);
        ask(&server, method, path, &server.caller(), PAGE_HEADER).refused(401);
        ask(&server, method, path, &server.with_token(&metrics), PAGE_HEADER).refused(403);
    }
    // A token in an address is refused everywhere, and so are unknown fields.
    for path in [
        format!("/api/executions?text=x&token={secret}"),
        "/api/executions?path=x".to_owned(),
        "/api/executions?text=a&text=b".to_owned(),
        "/api/overview?text=x".to_owned(),
    ] {
        get(&server, &path, &ann).refused(400);
    }
    // The page's requests are JSON that a form of another page cannot send. Overlong bodies are refused.
    let code = json!({"code": "1"}).to_string();
    send(&server, "POST", "/api/executions", &ann, "text/plain", code.as_bytes()).refused(415);
    let bodies = [
        "[1]".to_owned(),
        "{".to_owned(),
        json!({"code": "1", "nothing": 1}).to_string(),
        format!("{{\"code\": \"1\", \"x\": [{}0]}}", "0,".repeat(50_000)),
        "[".repeat(100_000),
    ];
    for body in &bodies {
        let sent = send(
            &server,
            "POST",
            "/api/executions",
            &ann,
            "application/json",
            body.as_bytes(),
        );
        sent.refused(400);
    }
    let long = json!({"code": "#".repeat(2 << 20)});
    assert!(post(&server, "/api/executions", &ann, &long).status >= 400);
    let announced = format!(
        "PUT /api/sandboxes/x/content?path=a HTTP/1.1\r\nHost: {own}\r\nAuthorization: Bearer {secret}\r\n{PAGE_HEADER}\
         Content-Length: 99999999999\r\n\r\n"
    );
    server.raw(announced).refused(413);
}

#[test]
fn all_of_the_history_is_searched_and_paged_and_each_caller_finds_its_own() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    // 0 and 1 are in no id, which the search covers, too.
    bob.run("print('needle of bob-01')");
    ann.run("print('first ' + 'NEEDLE')");
    for number in 0..69 {
        ann.run(&format!("{number}"));
    }
    ann.run("1 / 0");
    let search = |caller: &Caller, query: &str| value(&get(&server, &format!("/api/executions?{query}"), caller));
    let mut seen = Vec::new();
    let mut query = "limit=30".to_owned();
    loop {
        let page = search(&ann, &query);
        assert_eq!(
            (&page["total"], &page["complete"]),
            (&json!(71), &json!(true)),
            "{page}"
        );
        let ids: Vec<String> = { page["records"].as_array().unwrap().iter() }
            .map(|record| record["execution_id"].as_str().unwrap().to_owned())
            .collect();
        query = format!("limit=30&before={}", ids.last().unwrap());
        seen.extend(ids);
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(seen.len(), 71);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 71, "no row stands on two pages");
    // The search covers output and code, and ignores case.
    assert_eq!(search(&ann, "text=first+needle")["total"], 1);
    assert_eq!(search(&ann, "text=first%20needle&status=error")["total"], 0);
    assert_eq!(
        search(&ann, "text=zerodivisionerror&status=error&language=python")["total"],
        1
    );
    assert_eq!(search(&ann, "text=%25&limit=1")["total"], 0, "no pattern");
    assert_eq!(search(&ann, "limit=9999")["records"].as_array().unwrap().len(), 71);
    // Other callers' rows are not found, neither by their text nor by their ids.
    assert_eq!(search(&ann, "text=bob-01")["total"], 0);
    assert_eq!(search(&bob, "")["total"], 1);
    assert_eq!(search(&bob, &format!("before={}", seen[0]))["records"], json!([]));
    for wrong in ["status=gone", "limit=x", "limit=-1"] {
        get(&server, &format!("/api/executions?{wrong}"), &ann).refused(400);
    }
    let many = ["x"; 9].join("+");
    for wrong in [many, "x".repeat(201)] {
        get(&server, &format!("/api/executions?text={wrong}"), &ann).refused(400);
    }
}

#[test]
fn code_is_run_and_run_again_and_sandboxes_are_made() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let made = post(
        &server,
        "/api/sandboxes",
        &ann,
        &json!({"label": "<b>mine</b>", "memory_mb": 256, "lifetime_s": 600}),
    );
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.message()["sandboxes"][0].clone();
    assert_eq!(
        (&made["limits"]["memory_mb"], &made["label"]),
        (&json!(256), &json!("<b>mine</b>"))
    );
    let sandbox = made["sandbox_id"].as_str().unwrap();
    let code = json!({"code": "try: n += 1\nexcept NameError: n = 1\nn", "sandbox_id": sandbox});
    let first = ended(&server, &ann, &post(&server, "/api/executions", &ann, &code));
    assert_eq!(first["live"]["result"], "1");
    let id = first["live"]["about"]["execution_id"].as_str().unwrap();
    let again = |caller| post(&server, &format!("/api/executions/{id}/rerun"), caller, &json!({}));
    assert_eq!(ended(&server, &ann, &again(&ann))["live"]["result"], "2");
    // Variables of that sandbox, with their descriptions.
    let inside = value(&get(&server, &format!("/api/sandboxes/{sandbox}"), &ann));
    let variables = inside["sessions"][0]["variables"].as_array().unwrap();
    assert!(
        variables.iter().any(|one| one["name"] == "n" && one["type"] == "int"),
        "{inside}"
    );
    // Once its sandbox has ended, the code runs in a new one, and the answer states that.
    let close = format!("/api/sandboxes/{sandbox}/close");
    assert_eq!(ask(&server, "POST", &close, &ann, PAGE_HEADER).status, 200);
    let fresh = again(&ann);
    assert!(fresh.message()["note"].as_str().unwrap().contains("fresh"), "{fresh:?}");
    assert_eq!(ended(&server, &ann, &fresh)["live"]["result"], "1");
    let once = post(
        &server,
        "/api/runs",
        &ann,
        &json!({"code": "echo $((6*7))", "language": "bash"}),
    );
    assert_eq!(ended(&server, &ann, &once)["live"]["stdout"]["text"], "42\n");
    for (path, body) in [
        ("/api/sandboxes", json!({"memory_mb": 999_999_999})),
        ("/api/sandboxes", json!({"label": "x".repeat(200)})),
        ("/api/executions", json!({"code": ""})),
        ("/api/executions", json!({"code": "1", "language": "klingon"})),
        ("/api/executions", json!({"code": "1", "sandbox_id": sandbox})),
        ("/api/runs", json!({"language": "python"})),
    ] {
        let reply = post(&server, path, &ann, &body);
        assert!(reply.status >= 400, "{path} {reply:?}");
        reply.refused(reply.status);
    }
    // Bob has no access to Ann's sandboxes and executions.
    again(&bob).refused(404);
    let body = json!({"code": "1", "sandbox_id": ann.run("1").sandbox()});
    post(&server, "/api/executions", &bob, &body).refused(404);
    assert_eq!(
        value(&get(&server, "/api/executions?", &bob))["total"],
        1,
        "the refused call only"
    );
}

#[test]
fn files_are_listed_read_and_written_inside_their_sandbox_only() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let sandbox = ann
        .run("import os; os.symlink('/etc/passwd', 'link'); open('<i>\\n.html', 'w').write('<script>1</script>')")
        .sandbox();
    let at = |rest: &str| format!("/api/sandboxes/{sandbox}/{rest}");
    let put = |caller: &Caller, rest: &str, bytes: &[u8]| {
        send(&server, "PUT", &at(rest), caller, "application/octet-stream", bytes)
    };
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let sent = put(&ann, "content?path=new%2Fdata%20%2B%20%C3%A4.bin", &bytes);
    assert_eq!(value(&sent)["size"], 200_000);
    let more = put(&ann, "content?path=new%2Fdata%20%2B%20%C3%A4.bin&append=true", b"more");
    assert_eq!(value(&more)["size"], 200_004);
    assert_eq!(value(&put(&ann, "content?path=empty", b""))["size"], 0);
    let listed = value(&get(&server, &at("files?path=/home/user/new"), &ann));
    assert_eq!(listed["files"][0]["name"], "data + ä.bin", "{listed}");
    let home = value(&get(&server, &at("files"), &ann));
    let names: Vec<&str> = { home["files"].as_array().unwrap().iter() }
        .map(|file| file["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"<i>\n.html") && names.contains(&"link"), "{names:?}");
    let part = get(
        &server,
        &at("content?path=new/data%20%2B%20%C3%A4.bin&offset=200000"),
        &ann,
    );
    assert_eq!(
        (part.status, part.body.as_str(), part.header("sandcell-size")),
        (200, "more", Some("200004"))
    );
    // HTML that code wrote is only a download.
    let page = get(&server, &at("content?path=%3Ci%3E%0A.html&limit=8"), &ann);
    assert_eq!(page.body, "<script>");
    for (header, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(page.header(header), Some(value), "{header}");
    }
    assert!(page.header("content-security-policy").unwrap().contains("sandbox"));
    // A link resolves inside the sandbox, never on the host.
    let host = std::fs::read_to_string("/etc/passwd").unwrap();
    let linked = get(&server, &at("content?path=link"), &ann);
    assert_ne!(linked.body, host);
    for wrong in [
        "content?path=../../etc/passwd",
        "content?path=a%00b",
        "content",
        "content?path=x&append=1",
        "files?path=..",
    ] {
        let reply = if wrong.contains("append") {
            put(&ann, wrong, b"x")
        } else {
            get(&server, &at(wrong), &ann)
        };
        reply.refused(400);
    }
    assert!(get(&server, &at("content?path=none"), &ann).status >= 400);
    assert!(
        put(&ann, "content?path=big", &vec![0; 11 << 20]).status >= 400,
        "more than one call moves"
    );
    // Bob gets the same answer as for a sandbox that never existed.
    for rest in ["files", "content?path=link", "notebook", "content?path=x", ""] {
        let path = at(rest);
        let asked = |id: &str| {
            let path = path.replace(&sandbox, id);
            let path = path.trim_end_matches('/');
            let reply = if rest.ends_with('x') {
                send(&server, "PUT", path, &bob, "application/octet-stream", b"x")
            } else {
                get(&server, path, &bob)
            };
            reply.refused(404);
            reply.body.replace(id, "ID")
        };
        assert_eq!(asked(&sandbox), asked(&format!("sb{}", "a".repeat(26))), "{rest}");
    }
}

#[test]
fn the_executions_of_a_sandbox_are_a_notebook() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let server = Server::start(&place, &["--page"]);
    let ann = server.with_token(&ann);
    let evil = "<script>alert(1)</script>";
    let sandbox = ann
        .run(&format!(
            "print({evil:?})\nimport sys\nprint('careful', file=sys.stderr)\n6 * 7"
        ))
        .sandbox();
    ann.run("class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)\nP()");
    ann.run("1 / 0");
    ann.call("execute_code", json!({"code": "echo hi", "language": "bash"}));
    let path = format!("/api/sandboxes/{sandbox}/notebook");
    let check = |reply: &Reply| {
        assert_eq!(
            reply.header("content-disposition"),
            Some("attachment; filename=\"sandcell.ipynb\"")
        );
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let notebook = value(reply);
        assert_eq!(
            (&notebook["nbformat"], &notebook["nbformat_minor"]),
            (&json!(4), &json!(5))
        );
        assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3");
        let cells = notebook["cells"].as_array().unwrap();
        let kinds = |cell: &Value| -> Vec<String> {
            { cell["outputs"].as_array().unwrap().iter() }
                .map(|output| output["output_type"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(cells.len(), 4, "{notebook}");
        assert_eq!(kinds(&cells[0]), ["stream", "stream", "execute_result"]);
        assert_eq!(cells[0]["outputs"][0]["text"], json!([format!("{evil}\n")]));
        assert_eq!(cells[0]["outputs"][2]["data"], json!({"text/plain": ["42"]}));
        assert!(cells[1]["outputs"].to_string().contains("image/png"), "{notebook}");
        assert_eq!(cells[2]["outputs"][0]["ename"], "ZeroDivisionError");
        assert_eq!(cells[3]["source"], json!(["%%bash\n", "echo hi"]));
    };
    check(&get(&server, &path, &ann));
    // The notebook of an ended sandbox is still available, also from the history of another server.
    assert_eq!(
        ask(
            &server,
            "POST",
            &format!("/api/sandboxes/{sandbox}/close"),
            &ann,
            PAGE_HEADER
        )
        .status,
        200
    );
    check(&get(&server, &path, &ann));
    let secret = ann.token.clone().unwrap();
    drop(server);
    let server = Server::start(&place, &["--page"]);
    check(&get(&server, &path, &server.with_token(&secret)));
}

#[test]
fn guessing_tokens_on_the_page_is_throttled_and_reported() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, secret) = token(&place, &["ann"]);
    let server = Server::start(&place, &["--page"]);
    let guess = |n: u32| {
        get(
            &server,
            "/api/overview",
            &server.with_token(&format!("sandcell_tkaaaaaaaaaa_{n}")),
        )
        .status
    };
    let statuses: Vec<u16> = (0..40).map(guess).collect();
    assert_eq!((statuses[0], statuses[39]), (401, 429), "{statuses:?}");
    assert_eq!(get(&server, "/api/overview", &server.with_token(&secret)).status, 200);
}

#[test]
fn callers_see_and_end_only_their_own_sandboxes_and_executions() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, bob) = (server.with_token(&ann), server.with_token(&bob));
    let hers = ann.run("print('of ann' * 10000)\n6 * 7");
    let (sandbox, execution) = (hers.sandbox(), hers.meta()["execution_id"].as_str().unwrap().to_owned());
    let out = ann.call(
        "create_run_close",
        json!({"code": "open('o.svg', 'w').write('<svg onload=\"alert(1)\"/>')", "outputs": ["o.svg"]}),
    );
    let with_file = out.meta()["execution_id"].as_str().unwrap().to_owned();
    let overview = value(&get(&server, "/api/overview", &ann));
    assert_eq!(overview["sandboxes"][0]["sandbox_id"], sandbox.as_str());
    assert_eq!(overview["history"]["total"], 2);
    assert!(
        overview["backends"][0]["layers"]
            .as_array()
            .is_some_and(|layers| layers.len() > 5)
    );
    let detail = value(&get(&server, &format!("/api/executions/{execution}"), &ann));
    assert_eq!(detail["live"]["result"], "42");
    assert_eq!(detail["live"]["stdout"]["truncated"], true);
    assert!(detail["code"]["text"].as_str().unwrap().starts_with("print('of ann'"));
    let part = value(&get(&server, &format!("/api/executions/{execution}/stdout/0"), &ann));
    assert_eq!(part["text"].as_str().unwrap().len(), 60_001);
    // Files from code are never served as documents.
    let file = get(&server, &format!("/api/executions/{with_file}/files/0"), &ann);
    assert_eq!(file.body, "<svg onload=\"alert(1)\"/>");
    for (header, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(file.header(header), Some(value));
    }
    // Bob's answers about all this equal his answers about things that never existed.
    let theirs = value(&get(&server, "/api/overview", &bob)).to_string();
    for secret in [&sandbox, &execution, &with_file] {
        assert!(!theirs.contains(secret.as_str()), "{theirs}");
    }
    let other = |id: &str| format!("{}{}", &id[..id.len() - 1], if id.ends_with('a') { "b" } else { "a" });
    for (method, path, id) in [
        ("GET", "/api/executions/ID", &execution),
        ("GET", "/api/executions/ID/stdout/0", &execution),
        ("GET", "/api/executions/ID/code/0", &execution),
        ("GET", "/api/executions/ID/files/0", &with_file),
        ("POST", "/api/executions/ID/cancel", &execution),
        ("POST", "/api/sandboxes/ID/close", &sandbox),
    ] {
        let asked = |id: &str| {
            let reply = ask(&server, method, &path.replace("ID", id), &bob, PAGE_HEADER);
            reply.refused(404);
            reply.body.replace(id, "ID")
        };
        assert_eq!(asked(id), asked(&other(id)), "{path}");
    }
    for odd in ["..", "%2e%2e", "sb..", "executions", &"a".repeat(9000)] {
        assert_eq!(
            get(&server, &format!("/api/executions/{odd}"), &bob).status,
            404,
            "{odd:.20}"
        );
    }
    assert_eq!(ann.text("print('still here')").trim(), "still here");
    let closed = ask(
        &server,
        "POST",
        &format!("/api/sandboxes/{sandbox}/close"),
        &ann,
        PAGE_HEADER,
    );
    assert_eq!(value(&closed)["closed"], sandbox.as_str());
    // The sandbox of a single program may still be closing.
    settles(
        || value(&get(&server, "/api/overview", &ann))["sandboxes"].clone(),
        &json!([]),
    );
}

#[test]
fn executions_before_a_restart_are_still_readable() {
    let _turn = begin!();
    let place = TestDir::new();
    let (_, ann) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &["--page"]);
    let paint = "class Plot:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)\nPlot()";
    let painted = server.with_token(&ann).run(paint);
    let painted = format!("/api/executions/{}", painted.meta()["execution_id"].as_str().unwrap());
    let hers = server.with_token(&ann).run("print('kept')\n1 / 0");
    let path = format!("/api/executions/{}", hers.meta()["execution_id"].as_str().unwrap());
    drop(server);
    let server = Server::start(&place, &["--page"]);
    let detail = value(&get(&server, &path, &server.with_token(&ann)));
    assert_eq!(detail["kept"]["code"], "print('kept')\n1 / 0");
    assert_eq!(detail["kept"]["stdout"], "kept\n");
    assert!(
        detail["kept"]["traceback"]
            .as_str()
            .unwrap()
            .contains("ZeroDivisionError")
    );
    get(&server, &path, &server.with_token(&bob)).refused(404);
    let detail = value(&get(&server, &painted, &server.with_token(&ann)));
    assert_eq!(detail["files"][0]["picture"], "image/png", "{detail}");
    let number = &detail["files"][0]["number"];
    let file = get(&server, &format!("{painted}/files/{number}"), &server.with_token(&ann));
    assert_eq!(
        (file.status, detail["files"][0]["size"].as_u64()),
        (200, Some(28)),
        "{file:?}"
    );
    assert!(file.body.contains("PNG"), "{file:?}");
    get(&server, &format!("{painted}/files/{number}"), &server.with_token(&bob)).refused(404);
    get(&server, &format!("{painted}/files/99"), &server.with_token(&ann)).refused(404);
}
