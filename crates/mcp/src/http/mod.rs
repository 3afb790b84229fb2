//! MCP over HTTP: Streamable HTTP at `/mcp` in both eras of the protocol, health at `/healthz` and `/readyz`, and
//! metrics at `/metrics`. If an issuer is configured, OAuth metadata is below `/.well-known`. The operator can turn on
//! a web page (`page`).
//!
//! rmcp speaks the protocol. Admission and limits are in front of it, in the order of the files: `connections` (number
//! and speed), `pipeline` (the request pipeline), `host_origin` (Host and Origin), `crate::auth` (tokens), `tenants`
//! and `sessions` (the state of each caller). HTTP/1.1 by hyper, without a framework: there are few addresses, and the
//! important parts are below and above routing.

mod auth_throttle;
mod body;
mod connections;
mod endpoints;
mod host_origin;
mod limits_handle;
mod listen;
mod message;
mod metrics;
mod page;
mod pipeline;
mod rejection;
mod sessions;
mod takeover;
mod tenants;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcell_engine::Engine;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use body::{BrokenOff, whole_body};
pub use endpoints::{
    BodySender, BodyStream, Claim, Credential, Disconnected, EndpointBody, EndpointInput, EndpointRequest, Endpoints,
    LargeAnswer, LargeAnswers, NotFound, Refusal, RequestBody, RequestHead, channel_body, holding,
};
pub use host_origin::InvalidHostOrigin;
pub use limits_handle::HttpControl;
pub use page::Page;
pub use takeover::{PORT_PROTOCOL, Takeover};
pub use tls::{TlsError, TlsFiles};

use crate::auth::oauth::{OauthError, OauthOptions};
use crate::auth::{Anonymous, Authenticator, Denied, TokenStore};
use crate::server::{ServerOptions, UnknownTool};
use connections::ConnectionSlots;
use host_origin::HostOrigin;
use limits_handle::LimitsHandle;
use listen::{AcceptedConnection, Listener};
use pipeline::Pipeline;
use tenants::Tenants;
use tls::Tls;

/// The maximum time for reading the body of a request.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of the search for callers that left or lost their token.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// The interval of the check for the end of the last calls.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time that connections have for closing after their streams have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after the system refuses a connection (for lack of files, for example).
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The maximum connections, and requests under way, of a parent process.
#[cfg(target_os = "linux")]
const PARENT_CONNECTIONS: usize = 256;

/// The limits of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections of all callers.
    pub connections: usize,
    /// Requests of one caller that are under way.
    pub requests_per_caller: usize,
    /// Requests of one caller in a second, for long; twice as many at once.
    pub requests_per_s: u32,
    /// Sessions of one caller, in the older protocols.
    pub sessions_per_caller: usize,
    /// A session ends after this time without a message.
    pub session_idle: Duration,
    /// The time that calls in progress have when the server ends.
    pub drain: Duration,
}

#[cfg(test)]
impl HttpLimits {
    fn for_tests() -> Self {
        Self {
            connections: 64,
            requests_per_caller: 64,
            requests_per_s: 1000,
            sessions_per_caller: 64,
            session_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(1),
        }
    }
}

/// The addresses and access rules of the server.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Names, with or without a port, that the server accepts in addition to its address.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use it.
    pub origins: Vec<String>,
    /// The limits of callers.
    pub limits: HttpLimits,
    /// The tokens; none when there is no data folder.
    pub tokens: Option<TokenStore>,
    /// The rule for callers without a token while none exists.
    pub anonymous: Anonymous,
    /// The issuer whose access tokens are also accepted, if any. Then every caller needs a token.
    pub oauth: Option<OauthOptions>,
    /// The switch for the page.
    pub page: Page,
    /// Endpoints outside MCP. The first ones that claim a request answer it.
    pub endpoints: Vec<Arc<dyn Endpoints>>,
    /// The certificate; none for plain HTTP.
    pub tls: Option<TlsFiles>,
}

