//! The service's API: creates, inspects, keeps alive and kills sandboxes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Method, Url};
use sandcell_sandbox::{SandboxError, SandboxSpec, Secret};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::config::{Addresses, Debug, E2bConfig, Internet, is_host, is_id};
use super::error::{ServiceError, unavailable};

/// The deadline of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);
/// The deadline of the first request, which checks the key.
const GREETING_TIMEOUT: Duration = Duration::from_secs(8);
/// The number of retries when the service is busy.
const MAX_RETRIES: u32 = 3;
/// The longest wait before a retry, whatever the service asks for.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);
/// The maximum size of an answer in bytes.
const MAX_BODY_BYTES: usize = 4 << 20;
/// The sandbox of debug mode.
const DEBUG_ID: &str = "debug_sandbox_id";

/// The service.
pub(super) struct Service {
    pub(super) client: Client,
    pub(super) addresses: Addresses,
    key: Option<HeaderValue>,
    template: String,
    lifetime: Duration,
    debug: Debug,
    internet: Internet,
    /// The service supports only the older paths.
    older: AtomicBool,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

/// A created sandbox.
#[derive(Debug, Clone)]
pub(super) struct CreatedSandbox {
    pub(super) id: String,
    pub(super) version: Version,
    pub(super) domain: Option<String>,
    pub(super) access: Option<HeaderValue>,
    pub(super) traffic: Option<HeaderValue>,
}

/// The version of envd, which determines the supported features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u64, pub(super) u64, pub(super) u64);

impl Version {
    /// Parses `0.6.13`. Unreadable parts count as zero, so an unreadable version counts as old.
    fn parse(text: &str) -> Self {
        let mut numbers = text
            .trim_start_matches('v')
            .split(['.', '-', '+'])
            .map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next(), next())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    envd_version: String,
    domain: Option<String>,
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
}

/// The service's information about a sandbox.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Info {
    pub(super) cpu_count: u64,
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    pub(super) disk_size_mb: u64,
    pub(super) state: String,
}

/// The usage of a sandbox, in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metrics {
    #[serde(default)]
    pub(super) mem_used: u64,
    #[serde(default)]
    pub(super) disk_used: u64,
}

impl Service {
    pub(super) fn new(config: &E2bConfig) -> Result<Self, SandboxError> {
        let addresses = Addresses::of(config)?;
        let mut builder = Client::builder()
            .connect_timeout(Duration::from_secs(10))
            // A redirect would expose the key to its target.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")));
        if addresses.are_local() {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| {
            unavailable(
                ServiceError::from_client(error).to_string(),
                "check the host's certificates",
            )
        })?;
        let key = match (&config.key, config.debug) {
            (Some(key), _) => Some(header(key).ok_or_else(|| {
                unavailable(
                    "the API key has characters that no key has",
                    "set E2B_API_KEY to the key alone",
                )
            })?),
            (None, Debug::On) => None,
            (None, Debug::Off) => {
                return Err(unavailable(
                    "there is no API key",
                    "set E2B_API_KEY in the environment or in .env",
                ));
            }
        };
        Ok(Self {
            client,
            addresses,
            key,
            template: config.template.clone(),
            lifetime: config.lifetime,
            debug: config.debug,
            internet: config.internet,
            older: AtomicBool::new(false),
        })
    }

    pub(super) fn template(&self) -> &str {
        &self.template
    }

    pub(super) const fn lifetime(&self) -> Duration {
        self.lifetime
    }

    pub(super) fn is_debug(&self) -> bool {
        self.debug == Debug::On
    }

    /// Checks the key. In debug mode there is no service to ask.
    pub(super) async fn greet(&self) -> Result<(), ServiceError> {
        if self.is_debug() {
            return Ok(());
        }
        let newer = self.addresses.api(&["v2", "sandboxes"]);
        let asked = match self
            .once(&Method::GET, with(newer, "limit", "1"), None, None, GREETING_TIMEOUT)
            .await
        {
            Err((ServiceError::Status { status: 404, .. }, _)) => {
                self.older.store(true, Ordering::Relaxed);
                let older = self.addresses.api(&["sandboxes"]);
                self.once(&Method::GET, older, None, None, GREETING_TIMEOUT).await
            }
            other => other,
        };
        asked.map(drop).map_err(|(error, _)| error)
    }

