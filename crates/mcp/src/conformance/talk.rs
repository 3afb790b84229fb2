//! Tools that send messages to the client while they work: log messages, progress, and the questions of the older
//! handshake.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    CreateMessageRequestParams, ElicitRequestParams, ErrorData, LoggingMessageNotificationParam,
    ProgressNotificationParam, SamplingMessage,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::{of, tools};

const STEP_INTERVAL: Duration = Duration::from_millis(20);
const SHORT_DELAY: Duration = Duration::from_millis(100);

/// Runs one of them.
pub(super) async fn call(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let argument = |name: &str| {
        let value = request.arguments.as_ref().and_then(|given| given.get(name));
        value.and_then(Value::as_str).unwrap_or("please").to_owned()
    };
    match request.name.as_ref() {
        "test_tool_with_logging" => {
            for said in [
                "Tool execution started",
                "Tool processing data",
                "Tool execution completed",
            ] {
                log(context, "info", said).await?;
                tokio::time::sleep(STEP_INTERVAL).await;
            }
            Ok(tools::text("Logging test completed"))
        }
        "test_logging_tool" => {
            let level = context.meta.log_level();
            if let Some(level) = level {
                let level = serde_json::to_value(level).unwrap_or_default();
                log(context, level.as_str().unwrap_or("info"), "logLevel was asked for").await?;
            }
            Ok(tools::text("Logging tool completed"))
        }
        "test_tool_with_progress" => {
            if let Some(token) = context.meta.get_progress_token() {
                for done in [0.0, 50.0, 100.0] {
                    let params = ProgressNotificationParam::new(token.clone(), done).with_total(100.0);
                    let _gone = context.peer.notify_progress(params).await;
                    tokio::time::sleep(STEP_INTERVAL).await;
                }
            }
            Ok(tools::text("Progress test completed"))
        }
        "test_reconnection" => {
            tokio::time::sleep(SHORT_DELAY).await;
            Ok(tools::text("Reconnection test completed"))
        }
        "test_missing_capability" => {
            let declared = context.client_capabilities().is_some_and(|all| all.sampling.is_some());
            if !declared {
                let needed: ClientCapabilities = of(json!({"sampling": {}}))?;
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            Ok(tools::text("The capability is there"))
        }
        "test_sampling" => sample(context, &argument("prompt")).await,
        "test_elicitation" => {
            let schema = json!({
                "type": "object",
                "properties": {
                    "username": {"type": "string", "description": "User's response"},
                    "email": {"type": "string", "description": "User's email address"},
                },
                "required": ["username", "email"],
            });
            elicit(context, "User response", &argument("message"), schema).await
        }
        "test_elicitation_sep1034_defaults" => {
            elicit(context, "Elicitation completed", "All values have defaults", defaults()).await
        }
        "test_elicitation_sep1330_enums" => elicit(context, "Elicitation completed", "Choose", choices()).await,
        name => Err(ErrorData::invalid_params(format!("there is no tool {name}"), None)),
    }
}

async fn log(context: &RequestContext<RoleServer>, level: &str, said: &str) -> Result<(), ErrorData> {
    let params: LoggingMessageNotificationParam = of(json!({"level": level, "logger": "conformance", "data": said}))?;
    let _gone = context.peer.notify_logging_message(params).await;
    Ok(())
}

async fn sample(context: &RequestContext<RoleServer>, prompt: &str) -> Result<CallToolResponse, ErrorData> {
    let params = CreateMessageRequestParams::new(vec![SamplingMessage::user_text(prompt)], 100);
    Ok(match context.peer.create_message(params).await {
        Ok(result) => {
            let said = serde_json::to_value(&result).unwrap_or_default();
            let said = said
                .pointer("/content/text")
                .and_then(Value::as_str)
                .unwrap_or("nothing");
            tools::text(format!("LLM response: {said}"))
        }
        Err(error) => failed(&error.to_string()),
    })
}

async fn elicit(
    context: &RequestContext<RoleServer>,
    label: &str,
    message: &str,
    schema: Value,
) -> Result<CallToolResponse, ErrorData> {
    let params: ElicitRequestParams = of(json!({"mode": "form", "message": message, "requestedSchema": schema}))?;
    Ok(match context.peer.create_elicitation(params).await {
        Ok(result) => {
            let said = serde_json::to_value(&result).unwrap_or_default();
            let action = said.get("action").and_then(Value::as_str).unwrap_or("unknown");
            let content = said.get("content").cloned().unwrap_or_default();
            tools::text(format!("{label}: action={action}, content={content}"))
        }
        Err(error) => failed(&error.to_string()),
    })
}

fn failed(error: &str) -> CallToolResponse {
    CallToolResult::error(vec![ContentBlock::text(error)]).into()
}

fn defaults() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "User's name", "default": "John Doe"},
            "age": {"type": "integer", "description": "User's age", "default": 30},
            "score": {"type": "number", "description": "User's score", "default": 95.5},
            "status": {
                "type": "string",
                "description": "User's status",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": {"type": "boolean", "description": "Whether the user is verified", "default": true},
        },
        "required": [],
    })
}

fn choices() -> Value {
    let titled = |word: &str| {
        let one =
            |number: &str, name: &str| json!({"const": format!("value{number}"), "title": format!("{name} {word}")});
        json!([one("1", "First"), one("2", "Second"), one("3", "Third")])
    };
    json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
        "required": [],
    })
}
