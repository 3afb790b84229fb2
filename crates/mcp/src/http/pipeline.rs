//! The request pipeline: the order of admission checks, and the resources that each request holds.
//!
//! Cheap and certain checks come first, and nothing of a body is read before its sender is known. rmcp answers the
//! admitted requests. This module rewords its answers where they are not MCP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, ORIGIN, TRANSFER_ENCODING, VARY,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use sandcell_engine::{Engine, Principal};
use tokio::sync::{Semaphore, SemaphorePermit};
use tower_service::Service as _;

use super::BODY_TIMEOUT;
use super::auth_throttle::AuthThrottle;
use super::body::{self, Body};
use super::connections::Occupant;
use super::endpoints::{Claim, EndpointInput, Endpoints, RequestHead};
use super::host_origin::{HostOrigin, single_value};
use super::limits_handle::LimitsHandle;
use super::message::{self, Kind, Message};
use super::metrics::Metrics;
use super::page::{self, Page};
use super::rejection::Rejection;
use super::sessions::UseKind;
use super::tenants::{INCOMING_UNITS, RequestPermit, SEMAPHORE_UNIT_BYTES, Tenant, Tenants};
use crate::auth::oauth::WELL_KNOWN;
use crate::auth::{Admission, Authenticator, Denied, TokenUse};
use crate::limits::{ABOUT_BYTES, MESSAGE_BYTES};
use crate::priority::Priority;

const SESSION_HEADER: &str = "mcp-session-id";
const VERSION_HEADER: &str = "mcp-protocol-version";
/// Headers that affect a decision. Each may appear only once.
const SINGLE_VALUE_HEADERS: [HeaderName; 6] = [
    HOST,
    AUTHORIZATION,
    ORIGIN,
    CONTENT_TYPE,
    HeaderName::from_static(SESSION_HEADER),
    HeaderName::from_static(VERSION_HEADER),
];
/// Large answers that the server holds at once for all callers.
const BULK_ANSWERS: usize = 16;
/// The maximum bytes of a message that counts only against its caller's bound, not against the bound of all callers.
const SMALL_MESSAGE_BYTES: usize = 1 << 20;
/// The maximum time that a large answer waits for its permits.
const BULK_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum bytes of a plain text answer of rmcp that this module rewords.
const PLAIN_TEXT_BYTES: usize = 4096;

/// The state that all connections share.
pub(crate) struct Pipeline {
    pub(crate) host_origin: HostOrigin,
    pub(crate) authenticator: Authenticator,
    pub(crate) auth_throttle: AuthThrottle,
    pub(crate) tenants: Tenants,
    pub(crate) limits: Arc<LimitsHandle>,
    pub(crate) metrics: Metrics,
    pub(crate) engine: Arc<Engine>,
    page: Page,
    endpoints: Vec<Arc<dyn Endpoints>>,
    bulk: Arc<Semaphore>,
    incoming: Semaphore,
    /// Calls that are being answered.
    calls: Arc<AtomicUsize>,
    /// The number of calls since the server started.
    begun: AtomicU64,
    began: std::time::Instant,
    ending: AtomicBool,
}

/// The connection that a request arrived on.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionInfo {
    pub(crate) peer: IpAddr,
    /// The address that was connected to.
    pub(crate) here: SocketAddr,
    pub(crate) secure: bool,
    /// True for a program of the same user, by a socket of the file system.
    pub(crate) local: bool,
    /// The holder of the connection's slot.
    pub(crate) occupant: Arc<Occupant>,
}

