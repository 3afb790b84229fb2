//! The information that a client gets before it calls anything.

use sandcell_testkit::{FakeNetwork, FakePackages};

use super::*;

/// The engine of these tests, with packages for Python.
fn with_packages() -> Bench {
    let bench = bench();
    bench.offer(None, Some(FakePackages::of("python")));
    bench
}

#[tokio::test]
async fn the_list_of_tools_is_as_it_is() {
    let mut client = Client::ready(&with_packages()).await;
    let answer = client.request("tools/list", json!({})).await;
    insta::assert_json_snapshot!(answer["result"]);
}

#[tokio::test]
async fn the_list_of_tools_stays_small_with_every_language_and_host_files() {
    let mut languages = languages();
    for name in ["node", "ruby", "r", "julia", "go", "rust", "java", "perl", "lua", "php"] {
        languages.push(LanguageInfo {
            name: name.into(),
            aliases: Vec::new(),
            ..languages[0].clone()
        });
    }
    let bench = Bench::with_languages(languages, |config| config.upload_from = vec!["/data".into()]);
    bench.offer(None, Some(FakePackages::of("python")));
    let mut client = Client::ready(&bench).await;
    let answer = client.request("tools/list", json!({})).await;
    let size = answer.to_string().len();
    assert!(size < 12_000, "{size} bytes");
}

#[tokio::test]
async fn names_arguments_and_hints_are_what_clients_can_take() {
    let mut client = Client::ready(&with_packages()).await;
    let answer = client.request("tools/list", json!({})).await;
    for tool in answer["result"]["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        assert!(
            name.len() <= 32 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
            "{name}"
        );
        assert_eq!(tool["inputSchema"]["type"], "object");
        assert_eq!(tool["inputSchema"]["additionalProperties"], json!(false));
        assert!(
            tool["annotations"]["openWorldHint"] == json!(false),
            "{name} has no network"
        );
        for argument in ["network", "image"] {
            assert!(
                tool["inputSchema"]["properties"].get(argument).is_none(),
                "{name}: {argument} is not there"
            );
        }
    }
    let reads: Vec<&str> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["annotations"]["readOnlyHint"] == json!(true))
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        reads,
        [
            "get_sandbox_status",
            "get_execution",
            "list_files",
            "read_file",
            "get_execution_history"
        ]
    );
}

#[tokio::test]
async fn network_is_offered_where_the_operator_allows_hosts() {
    let bench = with_packages();
    bench.offer(
        Some(FakeNetwork::to(&["*.example.org"])),
        Some(FakePackages::of("python")),
    );
    let mut client = Client::ready(&bench).await;
    let answer = client.request("tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let with: Vec<&str> = tools
        .iter()
        .filter(|tool| tool["inputSchema"]["properties"].get("network").is_some())
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(with, ["create_run_close", "create_sandbox"]);
    for tool in tools {
        let reaches = with.contains(&tool["name"].as_str().unwrap());
        assert_eq!(tool["annotations"]["openWorldHint"], json!(reaches));
    }
    assert!(answer.to_string().len() < 12_000);
}

#[tokio::test]
async fn only_the_tools_that_the_operator_named_exist() {
    let tools = Some(vec!["read_file".to_owned(), "execute_code".to_owned()]);
    let mut client = Client::connect_with(
        &with_packages(),
        ServerOptions {
            tools,
            ..ServerOptions::default()
        },
    );
    client.initialize().await;
    let answer = client.request("tools/list", json!({})).await;
    let names: Vec<&Value> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(names, ["execute_code", "read_file"]);
    let refused = client
        .request("tools/call", json!({"name": "write_file", "arguments": {}}))
        .await;
    assert_eq!(refused["error"]["code"], -32602);
}

#[tokio::test]
async fn a_tool_that_does_not_exist_cannot_be_selected() {
    let tools = Some(vec!["execute_cod".to_owned()]);
    let client = Client::connect_with(
        &with_packages(),
        ServerOptions {
            tools,
            ..ServerOptions::default()
        },
    );
    let error = client.server.await.unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with("there is no tool execute_cod; the tools are execute_code, create_run_close"),
        "{error}"
    );
}

