//! Calls of the host's tools by code in a sandbox: the execution that each call belongs to, its budget, and the questions
//! to a person.
//!
//! [`sandcell_sandbox::HostTools`] reads the requests of code and makes the calls. This module decides nothing about
//! tools. It is the only part that knows executions: a call without a running execution is refused, and the end of an
//! execution ends its calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{
    Code, Failure, FunctionSpec, Functions, HostTools, Sandbox, SandboxError, TOOLS_PORT, ToolCall, ToolCaller,
    ToolLimits, ToolPort, ToolQuestion, ToolRequest,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::sync::lock;
use crate::records::sinks::{EventKind, SecurityEvent};
use crate::sandbox::functions::SandboxFunctions;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::Record;
use crate::{ExecutionId, PendingToolCall, Principal, ToolCallCount, ToolDecision};

/// The maximum number of different tools that one result names. Further ones are counted together.
const MAX_COUNTED_TOOLS: usize = 40;
/// The name under which further tools are counted, and those that do not exist.
const OTHER_TOOLS: &str = "others";
/// The maximum number of questions of one execution.
const MAX_QUESTIONS: u32 = 50;
/// The maximum time that one execution waits for a person in all: other threads of the code run meanwhile.
const MAX_WAITED: Duration = Duration::from_secs(10 * 60);
/// The maximum number of questions of one execution that wait for an answer at once.
const MAX_PENDING_QUESTIONS: usize = 8;
/// The minimum time by which a deadline is postponed while a person is asked.
const MIN_POSTPONEMENT: Duration = Duration::from_millis(500);

/// The tool calls of one execution.
#[derive(Debug)]
pub(crate) struct ToolUse {
    execution: ExecutionId,
    limits: ToolLimits,
    /// True if somebody can be asked.
    can_ask: Arc<AtomicBool>,
    /// Cancelled when the execution is stopped, and when it has ended.
    stopping: CancellationToken,
    at_once: Arc<Semaphore>,
    state: Mutex<UseState>,
    /// Signals a new question.
    asked: Notify,
}

#[derive(Debug, Default)]
struct UseState {
    calls: u32,
    lists: u32,
    bytes: u64,
    counts: BTreeMap<String, ToolCallCount>,
    questions: u32,
    pending: BTreeMap<u32, Pending>,
    /// The tools that a person has allowed, and the number of calls left. None: all calls of the execution.
    granted: BTreeMap<(String, String), Option<u32>>,
    /// The number of calls that wait for a person, and the beginning of that wait.
    waiting: u32,
    waiting_since: Option<Instant>,
    /// The duration of earlier waits.
    waited: Duration,
}

impl UseState {
    fn time_waited(&self) -> Duration {
        self.waited + self.waiting_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// A question without an answer yet.
#[derive(Debug)]
struct Pending {
    question: ToolQuestion,
    answer: oneshot::Sender<ToolDecision>,
}

impl ToolUse {
    pub(crate) fn new(
        execution: ExecutionId,
        limits: ToolLimits,
        can_ask: Arc<AtomicBool>,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            execution,
            can_ask,
            stopping,
            at_once: Arc::new(Semaphore::new(limits.calls_at_once)),
            limits,
            state: Mutex::default(),
            asked: Notify::new(),
        })
    }

    /// Returns the number of calls of each tool so far.
    pub(crate) fn counts(&self) -> Vec<ToolCallCount> {
        lock(&self.state).counts.values().cloned().collect()
    }

    /// Returns the questions that wait for an answer.
    pub(crate) fn pending(&self) -> Vec<PendingToolCall> {
        let state = lock(&self.state);
        let pending = state.pending.iter();
        pending
            .map(|(number, pending)| PendingToolCall {
                execution_id: self.execution.clone(),
                number: *number,
                question: pending.question.clone(),
            })
            .collect()
    }

    /// Waits for a question with a number above this one.
    pub(crate) async fn question_after(&self, number: u32) -> PendingToolCall {
        loop {
            let mut asked = std::pin::pin!(self.asked.notified());
            asked.as_mut().enable();
            if let Some(next) = self.pending().into_iter().find(|pending| pending.number > number) {
                return next;
            }
            asked.await;
        }
    }

