//! Sends an execution as server-sent events: `start`, `stdout` and `stderr` for its output, then `result`, or `error`
//! if the call failed.
//!
//! The output is read from the engine's buffers. The next piece is read when the previous one was sent. So a slow
//! client does not delay the execution and costs no memory. `skipped_bytes` counts the bytes that the engine dropped
//! before they were read.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::{Response, StatusCode};
use sandcell_engine::{ExecutionView, Watch};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{Failure, OutputStream};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::model::{Execution, Printed, Started};
use crate::problem::in_rest_words_of;
use crate::respond::{self, Piped};
use crate::utf8::Utf8;

/// The maximum bytes of output in one event.
const EVENT_BYTES: usize = 32 << 10;
/// The number of events that wait for the connection.
const EVENTS: usize = 2;
/// The interval without an event after which a comment is sent, so that proxies do not close the connection as idle.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A call that ends with its execution. Dropping it cancels an execution that the call started.
pub(crate) type Running = BoxFuture<'static, Result<ExecutionView, Failure>>;

/// The client has closed the connection.
struct Gone;

/// Answers with the events of an execution. Dropping the body drops `running`, which cancels an execution that the
/// request started.
///
/// # Errors
/// The call failed, and there is no execution.
pub(crate) async fn answer(mut running: Running, watch: Watch) -> Result<Response<EndpointBody>, Failure> {
    let ended = tokio::select! {
        biased;
        ended = &mut running => Some(ended?),
        _admitted = watch.admitted() => None,
    };
    let (send, parts) = mpsc::channel(EVENTS);
    tokio::spawn(async move {
        let events = Events { send: send.clone() };
        tokio::select! {
            () = send.closed() => {}
            _told_or_gone = events.tell(running, ended, &watch) => {}
        }
    });
    let body = Piped { parts, left: None }.boxed();
    Ok(respond::with_body(StatusCode::OK, respond::EVENTS, body))
}

struct Events {
    send: mpsc::Sender<Bytes>,
}

impl Events {
    async fn tell(&self, mut running: Running, ended: Option<ExecutionView>, watch: &Watch) -> Result<(), Gone> {
        let execution_id = watch.admitted().await.to_string();
        self.event("start", &Started { execution_id }).await?;
        let mut stdout = Printing::new("stdout", OutputStream::Stdout);
        let mut stderr = Printing::new("stderr", OutputStream::Stderr);
        let mut ended: Option<Result<_, Failure>> = ended.map(Ok);
        loop {
            while self.print(&mut stdout, watch).await? | self.print(&mut stderr, watch).await? {}
            if let Some(end) = &ended {
                for printing in [&mut stdout, &mut stderr] {
                    let offset = printing.next.saturating_sub(printing.utf8.held());
                    let text = printing.utf8.end();
                    self.text(printing, text, offset).await?;
                }
                return match end {
                    Ok(view) => self.event("result", &Execution::from(view)).await,
                    Err(failure) => self.event("error", &in_rest_words_of(failure.clone())).await,
                };
            }
            tokio::select! {
                biased;
                end = &mut running => ended = Some(end),
                () = watch.wrote_more(stdout.next, stderr.next) => {}
                () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => self.send(": still running\n\n".to_owned()).await?,
            }
        }
    }

    /// Sends the next piece of a stream. Returns false if there is none.
    async fn print(&self, printing: &mut Printing, watch: &Watch) -> Result<bool, Gone> {
        let Some(part) = watch.output(printing.stream, printing.next, EVENT_BYTES) else {
            return Ok(false);
        };
        if part.next_offset <= printing.next {
            return Ok(false);
        }
        // Dropped bytes can lie before the piece or after it.
        let end = part.offset.saturating_add(length(&part.bytes));
        printing.skipped += part.offset.saturating_sub(printing.next);
        let offset = part.offset.saturating_sub(printing.utf8.held());
        let mut text = printing.utf8.text(&part.bytes);
        if part.next_offset > end {
            text.push_str(&printing.utf8.end());
        }
        self.text(printing, text, offset).await?;
        printing.skipped += part.next_offset.saturating_sub(end);
        printing.next = part.next_offset;
        Ok(true)
    }

    async fn text(&self, printing: &mut Printing, text: String, offset: u64) -> Result<(), Gone> {
        if text.is_empty() {
            return Ok(());
        }
        let printed = Printed {
            text,
            offset,
            skipped_bytes: std::mem::take(&mut printing.skipped),
        };
        self.event(printing.name, &printed).await
    }

    async fn event(&self, name: &str, data: &impl Serialize) -> Result<(), Gone> {
        // JSON has no line feed outside a string, and in one it is escaped.
        let data = serde_json::to_string(data).unwrap_or_default();
        self.send(format!("event: {name}\ndata: {data}\n\n")).await
    }

    async fn send(&self, text: String) -> Result<(), Gone> {
        self.send.send(text.into()).await.map_err(|_| Gone)
    }
}

/// A stream, and the position up to which it was sent.
struct Printing {
    name: &'static str,
    stream: OutputStream,
    /// The offset of the next byte to read.
    next: u64,
    /// The number of bytes that were skipped since the last event.
    skipped: u64,
    utf8: Utf8,
}

impl Printing {
    fn new(name: &'static str, stream: OutputStream) -> Self {
        Self {
            name,
            stream,
            next: 0,
            skipped: 0,
            utf8: Utf8::default(),
        }
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
