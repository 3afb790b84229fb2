use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use crate::python_sdk::{drive, sdk};
use sandcell_e2e::http::{Caller, Reply, Server, command, token};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, until};

/// A server and two callers who do not trust each other.
fn two(place: &TestDir) -> (Server, Caller, Caller) {
    let (_, ann) = token(place, &["ann"]);
    let (_, bob) = token(place, &["bob"]);
    let server = Server::start(place, &[]);
    let callers = (server.with_token(&ann), server.with_token(&bob));
    (server, callers.0, callers.1)
}

/// Returns an answer without the parts that differ in every one.
fn shape(answer: &Value, id: &str) -> String {
    answer.to_string().replace(id, "ID")
}

#[test]
fn foreign_ids_answer_exactly_like_unknown_ones() {
    let _turn = begin!();
    let place = TestDir::new();
    let (server, ann, bob) = two(&place);
    let picture = "import base64\nfrom pathlib import Path\nPath('secret.txt').write_text('of ann')\nprint('made')";
    let hers = ann.run(picture);
    let sandbox = hers.sandbox();
    let execution = hers.meta()["execution_id"].as_str().unwrap().to_owned();
    let artifact = ann.call(
        "create_run_close",
        json!({"code": "open('o.bin','wb').write(bytes(9))", "outputs": ["o.bin"]}),
    );
    let kept = artifact.of_kind("resource_link").next().unwrap()["uri"]
        .as_str()
        .unwrap()
        .to_owned();
    let kept_id = kept.split('/').nth(3).unwrap().to_owned();
    // The same ids with the last character changed: these never existed.
    let other = |id: &str| {
        let end = if id.ends_with('a') { "b" } else { "a" };
        format!("{}{end}", &id[..id.len() - 1])
    };
    let by_sandbox: [(&str, Value); 10] = [
        ("execute_code", json!({"code": "print(open('secret.txt').read())"})),
        ("run_command", json!({"command": "cat secret.txt"})),
        ("close_sandbox", json!({})),
        ("get_sandbox_status", json!({})),
        ("list_files", json!({})),
        ("read_file", json!({"path": "secret.txt"})),
        ("write_file", json!({"path": "secret.txt", "content": "of bob"})),
        ("upload_file", json!({"path": "x", "content_base64": "AAAA"})),
        ("get_execution_history", json!({})),
        ("reset_session_state", json!({})),
    ];
    for (tool, arguments) in by_sandbox {
        let with = |id: &str| {
            let mut arguments = arguments.clone();
            arguments["sandbox_id"] = json!(id);
            let answer = bob.call(tool, arguments);
            answer.refused("not_found");
            shape(&answer.0, id)
        };
        assert_eq!(with(&sandbox), with(&other(&sandbox)), "{tool}");
    }
    for (tool, arguments) in [
        ("get_execution", json!({})),
        ("get_execution", json!({"stream": "code"})),
        ("cancel_execution", json!({})),
        ("write_stdin", json!({"data": "x"})),
    ] {
        let with = |id: &str| {
            let mut arguments = arguments.clone();
            arguments["execution_id"] = json!(id);
            let answer = bob.call(tool, arguments);
            answer.refused("not_found");
            shape(&answer.0, id)
        };
        assert_eq!(with(&execution), with(&other(&execution)), "{tool}");
    }
    for (uri, id) in [
        (format!("sandcell://{sandbox}/home/user/secret.txt"), &sandbox),
        (kept, &kept_id),
    ] {
        let read = |uri: &str, id: &str| {
            shape(
                &bob.request("resources/read", json!({"uri": uri})).message()["error"],
                id,
            )
        };
        let foreign = read(&uri, id);
        assert!(foreign.contains("not_found"), "{foreign}");
        let never = other(id);
        assert_eq!(foreign, read(&uri.replace(id.as_str(), &never), &never), "{uri}");
        assert!(
            ann.request("resources/read", json!({"uri": uri})).message()["result"].is_object(),
            "{uri}"
        );
    }
    // Bob's own views do not show them either.
    let status = bob.call("get_sandbox_status", json!({})).all();
    let history = bob.call("get_execution_history", json!({})).all();
    assert!(
        !status.contains(&sandbox) && !history.contains(&execution),
        "{status}\n{history}"
    );
    bob.call("cancel_execution", json!({})).refused("not_found");
    assert_ne!(bob.run("1").sandbox(), sandbox);
    assert_eq!(ann.text("print(open('secret.txt').read())").trim(), "of ann");
    drop(server);
}

