//! Validates the operator's settings for the service, and derives its addresses.

use std::time::Duration;

use reqwest::Url;
use sandcell_sandbox::{Level, SandboxError, Secret};
use sandcell_settings::{Kind, SettingType, Value, operator, project, whole};

use super::error::unavailable;

/// The port of a sandbox's file and process services.
pub(super) const ENVD_PORT: u16 = 49_983;
/// The port of a sandbox's code interpreter.
pub(super) const INTERPRETER_PORT: u16 = 49_999;
/// E2B's own domains.
const OWN_DOMAINS: [&str; 2] = ["e2b.app", "e2b.dev"];

sandcell_settings::settings! {
    /// The operator's settings for the E2B service.
    #[derive(Debug, Clone, PartialEq)]
    pub struct E2bConfig in "e2b." {
        /// The key of the E2B account, for the back end `e2b`; `E2B_API_KEY` means the same. It is never shown.
        "api_key" => key: Option<Secret> = project(Kind::Secret, "").also("E2B_API_KEY"),

        /// The domain of the E2B service; `E2B_DOMAIN` means the same.
        "domain" => domain: String = operator(Kind::RequiredText, "e2b.app").also("E2B_DOMAIN"),

        /// The address of its API, for a self-hosted service; `E2B_API_URL` means the same. Empty: `https://api.` and
        /// the domain.
        "api_url" => api_url: Option<String> = operator(Kind::Text, "").also("E2B_API_URL"),

        /// One address for all ports of all sandboxes; `E2B_SANDBOX_URL` means the same. Empty: each port has a
        /// separate address below the domain.
        "sandbox_url" => sandbox_url: Option<String> = operator(Kind::Text, "").also("E2B_SANDBOX_URL"),

        /// Uses this machine's ports 49983 and 49999 as the only sandbox, without a service; `E2B_DEBUG` means the
        /// same.
        "debug" => debug: Debug = operator(Kind::Flag, "false").also_lenient_flag("E2B_DEBUG"),

        /// The template of E2B sandboxes; it must contain a code interpreter.
        "template" => template: String = project(Kind::RequiredText, "code-interpreter-v1"),

        /// The time that an E2B sandbox outlives a crashed server, in seconds. A running server keeps its sandboxes
        /// alive.
        "timeout_s" => lifetime: Duration = project(whole(15, 86_400), "300"),

        /// The isolation level of the service. `auto`: `microvm` at E2B's own domain, `container` elsewhere.
        "level" => level: Option<Level> = operator(Kind::OneOf(&["auto", "microvm", "gvisor", "container"]), "auto"),

        /// Lets E2B sandboxes reach the internet.
        "internet" => internet: Internet = operator(Kind::Flag, "false"),
    }
}

/// Debug mode, which uses no service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Debug {
    Off,
    On,
}

/// Internet access of sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Internet {
    Closed,
    Open,
}

impl SettingType for Debug {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Some(if bool::from_value(key, value)? {
            Self::On
        } else {
            Self::Off
        })
    }
}

impl SettingType for Internet {
    fn from_value(key: &str, value: &Value) -> Option<Self> {
        Some(if bool::from_value(key, value)? {
            Self::Open
        } else {
            Self::Closed
        })
    }
}

/// The addresses of the service and of sandboxes.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    api: Url,
    sandbox: Option<Url>,
    domain: String,
    debug: Debug,
}

impl Addresses {
    pub(super) fn of(config: &E2bConfig) -> Result<Self, SandboxError> {
        if !is_host(&config.domain) {
            return Err(unavailable(
                "the domain is not a host name",
                "correct E2B_DOMAIN or e2b.domain, such as e2b.app",
            ));
        }
        let api = match (&config.api_url, config.debug) {
            (Some(url), _) => address(url, "E2B_API_URL")?,
            (None, Debug::On) => address("http://localhost:3000", "E2B_API_URL")?,
            (None, Debug::Off) => address(&format!("https://api.{}", config.domain), "E2B_DOMAIN")?,
        };
        let sandbox = config.sandbox_url.as_deref().map(|url| address(url, "E2B_SANDBOX_URL"));
        Ok(Self {
            api,
            sandbox: sandbox.transpose()?,
            domain: config.domain.clone(),
            debug: config.debug,
        })
    }

    /// Returns an address of the service's API. `segments` are escaped, so any content is safe.
    pub(super) fn api(&self, segments: &[&str]) -> Url {
        below(&self.api, segments)
    }

    /// Returns an address at a port of a sandbox. `domain` is the service's answer to the sandbox's creation.
    pub(super) fn port(&self, port: u16, id: &str, domain: Option<&str>, segments: &[&str]) -> Option<Url> {
        let origin = match (&self.sandbox, self.debug) {
            (Some(url), _) => url.clone(),
            (None, Debug::On) => Url::parse(&format!("http://localhost:{port}")).ok()?,
            (None, Debug::Off) => {
                let domain = domain.unwrap_or(&self.domain);
                Url::parse(&format!("https://{port}-{id}.{domain}")).ok()?
            }
        };
        Some(below(&origin, segments))
    }

