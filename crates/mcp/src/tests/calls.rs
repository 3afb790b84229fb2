//! Each tool, called as a client calls it.

use super::*;
use crate::content::pictures;
use crate::host::fake::{EXECUTION, SANDBOX};

async fn with_files(files: &[(&str, &[u8])]) -> (Arc<FakeHost>, Client) {
    let host = Arc::new(FakeHost::default());
    for (path, bytes) in files {
        host.files.lock().unwrap().insert((*path).to_owned(), bytes.to_vec());
    }
    let client = Client::ready(Arc::clone(&host)).await;
    (host, client)
}

fn last_asked(host: &FakeHost) -> String {
    host.asked.lock().unwrap().last().unwrap().clone()
}

#[tokio::test]
async fn execute_code_hands_its_arguments_to_the_engine() {
    let (host, mut client) = with_files(&[]).await;
    client.call("execute_code", json!({"code": "1"})).await;
    assert_eq!(
        last_asked(&host),
        "ExecuteRequest { code: \"1\", language: \"python\", sandbox_id: None, stdin: None, timeout: None, wait: Some(45s), watch: Watch }"
    );
    let arguments = json!({
        "code": "1", "language": "sh", "sandbox_id": SANDBOX, "stdin": "in", "timeout_s": "2.5", "wait_s": 600
    });
    client.call("execute_code", arguments).await;
    assert_eq!(
        last_asked(&host),
        format!(
            "ExecuteRequest {{ code: \"1\", language: \"sh\", sandbox_id: Some({SANDBOX:?}), stdin: Some(\"in\"), \
             timeout: Some(2.5s), wait: Some(55s), watch: Watch }}"
        )
    );
}

#[tokio::test]
async fn a_call_waits_no_longer_than_the_server_and_its_client_say() {
    let host = Arc::new(FakeHost::default());
    let options = ServerOptions {
        wait: Some(Duration::from_secs(4)),
        ..ServerOptions::default()
    };
    let mut client = Client::connect_with(Arc::clone(&host), options);
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
        let call = json!({"name": "execute_code", "arguments": arguments, "_meta": meta});
        let answer = client.request("tools/call", call).await;
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        let asked = last_asked(&host);
        let (_, wait) = asked.split_once("wait: Some(").unwrap();
        wait.split_once(')').unwrap().0.to_owned()
    };
    assert_eq!(waits(json!({"code": "1"}), json!({})).await, "4s");
    assert_eq!(waits(json!({"code": "1", "wait_s": 20}), json!({})).await, "20s");
    let limit = json!({"sandcell/timeout_s": 5});
    assert_eq!(waits(json!({"code": "1", "wait_s": 20}), limit.clone()).await, "4.5s");
    assert_eq!(waits(json!({"code": "1", "wait_s": 1}), limit).await, "1s");
    assert_eq!(
        waits(json!({"code": "1"}), json!({"sandcell/timeout_s": 600})).await,
        "4s"
    );
    for odd in [json!(-1), json!("x"), json!(1e300), json!(null)] {
        assert_eq!(
            waits(json!({"code": "1"}), json!({"sandcell/timeout_s": odd})).await,
            "4s"
        );
    }
    assert_eq!(
        waits(json!({"code": "1"}), json!({"sandcell/timeout_s": 0.1})).await,
        "0ns"
    );
}

#[tokio::test]
async fn a_wait_that_is_cut_is_told_where_it_matters() {
    let (_, mut client) = with_files(&[]).await;
    let running = client
        .call("execute_code", json!({"code": "later", "wait_s": 600}))
        .await;
    let last = blocks(&running).pop().unwrap();
    assert!(
        last.ends_with("\nwait_s: 600 s is more than a call can wait; it waited 55 s"),
        "{last}"
    );
    let quick = client
        .call("execute_code", json!({"code": "quick", "wait_s": 600}))
        .await;
    assert!(!blocks(&quick).concat().contains("wait_s"));
}

