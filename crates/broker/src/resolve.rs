//! Resolves hosts to addresses that may be connected to. The broker resolves a host once and connects to the checked
//! addresses, so a different second answer of a name server has no effect.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolving};
use tokio::time::timeout;

use crate::address::{is_outside, is_public};
use crate::host::Host;

/// The time-out of resolving a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of names that one client remembers.
const MAX_NAMES: usize = 1000;

/// A resolver: returns the addresses of a name.
pub(crate) type Resolve = Arc<dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The reason that a host has no usable address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResolveError {
    /// The name was not found. Contains the reason.
    Unknown(String),
    /// None of its addresses may be connected to.
    Refused(Vec<IpAddr>),
}

/// Returns the machine's resolver.
pub(crate) fn system() -> Resolve {
    Arc::new(|name, port| Box::pin(look_up(name, port)))
}

/// Queries the machine's resolver. The trailing dot makes the name absolute, so that no search list changes it.
async fn look_up(name: String, port: u16) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((format!("{name}."), port)).await?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Returns the addresses of a host that `reaches` permits.
pub(crate) async fn addresses(
    host: &Host,
    port: u16,
    resolve: &Resolve,
    reaches: impl Fn(IpAddr) -> bool,
) -> Result<Vec<IpAddr>, ResolveError> {
    let found = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => timeout(RESOLVE_TIMEOUT, resolve(name.clone(), port))
            .await
            .map_err(|_| ResolveError::Unknown("the name server does not answer".to_owned()))?
            .map_err(|error| ResolveError::Unknown(error.to_string()))?,
    };
    let found = found.into_iter().map(|address| address.to_canonical());
    let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) = found.partition(|address| reaches(*address));
    if good.is_empty() && !bad.is_empty() {
        return Err(ResolveError::Refused(bad));
    }
    Ok(good)
}

/// Names with checked public addresses. An HTTP client with this resolver connects to these addresses only.
pub(crate) struct PublicNames {
    resolve: Resolve,
    known: Mutex<HashMap<String, Vec<IpAddr>>>,
}

impl std::fmt::Debug for PublicNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicNames")
            .field("known", &self.known())
            .finish_non_exhaustive()
    }
}

impl PublicNames {
    pub(crate) fn new(resolve: Resolve) -> Self {
        Self {
            resolve,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<IpAddr>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a host, and remembers the addresses of a name.
    pub(crate) async fn check(&self, host: &Host, port: u16) -> Result<(), ResolveError> {
        let Host::Name(name) = host else {
            return addresses(host, port, &self.resolve, is_outside).await.map(drop);
        };
        if self.known().contains_key(name) {
            return Ok(());
        }
        let found = addresses(host, port, &self.resolve, is_outside).await?;
        if found.is_empty() {
            return Err(ResolveError::Unknown("it has no address".to_owned()));
        }
        let mut known = self.known();
        if known.len() >= MAX_NAMES {
            known.clear();
        }
        known.entry(name.clone()).or_insert(found);
        Ok(())
    }
}

impl reqwest::dns::Resolve for PublicNames {
    /// Returns the checked addresses, and resolves nothing.
    fn resolve(&self, name: Name) -> Resolving {
        let found = match Host::parse(name.as_str()) {
            Ok(Host::Name(name)) => self.known().get(&name).cloned(),
            Ok(Host::Address(_)) | Err(_) => None,
        };
        let unchecked = || -> Box<dyn std::error::Error + Send + Sync> { Box::from("its addresses were not checked") };
        Box::pin(std::future::ready(found.map(sockets).ok_or_else(unchecked)))
    }
}

/// Names with the addresses of their first resolution. If a name has a public address, its other addresses are
/// dropped: a public index cannot become a private one during its use.
#[derive(Debug, Default)]
pub(crate) struct PinnedNames(Arc<Mutex<HashMap<String, Vec<IpAddr>>>>);

impl reqwest::dns::Resolve for PinnedNames {
    fn resolve(&self, name: Name) -> Resolving {
        let known = Arc::clone(&self.0);
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = lock().get(&name) {
                return Ok(sockets(found.clone()));
            }
            // Without a trailing dot, because an operator may name a host by one word.
            let found = timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), 0))).await??;
            let found = public_if_any(found.map(|address| address.ip()).collect());
            Ok(sockets(lock().entry(name).or_insert(found).clone()))
        })
    }
}

/// Returns the public ones of these addresses, or all of them if none is public.
fn public_if_any(mut found: Vec<IpAddr>) -> Vec<IpAddr> {
    if found.iter().any(|address| is_public(*address)) {
        found.retain(|address| is_public(*address));
    }
    found
}

fn sockets(addresses: Vec<IpAddr>) -> Addrs {
    Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use reqwest::dns::Resolve as _;

    use super::*;

    fn parsed(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Returns a resolver whose second answer differs from its first.
    fn rebinding(first: &'static [&'static str], then: &'static [&'static str]) -> Resolve {
        let asked = AtomicUsize::new(0);
        Arc::new(move |_, _| {
            let answer = if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                first
            } else {
                then
            };
            Box::pin(std::future::ready(Ok(parsed(answer))))
        })
    }

    async fn connected_to(names: &PublicNames, name: &str) -> Option<Vec<IpAddr>> {
        let found = names.resolve(name.parse().unwrap()).await.ok()?;
        Some(found.map(|address| address.ip()).collect())
    }

    #[tokio::test]
    async fn only_public_addresses_are_connected_to_and_a_second_dns_answer_changes_nothing() {
        let names = PublicNames::new(rebinding(&["127.0.0.1", "1.1.1.1", "169.254.169.254"], &["127.0.0.1"]));
        let host = Host::parse("files.example").unwrap();
        assert_eq!(connected_to(&names, "files.example").await, None, "it is unchecked");
        for _ in 0..3 {
            names.check(&host, 443).await.unwrap();
            assert_eq!(connected_to(&names, "files.example").await, Some(parsed(&["1.1.1.1"])));
        }
        assert_eq!(connected_to(&names, "FILES.example.").await, Some(parsed(&["1.1.1.1"])));
    }

    #[tokio::test]
    async fn a_name_without_a_public_address_is_refused() {
        for inner in [
            "127.0.0.1",
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "fd00:ec2::254",
        ] {
            let answer: Vec<IpAddr> = parsed(&[inner]);
            let resolve: Resolve = Arc::new(move |_, _| Box::pin(std::future::ready(Ok(answer.clone()))));
            let names = PublicNames::new(resolve);
            let refused = names.check(&Host::parse("inner.example").unwrap(), 443).await;
            assert!(matches!(refused, Err(ResolveError::Refused(_))), "{inner}: {refused:?}");
            assert_eq!(connected_to(&names, "inner.example").await, None, "{inner}");
        }
    }

    #[test]
    fn the_private_addresses_of_a_public_name_are_dropped() {
        assert_eq!(public_if_any(parsed(&["10.0.0.1", "1.1.1.1"])), parsed(&["1.1.1.1"]));
        assert_eq!(
            public_if_any(parsed(&["10.0.0.1", "::1"])),
            parsed(&["10.0.0.1", "::1"])
        );
    }
}