    /// Returns true if all addresses are on this machine, so that no proxy is needed.
    pub(super) fn are_local(&self) -> bool {
        let local = |url: &Url| matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        local(&self.api) && self.sandbox.as_ref().map_or(self.debug == Debug::On, local)
    }

    /// Returns the isolation level for an operator who names none: E2B's own level for E2B's own service only.
    pub(super) fn level(&self) -> Level {
        let host = self.api.host_str().unwrap_or_default();
        let own = OWN_DOMAINS
            .iter()
            .any(|domain| host == *domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
        let own = own && self.api.scheme() == "https" && self.debug == Debug::Off && self.sandbox.is_none();
        if own && OWN_DOMAINS.contains(&self.domain.as_str()) {
            Level::Microvm
        } else {
            Level::Container
        }
    }
}

/// Returns true for a host name with an optional port.
pub(super) fn is_host(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    !text.is_empty() && text.len() <= 253 && text.chars().all(fits) && !text.starts_with('.')
}

/// Returns true for a valid id. Ids become parts of host names and paths.
pub(super) fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !text.is_empty() && text.len() <= 100 && text.chars().all(fits)
}

fn address(text: &str, variable: &str) -> Result<Url, SandboxError> {
    let wrong = || {
        unavailable(
            format!("{variable} is not an http or https address of a host"),
            format!("correct {variable}, or leave it out"),
        )
    };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if matches!(url.scheme(), "http" | "https") && url.host_str().is_some() && plain {
        Ok(url)
    } else {
        Err(wrong())
    }
}

fn below(origin: &Url, segments: &[&str]) -> Url {
    let mut url = origin.clone();
    // Only URLs that cannot be a base have no segments, and `address` refuses those.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config() -> E2bConfig {
        E2bConfig {
            key: Some(Secret::new("e2b_secret")),
            domain: "e2b.app".into(),
            api_url: None,
            sandbox_url: None,
            debug: Debug::Off,
            template: "code-interpreter-v1".into(),
            lifetime: Duration::from_secs(300),
            level: None,
            internet: Internet::Closed,
        }
    }

    #[test]
    fn addresses_follow_from_the_domain_or_are_given() {
        let own = Addresses::of(&config()).unwrap();
        assert_eq!(
            own.api(&["v2", "sandboxes"]).as_str(),
            "https://api.e2b.app/v2/sandboxes"
        );
        let port =
            |addresses: &Addresses, domain| addresses.port(ENVD_PORT, "i1", domain, &["files"]).unwrap().to_string();
        assert_eq!(port(&own, None), "https://49983-i1.e2b.app/files");
        assert_eq!(port(&own, Some("x.dev")), "https://49983-i1.x.dev/files");
        let given = E2bConfig {
            api_url: Some("http://127.0.0.1:80/base/".into()),
            sandbox_url: Some("http://127.0.0.1:81".into()),
            ..config()
        };
        let given = Addresses::of(&given).unwrap();
        assert_eq!(
            given.api(&["a b", "../x"]).as_str(),
            "http://127.0.0.1/base/a%20b/..%2Fx"
        );
        assert_eq!(port(&given, Some("x.dev")), "http://127.0.0.1:81/files");
        assert!(given.are_local() && !own.are_local());
        let debug = E2bConfig {
            debug: Debug::On,
            ..config()
        };
        assert_eq!(
            port(&Addresses::of(&debug).unwrap(), None),
            "http://localhost:49983/files"
        );
    }

    #[test]
    fn only_e2b_itself_counts_as_a_microvm() {
        assert_eq!(Addresses::of(&config()).unwrap().level(), Level::Microvm);
        for other in [
            E2bConfig {
                domain: "e2b.app.example.com".into(),
                ..config()
            },
            E2bConfig {
                domain: "note2b.app".into(),
                ..config()
            },
            E2bConfig {
                api_url: Some("http://api.e2b.app".into()),
                ..config()
            },
            E2bConfig {
                sandbox_url: Some("https://example.com".into()),
                ..config()
            },
            E2bConfig {
                api_url: Some("https://note2b.app".into()),
                ..config()
            },
            E2bConfig {
                debug: Debug::On,
                ..config()
            },
        ] {
            assert_eq!(Addresses::of(&other).unwrap().level(), Level::Container, "{other:?}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_its_variable_and_the_key_is_never_shown() {
        for url in ["", "ftp://x", "http://", "http://user:pw@x", "nonsense", "http://x/?q"] {
            let bad = E2bConfig {
                api_url: Some(url.into()),
                ..config()
            };
            let error = Addresses::of(&bad).unwrap_err().to_string();
            assert!(error.contains("E2B_API_URL"), "{url}: {error}");
        }
        for domain in ["", "a/b", "a@b", ".x"] {
            let bad = E2bConfig {
                domain: domain.into(),
                ..config()
            };
            assert!(Addresses::of(&bad).is_err(), "{domain}");
        }
        assert!(!format!("{:?}", config()).contains("e2b_secret"));
    }
}
