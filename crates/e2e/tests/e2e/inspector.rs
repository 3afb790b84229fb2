use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use sandcell_e2e::http::Server;
use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip};

/// The official Inspector on the command line.
struct Inspector {
    node: PathBuf,
    program: PathBuf,
    place: TestDir,
}

impl Inspector {
    fn find(test: &str) -> Option<Self> {
        let of = |name| std::env::var_os(name).map(PathBuf::from);
        let program = of("SANDCELL_TEST_NODE_MODULES")
            .map(|modules| modules.join("@modelcontextprotocol/inspector/clients/launcher/build/index.js"))
            .filter(|program| program.exists());
        let (Some(node), Some(program)) = (of("SANDCELL_TEST_NODE"), program) else {
            skip(
                test,
                "no Node 22 with the official MCP Inspector (see CONTRIBUTING.md; SANDCELL_TEST_NODE and \
                 SANDCELL_TEST_NODE_MODULES name them)",
            );
            return None;
        };
        let place = TestDir::new();
        Some(Self { node, program, place })
    }

    /// Returns the inspector's output for one request to `target`.
    fn ask(&self, target: &[&str], request: &[&str]) -> Value {
        let like = self.place.command(&[]);
        let output = Command::new(&self.node)
            .arg(&self.program)
            .arg("--cli")
            .args(target)
            .args(request)
            .env_clear()
            .envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(self.place.work())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{request:?}: {}\n{out}\n{err}", output.status);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{request:?}: {error}: {out}\n{err}"))
    }

    /// Lists, calls and reads. The server keeps state between the requests.
    fn try_everything(&self, target: &[&str]) {
        let listed = self.ask(target, &["--method", "tools/list", "--strict"]);
        assert_eq!(listed["tools"].as_array().unwrap().len(), 14, "{listed}");
        let call = |tool: &str, arguments: &str| {
            let request = [
                "--method",
                "tools/call",
                "--tool-name",
                tool,
                "--tool-args-json",
                arguments,
            ];
            self.ask(target, &request)
        };
        let made = call(
            "execute_code",
            r#"{"code": "x = 6 * 7\nopen('left.txt', 'w').write(str(x))"}"#,
        );
        let sandbox = made["_meta"]["sandcell/execution"]["sandbox_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let kept = call("execute_code", r#"{"code": "x + 1"}"#);
        assert!(kept["content"][0]["text"].as_str().unwrap().contains("43"), "{kept}");
        let uri = format!("sandcell://{sandbox}/home/user/left.txt");
        let read = self.ask(target, &["--method", "resources/read", "--uri", &uri]);
        assert_eq!(read["contents"][0]["text"], "42", "{read}");
        let templates = self.ask(target, &["--method", "resources/templates/list"]);
        assert_eq!(
            templates["resourceTemplates"].as_array().unwrap().len(),
            2,
            "{templates}"
        );
        let prompts = self.ask(target, &["--method", "prompts/list"]);
        assert_eq!(prompts["prompts"].as_array().unwrap().len(), 2, "{prompts}");
    }
}

#[test]
fn the_official_inspector_lists_calls_and_reads_over_http_in_both_eras() {
    let _turn = begin!();
    let name = name_of(the_official_inspector_lists_calls_and_reads_over_http_in_both_eras);
    let Some(inspector) = Inspector::find(&name) else {
        return;
    };
    let server = Server::start(&inspector.place, &[]);
    let url = format!("http://{}/mcp", server.address);
    for era in ["legacy", "modern"] {
        inspector.try_everything(&[&url, "--transport", "http", "--protocol-era", era]);
    }
}

#[test]
fn the_official_inspector_lists_calls_and_reads_over_stdio() {
    let _turn = begin!();
    let name = name_of(the_official_inspector_lists_calls_and_reads_over_stdio);
    let Some(inspector) = Inspector::find(&name) else {
        return;
    };
    let program = sandcell_e2e::binary();
    let program = program.to_str().unwrap();
    // A separate server for each request.
    let listed = inspector.ask(&[program, "serve"], &["--method", "tools/list", "--strict"]);
    assert_eq!(listed["tools"].as_array().unwrap().len(), 14, "{listed}");
    // A server that stays, behind a proxy that ends.
    let server = Server::start(&inspector.place, &[]);
    let url = format!("http://{}/mcp", server.address);
    inspector.try_everything(&[program, "serve", "--connect", &url]);
}
