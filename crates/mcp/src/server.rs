//! The MCP server: lists tools and resources, and runs calls so that every call gets an answer.
#![expect(
    deprecated,
    reason = "MCP replaces log messages by nothing yet, and clients show them"
)]

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;
use rmcp::RoleServer;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult,
    Implementation, InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, RequestMetaObject, ServerCapabilities, ServerConfig, ServerResult,
    SetLevelRequestParams, Tool as McpTool, UpdateTaskParams,
};
use rmcp::service::{Peer, RequestContext};
use sandcell_engine::{Engine, EventKind, ExecutionId, ExpiryNotices, Principal, Progress, SecurityEvent, Watch};
use sandcell_sandbox::{Code, Consent, ConsentRequired, Failure, Mount};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::answer::{Answer, Block};
use crate::content::execution;
use crate::elicitation::{self, Elicitation, ElicitationOutcome, OpenQuestions};
use crate::in_flight::{AnswerRoom, InFlight};
use crate::instructions::SandboxLifetime;
use crate::instructions::tools_sentence;
use crate::limits::{BULK_ANSWER_BYTES, DEFAULT_WAIT, MAX_WAIT, PROGRESS_INTERVAL, PROGRESS_SEND_TIMEOUT};
use crate::notifications::{self, LogSubscription};
use crate::prompts::Prompt;
use crate::resources::Address;
use crate::tasks::{Job, Tasks};
use crate::tools::{self, Tool, ToolFacts, Toolset, WaitLimits};
use crate::{completion, convert, spans};

/// The switch for the fixtures of the conformance suite.
#[cfg(feature = "conformance")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fixture {
    /// As in builds without the feature.
    #[default]
    Absent,
    /// The tools, resources and prompts of the suite are there as well.
    Present,
}

/// The options of the server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The set of tools.
    pub toolset: Toolset,
    /// Only these tools; none means all of the toolset.
    pub tools: Option<Vec<String>>,
    /// The operator's folders that sandboxes see, for the instructions.
    pub mounts: Vec<Mount>,
    /// The lifetime of sandboxes.
    pub lives: SandboxLifetime,
    /// The default wait of a call for an execution. None means 45 s.
    pub wait: Option<Duration>,
    /// Adds the fixtures of the conformance suite to `serve --http`.
    #[cfg(feature = "conformance")]
    pub conformance: Fixture,
}

/// A tool was named that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool {name}; the tools are {known}")]
pub struct UnknownTool {
    /// The unknown name.
    pub name: String,
    /// The names that exist.
    pub known: String,
}

/// The server of one connection. Clones are cheap and share everything.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>, Arc<LogSubscription>);

struct Inner {
    engine: Arc<Engine>,
    tools: Vec<Tool>,
    /// Tools that can be called and are not listed.
    unlisted: Vec<Tool>,
    instructions: String,
    prompts: &'static [Prompt],
    /// The default wait of a call.
    wait: Duration,
    caller: Principal,
    /// Fires when the client is gone.
    gone: CancellationToken,
    in_flight: Arc<InFlight>,
    tasks: Tasks,
    /// Expiry notifications of the caller's sandboxes, for calls that ask for them.
    soon: tokio::sync::Mutex<ExpiryNotices>,
    elicitation: Elicitation,
    open_questions: OpenQuestions,
}

impl Server {
    pub(crate) fn new(
        engine: Arc<Engine>,
        options: &ServerOptions,
        caller: Principal,
        gone: CancellationToken,
        in_flight: Arc<InFlight>,
    ) -> Result<Self, UnknownTool> {
        let wait = options.wait.unwrap_or(DEFAULT_WAIT);
        let facts = ToolFacts {
            tool_servers: engine.tool_servers(&caller),
            ..ToolFacts::of(&engine, wait)
        };
        let mut tools = options.toolset.tools(&facts);
        let mut unlisted = options.toolset.unlisted_tools(&facts);
        if let Some(wanted) = &options.tools {
            let exists = |name: &String| tools.iter().chain(&unlisted).any(|tool| tool.name == *name);
            if let Some(name) = wanted.iter().find(|name| !exists(name)) {
                return Err(UnknownTool {
                    name: name.clone(),
                    known: names(&tools),
                });
            }
            let is_wanted = |tool: &Tool| wanted.iter().any(|name| name == tool.name);
            tools.retain(is_wanted);
            unlisted.retain(is_wanted);
        }
        let mut instructions = options.toolset.instructions(&engine, &options.mounts, options.lives);
        if let Some(sentence) = tools_sentence(&facts.tool_servers) {
            instructions = format!("{instructions}\n{sentence}");
        }
        let soon = tokio::sync::Mutex::new(engine.expiry_notices(&caller));
        let inner = Inner {
            engine,
            tools,
            unlisted,
            instructions,
            prompts: options.toolset.prompts(),
            wait,
            caller,
            gone,
            in_flight,
            tasks: Tasks::default(),
            soon,
            elicitation: Elicitation::default(),
            open_questions: OpenQuestions::default(),
        };
        Ok(Self(Arc::new(inner), Arc::default()))
    }

