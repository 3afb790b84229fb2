//! What the page asks: a small interface of its own, which promises nothing to other programs.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use sandcell_engine::{ExecutionView, Principal, StreamName};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::super::body::{self, Body};
use super::super::door::{Door, From};
use super::super::refusal::Refusal;
use super::{asked_by_the_page, bytes, data, failed, picture};
use crate::auth::TokenUse;
use crate::content::execution_object;
use crate::host::{Host, StreamPart, artifact};
use crate::priority::Priority;
use crate::tools::sandbox_data;

/// Rows of the history that are shown.
const ROWS: usize = 50;
/// Bytes of a text that one answer has.
const PART: u64 = 256 << 10;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask<'a> {
    /// Sandboxes, what runs, what ran.
    Overview,
    Execution(&'a str),
    Text(&'a str, StreamName, i64),
    File(&'a str, u32),
    Cancel(&'a str),
    Close(&'a str),
}

impl<'a> Ask<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.strip_prefix("/api/")?.split('/').collect();
        match parts.as_slice() {
            ["overview"] => Some(Self::Overview),
            ["executions", id] => Some(Self::Execution(id)),
            ["executions", id, "cancel"] => Some(Self::Cancel(id)),
            ["executions", id, "files", number] => Some(Self::File(id, number.parse().ok()?)),
            ["executions", id, name, offset] => {
                let names = [
                    StreamName::Stdout,
                    StreamName::Stderr,
                    StreamName::Result,
                    StreamName::Code,
                ];
                let stream = names.into_iter().find(|stream| stream.as_str() == *name)?;
                let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
                Some(Self::Text(id, stream, offset))
            }
            ["sandboxes", id, "close"] => Some(Self::Close(id)),
            _ => None,
        }
    }

    const fn method(self) -> (Method, &'static str) {
        match self {
            Self::Overview | Self::Execution(_) | Self::Text(..) | Self::File(..) => (Method::GET, "GET"),
            Self::Cancel(_) | Self::Close(_) => (Method::POST, "POST"),
        }
    }

    const fn priority(self) -> Priority {
        match self {
            Self::Overview | Self::Cancel(_) | Self::Close(_) => Priority::Control,
            Self::Execution(_) | Self::Text(..) | Self::File(..) => Priority::Ordinary,
        }
    }
}

impl Door {
    /// Answers what the page asks, about its caller's own things only.
    pub(in super::super) async fn page(
        &self,
        request: Request<Incoming>,
        from: &From,
    ) -> Result<Response<Body>, Refusal> {
        if request.uri().query().is_some() {
            return Err(Refusal::token_in_address());
        }
        asked_by_the_page(request.headers())?;
        let admission = self.admit(request.headers(), from, TokenUse::Mcp).await?;
        if self.is_ending() {
            return Err(Refusal::ending());
        }
        let tenant = self.tenant(&admission.who)?;
        tenant.may_send().map_err(Refusal::too_fast)?;
        let ask = Ask::parse(request.uri().path()).ok_or_else(Refusal::no_such_address)?;
        let (method, allowed) = ask.method();
        if *request.method() != method {
            return Err(Refusal::method(allowed));
        }
        let place = tenant.place(ask.priority()).ok_or_else(Refusal::too_many_requests)?;
        let call = self.begin();
        let bulk = match ask {
            Ask::File(..) => Some(self.bulk_places(&tenant).await?),
            _ => None,
        };
        let (host, who) = (&*self.host, &admission.who);
        let response = answer(host, who, ask).await.unwrap_or_else(|failure| failed(&failure));
        Ok(response.map(|body| body::holding(body, (place, call, bulk, Arc::clone(&tenant)))))
    }
}

async fn answer(host: &dyn Host, who: &Principal, ask: Ask<'_>) -> Result<Response<Body>, Failure> {
    let found = match ask {
        Ask::Overview => overview(host, who).await?,
        Ask::Execution(id) => execution(host, who, id).await?,
        Ask::Text(id, stream, offset) => {
            let part = StreamPart {
                stream,
                offset,
                limit: PART,
                find: None,
            };
            json!(host.stream(who, id, part).await?)
        }
        Ask::File(id, number) => {
            let file = artifact(host, who, id, number).await?;
            let none = || {
                let message = format!("the execution has no file {number}");
                Failure::new(Code::NotFound, message, "use the links of its page")
            };
            let (_, found) = file.ok_or_else(none)?;
            return Ok(bytes(found));
        }
        Ask::Cancel(id) => {
            let view = host.cancel(who, Some(id)).await?;
            json!({"execution_id": view.id, "status": view.status})
        }
        Ask::Close(id) => json!({"closed": host.close(who, id).await?}),
    };
    Ok(data(StatusCode::OK, &found))
}

async fn overview(host: &dyn Host, who: &Principal) -> Result<Value, Failure> {
    // What runs is looked at first: what ends meanwhile stands in the history then, and nothing is missed.
    let running = host.running(who);
    let history = host.history(who, ROWS, None).await?;
    let sandboxes: Vec<Value> = host.status(who, None).await?.iter().map(sandbox_data).collect();
    let backends: Vec<Value> = host
        .backends()
        .iter()
        .map(|backend| json!({"name": backend.name, "isolation": backend.isolation, "layers": backend.layers}))
        .collect();
    Ok(json!({
        "who": &*who.0,
        "version": env!("CARGO_PKG_VERSION"),
        "sandboxes_most": host.config().sandboxes_per_caller,
        "sandboxes": sandboxes,
        "running": running,
        "history": history,
        "backends": backends,
    }))
}

/// An execution as it stands; one that is only in the history that lasts has no other files than pictures, and says so.
async fn execution(host: &dyn Host, who: &Principal, id: &str) -> Result<Value, Failure> {
    let view = match host.execution(who, id, Duration::ZERO).await {
        Ok(view) => view,
        Err(failure) => {
            // Whichever of the two knows more about it says why it is not there.
            let kept = host.kept(who, id).await.map_err(|_| failure)?;
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
        limit: PART,
        find: None,
    };
    let code = host.stream(who, id, part).await?;
    Ok(json!({"live": live(&view), "code": code}))
}

fn live(view: &ExecutionView) -> Value {
    let text = |shown: &sandcell_engine::Shown| json!({"text": shown.text, "truncated": shown.truncated});
    json!({
        "about": execution_object(view),
        "started_at": sandcell_engine::timestamp(view.started),
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
    fn addresses_are_whole_and_nothing_else_is_one() {
        assert_eq!(Ask::parse("/api/overview"), Some(Ask::Overview));
        assert_eq!(Ask::parse("/api/executions/ex1"), Some(Ask::Execution("ex1")));
        assert_eq!(
            Ask::parse("/api/executions/ex1/stderr/7"),
            Some(Ask::Text("ex1", StreamName::Stderr, 7))
        );
        assert_eq!(Ask::parse("/api/executions/ex1/files/0"), Some(Ask::File("ex1", 0)));
        for nothing in [
            "/api/",
            "/api/overview/",
            "/api/executions",
            "/api/executions/ex1/stdout/-1",
            "/api/executions/ex1/stdin/0",
            "/api/executions/ex1/files/x",
            "/api/executions/ex1/files/99999999999",
            "/api/executions/../overview",
            "/api/sandboxes/sb1",
        ] {
            assert_eq!(Ask::parse(nothing), None, "{nothing}");
        }
    }
}