#[cfg(unix)]
impl HttpOptions {
    /// Returns the options of a server that no network reaches.
    fn local(limits: HttpLimits, anonymous: Anonymous) -> Self {
        Self {
            hosts: Vec::new(),
            origins: Vec::new(),
            limits,
            tokens: None,
            anonymous,
            oauth: None,
            tls: None,
            page: Page::Absent,
            endpoints: Vec::new(),
        }
    }
}

/// The reasons why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The options name a tool that does not exist.
    #[error(transparent)]
    UnknownTool(#[from] UnknownTool),
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidHostOrigin),
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The issuer.
    #[error(transparent)]
    Oauth(#[from] OauthError),
    /// No caller could be admitted.
    #[error("no token exists, so every caller would be refused")]
    NoToken,
    /// The list of tokens is unusable.
    #[error("the list of tokens cannot be read")]
    Tokens,
    /// The socket.
    #[error("the socket cannot be used")]
    Socket(#[source] std::io::Error),
}

/// A server that listens and has not begun to answer.
pub struct HttpServer {
    listener: Listener,
    pipeline: Arc<Pipeline>,
    tls: Option<Arc<Tls>>,
    slots: Arc<ConnectionSlots>,
    /// Ends every session and stream.
    end: CancellationToken,
}

impl std::fmt::Debug for HttpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpServer")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// Reports activity of callers.
#[derive(Clone)]
pub struct Activity(Arc<Pipeline>);

impl std::fmt::Debug for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Activity")
    }
}

impl Activity {
    /// Calls that are being answered.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.0.calls()
    }

    /// The number of calls since the server started.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.0.begun()
    }
}

impl HttpServer {
    /// Checks everything and gets ready to answer on this socket.
    ///
    /// # Errors
    ///
    /// Fails if any option is unusable.
    pub fn new(
        engine: Arc<Engine>,
        options: ServerOptions,
        http: HttpOptions,
        listener: std::net::TcpListener,
    ) -> Result<Self, HttpError> {
        let listener = Listener::network(listener).map_err(HttpError::Socket)?;
        Self::on(engine, options, http, listener)
    }

    /// The same on a socket of the file system. Only programs of the user who runs the server are admitted, and they
    /// need no token.
    ///
    /// # Errors
    ///
    /// Fails if any option is unusable.
    #[cfg(unix)]
    pub fn on_socket(
        engine: Arc<Engine>,
        options: ServerOptions,
        limits: HttpLimits,
        listener: std::os::unix::net::UnixListener,
    ) -> Result<Self, HttpError> {
        let http = HttpOptions::local(limits, Anonymous::Allowed);
        let listener = Listener::socket(listener).map_err(HttpError::Socket)?;
        Self::on(engine, options, http, listener)
    }

    /// A server for the parent process, which sends connected sockets over `socket` (`SCM_RIGHTS`, one in a message of
    /// one byte). Its requests are those of the caller of the standard streams, so both reach the same sandboxes.
    ///
    /// # Errors
    ///
    /// Fails if any option is unusable.
    #[cfg(target_os = "linux")]
    pub fn for_parent(
        engine: Arc<Engine>,
        options: ServerOptions,
        endpoints: Arc<dyn Endpoints>,
        socket: std::os::unix::net::UnixStream,
    ) -> Result<Self, HttpError> {
        // The parent is the only caller, and bounds itself.
        let limits = HttpLimits {
            connections: PARENT_CONNECTIONS,
            requests_per_caller: PARENT_CONNECTIONS,
            requests_per_s: u32::MAX / 2,
            sessions_per_caller: 1,
            session_idle: CLOSE_TIMEOUT,
            drain: CLOSE_TIMEOUT,
        };
        let http = HttpOptions {
            endpoints: vec![endpoints],
            ..HttpOptions::local(limits, Anonymous::Parent)
        };
        let listener = Listener::parent(socket).map_err(HttpError::Socket)?;
        Self::on(engine, options, http, listener)
    }

