//! Endpoints outside MCP that another crate answers. Their requests pass through the same pipeline as those of MCP. The
//! pipeline handles names, tokens, rates, places, sizes and the drain at the end. An endpoint sees only requests whose
//! sender is known.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::CONTENT_LENGTH;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use sandcell_engine::Principal;
use sandcell_sandbox::{Code, Failure};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::BODY_TIMEOUT;
use super::body::{self, Body, BrokenOff};
use super::host_origin::single_value;
use super::pipeline::{BodyRoom, ConnectionInfo, Pipeline, is_json};
use super::rejection::Rejection;
use super::takeover::Takeover;
use super::tenants::Tenant;
use crate::auth::TokenUse;
use crate::limits::{MESSAGE_DEPTH, MESSAGE_MARKS};
use crate::priority::Priority;
use crate::stdio::scanner::Scanner;

/// Bytes of a streamed body that are held at once.
const PART_BYTES: usize = 1 << 20;

/// The body of an endpoint's answer.
pub type EndpointBody = BoxBody<Bytes, BrokenOff>;

/// The head of a request whose sender is not known yet.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct RequestHead<'a> {
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
}

impl<'a> RequestHead<'a> {
    /// Returns the head of a request.
    #[must_use]
    pub fn of<T>(request: &'a Request<T>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
        }
    }

    /// Returns a header as text. None if it is missing, appears twice, or is not plain text.
    #[must_use]
    pub fn header(&self, name: &'static str) -> Option<&'a str> {
        single_value(self.headers, name).ok().flatten()
    }
}

/// The claim of endpoints on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The request is not for these endpoints.
    None,
    /// It is for these endpoints, unless the server itself has its address.
    Address,
    /// It is for these endpoints, whatever its path is.
    Any {
        /// True if its `Host` header names something that these endpoints serve. Otherwise it is checked as usual.
        host: bool,
    },
}

/// The way in which endpoints identify the sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The `Authorization` header, as for MCP.
    Authorization,
    /// This token of the server, from another header. It is ignored where no token is needed.
    Token(String),
    /// The endpoints know the sender by a secret that they gave out themselves.
    Caller(Principal),
    /// The sender gave no valid secret.
    Refused(Refusal),
}

/// A refused request, in plain words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// The failure.
    pub failure: Failure,
}

/// Endpoints under separate addresses.
pub trait Endpoints: std::fmt::Debug + Send + Sync {
    /// Returns the label of these endpoints in the metrics.
    fn label(&self) -> &'static str;

    /// Returns whether a request is for these endpoints, even if no endpoint is at its address.
    fn claim(&self, head: RequestHead<'_>) -> Claim;

    /// Looks at the head of a request. Its sender is not known yet and nothing of its body was read.
    ///
    /// # Errors
    /// There is no such endpoint, or it does not take such requests.
    fn find(&self, head: RequestHead<'_>) -> Result<EndpointInput, NotFound>;

    /// Returns the secret by which the sender of a request is known.
    fn credential(&self, head: RequestHead<'_>) -> Credential {
        let _ = head;
        Credential::Authorization
    }

    /// Puts a refusal of the server into the form of these endpoints. None: the common form.
    fn refuse(&self, uri: &Uri, refusal: &Refusal) -> Option<Response<EndpointBody>> {
        let _ = (uri, refusal);
        None
    }

    /// Answers a request that is the same for everybody; [`EndpointInput::Nothing`] only.
    fn answer_anybody(&self, uri: &Uri) -> Response<EndpointBody>;

    /// Answers a request. Dropping the future or the body of the answer means that the client no longer waits.
    fn answer<'a>(&'a self, request: EndpointRequest<'a>) -> BoxFuture<'a, Response<EndpointBody>>;
}

/// The requirements of a request for an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointInput {
    /// It is answered alike for everybody, without a token.
    Nothing,
    /// No body.
    Caller,
    /// No body, and it ends something or reports a state: it is admitted beyond the bound of ordinary requests.
    CallerAtOnce,
    /// A JSON object, read whole.
    Json,
    /// A body of any type that is read whole. After a head it has few enough values that it can be parsed as JSON.
    Whole {
        /// The number of bytes before the JSON.
        head: usize,
    },
    /// Bytes of any length, read in parts.
    Stream,
    /// The request as it arrives, with any method, for an endpoint that passes it on. The endpoint may take over the
    /// connection: [`EndpointRequest::parts`] have hyper's `OnUpgrade`.
    Raw,
}

/// The reasons why an address has no endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    /// No such endpoint.
    Address,
    /// The endpoint takes these methods only.
    Method(&'static str),
    /// The query has a field that is unknown or appears twice.
    Query,
}

/// A request that was admitted.
pub struct EndpointRequest<'a> {
    /// The sender.
    pub caller: Principal,
    /// The head of the request.
    pub parts: Parts,
    /// Its body.
    pub body: RequestBody<'a>,
    /// Room for a large answer.
    pub large: LargeAnswers<'a>,
    /// The right to take over the connection of the request.
    pub takeover: Takeover,
}

