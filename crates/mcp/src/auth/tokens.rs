//! The tokens of a server: a file in its data folder that holds their hashes.
//!
//! A token has 260 bits of randomness, so one round of SHA-256 is enough: guessing is infeasible even with the file.
//! Each change replaces the file with a new one, under a lock, so that a reader sees either the old list or the new
//! one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use subtle::{Choice, ConstantTimeEq as _};

const FILE_NAME: &str = "tokens.json";
const LOCK_NAME: &str = "tokens.lock";
const FILE_FORM: u32 = 1;
/// The maximum number of tokens of a server.
const MAX_TOKENS: usize = 10_000;
/// Bytes of the file; ten thousand tokens with the longest names fit.
const FILE_BYTES: u64 = 8 << 20;
/// Characters of a name.
const NAME_CHARS: usize = 64;
const TOKEN_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const ID_CHARS: usize = 10;
const SECRET_CHARS: usize = 52;
/// Random bytes of a token in E2B's form.
const E2B_KEY_BYTES: usize = 20;

/// A token's hash.
pub(super) type Digest = [u8; 32];

/// The use of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenUse {
    /// MCP: its holder is a caller with sandboxes.
    Mcp,
    /// The metrics of the server, and nothing else.
    Metrics,
}

/// The form of a token's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenForm {
    /// `sandcell_`, its id and its secret.
    Own,
    /// `e2b_` and hexadecimal digits, as some versions of E2B's SDKs demand.
    E2b,
}

/// A token as it is kept: without the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Its id: `tk` and ten lower-case letters and digits.
    pub id: String,
    /// The name of the token's holder or purpose.
    pub name: String,
    /// The permitted use.
    #[serde(rename = "use")]
    pub usage: TokenUse,
    /// SHA-256 of the token, in hexadecimal digits.
    pub sha256: String,
    /// The creation time, in seconds since 1970.
    pub created_s: u64,
    /// The expiry time, in seconds since 1970.
    pub expires_s: Option<u64>,
}

impl Token {
    /// Returns true if the token has expired.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires_s.is_some_and(|end| seconds(SystemTime::now()) >= end)
    }

    /// The creation time, in UTC.
    #[must_use]
    pub fn created_at(&self) -> String {
        at(self.created_s)
    }

    /// The expiry time, in UTC.
    #[must_use]
    pub fn expires_at(&self) -> Option<String> {
        self.expires_s.map(at)
    }
}

/// A token that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The stored part of the token.
    pub token: Token,
    /// The token itself, shown once.
    pub secret: String,
}

