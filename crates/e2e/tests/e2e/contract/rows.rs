//! The rows, by area. Each checks a behaviour that a caller would notice.

use std::time::Duration;

use serde_json::{Value, json};

use super::RowResult;
use super::back_end::BackEnd;
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::{DEFAULT_TIMEOUT, machine, until};

pub(super) struct Row {
    pub(super) area: &'static str,
    pub(super) what: &'static str,
    /// True when every back end must support the row.
    pub(super) must: bool,
    pub(super) check: fn(&BackEnd) -> RowResult,
}

const fn must(area: &'static str, what: &'static str, check: fn(&BackEnd) -> RowResult) -> Row {
    Row {
        area,
        what,
        must: true,
        check,
    }
}

const fn may(area: &'static str, what: &'static str, check: fn(&BackEnd) -> RowResult) -> Row {
    Row {
        area,
        what,
        must: false,
        check,
    }
}

pub(super) const CONTRACT_ROWS: &[Row] = &[
    must(
        "Sessions",
        "variables, imports and files stay for the next call",
        variables_stay,
    ),
    must(
        "Sessions",
        "an error has its traceback and keeps the variables",
        errors_keep_variables,
    ),
    must(
        "Sessions",
        "the value of the last expression is returned",
        values_are_returned,
    ),
    must(
        "Sessions",
        "a reset removes variables and keeps files",
        a_reset_removes_variables,
    ),
    may("Sessions", "code can read standard input", standard_input),
    must("Files", "tools and code see the same files", tools_and_code_share_files),
    must("Files", "bytes are read back unchanged", bytes_are_unchanged),
    must("Files", "folders are listed recursively", folders_are_listed),
    must("Files", "a missing file is reported as `not_found`", missing_files),
    must(
        "Files",
        "the requested output files of a run outlive it",
        outputs_outlive,
    ),
    may("Limits", "`memory_mb` is enforced", memory_is_enforced),
    may("Limits", "`disk_mb` is enforced", disk_is_enforced),
    may("Limits", "processes are limited", processes_are_limited),
    must("Limits", "long output is cut and the rest can be read", output_is_cut),
    must(
        "Time",
        "a time-out ends the code and keeps the variables",
        time_outs_keep_variables,
    ),
    must(
        "Time",
        "code that ignores interrupts is killed",
        uninterruptible_code_is_killed,
    ),
    must(
        "Time",
        "a long call is answered with `running` and the code continues",
        long_calls_are_answered,
    ),
    must(
        "Cancel",
        "a cancelled execution ends and keeps the variables",
        cancels_keep_variables,
    ),
    must(
        "Crash",
        "a crash is reported and the sandbox stays usable",
        crashes_are_reported,
    ),
    may("Crash", "variables are restored after a crash", variables_are_restored),
    must(
        "Concurrency",
        "sandboxes do not see each other's variables and files",
        sandboxes_are_separate,
    ),
    must(
        "Concurrency",
        "calls of one session run one after another",
        calls_run_in_order,
    ),
    must(
        "Clean-up",
        "a closed sandbox no longer exists",
        closed_sandboxes_do_not_exist,
    ),
    must("Clean-up", "nothing is left when the server ends", nothing_is_left),
    must(
        "Errors",
        "unknown ids, unknown languages and bad arguments are refused with a code and a remedy",
        errors_have_code_and_remedy,
    ),
    must(
        "Errors",
        "results state the back end and the isolation level",
        results_name_the_back_end,
    ),
    may("More", "results state CPU time and peak memory", costs_are_reported),
    may("More", "packages can be installed", packages_install),
    may("More", "a sandbox can use another image", images),
    may("More", "folders can be mounted read-only", |back_end| {
        mounts(back_end, "ro")
    }),
    may("More", "folders can be mounted copy-on-write", |back_end| {
        mounts(back_end, "cow")
    }),
];

fn ok(answer: Answer) -> Answer {
    assert_eq!(answer.status(), "ok", "{answer:?}");
    answer
}

/// Checks that the answer is a refusal in the agreed form: code and remedy.
fn refused(answer: &Answer, code: &str) {
    let text = answer.refused(code);
    assert!(text.contains("What to do: "), "no remedy: {text}");
}