#[tokio::test]
async fn a_creation_that_lasts_goes_on_without_its_call() {
    let (host, mut client) = with_files(&[]).await;
    let slow = json!({"label": "slow", "wait_s": 0.01});
    let busy = client.call("create_sandbox", slow).await;
    assert_eq!(busy["_meta"]["sandcell/error"]["code"], "busy", "{busy}");
    let made = async {
        while last_asked(&host) != "\"made\"" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, made).await.unwrap();
    let waited = client.call("create_sandbox", json!({"label": "slow"})).await;
    assert_eq!(waited["structuredContent"]["sandbox_id"], SANDBOX);
}

#[tokio::test]
async fn the_newest_execution_is_had_without_its_id() {
    let (host, mut client) = with_files(&[]).await;
    client.call("get_execution", json!({"wait_s": 0})).await;
    assert_eq!(last_asked(&host), format!("({EXECUTION:?}, 0ns)"));
}

#[tokio::test]
async fn create_run_close_hands_files_and_outputs_over() {
    let (host, mut client) = with_files(&[]).await;
    let arguments = json!({
        "code": "1", "files": {"a.txt": "A", "/tmp/b": "B"}, "outputs": ["out/plot.png"], "memory_mb": 64,
    });
    let ran = client.call("create_run_close", arguments).await;
    assert_eq!(ran["_meta"]["sandcell/execution"]["new_sandbox"], json!(true));
    assert!(
        !blocks(&ran).concat().contains(SANDBOX),
        "a sandbox that is gone is not offered"
    );
    insta::assert_snapshot!(last_asked(&host));
    let bad = client
        .call("create_run_close", json!({"code": "1", "outputs": ["../x"]}))
        .await;
    insta::assert_snapshot!(transcript(&bad));
}

#[tokio::test]
async fn bad_arguments_are_results_that_say_how_to_do_it() {
    let (_, mut client) = with_files(&[]).await;
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
        ("get_execution", json!({"execution_id": EXECUTION, "stream": "log"})),
    ] {
        let result = client.call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], json!(true), "{tool} {arguments}");
        assert!(result["_meta"]["sandcell/error"]["remedy"].is_string());
        transcripts.push(format!("{tool} {arguments}\n{}", transcript(&result)));
    }
    insta::assert_snapshot!(transcripts.join("\n\n"));
}

