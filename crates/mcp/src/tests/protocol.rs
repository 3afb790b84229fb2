//! Invalid input on the connection. The session survives it.

use super::*;
use crate::limits::MESSAGE_BYTES;

#[tokio::test]
async fn a_call_that_is_taken_back_stops_its_code_and_gets_no_answer() {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    let id = client.start_call("execute_code", json!({"code": endless("on")})).await;
    bench.world.noted("on").await;
    client.works().await;
    let params = json!({"requestId": id, "reason": "no longer wanted"});
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    cancelled_becomes(&bench, 1).await;
    client.works().await;
    client.leave().await.unwrap();
}

#[tokio::test]
async fn taking_back_works_without_a_handshake_too() {
    let bench = bench();
    let mut client = Client::connect(&bench);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"_meta": meta, "name": "execute_code", "arguments": {"code": endless("on")}});
    let id = client.start("tools/call", params).await;
    bench.world.noted("on").await;
    let params = json!({"requestId": id});
    client
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
        .await;
    cancelled_becomes(&bench, 1).await;
    client.leave().await.unwrap();
}

#[tokio::test]
async fn large_reads_that_are_taken_back_while_they_wait_for_room_read_nothing() {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    client.works().await;
    let file = vec![7; 10 << 20].into();
    let files = &bench.world.last().files;
    files.lock().unwrap().insert("/home/user/big".to_owned(), file);
    let reads = || bench.world.reads.lock().unwrap().len();
    let sandbox = bench.engine.status(&bench.me, None).await.unwrap()[0].id.clone();
    let whole = json!({"path": "big", "base64": true});
    // There is room for two answers that the client does not read.
    let first = client.start_call("read_file", whole.clone()).await;
    let second = client.start_call("read_file", whole.clone()).await;
    wait_until(|| reads() == 2).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(client.start_call("read_file", whole.clone()).await);
        let uri = format!("sandcell://{sandbox}/home/user/big");
        waiting.push(client.start("resources/read", json!({"uri": uri})).await);
    }
    for id in waiting {
        let params = json!({"requestId": id, "reason": "no longer wanted"});
        client
            .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
            .await;
    }
    let answers = [client.receive().await, client.receive().await];
    assert!(
        answers
            .iter()
            .all(|answer| answer["id"] == first || answer["id"] == second)
    );
    client.works().await;
    assert_eq!(reads(), 2);
    client.leave().await.unwrap();
}

async fn wait_until(what: impl Fn() -> bool) {
    let done = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, done).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_stops_what_runs_and_ends_the_server() {
    let bench = bench();
    let mut client = Client::ready(&bench).await;
    client.start_call("execute_code", json!({"code": endless("on")})).await;
    client.works().await;
    client.leave().await.unwrap();
    cancelled_becomes(&bench, 1).await;
}