    /// Creates a sandbox.
    pub(super) async fn create(&self, spec: &SandboxSpec) -> Result<CreatedSandbox, ServiceError> {
        if self.is_debug() {
            return Ok(CreatedSandbox {
                id: DEBUG_ID.to_owned(),
                version: Version(99, 99, 99),
                domain: None,
                access: None,
                traffic: None,
            });
        }
        let mut body = json!({
            "templateID": self.template,
            "timeout": self.lifetime.as_secs(),
            "metadata": {"madeBy": "sandcell"},
            "allow_internet_access": self.internet == Internet::Open,
        });
        if let (false, Some(object)) = (spec.env.is_empty(), body.as_object_mut()) {
            object.insert("envVars".to_owned(), json!(spec.env));
        }
        let once = idempotency()?;
        let answer = self.versioned(&[], Some(&body), Some(&once)).await?;
        let created: Created = read(&answer)?;
        let domain = created.domain.filter(|domain| !domain.is_empty());
        if !is_id(&created.sandbox_id) || domain.as_deref().is_some_and(|domain| !is_host(domain)) {
            return Err(ServiceError::Garbled(
                "the service returned an invalid id or domain".to_owned(),
            ));
        }
        let token = |text: Option<String>| text.filter(|text| !text.is_empty()).map(Secret::new);
        let token = |text| token(text).map(|token| header(&token).ok_or(())).transpose();
        let garbled = |()| ServiceError::Garbled("the service returned an invalid token".to_owned());
        Ok(CreatedSandbox {
            id: created.sandbox_id,
            version: Version::parse(&created.envd_version),
            domain,
            access: token(created.envd_access_token).map_err(garbled)?,
            traffic: token(created.traffic_access_token).map_err(garbled)?,
        })
    }

    /// Returns the service's information about a sandbox; [`ServiceError::Gone`] if the service does not know it.
    pub(super) async fn info(&self, id: &str) -> Result<Info, ServiceError> {
        let url = self.addresses.api(&["sandboxes", id]);
        read(&self.gone_if_unknown(Method::GET, url, None).await?)
    }

    /// Wakes a paused sandbox, and renews its lifetime.
    pub(super) async fn connect(&self, id: &str) -> Result<(), ServiceError> {
        let body = json!({"timeout": self.lifetime.as_secs()});
        self.versioned(&[id, "connect"], Some(&body), None).await.map(drop)
    }

    /// Renews a sandbox's lifetime from now on.
    pub(super) async fn keep_alive(&self, id: &str) -> Result<(), ServiceError> {
        if self.is_debug() {
            return Ok(());
        }
        let url = self.addresses.api(&["sandboxes", id, "timeout"]);
        let body = json!({"timeout": self.lifetime.as_secs()});
        self.gone_if_unknown(Method::POST, url, Some(&body)).await.map(drop)
    }

    /// Returns a sandbox's current usage, if it is known.
    pub(super) async fn metrics(&self, id: &str) -> Result<Option<Metrics>, ServiceError> {
        if self.is_debug() {
            return Ok(None);
        }
        let url = self.addresses.api(&["sandboxes", id, "metrics"]);
        let answer = self.gone_if_unknown(Method::GET, url, None).await?;
        let all: Vec<Metrics> = read(&answer)?;
        Ok(all.last().copied())
    }

