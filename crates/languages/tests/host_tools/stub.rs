//! A stub of the port for tools, with a thread for each connection. The threads end with the test program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// The stub.
pub(crate) struct Stub {
    pub(crate) url: String,
    seen: Arc<Seen>,
}

/// The requests that it has received.
#[derive(Default)]
struct Seen {
    /// The executions of the calls, and their tools.
    calls: Mutex<Vec<(String, String)>>,
    connections: AtomicUsize,
    /// The calls of `wait`, which are never answered.
    waiting: AtomicUsize,
    /// The connections that clients have closed during a call.
    lost: AtomicUsize,
}

/// A request.
struct Request {
    path: String,
    execution: String,
    is_plain: bool,
    body: Value,
}

impl Stub {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Seen>::default();
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let seen = Arc::clone(&shared);
                seen.connections.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(&stream.unwrap(), &seen));
            }
        });
        Self { url, seen }
    }

    /// Returns the calls since the last request for them: (execution, `SERVER.TOOL`).
    pub(crate) fn take_calls(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.seen.calls.lock().unwrap())
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Waits for a number of calls that the stub does not answer.
    pub(crate) async fn until_waiting(&self, count: usize) {
        until(|| self.seen.waiting.load(Ordering::SeqCst) >= count).await;
    }

    /// Waits until clients have closed a number of connections during a call.
    pub(crate) async fn until_lost(&self, count: usize) {
        until(|| self.seen.lost.load(Ordering::SeqCst) >= count).await;
    }
}

async fn until(holds: impl Fn() -> bool) {
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "the stub did not see it");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Answers requests until the client closes the connection.
fn serve(stream: &TcpStream, seen: &Seen) {
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    while let Some(request) = read_request(&mut reader) {
        let (status, answer) = match request.path.as_str() {
            "/v1/call" => {
                let text = |name: &str| request.body[name].as_str().unwrap().to_owned();
                let name = format!("{}.{}", text("server"), text("tool"));
                seen.calls.lock().unwrap().push((request.execution, name.clone()));
                if name == "demo.wait" {
                    seen.waiting.fetch_add(1, Ordering::SeqCst);
                    if matches!(reader.read(&mut [0]), Ok(0) | Err(_)) {
                        seen.lost.fetch_add(1, Ordering::SeqCst);
                    }
                    return;
                }
                result_of(&name, &request.body["arguments"])
            }
            path => (200, listing(path)),
        };
        let text = if request.is_plain {
            plain(&answer)
        } else {
            answer.to_string()
        };
        let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n\r\n", text.len());
        if writer.write_all((head + &text).as_bytes()).is_err() {
            return;
        }
    }
}

/// Returns the next request; none at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|size| *size > 0)?;
    let mut request = Request {
        path: line.split(' ').nth(1).unwrap().to_owned(),
        execution: String::new(),
        is_plain: false,
        body: Value::Null,
    };
    let mut size = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "sandcell-execution" => request.execution = value.to_owned(),
            "accept" => request.is_plain = value == "text/plain",
            "content-length" => size = value.parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; size];
    reader.read_exact(&mut body).ok()?;
    if size > 0 {
        request.body = serde_json::from_slice(&body).unwrap();
    }
    Some(request)
}

fn listing(path: &str) -> Value {
    if path == "/v1/servers" {
        return json!({"servers": [{"name": "demo", "description": "Stubs"}]});
    }
    let tool = |name: &str| {
        let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]});
        json!({"server": "demo", "name": name, "description": format!("At {path}."), "input_schema": schema})
    };
    json!({"tools": [tool("echo"), tool("get-item")], "total": 3, "failed": []})
}

/// Returns (status, answer) of a call.
fn result_of(name: &str, arguments: &Value) -> (u16, Value) {
    let answer = match name {
        "demo.echo" | "demo.get-item" | "demo.set_item" => json!({"kind": "json", "value": arguments}),
        "demo.text" => json!({"kind": "text", "text": "héllo\n"}),
        "demo.repeat" => {
            let count = usize::try_from(arguments["count"].as_u64().unwrap()).unwrap();
            json!({"kind": "text", "text": "é".repeat(count)})
        }
        "demo.bytes" => json!({"kind": "image", "mime": "image/png", "data": "AAEC"}),
        "demo.list" => {
            json!({"kind": "list", "items": [{"kind": "text", "text": "a"}, {"kind": "json", "value": [1]}]})
        }
        "demo.nothing" => json!({"kind": "nothing"}),
        "demo.fail" => {
            let error = json!({"code": "tool_failed", "message": "it went wrong", "remedy": "do it right"});
            return (422, json!({"error": error}));
        }
        _ => {
            let error = json!({"code": "not_found", "message": format!("there is no {name}"), "remedy": ""});
            return (404, json!({"error": error}));
        }
    };
    (200, answer)
}

/// Returns the plain form of an answer, as far as these tests need it.
fn plain(answer: &Value) -> String {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or_default().to_owned();
    if let Some(error) = answer.get("error") {
        return format!("{}; {}\n", text(error, "message"), text(error, "remedy"));
    }
    let line = |item: &Value| format!("{}\t{}\n", text(item, "name"), text(item, "description"));
    for list in ["servers", "tools"] {
        if let Some(items) = answer[list].as_array() {
            return items.iter().map(line).collect();
        }
    }
    match answer["kind"].as_str() {
        Some("json") => answer["value"].to_string(),
        _ => text(answer, "text") + &text(answer, "data"),
    }
}
