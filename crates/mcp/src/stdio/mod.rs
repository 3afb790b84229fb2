//! MCP over standard input and output: one JSON message a line. stdout carries nothing else.

pub(crate) mod scanner;
pub(crate) mod transport;

use std::sync::Arc;

use rmcp::service::{QuitReason, ServerInitializeError, ServiceExt as _};
use sandcell_engine::{Engine, Principal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::auth::STDIO_PRINCIPAL;
use crate::in_flight::InFlight;
use crate::limits::DISCONNECT_TIMEOUT;
use crate::server::{Server, ServerOptions, UnknownTool};
use transport::LineTransport;

/// The reasons why serving ended, except that the client left.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The options name a tool that does not exist.
    #[error(transparent)]
    UnknownTool(#[from] UnknownTool),
    /// The handshake could not be completed.
    #[error("the handshake with the client failed")]
    Handshake(#[source] Box<ServerInitializeError>),
    /// The task that serves the connection ended abnormally.
    #[error("serving the connection ended abnormally")]
    Connection(#[source] tokio::task::JoinError),
}

/// Serves one client on stdin and stdout until it leaves (end of file, or its pipe is closed). Executions that still
/// run then are stopped within half a second; the caller ends the engine afterwards. Dropping the future ends serving
/// as well.
///
/// # Errors
///
/// [`ServeError`]. A client that leaves at any moment is no error.
pub async fn serve_stdio(engine: Arc<Engine>, options: ServerOptions) -> Result<(), ServeError> {
    let (read, write) = rmcp::transport::stdio_pipes();
    serve_on(engine, &options, read, write).await
}

/// The same on any pair of byte streams.
pub(crate) async fn serve_on<R, W>(
    engine: Arc<Engine>,
    options: &ServerOptions,
    read: R,
    write: W,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let gone = CancellationToken::new();
    let _stop_what_runs = gone.clone().drop_guard();
    let in_flight = Arc::new(InFlight::default());
    let caller = Principal(STDIO_PRINCIPAL.into());
    let server = Server::new(engine, options, caller, gone.clone(), Arc::clone(&in_flight))?;
    let transport = LineTransport::new(read, write, gone.clone(), in_flight);
    match server.serve(transport).await {
        Ok(running) => tokio::select! {
            ended = running.waiting() => match ended {
                Ok(QuitReason::JoinError(error)) | Err(error) => Err(ServeError::Connection(error)),
                Ok(_) => Ok(()),
            },
            // rmcp waits 5 s for answers that may no longer be wanted.
            () = async { gone.cancelled().await; tokio::time::sleep(DISCONNECT_TIMEOUT).await } => Ok(()),
        },
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(ServerInitializeError::TransportError { .. }) => Ok(()),
        Err(error) => Err(ServeError::Handshake(Box::new(error))),
    }
}
