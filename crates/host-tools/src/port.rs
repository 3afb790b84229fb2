//! The port inside: HTTP/1.1 on byte streams from a sandbox. `docs/design/host-tools.md` describes the requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sandcell_sandbox::{Code, Connection as Stream, Failure, Forward, ToolPort};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::catalogue::Tool;
use crate::offer::{CallRequest, Offer, Source};
use crate::plain;
use crate::rules::Decision;
use crate::servers::denied;
use crate::work::has_more_values;

/// The maximum number of connections of one sandbox. Further ones wait.
const MAX_CONNECTIONS: usize = 32;
/// The maximum number of values in one request.
const MAX_VALUES: usize = 100_000;
/// The maximum time that a list of the tools of all servers waits for one of them.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(300);
/// The maximum size of a head.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The header that names the execution of a call.
const EXECUTION_HEADER: &str = "sandcell-execution";
/// The maximum number of listed tools in one answer.
const MAX_LISTED: usize = 2000;
/// The maximum length of the words of a search.
const MAX_QUERY_BYTES: usize = 500;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    /// For shells (`plain.rs`).
    Plain,
}

impl Form {
    /// Returns the form that a client wants: plain text only if it asks for that.
    fn wanted(headers: &HeaderMap) -> Self {
        let is_plain = |range: &str| {
            let kind = range.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("text/plain")
        };
        let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match accepted.any(|ranges| ranges.split(',').any(is_plain)) {
            true => Self::Plain,
            false => Self::Json,
        }
    }
}

/// A served port. Dropping it ends its connections and calls.
#[derive(Debug)]
pub(crate) struct ServedPort(AbortHandle);

impl ServedPort {
    pub(crate) const fn new(task: AbortHandle) -> Self {
        Self(task)
    }
}

impl ToolPort for ServedPort {}

impl Drop for ServedPort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves the connections of a port in a task.
pub(crate) fn serve(offer: Offer, mut forward: Forward) -> AbortHandle {
    let offer = Arc::new(offer);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let task = tokio::spawn(async move {
        // Dropping the set ends its connections.
        let mut serving = JoinSet::new();
        loop {
            tokio::select! {
                connection = forward.accept() => {
                    let Some(connection) = connection else { return };
                    let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                    let offer = Arc::clone(&offer);
                    serving.spawn(async move {
                        serve_connection(offer, connection).await;
                        drop(place);
                    });
                }
                Some(_) = serving.join_next() => {}
            }
        }
    });
    task.abort_handle()
}

