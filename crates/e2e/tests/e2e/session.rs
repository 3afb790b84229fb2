use serde_json::json;

use sandcell_e2e::begin;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{DEFAULT_TIMEOUT, until};

fn server(place: &TestDir) -> Client {
    Client::start(&mut place.command(&["serve"]))
}

/// Returns a place whose sessions are not restored.
fn forgetful() -> TestDir {
    TestDir::with_settings("[sessions]\nrestore = false\n")
}

#[track_caller]
fn ended_the_session(answer: &Answer, cause: &str) {
    assert!(!answer.is_error(), "code that dies is a normal result: {answer:?}");
    assert_eq!(answer.cause(), cause, "{answer:?}");
    assert!(answer.state_lost(), "{answer:?}");
    assert_ne!(answer.status(), "ok", "{answer:?}");
    let verdict = answer.verdict();
    assert!(verdict.contains("state_lost"), "the text says it too: {verdict}");
}

#[track_caller]
fn works_again(server: &Client) {
    assert_eq!(server.text("print('kept' in globals(), 6 * 7)").trim(), "False 42");
}

#[test]
fn programs_read_the_parts_of_a_result_one_by_one() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.run("import sys");
    let answer = server.run("print('result: fake')\nprint('a warning', file=sys.stderr)\n6 * 7");
    let meta = answer.meta();
    assert_eq!(
        [&meta["stdout"], &meta["stderr"], &meta["result"], &meta["error"]],
        [
            &json!("result: fake\n"),
            &json!("a warning\n"),
            &json!("42"),
            &json!(null)
        ]
    );
    let raised = server.run("print('error: fake')\n{}['k']");
    let error = &raised.meta()["error"];
    assert_eq!((&error["name"], &error["value"]), (&json!("KeyError"), &json!("'k'")));
    assert!(error["traceback"].as_str().unwrap().contains("line 2"), "{error}");
    let small = server.run("print(6 * 7)").0["_meta"].to_string();
    assert!(small.len() <= 300, "{} bytes: {small}", small.len());
    let once = server.call("create_run_close", json!({"code": "print(6 * 7)"}));
    assert_eq!(once.meta()["stdout"], "42\n");

    let long = server.run("for n in range(20000): print(n)");
    assert_eq!(long.meta()["truncated"], true);
    let call = &long.meta()["read_rest"]["stdout"];
    let (tool, mut arguments) = (call["tool"].as_str().unwrap(), call["arguments"].clone());
    let mut whole = String::new();
    loop {
        let part = server.call(tool, arguments.clone());
        let stream = &part.0["_meta"]["sandcell/stream"];
        whole.push_str(stream["text"].as_str().unwrap());
        if stream["eof"] == true {
            break;
        }
        arguments["offset"] = stream["next_offset"].clone();
    }
    let expected: String = (0..20000).map(|n| format!("{n}\n")).collect();
    assert_eq!(whole, expected);
}

#[test]
fn variables_stay_over_fifty_calls_of_one_sandbox() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let first = server.run("x = 0");
    assert_eq!(first.meta()["new_sandbox"], true, "{first:?}");
    assert!(
        first.all().contains(&first.sandbox()),
        "a new sandbox is named: {first:?}"
    );
    for _ in 0..50 {
        let next = server.run("x += 1");
        assert_eq!(next.status(), "ok", "{next:?}");
        assert_eq!(next.sandbox(), first.sandbox());
        assert!(next.meta()["new_sandbox"].is_null(), "{next:?}");
        assert!(next.meta()["isolation"].is_null(), "layers come once: {next:?}");
    }
    assert_eq!(server.text("print(x)").trim(), "50");
}

#[test]
fn imports_functions_classes_and_files_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("import math\ndef area(r):\n    return math.pi * r * r\nclass Disc:\n    r = 2");
    server.text("open('note.txt', 'w').write('still here')");
    assert_eq!(server.text("print(round(area(Disc.r), 3))").trim(), "12.566");
    assert_eq!(
        server.text("print(open('/home/user/note.txt').read())").trim(),
        "still here"
    );
}

#[test]
fn the_last_expression_is_returned_except_none() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    assert!(server.text("a = 40\na + 2").contains("42"));
    assert!(server.text("'text' * 2").contains("texttext"));
    assert_eq!(server.text("None").trim(), "");
    assert_eq!(server.text("a = 1").trim(), "");
    let both = server.text("print('printed')\n'valued'");
    assert!(both.starts_with("printed"), "stdout comes first: {both}");
    assert!(both.contains("valued"), "{both}");
}

