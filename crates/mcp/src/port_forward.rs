//! `sandcell forward`: a local port whose connections lead to a port of a sandbox, through a running server.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode};
use sandcell_sandbox::Failure;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::http::PORT_PROTOCOL;
use crate::rest_client::{RestClient, refusal, unreachable};

/// The maximum number of simultaneous connections, as in a sandbox.
const MAX_CONNECTIONS: usize = 64;

/// Forwards to a port of a sandbox of a running server.
#[derive(Debug, Clone)]
pub struct PortForward {
    client: Arc<RestClient>,
    sandbox: String,
    port: u16,
}

impl PortForward {
    /// Prepares a forward to a server: the address of its `/mcp`, or `unix:` and a path. Checks that the sandbox exists.
    ///
    /// # Errors
    /// The address is not one, the server does not answer, or it has no such sandbox.
    pub async fn new(to: &str, token: Option<&str>, sandbox: &str, port: u16) -> Result<Self, Failure> {
        let forward = Self {
            client: Arc::new(RestClient::new(to, token)?),
            sandbox: sandbox.to_owned(),
            port,
        };
        let found = forward.client.request(Method::GET, &format!("/v1/sandboxes/{sandbox}"));
        forward.client.send(found).await?;
        Ok(forward)
    }

    /// Serves the connections of a local port until the future is dropped. `refused` learns of each connection that
    /// could not be forwarded.
    pub async fn serve(self, listener: TcpListener, refused: impl Fn(&SocketAddr, &Failure) + Send + Sync + 'static) {
        let (places, refused) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Arc::new(refused));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(_) => {
                    // Descriptors may be short for a moment. Without the pause this loop would spin.
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                    continue;
                }
            };
            let (forward, refused) = (self.clone(), Arc::clone(&refused));
            tokio::spawn(async move {
                if let Err(failure) = forward.connect(stream).await {
                    refused(&from, &failure);
                }
                drop(place);
            });
        }
    }

    async fn connect(&self, mut stream: TcpStream) -> Result<(), Failure> {
        let path = format!("/v1/sandboxes/{}/ports/{}", self.sandbox, self.port);
        let request = self.client.request(Method::GET, &path);
        let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, PORT_PROTOCOL);
        let response = self.client.send(request).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let mut upgraded = response.upgrade().await.map_err(|error| unreachable(&error))?;
        // Either end may break off.
        let _ended = copy_bidirectional(&mut stream, &mut upgraded).await;
        Ok(())
    }
}
