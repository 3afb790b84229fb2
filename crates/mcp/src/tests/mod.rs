//! Transcripts from the view of a client, over a pair of pipes in memory and a fake engine.

mod calls;
mod completion;
mod listing;
mod protocol;
mod results;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

use crate::host::fake::FakeHost;
use crate::server::ServerOptions;
use crate::stdio::{ServeError, serve_on};

/// Longer than anything here takes; a test that waits this long has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A client that speaks raw lines.
struct Client {
    read: BufReader<ReadHalf<DuplexStream>>,
    write: WriteHalf<DuplexStream>,
    server: JoinHandle<Result<(), ServeError>>,
    next_id: i64,
}

impl Client {
    /// A client whose server has not seen anything yet.
    fn connect(host: Arc<FakeHost>) -> Self {
        Self::connect_with(host, ServerOptions::default())
    }

    fn connect_with(host: Arc<FakeHost>, options: ServerOptions) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (server_read, server_write) = tokio::io::split(theirs);
        let server = tokio::spawn(async move { serve_on(host, &options, server_read, server_write).await });
        let (read, write) = tokio::io::split(ours);
        Self {
            read: BufReader::new(read),
            write,
            server,
            next_id: 1,
        }
    }

    /// A client after the handshake.
    async fn ready(host: Arc<FakeHost>) -> Self {
        let mut client = Self::connect(host);
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

    /// Sends a request and waits for its answer, which must be the next message.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.start(method, params).await;
        let answer = self.receive().await;
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
        let result = self.call("execute_code", json!({"code": "still here"})).await;
        assert_eq!(result["content"][0]["text"], "still here");
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