#[test]
fn a_saved_state_is_its_callers_own() {
    let _turn = begin!();
    let place = TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = true\n");
    let (server, ann, bob) = two(&place);
    let sandbox = ann.run("x = 'of ann'").sandbox();
    let save = |caller: &Caller, name: &str| caller.call("save_sandbox", json!({"sandbox_id": sandbox, "name": name}));
    assert!(!save(&ann, "kept-1").is_error());
    save(&bob, "mine").refused("not_found");
    let open = |name: &str| {
        let answer = bob.call("create_sandbox", json!({"from_saved": name}));
        answer.refused("not_found");
        shape(&answer.0, name)
    };
    assert_eq!(open("kept-1"), open("kept-2"));
    let branch = bob.call("create_sandbox", json!({"from_sandbox": sandbox}));
    branch.refused("not_found");
    bob.call("drop_saved", json!({"name": "kept-1"})).refused("not_found");
    assert_eq!(
        bob.call("list_saved", json!({})).0["structuredContent"]["saved"],
        json!([])
    );
    // The same name is another state.
    bob.run("x = 'of bob'");
    assert!(!bob.call("save_sandbox", json!({"name": "kept-1"})).is_error());
    let read = |caller: &Caller| {
        let made = caller.call("create_sandbox", json!({"from_saved": "kept-1"}));
        let id = made.0["structuredContent"]["sandbox_id"].clone();
        caller
            .call("execute_code", json!({"sandbox_id": id, "code": "print(x)"}))
            .output()
    };
    assert_eq!((read(&ann).trim(), read(&bob).trim()), ("of ann", "of bob"));
    drop(server);
}

#[test]
fn a_stolen_session_id_is_useless_without_its_token() {
    let _turn = begin!();
    let place = TestDir::new();
    let (server, ann, bob) = two(&place);
    let ann = ann.in_session();
    ann.text("x = 'of ann'");
    let session = ann.session.clone().unwrap();
    let thief = Caller {
        session: Some(session.clone()),
        ..bob
    };
    let stranger = Caller {
        session: Some(session.clone()),
        ..server.caller()
    };
    let never = Caller {
        session: Some("00000000-0000-4000-8000-000000000000".to_owned()),
        ..Caller::new(server.address)
    };
    let never = Caller {
        token: thief.token.clone(),
        ..never
    };
    let call = |caller: &Caller| caller.send(&caller.tool("execute_code", &json!({"code": "print(x)"})), "");
    let (stolen, unknown) = (call(&thief), call(&never));
    stolen.refused(404);
    assert_eq!(stolen.body, unknown.body);
    call(&stranger).refused(401);
    let auth = |caller: &Caller| format!("Authorization: Bearer {}\r\n", caller.token.as_deref().unwrap_or("x"));
    let stream = format!(
        "Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\n{}",
        auth(&thief)
    );
    server.get("/mcp", &stream).refused(404);
    let own = server.address;
    let end = |caller: &Caller| {
        server.raw(format!(
            "DELETE /mcp HTTP/1.1\r\nHost: {own}\r\nMcp-Session-Id: {session}\r\n{}Connection: close\r\n\r\n",
            auth(caller)
        ))
    };
    end(&thief).refused(404);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    thief.send(&cancel, "").refused(404);
    assert_eq!(ann.text("print(x)").trim(), "of ann");
    // The owner may end the session; its results stay.
    assert_eq!(end(&ann).status, 204);
    call(&ann).refused(404);
    let again = Caller { session: None, ..ann };
    assert_eq!(again.in_session().text("print(x)").trim(), "of ann");
}

