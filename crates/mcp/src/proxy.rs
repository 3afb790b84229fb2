//! A proxy on standard input and output in front of a running server. The sandboxes belong to that server, and outlive
//! the client.
//!
//! The proxy interprets as little of MCP as it can: the protocol version of a message, so that the HTTP headers match;
//! cancellations; and the handshake, so that it can begin again after a restart of the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use sandcell_sandbox::Failure;
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::limits::{CONTROL_REQUESTS, GRACE_AFTER_EOF, MESSAGE_BYTES, REQUESTS_IN_FLIGHT};
use crate::priority::Priority;
use crate::stdio::transport::BUSY_ERROR;

/// The maximum bytes of one message of the server.
const ANSWER_BYTES: usize = 64 << 20;
/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum silence of the server. It is longer than any call waits, and keep-alives are more frequent.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum time for ending a session.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(2);

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");
/// The JSON pointer to the protocol version in messages of the newest protocol.
const META_VERSION: &str = "/params/_meta/io.modelcontextprotocol~1protocolVersion";

/// The reasons why the proxy cannot pass messages on.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Not an address, or one that a token must not be sent to.
    #[error("{0:?} {1}")]
    Address(String, &'static str),
    /// Not a token.
    #[error("the token cannot be sent in a header")]
    Token,
    /// No client.
    #[error("no HTTP client could be made")]
    Client(#[source] reqwest::Error),
    /// Standard input or output.
    #[error("the client's end cannot be used")]
    Pipe(#[source] std::io::Error),
}

/// The state of the session behind the proxy, in protocols that have one.
#[derive(Debug, Default, Clone)]
struct Session {
    /// The client's `initialize` message, for beginning again.
    hello: Option<Value>,
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

/// Starts the server if it is absent.
pub type Wake = Arc<dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

struct Proxy<W> {
    /// The server's address, for people.
    address: String,
    url: Url,
    wake: Option<Wake>,
    /// True once the right server has answered.
    awake: AtomicBool,
    http: reqwest::Client,
    token: Option<HeaderValue>,
    session: Mutex<Session>,
    /// Serializes session openings.
    beginning: tokio::sync::Mutex<()>,
    /// Requests that are being answered, by id.
    open: Mutex<HashMap<String, CancellationToken>>,
    out: tokio::sync::Mutex<W>,
}

/// Passes messages between standard input and output and the server at `to`, until standard input ends. `to` is an
/// address, or `unix:` and the path of a socket. The proxy calls `wake` before the first message, and later when the
/// server is unreachable. It then sends the message once more.
///
/// # Errors
///
/// Fails if the address or the token is unusable, or if standard input or output breaks. An unreachable server is no
/// error here: each request gets an error response.
pub async fn proxy_stdio(to: &str, token: Option<&str>, wake: Option<Wake>) -> Result<(), ProxyError> {
    let input = tokio::io::BufReader::new(tokio::io::stdin());
    proxy(to, token, wake, input, tokio::io::stdout()).await
}

pub(crate) async fn proxy(
    to: &str,
    token: Option<&str>,
    wake: Option<Wake>,
    input: impl AsyncBufRead + Unpin,
    out: impl AsyncWrite + Unpin + Send + 'static,
) -> Result<(), ProxyError> {
    let proxy = Arc::new(Proxy::new(to, token, wake, out)?);
    let permits = Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT + CONTROL_REQUESTS));
    let left = CancellationToken::new();
    let ended = proxy.pass_on(input, &permits, &left).await;
    // The server may still answer pending requests for a moment, as on a connection without a proxy.
    let all = u32::try_from(REQUESTS_IN_FLIGHT + CONTROL_REQUESTS).unwrap_or(u32::MAX);
    let _rest = tokio::time::timeout(GRACE_AFTER_EOF, permits.acquire_many(all)).await;
    left.cancel();
    // A session that is not ended would take up room until its idle limit, so the proxy tries to end it in any case.
    let _gone = tokio::time::timeout(SESSION_END_TIMEOUT, proxy.leave()).await;
    ended
}

/// Returns a free permit for a request, if any. Reading must not wait for a permit: the next message could free one.
fn free_permit(permits: &Arc<Semaphore>, priority: Priority) -> Option<OwnedSemaphorePermit> {
    let kept_free = match priority {
        Priority::Ordinary => CONTROL_REQUESTS,
        Priority::Control => 0,
    };
    let is_free = permits.available_permits() > kept_free;
    is_free.then(|| Arc::clone(permits).try_acquire_owned().ok()).flatten()
}

/// A client of one running server.
pub(crate) struct ServerClient {
    pub(crate) url: Url,
    pub(crate) http: reqwest::Client,
    pub(crate) token: Option<HeaderValue>,
}

impl std::fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerClient")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl ServerClient {
    /// Makes a client of the server at an address of its `/mcp`, or at `unix:` and the path of its socket.
    pub(crate) fn new(to: &str, token: Option<&str>) -> Result<Self, ProxyError> {
        let socket = to.strip_prefix("unix:");
        if cfg!(not(unix)) && socket.is_some() {
            let reason = "cannot be used: this system has no such sockets";
            return Err(ProxyError::Address(to.to_owned(), reason));
        }
        if socket.is_some_and(|path| !path.starts_with('/')) {
            return Err(ProxyError::Address(to.to_owned(), "must be unix: and an absolute path"));
        }
        let url = if socket.is_some() { "http://localhost/mcp" } else { to };
        let wrong = |reason| ProxyError::Address(url.to_owned(), reason);
        let address: Url = url.parse().map_err(|_| wrong("is not an address"))?;
        let host = address.host_str().ok_or_else(|| wrong("is not an address"))?;
        let number: Result<std::net::IpAddr, _> = host.trim_matches(['[', ']']).parse();
        let is_here = host == "localhost" || number.is_ok_and(|ip| ip.to_canonical().is_loopback());
        match address.scheme() {
            "https" => {}
            "http" if is_here => {}
            _ => return Err(wrong("must begin with https:// (http:// only on this machine)")),
        }
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let mut token = token.transpose().map_err(|_| ProxyError::Token)?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // A token is sent only to the operator's address.
            .redirect(reqwest::redirect::Policy::none());
        if is_here {
            http = http.no_proxy();
        }
        #[cfg(unix)]
        if let Some(path) = socket {
            // A new connection costs little here. It distinguishes a server that has ended from one that broke off in
            // an answer.
            http = http.unix_socket(path).pool_max_idle_per_host(0);
        }
        Ok(Self {
            url: address,
            http: http.build().map_err(ProxyError::Client)?,
            token,
        })
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> Proxy<W> {
    fn new(to: &str, token: Option<&str>, wake: Option<Wake>, out: W) -> Result<Self, ProxyError> {
        let ServerClient { url, http, token } = ServerClient::new(to, token)?;
        Ok(Self {
            address: to.to_owned(),
            url,
            wake,
            awake: AtomicBool::new(false),
            http,
            token,
            session: Mutex::default(),
            beginning: tokio::sync::Mutex::default(),
            open: Mutex::default(),
            out: tokio::sync::Mutex::new(out),
        })
    }

    async fn pass_on(
        self: &Arc<Self>,
        mut input: impl AsyncBufRead + Unpin,
        permits: &Arc<Semaphore>,
        left: &CancellationToken,
    ) -> Result<(), ProxyError> {
        loop {
            let mut line = Vec::new();
            let most = u64::try_from(MESSAGE_BYTES + 1).unwrap_or(u64::MAX);
            let read = (&mut input).take(most).read_until(b'\n', &mut line).await;
            match read.map_err(ProxyError::Pipe)? {
                0 => return Ok(()),
                read if read > MESSAGE_BYTES => {
                    self.say(&failure(
                        &Value::Null,
                        -32600,
                        "the message is too long",
                        "send files in parts with append",
                    ))
                    .await?;
                    skip_line(&mut input).await.map_err(ProxyError::Pipe)?;
                    continue;
                }
                _ => {}
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Ok(message) = serde_json::from_slice::<Value>(&line) else {
                self.say(&failure(
                    &Value::Null,
                    -32700,
                    "the line is not JSON",
                    "send one message of JSON-RPC a line",
                ))
                .await?;
                continue;
            };
            if !message.is_object() {
                let (text, remedy) = ("a message is one object", "send one message of JSON-RPC a line");
                self.say(&failure(&Value::Null, -32600, text, remedy)).await?;
                continue;
            }
            let is_request = message.get("id").is_some() && message.get("method").is_some();
            if self.takes_back(&message) {
                continue;
            }
            // Messages that must be delivered in order are awaited here.
            if !is_request || method(&message) == Some("initialize") {
                self.deliver(&message, left).await?;
                continue;
            }
            let Some(permit) = free_permit(permits, Priority::of_json(&message, line.len())) else {
                let id = message.get("id").unwrap_or(&Value::Null);
                self.say(&busy(id)).await?;
                continue;
            };
            let (proxy, left) = (Arc::clone(self), left.clone());
            tokio::spawn(async move {
                // When writing to the client fails, reading from it ends as well.
                let _written = proxy.deliver(&message, &left).await;
                drop(permit);
            });
        }
    }

    /// Returns true if the message cancels a request of the newest protocol. Over HTTP, cancelling means hanging up.
    fn takes_back(&self, message: &Value) -> bool {
        if method(message) != Some("notifications/cancelled") {
            return false;
        }
        let Some(id) = message.pointer("/params/requestId") else {
            return false;
        };
        let open = lock(&self.open).get(&id.to_string()).cloned();
        open.inspect(CancellationToken::cancel).is_some()
    }

    /// Forwards a message, and passes its answers to the client.
    async fn deliver(&self, message: &Value, left: &CancellationToken) -> Result<(), ProxyError> {
        let id = message.get("id").filter(|_| message.get("method").is_some());
        let is_modern = message.pointer(META_VERSION).is_some();
        let hang_up = left.child_token();
        if let (Some(id), true) = (id, is_modern) {
            lock(&self.open).insert(id.to_string(), hang_up.clone());
        }
        let done = tokio::select! {
            done = self.exchange(message) => Some(done),
            () = hang_up.cancelled() => None,
        };
        if let Some(id) = id {
            lock(&self.open).remove(&id.to_string());
        }
        match (done, id) {
            (None | Some(Ok(())), _)
            | (Some(Err(SendError::Unreachable | SendError::Http(_) | SendError::NotStarted(_))), None) => Ok(()),
            (Some(Err(SendError::Pipe(error))), _) => Err(error),
            (Some(Err(SendError::Unreachable)), Some(id)) => self.cannot_be_used(id, "nothing listens there").await,
            (Some(Err(SendError::Http(reason))), Some(id)) => self.cannot_be_used(id, &reason).await,
            (Some(Err(SendError::NotStarted(why))), Some(id)) => {
                self.say(&failure(id, -32000, &why.message, &why.remedy)).await
            }
        }
    }

    async fn cannot_be_used(&self, id: &Value, reason: &str) -> Result<(), ProxyError> {
        let message = format!("the server at {} cannot be used: {reason}", self.address);
        let remedy = if self.wake.is_some() {
            "call again: that starts the server again if it has ended; its sandboxes are then gone"
        } else {
            "start it (`sandcell serve --http ADDR`), or correct the address or the token (SANDCELL_TOKEN)"
        };
        self.say(&failure(id, -32000, &message, remedy)).await
    }

    /// Sends a message. Starts the server before the first message. If the server is unreachable later on, starts it
    /// again and resends the message, since the message has not arrived.
    async fn send(&self, message: &Value) -> Result<Response, SendError> {
        if let Some(wake) = &self.wake
            && !self.awake.load(Ordering::Relaxed)
        {
            wake().await.map_err(SendError::NotStarted)?;
            self.awake.store(true, Ordering::Relaxed);
        }
        match (self.post(message).await, &self.wake) {
            (Err(SendError::Unreachable), Some(wake)) => {
                wake().await.map_err(SendError::NotStarted)?;
                self.post(message).await
            }
            (answered, _) => answered,
        }
    }

    async fn exchange(&self, message: &Value) -> Result<(), SendError> {
        let used = lock(&self.session).id.clone();
        let mut response = self.send(message).await?;
        let is_of_session = used.is_some() && message.pointer(META_VERSION).is_none();
        if response.status() == StatusCode::NOT_FOUND && is_of_session {
            // The server restarted, or the session was idle for too long. Sandboxes may still exist.
            self.begin_again(used.as_ref()).await?;
            response = self.send(message).await?;
        }
        if method(message) == Some("initialize") && response.status() == StatusCode::OK {
            let id = response.headers().get(SESSION_HEADER).cloned();
            *lock(&self.session) = Session {
                hello: Some(message.clone()),
                id,
                version: None,
            };
        }
        self.hand_back(message, response).await
    }

    fn post(&self, message: &Value) -> impl Future<Output = Result<Response, SendError>> + use<W> {
        let request = self
            .http
            .post(self.url.clone())
            .headers(self.headers(message))
            .body(message.to_string());
        async move { request.send().await.map_err(|error| SendError::of(&error)) }
    }

    /// Returns the HTTP headers for a message, with the session id if there is one.
    fn headers(&self, message: &Value) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        let mut put = |name: HeaderName, value: Option<&Value>| {
            let value = value
                .and_then(Value::as_str)
                .and_then(|text| HeaderValue::from_str(text).ok());
            if let Some(value) = value {
                headers.insert(name, value);
            }
        };
        if let Some(version) = message.pointer(META_VERSION) {
            put(VERSION_HEADER, Some(version));
            put(METHOD_HEADER, message.get("method"));
            let name = message
                .pointer("/params/name")
                .or_else(|| message.pointer("/params/uri"));
            put(NAME_HEADER, name.or_else(|| message.pointer("/params/taskId")));
        } else if method(message) != Some("initialize") {
            let session = lock(&self.session).clone();
            headers.extend(session.id.map(|id| (SESSION_HEADER, id)));
            headers.extend(session.version.map(|version| (VERSION_HEADER, version)));
        }
        headers
    }

    /// Opens a new session to replace a lost one, with the client's first handshake.
    async fn begin_again(&self, gone: Option<&HeaderValue>) -> Result<(), SendError> {
        let _one_at_a_time = self.beginning.lock().await;
        let now = lock(&self.session).clone();
        // Another request has already opened one.
        let Some(hello) = now.hello.filter(|_| now.id.as_ref() == gone) else {
            return Ok(());
        };
        let response = self.post(&hello).await?;
        if response.status() != StatusCode::OK {
            return Err(SendError::Http(format!("status {}", response.status().as_u16())));
        }
        let id = response.headers().get(SESSION_HEADER).cloned();
        lock(&self.session).id = id;
        let mut ended = response;
        while ended.chunk().await.map_err(|error| SendError::of(&error))?.is_some() {}
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.post(&ready).await.map(drop)
    }

    /// Gives the client the server's answer: one message, or a stream of them.
    async fn hand_back(&self, message: &Value, mut response: Response) -> Result<(), SendError> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
        let status = response.status();
        let mut buffer = Vec::new();
        let mut data = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| SendError::of(&error))? {
            if buffer.len() + data.len() + part.len() > ANSWER_BYTES {
                return Err(SendError::Http("its answer is too long".to_owned()));
            }
            if !is_stream {
                buffer.extend_from_slice(&part);
                continue;
            }
            let mut pieces = part.split(|byte| *byte == b'\n').peekable();
            while let Some(piece) = pieces.next() {
                buffer.extend_from_slice(piece);
                if pieces.peek().is_none() {
                    // The line continues in the next part.
                    break;
                }
                let line = std::mem::take(&mut buffer);
                let line = line.trim_ascii_end();
                if let Some(more) = line.strip_prefix(b"data:") {
                    data.extend_from_slice(more.trim_ascii_start());
                } else if line.is_empty() && !data.is_empty() {
                    self.hand_over(message, &std::mem::take(&mut data)).await?;
                }
            }
        }
        if is_stream {
            return Ok(());
        }
        match serde_json::from_slice::<Value>(&buffer) {
            Ok(_) => self.hand_over(message, &buffer).await,
            Err(_) if status.is_success() => Ok(()),
            Err(_) => Err(SendError::Http(format!("status {}", status.as_u16()))),
        }
    }

    async fn hand_over(&self, message: &Value, bytes: &[u8]) -> Result<(), SendError> {
        let mut answer: Value = match serde_json::from_slice(bytes) {
            Ok(answer) => answer,
            // The priming event of a stream has no message.
            Err(_) => return Ok(()),
        };
        if method(message) == Some("initialize")
            && let Some(version) = answer.pointer("/result/protocolVersion").and_then(Value::as_str)
        {
            lock(&self.session).version = HeaderValue::from_str(version).ok();
        }
        // A server that refuses a message before reading it does not know its id.
        if let (Some(object), Some(id)) = (answer.as_object_mut(), message.get("id"))
            && object.contains_key("error")
        {
            object.entry("id").or_insert_with(|| id.clone());
        }
        if message.get("id").is_none() {
            return Ok(());
        }
        self.say(&answer).await.map_err(SendError::Pipe)
    }

    async fn say(&self, message: &Value) -> Result<(), ProxyError> {
        let mut out = self.out.lock().await;
        let line = format!("{message}\n");
        out.write_all(line.as_bytes()).await.map_err(ProxyError::Pipe)?;
        out.flush().await.map_err(ProxyError::Pipe)
    }

    /// Ends only the session: sandboxes stay.
    async fn leave(&self) {
        let session = lock(&self.session).clone();
        let Some(id) = session.id else { return };
        let mut request = self.http.delete(self.url.clone()).header(SESSION_HEADER, id);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        // The session also ends by its idle limit.
        let _gone = request.send().await;
    }
}

