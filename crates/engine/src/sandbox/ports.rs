//! Connections to programs that listen in a sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sandcell_sandbox::{Connection, Failure};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use crate::Principal;
use crate::sandbox::files::{FILE_CALL_TIMEOUT, ready, too_slow};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::UseGuard;

/// A connection to a port of a sandbox. Dropping it aborts the connection.
#[derive(Debug)]
pub struct PortConnection {
    connection: Box<dyn Connection>,
    _guard: UseGuard,
}

impl Sandboxes {
    pub(crate) async fn open_port(
        self: &Arc<Self>,
        principal: &Principal,
        sandbox: &str,
        port: u16,
    ) -> Result<PortConnection, Failure> {
        if port == 0 {
            return Err(Failure::invalid("0 is not a port", "pass a port from 1 to 65535"));
        }
        let target = self.target(principal, Some(sandbox)).await?;
        let (target, live) = ready(target).await?;
        let connection = match timeout(FILE_CALL_TIMEOUT, live.open_port(port)).await {
            Ok(opened) => opened?,
            Err(_) => return Err(too_slow("the back end did not connect to the port")),
        };
        Ok(PortConnection {
            connection,
            _guard: target.guard,
        })
    }
}

impl AsyncRead for PortConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl AsyncWrite for PortConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
