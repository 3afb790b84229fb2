//! An HTTP client with the machine's certificates, proxies and credentials. Every response, wait and redirect chain
//! has a limit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::{Certificate, Url, header};

use crate::link::{Link, Page, Refusal, Route, read_origins};
use crate::machine::{Machine, host};
use crate::resolve::{self, PinnedNames, PublicNames, Resolve, ResolveError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum pause within a response.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 5;

/// The `Accept` header: JSON is preferred over HTML.
const ACCEPT_INDEX: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01";

/// The HTTP client of the broker.
#[derive(Debug)]
pub struct Client {
    /// The client for indexes and named origins. It uses the machine's proxies.
    named: reqwest::Client,
    /// The client for links of an index. It connects directly to checked addresses.
    public: reqwest::Client,
    public_names: Arc<PublicNames>,
    /// The origins to which the operator lets indexes lead.
    origins: Vec<Url>,
    machine: Machine,
}

/// The reason of a failed fetch. The text names the host and never the whole address, which may contain a secret.
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
    #[error("{host} redirects more than {MAX_REDIRECTS} times")]
    Redirects { host: String },
    /// An index leads to an address that may not be requested.
    #[error("{index} leads to {origin}, which {reason}")]
    Refused {
        index: String,
        origin: String,
        reason: Refusal,
    },
}

/// A response with a body to read.
pub(crate) struct BoundedResponse {
    pub(crate) is_json: bool,
    pub(crate) length: Option<u64>,
    /// The page that sent the body, after redirects.
    pub(crate) page: Arc<Page>,
    pub(crate) body: BoxStream<'static, Result<Bytes, FetchError>>,
}

impl BoundedResponse {
    /// Reads the whole body.
    pub(crate) async fn all(mut self) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        while let Some(part) = self.body.next().await {
            bytes.extend_from_slice(&part?);
        }
        Ok(bytes)
    }
}

/// The parts of a request other than its address.
pub(crate) struct RequestParts<'a> {
    /// The content types that the caller can parse.
    pub(crate) accept: &'a str,
    /// The token for an address, if there is one.
    pub(crate) token: &'a (dyn Fn(&Url) -> Option<String> + Sync),
}

impl Client {
    /// Creates a client with these settings. Indexes may lead to `origins` (such as `https://files.example`) at any
    /// address.
    ///
    /// # Errors
    /// A description of the certificate, proxy or origin that cannot be used.
    pub fn new(machine: Machine, origins: &[String]) -> Result<Self, String> {
        Self::resolving(machine, origins, resolve::system())
    }

    fn resolving(machine: Machine, origins: &[String], resolve: Resolve) -> Result<Self, String> {
        let certificates = certificates(&machine)?;
        let builder = || {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none());
            certificates
                .iter()
                .cloned()
                .fold(builder, reqwest::ClientBuilder::add_root_certificate)
        };
        let mut named = builder().dns_resolver(Arc::new(PinnedNames::default()));
        if let Some(proxy) = &machine.proxy {
            let proxy =
                reqwest::Proxy::all(proxy).map_err(|_| "the proxy of pip's settings is no address".to_owned())?;
            named = named.proxy(proxy);
        }
        let public_names = Arc::new(PublicNames::new(resolve));
        // A proxy would resolve names itself, and could reach hosts in its own network.
        let public = builder().no_proxy().dns_resolver(Arc::clone(&public_names));
        let unusable = |error| format!("no HTTP client could be made: {}", without_address(error));
        Ok(Self {
            named: named.build().map_err(unusable)?,
            public: public.build().map_err(unusable)?,
            public_names,
            origins: read_origins(origins)?,
            machine,
        })
    }

    /// Returns the settings.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Starts a fetch. The body ends with an error above `limit` bytes.
    pub(crate) async fn begin(&self, link: &Link, limit: u64) -> Result<BoundedResponse, FetchError> {
        let parts = RequestParts {
            accept: ACCEPT_INDEX,
            token: &|_| None,
        };
        self.begin_with(link, limit, &parts).await
    }

    /// Starts a fetch with other headers than those for a Python index. Each redirect is checked like a link of a
    /// page.
    pub(crate) async fn begin_with(
        &self,
        link: &Link,
        limit: u64,
        parts: &RequestParts<'_>,
    ) -> Result<BoundedResponse, FetchError> {
        let mut link = link.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send_request(&link, parts).await?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return bounded(answer, &link, limit);
            }
            let to = answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| link.url().join(to).ok());
            let to = to.ok_or_else(|| FetchError::Unreachable {
                host: host(link.url()),
                reason: "it redirects to no address".to_owned(),
            })?;
            link = link.followed().link(to);
        }
        Err(FetchError::Redirects {
            host: link.index_host(),
        })
    }

    /// Sends one request, if the link may be followed.
    async fn send_request(&self, link: &Link, parts: &RequestParts<'_>) -> Result<reqwest::Response, FetchError> {
        let refused = |reason| FetchError::Refused {
            index: link.index_host(),
            origin: link.origin(),
            reason,
        };
        let unreachable = |reason: String| FetchError::Unreachable {
            host: host(link.url()),
            reason,
        };
        let mut bare = link.url().clone();
        let _ = bare.set_username("");
        let _ = bare.set_password(None);
        let request = match link.route(&self.origins).map_err(refused)? {
            Route::Named => {
                let request = self.named.get(bare);
                match ((parts.token)(link.url()), self.machine.login(link.url())) {
                    (Some(token), _) => request.bearer_auth(token),
                    (None, Some((name, password))) => request.basic_auth(name, Some(password)),
                    (None, None) => request,
                }
            }
            Route::Public(target) => {
                let checked = self.public_names.check(&target.host, target.port).await;
                checked.map_err(|error| match error {
                    ResolveError::Refused(_) => refused(Refusal::Private),
                    ResolveError::Unknown(why) => unreachable(why),
                })?;
                self.public.get(bare)
            }
        };
        let answer = request.header(header::ACCEPT, parts.accept).send().await;
        answer.map_err(|error| unreachable(without_address(error)))
    }

    /// Fetches a whole page.
    pub(crate) async fn fetch_page(&self, link: &Link, limit: u64) -> Result<(Vec<u8>, bool, Arc<Page>), FetchError> {
        let bounded = self.begin(link, limit).await?;
        let (is_json, page) = (bounded.is_json, Arc::clone(&bounded.page));
        Ok((bounded.all().await?, is_json, page))
    }
}

/// Returns the certificates of the machine's settings.
fn certificates(machine: &Machine) -> Result<Vec<Certificate>, String> {
    let mut all = Vec::new();
    for path in &machine.certificates {
        // A partly removed tool can leave the setting without its file. The system's certificates are used in any
        // case.
        let Ok(text) = std::fs::read(path) else {
            tracing::debug!(path = %path.display(), "a file of certificates is not there");
            continue;
        };
        let found = Certificate::from_pem_bundle(&text)
            .map_err(|error| format!("{} holds no certificates: {error}", path.display()))?;
        all.extend(found);
    }
    Ok(all)
}

/// Checks the status of a response, and limits its body.
fn bounded(answer: reqwest::Response, link: &Link, limit: u64) -> Result<BoundedResponse, FetchError> {
    let host = host(link.url());
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
    Ok(BoundedResponse {
        is_json,
        length,
        page: link.followed(),
        body: body.boxed(),
    })
}

/// Returns the text of an error with its causes and without the address.
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

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
