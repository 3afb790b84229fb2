//! One connection: its streams, the pending answers, and its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandcell_sandbox::SandboxError;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};
use tokio::task::AbortHandle;

use super::lane::Near;
use super::outbound::Outbound;
use super::table::{MAX_ABANDONED, Stream, Table};
use super::{ANSWER, AgentEnd, timed_out};
use crate::protocol::{Breach, Decoder, Goodbye, Hello, Kind, LANE, Reply, Request, WireError};

/// The maximum number of requests in progress. Further requests wait for their turn.
const MAX_REQUESTS: usize = 64;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) outbound: Arc<Outbound>,
    /// The features that the agent announced.
    features: Vec<String>,
    table: Mutex<Table>,
    /// The near ends of the direct pipes, until a program has them.
    lane: Mutex<Option<Near>>,
    requests: Semaphore,
    /// Signals have a separate queue: a kill does not wait behind slow files.
    signals: Semaphore,
    ended: watch::Sender<bool>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum AskError {
    /// The agent refused the request.
    Refused(WireError),
    Sandbox(SandboxError),
}

impl AskError {
    /// Converts the error of a request that the agent has no reason to refuse.
    pub(super) fn into_sandbox(self) -> SandboxError {
        match self {
            Self::Refused(error) => SandboxError::Unsupported(error.message),
            Self::Sandbox(error) => error,
        }
    }
}

impl Link {
    pub(super) async fn connect(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Arc<Self>, SandboxError> {
        let outbound = Arc::new(Outbound::new(writer));
        let _fits = outbound.send(|out| out.message(Kind::Hello, 0, &Hello::ours()));
        let mut decoder = Decoder::default();
        let hello = greet(&mut reader, &mut decoder).await.map_err(|end| end.error())?;
        let link = Arc::new(Self {
            outbound,
            features: hello.features,
            table: Mutex::new(Table::default()),
            lane: Mutex::new(None),
            requests: Semaphore::new(MAX_REQUESTS),
            signals: Semaphore::new(MAX_REQUESTS),
            ended: watch::Sender::new(false),
            tasks: Mutex::new(Vec::with_capacity(2)),
        });
        let reading = tokio::spawn(read(Arc::downgrade(&link), reader, decoder)).abort_handle();
        let writing = tokio::spawn(write(Arc::downgrade(&link), Arc::clone(&link.outbound))).abort_handle();
        link.tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend([reading, writing]);
        Ok(link)
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        // No code under this lock can panic, so the table is consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(target_os = "linux")]
    pub(super) fn put_lane(&self, lane: Near) {
        *self.lane.lock().unwrap_or_else(PoisonError::into_inner) = Some(lane);
    }

    pub(super) fn take_lane(&self) -> Option<Near> {
        if !self.has(LANE) {
            return None;
        }
        self.lane.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AskError> {
        let (answer, answered) = oneshot::channel();
        let open = self
            .open(request, Stream::Question { answer })
            .await
            .map_err(AskError::Sandbox)?;
        open.answer(answered, request).await
    }

    /// Opens a stream with a request. If the returned guard is dropped before its answer has arrived, the stream is
    /// given up.
    pub(super) async fn open(&self, request: &Request, stream: Stream) -> Result<Open<'_>, SandboxError> {
        let queue = if matches!(request, Request::Signal { .. } | Request::Succeed { .. }) {
            &self.signals
        } else {
            &self.requests
        };
        let turn = tokio::time::timeout(ANSWER, queue.acquire()).await;
        let Ok(turn) = turn.map_err(|_| timed_out("queue"))? else {
            return Err(self.error());
        };
        let mut table = self.table();
        if let Some(end) = &table.end {
            return Err(end.error());
        }
        let id = table.fresh_id();
        let id = id.ok_or_else(|| SandboxError::Unsupported("more than 2,147,483,648 requests".to_owned()))?;
        // The frame is sent with the table locked: ids have to reach the agent in order.
        if !self.outbound.send(|out| out.message(Kind::Request, id, request)) {
            let source = std::io::Error::from(std::io::ErrorKind::ArgumentListTooLong);
            return Err(SandboxError::Setup {
                step: format!("agent {}", name(request)),
                source,
            });
        }
        table.streams.insert(id, stream);
        Ok(Open {
            link: self,
            id,
            over: false,
            _turn: turn,
        })
    }

    /// Gives a stream up. The agent stops everything that belongs to it.
    pub(super) fn give_up(&self, id: u32) {
        let mut table = self.table();
        if table.streams.remove(&id).is_none() || table.end.is_some() {
            return;
        }
        table.abandoned.insert(id);
        let too_many = table.abandoned.len() > MAX_ABANDONED;
        drop(table);
        if too_many {
            self.end(AgentEnd::Breach(
                "the agent does not confirm the streams that were given up".to_owned(),
            ));
        } else {
            self.outbound.send(|out| out.reset(id));
        }
    }

    /// Ends the connection. Only the first reason is recorded.
    pub(super) fn end(&self, reason: AgentEnd) {
        let streams = {
            let mut table = self.table();
            if table.end.is_some() {
                return;
            }
            table.end = Some(reason);
            table.abandoned.clear();
            std::mem::take(&mut table.streams)
        };
        for stream in streams.values() {
            match stream {
                Stream::Question { .. } | Stream::Read { .. } | Stream::Port { .. } => {}
                Stream::Connection(connection) => connection.credit.close(),
                Stream::Write { credit, .. } => credit.close(),
                Stream::Program(program) => {
                    for credit in [&program.stdin, &program.control_in].into_iter().flatten() {
                        credit.close();
                    }
                }
            }
        }
        // The drop of the senders wakes the tasks that wait for an answer or an event.
        drop(streams);
        self.requests.close();
        self.signals.close();
        self.outbound.end();
        self.ended.send_replace(true);
    }

    /// Returns the error for calls after the end.
    pub(super) fn error(&self) -> SandboxError {
        self.table().end.as_ref().unwrap_or(&AgentEnd::StreamEnded).error()
    }

    /// Returns true if the agent announced this feature.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|found| found == feature)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.table().end.is_some()
    }

    pub(super) async fn closed(&self) -> AgentEnd {
        // The sender lives as long as this borrow, so the wait ends only when the value changes.
        let mut ended = self.ended.subscribe();
        drop(ended.wait_for(|ended| *ended).await);
        self.table().end.clone().unwrap_or(AgentEnd::StreamEnded)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end(AgentEnd::StreamEnded);
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

/// A stream whose REPLY has not arrived.
pub(super) struct Open<'a> {
    link: &'a Link,
    pub(super) id: u32,
    over: bool,
    _turn: SemaphorePermit<'a>,
}

impl Open<'_> {
    /// Waits for the answer.
    pub(super) async fn answer<T: DeserializeOwned>(
        mut self,
        answered: oneshot::Receiver<Vec<u8>>,
        request: &Request,
    ) -> Result<T, AskError> {
        let waited = tokio::time::timeout(ANSWER, answered).await;
        let payload = waited.map_err(|_| AskError::Sandbox(timed_out(name(request))))?;
        let payload = payload.map_err(|_| AskError::Sandbox(self.link.error()))?;
        match serde_json::from_slice(&payload) {
            Ok(Reply::Ok(value)) => {
                self.over = true;
                Ok(value)
            }
            Ok(Reply::Error(error)) => {
                self.over = true;
                Err(AskError::Refused(error))
            }
            Err(error) => {
                let end = AgentEnd::Breach(format!("a bad answer to {}: {error}", name(request)));
                self.link.end(end.clone());
                Err(AskError::Sandbox(end.error()))
            }
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.link.give_up(self.id);
        }
    }
}

fn name(request: &Request) -> &'static str {
    match request {
        Request::Spawn { .. } => "spawn",
        Request::Signal { .. } => "signal",
        Request::Succeed { .. } => "succeed",
        Request::List { .. } => "list",
        Request::Read { .. } => "read",
        Request::Write { .. } => "write",
        Request::Usage => "usage",
        Request::Ping => "ping",
        Request::Forward { .. } => "forward",
        Request::Adopt { .. } => "adopt",
    }
}

