//! An installer's only way out: a port of its loopback interface whose connections are served by the broker.

use std::future::Future;

use sandcell_sandbox::{Connection, Sandbox, SandboxError};
use tokio::task::{AbortHandle, JoinSet};

/// An open port. Dropping it closes the port and breaks its connections off.
#[derive(Debug)]
pub(crate) struct Outlet {
    /// The port inside.
    pub(crate) port: u16,
    task: AbortHandle,
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Outlet {
    /// Opens one in a sandbox; `serve` is given each connection and the port.
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
            // Connections end with the task that takes them; the port has a bound for them.
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