impl std::fmt::Debug for EndpointRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndpointRequest({} {})", self.parts.method, self.parts.uri.path())
    }
}

/// The body of a request, as its endpoint wants it.
pub enum RequestBody<'a> {
    /// None.
    Nothing,
    /// A whole body of few enough values that it can be parsed as JSON.
    Whole(Bytes),
    /// Bytes in parts.
    Stream(BodyStream<'a>),
    /// The body as it arrives.
    Raw(Incoming),
}

impl std::fmt::Debug for RequestBody<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestBody")
    }
}

/// A body that is read in parts of bounded size.
pub struct BodyStream<'a> {
    incoming: Incoming,
    /// The bytes read beyond the last part.
    rest: Bytes,
    _room: BodyRoom<'a>,
}

impl BodyStream<'_> {
    /// The next part of the body, at most 1 MiB and less only at its end; none after that.
    ///
    /// # Errors
    /// The body broke off or comes too slowly.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let part = tokio::time::timeout(BODY_TIMEOUT, self.read()).await;
        part.unwrap_or_else(|_| {
            Err(Failure::new(
                Code::Timeout,
                "the body did not arrive in time",
                "send it faster, or in parts with append=true",
            ))
        })
    }

    async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        let mut part = bytes::BytesMut::new();
        loop {
            let left = PART_BYTES - part.len();
            let taken = self.rest.split_to(self.rest.len().min(left));
            if part.is_empty() && taken.len() == PART_BYTES {
                return Ok(Some(taken));
            }
            part.extend_from_slice(&taken);
            if part.len() == PART_BYTES {
                return Ok(Some(part.freeze()));
            }
            match self.incoming.frame().await {
                None => return Ok(Some(part.freeze()).filter(|part| !part.is_empty())),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => {
                    let message = "the body ended before its end";
                    return Err(Failure::invalid(message, "send it again"));
                }
            }
        }
    }
}

/// The permits for large answers, of one caller and of all callers.
pub struct LargeAnswers<'a> {
    pipeline: &'a Pipeline,
    tenant: &'a Tenant,
}

/// A permit for a large answer.
#[derive(Debug)]
pub struct LargeAnswer {
    _places: [OwnedSemaphorePermit; 2],
}

impl LargeAnswers<'_> {
    /// Waits for a permit for a large answer. The answer holds the permit until it was sent.
    ///
    /// # Errors
    /// No permit is free within 20 s.
    pub async fn permit(&self) -> Result<LargeAnswer, Failure> {
        match self.pipeline.bulk_permits(self.tenant).await {
            Ok(places) => Ok(LargeAnswer { _places: places }),
            Err(_) => Err(Failure::new(
                Code::Busy,
                "the server has no memory left for another answer of this size just now",
                "try again soon, or ask for less",
            )),
        }
    }
}

/// Wraps a body so that `held` lives until the body was sent or dropped.
pub fn holding(body: EndpointBody, held: impl Send + Sync + Unpin + 'static) -> EndpointBody {
    body::holding(body, held)
}

/// Makes a body that is sent while it is made, and its sender. At most `capacity` parts wait for the client. With a known
/// length in bytes, the connection is aborted if the sender is dropped before it has sent them.
#[must_use]
pub fn channel_body(capacity: usize, length: Option<u64>) -> (BodySender, EndpointBody) {
    let (send, parts) = mpsc::channel(capacity);
    (BodySender(send), ChannelBody { parts, left: length }.boxed())
}

/// Sends the parts of a body.
#[derive(Debug, Clone)]
pub struct BodySender(mpsc::Sender<Result<Bytes, BrokenOff>>);

/// The client has closed the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnected;

impl BodySender {
    /// Sends a part. Waits while the client does not read.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub async fn send(&self, part: Bytes) -> Result<(), Disconnected> {
        self.0.send(Ok(part)).await.map_err(|_| Disconnected)
    }

    /// Closes the connection without the end of the body, so that the client knows that something is missing.
    pub async fn break_off(self) {
        // The send fails if the client has closed the connection already. Then there is nothing to do.
        let _gone = self.0.send(Err(BrokenOff)).await;
    }

    /// Waits until the client has closed the connection.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A body that is read from a channel.
