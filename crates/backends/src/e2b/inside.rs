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

use super::config::{ENVD_PORT, INTERPRETER_PORT};
use super::error::ServiceError;
use super::service::{CreatedSandbox, Service, Version, limited};

/// The deadline of a short answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of an answer that is not a stream, in bytes.
const MAX_BODY_BYTES: usize = 16 << 20;
/// The minimum interval between two readings of a sandbox's usage.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);
/// The deadline of deleting a context.
const CONTEXT_TIMEOUT: Duration = Duration::from_secs(4);
/// The deadline of killing a sandbox in the background.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// One sandbox.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) service: Arc<Service>,
    pub(super) made: CreatedSandbox,
    ended: watch::Sender<Option<EndReason>>,
    known_usage: Mutex<KnownUsage>,
    /// The service has confirmed its end.
    killed: AtomicBool,
    /// Contexts that were not deleted. In debug mode nothing else deletes them.
    contexts: Mutex<Vec<String>>,
}

/// The last known usage.
#[derive(Debug, Default)]
struct KnownUsage {
    usage: Usage,
    asked: Option<Instant>,
}

impl Inside {
    pub(super) fn new(service: Arc<Service>, made: CreatedSandbox) -> Arc<Self> {
        let inside = Arc::new(Self {
            service,
            made,
            ended: watch::Sender::new(None),
            known_usage: Mutex::default(),
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
    pub(super) async fn kill(&self) -> Result<(), ServiceError> {
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
                if !matches!(timeout(KILL_TIMEOUT, inside.kill()).await, Ok(Ok(()))) {
                    tracing::warn!("a sandbox could not be ended; it ends at its time-out there");
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
            let request = self.to_port(INTERPRETER_PORT, Method::DELETE, &["contexts", context], &[])?;
            self.try_open(request).await.map(drop)
        };
        match timeout(CONTEXT_TIMEOUT, ended)
            .await
            .unwrap_or(Err(ServiceError::Slow(CONTEXT_TIMEOUT)))
        {
            Ok(()) | Err(ServiceError::Status { status: 404, .. }) => {
                let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
                contexts.retain(|one| one != context);
            }
            // It ends with its sandbox at the latest.
            Err(error) => tracing::debug!(trouble = %error, "a context could not be ended"),
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
    ) -> Result<RequestBuilder, ServiceError> {
        self.is_there()?;
        let request = self.to_port(ENVD_PORT, method, segments, query)?;
        Ok(if self.understands(Version(0, 4, 0)) {
            request
        } else {
            // Later versions have a default user.
            request.header("Authorization", HeaderValue::from_static("Basic dXNlcjo="))
        })
    }

    /// Returns a request to the sandbox's code interpreter.
    pub(super) fn interpreter(&self, method: Method, segments: &[&str]) -> Result<RequestBuilder, ServiceError> {
        self.is_there()?;
        self.to_port(INTERPRETER_PORT, method, segments, &[])
    }

    fn is_there(&self) -> Result<(), ServiceError> {
        self.has_ended().map_or(Ok(()), |_| Err(ServiceError::Gone))
    }

    fn to_port(
        &self,
        port: u16,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, ServiceError> {
        let made = &self.made;
        let mut url = self
            .service
            .addresses
            .port(port, &made.id, made.domain.as_deref(), segments)
            .ok_or_else(|| ServiceError::Garbled("the sandbox has no address".to_owned()))?;
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
        request: impl Fn() -> Result<RequestBuilder, ServiceError>,
    ) -> Result<Response, ServiceError> {
        match self.try_open(request()?).await {
            Err(error) if error.is_sandbox_gone() => {
                self.resume(error).await?;
                self.try_open(request()?).await
            }
            other => other,
        }
    }

    async fn try_open(&self, request: RequestBuilder) -> Result<Response, ServiceError> {
        let response = request.send().await.map_err(ServiceError::from_client)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = timeout(ANSWER_TIMEOUT, limited(response, MAX_BODY_BYTES))
            .await
            .map_err(|_| ServiceError::Slow(ANSWER_TIMEOUT))??;
        Err(ServiceError::of(status, &body))
    }

    /// Sends a request whose answer is short.
    pub(super) async fn ask(
        &self,
        request: impl Fn() -> Result<RequestBuilder, ServiceError>,
        patience: Duration,
    ) -> Result<bytes::Bytes, ServiceError> {
        let answer = async { limited(self.open(request).await?, MAX_BODY_BYTES).await };
        timeout(patience, answer)
            .await
            .unwrap_or(Err(ServiceError::Slow(patience)))
    }

    /// Calls a method of envd, the service's program in the sandbox.
    pub(super) async fn call(&self, service: &str, method: &str, body: &Value) -> Result<Value, ServiceError> {
        let text = body.to_string();
        let request = || {
            Ok(self
                .envd(Method::POST, &[service, method], &[])?
                .header("Content-Type", "application/json")
                .header("Connect-Protocol-Version", "1")
                .header("Connect-Timeout-Ms", ANSWER_TIMEOUT.as_millis().to_string())
                .body(text.clone()))
        };
        let answer = self.ask(request, ANSWER_TIMEOUT).await?;
        serde_json::from_slice(&answer)
            .map_err(|_| ServiceError::Garbled(format!("{method} was answered without JSON")))
    }

    /// Checks a sandbox that was not found: wakes it if it is paused, and records its end if it does not exist.
    async fn resume(&self, error: ServiceError) -> Result<(), ServiceError> {
        if self.service.is_debug() {
            return Err(error);
        }
        match self.service.info(&self.made.id).await {
            Ok(info) if info.state == "paused" => match self.service.connect(&self.made.id).await {
                Ok(()) => Ok(()),
                Err(ServiceError::Status { status: 404, .. }) => Err(self.lost()),
                Err(other) => Err(other),
            },
            Ok(_) => Err(error),
            Err(ServiceError::Gone) => Err(self.lost()),
            Err(other) => Err(other),
        }
    }

    fn lost(&self) -> ServiceError {
        self.end(EndReason::Expired);
        ServiceError::Gone
    }

    /// Returns the last known usage. A reading takes too long to wait for, so a new one starts in the background.
    pub(super) fn usage(self: &Arc<Self>) -> Usage {
        let mut known_usage = self.known_usage.lock().unwrap_or_else(PoisonError::into_inner);
        if known_usage.asked.is_none_or(|asked| asked.elapsed() >= USAGE_INTERVAL) && !self.service.is_debug() {
            known_usage.asked = Some(Instant::now());
            let inside = self.clone();
            tokio::spawn(async move { inside.read_usage().await });
        }
        known_usage.usage
    }

    async fn read_usage(&self) {
        match self.service.metrics(&self.made.id).await {
            Ok(Some(metrics)) => {
                let mut known_usage = self.known_usage.lock().unwrap_or_else(PoisonError::into_inner);
                known_usage.usage = Usage {
                    memory: metrics.mem_used,
                    memory_peak: known_usage.usage.memory_peak.max(metrics.mem_used),
                    disk: metrics.disk_used,
                    ..known_usage.usage
                };
            }
            Ok(None) => {}
            Err(ServiceError::Gone) => {
                self.lost();
            }
            Err(error) => tracing::debug!(trouble = %error, "a sandbox's usage could not be queried"),
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
            Err(ServiceError::Gone) => {
                inside.lost();
            }
            Err(error) => tracing::warn!(trouble = %error, "a sandbox could not be kept alive"),
        }
    }
}
