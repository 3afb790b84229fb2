//! A small MCP client over the stdio of a server that it starts: newline-delimited JSON-RPC, one request at a time,
//! every answer with a deadline. It uses only the public protocol and no internals of the server, on purpose.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The maximum length of a line from the server, in bytes.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// The time limit for one answer of the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for the server to end once its stdin is closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(8);

/// The reason that a call has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("the server could not be started: {0}")]
    Start(std::io::Error),
    #[error("the server closed its stdout in the middle of `{0}`")]
    Closed(String),
    #[error("the server did not answer `{0}` within {timeout} s", timeout = ANSWER_TIMEOUT.as_secs())]
    Silent(String),
    #[error("the server wrote a line that is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("the server refused `{method}`: {message}")]
    Refused { method: String, message: String },
    #[error("the server did not end within {} s after its stdin was closed", EXIT_TIMEOUT.as_secs())]
    DidNotEnd,
}

/// A tool's answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The text blocks, in order.
    pub(super) texts: Vec<String>,
    /// The pictures, in base64.
    pub(super) pictures: Vec<String>,
    /// True when the call could not be done as requested.
    pub(super) is_error: bool,
    /// `_meta["sandcell/execution"]`, or null.
    pub(super) execution: Value,
    /// From the request's first byte to the answer's last.
    pub(super) took: Duration,
}

/// A running server and the pipes to it. Dropping it ends the server.
#[derive(Debug)]
pub(super) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
}

impl Client {
    /// Starts `program serve` with these further arguments and performs the MCP handshake. Returns the time until the
    /// answer to `initialize`, counted from before the start of the program, and the server's description of itself.
    pub(super) fn start(program: &Path, args: &[String]) -> Result<(Self, Value, Duration), ClientError> {
        let started = Instant::now();
        let mut child = Command::new(program)
            .arg("serve")
            .args(args)
            // The demo uses a separate server that ends with this client.
            .env("SANDCELL_SERVICE__ON_DEMAND", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(ClientError::Start)?;
        let stdin = child.stdin.take();
        let (sender, lines) = sync_channel(16);
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || read_lines(stdout, &sender));
        }
        let mut client = Self {
            child,
            stdin,
            lines,
            next_id: 1,
        };
        let hello = client.request(
            "initialize",
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "sandcell-demo", "version": env!("CARGO_PKG_VERSION")},
            }),
        )?;
        let took = started.elapsed();
        client.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            "initialized",
        )?;
        Ok((client, hello, took))
    }

    /// The server's process id.
    pub(super) fn server_pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the names of the tools.
    pub(super) fn tools(&mut self) -> Result<Vec<String>, ClientError> {
        let answer = self.request("tools/list", json!({}))?;
        let tools = answer.get("tools").and_then(Value::as_array);
        let names = tools
            .into_iter()
            .flatten()
            .filter_map(|tool| tool.get("name")?.as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Calls a tool.
    pub(super) fn call(&mut self, tool: &str, arguments: Value) -> Result<Answer, ClientError> {
        let started = Instant::now();
        let result = self.request("tools/call", json!({"name": tool, "arguments": arguments}))?;
        let took = started.elapsed();
        let blocks = result.get("content").and_then(Value::as_array);
        let texts = blocks
            .into_iter()
            .flatten()
            .filter_map(|block| block.get("text")?.as_str());
        let pictures = blocks
            .into_iter()
            .flatten()
            .filter_map(|block| block.get("data")?.as_str());
        Ok(Answer {
            texts: texts.map(str::to_owned).collect(),
            pictures: pictures.map(str::to_owned).collect(),
            is_error: result.get("isError").and_then(Value::as_bool).unwrap_or(false),
            execution: result
                .pointer("/_meta/sandcell~1execution")
                .cloned()
                .unwrap_or_default(),
            took,
        })
    }

    /// Closes the server's stdin, as a client does when it ends, and waits for the server's end. Returns the time that
    /// it took.
    pub(super) fn end(mut self) -> Result<Duration, ClientError> {
        let started = Instant::now();
        drop(self.stdin.take());
        loop {
            match self.child.try_wait() {
                Ok(Some(_)) => return Ok(started.elapsed()),
                Ok(None) if started.elapsed() < EXIT_TIMEOUT => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => return Err(ClientError::DidNotEnd),
            }
        }
    }

    fn send(&mut self, message: &Value, method: &str) -> Result<(), ClientError> {
        let closed = || ClientError::Closed(method.to_owned());
        let stdin = self.stdin.as_mut().ok_or_else(closed)?;
        let line = format!("{message}\n");
        stdin.write_all(line.as_bytes()).map_err(|_| closed())
    }

    fn request(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
            method,
        )?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => ClientError::Silent(method.to_owned()),
                RecvTimeoutError::Disconnected => ClientError::Closed(method.to_owned()),
            })?;
            let mut message: Value = serde_json::from_str(&line).map_err(ClientError::NotJson)?;
            // This client ignores notifications and requests from the server.
            if message.get("id").and_then(Value::as_u64) != Some(id) || message.get("method").is_some() {
                continue;
            }
            if let Some(error) = message.get("error") {
                return Err(ClientError::Refused {
                    method: method.to_owned(),
                    message: error
                        .get("message")
                        .and_then(Value::as_str)
                        .unwrap_or("no reason given")
                        .to_owned(),
                });
            }
            return Ok(message.get_mut("result").map(Value::take).unwrap_or_default());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if let Ok(None) = self.child.try_wait() {
            // The server cleans up however it ends, so killing it is safe.
            let _already_gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

fn read_lines(stdout: impl Read, lines: &SyncSender<String>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.trim().is_empty() => {}
            Ok(_) => {
                if lines.send(line).is_err() {
                    return;
                }
            }
        }
    }
}
