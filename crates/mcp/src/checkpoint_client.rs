//! `sandcell diff`, `commit`, `save` and `saved`: the changed files of a sandbox of a running server, and saved states.

use std::time::Duration;

use reqwest::Method;
use sandcell_sandbox::{Code, Failure};
use serde_json::Value;

use crate::permits::{PERMIT_HEADER, Permits};
use crate::rest_client::{RestClient, unreachable};

/// Longer than a server works on a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(11 * 60);

/// Longer than a server works on a state that it saves.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The checkpoints, saved states and changed files of the sandboxes of one server.
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

    /// Returns the files of a sandbox that differ from those of a checkpoint, and those of copy-on-write mounts that differ
    /// from the host's, as the REST interface describes them. Without a checkpoint: only those of mounts.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn changes(&self, sandbox: &str, since: Option<&str>) -> Result<Value, Failure> {
        let path = format!("/v1/sandboxes/{}/changes", name_in_path(sandbox)?);
        let request = self.0.request(Method::GET, &path);
        let request = match since {
            Some(since) => request.query(&[("since", since)]),
            None => request,
        };
        read(self.0.send(request).await?).await
    }

    /// Saves the state of a sandbox, or of a checkpoint of it, perhaps without its variables, as the REST interface describes it.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn save(
        &self,
        sandbox: &str,
        name: &str,
        checkpoint: Option<&str>,
        only_files: bool,
    ) -> Result<Value, Failure> {
        let body = serde_json::json!({"name": name, "checkpoint": checkpoint, "only_files": only_files}).to_string();
        let request = self
            .0
            .request(Method::POST, &format!("/v1/sandboxes/{}/save", name_in_path(sandbox)?));
        let request = request
            .timeout(SAVE_TIMEOUT)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body);
        read(self.0.send(request).await?).await
    }

    /// Returns the saved states of the caller.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn saved(&self) -> Result<Value, Failure> {
        read(self.0.send(self.0.request(Method::GET, "/v1/saved")).await?).await
    }

    /// Drops a saved state.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn drop_saved(&self, name: &str) -> Result<Value, Failure> {
        let request = self
            .0
            .request(Method::DELETE, &format!("/v1/saved/{}", name_in_path(name)?));
        read(self.0.send(request).await?).await
    }

    /// Applies changes in copy-on-write mounts to the host's folders. `body` is the request of the REST interface. Without
    /// `permits` it can only be a dry run.
    ///
    /// # Errors
    /// The server does not answer, or refuses. No permit can be made.
    pub async fn commit(&self, sandbox: &str, body: &Value, permits: Option<&Permits>) -> Result<Value, Failure> {
        let path = format!("/v1/sandboxes/{}/commit", name_in_path(sandbox)?);
        let body = body.to_string();
        let mut request = self.0.request(Method::POST, &path);
        if let Some(permits) = permits {
            let name = permits
                .issue(&path, body.as_bytes())
                .map_err(|error| no_permit(&error))?;
            request = request.header(PERMIT_HEADER, name);
        }
        let request = request
            .timeout(COMMIT_TIMEOUT)
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(body);
        read(self.0.send(request).await?).await
    }
}

/// Returns a name that leads to nothing else when it is a part of a path.
fn name_in_path(name: &str) -> Result<&str, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(Failure::invalid(
            format!(
                "'{}' is not the name of a sandbox or a saved state",
                name.escape_default()
            ),
            "use letters, digits, -, _ and .",
        ));
    }
    Ok(name)
}

async fn read(answer: reqwest::Response) -> Result<Value, Failure> {
    let text = answer.bytes().await.map_err(|error| unreachable(&error))?;
    serde_json::from_slice(&text).map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("the server's answer cannot be read: {error}"),
            "use the sandcell of the server's version",
        )
    })
}

fn no_permit(error: &std::io::Error) -> Failure {
    Failure::new(
        Code::DeniedByPolicy,
        format!("no permit can be made in the data folder of the server: {error}"),
        "run this command as the user of the server, with the server's settings (data_dir)",
    )
}
