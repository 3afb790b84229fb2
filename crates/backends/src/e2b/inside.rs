//! The way into one sandbox: requests to its ports, and what is known of its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use reqwest::header::HeaderValue;
use reqwest::{Method, RequestBuilder, Response};
use sandcell_sandbox::{EndReason, Usage};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::config::{ENVD, INTERPRETER};
use super::service::{Made, Service, Version, limited};
use super::trouble::Trouble;

/// How long a short answer may take.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest answer that is not a stream.
const BODY: usize = 16 << 20;
/// Readings of what a sandbox uses are at least this far apart.
const READING: Duration = Duration::from_secs(10);
/// How long ending a context may take.
const CONTEXT: Duration = Duration::from_secs(4);
/// How long ending a sandbox that nobody waits for may take.
const KILL: Duration = Duration::from_secs(30);

/// One sandbox.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) service: Arc<Service>,
    pub(super) made: Made,
    ended: watch::Sender<Option<EndReason>>,
    seen: Mutex<Seen>,
    /// The service was told to end it.
    killed: AtomicBool,
    /// Contexts that were not ended. Without a service nobody else ends them.
    contexts: Mutex<Vec<String>>,
}

/// What was last known of what it uses.
#[derive(Debug, Default)]
struct Seen {
    usage: Usage,
    asked: Option<Instant>,
}

impl Inside {
    pub(super) fn new(service: Arc<Service>, made: Made) -> Arc<Self> {
        let inside = Arc::new(Self {
            service,
            made,
            ended: watch::Sender::new(None),
            seen: Mutex::default(),
            killed: AtomicBool::new(false),
            contexts: Mutex::default(),
        });
        tokio::spawn(keep_alive(inside.clone()));
        inside
    }

    /// Why it has ended, if it has.
    pub(super) fn has_ended(&self) -> Option<EndReason> {
        *self.ended.borrow()
    }

