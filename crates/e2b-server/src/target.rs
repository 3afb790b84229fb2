//! The sandbox and the port that a request is for, and the secret that proves that its sender may use them.

use std::sync::Arc;

use hyper::StatusCode;
use sandcell_mcp::{Credential, Refusal, RequestHead};
use sandcell_sandbox::{Code, Failure};
use subtle::ConstantTimeEq as _;

use crate::limits::{ENVD_PORT, INTERPRETER_PORT};
use crate::problem::Problem;
use crate::registry::{Registry, Sandbox};
use crate::{files, limits, routes};

const ACCESS_HEADER: &str = "x-access-token";
const TRAFFIC_HEADER: &str = "e2b-traffic-access-token";
/// The headers with the secrets of a sandbox.
pub(crate) const SECRET_HEADERS: [&str; 2] = [ACCESS_HEADER, TRAFFIC_HEADER];
/// Headers that are for this server only, and that no program in a sandbox gets.
pub(crate) const INTERNAL_HEADERS: [&str; 5] = [
    ACCESS_HEADER,
    TRAFFIC_HEADER,
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "x-api-key",
];

/// The sandbox and the port that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) sandbox: String,
    pub(crate) port: u16,
    /// True if the `Host` header names them.
    pub(crate) by_host: bool,
}

impl Target {
    /// Reads the target of a request. None: the request is for the control plane.
    pub(crate) fn of(head: RequestHead<'_>, domain: &str, sandboxes: &Registry) -> Option<Self> {
        Self::named(head, domain).or_else(|| Self::known_by_secret(head, sandboxes))
    }

    /// Returns the target of a request for `envd` that names no sandbox: signed addresses name none, and some versions
    /// of the SDKs send only the token.
    fn known_by_secret(head: RequestHead<'_>, sandboxes: &Registry) -> Option<Self> {
        if head.headers.contains_key("e2b-sandbox-id") || !routes::is_of_envd(head.uri.path()) {
            return None;
        }
        let known = |sandbox: &Sandbox| match head.header(ACCESS_HEADER) {
            Some(secret) => sandbox.accepts(secret, ENVD_PORT),
            None => files::is_signed(head.uri) && files::signature_fits(head.method, head.uri, sandbox),
        };
        let sandbox = match sandboxes.known_by(known) {
            Some(sandbox) => sandbox.id.clone(),
            // A signature of no sandbox is refused as such.
            None if files::is_signed(head.uri) => "of this signature".to_owned(),
            None => return None,
        };
        Some(Self {
            sandbox,
            port: ENVD_PORT,
            by_host: false,
        })
    }

    /// Reads the target that a request names.
    fn named(head: RequestHead<'_>, domain: &str) -> Option<Self> {
        let host = head.header("host").unwrap_or_default();
        if let Some((port, sandbox)) = host_label(host, domain) {
            return Some(Self {
                sandbox,
                port,
                by_host: true,
            });
        }
        let sandbox = head.header("e2b-sandbox-id")?;
        let port = head
            .header("e2b-sandbox-port")
            .map_or(Some(ENVD_PORT), |port| port.parse().ok())?;
        // Some versions of the SDKs send these headers with calls of the control plane, too.
        if port == ENVD_PORT && routes::is_control(head.uri.path()) {
            return None;
        }
        is_id(sandbox).then(|| Self {
            sandbox: sandbox.to_owned(),
            port,
            by_host: false,
        })
    }

    /// Returns the sender of a request for this target.
    pub(crate) fn credential(&self, head: RequestHead<'_>, sandboxes: &Registry) -> Credential {
        let secrets = SECRET_HEADERS.map(|name| head.header(name));
        if let Some(sandbox) = self.public_port(sandboxes) {
            return Credential::Caller(sandbox.owner.clone());
        }
        let signed = self.port == ENVD_PORT && files::is_signed(head.uri);
        if secrets.iter().all(Option::is_none) && !signed {
            return Credential::Refused(Refusal {
                // As E2B does.
                status: match self.is_of_program() {
                    true => StatusCode::FORBIDDEN,
                    false => StatusCode::UNAUTHORIZED,
                },
                failure: Failure::new(
                    Code::Unauthorized,
                    "the request has no access token of the sandbox",
                    "send the token that the creation of the sandbox returned",
                ),
            });
        }
        let found = sandboxes.find(&self.sandbox).filter(|sandbox| {
            let known = secrets
                .iter()
                .flatten()
                .any(|secret| sandbox.accepts(secret, self.port));
            let secret = secrets.iter().any(Option::is_some);
            known || (signed && !secret && files::signature_fits(head.method, head.uri, sandbox))
        });
        if found.is_some() && signed && files::is_expired(head.uri) && secrets.iter().all(Option::is_none) {
            return Credential::Refused(Refusal {
                status: StatusCode::UNAUTHORIZED,
                failure: Failure::new(Code::Unauthorized, "signature is already expired", ""),
            });
        }
        match found {
            Some(sandbox) => Credential::Caller(sandbox.owner.clone()),
            None if signed => Credential::Refused(Refusal {
                status: StatusCode::UNAUTHORIZED,
                failure: Failure::new(
                    Code::Unauthorized,
                    "the signature of the address is invalid or has expired",
                    "make a new address with the SDK",
                ),
            }),
            None => Credential::Refused(Refusal {
                status: StatusCode::BAD_GATEWAY,
                failure: self.failure(),
            }),
        }
    }

