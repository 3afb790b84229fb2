//! The sources of connections: the network, or a socket in the file system for programs of the same user.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// The listening socket.
#[derive(Debug)]
pub(crate) enum Listening {
    Network(TcpListener),
    /// A socket, and the user whose programs may connect.
    #[cfg(unix)]
    Socket(UnixListener, u32),
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Arrival {
    Network(TcpStream, SocketAddr),
    #[cfg(unix)]
    Socket(UnixStream),
}

impl Listening {
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

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Network(listener) => listener.local_addr(),
            #[cfg(unix)]
            Self::Socket(..) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Accepts the next connection. A connection of another user is an error, regardless of the file's mode.
    pub(crate) async fn accept(&self) -> io::Result<Arrival> {
        match self {
            Self::Network(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Arrival::Network(stream, peer))
            }
            #[cfg(unix)]
            Self::Socket(listener, own) => {
                let (stream, _unnamed) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer == *own {
                    Ok(Arrival::Socket(stream))
                } else {
                    let reason = format!("user {peer} of this machine is not let in");
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
                }
            }
        }
    }
}
