//! `sandcell serve --parent-socket`: HTTP for the program that started this one. A connection carries bytes as they are,
//! where MCP on the standard streams carries them as base64 in JSON.

use std::sync::Arc;

use sandcell_engine::Engine;
use sandcell_mcp::{HttpServer, ServerOptions};
use sandcell_rest::Rest;
use sandcell_sandbox::Failure;
use tokio_util::task::AbortOnDropHandle;

use super::http;

/// The connection to the parent process.
pub(super) type Socket = std::os::unix::net::UnixStream;

/// Takes over the inherited descriptor.
pub(super) fn adopt(number: i32) -> Result<Socket, Failure> {
    let invalid = |why: String| {
        Failure::invalid(
            format!("--parent-socket {number}: {why}"),
            "pass the number of an inherited Unix stream socket, or leave the flag out",
        )
    };
    if number <= 2 {
        return Err(invalid("it is a standard stream".to_owned()));
    }
    let descriptor = sandcell_jail::adopt(number).map_err(|error| invalid(error.to_string()))?;
    // Programs that this one starts must not hold it.
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC).map_err(|error| invalid(error.to_string()))?;
    let kind = rustix::net::sockopt::socket_type(&descriptor).map_err(|error| invalid(error.to_string()))?;
    if kind != rustix::net::SocketType::STREAM {
        return Err(invalid("it is not a stream socket".to_owned()));
    }
    let socket = Socket::from(descriptor);
    socket.peer_addr().map_err(|error| invalid(error.to_string()))?;
    Ok(socket)
}

/// Answers until the handle is dropped.
pub(super) fn serve(
    engine: &Arc<Engine>,
    options: &ServerOptions,
    socket: Socket,
) -> Result<AbortOnDropHandle<()>, Failure> {
    let rest = Arc::new(Rest::new(engine.clone(), None));
    let server = HttpServer::for_parent(engine.clone(), options.clone(), rest, socket)
        .map_err(|error| http::failure("the connection to the parent process", error))?;
    let serving = server.serve(std::future::pending(), std::future::pending());
    Ok(AbortOnDropHandle::new(tokio::spawn(serving)))
}

/// Closes the connection of a server that only passes calls on, so that the parent sends nothing over it.
pub(super) fn close(socket: Option<Socket>) {
    drop(socket);
}