#[tokio::test]
async fn prompts_are_listed_and_written_out() {
    let mut client = Client::ready(&with_packages()).await;
    let listed = client.request("prompts/list", json!({})).await;
    for prompt in listed["result"]["prompts"].as_array().unwrap() {
        let mut arguments = json!({});
        for argument in prompt["arguments"].as_array().unwrap() {
            arguments[argument["name"].as_str().unwrap()] = json!("this value");
        }
        let params = json!({"name": prompt["name"], "arguments": arguments});
        let written = client.request("prompts/get", params).await;
        let text = written["result"]["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("this value"), "{text}");
        let lacking = client.request("prompts/get", json!({"name": prompt["name"]})).await;
        assert_eq!(lacking["error"]["code"], -32602);
    }
    let unknown = client.request("prompts/get", json!({"name": "none"})).await;
    assert!(
        unknown["error"]["message"].as_str().unwrap().contains("analyze_data"),
        "{unknown}"
    );
}

#[tokio::test]
async fn the_handshake_names_the_server_and_tells_how_to_use_it() {
    let mut client = Client::connect(&with_packages());
    let answer = client.initialize().await;
    let result = &answer["result"];
    assert_eq!(result["serverInfo"]["name"], "sandcell");
    assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(
        result["capabilities"],
        json!({
            "completions": {}, "logging": {}, "tools": {}, "resources": {}, "prompts": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        })
    );
    let instructions = result["instructions"].as_str().unwrap();
    assert!(instructions.len() <= 1500 && instructions.contains("execute_code"));
}

#[tokio::test]
async fn the_era_without_a_handshake_works_too() {
    let mut client = Client::connect(&with_packages());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    let discovered = client.request("server/discover", json!({"_meta": meta})).await;
    assert!(
        discovered["result"]["instructions"]
            .as_str()
            .unwrap()
            .contains("execute_code")
    );
    let listed = client.request("tools/list", json!({"_meta": meta})).await;
    assert_eq!(listed["result"]["resultType"], "complete");
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 14);
    let params = json!({"_meta": meta, "name": "execute_code", "arguments": {"code": "print hi"}});
    let called = client.request("tools/call", params).await;
    assert_eq!(called["result"]["content"][0]["text"], "hi\n");
    assert_eq!(called["result"]["resultType"], "complete");
    client.leave().await.unwrap();
}

#[tokio::test]
async fn the_other_sets_of_tools_are_as_they_are() {
    use crate::tools::{Interpreters, Toolset};
    let mut listed = Vec::new();
    for toolset in [
        Toolset::Container,
        Toolset::Script(Interpreters::Fresh),
        Toolset::Script(Interpreters::Kept),
    ] {
        let options = ServerOptions {
            toolset,
            ..ServerOptions::default()
        };
        let mut client = Client::connect_with(&with_packages(), options);
        let answer = client.initialize().await;
        let instructions = answer["result"]["instructions"].as_str().unwrap();
        assert!(instructions.len() <= 1500, "{}", instructions.len());
        // Prompts speak of tools that are not there.
        assert_eq!(answer["result"]["capabilities"]["prompts"], json!(null));
        listed.push(client.request("tools/list", json!({})).await["result"].take());
    }
    insta::assert_json_snapshot!(listed);
}

#[tokio::test]
async fn tools_for_programs_can_be_called_and_are_not_listed() {
    let listed = async |client: &mut Client| {
        let answer = client.request("tools/list", json!({})).await;
        answer.to_string()
    };
    let mut client = Client::ready(&with_packages()).await;
    let list = listed(&mut client).await;
    assert!(!list.contains("run_command") && !list.contains("write_stdin"), "{list}");
    client.call("run_command", json!({"command": "ls"})).await;

    // An operator who names the tools names these as well.
    let only = |names: &[&str]| ServerOptions {
        tools: Some(names.iter().map(|&name| name.to_owned()).collect()),
        ..ServerOptions::default()
    };
    let call = json!({"name": "run_command", "arguments": {"command": "ls"}});
    let mut client = Client::connect_with(&with_packages(), only(&["execute_code"]));
    client.initialize().await;
    assert_eq!(
        client.request("tools/call", call.clone()).await["error"]["code"],
        -32602
    );
    let mut client = Client::connect_with(&with_packages(), only(&["execute_code", "run_command"]));
    client.initialize().await;
    assert!(!listed(&mut client).await.contains("run_command"));
    assert_eq!(
        client.request("tools/call", call.clone()).await["result"]["isError"],
        false
    );
    let container = ServerOptions {
        toolset: crate::tools::Toolset::Container,
        ..ServerOptions::default()
    };
    let mut client = Client::connect_with(&with_packages(), container);
    client.initialize().await;
    assert_eq!(client.request("tools/call", call).await["error"]["code"], -32602);
}
