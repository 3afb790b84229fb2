//! Authentication of callers on HTTP: tokens, and the rule when one is needed. Everything here fails closed.

pub(crate) mod oauth;
mod tokens;

use std::fs::Metadata;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sandcell_engine::Principal;

use oauth::{BadToken, OauthOptions, ResourceMetadata, Verifier};
pub use tokens::{NewToken, Token, TokenError, TokenForm, TokenStore, TokenUse};
use tokens::{digest, is_one_of};

/// The principal of all callers without a token, where the operator allows such callers.
const ANONYMOUS_PRINCIPAL: &str = "anonymous";
/// The caller of a server on stdio: the user who started the process.
pub(crate) const STDIO_PRINCIPAL: &str = "stdio";
/// The prefix of principals with tokens.
const TOKEN_PREFIX: &str = "token:";
/// The maximum bytes of a server-issued token.
const OWN_TOKEN_BYTES: usize = 256;

/// The rule for callers without a token while no token exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anonymous {
    /// Right on loopback: every client there is a user of this machine.
    Allowed,
    /// Elsewhere: a token is always needed.
    Refused,
    /// Right on connections of the parent process: its requests are those of the caller of the standard streams.
    Parent,
}

/// The permissions of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) caller: Principal,
    /// The use of the caller's token. None for callers without a token: they may do everything.
    pub(crate) only: Option<TokenUse>,
}

/// The reasons for a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No token was sent, and one is needed.
    Missing,
    /// The token is invalid.
    Wrong,
    /// The list of tokens cannot be read.
    Unreadable,
    /// The issuer's token was valid once.
    Expired,
    /// The issuer's token lacks a scope.
    Scope,
    /// The issuer's keys are unavailable.
    Unreachable,
    /// The server takes no more callers.
    Full,
}

impl From<BadToken> for Denied {
    fn from(token: BadToken) -> Self {
        match token {
            BadToken::Wrong => Self::Wrong,
            BadToken::Expired => Self::Expired,
            BadToken::Scope => Self::Scope,
            BadToken::Unreachable => Self::Unreachable,
            BadToken::Full => Self::Full,
        }
    }
}

/// The list of tokens as it was read last.
#[derive(Debug)]
struct CachedTokens {
    version: FileVersion,
    tokens: Vec<Token>,
}

/// Identifies a version of the file. Every change replaces the file by a new one.
type FileVersion = (SystemTime, u64, u64);

/// Admits callers by the current list of tokens: a revoked token is refused at the next request.
#[derive(Debug)]
pub(crate) struct Authenticator {
    store: Option<TokenStore>,
    anonymous: Anonymous,
    /// Checks tokens of an issuer, where one is named.
    oauth: Option<Verifier>,
    /// Set when a list of tokens was seen, and never unset: a list that disappears must not admit everybody.
    needed: AtomicBool,
    known: Mutex<Option<CachedTokens>>,
}

impl Authenticator {
    pub(crate) fn new(store: Option<TokenStore>, anonymous: Anonymous) -> Self {
        Self {
            store,
            anonymous,
            oauth: None,
            needed: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// Also accepts tokens of this issuer. From now on, callers without a token are refused.
    pub(crate) fn with_issuer(self, options: &OauthOptions) -> Result<Self, oauth::OauthError> {
        let oauth = Some(Verifier::new(options)?);
        Ok(Self { oauth, ..self })
    }

    /// Returns the issuer's address for clients, if there is one.
    pub(crate) fn resource_metadata(&self) -> Option<&ResourceMetadata> {
        self.oauth.as_ref().map(Verifier::resource_metadata)
    }

    /// Authenticates an `Authorization` header, or its absence, by a token of the issuer or of this server.
    pub(crate) async fn admit(&self, authorization: Option<&str>) -> Result<Admission, Denied> {
        let token = authorization.and_then(|text| bearer(text, oauth::TOKEN_BYTES));
        match (&self.oauth, token.filter(|token| oauth::looks_like_jwt(token))) {
            (Some(oauth), Some(token)) => Ok(Admission {
                caller: oauth.verify(token).await?,
                only: Some(TokenUse::Mcp),
            }),
            _ => self.admit_own(authorization),
        }
    }

    /// Authenticates an `Authorization` header, or its absence, by this server's tokens only.
    fn admit_own(&self, authorization: Option<&str>) -> Result<Admission, Denied> {
        let needed = self.token_needed()?;
        let Some(authorization) = authorization else {
            if needed {
                return Err(Denied::Missing);
            }
            return Ok(Admission {
                caller: Principal::new(match self.anonymous {
                    Anonymous::Parent => STDIO_PRINCIPAL,
                    Anonymous::Allowed | Anonymous::Refused => ANONYMOUS_PRINCIPAL,
                }),
                only: None,
            });
        };
        // A wrong token is refused even if no token is needed: its sender expects to be a certain caller.
        let token = bearer(authorization, OWN_TOKEN_BYTES).ok_or(Denied::Wrong)?;
        let hash = digest(token);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = known.as_ref().map_or(&[][..], |known| &known.tokens);
        let found = is_one_of(&hash, tokens).filter(|token| !token.has_expired());
        found.map_or(Err(Denied::Wrong), |token| {
            Ok(Admission {
                caller: Principal::new(&format!("{TOKEN_PREFIX}{}", token.id)),
                only: Some(token.usage),
            })
        })
    }

    /// Returns true if the caller is still valid: its token exists and is valid, or none is needed.
    pub(crate) fn may_stay(&self, caller: &Principal) -> bool {
        let Ok(needed) = self.token_needed() else {
            return false;
        };
        match caller.0.strip_prefix(TOKEN_PREFIX) {
            None if caller.0.starts_with(oauth::OAUTH_PREFIX) => {
                self.oauth.as_ref().is_some_and(|oauth| oauth.may_stay(&caller.0))
            }
            None => !needed,
            Some(id) => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                let mut tokens = known.iter().flat_map(|known| &known.tokens);
                tokens.any(|token| token.id == id && !token.has_expired())
            }
        }
    }

    /// Returns true if there are tokens.
    pub(crate) fn has_tokens(&self) -> Result<bool, Denied> {
        self.token_needed()?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(known.as_ref().is_some_and(|known| !known.tokens.is_empty()))
    }

    /// Returns true if callers need a token now.
    pub(crate) fn token_needed(&self) -> Result<bool, Denied> {
        if self.refresh()? {
            self.needed.store(true, Ordering::Relaxed);
        }
        let is_needed = self.anonymous == Anonymous::Refused || self.oauth.is_some();
        Ok(is_needed || self.needed.load(Ordering::Relaxed))
    }

    /// Reads the list again if it has changed. Returns true if there is a list.
    fn refresh(&self) -> Result<bool, Denied> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = &self.store else {
            return Ok(false);
        };
        let version = match std::fs::metadata(store.path()) {
            Ok(meta) => version(&meta),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                *known = None;
                return Ok(false);
            }
            Err(error) => return Err(unreadable(&error)),
        };
        if known.as_ref().is_none_or(|known| known.version != version) {
            *known = None;
            let tokens = store.list().map_err(|error| unreadable(&error))?;
            *known = Some(CachedTokens { version, tokens });
        }
        Ok(true)
    }
}

