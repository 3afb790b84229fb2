use serde_json::{Value, json};

use crate::support::http::{Caller, Reply, Server, token};
use crate::support::place::Place;
use crate::support::{PATIENCE, begin, settles, until};

/// What the page asks, as it asks it.
fn ask(server: &Server, method: &str, path: &str, who: &Caller, more: &str) -> Reply {
    let own = server.address;
    let token = who
        .token
        .as_deref()
        .map(|token| format!("Authorization: Bearer {token}\r\n"));
    server.raw(format!(
        "{method} {path} HTTP/1.1\r\nHost: {own}\r\n{}{more}Content-Length: 0\r\nConnection: close\r\n\r\n",
        token.unwrap_or_default()
    ))
}

const PAGE: &str = "Sandcell-Page: 1\r\n";

fn get(server: &Server, path: &str, who: &Caller) -> Reply {
    ask(server, "GET", path, who, PAGE)
}

fn value(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap()
}

#[test]
fn there_is_no_page_unless_the_operator_wants_one() {
    let _turn = begin!();
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let who = server.caller();
    for path in ["/", "/page/page.js", "/api/overview"] {
        get(&server, path, &who).refused(404);
    }
    drop(server);
    let place = Place::with_settings("[http]\npage = true\n");
    let server = Server::start(&place, &[]);
    let told = format!("a page to look at: http://{}/", server.address);
    until(PATIENCE, "the page is announced", || {
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
    let place = Place::with_settings("[http]\nallowed_origins = [\"https://app.example\"]\n");
    let (_, secret) = token(&place, &["ann"]);
    let (_, metrics) = token(&place, &["watcher", "--metrics"]);
    let server = Server::start(&place, &["--page"]);
    let (ann, own) = (server.with_token(&secret), server.address);
    // A link from anywhere may lead to the page; nobody without a right Host gets even that.
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
            &format!("{PAGE}Origin: http://{own}\r\n")
        )
        .status,
        200
    );
    let foreign = [
        "Origin: https://evil.example\r\n".to_owned(),
        // What the operator allowed for MCP may not press buttons here.
        "Origin: https://app.example\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
        "Sec-Fetch-Site: cross-site\r\n".to_owned(),
        "Sec-Fetch-Site: same-site\r\n".to_owned(),
    ];
    for more in &foreign {
        let reply = ask(&server, "GET", "/api/overview", &ann, &format!("{PAGE}{more}"));
        reply.refused(403);
        assert_eq!(reply.header("access-control-allow-origin"), None, "{more}");
        let preflight = ask(&server, "OPTIONS", "/api/overview", &server.caller(), more);
        assert!(preflight.status >= 400 && preflight.header("access-control-allow-headers").is_none());
    }
    // What a form, a picture or a script element sends.
    ask(&server, "GET", "/api/overview", &ann, "").refused(403);
    ask(&server, "GET", "/api/overview", &ann, &format!("{PAGE}{PAGE}")).refused(403);
    get(&server, "/api/overview", &server.caller()).refused(401);
    get(&server, "/api/overview", &server.with_token("wrong")).refused(401);
    get(&server, "/api/overview", &server.with_token(&metrics)).refused(403);
    get(&server, &format!("/api/overview?token={secret}"), &server.caller()).refused(400);
    // Words are looked at after who says them.
    get(&server, "/api/nothing", &ann).refused(404);
    ask(&server, "POST", "/api/overview", &ann, PAGE).refused(405);
    for path in ["/api/executions/x/cancel", "/api/sandboxes/x/close"] {
        get(&server, path, &ann).refused(405);
    }
}

#[test]
fn guessing_tokens_on_the_page_is_slowed_down_and_told() {
    let _turn = begin!();
    let place = Place::new();
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
fn callers_see_and_end_their_own_things_only() {
    let _turn = begin!();
    let place = Place::new();
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
    // What code made is never a document.
    let file = get(&server, &format!("/api/executions/{with_file}/files/0"), &ann);
    assert_eq!(file.body, "<svg onload=\"alert(1)\"/>");
    for (header, value) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(file.header(header), Some(value));
    }
    // Of all this, Bob gets exactly what he gets for what never was.
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
            let reply = ask(&server, method, &path.replace("ID", id), &bob, PAGE);
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
    let closed = ask(&server, "POST", &format!("/api/sandboxes/{sandbox}/close"), &ann, PAGE);
    assert_eq!(value(&closed)["closed"], sandbox.as_str());
    // One that ran a single program may still be closing.
    settles(
        || value(&get(&server, "/api/overview", &ann))["sandboxes"].clone(),
        &json!([]),
    );
}

#[test]
fn what_ran_before_a_restart_can_still_be_read() {
    let _turn = begin!();
    let place = Place::new();
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
