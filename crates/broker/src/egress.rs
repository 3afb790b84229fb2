//! Egress: decides which hosts a sandbox may reach, and connects to them.
//!
//! A host is parsed strictly, matched against the sandbox's requested hosts and the operator's rules, and resolved
//! once. The connection uses the checked address. Everything that is not explicitly allowed is denied. A denial is
//! stored for the caller and logged.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::address::{Range, is_outside};
use crate::counted::Counted;
use crate::host::{Host, Pattern, Target};
use crate::resolve::{self, Resolve, ResolveError};

/// The time limit of connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum wait for a connection permit.
const PERMIT_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(20)
};
/// The maximum number of addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// The maximum number of stored denials.
const MAX_STORED_DENIALS: usize = 8;
/// The maximum number of logged denials of one sandbox. Code could otherwise fill a disk with log lines.
const MAX_LOGGED_DENIALS: u64 = 100;
/// The maximum number of hosts that one sandbox may request.
const MAX_REQUESTED_HOSTS: usize = 100;

/// The operator's rules for all sandboxes.
#[derive(Debug)]
pub struct EgressRules {
    allow: Vec<Pattern>,
    deny: Vec<Deny>,
    private: Vec<PrivateException>,
    limits: EgressLimits,
}

/// The network limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// The maximum number of concurrent connections.
    pub connections: usize,
    /// The maximum number of bytes to and from all hosts together.
    pub bytes: u64,
}

#[derive(Debug)]
enum Deny {
    Hosts(Pattern),
    Addresses(Range),
}

/// A non-public address that may be reached, where a host is allowed.
#[derive(Debug)]
enum PrivateException {
    Addresses(Range),
    /// A name with a fixed address. It is not resolved.
    Named(String, IpAddr),
}

/// A denied target and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The target, as a pattern that would match it.
    pub target: String,
    /// The reason.
    pub reason: DenialReason,
}

/// The reason of a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DenialReason {
    /// The target is not a valid host. Contains the problem.
    Unreadable(&'static str),
    /// The sandbox did not request the host. True if the operator would allow that request.
    NotAsked(bool),
    /// The operator does not allow the host.
    NotAllowed,
    /// The operator denies the host.
    Denied,
    /// The host is not on the public internet.
    Private,
    /// A limit is reached. Contains its description.
    Limit(String),
}

/// The reason that there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    Denied(Denial),
    /// The host was not found or does not answer. Contains the reason.
    Unreachable(String),
}

impl EgressRules {
    /// Parses the operator's entries.
    ///
    /// # Errors
    /// The invalid entry, and the problem.
    pub fn read(allow: &[String], deny: &[String], private: &[String], limits: EgressLimits) -> Result<Self, String> {
        let with_entry = |text: &String| {
            let text = text.clone();
            move |reason: &'static str| format!("{text:?} {reason}")
        };
        let allow = allow.iter().map(|text| Pattern::parse(text).map_err(with_entry(text)));
        let deny = deny.iter().map(|text| match Range::parse(text) {
            Some(range) => Ok(Deny::Addresses(range)),
            None => Pattern::parse_denied(text).map(Deny::Hosts).map_err(with_entry(text)),
        });
        let private = private.iter().map(|text| private_entry(text).map_err(with_entry(text)));
        Ok(Self {
            allow: allow.collect::<Result<_, _>>()?,
            deny: deny.collect::<Result<_, _>>()?,
            private: private.collect::<Result<_, _>>()?,
            limits,
        })
    }

    /// Parses the hosts that a call requests, and checks that the operator allows all of them.
    ///
    /// # Errors
    /// The entry that is invalid or not allowed, and the reason.
    pub fn asked(&self, hosts: &[String]) -> Result<Vec<Pattern>, Denial> {
        if hosts.len() > MAX_REQUESTED_HOSTS {
            return Err(Denial {
                target: format!("{} hosts", hosts.len()),
                reason: DenialReason::Limit(format!("at most {MAX_REQUESTED_HOSTS} hosts can be named")),
            });
        }
        let read = |text: &String| {
            let target = legible(text);
            let pattern = Pattern::parse(text).map_err(|reason| Denial {
                target,
                reason: DenialReason::Unreadable(reason),
            })?;
            let denied = |reason| Denial {
                target: pattern.to_string(),
                reason,
            };
            if self
                .deny
                .iter()
                .any(|deny| matches!(deny, Deny::Hosts(deny) if deny.covers(&pattern)))
            {
                return Err(denied(DenialReason::Denied));
            }
            if !self.allow.iter().any(|allow| allow.covers(&pattern)) {
                return Err(denied(DenialReason::NotAllowed));
            }
            Ok(pattern)
        };
        hosts.iter().map(read).collect()
    }