#[tokio::test]
async fn calls_that_were_sent_before_the_end_of_input_are_answered() {
    let mut client = Client::ready(&bench()).await;
    let id = client
        .start_call("execute_code", json!({"code": "print last words"}))
        .await;
    client.write.shutdown().await.unwrap();
    let answer = client.receive().await;
    assert_eq!(answer["id"], id);
    assert_eq!(answer["result"]["content"][0]["text"], "last words\n");
    client.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_last_line_without_line_feed_counts() {
    let mut client = Client::ready(&bench()).await;
    client
        .write
        .write_all(br#"{"jsonrpc":"2.0","id":99,"method":"ping"}"#)
        .await
        .unwrap();
    client.write.shutdown().await.unwrap();
    assert_eq!(client.receive().await["id"], 99);
}

#[tokio::test]
async fn a_client_may_leave_before_it_says_anything() {
    Client::connect(&bench()).leave().await.unwrap();
}

#[tokio::test]
async fn a_panic_is_an_answer() {
    let bench = bench();
    bench.offer(None, Some(sandcell_testkit::FakePackages::of("python")));
    let mut client = Client::ready(&bench).await;
    let in_engine = client.call("execute_code", json!({"code": "panic"})).await;
    let in_tool = client.call("install_package", json!({"packages": ["panic"]})).await;
    assert_text!([in_engine, in_tool].map(|result| transcript(&result)).join("\n\n"));
    client.works().await;
}

#[tokio::test]
async fn every_bad_line_gets_an_answer_and_the_session_lives_on() {
    let mut client = Client::ready(&bench()).await;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":"deep","method":"tools/call","params":{}{}}}"#,
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    let never_closed = format!(
        r#"{{"jsonrpc":"2.0","id":77,"method":"x","params":{}"#,
        "[".repeat(200_000)
    );
    let lines: Vec<&[u8]> = vec![
        b"garbage",
        b"{\"jsonrpc\":\"2.0\",\"id\":5,",
        b"\xff\xfe\x00{",
        b"{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"ping\",\"params\":\"\xff\"}",
        deep.as_bytes(),
        never_closed.as_bytes(),
        br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
        br#"{"id":8}"#,
        br#"{"jsonrpc":"1.0","id":9,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"\ud800"}}}"#,
        br#"{"jsonrpc":"2.0","id":11,"method":"no/such/method"}"#,
        br#"{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"name":"execute_code","arguments":["x"]}}"#,
        br#"{"jsonrpc":"2.0","id":13,"method":"tools/call","params":{"name":"no_such_tool"}}"#,
        br#"{"jsonrpc":"2.0","id":14,"method":"tools/call"}"#,
        br#"42"#,
        br#""a string""#,
    ];
    let mut answers = Vec::new();
    for line in lines {
        client.send_line(line).await;
        answers.push(client.receive().await.to_string());
    }
    assert_text!(answers.join("\n"));
    client.works().await;
    client.leave().await.unwrap();
}

#[tokio::test]
async fn what_needs_no_answer_gets_none() {
    let mut client = Client::ready(&bench()).await;
    for line in [
        &b""[..],
        b"   ",
        b"\r",
        br#"{"jsonrpc":"2.0","method":"notifications/unknown","params":{}}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12345}}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":"wrong"}"#,
        br#"{"jsonrpc":"2.0","id":500,"result":{}}"#,
        br#"{"jsonrpc":"2.0","id":500,"error":{"code":1,"message":"x"}}"#,
    ] {
        client.send_line(line).await;
    }
    client.works().await;
}

#[tokio::test]
async fn noise_before_the_handshake_does_not_end_the_session() {
    let mut client = Client::connect(&bench());
    client
        .send_line(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
        .await;
    client.send_line(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    client.send_line(b"hello?").await;
    assert_eq!(client.receive().await["error"]["code"], -32700);
    let early = client.request("tools/list", json!({})).await;
    assert!(early["error"]["message"].as_str().unwrap().contains("_meta"));
    client.initialize().await;
    client.works().await;
}

#[tokio::test]
async fn a_message_of_20_mb_is_taken_and_one_above_the_limit_is_refused_by_its_id() {
    let mut client = Client::ready(&bench()).await;
    let code = format!("print {}", "x".repeat(20_000_000));
    let result = client.call("execute_code", json!({"code": code})).await;
    assert!(result["content"][0]["text"].as_str().unwrap().len() < 21_000);
    let too_long = "y".repeat(MESSAGE_BYTES);
    let params = json!({"name": "execute_code", "arguments": {"code": too_long}});
    let id = client.start("tools/call", params).await;
    let refused = client.receive().await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(id), &json!(-32600))
    );
    let text = refused["error"]["message"].as_str().unwrap();
    assert!(
        text.ends_with("at most 25165824 are taken. Send files in parts with append=true"),
        "{text}"
    );
    client.works().await;
}

#[tokio::test]
async fn an_id_that_is_still_open_is_not_taken_twice() {
    let mut client = Client::ready(&bench()).await;
    let id = client
        .start_call("execute_code", json!({"code": "sleep 2500\nprint hello"}))
        .await;
    client
        .send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}))
        .await;
    let refused = client.receive().await;
    assert_eq!(refused["error"]["code"], -32600);
    let answer = client.receive().await;
    assert_eq!(answer["id"], id);
    assert_eq!(answer["result"]["content"][0]["text"], "hello\n");
    client
        .send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}))
        .await;
    assert_eq!(client.receive().await["result"], json!({}));
}

#[tokio::test]
async fn more_requests_than_the_server_works_on_are_refused_one_by_one() {
    let mut client = Client::ready(&bench_with(|config| config.queue = 1000)).await;
    for _ in 0..256 {
        client.start_call("execute_code", json!({"code": endless("on")})).await;
    }
    let id = client.start_call("execute_code", json!({"code": endless("on")})).await;
    let refused = client.receive().await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(id), &json!(-32000))
    );
    client.leave().await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_listened_to() {
    let mut client = Client::ready(&bench()).await;
    let code = "z".repeat(15_000);
    let flood = async {
        for _ in 0..10_000 {
            let id = client.next_id;
            client.next_id += 1;
            let params = json!({"name": "execute_code", "arguments": {"code": code}});
            let line = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string() + "\n";
            client.write.write_all(line.as_bytes()).await.unwrap();
        }
    };
    // 150 MB of requests do not fit: the pipe fills up and stays full.
    assert!(tokio::time::timeout(Duration::from_secs(1), flood).await.is_err());
    assert!(client.next_id < 1000, "{} requests were taken", client.next_id);
    client.leave().await.unwrap();
}

#[tokio::test]
async fn progress_is_told_to_those_who_ask_and_never_after_the_answer() {
    let mut client = Client::ready(&bench()).await;
    let params = json!({
        "name": "execute_code", "arguments": {"code": "sleep 2500"}, "_meta": {"progressToken": "p1"},
    });
    let id = client.start("tools/call", params).await;
    for second in 1..=2 {
        let notification = client.receive().await;
        assert_eq!(notification["method"], "notifications/progress");
        assert_eq!(notification["params"]["progressToken"], "p1");
        assert_eq!(notification["params"]["progress"].as_f64(), Some(f64::from(second)));
    }
    assert_eq!(client.receive().await["id"], id);
    client.works().await;
}

#[tokio::test]
async fn calls_run_side_by_side() {
    let mut client = Client::ready(&bench()).await;
    let slow = client
        .start_call("execute_code", json!({"code": "sleep 2500\nprint hello"}))
        .await;
    client.works().await;
    assert_eq!(client.receive().await["id"], slow);
}
