//! The sources of connections: the network, a socket in the file system for programs of the same user, or the parent
//! process, which sends connected sockets.

use std::io;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// The listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Network(TcpListener),
    /// A socket, and the user whose programs may connect.
    #[cfg(unix)]
    Socket(UnixListener, u32),
    /// A socket over which the parent process sends connected sockets.
    #[cfg(target_os = "linux")]
    Parent(UnixStream),
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum AcceptedConnection {
    Network(TcpStream, SocketAddr),
    #[cfg(unix)]
    Socket(UnixStream),
}

impl Listener {
    pub(crate) fn network(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Self::Network)
    }

    #[cfg(unix)]
    pub(crate) fn socket(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        // A socket pair reports our user the same way as a caller's.
        let (own, _other) = UnixStream::pair()?;
        Ok(Self::Socket(UnixListener::from_std(listener)?, own.peer_cred()?.uid()))
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn parent(socket: std::os::unix::net::UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket).map(Self::Parent)
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Network(listener) => listener.local_addr(),
            #[cfg(unix)]
            Self::Socket(..) => Err(io::ErrorKind::AddrNotAvailable.into()),
            #[cfg(target_os = "linux")]
            Self::Parent(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Accepts the next connection. A connection of another user is an error, regardless of the file's mode.
    pub(crate) async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Network(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(AcceptedConnection::Network(stream, peer))
            }
            #[cfg(unix)]
            Self::Socket(listener, own) => {
                let (stream, _unnamed) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer == *own {
                    Ok(AcceptedConnection::Socket(stream))
                } else {
                    let reason = format!("user {peer} of this machine is not let in");
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
                }
            }
            #[cfg(target_os = "linux")]
            Self::Parent(socket) => {
                let received = socket.async_io(tokio::io::Interest::READABLE, || receive_descriptor(socket));
                let Some(connection) = received.await? else {
                    // The parent sends no more. Connections that it sent before stay open.
                    return std::future::pending().await;
                };
                let stream = std::os::unix::net::UnixStream::from(connection);
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream).map(AcceptedConnection::Socket)
            }
        }
    }
}

/// Receives the descriptor that one message carries. Returns none at the end of the stream.
#[cfg(target_os = "linux")]
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let data = &mut [io::IoSliceMut::new(&mut byte)];
    let message = recvmsg(socket, data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            received = descriptors.last();
        }
    }
    match received {
        Some(descriptor) => Ok(Some(descriptor)),
        None if message.bytes == 0 => Ok(None),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message without a descriptor",
        )),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{IoSlice, Read as _, Write as _};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd as _, BorrowedFd};
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn send(socket: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())
    }

    #[tokio::test]
    async fn only_sockets_are_accepted_from_the_parent_process() {
        let (parent, child) = UnixStream::pair().unwrap();
        let listening = Listener::parent(child).unwrap();
        send(&parent, &[]).unwrap();
        let error = listening.accept().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // The server notices only on use that a descriptor is no socket.
        send(&parent, &[std::fs::File::open("/dev/null").unwrap().as_fd()]).unwrap();
        let _refused_now_or_later = listening.accept().await;
        // Descriptors beyond the one are closed.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (mut surplus, also) = UnixStream::pair().unwrap();
        send(&parent, &[also.as_fd(), also.as_fd(), also.as_fd(), theirs.as_fd()]).unwrap();
        drop((also, theirs));
        let AcceptedConnection::Socket(accepted) = listening.accept().await.unwrap() else {
            panic!("a connection of the parent is a socket");
        };
        let mut accepted = accepted.into_std().unwrap();
        accepted.set_nonblocking(false).unwrap();
        accepted.write_all(b"x").unwrap();
        let mut byte = [0];
        drop(accepted);
        let reads = [ours.read(&mut byte), surplus.read(&mut byte)].map(|read| read.unwrap_or(0));
        assert_eq!(
            reads.iter().sum::<usize>(),
            1,
            "one of the descriptors is the connection"
        );
        drop(parent);
        let ended = tokio::time::timeout(std::time::Duration::from_millis(50), listening.accept());
        assert!(ended.await.is_err(), "nothing more is accepted after the end");
    }
}
