//! The issuer's public keys. They are fetched at first need, and again when they are old or a token names an unknown
//! key. Fetches are rate-limited, so that a flood of tokens causes no flood of requests to the issuer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::Url;
use serde_json::Value;

use super::{OauthError, OauthOptions, address};

/// The age after which keys are fetched again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);
/// The time that old keys stay in use when the issuer is unreachable.
const MAX_STALE_AGE: Duration = Duration::from_secs(3600);
/// The minimum interval between two attempts to fetch.
#[cfg(not(test))]
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
#[cfg(test)]
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The timeout of one attempt.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a document of the issuer.
const DOCUMENT_BYTES: usize = 256 << 10;
/// The maximum number of keys that are used of one set.
const MAX_KEYS: usize = 64;

/// A key, and its use.
#[derive(Debug, Clone)]
pub(super) struct Key {
    id: Option<String>,
    /// The one algorithm that the key declares, if any.
    algorithm: Option<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The reasons for a missing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyLookupError {
    /// The issuer has no such key.
    Unknown,
    /// The issuer cannot be asked.
    Unreachable,
}

#[derive(Debug, Clone)]
struct FetchedKeys {
    keys: Arc<[Key]>,
    at: Instant,
}

/// The keys of one issuer.
#[derive(Debug)]
pub(super) struct Keys {
    issuer: String,
    /// The address of the keys, if configured.
    jwks_url: Option<Url>,
    http: reqwest::Client,
    known: Mutex<Option<FetchedKeys>>,
    /// The last attempt to fetch; held while one is under way.
    last_attempt: tokio::sync::Mutex<Option<Instant>>,
}

impl Keys {
    pub(super) fn new(options: &OauthOptions) -> Result<Self, OauthError> {
        let jwks_url = match options.jwks_uri.as_str() {
            "" => None,
            text => Some(address("auth.jwks_uri", text)?),
        };
        let http = reqwest::Client::builder()
            .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(FETCH_TIMEOUT)
            // The operator decides the source of keys, not a server that redirects.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| OauthError::Client(error.to_string()))?;
        Ok(Self {
            issuer: options.issuer.clone(),
            jwks_url,
            http,
            known: Mutex::default(),
            last_attempt: tokio::sync::Mutex::default(),
        })
    }

    /// The key for a token with this key id and algorithm.
    pub(super) async fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Key, KeyLookupError> {
        if let Some(known) = self.known(REFRESH_INTERVAL)
            && let Some(key) = pick(&known.keys, id, algorithm)
        {
            return Ok(key);
        }
        let mut last_attempt = self.last_attempt.lock().await;
        // Another request may have fetched the keys meanwhile.
        if let Some(known) = self.known(REFRESH_INTERVAL)
            && let Some(key) = pick(&known.keys, id, algorithm)
        {
            return Ok(key);
        }
        if last_attempt.is_none_or(|last_attempt| last_attempt.elapsed() >= RETRY_INTERVAL) {
            *last_attempt = Some(Instant::now());
            match tokio::time::timeout(FETCH_TIMEOUT, self.fetch()).await {
                Ok(Ok(keys)) => {
                    let at = Instant::now();
                    *self.lock() = Some(FetchedKeys { keys, at });
                }
                Ok(Err(reason)) => tracing::warn!(issuer = %self.issuer, reason, "the issuer's keys are not available"),
                Err(_) => tracing::warn!(issuer = %self.issuer, "the issuer's keys did not come in time"),
            }
        }
        drop(last_attempt);
        let known = self.known(MAX_STALE_AGE).ok_or(KeyLookupError::Unreachable)?;
        pick(&known.keys, id, algorithm).ok_or(KeyLookupError::Unknown)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<FetchedKeys>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, younger: Duration) -> Option<FetchedKeys> {
        self.lock().clone().filter(|known| known.at.elapsed() < younger)
    }

    async fn fetch(&self) -> Result<Arc<[Key]>, String> {
        let jwks_url = match &self.jwks_url {
            Some(jwks_url) => jwks_url.clone(),
            None => self.discover().await?,
        };
        let document = self.get(jwks_url).await?;
        let keys = document
            .get("keys")
            .and_then(Value::as_array)
            .ok_or("no list of keys")?;
        // Issuers publish keys of other kinds next to those for signatures.
        Ok(keys.iter().filter_map(usable).take(MAX_KEYS).collect())
    }

    /// Returns the address of the keys from the issuer's metadata: RFC 8414 first, then OpenID Connect.
    async fn discover(&self) -> Result<Url, String> {
        let issuer: Url = self.issuer.parse().map_err(|_| "the issuer is not an address")?;
        let path = issuer.path().trim_end_matches('/');
        let mut reason = String::new();
        for well_known in [
            format!("/.well-known/oauth-authorization-server{path}"),
            format!("{path}/.well-known/openid-configuration"),
        ] {
            let mut metadata_url = issuer.clone();
            metadata_url.set_path(&well_known);
            match self.get(metadata_url).await {
                Ok(document) => {
                    let text = |key: &str| document.get(key).and_then(Value::as_str);
                    if text("issuer") != Some(&self.issuer) {
                        return Err("its metadata is that of another issuer".to_owned());
                    }
                    let keys = text("jwks_uri").ok_or("its metadata says nothing about keys")?;
                    return address("jwks_uri", keys).map_err(|error| error.to_string());
                }
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    async fn get(&self, url: Url) -> Result<Value, String> {
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let accept = reqwest::header::ACCEPT;
        let request = self.http.get(url).header(accept, "application/json");
        let mut answer = request.send().await.map_err(failed)?;
        if answer.status() != reqwest::StatusCode::OK {
            return Err(format!("status {}", answer.status().as_u16()));
        }
        let mut bytes = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(failed)? {
            if bytes.len() + part.len() > DOCUMENT_BYTES {
                return Err(format!("more than {DOCUMENT_BYTES} bytes"));
            }
            bytes.extend_from_slice(&part);
        }
        serde_json::from_slice(&bytes).map_err(|_| "not JSON".to_owned())
    }
}

/// Returns the key with this id. A token without a key id is valid only for an issuer with one key.
fn pick(keys: &[Key], id: Option<&str>, algorithm: Algorithm) -> Option<Key> {
    let fits =
        |key: &&Key| key.key.family() == algorithm.family() && key.algorithm.is_none_or(|only| only == algorithm);
    match id {
        Some(id) => keys
            .iter()
            .find(|key| key.id.as_deref() == Some(id))
            .filter(fits)
            .cloned(),
        None => match keys {
            [only] => Some(only).filter(fits).cloned(),
            _ => None,
        },
    }
}

/// Converts a key of the set, if it is a public key for signatures.
fn usable(json: &Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(json.clone()).ok()?;
    if jwk
        .common
        .public_key_use
        .as_ref()
        .is_some_and(|usage| *usage != PublicKeyUse::Signature)
    {
        return None;
    }
    let operations = jwk.common.key_operations.as_ref();
    if operations.is_some_and(|all| !all.contains(&KeyOperations::Verify)) {
        return None;
    }
    let algorithm = match json.get("alg") {
        None => None,
        // A key for an unsupported algorithm is not usable.
        Some(name) => Some(name.as_str()?.parse().ok()?),
    };
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    let is_public = super::signatures::SIGNATURE_ALGORITHMS
        .iter()
        .any(|algorithm| algorithm.family() == key.family());
    is_public.then(|| Key {
        id: jwk.common.key_id,
        algorithm,
        key,
    })
}
