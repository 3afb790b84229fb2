//! The client of one server: starts it on first use, again after its end, and makes calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest, Implementation,
    PaginatedRequestParams, Request, ServerResult,
};
use rmcp::service::{NotificationContext, Peer, PeerRequestOptions, RoleClient, RunningService, ServiceError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientHandler, ServiceExt as _};
use sandcell_sandbox::{Code, Failure, root_cause, with_sources};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::catalogue::{Catalogue, MAX_CATALOGUE_BYTES, json_bytes};
use crate::config::{ServerConfig, Transport};
use crate::http::MAX_MESSAGE_BYTES;
use crate::stdio::{Program, StderrTail};

/// The maximum time for a server to start and to list its tools. Package runners download programs at the first start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed start. Calls in between get the same failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);
/// The number of short lives in a row after which a server is started no more for that time.
const MAX_SHORT_LIVES: u32 = 3;
/// The maximum number of pages of a list.
const MAX_PAGES: usize = 200;
/// The maximum length of a server's error text.
const MAX_ERROR_BYTES: usize = 2 << 10;

/// The reasons why a server cannot be used. The texts are for the operator: they may contain addresses and paths.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the program {0:?} cannot be started")]
    Program(String, #[source] std::io::Error),
    #[error("the server does not answer the handshake: {0}")]
    Handshake(String),
    #[error("the server did not start within {} s", START_TIMEOUT.as_secs())]
    Slow,
    #[error("the list of tools cannot be read: {0}")]
    List(String),
}

/// A server of the settings.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) config: ServerConfig,
    slot: tokio::sync::Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    live: Option<Arc<Live>>,
    failed_at: Option<Instant>,
    /// The number of lives in a row that were shorter than the pause after a failed start.
    short_lives: u32,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Live {
    service: RunningService<RoleClient, Client>,
    catalogue: Mutex<Arc<Catalogue>>,
    stale: Arc<AtomicBool>,
    reading: tokio::sync::Mutex<()>,
    since: Instant,
    _program: Option<Program>,
}

/// The handler of a server's own requests: it grants none.
#[derive(Debug, Clone)]
struct Client {
    stale: Arc<AtomicBool>,
}

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("sandcell", env!("CARGO_PKG_VERSION")),
        )
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.stale.store(true, Ordering::Relaxed);
    }
}

/// The connections in use. Changed settings keep the connection, and so the running process, of a server whose table is
/// unchanged.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<Vec<Weak<Connection>>>>);

impl Connections {
    /// Returns the connection with this configuration: one in use, or else a new one.
    pub(crate) fn of(&self, config: ServerConfig) -> Arc<Connection> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|connection| connection.strong_count() > 0);
        let mut in_use = known.iter().filter_map(Weak::upgrade);
        if let Some(found) = in_use.find(|connection| connection.config == config) {
            return found;
        }
        let connection = Arc::new(Connection::new(config));
        known.push(Arc::downgrade(&connection));
        connection
    }
}

