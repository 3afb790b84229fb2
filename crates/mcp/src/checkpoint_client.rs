//! `sandcell diff`: the changed files of a sandbox of a running server.

use reqwest::Method;
use sandcell_sandbox::{Code, Failure};
use serde_json::Value;

use crate::rest_client::{RestClient, unreachable};

/// The checkpoints of the sandboxes of one server.
#[derive(Debug)]
pub struct Checkpoints(RestClient);

impl Checkpoints {
    /// Makes a client of a server: the address of its `/mcp`, or `unix:` and a path. `token` is a caller's.
    ///
    /// # Errors
    /// The address or the token is none.
    pub fn new(to: &str, token: Option<&str>) -> Result<Self, Failure> {
        RestClient::new(to, token).map(Self)
    }

    /// Returns the files of a sandbox that differ from those of a checkpoint, as the REST interface describes them.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn changes(&self, sandbox: &str, since: &str) -> Result<Value, Failure> {
        let path = format!("/v1/sandboxes/{sandbox}/changes");
        let request = self.0.request(Method::GET, &path).query(&[("since", since)]);
        let answer = self.0.send(request).await?;
        let text = answer.bytes().await.map_err(|error| unreachable(&error))?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("the server's answer cannot be read: {error}"),
                "use the sandcell of the server's version",
            )
        })
    }
}
