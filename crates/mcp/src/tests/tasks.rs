use serde_json::{Value, json};

use super::{Client, TEST_TIMEOUT, bench, bench_with, cancelled_becomes, endless};

fn meta(capabilities: Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    })
}

fn knows_tasks() -> Value {
    meta(json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}))
}

async fn run(client: &mut Client, meta: &Value, code: &str) -> Value {
    let params = json!({"_meta": meta, "name": "execute_code", "arguments": {"code": code, "timeout_s": 60}});
    client.request("tools/call", params).await["result"].take()
}

async fn ask(client: &mut Client, method: &str, task: &str) -> Value {
    client
        .request(method, json!({"_meta": knows_tasks(), "taskId": task}))
        .await
}

/// Waits until a task has ended.
async fn ended(client: &mut Client, task: &str) -> Value {
    let asking = async {
        loop {
            let mut answer = ask(client, "tasks/get", task).await;
            if answer["result"]["status"] != "working" {
                return answer["result"].take();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, asking).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_quick_is_answered_and_what_lasts_becomes_a_task_with_the_whole_result() {
    let mut client = Client::connect(&bench());
    let quick = run(&mut client, &knows_tasks(), "print quick").await;
    assert_eq!(quick["resultType"], "complete", "{quick}");
    assert_eq!(quick["content"][0]["text"], "quick\n");
    let begun = run(&mut client, &knows_tasks(), "sleep 50000\nprint hello").await;
    assert_eq!(begun["resultType"], "task", "{begun}");
    let done = ended(&mut client, begun["taskId"].as_str().unwrap()).await;
    assert_eq!(done["status"], "completed", "{done}");
    // The call itself said `running`; the task waited on.
    assert_eq!(done["result"]["content"][0]["text"], "hello\n", "{done}");
    assert_eq!(done["result"]["_meta"]["sandcell/execution"]["status"], "ok");
    client.leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_cancelled_stops_its_code_and_so_does_a_client_that_leaves() {
    let bench = bench();
    let mut client = Client::connect(&bench);
    let begun = run(&mut client, &knows_tasks(), &endless("one")).await;
    let task = begun["taskId"].as_str().unwrap();
    ask(&mut client, "tasks/cancel", task).await;
    assert_eq!(ended(&mut client, task).await["status"], "cancelled");
    cancelled_becomes(&bench, 1).await;
    run(&mut client, &knows_tasks(), &endless("two")).await;
    client.leave().await.unwrap();
    cancelled_becomes(&bench, 2).await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_know_no_tasks_never_see_one_and_a_mistake_of_the_server_is_told() {
    let mut client = Client::connect(&bench());
    let plain = run(&mut client, &meta(json!({})), "sleep 2500").await;
    assert_eq!(plain["resultType"], "complete", "{plain}");
    let broken = run(&mut client, &knows_tasks(), "panic").await;
    assert_eq!(broken["isError"], true, "{broken}");
    let unknown = ask(&mut client, "tasks/get", "none").await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    client.leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_that_are_kept_are_bounded_and_then_calls_are_as_they_always_were() {
    let mut client = Client::connect(&bench_with(|config| config.queue = 100));
    let params = json!({"_meta": knows_tasks(), "name": "execute_code", "arguments": {"code": endless("on"), "timeout_s": 3600}});
    for _ in 0..40 {
        client.start("tools/call", params.clone()).await;
    }
    for _ in 0..32 {
        let answer = client.receive().await;
        assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    }
    // The next one waits as calls do, and is answered as they are.
    let arguments = json!({"code": "sleep 2500", "language": "bash"});
    let params = json!({"_meta": knows_tasks(), "name": "execute_code", "arguments": arguments});
    let more = client.request("tools/call", params).await["result"].take();
    assert_eq!(more["resultType"], "complete", "{more}");
    client.leave().await.unwrap();
}
