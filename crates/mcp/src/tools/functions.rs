//! Functions of the caller's program that code in its sandbox calls: tools for programs that use the server, not for
//! models ([`unlisted_sandbox_tools`](super::unlisted_sandbox_tools)).

use futures::FutureExt as _;
use sandcell_engine::FunctionResult;
use sandcell_sandbox::{Failure, FunctionSpec};
use serde_json::{Map, Value, json};

use super::{Call, Effect, Tool, ToolFacts, sandbox_field, sandboxes};
use crate::answer::Answer;
use crate::schema::{Field, Kind};

/// The maximum time that an exchange waits for a call, in seconds.
const MAX_WAIT_S: f64 = 50.0;

pub(super) fn create_sandbox_with_functions(facts: &ToolFacts) -> Tool {
    let tool = sandboxes::create_sandbox(facts);
    let example = json!([{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]);
    let functions = Field::new("functions", Kind::Objects, example).required();
    Tool {
        name: "create_sandbox_with_functions",
        description:
            "Make sandboxes whose code can call functions of this program as tools.functions.NAME(name=value). \
                      exchange_tool_calls takes the calls."
                .into(),
        fields: [tool.fields, vec![functions]].concat(),
        run: |call| create(call).boxed(),
        ..tool
    }
}

async fn create(mut call: Call) -> Result<Answer, Failure> {
    let functions = call.arguments.objects("functions");
    let functions: Result<Vec<FunctionSpec>, Failure> = functions.into_iter().map(function).collect();
    sandboxes::create_with(call, functions?).await
}

/// Reads a function.
fn function(object: Map<String, Value>) -> Result<FunctionSpec, Failure> {
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    let (Some(name), Some(Value::Object(schema))) = (text("name"), object.get("input_schema")) else {
        return Err(Failure::invalid(
            "a function has no name, or no input_schema that is an object",
            "pass {\"name\": …, \"description\": …, \"input_schema\": {\"type\": \"object\", …}}",
        ));
    };
    Ok(FunctionSpec {
        name: name.to_owned(),
        description: text("description").unwrap_or_default().to_owned(),
        input_schema: Value::Object(schema.clone()).to_string(),
        read_only: object.get("read_only").and_then(Value::as_bool).unwrap_or(false),
    })
}

pub(super) fn exchange_tool_calls() -> Tool {
    Tool {
        name: "exchange_tool_calls",
        description: "Return results of functions, and wait for the next calls of code in a sandbox.".into(),
        fields: vec![
            sandbox_field().required(),
            Field::new("results", Kind::Objects, json!([{"id": 7, "value": 42}])).about("Or error: a text, for value"),
            Field::new(
                "wait_s",
                Kind::Number {
                    min: 0.0,
                    max: MAX_WAIT_S,
                },
                json!(30),
            ),
        ],
        output: None,
        effect: Effect::ChangesSandbox,
        run: |call| exchange(call).boxed(),
    }
}

async fn exchange(mut call: Call) -> Result<Answer, Failure> {
    let arguments = &mut call.arguments;
    let sandbox = arguments.required_text("sandbox_id")?;
    let results: Result<Vec<FunctionResult>, Failure> = arguments.objects("results").into_iter().map(result).collect();
    let wait = arguments.seconds("wait_s").unwrap_or_default();
    let exchanging = call
        .engine
        .exchange_function_calls(&call.caller, &sandbox, results?, wait);
    let calls = super::unless_cancelled(&call.cancel, exchanging).await?;
    let mut listed = Vec::new();
    for one in &calls {
        let arguments: Value = serde_json::from_str(&one.arguments).map_err(|error| {
            Failure::new(
                sandcell_sandbox::Code::Internal,
                format!("the arguments of a call cannot be read: {error}"),
                "tell the operator",
            )
        })?;
        listed.push(json!({"id": one.id, "name": one.name, "arguments": arguments}));
    }
    Ok(Answer::data(format!("{} calls", calls.len()), json!({"calls": listed})))
}

/// Reads a result.
fn result(mut object: Map<String, Value>) -> Result<FunctionResult, Failure> {
    let id = object.get("id").and_then(Value::as_u64);
    let value = match (object.remove("error"), object.remove("value")) {
        (Some(Value::String(error)), _) => Some(Err(error)),
        (None, Some(value)) => Some(Ok(value.to_string())),
        (Some(_), _) | (None, None) => None,
    };
    match (id, value) {
        (Some(id), Some(value)) => Ok(FunctionResult { id, value }),
        _ => Err(Failure::invalid(
            "a result has no id, or neither a value nor the text of an error",
            "pass {\"id\": 7, \"value\": …} or {\"id\": 7, \"error\": \"…\"}",
        )),
    }
}