    fn on(
        engine: Arc<Engine>,
        options: ServerOptions,
        http: HttpOptions,
        listener: Listener,
    ) -> Result<Self, HttpError> {
        let host_origin = HostOrigin::new(&http.hosts, &http.origins)?;
        let mut authenticator = Authenticator::new(http.tokens, http.anonymous);
        if let Some(issuer) = &http.oauth {
            authenticator = authenticator.with_issuer(issuer)?;
        }
        let has_tokens = authenticator.has_tokens().map_err(|_: Denied| HttpError::Tokens)?;
        if !has_tokens && http.oauth.is_none() && http.anonymous == Anonymous::Refused {
            return Err(HttpError::NoToken);
        }
        let tls = http.tls.map(Tls::new).transpose()?.map(Arc::new);
        let end = CancellationToken::new();
        let limits = LimitsHandle::new(http.limits);
        let tenants = Tenants::new(Arc::clone(&engine), options, Arc::clone(&limits), end.clone());
        tenants.check()?;
        Ok(Self {
            listener,
            slots: ConnectionSlots::new(Arc::clone(&limits)),
            pipeline: Arc::new(Pipeline::new(
                host_origin,
                authenticator,
                tenants,
                limits,
                engine,
                http.page,
                http.endpoints,
            )),
            tls,
            end,
        })
    }

    /// Returns the listening address.
    ///
    /// # Errors
    ///
    /// Fails if the system does not report it.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.address()
    }

    /// A handle that reports activity of callers.
    #[must_use]
    pub fn activity(&self) -> Activity {
        Activity(Arc::clone(&self.pipeline))
    }

    /// A handle that changes the limits of callers.
    #[must_use]
    pub fn control(&self) -> HttpControl {
        HttpControl(Arc::clone(&self.pipeline.limits))
    }

    /// Returns true if a token is needed now.
    #[must_use]
    pub fn wants_tokens(&self) -> bool {
        self.pipeline.authenticator.token_needed().unwrap_or(true)
    }

    /// Answers until `stop` completes. From then on the server takes no new requests. Requests in progress may finish
    /// within the drain limit, and the rest are aborted; `at_once` shortens that.
    pub async fn serve(self, stop: impl Future<Output = ()>, at_once: impl Future<Output = ()>) {
        let drain = CancellationToken::new();
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = sweep.tick() => self.sweep(),
                Some(_ended) = connections.join_next(), if !connections.is_empty() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok(arrival) => {
                        let (slot, evicted) = self.slots.take();
                        if evicted {
                            self.pipeline.metrics.evicted.fetch_add(1, Ordering::Relaxed);
                        }
                        if let Some(slot) = slot {
                            let (pipeline, drain) = (Arc::clone(&self.pipeline), drain.clone());
                            match arrival {
                                AcceptedConnection::Network(stream, peer) => {
                                    let tls = self.tls.clone();
                                    connections.spawn(connections::serve(stream, peer, slot, pipeline, tls, drain))
                                }
                                #[cfg(unix)]
                                AcceptedConnection::Socket(stream) => {
                                    connections.spawn(connections::serve_local(stream, slot, pipeline, drain))
                                }
                            };
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be taken");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
            self.count_connections();
        }
        drop(self.listener);
        self.pipeline.close();
        drain.cancel();
        let last_calls = async {
            while self.pipeline.calls() > 0 {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = last_calls => {}
            () = tokio::time::sleep(self.pipeline.limits.get().drain) => {
                tracing::warn!(calls = self.pipeline.calls(), "calls that did not end in time are broken off");
            }
            () = at_once => {}
        }
        self.end.cancel();
        let closed = async { while connections.join_next().await.is_some() {} };
        // Dropping the set drops the remaining connections.
        let _all_or_not = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }

    fn sweep(&self) {
        self.pipeline
            .tenants
            .sweep(|caller| self.pipeline.authenticator.may_stay(caller));
        self.count_connections();
    }

    fn count_connections(&self) {
        let count = u64::try_from(self.slots.count()).unwrap_or(u64::MAX);
        self.pipeline.metrics.connections.store(count, Ordering::Relaxed);
    }
}