#[test]
fn top_level_await_works() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let text =
        server.text("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 'awaited'\nawait f()");
    assert!(text.contains("awaited"), "{text}");
    assert!(server.text("asyncio.run(f())").contains("awaited"));
}

#[test]
fn stdout_and_stderr_are_separate() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.run("import sys\nprint('to out')\nprint('to err', file=sys.stderr)");
    let text = answer.output();
    let out = text.find("to out").expect("stdout");
    let err = text.find("to err").expect("stderr");
    assert!(out < err && text[out..err].contains("stderr"), "labelled parts: {text}");
    assert_eq!(answer.meta()["stdout"], "to out\n");
    assert_eq!(answer.meta()["stderr"], "to err\n");
}

#[test]
fn a_background_threads_output_is_not_lost() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text(
        "import threading\ngo = threading.Event()\n\
         def work():\n    go.wait()\n    print('from the thread', flush=True)\n\
         t = threading.Thread(target=work)\nt.start()",
    );
    // The line arrives within a later call.
    assert!(server.text("go.set()\nt.join()").contains("from the thread"));
    // The line arrives between two calls: a later call returns it, unless the first call was still running.
    let began = server.text("threading.Timer(0.05, lambda: print('came later', flush=True)).start()");
    until(DEFAULT_TIMEOUT, "the late line comes", || {
        let come = began.contains("came later") || server.text("pass").contains("came later");
        come.then_some(())
    });
}

#[test]
fn output_between_two_calls_is_marked_with_the_execution_that_it_belongs_to() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = crate::languages::server(&place);
    let shell = "while [ ! -e go ]; do sleep 0.01; done; echo late; touch printed";
    let python = "import os, subprocess, threading, time\ndef work():\n    while not os.path.exists('go'): time.sleep(0.01)\n    \
                  print('late', flush=True)\n    open('printed', 'w').close()\n";
    let node = "const fs = require('fs')\nconst again = setInterval(() => { if (fs.existsSync('go')) { \
                console.log('late'); fs.writeFileSync('printed', ''); clearInterval(again) } }, 10)\nundefined";
    let mut kinds = vec![
        (
            "python",
            format!("{python}threading.Thread(target=work).start()"),
            "print('now')",
        ),
        (
            "python",
            format!("{python}if os.fork() == 0:\n    work()\n    os._exit(0)"),
            "print('now')",
        ),
        (
            "python",
            format!("{python}subprocess.Popen({shell:?}, shell=True);"),
            "print('now')",
        ),
        (
            "python",
            format!("{python}os.system({:?});", format!("({shell}) &")),
            "print('now')",
        ),
        ("bash", format!("({shell}) &"), "echo now"),
    ];
    if crate::languages::has(
        "node",
        output_between_two_calls_is_marked_with_the_execution_that_it_belongs_to,
    ) {
        kinds.push(("javascript", node.to_owned(), "console.log('now')"));
    }
    for (language, start, next) in kinds {
        let sandbox = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
        let run = |code: &str| {
            let arguments = json!({"language": language, "code": code, "sandbox_id": sandbox});
            let answer = server.call("execute_code", arguments);
            assert_eq!(answer.status(), "ok", "{code}: {answer:?}");
            (
                answer.output(),
                answer.meta()["execution_id"].as_str().unwrap().to_owned(),
            )
        };
        let (_, first) = run(&start);
        server.call(
            "write_file",
            json!({"sandbox_id": sandbox, "path": "go", "content": ""}),
        );
        until(DEFAULT_TIMEOUT, "the line is printed", || {
            let read = server.call("read_file", json!({"sandbox_id": sandbox, "path": "printed"}));
            (!read.is_error()).then_some(())
        });
        let (text, _) = run(next);
        let marked = format!("[background output of execution {first}]\nlate\n[end of background output]\nnow");
        assert_eq!(text.trim_end(), marked, "{start}");
        assert_eq!(run(next).0.trim_end(), "now", "{start}");
        server.call("close_sandbox", json!({"sandbox_id": sandbox}));
    }
    // After several executions, the result names the execution that the line followed.
    server.text(&format!("{python}threading.Thread(target=work).start()"));
    let last = server.run("1");
    server.call("write_file", json!({"path": "go", "content": ""}));
    until(DEFAULT_TIMEOUT, "the line is printed", || {
        (!server.call("read_file", json!({"path": "printed"})).is_error()).then_some(())
    });
    let marked = format!(
        "[background output, written after execution {} had ended]\nlate\n[end of background output]\nnow",
        last.meta()["execution_id"].as_str().unwrap()
    );
    assert_eq!(server.text("print('now')").trim_end(), marked);
}

