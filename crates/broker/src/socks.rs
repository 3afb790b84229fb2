//! SOCKS 5 (RFC 1928): names and addresses, the CONNECT command only, no authentication.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::time::timeout;

use crate::egress::{DenialReason, Egress, Refused, legible};
use crate::host::{Host, Target};

/// The time limit for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

const SOCKS_VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT_COMMAND: u8 = 1;

/// The reply codes.
mod code {
    pub(super) const SUCCEEDED: u8 = 0;
    pub(super) const GENERAL_FAILURE: u8 = 1;
    pub(super) const NOT_ALLOWED: u8 = 2;
    pub(super) const HOST_UNREACHABLE: u8 = 4;
    pub(super) const NO_COMMAND: u8 = 7;
    pub(super) const NO_ADDRESS: u8 = 8;
}

/// Serves a connection whose first byte, the version, was already read.
pub(crate) async fn serve(egress: &Arc<Egress>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let Ok(Ok(requested)) = timeout(HANDSHAKE_TIMEOUT, greet(egress, &mut stream)).await else {
        return;
    };
    let connected = match requested {
        Ok(target) => match egress.connect(&target).await {
            Ok(upstream) => Ok((target, upstream)),
            Err(Refused::Denied(_)) => Err(code::NOT_ALLOWED),
            Err(Refused::Unreachable(_)) => Err(code::HOST_UNREACHABLE),
        },
        Err(code) => Err(code),
    };
    match connected {
        Ok((target, mut upstream)) => {
            if answer(&mut stream, code::SUCCEEDED).await.is_ok() {
                // Both ends see an error of the relay themselves.
                let relay = copy_bidirectional(&mut stream, &mut upstream);
                let _end = egress.while_allowed(target, relay).await;
            }
        }
        Err(code) => {
            let _send_result = answer(&mut stream, code).await;
            let _send_result = stream.shutdown().await;
        }
    }
}

/// Returns the requested target, or the reply code that refuses it.
async fn greet(
    egress: &Arc<Egress>,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Result<Target, u8>> {
    let count = stream.read_u8().await?;
    let mut methods = vec![0; count.into()];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[SOCKS_VERSION, NO_METHOD]).await?;
        return Err(io::ErrorKind::Unsupported.into());
    }
    stream.write_all(&[SOCKS_VERSION, NO_AUTHENTICATION]).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, reserved, kind] = head;
    if version != SOCKS_VERSION || reserved != 0 {
        return Ok(Err(code::GENERAL_FAILURE));
    }
    let host = match kind {
        1 => {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await?;
            Ok(Host::Address(Ipv4Addr::from(bytes).into()))
        }
        4 => {
            let mut bytes = [0; 16];
            stream.read_exact(&mut bytes).await?;
            Ok(Host::Address(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()))
        }
        3 => {
            let length = stream.read_u8().await?;
            let mut bytes = vec![0; length.into()];
            stream.read_exact(&mut bytes).await?;
            read_name(egress, &bytes)
        }
        _ => return Ok(Err(code::NO_ADDRESS)),
    };
    let port = stream.read_u16().await?;
    if command != CONNECT_COMMAND {
        return Ok(Err(code::NO_COMMAND));
    }
    if port == 0 {
        return Ok(Err(code::NOT_ALLOWED));
    }
    Ok(host.map(|host| Target { host, port }))
}

fn read_name(egress: &Arc<Egress>, bytes: &[u8]) -> Result<Host, u8> {
    let text = std::str::from_utf8(bytes).unwrap_or("\u{fffd}");
    Host::parse(text).map_err(|reason| {
        drop(egress.deny(legible(text), DenialReason::Unreadable(reason)));
        code::NOT_ALLOWED
    })
}

/// Sends a reply. Its mandatory address is 0.0.0.0, so it shows nothing of the host's network.
async fn answer(stream: &mut (impl AsyncWrite + Unpin), code: u8) -> io::Result<()> {
    stream.write_all(&[SOCKS_VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}
