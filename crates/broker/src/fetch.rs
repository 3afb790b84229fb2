//! Fetching, with the machine's certificates, proxies and credentials, and with a bound on everything.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::{Certificate, Url, header};

use crate::machine::{Machine, host};

const CONNECT: Duration = Duration::from_secs(10);
/// The longest silence of a server in the middle of an answer.
const SILENCE: Duration = Duration::from_secs(20);
const REDIRECTS: usize = 5;

/// What an index understands of us: its JSON rather than its HTML.
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01";

/// Fetches for the broker.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    machine: Machine,
}

/// Why nothing came. The words name the host and never the whole address, which may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{host} has no such page")]
    Absent { host: String },
    #[error("{host} answered with status {status}")]
    Status { host: String, status: u16 },
    #[error("{host} could not be reached: {reason}")]
    Unreachable { host: String, reason: String },
    #[error("{host} sent more than {limit} bytes")]
    TooLarge { host: String, limit: u64 },
}

/// An answer that has begun.
pub(crate) struct Begun {
    pub(crate) is_json: bool,
    pub(crate) length: Option<u64>,
    /// Where it came from, after redirections.
    pub(crate) url: Url,
    pub(crate) body: BoxStream<'static, Result<Bytes, FetchError>>,
}

impl Begun {
    /// All that comes.
    pub(crate) async fn all(mut self) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        while let Some(part) = self.body.next().await {
            bytes.extend_from_slice(&part?);
        }
        Ok(bytes)
    }
}

impl Client {
    /// With these settings.
    ///
    /// # Errors
    /// A certificate or proxy cannot be used; in words.
    pub fn new(machine: Machine) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::limited(REDIRECTS));
        for path in &machine.certificates {
            // A file that is not there is what a half removed tool leaves; the system's certificates are used anyway.
            let Ok(text) = std::fs::read(path) else {
                tracing::debug!(path = %path.display(), "a file of certificates is not there");
                continue;
            };
            let found = Certificate::from_pem_bundle(&text)
                .map_err(|error| format!("{} holds no certificates: {error}", path.display()))?;
            builder = found
                .into_iter()
                .fold(builder, reqwest::ClientBuilder::add_root_certificate);
        }
        if let Some(proxy) = &machine.proxy {
            let proxy =
                reqwest::Proxy::all(proxy).map_err(|_| "the proxy of pip's settings is no address".to_owned())?;
            builder = builder.proxy(proxy);
        }
        let http = builder
            .build()
            .map_err(|error| format!("no HTTP client could be made: {}", without_address(error)))?;
        Ok(Self { http, machine })
    }

    /// The settings.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Begins to fetch. The body ends with an error when it has more than `limit` bytes.
    pub(crate) async fn begin(&self, url: &Url, limit: u64) -> Result<Begun, FetchError> {
        self.begin_as(url, limit, ACCEPT, None).await
    }

    /// The same for what is not an index of Python: what is understood, and a token.
    pub(crate) async fn begin_as(
        &self,
        url: &Url,
        limit: u64,
        accept: &str,
        token: Option<&str>,
    ) -> Result<Begun, FetchError> {
        let login = self.machine.login(url);
        let mut bare = url.clone();
        let _ = bare.set_username("");
        let _ = bare.set_password(None);
        let mut request = self.http.get(bare).header(header::ACCEPT, accept);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        } else if let Some((name, password)) = login {
            request = request.basic_auth(name, Some(password));
        }
        let host = host(url);
        let answer = request.send().await.map_err(|error| FetchError::Unreachable {
            host: host.clone(),
            reason: without_address(error),
        })?;
        match answer.status().as_u16() {
            200 => {}
            404 | 410 => return Err(FetchError::Absent { host }),
            status => return Err(FetchError::Status { host, status }),
        }
        let length = answer.content_length();
        if length.is_some_and(|length| length > limit) {
            return Err(FetchError::TooLarge { host, limit });
        }
        let kind = answer
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let is_json = kind.is_some_and(|kind| kind.contains("json"));
        let url = answer.url().clone();
        let mut left = limit;
        let body = answer.bytes_stream().map(move |part| {
            let part = part.map_err(|error| FetchError::Unreachable {
                host: host.clone(),
                reason: without_address(error),
            })?;
            let size = u64::try_from(part.len()).unwrap_or(u64::MAX);
            left = left.checked_sub(size).ok_or_else(|| FetchError::TooLarge {
                host: host.clone(),
                limit,
            })?;
            Ok(part)
        });
        Ok(Begun {
            is_json,
            length,
            url,
            body: body.boxed(),
        })
    }

    /// Fetches all of it.
    pub(crate) async fn whole(&self, url: &Url, limit: u64) -> Result<(Vec<u8>, bool, Url), FetchError> {
        let begun = self.begin(url, limit).await?;
        let (is_json, from) = (begun.is_json, begun.url.clone());
        Ok((begun.all().await?, is_json, from))
    }
}

/// An error with its causes and without the address.
fn without_address(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}
