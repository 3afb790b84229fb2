//! The processes of tool servers: kept by a reload, ended by a kill, shared by many sandboxes.

use std::process::Command;

use sandcell_e2e::client::Client;
use sandcell_e2e::http::Server;
use sandcell_e2e::{begin, machine, until};
use serde_json::json;

use super::{DEFAULT_TIMEOUT, begin_a_call, error_of, eventually, log, output, place, place_with};

/// Returns the processes whose command line has this text.
fn processes_with(text: &str) -> Vec<u32> {
    let listed = Command::new("ps").args(["-eo", "pid,args"]).output().unwrap();
    let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
    let with = lines.lines().filter(|line| line.contains(text));
    with.filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect()
}

#[test]
fn a_reload_keeps_the_servers_whose_tables_are_unchanged() {
    let _turn = begin!();
    let place = place();
    let server = Server::start(&place, &[]);
    let caller = server.caller();
    let program = place.work().join("server.py").display().to_string();
    let fresh = |code: &str| caller.call("create_run_close", json!({"code": code})).output();
    assert!(fresh("print(tools.stub.add(a=1, b=1))").contains("{'sum': 2}"));
    let before = processes_with(&program);
    assert_eq!(before.len(), 1, "{before:?}");
    let file = place.path("config.toml");
    let settings = std::fs::read_to_string(&file).unwrap();
    let rewrite = |text: String| {
        let seen = server.log().matches("settings are in force").count();
        std::fs::write(place.path("config.new"), text).unwrap();
        std::fs::rename(place.path("config.new"), &file).unwrap();
        until(DEFAULT_TIMEOUT, "the settings are read", || {
            (server.log().matches("settings are in force").count() > seen).then_some(())
        });
    };
    // Another server of tools arrives: the first one goes on.
    rewrite(settings.replace("[tools.stub]", "[tools.more]\ncommand = \"true\"\n\n[tools.stub]"));
    assert_eq!(
        fresh("print(tools.stub.add(a=2, b=2), 'more' in dir(tools))").trim(),
        "{'sum': 4} True"
    );
    assert_eq!(processes_with(&program), before);
    // Its own table changes: a new one is started, and the old one ends.
    rewrite(settings.replace("deny = [\"delete_*\"]", "deny = [\"delete_*\", \"add\"]"));
    let denied = fresh(&error_of("tools.call('stub.add', {'a': 1, 'b': 1})"));
    assert!(denied.contains("tool_denied"), "{denied}");
    eventually("the old server ends", || {
        processes_with(&program).iter().all(|pid| !before.contains(pid))
    });
}

#[test]
fn a_killed_sandcell_leaves_no_server_of_tools() {
    let _turn = begin!();
    let place = place();
    let mut server = Client::start(&mut place.command(&["serve"]));
    server.run("tools.stub.add(a=1, b=1)");
    let program = place.work().join("server.py").display().to_string();
    assert_eq!(processes_with(&program).len(), 1);
    begin_a_call(&server, &place);
    machine::kill(server.pid());
    server.wait(DEFAULT_TIMEOUT);
    eventually("the server of tools ends", || processes_with(&program).is_empty());
}

#[test]
fn a_server_of_tools_that_is_killed_during_a_call_is_an_exception_and_starts_again() {
    let _turn = begin!();
    let place = place();
    let server = Client::start(&mut place.command(&["serve"]));
    server.run("x = 7");
    let call = server.begin_call(
        "execute_code",
        json!({"code": format!("{}print('goes on', x)", error_of("tools.stub.slow(seconds=600)"))}),
    );
    eventually("the call arrives", || log(&place).contains("call slow"));
    for pid in processes_with(&place.work().join("server.py").display().to_string()) {
        machine::kill(pid);
    }
    let text = output(&call.answer());
    assert!(
        text.contains("tool_unavailable") && text.contains("goes on 7"),
        "{text}"
    );
    eventually("the server of tools is started again", || {
        output(&server.run(&error_of("tools.stub.add(a=x, b=1)"))).contains("{'sum': 8}")
    });
}

#[test]
fn two_hundred_fresh_runs_at_once_each_call_their_tool() {
    let _turn = begin!();
    let place = place_with("[limits]\nsandboxes_per_caller = 256\n", "");
    let server = Client::start(&mut place.command(&["serve"]));
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let code = format!("print(tools.stub.echo(text='mine is {n}'), tools.stub.add(a={n}, b=1)['sum'])");
            server.begin_call("create_run_close", json!({"code": code, "wait_s": 60}))
        })
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = call.answer();
        assert_eq!(
            output(&answer).trim(),
            format!("mine is {n} {}", n + 1),
            "{}",
            answer.all()
        );
    }
}
