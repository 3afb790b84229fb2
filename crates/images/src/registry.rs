//! A client for registries: it fetches manifests by tag or digest and blobs by digest, and logs in where the registry
//! requires it.
//!
//! A registry is as untrusted as its images. Every response has a maximum size and a digest. A registry can redirect
//! to other hosts (for blobs) and names a realm (for tokens). Requests to these use TLS and public addresses only,
//! because they could otherwise reach services of this machine or its network. Credentials are sent to the registry
//! and its realm, never to the host of a blob.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response, StatusCode, Url, header};
use sandcell_broker::is_public;
use sandcell_sandbox::Secret;
use serde::Deserialize;

use crate::auth::{Challenge, Login, challenge, login};
use crate::error::ImageError;
use crate::manifest::{ACCEPT_MANIFEST, Digest};
use crate::name::{DEFAULT_REGISTRY, Reference};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum pause within a response.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 5;
/// The maximum size of a token response in bytes.
const TOKEN_MAX: u64 = 256 << 10;

/// A stream of bytes, which can end with an error.
pub(crate) type Stream = BoxStream<'static, Result<Bytes, ImageError>>;

/// The operator's settings for registries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registries {
    /// Registries without TLS, as `host` or `host:port`.
    pub(crate) insecure: Vec<String>,
    /// Mirrors, which are tried before their registry: (registry, mirror).
    pub(crate) mirrors: Vec<(String, String)>,
    /// Files with credentials.
    pub(crate) logins: Vec<PathBuf>,
}

/// A client for one repository of one registry.
pub(crate) struct Registry {
    /// The registry's name in image names.
    name: String,
    base: Url,
    repository: String,
    /// Files with credentials, which are read when the registry sends a challenge, as the large ones do for public images, too.
    logins: Vec<PathBuf>,
    login: tokio::sync::OnceCell<Option<Login>>,
    token: tokio::sync::Mutex<Option<Secret>>,
    /// The HTTP client for the registry itself. The operator allowed its address.
    trusted: Client,
    /// The HTTP client for redirects and realms.
    public_only: Client,
}

impl Registries {
    /// Returns the registries to try for this image: first the mirrors, then the registry itself.
    pub(crate) fn of(&self, reference: &Reference) -> Result<Vec<Registry>, ImageError> {
        let mirrors = self.mirrors.iter().filter(|(of, _)| *of == reference.registry);
        let names = mirrors.map(|(_, mirror)| mirror).chain([&reference.registry]);
        names.map(|name| self.open(name, &reference.repository)).collect()
    }

    fn open(&self, name: &str, repository: &str) -> Result<Registry, ImageError> {
        let unreachable = |reason: String| ImageError::Unreachable {
            registry: name.to_owned(),
            reason,
        };
        let host = if name == DEFAULT_REGISTRY {
            "registry-1.docker.io"
        } else {
            name
        };
        let plain = is_loopback(host) || self.insecure.iter().any(|one| one == name);
        let scheme = if plain { "http" } else { "https" };
        let base =
            Url::parse(&format!("{scheme}://{host}/")).map_err(|_| unreachable("it is no address".to_owned()))?;
        let builder = || {
            Client::builder()
                .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
        };
        let trusted = if is_loopback(host) {
            builder().no_proxy()
        } else {
            builder()
        };
        let public_only = builder().dns_resolver(Arc::new(PublicOnly));
        Ok(Registry {
            name: name.to_owned(),
            base,
            repository: repository.to_owned(),
            logins: self.logins.clone(),
            login: tokio::sync::OnceCell::new(),
            token: tokio::sync::Mutex::default(),
            trusted: trusted.build().map_err(|error| unreachable(error_text(error)))?,
            public_only: public_only.build().map_err(|error| unreachable(error_text(error)))?,
        })
    }
}

