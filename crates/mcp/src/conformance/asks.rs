//! Tools that need input from the client before they answer, in the way of the newest protocol: the call ends with a
//! request for input, and the client repeats it with the input.

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, InputRequests, InputRequiredResult, InputResponses,
    RequestStateCodec,
};
use rmcp::service::RequestContext;
use serde_json::{Map, Value, json};

use super::{of, tools};

/// The names and descriptions of these tools.
pub(super) const INPUT_TOOLS: [(&str, &str); 8] = [
    ("test_input_required_result_elicitation", "Wants a name from the user"),
    (
        "test_input_required_result_sampling",
        "Wants an answer of the client's model",
    ),
    ("test_input_required_result_list_roots", "Wants the client's folders"),
    ("test_input_required_result_request_state", "Wants its own state back"),
    (
        "test_input_required_result_tampered_state",
        "Refuses a state that was changed",
    ),
    (
        "test_input_required_result_multiple_inputs",
        "Wants three things at once",
    ),
    (
        "test_input_required_result_multi_round",
        "Wants one thing after the other",
    ),
    (
        "test_input_required_result_capabilities",
        "Wants what the client can give",
    ),
];

/// Returns true if a tool of this name is in this group.
pub(super) fn has(name: &str) -> bool {
    name == "test_streaming_elicitation" || INPUT_TOOLS.iter().any(|(tool, _)| *tool == name)
}

pub(super) struct Asks(RequestStateCodec);

impl Asks {
    pub(super) fn new() -> Result<Self, ErrorData> {
        let mut key = vec![0; 32];
        getrandom::fill(&mut key).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        RequestStateCodec::try_new(key).map(Self).map_err(internal)
    }

    /// Runs one of them.
    pub(super) fn call(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = request.input_responses.as_ref();
        let state = request.request_state.as_deref();
        match request.name.as_ref() {
            "test_input_required_result_elicitation" => match response(given, "user_name") {
                Some(answer) => Ok(tools::text(format!("Hello, {}!", content(answer, "name")))),
                None => asking([("user_name", question("What is your name?", "name"))]),
            },
            "test_input_required_result_sampling" => match response(given, "capital_question") {
                Some(answer) => {
                    let said = answer.get("content").and_then(|content| content.get("text"));
                    Ok(tools::text(said.and_then(Value::as_str).unwrap_or("nothing")))
                }
                None => asking([("capital_question", sampling("What is the capital of France?"))]),
            },
            "test_input_required_result_list_roots" => match response(given, "client_roots") {
                Some(answer) => {
                    let roots = answer.get("roots").cloned().unwrap_or_default();
                    Ok(tools::text(format!("The roots: {roots}")))
                }
                None => asking([("client_roots", roots())]),
            },
            "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => match state {
                Some(state) => {
                    let _stage: Value = self.open(state)?;
                    Ok(tools::text("state-ok"))
                }
                None => self.with_state([("confirm", flag("Please confirm", "ok"))], &json!("confirm")),
            },
            "test_input_required_result_multiple_inputs" => self.three(given, state),
            "test_input_required_result_multi_round" => self.rounds(state),
            "test_input_required_result_capabilities" => match given {
                Some(_) => Ok(tools::text("The flow is complete")),
                None => what_it_can(context),
            },
            _ => asking([("value", question("Which value?", "value"))]),
        }
    }

    fn three(&self, given: Option<&InputResponses>, state: Option<&str>) -> Result<CallToolResponse, ErrorData> {
        let _stage: Option<Value> = state.map(|state| self.open(state)).transpose()?;
        let wanted = ["user_name", "greeting", "client_roots"];
        if state.is_some() && wanted.iter().all(|key| response(given, key).is_some()) {
            return Ok(tools::text("All inputs are there"));
        }
        let requests = [
            ("user_name", question("What is your name?", "name")),
            ("greeting", sampling("Generate a greeting")),
            ("client_roots", roots()),
        ];
        self.with_state(requests, &json!("gather"))
    }

    fn rounds(&self, state: Option<&str>) -> Result<CallToolResponse, ErrorData> {
        let round: u64 = state.map_or(Ok(0), |state| self.open(state))?;
        match round {
            0 => self.with_state([("step1", question("Step 1: What is your name?", "name"))], &json!(1)),
            1 => {
                let asked = question("Step 2: What is your favorite color?", "color");
                self.with_state([("step2", asked)], &json!(2))
            }
            _ => Ok(tools::text("All rounds are complete")),
        }
    }

    fn open<T: serde::de::DeserializeOwned>(&self, state: &str) -> Result<T, ErrorData> {
        let opened = self.0.open_json(state);
        opened.map_err(|_| ErrorData::invalid_params("the requestState is not one of this server's", None))
    }

    fn with_state<const N: usize>(
        &self,
        requests: [(&str, Value); N],
        state: &Value,
    ) -> Result<CallToolResponse, ErrorData> {
        let sealed = self.0.seal_json(state).map_err(internal)?;
        Ok(InputRequiredResult::new(Some(map(requests)?), Some(sealed)).into())
    }
}

fn what_it_can(context: &RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
    let can = context.meta.client_capabilities().unwrap_or_default();
    let all = [
        (
            "user_name",
            question("What is your name?", "name"),
            can.elicitation.is_some(),
        ),
        ("greeting", sampling("Generate a greeting"), can.sampling.is_some()),
        ("client_roots", roots(), can.roots.is_some()),
    ];
    let mut requests = InputRequests::new();
    for (key, request, _) in all.into_iter().filter(|(.., can)| *can) {
        requests.insert(key.to_owned(), of(request)?);
    }
    if requests.is_empty() {
        return Ok(tools::text("The client can give nothing"));
    }
    Ok(InputRequiredResult::from_input_requests(requests).into())
}

/// Ends a call with a request for input.
pub(super) fn asking<const N: usize, T: From<InputRequiredResult>>(
    requests: [(&str, Value); N],
) -> Result<T, ErrorData> {
    Ok(InputRequiredResult::from_input_requests(map(requests)?).into())
}

fn map<const N: usize>(requests: [(&str, Value); N]) -> Result<InputRequests, ErrorData> {
    let typed = |(key, request): (&str, Value)| Ok((key.to_owned(), of(request)?));
    requests.into_iter().map(typed).collect()
}

/// A question to the user for one text.
pub(super) fn question(message: &str, field: &str) -> Value {
    form(message, field, "string")
}

/// A question to the user for yes or no.
pub(super) fn flag(message: &str, field: &str) -> Value {
    form(message, field, "boolean")
}

fn form(message: &str, field: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "properties": {field: {"type": kind}}, "required": [field]});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

fn sampling(prompt: &str) -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": prompt}});
    json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}})
}

fn roots() -> Value {
    json!({"method": "roots/list"})
}

/// Returns the client's response for a key. Anything but an object counts as nothing.
pub(super) fn response<'a>(given: Option<&'a InputResponses>, key: &str) -> Option<&'a Map<String, Value>> {
    given?.get(key)?.as_object()
}

/// Returns a text that the user filled in.
pub(super) fn content<'a>(answer: &'a Map<String, Value>, field: &str) -> &'a str {
    let value = answer.get("content").and_then(|content| content.get(field));
    value.and_then(Value::as_str).unwrap_or("nobody")
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