/// The reasons why a message was not answered.
enum SendError {
    /// Nothing listens at the address: the message has not arrived.
    Unreachable,
    /// The server could not be started.
    NotStarted(Failure),
    Http(String),
    Pipe(ProxyError),
}

impl SendError {
    fn of(error: &reqwest::Error) -> Self {
        if error.is_connect() {
            return Self::Unreachable;
        }
        let reason = if error.is_timeout() {
            "it did not answer in time"
        } else {
            "the connection broke off"
        };
        Self::Http(reason.to_owned())
    }
}

fn method(message: &Value) -> Option<&str> {
    message.get("method")?.as_str()
}

fn busy(id: &Value) -> Value {
    let (message, remedy) = (
        format!("{REQUESTS_IN_FLIGHT} requests are being answered"),
        "wait for some of them",
    );
    let data = json!({"code": "busy", "message": message, "remedy": remedy});
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": BUSY_ERROR, "message": format!("busy: {message} ({remedy})"), "data": data}})
}

fn failure(id: &Value, code: i32, message: &str, remedy: &str) -> Value {
    let data = json!({"code": "backend_unavailable", "message": message, "remedy": remedy});
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": format!("{message} ({remedy})"), "data": data}})
}

async fn skip_line(input: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<()> {
    loop {
        let piece = input.fill_buf().await?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(piece.len(), |end| end + 1);
        let is_over = piece.is_empty() || end.is_some();
        input.consume(used);
        if is_over {
            return Ok(());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