#[test]
fn the_output_of_child_processes_is_not_lost() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let text = server.text(
        "import os, subprocess, sys\n\
         done = subprocess.run([sys.executable, '-c', 'import sys; print(\"out of a child\"); print(\"err of a child\", file=sys.stderr)'])\n\
         pid = os.fork()\n\
         if pid == 0:\n    os.write(1, b'out of a fork\\n')\n    os._exit(0)\n\
         os.waitpid(pid, 0)\n\
         print('code', done.returncode)",
    );
    for part in ["out of a child", "err of a child", "out of a fork", "code 0"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

#[test]
fn a_shell_and_the_usual_tools_are_there() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let text = server.text(
        "import subprocess\nprint(subprocess.run('echo a b | tr a-z A-Z; pwd', shell=True, capture_output=True, text=True).stdout)",
    );
    assert!(text.contains("A B") && text.contains("/home/user"), "{text}");
}

#[test]
fn the_ordinary_standard_library_works() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let text = server.text(
        "import sqlite3, tempfile, json, hashlib, uuid, threading, multiprocessing, concurrent.futures as cf, locale, os\n\
         db = sqlite3.connect('t.db'); db.execute('create table t(a)'); db.execute('insert into t values (7)'); db.commit()\n\
         out = {'sql': db.execute('select a from t').fetchone()[0]}\n\
         with tempfile.NamedTemporaryFile('w+') as f:\n    f.write('t'); f.flush(); out['temp'] = os.path.getsize(f.name)\n\
         with cf.ThreadPoolExecutor(4) as pool:\n    out['threads'] = sum(pool.map(lambda n: n * n, range(5)))\n\
         def square(n):\n    return n * n\n\
         with multiprocessing.Pool(2) as pool:\n    out['processes'] = sum(pool.map(square, range(5)))\n\
         out['encoding'] = locale.getpreferredencoding(False).lower().replace('-', '')\n\
         out['uuid'] = len(str(uuid.uuid4())); out['md5'] = hashlib.md5(b'').hexdigest()[:4]\n\
         print(json.dumps(out, sort_keys=True))",
    );
    assert_eq!(
        text.trim(),
        r#"{"encoding": "utf8", "md5": "d41d", "processes": 30, "sql": 7, "temp": 1, "threads": 30, "uuid": 36}"#
    );
}

#[test]
fn an_exception_is_a_result_and_variables_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.run("kept = 1\ndef f():\n    return 1 / 0\nf()");
    assert!(!answer.is_error());
    assert_eq!(answer.status(), "error");
    assert_eq!(answer.cause(), "code_failed");
    let text = answer.all();
    assert!(text.contains("ZeroDivisionError") && text.contains("line 3"), "{text}");
    assert!(!text.contains("driver.py"), "only the caller's own lines: {text}");
    assert_eq!(server.text("print(kept)").trim(), "1");
}

#[test]
fn sys_exit_ends_the_cell_and_not_the_session() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.run("kept = 1\nimport sys\nsys.exit(3)");
    assert!(!answer.is_error());
    assert_eq!(answer.meta()["exit_code"], 3, "{answer:?}");
    assert!(!answer.state_lost(), "{answer:?}");
    assert_eq!(server.text("print(kept)").trim(), "1");
}

#[test]
fn a_segfault_ends_only_the_session_and_is_named() {
    let _turn = begin!();
    let place = forgetful();
    let server = server(&place);
    let before = server.run("kept = 1\nopen('kept.txt', 'w').write('x')");
    let answer = server.run("print('last words', flush=True)\nimport ctypes\nctypes.string_at(0)");
    ended_the_session(&answer, "crashed");
    assert!(
        answer.output().contains("last words"),
        "output before it is kept: {answer:?}"
    );
    works_again(&server);
    assert_eq!(
        server.run("1").sandbox(),
        before.sandbox(),
        "the sandbox itself lives on"
    );
    assert_eq!(server.text("print(open('kept.txt').read())").trim(), "x");
}

#[test]
fn os_exit_ends_only_the_session_and_is_named() {
    let _turn = begin!();
    let place = forgetful();
    let server = server(&place);
    server.text("kept = 1");
    let answer = server.run("import os\nos._exit(7)");
    ended_the_session(&answer, "crashed");
    assert_eq!(answer.meta()["exit_code"], 7, "{answer:?}");
    works_again(&server);
}