    /// Answers a question, and returns it. None if it no longer waits.
    pub(crate) fn answer(&self, number: u32, decision: ToolDecision) -> Option<ToolQuestion> {
        let mut state = lock(&self.state);
        let Pending { question, answer } = state.pending.remove(&number)?;
        if decision == ToolDecision::Execution {
            // The decision also applies to waiting calls of the same tool.
            let same =
                |other: &Pending| (&other.question.server, &other.question.tool) == (&question.server, &question.tool);
            for (_, other) in state.pending.extract_if(.., |_, other| same(other)) {
                let _its_call_is_over = other.answer.send(decision);
            }
        }
        drop(state);
        answer.send(decision).ok().map(|()| question)
    }

    /// Returns the names of the tools that wait for a person.
    pub(crate) fn waiting_for(&self) -> Vec<String> {
        let state = lock(&self.state);
        let name = |pending: &Pending| format!("{}.{}", pending.question.server, pending.question.tool);
        state.pending.values().map(name).collect()
    }

    /// Counts a call of a tool. None: code has named the tool, and it is not known to exist.
    fn count(&self, tool: Option<&ToolRequest>, add: impl FnOnce(&mut ToolCallCount)) {
        let mut state = lock(&self.state);
        let name = tool.map(|request| format!("{}.{}", request.server, request.tool));
        let has_place = |name: &String| state.counts.len() < MAX_COUNTED_TOOLS || state.counts.contains_key(name);
        let name = name.filter(has_place).unwrap_or_else(|| OTHER_TOOLS.to_owned());
        let count = state.counts.entry(name.clone()).or_insert_with(|| ToolCallCount {
            tool: name,
            ok: 0,
            failed: 0,
            refused: 0,
        });
        add(count);
    }

    fn add_bytes(&self, bytes: u64) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        let total = state.bytes.saturating_add(bytes);
        if total > self.limits.total_size.as_bytes() {
            return Err(Failure::new(
                Code::LimitReached,
                format!(
                    "the tool calls of this execution have transferred {} MiB, which is the maximum",
                    self.limits.total_size.as_bytes() >> 20
                ),
                "ask the tools for less data, or split the work into several executions",
            ));
        }
        state.bytes = total;
        Ok(())
    }

    /// Returns true while a person is asked.
    pub(crate) fn is_waiting(&self) -> bool {
        lock(&self.state).waiting_since.is_some()
    }

    /// Returns the total time that a person was asked.
    pub(crate) fn time_waited(&self) -> Duration {
        lock(&self.state).time_waited()
    }

    /// Takes one call from what a person has allowed. Returns false if the tool is not allowed.
    fn take_grant(&self, question: &ToolQuestion) -> bool {
        let mut state = lock(&self.state);
        let key = (question.server.clone(), question.tool.clone());
        match state.granted.get_mut(&key) {
            None => false,
            Some(None) => true,
            Some(Some(left)) => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    state.granted.remove(&key);
                }
                true
            }
        }
    }

    fn grant(&self, question: &ToolQuestion, calls: Option<u32>) {
        let key = (question.server.clone(), question.tool.clone());
        lock(&self.state).granted.insert(key, calls);
    }

    /// Registers a question. Returns it with the receiver of the answer.
    fn register(&self, question: &ToolQuestion) -> Result<(Asking<'_>, oneshot::Receiver<ToolDecision>), Failure> {
        let mut state = lock(&self.state);
        if state.questions >= MAX_QUESTIONS || state.pending.len() >= MAX_PENDING_QUESTIONS {
            return Err(Failure::new(
                Code::LimitReached,
                format!(
                    "this execution has asked {} questions, {} of them wait; the maximum is {MAX_QUESTIONS}, and \
                     {MAX_PENDING_QUESTIONS} at once",
                    state.questions,
                    state.pending.len()
                ),
                "make fewer calls that need approval; the operator can allow the tool in the settings",
            ));
        }
        if state.time_waited() > MAX_WAITED {
            return Err(Failure::new(
                Code::LimitReached,
                format!(
                    "this execution has waited {} min for a person, which is the maximum",
                    MAX_WAITED.as_secs() / 60
                ),
                "run the rest of the code as another execution",
            ));
        }
        state.questions += 1;
        let number = state.questions;
        let (answer, answered) = oneshot::channel();
        let question = question.clone();
        state.pending.insert(number, Pending { question, answer });
        state.waiting += 1;
        state.waiting_since.get_or_insert_with(Instant::now);
        Ok((Asking { of: self, number }, answered))
    }

    async fn ask(&self, question: ToolQuestion) -> Result<(), Failure> {
        if self.take_grant(&question) {
            return Ok(());
        }
        let name = format!("{}.{}", question.server, question.tool);
        let denied = |why: &str, remedy: String| {
            Err(Failure::new(
                Code::ToolDenied,
                format!("the call of {name} is not allowed: {why}"),
                remedy,
            ))
        };
        if !self.can_ask.load(Ordering::Relaxed) {
            return denied(
                "a person has to approve it, and this client has no way to ask (MCP elicitation)",
                format!(
                    "continue without it; the operator can name \"{}\" in tools.{}.allow of the settings, and not in ask",
                    question.tool, question.server
                ),
            );
        }
        let (asking, answered) = self.register(&question)?;
        self.asked.notify_waiters();
        let answer = timeout(self.limits.approval, answered).await;
        drop(asking);
        match answer {
            Ok(Ok(ToolDecision::Once)) => Ok(()),
            Ok(Ok(ToolDecision::Calls(calls))) => {
                // This call is the first one.
                if let Some(left) = calls.checked_sub(1).filter(|left| *left > 0) {
                    self.grant(&question, Some(left));
                }
                Ok(())
            }
            Ok(Ok(ToolDecision::Execution)) => {
                self.grant(&question, None);
                Ok(())
            }
            Ok(Ok(ToolDecision::Deny)) => {
                lock(&self.state)
                    .granted
                    .remove(&(question.server.clone(), question.tool.clone()));
                denied(
                    "a person was asked and refused",
                    "continue without it; ask again only for something that the person agreed to".to_owned(),
                )
            }
            Ok(Err(_)) | Err(_) => denied(
                "a person was asked and did not answer in time",
                "run the code again when the person is available: the question is repeated".to_owned(),
            ),
        }
    }
}

