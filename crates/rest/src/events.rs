//! Sends an execution as server-sent events: `start`, `stdout` and `stderr` for its output, then `result`, or `error`
//! if the call failed.
//!
//! The output is read from the engine's buffers. The next piece is read when the previous one was sent. So a slow
//! client does not delay the execution and costs no memory. `skipped_bytes` counts the bytes that the engine dropped
//! before they were read.

use std::time::Duration;

use futures::future::BoxFuture;
use hyper::{Response, StatusCode};
use sandcell_engine::{ExecutionView, Utf8, Watch};
use sandcell_mcp::{BodySender, Disconnected, EndpointBody, channel_body};
use sandcell_sandbox::{Failure, OutputStream};
use serde::Serialize;

use crate::model::{Execution, Printed, Started};
use crate::problem::failure_with_rest_calls;
use crate::respond;

/// The maximum bytes of output in one event.
const EVENT_BYTES: usize = 32 << 10;
/// The number of events that wait for the connection.
const EVENT_CAPACITY: usize = 2;
/// The interval without an event after which a comment is sent, so that proxies do not close the connection as idle.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A call that ends with its execution. Dropping it cancels an execution that the call started.
pub(crate) type Running = BoxFuture<'static, Result<ExecutionView, Failure>>;

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
    let (send, body) = channel_body(EVENT_CAPACITY, None);
    tokio::spawn(async move {
        let events = EventSender { send: send.clone() };
        tokio::select! {
            () = send.closed() => {}
            _sent_or_disconnected = events.send_all(running, ended, &watch) => {}
        }
    });
    Ok(respond::with_body(StatusCode::OK, respond::EVENTS_TYPE, body))
}

struct EventSender {
    send: BodySender,
}

impl EventSender {
    async fn send_all(
        &self,
        mut running: Running,
        ended: Option<ExecutionView>,
        watch: &Watch,
    ) -> Result<(), Disconnected> {
        let execution_id = watch.admitted().await.to_string();
        self.event("start", &Started { execution_id }).await?;
        let mut stdout = StreamProgress::new("stdout", OutputStream::Stdout);
        let mut stderr = StreamProgress::new("stderr", OutputStream::Stderr);
        let mut ended: Option<Result<_, Failure>> = ended.map(Ok);
        loop {
            while self.print(&mut stdout, watch).await? | self.print(&mut stderr, watch).await? {}
            if let Some(end) = &ended {
                for progress in [&mut stdout, &mut stderr] {
                    let offset = progress.next.saturating_sub(progress.utf8.held());
                    let text = progress.utf8.end();
                    self.text(progress, text, offset).await?;
                }
                return match end {
                    Ok(view) => self.event("result", &Execution::from(view)).await,
                    Err(failure) => self.event("error", &failure_with_rest_calls(failure.clone())).await,
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
    async fn print(&self, progress: &mut StreamProgress, watch: &Watch) -> Result<bool, Disconnected> {
        let Some(part) = watch.output(progress.stream, progress.next, EVENT_BYTES) else {
            return Ok(false);
        };
        if part.next_offset <= progress.next {
            return Ok(false);
        }
        // Dropped bytes can lie before the piece or after it.
        let end = part.offset.saturating_add(length(&part.bytes));
        progress.skipped += part.offset.saturating_sub(progress.next);
        let offset = part.offset.saturating_sub(progress.utf8.held());
        let mut text = progress.utf8.text(&part.bytes);
        if part.next_offset > end {
            text.push_str(&progress.utf8.end());
        }
        self.text(progress, text, offset).await?;
        progress.skipped += part.next_offset.saturating_sub(end);
        progress.next = part.next_offset;
        Ok(true)
    }

    async fn text(&self, progress: &mut StreamProgress, text: String, offset: u64) -> Result<(), Disconnected> {
        if text.is_empty() {
            return Ok(());
        }
        let printed = Printed {
            text,
            offset,
            skipped_bytes: std::mem::take(&mut progress.skipped),
        };
        self.event(progress.name, &printed).await
    }

    async fn event(&self, name: &str, data: &impl Serialize) -> Result<(), Disconnected> {
        // JSON has no line feed outside a string, and in one it is escaped.
        let data = serde_json::to_string(data).unwrap_or_default();
        self.send(format!("event: {name}\ndata: {data}\n\n")).await
    }

    async fn send(&self, text: String) -> Result<(), Disconnected> {
        self.send.send(text.into()).await
    }
}

/// A stream, and the position up to which it was sent.
struct StreamProgress {
    name: &'static str,
    stream: OutputStream,
    /// The offset of the next byte to read.
    next: u64,
    /// The number of bytes that were skipped since the last event.
    skipped: u64,
    utf8: Utf8,
}

impl StreamProgress {
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
