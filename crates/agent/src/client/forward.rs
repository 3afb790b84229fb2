//! Connections: each connection to a forwarded port inside becomes a byte stream for the port's owner on the host, and
//! the host connects to ports on which programs inside listen.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{Code, Connection, Failure, Forward, SandboxError};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::{mpsc, oneshot};

use super::connection::{AgentConnection, AskError};
use super::streams::{ConnectionStream, Credit, Credits, Stream};
use crate::protocol::{
    BODY_CHANNEL, EmptyReply, ErrorCode, FORWARD_FEATURE, ForwardReply, Kind, MAX_CONNECTIONS, MAX_DATA, OPEN_FEATURE,
    ReceiveWindow, Reply, Request, WireError,
};

/// The maximum time for a connection to a port inside.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of bytes of one connection between its two tasks and its user, in each direction.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// The ends of a new connection that its two tasks serve.
pub(super) struct ConnectionEnds {
    arrived: mpsc::UnboundedReceiver<Bytes>,
    to: WriteHalf<DuplexStream>,
    from: ReadHalf<DuplexStream>,
    credit: Arc<Credit>,
}

/// Makes the three parts of a new connection: its entry in the table, the ends for the tasks, and the user's end.
pub(super) fn pair(port: Option<u32>) -> (ConnectionStream, ConnectionEnds, Box<dyn Connection>) {
    let (stream, ends, theirs) = parts(port);
    (stream, ends, Box::new(theirs))
}

fn parts(port: Option<u32>) -> (ConnectionStream, ConnectionEnds, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(CONNECTION_BUFFER_BYTES);
    let (from, to) = tokio::io::split(ours);
    let (arrived, taken) = mpsc::unbounded_channel();
    let credit = Arc::<Credit>::default();
    let stream = ConnectionStream {
        port,
        arrived: Some(arrived),
        window: ReceiveWindow::default(),
        credit: Arc::clone(&credit),
    };
    let ends = ConnectionEnds {
        arrived: taken,
        to,
        from,
        credit,
    };
    (stream, ends, theirs)
}

/// Connects to a port on which a program inside listens.
pub(super) async fn connect(agent: &Arc<AgentConnection>, port: u16) -> Result<Box<dyn Connection>, SandboxError> {
    if !agent.has(OPEN_FEATURE) {
        return Err(SandboxError::Unsupported(
            "reaching ports of programs inside".to_owned(),
        ));
    }
    let request = Request::Open {
        address: Ipv4Addr::LOCALHOST,
        port,
    };
    match tokio::time::timeout(OPEN_TIMEOUT, ask_stream(agent, &request)).await {
        Ok(Ok(opened)) => Ok(Box::new(opened)),
        Ok(Err(AskError::Sandbox(error))) => Err(error),
        Ok(Err(AskError::Refused(error))) => Err(open_error(port, error)),
        Err(_) => Err(SandboxError::Refused(Box::new(Failure::new(
            Code::Timeout,
            format!("the program on port {port} accepts no connection"),
            "let the program accept connections, and call again",
        )))),
    }
}

fn open_error(port: u16, error: WireError) -> SandboxError {
    let message: String = error.message.chars().take(300).collect();
    SandboxError::Refused(Box::new(match error.code {
        ErrorCode::NotFound => Failure::new(
            Code::NotFound,
            format!("no program in the sandbox listens on port {port}"),
            "start the program, wait until it listens on 127.0.0.1 or 0.0.0.0, and call again",
        ),
        ErrorCode::Invalid => Failure::invalid(message, "let the program listen on another port"),
        ErrorCode::Limit => Failure::new(Code::LimitReached, message, "close other connections, and call again"),
        _ => Failure::new(
            Code::Internal,
            format!("the port {port} could not be reached: {message}"),
            "try again",
        ),
    }))
}

/// Opens a stream with this request, whose bytes are then read and written as a connection.
pub(super) async fn ask_stream(agent: &Arc<AgentConnection>, request: &Request) -> Result<OpenedStream, AskError> {
    let (connection, ends, theirs) = parts(None);
    let (answer, answered) = oneshot::channel();
    let open = agent.open(request, Stream::Opening { answer, connection }).await;
    let open = open.map_err(AskError::Sandbox)?;
    let id = open.id;
    let _answer: EmptyReply = open.answer(answered, request).await?;
    copy(agent, id, ends);
    Ok(OpenedStream {
        stream: theirs,
        _guard: StreamGuard {
            agent: Arc::downgrade(agent),
            id,
        },
    })
}

