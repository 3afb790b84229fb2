//! The names by which clients may address the server, and the pages that may call it. The checks keep a web page that a
//! person happens to open from using their server (DNS rebinding, requests across origins).
//!
//! The decision taken here: everything is compared as a whole and in one spelling. There are no patterns, suffixes or
//! default ports that could be read in two ways.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};

use super::rejection::Rejection;

/// Names in addition to the address of the connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostOrigin {
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// A list of names cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHostOrigin {
    /// Not a host.
    #[error("{0} is not a host name with an optional port, such as sandcell.example.com or 10.0.0.5:8123")]
    Host(String),
    /// Not an origin.
    #[error("{0} is not an origin, such as https://app.example.com or http://localhost:6274")]
    Origin(String),
}

impl HostOrigin {
    /// Names that the operator allows.
    pub(crate) fn new(hosts: &[String], origins: &[String]) -> Result<Self, InvalidHostOrigin> {
        let host = |text: &String| authority(text).map(|(_, _)| text.to_ascii_lowercase());
        let origin = |text: &String| is_origin(text).then(|| text.to_ascii_lowercase());
        Ok(Self {
            hosts: hosts
                .iter()
                .map(|text| host(text).ok_or_else(|| InvalidHostOrigin::Host(text.clone())))
                .collect::<Result<_, _>>()?,
            origins: origins
                .iter()
                .map(|text| origin(text).ok_or_else(|| InvalidHostOrigin::Origin(text.clone())))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Refuses a request that was not meant for this server, or that a foreign page sent. `here` is the address that
    /// the client connected to, `secure` whether it did so by TLS.
    pub(crate) fn check(&self, headers: &HeaderMap, here: SocketAddr, secure: bool) -> Result<(), Rejection> {
        let host = self.check_host(headers, here)?;
        match single_value(headers, ORIGIN.as_str())? {
            None if from_foreign_page(headers) => Err(Rejection::foreign_origin()),
            None => Ok(()),
            Some(origin) if self.origin_is_ours(origin, &host, secure) => Ok(()),
            Some(_) => Err(Rejection::foreign_origin()),
        }
    }

    /// The same for resources that any page may link to: no origin but the server's own, if one is sent.
    pub(crate) fn check_link(&self, headers: &HeaderMap, here: SocketAddr, secure: bool) -> Result<(), Rejection> {
        let host = self.check_host(headers, here)?;
        match single_value(headers, ORIGIN.as_str())? {
            None => Ok(()),
            Some(origin) if origin.eq_ignore_ascii_case(&own_origin(&host, true)) => Ok(()),
            // Only without TLS in the server. The `https` origin is always allowed, since a proxy may add TLS.
            Some(origin) if !secure && origin.eq_ignore_ascii_case(&own_origin(&host, false)) => Ok(()),
            Some(_) => Err(Rejection::foreign_origin()),
        }
    }

    /// The same for resources that only pages of the server itself may request.
    pub(crate) fn check_own(&self, headers: &HeaderMap, here: SocketAddr, secure: bool) -> Result<(), Rejection> {
        self.check_link(headers, here, secure)?;
        if from_foreign_page(headers) {
            return Err(Rejection::foreign_origin());
        }
        Ok(())
    }

    fn check_host(&self, headers: &HeaderMap, here: SocketAddr) -> Result<String, Rejection> {
        let host = single_value(headers, HOST.as_str())?.ok_or_else(Rejection::no_host)?;
        let host = host.to_ascii_lowercase();
        if self.host_is_ours(&host, here) {
            Ok(host)
        } else {
            Err(Rejection::foreign_host())
        }
    }

    /// Returns true if the operator allowed pages of this origin to read answers.
    pub(crate) fn may_read(&self, origin: &str) -> bool {
        self.origins.contains(&origin.to_ascii_lowercase())
    }

    fn host_is_ours(&self, host: &str, here: SocketAddr) -> bool {
        let Some((name, port)) = authority(host) else {
            return false;
        };
        // Rebinding cannot forge an address of this connection: the browser used the number.
        let by_number = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let to_us = by_number.is_ok_and(|ip| ip == here.ip().to_canonical());
        let loopback = here.ip().to_canonical().is_loopback() && matches!(name, "localhost" | "127.0.0.1" | "[::1]");
        let port_is_ours = port == Some(here.port()) || (port.is_none() && here.port() == 80);
        if port_is_ours && (to_us || loopback) {
            return true;
        }
        self.hosts.iter().any(|allowed| match authority(allowed) {
            // A name without a port stands for the server behind a proxy, and for this server's own port.
            Some((allowed, None)) => allowed == name && port.is_none_or(|port| port == here.port()),
            Some(_) => allowed == host,
            None => false,
        })
    }

    fn origin_is_ours(&self, origin: &str, host: &str, secure: bool) -> bool {
        let origin = origin.to_ascii_lowercase();
        origin == own_origin(host, secure) || self.origins.contains(&origin)
    }
}

fn own_origin(host: &str, secure: bool) -> String {
    format!("{}://{host}", if secure { "https" } else { "http" })
}

/// Browsers send this header also where they send no `Origin`.
fn from_foreign_page(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// The one value of a header that must not appear twice; two programs could read two values differently.
pub(crate) fn single_value<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Rejection> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Rejection::twice(name));
    }
    first.to_str().map(Some).map_err(|_| Rejection::unreadable(name))
}

/// Splits `name[:port]`. The name keeps the brackets of an IPv6 address.
fn authority(text: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, _)) if name.starts_with('[') && !name.ends_with(']') => (text, None),
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(port.parse().ok()?))
        }
        Some(_) => return None,
        None => (text, None),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !name.is_empty() && name.bytes().all(plain);
    let is_v6 = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (is_name || is_v6).then_some((name, port))
}

