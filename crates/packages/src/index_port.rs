//! The index port: an installer's only network access. It is a port of the sandbox's loopback interface, and the
//! broker serves its connections.

use std::future::Future;

use sandcell_sandbox::{Connection, Sandbox, SandboxError};
use tokio::task::{AbortHandle, JoinSet};

/// An open port. Dropping it closes the port and its connections.
#[derive(Debug)]
pub(crate) struct IndexPort {
    /// The port number inside the sandbox.
    pub(crate) port: u16,
    task: AbortHandle,
}

impl Drop for IndexPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl IndexPort {
    /// Opens a port in a sandbox. Calls `serve` with each connection and the port number.
    pub(crate) async fn open<Served>(
        sandbox: &dyn Sandbox,
        serve: impl Fn(Box<dyn Connection>, u16) -> Served + Send + 'static,
    ) -> Result<Self, SandboxError>
    where
        Served: Future<Output = ()> + Send + 'static,
    {
        let mut forward = sandbox.forward(0).await?;
        let port = forward.port;
        let task = tokio::spawn(async move {
            // Connections end with the task that accepts them. The port bounds their number.
            let mut serving = JoinSet::new();
            while let Some(connection) = forward.accept().await {
                serving.spawn(serve(connection, port));
                while serving.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            port,
            task: task.abort_handle(),
        })
    }
}
