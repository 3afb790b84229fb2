//! The end of a link in a Pod. It waits for the host and carries the streams between the host and the agent.
//!
//! Code inside the Pod can connect to the port as well. A connection counts only when its peer has proved with two messages that it
//! knows the key. Until then it can neither delay nor end the connection of the host, and its memory and time are bounded.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Key;
use crate::protocol::{
    ACK_DELAY, Connection, HANDSHAKE_TIMEOUT, Handshake, LinkId, Notice, PING_INTERVAL, Position, ProtocolError,
    SILENCE_LIMIT, Streams,
};

/// The maximum number of connections whose peer has not proved yet that it knows the key. The oldest one is dropped first.
const MAX_UNPROVEN: usize = 64;
/// The maximum number of connections whose peer has proved it and has not named its link yet. The oldest one is dropped first.
const MAX_UNNAMED: usize = 4;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// The time that the last bytes have to reach the host after the agent has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after an accept that failed for lack of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The times that an agent waits without a host.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Before the first connection; none: forever, for a Pod that was made ahead of demand.
    pub first: Option<Duration>,
    /// After a connection that broke.
    pub detached: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            first: None,
            detached: Duration::from_secs(60),
        }
    }
}

/// The reason why a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The host closed it.
    HostClosed,
    /// No host connected in time.
    Deserted,
    /// The agent ended.
    AgentEnded,
    /// The system refused to wait for events.
    Failed(Errno),
}