/// A call that is being answered, for the drain at the end.
pub(super) struct ActiveCall(Arc<AtomicUsize>);

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pipeline {
    pub(crate) fn new(
        host_origin: HostOrigin,
        authenticator: Authenticator,
        tenants: Tenants,
        limits: Arc<LimitsHandle>,
        engine: Arc<Engine>,
        page: Page,
        endpoints: Vec<Arc<dyn Endpoints>>,
    ) -> Self {
        Self {
            host_origin,
            authenticator,
            auth_throttle: AuthThrottle::default(),
            tenants,
            limits,
            metrics: Metrics::default(),
            engine,
            page,
            endpoints,
            bulk: Arc::new(Semaphore::new(BULK_ANSWERS)),
            incoming: Semaphore::new(4 * INCOMING_UNITS),
            calls: Arc::default(),
            begun: AtomicU64::new(0),
            began: std::time::Instant::now(),
            ending: AtomicBool::new(false),
        }
    }

    /// Refuses new calls from now on.
    pub(crate) fn close(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Calls that are being answered.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of calls since the server started.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Answers any request.
    pub(crate) async fn answer(&self, request: Request<Incoming>, from: &ConnectionInfo) -> Response<Body> {
        let chunked = request.headers().contains_key(TRANSFER_ENCODING);
        let origin = request.headers().get(ORIGIN).cloned();
        let origin = origin.filter(|origin| origin.to_str().is_ok_and(|text| self.host_origin.may_read(text)));
        let (route, endpoints) = self.route_of(RequestHead::of(&request));
        let uri = endpoints.map(|_| request.uri().clone());
        let origin = origin.filter(|_| !matches!(route, Route::Page | Route::Api));
        let mut response = self
            .route(route, endpoints, request, from)
            .await
            .unwrap_or_else(|rejection| {
                self.metrics.refused(rejection.reason);
                if let Some(event) = rejection.event(from.peer) {
                    self.engine.note(event);
                }
                let own = endpoints
                    .zip(uri.as_ref())
                    .and_then(|(endpoints, uri)| endpoints.refuse(uri, &rejection.refusal()));
                match (own, route) {
                    (Some(response), _) => rejection.with_headers(response),
                    (None, Route::Endpoint { .. }) => rejection.into_plain_response(),
                    (None, _) => rejection.into_response(),
                }
            });
        let label = endpoints.map_or_else(|| route.name(), Endpoints::label);
        self.metrics.answered(label, response.status().as_u16());
        let headers = response.headers_mut();
        if let Some(origin) = origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(
                ACCESS_CONTROL_EXPOSE_HEADERS,
                HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate"),
            );
        }
        headers.append(VARY, HeaderValue::from_static("Origin"));
        if chunked {
            // Two readers of the connection could disagree about the end of the body, so no request may follow.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn route(
        &self,
        route: Route,
        endpoints: Option<&dyn Endpoints>,
        request: Request<Incoming>,
        from: &ConnectionInfo,
    ) -> Result<Response<Body>, Rejection> {
        // Health probes may use any host name. Their answer is one word.
        match route {
            Route::Alive => return Ok(plain(StatusCode::OK, "ok\n")),
            Route::Ready if self.is_ending() => return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, "ending\n")),
            Route::Ready => {
                return Ok(match self.authenticator.token_needed() {
                    Ok(_) => plain(StatusCode::OK, "ready\n"),
                    Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "tokens unreadable\n"),
                });
            }
            Route::Mcp
            | Route::Metrics
            | Route::Service
            | Route::ResourceMetadata
            | Route::Page
            | Route::Api
            | Route::Endpoint { .. }
            | Route::Old
            | Route::Other => {}
        }
        let headers = request.headers();
        for name in &SINGLE_VALUE_HEADERS {
            if headers.get_all(name).iter().nth(1).is_some() {
                return Err(Rejection::twice(header_label(name)));
            }
        }
        match route {
            // A link from anywhere may lead to the page, which holds nothing.
            Route::Page => self.host_origin.check_link(headers, from.here, from.secure)?,
            // Origins that the operator allowed for MCP may not use the page's API.
            Route::Api => self.host_origin.check_own(headers, from.here, from.secure)?,
            // The endpoints have checked the name.
            Route::Endpoint { own_host: true } => {}
            _ => self.host_origin.check(headers, from.here, from.secure)?,
        }
        let host = single_value(headers, HOST.as_str())?;
        let target = request.uri().authority().map(hyper::http::uri::Authority::as_str);
        if target.is_some_and(|target| !host.is_some_and(|host| host.eq_ignore_ascii_case(target))) {
            return Err(Rejection::foreign_target());
        }
        match route {
            Route::Old => Err(Rejection::old_transport()),
            Route::Metrics => self.metrics(&request, from).await,
            Route::ResourceMetadata => self.resource_metadata(request.method()),
            Route::Mcp if request.method() == Method::OPTIONS => self.preflight(headers, "GET, POST, DELETE"),
            Route::Endpoint { .. } if request.method() == Method::OPTIONS && !takes_raw(endpoints, &request) => {
                self.preflight(headers, "GET, POST, PUT, DELETE")
            }
            Route::Endpoint { .. } => match endpoints {
                Some(endpoints) => self.endpoint(endpoints, request, from).await,
                None => Err(Rejection::no_such_address()),
            },
            Route::Mcp => self.mcp(request, from).await,
            Route::Service if from.local => Ok(self.service()),
            Route::Page => page::file(request.method(), request.uri().path()),
            Route::Api => self.page(request, from).await,
            Route::Alive | Route::Ready | Route::Service | Route::Other => Err(Rejection::no_such_address()),
        }
    }

    /// Returns the route of a request, and the endpoints that answer it.
    fn route_of(&self, head: RequestHead<'_>) -> (Route, Option<&dyn Endpoints>) {
        let claims = || self.endpoints.iter().map(|one| (one.claim(head), one.as_ref()));
        for (claim, endpoints) in claims() {
            if let Claim::Any { host } = claim {
                return (Route::Endpoint { own_host: host }, Some(endpoints));
            }
        }
        let route = self.own_route(head.uri.path());
        if route == Route::Other
            && let Some((_, endpoints)) = claims().find(|(claim, _)| *claim == Claim::Address)
        {
            return (Route::Endpoint { own_host: false }, Some(endpoints));
        }
        (route, None)
    }

    /// Returns the route of a path of the server itself.
    fn own_route(&self, path: &str) -> Route {
        match (
            route(path),
            self.authenticator.resource_metadata(),
            path.strip_prefix(WELL_KNOWN),
        ) {
            (Route::Other, Some(resource_metadata), Some(rest))
                if ["", "/mcp", &resource_metadata.path].contains(&rest) =>
            {
                Route::ResourceMetadata
            }
            (Route::Other, ..) if self.page == Page::Served && page::has_file(path) => Route::Page,
            (Route::Other, ..) if self.page == Page::Served && page::is_api(path) => Route::Api,
            (route, ..) => route,
        }
    }

    /// Answers with the document that names the issuer of tokens. It needs no token, since clients read it before they
    /// have one.
    fn resource_metadata(&self, method: &Method) -> Result<Response<Body>, Rejection> {
        if method != Method::GET {
            return Err(Rejection::method("GET"));
        }
        let resource_metadata = self
            .authenticator
            .resource_metadata()
            .ok_or_else(Rejection::no_such_address)?;
        let mut response = plain(StatusCode::OK, resource_metadata.document.to_string());
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Ok(response)
    }

    /// Returns the sender of the request, if it may use `wanted`.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        from: &ConnectionInfo,
        wanted: TokenUse,
    ) -> Result<Admission, Rejection> {
        self.admit_by(single_value(headers, AUTHORIZATION.as_str())?, from, wanted)
            .await
    }

    /// Returns the sender of a request with this authorization, if it may use `wanted`.
    pub(super) async fn admit_by(
        &self,
        authorization: Option<&str>,
        from: &ConnectionInfo,
        wanted: TokenUse,
    ) -> Result<Admission, Rejection> {
        let admitted = self.authenticator.admit(authorization).await;
        let admission = admitted.map_err(|denied| {
            let rejection = match denied {
                Denied::Missing => Rejection::no_token(),
                Denied::Unreadable => Rejection::tokens_unreadable(),
                Denied::Expired => Rejection::expired_token(),
                Denied::Scope => Rejection::scope_missing(),
                Denied::Unreachable => Rejection::issuer_unreachable(),
                Denied::Full => Rejection::server_full(),
                Denied::Wrong => match self.auth_throttle.count_wrong_token(from.peer) {
                    Ok(()) => {
                        tracing::warn!(peer = %from.peer, "a request with a wrong token");
                        Rejection::wrong_token()
                    }
                    Err(wait) => Rejection::guessing(wait),
                },
            };
            rejection.with_resource_metadata(self.authenticator.resource_metadata())
        })?;
        if admission.only.is_some_and(|only| only != wanted) {
            return Err(Rejection::token_for_other_use());
        }
        from.occupant.let_in(&admission.caller);
        Ok(admission)
    }

    async fn metrics(&self, request: &Request<Incoming>, from: &ConnectionInfo) -> Result<Response<Body>, Rejection> {
        self.admit(request.headers(), from, TokenUse::Metrics).await?;
        if request.method() != Method::GET {
            return Err(Rejection::method("GET"));
        }
        let text = self.metrics.render(
            &self.engine.counts(),
            self.engine.capacity().as_ref(),
            self.tenants.count(),
            self.calls(),
        );
        let mut response = plain(StatusCode::OK, text);
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Ok(response)
    }

    /// Answers programs of the same user that query a background server.
    fn service(&self) -> Response<Body> {
        let counts = self.engine.counts();
        let text = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "sandboxes": counts.sandboxes,
            "running": counts.running,
            "calls": self.calls(),
            "uptime_s": self.began.elapsed().as_secs(),
        });
        let mut response = plain(StatusCode::OK, text.to_string());
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    /// Answers a browser's preflight request. Only pages that the operator allowed are permitted.
    fn preflight(&self, headers: &HeaderMap, methods: &'static str) -> Result<Response<Body>, Rejection> {
        if !single_value(headers, ORIGIN.as_str())?.is_some_and(|origin| self.host_origin.may_read(origin)) {
            return Err(Rejection::foreign_origin());
        }
        let mut response = plain(StatusCode::NO_CONTENT, "");
        let allowed = "Authorization, Content-Type, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, \
                       Mcp-Session-Id";
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed));
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
        Ok(response)
    }

    async fn mcp(&self, request: Request<Incoming>, from: &ConnectionInfo) -> Result<Response<Body>, Rejection> {
        if request.uri().query().is_some() {
            return Err(Rejection::token_in_address());
        }
        let admission = self.admit(request.headers(), from, TokenUse::Mcp).await?;
        if self.is_ending() {
            return Err(Rejection::ending());
        }
        let tenant = self.tenant(&admission.caller)?;
        tenant.may_send().map_err(Rejection::too_fast)?;
        match *request.method() {
            Method::POST => self.post(&tenant, request).await,
            Method::GET => get(&tenant, request).await,
            Method::DELETE => delete(&tenant, request).await,
            _ => Err(Rejection::method("POST, GET, DELETE")),
        }
    }

    /// Returns the state that the server keeps for this caller.
    pub(super) fn tenant(&self, caller: &Principal) -> Result<Arc<Tenant>, Rejection> {
        self.tenants.of(caller).map_err(|error| {
            tracing::error!(%error, "the tools of a caller");
            Rejection::ending()
        })
    }

    async fn post(&self, tenant: &Arc<Tenant>, request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
        if !is_json(request.headers())? {
            return Err(Rejection::not_json());
        }
        let (permit, admitted) = request_permit(tenant, request.headers())?;
        let call = self.begin();
        let (parts, incoming) = request.into_parts();
        let bytes = self.read(tenant, &parts.headers, incoming).await?;
        let message = message::look(&bytes)?;
        if admitted == Priority::Control && message.priority == Priority::Ordinary {
            return Err(Rejection::too_many_requests().about(message.id));
        }
        let about = |rejection: Rejection| rejection.about(message.id.clone());
        let session = single_value(&parts.headers, SESSION_HEADER)?.map(str::to_owned);
        let use_guard = session
            .as_deref()
            .and_then(|id| tenant.sessions.enter(id, UseKind::Call));
        let open = match (&session, &use_guard, &message.id) {
            (Some(session), Some(_), Some(id)) => Some(
                tenant
                    .open(session, &id.to_string())
                    .ok_or_else(|| about(Rejection::same_id()))?,
            ),
            _ => None,
        };
        let bulk = self.bulk_permits_for(tenant, &message).await.map_err(about)?;
        let in_session = use_guard.is_some() && message.id.is_some();
        let held = (permit, call, use_guard, open, bulk);
        let request = Request::from_parts(parts, Full::new(bytes));
        let response = if message.kind == Kind::Initialize {
            initialize(tenant, request).await.map_err(about)?
        } else {
            serve(tenant, request).await
        };
        let response = reword_error(response, &message).await;
        Ok(response.map(|body| {
            if in_session {
                body::to_its_end(body, held)
            } else {
                body::holding(body, held)
            }
        }))
    }

    /// Counts a call for the drain.
    pub(super) fn begin(&self) -> ActiveCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        ActiveCall(Arc::clone(&self.calls))
    }

    /// Returns the room for an incoming body.
    pub(super) fn room<'a>(&'a self, tenant: &'a Tenant) -> BodyRoom<'a> {
        BodyRoom {
            own: &tenant.incoming,
            all: &self.incoming,
            units: [0; 2],
            held: Vec::new(),
        }
    }

    /// Reads a body, within the memory limits of the caller and of all callers.
    pub(super) async fn read(
        &self,
        tenant: &Tenant,
        headers: &HeaderMap,
        incoming: Incoming,
    ) -> Result<Bytes, Rejection> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let most = match length.map(str::parse::<usize>) {
            Some(Ok(length)) if length > MESSAGE_BYTES => return Err(Rejection::too_large(MESSAGE_BYTES)),
            Some(Ok(length)) => length,
            Some(Err(_)) | None => MESSAGE_BYTES,
        };
        // Held while the body is read. The resulting message counts as a call.
        let mut room = self.room(tenant);
        if length.is_some() {
            room.grow(most)?;
        }
        // Without a declared length, only received bytes are counted.
        body::read(incoming, most, BODY_TIMEOUT, |bytes| room.grow(bytes)).await
    }

    /// Takes room for an answer that can have the size of a file.
    async fn bulk_permits_for(
        &self,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Option<[tokio::sync::OwnedSemaphorePermit; 2]>, Rejection> {
        if message.kind != Kind::Bulk {
            return Ok(None);
        }
        self.bulk_permits(tenant).await.map(Some)
    }

    /// Waits until there is room for an answer of the size of a file.
    pub(super) async fn bulk_permits(
        &self,
        tenant: &Tenant,
    ) -> Result<[tokio::sync::OwnedSemaphorePermit; 2], Rejection> {
        let both = async {
            let own = Arc::clone(&tenant.bulk).acquire_owned().await.ok()?;
            let all = Arc::clone(&self.bulk).acquire_owned().await.ok()?;
            Some([own, all])
        };
        match tokio::time::timeout(BULK_TIMEOUT, both).await {
            Ok(Some(places)) => Ok(places),
            Ok(None) | Err(_) => Err(Rejection::server_full()),
        }
    }
}

