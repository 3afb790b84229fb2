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

use super::inward::{Inward, credit_to};
use super::outward::{Outward, Took};
use super::program::Part;
use crate::protocol::{
    BODY, Breach, Connected, ErrorCode, ForwardReply, Frame, Kind, MAX_CONNECTIONS, OutBuffer, Reply, WireError,
};

/// The maximum number of simultaneously open ports.
const MAX_PORTS: usize = 8;
/// The maximum length of a target's name, in bytes.
const MAX_TARGET: usize = 64;
/// The number of connections that the kernel queues until there is room for them.
const BACKLOG: i32 = 64;

/// All ports and their connections.
#[derive(Default)]
pub(super) struct Forwards {
    ports: BTreeMap<u32, Port>,
    connections: BTreeMap<u32, Connection>,
    /// Streams that this side has reset and the host has not confirmed.
    leaving: BTreeSet<u32>,
    /// The highest stream id that this side has used.
    newest: u32,
}

struct Port {
    socket: OwnedFd,
    target: String,
}

struct Connection {
    port: u32,
    inward: Inward,
    outward: Outward,
    /// True once the host has accepted the connection.
    open: bool,
    /// True once the program inside has received the end of file.
    told: bool,
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
            self.leave(stream, out);
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
            if let Some(fd) = connection.inward.polled() {
                add(*stream, Part::SocketIn, fd, PollFlags::OUT);
            }
            if let Some(fd) = connection.outward.polled() {
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
            Part::SocketIn => drop(connection.inward.write(credit_to(out, stream, BODY))),
            _ => {
                let _how: Took = connection.outward.take(u64::MAX, out);
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
            let (Some(id), Ok(copy)) = (self.newest.checked_add(2), rustix::io::fcntl_dupfd_cloexec(&socket, 0)) else {
                return;
            };
            let connected = Connected {
                forward: stream,
                target: port.target.clone(),
            };
            if !out.message(Kind::Request, id, &connected) {
                return;
            }
            self.newest = id;
            let connection = Connection {
                port: stream,
                inward: Inward::new(socket),
                outward: Outward::new(id, BODY, Some(copy)),
                open: false,
                told: false,
            };
            self.connections.insert(id, connection);
        }
    }

    /// Handles a frame of the host on a stream that this side has opened.
    pub(super) fn frame(&mut self, frame: &Frame<'_>, out: &mut OutBuffer) -> Result<(), Breach> {
        let stream = frame.stream;
        if stream == 0 || stream > self.newest {
            return Err(Breach::new(format!(
                "a frame on stream {stream}, which was never opened"
            )));
        }
        if frame.kind == Kind::Reset {
            // The host either gives the stream up or confirms this side's RESET.
            if !self.leaving.remove(&stream) {
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
                Err(error) => return Err(Breach::new(format!("a bad answer to open: {error}"))),
            },
            Kind::Data if connection.open => {
                let (channel, bytes) = frame.data()?;
                body(channel)?;
                connection.inward.receive(bytes, credit_to(out, stream, BODY))?;
            }
            Kind::Credit if connection.open => {
                let (channel, amount) = frame.credit()?;
                body(channel)?;
                connection.outward.refund(amount)?;
            }
            Kind::Close if connection.open => {
                body(frame.close()?)?;
                connection.inward.close()?;
            }
            kind => return Err(Breach::new(format!("the host may not send {kind:?} here"))),
        }
        self.settle(stream, out);
        Ok(())
    }

    /// Half-closes or ends a connection whose inward direction has ended.
    fn settle(&mut self, stream: u32, out: &mut OutBuffer) {
        let Some(connection) = self.connections.get_mut(&stream) else {
            return;
        };
        if !connection.inward.is_over() {
            return;
        }
        match connection.outward.pipe() {
            None => self.leave(stream, out),
            Some(socket) if !connection.told => {
                // A peer that has closed its socket already needs no end of file.
                let _gone = rustix::net::shutdown(socket, Shutdown::Write);
                connection.told = true;
            }
            Some(_) => {}
        }
    }

    fn leave(&mut self, stream: u32, out: &mut OutBuffer) {
        if self.connections.remove(&stream).is_some() {
            self.leaving.insert(stream);
            out.reset(stream);
        }
    }
}

fn body(channel: u8) -> Result<(), Breach> {
    if channel == BODY {
        Ok(())
    } else {
        Err(Breach::new("another channel than the connection's"))
    }
}

fn listen(address: SocketAddrV4) -> rustix::io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddrV4::try_from(rustix::net::getsockname(&socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((socket, bound.port()))
}
