//! The state that the server keeps for each caller: its sessions, and its concurrent requests. Callers share nothing
//! here, so that none can use up the resources of another.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sandcell_engine::{Engine, Principal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::limits_handle::LimitsHandle;
use super::sessions::Sessions;
#[cfg(feature = "conformance")]
use crate::conformance::Handler;
use crate::in_flight::InFlight;
use crate::limits::{CONTROL_REQUESTS, MESSAGE_BYTES};
use crate::priority::Priority;
#[cfg(not(feature = "conformance"))]
use crate::server::Server as Handler;
use crate::server::{Server, ServerOptions, UnknownTool};

/// The maximum number of concurrent large answers of one caller. An answer of 10 MiB takes several times that: as
/// bytes, in base64, in JSON.
const BULK_ANSWERS: usize = 2;
/// The maximum size of one caller's incoming messages that the server holds, in semaphore units.
pub(super) const INCOMING_UNITS: usize = 4 * MESSAGE_BYTES / SEMAPHORE_UNIT_BYTES;
/// Semaphores count in `u32`; kibibytes are fine enough.
pub(super) const SEMAPHORE_UNIT_BYTES: usize = 1024;

/// The idle time after which a caller is forgotten. Its sandboxes belong to the engine and stay.
const CALLER_IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// One caller.
pub(crate) struct Tenant {
    pub(crate) service: StreamableHttpService<Handler, Sessions>,
    pub(crate) sessions: Arc<Sessions>,
    /// Requests under way.
    requests: Arc<AtomicUsize>,
    /// Large answers under way.
    pub(crate) bulk: Arc<Semaphore>,
    /// One search of the history at a time, so that a caller's searches leave room for others'.
    pub(crate) searching: Semaphore,
    /// The kibibytes that are free for incoming messages.
    pub(crate) incoming: Semaphore,
    /// One session is opened at a time, so that the bound holds.
    pub(crate) opening: tokio::sync::Mutex<()>,
    limits: Arc<LimitsHandle>,
    rate: Mutex<TokenBucket>,
    /// Requests of sessions that are being answered: session and id.
    open: Arc<Mutex<HashSet<(String, String)>>>,
    /// Fires when the caller loses access.
    end: CancellationToken,
    used: Mutex<Instant>,
}

/// A request of a session that is being answered.
pub(crate) struct OpenRequest {
    all: Arc<Mutex<HashSet<(String, String)>>>,
    this: (String, String),
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.this);
    }
}

/// A request that is under way.
pub(crate) struct RequestPermit(Arc<AtomicUsize>);

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A full bucket permits a burst; it fills at the sustained rate.
#[derive(Debug)]
struct TokenBucket {
    tokens: f64,
    filled: Instant,
}

impl Tenant {
    /// Takes one request from the caller's rate limit; else returns the time to wait.
    pub(crate) fn may_send(&self) -> Result<(), Duration> {
        let per_second = f64::from(self.limits.get().requests_per_s);
        let mut bucket = lock(&self.rate);
        let now = Instant::now();
        let gained = now.duration_since(bucket.filled).as_secs_f64() * per_second;
        bucket.tokens = (bucket.tokens + gained).min(2.0 * per_second);
        bucket.filled = now;
        *lock(&self.used) = now;
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs(1));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }

    /// Opens a request of a session; none if one with this id is open.
    pub(crate) fn open(&self, session: &str, id: &str) -> Option<OpenRequest> {
        let this = (session.to_owned(), id.to_owned());
        lock(&self.open).insert(this.clone()).then(|| OpenRequest {
            all: Arc::clone(&self.open),
            this,
        })
    }

    /// Waits until the caller loses access.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Fires when the caller loses access.
    pub(crate) fn end_token(&self) -> CancellationToken {
        self.end.clone()
    }

    /// Returns a permit for one more request, if one is free.
    pub(crate) fn request_permit(&self, priority: Priority) -> Option<RequestPermit> {
        let ordinary = self.limits.get().requests_per_caller;
        let most = match priority {
            Priority::Ordinary => ordinary,
            Priority::Control => ordinary.saturating_add(CONTROL_REQUESTS),
        };
        let one_more = |used: usize| (used < most).then_some(used + 1);
        let taken = self
            .requests
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| RequestPermit(Arc::clone(&self.requests)))
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
            && self.sessions.count() == 0
            && lock(&self.used).elapsed() >= CALLER_IDLE_TIMEOUT
    }
}

/// All present callers.
pub(crate) struct Tenants {
    engine: Arc<Engine>,
    options: ServerOptions,
    limits: Arc<LimitsHandle>,
    all: Mutex<HashMap<Principal, Arc<Tenant>>>,
    end: CancellationToken,
}

impl Tenants {
    pub(crate) fn new(
        engine: Arc<Engine>,
        options: ServerOptions,
        limits: Arc<LimitsHandle>,
        end: CancellationToken,
    ) -> Self {
        Self {
            engine,
            options,
            limits,
            all: Mutex::default(),
            end,
        }
    }

    /// Returns the state of this caller.
    pub(crate) fn of(&self, caller: &Principal) -> Result<Arc<Tenant>, UnknownTool> {
        let mut all = lock(&self.all);
        if let Some(tenant) = all.get(caller) {
            return Ok(Arc::clone(tenant));
        }
        let tenant = Arc::new(self.make(caller)?);
        all.insert(caller.clone(), Arc::clone(&tenant));
        Ok(tenant)
    }

    fn make(&self, caller: &Principal) -> Result<Tenant, UnknownTool> {
        let end = self.end.child_token();
        let sessions = Arc::new(Sessions::new(Arc::clone(&self.limits)));
        let in_flight = Arc::new(InFlight::default());
        let server = Server::new(
            Arc::clone(&self.engine),
            &self.options,
            caller.clone(),
            end.clone(),
            in_flight,
        )?;
        #[cfg(feature = "conformance")]
        let server = Handler::new(server, self.options.conformance);
        // Hosts and origins were checked before, more strictly.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_json_response(true)
            .with_max_request_body_bytes(MESSAGE_BYTES)
            .with_cancellation_token(end.clone());
        Ok(Tenant {
            service: StreamableHttpService::new(move || Ok(server.connection()), Arc::clone(&sessions), config),
            sessions,
            requests: Arc::default(),
            bulk: Arc::new(Semaphore::new(BULK_ANSWERS)),
            searching: Semaphore::new(1),
            incoming: Semaphore::new(INCOMING_UNITS),
            opening: tokio::sync::Mutex::default(),
            limits: Arc::clone(&self.limits),
            rate: Mutex::new(TokenBucket {
                tokens: 2.0 * f64::from(self.limits.get().requests_per_s),
                filled: Instant::now(),
            }),
            open: Arc::default(),
            end,
            used: Mutex::new(Instant::now()),
        })
    }

    /// Checks that the options can be served, before the first call.
    pub(crate) fn check(&self) -> Result<(), UnknownTool> {
        self.make(&Principal::new("nobody")).map(drop)
    }

    /// Ends the sessions and streams of callers that lost access and sessions that were idle for too long, and forgets
    /// callers that left.
    pub(crate) fn sweep(&self, may_stay: impl Fn(&Principal) -> bool) {
        lock(&self.all).retain(|caller, tenant| {
            if !may_stay(caller) {
                tenant.end.cancel();
                return false;
            }
            tenant.sessions.end_idle();
            !tenant.is_idle()
        });
    }

    /// The numbers of callers and sessions.
    pub(crate) fn count(&self) -> (usize, usize) {
        let all = lock(&self.all);
        (all.len(), all.values().map(|tenant| tenant.sessions.count()).sum())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
