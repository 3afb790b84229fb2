//! The addresses of things outside of results: `sandcell://{sandbox_id}/{path}` for files, and
//! `sandcell://executions/{execution_id}/{n}` for artifacts of an execution, which outlive its sandbox.

use std::fmt::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcell_engine::{Engine, Principal};
use sandcell_sandbox::{Code, Failure, SandboxPath};

use crate::arguments::{echo, sandbox_path};

const URI_SCHEME: &str = "sandcell://";

/// The target of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A file of a live sandbox.
    File { sandbox: String, path: SandboxPath },
    /// A picture or output of an execution.
    Artifact { execution: String, number: u32 },
}

/// The bytes behind an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) mime: String,
    pub(crate) body: Body,
}

/// Text, or other bytes in base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Text(String),
    Base64(String),
}

impl Address {
    /// Reads an address.
    pub(crate) fn parse(uri: &str) -> Result<Self, Failure> {
        let unknown = || {
            Failure::new(
                Code::NotFound,
                format!("there is no resource {}", echo(uri)),
                "use sandcell://{sandbox_id}/{path} or sandcell://executions/{execution_id}/{n}",
            )
        };
        let (engine, rest) = uri
            .strip_prefix(URI_SCHEME)
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(unknown)?;
        if engine == "executions" {
            let (execution, number) = rest.split_once('/').ok_or_else(unknown)?;
            let number = number.parse().map_err(|_| unknown())?;
            return Ok(Self::Artifact {
                execution: execution.to_owned(),
                number,
            });
        }
        let path = percent_decode(rest).ok_or_else(unknown)?;
        Ok(Self::File {
            sandbox: engine.to_owned(),
            path: sandbox_path("uri", &format!("/{path}"))?,
        })
    }

    /// Reads the target, within the permissions of `caller`.
    pub(crate) async fn read(&self, engine: &Arc<Engine>, caller: &Principal) -> Result<Content, Failure> {
        match self {
            Self::File { sandbox, path } => {
                let most = engine.config().file_bytes.as_bytes();
                let answer = engine.read_file(caller, Some(sandbox), path, 0, most).await?;
                if answer.value.total > most {
                    return Err(Failure::new(
                        Code::LimitReached,
                        format!(
                            "{path} has {} bytes, more than the {most} of one call",
                            answer.value.total
                        ),
                        "read it in parts with read_file, base64=true, offset and limit",
                    ));
                }
                Ok(content(
                    mime_of(path.as_str(), &answer.value.bytes),
                    &answer.value.bytes,
                ))
            }
            Self::Artifact { execution, number } => {
                let found = engine.artifact(caller, execution, *number).await?;
                let file = found.ok_or_else(|| {
                    Failure::new(
                        Code::NotFound,
                        format!("execution {execution} has no file {number}"),
                        "use the links of its result",
                    )
                })?;
                Ok(content(&file.mime, &file.bytes))
            }
        }
    }
}

fn content(mime: &str, bytes: &[u8]) -> Content {
    let textual = mime.starts_with("text/") || mime.contains("json") || mime.contains("xml") || mime.contains("svg");
    let body = match std::str::from_utf8(bytes) {
        Ok(text) if textual => Body::Text(text.to_owned()),
        _ => Body::Base64(STANDARD.encode(bytes)),
    };
    Content {
        mime: mime.to_owned(),
        body,
    }
}

/// The address of a file.
pub(crate) fn file_uri(sandbox: &str, path: &SandboxPath) -> String {
    format!("{URI_SCHEME}{sandbox}{}", percent_encode(path.as_str()))
}

/// Percent-encodes all bytes except unreserved characters and slashes.
fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// Returns the type of a file by its first bytes, else by its name.
pub(crate) fn mime_of(path: &str, head: &[u8]) -> &'static str {
    const MAGIC_NUMBERS: [(&[u8], &str); 8] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b", "application/gzip"),
        (b"SQLite format 3\0", "application/vnd.sqlite3"),
        (b"PAR1", "application/vnd.apache.parquet"),
    ];
    if let Some((_, mime)) = MAGIC_NUMBERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return mime;
    }
    let ending = path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref() {
        Some("csv") => "text/csv",
        Some("json" | "ipynb") => "application/json",
        Some("html" | "htm") => "text/html",
        Some("md") => "text/markdown",
        Some("svg") => "image/svg+xml",
        Some("xml") => "application/xml",
        Some("py") => "text/x-python",
        Some("wav") => "audio/wav",
        Some("mp3") => "audio/mpeg",
        _ if !head.contains(&0) && std::str::from_utf8(head).is_ok() => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_formatting_and_parsing() {
        for path in ["/home/user/a b.txt", "/tmp/Grüße%.csv", "/x/#?"] {
            let path = SandboxPath::parse(path).unwrap();
            let uri = file_uri("sb1", &path);
            assert!(uri.is_ascii() && !uri.contains([' ', '#', '?']), "{uri}");
            let sandbox = "sb1".to_owned();
            assert_eq!(Address::parse(&uri), Ok(Address::File { sandbox, path }));
        }
        let execution = "ex1".to_owned();
        assert_eq!(
            Address::parse("sandcell://executions/ex1/3"),
            Ok(Address::Artifact { execution, number: 3 })
        );
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for uri in [
            "",
            "file:///etc/passwd",
            "sandcell://sb1",
            "sandcell://sb1/../../etc/passwd",
            "sandcell://sb1/%2e%2e/x",
            "sandcell://sb1/%zz",
            "sandcell://sb1/%ff",
            "sandcell://sb1/a%00b",
            "sandcell://executions/ex1",
            "sandcell://executions/ex1/-1",
            "sandcell://executions/ex1/99999999999",
        ] {
            assert!(Address::parse(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn mime_types_come_from_content_before_names() {
        assert_eq!(mime_of("a.txt", b"\x89PNG\r\n\x1a\n"), "image/png");
        assert_eq!(mime_of("a.CSV", b"a,b"), "text/csv");
        assert_eq!(mime_of("a", b"abc"), "text/plain");
        assert_eq!(mime_of("a", b"\0"), "application/octet-stream");
    }
}
