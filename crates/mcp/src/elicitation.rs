//! Elicitation: asks the user of a client for consent, and attaches the answer to the call.
//!
//! In the protocols with a handshake the server asks while the call waits. In the newest protocol the call ends with
//! the question. The client then repeats the call with the answer and with a seal that ties the answer to this call.
//! Anything but a plain yes is a no. The engine decides, by the consent that this module returns.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData, InputRequests,
    InputRequiredResult, ProtocolVersion, RequestStateCodec, SealOptions,
};
use rmcp::service::{RequestContext, ServiceError};
use sandcell_engine::{Engine, ExecutionId, PendingToolCall, Principal, ToolDecision, Watch};
use sandcell_sandbox::{Consent, ConsentRequired, ToolQuestion};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::limits::MAX_WAIT;
use crate::tools::Tool;

/// The maximum time that a call waits for the user. Common clients give calls up after 60 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(50);
/// The maximum age of a question in the newest protocol.
const QUESTION_TTL: Duration = Duration::from_secs(600);
/// Answers that are remembered, so that each is valid for one call only.
const MAX_REMEMBERED_ANSWERS: usize = 1024;
/// The maximum number of packages and hosts in one question.
const MAX_QUESTION_ITEMS: usize = 50;
/// The name of the question, and its one field.
const QUESTION_NAME: &str = "consent";
const ANSWER_FIELD: &str = "allow";
/// The field with the extent of an answer about a tool call, and its values.
const SCOPE_FIELD: &str = "applies_to";
const SCOPE_ONCE: &str = "this call";
const SCOPE_TEN: &str = "10 calls of this tool";
const SCOPE_EXECUTION: &str = "all calls of this tool in this run";

/// The result of asking, before the call is made.
pub(crate) enum ElicitationOutcome {
    /// The call is made with this consent.
    Answered(Consent),
    /// The call ends here, and the client repeats it with an answer.
    InputRequired(InputRequiredResult),
}

/// The elicitation state of the server.
pub(crate) struct Elicitation {
    /// None if the system gave no key. Then the server asks no questions, and allows nothing.
    seal: Option<RequestStateCodec>,
    /// Answered questions, and the time of each answer.
    answered: Mutex<HashMap<u64, Instant>>,
}

impl Default for Elicitation {
    fn default() -> Self {
        let mut key = vec![0; RequestStateCodec::MIN_KEY_LENGTH];
        let key = getrandom::fill(&mut key).ok().map(|()| key);
        Self {
            seal: key.and_then(|key| RequestStateCodec::try_new(key).ok()),
            answered: Mutex::default(),
        }
    }
}

impl Elicitation {
    /// Returns the user's consent. The time for the answer is subtracted from the call's wait for its execution.
    pub(crate) async fn consent(
        &self,
        (tool, left): (&Tool, &ConsentRequired),
        request: &mut CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        (caller, usual): (&Principal, Duration),
    ) -> Result<ElicitationOutcome, ErrorData> {
        if left.is_empty() {
            return Ok(ElicitationOutcome::Answered(Consent::NotAsked));
        }
        if !knows_forms(context) {
            return Ok(ElicitationOutcome::Answered(Consent::CannotAsk));
        }
        if left.packages.len() + left.hosts.len() > MAX_QUESTION_ITEMS {
            let message =
                format!("the user can be asked about {MAX_QUESTION_ITEMS} packages and hosts in one call; name fewer");
            return Err(ErrorData::invalid_params(message, None));
        }
        if context.meta.protocol_version() >= Some(ProtocolVersion::V_2026_07_28) {
            return self.ask_by_retry(left, request, caller);
        }
        let began = Instant::now();
        let consent = ask(left, context).await?;
        if tool.takes("wait_s") {
            leave_time(request, usual, began.elapsed());
        }
        Ok(ElicitationOutcome::Answered(consent))
    }

