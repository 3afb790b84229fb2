//! Sessions: contexts of the sandbox's code interpreter.
//!
//! The service has no call that interrupts. Like the service's own clients, the session closes the cell's connection,
//! and the service then interrupts the interpreter. The service silently drops a cell that arrives during the interrupt
//! (seen with its own interpreter: queued cells are aborted without a message). So before a cell counts as interrupted,
//! the session sends empty cells until one completes. A cell that never yields is killed with its context.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Method, Response};
use sandcell_sandbox::{
    Cell, CellError, CellOutcome, CellStatus, Interrupter, SandboxError, Session, SessionError, SessionEvent,
    SessionFeatures,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::error::ServiceError;
use super::inside::Inside;
use super::languages;
use super::results::{Lines, NO_STDIN, ResultLine, lost, status};

/// The deadline of a context's creation.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that an interrupt gets before the interpreter is probed.
const INTERRUPT_GRACE: Duration = Duration::from_millis(300);
/// The time that a probe gets before the next one.
const PROBE_TIMEOUT: Duration = Duration::from_millis(600);
/// The maximum number of events of one cell, output not counted.
const MAX_EVENTS: u32 = 65;

/// A request concerning the running cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellRequest {
    None,
    Interrupt,
    Kill,
}

/// A context.
#[derive(Debug)]
pub(super) struct E2bSession {
    inside: Arc<Inside>,
    language: String,
    context: String,
    order: Arc<watch::Sender<CellRequest>>,
}

impl E2bSession {
    /// Creates a context for a language.
    pub(super) async fn open(inside: &Arc<Inside>, language: &str) -> Result<Self, SessionError> {
        let cannot = |reason: String| SessionError::Start {
            language: language.to_owned(),
            reason,
        };
        if !languages::has(language) {
            return Err(cannot(format!("the back end e2b has {}", languages::names())));
        }
        let body = json!({"language": language}).to_string();
        let request = || {
            Ok(inside
                .interpreter(Method::POST, &["contexts"])?
                .header("Content-Type", "application/json")
                .body(body.clone()))
        };
        let answer = inside.ask(request, OPEN_TIMEOUT).await.map_err(|error| match error {
            ServiceError::Gone => SessionError::Sandbox(error.into_sandbox_error()),
            ServiceError::Status { status: 502, .. } => cannot(format!(
                "the template has no code interpreter ({error}); set e2b.template to one that has, such as \
                 code-interpreter-v1"
            )),
            other => cannot(other.to_string()),
        })?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let context = answer.get("id").and_then(Value::as_str).unwrap_or_default();
        if context.is_empty() || context.len() > 200 {
            return Err(cannot("the interpreter made a context without an id".to_owned()));
        }
        inside.has_context(context);
        Ok(Self {
            inside: inside.clone(),
            language: language.to_owned(),
            context: context.to_owned(),
            order: Arc::new(watch::Sender::new(CellRequest::None)),
        })
    }

    /// Sends a cell; the answer is the stream of its output.
    async fn begin(&self, code: &str) -> Result<Response, ServiceError> {
        let body = json!({"code": code, "context_id": self.context}).to_string();
        let request = || {
            Ok(self
                .inside
                .interpreter(Method::POST, &["execute"])?
                .header("Content-Type", "application/json")
                .body(body.clone()))
        };
        self.inside.open(request).await
    }

