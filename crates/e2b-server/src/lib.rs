//! A server for E2B's SDKs: the control plane, and for each sandbox the services `envd` (processes and files) and
//! `code-interpreter`, all on the address of the HTTP service.
//!
//! The decision taken here: a request is for a sandbox if it names one in its headers or in its `Host`
//! ([`target`]). Everything else of E2B's addresses is the control plane. The HTTP service of `sandcell-mcp` applies the
//! limits of the caller before a request arrives here. This crate tells that service who the caller is: by an API key,
//! or by the secret of a sandbox.
//!
//! Calls that this server does not support get status 501 and the code `unimplemented`.
#![forbid(unsafe_code)]

mod answer;
mod call;
mod connect;
mod contexts;
mod control;
mod entries;
mod files;
mod filesystem;
mod interpreter;
mod limits;
mod logs;
mod metadata;
mod paths;
mod ports;
mod problem;
mod process;
mod processes;
mod registry;
mod routes;
mod secrets;
mod snapshots;
mod target;
mod templates;
mod users;
mod values;
mod watch;
mod watchers;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::{Response, StatusCode, Uri};
use sandcell_engine::Engine;
use sandcell_mcp::{
    Claim, Credential, EndpointBody, EndpointInput, EndpointRequest, Endpoints, NotFound, Refusal, RequestHead,
};

use crate::call::InSandbox;
use crate::problem::Problem;
use crate::registry::Registry;
use crate::routes::Route;
use crate::target::Target;

pub use crate::limits::ENVD_VERSION;
pub use crate::templates::{Templates, check_templates};

/// The settings of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct E2bOptions {
    /// The domain of the host names of sandboxes, `PORT-ID.DOMAIN`. It can end with a port, as in `localhost:8123`.
    pub domain: String,
    /// True if ports of programs need no token, unless the request for a sandbox says otherwise.
    pub public_ports: bool,
    /// The kinds of sandboxes that a request can name.
    pub templates: Templates,
}

/// The E2B server of an engine.
pub struct E2bServer {
    state: Arc<State>,
}

/// The engine, and the state that its sandboxes do not have.
struct State {
    engine: Arc<Engine>,
    options: E2bOptions,
    sandboxes: Registry,
}

impl std::fmt::Debug for E2bServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("E2bServer")
    }
}

impl E2bServer {
    /// Serves this engine. Call it inside a tokio runtime with time enabled.
    #[must_use]
    pub fn new(engine: Arc<Engine>, options: E2bOptions) -> Self {
        let state = Arc::new(State {
            sandboxes: Registry::default(),
            engine,
            options,
        });
        tokio::spawn(registry::forget_ended(Arc::downgrade(&state)));
        Self { state }
    }

    fn target(&self, head: RequestHead<'_>) -> Option<Target> {
        Target::of(head, &self.state.options.domain, &self.state.sandboxes)
    }
}

impl Endpoints for E2bServer {
    fn label(&self) -> &'static str {
        "e2b"
    }

    fn claim(&self, head: RequestHead<'_>) -> Claim {
        match self.target(head) {
            Some(target) => Claim::Any { host: target.by_host },
            None if routes::is_control(head.uri.path()) => Claim::Address,
            None => Claim::None,
        }
    }

    fn find(&self, head: RequestHead<'_>) -> Result<EndpointInput, NotFound> {
        let port = self.target(head).map(|target| target.port);
        Ok(routes::find(head.method, head.uri.path(), port)?.input())
    }

    fn credential(&self, head: RequestHead<'_>) -> Credential {
        match self.target(head) {
            Some(target) => target.credential(head, &self.state.sandboxes),
            None => match head.header("x-api-key") {
                Some(key) => Credential::Token(key.to_owned()),
                None => Credential::Authorization,
            },
        }
    }

    fn refuse(&self, uri: &Uri, refusal: &Refusal) -> Option<Response<EndpointBody>> {
        Some(Problem::from(refusal.clone()).into_response(connect::is_connect(uri.path())))
    }

    fn answer_anybody(&self, _: &Uri) -> Response<EndpointBody> {
        Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address").into_response(false)
    }

    fn answer<'a>(&'a self, request: EndpointRequest<'a>) -> BoxFuture<'a, Response<EndpointBody>> {
        async move {
            let path = request.parts.uri.path().to_owned();
            let head = RequestHead {
                method: &request.parts.method,
                uri: &request.parts.uri,
                headers: &request.parts.headers,
            };
            let target = self.target(head);
            let route = routes::find(head.method, head.uri.path(), target.as_ref().map(|target| target.port));
            let answered = match route {
                Ok(route) => {
                    AssertUnwindSafe(dispatch(&self.state, route, target, request))
                        .catch_unwind()
                        .await
                }
                // The pipeline has already found the route.
                Err(_) => Ok(Err(Problem::new(
                    StatusCode::NOT_FOUND,
                    "there is nothing at this address",
                ))),
            };
            match answered {
                Ok(Ok(response)) => response,
                Ok(Err(problem)) => problem.into_response(connect::is_connect(&path)),
                Err(_panic) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server made a mistake")
                    .into_response(connect::is_connect(&path)),
            }
        }
        .boxed()
    }
}

async fn dispatch(
    state: &Arc<State>,
    route: Route,
    target: Option<Target>,
    request: EndpointRequest<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    let sandbox = match &target {
        Some(target) => {
            let found = state.sandboxes.find(&target.sandbox);
            // The registry learns of ends later than the engine.
            let live = found.filter(|sandbox| state.engine.has_sandbox(&sandbox.owner, &sandbox.id));
            Some(live.ok_or_else(|| target.not_found())?)
        }
        None => None,
    };
    let Some(sandbox) = sandbox else {
        return match route {
            Route::Control(operation, id) => control::answer(state, operation, id, request).await,
            _ => Err(Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address")),
        };
    };
    if !sandbox.terms.resumes && state.engine.is_paused(&sandbox.owner, &sandbox.id) {
        return Err(target.map_or_else(Problem::gone, |target| target.paused()));
    }
    let in_sandbox = InSandbox {
        state: Arc::clone(state),
        sandbox: Arc::clone(&sandbox),
    };
    let answered = match route {
        Route::Health => Ok(answer::empty(StatusCode::NO_CONTENT)),
        Route::InterpreterHealth => Ok(answer::text(StatusCode::OK, "OK")),
        Route::Envs => Ok(answer::json(StatusCode::OK, &sandbox.terms.env)),
        Route::EnvdMetrics => control::sandbox_metrics(state, &sandbox).await,
        Route::Files => files::answer(in_sandbox, request).await,
        Route::Process(method) => process::answer(in_sandbox, method, request).await,
        Route::Filesystem(method) => filesystem::answer(in_sandbox, method, request).await,
        Route::Missing(what) => Err(Problem::unimplemented(what)),
        Route::Execute => interpreter::execute(in_sandbox, request).await,
        Route::Contexts => interpreter::contexts(in_sandbox, request).await,
        Route::Context(id) => interpreter::remove_context(&in_sandbox, &id).await,
        Route::RestartContext(id) => interpreter::restart_context(&in_sandbox, &id).await,
        Route::Port(port) => ports::pass_on(in_sandbox, port, request).await,
        Route::Control(..) => Err(Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address")),
    };
    // A sandbox that has ended answers like one that never was.
    match answered {
        Err(_) if !state.engine.has_sandbox(&sandbox.owner, &sandbox.id) => {
            state.sandboxes.forget(&sandbox.id);
            Err(target.map_or_else(Problem::gone, |target| target.not_found()))
        }
        answered => answered,
    }
}