#[derive(Debug)]
struct ChannelBody {
    parts: mpsc::Receiver<Result<Bytes, BrokenOff>>,
    /// The number of bytes that remain to be sent, if known.
    left: Option<u64>,
}

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let part = self.parts.poll_recv(cx);
        if let (Poll::Ready(Some(Ok(part))), Some(left)) = (&part, &mut self.left) {
            *left = left.saturating_sub(u64::try_from(part.len()).unwrap_or(u64::MAX));
        }
        part.map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Pipeline {
    /// Answers a request for one of the endpoints.
    pub(super) async fn endpoint(
        &self,
        endpoints: &dyn Endpoints,
        request: Request<Incoming>,
        from: &ConnectionInfo,
    ) -> Result<Response<Body>, Rejection> {
        let wants = match endpoints.find(RequestHead::of(&request)) {
            Ok(wants) => wants,
            Err(NotFound::Address) => return Err(Rejection::no_such_resource()),
            Err(NotFound::Method(allowed)) => return Err(Rejection::method(allowed)),
            Err(NotFound::Query) => return Err(Rejection::unknown_field_of_query()),
        };
        if wants == EndpointInput::Nothing {
            return Ok(endpoints.answer_anybody(request.uri()));
        }
        let caller = self
            .sender(endpoints.credential(RequestHead::of(&request)), &request, from)
            .await?;
        if self.is_ending() {
            return Err(Rejection::ending());
        }
        let tenant = self.tenant(&caller)?;
        tenant.may_send().map_err(Rejection::too_fast)?;
        let priority = match wants {
            EndpointInput::CallerAtOnce => Priority::Control,
            _ => Priority::Ordinary,
        };
        let permit = tenant
            .request_permit(priority)
            .ok_or_else(Rejection::too_many_requests)?;
        let call = self.begin();
        let held: Arc<dyn Send + Sync> = Arc::new((permit, call, Arc::clone(&tenant)));
        let (parts, incoming) = request.into_parts();
        let body = match wants {
            EndpointInput::Nothing | EndpointInput::Caller | EndpointInput::CallerAtOnce => RequestBody::Nothing,
            EndpointInput::Json if !is_json(&parts.headers)? => return Err(Rejection::body_not_json()),
            EndpointInput::Json => RequestBody::Whole(self.json(&tenant, &parts.headers, incoming, 0).await?),
            EndpointInput::Whole { head } => {
                RequestBody::Whole(self.json(&tenant, &parts.headers, incoming, head).await?)
            }
            EndpointInput::Stream => RequestBody::Stream(self.stream(&tenant, &parts.headers, incoming)?),
            EndpointInput::Raw => RequestBody::Raw(incoming),
        };
        let request = EndpointRequest {
            caller,
            parts,
            body,
            large: LargeAnswers {
                pipeline: self,
                tenant: &tenant,
            },
            takeover: Takeover {
                ended: tenant.end_token(),
                _held: Arc::clone(&held),
            },
        };
        let response = tokio::select! {
            biased;
            response = endpoints.answer(request) => response,
            () = tenant.ended() => return Err(if self.is_ending() { Rejection::ending() } else { Rejection::wrong_token() }),
        };
        let ended = tenant.end_token();
        Ok(response.map(|body| body::until(body::holding(body, held), ended)))
    }

    /// Returns the sender of a request for endpoints.
    async fn sender(
        &self,
        credential: Credential,
        request: &Request<Incoming>,
        from: &ConnectionInfo,
    ) -> Result<Principal, Rejection> {
        let admission = match credential {
            Credential::Authorization => self.admit(request.headers(), from, TokenUse::Mcp).await?,
            Credential::Token(token) => {
                let needed = self.authenticator.token_needed().unwrap_or(true);
                let authorization = needed.then(|| format!("Bearer {token}"));
                self.admit_by(authorization.as_deref(), from, TokenUse::Mcp).await?
            }
            Credential::Caller(caller) if self.authenticator.may_stay(&caller) => {
                from.occupant.let_in(&caller);
                return Ok(caller);
            }
            Credential::Caller(_) => return Err(Rejection::wrong_token()),
            Credential::Refused(refusal) => return Err(Rejection::refused(refusal)),
        };
        Ok(admission.caller)
    }

    /// Reads a body with JSON after `head` bytes. Refuses a body that would take much memory when it is parsed.
    async fn json(
        &self,
        tenant: &Tenant,
        headers: &HeaderMap,
        incoming: Incoming,
        head: usize,
    ) -> Result<Bytes, Rejection> {
        let bytes = self.read(tenant, headers, incoming).await?;
        let mut scanner = Scanner::default();
        scanner.feed(bytes.get(head..).unwrap_or_default());
        if scanner.deepest() > MESSAGE_DEPTH || scanner.marks() > MESSAGE_MARKS {
            return Err(Rejection::too_many_values());
        }
        Ok(bytes)
    }

    /// Returns a body of any length. The server holds a small part of it at a time.
    fn stream<'a>(
        &'a self,
        tenant: &'a Tenant,
        headers: &HeaderMap,
        incoming: Incoming,
    ) -> Result<BodyStream<'a>, Rejection> {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let length = length.and_then(|length| length.parse::<usize>().ok());
        let mut room = self.room(tenant);
        room.grow(length.unwrap_or(PART_BYTES).min(PART_BYTES))?;
        Ok(BodyStream {
            incoming,
            rest: Bytes::new(),
            _room: room,
        })
    }
}