/// A registered question. The time limit of its execution does not count the time until it is dropped.
struct Asking<'a> {
    of: &'a ToolUse,
    number: u32,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.of.state);
        state.pending.remove(&self.number);
        state.waiting = state.waiting.saturating_sub(1);
        if state.waiting == 0
            && let Some(since) = state.waiting_since.take()
        {
            state.waited += since.elapsed();
        }
    }
}

/// Measures the time that an execution waits for a person.
pub(crate) struct ApprovalClock {
    tools: Option<Arc<ToolUse>>,
    seen: Duration,
}

impl ApprovalClock {
    pub(crate) fn new(tools: Option<Arc<ToolUse>>) -> Self {
        Self {
            seen: Duration::ZERO,
            tools,
        }
    }

    /// Returns the time by which a deadline that has passed is to be postponed. None: nobody was asked since the last
    /// call.
    pub(crate) fn postponement(&mut self) -> Option<Duration> {
        let tools = self.tools.as_ref()?;
        let now = tools.time_waited();
        let lost = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        if tools.is_waiting() {
            return Some(lost.max(MIN_POSTPONEMENT));
        }
        (!lost.is_zero()).then_some(lost)
    }
}

/// The tools of a sandbox: its port, and the executions that may call tools now.
#[derive(Debug, Default)]
pub(crate) struct SandboxTools {
    running: Mutex<Vec<Arc<ToolUse>>>,
    port: Mutex<Option<Box<dyn ToolPort>>>,
    /// The bounds of each execution. Unset: the sandbox offers no tools.
    limits: OnceLock<ToolLimits>,
    /// The functions of the program that made the sandbox.
    functions: OnceLock<Arc<SandboxFunctions>>,
}

impl SandboxTools {
    /// Returns the execution of a call: the named one, or the newest one.
    fn find(&self, execution: Option<&str>) -> Option<Arc<ToolUse>> {
        let running = lock(&self.running);
        match execution {
            Some(id) => running.iter().find(|one| one.execution.as_str() == id).cloned(),
            None => running.last().cloned(),
        }
    }

    /// Returns the bounds of an execution's calls. None: code in the sandbox cannot call tools.
    pub(crate) fn limits(&self) -> Option<&ToolLimits> {
        self.limits.get()
    }

    /// Sets the functions of the program that makes the sandbox. Call this before the sandbox is made.
    pub(crate) fn set_functions(&self, specs: Vec<FunctionSpec>) {
        if !specs.is_empty() {
            self.functions.get_or_init(|| SandboxFunctions::new(specs));
        }
    }

    /// Returns the functions of the program that made the sandbox.
    pub(crate) fn functions(&self) -> Option<&Arc<SandboxFunctions>> {
        self.functions.get()
    }

    /// Closes the port.
    pub(crate) fn close(&self) {
        drop(lock(&self.port).take());
    }
}

/// Lets an execution call tools until it is dropped.
pub(crate) struct ToolUseGuard<'a> {
    tools: &'a SandboxTools,
    of: Arc<ToolUse>,
}