#[test]
fn a_revoked_token_ends_at_once_with_its_sessions_and_streams() {
    let _turn = begin!();
    let place = TestDir::new();
    let (id, secret) = token(&place, &["ann"]);
    let (_, bob) = token(&place, &["bob"]);
    let server = Server::start(&place, &[]);
    let ann = server.with_token(&secret).in_session();
    assert_eq!(ann.text("print(1)").trim(), "1");
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\nMcp-Session-Id: {}\r\nAuthorization: Bearer {secret}\r\n\r\n",
        server.address,
        ann.session.as_deref().unwrap()
    );
    let mut stream = std::io::BufReader::new(sandcell_e2e::http::connect(server.address));
    std::io::Write::write_all(stream.get_mut(), head.as_bytes()).unwrap();
    assert_eq!(Reply::head(&mut stream).unwrap().status, 200);
    let listed: Value = serde_json::from_slice(&command(&place, &["token", "list", "--json"])).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains(&secret));
    command(&place, &["token", "revoke", &id]);
    ann.request("tools/list", json!({})).refused(401);
    // The stream ends by itself.
    while sandcell_e2e::http::chunk(&mut stream).is_some() {}
    assert_eq!(server.with_token(&bob).request("tools/list", json!({})).status, 200);
    let kept = std::fs::read_to_string(place.path("data").join("tokens.json")).unwrap();
    assert!(!kept.contains(&bob) && !kept.contains(&secret));
}

#[test]
fn a_returning_caller_finds_its_sandbox_and_variables() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    server.caller().in_session().text("kept = 'over connections'");
    assert_eq!(server.caller().text("print(kept)").trim(), "over connections");
    // A connection of the older protocol that broke in the middle of a call does not cancel the call.
    let old = server.caller().in_session();
    let call = old.tool(
        "execute_code",
        &json!({"code": "import time\ntime.sleep(1)\nkept = 'to the end'"}),
    );
    let mut stream = old.begin(&call, "");
    assert_eq!(Reply::head(&mut stream).unwrap().status, 200);
    drop(stream);
    until(Duration::from_secs(20), "the call ends", || {
        let history = old.call("get_execution_history", json!({"last_n": 1}));
        history.all().contains("to the end").then_some(())
    });
    assert_eq!(old.text("print(kept)").trim(), "to the end");
}

#[test]
fn the_newest_protocol_cancels_by_closing_the_connection() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    caller.text("x = 5");
    let call = caller.tool("execute_code", &json!({"code": "import time\ntime.sleep(25)"}));
    let stream = caller.begin(&call, "");
    until(Duration::from_secs(20), "it runs", || {
        caller
            .call("get_sandbox_status", json!({}))
            .all()
            .contains("busy")
            .then_some(())
    });
    drop(stream);
    until(Duration::from_secs(10), "it is stopped", || {
        let last = caller.call("get_execution_history", json!({"last_n": 1}));
        (last.data()["records"][0]["status"] == "cancelled").then_some(())
    });
    assert_eq!(caller.text("print(x)").trim(), "5");
}