    /// The same server for another connection of the same caller.
    pub(crate) fn connection(&self) -> Self {
        Self(Arc::clone(&self.0), Arc::default())
    }

    /// Starts a call in the background. It runs until the execution that it started has ended.
    fn begin(&self, tool: &Tool, request: CallToolRequestParams, consent: Consent) -> Job {
        let (cancel, watch) = (self.0.gone.child_token(), Watch::default());
        let (server, name) = (self.clone(), tool.name);
        let answer = {
            let (cancel, watch) = (cancel.clone(), watch.clone());
            let call = async move { server.run_to_completion(name, (request, consent), cancel, watch).await };
            tokio::spawn(call.in_current_span())
        };
        Job {
            answer,
            cancel,
            watch,
            broken: Answer::failure(&panicked(tool.name)),
        }
    }

    async fn run_to_completion(
        &self,
        name: &str,
        (request, consent): (CallToolRequestParams, Consent),
        cancel: CancellationToken,
        watch: Watch,
    ) -> Answer {
        let Some(tool) = self.tool(name) else {
            return Answer::failure(&panicked(name));
        };
        let given = request.arguments.unwrap_or_default();
        let (engine, caller) = (&self.0.engine, &self.0.caller);
        let mut answer = tool
            .call(
                Arc::clone(engine),
                caller.clone(),
                given,
                cancel.clone(),
                watch.clone(),
                (consent, AnswerRoom::default(), WaitLimits::new(self.0.wait, None)),
            )
            .await;
        while let Some(id) = answer.running() {
            let view = tokio::select! {
                biased;
                () = cancel.cancelled() => engine.cancel(caller, Some(&id)).await,
                view = engine.execution(caller, &id, MAX_WAIT) => view,
            };
            answer = match view {
                Ok(view) => execution::answer(&view, engine.config().output_inline, &[], &AnswerRoom::default()).await,
                Err(failure) => Answer::failure(&failure),
            };
        }
        answer
    }

    /// Records the question to the user and the answer in the audit log.
    fn note_consent(&self, left: &ConsentRequired, consent: &Consent) {
        let answer = match consent {
            Consent::Given(_) => "allowed",
            Consent::Declined => "did not allow",
            Consent::NoAnswer => "was asked and did not answer about",
            Consent::NotAsked | Consent::CannotAsk => return,
        };
        let wanted: Vec<&str> = left.names().map(String::as_str).collect();
        self.0.engine.note(SecurityEvent {
            principal: Some(self.0.caller.clone()),
            ..SecurityEvent::new(EventKind::UserAsked, format!("the user {answer} {}", wanted.join(", ")))
        });
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        let mut all = self.0.tools.iter().chain(&self.0.unlisted);
        all.find(|tool| tool.name == name)
    }

    /// Returns the room for a request's answer.
    fn room(&self, context: &RequestContext<RoleServer>) -> AnswerRoom {
        AnswerRoom::new(
            &self.0.in_flight,
            &context.id,
            [context.ct.clone(), self.0.gone.clone()],
        )
    }