/// Listens for the host.
///
/// # Errors
/// The port is in use.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let any = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    // A system without IPv6.
    let listener = any.or_else(|_| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves the link of `sandbox` until it ends. `local` leads to the agent, and is closed at the end.
///
/// # Errors
/// A descriptor cannot be made non-blocking.
pub fn run(listener: TcpListener, key: Key, sandbox: String, local: UnixStream, limits: Limits) -> io::Result<End> {
    listener.set_nonblocking(true)?;
    local.set_nonblocking(true)?;
    let mut link = Link {
        listener,
        key,
        sandbox,
        local,
        limits,
        streams: None,
        live: None,
        waiting: Vec::new(),
        alone_since: Instant::now(),
        accept_after: None,
        ack_due: None,
        agent_ended: None,
        host_closed: false,
    };
    loop {
        if let Some(end) = link.turn() {
            return Ok(end);
        }
    }
}

/// A connection that does not count yet.
struct Waiting {
    stream: TcpStream,
    since: Instant,
    stage: Stage,
}

enum Stage {
    /// The peer's first message is awaited; these bytes of it are there.
    Unproven(Handshake, Vec<u8>),
    /// The peer sent a right first message, which may be a recorded one. An encrypted message with the link's name is awaited: only a
    /// peer that knows the key can send it.
    Unnamed(Connection),
}

/// The host's connection.
struct Live {
    stream: TcpStream,
    connection: Connection,
    heard: Instant,
    spoke: Instant,
}

struct Link {
    listener: TcpListener,
    key: Key,
    sandbox: String,
    local: UnixStream,
    limits: Limits,
    /// None before the first host.
    streams: Option<Streams>,
    live: Option<Live>,
    waiting: Vec<Waiting>,
    alone_since: Instant,
    accept_after: Option<Instant>,
    ack_due: Option<Instant>,
    agent_ended: Option<Instant>,
    host_closed: bool,
}

/// The owner of a polled descriptor.
#[derive(Clone, Copy)]
enum Token {
    Listener,
    Local,
    Live,
    Waiting(usize),
}

impl Link {
    /// Runs one turn of the loop: waits, and handles what happened.
    fn turn(&mut self) -> Option<End> {
        let ready = match self.wait() {
            Ok(ready) => ready,
            Err(Errno::INTR) => return None,
            Err(error) => return Some(End::Failed(error)),
        };
        // From the last to the first: a connection that is removed does not move those before it.
        for token in ready.into_iter().rev() {
            match token {
                Token::Listener => self.accept(),
                Token::Local => self.read_local(),
                Token::Live => self.read_live(),
                Token::Waiting(at) => self.read_waiting(at),
            }
        }
        self.write_local();
        self.write_live();
        self.check_times()
    }

    fn wait(&self) -> Result<Vec<Token>, Errno> {
        let mut tokens = Vec::with_capacity(8);
        let mut polled = Vec::with_capacity(8);
        let mut add = |token, fd, flags| {
            tokens.push(token);
            polled.push(PollFd::from_borrowed_fd(fd, flags));
        };
        for (at, waiting) in self.waiting.iter().enumerate() {
            add(Token::Waiting(at), waiting.stream.as_fd(), PollFlags::IN);
        }
        if self.accept_after.is_none_or(|until| until <= Instant::now()) {
            add(Token::Listener, self.listener.as_fd(), PollFlags::IN);
        }
        let (room, incoming) = match &self.streams {
            Some(streams) => (streams.room() > 0, !streams.incoming().is_empty()),
            None => (false, false),
        };
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, room && self.agent_ended.is_none());
        flags.set(PollFlags::OUT, incoming);
        if !flags.is_empty() {
            add(Token::Local, self.local.as_fd(), flags);
        }
        if let Some(live) = &self.live {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !live.connection.outgoing().is_empty());
            add(Token::Live, live.stream.as_fd(), flags);
        }
        let pause = self.next_due().saturating_duration_since(Instant::now());
        let pause = Timespec::try_from(pause).map_err(|_| Errno::INVAL)?;
        poll(&mut polled, Some(&pause))?;
        let ready = polled.iter().map(|polled| !polled.revents().is_empty());
        Ok(tokens
            .iter()
            .zip(ready)
            .filter_map(|(token, ready)| ready.then_some(*token))
            .collect())
    }

    /// Returns the time at which [`Link::check_times`] may have work.
    fn next_due(&self) -> Instant {
        let mut due = Instant::now() + PING_INTERVAL;
        let mut at = |time: Option<Instant>| due = time.map_or(due, |time| due.min(time));
        at(self.ack_due);
        at(self.accept_after);
        at(self.agent_ended.map(|ended| ended + DRAIN_TIMEOUT));
        at(self
            .live
            .as_ref()
            .map(|live| (live.spoke + PING_INTERVAL).min(live.heard + SILENCE_LIMIT)));
        at(self.waiting.first().map(|waiting| waiting.since + HANDSHAKE_TIMEOUT));
        at(self.deserted_at());
        due
    }

    /// Returns the time at which an agent without a host gives up.
    fn deserted_at(&self) -> Option<Instant> {
        match (&self.live, &self.streams) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(self.alone_since + self.limits.detached),
            (None, None) => self.limits.first.map(|first| self.alone_since + first),
        }
    }

    fn check_times(&mut self) -> Option<End> {
        let now = Instant::now();
        self.waiting.retain(|waiting| waiting.since + HANDSHAKE_TIMEOUT > now);
        if let Some(live) = &mut self.live {
            if live.heard + SILENCE_LIMIT <= now {
                self.lose();
            } else if live.spoke + PING_INTERVAL <= now {
                live.spoke = now;
                if live.connection.ping().is_err() {
                    self.lose();
                }
            }
        }
        self.acknowledge(now);
        if self.accept_after.is_some_and(|until| until <= now) {
            self.accept_after = None;
        }
        let drained = self.streams.as_ref().is_none_or(Streams::is_drained);
        if self.host_closed
            && self
                .streams
                .as_ref()
                .is_none_or(|streams| streams.incoming().is_empty())
        {
            return Some(End::HostClosed);
        }
        if self
            .agent_ended
            .is_some_and(|ended| drained || ended + DRAIN_TIMEOUT <= now)
        {
            self.say_goodbye();
            return Some(End::AgentEnded);
        }
        self.deserted_at().filter(|at| *at <= now).map(|_| End::Deserted)
    }

    /// Drops the host's connection. Another one can continue.
    fn lose(&mut self) {
        self.live = None;
        self.ack_due = None;
        self.alone_since = Instant::now();
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
                    let handshake = Handshake::new(&self.key, &self.sandbox, false);
                    if let (Ok(()), Ok(handshake)) = (ready, handshake) {
                        self.waiting.push(Waiting {
                            stream,
                            since: Instant::now(),
                            stage: Stage::Unproven(handshake, Vec::new()),
                        });
                        self.drop_excess();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // No descriptors or no memory: the code inside may have taken them.
                Err(_) => {
                    self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Drops the oldest connections that do not count yet, if there are too many.
    fn drop_excess(&mut self) {
        let is_unproven = |waiting: &Waiting| matches!(waiting.stage, Stage::Unproven(..));
        let unproven = self.waiting.iter().filter(|waiting| is_unproven(waiting)).count();
        let mut excess = (
            unproven.saturating_sub(MAX_UNPROVEN),
            (self.waiting.len() - unproven).saturating_sub(MAX_UNNAMED),
        );
        self.waiting.retain(|waiting| {
            let excess = if is_unproven(waiting) {
                &mut excess.0
            } else {
                &mut excess.1
            };
            let stays = *excess == 0;
            *excess = excess.saturating_sub(1);
            stays
        });
    }

    /// Reads a connection that does not count yet.
    fn read_waiting(&mut self, at: usize) {
        let Some(waiting) = self.waiting.get_mut(at) else {
            return;
        };
        let mut buffer = [0; 1024];
        let bytes = match waiting.stream.read(&mut buffer) {
            Ok(count @ 1..) => buffer.get(..count).unwrap_or_default(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Ok(_) | Err(_) => {
                self.waiting.remove(at);
                return;
            }
        };
        let waiting = self.waiting.remove(at);
        if let Ok(Some(waiting)) = self.advance(waiting, bytes) {
            self.waiting.insert(at, waiting);
            self.drop_excess();
        }
    }

    /// Takes the next bytes of a connection that does not count yet. Returns it if it still does not.
    fn advance(&mut self, mut waiting: Waiting, bytes: &[u8]) -> Result<Option<Waiting>, ProtocolError> {
        let mut connection = match waiting.stage {
            Stage::Unproven(mut handshake, mut received) => {
                received.extend_from_slice(bytes);
                if !handshake.read(&mut received)? {
                    waiting.stage = Stage::Unproven(handshake, received);
                    return Ok(Some(waiting));
                }
                let answer = handshake.write()?;
                // A new connection has room for these few bytes.
                if waiting.stream.write(&answer).ok() != Some(answer.len()) {
                    return Err(ProtocolError::Violation);
                }
                let connection = handshake.finish()?;
                if received.is_empty() {
                    waiting.stage = Stage::Unnamed(connection);
                    return Ok(Some(waiting));
                }
                // The peer cannot have encrypted anything before the answer.
                return Err(ProtocolError::WrongKey);
            }
            Stage::Unnamed(connection) => connection,
        };
        // Nothing but the name of a link is accepted yet.
        match connection.read(bytes, &mut Streams::new(LinkId::default()))? {
            None => {
                waiting.stage = Stage::Unnamed(connection);
                Ok(Some(waiting))
            }
            Some(Notice::Resumes(id, host)) => {
                self.admit(waiting.stream, connection, id, host)?;
                Ok(None)
            }
            Some(_) => Err(ProtocolError::Violation),
        }
    }

    /// Makes a connection the host's, in place of an older one.
    fn admit(
        &mut self,
        mut stream: TcpStream,
        mut connection: Connection,
        id: LinkId,
        host: Position,
    ) -> Result<(), ProtocolError> {
        let streams = self.streams.get_or_insert_with(|| Streams::new(id));
        if streams.id() != id {
            connection.refuse()?;
            // A peer that does not read has no use for the answer.
            let _ = stream.write(connection.outgoing());
            return Ok(());
        }
        connection.resume_at(streams, host)?;
        connection.resume(streams)?;
        let now = Instant::now();
        self.live = Some(Live {
            stream,
            connection,
            heard: now,
            spoke: now,
        });
        Ok(())
    }

    fn read_local(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let room = streams.room().min(READ_BYTES);
        if room == 0 || self.agent_ended.is_some() {
            return;
        }
        let mut buffer = vec![0; room];
        match self.local.read(&mut buffer) {
            Ok(0) => self.agent_ended = Some(Instant::now()),
            Ok(count) => streams.send(buffer.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.agent_ended = Some(Instant::now()),
        }
    }

    fn write_local(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        while !streams.incoming().is_empty() {
            match self.local.write(streams.incoming()) {
                Ok(count @ 1..) => streams.take(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => {
                    self.agent_ended.get_or_insert_with(Instant::now);
                    let rest = streams.incoming().len();
                    streams.take(rest);
                }
            }
        }
        if streams.owes_ack() && self.live.is_some() {
            self.ack_due.get_or_insert_with(|| Instant::now() + ACK_DELAY);
        }
    }

    fn acknowledge(&mut self, now: Instant) {
        let (Some(live), Some(streams)) = (&mut self.live, &mut self.streams) else {
            return;
        };
        let due = self.ack_due.is_some_and(|due| due <= now);
        if live.connection.acknowledge(streams, due).is_err() {
            self.lose();
            return;
        }
        if !streams.owes_ack() {
            self.ack_due = None;
        }
        self.write_live();
    }

    fn read_live(&mut self) {
        let (Some(live), Some(streams)) = (&mut self.live, &mut self.streams) else {
            return;
        };
        let mut buffer = vec![0; READ_BYTES];
        let bytes = match live.stream.read(&mut buffer) {
            Ok(count @ 1..) => buffer.get(..count).unwrap_or_default(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Ok(_) | Err(_) => {
                self.lose();
                return;
            }
        };
        live.heard = Instant::now();
        match live.connection.read(bytes, streams) {
            Ok(None) => {}
            Ok(Some(Notice::Closed)) => self.host_closed = true,
            Ok(Some(_)) | Err(_) => self.lose(),
        }
    }

    fn write_live(&mut self) {
        let (Some(live), Some(streams)) = (&mut self.live, &self.streams) else {
            return;
        };
        loop {
            if live.connection.fill(streams).is_err() {
                self.lose();
                return;
            }
            let outgoing = live.connection.outgoing();
            if outgoing.is_empty() {
                return;
            }
            match live.stream.write(outgoing) {
                Ok(count @ 1..) => {
                    live.connection.written(count);
                    live.spoke = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {
                    self.lose();
                    return;
                }
            }
        }
    }

    /// Tells the host that the agent has ended.
    fn say_goodbye(&mut self) {
        if let Some(live) = &mut self.live
            && live.connection.close().is_ok()
        {
            self.write_live();
        }
    }
}