    /// Elicitation in the newest protocol.
    fn ask_by_retry(
        &self,
        left: &ConsentRequired,
        request: &CallToolRequestParams,
        caller: &Principal,
    ) -> Result<ElicitationOutcome, ErrorData> {
        let Some(seal) = &self.seal else {
            return Ok(ElicitationOutcome::Answered(Consent::CannotAsk));
        };
        let call = fingerprint(left, request, caller);
        let Some(state) = request.request_state.as_deref() else {
            let number = getrandom::u64().map_err(internal)?;
            let options = SealOptions::new().associated_data(&call).ttl(QUESTION_TTL);
            let state = seal.seal_json_with(&number, &options).map_err(internal)?;
            let question = of(&json!({"method": "elicitation/create", "params": question(left)}))?;
            let requests = InputRequests::from_iter([(QUESTION_NAME.to_owned(), question)]);
            return Ok(ElicitationOutcome::InputRequired(InputRequiredResult::new(
                Some(requests),
                Some(state),
            )));
        };
        let number: u64 = seal.open_json_with(state, &call).map_err(|_| {
            ErrorData::invalid_params(
                "the requestState belongs to another call or is too old; make the call without it, and the user is asked again",
                None,
            )
        })?;
        if !self.is_first(number) {
            return Err(ErrorData::invalid_params(
                "this answer was used already; make the call without requestState, and the user is asked again",
                None,
            ));
        }
        let answer = request.input_responses.as_ref().and_then(|all| all.get(QUESTION_NAME));
        // Anything but an answer counts as none.
        let answer = answer.and_then(|answer| of::<ElicitResult>(answer).ok());
        Ok(ElicitationOutcome::Answered(
            answer.map_or(Consent::NoAnswer, |answer| read(&answer, left)),
        ))
    }

    /// Returns the question that ends a call in the newest protocol, if its execution waits for one.
    pub(crate) fn tool_round(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
        (engine, caller): (&Engine, &Principal),
        execution: Option<ExecutionId>,
    ) -> Result<Option<InputRequiredResult>, ErrorData> {
        let (Some(QuestionWay::Rounds), Some(seal), Some(execution)) = (question_way(context), &self.seal, execution)
        else {
            return Ok(None);
        };
        let mut waiting = engine.pending_tool_calls(caller).into_iter();
        let Some(pending) = waiting.find(|pending| pending.execution_id == execution) else {
            return Ok(None);
        };
        let call = tool_fingerprint(request, caller);
        let ttl = QUESTION_TTL.max(engine.config().tools.approval);
        let options = SealOptions::new().associated_data(&call).ttl(ttl);
        let round = ToolRound {
            execution: execution.to_string(),
            number: pending.number,
        };
        let state = seal.seal_json_with(&round, &options).map_err(internal)?;
        let question = of(&json!({"method": "elicitation/create", "params": tool_question(&pending.question)}))?;
        let requests = InputRequests::from_iter([(QUESTION_NAME.to_owned(), question)]);
        Ok(Some(InputRequiredResult::new(Some(requests), Some(state))))
    }

    /// Returns the execution that a repeated call answers a question of, and passes the answer on. None for other calls.
    pub(crate) fn answer_round(
        &self,
        request: &CallToolRequestParams,
        (engine, caller): (&Engine, &Principal),
    ) -> Option<String> {
        let (seal, state) = (self.seal.as_ref()?, request.request_state.as_deref()?);
        let round: ToolRound = seal.open_json_with(state, &tool_fingerprint(request, caller)).ok()?;
        let answer = request.input_responses.as_ref().and_then(|all| all.get(QUESTION_NAME));
        // Anything but an answer is a no.
        let answer = answer.and_then(|answer| of::<ElicitResult>(answer).ok());
        let decision = answer.map_or(ToolDecision::Deny, |answer| read_decision(&answer));
        // The question may be over: its time has passed, or it was answered already.
        let _ = engine.answer_tool_call(caller, &round.execution, round.number, decision);
        Some(round.execution)
    }

    /// Returns true the first time that an answer arrives, if it can be remembered. Forgets expired answers.
    fn is_first(&self, number: u64) -> bool {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.retain(|_, at| at.elapsed() <= QUESTION_TTL);
        answered.len() < MAX_REMEMBERED_ANSWERS && answered.insert(number, Instant::now()).is_none()
    }
}

/// Returns true if the client can ask its user with a form.
fn knows_forms(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|all| {
        let elicitation = all.elicitation.as_ref();
        // A client that names no mode supports forms.
        elicitation.is_some_and(|modes| modes.form.is_some() || modes.url.is_none())
    })
}

/// The way to ask the user about the tool calls of running code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuestionWay {
    /// While the call runs.
    DuringCall,
    /// The call ends with the question, and the client repeats it with the answer.
    Rounds,
}

