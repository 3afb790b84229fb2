//! The end of a link outside: connects to an agent, again and again if need be.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Key;
use crate::protocol::{
    ACK_DELAY, Connection, HANDSHAKE_TIMEOUT, Handshake, LinkId, Notice, PING_INTERVAL, ProtocolError, SILENCE_LIMIT,
    Streams,
};

/// Bytes that are read at once, and those between the link and its user.
const READ_BYTES: usize = 64 << 10;
const LOCAL_BYTES: usize = 256 << 10;
/// The time limit for one connection.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first failed connection. It doubles with each further one, up to the second number.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The time that the last bytes have to reach the agent after the user has closed the link.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The times that a host tries to connect. Both are shorter than what an agent waits.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// For the first connection.
    pub first: Duration,
    /// For another one after one that broke.
    pub again: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(20),
            again: Duration::from_secs(45),
        }
    }
}

/// The reason why a connection could not be made.
#[derive(Debug)]
pub enum DialError {
    /// Another attempt may succeed.
    Again(io::Error),
    /// The agent is gone; why.
    Gone(String),
}

/// The reason why a link ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The user closed it.
    Closed,
    /// The agent closed it.
    AgentClosed,
    /// There is no agent any more; why.
    Gone(String),
    /// No connection could be made in time; why the last one failed.
    Unreachable(String),
    /// The agent serves another host.
    Refused,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::AgentClosed => f.write_str("the agent ended"),
            Self::Gone(why) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "no connection could be made in time: {why}"),
            Self::Refused => f.write_str("another server uses this sandbox"),
        }
    }
}

/// A link as its owner sees it. Dropping it does not end the link; dropping both halves of its stream does.
#[derive(Debug, Clone)]
pub struct Handle {
    ended: Arc<watch::Sender<Option<End>>>,
    connections: Arc<watch::Sender<u64>>,
}

impl Handle {
    /// Waits until the link has ended.
    pub async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        let seen = ended.wait_for(Option::is_some).await;
        // The sender lives as long as this handle.
        seen.ok().and_then(|end| end.clone()).unwrap_or(End::Closed)
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        *self.connections.borrow()
    }
}

/// The two halves of a link's stream.
pub type Halves = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);

/// Connects to the agent of `sandbox`. `dial` makes connections; it is called again when one breaks.
///
/// # Errors
/// The first connection could not be made.
pub async fn connect<D, F, S>(mut dial: D, key: Key, sandbox: &str, options: Options) -> Result<(Halves, Handle), End>
where
    D: FnMut() -> F + Send + 'static,
    F: Future<Output = Result<S, DialError>> + Send,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut id = LinkId::default();
    getrandom::fill(&mut id).map_err(|error| End::Gone(format!("the system gives no random numbers: {error}")))?;
    let mut streams = Streams::new(id);
    let sandbox = sandbox.to_owned();
    let first = attempt(&mut dial, &key, &sandbox, &mut streams, options.first).await?;
    let (local, remote) = tokio::io::duplex(LOCAL_BYTES);
    let handle = Handle {
        ended: Arc::new(watch::Sender::new(None)),
        connections: Arc::new(watch::Sender::new(1)),
    };
    let (ended, connections) = (Arc::clone(&handle.ended), Arc::clone(&handle.connections));
    tokio::spawn(async move {
        let (reader, writer) = tokio::io::split(local);
        let mut local = Local {
            reader,
            writer,
            closed: None,
        };
        let mut current = first;
        let end = loop {
            if let Some(end) = carry(current, &mut streams, &mut local).await {
                break end;
            }
            if local.closed.is_some() {
                break End::Closed;
            }
            match attempt(&mut dial, &key, &sandbox, &mut streams, options.again).await {
                Ok(next) => current = next,
                Err(end) => break end,
            }
            connections.send_modify(|count| *count += 1);
        };
        // Known before the user sees the end of the stream.
        ended.send_replace(Some(end));
        drop(local);
    });
    Ok((tokio::io::split(remote), handle))
}

/// A connection that both ends agreed on.
struct Live<S> {
    stream: S,
    connection: Connection,
}