#[test]
fn fifty_concurrent_callers_get_their_own_answers() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[limits]\nsandboxes_per_caller = 60\n");
    let tokens: Vec<String> = (0..5).map(|n| token(&place, &[&format!("t{n}")]).1).collect();
    let server = Server::start(&place, &[]);
    let seen: Vec<(usize, String)> = std::thread::scope(|scope| {
        let one = |n: usize| {
            let caller = server.with_token(&tokens[n % tokens.len()]);
            let caller = if n.is_multiple_of(2) {
                caller.in_session()
            } else {
                caller
            };
            let made = caller.call("create_sandbox", json!({"label": format!("c{n}"), "memory_mb": 64}));
            let sandbox = made.data()["sandbox_id"]
                .as_str()
                .unwrap_or_else(|| panic!("{made:?}"))
                .to_owned();
            for round in 0..4 {
                let payload = format!("{n}-{round}-{}", "z".repeat(n * 37 % 500));
                let code = format!("seen = globals().get('seen', []) + ['{payload}']\nprint(seen[-1], len(seen))");
                let answer = caller.call(
                    "execute_code",
                    json!({"code": code, "sandbox_id": sandbox, "timeout_s": 120}),
                );
                assert_eq!(answer.output().trim(), format!("{payload} {}", round + 1), "{answer:?}");
            }
            (n % tokens.len(), sandbox)
        };
        let running: Vec<_> = (0..50).map(|n| scope.spawn(move || one(n))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all: BTreeSet<&String> = seen.iter().map(|(_, sandbox)| sandbox).collect();
    assert_eq!(all.len(), 50);
    for (n, token) in tokens.iter().enumerate() {
        let status = server.with_token(token).call("get_sandbox_status", json!({})).all();
        let mine = seen.iter().filter(|(owner, _)| *owner == n);
        assert!(mine.clone().all(|(_, sandbox)| status.contains(sandbox)), "{status}");
        let others = seen.iter().filter(|(owner, _)| *owner != n);
        assert!(!others.clone().any(|(_, sandbox)| status.contains(sandbox)), "{status}");
    }
}

#[test]
fn a_flooding_and_a_slow_client_get_the_same_share() {
    let _turn = begin!(alone);
    let place = TestDir::with_settings("[limits]\nexecutions = 2\nexecutions_per_caller = 2\n");
    let (server, ann, bob) = two(&place);
    let enough = AtomicBool::new(false);
    let anns = AtomicUsize::new(0);
    let work = |caller: &Caller| {
        let made = caller.call("create_sandbox", json!({"memory_mb": 64}));
        let sandbox = made.data()["sandbox_id"].clone();
        move || json!({"code": "import time\ntime.sleep(0.1)", "sandbox_id": sandbox})
    };
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let code = work(&ann);
                while !enough.load(Ordering::Relaxed) {
                    assert_eq!(ann.call("execute_code", code()).status(), "ok");
                    anns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until(sandcell_e2e::DEFAULT_TIMEOUT, "the flood has begun", || {
            (anns.load(Ordering::Relaxed) > 10).then_some(())
        });
        let before = anns.load(Ordering::Relaxed);
        let bobs: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let code = work(&bob);
                    for _ in 0..8 {
                        assert_eq!(bob.call("execute_code", code()).status(), "ok");
                    }
                })
            })
            .collect();
        bobs.into_iter().for_each(|bob| bob.join().unwrap());
        let share = anns.load(Ordering::Relaxed) - before;
        enough.store(true, Ordering::Relaxed);
        // In order of arrival the share would be 80.
        assert!((20..=50).contains(&share), "bob ran 32, ann {share}");
    });
    drop(server);
}

/// Runs one mode of the script with the official SDK against a running server.
fn official_client(test: &str, mode: &str) {
    let Some(python) = sdk(test) else { return };
    let place = TestDir::new();
    let (_, secret) = token(&place, &["sdk"]);
    let server = Server::start(&place, &[]);
    let mut command = place.command(&[]);
    command.env("TOKEN", secret);
    let address = format!("http://{}/mcp", server.address);
    drive(&python, "client.py", &[mode], &command, Some(&address));
}

#[test]
fn the_official_client_works_with_the_newest_protocol() {
    let _turn = begin!();
    official_client(&name_of(the_official_client_works_with_the_newest_protocol), "auto");
}

#[test]
fn the_official_client_works_with_sessions() {
    let _turn = begin!();
    official_client(&name_of(the_official_client_works_with_sessions), "legacy");
}

#[test]
fn uploaded_bytes_are_downloaded_unchanged() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Server::start(&place, &[]);
    let bytes: Vec<u8> = (0..4_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let encoded = base64::engine::general_purpose::STANDARD.encode(&bytes);
    for caller in [server.caller(), server.caller().in_session()] {
        caller.call("upload_file", json!({"path": "big.bin", "content_base64": encoded}));
        let sandbox = caller.run("1").sandbox();
        let uri = format!("sandcell://{sandbox}/home/user/big.bin");
        let read = caller.request("resources/read", json!({"uri": uri})).message();
        assert!(read["result"]["contents"][0]["blob"].as_str() == Some(&encoded));
    }
}
