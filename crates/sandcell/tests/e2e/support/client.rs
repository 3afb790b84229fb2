//! A raw MCP client: one JSON object a line over the server's standard streams, nothing hidden.
//!
//! Not a library client on purpose: a test controls the exact bytes sent, also when they are nonsense. Each call may
//! run on its own thread; answers find their callers by id.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// The newest protocol version that still begins with `initialize`.
pub const PROTOCOL: &str = "2025-11-25";

/// A running server with us as its only client. Killed when dropped.
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
    /// Lines on stdout that are no JSON: there must be none.
    noise: Mutex<Vec<String>>,
    /// Notifications, in the order in which they came.
    told: Mutex<Vec<Value>>,
    log: Mutex<String>,
}

/// A call under way.
pub struct Pending {
    pub id: u64,
    answer: Receiver<Value>,
    patience: Duration,
}

impl Client {
    /// Starts the server and shakes hands.
    pub fn start(command: &mut Command) -> Self {
        let client = Self::start_silent(command);
        client.initialize();
        client
    }

    /// Starts the server and says nothing yet.
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
            patience: super::PATIENCE,
        }
    }

    pub fn initialize(&self) -> Value {
        let answer = self.request(
            "initialize",
            json!({"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}}),
        );
        self.notify("notifications/initialized", json!({}));
        answer
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next call's id, for those who write their message themselves.
    pub fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes one line as it is.
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

    /// Sends a request and does not wait.
    pub fn begin(&self, method: &str, params: Value) -> Pending {
        let id = self.fresh_id();
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let pending = self.expect(id);
        self.send_line(message.to_string().as_bytes());
        pending
    }

    /// Waits for the answer to an id of ours.
    pub fn expect(&self, id: u64) -> Pending {
        let (sender, answer) = channel();
        self.shared.waiting.lock().unwrap().insert(id, sender);
        Pending {
            id,
            answer,
            patience: self.patience,
        }
    }

    /// The `result` of a request; a protocol error fails the test.
    pub fn request(&self, method: &str, params: Value) -> Value {
        let answer = self.request_raw(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}\n{}", self.log());
        answer["result"].clone()
    }

    /// The whole answer of a request, result or error.
    pub fn request_raw(&self, method: &str, params: Value) -> Value {
        let pending = self.begin(method, params);
        pending.wait_or(|| self.log())
    }

    /// Calls a tool.
    pub fn call(&self, tool: &str, arguments: Value) -> Answer {
        Answer(self.request("tools/call", json!({"name": tool, "arguments": arguments})))
    }

    /// Calls a tool and does not wait.
    pub fn begin_call(&self, tool: &str, arguments: Value) -> Pending {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Runs code in the default sandbox.
    pub fn run(&self, code: &str) -> Answer {
        self.call("execute_code", json!({"code": code}))
    }

    /// Runs code that must end well; its text without the server's own last block.
    pub fn text(&self, code: &str) -> String {
        let answer = self.run(code);
        assert_eq!(answer.status(), "ok", "{code}\n{answer:?}\n{}", self.log());
        answer.output()
    }

    /// Runs code that must end well and print one JSON value.
    pub fn json(&self, code: &str) -> Value {
        let text = self.text(code);
        serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Gives the interpreter of a sandbox a name by which it can be found from outside, and finds it.
    pub fn interpreter(&self, sandbox: &Value, name: &str) -> super::machine::Seen {
        // PR_SET_NAME
        let code = format!("import ctypes\nctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)");
        let answer = self.call("execute_code", json!({"code": code, "sandbox_id": sandbox}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        super::machine::named(self.pid(), name)
    }

    /// The server's stderr so far.
    pub fn log(&self) -> String {
        format!("server's stderr:\n{}", self.shared.log.lock().unwrap())
    }

    /// The server's notifications.
    pub fn told(&self) -> Vec<Value> {
        self.shared.told.lock().unwrap().clone()
    }

    /// Lines on stdout that were not MCP.
    pub fn noise(&self) -> Vec<String> {
        self.shared.noise.lock().unwrap().clone()
    }

    /// Closes the server's standard input.
    pub fn hang_up(&self) {
        self.stdin.lock().unwrap().take();
    }

    /// Waits for the server's end; its exit code, none when a signal ended it.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.child;
        super::until(limit, "the server ends", || child.try_wait().unwrap()).code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.hang_up();
        // A test that failed must not leave a server behind; one that passed has waited for it.
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
    /// The whole answer, result or error.
    pub fn wait(self) -> Value {
        self.wait_or(String::new)
    }

    /// The answer of a tool call.
    pub fn answer(self) -> Answer {
        let id = self.id;
        let message = self.wait();
        assert!(message.get("error").is_none(), "call {id}: {message}");
        Answer(message["result"].clone())
    }

    /// The answer if it comes within this time.
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
    // Whoever still waits learns at once that nothing will come.
    shared.waiting.lock().unwrap().clear();
}

/// Hands an answer to its caller; answers to calls that nobody waits for are of no interest.
fn deliver(message: Value, shared: &Shared) {
    let is_answer = message.get("result").is_some() || message.get("error").is_some();
    if !is_answer {
        shared.told.lock().unwrap().push(message);
        return;
    }
    let caller = message["id"]
        .as_u64()
        .and_then(|id| shared.waiting.lock().unwrap().remove(&id));
    if let Some(caller) = caller {
        // A caller that gave up is no fault of the server's.
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

    /// Every text block, in order.
    pub fn blocks(&self) -> Vec<String> {
        self.of_kind("text")
            .filter_map(|block| block["text"].as_str().map(str::to_owned))
            .collect()
    }

    /// The content blocks of one kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        let content = self.0["content"].as_array().map_or(&[][..], Vec::as_slice);
        content.iter().filter(move |block| block["type"] == kind)
    }

    /// All text together.
    pub fn all(&self) -> String {
        self.blocks().join("\n")
    }

    /// The code's own text: all but the server's last block, and nothing where it wrote nothing.
    pub fn output(&self) -> String {
        let mut blocks = self.blocks();
        blocks.pop();
        blocks.retain(|block| block != "(no output)");
        blocks.join("\n")
    }

    /// The server's own last block.
    pub fn verdict(&self) -> String {
        self.blocks().pop().unwrap_or_default()
    }

    /// The facts of a tool that has no picture to show.
    pub fn data(&self) -> &Value {
        &self.0["structuredContent"]
    }

    /// The position of a page in a text file.
    pub fn page(&self) -> &Value {
        &self.0["_meta"]["sandcell/file"]
    }

    /// The machine-readable part of the result.
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

    /// Fails unless the call was refused with this code, in words that say what to do.
    #[track_caller]
    pub fn refused(&self, code: &str) -> String {
        let text = self.all();
        assert!(self.is_error(), "expected {code}, got a result: {:?}", self.0);
        assert!(text.contains(code), "expected {code}: {text}");
        text
    }
}