#[test]
fn unbounded_memory_use_is_stopped_and_named() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 128\n");
    let server = server(&place);
    server.text("kept = 1");
    let answer = server.run("hoard = []\nwhile True:\n    hoard.append(bytearray(4 << 20))");
    assert!(!answer.is_error());
    assert_eq!(answer.cause(), "out_of_memory", "{answer:?}");
    assert!(
        answer.verdict().contains("128"),
        "it names the limit: {}",
        answer.verdict()
    );
    // The remaining memory may be so near the limit that the next call is ended, too; the one after it is not.
    let answers = [(); 2].map(|()| server.run("hoard = None\nprint(6 * 7)"));
    assert!(answers.iter().any(|next| next.output().contains("42")), "{answers:?}");
}

#[test]
fn memory_of_many_children_counts_together() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nmemory_mb = 128\n");
    let server = server(&place);
    let answer = server.run(
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        b = bytearray(40 << 20)\n        \
         for i in range(0, len(b), 4096): b[i] = 1\n        time.sleep(300)\n        os._exit(0)\n\
         status = os.wait()[1]\nprint('ended', status)\nassert status == 0",
    );
    assert_ne!(answer.status(), "ok", "{answer:?}");
    assert_eq!(answer.cause(), "out_of_memory", "{answer:?}");
    assert!(server.run("print(6 * 7)").output().contains("42"));
}

#[test]
fn a_fork_bomb_is_stopped_and_named() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nprocesses = 40\n");
    let server = server(&place);
    let answer = server.run(
        "import os, time\nmade = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(60)\n            os._exit(0)\n        made += 1\n\
         finally:\n    print('made', made, flush=True)",
    );
    assert_eq!(answer.cause(), "process_limit", "{answer:?}");
    assert!(answer.all().contains("40"), "it names the limit: {}", answer.all());
    assert!(
        server.run("print(6 * 7)").output().contains("42"),
        "the next call works"
    );
}

#[test]
fn standard_input_is_the_text_of_the_call() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let code = "print([input(), input('name? ')])";
    let answer = server.call("execute_code", json!({"code": code, "stdin": "one\ntwo\n"}));
    assert!(answer.output().contains("['one', 'two']"), "{answer:?}");
    let without = server.run(code);
    assert_eq!(without.status(), "error", "{without:?}");
    assert!(
        without.all().contains("stdin"),
        "it says how to give some: {}",
        without.all()
    );
}

#[test]
fn a_reset_forgets_variables_and_keeps_files() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.text("kept = 1\nopen('f', 'w').write('file')");
    let reset = server.call("reset_session_state", json!({}));
    assert!(!reset.is_error(), "{reset:?}");
    assert_eq!(
        server.text("print('kept' in globals(), open('f').read())").trim(),
        "False file"
    );
}

#[test]
fn two_sandboxes_share_nothing() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.call("create_sandbox", json!({"count": 2}));
    let ids = made.data()["sandbox_ids"].as_array().expect("ids").clone();
    assert_eq!(ids.len(), 2);
    for (n, id) in ids.iter().enumerate() {
        let code = format!(
            "mine = {n}\nopen('f', 'w').write('{n}')\nopen('/tmp/f', 'w').write('{n}')\nopen('/dev/shm/f', 'w').write('{n}')"
        );
        assert_eq!(
            server
                .call("execute_code", json!({"code": code, "sandbox_id": id}))
                .status(),
            "ok"
        );
    }
    for (n, id) in ids.iter().enumerate() {
        let code = "print(mine, open('f').read(), open('/tmp/f').read(), open('/dev/shm/f').read())";
        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
        assert_eq!(answer.output().trim(), format!("{n} {n} {n} {n}"));
    }
}

#[test]
fn a_sandbox_has_the_requested_options() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let made = server.call(
        "create_sandbox",
        json!({"env": {"GREETING": "grüß dich"}, "memory_mb": 256, "label": "mine"}),
    );
    assert!(!made.is_error(), "{made:?}");
    let id = made.data()["sandbox_id"].clone();
    let answer = server.call(
        "execute_code",
        json!({"code": "import os\nprint(os.environ['GREETING'])", "sandbox_id": id}),
    );
    assert_eq!(answer.output().trim(), "grüß dich");
    let status = server.call("get_sandbox_status", json!({"sandbox_id": id}));
    assert!(
        status.all().contains("256") && status.all().contains("mine"),
        "{status:?}"
    );
    let closed = server.call("close_sandbox", json!({"sandbox_id": id}));
    assert!(!closed.is_error(), "{closed:?}");
    server
        .call("execute_code", json!({"code": "1", "sandbox_id": id}))
        .refused("not_found");
}

