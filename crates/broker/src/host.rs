//! Hosts and patterns of hosts. Parsing is strict: an ambiguous text is refused, never guessed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The maximum length of a DNS name.
const NAME_MAX: usize = 253;
/// The ports of a pattern without a port.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// A host: a lower-case name without a trailing dot, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name of at least two labels.
    Name(String),
    /// An IP address.
    Address(IpAddr),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl std::fmt::Display for Target {
    /// Formats the target as a pattern that allows it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.host)?;
        if DEFAULT_PORTS.contains(&self.port) {
            return Ok(());
        }
        write!(f, ":{}", self.port)
    }
}

impl Host {
    /// Parses a host.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or("has a bracket too much")?;
            let address: Ipv6Addr = inner.parse().map_err(|_| "is no address")?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > NAME_MAX {
            return Err("is empty or too long");
        }
        if !name.is_ascii() {
            return Err("is not ASCII: write such a name in its xn-- form");
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !name.bytes().all(plain) {
            return Err("has characters that no host name has");
        }
        let name = name.to_ascii_lowercase();
        let sound =
            |label: &str| !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-');
        if !name.split('.').all(sound) {
            return Err("is no host name");
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        // Some programs read `2130706433`, `0x7f.1` and `0177.0.0.1` as addresses. Only the plain form is accepted
        // here.
        if last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") {
            let address: Ipv4Addr = name.parse().map_err(|_| "ends in a number and is no plain address")?;
            return Ok(Self::Address(address.into()));
        }
        if !name.contains('.') {
            return Err("is a single word, which is no host of the internet");
        }
        Ok(Self::Name(name))
    }
}

impl Target {
    /// Parses `host:port`. Without a port, uses `default` if it is given.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub fn parse(text: &str, default: Option<u16>) -> Result<Self, &'static str> {
        let (host, port) = split(text);
        let port = match port {
            Some(port) => read_port(port)?,
            None => default.ok_or("has no port")?,
        };
        Ok(Self {
            host: Host::parse(host)?,
            port,
        })
    }
}

/// Splits the port off.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        // In a bare IPv6 address this splits at the last colon. The host is then invalid, because it has no brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn read_port(text: &str) -> Result<u16, &'static str> {
    let plain = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse()
        .ok()
        .filter(|_| plain)
        .ok_or("has a port that is no number from 1 to 65535")
}

/// A pattern of hosts to allow or deny.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    hosts: Hosts,
    ports: Ports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    /// Every name, and no address.
    Names,
    /// Every name below this one.
    Below(String),
    One(Host),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Default,
    One(u16),
    Any,
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.hosts {
            Hosts::Names => f.write_str("*")?,
            Hosts::Below(name) => write!(f, "*.{name}")?,
            Hosts::One(host) => write!(f, "{host}")?,
        }
        match self.ports {
            Ports::Default => Ok(()),
            Ports::One(port) => write!(f, ":{port}"),
            Ports::Any => f.write_str(":*"),
        }
    }
}

impl Pattern {
    /// Parses `api.example.com`, `*.example.org` (every name below it), `*` (every name) or an address, each with an
    /// optional `:PORT` or `:*`. Without a port, the pattern matches ports 80 and 443.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        Self::read(text, Ports::Default)
    }

    /// Parses a pattern to deny. Without a port, it matches all ports.
    ///
    /// # Errors
    /// The problem, as the end of a sentence.
    pub(crate) fn parse_denied(text: &str) -> Result<Self, &'static str> {
        Self::read(text, Ports::Any)
    }

    fn read(text: &str, default: Ports) -> Result<Self, &'static str> {
        if text.contains("://") || text.contains('/') {
            return Err("is an address of a page: name the host alone");
        }
        let (host, port) = split(text);
        let ports = match port {
            None => default,
            Some("*") => Ports::Any,
            Some(port) => Ports::One(read_port(port)?),
        };
        let hosts = match host.strip_prefix("*.") {
            _ if host == "*" => Hosts::Names,
            Some(below) if below.contains('.') => match Host::parse(below)? {
                Host::Name(name) => Hosts::Below(name),
                Host::Address(_) => return Err("has an address below a star"),
            },
            // The added label allows `*.org`: a pattern below a single label.
            Some(below) => match Host::parse(&format!("x.{below}"))? {
                Host::Name(_) => Hosts::Below(below.trim_end_matches('.').to_ascii_lowercase()),
                Host::Address(_) => return Err("has an address below a star"),
            },
            None => Hosts::One(Host::parse(host)?),
        };
        Ok(Self { hosts, ports })
    }

    /// Returns true if the pattern matches this target.
    #[must_use]
    pub fn matches(&self, target: &Target) -> bool {
        let host = match (&self.hosts, &target.host) {
            (Hosts::Names, Host::Name(_)) => true,
            (Hosts::Below(below), Host::Name(name)) => lies_below(name, below),
            (Hosts::One(one), host) => one == host,
            (Hosts::Names | Hosts::Below(_), Host::Address(_)) => false,
        };
        host && match self.ports {
            Ports::Any => true,
            Ports::One(port) => port == target.port,
            Ports::Default => DEFAULT_PORTS.contains(&target.port),
        }
    }

    /// Returns true if the pattern matches every target that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let hosts = match (&self.hosts, &other.hosts) {
            (Hosts::Names, Hosts::Names | Hosts::Below(_) | Hosts::One(Host::Name(_))) => true,
            (Hosts::Below(below), Hosts::Below(other)) => other == below || lies_below(other, below),
            (Hosts::Below(below), Hosts::One(Host::Name(name))) => lies_below(name, below),
            (Hosts::One(one), Hosts::One(other)) => one == other,
            (Hosts::Names | Hosts::Below(_) | Hosts::One(_), _) => false,
        };
        hosts
            && match (self.ports, other.ports) {
                (Ports::Any, _) | (Ports::Default, Ports::Default) => true,
                (Ports::Default, Ports::One(port)) => DEFAULT_PORTS.contains(&port),
                (Ports::One(port), Ports::One(other)) => port == other,
                (Ports::Default | Ports::One(_), _) => false,
            }
    }
}