/// Returns any refusal in the form of the table.
fn refusal(answer: &Answer) -> RowResult {
    let text = answer.all();
    let (code, rest) = text.split_once(": ").expect("a code");
    assert!(code.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{text}");
    assert!(rest.contains("What to do: "), "no remedy: {text}");
    RowResult::No(format!("refused as `{code}`"))
}

fn variables_stay(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("import math\nkept = [1, 2]\nopen('kept.txt', 'w').write('here')"));
    let next = server.text("kept.append(math.floor(3.7))\nprint(kept, open('kept.txt').read())");
    assert_eq!(next.trim(), "[1, 2, 3] here");
    RowResult::Yes
}

fn errors_keep_variables(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("survivor = 5"));
    let failed = server.run("print('before')\nsurvivor = 6\n1 / 0");
    assert_eq!(
        (failed.status(), failed.cause()),
        ("error", "code_failed"),
        "{failed:?}"
    );
    let text = failed.all();
    assert!(text.contains("before") && text.contains("ZeroDivisionError"), "{text}");
    assert_eq!(server.text("print(survivor)").trim(), "6");
    RowResult::Yes
}

fn values_are_returned(back_end: &BackEnd) -> RowResult {
    assert!(back_end.server().text("x = 20\nx + 22").contains("42"));
    assert_eq!(back_end.server().text("None").trim(), "");
    RowResult::Yes
}

fn a_reset_removes_variables(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("gone = 1\nopen('stays.txt', 'w').write('x')"));
    let reset = server.call("reset_session_state", json!({}));
    assert!(!reset.is_error(), "{reset:?}");
    let seen = server.text("import os\nprint('gone' in globals(), os.path.exists('stays.txt'))");
    assert_eq!(seen.trim(), "False True");
    RowResult::Yes
}

fn standard_input(back_end: &BackEnd) -> RowResult {
    let arguments = json!({"code": "print(input() + input())", "stdin": "a\nb\n"});
    let answer = back_end.server().call("execute_code", arguments);
    if answer.all().contains("no standard input") {
        return RowResult::No("sessions have no standard input; the result states it".to_owned());
    }
    assert_eq!(ok(answer).output().trim(), "ab");
    RowResult::Yes
}

fn tools_and_code_share_files(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    server.call("write_file", json!({"path": "a/b.txt", "content": "one\n"}));
    server.call(
        "write_file",
        json!({"path": "a/b.txt", "content": "two\n", "append": true}),
    );
    assert_eq!(server.text("print(open('a/b.txt').read(), end='')"), "one\ntwo\n");
    ok(server.run("open('made.txt', 'w').write('by code: ü')"));
    let read = server.call("read_file", json!({"path": "/home/user/made.txt"}));
    assert!(read.all().contains("by code: ü"), "{read:?}");
    RowResult::Yes
}

fn bytes_are_unchanged(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    // 0, 255, 10, 128
    let arguments = json!({"path": "data.bin", "content_base64": "AP8KgA=="});
    let put = server.call("upload_file", arguments);
    assert!(!put.is_error(), "{put:?}");
    assert_eq!(
        server.text("print(list(open('data.bin', 'rb').read()))").trim(),
        "[0, 255, 10, 128]"
    );
    let read = server.call("read_file", json!({"path": "data.bin", "base64": true}));
    assert!(read.0.to_string().contains("AP8KgA=="), "{read:?}");
    RowResult::Yes
}

fn folders_are_listed(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    server.call("write_file", json!({"path": "deep/er/file.txt", "content": "x"}));
    let listed = server.call("list_files", json!({"path": "deep", "recursive": true}));
    assert!(
        listed.all().contains("file.txt") && listed.all().contains("er"),
        "{listed:?}"
    );
    RowResult::Yes
}

fn missing_files(back_end: &BackEnd) -> RowResult {
    refused(
        &back_end.server().call("read_file", json!({"path": "no/such/file"})),
        "not_found",
    );
    refused(
        &back_end.server().call("list_files", json!({"path": "no/such"})),
        "not_found",
    );
    RowResult::Yes
}

fn outputs_outlive(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let arguments = json!({
        "code": "open('out.txt', 'w').write(open('in.txt').read() * 2)",
        "files": {"in.txt": "again "},
        "outputs": ["out.txt"],
    });
    let ran = ok(server.call("create_run_close", arguments));
    let link = ran.of_kind("resource_link").next().expect("a link")["uri"].clone();
    let read = server.request("resources/read", json!({"uri": link}));
    assert_eq!(read["contents"][0]["text"], "again again ", "{read}");
    RowResult::Yes
}

