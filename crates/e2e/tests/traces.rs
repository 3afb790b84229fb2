//! Traces, against a small collector: `cargo test -p sandcell-e2e --features otel --test traces`.
//!
//! A separate test, since only builds with the feature `otel` have traces.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "tests may panic; that is how they fail"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const SPAN_TIMEOUT: Duration = Duration::from_secs(60);
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT_SPAN_ID: &str = "b7ad6b7169203331";
/// A secret in code, output, a file and an error. It must never be in a trace.
const SECRET_TEXT: &str = "hush-7c1e";

/// A collector that accepts JSON.
struct Collector {
    address: String,
    /// Each request: its head, and its body.
    got: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let got = Arc::new(Mutex::new(Vec::new()));
        let for_them = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let got = Arc::clone(&for_them);
                std::thread::spawn(move || take(stream.unwrap(), &got));
            }
        });
        Self { address, got }
    }

    fn spans(&self) -> Vec<Value> {
        let mut spans = Vec::new();
        for (_, body) in self.got.lock().unwrap().iter() {
            for resource in body["resourceSpans"].as_array().unwrap() {
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
                }
            }
        }
        spans
    }

    /// Waits for the spans of one name.
    fn wait_for(&self, name: &str, count: usize) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let mut found = self.spans();
            found.retain(|span| span["name"] == name);
            if found.len() >= count {
                return found;
            }
            assert!(
                start.elapsed() < SPAN_TIMEOUT,
                "no {count} {name} in {:#?}",
                self.spans()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn take(mut stream: TcpStream, got: &Mutex<Vec<(String, Value)>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let lower = head.to_lowercase();
        let length = lower.split("content-length: ").nth(1).unwrap();
        let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        got.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            .unwrap();
    }
}

fn command(folder: &std::path::Path, endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(sandcell_e2e::binary());
    command
        .arg("serve")
        .args(arguments)
        .env_clear()
        .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/nonexistent")])
        .env("SANDCELL_DATA_DIR", folder)
        .env("SANDCELL_TRACES__ENDPOINT", endpoint)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of-the-collector")
        .env("OTEL_BSP_SCHEDULE_DELAY", "200")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A server on standard input and output, and a line-by-line client.
struct Client {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
    next: u64,
}

impl Client {
    fn start(folder: &std::path::Path, endpoint: &str) -> Self {
        let mut child = command(folder, endpoint, &[]).stderr(Stdio::null()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            answers,
            next: 1,
        }
    }

    /// Calls a tool, in the newest protocol version.
    fn call(&mut self, tool: &str, arguments: &Value, traceparent: &str) -> Value {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "traceparent": traceparent,
        });
        let params = json!({"_meta": meta, "name": tool, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": self.next, "method": "tools/call", "params": params});
        self.next += 1;
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer["result"]["isError"] != true, "{answer}");
        answer["result"].clone()
    }

    /// Hangs up and waits for the server's end.
    fn leave(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("no {name}: {span}"))["value"]
}

#[test]
fn calls_and_executions_are_traced_in_the_trace_of_the_caller_and_nothing_of_the_code_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut client = Client::start(folder.path(), &collector.address);
    let traceparent = format!("00-{TRACE_ID}-{PARENT_SPAN_ID}-01");
    let code = format!("value = '{SECRET_TEXT}'\nprint(value)\nopen('{SECRET_TEXT}', 'w').write(value)\nvalue");
    let answer = client.call("execute_code", &json!({"code": code}), &traceparent);
    assert!(answer.to_string().contains(SECRET_TEXT), "{answer}");
    let failing = format!("raise ValueError('{SECRET_TEXT}')");
    client.call("execute_code", &json!({"code": failing}), "not-a-trace");
    client.leave();
    // The remaining spans were sent before the end.
    let calls = collector.wait_for("execute_code", 2);
    let (mine, other): (Vec<&Value>, Vec<&Value>) = calls.iter().partition(|span| span["traceId"] == TRACE_ID);
    assert_eq!((mine.len(), other.len()), (1, 1), "{calls:#?}");
    assert_eq!(mine[0]["parentSpanId"], PARENT_SPAN_ID);
    assert_eq!(attribute(mine[0], "mcp.tool")["stringValue"], "execute_code");
    let executions = collector.wait_for("execution", 2);
    let child = executions.iter().find(|span| span["traceId"] == TRACE_ID).unwrap();
    assert_eq!(child["parentSpanId"], mine[0]["spanId"]);
    let ids = &answer["_meta"]["sandcell/execution"];
    assert_eq!(attribute(child, "execution.id")["stringValue"], ids["execution_id"]);
    assert_eq!(attribute(child, "sandbox.id")["stringValue"], ids["sandbox_id"]);
    assert_eq!(attribute(child, "status")["stringValue"], "ok");
    let failed = executions.iter().find(|span| span["traceId"] != TRACE_ID).unwrap();
    assert_eq!(attribute(failed, "cause")["stringValue"], "code_failed");
    assert_eq!(failed["parentSpanId"], other[0]["spanId"]);
    assert_eq!(collector.wait_for("make sandbox", 1)[0]["traceId"], TRACE_ID);
    let got = collector.got.lock().unwrap();
    for (head, body) in got.iter() {
        assert!(head.to_lowercase().contains("x-key: of-the-collector"), "{head}");
        assert!(!body.to_string().contains(SECRET_TEXT), "{body}");
        assert!(!body.to_string().contains("of-the-collector"), "{body}");
        assert!(body.to_string().contains("service.name"), "{body}");
    }
}

#[test]
fn the_traceparent_header_is_used_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start();
    let mut child = command(folder.path(), &collector.address, &["--http", "127.0.0.1:0"])
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    let address = line
        .split("//")
        .nth(1)
        .unwrap()
        .trim()
        .trim_end_matches("/mcp")
        .to_owned();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"_meta": meta, "name": "create_run_close", "arguments": {"code": "1 + 1"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: create_run_close\r\n\
         traceparent: 00-{TRACE_ID}-{PARENT_SPAN_ID}-01\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let call = &collector.wait_for("create_run_close", 1)[0];
    assert_eq!(
        (&call["traceId"], &call["parentSpanId"]),
        (&json!(TRACE_ID), &json!(PARENT_SPAN_ID))
    );
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_missing_collector_is_harmless_and_an_invalid_address_is_refused_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut client = Client::start(folder.path(), &format!("http://{nobody}/v1/traces"));
    client.call("execute_code", &json!({"code": "1"}), "");
    let begun = Instant::now();
    client.leave();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let output = command(folder.path(), "file:///tmp/x", &[]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("traces.endpoint") && said.contains("http://127.0.0.1:4318"),
        "{said}"
    );
}

#[test]
fn a_proxy_sends_no_traces() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--connect", "http://127.0.0.1:1/mcp"];
    // If the exporter had started, it would refuse this address.
    let output = command(folder.path(), "file:///tmp/x", &arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