/// Waits for the agent's HELLO.
async fn greet(reader: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Result<Hello, AgentEnd> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(breach)? {
            return match frame.kind {
                Kind::Hello => Hello::check(frame.payload).map_err(breach),
                Kind::Goodbye => Err(goodbye(frame.payload)),
                _ => Err(AgentEnd::Breach("a frame before HELLO".to_owned())),
            };
        }
        fill(reader, decoder).await?;
    }
}

/// Reads once.
async fn fill(reader: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Result<(), AgentEnd> {
    match reader.read(decoder.room()).await {
        Ok(0) => Err(AgentEnd::StreamEnded),
        Ok(count) => {
            decoder.filled(count);
            Ok(())
        }
        Err(error) => Err(AgentEnd::Failed(error.to_string())),
    }
}

pub(super) fn breach(breach: Breach) -> AgentEnd {
    AgentEnd::Breach(breach.0)
}

pub(super) fn goodbye(payload: &[u8]) -> AgentEnd {
    let reason = serde_json::from_slice::<Goodbye>(payload)
        .map(|goodbye| goodbye.reason)
        .unwrap_or_default();
    let reason: String = reason.chars().take(200).collect();
    AgentEnd::Breach(format!("the agent ended the connection: {reason}"))
}

/// The reader task. It waits for nothing but the stream.
async fn read(link: Weak<Link>, mut reader: impl AsyncRead + Unpin, mut decoder: Decoder) {
    loop {
        let handled = match link.upgrade() {
            Some(link) => link.handle_frames(&mut decoder),
            None => return,
        };
        let result = match handled {
            Ok(()) => fill(&mut reader, &mut decoder).await,
            Err(end) => Err(end),
        };
        if let Err(end) = result {
            if let Some(link) = link.upgrade() {
                link.end(end);
            }
            return;
        }
    }
}

/// The writer task.
async fn write(link: Weak<Link>, outbound: Arc<Outbound>) {
    let Err(error) = outbound.run().await else { return };
    // The reader usually reports the cause more exactly. It sees nothing if only this direction is broken.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    if let Some(link) = link.upgrade() {
        link.end(AgentEnd::Failed(error.to_string()));
    }
}