/// Makes a sandbox with these limits; none if the back end reports that it does not enforce them.
fn limited(server: &Client, arguments: Value, layer: &str) -> Option<String> {
    let made = server.call("create_sandbox", arguments);
    assert!(!made.is_error(), "{made:?}");
    let id = made.data()["sandbox_id"].as_str().expect("an id").to_owned();
    let degraded = &made.data()["isolation"]["degraded"];
    let elsewhere = degraded.to_string().contains(layer) && degraded.to_string().contains("template");
    if elsewhere {
        close(server, &id);
    }
    (!elsewhere).then_some(id)
}

fn close(server: &Client, id: &str) {
    let closed = server.call("close_sandbox", json!({"sandbox_id": id}));
    assert!(!closed.is_error(), "{closed:?}");
}

const TEMPLATE_DECIDES: &str = "the template decides; the result states it";

fn memory_is_enforced(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let Some(id) = limited(server, json!({"memory_mb": 128}), "memory") else {
        return RowResult::No(TEMPLATE_DECIDES.to_owned());
    };
    let code = "parts = []\nfor _ in range(100): parts.append(bytearray(8 << 20))";
    let ran = server.call("execute_code", json!({"sandbox_id": id, "code": code}));
    assert!(
        ran.cause() == "out_of_memory" || ran.all().contains("MemoryError"),
        "{ran:?}"
    );
    let next = server.call("execute_code", json!({"sandbox_id": id, "code": "print('on')"}));
    assert_eq!(ok(next).output().trim(), "on");
    close(server, &id);
    RowResult::Yes
}

fn disk_is_enforced(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let Some(id) = limited(server, json!({"disk_mb": 16}), "disk") else {
        return RowResult::No(TEMPLATE_DECIDES.to_owned());
    };
    let code = "import errno\ntry:\n    with open('big', 'wb') as f:\n        for _ in range(40): f.write(bytes(1 << 20))\n    print('all')\nexcept OSError as e:\n    print(e.errno in (errno.ENOSPC, errno.EDQUOT))";
    let ran = server.call("execute_code", json!({"sandbox_id": id, "code": code}));
    assert!(ran.cause() == "disk_full" || ran.output().trim() == "True", "{ran:?}");
    close(server, &id);
    RowResult::Yes
}

fn processes_are_limited(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let Some(id) = limited(server, json!({}), "processes") else {
        return RowResult::No(TEMPLATE_DECIDES.to_owned());
    };
    let code = "import os, signal, time\nmade = []\ntry:\n    for _ in range(300):\n        pid = os.fork()\n        if pid == 0:\n            time.sleep(60)\n            os._exit(0)\n        made.append(pid)\nexcept OSError: pass\nfor pid in made: os.kill(pid, signal.SIGKILL)\nfor pid in made: os.waitpid(pid, 0)\nprint(50 < len(made) < 300)";
    let ran = server.call("execute_code", json!({"sandbox_id": id, "code": code}));
    let held = ok(ran).output().trim() == "True";
    close(server, &id);
    match (held, back_end.name) {
        (true, _) => RowResult::Yes,
        // A remote service decides its limits itself.
        (false, "e2b") => RowResult::No(TEMPLATE_DECIDES.to_owned()),
        (false, _) => panic!("300 processes were made"),
    }
}

fn output_is_cut(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let ran = ok(server.run("for i in range(20_000): print('line', i)"));
    let text = ran.all();
    assert!(
        text.len() < 30_000 && text.contains("line 19999"),
        "{} bytes",
        text.len()
    );
    assert_eq!(ran.meta()["truncated"], true, "{:?}", ran.meta());
    let arguments = json!({"execution_id": ran.meta()["execution_id"], "find": "line 10000"});
    let rest = server.call("get_execution", arguments);
    assert!(rest.all().contains("line 10000"), "{rest:?}");
    RowResult::Yes
}

fn time_outs_keep_variables(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("held = 7"));
    let slow = server.call("execute_code", json!({"code": "while True: pass", "timeout_s": 1}));
    assert_eq!((slow.status(), slow.cause()), ("timeout", "timeout"), "{slow:?}");
    assert!(!slow.state_lost(), "{slow:?}");
    assert_eq!(server.text("print(held)").trim(), "7");
    RowResult::Yes
}