    /// Runs a call to completion. Sends progress if asked, stops the call when it is cancelled, and answers also after
    /// a panic (rmcp would leave the client waiting).
    async fn run(
        &self,
        tool: &Tool,
        (request, consent): (CallToolRequestParams, Consent),
        context: &RequestContext<RoleServer>,
        (room, watch): (AnswerRoom, Watch),
    ) -> Answer {
        let cancel = self.0.gone.child_token();
        let given = request.arguments.unwrap_or_default();
        let engine = Arc::clone(&self.0.engine);
        let allowed = (
            consent,
            room,
            WaitLimits::new(self.0.wait, given_up_after(&context.meta)),
        );
        let call = tool.call(
            engine,
            self.0.caller.clone(),
            given,
            cancel.clone(),
            watch.clone(),
            allowed,
        );
        let mut call = std::pin::pin!(AssertUnwindSafe(call).catch_unwind());
        let (sending, warning) = (AtomicBool::new(false), AtomicBool::new(false));
        let announcing = AtomicBool::new(false);
        let on_its_way = || {
            [&sending, &warning, &announcing]
                .iter()
                .any(|one| one.load(Ordering::Relaxed))
        };
        let notified = notifications::notify_call(context, &self.0.soon, |now| warning.store(now, Ordering::Relaxed));
        let announced =
            notifications::announce(context, &self.1, &watch, |now| announcing.store(now, Ordering::Relaxed));
        let mut notifying = std::pin::pin!(futures::future::join4(
            progress(context, &sending, &watch),
            notified,
            announced,
            elicitation::ask_about_tool_calls(
                context,
                (&self.0.engine, &self.0.open_questions),
                &self.0.caller,
                &watch
            ),
        ));
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut call => break outcome,
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                ((), (), (), ()) = &mut notifying => {}
            }
        };
        // A notification in transit must not arrive after the answer.
        let sent = std::future::poll_fn(|waker| {
            let _ = notifying.as_mut().poll(waker);
            if on_its_way() { Poll::Pending } else { Poll::Ready(()) }
        });
        if on_its_way() {
            let _ = tokio::time::timeout(PROGRESS_SEND_TIMEOUT, sent).await;
        }
        outcome.unwrap_or_else(|_| Answer::failure(&panicked(tool.name)))
    }
}

impl Server {
    /// Returns the question that ends a call in the newest protocol.
    fn round(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        watch: &Watch,
    ) -> Result<Option<InputRequiredResult>, ErrorData> {
        let (engine, caller) = (&*self.0.engine, &self.0.caller);
        let execution = watch.execution_id();
        self.0
            .elicitation
            .tool_round(request, context, (engine, caller), execution)
    }

    /// Waits for the execution of a call that was repeated with an answer about a tool call.
    async fn go_on(
        &self,
        id: &str,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (engine, caller) = (&self.0.engine, &self.0.caller);
        let watch = elicitation::watch_of(context);
        let wait = WaitLimits::new(self.0.wait, given_up_after(&context.meta)).usual;
        let followed = engine.watch(caller, id, &watch);
        let view = match followed {
            Ok(()) => {
                tokio::select! {
                    biased;
                    () = context.ct.cancelled() => engine.cancel(caller, Some(id)).await,
                    view = engine.execution(caller, id, wait) => view,
                }
            }
            Err(failure) => Err(failure),
        };
        if let Some(input) = self.round(request, context, &watch)? {
            return Ok(input.into());
        }
        let answer = match view {
            Ok(view) => execution::answer(&view, engine.config().output_inline, &[], &self.room(context)).await,
            Err(failure) => Answer::failure(&failure),
        };
        Ok(convert::result(answer).into())
    }
}

fn names(tools: &[Tool]) -> String {
    tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ")
}

fn panicked(what: &str) -> Failure {
    Failure::new(
        Code::Internal,
        format!("the server made a mistake in {what} and stopped this call"),
        "try again; if it happens again, tell the operator to look at the server's log",
    )
}

/// Reports progress once a second while the call runs, if the client asked for that. Never ends.
async fn progress(context: &RequestContext<RoleServer>, sending: &AtomicBool, watch: &Watch) {
    if let Some(token) = context.meta.get_progress_token() {
        report(&context.peer, token, sending, watch).await;
    }
    std::future::pending().await
}

async fn report(peer: &Peer<RoleServer>, token: ProgressToken, sending: &AtomicBool, watch: &Watch) {
    let mut last = 0.0;
    for second in 1_u32.. {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let id = watch.execution_id();
        let params = params(token.clone(), second, last, (watch.progress(), id));
        last = params.progress;
        sending.store(true, Ordering::Relaxed);
        let sent = peer.notify_progress(params).await;
        sending.store(false, Ordering::Relaxed);
        if sent.is_err() {
            return;
        }
    }
}