fn lies_below(name: &str, below: &str) -> bool {
    name.strip_suffix(below).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_read_strictly() {
        for (text, host) in [
            ("API.Example.com", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("1.2.3.4", "1.2.3.4"),
            ("[2606:4700::1]", "[2606:4700::1]"),
            ("[::ffff:1.2.3.4]", "1.2.3.4"),
            ("1e100.net", "1e100.net"),
            // Some programs accept a dot after an address, others do not. It is parsed as the address in both cases.
            ("127.0.0.1.", "127.0.0.1"),
        ] {
            assert_eq!(Host::parse(text).unwrap().to_string(), host, "{text}");
        }
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a.b",
            "a.b..",
            "localhost",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "1.2.3.4.5",
            "1.2.3",
            "example.com.123",
            "evil.com\0.example.com",
            "evil.com%00.example.com",
            "user@example.com",
            "example.com#x",
            "example.com\\x",
            "exa mple.com",
            "exam\tple.com",
            "b\u{fc}cher.example",
            "\u{ff45}xample.com",
            "example\u{3002}com",
            "-a.example",
            "a-.example",
            "2606:4700::1",
            "[2606:4700::1",
            "[fe80::1%eth0]",
            "[1.2.3.4]",
            "*.example.com",
        ] {
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
        assert!(Host::parse(&format!("{}.com", "a".repeat(64))).is_err());
        assert!(Host::parse(&format!("{}com", "a.".repeat(200))).is_err());
    }

    #[test]
    fn targets_need_a_decimal_port() {
        assert_eq!(Target::parse("a.example:8443", None).unwrap().port, 8443);
        assert_eq!(Target::parse("[2606:4700::1]:443", None).unwrap().port, 443);
        assert_eq!(Target::parse("a.example", Some(80)).unwrap().port, 80);
        for text in [
            "a.example",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            "a.example:+80",
            "a.example:080",
            "a.example:80:80",
            "a.example:http",
            ":80",
            "a.example: 80",
            "2606:4700::1:80",
        ] {
            assert!(Target::parse(text, None).is_err(), "{text:?}");
        }
    }

    #[test]
    fn patterns_match_exactly_the_named_hosts() {
        let matches = |pattern: &str, target: &str| {
            Pattern::parse(pattern)
                .unwrap()
                .matches(&Target::parse(target, Some(443)).unwrap())
        };
        for (pattern, target) in [
            ("api.example.com", "api.example.com"),
            ("api.example.com", "API.example.com.:80"),
            ("*.example.com", "a.example.com"),
            ("*.example.com", "a.b.example.com"),
            ("*", "anything.example"),
            ("a.example:8080", "a.example:8080"),
            ("a.example:*", "a.example:25"),
            ("1.1.1.1", "1.1.1.1"),
            ("*.org", "pypi.org"),
        ] {
            assert!(matches(pattern, target), "{pattern} {target}");
        }
        for (pattern, target) in [
            ("*.example.com", "example.com"),
            ("*.example.com", "evilexample.com"),
            ("*.example.com", "a.example.com.evil.org"),
            ("api.example.com", "x.api.example.com"),
            ("a.example", "a.example:8080"),
            ("a.example:8080", "a.example"),
            ("*", "1.1.1.1"),
            ("*", "[2606:4700::1]"),
            ("*.1.1.example", "1.1.1.1"),
        ] {
            assert!(!matches(pattern, target), "{pattern} {target}");
        }
        for bad in [
            "",
            "**",
            "a.*.com",
            "*a.com",
            "*.",
            "*.1.1.1.1",
            "https://a.example",
            "a.example/x",
            "*:0",
            "*.*.com",
        ] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn requested_hosts_must_be_within_the_allowed_ones() {
        let covers =
            |allowed: &str, asked: &str| Pattern::parse(allowed).unwrap().covers(&Pattern::parse(asked).unwrap());
        for (allowed, asked) in [
            ("*", "*.example.com"),
            ("*", "*"),
            ("*.example.com", "*.a.example.com"),
            ("*.example.com", "*.example.com"),
            ("*.example.com", "a.example.com:443"),
            ("a.example:*", "a.example:25"),
            ("a.example:*", "a.example"),
            ("1.1.1.1", "1.1.1.1"),
        ] {
            assert!(covers(allowed, asked), "{allowed} {asked}");
        }
        for (allowed, asked) in [
            ("*.example.com", "*"),
            ("*.example.com", "example.com"),
            ("*.a.example.com", "*.example.com"),
            ("*", "1.1.1.1"),
            ("*", "a.example:25"),
            ("a.example:80", "a.example"),
            ("a.example", "a.example:*"),
            ("a.example", "*.a.example"),
        ] {
            assert!(!covers(allowed, asked), "{allowed} {asked}");
        }
    }

    proptest! {
        #[test]
        fn fuzz_a_parsed_host_parses_the_same_again(text in "[a-zA-Z0-9.:*@%\\[\\]_ -]{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(Pattern::parse(&pattern.to_string()), Ok(pattern.clone()));
                prop_assert!(pattern.covers(&pattern));
            }
        }
    }
}