#[tokio::test]
async fn the_tools_around_sandboxes_say_what_a_model_needs() {
    let (_, mut client) = with_files(&[]).await;
    let created = client
        .call("create_sandbox", json!({"count": 2, "cpus": 0.5, "label": "x"}))
        .await;
    let data = &created["structuredContent"];
    assert_eq!(data["sandbox_id"], SANDBOX);
    assert_eq!(data["sandbox_ids"], json!([SANDBOX, SANDBOX]));
    assert_eq!(data["limits"]["memory_mb"], 512);
    assert!(data["idle_expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(data["ends_at"], Value::Null);
    let closed = client.call("close_sandbox", json!({"sandbox_id": SANDBOX})).await;
    let one = client.call("get_sandbox_status", json!({"sandbox_id": SANDBOX})).await;
    let all = client.call("get_sandbox_status", json!({})).await;
    assert_eq!(all["structuredContent"]["sandboxes"].as_array().unwrap().len(), 2);
    let reset = client.call("reset_session_state", json!({})).await;
    let texts = [created, closed, one, all, reset]
        .map(|result| transcript(&result))
        .join("\n\n");
    insta::assert_snapshot!(without_times(&texts));
}

/// Replaces the times, which differ from run to run.
fn without_times(text: &str) -> String {
    let words: Vec<String> = text
        .split(' ')
        .map(|word| {
            if word.starts_with("20") && word.contains('T') {
                "<time>".to_owned()
            } else {
                word.to_owned()
            }
        })
        .collect();
    words.join(" ")
}

#[tokio::test]
async fn history_is_compact_and_complete_as_data() {
    let (host, mut client) = with_files(&[]).await;
    let result = client.call("get_execution_history", json!({})).await;
    insta::assert_snapshot!(transcript(&result));
    insta::assert_json_snapshot!(result["structuredContent"]["records"][1]);
    for (given, used) in [
        (json!(0), 1),
        (json!(-5), 1),
        (json!(1000), 50),
        (json!("7"), 7),
        (json!(null), 10),
    ] {
        client.call("get_execution_history", json!({"last_n": given})).await;
        assert_eq!(last_asked(&host), format!("({used}, None)"));
    }
}

#[tokio::test]
async fn a_running_execution_can_be_waited_for_read_in_parts_and_stopped() {
    let (host, mut client) = with_files(&[]).await;
    let whole = client.call("get_execution", json!({"execution_id": EXECUTION})).await;
    assert_eq!(last_asked(&host), format!("({EXECUTION:?}, 45s)"));
    let part = client
        .call(
            "get_execution",
            json!({"execution_id": EXECUTION, "stream": "stderr", "offset": -500, "find": "Error"}),
        )
        .await;
    let asked = host.asked.lock().unwrap().clone();
    assert_eq!(
        asked[1..],
        [
            format!("({EXECUTION:?}, 0ns)"),
            "StreamPart { stream: Stderr, offset: -500, limit: 20000, find: Some(\"Error\") }".to_owned()
        ]
    );
    assert_eq!(
        part["_meta"]["sandcell/stream"],
        json!({"text": "part of it\n", "stream": "stderr", "offset": 100, "next_offset": 111, "total_bytes": 5000, "eof": false})
    );
    let stopped = client.call("cancel_execution", json!({})).await;
    let texts = [whole, part, stopped].map(|result| transcript(&result)).join("\n\n");
    insta::assert_snapshot!(texts);
}

#[tokio::test]
async fn a_folder_is_listed_with_names_that_cannot_break_lines() {
    let (_, mut client) = with_files(&[]).await;
    let result = client.call("list_files", json!({"recursive": "true"})).await;
    insta::assert_snapshot!(transcript(&result));
    insta::assert_json_snapshot!(result["structuredContent"]);
}

#[tokio::test]
async fn text_is_read_in_pages() {
    let lines: String = (0..3000).map(|n| format!("line {n:04}\n")).collect();
    let (_, mut client) = with_files(&[("/home/user/a.txt", lines.as_bytes()), ("/tmp/empty", b"")]).await;
    let first = client.call("read_file", json!({"path": "a.txt"})).await;
    let page = first["_meta"]["sandcell/file"].clone();
    assert_eq!(
        (&page["total_lines"], &page["next_offset"]),
        (&json!(3000), &json!(2000))
    );
    assert_eq!(blocks(&first)[0], lines[..20_000]);
    assert_eq!(
        blocks(&first)[1],
        format!("[/home/user/a.txt in {SANDBOX}: 30000 bytes, total_lines 3000, lines 0 to 1999, next_offset 2000]")
    );
    let middle = client
        .call("read_file", json!({"path": "a.txt", "offset": 2998, "limit": 1}))
        .await;
    assert_eq!(blocks(&middle)[0], "line 2998\n");
    let rest = client.call("read_file", json!({"path": "a.txt", "offset": 2998})).await;
    assert_eq!(rest["_meta"]["sandcell/file"]["next_offset"], Value::Null);
    let beyond = client.call("read_file", json!({"path": "a.txt", "offset": 9999})).await;
    let empty = client.call("read_file", json!({"path": "/tmp/empty"})).await;
    insta::assert_snapshot!([rest, beyond, empty].map(|result| transcript(&result)).join("\n\n"));
}

#[tokio::test]
async fn a_file_larger_than_one_call_is_paged_without_reading_it_whole() {
    let big = "0123456789abcde\n".repeat(1 << 20);
    let (_, mut client) = with_files(&[("/home/user/big", big.as_bytes())]).await;
    let result = client
        .call("read_file", json!({"path": "big", "offset": 5, "limit": 2}))
        .await;
    assert_eq!(blocks(&result)[0], "0123456789abcde\n0123456789abcde\n");
    let page = &result["_meta"]["sandcell/file"];
    assert_eq!((&page["total_lines"], &page["next_offset"]), (&Value::Null, &json!(7)));
}

#[tokio::test]
async fn pictures_are_shown_and_other_binary_is_linked() {
    let png = pictures::tests::png_file(20, 10, false);
    let (_, mut client) = with_files(&[("/home/user/p.png", &png), ("/home/user/x.bin", b"\0\x01\xff")]).await;
    let picture = client.call("read_file", json!({"path": "p.png"})).await;
    let binary = client.call("read_file", json!({"path": "x.bin"})).await;
    let bytes = client.call("read_file", json!({"path": "x.bin", "base64": true})).await;
    let part = client
        .call(
            "read_file",
            json!({"path": "x.bin", "base64": true, "offset": 1, "limit": 1}),
        )
        .await;
    insta::assert_snapshot!(
        [picture, binary, bytes, part]
            .map(|result| transcript(&result))
            .join("\n\n")
    );
}

#[tokio::test]
async fn what_is_written_can_be_read_back() {
    let (host, mut client) = with_files(&[]).await;
    let written = client
        .call("write_file", json!({"path": "a/b.txt", "content": "Grüße\n"}))
        .await;
    let more = client
        .call("write_file", json!({"path": "a/b.txt", "content": "x", "append": true}))
        .await;
    let uploaded = client
        .call("upload_file", json!({"path": "b.bin", "content_base64": "AAH/"}))
        .await;
    assert_eq!(host.files.lock().unwrap()["/home/user/b.bin"], [0, 1, 255]);
    let read = client.call("read_file", json!({"path": "a/b.txt"})).await;
    insta::assert_snapshot!(
        [written, more, uploaded, read]
            .map(|result| transcript(&result))
            .join("\n\n")
    );
}

#[tokio::test]
async fn ten_mebibytes_can_be_uploaded_and_no_more() {
    use base64::Engine as _;
    let (host, mut client) = with_files(&[]).await;
    let encode = |size: usize| base64::engine::general_purpose::STANDARD.encode(vec![7; size]);
    let fits = client
        .call("upload_file", json!({"path": "a", "content_base64": encode(10 << 20)}))
        .await;
    assert_eq!(fits["isError"], json!(false));
    assert_eq!(host.files.lock().unwrap()["/home/user/a"].len(), 10 << 20);
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

#[tokio::test]
async fn a_host_file_comes_only_from_a_folder_that_the_operator_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.csv");
    std::fs::write(&file, "a,b\n").unwrap();
    let mut host = FakeHost::default();
    host.config.upload_from = vec![folder.path().to_owned()];
    let host = Arc::new(host);
    let mut client = Client::ready(Arc::clone(&host)).await;
    let result = client
        .call("upload_file", json!({"path": "in.csv", "local_path": file}))
        .await;
    assert_eq!(result["isError"], json!(false), "{result}");
    assert_eq!(host.files.lock().unwrap()["/home/user/in.csv"], b"a,b\n");
    let refused = client
        .call("upload_file", json!({"path": "x", "local_path": "/etc/hostname"}))
        .await;
    assert_eq!(refused["_meta"]["sandcell/error"]["code"], "denied_by_policy");
}

#[tokio::test]
async fn resources_are_read_by_their_address() {
    let table = sandcell_engine::Artifact {
        number: 3,
        name: "t.csv".into(),
        mime: "text/csv".into(),
        bytes: "a,b\n".into(),
        shown: false,
        text: None,
    };
    let host = FakeHost {
        artifacts: vec![table],
        ..FakeHost::default()
    };
    host.files
        .lock()
        .unwrap()
        .insert("/home/user/a b.bin".into(), vec![0, 1]);
    let mut client = Client::ready(Arc::new(host)).await;
    let artifact = client
        .request(
            "resources/read",
            json!({"uri": format!("sandcell://executions/{EXECUTION}/3")}),
        )
        .await;
    let file = client
        .request(
            "resources/read",
            json!({"uri": format!("sandcell://{SANDBOX}/home/user/a%20b.bin")}),
        )
        .await;
    let templates = client.request("resources/templates/list", json!({})).await;
    insta::assert_json_snapshot!([&artifact["result"], &file["result"], &templates["result"]]);
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

#[tokio::test]
async fn more_than_a_user_can_be_asked_about_is_refused_as_such() {
    let mut client = Client::connect(Arc::default());
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

#[tokio::test]
async fn run_command_hands_a_line_or_words_to_the_engine() {
    let (host, mut client) = with_files(&[]).await;
    let ran = client.call("run_command", json!({"command": "ls | wc -l"})).await;
    assert_eq!(ran["_meta"]["sandcell/execution"]["language"], "command");
    assert_eq!(
        last_asked(&host),
        "(CommandRequest { command: Shell(\"ls | wc -l\"), cwd: SandboxPath(\"/home/user\"), env: {}, sandbox_id: None, \
         timeout: None, wait: Some(45s), watch: Watch }, CommandInput { first: b\"\", open: false })"
    );
    let arguments = json!({
        "argv": ["grep", "", 5], "cwd": "src", "env": {"A": 1}, "sandbox_id": SANDBOX, "stdin_base64": "AP8=",
        "keep_stdin": "true", "timeout_s": "2.5", "wait_s": 0,
    });
    client.call("run_command", arguments).await;
    assert_eq!(
        last_asked(&host),
        format!(
            "(CommandRequest {{ command: Argv([\"grep\", \"\", \"5\"]), cwd: SandboxPath(\"/home/user/src\"), \
             env: {{\"A\": \"1\"}}, sandbox_id: Some({SANDBOX:?}), timeout: Some(2.5s), wait: Some(0ns), watch: Watch }}, \
             CommandInput {{ first: b\"\\0\\xff\", open: true }})"
        )
    );
    client.call("run_command", json!({"argv": "[\"a b\", \"\"]"})).await;
    assert!(last_asked(&host).contains(r#"Argv(["a b", ""])"#));
}

#[tokio::test]
async fn write_stdin_hands_bytes_and_their_end_to_the_engine() {
    let (host, mut client) = with_files(&[]).await;
    let written = client
        .call("write_stdin", json!({"execution_id": EXECUTION, "data": "a\n"}))
        .await;
    assert_eq!(
        written["_meta"]["sandcell/stdin"],
        json!({"execution_id": EXECUTION, "written": 2, "closed": false})
    );
    assert_eq!(
        last_asked(&host),
        format!("({EXECUTION:?}, StdinPart {{ bytes: b\"a\\n\", close: false }}, 45s)")
    );
    let last = json!({"execution_id": EXECUTION, "data_base64": "/w==", "close": true, "wait_s": 1});
    client.call("write_stdin", last).await;
    assert!(last_asked(&host).ends_with("StdinPart { bytes: b\"\\xff\", close: true }, 1s)"));
    client
        .call("write_stdin", json!({"execution_id": EXECUTION, "close": "yes"}))
        .await;
    assert!(last_asked(&host).contains("StdinPart { bytes: b\"\", close: true }"));
}

#[tokio::test]
async fn bad_arguments_of_commands_are_results_that_say_how_to_do_it() {
    let (host, mut client) = with_files(&[]).await;
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
        ("write_stdin", json!({"execution_id": EXECUTION}), "nothing to do"),
        (
            "write_stdin",
            json!({"execution_id": EXECUTION, "data_base64": "a-_="}),
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
    assert!(host.asked.lock().unwrap().is_empty());
}
