//! Access to one sandbox: requests to its ports, and the state of its end.

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

/// The deadline of a short answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The maximum size of an answer that is not a stream, in bytes.
const BODY: usize = 16 << 20;
/// The minimum interval between two readings of a sandbox's usage.
const READING: Duration = Duration::from_secs(10);
/// The deadline of deleting a context.
const CONTEXT: Duration = Duration::from_secs(4);
/// The deadline of killing a sandbox in the background.
const KILL: Duration = Duration::from_secs(30);

/// One sandbox.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) service: Arc<Service>,
    pub(super) made: Made,
    ended: watch::Sender<Option<EndReason>>,
    seen: Mutex<Seen>,
    /// The service has confirmed its end.
    killed: AtomicBool,
    /// Contexts that were not deleted. In debug mode nothing else deletes them.
    contexts: Mutex<Vec<String>>,
}

/// The last known usage.
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

    /// Returns the reason of its end, if it has ended.
    pub(super) fn has_ended(&self) -> Option<EndReason> {
        *self.ended.borrow()
    }

    /// Waits for its end and returns the reason.
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

    /// Records its end. The first reason stays; returns false if there was one.
    pub(super) fn end(&self, reason: EndReason) -> bool {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(reason);
            }
            first
        })
    }

    /// Kills the sandbox at the service.
    pub(super) async fn kill(&self) -> Result<(), Trouble> {
        if self.service.is_debug() {
            let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).clone();
            join_all(contexts.iter().map(|context| self.end_context(context))).await;
        }
        self.service.kill(&self.made.id).await?;
        self.killed.store(true, Ordering::Release);
        Ok(())
    }

    /// Handles the drop of its handle: kills it at the service unless that happened already.
    pub(super) fn dropped(self: &Arc<Self>) {
        self.end(EndReason::Closed);
        if !self.killed.load(Ordering::Acquire) && self.has_ended() != Some(EndReason::Expired) {
            self.kill_behind();
        }
    }

    /// Kills the sandbox in the background.
    fn kill_behind(self: &Arc<Self>) {
        let inside = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // A sandbox that cannot be killed now ends when its lifetime is over.
                if !matches!(timeout(KILL, inside.kill()).await, Ok(Ok(()))) {
                    tracing::warn!("a sandbox could not be ended; it ends when its time there is over");
                }
            });
        }
    }

    /// Records a new context.
    pub(super) fn has_context(&self, context: &str) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.push(context.to_owned());
    }

    /// Deletes a context, even one of a sandbox that is ending.
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

    /// Returns a request to the sandbox's file and process services.
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
            // Later versions have a default user.
            request.header("Authorization", HeaderValue::from_static("Basic dXNlcjo="))
        })
    }

    /// Returns a request to the sandbox's code interpreter.
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

    /// Sends a request whose answer is a stream. If the answer is that the sandbox was not found, wakes it if it is
    /// paused and sends the request once more.
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

    /// Calls a method of envd, the service's program in the sandbox.
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

    /// Checks a sandbox that was not found: wakes it if it is paused, and records its end if it does not exist.
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

    /// Returns the last known usage. A reading takes too long to wait for, so a new one starts in the background.
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

/// Extends the sandbox's lifetime as long as this server holds it. If the server vanishes, the lifetime runs out.
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
