//! `sandcell tools approve`: the questions about tool calls that wait at a running server, and the answers to them.

use reqwest::Method;
use sandcell_sandbox::{Code, Failure};
use serde::Deserialize;
use serde_json::json;

use crate::rest_client::{RestClient, unreachable};

/// A client for the questions of one server.
#[derive(Debug)]
pub struct Approvals(RestClient);

/// A question about a tool call, as the server lists it.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "docs/guides/rest.md describes the fields")]
pub struct Approval {
    pub execution_id: String,
    pub number: u32,
    pub tool: String,
    pub arguments: String,
    pub read_only: bool,
}

#[derive(Deserialize)]
struct Listed {
    approvals: Vec<Approval>,
}

impl Approvals {
    /// Makes a client of a server: the address of its `/mcp`, or `unix:` and a path.
    ///
    /// # Errors
    /// The address is not one.
    pub fn new(to: &str, token: Option<&str>) -> Result<Self, Failure> {
        RestClient::new(to, token).map(Self)
    }

    /// Returns the questions that wait.
    ///
    /// # Errors
    /// The server does not answer, or refuses the request.
    pub async fn list(&self) -> Result<Vec<Approval>, Failure> {
        let request = self.0.request(Method::GET, "/v1/approvals");
        let response = self.0.send(request).await?;
        let text = response.bytes().await.map_err(|error| unreachable(&error))?;
        let listed: Listed = serde_json::from_slice(&text).map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("the server's list cannot be read: {error}"),
                "use the sandcell of the server's version",
            )
        })?;
        Ok(listed.approvals)
    }

    /// Answers a question: `once`, `run` or `deny`, or with a number of calls.
    ///
    /// # Errors
    /// The server does not answer, or the question no longer waits.
    pub async fn answer(
        &self,
        execution: &str,
        number: u32,
        decision: &str,
        calls: Option<u32>,
    ) -> Result<(), Failure> {
        let body = json!({"decision": decision, "calls": calls}).to_string();
        let request = self
            .0
            .request(Method::POST, &format!("/v1/approvals/{execution}/{number}"));
        let request = request
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body);
        self.0.send(request).await.map(drop)
    }
}
