//! Connections between ports inside and the host. Each connection to a forwarded port becomes a stream that the agent
//! opens to the host; the host opens streams to ports on which programs inside listen.
//!
//! The host interprets the bytes. This module only copies them, with the windows of every channel, and bounds the
//! simultaneous connections of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};

use super::errors;
use super::program::Part;
use super::stdin::{InputPump, credit_sender};
use super::stdout::{OutputPump, ReadResult};
use crate::protocol::{
    BODY_CHANNEL, Connected, EmptyReply, ErrorCode, ForwardReply, Frame, Kind, MAX_CONNECTIONS, OutBuffer,
    ProtocolError, Reply, WireError,
};

/// The maximum number of simultaneously open ports.
const MAX_PORTS: usize = 8;
/// The maximum length of a target's name, in bytes.
const MAX_TARGET: usize = 64;
/// The number of connections that the kernel queues until there is room for them.
const LISTEN_BACKLOG: i32 = 64;

/// All ports and their connections.
#[derive(Default)]
pub(super) struct Forwards {
    ports: BTreeMap<u32, Port>,
    connections: BTreeMap<u32, Connection>,
    /// Connections to ports inside that are being made.
    outgoing: BTreeMap<u32, Outgoing>,
    /// Streams that this side has reset and the host has not confirmed.
    resetting: BTreeSet<u32>,
    /// The highest stream id that this side has used.
    last_id: u32,
}

/// A connection that is being made.
struct Outgoing {
    socket: OwnedFd,
    /// The addresses to try if this one fails, the next one last.
    addresses: Vec<SocketAddr>,
}

struct Port {
    socket: OwnedFd,
    number: u16,
    target: String,
}

struct Connection {
    /// The stream of the forwarded port. None: the host opened the connection.
    port: Option<u32>,
    input: InputPump,
    output: OutputPump,
    /// True once both sides have accepted the connection.
    open: bool,
    /// True once the program inside has received the end of file.
    shut_down: bool,
}

impl Connection {
    fn new(port: Option<u32>, stream: u32, socket: OwnedFd) -> Result<Self, Errno> {
        let copy = rustix::io::fcntl_dupfd_cloexec(&socket, 0)?;
        Ok(Self {
            port,
            input: InputPump::new(socket),
            output: OutputPump::new(stream, BODY_CHANNEL, Some(copy)),
            open: false,
            shut_down: false,
        })
    }
}