fn uninterruptible_code_is_killed(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let code = "while True:\n    try:\n        while True: pass\n    except BaseException: pass";
    let ran = server.call("execute_code", json!({"code": code, "timeout_s": 1}));
    assert_eq!(ran.status(), "timeout", "{ran:?}");
    assert_eq!(server.text("print('next')").trim(), "next");
    RowResult::Yes
}

fn long_calls_are_answered(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint('done')";
    let early = server.call("execute_code", json!({"code": code, "wait_s": 1}));
    assert_eq!(early.status(), "running", "{early:?}");
    let id = early.meta()["execution_id"].clone();
    let late = server.call("get_execution", json!({"execution_id": id, "wait_s": 30}));
    assert!(late.all().contains("done"), "{late:?}");
    RowResult::Yes
}

fn cancels_keep_variables(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("before = 'cancel'"));
    let code = "import time\nwhile True: time.sleep(0.01)";
    let begun = server.call("execute_code", json!({"code": code, "wait_s": 1}));
    assert_eq!(begun.status(), "running", "{begun:?}");
    let id = begun.meta()["execution_id"].clone();
    let cancelled = server.call("cancel_execution", json!({"execution_id": id}));
    assert!(!cancelled.is_error(), "{cancelled:?}");
    let told = server.call("get_execution", json!({"execution_id": id, "wait_s": 30}));
    assert!(told.all().contains("cancelled"), "{told:?}");
    assert_eq!(server.text("print(before)").trim(), "cancel");
    RowResult::Yes
}

fn crashes_are_reported(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let crashed = server.run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)");
    assert!(crashed.status() != "ok", "{crashed:?}");
    assert!(["crashed", "session_lost"].contains(&crashed.cause()), "{crashed:?}");
    assert_eq!(server.text("print('on')").trim(), "on");
    RowResult::Yes
}

fn variables_are_restored(back_end: &BackEnd) -> RowResult {
    let server = back_end.server_of_its_own();
    ok(server.run("dear = 'variable'"));
    // On a busy machine snapshots are made less often than after each call.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        ok(server.run("dear"));
    }
    let crashed = server.run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)");
    let next = server.run("print(globals().get('dear'))");
    if next.output().trim() == "variable" {
        return RowResult::Yes;
    }
    assert!(
        crashed.state_lost() || next.state_lost(),
        "lost without a word: {crashed:?} {next:?}"
    );
    RowResult::No("they are lost; the result states it".to_owned())
}

fn sandboxes_are_separate(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let made = server.call("create_sandbox", json!({"count": 4}));
    let ids: Vec<String> = serde_json::from_value(made.data()["sandbox_ids"].clone()).unwrap();
    assert_eq!(ids.len(), 4, "{made:?}");
    std::thread::scope(|scope| {
        for (number, id) in ids.iter().enumerate() {
            scope.spawn(move || {
                let code = format!("mine = {number}\nopen('mine.txt', 'w').write(str(mine))");
                ok(server.call("execute_code", json!({"sandbox_id": id, "code": code})));
            });
        }
    });
    for (number, id) in ids.iter().enumerate() {
        let code = "print(mine, open('mine.txt').read())";
        let seen = ok(server.call("execute_code", json!({"sandbox_id": id, "code": code})));
        assert_eq!(seen.output().trim(), format!("{number} {number}"));
        close(server, id);
    }
    RowResult::Yes
}

fn calls_run_in_order(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    ok(server.run("turns = []"));
    let code = "import time\nturns.append('in')\ntime.sleep(0.05)\nturns.append('out')";
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| ok(server.run(code)));
        }
    });
    assert_eq!(server.text("print(turns == ['in', 'out'] * 4)").trim(), "True");
    RowResult::Yes
}

fn closed_sandboxes_do_not_exist(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let made = server.call("create_sandbox", json!({}));
    let id = made.data()["sandbox_id"].as_str().expect("an id").to_owned();
    close(server, &id);
    refused(
        &server.call("execute_code", json!({"sandbox_id": id, "code": "1"})),
        "not_found",
    );
    RowResult::Yes
}

