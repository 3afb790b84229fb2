use serde_json::{Value, json};

use crate::packages::{command, stocked};
use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;

fn names(server: &Client) -> Vec<String> {
    let listed = server.request("tools/list", json!({}));
    let tools = listed["tools"].as_array().unwrap().iter();
    tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the fields of an answer; the text block must contain exactly the same.
#[track_caller]
fn fields(answer: &Answer) -> Value {
    let data = answer.data().clone();
    let text: Value = serde_json::from_str(&answer.blocks()[0]).unwrap();
    assert_eq!(text, data, "{answer:?}");
    data
}

fn scripts(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve", "--toolset", "script"]))
}

#[track_caller]
fn run(server: &Client, code: &str) -> Value {
    run_for(server, code, 10)
}

#[track_caller]
fn run_for(server: &Client, code: &str, timeout: u32) -> Value {
    let answer = server.call("run_code", json!({"code": code, "timeout": timeout}));
    assert!(!answer.is_error(), "{answer:?}");
    let data = fields(&answer);
    let mut keys: Vec<&String> = data.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["duration_ms", "error", "stderr", "stdout", "success"]);
    data
}

#[track_caller]
fn text<'a>(data: &'a Value, field: &str) -> &'a str {
    data[field].as_str().unwrap()
}

#[test]
fn scripts_run_fail_and_time_out_with_the_same_fields() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = scripts(&place);
    assert_eq!(
        names(&server),
        [
            "run_code",
            "pip_install",
            "get_execution_history",
            "reset_session_state"
        ]
    );
    let basic = run(&server, "print('hello from sandbox')\nprint(1 + 1)");
    assert_eq!(basic["success"], true, "{basic}");
    assert_eq!(basic["stdout"], "hello from sandbox\n2\n");
    assert_eq!((text(&basic, "stderr"), text(&basic, "error")), ("", ""));
    let endless = run_for(&server, "while True: pass", 2);
    assert_eq!(endless["success"], false, "{endless}");
    assert!(text(&endless, "error").contains("timed out") && text(&endless, "error").contains("2 s"));
    assert!(endless["duration_ms"].as_u64().unwrap() >= 1900, "{endless}");
    let raised = run(&server, "print('before')\n1/0");
    assert_eq!(
        (raised["success"].as_bool(), text(&raised, "stdout")),
        (Some(false), "before\n")
    );
    assert!(text(&raised, "stderr").contains("ZeroDivisionError: division by zero"));
    assert!(text(&raised, "error").contains("exit code 1"), "{raised}");
    let left = run(&server, "raise SystemExit(3)");
    assert!(text(&left, "error").contains("exit code 3"), "{left}");
    // The value of the last expression is not printed, as in a script.
    assert_eq!(run(&server, "1 + 1")["stdout"], "");
}

#[test]
fn code_refused_by_the_strict_list_is_not_run_but_recorded() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = scripts(&place);
    let refused = [
        "import os",
        "import sys",
        "import subprocess",
        "import shutil",
        "import multiprocessing",
        "import socket",
        "import ctypes",
        "import pickle",
        "import marshal",
        "import ftplib",
        "import telnetlib",
        "import http.client",
        "import urllib.request",
        "from os import path",
        "eval('1+1')",
        "exec('x=1')",
        "compile('1', '', 'eval')",
        "__import__('os')",
        "getattr(1, 'real')",
        "setattr(print, 'a', 1)",
        "!touch ran.txt",
        "x = = 1",
        "def f(:\n    pass",
        "if True:\nprint(1)",
    ];
    for code in refused {
        let data = run(&server, &format!("open('ran.txt', 'w').close()\n{code}"));
        assert_eq!(data["success"], false, "{code}: {data}");
        assert_eq!(data["duration_ms"], 0, "{code}: {data}");
        assert_eq!((text(&data, "stdout"), text(&data, "stderr")), ("", ""), "{code}");
        assert!(
            text(&data, "error").contains("line "),
            "the line is named: {code}: {data}"
        );
    }
    let names = "import pathlib\nprint([f.name for f in pathlib.Path('.').glob('ran*')])";
    assert_eq!(run(&server, names)["stdout"], "[]\n", "none of it ran");
    let history = fields(&server.call("get_execution_history", json!({"last_n": 50})));
    assert_eq!(history["total"], refused.len() + 1);
    let records = history["records"].as_array().unwrap();
    assert_eq!(records.len(), refused.len() + 1);
    assert!(records[1..].iter().all(|record| record["success"] == false));
    assert!(
        records[1]["error"].as_str().unwrap().contains("Error"),
        "{}",
        records[1]
    );
}

