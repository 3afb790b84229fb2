//! OAuth 2.1, the resource server's part: callers bring access tokens of an issuer that the operator named, and this
//! server only checks them (JWT, by the keys that the issuer publishes). It issues no tokens and forwards none.
//!
//! The decision taken here: the content of a token never decides the way of checking it. Issuer, audience and
//! algorithms are fixed in advance, keys come from the issuer alone, and each key is used for one algorithm only.

#[cfg(feature = "oauth")]
mod keys;
#[cfg(feature = "oauth")]
mod signatures;
#[cfg(feature = "oauth")]
#[cfg(test)]
mod tests;
#[cfg(feature = "oauth")]
mod verifier;

use serde_json::Value;
#[cfg(feature = "oauth")]
use serde_json::json;

#[cfg(feature = "oauth")]
pub(crate) use verifier::Verifier;

/// The issuer of callers' tokens, and the required claims.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OauthOptions {
    /// The authorization server, as its tokens name it in `iss`.
    pub issuer: String,
    /// The address of this server's `/mcp` as callers know it. Clients request tokens for this address.
    pub resource: String,
    /// The required `aud` of tokens; empty for the resource.
    pub audience: String,
    /// Scopes that a token must have, all of them.
    pub scopes: Vec<String>,
    /// The address of the issuer's keys; empty for the address in its metadata.
    pub jwks_uri: String,
}

/// The reasons why tokens of the issuer cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OauthError {
    /// Left out of this build.
    #[error("this build has no OAuth")]
    Absent,
    /// A setting.
    #[error("{key}: {text:?} {reason}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// The setting's value.
        text: String,
        /// The reason.
        reason: &'static str,
    },
    /// No client for the issuer's keys.
    #[error("no HTTP client for the issuer's keys: {0}")]
    Client(String),
}

/// The reasons for rejecting a token.
#[cfg_attr(not(feature = "oauth"), expect(dead_code, reason = "only a verifier finds that out"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadToken {
    /// The token is not one of the issuer's for this server.
    Wrong,
    /// The token has expired.
    Expired,
    /// The token lacks a scope.
    Scope,
    /// The issuer's keys are unavailable.
    Unreachable,
    /// The limit of remembered callers is reached.
    Full,
}

/// The protected resource metadata (RFC 9728) for clients that need a token.
#[derive(Debug, Clone)]
pub(crate) struct ResourceMetadata {
    /// For `WWW-Authenticate`.
    pub(crate) challenge: String,
    /// The document at the well-known address.
    pub(crate) document: Value,
    /// The path of the resource: the well-known address may end with it.
    pub(crate) path: String,
}

/// Parses an address for requests of tokens or keys. It must use TLS or be on this machine.
#[cfg(feature = "oauth")]
fn address(key: &'static str, text: &str) -> Result<reqwest::Url, OauthError> {
    let wrong = |reason| OauthError::Setting {
        key,
        text: text.to_owned(),
        reason,
    };
    let url: reqwest::Url = text.parse().map_err(|_| wrong("is not an address"))?;
    let is_here = match url.host_str() {
        None => return Err(wrong("is not an address")),
        Some("localhost") => true,
        Some(host) => {
            let number: Result<std::net::IpAddr, _> = host.trim_matches(['[', ']']).parse();
            number.is_ok_and(|ip| ip.to_canonical().is_loopback())
        }
    };
    match url.scheme() {
        "https" => {}
        "http" if is_here => {}
        _ => return Err(wrong("must begin with https:// (http:// only on this machine)")),
    }
    let is_plain = |character: char| character.is_ascii_graphic() && !matches!(character, '"' | '\\' | '<' | '>');
    if !text.chars().all(is_plain) || !url.username().is_empty() || url.password().is_some() || url.fragment().is_some()
    {
        return Err(wrong("has something in it that an address of this kind must not have"));
    }
    Ok(url)
}

impl OauthOptions {
    /// Returns the metadata for clients, after checking the settings.
    #[cfg(feature = "oauth")]
    fn resource_metadata(&self) -> Result<ResourceMetadata, OauthError> {
        let resource = address("auth.resource", &self.resource)?;
        address("auth.issuer", &self.issuer)?;
        let path = resource.path().trim_end_matches('/');
        let mut metadata = resource.clone();
        metadata.set_path(&format!("{}{path}", WELL_KNOWN));
        metadata.set_query(None);
        // RFC 6749, appendix A.4, limits the characters of a scope. Each of them fits a quoted text.
        let fits = |scope: &String| {
            !scope.is_empty()
                && scope
                    .chars()
                    .all(|one| one.is_ascii_graphic() && !matches!(one, '"' | '\\'))
        };
        if let Some(scope) = self.scopes.iter().find(|scope| !fits(scope)) {
            return Err(OauthError::Setting {
                key: "auth.scopes",
                text: scope.clone(),
                reason: "is not a scope",
            });
        }
        let mut challenge = format!("resource_metadata=\"{metadata}\"");
        if !self.scopes.is_empty() {
            challenge = format!("{challenge}, scope=\"{}\"", self.scopes.join(" "));
        }
        let mut document = json!({
            "resource": self.resource,
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "sandcell",
        });
        if let (Some(object), false) = (document.as_object_mut(), self.scopes.is_empty()) {
            object.insert("scopes_supported".to_owned(), json!(self.scopes));
        }
        Ok(ResourceMetadata {
            challenge,
            document,
            path: path.to_owned(),
        })
    }
}

/// The path of the document, from RFC 9728.
pub(crate) const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The prefix of principals of this kind.
pub(crate) const OAUTH_PREFIX: &str = "oauth:";

/// Bytes of a token.
pub(crate) const TOKEN_BYTES: usize = 16 << 10;

/// Returns true for the form of a JWT. Any other text may be a token of this server.
pub(crate) fn looks_like_jwt(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The stand-in for builds without OAuth. No issuer can be configured there.
#[cfg(not(feature = "oauth"))]
#[derive(Debug)]
pub(crate) enum Verifier {}

#[cfg(not(feature = "oauth"))]
impl Verifier {
    pub(crate) fn new(_: &OauthOptions) -> Result<Self, OauthError> {
        Err(OauthError::Absent)
    }

    pub(crate) const fn resource_metadata(&self) -> &ResourceMetadata {
        match *self {}
    }

    pub(crate) async fn verify(&self, _: &str) -> Result<sandcell_engine::Principal, BadToken> {
        match *self {}
    }

    pub(crate) fn may_stay(&self, _: &str) -> bool {
        match *self {}
    }
}