    /// Kills a sandbox. One that does not exist counts as killed.
    pub(super) async fn kill(&self, id: &str) -> Result<(), ServiceError> {
        if self.is_debug() {
            return Ok(());
        }
        let url = self.addresses.api(&["sandboxes", id]);
        match self.gone_if_unknown(Method::DELETE, url, None).await {
            Ok(_) | Err(ServiceError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn gone_if_unknown(&self, method: Method, url: Url, body: Option<&Value>) -> Result<Bytes, ServiceError> {
        match self.again(&method, &url, body, None).await {
            Err(ServiceError::Status { status: 404, .. }) => Err(ServiceError::Gone),
            other => other,
        }
    }

    /// Sends a POST. Older services know its path without the version.
    async fn versioned(&self, rest: &[&str], body: Option<&Value>, once: Option<&str>) -> Result<Bytes, ServiceError> {
        let path = |start: &[&'static str]| {
            let segments: Vec<&str> = start.iter().copied().chain(rest.iter().copied()).collect();
            self.addresses.api(&segments)
        };
        if !self.older.load(Ordering::Relaxed) {
            match self.again(&Method::POST, &path(&["v2", "sandboxes"]), body, once).await {
                Err(ServiceError::Status { status: 404, .. }) => {}
                other => return other,
            }
        }
        self.again(&Method::POST, &path(&["sandboxes"]), body, once).await
    }

    /// Sends a request, and retries while the service is busy.
    async fn again(
        &self,
        method: &Method,
        url: &Url,
        body: Option<&Value>,
        once: Option<&str>,
    ) -> Result<Bytes, ServiceError> {
        let mut pause = Duration::from_millis(300);
        for _ in 0..MAX_RETRIES {
            match self.once(method, url.clone(), body, once, ANSWER_TIMEOUT).await {
                Err((error, Retry::After(wait))) => {
                    tracing::debug!(trouble = %error, "the request is sent again");
                    sleep(wait.unwrap_or(pause).min(MAX_RETRY_PAUSE)).await;
                    pause = pause.saturating_mul(2);
                }
                Err((error, Retry::Never)) => return Err(error),
                Ok(body) => return Ok(body),
            }
        }
        let last = self.once(method, url.clone(), body, once, ANSWER_TIMEOUT).await;
        last.map_err(|(error, _)| error)
    }

    async fn once(
        &self,
        method: &Method,
        url: Url,
        body: Option<&Value>,
        once: Option<&str>,
        patience: Duration,
    ) -> Result<Bytes, (ServiceError, Retry)> {
        let mut request = self.client.request(method.clone(), url);
        if let Some(key) = &self.key {
            request = request.header("X-API-Key", key.clone());
        }
        if let Some(once) = once {
            request = request.header("Idempotency-Key", once);
        }
        if let Some(body) = body {
            request = request
                .header("Content-Type", "application/json")
                .body(body.to_string());
        }
        let answered = async {
            let response = match request.send().await {
                Ok(response) => response,
                // The request was not sent, so a retry cannot repeat its effect.
                Err(error) if error.is_connect() => return Err((ServiceError::from_client(error), Retry::After(None))),
                Err(error) => return Err((ServiceError::from_client(error), Retry::Never)),
            };
            let status = response.status().as_u16();
            let retry = Retry::of(status, response.headers());
            let body = limited(response, MAX_BODY_BYTES)
                .await
                .map_err(|error| (error, Retry::Never))?;
            if (200..300).contains(&status) {
                Ok(body)
            } else {
                Err((ServiceError::of(status, &body), retry))
            }
        };
        timeout(patience, answered)
            .await
            .unwrap_or_else(|_| Err((ServiceError::Slow(patience), Retry::Never)))
    }
}

/// The permission to send a request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Never,
    /// Retry after this time, if the service named one.
    After(Option<Duration>),
}

impl Retry {
    fn of(status: u16, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let wait = text("Retry-After")
            .and_then(|text| text.trim().parse().ok())
            .map(Duration::from_secs);
        match (text("Should-Retry"), status) {
            (Some("false"), _) => Self::Never,
            (Some("true"), _) | (_, 429 | 502 | 503 | 504) => Self::After(wait),
            _ => Self::Never,
        }
    }
}

/// Reads the body of an answer, up to `most` bytes.
pub(super) async fn limited(mut response: reqwest::Response, most: usize) -> Result<Bytes, ServiceError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(ServiceError::from_client)? {
        if body.len().saturating_add(piece.len()) > most {
            return Err(ServiceError::Garbled(format!("the answer is longer than {most} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.into())
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, ServiceError> {
    // The parser's message may quote the answer, which contains tokens.
    serde_json::from_slice(body).map_err(|error| {
        ServiceError::Garbled(format!(
            "the service's answer has an unexpected format (line {}, column {})",
            error.line(),
            error.column()
        ))
    })
}

fn with(mut url: Url, name: &str, value: &str) -> Url {
    url.query_pairs_mut().append_pair(name, value);
    url
}

/// Returns a header value that is never logged.
fn header(secret: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(secret.expose()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns a key by which the service recognises a repeated request.
fn idempotency() -> Result<String, ServiceError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| ServiceError::Garbled(format!("the system returned no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(Version::parse("0.6.13") > Version::parse("0.6.2"));
        assert_eq!(Version::parse("v0.5.7-rc1"), Version(0, 5, 7));
        assert_eq!(Version::parse("nonsense"), Version(0, 0, 0));
    }

    #[test]
    fn only_a_busy_service_is_retried() {
        let headers = |pairs: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(*name, HeaderValue::from_str(value).unwrap());
            }
            map
        };
        for (status, pairs, expected) in [
            (
                429,
                &[("Retry-After", "7")][..],
                Retry::After(Some(Duration::from_secs(7))),
            ),
            (503, &[], Retry::After(None)),
            (500, &[], Retry::Never),
            (500, &[("Should-Retry", "true")], Retry::After(None)),
            (503, &[("Should-Retry", "false")], Retry::Never),
            (401, &[], Retry::Never),
        ] {
            assert_eq!(Retry::of(status, &headers(pairs)), expected, "{status}");
        }
    }
}
