//! The API of the page: resources under `/api/`, JSON in and out, failures as `{code, message, remedy}`. Internal to
//! the page for now: it may change with it.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use sandcell_engine::{
    Engine, ExecutionView, HistoryQuery, PendingToolCall, Principal, Status, StreamName, StreamPart,
};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::super::body::{self, Body};
use super::super::pipeline::{ConnectionInfo, Pipeline, is_json};
use super::super::rejection::Rejection;
use super::query::Query;
use super::{asked_by_the_page, bytes, data, failed, notebook, picture, runs, sandbox_files};
use crate::auth::TokenUse;
use crate::content::execution_object;
use crate::priority::Priority;
use crate::tools::sandbox_data;

/// The maximum rows of one page of the history.
const MAX_ROWS: usize = 50;
/// The maximum bytes of text in one answer.
const PART_BYTES: u64 = 256 << 10;

/// A resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource<'a> {
    /// Sandboxes, running executions and past executions.
    Overview,
    /// Searched with GET, added to with POST.
    Executions,
    /// Executions in fresh sandboxes that are removed afterwards.
    Runs,
    Execution(&'a str),
    Text(&'a str, StreamName, i64),
    Artifact(&'a str, u32),
    Cancel(&'a str),
    Rerun(&'a str),
    /// A question about a tool call, by its number.
    Approval(&'a str, u32),
    Sandboxes,
    Sandbox(&'a str),
    Close(&'a str),
    Notebook(&'a str),
    /// A folder of a sandbox.
    Files(&'a str),
    /// The bytes of a file in a sandbox.
    Content(&'a str),
}

impl<'a> Resource<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix("/api/")?.split('/').collect();
        match parts.as_slice() {
            ["overview"] => Some(Self::Overview),
            ["executions"] => Some(Self::Executions),
            ["runs"] => Some(Self::Runs),
            ["executions", id] => Some(Self::Execution(id)),
            ["executions", id, "cancel"] => Some(Self::Cancel(id)),
            ["executions", id, "rerun"] => Some(Self::Rerun(id)),
            ["executions", id, "approvals", number] => Some(Self::Approval(id, self::number(number)?)),
            ["executions", id, "files", number] => Some(Self::Artifact(id, self::number(number)?)),
            ["executions", id, name, offset] => {
                let names = [
                    StreamName::Stdout,
                    StreamName::Stderr,
                    StreamName::Result,
                    StreamName::Code,
                ];
                let stream = names.into_iter().find(|stream| stream.as_str() == *name)?;
                Some(Self::Text(id, stream, number(offset)?))
            }
            ["sandboxes"] => Some(Self::Sandboxes),
            ["sandboxes", id] => Some(Self::Sandbox(id)),
            ["sandboxes", id, "close"] => Some(Self::Close(id)),
            ["sandboxes", id, "notebook"] => Some(Self::Notebook(id)),
            ["sandboxes", id, "files"] => Some(Self::Files(id)),
            ["sandboxes", id, "content"] => Some(Self::Content(id)),
            _ => None,
        }
    }

    /// Returns the methods of the resource.
    const fn methods(self) -> &'static str {
        match self {
            Self::Executions => "GET, POST",
            Self::Content(_) => "GET, PUT",
            Self::Runs | Self::Cancel(_) | Self::Rerun(_) | Self::Approval(..) | Self::Sandboxes | Self::Close(_) => {
                "POST"
            }
            Self::Overview
            | Self::Execution(_)
            | Self::Text(..)
            | Self::Artifact(..)
            | Self::Sandbox(_)
            | Self::Notebook(_)
            | Self::Files(_) => "GET",
        }
    }

    /// Returns the permitted fields of the query.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Executions => &["text", "status", "language", "sandbox", "before", "limit"],
            Self::Files(_) => &["path"],
            Self::Content(_) => &["path", "offset", "limit", "append"],
            _ => &[],
        }
    }

    const fn priority(self) -> Priority {
        match self {
            Self::Overview | Self::Cancel(_) | Self::Approval(..) | Self::Close(_) => Priority::Control,
            _ => Priority::Ordinary,
        }
    }

    /// Returns true if an answer can have the size of a file.
    const fn is_bulk(self) -> bool {
        matches!(self, Self::Artifact(..) | Self::Content(_) | Self::Notebook(_))
    }
}

/// Reads a number of an address: digits only.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// An admitted request.
pub(super) struct ApiRequest<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) caller: &'a Principal,
    pub(super) query: &'a Query,
    /// The body of a POST or PUT.
    pub(super) body: bytes::Bytes,
}

impl Pipeline {
    /// Answers a request of the page, about the caller's own things only.
    pub(in super::super) async fn page(
        &self,
        request: Request<Incoming>,
        from: &ConnectionInfo,
    ) -> Result<Response<Body>, Rejection> {
        let query = Query::parse(request.uri().query()).ok_or_else(Rejection::unknown_query)?;
        asked_by_the_page(request.headers())?;
        let admission = self.admit(request.headers(), from, TokenUse::Mcp).await?;
        if self.is_ending() {
            return Err(Rejection::ending());
        }
        let tenant = self.tenant(&admission.caller)?;
        tenant.may_send().map_err(Rejection::too_fast)?;
        let (parts, incoming) = request.into_parts();
        let resource = Resource::parse(parts.uri.path()).ok_or_else(Rejection::no_such_address)?;
        if !resource
            .methods()
            .split(", ")
            .any(|method| parts.method.as_str() == method)
        {
            return Err(Rejection::method(resource.methods()));
        }
        if !query.has_only(resource.fields()) {
            return Err(Rejection::unknown_query());
        }
        let permit = tenant
            .request_permit(resource.priority())
            .ok_or_else(Rejection::too_many_requests)?;
        let call = self.begin();
        let bulk = if resource.is_bulk() && parts.method == Method::GET {
            Some(self.bulk_permits(&tenant).await?)
        } else {
            None
        };
        let takes_json = matches!(
            resource,
            Resource::Executions | Resource::Runs | Resource::Sandboxes | Resource::Approval(..)
        );
        if parts.method == Method::POST && takes_json && !is_json(&parts.headers)? {
            return Err(Rejection::not_json());
        }
        let body = if parts.method == Method::GET {
            bytes::Bytes::new()
        } else {
            self.read(&tenant, &parts.headers, incoming).await?
        };
        let is_search = parts.method == Method::GET && matches!(resource, Resource::Executions | Resource::Notebook(_));
        let _turn = if is_search {
            tenant.searching.acquire().await.ok()
        } else {
            None
        };
        let ask = ApiRequest {
            engine: &self.engine,
            caller: &admission.caller,
            query: &query,
            body,
        };
        let answered = ask.answer(resource, &parts.method).await;
        let response = answered.unwrap_or_else(|failure| failed(&failure));
        Ok(response.map(|body| body::holding(body, (permit, call, bulk, Arc::clone(&tenant)))))
    }
}

impl ApiRequest<'_> {
    async fn answer(self, resource: Resource<'_>, method: &Method) -> Result<Response<Body>, Failure> {
        let engine = self.engine;
        let found = match resource {
            Resource::Overview => overview(engine, self.caller).await?,
            Resource::Executions if method == Method::POST => {
                return Ok(data(StatusCode::ACCEPTED, &runs::execute(&self).await?));
            }
            Resource::Executions => json!(engine.search(self.caller, &search(self.query)?).await?),
            Resource::Runs => return Ok(data(StatusCode::ACCEPTED, &runs::once(&self).await?)),
            Resource::Rerun(id) => return Ok(data(StatusCode::ACCEPTED, &runs::rerun(&self, id).await?)),
            Resource::Execution(id) => execution(engine, self.caller, id).await?,
            Resource::Text(id, stream, offset) => {
                let part = StreamPart {
                    stream,
                    offset,
                    limit: PART_BYTES,
                    find: None,
                };
                json!(engine.stream(self.caller, id, &part).await?)
            }
            Resource::Artifact(id, number) => {
                let file = engine.artifact(self.caller, id, number).await?;
                let none = || {
                    let message = format!("the execution has no file {number}");
                    Failure::new(Code::NotFound, message, "use the links of its page")
                };
                return Ok(bytes(file.ok_or_else(none)?.bytes));
            }
            Resource::Cancel(id) => {
                let view = engine.cancel(self.caller, Some(id)).await?;
                json!({"execution_id": view.id, "status": view.status})
            }
            Resource::Approval(id, number) => runs::decide(&self, id, number)?,
            Resource::Sandboxes => return Ok(data(StatusCode::CREATED, &runs::create(&self).await?)),
            Resource::Sandbox(id) => {
                let views = engine.status(self.caller, Some(id)).await?;
                json!(views.first().map(sandbox_data))
            }
            Resource::Close(id) => json!({"closed": engine.close(self.caller, id).await?}),
            Resource::Notebook(id) => return notebook::download(engine, self.caller, id).await,
            Resource::Files(id) => sandbox_files::list(&self, id).await?,
            Resource::Content(id) if method == Method::PUT => sandbox_files::write(&self, id).await?,
            Resource::Content(id) => return sandbox_files::read(&self, id).await,
        };
        Ok(data(StatusCode::OK, &found))
    }
}

/// The search of a query.
fn search(query: &Query) -> Result<HistoryQuery, Failure> {
    let status = query.text("status").map(|word| {
        let known = Status::ALL.into_iter().find(|status| status.as_str() == word);
        known.ok_or_else(|| {
            let all = Status::ALL.map(Status::as_str).join(", ");
            Failure::invalid("`status` is not one", format!("use one of {all}"))
        })
    });
    let words = query.text("text").unwrap_or_default();
    Ok(HistoryQuery {
        words: words.split_whitespace().map(str::to_owned).collect(),
        sandbox: query.text("sandbox").map(str::to_owned),
        language: query.text("language").map(str::to_owned),
        status: status.transpose()?,
        before: query.text("before").map(str::to_owned),
        limit: query
            .number("limit")?
            .map_or(MAX_ROWS, |rows| usize::try_from(rows).unwrap_or(usize::MAX)),
    })
}

async fn overview(engine: &Arc<Engine>, caller: &Principal) -> Result<Value, Failure> {
    // Running executions are read first: one that ends meanwhile is then in the history, and nothing is missed.
    let running = engine.running(caller);
    let history = engine.history(caller, MAX_ROWS, None).await?;
    let sandboxes: Vec<Value> = engine.status(caller, None).await?.iter().map(sandbox_data).collect();
    let backends = engine.backends();
    let images = backends.iter().any(|backend| backend.supports_images);
    let backends: Vec<Value> = backends
        .iter()
        .map(|backend| json!({"name": backend.name, "isolation": backend.isolation, "layers": backend.layers}))
        .collect();
    let languages: Vec<Value> = engine
        .languages()
        .iter()
        .map(|language| json!({"name": language.name, "session": language.session}))
        .collect();
    let config = engine.config();
    Ok(json!({
        "who": &*caller.0,
        "version": env!("CARGO_PKG_VERSION"),
        "sandboxes_most": config.sandboxes_per_caller,
        "languages": languages,
        "default_language": engine.default_language(),
        "file_bytes": config.file_bytes.as_bytes(),
        "has_network": !engine.network_allowed().is_empty(),
        "has_packages": !engine.package_languages().is_empty(),
        "has_images": images,
        "sandboxes": sandboxes,
        "running": running,
        "approvals": engine.pending_tool_calls(caller).iter().map(approval).collect::<Vec<_>>(),
        "history": history,
        "backends": backends,
    }))
}

/// A call of a tool that waits for the caller's approval.
fn approval(pending: &PendingToolCall) -> Value {
    json!({
        "execution_id": pending.execution_id,
        "number": pending.number,
        "tool": format!("{}.{}", pending.question.server, pending.question.tool),
        "arguments": pending.question.arguments,
        "read_only": pending.question.read_only,
    })
}

/// Returns an execution. One that is only in the lasting history has no files except pictures, and the answer states
/// it.
async fn execution(engine: &Arc<Engine>, caller: &Principal, id: &str) -> Result<Value, Failure> {
    let view = match engine.execution(caller, id, Duration::ZERO).await {
        Ok(view) => view,
        Err(failure) => {
            // If the lasting history lacks it too, the first failure is reported.
            let kept = engine.stored_execution(caller, id).await.map_err(|_| failure)?;
            let pictures: Vec<Value> = kept
                .pictures
                .iter()
                .map(|one| file(one.number, &one.name, &one.bytes))
                .collect();
            return Ok(json!({"kept": kept, "files": pictures}));
        }
    };
    let part = StreamPart {
        stream: StreamName::Code,
        offset: 0,
        limit: PART_BYTES,
        find: None,
    };
    let code = engine.stream(caller, id, &part).await?;
    Ok(json!({"live": live(&view), "code": code}))
}

fn live(view: &ExecutionView) -> Value {
    let text = |shown: &sandcell_engine::Shown| json!({"text": shown.text, "truncated": shown.truncated});
    json!({
        "about": execution_object(view),
        "started_at": sandcell_sandbox::rfc3339_millis(view.started),
        "stdout": text(&view.stdout),
        "stderr": text(&view.stderr),
        "result": view.result,
        "result_cut": view.result_cut.is_some(),
        "result_note": view.result_note,
        "error": view.error.as_ref().map(|error| &error.traceback),
        "hint": view.hint,
        "notices": view.notices,
        "missing_outputs": view.missing_outputs,
        "files": view.artifacts.iter().map(|one| file(one.number, &one.name, &one.bytes)).collect::<Vec<_>>(),
    })
}

fn file(number: u32, name: &str, bytes: &[u8]) -> Value {
    json!({"number": number, "name": name, "size": bytes.len(), "picture": picture(bytes)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_addresses_are_accepted() {
        for (path, resource, methods) in [
            ("/api/overview", Resource::Overview, "GET"),
            ("/api/executions", Resource::Executions, "GET, POST"),
            ("/api/executions/ex1", Resource::Execution("ex1"), "GET"),
            (
                "/api/executions/ex1/stderr/7",
                Resource::Text("ex1", StreamName::Stderr, 7),
                "GET",
            ),
            ("/api/executions/ex1/files/0", Resource::Artifact("ex1", 0), "GET"),
            ("/api/executions/ex1/rerun", Resource::Rerun("ex1"), "POST"),
            ("/api/executions/ex1/approvals/2", Resource::Approval("ex1", 2), "POST"),
            ("/api/sandboxes", Resource::Sandboxes, "POST"),
            ("/api/sandboxes/sb1", Resource::Sandbox("sb1"), "GET"),
            ("/api/sandboxes/sb1/notebook", Resource::Notebook("sb1"), "GET"),
            ("/api/sandboxes/sb1/content", Resource::Content("sb1"), "GET, PUT"),
        ] {
            assert_eq!(Resource::parse(path), Some(resource), "{path}");
            assert_eq!(resource.methods(), methods, "{path}");
        }
        for nothing in [
            "/api/",
            "/api/overview/",
            "/api/executions/ex1/stdout/-1",
            "/api/executions/ex1/stdout/+1",
            "/api/executions/ex1/files/+1",
            "/api/executions/ex1/stdin/0",
            "/api/executions/ex1/files/x",
            "/api/executions/ex1/approvals/-1",
            "/api/executions/ex1/approvals/+1",
            "/api/executions/ex1/files/99999999999",
            "/api/executions/../overview",
            "/api/sandboxes/sb1/",
            "/api/sandboxes/sb1/files/x",
            "/api/sandboxes/sb1/content/../../sb2",
        ] {
            assert_eq!(Resource::parse(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_search_is_parsed_strictly_from_its_query() {
        let read = |text| search(&Query::parse(Some(text)).unwrap());
        let found = read("text=%25+caf%C3%A9%00&status=killed&before=ex1&limit=7").unwrap();
        assert_eq!(found.words, ["%", "café\0"]);
        assert_eq!((found.status, found.limit), (Some(Status::Killed), 7));
        assert_eq!(found.before.as_deref(), Some("ex1"));
        assert_eq!(read("").unwrap().limit, MAX_ROWS);
        for wrong in ["status=gone", "limit=-1", "limit=x", "limit=99999999999999999999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