/// The room that a body takes while it is read, from the caller's share and from the total.
pub(super) struct BodyRoom<'a> {
    own: &'a Semaphore,
    all: &'a Semaphore,
    /// The units taken from both.
    units: [u32; 2],
    held: Vec<SemaphorePermit<'a>>,
}

impl BodyRoom<'_> {
    /// Reserves room for `bytes` in total.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Rejection> {
        let wanted = u32::try_from(bytes / SEMAPHORE_UNIT_BYTES + 1).unwrap_or(u32::MAX);
        // Ordinary messages never wait for bodies that other callers announce and do not send.
        let of_all = if bytes > SMALL_MESSAGE_BYTES { wanted } else { 0 };
        for (semaphore, (units, wanted)) in [self.own, self.all]
            .into_iter()
            .zip(self.units.iter_mut().zip([wanted, of_all]))
        {
            if wanted > *units {
                let more = semaphore.try_acquire_many(wanted - *units);
                self.held.push(more.map_err(|_| Rejection::server_full())?);
                *units = wanted;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Mcp,
    Metrics,
    /// The status of a background server.
    Service,
    ResourceMetadata,
    /// The files of the page.
    Page,
    /// The API of the page.
    Api,
    /// An endpoint of another crate.
    Endpoint {
        /// True if the `Host` header names something that the endpoints serve.
        own_host: bool,
    },
    Alive,
    Ready,
    /// The address of the first HTTP transport.
    Old,
    Other,
}

impl Route {
    const fn name(self) -> &'static str {
        match self {
            Self::Mcp => "/mcp",
            Self::Metrics => "/metrics",
            Self::Service => "/service",
            Self::ResourceMetadata => "/.well-known",
            Self::Page => "/",
            Self::Api => "/api",
            Self::Endpoint { .. } => "other",
            Self::Alive => "/healthz",
            Self::Ready => "/readyz",
            Self::Old => "/sse",
            Self::Other => "other",
        }
    }
}