fn nothing_is_left(back_end: &BackEnd) -> RowResult {
    let before = if back_end.name == "e2b" { back_end.left(0) } else { 0 };
    let mut server = back_end.server_of_its_own();
    // The fake service has no jail that would end the processes of its code.
    let code = if back_end.name == "e2b" {
        "x = 1"
    } else {
        "import subprocess\nsubprocess.Popen(['sleep', '1000'])"
    };
    ok(server.run(code));
    let pid = server.pid();
    assert!(back_end.left(pid) > before, "it is seen from outside");
    // Once the server has ended, its processes have another parent.
    let held = machine::descendants(pid);
    server.hang_up();
    server.wait(DEFAULT_TIMEOUT);
    until(Duration::from_secs(10), "nothing is left", || {
        (back_end.left(pid) == before && held.iter().all(|seen| !seen.lives())).then_some(())
    });
    RowResult::Yes
}

fn errors_have_code_and_remedy(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let call = |arguments: Value| server.call("execute_code", arguments);
    refused(
        &call(json!({"code": "1", "sandbox_id": "sb0000000000000000"})),
        "not_found",
    );
    refused(
        &call(json!({"code": "1", "language": "klingon"})),
        "language_unavailable",
    );
    refused(&call(json!({"code": "1", "timeout_s": -1})), "invalid_argument");
    refused(
        &server.call("get_execution", json!({"execution_id": "ex0000000000000000"})),
        "not_found",
    );
    RowResult::Yes
}

fn results_name_the_back_end(back_end: &BackEnd) -> RowResult {
    let ran = ok(back_end.server().run("1"));
    let status = back_end
        .server()
        .call("get_sandbox_status", json!({"sandbox_id": ran.sandbox()}));
    let isolation = status.data()["sandboxes"][0]["isolation"].clone();
    assert_eq!(isolation["backend"], back_end.name);
    assert!(
        isolation["level"].as_str().is_some_and(|level| level != "none"),
        "{isolation}"
    );
    RowResult::Yes
}

fn costs_are_reported(back_end: &BackEnd) -> RowResult {
    let ran = ok(back_end
        .server()
        .run("x = bytearray(20 << 20)\nn = sum(range(3_000_000))"));
    let meta = ran.meta();
    assert!(meta["duration_ms"].as_f64().is_some(), "{meta}");
    if meta["cpu_ms"].as_f64().is_some_and(|cpu| cpu > 0.0)
        && meta["peak_memory_mb"].as_f64().is_some_and(|mb| mb > 0.0)
    {
        return RowResult::Yes;
    }
    RowResult::No("the service does not report them per execution".to_owned())
}

fn packages_install(back_end: &BackEnd) -> RowResult {
    let server = back_end.server();
    let installed = server.call("install_package", json!({"package": "demo-one==1.0"}));
    if installed.is_error() {
        return refusal(&installed);
    }
    assert_eq!(server.text("import demo_one\nprint(demo_one.answer)").trim(), "42");
    RowResult::Yes
}

fn images(back_end: &BackEnd) -> RowResult {
    let (server, other) = (back_end.server(), back_end.other_image());
    let made = server.call("create_sandbox", json!({"image": other.name}));
    if made.is_error() {
        return refusal(&made);
    }
    let id = made.data()["sandbox_id"].as_str().expect("an id").to_owned();
    let code = json!({"sandbox_id": id, "language": other.language, "code": other.code});
    let ran = ok(server.call("execute_code", code));
    assert_eq!(ran.output().trim(), "other");
    close(server, &id);
    RowResult::Yes
}

fn mounts(back_end: &BackEnd, mode: &str) -> RowResult {
    let (place, server) = back_end.server_with(|place| {
        std::fs::write(place.work().join("given.txt"), "given").unwrap();
        let work = place.work().display().to_string();
        format!("mount = [{{ host = \"{work}\", sandbox = \"/mnt/given\", mode = \"{mode}\" }}]\n")
    });
    let code = "try:\n    open('/mnt/given/new.txt', 'w').write('x'); wrote = True\nexcept OSError: wrote = False\nprint(open('/mnt/given/given.txt').read(), wrote)";
    let ran = server.run(code);
    if ran.is_error() || ran.status() != "ok" {
        let text = ran.all();
        assert!(text.contains("mount") || text.contains("FileNotFoundError"), "{ran:?}");
        if ran.is_error() {
            return refusal(&ran);
        }
        return RowResult::No("folders of this machine are not visible in its sandboxes".to_owned());
    }
    assert_eq!(
        ran.output().trim(),
        format!("given {}", if mode == "cow" { "True" } else { "False" })
    );
    assert!(!place.work().join("new.txt").exists(), "the host's folder was written");
    RowResult::Yes
}
