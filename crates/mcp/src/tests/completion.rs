use serde_json::{Value, json};

use super::{Client, bench};

const FILE_TEMPLATE: &str = "sandcell://{sandbox_id}/{+path}";
const ARTIFACT_TEMPLATE: &str = "sandcell://executions/{execution_id}/{n}";

async fn completed(client: &mut Client, of: Value, name: &str, value: &str, context: Value) -> Value {
    let params = json!({
        "ref": of,
        "argument": {"name": name, "value": value},
        "context": {"arguments": context},
    });
    let mut answer = client.request("completion/complete", params).await;
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"]["completion"]["values"].take()
}

#[tokio::test(start_paused = true)]
async fn ids_and_paths_are_completed_with_what_the_caller_has() {
    let bench = bench();
    let mut client = Client::connect(&bench);
    let info = client.initialize().await;
    assert_eq!(info["result"]["capabilities"]["completions"], json!({}));
    let code = "write /home/user/data.csv x\nwrite /home/user/src/a x\nwrite /tmp/data.csv x\nplot";
    let ran = client.call("execute_code", json!({"code": code})).await;
    let ran = &ran["_meta"]["sandcell/execution"];
    let (sandbox, execution) = (&ran["sandbox_id"], &ran["execution_id"]);
    let file = bytes::Bytes::from_static(b"x");
    let files = &bench.world.last().files;
    files.lock().unwrap().insert("/home/user/odd\nname".to_owned(), file);
    let template = |uri: &str| json!({"type": "ref/resource", "uri": uri});
    let prompt = json!({"type": "ref/prompt", "name": "analyze_data"});
    let within = json!({"sandbox_id": sandbox});
    for (of, name, value, context, expected) in [
        (template(FILE_TEMPLATE), "sandbox_id", "sb", json!({}), json!([sandbox])),
        (template(FILE_TEMPLATE), "sandbox_id", "ex", json!({}), json!([])),
        (
            template(FILE_TEMPLATE),
            "path",
            "home/user/",
            within.clone(),
            json!(["home/user/data.csv", "home/user/odd\nname", "home/user/src/"]),
        ),
        (
            template(FILE_TEMPLATE),
            "path",
            "home/user/s",
            within.clone(),
            json!(["home/user/src/"]),
        ),
        (
            template(FILE_TEMPLATE),
            "path",
            "home/../../etc/",
            within.clone(),
            json!([]),
        ),
        (
            template(FILE_TEMPLATE),
            "path",
            "",
            json!({"sandbox_id": "sbnone"}),
            json!([]),
        ),
        (
            template(ARTIFACT_TEMPLATE),
            "execution_id",
            "ex",
            json!({}),
            json!([execution]),
        ),
        (
            template(ARTIFACT_TEMPLATE),
            "n",
            "",
            json!({"execution_id": execution}),
            json!(["0"]),
        ),
        (
            template(ARTIFACT_TEMPLATE),
            "n",
            "",
            json!({"execution_id": "exnone"}),
            json!([]),
        ),
        (template(ARTIFACT_TEMPLATE), "n", "", json!({}), json!([])),
        (
            prompt.clone(),
            "path",
            "",
            json!({}),
            json!(["data.csv", "odd\nname", "src/"]),
        ),
        (prompt.clone(), "path", "/tmp/d", json!({}), json!(["/tmp/data.csv"])),
        (prompt, "question", "", json!({}), json!([])),
        (
            json!({"type": "ref/prompt", "name": "no such"}),
            "code",
            "",
            json!({}),
            json!([]),
        ),
    ] {
        let values = completed(&mut client, of.clone(), name, value, context).await;
        assert_eq!(values, expected, "{of} {name} {value:?}");
    }
    client.leave().await.unwrap();
}
