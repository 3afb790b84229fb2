//! Each tool, called as a client calls it.

use sandcell_testkit::FakePackages;
use tokio::time::Instant;

use super::*;
use crate::content::pictures;

/// A client whose default sandbox has these files, and the sandbox's id.
async fn with_files(files: &[(&str, &[u8])]) -> (Bench, Client, String) {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    let made = client.call("execute_code", json!({"code": "print made"})).await;
    for (path, bytes) in files {
        let files = &bench.world.last().files;
        files.lock().unwrap().insert((*path).to_owned(), bytes.to_vec().into());
    }
    let sandbox = made["_meta"]["sandcell/execution"]["sandbox_id"].as_str().unwrap();
    (bench, client, sandbox.to_owned())
}

fn content_of(bench: &Bench, path: &str) -> Vec<u8> {
    bench.world.last().files.lock().unwrap()[path].to_vec()
}

/// The object about an execution in a result.
fn execution(result: &Value) -> &Value {
    &result["_meta"]["sandcell/execution"]
}

#[tokio::test(start_paused = true)]
async fn execute_code_passes_its_arguments_to_the_engine() {
    let (_bench, mut client, sandbox) = with_files(&[]).await;
    let plain = client.call("execute_code", json!({"code": "stdin"})).await;
    assert_eq!(blocks(&plain)[0], "None\n");
    assert_eq!(
        (&execution(&plain)["language"], &execution(&plain)["sandbox_id"]),
        (&json!("python"), &json!(sandbox))
    );
    let other = client.call("create_sandbox", json!({})).await;
    let other = &other["structuredContent"]["sandbox_id"];
    let began = Instant::now();
    let arguments = json!({
        "code": "stdin\nsleep 9000", "language": "sh", "sandbox_id": other, "stdin": "in", "timeout_s": "2.5",
        "wait_s": 600
    });
    let full = client.call("execute_code", arguments).await;
    assert_eq!(began.elapsed().as_secs_f64(), 2.5);
    assert!(blocks(&full)[0].starts_with("Some(\"in\")\n"), "{full}");
    let facts = execution(&full);
    assert_eq!(
        (&facts["language"], &facts["sandbox_id"], &facts["status"]),
        (&json!("bash"), other, &json!("timeout"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_no_longer_than_the_server_and_its_client_say() {
    let options = ServerOptions {
        wait: Some(Duration::from_secs(4)),
        ..ServerOptions::default()
    };
    let mut client = Client::connect_with(&bench(), options);
    client.initialize().await;
    let listed = client.request("tools/list", json!({})).await;
    for tool in listed["result"]["tools"].as_array().unwrap() {
        if let Some(field) = tool["inputSchema"]["properties"].get("wait_s") {
            assert_eq!(
                (&field["minimum"], &field["maximum"], &field["default"]),
                (&json!(0), &json!(55), &json!(4)),
                "{tool}"
            );
        }
    }
    let mut waits = async |arguments: Value, meta: Value| {
        let mut arguments = arguments;
        arguments["code"] = json!("sleep 29000");
        let began = Instant::now();
        let call = json!({"name": "execute_code", "arguments": arguments, "_meta": meta});
        let answer = client.request("tools/call", call).await;
        let waited = began.elapsed().as_secs_f64();
        let facts = execution(&answer["result"]);
        assert_eq!(facts["status"], "running", "{answer}");
        let id = json!({"execution_id": facts["execution_id"]});
        client.call("cancel_execution", id).await;
        waited
    };
    assert_eq!(waits(json!({}), json!({})).await, 4.0);
    assert_eq!(waits(json!({"wait_s": 20}), json!({})).await, 20.0);
    let limit = json!({"sandcell/timeout_s": 5});
    assert_eq!(waits(json!({"wait_s": 20}), limit.clone()).await, 4.5);
    assert_eq!(waits(json!({"wait_s": 1}), limit).await, 1.0);
    assert_eq!(waits(json!({}), json!({"sandcell/timeout_s": 600})).await, 4.0);
    for odd in [json!(-1), json!("x"), json!(1e300), json!(null)] {
        assert_eq!(waits(json!({}), json!({"sandcell/timeout_s": odd})).await, 4.0);
    }
    assert_eq!(waits(json!({}), json!({"sandcell/timeout_s": 0.1})).await, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_result_says_when_its_call_could_not_wait_as_long_as_asked() {
    let (_bench, mut client, _) = with_files(&[]).await;
    let arguments = json!({"code": "sleep 58000", "timeout_s": 60, "wait_s": 600});
    let running = client.call("execute_code", arguments).await;
    let last = blocks(&running).pop().unwrap();
    assert!(
        last.ends_with("\nwait_s: 600 s is more than a call can wait; it waited 55 s"),
        "{last}"
    );
    let quick = client
        .call("execute_code", json!({"code": "print quick", "wait_s": 600}))
        .await;
    assert!(!blocks(&quick).concat().contains("wait_s"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_creation_goes_on_without_its_call() {
    let bench = bench();
    *bench.world.create_delay.lock().unwrap() = Duration::from_millis(300);
    let mut client = Client::ready(&bench).await;
    let busy = client.call("create_sandbox", json!({"wait_s": 0.01})).await;
    assert_eq!(busy["_meta"]["sandcell/error"]["code"], "busy", "{busy}");
    bench.world.live_becomes(1).await;
    let waited = client.call("create_sandbox", json!({})).await;
    let id = waited["structuredContent"]["sandbox_id"].as_str().unwrap();
    assert!(id.starts_with("sb"), "{waited}");
    assert_eq!(bench.world.live(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_newest_execution_is_had_without_its_id() {
    let (_bench, mut client, _) = with_files(&[]).await;
    let ran = client.call("execute_code", json!({"code": "print newest"})).await;
    let got = client.call("get_execution", json!({"wait_s": 0})).await;
    assert_eq!(execution(&got)["execution_id"], execution(&ran)["execution_id"]);
    assert_eq!(blocks(&got)[0], "newest\n");
}

#[tokio::test(start_paused = true)]
async fn create_run_close_passes_files_and_outputs_on() {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    let code = "show /home/user/a.txt\nshow /tmp/b\nwrite /home/user/out/plot.csv a,b";
    let arguments = json!({
        "code": code, "files": {"a.txt": "A", "/tmp/b": "B"}, "outputs": ["out/plot.csv", "none"], "memory_mb": 64,
    });
    let ran = client.call("create_run_close", arguments).await;
    assert_eq!(execution(&ran)["new_sandbox"], json!(true));
    assert!(
        !blocks(&ran).concat().contains(" sb"),
        "a sandbox that is gone is not offered: {ran}"
    );
    assert_text!(transcript(&ran));
    let spec = bench.world.specs.lock().unwrap()[0].clone();
    assert_eq!(spec.limits.memory.as_mib(), 64);
    let bad = client
        .call("create_run_close", json!({"code": "1", "outputs": ["../x"]}))
        .await;
    assert_text!(transcript(&bad));
}

#[tokio::test(start_paused = true)]
async fn bad_arguments_are_results_that_say_how_to_do_it() {
    let (_bench, mut client, _) = with_files(&[]).await;
    let mut transcripts = Vec::new();
    for (tool, arguments) in [
        ("execute_code", json!({})),
        ("execute_code", json!({"code": {"print": 1}})),
        ("execute_code", json!({"code": "1", "sandbox": "sb1", "timeout": 5})),
        ("execute_code", json!({"code": "1", "packages": ["numpy"]})),
        ("execute_code", json!({"code": "1", "timeout_s": 0})),
        ("execute_code", json!({"code": ""})),
        ("create_sandbox", json!({"network": true})),
        ("create_sandbox", json!({"count": 0, "cpus": -1, "memory_mb": 0})),
        ("close_sandbox", json!({})),
        ("close_sandbox", json!({"sandbox_id": "sb1"})),
        ("read_file", json!({"path": "missing.txt"})),
        ("read_file", json!({"path": "a\u{0}b"})),
        ("read_file", json!({"path": ""})),
        ("upload_file", json!({"path": "a"})),
        ("upload_file", json!({"path": "a", "content_base64": "aGVsbG8"})),
        ("upload_file", json!({"path": "a", "local_path": "/etc/passwd"})),
        ("get_execution", json!({"execution_id": "exnone"})),
        (
            "get_execution",
            json!({"execution_id": UNKNOWN_EXECUTION, "stream": "log"}),
        ),
    ] {
        let result = client.call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], json!(true), "{tool} {arguments}");
        assert!(result["_meta"]["sandcell/error"]["remedy"].is_string());
        transcripts.push(format!("{tool} {arguments}\n{}", transcript(&result)));
    }
    assert_text!(transcripts.join("\n\n"));
}

#[tokio::test(start_paused = true)]
async fn the_tools_around_sandboxes_say_what_a_model_needs() {
    let (bench, mut client, sandbox) = with_files(&[]).await;
    bench.offer(None, Some(FakePackages::of("python")));
    client
        .call("execute_code", json!({"code": "memory 48\nsleep 200\ncpu 2500"}))
        .await;
    client
        .call("execute_code", json!({"code": "memory 40\nsleep 200"}))
        .await;
    client.call("install_package", json!({"packages": ["numpy"]})).await;
    let created = client
        .call("create_sandbox", json!({"count": 2, "cpus": 0.5, "label": "x"}))
        .await;
    let data = &created["structuredContent"];
    let ids = data["sandbox_ids"].as_array().unwrap().clone();
    assert_eq!((ids.len(), &data["sandbox_id"]), (2, &ids[0]));
    assert_eq!(data["limits"]["memory_mb"], 512);
    assert!(data["idle_expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(data["ends_at"], Value::Null);
    let closed = client.call("close_sandbox", json!({"sandbox_id": ids[1]})).await;
    let one = client.call("get_sandbox_status", json!({"sandbox_id": sandbox})).await;
    let all = client.call("get_sandbox_status", json!({})).await;
    assert_eq!(all["structuredContent"]["sandboxes"].as_array().unwrap().len(), 2);
    let reset = client.call("reset_session_state", json!({})).await;
    let texts = [created, closed, one, all, reset]
        .map(|result| transcript(&result))
        .join("\n\n");
    assert_text!(texts);
}

#[tokio::test(start_paused = true)]
async fn history_is_compact_and_complete_as_data() {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    for code in ["set x 1\nprint 1", "raise NameError"] {
        client.call("execute_code", json!({"code": code})).await;
    }
    let result = client.call("get_execution_history", json!({})).await;
    assert_text!(transcript(&result));
    assert_data!(result["structuredContent"]["records"][1]);
    for _ in 0..60 {
        client.call("execute_code", json!({"code": "print 1"})).await;
    }
    for (given, used) in [
        (json!(0), 1),
        (json!(-5), 1),
        (json!(1000), 50),
        (json!("7"), 7),
        (json!(null), 10),
    ] {
        let result = client.call("get_execution_history", json!({"last_n": given})).await;
        let records = result["structuredContent"]["records"].as_array().unwrap();
        assert_eq!(records.len(), used, "{given}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_execution_can_be_waited_for_read_in_parts_and_stopped() {
    let (_bench, mut client, _) = with_files(&[]).await;
    let began = Instant::now();
    let code = "print hello\neprint a warning\neprint an Error: x\nsleep 20000";
    let run = json!({"code": code, "wait_s": 0});
    let running = client.call("execute_code", run.clone()).await;
    let id = &execution(&running)["execution_id"];
    let arguments = json!({"execution_id": id, "stream": "stderr", "offset": -500, "find": "Error"});
    let part = client.call("get_execution", arguments).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "a part is read at once");
    assert_eq!(
        part["_meta"]["sandcell/stream"],
        json!({"text": "Error: x\n", "stream": "stderr", "offset": 13, "next_offset": 22, "total_bytes": 22, "eof": false})
    );
    let whole = client.call("get_execution", json!({"execution_id": id})).await;
    assert_eq!(began.elapsed(), Duration::from_secs(20), "the whole is waited for");
    client.call("execute_code", run).await;
    let stopped = client.call("cancel_execution", json!({})).await;
    assert_eq!(execution(&stopped)["status"], "cancelled");
    let texts = [running, part, whole, stopped]
        .map(|result| transcript(&result))
        .join("\n\n");
    assert_text!(texts);
}

#[tokio::test(start_paused = true)]
async fn a_folder_is_listed_with_names_that_cannot_break_lines() {
    let files: [(&str, &[u8]); 2] = [("/home/user/data.csv", b"a,b\n"), ("/home/user/src/main.py", b"")];
    let (bench, mut client, _) = with_files(&files).await;
    let links = &bench.world.last().links;
    links
        .lock()
        .unwrap()
        .insert("/home/user/odd\nname".into(), "data.csv".into());
    let result = client.call("list_files", json!({})).await;
    assert_text!(transcript(&result));
    assert_data!(result["structuredContent"]);
    let tree = client.call("list_files", json!({"recursive": "true"})).await;
    assert!(blocks(&tree)[0].contains("\nsrc/main.py  0 bytes"), "{tree}");
    for number in 0..2000 {
        let path = format!("/home/user/many/{number}");
        bench.world.last().files.lock().unwrap().insert(path, "x".into());
    }
    let many = client.call("list_files", json!({"path": "many"})).await;
    let shown = many["structuredContent"]["files"].as_array().unwrap().len();
    let rest = format!("\n... and {} more; list a folder below", 2000 - shown);
    assert!(blocks(&many)[0].ends_with(&rest), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn text_is_read_in_pages() {
    let lines: String = (0..3000).map(|n| format!("line {n:04}\n")).collect();
    let (_bench, mut client, sandbox) =
        with_files(&[("/home/user/a.txt", lines.as_bytes()), ("/tmp/empty", b"")]).await;
    let first = client.call("read_file", json!({"path": "a.txt"})).await;
    let page = first["_meta"]["sandcell/file"].clone();
    assert_eq!(
        (&page["total_lines"], &page["next_offset"]),
        (&json!(3000), &json!(2000))
    );
    assert_eq!(blocks(&first)[0], lines[..20_000]);
    assert_eq!(
        blocks(&first)[1],
        format!("[/home/user/a.txt in {sandbox}: 30000 bytes, total_lines 3000, lines 0 to 1999, next_offset 2000]")
    );
    let middle = client
        .call("read_file", json!({"path": "a.txt", "offset": 2998, "limit": 1}))
        .await;
    assert_eq!(blocks(&middle)[0], "line 2998\n");
    let rest = client.call("read_file", json!({"path": "a.txt", "offset": 2998})).await;
    assert_eq!(rest["_meta"]["sandcell/file"]["next_offset"], Value::Null);
    let beyond = client.call("read_file", json!({"path": "a.txt", "offset": 9999})).await;
    let empty = client.call("read_file", json!({"path": "/tmp/empty"})).await;
    assert_text!([rest, beyond, empty].map(|result| transcript(&result)).join("\n\n"));
}

#[tokio::test(start_paused = true)]
async fn a_file_larger_than_one_call_is_paged_without_reading_it_whole() {
    let big = "0123456789abcde\n".repeat(1 << 20);
    let (_bench, mut client, _) = with_files(&[("/home/user/big", big.as_bytes())]).await;
    let result = client
        .call("read_file", json!({"path": "big", "offset": 5, "limit": 2}))
        .await;
    assert_eq!(blocks(&result)[0], "0123456789abcde\n0123456789abcde\n");
    let page = &result["_meta"]["sandcell/file"];
    assert_eq!((&page["total_lines"], &page["next_offset"]), (&Value::Null, &json!(7)));
}

#[tokio::test(start_paused = true)]
async fn pictures_are_shown_and_other_binary_is_linked() {
    let png = pictures::tests::png_file(20, 10, false);
    let (_bench, mut client, _) = with_files(&[("/home/user/p.png", &png), ("/home/user/x.bin", b"\0\x01\xff")]).await;
    let picture = client.call("read_file", json!({"path": "p.png"})).await;
    let binary = client.call("read_file", json!({"path": "x.bin"})).await;
    let bytes = client.call("read_file", json!({"path": "x.bin", "base64": true})).await;
    let part = client
        .call(
            "read_file",
            json!({"path": "x.bin", "base64": true, "offset": 1, "limit": 1}),
        )
        .await;
    assert_text!(
        [picture, binary, bytes, part]
            .map(|result| transcript(&result))
            .join("\n\n")
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_written_can_be_read_back() {
    let (bench, mut client, _) = with_files(&[]).await;
    let written = client
        .call("write_file", json!({"path": "a/b.txt", "content": "Grüße\n"}))
        .await;
    let more = client
        .call("write_file", json!({"path": "a/b.txt", "content": "x", "append": true}))
        .await;
    let uploaded = client
        .call("upload_file", json!({"path": "b.bin", "content_base64": "AAH/"}))
        .await;
    assert_eq!(content_of(&bench, "/home/user/b.bin"), [0, 1, 255]);
    let read = client.call("read_file", json!({"path": "a/b.txt"})).await;
    assert_text!(
        [written, more, uploaded, read]
            .map(|result| transcript(&result))
            .join("\n\n")
    );
}

#[tokio::test(start_paused = true)]
async fn ten_mebibytes_can_be_uploaded_and_no_more() {
    use base64::Engine as _;
    let (bench, mut client, _) = with_files(&[]).await;
    let encode = |size: usize| base64::engine::general_purpose::STANDARD.encode(vec![7; size]);
    let fits = client
        .call("upload_file", json!({"path": "a", "content_base64": encode(10 << 20)}))
        .await;
    assert_eq!(fits["isError"], json!(false));
    assert_eq!(content_of(&bench, "/home/user/a").len(), 10 << 20);
    let too_large = client
        .call(
            "upload_file",
            json!({"path": "b", "content_base64": encode((10 << 20) + 1)}),
        )
        .await;
    assert_eq!(too_large["_meta"]["sandcell/error"]["code"], "limit_reached");
    let back = client.call("read_file", json!({"path": "a", "base64": true})).await;
    assert_eq!(blocks(&back)[0].len(), (10_usize << 20).div_ceil(3) * 4);
}

#[tokio::test(start_paused = true)]
async fn a_host_file_comes_only_from_a_folder_that_the_operator_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.csv");
    std::fs::write(&file, "a,b\n").unwrap();
    let bench = bench_with(|config| config.upload_from = vec![folder.path().to_owned()]);
    let mut client = Client::ready(&bench).await;
    let result = client
        .call("upload_file", json!({"path": "in.csv", "local_path": file}))
        .await;
    assert_eq!(result["isError"], json!(false), "{result}");
    assert_eq!(content_of(&bench, "/home/user/in.csv"), b"a,b\n");
    let refused = client
        .call("upload_file", json!({"path": "x", "local_path": "/etc/hostname"}))
        .await;
    assert_eq!(refused["_meta"]["sandcell/error"]["code"], "denied_by_policy");
}

#[tokio::test(start_paused = true)]
async fn resources_are_read_by_their_address() {
    let (_bench, mut client, sandbox) = with_files(&[("/home/user/a b.bin", b"\0\x01")]).await;
    let run = json!({"code": "write /home/user/t.csv a,b", "outputs": ["t.csv"]});
    let ran = client.call("create_run_close", run).await;
    let id = execution(&ran)["execution_id"].as_str().unwrap();
    let artifact = client
        .request(
            "resources/read",
            json!({"uri": format!("sandcell://executions/{id}/0")}),
        )
        .await;
    let file = client
        .request(
            "resources/read",
            json!({"uri": format!("sandcell://{sandbox}/home/user/a%20b.bin")}),
        )
        .await;
    let templates = client.request("resources/templates/list", json!({})).await;
    assert_data!([&artifact["result"], &file["result"], &templates["result"]]);
    for uri in [
        "sandcell://executions/exnone/0",
        "file:///etc/passwd",
        "sandcell://sb1/../etc/passwd",
    ] {
        let refused = client.request("resources/read", json!({"uri": uri})).await;
        assert!(refused["error"]["message"].is_string(), "{refused}");
        assert_eq!(refused["error"]["data"]["uri"], uri, "{refused}");
    }
    let listed = client.request("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn more_than_a_user_can_be_asked_about_is_refused_as_such() {
    let bench = bench();
    bench.offer(None, Some(FakePackages::of("python")));
    let mut client = Client::connect(&bench);
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    });
    client.request("initialize", hello).await;
    let packages = |count: usize| json!({"packages": (0..count).map(|n| format!("ask-{n}")).collect::<Vec<_>>()});
    let refused = client
        .request(
            "tools/call",
            json!({"name": "install_package", "arguments": packages(51)}),
        )
        .await;
    let text = "the user can be asked about 50 packages and hosts in one call; name fewer";
    assert_eq!(refused["error"]["message"], text, "{refused}");
    client.start_call("install_package", packages(50)).await;
    assert_eq!(client.receive().await["method"], "elicitation/create");
}

#[tokio::test(start_paused = true)]
async fn run_command_passes_a_line_or_words_to_the_engine() {
    let (bench, mut client, _) = with_files(&[("/home/user/src/show", b"args\nenv A\ncat")]).await;
    let ran = client.call("run_command", json!({"command": "ls | wc -l"})).await;
    assert_eq!(execution(&ran)["language"], "command");
    let started = || bench.world.commands.lock().unwrap().last().unwrap().clone();
    assert_eq!(started().argv.last().unwrap(), "ls | wc -l");
    assert_eq!(started().cwd, "/home/user");
    let other = client.call("create_sandbox", json!({})).await;
    let other = &other["structuredContent"]["sandbox_id"];
    let script: &[u8] = b"args\nenv A\ncat";
    let files = &bench.world.last().files;
    files.lock().unwrap().insert("/show".to_owned(), script.into());
    let arguments = json!({
        "argv": ["sh", "/show", "", 5], "cwd": "src", "env": {"A": 1}, "sandbox_id": other, "stdin_base64": "AP8=",
        "keep_stdin": "true", "timeout_s": "2.5", "wait_s": 0,
    });
    let begun = client.call("run_command", arguments).await;
    assert_eq!(execution(&begun)["status"], "running", "{begun}");
    let began = Instant::now();
    let ended = client.call("get_execution", json!({})).await;
    assert_eq!(began.elapsed().as_secs_f64(), 2.5, "its stdin stays open");
    let facts = execution(&ended);
    assert_eq!((&facts["status"], &facts["sandbox_id"]), (&json!("timeout"), other));
    assert_eq!(started().argv, ["sh", "/show", "", "5"]);
    let printed = blocks(&ended)[0].clone();
    assert!(
        printed.starts_with("[\"\", \"5\"]\nSome(\"1\") /home/user/src\n"),
        "{printed}"
    );
    let arguments = json!({"argv": "[\"sh\", \"/show\", \"a b\", \"\"]", "sandbox_id": other, "stdin": "in"});
    let ended = client.call("run_command", arguments).await;
    assert!(blocks(&ended)[0].starts_with("[\"a b\", \"\"]\n"), "{ended}");
    assert!(blocks(&ended)[0].contains("\nin"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn write_stdin_passes_bytes_and_their_end_to_the_program() {
    let (_bench, mut client, _) = with_files(&[("/home/user/cat", b"cat")]).await;
    let arguments = json!({"argv": ["sh", "/home/user/cat"], "keep_stdin": true, "wait_s": 0});
    let begun = client.call("run_command", arguments).await;
    let id = &execution(&begun)["execution_id"];
    let written = client
        .call("write_stdin", json!({"execution_id": id, "data": "a\n"}))
        .await;
    assert_eq!(
        written["_meta"]["sandcell/stdin"],
        json!({"execution_id": id, "written": 2, "closed": false})
    );
    let last = json!({"execution_id": id, "data_base64": "Yg==", "close": "yes", "wait_s": 1});
    let closed = client.call("write_stdin", last).await;
    assert_eq!(
        closed["_meta"]["sandcell/stdin"],
        json!({"execution_id": id, "written": 1, "closed": true})
    );
    let ended = client.call("get_execution", json!({"execution_id": id})).await;
    assert_eq!(blocks(&ended)[0], "a\nb");
    let late = client
        .call("write_stdin", json!({"execution_id": id, "data": "c"}))
        .await;
    assert_eq!(late["isError"], true, "{late}");
}

#[tokio::test(start_paused = true)]
async fn bad_arguments_of_commands_are_results_that_say_how_to_do_it() {
    let (bench, mut client, _) = with_files(&[]).await;
    for (tool, arguments, word) in [
        ("run_command", json!({}), "`command` or `argv`"),
        ("run_command", json!({"command": " "}), "`command` or `argv`"),
        ("run_command", json!({"command": "ls", "argv": ["ls"]}), "not both"),
        ("run_command", json!({"argv": "ls -l"}), "a list of strings"),
        ("run_command", json!({"command": ["ls", "-l"]}), "a string"),
        ("run_command", json!({"command": "ls", "cwd": "../x"}), "`cwd`"),
        (
            "run_command",
            json!({"command": "ls", "stdin": "a", "stdin_base64": "YQ=="}),
            "cannot both",
        ),
        (
            "run_command",
            json!({"command": "ls", "stdin_base64": "?"}),
            "not base64",
        ),
        ("run_command", json!({"comand": "ls"}), "did you mean `command`?"),
        ("write_stdin", json!({"data": "x"}), "`execution_id` is missing"),
        (
            "write_stdin",
            json!({"execution_id": UNKNOWN_EXECUTION}),
            "nothing to do",
        ),
        (
            "write_stdin",
            json!({"execution_id": UNKNOWN_EXECUTION, "data_base64": "a-_="}),
            "not base64",
        ),
    ] {
        let answer = client.call(tool, arguments.clone()).await;
        assert_eq!(answer["isError"], true, "{arguments}: {answer}");
        let text = blocks(&answer).concat();
        assert!(
            text.contains(word) && text.contains("invalid_argument"),
            "{arguments}: {text}"
        );
    }
    assert!(bench.world.commands.lock().unwrap().is_empty());
}