#[test]
fn a_throwaway_run_takes_files_and_returns_outputs_that_outlive_it() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let answer = server.call(
        "create_run_close",
        json!({
            "code": "import sys\nopen('sum.txt', 'w').write(str(sum(map(int, open('in/numbers.txt')))))\nprint(sys.stdin.read())",
            "files": {"in/numbers.txt": "1\n2\n39\n"}, "outputs": ["sum.txt", "none.txt"], "stdin": "typed",
        }),
    );
    assert_eq!(answer.status(), "ok", "{answer:?}");
    assert!(answer.output().contains("typed"), "{answer:?}");
    assert!(
        answer.all().contains("none.txt"),
        "a wanted file that is not there is named: {answer:?}"
    );
    let link = answer
        .of_kind("resource_link")
        .next()
        .expect("a link to sum.txt")
        .clone();
    let uri = link["uri"].as_str().unwrap();
    assert!(uri.starts_with("sandcell://executions/"), "{uri}");
    let read = server.request("resources/read", json!({"uri": uri}));
    assert_eq!(read["contents"][0]["text"], "42", "{read}");
    server
        .call("execute_code", json!({"code": "1", "sandbox_id": answer.sandbox()}))
        .refused("not_found");
}

#[test]
fn history_lists_executions_newest_first() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    let long = format!("print('{}')", "y".repeat(300));
    server.text("print('first')");
    server.text(&long);
    server.run("1 / 0");
    let history = server.call("get_execution_history", json!({"last_n": 2}));
    let data = history.data();
    assert_eq!(data["total"], 3, "{history:?}");
    let records = data["records"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["success"], false);
    assert!(records[0]["error"].as_str().unwrap().contains("ZeroDivisionError"));
    assert_eq!(records[1]["code_preview"], format!("{}...", &long[..100]));
    let stdout = records[1]["stdout_preview"].as_str().unwrap();
    assert!(stdout.len() <= 203 && stdout.starts_with("yyy"), "{stdout}");
    // Values out of range become the nearest value in range.
    let all = server.call("get_execution_history", json!({"last_n": 5000}));
    assert_eq!(all.data()["records"].as_array().unwrap().len(), 3);
}

#[test]
fn more_sandboxes_than_allowed_are_refused_and_none_is_made() {
    let _turn = begin!();
    let place = TestDir::with_settings("[limits]\nsandboxes_per_caller = 2\n");
    let server = server(&place);
    let text = server
        .call("create_sandbox", json!({"count": 3}))
        .refused("limit_reached");
    assert!(text.contains('2'), "{text}");
    let made = server.call("create_sandbox", json!({"count": 2}));
    assert!(!made.is_error(), "none of the three is there: {made:?}");
    server.call("create_sandbox", json!({})).refused("limit_reached");
    let first = made.data()["sandbox_ids"][0].clone();
    server.call("close_sandbox", json!({"sandbox_id": first}));
    assert!(!server.call("create_sandbox", json!({})).is_error());
}

#[test]
fn an_operator_folder_is_visible_and_read_only() {
    let _turn = begin!();
    let place = TestDir::new();
    place.write("data.txt", "from the host");
    let work = place.work().display().to_string();
    let server = Client::start(&mut place.command(&[
        "serve",
        "--mount",
        &format!("{work}:/mnt/plain:ro"),
        "--mount",
        &format!("{work}:/mnt/copy:cow"),
    ]));
    let text = server.text(
        "print(open('/mnt/plain/data.txt').read())\n\
         try:\n    open('/mnt/plain/new', 'w')\nexcept OSError as e:\n    print(type(e).__name__, e.errno)\n\
         open('/mnt/copy/data.txt', 'a').write(' and from inside')\nopen('/mnt/copy/new', 'w').write('x')\n\
         print(open('/mnt/copy/data.txt').read())",
    );
    assert!(text.contains("from the host and from inside"), "{text}");
    assert!(
        text.contains("OSError 30") || text.contains("PermissionError 13"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(place.work().join("data.txt")).unwrap(),
        "from the host"
    );
    assert!(!place.work().join("new").exists());
}

#[test]
fn only_the_selected_tools_exist() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve", "--tools", "execute_code,read_file"]));
    let listed = server.request("tools/list", json!({}));
    let mut names: Vec<&str> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["execute_code", "read_file"]);
    let answer = server.request_raw(
        "tools/call",
        json!({"name": "close_sandbox", "arguments": {"sandbox_id": "x"}}),
    );
    assert!(
        answer.get("error").is_some() || answer["result"]["isError"] == true,
        "{answer}"
    );
    assert_eq!(server.text("print(1)").trim(), "1");
}

