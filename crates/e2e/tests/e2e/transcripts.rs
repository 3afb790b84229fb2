use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::client::Client;
use sandcell_e2e::test_dir::TestDir;

/// The conversation, without details that differ between runs or machines.
struct Transcript(String);

impl Transcript {
    fn call(&mut self, server: &Client, tool: &str, arguments: Value) {
        let answer = server.call(tool, arguments.clone());
        self.0.push_str(&format!(">>> {tool} {arguments}\n"));
        if answer.is_error() {
            self.0.push_str("(isError)\n");
        }
        for block in answer.0["content"].as_array().unwrap() {
            match block["type"].as_str() {
                Some("text") => self
                    .0
                    .push_str(&format!("{}\n", block["text"].as_str().unwrap().trim_end())),
                _ => self.0.push_str(&format!("({} {})\n", block["type"], block["uri"])),
            }
            self.0.push_str("--\n");
        }
    }

    fn check(&self, name: &str) {
        let mut settings = insta::Settings::clone_current();
        settings.add_filter(r"\b(sb|ex)[a-z0-9]{26}\b", "${1}ID");
        settings.add_filter(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME");
        settings.add_filter(r"\d+(\.\d+)? ms", "N ms");
        settings.add_filter(r"\d+(\.\d+)? s\b", "N s");
        settings.add_filter(r"available are: python[a-z, ]*", "available are: python…");
        settings.add_filter(r"(?m)^degraded.*\n", "");
        // The cell depends on the moment of the last snapshot.
        settings.add_filter(r"(?m)^restored: .*$", "restored: …");
        settings.add_filter(r"Python 3\.\d+(\.\d+)?", "Python 3");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, self.0));
    }
}

#[test]
fn a_notebook_like_conversation_matches_its_transcript() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let mut transcript = Transcript(String::new());
    for code in [
        "prices = [3, 1, 2]",
        "sorted(prices)",
        "print('out')\nimport sys\nprint('err', file=sys.stderr)\n'value'",
        "def f(x):\n    return x['missing']\nf({})",
        "import no_such_module",
        "if True print(1)",
        "sys.exit(2)",
        "import os\nos._exit(9)",
        "'prices' in globals()",
    ] {
        transcript.call(&server, "execute_code", json!({"code": code}));
    }
    transcript.call(
        &server,
        "execute_code",
        json!({"code": "while True: pass", "timeout_s": 1}),
    );
    transcript.check("notebook");
}

#[test]
fn refusals_state_what_to_do() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let mut transcript = Transcript(String::new());
    for (tool, arguments) in [
        ("execute_code", json!({"code": ""})),
        ("execute_code", json!({"code": "1", "timeout": 3})),
        ("execute_code", json!({"code": "1", "timeout_s": 0})),
        ("execute_code", json!({"code": "1", "language": "klingon"})),
        ("execute_code", json!({"code": "1", "sandbox_id": "sbnone"})),
        ("read_file", json!({"path": "../x"})),
        ("read_file", json!({"path": "none"})),
        ("read_file", json!({"path": "/dev/full"})),
        ("write_file", json!({"path": "/etc/x", "content": ""})),
        ("upload_file", json!({"path": "x", "content_base64": "?"})),
        ("upload_file", json!({"path": "x", "local_path": "/etc/passwd"})),
        ("create_sandbox", json!({"count": 17})),
        ("create_sandbox", json!({"memory_mb": 0})),
    ] {
        transcript.call(&server, tool, arguments);
    }
    transcript.check("refusals");
}

#[test]
fn files_are_written_and_read() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let mut transcript = Transcript(String::new());
    for (tool, arguments) in [
        ("write_file", json!({"path": "a/b.txt", "content": "one\ntwo\n"})),
        ("read_file", json!({"path": "a/b.txt"})),
        ("read_file", json!({"path": "a/b.txt", "offset": 1, "limit": 1})),
        ("upload_file", json!({"path": "c.bin", "content_base64": "AAEC/w=="})),
        ("read_file", json!({"path": "c.bin"})),
        (
            "create_run_close",
            json!({"code": "print(open('in.txt').read()); open('out.txt', 'w').write('!')",
            "files": {"in.txt": "given"}, "outputs": ["out.txt"]}),
        ),
        ("reset_session_state", json!({})),
    ] {
        transcript.call(&server, tool, arguments);
    }
    transcript.check("files");
}

#[test]
fn the_list_of_tools_is_short_and_clean() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    let listed = server.request("tools/list", json!({}));
    let size = listed.to_string().len();
    assert!(size < 12 << 10, "{size} bytes");
    let names: Vec<&str> = listed["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    for name in [
        "execute_code",
        "create_run_close",
        "create_sandbox",
        "close_sandbox",
        "get_sandbox_status",
        "list_files",
        "read_file",
        "write_file",
        "upload_file",
        "get_execution_history",
        "reset_session_state",
    ] {
        assert!(names.contains(&name), "{name} is missing: {names:?}");
    }
    assert!(names.len() <= 14, "{names:?}");
    // The schemas must be readable for clients of all kinds.
    let text = listed.to_string();
    for stumbling_block in [
        "$ref",
        "$defs",
        "\"format\"",
        "[\"integer\",\"null\"]",
        "[\"string\",\"null\"]",
    ] {
        assert!(!text.contains(stumbling_block), "{stumbling_block}: {text}");
    }
}

#[test]
fn the_handshake_has_the_instructions_for_a_model() {
    let _turn = begin!();
    let place = TestDir::new();
    let server = Client::start_silent(&mut place.command(&["serve"]));
    let hello = server.initialize();
    assert_eq!(hello["serverInfo"]["name"], "sandcell", "{hello}");
    let instructions = hello["instructions"].as_str().expect("instructions");
    assert!(instructions.len() < 1536, "{} bytes", instructions.len());
    for word in ["python 3", "/home/user", "Network: none", "512"] {
        assert!(instructions.contains(word), "{word} is missing: {instructions}");
    }
    for version in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let other = Client::start_silent(&mut place.command(&["serve"]));
        let answer = other.request(
            "initialize",
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}),
        );
        assert_eq!(answer["protocolVersion"], version, "{answer}");
    }
}
