//! One line: its fields, and the hash that links it into the chain.
//!
//! The hash covers the bytes of the line before `,"hash":"`. The previous line's hash is among these bytes. Checking
//! therefore needs no agreement on how to write JSON, only the `sha256` of a part of the file.

use sandcell_engine::SecurityEvent;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The text between a line's content and its hash.
const HASH_FIELD: &str = ",\"hash\":\"";
/// The previous hash in the first line of a chain.
pub(crate) const GENESIS_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The maximum length of a text field in characters.
const MAX_TEXT_CHARS: usize = 500;

/// The content of a line, with the fields in their written order.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Content<'a> {
    n: u64,
    at: &'a str,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    detail: &'a str,
    pid: u32,
    prev: &'a str,
}

/// The fields of a line that the check uses.
#[derive(Debug, Deserialize)]
pub(crate) struct CheckedLine {
    pub(crate) n: u64,
    pub(crate) at: String,
    pub(crate) prev: String,
    pub(crate) hash: String,
}

/// An event to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: String,
    pub(crate) event: String,
    pub(crate) principal: Option<String>,
    pub(crate) sandbox: Option<String>,
    pub(crate) execution: Option<String>,
    pub(crate) code: Option<&'static str>,
    pub(crate) detail: String,
}

impl Entry {
    pub(crate) fn of(event: &SecurityEvent) -> Self {
        let short = |text: &str| text.chars().take(MAX_TEXT_CHARS).collect::<String>();
        Self {
            at: sandcell_sandbox::rfc3339_millis(std::time::SystemTime::now()),
            event: event.kind.as_str().to_owned(),
            principal: event.principal.as_ref().map(|principal| short(&principal.0)),
            sandbox: event.sandbox.as_ref().map(ToString::to_string),
            execution: event.execution.as_ref().map(ToString::to_string),
            code: event.code.map(sandcell_sandbox::Code::as_str),
            detail: short(&event.detail),
        }
    }

    /// Returns an entry about the log itself.
    pub(crate) fn about_log(event: &str, detail: String) -> Self {
        Self {
            at: sandcell_sandbox::rfc3339_millis(std::time::SystemTime::now()),
            event: event.to_owned(),
            principal: None,
            sandbox: None,
            execution: None,
            code: None,
            detail,
        }
    }
}

/// The end of a chain: the number and the hash of its last line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    pub(crate) n: u64,
    pub(crate) hash: String,
}

impl Default for ChainEnd {
    fn default() -> Self {
        Self {
            n: 0,
            hash: GENESIS_HASH.to_owned(),
        }
    }
}

impl ChainEnd {
    /// Returns the line of an entry, and makes that line the end of the chain.
    pub(crate) fn append(&mut self, entry: &Entry) -> Result<String, serde_json::Error> {
        let content = Content {
            n: self.n + 1,
            at: &entry.at,
            event: &entry.event,
            principal: entry.principal.as_deref(),
            sandbox: entry.sandbox.as_deref(),
            execution: entry.execution.as_deref(),
            code: entry.code,
            detail: &entry.detail,
            pid: std::process::id(),
            prev: &self.hash,
        };
        let mut line = serde_json::to_string(&content)?;
        // The hash precedes the closing brace.
        line.pop();
        let hash = digest(line.as_bytes());
        line.push_str(HASH_FIELD);
        line.push_str(&hash);
        line.push_str("\"}\n");
        *self = Self { n: self.n + 1, hash };
        Ok(line)
    }

    /// Returns the end of a chain with this last line. Returns None if the line is not a valid line of the log.
    pub(crate) fn of(line: &str) -> Option<Self> {
        let checked = check(line)?;
        Some(Self {
            n: checked.n,
            hash: checked.hash,
        })
    }
}

/// Parses a line. Returns None unless its hash is right.
pub(crate) fn check(line: &str) -> Option<CheckedLine> {
    let (content, rest) = line.rsplit_once(HASH_FIELD)?;
    let hash = rest.strip_suffix("\"}")?;
    let checked: CheckedLine = serde_json::from_str(line).ok()?;
    (checked.hash == hash && digest(content.as_bytes()) == hash).then_some(checked)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
