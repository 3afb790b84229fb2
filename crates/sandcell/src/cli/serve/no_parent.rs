//! `--parent-socket` where descriptors cannot be passed on.

use std::sync::Arc;

use sandcell_engine::Engine;
use sandcell_mcp::ServerOptions;
use sandcell_sandbox::Failure;

/// No connection to the parent process.
#[derive(Debug)]
pub(super) enum Socket {}

/// Refuses.
pub(super) fn adopt(_: i32) -> Result<Socket, Failure> {
    Err(Failure::invalid(
        "--parent-socket works with sandboxes of this machine's Linux only",
        "leave the flag out",
    ))
}

/// There is nothing to serve.
pub(super) fn serve(_: &Arc<Engine>, _: &ServerOptions, socket: Socket) -> Result<(), Failure> {
    match socket {}
}

/// There is nothing to close.
pub(super) fn close(_: Option<Socket>) {}