fn is_origin(text: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| authority(rest).is_some()))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const LOCAL_ADDRESS: &str = "127.0.0.1:8123";

    fn asked(host_origin: &HostOrigin, here: &str, headers: &[(&'static str, &str)]) -> Result<(), u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        host_origin
            .check(&map, here.parse().unwrap(), false)
            .map_err(|rejection| rejection.status.as_u16())
    }

    #[test]
    fn the_page_makes_same_origin_requests_only_and_may_be_linked_from_anywhere() {
        let host_origin = HostOrigin::new(&["cell.example".into()], &["https://app.example".into()]).unwrap();
        let mut map = HeaderMap::new();
        let mut asked = |host: &str, origin: Option<&str>, site: Option<&str>, secure: bool| {
            map.clear();
            for (name, value) in [("host", Some(host)), ("origin", origin), ("sec-fetch-site", site)] {
                if let Some(value) = value {
                    map.insert(name, HeaderValue::from_str(value).unwrap());
                }
            }
            let here = LOCAL_ADDRESS.parse().unwrap();
            (
                host_origin.check_link(&map, here, secure).is_ok(),
                host_origin.check_own(&map, here, secure).is_ok(),
            )
        };
        assert_eq!(asked(LOCAL_ADDRESS, None, Some("cross-site"), false), (true, false));
        assert_eq!(asked(LOCAL_ADDRESS, None, Some("same-site"), false), (true, false));
        assert_eq!(
            asked(LOCAL_ADDRESS, Some("http://127.0.0.1:8123"), Some("same-origin"), false),
            (true, true)
        );
        assert_eq!(
            asked("cell.example", Some("https://cell.example"), None, false),
            (true, true)
        );
        assert_eq!(
            asked("cell.example", Some("http://cell.example"), None, true),
            (false, false)
        );
        assert_eq!(asked("evil.example", None, None, false), (false, false));
        for foreign in [
            "https://app.example",
            "http://127.0.0.1:8124",
            "http://localhost:8123",
            "null",
        ] {
            assert_eq!(
                asked(LOCAL_ADDRESS, Some(foreign), None, false),
                (false, false),
                "{foreign}"
            );
        }
    }

    #[test]
    fn requests_need_a_host_name_of_the_server() {
        let host_origin = HostOrigin::default();
        for host in ["127.0.0.1:8123", "localhost:8123", "LOCALHOST:8123", "[::1]:8123"] {
            assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example:8123",
            "localhost.evil.example:8123",
            "localhost:8124",
            "localhost",
            "localhost:",
            "localhost:08123x",
            "127.0.0.1:8123@evil.example",
            "evil.example#localhost:8123",
            "localhost:8123/",
            " localhost:8123 x",
            "localhost.:8123",
            "0.0.0.0:8123",
            "127.1:8123",
            "2130706433:8123",
            "[::ffff:127.0.0.1]:8123",
            "",
        ] {
            assert_eq!(
                asked(&host_origin, LOCAL_ADDRESS, &[("host", host)]),
                Err(403),
                "{host:?}"
            );
        }
        assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &[]), Err(400));
        let twice = [("host", "localhost:8123"), ("host", "evil.example")];
        assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &twice), Err(400));
    }

    #[test]
    fn other_addresses_accept_only_themselves_and_allowed_hosts() {
        let here = "10.0.0.5:8123";
        let host_origin = HostOrigin::new(&["cell.example".into(), "fixed.example:99".into()], &[]).unwrap();
        for host in ["10.0.0.5:8123", "cell.example", "Cell.Example:8123", "fixed.example:99"] {
            assert_eq!(asked(&host_origin, here, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "localhost:8123",
            "127.0.0.1:8123",
            "10.0.0.6:8123",
            "cell.example:99",
            "fixed.example",
            "fixed.example:8123",
            "a.cell.example",
            "cell.example.evil.example",
        ] {
            assert_eq!(asked(&host_origin, here, &[("host", host)]), Err(403), "{host}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let host_origin = HostOrigin::new(&[], &["http://localhost:6274".into()]).unwrap();
        let with = |origin: &str| {
            asked(
                &host_origin,
                LOCAL_ADDRESS,
                &[("host", LOCAL_ADDRESS), ("origin", origin)],
            )
        };
        for origin in [
            "http://127.0.0.1:8123",
            "http://localhost:6274",
            "HTTP://LOCALHOST:6274",
        ] {
            assert_eq!(with(origin), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost:6275",
            "https://127.0.0.1:8123",
            "http://127.0.0.1:8123.evil.example",
            "http://127.0.0.1:8123/",
            "http://localhost",
            "file://",
        ] {
            assert_eq!(with(origin), Err(403), "{origin:?}");
        }
        let twice = [
            ("host", LOCAL_ADDRESS),
            ("origin", "http://127.0.0.1:8123"),
            ("origin", "null"),
        ];
        assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &twice), Err(400));
        let foreign = [("host", LOCAL_ADDRESS), ("sec-fetch-site", "cross-site")];
        assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &foreign), Err(403));
        let typed = [("host", LOCAL_ADDRESS), ("sec-fetch-site", "none")];
        assert_eq!(asked(&host_origin, LOCAL_ADDRESS, &typed), Ok(()));
    }

    #[test]
    fn invalid_host_names_are_refused_at_startup() {
        for host in [
            "",
            "*",
            "*.example.com",
            "http://a",
            "a/b",
            "a:b",
            "a:99999",
            "[::1",
            "a b",
        ] {
            assert!(HostOrigin::new(&[host.into()], &[]).is_err(), "{host}");
        }
        for origin in [
            "*",
            "null",
            "a.example",
            "http://",
            "http://a/",
            "https://*.a.example",
            "ftp://a",
        ] {
            assert!(HostOrigin::new(&[], &[origin.into()]).is_err(), "{origin}");
        }
    }
}