/// The reasons why tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The name is invalid.
    #[error("a token's name has 1 to {NAME_CHARS} characters, none of them invisible")]
    Name,
    /// The list of tokens is full.
    #[error("there are {MAX_TOKENS} tokens already")]
    Full,
    /// No such token.
    #[error("there is no token {0}")]
    Unknown(String),
    /// The file is not one of ours.
    #[error("{path} is not a list of tokens that this version understands")]
    Form {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file system.
    #[error("{path} cannot be {step}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The system gave no random bytes.
    #[error("the system returned no random bytes")]
    Random(#[source] io::Error),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    form: u32,
    tokens: Vec<Token>,
}

/// The tokens of a data folder.
#[derive(Debug, Clone)]
pub struct TokenStore {
    folder: PathBuf,
    file: PathBuf,
}

impl TokenStore {
    /// The tokens of this data folder, which need not exist yet.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            file: folder.join(FILE_NAME),
        }
    }

    /// Returns the path of the file. If the file exists, callers need a token.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Returns all tokens, oldest first, including expired ones.
    ///
    /// # Errors
    ///
    /// Fails if the file is unreadable or invalid. A missing file is no error.
    pub fn list(&self) -> Result<Vec<Token>, TokenError> {
        let at = |step| move |source| self.failed(&self.file, step, source);
        let file = match File::open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(at("opened")(error)),
        };
        let mut text = Vec::new();
        file.take(FILE_BYTES + 1).read_to_end(&mut text).map_err(at("read"))?;
        let form = |source: Box<dyn std::error::Error + Send + Sync>| TokenError::Form {
            path: self.file.clone(),
            source,
        };
        if text.len() > usize::try_from(FILE_BYTES).unwrap_or(usize::MAX) {
            return Err(form("it is too large".into()));
        }
        let file: TokenFile = serde_json::from_slice(&text).map_err(|error| form(error.into()))?;
        if file.form != FILE_FORM {
            return Err(form(format!("it has form {}, not {FILE_FORM}", file.form).into()));
        }
        if let Some(token) = file.tokens.iter().find(|token| parse_hex(&token.sha256).is_none()) {
            return Err(form(format!("the hash of {} is none", token.id).into()));
        }
        Ok(file.tokens)
    }

    /// Makes a token.
    ///
    /// # Errors
    ///
    /// Fails if the name is unusable or the file cannot be written.
    pub fn create(&self, name: &str, lifetime: Option<Duration>, usage: TokenUse) -> Result<NewToken, TokenError> {
        self.create_as(TokenForm::Own, name, lifetime, usage)
    }

    /// Makes a token for MCP in this form.
    ///
    /// # Errors
    ///
    /// Fails like [`create`](Self::create).
    pub fn create_as(
        &self,
        form: TokenForm,
        name: &str,
        lifetime: Option<Duration>,
        usage: TokenUse,
    ) -> Result<NewToken, TokenError> {
        let visible = |character: char| !character.is_control();
        if name.trim().is_empty() || name.chars().count() > NAME_CHARS || !name.chars().all(visible) {
            return Err(TokenError::Name);
        }
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        if tokens.len() >= MAX_TOKENS {
            return Err(TokenError::Full);
        }
        let id = format!("tk{}", random(ID_CHARS)?);
        let secret = match form {
            TokenForm::Own => format!("sandcell_{id}_{}", random(SECRET_CHARS)?),
            TokenForm::E2b => format!("e2b_{}", hex(&random_bytes(E2B_KEY_BYTES)?)),
        };
        let now = SystemTime::now();
        let token = Token {
            id,
            name: name.to_owned(),
            usage,
            sha256: hex(&digest(&secret)),
            created_s: seconds(now),
            expires_s: lifetime.map(|lifetime| seconds(now).saturating_add(lifetime.as_secs())),
        };
        tokens.push(token.clone());
        self.write(tokens)?;
        Ok(NewToken { token, secret })
    }

    /// Revokes a token. The file stays even when it is empty: a server without any token left is closed, not open.
    ///
    /// # Errors
    ///
    /// Fails if there is no such token, or the file cannot be written.
    pub fn revoke(&self, id: &str) -> Result<Token, TokenError> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        let place = tokens.iter().position(|token| token.id == id);
        let revoked = tokens.remove(place.ok_or_else(|| TokenError::Unknown(id.to_owned()))?);
        self.write(tokens)?;
        Ok(revoked)
    }

    /// Permits one change at a time, across processes. Dropping the file releases the lock.
    fn lock(&self) -> Result<File, TokenError> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        folder
            .create(&self.folder)
            .map_err(|source| self.failed(&self.folder, "made", source))?;
        let path = self.folder.join(LOCK_NAME);
        let file = private().create(true).truncate(false).open(&path);
        let file = file.map_err(|source| self.failed(&path, "opened", source))?;
        file.lock().map_err(|source| self.failed(&path, "locked", source))?;
        Ok(file)
    }

    fn write(&self, tokens: Vec<Token>) -> Result<(), TokenError> {
        let text = serde_json::to_vec_pretty(&TokenFile {
            form: FILE_FORM,
            tokens,
        })
        .map_err(|error| TokenError::Form {
            path: self.file.clone(),
            source: error.into(),
        })?;
        let path = self.folder.join(format!("{FILE_NAME}.{}", std::process::id()));
        let written = || {
            // A file left by a killed process with the same number.
            let _none_was_left = fs::remove_file(&path);
            let mut file = private().create_new(true).open(&path)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&path, &self.file)
        };
        written().map_err(|source| {
            let _nothing_more_to_do = fs::remove_file(&path);
            self.failed(&self.file, "written", source)
        })
    }

    fn failed(&self, path: &Path, step: &'static str, source: io::Error) -> TokenError {
        TokenError::File {
            path: path.to_owned(),
            step,
            source,
        }
    }
}

