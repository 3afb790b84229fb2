//! The links and redirects of a package index that may be followed.
//!
//! The operator chooses an index, at any address. The addresses in that index are another person's choice, and could
//! name a service of this machine or its network. So a link may lead only to the index itself (the same origin), to an
//! origin that the operator names, or to the public internet. Credentials are sent only to an origin that the operator
//! named, and only the credentials for this origin.

use std::sync::Arc;

use reqwest::Url;

use crate::host::Target;

/// Origins of public indexes, each with the origin of its files.
const FILES_OF_INDEX: [(&str, &str); 2] = [
    ("https://pypi.org", "https://files.pythonhosted.org"),
    ("https://test.pypi.org", "https://test-files.pythonhosted.org"),
];
/// The permitted ports of other hosts. The operator can name an origin with another port.
const PERMITTED_PORTS: [u16; 2] = [80, 443];

/// An address to fetch, and the page that contains it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    url: Url,
    page: Arc<Page>,
}

/// A page with links.
#[derive(Debug)]
pub(crate) struct Page {
    /// The operator's address of the index that led to the page.
    index: Url,
    url: Url,
}

/// The reason that a link is not followed, as the end of a sentence about the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("is neither an http nor an https address")]
    Scheme,
    #[error("would be asked without encryption by a page that came with it")]
    Downgrade,
    #[error("{0}")]
    Host(&'static str),
    #[error("has another port than 80 and 443")]
    Port,
    #[error("is not on the public internet")]
    Private,
}

/// The route by which a link is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// With the machine's proxies and credentials, at any address: the operator named the origin.
    Named,
    /// Directly, without credentials, at a public address.
    Public(Target),
}

impl Link {
    /// Returns the link to a page of the operator's index.
    pub(crate) fn of_index(url: Url) -> Self {
        let page = Page {
            index: url.clone(),
            url: url.clone(),
        };
        Self {
            url,
            page: Arc::new(page),
        }
    }

    pub(crate) const fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the linked page, for links on it.
    pub(crate) fn followed(&self) -> Arc<Page> {
        Arc::new(Page {
            index: self.page.index.clone(),
            url: self.url.clone(),
        })
    }

    /// Returns the same link with another path.
    pub(crate) fn with_path(mut self, path: &str) -> Self {
        self.url.set_path(path);
        self
    }

    /// Returns the host of the index that led to this link.
    pub(crate) fn index_host(&self) -> String {
        crate::machine::host(&self.page.index)
    }

    /// Returns the origin in the form of the operator's setting.
    pub(crate) fn origin(&self) -> String {
        match self.url.origin() {
            origin if origin.is_tuple() => origin.ascii_serialization(),
            _ => format!("{}:", self.url.scheme()),
        }
    }

    /// Decides how the link is fetched. The address of a public route must still be checked.
    pub(crate) fn route(&self, named: &[Url]) -> Result<Route, Refusal> {
        let url = &self.url;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme);
        }
        if self.is_of_index() || named.iter().any(|origin| origin.origin() == url.origin()) {
            return Ok(Route::Named);
        }
        if url.scheme() == "http" && self.page.url.scheme() == "https" {
            return Err(Refusal::Downgrade);
        }
        let index = self.page.index.origin().ascii_serialization();
        if FILES_OF_INDEX.contains(&(index.as_str(), self.origin().as_str())) {
            return Ok(Route::Named);
        }
        let port = url.port_or_known_default().unwrap_or_default();
        let host = url.host_str().unwrap_or_default();
        let target = Target::parse(&format!("{host}:{port}"), None).map_err(Refusal::Host)?;
        if !PERMITTED_PORTS.contains(&port) {
            return Err(Refusal::Port);
        }
        Ok(Route::Public(target))
    }

    /// Returns true if the link leads to the index itself, which may have moved from http to https.
    fn is_of_index(&self) -> bool {
        let (index, url) = (&self.page.index, &self.url);
        let plain = |url: &Url| url.scheme() == "http" && url.port().is_none();
        let secure = |url: &Url| url.scheme() == "https" && url.port().is_none();
        index.origin() == url.origin() || (plain(index) && secure(url) && index.host() == url.host())
    }
}

impl Page {
    pub(crate) const fn url(&self) -> &Url {
        &self.url
    }