#[test]
fn a_reset_removes_variables_keeps_files_and_restarts_the_count() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = scripts(&place);
    assert_eq!(
        run(&server, "x = 41\nopen('kept.txt', 'w').write('here')")["success"],
        true
    );
    let gone = run(&server, "print(x)");
    assert!(text(&gone, "stderr").contains("NameError"), "{gone}");
    assert_eq!(run(&server, "print(open('kept.txt').read())")["stdout"], "here\n");
    let reset = fields(&server.call("reset_session_state", json!({})));
    assert_eq!(reset["success"], true);
    assert!(text(&reset, "message").contains('3'), "{reset}");
    assert!(!text(&reset, "note").is_empty());
    run(&server, "print('step 1')");
    run(&server, "print('step 2')");
    let history = fields(&server.call("get_execution_history", json!({"last_n": 5})));
    assert_eq!(history["total"], 2);
    let records = history["records"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["code_preview"], "print('step 2')");
    assert_eq!(records[0]["stdout_preview"], "step 2\n");
    assert_eq!(
        run(&server, "print(open('kept.txt').read())")["stdout"],
        "here\n",
        "files stay"
    );
}

#[test]
fn an_installed_package_serves_later_scripts_and_the_operator_list_applies() {
    let _turn = begin!();
    let place = TestDir::with_settings("[packages]\nallow = [\"demo-one\", \"helper-one\"]\n");
    let index = stocked();
    let server = Client::start(&mut command(&place, &index.url(), &["serve", "--toolset", "script"]));
    assert!(text(&run(&server, "import demo_one"), "stderr").contains("ModuleNotFoundError"));
    let done = fields(&server.call("pip_install", json!({"package": "demo-one==1.0"})));
    assert_eq!(done["success"], true, "{done}\n{}", server.log());
    assert!(text(&done, "message").contains("demo-one 1.0"), "{done}");
    for _ in 0..2 {
        let used = run(&server, "import demo_one\nprint(demo_one.answer)");
        assert_eq!(used["stdout"], "42\n", "{used}");
    }
    for package in ["requests", "-r secrets.txt", "./demo", ""] {
        let refused = fields(&server.call("pip_install", json!({"package": package})));
        assert_eq!(refused["success"], false, "{package}: {refused}");
        assert!(!text(&refused, "message").is_empty());
    }
    let history = fields(&server.call("get_execution_history", json!({})));
    assert_eq!(history["total"], 3, "installing is no execution: {history}");
    assert!(
        history["installed_packages"].to_string().contains("demo-one 1.0"),
        "{history}"
    );
}

#[test]
fn scripts_keep_variables_if_the_operator_enables_it() {
    let _turn = begin!();
    let place = TestDir::with_settings("toolset = \"script\"\nanalysis = \"off\"\n[script]\npersistent = true\n");
    let server = Client::start(&mut place.command(&["serve"]));
    run(&server, "import os\nx = 41");
    assert_eq!(run(&server, "print(x + 1, os.getcwd())")["stdout"], "42 /home/user\n");
    run(&server, "1/0");
    assert_eq!(run(&server, "print(x)")["stdout"], "41\n");
}

#[test]
fn a_container_is_started_used_replaced_and_stopped() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve", "--toolset", "container", "--backend", "native"]));
    assert_eq!(names(&server), ["initialize_sandbox", "execute_code", "stop_sandbox"]);
    let early = server.run("1").refused("not_found");
    assert!(early.contains("call initialize_sandbox first"), "{early}");
    let first = server.call("initialize_sandbox", json!({}));
    assert!(!first.is_error(), "{first:?}");
    assert_eq!(first.data()["isolation"]["backend"], "native");
    assert_eq!(first.data()["replaced"], Value::Null);
    server.text("import math\nx = 41");
    assert!(server.text("print(x + 1, math.floor(2.5))").starts_with("42 2"));
    let other = server.call("execute_code", json!({"code": "echo $((6 * 7))", "language": "bash"}));
    assert_eq!(other.output().trim(), "42", "{other:?}");
    let second = server.call("initialize_sandbox", json!({}));
    assert_eq!(second.data()["replaced"], first.data()["sandbox_id"], "{second:?}");
    assert!(second.all().contains("replaced"), "{second:?}");
    let fresh = server.run("x");
    assert!(fresh.all().contains("NameError"), "{fresh:?}");
    let long = server.run("print('x' * 60_000)");
    assert!(
        !long.all().contains("get_execution"),
        "no call that is not there: {}",
        long.verdict()
    );
    let stopped = server.call("stop_sandbox", json!({}));
    let id = second.data()["sandbox_id"].as_str().unwrap();
    assert!(stopped.all().contains(id), "{stopped:?}");
    server.run("1").refused("not_found");
    assert!(!server.call("stop_sandbox", json!({})).is_error());
}

#[test]
fn an_unavailable_image_is_refused_and_the_old_sandbox_stays() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve", "--toolset", "container", "--backend", "native"]));
    server.call("initialize_sandbox", json!({"image": "alpine:latest"}));
    server.text("x = 41");
    for image in ["nobody/allows-this:1", "--privileged", "a b"] {
        let refused = server.call("initialize_sandbox", json!({"image": image}));
        assert!(refused.is_error(), "{image}: {refused:?}");
    }
    assert_eq!(server.text("print(x)").trim(), "41");
}