    /// Returns the sandbox if this is a port of its programs that needs no secret.
    fn public_port(&self, sandboxes: &Registry) -> Option<Arc<Sandbox>> {
        let sandbox = sandboxes.find(&self.sandbox).filter(|_| self.is_of_program())?;
        sandbox.terms.public.then_some(sandbox)
    }

    /// Returns true for a port of a program in the sandbox.
    fn is_of_program(&self) -> bool {
        !matches!(self.port, ENVD_PORT | INTERPRETER_PORT)
    }

    fn failure(&self) -> Failure {
        Failure::new(
            Code::NotFound,
            format!("The sandbox {} was not found", self.sandbox),
            "create a new sandbox",
        )
    }

    /// Returns the answer for a sandbox that is paused, in E2B's words for one that does not run.
    pub(crate) fn paused(&self) -> Problem {
        Problem::new(
            StatusCode::BAD_GATEWAY,
            format!(
                "The sandbox {} was not found: it is paused (connect to it)",
                self.sandbox
            ),
        )
    }

    /// Returns the answer for a sandbox that has ended, never was, or is another caller's.
    pub(crate) fn not_found(&self) -> Problem {
        Problem::from(Refusal {
            status: StatusCode::BAD_GATEWAY,
            failure: self.failure(),
        })
    }
}

impl Sandbox {
    /// Returns true if this secret opens the port. The comparison takes the same time for every secret of this length.
    pub(crate) fn accepts(&self, secret: &str, port: u16) -> bool {
        let fits = |known: &str| bool::from(known.as_bytes().ct_eq(secret.as_bytes()));
        let of_traffic = port != ENVD_PORT && fits(&self.traffic_token);
        fits(&self.access_token) || of_traffic
    }
}

/// Reads `PORT-ID.DOMAIN`. A port of the host's own does not matter.
fn host_label(host: &str, domain: &str) -> Option<(u16, String)> {
    let without_port = |text: &str| {
        let end = text
            .rfind(':')
            .filter(|end| text.get(end + 1..).is_some_and(|port| port.parse::<u16>().is_ok()));
        text.get(..end.unwrap_or(text.len()))
            .unwrap_or(text)
            .to_ascii_lowercase()
    };
    let host = without_port(host);
    let label = host.strip_suffix(&without_port(domain))?.strip_suffix('.')?;
    let (port, id) = label.split_once('-')?;
    is_id(id).then_some(())?;
    Some((port.parse().ok()?, id.to_owned()))
}

fn is_id(text: &str) -> bool {
    let length = 1..=limits::MAX_ID_BYTES;
    length.contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, Method, Uri};

    use super::*;

    #[test]
    fn a_host_name_of_the_domain_names_a_port_and_a_sandbox() {
        for (host, domain, expected) in [
            ("8000-sb1.localhost:8123", "localhost:8123", Some((8000, "sb1"))),
            ("8000-sb1.LOCALHOST", "localhost", Some((8000, "sb1"))),
            (
                "49983-sb1.cells.example.org",
                "cells.example.org",
                Some((49_983, "sb1")),
            ),
            ("8000-sb1.evil.org", "localhost", None),
            ("8000-sb1.x.localhost", "localhost", None),
            ("99999-sb1.localhost", "localhost", None),
            ("8000-SB_1.localhost", "localhost", None),
            ("8000-.localhost", "localhost", None),
            ("localhost", "localhost", None),
            ("8000-sb1localhost", "localhost", None),
            ("", "localhost", None),
        ] {
            let found = host_label(host, domain);
            assert_eq!(found, expected.map(|(port, id)| (port, id.to_owned())), "{host}");
        }
    }

    #[test]
    fn headers_name_a_port_and_a_sandbox() {
        let method = Method::GET;
        let of_path = |path: &'static str, pairs: &[(&'static str, &'static str)]| {
            let uri = Uri::from_static(path);
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, hyper::header::HeaderValue::from_static(value));
            }
            let head = RequestHead {
                method: &method,
                uri: &uri,
                headers: &headers,
            };
            Target::named(head, "localhost").map(|target| (target.sandbox, target.port))
        };
        let of = |pairs: &[(&'static str, &'static str)]| of_path("/health", pairs);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("e2b-sandbox-id", "sb1")]), Some(("sb1".to_owned(), ENVD_PORT)));
        let both = [("e2b-sandbox-id", "sb1"), ("e2b-sandbox-port", "49999")];
        assert_eq!(of(&both), Some(("sb1".to_owned(), 49_999)));
        assert_eq!(of(&[("e2b-sandbox-id", "../etc"), ("e2b-sandbox-port", "1")]), None);
        assert_eq!(of(&[("e2b-sandbox-id", "sb1"), ("e2b-sandbox-port", "x")]), None);
        // A call of the control plane about a sandbox.
        assert_eq!(of_path("/sandboxes/sb1/connect", &[("e2b-sandbox-id", "sb1")]), None);
        let port = [("e2b-sandbox-id", "sb1"), ("e2b-sandbox-port", "8000")];
        assert_eq!(of_path("/sandboxes", &port), Some(("sb1".to_owned(), 8000)));
        // A header that appears twice could mean two sandboxes.
        assert_eq!(of(&[("e2b-sandbox-id", "sb1"), ("e2b-sandbox-id", "sb2")]), None);
    }
}