fn route(path: &str) -> Route {
    match path {
        "/mcp" => Route::Mcp,
        "/metrics" => Route::Metrics,
        "/service" => Route::Service,
        "/healthz" | "/health" => Route::Alive,
        "/readyz" | "/ready" => Route::Ready,
        "/sse" | "/mcp/sse" | "/message" | "/messages" | "/messages/" => Route::Old,
        _ => Route::Other,
    }
}

fn header_label(name: &HeaderName) -> &'static str {
    match name.as_str() {
        "host" => "Host",
        "authorization" => "Authorization",
        "origin" => "Origin",
        "content-type" => "Content-Type",
        SESSION_HEADER => "Mcp-Session-Id",
        _ => "MCP-Protocol-Version",
    }
}

/// Returns true for a JSON body. A form of a foreign page can send other types without a preflight request, but not
/// JSON.
pub(super) fn is_json(headers: &HeaderMap) -> Result<bool, Rejection> {
    let kind = single_value(headers, CONTENT_TYPE.as_str())?.unwrap_or_default();
    let essence = kind.split_once(';').map_or(kind, |(essence, _)| essence);
    Ok(essence.trim().eq_ignore_ascii_case("application/json"))
}

/// Hands a request to rmcp.
async fn serve(tenant: &Tenant, request: Request<Full<Bytes>>) -> Response<Body> {
    let served = tenant.service.clone().call(request).await;
    served.unwrap_or_else(|never| match never {}).map(body::infallible)
}

