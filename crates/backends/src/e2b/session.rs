//! Sessions: contexts of the sandbox's code interpreter.
//!
//! There is no call that interrupts. As the service's own clients do, the connection of a cell is closed, upon which
//! the interpreter is interrupted there; the next cell of the context waits until that has happened.

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
use tokio::time::timeout;

use super::inside::Inside;
use super::languages;
use super::results::{Lines, Said, lost, status};
use super::trouble::Trouble;

/// How long a context may take to be there.
const OPEN: Duration = Duration::from_secs(30);
/// How long ending one may take.
const CLOSE: Duration = Duration::from_secs(10);
/// Events of one cell that are handed on beside output.
const SHOWN: u32 = 65;

/// What somebody wants of a running cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    None,
    Interrupt,
    Kill,
}

/// A context.
#[derive(Debug)]
pub(super) struct E2bSession {
    inside: Arc<Inside>,
    context: String,
    order: Arc<watch::Sender<Order>>,
}

impl E2bSession {
    /// Makes a context for a language.
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
        let answer = inside.ask(request, OPEN).await.map_err(|trouble| match trouble {
            Trouble::Gone => SessionError::Sandbox(trouble.of_sandbox()),
            Trouble::Status { status: 502, .. } => cannot(format!(
                "the template has no code interpreter ({trouble}); set e2b.template to one that has, such as \
                 code-interpreter-v1"
            )),
            other => cannot(other.to_string()),
        })?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let context = answer.get("id").and_then(Value::as_str).unwrap_or_default();
        if context.is_empty() || context.len() > 200 {
            return Err(cannot("the interpreter made a context without an id".to_owned()));
        }
        Ok(Self {
            inside: inside.clone(),
            context: context.to_owned(),
            order: Arc::new(watch::Sender::new(Order::None)),
        })
    }

    /// Sends a cell; the answer is the stream of what it says.
    async fn begin(&self, cell: &Cell) -> Result<Response, Trouble> {
        let body = json!({"code": cell.code, "context_id": self.context}).to_string();
        let request = || {
            Ok(self
                .inside
                .interpreter(Method::POST, &["execute"])?
                .header("Content-Type", "application/json")
                .body(body.clone()))
        };
        self.inside.open(request).await
    }

    /// Follows a cell to its end.
    async fn follow(&self, cell: &Cell, events: &mpsc::Sender<SessionEvent>) -> Result<CellStatus, Trouble> {
        let mut response = self.begin(cell).await?;
        let mut lines = Lines::default();
        let mut raised = None;
        let mut shown = 0;
        while let Some(bytes) = response.chunk().await.map_err(Trouble::from_client)? {
            lines.push(&bytes);
            while let Some(said) = lines.next().map_err(|error| Trouble::Garbled(error.to_string()))? {
                match said {
                    Said::Event(event) => {
                        if !matches!(event, SessionEvent::Output { .. }) {
                            shown += 1;
                            if shown > SHOWN {
                                continue;
                            }
                        }
                        if events.send(event).await.is_err() {
                            return Ok(CellStatus::Ok);
                        }
                    }
                    Said::Raised(error) => raised = Some(error),
                    Said::End => return Ok(status(raised)),
                    Said::Lost => return Ok(lost()),
                    Said::Nothing => {}
                }
            }
        }
        Err(Trouble::Garbled("what the cell says broke off".to_owned()))
    }

    /// What it means that a cell could not be followed.
    fn broken(&self, trouble: Trouble) -> Result<CellStatus, SessionError> {
        match trouble {
            Trouble::Gone => Err(trouble.of_sandbox().into()),
            // The context, or the interpreter in it, is not there any more.
            Trouble::Status { status: 404 | 500, .. } => Ok(lost()),
            Trouble::Garbled(what) => Err(SessionError::Protocol(what)),
            other => Err(other.of_sandbox().into()),
        }
    }
}

/// Waits for an order.
async fn ordered(orders: &mut watch::Receiver<Order>) -> Order {
    loop {
        let order = *orders.borrow_and_update();
        if order != Order::None {
            return order;
        }
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
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
                    hint: "put the values into the code, or write them into a file and read that".to_owned(),
                    ..CellError::default()
                }),
            });
        }
        self.order.send_replace(Order::None);
        let mut orders = self.order.subscribe();
        let status = tokio::select! {
            biased;
            order = ordered(&mut orders) => match order {
                Order::Kill => lost(),
                Order::None | Order::Interrupt => CellStatus::Interrupted(CellError {
                    name: "KeyboardInterrupt".to_owned(),
                    ..CellError::default()
                }),
            },
            reason = self.inside.ended() => return Err(SandboxError::Gone(reason).into()),
            followed = self.follow(&cell, events) => match followed {
                Ok(status) => status,
                Err(trouble) => self.broken(trouble)?,
            },
        };
        Ok(CellOutcome { status })
    }

    fn interrupter(&self) -> Arc<dyn Interrupter> {
        Arc::new(E2bInterrupter(self.order.clone()))
    }

    fn features(&self) -> SessionFeatures {
        FEATURES
    }
}

/// What sessions of this back end can do.
pub(super) const FEATURES: SessionFeatures = SessionFeatures {
    result_value: true,
    display: true,
    interrupt: true,
    stdin: false,
};

impl Drop for E2bSession {
    fn drop(&mut self) {
        if self.inside.has_ended().is_some() {
            return;
        }
        let (inside, context) = (self.inside.clone(), std::mem::take(&mut self.context));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let request = || inside.interpreter(Method::DELETE, &["contexts", &context]);
                // It ends with its sandbox at the latest.
                if let Err(trouble) = timeout(CLOSE, inside.ask(request, CLOSE))
                    .await
                    .unwrap_or(Err(Trouble::Gone))
                {
                    tracing::debug!(%trouble, "a context could not be ended");
                }
            });
        }
    }
}

#[derive(Debug)]
struct E2bInterrupter(Arc<watch::Sender<Order>>);

#[async_trait]
impl Interrupter for E2bInterrupter {
    async fn interrupt(&self) -> Result<(), SandboxError> {
        self.0.send_if_modified(|order| {
            let first = *order == Order::None;
            if first {
                *order = Order::Interrupt;
            }
            first
        });
        Ok(())
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        self.0.send_replace(Order::Kill);
        Ok(())
    }
}
