//! The REST interface, for programs that use neither MCP nor Python: resources under `/v1` with JSON, server-sent
//! events and raw bytes, and `POST /run_code` in the format of SandboxFusion.
//!
//! The decision taken here: one list ([`routes`]) defines all resources. It dispatches requests, and `/v1/openapi.json`
//! is generated from it, so the document cannot differ from the service. The HTTP service of `sandcell-mcp`
//! authenticates callers and applies their limits before a request arrives here, for MCP and REST alike.
#![forbid(unsafe_code)]

mod approvals;
mod checkpoints;
mod commands;
mod commits;
mod events;
mod executions;
mod files;
mod fusion;
mod model;
mod openapi;
mod ports;
mod problem;
mod queues;
mod request;
mod respond;
mod routes;
mod run;
mod sandboxes;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::upgrade::OnUpgrade;
use hyper::{Response, Uri};
use sandcell_engine::Engine;
use sandcell_mcp::{Claim, EndpointBody, EndpointInput, EndpointRequest, Endpoints, NotFound, Permits, RequestHead};

use crate::queues::CallerQueues;
use crate::request::{Call, Query};

/// The resources of an engine.
pub struct Rest {
    engine: Arc<Engine>,
    /// The OpenAPI document, made at the first request for it.
    document: OnceLock<Bytes>,
    queues: CallerQueues,
    /// None: the server has no data folder, so nobody can prove to be the operator.
    permits: Option<Permits>,
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rest")
    }
}

impl Rest {
    /// Serves this engine. The user of the server makes the permits for commits.
    #[must_use]
    pub fn new(engine: Arc<Engine>, permits: Option<Permits>) -> Self {
        Self {
            engine,
            document: OnceLock::new(),
            queues: CallerQueues::default(),
            permits,
        }
    }
}

impl Endpoints for Rest {
    fn label(&self) -> &'static str {
        "/v1"
    }

    fn claim(&self, head: RequestHead<'_>) -> Claim {
        let path = head.uri.path();
        match path == "/v1" || path.starts_with("/v1/") || path == fusion::RUN_CODE_PATH {
            true => Claim::Address,
            false => Claim::None,
        }
    }

    fn find(&self, head: RequestHead<'_>) -> Result<EndpointInput, NotFound> {
        let (route, _) = routes::find(head.method, head.uri.path())?;
        Query::parse(head.uri.query(), route.query).ok_or(NotFound::Query)?;
        Ok(route.input)
    }

    fn answer_anybody(&self, _: &Uri) -> Response<EndpointBody> {
        let document = self
            .document
            .get_or_init(|| Bytes::from(openapi::document().to_string()));
        respond::bytes(hyper::StatusCode::OK, respond::JSON_TYPE, document.clone())
    }

    fn answer<'a>(&'a self, request: EndpointRequest<'a>) -> BoxFuture<'a, Response<EndpointBody>> {
        async move {
            let mut request = request;
            let upgrade = request.parts.extensions.remove::<OnUpgrade>();
            let uri = &request.parts.uri;
            // The pipeline has already found the route.
            let Ok((route, ids)) = routes::find(&request.parts.method, uri.path()) else {
                return problem::not_found().into_response();
            };
            let query = Query::parse(uri.query(), route.query).unwrap_or_default();
            let ids = ids.into_iter().map(str::to_owned).collect();
            let call = Call {
                engine: &self.engine,
                queues: &self.queues,
                permits: self.permits.as_ref(),
                caller: request.caller,
                ids,
                query,
                headers: request.parts.headers,
                body: request.body,
                large: request.large,
                upgrade,
                takeover: request.takeover,
            };
            match AssertUnwindSafe((route.run)(call)).catch_unwind().await {
                Ok(Ok(response)) => response,
                Ok(Err(problem)) => problem.into_response(),
                Err(_panic) => problem::panicked().into_response(),
            }
        }
        .boxed()
    }
}
