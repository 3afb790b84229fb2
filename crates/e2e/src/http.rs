//! A server on HTTP, and a client of plain sockets: a test controls the exact bytes sent, also invalid ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::DEFAULT_TIMEOUT;
use super::client::{Answer, SESSION_PROTOCOL};
use super::test_dir::TestDir;

/// The protocol version without sessions.
pub const STATELESS_PROTOCOL: &str = "2026-07-28";

/// A running server. Ended when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts `serve --http` on a free port on loopback.
    pub fn start(place: &TestDir, more: &[&str]) -> Self {
        Self::start_on(place, "127.0.0.1:0", more)
    }

    pub fn start_on(place: &TestDir, address: &str, more: &[&str]) -> Self {
        let mut arguments = vec!["serve", "--http", address];
        arguments.extend(more);
        Self::spawn(&mut place.command(&arguments))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            let read = err.read_line(&mut line).unwrap();
            assert!(read > 0, "the server ended: {}", log.lock().unwrap());
            let found = line
                .strip_prefix("listening on ")
                .and_then(|url| url.split("//").nth(1));
            address = found.map(|url| url.trim_end().trim_end_matches("/mcp").parse().unwrap());
            log.lock().unwrap().push_str(&line);
        }
        let for_err = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = err.read(&mut piece) {
                for_err
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&piece[..read]));
            }
        });
        Self {
            child,
            address: address.unwrap(),
            log,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn caller(&self) -> Caller {
        Caller::new(self.address)
    }

    pub fn with_token(&self, token: &str) -> Caller {
        Caller {
            token: Some(token.to_owned()),
            ..self.caller()
        }
    }

    /// Sends bytes unchanged and reads one answer.
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut stream = connect(self.address);
        // A server that refuses early may not read the whole request.
        let _all_or_part = stream.write_all(bytes.as_ref());
        Reply::read(&mut BufReader::new(stream)).expect("an answer")
    }

    /// Sends a GET with these header lines and a correct Host.
    pub fn get(&self, path: &str, headers: &str) -> Reply {
        let host = self.address;
        self.raw(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"
        ))
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for the server's end.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let child = &mut self.child;
        super::until(limit, "the server ends", || child.try_wait().unwrap()).code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.signal("-TERM");
            let start = Instant::now();
            while !matches!(self.child.try_wait(), Ok(Some(_))) {
                if start.elapsed() > Duration::from_secs(15) {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// Reads one answer; none if the connection ends before one.
    pub fn read(stream: &mut impl BufRead) -> Option<Self> {
        let mut reply = Self::head(stream)?;
        let chunked = reply.header("transfer-encoding") == Some("chunked");
        let length = reply
            .header("content-length")
            .map(|length| length.parse::<usize>().unwrap());
        let mut body = Vec::new();
        if chunked {
            while let Some(piece) = chunk(stream) {
                body.extend(piece);
            }
        } else if let Some(length) = length {
            body.resize(length, 0);
            stream.read_exact(&mut body).ok()?;
        }
        reply.body = String::from_utf8_lossy(&body).into_owned();
        Some(reply)
    }

    /// Reads an answer up to its body.
    pub fn head(stream: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        Some(Self {
            status,
            headers,
            body: String::new(),
        })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the message in the body, as JSON or as the last event of a stream.
    pub fn message(&self) -> Value {
        let text = if self
            .header("content-type")
            .unwrap_or_default()
            .starts_with("text/event-stream")
        {
            let mut data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
            data.rfind(|data| !data.is_empty()).unwrap_or_default()
        } else {
            &self.body
        };
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Fails unless the request was refused with this status and a remedy.
    #[track_caller]
    pub fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.message()["error"].clone();
        for field in ["code", "message", "remedy"] {
            assert!(
                error["data"][field].as_str().is_some_and(|text| !text.is_empty()),
                "{self:?}"
            );
        }
        error
    }
}

/// Returns the next chunk of a chunked body; none at its end.
pub fn chunk(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let length = usize::from_str_radix(line.trim(), 16).ok()?;
    let mut piece = vec![0; length + 2];
    stream.read_exact(&mut piece).ok()?;
    piece.truncate(length);
    (length > 0).then_some(piece)
}

/// A caller that speaks MCP, with a connection for each request.
pub struct Caller {
    pub address: SocketAddr,
    pub token: Option<String>,
    /// The session of the older protocols; none with the newest one.
    pub session: Option<String>,
    pub next_id: AtomicU64,
}

impl Caller {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
            session: None,
            next_id: AtomicU64::new(1),
        }
    }

    /// Opens a session, as clients of the older protocols do.
    pub fn in_session(mut self) -> Self {
        let reply = self.initialize();
        assert_eq!(reply.status, 200, "{reply:?}");
        self.session = Some(reply.header("mcp-session-id").expect("a session").to_owned());
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.send(&done, "").status, 202);
        self
    }

    pub fn initialize(&self) -> Reply {
        let params = json!({"protocolVersion": SESSION_PROTOCOL, "capabilities": {}, "clientInfo": {"name": "e2e", "version": "1"}});
        self.send(
            &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}),
            "",
        )
    }

    pub fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a request in this caller's protocol version.
    pub fn message(&self, method: &str, mut params: Value) -> Value {
        if self.session.is_none() {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS_PROTOCOL,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        json!({"jsonrpc": "2.0", "id": self.fresh_id(), "method": method, "params": params})
    }

    /// Returns the head of a request with this body; `more` contains further header lines.
    pub fn head(&self, message: &Value, length: usize, more: &str) -> String {
        use std::fmt::Write as _;
        let mut head = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\n", self.address);
        let mut line = |name: &str, value: &str| write!(head, "{name}: {value}\r\n").unwrap();
        line("Content-Type", "application/json");
        line("Accept", "application/json, text/event-stream");
        line("Content-Length", &length.to_string());
        if let Some(token) = &self.token {
            line("Authorization", &format!("Bearer {token}"));
        }
        match &self.session {
            Some(session) => {
                line("Mcp-Session-Id", session);
                line("MCP-Protocol-Version", SESSION_PROTOCOL);
            }
            None if message["params"]["_meta"].is_object() => {
                line("MCP-Protocol-Version", STATELESS_PROTOCOL);
                line("Mcp-Method", message["method"].as_str().unwrap_or_default());
                if let Some(name) = message["params"]["name"].as_str().or(message["params"]["uri"].as_str()) {
                    line("Mcp-Name", name);
                }
            }
            None => {}
        }
        format!("{head}{more}\r\n")
    }

    /// Sends a message without waiting for the answer.
    pub fn begin(&self, message: &Value, more: &str) -> BufReader<TcpStream> {
        let body = message.to_string();
        let mut stream = connect(self.address);
        let request = format!("{}{body}", self.head(message, body.len(), more));
        // A server that refuses early may not read the whole request.
        let _all_or_part = stream.write_all(request.as_bytes());
        BufReader::new(stream)
    }

    pub fn send(&self, message: &Value, more: &str) -> Reply {
        Reply::read(&mut self.begin(message, &format!("Connection: close\r\n{more}"))).expect("an answer")
    }

    pub fn request(&self, method: &str, params: Value) -> Reply {
        self.send(&self.message(method, params), "")
    }

    pub fn tool(&self, tool: &str, arguments: &Value) -> Value {
        self.message("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool.
    #[track_caller]
    pub fn call(&self, tool: &str, arguments: Value) -> Answer {
        let reply = self.send(&self.tool(tool, &arguments), "");
        assert_eq!(reply.status, 200, "{reply:?}");
        let message = reply.message();
        assert!(message.get("error").is_none(), "{message}");
        Answer(message["result"].clone())
    }

    #[track_caller]
    pub fn run(&self, code: &str) -> Answer {
        self.call("execute_code", json!({"code": code}))
    }

    /// Runs code that must succeed. Returns its text without the server's last block.
    #[track_caller]
    pub fn text(&self, code: &str) -> String {
        let answer = self.run(code);
        assert_eq!(answer.status(), "ok", "{answer:?}");
        answer.output()
    }
}

/// Makes a token with the operator's command.
pub fn token(place: &TestDir, more: &[&str]) -> (String, String) {
    let mut arguments = vec!["token", "create", "--json"];
    arguments.extend(more);
    let made: Value = serde_json::from_slice(&command(place, &arguments)).unwrap();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("id"), text("token"))
}

/// Returns a command's output; the command must succeed.
pub fn command(place: &TestDir, arguments: &[&str]) -> Vec<u8> {
    let output = place.command(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}
