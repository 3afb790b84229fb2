//! Forwarded ports: each connection to one becomes a stream that the agent opens to the host.
//!
//! Code in the sandbox makes the connections, and the host interprets their bytes. This module only copies the bytes,
//! with the windows of every channel, and bounds the simultaneous connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};

use super::program::Part;
use super::stdin::{InputPump, credit_sender};
use super::stdout::{OutputPump, ReadResult};
use crate::protocol::{
    BODY_CHANNEL, Connected, ErrorCode, ForwardReply, Frame, Kind, MAX_CONNECTIONS, OutBuffer, ProtocolError, Reply,
    WireError,
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
    /// Streams that this side has reset and the host has not confirmed.
    resetting: BTreeSet<u32>,
    /// The highest stream id that this side has used.
    last_id: u32,
}

struct Port {
    socket: OwnedFd,
    target: String,
}

struct Connection {
    port: u32,
    input: InputPump,
    output: OutputPump,
    /// True once the host has accepted the connection.
    open: bool,
    /// True once the program inside has received the end of file.
    shut_down: bool,
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
        self.ports.insert(stream, Port { socket, target });
        Ok(ForwardReply { port })
    }

    /// Closes the port of a stream and aborts its connections.
    pub(super) fn close_port(&mut self, stream: u32, out: &mut OutBuffer) {
        if self.ports.remove(&stream).is_none() {
            return;
        }
        let own = self.connections.iter().filter(|(_, found)| found.port == stream);
        let own: Vec<u32> = own.map(|(stream, _)| *stream).collect();
        for stream in own {
            self.reset(stream, out);
        }
    }

    /// Everything that can be polled.
    pub(super) fn polled<'a>(&'a self, mut add: impl FnMut(u32, Part, BorrowedFd<'a>, PollFlags)) {
        if self.connections.len() < MAX_CONNECTIONS {
            for (stream, port) in &self.ports {
                add(*stream, Part::Connecting, port.socket.as_fd(), PollFlags::IN);
            }
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
            self.accept(stream, out);
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
        while self.connections.len() < MAX_CONNECTIONS {
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
            let (Some(id), Ok(copy)) = (self.last_id.checked_add(2), rustix::io::fcntl_dupfd_cloexec(&socket, 0))
            else {
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
            let connection = Connection {
                port: stream,
                input: InputPump::new(socket),
                output: OutputPump::new(id, BODY_CHANNEL, Some(copy)),
                open: false,
                shut_down: false,
            };
            self.connections.insert(id, connection);
        }
    }

    /// Handles a frame of the host on a stream that this side has opened.
    pub(super) fn frame(&mut self, frame: &Frame<'_>, out: &mut OutBuffer) -> Result<(), ProtocolError> {
        let stream = frame.stream;
        if stream == 0 || stream > self.last_id {
            return Err(ProtocolError::new(format!(
                "a frame on stream {stream}, which was never opened"
            )));
        }
        if frame.kind == Kind::Reset {
            // The host either gives the stream up or confirms this side's RESET.
            if !self.resetting.remove(&stream) {
                self.connections.remove(&stream);
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

fn listen(address: SocketAddrV4) -> rustix::io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    let bound = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound.port()))
}