async fn serve_connection(offer: Arc<Offer>, connection: Box<dyn Stream>) {
    let service = service_fn(move |request| {
        let offer = Arc::clone(&offer);
        async move { Ok::<_, std::convert::Infallible>(answer(&offer, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(32)
        .serve_connection(TokioIo::new(connection), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("a connection of code to its tools ended: {error}");
    }
}

async fn answer(offer: &Offer, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let form = Form::wanted(request.headers());
    let path = request.uri().path().to_owned();
    let known = match path.as_str() {
        "/v1/servers" | "/v1/tools" => Method::GET,
        "/v1/call" => Method::POST,
        _ => {
            let failure = Failure::new(
                Code::NotFound,
                "there is no such request; there are GET /v1/servers, GET /v1/tools and POST /v1/call",
                "use the module `tools`",
            );
            return failed(form, &failure);
        }
    };
    if *request.method() != known {
        let failure = Failure::invalid(format!("{path} takes {known}"), "use the module `tools`");
        let mut refused = failed(form, &failure);
        *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        if let Ok(allowed) = HeaderValue::from_str(known.as_str()) {
            refused.headers_mut().insert(ALLOW, allowed);
        }
        return refused;
    }
    // The plain form of one tool is a page about it.
    let query = ToolQuery::read(request.uri().query());
    let of_one = query.as_ref().is_ok_and(|query| query.tool.is_some());
    let answer = match path.as_str() {
        "/v1/servers" => Ok(list_servers(offer)),
        "/v1/tools" => match query.and_then(|query| offer.admit_list(execution_of(&request)?).map(|()| query)) {
            Ok(query) => list_tools(offer, &query).await,
            Err(failure) => Err(failure),
        },
        _ => call(offer, request).await,
    };
    let value = match answer {
        Ok(value) => value,
        Err(failure) => return failed(form, &failure),
    };
    let text = match (form, path.as_str()) {
        (Form::Json, _) => value.to_string(),
        (Form::Plain, "/v1/servers") => plain::servers(&value),
        (Form::Plain, "/v1/tools") if of_one => plain::tool(&value),
        (Form::Plain, "/v1/tools") => plain::tools(&value),
        (Form::Plain, _) => plain::value(&value),
    };
    respond(form, StatusCode::OK, text)
}

fn respond(form: Form, status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let kind = match form {
        Form::Json => "application/json",
        Form::Plain => "text/plain; charset=utf-8",
    };
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn failed(form: Form, failure: &Failure) -> Response<Full<Bytes>> {
    let status = match failure.code {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ToolDenied => StatusCode::FORBIDDEN,
        Code::ToolFailed => StatusCode::UNPROCESSABLE_ENTITY,
        Code::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let text = match form {
        Form::Json => json!({"error": failure}).to_string(),
        Form::Plain => plain::error(failure),
    };
    respond(form, status, text)
}

fn list_servers(offer: &Offer) -> Value {
    let all: Vec<Value> = offer
        .sources()
        .iter()
        .map(|source| json!({"name": source.name(), "description": source.description()}))
        .collect();
    json!({"servers": all})
}

/// The tools that a request asks for.
#[derive(Debug)]
struct ToolQuery {
    server: Option<String>,
    /// One tool of the server, by its exact name.
    tool: Option<String>,
    /// Words that must all match, in lower case.
    words: Vec<String>,
    limit: usize,
}

impl ToolQuery {
    fn read(query: Option<&str>) -> Result<Self, Failure> {
        let mut query: BTreeMap<String, String> = form_urlencoded::parse(query.unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
        let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
            None => MAX_LISTED,
            Some(Ok(limit)) => limit.min(MAX_LISTED),
            Some(Err(_)) => return Err(Failure::invalid("limit is not a number", "name a whole number")),
        };
        let words = query.remove("query").unwrap_or_default();
        if words.len() > MAX_QUERY_BYTES {
            return Err(Failure::invalid("the words are too long", "search with a few words"));
        }
        Ok(Self {
            server: query.remove("server"),
            tool: query.remove("tool"),
            words: words.split_whitespace().map(str::to_lowercase).collect(),
            limit,
        })
    }
}

/// Lists tools: of one server or all, those that match some words, at most a number of them.
async fn list_tools(offer: &Offer, query: &ToolQuery) -> Result<Value, Failure> {
    let sources = match (&query.server, &query.tool) {
        (Some(server), Some(tool)) => return find_tool(&offer.find(server)?, tool).await,
        (None, Some(_)) => return Err(Failure::invalid("a tool needs its server", "name both: SERVER.TOOL")),
        (Some(server), None) => vec![offer.find(server)?],
        (None, None) => offer.sources(),
    };
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    let one = query.server.is_some();
    let catalogues = sources.iter().map(|source| async move {
        if one {
            return source.catalogue().await;
        }
        let slow = || {
            Failure::new(
                Code::ToolUnavailable,
                format!("the server {} is still starting", source.name()),
                "ask again, or name the server",
            )
        };
        tokio::time::timeout(LIST_TIMEOUT, source.catalogue())
            .await
            .unwrap_or_else(|_| Err(slow()))
    });
    let catalogues = futures::future::join_all(catalogues).await;
    for (source, catalogue) in sources.iter().zip(catalogues) {
        let catalogue = match catalogue {
            Ok(catalogue) => catalogue,
            Err(failure) if one => return Err(failure),
            Err(failure) => {
                failures.push(json!({"server": source.name(), "message": failure.message}));
                continue;
            }
        };
        for tool in catalogue.tools.values() {
            let decision = source.decide(tool);
            if decision == Decision::Deny {
                continue;
            }
            if let Some(score) = score(source.name(), tool, &query.words) {
                found.push((score, source.name(), Arc::clone(tool), decision));
            }
        }
    }
    // The best matches first. Equal ones keep the order of servers and names.
    found.sort_by_key(|(score, ..)| std::cmp::Reverse(*score));
    let total = found.len();
    let tools: Vec<Value> = found
        .into_iter()
        .take(query.limit)
        .map(|(_, server, tool, decision)| describe(server, &tool, decision))
        .collect();
    Ok(json!({"tools": tools, "total": total, "failed": failures}))
}

/// Lists one tool of a server.
async fn find_tool(source: &Source, name: &str) -> Result<Value, Failure> {
    let catalogue = source.catalogue().await?;
    let tool = catalogue.find(source.name(), name)?;
    match source.decide(tool) {
        Decision::Deny => Err(denied(source.name(), &tool.name)),
        decision => Ok(json!({"tools": [describe(source.name(), tool, decision)], "total": 1, "failed": []})),
    }
}

/// Returns how well a tool matches all words. None: some word occurs nowhere.
fn score(server: &str, tool: &Tool, words: &[String]) -> Option<u32> {
    let name = format!("{server}.{}", tool.name).to_lowercase();
    let title = tool.title.as_deref().unwrap_or_default().to_lowercase();
    let description = tool.description.to_lowercase();
    let mut total = 0;
    for word in words {
        total += match () {
            () if name.contains(word.as_str()) => 4,
            () if title.contains(word.as_str()) => 2,
            () if description.contains(word.as_str()) => 1,
            () => return None,
        };
    }
    Some(total)
}

fn describe(server: &str, tool: &Tool, decision: Decision) -> Value {
    json!({
        "server": server,
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "input_schema": *tool.input_schema,
        "output_schema": tool.output_schema.as_deref(),
        "read_only": tool.read_only,
        "asks": decision == Decision::Ask,
    })
}

/// Returns the execution that a request names.
fn execution_of(request: &Request<Incoming>) -> Result<Option<&str>, Failure> {
    let header = request.headers().get(EXECUTION_HEADER);
    header
        .map(|value| {
            value
                .to_str()
                .map_err(|_| Failure::invalid("the name of the execution cannot be read", "use the module `tools`"))
        })
        .transpose()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallBody {
    server: String,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

async fn call(offer: &Offer, request: Request<Incoming>) -> Result<Value, Failure> {
    let execution = execution_of(&request)?.map(str::to_owned);
    // Before the body: refused requests must not cost memory.
    offer.may_call(execution.as_deref())?;
    let limited = Limited::new(request.into_body(), offer.max_bytes().saturating_add(4096));
    let body = limited.collect().await.map_err(|_| {
        Failure::new(
            Code::LimitReached,
            "the request is too large or broke off",
            "pass less data; the operator can raise limits.tool_call_mb",
        )
    })?;
    let body = body.to_bytes();
    if has_more_values(&body, MAX_VALUES) {
        return Err(Failure::new(
            Code::LimitReached,
            format!("the arguments have more than {MAX_VALUES} values"),
            "pass less at once",
        ));
    }
    let body: CallBody = serde_json::from_slice(&body).map_err(|error| {
        Failure::invalid(
            format!("the request cannot be read: {error}"),
            "send {\"server\": …, \"tool\": …, \"arguments\": {…}}",
        )
    })?;
    let request = CallRequest {
        server: body.server,
        tool: body.tool,
        arguments: body.arguments,
        execution,
    };
    offer.call(request).await
}