impl Forwards {
    /// Opens a port for the host's stream.
    pub(super) fn listen(
        &mut self,
        stream: u32,
        address: Ipv4Addr,
        port: u16,
        target: String,
    ) -> Result<ForwardReply, WireError> {
        if !address.is_loopback() || target.len() > MAX_TARGET {
            return Err(WireError::new(
                ErrorCode::Invalid,
                format!("{address} is not a loopback address, or the target's name is too long"),
            ));
        }
        if self.ports.len() >= MAX_PORTS {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_PORTS} ports are open already"),
            ));
        }
        let (socket, port) = listen(SocketAddrV4::new(address, port)).map_err(|errno| WireError {
            errno: Some(errno.raw_os_error()),
            ..WireError::new(
                ErrorCode::Failed,
                format!("the port could not be opened: {}", std::io::Error::from(errno)),
            )
        })?;
        let open = Port {
            socket,
            number: port,
            target,
        };
        self.ports.insert(stream, open);
        Ok(ForwardReply { port })
    }

    /// Connects to a port inside, for the host's stream. The answer follows once the connection is made.
    pub(super) fn open(
        &mut self,
        stream: u32,
        address: Ipv4Addr,
        port: u16,
        out: &mut OutBuffer,
    ) -> Result<(), WireError> {
        if !address.is_loopback() || port == 0 {
            return Err(WireError::new(
                ErrorCode::Invalid,
                format!("{address}:{port} is not a port of the loopback address"),
            ));
        }
        if self.ports.values().any(|open| open.number == port) {
            return Err(WireError::new(
                ErrorCode::Invalid,
                format!("port {port} leads out of the sandbox, and no program listens on it"),
            ));
        }
        if self.outgoing.len() + self.connections_of_host() >= MAX_CONNECTIONS {
            return Err(WireError::new(
                ErrorCode::Limit,
                format!("{MAX_CONNECTIONS} connections to ports are open already"),
            ));
        }
        // Some programs listen on one of the two addresses only.
        let addresses = vec![
            SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
            SocketAddr::from((address, port)),
        ];
        self.attempt(stream, addresses, out)
    }

    fn connections_of_host(&self) -> usize {
        self.connections.values().filter(|found| found.port.is_none()).count()
    }

    fn connections_of_ports(&self) -> usize {
        self.connections.len() - self.connections_of_host()
    }

    /// Connects to the last of these addresses, and to the one before it if that fails.
    fn attempt(&mut self, stream: u32, mut addresses: Vec<SocketAddr>, out: &mut OutBuffer) -> Result<(), WireError> {
        let mut refused = Errno::CONNREFUSED;
        while let Some(address) = addresses.pop() {
            match connect(address) {
                Ok((socket, true)) => return self.opened(stream, socket, out),
                Ok((socket, false)) => {
                    self.outgoing.insert(stream, Outgoing { socket, addresses });
                    return Ok(());
                }
                Err(errno) if address.is_ipv4() => refused = errno,
                Err(_) => {}
            }
        }
        Err(errors::of_connect(refused))
    }

    /// Answers the host once a connection has been made or refused.
    fn settle_attempt(&mut self, stream: u32, out: &mut OutBuffer) {
        let Some(Outgoing { socket, addresses }) = self.outgoing.remove(&stream) else {
            return;
        };
        let made = match rustix::net::sockopt::socket_error(&socket) {
            Ok(Ok(())) => self.opened(stream, socket, out),
            Ok(Err(_)) | Err(_) => self.attempt(stream, addresses, out),
        };
        if let Err(error) = made {
            let _fits = out.message(Kind::Reply, stream, &Reply::<EmptyReply>::Error(error));
        }
    }

    fn opened(&mut self, stream: u32, socket: OwnedFd, out: &mut OutBuffer) -> Result<(), WireError> {
        let mut connection = Connection::new(None, stream, socket).map_err(errors::of_connect)?;
        connection.open = true;
        self.connections.insert(stream, connection);
        let _fits = out.message(Kind::Reply, stream, &Reply::Ok(EmptyReply {}));
        Ok(())
    }

    /// Returns true if this stream of the host is a connection to a port inside.
    pub(super) fn has(&self, stream: u32) -> bool {
        self.outgoing.contains_key(&stream)
            || self.connections.contains_key(&stream)
            || self.resetting.contains(&stream)
    }

    /// Closes the port of a stream and aborts its connections.
    pub(super) fn close_port(&mut self, stream: u32, out: &mut OutBuffer) {
        if self.ports.remove(&stream).is_none() {
            return;
        }
        let own = self.connections.iter().filter(|(_, found)| found.port == Some(stream));
        let own: Vec<u32> = own.map(|(stream, _)| *stream).collect();
        for stream in own {
            self.reset(stream, out);
        }
    }

    /// Everything that can be polled.
    pub(super) fn polled<'a>(&'a self, mut add: impl FnMut(u32, Part, BorrowedFd<'a>, PollFlags)) {
        if self.connections_of_ports() < MAX_CONNECTIONS {
            for (stream, port) in &self.ports {
                add(*stream, Part::Connecting, port.socket.as_fd(), PollFlags::IN);
            }
        }
        for (stream, attempt) in &self.outgoing {
            add(*stream, Part::Connecting, attempt.socket.as_fd(), PollFlags::OUT);
        }
        for (stream, connection) in self.connections.iter().filter(|(_, found)| found.open) {
            if let Some(fd) = connection.input.polled() {
                add(*stream, Part::SocketIn, fd, PollFlags::OUT);
            }
            if let Some(fd) = connection.output.polled() {
                add(*stream, Part::SocketOut, fd, PollFlags::IN);
            }
        }
    }

    /// Handles a port or a connection that is ready.
    pub(super) fn ready(&mut self, stream: u32, part: Part, out: &mut OutBuffer) {
        if part == Part::Connecting {
            if self.outgoing.contains_key(&stream) {
                self.settle_attempt(stream, out);
            } else {
                self.accept(stream, out);
            }
            return;
        }
        let Some(connection) = self.connections.get_mut(&stream) else {
            return;
        };
        match part {
            Part::SocketIn => drop(connection.input.write(credit_sender(out, stream, BODY_CHANNEL))),
            _ => {
                let _how: ReadResult = connection.output.take(u64::MAX, out);
            }
        }
        self.settle(stream, out);
    }

    fn accept(&mut self, stream: u32, out: &mut OutBuffer) {
        while self.connections_of_ports() < MAX_CONNECTIONS {
            let Some(port) = self.ports.get(&stream) else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&port.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The connection stays in the kernel's queue. Without the pause this loop would spin.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return;
                }
                Err(_) => return,
            };
            let Some(id) = self.last_id.checked_add(2) else { return };
            let Ok(connection) = Connection::new(Some(stream), id, socket) else {
                return;
            };
            let connected = Connected {
                forward: stream,
                target: port.target.clone(),
            };
            if !out.message(Kind::Request, id, &connected) {
                return;
            }
            self.last_id = id;
            self.connections.insert(id, connection);
        }
    }

    /// Handles a frame of the host on the stream of a connection.
    pub(super) fn frame(&mut self, frame: &Frame<'_>, out: &mut OutBuffer) -> Result<(), ProtocolError> {
        let stream = frame.stream;
        if stream == 0 || (stream.is_multiple_of(2) && stream > self.last_id) {
            return Err(ProtocolError::new(format!(
                "a frame on stream {stream}, which was never opened"
            )));
        }
        if frame.kind == Kind::Reset {
            // The host either gives the stream up or confirms this side's RESET.
            if !self.resetting.remove(&stream) {
                self.connections.remove(&stream);
                self.outgoing.remove(&stream);
                out.reset(stream);
            }
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&stream) else {
            // The host sent it before it learned of the stream's end.
            return Ok(());
        };
        match frame.kind {
            Kind::Reply if !connection.open => match serde_json::from_slice(frame.payload) {
                Ok(Reply::<serde::de::IgnoredAny>::Ok(_)) => connection.open = true,
                Ok(Reply::Error(_)) => drop(self.connections.remove(&stream)),
                Err(error) => return Err(ProtocolError::new(format!("a bad answer to open: {error}"))),
            },
            Kind::Data if connection.open => {
                let (channel, bytes) = frame.data()?;
                body(channel)?;
                connection
                    .input
                    .receive(bytes, credit_sender(out, stream, BODY_CHANNEL))?;
            }
            Kind::Credit if connection.open => {
                let (channel, amount) = frame.credit()?;
                body(channel)?;
                connection.output.refund(amount)?;
            }
            Kind::Close if connection.open => {
                body(frame.close()?)?;
                connection.input.close()?;
            }
            kind => return Err(ProtocolError::new(format!("the host may not send {kind:?} here"))),
        }
        self.settle(stream, out);
        Ok(())
    }

    /// Half-closes or ends a connection whose inward direction has ended.
    fn settle(&mut self, stream: u32, out: &mut OutBuffer) {
        let Some(connection) = self.connections.get_mut(&stream) else {
            return;
        };
        if !connection.input.is_over() {
            return;
        }
        match connection.output.pipe() {
            None => self.reset(stream, out),
            Some(socket) if !connection.shut_down => {
                // A peer that has closed its socket already needs no end of file.
                let _gone = rustix::net::shutdown(socket, Shutdown::Write);
                connection.shut_down = true;
            }
            Some(_) => {}
        }
    }

    fn reset(&mut self, stream: u32, out: &mut OutBuffer) {
        if self.connections.remove(&stream).is_some() {
            self.resetting.insert(stream);
            out.reset(stream);
        }
    }
}

fn body(channel: u8) -> Result<(), ProtocolError> {
    if channel == BODY_CHANNEL {
        Ok(())
    } else {
        Err(ProtocolError::new("another channel than the connection's"))
    }
}

/// Begins a connection. Returns its socket, and true if the connection has been made.
fn connect(address: SocketAddr) -> rustix::io::Result<(OwnedFd, bool)> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => Ok((socket, false)),
        Err(errno) => Err(errno),
    }
}

fn listen(address: SocketAddrV4) -> rustix::io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    // Its connections inherit it. Without it, the last piece of an answer in several pieces waits up to 44 ms for the
    // acknowledgement of the others.
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    let bound = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound.port()))
}