    /// Waits for that.
    pub(super) async fn ended(&self) -> EndReason {
        let mut ends = self.ended.subscribe();
        loop {
            if let Some(reason) = *ends.borrow_and_update() {
                return reason;
            }
            if ends.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// It has ended. The first reason stays; false if there was one.
    pub(super) fn end(&self, reason: EndReason) -> bool {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(reason);
            }
            first
        })
    }

    /// Ends it there.
    pub(super) async fn kill(&self) -> Result<(), Trouble> {
        if self.service.is_debug() {
            let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).clone();
            join_all(contexts.iter().map(|context| self.end_context(context))).await;
        }
        self.service.kill(&self.made.id).await?;
        self.killed.store(true, Ordering::Release);
        Ok(())
    }

    /// Nobody holds it any more: it is ended there, unless that was done.
    pub(super) fn dropped(self: &Arc<Self>) {
        self.end(EndReason::Closed);
        if !self.killed.load(Ordering::Acquire) && self.has_ended() != Some(EndReason::Expired) {
            self.kill_behind();
        }
    }

    /// Ends it there without anybody who waits for it.
    fn kill_behind(self: &Arc<Self>) {
        let inside = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // What cannot be ended now ends with its time.
                if !matches!(timeout(KILL, inside.kill()).await, Ok(Ok(()))) {
                    tracing::warn!("a sandbox could not be ended; it ends when its time there is over");
                }
            });
        }
    }

    /// A context was made.
    pub(super) fn has_context(&self, context: &str) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.push(context.to_owned());
    }

    /// Ends a context, also of a sandbox that is on its way out.
    pub(super) async fn end_context(&self, context: &str) {
        let ended = async {
            let request = self.to_port(INTERPRETER, Method::DELETE, &["contexts", context], &[])?;
            self.try_open(request).await.map(drop)
        };
        match timeout(CONTEXT, ended).await.unwrap_or(Err(Trouble::Slow(CONTEXT))) {
            Ok(()) | Err(Trouble::Status { status: 404, .. }) => {
                let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
                contexts.retain(|one| one != context);
            }
            // It ends with its sandbox at the latest.
            Err(trouble) => tracing::debug!(%trouble, "a context could not be ended"),
        }
    }

    pub(super) fn understands(&self, version: Version) -> bool {
        self.made.version >= version
    }

    /// A request to the files and processes of the sandbox.
    pub(super) fn envd(
        &self,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, Trouble> {
        self.is_there()?;
        let request = self.to_port(ENVD, method, segments, query)?;
        Ok(if self.understands(Version(0, 4, 0)) {
            request
        } else {
            // Later ones have a default user.
            request.header("Authorization", HeaderValue::from_static("Basic dXNlcjo="))
        })
    }

    /// A request to its code interpreter.
    pub(super) fn interpreter(&self, method: Method, segments: &[&str]) -> Result<RequestBuilder, Trouble> {
        self.is_there()?;
        self.to_port(INTERPRETER, method, segments, &[])
    }

    fn is_there(&self) -> Result<(), Trouble> {
        self.has_ended().map_or(Ok(()), |_| Err(Trouble::Gone))
    }

    fn to_port(
        &self,
        port: u16,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, Trouble> {
        let made = &self.made;
        let mut url = self
            .service
            .addresses
            .port(port, &made.id, made.domain.as_deref(), segments)
            .ok_or_else(|| Trouble::Garbled("the sandbox has no address".to_owned()))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self
            .service
            .client
            .request(method, url)
            .header("E2b-Sandbox-Id", &made.id)
            .header("E2b-Sandbox-Port", port.to_string());
        if let Some(token) = &made.access {
            request = request.header("X-Access-Token", token.clone());
        }
        if let Some(token) = &made.traffic {
            request = request.header("E2B-Traffic-Access-Token", token.clone());
        }
        Ok(request)
    }

    /// Sends a request whose answer is a stream. Where the sandbox is not found it is looked after, and a paused one is
    /// woken and asked once more.
    pub(super) async fn open(
        &self,
        request: impl Fn() -> Result<RequestBuilder, Trouble>,
    ) -> Result<Response, Trouble> {
        match self.try_open(request()?).await {
            Err(trouble) if trouble.says_gone() => {
                self.wake(trouble).await?;
                self.try_open(request()?).await
            }
            other => other,
        }
    }

    async fn try_open(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        let response = request.send().await.map_err(Trouble::from_client)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = timeout(ANSWER, limited(response, BODY))
            .await
            .map_err(|_| Trouble::Slow(ANSWER))??;
        Err(Trouble::of(status, &body))
    }

    /// Sends a request whose answer is short.
    pub(super) async fn ask(
        &self,
        request: impl Fn() -> Result<RequestBuilder, Trouble>,
        patience: Duration,
    ) -> Result<bytes::Bytes, Trouble> {
        let answer = async { limited(self.open(request).await?, BODY).await };
        timeout(patience, answer).await.unwrap_or(Err(Trouble::Slow(patience)))
    }

    /// Calls a method of the sandbox's own program.
    pub(super) async fn call(&self, service: &str, method: &str, body: &Value) -> Result<Value, Trouble> {
        let text = body.to_string();
        let request = || {
            Ok(self
                .envd(Method::POST, &[service, method], &[])?
                .header("Content-Type", "application/json")
                .header("Connect-Protocol-Version", "1")
                .header("Connect-Timeout-Ms", ANSWER.as_millis().to_string())
                .body(text.clone()))
        };
        let answer = self.ask(request, ANSWER).await?;
        serde_json::from_slice(&answer).map_err(|_| Trouble::Garbled(format!("{method} was answered with no JSON")))
    }

    /// Looks after a sandbox that was not found: wakes it if it is paused, and knows its end if it is not there.
    async fn wake(&self, trouble: Trouble) -> Result<(), Trouble> {
        if self.service.is_debug() {
            return Err(trouble);
        }
        match self.service.info(&self.made.id).await {
            Ok(info) if info.state == "paused" => match self.service.connect(&self.made.id).await {
                Ok(()) => Ok(()),
                Err(Trouble::Status { status: 404, .. }) => Err(self.lost()),
                Err(other) => Err(other),
            },
            Ok(_) => Err(trouble),
            Err(Trouble::Gone) => Err(self.lost()),
            Err(other) => Err(other),
        }
    }

    fn lost(&self) -> Trouble {
        self.end(EndReason::Expired);
        Trouble::Gone
    }

    /// What it uses, as last known. Asking takes too long to wait for, so a new reading is taken behind.
    pub(super) fn usage(self: &Arc<Self>) -> Usage {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.asked.is_none_or(|asked| asked.elapsed() >= READING) && !self.service.is_debug() {
            seen.asked = Some(Instant::now());
            let inside = self.clone();
            tokio::spawn(async move { inside.read_usage().await });
        }
        seen.usage
    }

    async fn read_usage(&self) {
        match self.service.metrics(&self.made.id).await {
            Ok(Some(metrics)) => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.usage = Usage {
                    memory: metrics.mem_used,
                    memory_peak: seen.usage.memory_peak.max(metrics.mem_used),
                    disk: metrics.disk_used,
                    ..seen.usage
                };
            }
            Ok(None) => {}
            Err(Trouble::Gone) => {
                self.lost();
            }
            Err(trouble) => tracing::debug!(%trouble, "what a sandbox uses could not be asked"),
        }
    }
}

/// Lets the sandbox live for as long as this server holds it. One of a server that vanished ends with its time.
async fn keep_alive(inside: Arc<Inside>) {
    let every = inside.service.lifetime() / 3;
    loop {
        tokio::select! {
            _reason = inside.ended() => return,
            () = sleep(every) => {}
        }
        match inside.service.keep_alive(&inside.made.id).await {
            Ok(()) => {}
            Err(Trouble::Gone) => {
                inside.lost();
            }
            Err(trouble) => tracing::warn!(%trouble, "a sandbox could not be kept alive"),
        }
    }
}