/// The progress after this many seconds: the position of the code's own progress bar, or a note that it runs. The
/// number must grow with each notification, so a bar that starts again only counts on by a little.
fn params(
    token: ProgressToken,
    second: u32,
    last: f64,
    (bar, id): (Option<Progress>, Option<ExecutionId>),
) -> ProgressNotificationParam {
    let Some(bar) = bar else {
        let value = f64::from(second).max(last + 0.001);
        let named = id.map_or_else(String::new, |id| format!("{id} "));
        return ProgressNotificationParam::new(token, value).with_message(format!("{named}running for {second} s"));
    };
    let value = bar.done.max(last + 0.001);
    let params = ProgressNotificationParam::new(token, value).with_message(bar.text);
    match bar.total {
        Some(total) if value <= total => params.with_total(total),
        Some(_) | None => params,
    }
}

/// The client's own timeout for this call, if it states one (docs/guides/frameworks.md).
fn given_up_after(meta: &RequestMetaObject) -> Option<Duration> {
    let seconds = meta.0.0.get("sandcell/timeout_s")?.as_f64()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Returns the approximate bytes of an answer.
fn weight(answer: &Answer) -> usize {
    let len = |block: &Block| match block {
        Block::Text(text) => text.len(),
        Block::Image { base64, .. } => base64.len(),
        Block::Link(_) => 0,
    };
    answer.blocks.iter().map(len).sum()
}

/// Repairs a call of a tool if its arguments are JSON text, or an empty list instead of an object.
fn call_in_text(request: &CustomRequest) -> Option<CallToolRequestParams> {
    let mut params = request.params.clone().filter(|_| request.method == "tools/call")?;
    let arguments = params.get_mut("arguments")?;
    *arguments = crate::arguments::whole_arguments(arguments)?.into();
    serde_json::from_value(params).ok()
}

/// Returns true for calls whose answer can have the size of a file.
pub(crate) fn is_bulk(request: &CallToolRequestParams) -> bool {
    request.name == "read_file"
        && request
            .arguments
            .as_ref()
            .is_some_and(|given| given.contains_key("base64"))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .enable_completions()
            .enable_logging()
            .enable_tasks()
            .build();
        if self.0.prompts.is_empty() {
            capabilities.prompts = None;
        }
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("sandcell", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.0.instructions.clone())
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        convert::whole_list(page.as_ref())?;
        Ok(ListToolsResult::with_all_items(
            self.0.tools.iter().map(convert::tool).collect(),
        ))
    }

    fn get_tool(&self, name: &str) -> Option<McpTool> {
        self.tool(name).map(convert::tool)
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tool(&request.name) else {
            let message = format!("there is no tool {}", crate::arguments::echo(&request.name));
            let remedy = format!("the tools are {}", names(&self.0.tools));
            return Err(convert::misuse(ErrorCode::INVALID_PARAMS, &message, &remedy));
        };
        if let Some(id) = self
            .0
            .elicitation
            .answer_round(&request, (&self.0.engine, &self.0.caller))
        {
            return self.go_on(&id, &request, &context).await;
        }
        let given = request.arguments.clone().unwrap_or_default();
        let mut left = tool.consent_required(&self.0.engine, &given);
        match tools::changes_to_commit(tool, &self.0.engine, &self.0.caller, &given).await {
            Ok(changes) => left.changes = changes,
            Err(failure) => return Ok(convert::result(Answer::failure(&failure)).into()),
        }
        if left.is_empty() && request.request_state.is_some() {
            // The call must not run a second time.
            return Err(ErrorData::invalid_params(
                "the requestState belongs to another call or is too old; get_execution has the result of the first one",
                None,
            ));
        }
        let consent = match self
            .0
            .elicitation
            .consent((tool, &left), &mut request, &context, (&self.0.caller, self.0.wait))
            .await?
        {
            ElicitationOutcome::Answered(consent) => consent,
            ElicitationOutcome::InputRequired(input) => return Ok(input.into()),
        };
        self.note_consent(&left, &consent);
        let span = spans::of_call(tool.name, &context);
        let room = self.room(&context);
        if is_bulk(&request) && !room.take(BULK_ANSWER_BYTES).await {
            return Ok(convert::result(Answer::failure(&tools::cancelled_by_client())).into());
        }
        let knows_tasks = context.client_capabilities().is_some_and(|all| all.supports_tasks());
        if let Some(permit) = knows_tasks.then(|| self.0.tasks.permit(tool.name)).flatten() {
            let job = span.in_scope(|| self.begin(tool, request, consent));
            return Ok(self.0.tasks.follow(job, permit, &context.ct).await);
        }
        let watch = elicitation::watch_of(&context);
        let answer = self
            .run(tool, (request.clone(), consent), &context, (room, watch.clone()))
            .instrument(span.clone())
            .await;
        if let Some(input) = self.round(&request, &context, &watch)? {
            return Ok(input.into());
        }
        span.record("failed", answer.failed);
        tracing::debug!(
            tool = tool.name,
            failed = answer.failed,
            bytes = weight(&answer),
            "answered"
        );
        Ok(convert::result(answer).into())
    }

    async fn list_prompts(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        convert::whole_list(page.as_ref())?;
        Ok(ListPromptsResult::with_all_items(
            self.0.prompts.iter().map(convert::prompt).collect(),
        ))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let Some(prompt) = self.0.prompts.iter().find(|prompt| prompt.name == request.name) else {
            let names: Vec<&str> = self.0.prompts.iter().map(|prompt| prompt.name).collect();
            let name = crate::arguments::echo(&request.name);
            let message = format!("there is no prompt {name}");
            let remedy = format!("the prompts are {}", names.join(", "));
            return Err(convert::misuse(ErrorCode::INVALID_PARAMS, &message, &remedy));
        };
        let given = request.arguments.unwrap_or_default();
        let value = |name: &str| given.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        match prompt.text(&value) {
            Ok(text) => Ok(convert::prompt_text(prompt, text).into()),
            Err(missing) => {
                let message = format!("the prompt {} lacks an argument", prompt.name);
                let remedy = format!("give a text for {missing}");
                Err(convert::misuse(ErrorCode::INVALID_PARAMS, &message, &remedy))
            }
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completing = async {
            let typed = convert::typed(&request)?;
            Some(completion::complete(&self.0.engine, &self.0.caller, &typed).await)
        };
        let completed = AssertUnwindSafe(completing).catch_unwind().await;
        let completed = completed.map_err(|_| convert::panicked(&panicked("completion/complete")))?;
        Ok(convert::completed(completed.unwrap_or_default()))
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        convert::whole_list(page.as_ref())?;
        Ok(ListResourcesResult::default())
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        convert::whole_list(page.as_ref())?;
        Ok(ListResourceTemplatesResult::with_all_items(
            convert::resource_templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let room = self.room(&context);
        if !room.take(BULK_ANSWER_BYTES).await {
            return Err(ErrorData::invalid_request("the client cancelled the request", None));
        }
        let read = async {
            let address = Address::parse(&request.uri)?;
            address.read(&self.0.engine, &self.0.caller).await
        };
        let outcome = AssertUnwindSafe(read).catch_unwind().await;
        match outcome.unwrap_or_else(|_| Err(panicked("resources/read"))) {
            Ok(content) => Ok(convert::resource(&request.uri, content).into()),
            Err(failure) => Err(convert::resource_error(&request.uri, &failure)),
        }
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let soon = || self.0.engine.expiry_notices(&self.0.caller);
        self.1.set_level(request.level, &context.peer, soon);
        Ok(())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.0.tasks.get(&request.task_id)
    }

    async fn update_task(&self, request: UpdateTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.0.tasks.update(&request.task_id)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.0.tasks.cancel(&request.task_id)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if let Some(call) = call_in_text(&request) {
            let response = self.call_tool(call, context).await?;
            let written = serde_json::to_value(ServerResult::from(response));
            return written.map(CustomResult).map_err(|error| {
                convert::misuse(
                    ErrorCode::INTERNAL_ERROR,
                    &error.to_string(),
                    "send the arguments as an object",
                )
            });
        }
        // rmcp takes a known method with parameters of the wrong shape for an unknown method.
        const KNOWN_METHODS: [&str; 5] = [
            "initialize",
            "tools/call",
            "tools/list",
            "resources/read",
            "resources/list",
        ];
        let method = crate::arguments::echo(&request.method);
        // The newest protocol has no handshake: there it is unknown in any shape.
        let no_handshake = context.meta.protocol_version() >= Some(ProtocolVersion::V_2026_07_28);
        let unknown = no_handshake && request.method == "initialize";
        Err(if KNOWN_METHODS.contains(&request.method.as_str()) && !unknown {
            let message = format!("the params of {method} have the wrong shape");
            let remedy = "arguments must be an object, such as {\"code\": \"print(1)\"}";
            convert::misuse(ErrorCode::INVALID_PARAMS, &message, remedy)
        } else {
            let message = format!("there is no method {method}");
            let remedy = "tools/list says what can be called by tools/call; `initialize` or `server/discover` says what else there is";
            convert::misuse(ErrorCode::METHOD_NOT_FOUND, &message, remedy)
        })
    }
}