/// Returns the way to ask the user, if the client can.
fn question_way(context: &RequestContext<RoleServer>) -> Option<QuestionWay> {
    let newest = context.meta.protocol_version() >= Some(ProtocolVersion::V_2026_07_28);
    knows_forms(context).then_some(if newest {
        QuestionWay::Rounds
    } else {
        QuestionWay::DuringCall
    })
}

/// Returns what the call's watch knows about the client's user.
pub(crate) fn watch_of(context: &RequestContext<RoleServer>) -> Watch {
    let watch = Watch::default();
    match question_way(context) {
        Some(QuestionWay::DuringCall) => watch.can_ask(),
        Some(QuestionWay::Rounds) => watch.can_ask_between_requests(),
        None => {}
    }
    watch
}

/// Asks the user about the tool calls of a running execution, one after the other. A question stays open when the call
/// that noticed it has ended, because an answer may come late. Never ends.
pub(crate) async fn ask_about_tool_calls(
    context: &RequestContext<RoleServer>,
    (engine, open): (&Arc<Engine>, &OpenQuestions),
    caller: &Principal,
    watch: &Watch,
) {
    let mut last = 0;
    while question_way(context) == Some(QuestionWay::DuringCall) {
        let pending = watch.tool_question(last).await;
        last = pending.number;
        let Ok(params) = of::<ElicitRequestParams>(&tool_question(&pending.question)) else {
            break;
        };
        let Some(guard) = open.insert(&pending) else {
            // An earlier call has asked it.
            continue;
        };
        let (engine, caller, peer) = (Arc::clone(engine), caller.clone(), context.peer.clone());
        let asked = tokio::spawn(async move {
            let over = tokio::time::sleep(engine.config().tools.approval);
            let decision = tokio::select! {
                answer = peer.create_elicitation(params) => match answer {
                    Ok(answer) => read_decision(&answer),
                    Err(error) => {
                        tracing::debug!("the user could not be asked about a tool call: {error}");
                        ToolDecision::Deny
                    }
                },
                () = over => return,
            };
            drop(guard);
            // The question may be over by now.
            let _ = engine.answer_tool_call(&caller, pending.execution_id.as_str(), pending.number, decision);
        });
        // One question at a time, as long as the call waits.
        drop(asked.await);
    }
    std::future::pending().await
}

/// The questions about tool calls that the user of this connection has not answered yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenQuestions(Arc<Mutex<HashSet<(String, u32)>>>);

/// A question in the list. Dropping it removes it.
struct OpenQuestion {
    all: OpenQuestions,
    key: (String, u32),
}

impl OpenQuestions {
    /// Adds a question. None if it is there already.
    fn insert(&self, pending: &PendingToolCall) -> Option<OpenQuestion> {
        let key = (pending.execution_id.to_string(), pending.number);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(key.clone()).then(|| OpenQuestion { all: self.clone(), key })
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.key);
    }
}

/// Returns the decision about a tool call. Anything but a plain yes is a no.
fn read_decision(answer: &ElicitResult) -> ToolDecision {
    let field = |name: &str| answer.content.as_ref().and_then(|content| content.get(name));
    match (&answer.action, field(ANSWER_FIELD)) {
        (ElicitationAction::Accept, Some(Value::Bool(true))) => {}
        _ => return ToolDecision::Deny,
    }
    match field(SCOPE_FIELD).and_then(Value::as_str) {
        None | Some(SCOPE_ONCE) => ToolDecision::Once,
        Some(SCOPE_TEN) => ToolDecision::Calls(10),
        Some(SCOPE_EXECUTION) => ToolDecision::Execution,
        Some(_) => ToolDecision::Deny,
    }
}

/// Returns the question about a tool call. Its texts are escaped already.
fn tool_question(question: &ToolQuestion) -> Value {
    let effect = match question.read_only {
        true => " (its server says that it changes nothing)",
        false => "",
    };
    json!({
        "mode": "form",
        "message": format!(
            "sandcell: may code in a sandbox call the tool {}.{}{effect}?\nArguments: {}",
            question.server, question.tool, question.arguments
        ),
        "requestedSchema": {
            "type": "object",
            "properties": {
                ANSWER_FIELD: {"type": "boolean", "title": "Allow"},
                SCOPE_FIELD: {
                    "type": "string",
                    "title": "Applies to",
                    "enum": [SCOPE_ONCE, SCOPE_TEN, SCOPE_EXECUTION],
                    "default": SCOPE_ONCE,
                },
            },
            "required": [ANSWER_FIELD],
        },
    })
}