/// Returns true if the endpoint of a request passes it on, whatever its method is.
fn takes_raw(endpoints: Option<&dyn Endpoints>, request: &Request<Incoming>) -> bool {
    endpoints.is_some_and(|endpoints| endpoints.find(RequestHead::of(request)) == Ok(EndpointInput::Raw))
}

/// Returns a permit for a request that was not read yet. If the ordinary permits are taken, a short request gets one
/// that is reserved for control requests. The pipeline checks the kind after it has read the request.
fn request_permit(tenant: &Tenant, headers: &HeaderMap) -> Result<(RequestPermit, Priority), Rejection> {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let is_short = length.is_some_and(|length| length.parse::<usize>().is_ok_and(|length| length <= ABOUT_BYTES));
    let ordinary = tenant
        .request_permit(Priority::Ordinary)
        .map(|permit| (permit, Priority::Ordinary));
    let control = || tenant.request_permit(Priority::Control).filter(|_| is_short);
    ordinary
        .or_else(|| control().map(|permit| (permit, Priority::Control)))
        .ok_or_else(Rejection::too_many_requests)
}

/// Opens a session, if there may be one more.
async fn initialize(tenant: &Tenant, request: Request<Full<Bytes>>) -> Result<Response<Body>, Rejection> {
    let _one_at_a_time = tenant.opening.lock().await;
    if !tenant.sessions.make_room().await {
        return Err(Rejection::too_many_sessions());
    }
    Ok(serve(tenant, request).await)
}