    /// Returns a link on this page. A user name and password in it come from the page, so they are removed.
    pub(crate) fn link(self: &Arc<Self>, mut url: Url) -> Link {
        // This fails only for addresses without a host, which have no user name.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Link {
            url,
            page: Arc::clone(self),
        }
    }
}

/// Parses the operator's origins.
///
/// # Errors
/// The invalid entry, and the problem.
pub(crate) fn read_origins(texts: &[String]) -> Result<Vec<Url>, String> {
    let read = |text: &String| {
        let url = Url::parse(text.trim()).ok();
        url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .filter(|url| url.path() == "/" && url.query().is_none() && url.username().is_empty())
            .ok_or_else(|| format!("{text:?} is not an origin such as https://files.example or http://10.0.0.7:8081"))
    };
    texts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn route(index: &str, link: &str, named: &[&str]) -> Result<Route, Refusal> {
        let named: Vec<Url> = named.iter().map(|text| url(text)).collect();
        Link::of_index(url(index)).followed().link(url(link)).route(&named)
    }

    #[test]
    fn an_index_leads_to_itself_to_named_origins_and_to_the_public_internet() {
        let private = "http://127.0.0.1:3141/root/pypi/+simple/";
        for (index, link) in [
            (private, "http://127.0.0.1:3141/f/a.whl"),
            ("http://nexus/simple/", "https://nexus/f/a.whl"),
            ("https://pypi.org/simple/", "https://files.pythonhosted.org/a.whl"),
            (private, "http://files.corp:8081/a.whl"),
        ] {
            assert_eq!(
                route(index, link, &["http://files.corp:8081"]),
                Ok(Route::Named),
                "{link}"
            );
        }
        for link in ["https://files.pythonhosted.org/a.whl", "http://files.example/a.whl"] {
            assert!(matches!(route(private, link, &[]), Ok(Route::Public(_))), "{link}");
        }
    }

    #[test]
    fn alternative_spellings_of_a_link_are_refused() {
        let index = "http://127.0.0.1:3141/simple/";
        for link in [
            "http://127.0.0.1:9000/",
            "http://127.0.0.1/",
            "https://127.0.0.1:3141/",
            "http://2130706433:9000/",
            "http://0x7f.1:9000/",
            "http://0177.0.0.1:9000/",
            "http://127.1:9000/",
            "http://0.0.0.0:9000/",
            "http://[::1]:9000/",
            "http://[::ffff:127.0.0.1]:9000/",
            "http://localhost/",
            "http://localhost.:3141/",
            "http://metadata/",
            "http://files.example:22/",
            "http://127.0.0.1:3141@127.0.0.1:9000/",
            "ftp://127.0.0.1:3141/",
            "file:///etc/passwd",
        ] {
            let found = route(index, link, &[]);
            let is_checked = |target: &Target| matches!(target.host, crate::Host::Address(a) if !crate::is_public(a));
            match &found {
                // Hosts that pass to the address check are not public, so that check ends the request.
                Ok(Route::Public(target)) => assert!(is_checked(target), "{link}: {found:?}"),
                Ok(Route::Named) => panic!("{link} is followed"),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn an_https_page_may_not_link_to_http() {
        let index = "https://index.example/simple/";
        let downgrade = Err(Refusal::Downgrade);
        assert_eq!(route(index, "http://files.example/a.whl", &[]), downgrade);
        assert_eq!(route(index, "http://index.example/a.whl", &[]), downgrade);
        let moved = Link::of_index(url("http://index.example/simple/")).followed();
        let secure = moved.link(url("https://index.example/simple/")).followed();
        assert_eq!(secure.link(url("http://files.example/a.whl")).route(&[]), downgrade);
    }

    #[test]
    fn credentials_in_the_links_of_a_page_are_dropped() {
        let page = Link::of_index(url("https://me:secret@index.example/simple/")).followed();
        let link = page.link(page.url().join("a.whl").unwrap());
        assert_eq!(link.url().as_str(), "https://index.example/simple/a.whl");
        assert_eq!(link.origin(), "https://index.example");
    }

    #[test]
    fn origins_are_read_strictly() {
        let read = |text: &str| read_origins(&[text.to_owned()]);
        assert_eq!(read("http://10.0.0.7:8081").unwrap(), [url("http://10.0.0.7:8081/")]);
        for bad in [
            "files.example",
            "ftp://x",
            "https://x/path",
            "https://me@x",
            "https://x/?q",
            "",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
