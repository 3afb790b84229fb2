//! Connections that an endpoint takes over from HTTP: a client at one end, a program in a sandbox at the other.

use std::sync::Arc;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split};
use tokio_util::sync::CancellationToken;

/// The protocol of a connection that carries the bytes of a program's port.
pub const PORT_PROTOCOL: &str = "tcp";
/// The maximum time for a client to begin with the new protocol.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which a program may still answer a client that has ended its side.
const AFTER_CLIENT: Duration = Duration::from_secs(600);
/// The time for which a client may still send to a program that has ended its side.
const AFTER_PROGRAM: Duration = Duration::from_secs(10);

/// The right to take a connection over. The connection counts as a request of its caller while it is used.
pub struct Takeover {
    pub(super) ended: CancellationToken,
    pub(super) _held: Arc<dyn Send + Sync>,
}

impl std::fmt::Debug for Takeover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Takeover")
    }
}

impl Takeover {
    /// Copies bytes between the client and a program. Ends soon after the program has ended its side, ten minutes after the
    /// client has, and at once when the caller loses access or the server ends.
    pub async fn copy(self, client: OnUpgrade, program: impl AsyncRead + AsyncWrite + Send) {
        let Ok(Ok(client)) = tokio::time::timeout(UPGRADE_TIMEOUT, client).await else {
            return;
        };
        let (mut from_client, mut to_client) = split(TokioIo::new(client));
        let (mut from_program, mut to_program) = split(program);
        let inward = async {
            let _broken = copy(&mut from_client, &mut to_program).await;
            let _gone = to_program.shutdown().await;
            tokio::time::sleep(AFTER_CLIENT).await;
        };
        let outward = async {
            let _broken = copy(&mut from_program, &mut to_client).await;
            let _gone = to_client.shutdown().await;
            tokio::time::sleep(AFTER_PROGRAM).await;
        };
        tokio::select! {
            () = inward => {}
            () = outward => {}
            () = self.ended.cancelled() => {}
        }
    }
}
