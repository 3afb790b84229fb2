//! The connections of a network namespace, from the kernel's socket diagnosis. One request returns all connections and
//! the size of their queues, in a tenth of the time that `/proc/net/tcp` takes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::paths;
use crate::sys::clone::{Forked, exit_now, fork};
use crate::wire;

const SIGCHLD: u64 = 17;
/// A request for the TCP connections of both families.
const TCPDIAG_GETSOCK: u16 = 18;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The attribute with a socket's memory, and the bit that requests it.
const INET_DIAG_SKMEMINFO: u16 = 7;
const SKMEMINFO_BIT: u8 = 1 << (INET_DIAG_SKMEMINFO - 1);
/// All states except TIME_WAIT and SYN_RECV, which have no socket.
const OPEN_STATES: u32 = 0xfff & !(1 << 6) & !(1 << 3);
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 60;
const MESSAGE_BYTES: usize = 72;
/// The size of the receive buffer, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;

/// The memory of one connection, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    /// True size of the received data, and of data that is not yet released after reading.
    pub(super) receive: u64,
    /// True size of the data to send.
    pub(super) send: u64,
    /// The number of data bytes in each queue.
    pub(super) received: u64,
    pub(super) unsent: u64,
}

/// Opens a diagnosis socket in the network namespace of one of these processes.
///
/// # Errors
/// No process's namespace can be opened, or this kernel has no such sockets.
pub(super) fn open(processes: &[Pid]) -> io::Result<OwnedFd> {
    let own = fstat(namespace("self", "net")?)?.st_ino;
    let found = processes.iter().find_map(|pid| {
        let number = pid.as_raw_nonzero();
        Some((namespace(number, "user").ok()?, namespace(number, "net").ok()?))
    });
    let (user, net) = found.ok_or(io::ErrorKind::PermissionDenied)?;
    if fstat(&net)?.st_ino == own {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (ours, theirs) = wire::pair()?;
    match fork(0, SIGCHLD, None)? {
        Forked::Child => {
            let sent = enter(&user, &net).and_then(|socket| wire::send(theirs.as_fd(), &(), &[socket.as_fd()]));
            exit_now(sent.map_or(1, |()| 0))
        }
        Forked::Parent { pidfd, .. } => {
            drop(theirs);
            let received = wire::receive_one::<()>(ours.as_fd());
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            let sent = received?.and_then(|((), mut descriptors)| descriptors.pop());
            sent.ok_or_else(|| io::ErrorKind::PermissionDenied.into())
        }
    }
}

fn namespace(process: impl std::fmt::Display, name: &str) -> io::Result<OwnedFd> {
    let path = format!("{}/proc/{process}/ns/{name}", paths::host());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn enter(user: &OwnedFd, net: &OwnedFd) -> io::Result<OwnedFd> {
    move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
    move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?;
    open_own()
}

/// Opens a diagnosis socket for the network namespace of the calling process.
///
/// # Errors
/// The kernel has no socket diagnosis, or a filter forbids it.
pub(super) fn open_own() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(rustix::net::netlink::SOCK_DIAG),
    )?)
}

/// Returns all connections.
///
/// # Errors
/// The system's error, or an unreadable answer.
pub(super) fn connections(socket: &OwnedFd) -> io::Result<Vec<Connection>> {
    // Discards the answers to an earlier request.
    let mut answer = vec![0; RECEIVE_BUFFER_BYTES];
    while rustix::net::recv(socket, answer.as_mut_slice(), RecvFlags::DONTWAIT).is_ok() {}
    rustix::net::send(socket, &request(), SendFlags::empty())?;
    let mut found = Vec::new();
    loop {
        let (length, _) = rustix::net::recv(socket, answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
        if read(answer.get(..length).unwrap_or_default(), &mut found)? {
            return Ok(found);
        }
    }
}

fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).unwrap_or_default();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(TCPDIAG_GETSOCK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    // Family, address lengths, requested attributes, and the socket's id (any).
    bytes.extend([0, 0, 0, SKMEMINFO_BIT]);
    bytes.extend([0; 48]);
    bytes.extend(OPEN_STATES.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// Reads one answer. Returns true if it is the last one.
fn read(mut answer: &[u8], found: &mut Vec<Connection>) -> io::Result<bool> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    while !answer.is_empty() {
        let length = usize::try_from(word(answer, 0).ok_or_else(bad)?).map_err(|_| bad())?;
        let message = answer
            .get(..length)
            .filter(|_| length >= HEADER_BYTES)
            .ok_or_else(bad)?;
        match half(message, 4).ok_or_else(bad)? {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(bad()),
            _ => found.extend(connection(message.get(HEADER_BYTES..).unwrap_or_default())),
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads one connection. None for an entry without memory, which is not a socket.
fn connection(message: &[u8]) -> Option<Connection> {
    let (received, unsent) = (word(message, 56)?, word(message, 60)?);
    let mut attributes = message.get(MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(half(attributes, 0)?).max(4);
        if half(attributes, 2)? == INET_DIAG_SKMEMINFO {
            let memory = |place: usize| Some(u64::from(word(attributes, 4 + 4 * place)?));
            return Some(Connection {
                receive: memory(0)? + memory(7).unwrap_or(0),
                send: memory(5)?,
                received: u64::from(received),
                unsent: u64::from(unsent),
            });
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_held_by_a_connection_is_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::io::Write::write_all(&mut client, &[7; 12_345]).unwrap();
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(rustix::net::netlink::SOCK_DIAG),
        )
        .unwrap();
        // A kernel may lack socket diagnosis. Then all memory that the machine loses counts for the sandbox.
        let Ok(found) = connections(&socket) else { return };
        let holds = found.iter().find(|connection| connection.received == 12_345).unwrap();
        assert!(holds.receive > 12_345, "{holds:?}");
        // A second request gets its correct answer.
        assert!(connections(&socket).unwrap().contains(holds));
    }

    #[test]
    fn descriptors_other_than_sockets_are_not_listed() {
        assert_eq!(connection(&[0; MESSAGE_BYTES]), None);
        let mut found = Vec::new();
        assert!(read(&[1, 0, 0, 0, 3, 0, 0, 0], &mut found).is_err());
    }
}