/// The question of a running execution, in the seal of the newest protocol.
#[derive(Serialize, Deserialize)]
struct ToolRound {
    execution: String,
    number: u32,
}

/// Returns the hash of a call that ties the answer about a tool call to it.
fn tool_fingerprint(request: &CallToolRequestParams, caller: &Principal) -> Vec<u8> {
    let arguments = request.arguments.clone().unwrap_or_default();
    let all = json!(["tool call", caller.0, request.name, arguments]);
    Sha256::digest(all.to_string()).to_vec()
}

/// Elicitation in the protocols with a handshake.
async fn ask(left: &ConsentRequired, context: &RequestContext<RoleServer>) -> Result<Consent, ErrorData> {
    let params: ElicitRequestParams = of(&question(left))?;
    let elicitation = context
        .peer
        .create_elicitation_with_timeout(params, Some(ANSWER_TIMEOUT));
    let answer = tokio::select! {
        biased;
        () = context.ct.cancelled() => return Ok(Consent::NoAnswer),
        answer = elicitation => answer,
    };
    Ok(match answer {
        Ok(answer) => read(&answer, left),
        Err(ServiceError::Timeout { .. }) => Consent::NoAnswer,
        Err(_) => Consent::CannotAsk,
    })
}

/// Returns consent to everything that was asked, or to nothing.
fn read(answer: &ElicitResult, left: &ConsentRequired) -> Consent {
    let ticked = answer.content.as_ref().and_then(|content| content.get(ANSWER_FIELD));
    match (&answer.action, ticked) {
        (ElicitationAction::Accept, Some(Value::Bool(true))) => Consent::Given(left.names().cloned().collect()),
        // Any future action of clients is no consent, either.
        _ => Consent::Declined,
    }
}

/// Returns the question to the user.
fn question(left: &ConsentRequired) -> Value {
    let mut wants = Vec::new();
    if !left.packages.is_empty() {
        let packages = left.packages.join(", ");
        wants.push(format!("install {packages} (with dependencies) for code in a sandbox"));
    }
    if !left.hosts.is_empty() {
        wants.push(format!("let code in a sandbox reach {}", left.hosts.join(", ")));
    }
    if let Some(changes) = &left.changes {
        wants.push(format!("apply {}", changes.text));
    }
    json!({
        "mode": "form",
        "message": match &left.changes {
            // The question has several lines.
            Some(_) => format!("sandcell: {}", wants.join(", and ")),
            None => format!("sandcell: {}?", wants.join(", and ")),
        },
        "requestedSchema": {
            "type": "object",
            "properties": {
                ANSWER_FIELD: {"type": "boolean", "title": "Allow", "description": "Applies to this call only"},
            },
            "required": [ANSWER_FIELD],
        },
    })
}

/// Shortens the wait of the call. Common clients give a call up after a minute, for any reason.
fn leave_time(request: &mut CallToolRequestParams, usual: Duration, elapsed: Duration) {
    let Some(arguments) = &mut request.arguments else {
        return;
    };
    let asked = arguments.get("wait_s").and_then(Value::as_f64);
    let wait = asked.unwrap_or(usual.as_secs_f64());
    let rest = MAX_WAIT.saturating_sub(elapsed).as_secs_f64().max(1.0);
    if wait > rest {
        arguments.insert("wait_s".to_owned(), json!(rest));
    }
}

/// Returns the hash of a call. It ties the answer to the call.
fn fingerprint(left: &ConsentRequired, request: &CallToolRequestParams, caller: &Principal) -> Vec<u8> {
    let arguments = request.arguments.clone().unwrap_or_default();
    let all = json!([caller.0, request.name, arguments, left.names().collect::<Vec<_>>()]);
    Sha256::digest(all.to_string()).to_vec()
}

fn of<T: DeserializeOwned>(value: &impl Serialize) -> Result<T, ErrorData> {
    let value = serde_json::to_value(value).map_err(internal)?;
    serde_json::from_value(value).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
