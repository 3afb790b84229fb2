//! A raw MCP client: one JSON object a line over the server's standard streams.
//!
//! It is not a library client on purpose: a test controls the exact bytes sent, also invalid ones. Each call may run
//! on a separate thread; answers are matched by id.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// The newest protocol version that still begins with `initialize`.
pub const SESSION_PROTOCOL: &str = "2025-11-25";

/// A running server with this test as its only client. Killed when dropped.
pub struct Client {
    child: Child,
    stdin: Mutex<Option<ChildStdin>>,
    shared: Arc<Shared>,
    next_id: AtomicU64,
    patience: Duration,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<HashMap<u64, Sender<Value>>>,
    /// Lines on stdout that are not JSON. There must be none.
    noise: Mutex<Vec<String>>,
    /// Notifications, in the order of arrival.
    notifications: Mutex<Vec<Value>>,
    log: Mutex<String>,
}

/// A running call.
pub struct Pending {
    pub id: u64,
    answer: Receiver<Value>,
    patience: Duration,
}

impl Client {
    /// Starts the server and performs the handshake.
    pub fn start(command: &mut Command) -> Self {
        let client = Self::start_silent(command);
        client.initialize();
        client
    }

    /// Starts a server and initialises it as a client that can ask its user.
    pub fn start_asking(command: &mut Command) -> Self {
        let client = Self::start_silent(command);
        client.request(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "e2e", "version": "1"},
            }),
        );
        client.notify("notifications/initialized", json!({}));
        client
    }

    /// Starts the server without a handshake.
    pub fn start_silent(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let shared = Arc::new(Shared::default());
        let out = child.stdout.take().unwrap();
        let err = child.stderr.take().unwrap();
        let for_out = Arc::clone(&shared);
        let for_err = Arc::clone(&shared);
        std::thread::spawn(move || read_answers(out, &for_out));
        std::thread::spawn(move || read_log(err, &for_err));
        Self {
            stdin: Mutex::new(child.stdin.take()),
            child,
            shared,
            next_id: AtomicU64::new(1),
            patience: super::DEFAULT_TIMEOUT,
        }
    }

    pub fn initialize(&self) -> Value {
        let answer = self.request(
            "initialize",
            json!({"protocolVersion": SESSION_PROTOCOL, "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}}),
        );
        self.notify("notifications/initialized", json!({}));
        answer
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next call's id, for tests that write the message themselves.
    pub fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes one line unchanged.
    pub fn send_line(&self, line: &[u8]) {
        self.try_send_line(line).expect("the server reads");
    }

    pub fn try_send_line(&self, line: &[u8]) -> std::io::Result<()> {
        let mut stdin = self.stdin.lock().unwrap();
        let pipe = stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        pipe.write_all(line)?;
        pipe.write_all(b"\n")?;
        pipe.flush()
    }

    pub fn notify(&self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.send_line(message.to_string().as_bytes());
    }

    /// Sends a request without waiting for the answer.
    pub fn begin(&self, method: &str, params: Value) -> Pending {
        let id = self.fresh_id();
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let pending = self.expect(id);
        self.send_line(message.to_string().as_bytes());
        pending
    }

    /// Registers a wait for the answer with this id.
    pub fn expect(&self, id: u64) -> Pending {
        let (sender, answer) = channel();
        self.shared.waiting.lock().unwrap().insert(id, sender);
        Pending {
            id,
            answer,
            patience: self.patience,
        }
    }

    /// Returns the `result` of a request; a protocol error fails the test.
    pub fn request(&self, method: &str, params: Value) -> Value {
        let answer = self.request_raw(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}\n{}", self.log());
        answer["result"].clone()
    }

    /// Returns the complete answer of a request, result or error.
    pub fn request_raw(&self, method: &str, params: Value) -> Value {
        let pending = self.begin(method, params);
        pending.wait_or(|| self.log())
    }

    /// Calls a tool.
    pub fn call(&self, tool: &str, arguments: Value) -> Answer {
        Answer(self.request("tools/call", json!({"name": tool, "arguments": arguments})))
    }

    /// Calls a tool without waiting for the answer.
    pub fn begin_call(&self, tool: &str, arguments: Value) -> Pending {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Runs code in the default sandbox.
    pub fn run(&self, code: &str) -> Answer {
        self.call("execute_code", json!({"code": code}))
    }

    /// Runs code that must succeed. Returns its text without the server's last block.
    pub fn text(&self, code: &str) -> String {
        let answer = self.run(code);
        assert_eq!(answer.status(), "ok", "{code}\n{answer:?}\n{}", self.log());
        answer.output()
    }

    /// Runs code that must succeed and print one JSON value.
    pub fn json(&self, code: &str) -> Value {
        let text = self.text(code);
        serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Renames the interpreter of a sandbox, and finds the process by this name from outside.
    pub fn interpreter(&self, sandbox: &Value, name: &str) -> super::machine::ProcessIdentity {
        // PR_SET_NAME
        let code = format!("import ctypes\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)");
        let answer = self.call("execute_code", json!({"code": code, "sandbox_id": sandbox}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        super::machine::named(self.pid(), name)
    }

    /// Returns the server's stderr up to now.
    pub fn log(&self) -> String {
        format!("server's stderr:\n{}", self.shared.log.lock().unwrap())
    }

    /// Returns the server's notifications.
    pub fn notifications(&self) -> Vec<Value> {
        self.shared.notifications.lock().unwrap().clone()
    }

    /// Returns lines on stdout that are not MCP.
    pub fn noise(&self) -> Vec<String> {
        self.shared.noise.lock().unwrap().clone()
    }

    /// Closes the server's standard input.
    pub fn hang_up(&self) {
        self.stdin.lock().unwrap().take();
    }

    /// Waits for the server's end. Returns its exit code, or none if a signal ended it.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.child;
        super::until(limit, "the server ends", || child.try_wait().unwrap()).code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
        // A failed test must not leave a server behind; a passed one has waited for it.
        let ended = (0..400).any(|_| {
            let gone = self.child.try_wait().is_ok_and(|status| status.is_some());
            if !gone {
                std::thread::sleep(Duration::from_millis(5));
            }
            gone
        });
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Pending {
    /// Waits for the complete answer, result or error.
    pub fn wait(self) -> Value {
        self.wait_or(String::new)
    }

    /// Waits for the answer of a tool call.
    pub fn answer(self) -> Answer {
        let id = self.id;
        let message = self.wait();
        assert!(message.get("error").is_none(), "call {id}: {message}");
        Answer(message["result"].clone())
    }

    /// Returns the answer if it arrives within this time.
    pub fn within(&self, limit: Duration) -> Option<Value> {
        self.answer.recv_timeout(limit).ok()
    }

    pub fn wait_or(self, log: impl Fn() -> String) -> Value {
        self.answer
            .recv_timeout(self.patience)
            .unwrap_or_else(|error| panic!("no answer to call {}: {error}\n{}", self.id, log()))
    }
}

fn read_answers(out: impl Read, shared: &Shared) {
    for line in BufReader::new(out).split(b'\n') {
        let Ok(line) = line else { break };
        match serde_json::from_slice::<Value>(&line) {
            Ok(message) => deliver(message, shared),
            Err(_) => shared
                .noise
                .lock()
                .unwrap()
                .push(String::from_utf8_lossy(&line).into_owned()),
        }
    }
    // Waiting callers are notified at once that no answer will arrive.
    shared.waiting.lock().unwrap().clear();
}

/// Hands an answer to its caller. Answers without a waiting caller are dropped.
fn deliver(message: Value, shared: &Shared) {
    let is_answer = message.get("result").is_some() || message.get("error").is_some();
    if !is_answer {
        shared.notifications.lock().unwrap().push(message);
        return;
    }
    let caller = message["id"]
        .as_u64()
        .and_then(|id| shared.waiting.lock().unwrap().remove(&id));
    if let Some(caller) = caller {
        // A caller that gave up is no fault of the server.
        drop(caller.send(message));
    }
}

fn read_log(mut err: impl Read, shared: &Shared) {
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = err.read(&mut piece) {
        shared
            .log
            .lock()
            .unwrap()
            .push_str(&String::from_utf8_lossy(&piece[..read]));
    }
}

/// The result of a tool call.
#[derive(Debug, Clone)]
pub struct Answer(pub Value);

impl Answer {
    pub fn is_error(&self) -> bool {
        self.0["isError"] == true
    }

    /// Returns every text block, in order.
    pub fn blocks(&self) -> Vec<String> {
        self.of_kind("text")
            .filter_map(|block| block["text"].as_str().map(str::to_owned))
            .collect()
    }

    /// Returns the content blocks of one kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        let content = self.0["content"].as_array().map_or(&[][..], Vec::as_slice);
        content.iter().filter(move |block| block["type"] == kind)
    }

    /// Returns all text.
    pub fn all(&self) -> String {
        self.blocks().join("\n")
    }

    /// Returns the code's own text: all blocks but the server's last one; empty if the code wrote nothing.
    pub fn output(&self) -> String {
        let mut blocks = self.blocks();
        blocks.pop();
        blocks.retain(|block| block != "(no output)");
        blocks.join("\n")
    }

    /// Returns the server's last block.
    pub fn verdict(&self) -> String {
        self.blocks().pop().unwrap_or_default()
    }

    /// Returns the structured result of a tool.
    pub fn data(&self) -> &Value {
        &self.0["structuredContent"]
    }

    /// Returns the position of a page in a text file.
    pub fn page(&self) -> &Value {
        &self.0["_meta"]["sandcell/file"]
    }

    /// Returns the machine-readable part of the result.
    pub fn meta(&self) -> &Value {
        &self.0["_meta"]["sandcell/execution"]
    }

    pub fn status(&self) -> &str {
        self.meta()["status"].as_str().unwrap_or("(no status)")
    }

    pub fn cause(&self) -> &str {
        self.meta()["cause"]["code"].as_str().unwrap_or("(no cause)")
    }

    pub fn state_lost(&self) -> bool {
        self.meta()["state_lost"] == true
    }

    pub fn sandbox(&self) -> String {
        self.meta()["sandbox_id"].as_str().expect("a sandbox id").to_owned()
    }

    /// Fails unless the call was refused with this code and a remedy.
    #[track_caller]
    pub fn refused(&self, code: &str) -> String {
        let text = self.all();
        assert!(self.is_error(), "expected {code}, got a result: {:?}", self.0);
        assert!(text.contains(code), "expected {code}: {text}");
        text
    }
}
