//! Checks access tokens, and remembers their expiry for each holder.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use sandcell_engine::Principal;
use serde::Deserialize;
use serde_json::Value;

use super::keys::{KeyLookupError, Keys};
use super::signatures::{SIGNATURE_ALGORITHMS, use_ring};
use super::{BadToken, OAUTH_PREFIX, OauthError, OauthOptions, ResourceMetadata, TOKEN_BYTES, address};

/// The tolerated difference of clocks.
const LEEWAY_S: u64 = 30;
/// Streams may outlive the token by this long, so that a call that began with a valid token can end.
const LINGER_S: u64 = 120;
/// The maximum number of callers whose token expiry is remembered.
#[cfg(not(test))]
const MAX_CALLERS: usize = 10_000;
#[cfg(test)]
const MAX_CALLERS: usize = 4;
/// Bytes of a subject.
const SUBJECT_BYTES: usize = 255;

/// Admits holders of a token of the issuer.
#[derive(Debug)]
pub(crate) struct Verifier {
    keys: Keys,
    rules: Validation,
    issuer: String,
    scopes: Vec<String>,
    resource_metadata: ResourceMetadata,
    /// The latest expiry of each caller's tokens, in seconds since 1970.
    ends: Mutex<HashMap<Principal, u64>>,
}

/// The claims that are read, in addition to those that the library checks.
#[derive(Debug, Deserialize)]
struct Claims {
    /// A single issuer: the library would also accept a list.
    iss: String,
    sub: String,
    exp: f64,
    scope: Option<Value>,
    scp: Option<Value>,
}

impl Verifier {
    pub(crate) fn new(options: &OauthOptions) -> Result<Self, OauthError> {
        use_ring();
        let resource_metadata = options.resource_metadata()?;
        let audience = match options.audience.as_str() {
            "" => options.resource.as_str(),
            audience => audience,
        };
        // The issuer is compared byte by byte, so anything but a plain address can never match.
        if address("auth.issuer", &options.issuer)?.query().is_some() {
            return Err(OauthError::Setting {
                key: "auth.issuer",
                text: options.issuer.clone(),
                reason: "has a query",
            });
        }
        let mut rules = Validation::default();
        rules.set_required_spec_claims(&["exp", "iss", "sub", "aud"]);
        rules.set_issuer(&[&options.issuer]);
        rules.set_audience(&[audience]);
        rules.leeway = LEEWAY_S;
        rules.validate_exp = true;
        rules.validate_nbf = true;
        rules.validate_aud = true;
        rules.algorithms = Vec::new();
        Ok(Self {
            keys: Keys::new(options)?,
            rules,
            issuer: options.issuer.clone(),
            scopes: options.scopes.clone(),
            resource_metadata,
            ends: Mutex::default(),
        })
    }

    pub(crate) const fn resource_metadata(&self) -> &ResourceMetadata {
        &self.resource_metadata
    }

    /// Returns the holder of this token.
    pub(crate) async fn verify(&self, token: &str) -> Result<Principal, BadToken> {
        if token.len() > TOKEN_BYTES {
            return Err(BadToken::Wrong);
        }
        let header = decode_header(token).map_err(|_| BadToken::Wrong)?;
        // Refuses unknown critical headers, and tokens of other kinds (an ID token identifies a user to another
        // service).
        let kind = header.typ.as_deref().map(str::to_ascii_lowercase);
        let is_access_token = matches!(kind.as_deref(), None | Some("jwt" | "at+jwt" | "application/at+jwt"));
        if header.crit.is_some() || !is_access_token || !SIGNATURE_ALGORITHMS.contains(&header.alg) {
            return Err(BadToken::Wrong);
        }
        let key = self.keys.find(header.kid.as_deref(), header.alg).await;
        let key = key.map_err(|error| match error {
            KeyLookupError::Unknown => BadToken::Wrong,
            KeyLookupError::Unreachable => BadToken::Unreachable,
        })?;
        let rules = Validation {
            algorithms: vec![header.alg],
            ..self.rules.clone()
        };
        let claims = decode::<Claims>(token, &key.key, &rules).map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature => BadToken::Expired,
            _ => BadToken::Wrong,
        })?;
        let claims = claims.claims;
        let subject_fits = !claims.sub.is_empty() && claims.sub.len() <= SUBJECT_BYTES;
        if claims.iss != self.issuer || !subject_fits || claims.sub.chars().any(char::is_control) {
            return Err(BadToken::Wrong);
        }
        let given: Vec<&str> = words(claims.scope.as_ref()).chain(words(claims.scp.as_ref())).collect();
        if !self.scopes.iter().all(|wanted| given.contains(&wanted.as_str())) {
            return Err(BadToken::Scope);
        }
        // An issuer has no fragment, so no two pairs give the same text.
        let caller = Principal::new(&format!("{OAUTH_PREFIX}{}#{}", self.issuer, claims.sub));
        self.remember(&caller, claims.exp)?;
        Ok(caller)
    }

    fn remember(&self, caller: &Principal, end: f64) -> Result<(), BadToken> {
        let now = now_s();
        let lasts = std::time::Duration::try_from_secs_f64(end).map_or(u64::MAX, |end| end.as_secs());
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() >= MAX_CALLERS && !ends.contains_key(caller) {
            ends.retain(|_, end| has_time(*end, now));
            if ends.len() >= MAX_CALLERS {
                return Err(BadToken::Full);
            }
        }
        let end = ends.entry(caller.clone()).or_insert(lasts);
        *end = lasts.max(*end);
        Ok(())
    }

    /// Returns true if a caller of this name still has a valid token among those seen.
    pub(crate) fn may_stay(&self, caller: &str) -> bool {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let end = ends.get(&Principal::new(caller));
        end.is_some_and(|end| has_time(*end, now_s()))
    }
}

fn has_time(end: u64, now: u64) -> bool {
    end.saturating_add(LINGER_S) > now
}

fn now_s() -> u64 {
    // Before 1970 everything has expired.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(u64::MAX, |time| time.as_secs())
}

/// Returns the words of a claim that is a text or a list of texts.
fn words(claim: Option<&Value>) -> Box<dyn Iterator<Item = &str> + '_> {
    match claim {
        Some(Value::String(text)) => Box::new(text.split(' ')),
        Some(Value::Array(list)) => Box::new(list.iter().filter_map(Value::as_str)),
        _ => Box::new(std::iter::empty()),
    }
}
