//! One connection: its streams, the pending answers, and its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandcell_sandbox::SandboxError;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot, watch};
use tokio::task::AbortHandle;

use super::streams::{MAX_ABANDONED, Stream, StreamTable};
use super::writer::FrameWriter;
use super::{ANSWER_TIMEOUT, AgentEnd, timed_out};
use crate::protocol::{Decoder, Goodbye, Hello, Kind, MAX_CONNECTIONS, ProtocolError, Reply, Request, WireError};

/// The maximum number of requests in progress. Further requests wait for their turn.
const MAX_REQUESTS: usize = 64;

#[derive(Debug)]
pub(super) struct AgentConnection {
    pub(super) writer: Arc<FrameWriter>,
    /// The features that the agent announced.
    features: Vec<String>,
    /// The variables of the agent's image that it announced.
    pub(super) announced_env: BTreeMap<String, String>,
    table: Mutex<StreamTable>,
    requests: Semaphore,
    /// Signals have a separate queue: a kill does not wait behind slow files.
    signals: Semaphore,
    /// So have connections to ports: a program that does not accept them delays nothing else.
    opens: Semaphore,
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

impl AgentConnection {
    pub(super) async fn connect(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Arc<Self>, SandboxError> {
        let writer = Arc::new(FrameWriter::new(writer));
        let _fits = writer.send(|out| out.message(Kind::Hello, 0, &Hello::ours()));
        let mut decoder = Decoder::default();
        let hello = greet(&mut reader, &mut decoder).await.map_err(|end| end.error())?;
        let agent = Arc::new(Self {
            writer,
            features: hello.features,
            announced_env: hello.env,
            table: Mutex::new(StreamTable::default()),
            requests: Semaphore::new(MAX_REQUESTS),
            signals: Semaphore::new(MAX_REQUESTS),
            opens: Semaphore::new(MAX_CONNECTIONS),
            ended: watch::Sender::new(false),
            tasks: Mutex::new(Vec::with_capacity(2)),
        });
        let reading = tokio::spawn(read(Arc::downgrade(&agent), reader, decoder)).abort_handle();
        let writing = tokio::spawn(write(Arc::downgrade(&agent), Arc::clone(&agent.writer))).abort_handle();
        agent
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend([reading, writing]);
        Ok(agent)
    }

    pub(super) fn table(&self) -> MutexGuard<'_, StreamTable> {
        // No code under this lock can panic, so the table is consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(super) async fn open(&self, request: &Request, stream: Stream) -> Result<OpenStream<'_>, SandboxError> {
        let queue = match request {
            Request::Signal { .. } | Request::Succeed { .. } => &self.signals,
            Request::Open { .. } => &self.opens,
            _ => &self.requests,
        };
        let permit = tokio::time::timeout(ANSWER_TIMEOUT, queue.acquire()).await;
        let Ok(permit) = permit.map_err(|_| timed_out("queue"))? else {
            return Err(self.error());
        };
        let mut table = self.table();
        if let Some(end) = &table.end {
            return Err(end.error());
        }
        let id = table.fresh_id();
        let id = id.ok_or_else(|| SandboxError::Unsupported("more than 2,147,483,648 requests".to_owned()))?;
        // The frame is sent with the table locked: ids have to reach the agent in order.
        if !self.writer.send(|out| out.message(Kind::Request, id, request)) {
            let source = std::io::Error::from(std::io::ErrorKind::ArgumentListTooLong);
            return Err(SandboxError::Setup {
                step: format!("agent {}", name(request)),
                source,
            });
        }
        table.streams.insert(id, stream);
        Ok(OpenStream {
            agent: self,
            id,
            answered: false,
            _permit: permit,
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
            self.end(AgentEnd::ProtocolError(
                "the agent does not confirm the streams that were given up".to_owned(),
            ));
        } else {
            self.writer.send(|out| out.reset(id));
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
                Stream::Question { .. } | Stream::Read { .. } | Stream::Port { .. } | Stream::Opening { .. } => {}
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
        self.opens.close();
        self.writer.end();
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

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.end(AgentEnd::StreamEnded);
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

/// A stream whose REPLY has not arrived.
pub(super) struct OpenStream<'a> {
    agent: &'a AgentConnection,
    pub(super) id: u32,
    answered: bool,
    _permit: SemaphorePermit<'a>,
}

impl OpenStream<'_> {
    /// Waits for the answer.
    pub(super) async fn answer<T: DeserializeOwned>(
        mut self,
        answered: oneshot::Receiver<Vec<u8>>,
        request: &Request,
    ) -> Result<T, AskError> {
        let waited = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
        let payload = waited.map_err(|_| AskError::Sandbox(timed_out(name(request))))?;
        let payload = payload.map_err(|_| AskError::Sandbox(self.agent.error()))?;
        match serde_json::from_slice(&payload) {
            Ok(Reply::Ok(value)) => {
                self.answered = true;
                Ok(value)
            }
            Ok(Reply::Error(error)) => {
                self.answered = true;
                Err(AskError::Refused(error))
            }
            Err(error) => {
                let end = AgentEnd::ProtocolError(format!("a bad answer to {}: {error}", name(request)));
                self.agent.end(end.clone());
                Err(AskError::Sandbox(end.error()))
            }
        }
    }
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.agent.give_up(self.id);
        }
    }
}

fn name(request: &Request) -> &'static str {
    match request {
        Request::Spawn { .. } => "spawn",
        Request::Signal { .. } => "signal",
        Request::Succeed { .. } => "succeed",
        Request::Keep { .. } => "keep",
        Request::Kept { .. } => "kept",
        Request::Release { .. } => "release",
        Request::SaveFiles { .. } => "save_files",
        Request::RestoreFiles { .. } => "restore_files",
        Request::ForgetFiles { .. } => "forget_files",
        Request::FileChanges { .. } => "file_changes",
        Request::MountLayers { .. } => "mount_layers",
        Request::ReadSaved { .. } => "read_saved",
        Request::Image { .. } => "image",
        Request::ImageFiles { .. } => "image_files",
        Request::ReadImage { .. } => "read_image",
        Request::DropImage => "drop_image",
        Request::List { .. } => "list",
        Request::Read { .. } => "read",
        Request::Write { .. } => "write",
        Request::Entry { .. } => "entry",
        Request::MakeFolder { .. } => "make_folder",
        Request::Rename { .. } => "rename",
        Request::Remove { .. } => "remove",
        Request::Pause => "pause",
        Request::Resume => "resume",
        Request::Usage => "usage",
        Request::Ping => "ping",
        Request::Forward { .. } => "forward",
        Request::Open { .. } => "open",
        Request::Resize { .. } => "resize",
        Request::Watch { .. } => "watch",
        Request::Adopt { .. } => "adopt",
    }
}