impl Connection {
    fn new(config: ServerConfig) -> Self {
        Self {
            config,
            slot: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the running server. Starts it if needed.
    ///
    /// # Errors
    /// The server cannot be used. The message has no detail: code inside reads it. The log has the detail.
    pub(crate) async fn live(self: &Arc<Self>) -> Result<Arc<Live>, Failure> {
        if let Ok(slot) = self.slot.try_lock()
            && let Some(live) = slot.live.as_ref().filter(|live| !live.has_ended())
            && !live.stale.load(Ordering::Relaxed)
        {
            return Ok(Arc::clone(live));
        }
        // A start goes on when the call that needed it is over: the next call finds the server.
        let connection = Arc::clone(self);
        let started = tokio::spawn(async move { connection.live_or_start().await });
        started.await.unwrap_or_else(|_| Err(self.unavailable()))
    }

    async fn live_or_start(&self) -> Result<Arc<Live>, Failure> {
        let mut slot = self.slot.lock().await;
        if let Some(live) = slot.live.as_ref().filter(|live| !live.has_ended()) {
            let live = Arc::clone(live);
            drop(slot);
            live.refresh().await;
            return Ok(live);
        }
        if let Some(ended) = slot.live.take() {
            let was_short = ended.since.elapsed() < RETRY_INTERVAL;
            slot.short_lives = if was_short { slot.short_lives + 1 } else { 0 };
            if slot.short_lives >= MAX_SHORT_LIVES {
                slot.short_lives = 0;
                slot.failed_at = Some(Instant::now());
            }
            tracing::warn!(server = %self.config.name, "the server of tools has ended and is started again");
        }
        if slot.failed_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return Err(self.unavailable());
        }
        match self.start().await {
            Ok(live) => {
                slot.failed_at = None;
                Ok(Arc::clone(slot.live.insert(Arc::new(live))))
            }
            Err(error) => {
                slot.failed_at = Some(Instant::now());
                tracing::warn!(server = %self.config.name, "the server of tools cannot be used: {}", with_sources(&error));
                Err(self.unavailable())
            }
        }
    }

    /// Starts the server once, for the operator.
    pub(crate) async fn try_start(&self) -> Result<Live, ConnectionError> {
        self.start().await
    }

    fn unavailable(&self) -> Failure {
        Failure::new(
            Code::ToolUnavailable,
            format!("the server {} of tools cannot be used at present", self.config.name),
            "continue without it; the operator can find the reason with `sandcell tools check` and in the log",
        )
    }

    async fn start(&self) -> Result<Live, ConnectionError> {
        let mut stderr = None;
        match timeout(START_TIMEOUT, self.connect(&mut stderr)).await {
            Ok(Ok(live)) => Ok(live),
            Ok(Err(error)) => Err(with_stderr(error, stderr.as_ref()).await),
            Err(_) => Err(ConnectionError::Slow),
        }
    }

    async fn connect(&self, stderr: &mut Option<StderrTail>) -> Result<Live, ConnectionError> {
        let stale = Arc::new(AtomicBool::new(false));
        let client = Client { stale: stale.clone() };
        let handshake = |error: &dyn std::error::Error| ConnectionError::Handshake(with_sources(error));
        let (service, program) = match &self.config.transport {
            Transport::Command {
                program,
                args,
                env,
                cwd,
            } => {
                let (running, output, input) = Program::start(program, args, env, cwd.as_deref())
                    .map_err(|source| ConnectionError::Program(program.clone(), source))?;
                *stderr = Some(running.stderr.clone());
                let transport = AsyncRwTransport::new(output, input).with_max_line_length(MAX_MESSAGE_BYTES);
                (
                    client.serve(transport).await.map_err(|error| handshake(&error))?,
                    Some(running),
                )
            }
            Transport::Http { url, headers } => {
                let transport = crate::http::transport(url, headers)
                    .map_err(|error| ConnectionError::Handshake(error.to_string()))?;
                let served = client.serve(transport).await;
                // The outer errors name types of the protocol library.
                let error = |error: &dyn std::error::Error| ConnectionError::Handshake(root_cause(error));
                (served.map_err(|reason| error(&reason))?, None)
            }
        };
        let catalogue = list(service.peer())
            .await
            .map_err(|error| ConnectionError::List(with_sources(&error)))?;
        if catalogue.left_out > 0 {
            tracing::warn!(
                server = %self.config.name,
                "{} tools are not offered: names or schemas too long, or too many tools",
                catalogue.left_out
            );
        }
        Ok(Live {
            service,
            catalogue: Mutex::new(Arc::new(catalogue)),
            stale,
            reading: tokio::sync::Mutex::default(),
            since: Instant::now(),
            _program: program,
        })
    }
}

/// Adds the last error output of the program.
async fn with_stderr(error: ConnectionError, stderr: Option<&StderrTail>) -> ConnectionError {
    let Some(stderr) = stderr else { return error };
    // The program has just ended; its last words may still be on their way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let text = stderr.text();
    match error {
        ConnectionError::Handshake(reason) if !text.is_empty() => {
            ConnectionError::Handshake(format!("{reason}; its error output ends with:\n{text}"))
        }
        other => other,
    }
}

/// Reads all pages of the list of tools.
async fn list(peer: &Peer<RoleClient>) -> Result<Catalogue, ServiceError> {
    let (mut all, mut bytes) = (Vec::new(), 0_usize);
    let mut cursor = None;
    for _page in 0..MAX_PAGES {
        let mut params = PaginatedRequestParams::default();
        params.cursor = cursor;
        let mut page = peer.list_tools(Some(params)).await?;
        bytes = bytes.saturating_add(json_bytes(&page.tools));
        all.append(&mut page.tools);
        cursor = page.next_cursor;
        // More than this is not offered.
        if cursor.is_none() || bytes > MAX_CATALOGUE_BYTES {
            break;
        }
    }
    Ok(Catalogue::read(all))
}

impl Live {
    /// Returns the tools that the server listed last.
    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.service.is_closed() || self.service.peer().is_transport_closed()
    }