    fn denies(&self, target: &Target) -> bool {
        self.deny.iter().any(|deny| match (deny, &target.host) {
            (Deny::Hosts(pattern), _) => pattern.matches(target),
            (Deny::Addresses(range), Host::Address(address)) => range.contains(*address),
            (Deny::Addresses(_), Host::Name(_)) => false,
        })
    }

    /// Returns true if an address may be connected to.
    fn reaches(&self, address: IpAddr) -> bool {
        let within = |range: &Range| range.contains(address);
        if self
            .deny
            .iter()
            .any(|deny| matches!(deny, Deny::Addresses(range) if within(range)))
        {
            return false;
        }
        let excepted = self
            .private
            .iter()
            .any(|entry| matches!(entry, PrivateException::Addresses(range) if within(range)));
        excepted || is_outside(address)
    }

    fn pinned(&self, host: &Host) -> Vec<IpAddr> {
        let Host::Name(name) = host else { return Vec::new() };
        let own = |entry: &PrivateException| match entry {
            PrivateException::Named(pinned, address) if pinned == name => Some(*address),
            PrivateException::Named(..) | PrivateException::Addresses(_) => None,
        };
        self.private.iter().filter_map(own).collect()
    }
}

fn private_entry(text: &str) -> Result<PrivateException, &'static str> {
    if let Some(range) = Range::parse(text) {
        return Ok(PrivateException::Addresses(range));
    }
    let (name, address) = text
        .split_once('=')
        .ok_or("is neither an address, nor a range of them, nor NAME=ADDRESS")?;
    match (Host::parse(name)?, address.parse()) {
        (Host::Name(name), Ok(address)) => Ok(PrivateException::Named(name, address)),
        _ => Err("is not NAME=ADDRESS"),
    }
}

/// The network access of one sandbox.
pub struct Egress {
    rules: Arc<EgressRules>,
    /// The hosts that the sandbox may reach now.
    asked: watch::Sender<Vec<Pattern>>,
    /// The sandbox's name in the log.
    name: String,
    permits: Arc<Semaphore>,
    budget: Arc<AtomicU64>,
    denials: Mutex<Denials>,
    resolve: Resolve,
    /// True after the sandbox ended.
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Denials {
    count: u64,
    /// The last different denials, each with the number of its last occurrence.
    stored: VecDeque<(u64, Denial)>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress")
            .field("name", &self.name)
            .field("asked", &*self.asked.borrow())
            .finish_non_exhaustive()
    }
}

impl Egress {
    /// Creates the network access of one sandbox. [`EgressRules::asked`] has checked the patterns.
    #[must_use]
    pub fn new(rules: Arc<EgressRules>, asked: Vec<Pattern>, name: &str) -> Arc<Self> {
        Self::resolving(rules, asked, name, resolve::system())
    }

    fn resolving(rules: Arc<EgressRules>, asked: Vec<Pattern>, name: &str, resolve: Resolve) -> Arc<Self> {
        Arc::new(Self {
            asked: watch::Sender::new(asked),
            name: name.to_owned(),
            permits: Arc::new(Semaphore::new(rules.limits.connections)),
            budget: Arc::new(AtomicU64::new(rules.limits.bytes)),
            denials: Mutex::default(),
            resolve,
            ended: watch::Sender::new(false),
            rules,
        })
    }

    /// Replaces the hosts that the sandbox may reach, and ends the connections to all others.
    ///
    /// # Errors
    /// The operator does not allow one of the hosts. Nothing changes then.
    pub fn ask(&self, hosts: &[String]) -> Result<(), Denial> {
        self.asked.send_replace(self.rules.asked(hosts)?);
        Ok(())
    }