impl<'a> ToolUseGuard<'a> {
    pub(crate) fn new(record: &'a Record, of: Arc<ToolUse>) -> Self {
        let tools = &record.tools;
        lock(&tools.running).push(of.clone());
        Self { tools, of }
    }
}

impl Drop for ToolUseGuard<'_> {
    fn drop(&mut self) {
        lock(&self.tools.running).retain(|one| !Arc::ptr_eq(one, &self.of));
        self.of.stopping.cancel();
    }
}

impl Sandboxes {
    /// Opens the port for tools in a new sandbox. A back end without ports has no tools: the code that looks for them
    /// finds no port.
    pub(crate) async fn open_tools(
        self: &Arc<Self>,
        record: &Arc<Record>,
        sandbox: &dyn Sandbox,
    ) -> Result<(), Failure> {
        let tools = self.tools.get();
        let functions = record.tools.functions().cloned();
        let offered = |tools: &&Arc<dyn HostTools>| functions.is_some() || tools.has_servers();
        let Some(tools) = tools.as_ref().as_ref().filter(offered) else {
            return match functions {
                None => Ok(()),
                Some(_) => Err(Failure::new(
                    Code::ToolUnavailable,
                    "this build of sandcell cannot offer functions to code",
                    "make the sandbox without functions, or use a build with the feature `tools`",
                )),
            };
        };
        let forward = match sandbox.forward(TOOLS_PORT).await {
            Ok(forward) => forward,
            Err(SandboxError::Unsupported(_)) if functions.is_none() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let caller = Arc::new(RecordCaller {
            sandboxes: Arc::downgrade(self),
            record: Arc::downgrade(record),
            owner: record.owner.clone(),
        });
        let functions = functions.map(|functions| -> Arc<dyn Functions> { functions });
        *lock(&record.tools.port) = Some(tools.open(forward, caller, functions));
        // A record has one sandbox, which is made once.
        let _ = record.tools.limits.set(self.config().tools.clone());
        Ok(())
    }

    /// Returns the servers whose tools this caller's code may use.
    pub(crate) fn tool_servers(&self, principal: &Principal) -> Vec<String> {
        let tools: Arc<Option<Arc<dyn HostTools>>> = self.tools.get();
        tools
            .as_ref()
            .as_ref()
            .map(|tools| tools.servers(&principal.0))
            .unwrap_or_default()
    }
}

/// The caller of tools: one sandbox.
#[derive(Debug)]
struct RecordCaller {
    sandboxes: Weak<Sandboxes>,
    record: Weak<Record>,
    owner: Principal,
}

impl RecordCaller {
    fn find(&self, execution: Option<&str>) -> Option<Arc<ToolUse>> {
        self.record.upgrade()?.tools.find(execution)
    }

    fn note(&self, request: &ToolRequest, execution: Option<&ExecutionId>, end: &str, code: Option<Code>) {
        let (Some(sandboxes), Some(record)) = (self.sandboxes.upgrade(), self.record.upgrade()) else {
            return;
        };
        sandboxes.records.observers.note(|| SecurityEvent {
            principal: Some(self.owner.clone()),
            sandbox: Some(record.id.clone()),
            execution: execution.cloned(),
            code,
            ..SecurityEvent::new(
                // Refused calls have a separate bound in the log, so that they cannot hide others.
                if end == "refused" {
                    EventKind::ToolRefused
                } else {
                    EventKind::ToolCalled
                },
                format!(
                    "{}.{}: {end}; arguments of {} bytes, sha256 {}",
                    request.server, request.tool, request.bytes, request.digest
                ),
            )
        });
    }
}

#[async_trait]
impl ToolCaller for RecordCaller {
    fn owner(&self) -> &str {
        &self.owner.0
    }

    fn may_call(&self, execution: Option<&str>) -> Result<(), Failure> {
        let of = self.find(execution).ok_or_else(no_execution)?;
        let calls = lock(&of.state).calls;
        (calls < of.limits.calls)
            .then_some(())
            .ok_or_else(|| too_many_calls(&of.limits))
    }

    fn admit_list(&self, execution: Option<&str>) -> Result<(), Failure> {
        let of = self.find(execution).ok_or_else(no_execution)?;
        let mut state = lock(&of.state);
        if state.lists >= of.limits.calls {
            return Err(too_many_calls(&of.limits));
        }
        state.lists += 1;
        Ok(())
    }