    /// Reads the list again if the server has said that it changed.
    async fn refresh(&self) {
        // One reading at a time. The call of another reader goes on with the list that it has.
        let Ok(_reading) = self.reading.try_lock() else { return };
        if !self.stale.swap(false, Ordering::Relaxed) {
            return;
        }
        match timeout(START_TIMEOUT, list(self.service.peer())).await {
            Ok(Ok(listed)) => {
                *self.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(listed);
            }
            Ok(Err(_)) | Err(_) => tracing::debug!("a changed list of tools could not be read"),
        }
    }

    /// Calls a tool. Sends a cancellation to the server when `stopped` is ready, and when the time is over.
    ///
    /// # Errors
    /// The server refuses the call, ends, or does not answer in time.
    pub(crate) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        time: Duration,
        stopped: impl Future<Output = ()>,
    ) -> Result<CallToolResult, Failure> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(Request::new(params));
        let sent = self
            .service
            .peer()
            .send_cancellable_request(request, PeerRequestOptions::no_options());
        // A server that does not read its input must not hold the call beyond its time.
        let mut handle = match timeout(time, sent).await {
            Ok(sent) => sent.map_err(|error| failure_of(tool, &error))?,
            Err(_) => return Err(unusable(tool, "its server does not read")),
        };
        let why = tokio::select! {
            biased;
            answer = &mut handle.rx => {
                return match answer {
                    Ok(Ok(ServerResult::CallToolResult(result))) => Ok(result),
                    Ok(Ok(_)) => Err(unusable(tool, "its answer is not a result")),
                    Ok(Err(error)) => Err(failure_of(tool, &error)),
                    Err(_) => Err(unusable(tool, "its server has ended")),
                };
            }
            () = stopped => Failure::new(
                Code::Cancelled,
                format!("the call of {tool} was cancelled with its execution"),
                "run the code again",
            ),
            () = tokio::time::sleep(time) => Failure::new(
                Code::Timeout,
                format!("{tool} did not answer within {} s", time.as_secs_f64()),
                "ask for less, or continue without it; the operator can raise timeout_s of its server",
            ),
        };
        // The server may have ended. The call is over in any case.
        let _told = timeout(Duration::from_secs(1), handle.cancel(Some(why.code.to_string()))).await;
        Err(why)
    }
}

fn unusable(tool: &str, why: &str) -> Failure {
    Failure::new(
        Code::ToolUnavailable,
        format!("{tool} gave no result: {why}"),
        "try once more, or continue without it; it is not known whether the call had an effect",
    )
}

fn failure_of(tool: &str, error: &ServiceError) -> Failure {
    match error {
        // The server's own words, like those of a tool.
        ServiceError::McpError(error) => Failure::new(
            Code::ToolFailed,
            crate::catalogue::cut(&error.message, MAX_ERROR_BYTES),
            "correct the call according to the server's message, or continue without it",
        ),
        ServiceError::TransportSend(_) | ServiceError::TransportClosed => unusable(tool, "its server has ended"),
        _ => unusable(tool, "its server answered with something that is not a result"),
    }
}