/// A stream that the host has opened. Dropping it aborts it.
#[derive(Debug)]
pub(super) struct OpenedStream {
    stream: DuplexStream,
    _guard: StreamGuard,
}

impl AsyncRead for OpenedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for OpenedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Opens a port.
pub(super) async fn open(agent: &Arc<AgentConnection>, port: u16, target: &str) -> Result<Forward, SandboxError> {
    if !agent.has(FORWARD_FEATURE) {
        return Err(SandboxError::Unsupported("network".to_owned()));
    }
    let (connections, accepted) = mpsc::channel(MAX_CONNECTIONS);
    let (answer, answered) = oneshot::channel();
    let request = Request::Forward {
        address: Ipv4Addr::LOCALHOST,
        port,
        target: target.to_owned(),
    };
    let stream = Stream::Port {
        answer: Some(answer),
        connections,
    };
    let open = agent.open(&request, stream).await?;
    let id = open.id;
    let reply: ForwardReply = open.answer(answered, &request).await.map_err(|error| match error {
        AskError::Sandbox(error) => error,
        AskError::Refused(error) => SandboxError::Setup {
            step: "open a port inside".to_owned(),
            source: std::io::Error::other(error.message.chars().take(300).collect::<String>()),
        },
    })?;
    let guard = StreamGuard {
        agent: Arc::downgrade(agent),
        id,
    };
    Ok(Forward::new(reply.port, accepted, Box::new(guard)))
}

/// Keeps a stream open.
#[derive(Debug)]
struct StreamGuard {
    agent: Weak<AgentConnection>,
    id: u32,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.upgrade() {
            agent.give_up(self.id);
        }
    }
}

/// Answers the agent and starts the connection's two tasks.
pub(super) fn start(agent: &Arc<AgentConnection>, id: u32, connected: Result<ConnectionEnds, WireError>) {
    let ends = match connected {
        Ok(ends) => ends,
        Err(error) => {
            agent
                .writer
                .send(|out| out.message(Kind::Reply, id, &Reply::<EmptyReply>::Error(error)));
            return;
        }
    };
    agent
        .writer
        .send(|out| out.message(Kind::Reply, id, &Reply::Ok(EmptyReply {})));
    copy(agent, id, ends);
}

/// Starts the two tasks of a connection.
fn copy(agent: &Arc<AgentConnection>, id: u32, ends: ConnectionEnds) {
    tokio::spawn(copy_out(Arc::downgrade(agent), id, ends.arrived, ends.to));
    tokio::spawn(copy_in(Arc::downgrade(agent), id, ends.from, ends.credit));
}

/// Copies bytes from inside to the user of the connection.
async fn copy_out(
    agent: Weak<AgentConnection>,
    id: u32,
    mut arrived: mpsc::UnboundedReceiver<Bytes>,
    mut to: WriteHalf<DuplexStream>,
) {
    while let Some(bytes) = arrived.recv().await {
        let taken = to.write_all(&bytes).await;
        let Some(agent) = agent.upgrade() else { return };
        if taken.is_err() {
            agent.give_up(id);
            return;
        }
        let mut credits = Credits::new();
        if let Some(Stream::Connection(connection)) = agent.table().streams.get_mut(&id)
            && let Some(amount) = connection.window.passed(bytes.len())
        {
            credits.push((id, BODY_CHANNEL, amount));
        }
        agent.give_credit(&credits);
    }
    // The user may have dropped the connection already.
    let _gone = to.shutdown().await;
}

/// Copies the user's bytes into the sandbox.
async fn copy_in(agent: Weak<AgentConnection>, id: u32, mut from: ReadHalf<DuplexStream>, credit: Arc<Credit>) {
    let mut buffer = vec![0; MAX_DATA];
    while let Ok(count) = from.read(&mut buffer).await {
        if count > 0 && !credit.spend(count).await {
            return;
        }
        let Some(agent) = agent.upgrade() else { return };
        let table = agent.table();
        if !table.streams.contains_key(&id) {
            return;
        }
        // Sent with the table locked: nothing may follow the stream's RESET.
        let bytes = buffer.get(..count).unwrap_or_default();
        if count == 0 {
            agent.writer.send(|out| out.close(id, BODY_CHANNEL));
            return;
        }
        agent.writer.send(|out| out.data(id, BODY_CHANNEL, bytes));
    }
}
