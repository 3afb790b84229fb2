//! Transcripts from the view of a client, over a pair of pipes in memory, of the engine on a scripted world.

mod calls;
mod completion;
mod listing;
mod protocol;
mod results;
mod tasks;
pub(crate) mod views;

use std::sync::Arc;
use std::time::Duration;

use sandcell_engine::{Engine, EngineConfig, Principal, Status};
use sandcell_sandbox::LanguageInfo;
use sandcell_testkit::Bench;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use crate::auth::STDIO_PRINCIPAL;
use crate::server::ServerOptions;
use crate::stdio::{ServeError, serve_on};

/// Longer than anything here takes, on the real clock and on a paused one; a test that waits this long has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// An execution's id that no test makes.
const UNKNOWN_EXECUTION: &str = "exbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Replacements for the parts of transcripts that change from run to run.
const TRANSCRIPT_FILTERS: [(&str, &str); 5] = [
    (r"\bsb[a-z2-7]{26}\b", "<sandbox>"),
    (r"\bex[a-z2-7]{26}\b", "<execution>"),
    (r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z", "<time>"),
    (r"\b\d+ ms\b", "<n> ms"),
    (r#""(duration_ms|cpu_ms)": \d+"#, r#""$1": "<n>""#),
];

macro_rules! assert_text {
    ($text:expr) => {
        insta::with_settings!({filters => crate::tests::TRANSCRIPT_FILTERS}, { insta::assert_snapshot!($text) })
    };
}
macro_rules! assert_data {
    ($data:expr) => {
        insta::with_settings!({filters => crate::tests::TRANSCRIPT_FILTERS}, { insta::assert_json_snapshot!($data) })
    };
}
use {assert_data, assert_text};

/// Python with two libraries, and Bash.
pub(crate) fn languages() -> Vec<LanguageInfo> {
    let language = |name: &str, alias: &str, version: &str, libraries: &[&str]| LanguageInfo {
        name: name.into(),
        aliases: vec![alias.into()],
        version: version.into(),
        libraries: libraries.iter().map(|&library| library.to_owned()).collect(),
        session: true,
        extensions: vec![alias.into()],
    };
    vec![
        language("python", "py", "3.11.2", &["numpy 2.1.0", "pandas 2.2.3"]),
        language("bash", "sh", "5.2", &[]),
    ]
}

/// An engine whose cells are scripts of the scripted world.
pub(crate) fn bench() -> Bench {
    bench_with(|_| {})
}

fn bench_with(change: impl FnOnce(&mut EngineConfig)) -> Bench {
    let mut bench = Bench::with_languages(languages(), |config| {
        config.hints = crate::hints();
        change(config);
    });
    bench.me = Principal::new(STDIO_PRINCIPAL);
    bench
}

/// Code that says so when it has begun, and goes on until it is stopped.
fn endless(note: &str) -> String {
    format!("note {note}\nsleep 3600000")
}

/// Waits until this many executions of the caller have been cancelled.
async fn cancelled_becomes(bench: &Bench, count: usize) {
    let waiting = async {
        loop {
            let history = bench.engine.history(&bench.me, 50, None).await.unwrap();
            let cancelled = history.records.iter().filter(|row| row.status == Status::Cancelled);
            if cancelled.count() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap();
}

/// A client that speaks raw lines.
struct Client {
    read: BufReader<ReadHalf<DuplexStream>>,
    write: WriteHalf<DuplexStream>,
    server: JoinHandle<Result<(), ServeError>>,
    next_id: i64,
}

impl Client {
    /// A client whose server has not seen anything yet.
    fn connect(bench: &Bench) -> Self {
        Self::connect_with(bench, ServerOptions::default())
    }

    fn connect_with(bench: &Bench, options: ServerOptions) -> Self {
        let engine: Arc<Engine> = Arc::clone(&bench.engine);
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (server_read, server_write) = tokio::io::split(theirs);
        let server = tokio::spawn(async move { serve_on(engine, &options, server_read, server_write).await });
        let (read, write) = tokio::io::split(ours);
        Self {
            read: BufReader::new(read),
            write,
            server,
            next_id: 1,
        }
    }

    /// A client after the handshake.
    async fn ready(bench: &Bench) -> Self {
        let mut client = Self::connect(bench);
        client.initialize().await;
        client
    }

    async fn initialize(&mut self) -> Value {
        let answer = self
            .request(
                "initialize",
                json!({
                    "protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"},
                }),
            )
            .await;
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        answer
    }

    async fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes()).await;
    }

    async fn send_line(&mut self, line: &[u8]) {
        let sent = async {
            self.write.write_all(line).await.unwrap();
            self.write.write_all(b"\n").await.unwrap();
        };
        tokio::time::timeout(TEST_TIMEOUT, sent).await.unwrap();
    }

    /// The next message of the server.
    async fn receive(&mut self) -> Value {
        let mut line = String::new();
        tokio::time::timeout(TEST_TIMEOUT, self.read.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Sends a request and gives its number.
    async fn start(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    /// Sends a request and waits for its answer, which must be the next message other than a log message.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start(method, params).await;
        let mut answer = self.receive().await;
        while answer["method"] == "notifications/message" {
            answer = self.receive().await;
        }
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Calls a tool; gives the result.
    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let mut answer = self
            .request("tools/call", json!({"name": tool, "arguments": arguments}))
            .await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    async fn start_call(&mut self, tool: &str, arguments: Value) -> i64 {
        self.start("tools/call", json!({"name": tool, "arguments": arguments}))
            .await
    }

    /// Shows that the session lives.
    async fn works(&mut self) {
        let code = json!({"code": "print still here", "language": "bash"});
        let result = self.call("execute_code", code).await;
        assert_eq!(result["content"][0]["text"], "still here\n", "{result}");
    }

    /// Closes the client's end and waits for the server to end.
    async fn leave(mut self) -> Result<(), ServeError> {
        self.write.shutdown().await.unwrap();
        drop(self.write);
        drop(self.read);
        tokio::time::timeout(TEST_TIMEOUT, self.server).await.unwrap().unwrap()
    }
}

/// The texts of a result's blocks, with a word for each other kind of block.
fn blocks(result: &Value) -> Vec<String> {
    let content = result["content"].as_array().unwrap();
    content
        .iter()
        .map(|block| match block["type"].as_str().unwrap() {
            "text" => block["text"].as_str().unwrap().to_owned(),
            "resource_link" => format!("<link {} {}>", block["uri"].as_str().unwrap(), block["size"]),
            "image" => format!("<{}>", block["mimeType"].as_str().unwrap()),
            other => panic!("{other}"),
        })
        .collect()
}

/// A result as a transcript: its blocks, each set apart.
fn transcript(result: &Value) -> String {
    let error = if result["isError"] == json!(true) {
        "(isError)\n"
    } else {
        ""
    };
    format!("{error}{}", blocks(result).join("\n--------\n"))
}