    /// Closes every connection, because the sandbox ended.
    pub fn close(&self) {
        self.ended.send_replace(true);
        self.permits.close();
    }

    /// Runs `work` until it completes or the sandbox ends.
    pub(crate) fn while_open<W: Future>(&self, work: W) -> impl Future<Output = Option<W::Output>> + use<W> {
        let mut ended = self.ended.subscribe();
        async move {
            tokio::select! {
                biased;
                _closed = ended.wait_for(|ended| *ended) => None,
                done = work => Some(done),
            }
        }
    }

    /// Runs `work` on a connection to a target until it completes, the sandbox ends, or the target is no longer one of the
    /// sandbox's hosts.
    pub(crate) fn while_allowed<W: Future>(
        &self,
        target: Target,
        work: W,
    ) -> impl Future<Output = Option<W::Output>> + use<W> {
        let mut asked = self.asked.subscribe();
        let while_open = self.while_open(async move {
            let is_denied = |asked: &Vec<Pattern>| !asked.iter().any(|pattern| pattern.matches(&target));
            tokio::select! {
                // Before any byte of `work`.
                biased;
                _denied = asked.wait_for(is_denied) => None,
                done = work => Some(done),
            }
        });
        async move { while_open.await.flatten() }
    }

    /// Returns the number of transferred bytes until now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rules
            .limits
            .bytes
            .saturating_sub(self.budget.load(Ordering::Relaxed))
    }

    /// Returns the number of denials until now.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.denials().count
    }

    /// Returns the last different denials after the first `count`.
    #[must_use]
    pub fn denied_since(&self, count: u64) -> Vec<Denial> {
        let denials = self.denials();
        let later = denials.stored.iter().filter(|(number, _)| *number > count);
        later.map(|(_, denial)| denial.clone()).collect()
    }

    fn denials(&self) -> std::sync::MutexGuard<'_, Denials> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the permit of one more connection from inside. Returns None after a time-out, or if the sandbox
    /// ended.
    pub(crate) async fn connection_permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = timeout(PERMIT_TIMEOUT, Arc::clone(&self.permits).acquire_owned()).await {
            return permit.ok();
        }
        let max_connections = self.rules.limits.connections;
        self.deny(
            "a connection".to_owned(),
            DenialReason::Limit(format!("{max_connections} are open already")),
        );
        None
    }

    /// Stores and logs a denial.
    pub(crate) fn deny(&self, target: String, reason: DenialReason) -> Refused {
        let denial = Denial { target, reason };
        let count = {
            let mut denials = self.denials();
            denials.count = denials.count.saturating_add(1);
            let count = denials.count;
            denials.stored.retain(|(_, stored)| *stored != denial);
            if denials.stored.len() >= MAX_STORED_DENIALS {
                denials.stored.pop_front();
            }
            denials.stored.push_back((count, denial.clone()));
            count
        };
        if count <= MAX_LOGGED_DENIALS {
            let more = if count == MAX_LOGGED_DENIALS {
                "; its further denials are not logged"
            } else {
                ""
            };
            tracing::warn!(sandbox = %self.name, host = %denial.target, "network denied: it {}{more}", denial.reason);
        }
        Refused::Denied(denial)
    }

    /// Parses a target from inside. Records a denial if it is not valid.
    pub(crate) fn read(&self, text: &str, default: Option<u16>) -> Result<Target, Refused> {
        Target::parse(text, default).map_err(|reason| self.deny(legible(text), DenialReason::Unreadable(reason)))
    }

    /// Connects to a target, if it is allowed.
    pub(crate) async fn connect(self: &Arc<Self>, target: &Target) -> Result<Counted<TcpStream>, Refused> {
        let denied = |reason| self.deny(target.to_string(), reason);
        let allowed = self.rules.allow.iter().any(|pattern| pattern.matches(target));
        if self.rules.denies(target) {
            return Err(denied(DenialReason::Denied));
        }
        if !self.asked.borrow().iter().any(|pattern| pattern.matches(target)) {
            return Err(denied(DenialReason::NotAsked(allowed)));
        }
        // The requested hosts were checked against the rules before. This is a second check.
        if !allowed {
            return Err(denied(DenialReason::NotAllowed));
        }
        if self.budget.load(Ordering::Relaxed) == 0 {
            return Err(denied(self.used_up()));
        }
        let mut last = "it has no address".to_owned();
        let addresses = self.addresses(target).await?;
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            match timeout(
                CONNECT_TIMEOUT,
                TcpStream::connect(SocketAddr::new(address, target.port)),
            )
            .await
            {
                Ok(Ok(stream)) => {
                    // Disables Nagle's algorithm: small messages of a dialogue must not wait for each other.
                    let _nodelay_result = stream.set_nodelay(true);
                    let (egress, host) = (Arc::downgrade(self), target.to_string());
                    let on_used_up = move || {
                        if let Some(egress) = egress.upgrade() {
                            drop(egress.deny(host.clone(), egress.used_up()));
                        }
                    };
                    return Ok(Counted::new(stream, Arc::clone(&self.budget), Box::new(on_used_up)));
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "it does not answer".to_owned(),
            }
        }
        Err(Refused::Unreachable(format!("{target} could not be reached: {last}")))
    }

    /// Returns the denial for a reached byte limit.
    pub(crate) fn used_up(&self) -> DenialReason {
        DenialReason::Limit(format!("its {} MiB are used up", self.rules.limits.bytes >> 20))
    }

    /// Returns the addresses of a target that may be connected to.
    async fn addresses(&self, target: &Target) -> Result<Vec<IpAddr>, Refused> {
        let pinned = self.rules.pinned(&target.host);
        if !pinned.is_empty() {
            return Ok(pinned);
        }
        let reaches = |address| self.rules.reaches(address);
        let found = resolve::addresses(&target.host, target.port, &self.resolve, reaches).await;
        found.map_err(|error| match error {
            ResolveError::Unknown(reason) => Refused::Unreachable(format!("{target} was not found: {reason}")),
            ResolveError::Refused(bad) => {
                tracing::info!(sandbox = %self.name, host = %target, addresses = ?bad, "a host with no address that may be reached");
                self.deny(target.to_string(), DenialReason::Private)
            }
        })
    }
}