/// Opens the stream of a session for messages that the server initiates.
async fn get(tenant: &Arc<Tenant>, request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
    let permit = tenant
        .request_permit(Priority::Ordinary)
        .ok_or_else(Rejection::too_many_requests)?;
    let Some(id) = single_value(request.headers(), SESSION_HEADER)? else {
        return Err(Rejection::stream_without_session());
    };
    let use_guard = tenant
        .sessions
        .enter(id, UseKind::Stream)
        .ok_or_else(Rejection::no_session)?;
    let response = serve(tenant, request.map(|_| Full::default())).await;
    let response = reword_error(response, &Message::none()).await;
    Ok(response.map(|body| body::holding(body, (permit, use_guard))))
}

/// Ends a session.
async fn delete(tenant: &Arc<Tenant>, request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
    let Some(id) = single_value(request.headers(), SESSION_HEADER)? else {
        return Err(Rejection::method("POST"));
    };
    let _use_guard = tenant
        .sessions
        .enter(id, UseKind::Call)
        .ok_or_else(Rejection::no_session)?;
    let mut response = reword_error(serve(tenant, request.map(|_| Full::default())).await, &Message::none()).await;
    if response.status() == StatusCode::ACCEPTED {
        // It has ended: nothing is pending.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    Ok(response)
}

/// Converts rmcp's plain text errors into this crate's error format.
async fn reword_error(response: Response<Body>, message: &Message) -> Response<Body> {
    let status = response.status();
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    if status == StatusCode::NOT_FOUND {
        return Rejection::no_session().about(message.id.clone()).into_response();
    }
    let (parts, body) = response.into_parts();
    let text = http_body_util::Limited::new(body, PLAIN_TEXT_BYTES).collect().await;
    let text = text.map_or_else(|_| Bytes::new(), http_body_util::Collected::to_bytes);
    let text = if status.is_server_error() {
        tracing::error!(text = %String::from_utf8_lossy(&text), "an error of the transport");
        "the server made a mistake".into()
    } else {
        String::from_utf8_lossy(&text)
    };
    let mut rejection = Rejection::message(-32600, &text).about(message.id.clone());
    rejection.status = status;
    let mut response = rejection.into_response();
    if let Some(allow) = parts.headers.get(hyper::header::ALLOW) {
        response.headers_mut().insert(hyper::header::ALLOW, allow.clone());
    }
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body::whole_body(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