/// Returns true if the name is a loopback name or address. Resolves nothing.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A resolver that returns only public addresses.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err("it has no address on the public internet".into());
            }
            let addresses: Addrs = Box::new(public.into_iter());
            Ok(addresses)
        })
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Fetches a manifest or index, and returns it with its digest. The digest is checked if `known` is given.
    pub(crate) async fn manifest(
        &self,
        which: &str,
        known: Option<&Digest>,
        max_bytes: u64,
    ) -> Result<(Vec<u8>, Digest), ImageError> {
        let answer = self.get(&format!("manifests/{which}"), Some(ACCEPT_MANIFEST)).await?;
        let bytes = collect_stream(self.body(answer, max_bytes, "its manifest")?).await?;
        let digest = Digest::of(&bytes);
        if known.is_some_and(|known| *known != digest) {
            return Err(ImageError::Digest {
                what: "its manifest".to_owned(),
            });
        }
        Ok((bytes, digest))
    }

    /// Streams a blob. The reader must check its digest and size.
    pub(crate) async fn blob(&self, digest: &Digest, max_bytes: u64) -> Result<Stream, ImageError> {
        let answer = self.get(&format!("blobs/{digest}"), None).await?;
        self.body(answer, max_bytes, "a layer")
    }

    fn unreachable(&self, reason: impl Into<String>) -> ImageError {
        ImageError::Unreachable {
            registry: self.name.clone(),
            reason: reason.into(),
        }
    }

    async fn get(&self, path: &str, accept: Option<&str>) -> Result<Response, ImageError> {
        let url = self
            .base
            .join(&format!("v2/{}/{path}", self.repository))
            .map_err(|_| self.unreachable("the name is not a valid address"))?;
        let mut answer = self.follow(url.clone(), accept).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            let wants = answer.headers().get_all(header::WWW_AUTHENTICATE);
            let wants = wants.iter().filter_map(|one| one.to_str().ok()).find_map(challenge);
            self.log_in(wants.as_ref()).await?;
            answer = self.follow(url, accept).await?;
        }
        let registry = self.name.clone();
        match answer.status().as_u16() {
            200 => Ok(answer),
            401 | 403 => Err(ImageError::Unauthorized { registry }),
            404 | 410 => Err(ImageError::Absent { registry }),
            429 => Err(ImageError::TooMany { registry }),
            status => Err(ImageError::Status { registry, status }),
        }
    }

    /// Sends a request and follows redirects.
    async fn follow(&self, mut url: Url, accept: Option<&str>) -> Result<Response, ImageError> {
        for _ in 0..=MAX_REDIRECTS {
            let home = same_place(&url, &self.base);
            let client = if home { &self.trusted } else { &self.public_only };
            let mut request = client.get(url.clone());
            if let Some(accept) = accept {
                request = request.header(header::ACCEPT, accept);
            }
            if home {
                let token = self.token.lock().await.clone();
                request = match (token, self.login.get().and_then(Option::as_ref)) {
                    (Some(token), _) if !token.expose().is_empty() => request.bearer_auth(token.expose()),
                    // An empty token means that the registry accepts the credentials directly.
                    (Some(_), Some(login)) => request.basic_auth(&login.name, Some(login.password.expose())),
                    _ => request,
                };
            }
            let answer = request
                .send()
                .await
                .map_err(|error| self.unreachable(error_text(error)))?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let to = answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| url.join(to).ok());
            url = to.ok_or_else(|| self.unreachable("it leads to no address"))?;
            self.check_redirect(&url)?;
        }
        Err(self.unreachable("it redirects too many times"))
    }

    /// Checks that a URL from the registry may be requested.
    fn check_redirect(&self, url: &Url) -> Result<(), ImageError> {
        let refused = |reason| {
            let to: String = url.host_str().unwrap_or_default().chars().take(100).collect();
            Err(ImageError::Redirect {
                registry: self.name.clone(),
                to,
                reason,
            })
        };
        if same_place(url, &self.base) {
            return Ok(());
        }
        if url.scheme() != "https" {
            return refused("it is not encrypted");
        }
        let host = url.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) if !is_public(address) => refused("it is not on the public internet"),
            _ => Ok(()),
        }
    }

    async fn log_in(&self, wants: Option<&Challenge>) -> Result<(), ImageError> {
        let unauthorized = || ImageError::Unauthorized {
            registry: self.name.clone(),
        };
        let token = match wants {
            None => return Err(unauthorized()),
            Some(Challenge::Basic) => {
                self.login().await.ok_or_else(unauthorized)?;
                Secret::new(String::new())
            }
            Some(Challenge::Bearer { realm, service }) => self.token(realm, service.as_deref()).await?,
        };
        *self.token.lock().await = Some(token);
        Ok(())
    }

    /// Returns the user's login for this registry.
    async fn login(&self) -> Option<&Login> {
        let read = || login(&self.logins, &self.name);
        self.login.get_or_init(read).await.as_ref()
    }

    /// Fetches a token for reading this repository.
    async fn token(&self, realm: &str, service: Option<&str>) -> Result<Secret, ImageError> {
        let unauthorized = || ImageError::Unauthorized {
            registry: self.name.clone(),
        };
        let mut url = Url::parse(realm).map_err(|_| self.unreachable("its token realm is not a valid address"))?;
        self.check_redirect(&url)?;
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut()
            .append_pair("scope", &format!("repository:{}:pull", self.repository));
        let client = if same_place(&url, &self.base) {
            &self.trusted
        } else {
            &self.public_only
        };
        let mut request = client.get(url);
        if let Some(login) = self.login().await {
            request = request.basic_auth(&login.name, Some(login.password.expose()));
        }
        let answer = request
            .send()
            .await
            .map_err(|error| self.unreachable(error_text(error)))?;
        if !answer.status().is_success() {
            return Err(unauthorized());
        }
        let bytes = collect_stream(self.body(answer, TOKEN_MAX, "a token")?).await?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| self.unreachable("its token cannot be read"))?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        token.map(Secret::new).ok_or_else(unauthorized)
    }

    /// Returns the body of a response as a stream with a maximum size.
    fn body(&self, answer: Response, max_bytes: u64, what: &'static str) -> Result<Stream, ImageError> {
        let too_large = move || ImageError::TooLarge {
            what,
            limit: max_bytes,
            unit: "bytes",
        };
        if answer.content_length().is_some_and(|length| length > max_bytes) {
            return Err(too_large());
        }
        let (mut left, registry) = (max_bytes, self.name.clone());
        let parts = answer.bytes_stream().map(move |part| {
            let part = part.map_err(|error| ImageError::Unreachable {
                registry: registry.clone(),
                reason: error_text(error),
            })?;
            let size = u64::try_from(part.len()).unwrap_or(u64::MAX);
            left = left.checked_sub(size).ok_or_else(too_large)?;
            Ok(part)
        });
        Ok(parts.boxed())
    }
}