#[test]
fn the_end_of_a_sandbox_is_announced_and_its_key_works_until_then() {
    let _turn = begin!();
    let place = TestDir::new();
    let client = server(&place);
    let asked = json!({"key": "task", "lifetime_s": 100});
    let made = client.call("create_sandbox", asked.clone());
    let again = client.call("create_sandbox", asked);
    assert_eq!(made.data()["created"], true, "{}", made.all());
    assert_eq!(again.data()["created"], false, "{}", again.all());
    let id = made.data()["sandbox_id"].clone();
    assert_eq!(again.data()["sandbox_id"], id);
    let other = client.call("create_sandbox", json!({"key": "task", "lifetime_s": 101}));
    assert!(
        other.refused("invalid_argument").contains("lifetime_s"),
        "{}",
        other.all()
    );
    let early = client.call("execute_code", json!({"code": "1", "sandbox_id": id}));
    assert!(!early.verdict().contains("expires:"), "{}", early.all());
    let short = client.call("create_sandbox", json!({"key": "short", "lifetime_s": 40}));
    let id = short.data()["sandbox_id"].clone();
    let late = until(DEFAULT_TIMEOUT, "the last fifth", || {
        let late = client.call("execute_code", json!({"code": "1", "sandbox_id": id}));
        late.verdict().contains("expires:").then_some(late)
    });
    let left = late.meta()["expires_in_s"].as_u64();
    assert!(left.is_some_and(|left| left <= 8), "{}", late.all());
    let status = client.call("get_sandbox_status", json!({"sandbox_id": id}));
    assert!(
        status.data()["sandboxes"][0]["ends_in_s"].as_u64().is_some(),
        "{}",
        status.all()
    );
}

/// Variables set by an awaiting or ordinary cell stay set in the next one, as in a notebook.
#[test]
fn context_variables_that_an_awaiting_cell_sets_stay() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = server(&place);
    server.run(
        "import asyncio, contextvars, decimal\nv = contextvars.ContextVar('v', default=0)\nw = contextvars.ContextVar('w', default=0)",
    );
    assert_eq!(server.text("await asyncio.sleep(0); v.set(1); v.get()"), "result: 1");
    assert_eq!(server.text("v.get()"), "result: 1");
    assert_eq!(server.text("v.set(2); v.get()"), "result: 2");
    assert_eq!(server.text("await asyncio.sleep(0); v.get()"), "result: 2");
    server.run("v.set(3); await asyncio.sleep(0); w.set(4); raise ValueError('x')");
    assert_eq!(
        server.text("v.get(), w.get()"),
        "result: (3, 4)",
        "also where it raised"
    );
    server.run("await asyncio.sleep(0); decimal.getcontext().prec = 5");
    assert_eq!(server.text("decimal.Decimal(1) / 3"), "result: Decimal('0.33333')");
    server.run(
        "await asyncio.sleep(0)\nwith decimal.localcontext() as inner:\n    inner.prec = 2\n    await asyncio.sleep(0)",
    );
    assert_eq!(server.text("decimal.Decimal(1) / 3"), "result: Decimal('0.33333')");
    server.run("await asyncio.sleep(0); decimal.setcontext(decimal.Context(prec=3))");
    assert_eq!(
        server.text("await asyncio.sleep(0); decimal.Decimal(1) / 3"),
        "result: Decimal('0.333')"
    );
    let alone = "async def other():\n    v.set(9)\nawait asyncio.create_task(other()); v.get()";
    assert_eq!(server.text(alone), "result: 3", "a task of its own changes its own");
    assert_eq!(server.text("asyncio.run(asyncio.sleep(0, v.get()))"), "result: 3");
    let late = server.call(
        "execute_code",
        json!({"code": "w.set(5); await asyncio.sleep(60)", "timeout_s": 0.5}),
    );
    assert_eq!(late.status(), "timeout", "{late:?}");
    assert_eq!(server.text("w.get()"), "result: 5", "also where it was interrupted");
}