/// Waits for the agent's HELLO.
async fn greet(reader: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Result<Hello, AgentEnd> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(protocol_error)? {
            return match frame.kind {
                Kind::Hello => Hello::check(frame.payload).map_err(protocol_error),
                Kind::Goodbye => Err(goodbye(frame.payload)),
                _ => Err(AgentEnd::ProtocolError("a frame before HELLO".to_owned())),
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

pub(super) fn protocol_error(error: ProtocolError) -> AgentEnd {
    AgentEnd::ProtocolError(error.0)
}

pub(super) fn goodbye(payload: &[u8]) -> AgentEnd {
    let reason = serde_json::from_slice::<Goodbye>(payload)
        .map(|goodbye| goodbye.reason)
        .unwrap_or_default();
    let reason: String = reason.chars().take(200).collect();
    AgentEnd::ProtocolError(format!("the agent ended the connection: {reason}"))
}

/// The reader task. It waits for nothing but the stream.
async fn read(agent: Weak<AgentConnection>, mut reader: impl AsyncRead + Unpin, mut decoder: Decoder) {
    loop {
        let handled = match agent.upgrade() {
            Some(agent) => agent.handle_frames(&mut decoder),
            None => return,
        };
        let result = match handled {
            Ok(()) => fill(&mut reader, &mut decoder).await,
            Err(end) => Err(end),
        };
        if let Err(end) = result {
            if let Some(agent) = agent.upgrade() {
                agent.end(end);
            }
            return;
        }
    }
}

/// The writer task.
async fn write(agent: Weak<AgentConnection>, writer: Arc<FrameWriter>) {
    let Err(error) = writer.run().await else { return };
    // The reader usually reports the cause more exactly. It sees nothing if only this direction is broken.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    if let Some(agent) = agent.upgrade() {
        agent.end(AgentEnd::Failed(error.to_string()));
    }
}