fn same_place(one: &Url, other: &Url) -> bool {
    let of = |url: &Url| {
        (
            url.scheme().to_owned(),
            url.host_str().map(str::to_owned),
            url.port_or_known_default(),
        )
    };
    of(one) == of(other)
}

/// Collects a stream.
pub(crate) async fn collect_stream(mut stream: Stream) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    while let Some(part) = stream.next().await {
        bytes.extend_from_slice(&part?);
    }
    Ok(bytes)
}

/// Returns the text of an error with its last cause, without the URL, which may contain a secret.
fn error_text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_only_unless_the_operator_allows_it() {
        let registries = Registries {
            insecure: vec!["lab:5000".to_owned()],
            mirrors: vec![("docker.io".to_owned(), "mirror.example".to_owned())],
            logins: vec![],
        };
        let bases = |name: &str| -> Vec<String> {
            let found = registries.of(&Reference::parse(name).unwrap()).unwrap();
            found.iter().map(|one| one.base.to_string()).collect()
        };
        assert_eq!(bases("127.0.0.1:5000/a"), ["http://127.0.0.1:5000/"]);
        assert_eq!(bases("[::1]:5000/a"), ["http://[::1]:5000/"]);
        assert_eq!(bases("lab:5000/a"), ["http://lab:5000/"]);
        assert_eq!(bases("lab:5001/a"), ["https://lab:5001/"]);
        assert_eq!(bases("a"), ["https://mirror.example/", "https://registry-1.docker.io/"]);
    }

    #[test]
    fn redirects_of_a_registry_are_checked() {
        let registry = Registries::default().open("127.0.0.1:5000", "a").unwrap();
        let look = |text: &str| registry.check_redirect(&Url::parse(text).unwrap()).is_ok();
        assert!(look("http://127.0.0.1:5000/v2/a/blobs/x"));
        assert!(look("https://cdn.example/x"));
        for bad in [
            "http://cdn.example/x",
            "http://127.0.0.1:5001/x",
            "https://127.0.0.1/x",
            "https://10.0.0.1/x",
            "https://169.254.169.254/latest",
            "https://[::1]/x",
            "https://[::ffff:10.0.0.1]/x",
            "file:///etc/passwd",
        ] {
            assert!(!look(bad), "{bad}");
        }
    }
}