fn unreadable(error: &(dyn std::error::Error + 'static)) -> Denied {
    tracing::error!(error, "the list of tokens cannot be read; every caller is refused");
    Denied::Unreadable
}

fn version(meta: &Metadata) -> FileVersion {
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(meta);
    #[cfg(not(unix))]
    let inode = 0;
    (meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len(), inode)
}

/// The token of `Bearer TOKEN`; none if it is anything else.
fn bearer(authorization: &str, most: usize) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    let token = token.trim_matches(' ');
    let is_token = !token.is_empty() && token.len() <= most && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bearer_of(token: &NewToken) -> String {
        format!("Bearer {}", token.secret)
    }

    #[test]
    fn without_tokens_only_the_loopback_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let open = Authenticator::new(Some(store.clone()), Anonymous::Allowed);
        assert_eq!(open.admit_own(None).unwrap().caller, Principal::new("anonymous"));
        assert_eq!(open.admit_own(Some("Bearer x")), Err(Denied::Wrong));
        let closed = Authenticator::new(Some(store), Anonymous::Refused);
        assert_eq!(closed.admit_own(None), Err(Denied::Missing));
        assert_eq!(
            Authenticator::new(None, Anonymous::Refused).admit_own(None),
            Err(Denied::Missing)
        );
    }

    #[test]
    fn after_the_first_token_anonymous_callers_are_refused_permanently() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let authenticator = Authenticator::new(Some(store.clone()), Anonymous::Allowed);
        assert!(authenticator.admit_own(None).is_ok());
        let first = store.create("first", None, TokenUse::Mcp).unwrap();
        assert_eq!(authenticator.admit_own(None), Err(Denied::Missing));
        let caller = authenticator.admit_own(Some(&bearer_of(&first))).unwrap().caller;
        assert_eq!(caller, Principal::new(&format!("token:{}", first.token.id)));
        store.revoke(&first.token.id).unwrap();
        assert_eq!(authenticator.admit_own(Some(&bearer_of(&first))), Err(Denied::Wrong));
        assert_eq!(
            authenticator.admit_own(None),
            Err(Denied::Missing),
            "the last one was revoked"
        );
        std::fs::remove_file(store.path()).unwrap();
        assert_eq!(authenticator.admit_own(None), Err(Denied::Missing), "the list is gone");
    }

    #[test]
    fn everything_but_an_exact_valid_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let authenticator = Authenticator::new(Some(store.clone()), Anonymous::Allowed);
        let good = store.create("good", None, TokenUse::Mcp).unwrap();
        let short = store.create("short", Some(Duration::ZERO), TokenUse::Mcp).unwrap();
        let secret = &good.secret;
        for wrong in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            secret.clone(),
            format!("Basic {secret}"),
            format!("Bearer {secret}x"),
            format!("Bearer {}", &secret[..secret.len() - 1]),
            format!("Bearer {secret} {secret}"),
            format!("Bearer {secret},{secret}"),
            format!("Bearer {}", secret.to_uppercase()),
            format!("Bearer {}", good.token.id),
            format!("Bearer {}", good.token.sha256),
            format!("Bearer {}", "x".repeat(100_000)),
            bearer_of(&short),
        ] {
            assert_eq!(authenticator.admit_own(Some(&wrong)), Err(Denied::Wrong), "{wrong:.80}");
        }
        assert!(authenticator.admit_own(Some(&format!("bearer  {secret}"))).is_ok());
    }

    #[test]
    fn a_corrupt_token_list_refuses_everyone() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let authenticator = Authenticator::new(Some(store.clone()), Anonymous::Allowed);
        let token = store.create("a", None, TokenUse::Mcp).unwrap();
        assert!(authenticator.admit_own(Some(&bearer_of(&token))).is_ok());
        std::fs::write(store.path(), "{").unwrap();
        assert_eq!(
            authenticator.admit_own(Some(&bearer_of(&token))),
            Err(Denied::Unreadable)
        );
        assert_eq!(authenticator.admit_own(None), Err(Denied::Unreadable));
    }
}