    /// Follows a cell until it is over.
    async fn follow(&self, cell: &Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellStatus, ServiceError> {
        let mut response = self.begin(&cell.code).await?;
        let mut lines = Lines::default();
        let mut raised = None;
        let mut shown = 0;
        while let Some(bytes) = response.chunk().await.map_err(ServiceError::from_client)? {
            lines.push(&bytes);
            while let Some(said) = lines.next().map_err(|error| ServiceError::Garbled(error.to_string()))? {
                match said {
                    ResultLine::Event(event) => {
                        if !matches!(event, SessionEvent::Output { .. }) {
                            shown += 1;
                            if shown > MAX_EVENTS {
                                continue;
                            }
                        }
                        if events.send(event).await.is_err() {
                            return Ok(CellStatus::Ok);
                        }
                    }
                    ResultLine::Raised(error) => raised = Some(error),
                    ResultLine::End => return Ok(status(raised)),
                    ResultLine::Lost => return Ok(lost()),
                    ResultLine::Nothing => {}
                }
            }
        }
        Err(ServiceError::Garbled(
            "the output stream of the cell ended early".to_owned(),
        ))
    }

    /// Waits until the interpreter answers again; may wait forever.
    async fn listens(&self) {
        sleep(INTERRUPT_GRACE).await;
        while !matches!(
            timeout(PROBE_TIMEOUT, self.ends(languages::nothing(&self.language))).await,
            Ok(Ok(true))
        ) {
            sleep(INTERRUPT_GRACE).await;
        }
    }

    /// Returns true if a cell completes, whatever its output.
    async fn ends(&self, code: &str) -> Result<bool, ServiceError> {
        let mut response = self.begin(code).await?;
        let mut lines = Lines::default();
        while let Some(bytes) = response.chunk().await.map_err(ServiceError::from_client)? {
            lines.push(&bytes);
            while let Some(said) = lines.next().map_err(|error| ServiceError::Garbled(error.to_string()))? {
                if said == ResultLine::End {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Translates the failure to follow a cell.
    fn broken(&self, error: ServiceError) -> Result<CellStatus, SessionError> {
        match error {
            ServiceError::Gone => Err(error.into_sandbox_error().into()),
            // The context, or the interpreter in it, does not exist any more.
            ServiceError::Status { status: 404 | 500, .. } => Ok(lost()),
            ServiceError::Garbled(what) => Err(SessionError::Protocol(what)),
            other => Err(other.into_sandbox_error().into()),
        }
    }
}

/// Waits for a request.
async fn ordered(orders: &mut watch::Receiver<CellRequest>) -> CellRequest {
    loop {
        let order = *orders.borrow_and_update();
        if order != CellRequest::None {
            return order;
        }
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits for the request to kill.
async fn killed(orders: &mut watch::Receiver<CellRequest>) {
    if orders.wait_for(|order| *order == CellRequest::Kill).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Session for E2bSession {
    async fn execute(&mut self, cell: Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellOutcome, SessionError> {
        if cell.stdin.is_some() {
            return Ok(CellOutcome {
                status: CellStatus::Error(CellError {
                    name: "Unsupported".to_owned(),
                    message: "sessions of the back end e2b have no standard input".to_owned(),
                    class: NO_STDIN.to_owned(),
                    ..CellError::default()
                }),
            });
        }
        self.order.send_replace(CellRequest::None);
        let mut orders = self.order.subscribe();
        let order = tokio::select! {
            biased;
            order = ordered(&mut orders) => order,
            reason = self.inside.ended() => return Err(SandboxError::Gone(reason).into()),
            followed = self.follow(&cell, events) => {
                let status = followed.or_else(|error| self.broken(error))?;
                return Ok(CellOutcome { status });
            }
        };
        // The connection is closed by now.
        let status = match order {
            CellRequest::Kill => lost(),
            CellRequest::None | CellRequest::Interrupt => tokio::select! {
                biased;
                () = killed(&mut orders) => lost(),
                reason = self.inside.ended() => return Err(SandboxError::Gone(reason).into()),
                () = self.listens() => CellStatus::Interrupted(CellError {
                    name: "KeyboardInterrupt".to_owned(),
                    ..CellError::default()
                }),
            },
        };
        Ok(CellOutcome { status })
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        Arc::new(E2bInterrupter(self.order.clone()))
    }

    fn features(&self) -> SessionFeatures {
        SESSION_FEATURES
    }
}

/// The features of this back end's sessions.
pub(super) const SESSION_FEATURES: SessionFeatures = SessionFeatures {
    result_value: true,
    display: true,
    interrupt: true,
    stdin: false,
};

impl Drop for E2bSession {
    fn drop(&mut self) {
        let (inside, context) = (self.inside.clone(), std::mem::take(&mut self.context));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { inside.end_context(&context).await });
        }
    }
}

#[derive(Debug)]
struct E2bInterrupter(Arc<watch::Sender<CellRequest>>);

#[async_trait]
impl Interrupter for E2bInterrupter {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.0.send_if_modified(|order| {
            let first = *order == CellRequest::None;
            if first {
                *order = CellRequest::Interrupt;
            }
            first
        });
        Ok(())
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.send_replace(CellRequest::Kill);
        Ok(())
    }
}
