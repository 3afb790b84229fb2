//! A client of a running server's REST interface, for commands of the same program.

use hyper::header::AUTHORIZATION;
use reqwest::{Method, RequestBuilder, Response};
use sandcell_sandbox::{Code, Failure, root_cause};

use crate::proxy::{ProxyError, ServerClient};

/// A client of one server.
#[derive(Debug)]
pub(crate) struct RestClient(ServerClient);

impl RestClient {
    /// Makes a client of a server: the address of its `/mcp`, or `unix:` and a path.
    pub(crate) fn new(to: &str, token: Option<&str>) -> Result<Self, Failure> {
        ServerClient::new(to, token)
            .map(Self)
            .map_err(|error| not_an_address(&error))
    }

    /// Begins a request for this path.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let ServerClient { url, http, token } = &self.0;
        let mut url = url.clone();
        url.set_path(path);
        let request = http.request(method, url);
        match token {
            Some(token) => request.header(AUTHORIZATION, token.clone()),
            None => request,
        }
    }

    /// Sends a request. An answer with an error status is a failure.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| unreachable(&error))?;
        match response.status() {
            status if status.is_client_error() || status.is_server_error() => Err(refusal(response).await),
            _ => Ok(response),
        }
    }
}

/// Returns the failure that the server has answered with.
pub(crate) async fn refusal(response: Response) -> Failure {
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

pub(crate) fn unreachable(error: &reqwest::Error) -> Failure {
    Failure::new(
        Code::BackendUnavailable,
        format!("the server does not answer: {}", root_cause(error)),
        "start it with `sandcell serve --http PORT`, and check the address",
    )
}

fn not_an_address(error: &ProxyError) -> Failure {
    Failure::invalid(
        error.to_string(),
        "give the address that the server printed, such as http://127.0.0.1:8123/mcp",
    )
}