    async fn begin(&self, execution: Option<&str>, request: &ToolRequest) -> Result<Box<dyn ToolCall>, Failure> {
        let Some(of) = self.find(execution) else {
            let failure = no_execution();
            self.note(request, None, "refused", Some(failure.code));
            return Err(failure);
        };
        let admitted = self.admit(&of, request).await;
        match admitted {
            Ok(permit) => Ok(Box::new(RunningCall {
                caller: Self {
                    sandboxes: self.sandboxes.clone(),
                    record: self.record.clone(),
                    owner: self.owner.clone(),
                },
                of,
                request: request.clone(),
                found: AtomicBool::new(false),
                made: AtomicBool::new(false),
                ended: false,
                _permit: permit,
            })),
            Err(failure) => {
                of.count(None, |count| count.refused += 1);
                self.note(request, Some(&of.execution), "refused", Some(failure.code));
                Err(failure)
            }
        }
    }

    fn refused(&self, execution: Option<&str>, request: &ToolRequest, failure: &Failure) {
        let of = self.find(execution);
        if let Some(of) = &of {
            let mut state = lock(&of.state);
            state.calls = state.calls.saturating_add(1);
            drop(state);
            of.count(None, |count| count.refused += 1);
        }
        self.note(
            request,
            of.as_ref().map(|of| &of.execution),
            "refused",
            Some(failure.code),
        );
    }
}

impl RecordCaller {
    async fn admit(&self, of: &ToolUse, request: &ToolRequest) -> Result<OwnedSemaphorePermit, Failure> {
        {
            let mut state = lock(&of.state);
            if state.calls >= of.limits.calls {
                return Err(too_many_calls(&of.limits));
            }
            state.calls += 1;
        }
        of.add_bytes(request.bytes)?;
        tokio::select! {
            biased;
            () = of.stopping.cancelled() => Err(stopped()),
            permit = Arc::clone(&of.at_once).acquire_owned() => permit.map_err(|_| stopped()),
        }
    }
}

fn no_execution() -> Failure {
    Failure::new(
        Code::ToolDenied,
        "tools can be used only while an execution runs",
        "use tools in the code of an execution, not in a background thread or process that outlives it",
    )
}

fn too_many_calls(limits: &ToolLimits) -> Failure {
    Failure::new(
        Code::LimitReached,
        format!(
            "this execution has made {} tool calls, which is the maximum",
            limits.calls
        ),
        "split the work into several executions, or use a tool that does more in one call",
    )
}

fn stopped() -> Failure {
    Failure::new(
        Code::Cancelled,
        "the execution that made this call has ended",
        "call tools in the code of a running execution",
    )
}

/// A call in progress.
struct RunningCall {
    caller: RecordCaller,
    of: Arc<ToolUse>,
    request: ToolRequest,
    found: AtomicBool,
    made: AtomicBool,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl RunningCall {
    fn record_end(&mut self, failure: Option<&Failure>) {
        self.ended = true;
        // Neither a server that does not start nor the end of the execution is a refusal.
        let refuses = |failure: &Failure| !matches!(failure.code, Code::ToolUnavailable | Code::Cancelled);
        let refused = !self.made.load(Ordering::Relaxed) && failure.is_some_and(refuses);
        let found = Some(&self.request).filter(|_| self.found.load(Ordering::Relaxed));
        self.of.count(found, |count| match failure {
            None => count.ok += 1,
            Some(_) if refused => count.refused += 1,
            Some(_) => count.failed += 1,
        });
        let end = match failure {
            None => "ok",
            Some(_) if refused => "refused",
            Some(_) => "failed",
        };
        let code = failure.map(|failure| failure.code);
        self.caller.note(&self.request, Some(&self.of.execution), end, code);
    }
}

#[async_trait]
impl ToolCall for RunningCall {
    fn found(&self) {
        self.found.store(true, Ordering::Relaxed);
    }

    fn made(&self) {
        self.made.store(true, Ordering::Relaxed);
    }

    async fn ask(&self, question: ToolQuestion) -> Result<(), Failure> {
        tokio::select! {
            biased;
            answer = self.of.ask(question) => answer,
            () = self.of.stopping.cancelled() => Err(stopped()),
        }
    }

    async fn stopped(&self) {
        self.of.stopping.cancelled().await;
    }

    fn received(&self, bytes: u64) -> Result<(), Failure> {
        self.of.add_bytes(bytes)
    }

    fn end(mut self: Box<Self>, failure: Option<&Failure>) {
        self.record_end(failure);
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        if !self.ended {
            self.record_end(Some(&stopped()));
        }
    }
}
