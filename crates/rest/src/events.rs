//! An execution as server-sent events: `start`, `stdout` and `stderr` as it prints, then `result`, or `error` if it could
//! not be carried out.
//!
//! Output is read from what the engine keeps of it, a piece when the one before has left. So a client that reads slowly
//! holds up nothing and costs no memory; what is not kept for it is counted in `skipped_bytes`.

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

/// Bytes of output in one event.
const EVENT_BYTES: usize = 32 << 10;
/// Events on their way to the connection.
const EVENTS: usize = 2;
/// A comment is sent after this time without an event, so that nobody in between takes the connection for dead.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A call that ends with its execution. Dropping it gives the execution up.
pub(crate) type Running = BoxFuture<'static, Result<ExecutionView, Failure>>;

/// The reader has gone.
struct Gone;

/// Answers with the events of an execution. The execution is given up when the body is dropped.
///
/// # Errors
/// The call could not be done, and there is no execution.
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

    /// Sends the next piece of a stream. False if there is none.
    async fn print(&self, printing: &mut Printing, watch: &Watch) -> Result<bool, Gone> {
        let Some(part) = watch.output(printing.stream, printing.next, EVENT_BYTES) else {
            return Ok(false);
        };
        if part.next_offset <= printing.next {
            return Ok(false);
        }
        // Bytes that are not kept lie before the piece or after it.
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

/// A stream, and how much of it was sent.
struct Printing {
    name: &'static str,
    stream: OutputStream,
    /// The byte that is read next.
    next: u64,
    /// Bytes that were left out since the last event.
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