/// Options for opening files that only their owner may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Returns the hash that is stored.
pub(super) fn digest(token: &str) -> Digest {
    sha2::Sha256::digest(token.as_bytes()).into()
}

/// Returns the token with this hash, in constant time.
pub(super) fn is_one_of<'a>(hash: &Digest, tokens: &'a [Token]) -> Option<&'a Token> {
    let mut found = None;
    for token in tokens {
        let same = parse_hex(&token.sha256).map_or(Choice::from(0), |kept| kept.ct_eq(hash));
        if bool::from(same) {
            found = Some(token);
        }
    }
    found
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn at(seconds: u64) -> String {
    // The bound is far after the year 9999, the last that has a text.
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(1 << 43)));
    sandcell_sandbox::rfc3339(time.unwrap_or(SystemTime::UNIX_EPOCH))
}

fn random_bytes(count: usize) -> Result<Vec<u8>, TokenError> {
    let mut bytes = vec![0_u8; count];
    getrandom::fill(&mut bytes).map_err(|error| TokenError::Random(io::Error::other(error)))?;
    Ok(bytes)
}

fn random(characters: usize) -> Result<String, TokenError> {
    let bytes = random_bytes(characters)?;
    let character = |byte: &u8| TOKEN_ALPHABET.get(usize::from(byte % 32)).map(|byte| char::from(*byte));
    Ok(bytes.iter().filter_map(character).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(text: &str) -> Option<Digest> {
    let mut bytes = [0_u8; 32];
    if text.len() != 64 {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_stored_without_the_secret_and_readable_by_their_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(&folder.path().join("deep/data"));
        assert!(store.list().unwrap().is_empty());
        let made = store.create("Ann's laptop", None, TokenUse::Mcp).unwrap();
        assert_eq!(store.list().unwrap(), std::slice::from_ref(&made.token));
        let kept = fs::read_to_string(store.path()).unwrap();
        let random_part = made.secret.rsplit('_').next().unwrap();
        assert_eq!(random_part.len(), SECRET_CHARS);
        assert!(!kept.contains(random_part));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
            let folder = store.path().parent().unwrap();
            assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn no_two_tokens_are_alike_and_each_is_found_by_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let made: Vec<NewToken> = (0..20)
            .map(|_| store.create("same", None, TokenUse::Mcp).unwrap())
            .collect();
        let kept = store.list().unwrap();
        for token in &made {
            assert_eq!(is_one_of(&digest(&token.secret), &kept), Some(&token.token));
        }
        assert_eq!(is_one_of(&digest("sandcell_"), &kept), None);
    }

    #[test]
    fn concurrent_changes_are_all_stored() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let made = store.create("one", None, TokenUse::Mcp).unwrap();
                    store.create("two", None, TokenUse::Metrics).unwrap();
                    store.revoke(&made.token.id).unwrap();
                });
            }
        });
        assert_eq!(store.list().unwrap().len(), 8);
    }

    #[test]
    fn a_list_in_an_unknown_format_is_an_error_and_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        let hash = "0".repeat(63);
        let short_hash = format!(
            r#"{{"form":1,"tokens":[{{"id":"tk","name":"a","use":"mcp","sha256":"{hash}","created_s":1,"expires_s":null}}]}}"#
        );
        for text in [
            "",
            "[]",
            r#"{"form":2,"tokens":[]}"#,
            r#"{"form":1,"tokens":[],"x":1}"#,
            &short_hash,
        ] {
            fs::write(store.path(), text).unwrap();
            assert!(store.list().is_err(), "{text}");
            assert!(store.create("b", None, TokenUse::Mcp).is_err(), "{text}");
            assert_eq!(fs::read_to_string(store.path()).unwrap(), text);
        }
    }

    #[test]
    fn token_names_are_short_printable_text() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::new(folder.path());
        for name in ["", "  ", "a\nb", "\u{1b}[2J", &"x".repeat(65)] {
            assert!(
                matches!(store.create(name, None, TokenUse::Mcp), Err(TokenError::Name)),
                "{name:?}"
            );
        }
        assert!(matches!(store.revoke("tkxxxxxxxxxx"), Err(TokenError::Unknown(_))));
    }
}