impl std::fmt::Display for DenialReason {
    /// Formats the reason as the end of a sentence about the host.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(reason) => f.write_str(reason),
            Self::NotAsked(_) => f.write_str("is not among the hosts that this sandbox may reach"),
            Self::NotAllowed => f.write_str("is not among the hosts that the operator allows"),
            Self::Denied => f.write_str("is denied by the operator"),
            Self::Private => f.write_str("leads to a private, local or reserved address"),
            Self::Limit(limit) => write!(f, "was refused: {limit}"),
        }
    }
}

impl Denial {
    /// Returns the change that would allow the target.
    #[must_use]
    pub fn remedy(&self) -> String {
        let Self { target, reason } = self;
        match reason {
            DenialReason::Unreadable(_) => {
                "name hosts like api.example.com, *.example.org or api.example.com:8443".to_owned()
            }
            DenialReason::NotAsked(true) => {
                format!(
                    "make a sandbox with network = [\"{target}\"] (`--network {target}` for sandcell run), or replace the hosts of this \
                     one where the interface can"
                )
            }
            DenialReason::NotAsked(false) | DenialReason::NotAllowed => {
                format!(
                    "ask the operator to add \"{target}\" to network.allow in the settings, then ask for it with network = [\"{target}\"]"
                )
            }
            DenialReason::Denied => {
                "use another host: network.deny in the operator's settings names this one".to_owned()
            }
            DenialReason::Private => {
                "use a public host, or ask the operator to name its address in network.private of the settings"
                    .to_owned()
            }
            DenialReason::Limit(_) => {
                "close connections and use less, or ask the operator to raise network.connections or network.total_mb"
                    .to_owned()
            }
        }
    }
}

/// Returns the printable part of an invalid target, at most 100 characters, for a message.
pub(crate) fn legible(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(100).collect()
}

#[cfg(test)]
#[path = "egress_tests.rs"]
mod tests;