/// Makes a connection within a time.
async fn attempt<D, F, S>(
    dial: &mut D,
    key: &Key,
    sandbox: &str,
    streams: &mut Streams,
    time: Duration,
) -> Result<Live<S>, End>
where
    D: FnMut() -> F,
    F: Future<Output = Result<S, DialError>>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let give_up = Instant::now() + time;
    let mut pause = FIRST_PAUSE;
    loop {
        let failed = match timeout(DIAL_TIMEOUT, dial()).await {
            Ok(Ok(stream)) => match timeout(HANDSHAKE_TIMEOUT, greet(stream, key, sandbox, streams)).await {
                Ok(Ok(live)) => return Ok(live),
                Ok(Err(GreetError::Refused)) => return Err(End::Refused),
                Ok(Err(GreetError::Failed(why))) => why,
                Err(_) => "the agent does not answer".to_owned(),
            },
            Ok(Err(DialError::Gone(why))) => return Err(End::Gone(why)),
            Ok(Err(DialError::Again(error))) => error.to_string(),
            Err(_) => format!("no connection within {DIAL_TIMEOUT:?}"),
        };
        if Instant::now() + pause >= give_up {
            return Err(End::Unreachable(failed));
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

enum GreetError {
    Refused,
    Failed(String),
}

impl From<ProtocolError> for GreetError {
    fn from(error: ProtocolError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Proves to the agent that this host knows the key, and agrees on where both streams continue.
async fn greet<S>(mut stream: S, key: &Key, sandbox: &str, streams: &mut Streams) -> Result<Live<S>, GreetError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut handshake = Handshake::new(key, sandbox, true)?;
    stream.write_all(&handshake.write()?).await?;
    stream.flush().await?;
    let mut received = Vec::new();
    while !handshake.read(&mut received)? {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(GreetError::Failed(
                "the agent ended the connection: it has another key or is another sandbox's".to_owned(),
            ));
        }
    }
    let mut connection = handshake.finish()?;
    connection.resume(streams)?;
    let hello = connection.outgoing().to_vec();
    stream.write_all(&hello).await?;
    stream.flush().await?;
    connection.written(hello.len());
    loop {
        let bytes = std::mem::take(&mut received);
        match connection.read(&bytes, streams)? {
            Some(Notice::Resumes(id, agent)) if id == streams.id() => {
                connection.resume_at(streams, agent)?;
                return Ok(Live { stream, connection });
            }
            Some(Notice::Refused) => return Err(GreetError::Refused),
            Some(_) => return Err(ProtocolError::Violation.into()),
            None => {}
        }
        if stream.read_buf(&mut received).await? == 0 {
            return Err(GreetError::Failed("the agent ended the connection".to_owned()));
        }
    }
}

/// The link's end of the stream of its user.
struct Local {
    reader: ReadHalf<DuplexStream>,
    writer: WriteHalf<DuplexStream>,
    /// The time at which the user closed it.
    closed: Option<Instant>,
}

/// Carries both streams over one connection, until it breaks (none) or the link ends.
async fn carry<S>(live: Live<S>, streams: &mut Streams, local: &mut Local) -> Option<End>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let Live { stream, mut connection } = live;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut from_agent = vec![0; READ_BYTES];
    let mut from_user = vec![0; READ_BYTES];
    let (mut heard, mut spoke) = (Instant::now(), Instant::now());
    let mut ack_due: Option<Instant> = None;
    let mut agent_closed = false;
    let mut bytes = 0;
    loop {
        // The messages that came with the last bytes.
        let mut taken = std::mem::take(&mut bytes);
        loop {
            let piece = from_agent.get(..taken).unwrap_or_default();
            taken = 0;
            match connection.read(piece, streams) {
                Ok(None) => break,
                Ok(Some(Notice::Closed)) => agent_closed = true,
                Ok(Some(_)) | Err(_) => return None,
            }
        }
        if agent_closed && streams.incoming().is_empty() {
            return Some(End::AgentClosed);
        }
        let now = Instant::now();
        if streams.owes_ack() {
            ack_due.get_or_insert(now + ACK_DELAY);
            connection
                .acknowledge(streams, ack_due.is_some_and(|due| due <= now))
                .ok()?;
        }
        if !streams.owes_ack() {
            ack_due = None;
        }
        if spoke + PING_INTERVAL <= now && connection.outgoing().is_empty() {
            connection.ping().ok()?;
        }
        if heard + SILENCE_LIMIT <= now {
            return None;
        }
        connection.fill(streams).ok()?;
        if let Some(closed) = local.closed
            && (streams.is_drained() || closed + DRAIN_TIMEOUT <= now)
        {
            let _ = timeout(DRAIN_TIMEOUT, say_goodbye(&mut connection, &mut writer)).await;
            return Some(End::Closed);
        }
        let due = [
            Some(heard + SILENCE_LIMIT),
            Some(spoke + PING_INTERVAL).filter(|_| connection.outgoing().is_empty()),
            ack_due,
            local.closed.map(|closed| closed + DRAIN_TIMEOUT),
        ];
        let due = due.into_iter().flatten().min().unwrap_or(now);
        let room = streams.room().min(READ_BYTES);
        tokio::select! {
            read = reader.read(&mut from_agent) => match read {
                Ok(count @ 1..) => {
                    heard = Instant::now();
                    bytes = count;
                }
                Ok(_) | Err(_) => return None,
            },
            written = writer.write(connection.outgoing()), if !connection.outgoing().is_empty() => match written {
                Ok(count @ 1..) => {
                    connection.written(count);
                    spoke = Instant::now();
                    if connection.outgoing().is_empty() && writer.flush().await.is_err() {
                        return None;
                    }
                }
                Ok(_) | Err(_) => return None,
            },
            read = local.reader.read(from_user.get_mut(..room).unwrap_or_default()), if room > 0 && local.closed.is_none() => match read {
                Ok(count @ 1..) => streams.send(from_user.get(..count).unwrap_or_default()),
                Ok(_) | Err(_) => local.closed = Some(Instant::now()),
            },
            written = local.writer.write(streams.incoming()), if !streams.incoming().is_empty() => match written {
                Ok(count @ 1..) => streams.take(count),
                Ok(_) | Err(_) => {
                    let rest = streams.incoming().len();
                    streams.take(rest);
                    local.closed.get_or_insert_with(Instant::now);
                }
            },
            () = sleep_until(due) => {}
        }
    }
}

/// Tells the agent that the link closes.
async fn say_goodbye<W: AsyncWrite + Unpin>(connection: &mut Connection, writer: &mut W) -> io::Result<()> {
    connection.close().map_err(io::Error::other)?;
    while !connection.outgoing().is_empty() {
        let count = writer.write(connection.outgoing()).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        connection.written(count);
    }
    writer.flush().await
}
