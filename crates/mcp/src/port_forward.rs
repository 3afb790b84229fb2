//! `sandcell forward`: a local port whose connections lead to a port of a sandbox, through a running server.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, CONNECTION, UPGRADE};
use reqwest::{Response, StatusCode};
use sandcell_sandbox::{Code, Failure};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::http::PORT_PROTOCOL;
use crate::proxy::{ProxyError, ServerClient};

/// The maximum number of simultaneous connections, as in a sandbox.
const MAX_CONNECTIONS: usize = 64;

/// Forwards to a port of a sandbox of a running server.
#[derive(Debug, Clone)]
pub struct PortForward {
    client: Arc<ServerClient>,
    sandbox: String,
    port: u16,
}

impl PortForward {
    /// Prepares a forward to a server: the address of its `/mcp`, or `unix:` and a path. Checks that the sandbox exists.
    ///
    /// # Errors
    /// The address is not one, the server does not answer, or it has no such sandbox.
    pub async fn new(to: &str, token: Option<&str>, sandbox: &str, port: u16) -> Result<Self, Failure> {
        let client = ServerClient::new(to, token).map_err(|error| not_an_address(&error))?;
        let forward = Self {
            client: Arc::new(client),
            sandbox: sandbox.to_owned(),
            port,
        };
        let found = forward.get(&format!("/v1/sandboxes/{sandbox}"), false).await?;
        match found.status() {
            StatusCode::OK => Ok(forward),
            _ => Err(refusal(found).await),
        }
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
        let response = self.get(&path, true).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let mut upgraded = response.upgrade().await.map_err(|error| unreachable(&error))?;
        // Either end may break off.
        let _ended = copy_bidirectional(&mut stream, &mut upgraded).await;
        Ok(())
    }

    async fn get(&self, path: &str, upgrade: bool) -> Result<Response, Failure> {
        let ServerClient { url, http, token } = &*self.client;
        let mut url = url.clone();
        url.set_path(path);
        let mut request = http.get(url);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if upgrade {
            request = request.header(CONNECTION, "Upgrade").header(UPGRADE, PORT_PROTOCOL);
        }
        request.send().await.map_err(|error| unreachable(&error))
    }
}

/// Returns the failure that the server has answered with.
async fn refusal(response: Response) -> Failure {
    let status = response.status();
    let text = response.bytes().await.unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_else(|_| {
        Failure::new(
            Code::Internal,
            format!("the server answered with status {status}"),
            "check the address: it is the one that `sandcell serve --http` prints",
        )
    })
}

fn unreachable(error: &reqwest::Error) -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        format!("the server does not answer: {}", innermost(error)),
        "start it with `sandcell serve --http PORT`, and check the address",
    )
}

fn not_an_address(error: &ProxyError) -> Failure {
    Failure::invalid(
        error.to_string(),
        "give the address that the server printed, such as http://127.0.0.1:8123/mcp",
    )
}

/// Returns the innermost cause, which is the one that a person can do something about.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
