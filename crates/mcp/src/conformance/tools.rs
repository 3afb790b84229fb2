//! The tools of the suite: their list, and those that always answer the same.

use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Tool};
use serde_json::{Map, Value, json};

use super::{asks, jobs, of};

/// One red pixel.
pub(super) const RED_PIXEL_PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV file without a sample.
const EMPTY_WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";

/// Tools without arguments that only answer or speak to the client.
const PLAIN_TOOLS: [(&str, &str); 17] = [
    ("test_simple_text", "Answers with a text"),
    ("test_image_content", "Answers with a picture"),
    ("test_audio_content", "Answers with a sound"),
    ("test_embedded_resource", "Answers with a resource"),
    (
        "test_multiple_content_types",
        "Answers with a text, a picture and a resource",
    ),
    ("test_error_handling", "Answers with an error"),
    ("test_tool_with_logging", "Sends log messages"),
    ("test_tool_with_progress", "Sends progress notifications"),
    ("test_logging_tool", "Sends a log message if the request asks for them"),
    (
        "test_elicitation_sep1034_defaults",
        "Asks the user for values that have defaults",
    ),
    ("test_elicitation_sep1330_enums", "Asks the user to choose"),
    ("test_reconnection", "Takes a moment to answer"),
    ("test_trigger_tool_change", "Says that the list of tools has changed"),
    (
        "test_trigger_prompt_change",
        "Says that the list of prompts has changed",
    ),
    ("test_missing_capability", "Needs a client that can sample"),
    ("test_streaming_elicitation", "Wants a value first"),
    ("greet", "Greets, at once"),
];

/// Returns true if the suite has a tool of this name.
pub(super) fn has(name: &str) -> bool {
    all().iter().any(|tool| tool.name == name)
}

/// All tools of the suite.
pub(super) fn all() -> Vec<Tool> {
    let plain = PLAIN_TOOLS.iter().chain(&asks::INPUT_TOOLS).chain(&jobs::TASK_TOOLS);
    let mut tools: Vec<Tool> = plain
        .map(|(name, description)| tool(name, description, json!({"type": "object", "properties": {}})))
        .collect();
    let text = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    tools.push(tool("test_sampling", "Asks the client's model", text("prompt")));
    tools.push(tool("test_elicitation", "Asks the user", text("message")));
    tools.push(tool(
        "test_custom_header",
        "Has an argument that also stands in a header",
        json!({
            "type": "object",
            "properties": {"value": {"type": "string", "x-mcp-header": "Value"}},
            "required": ["value"],
        }),
    ));
    tools.push(tool(
        "json_schema_2020_12_tool",
        "Has a schema with newer words",
        schema_2020_12(),
    ));
    tools
}

fn tool(name: &'static str, description: &'static str, schema: Value) -> Tool {
    Tool::new(name, description, object(schema))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// Keywords that older readers of schemas drop: they must pass unchanged.
fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

/// An answer of one text.
pub(super) fn text(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

/// The answer of a tool that needs nothing but its arguments; none for the others.
pub(super) fn fixed(request: &CallToolRequestParams) -> Option<Result<CallToolResponse, ErrorData>> {
    let resource = |uri: &str, mime: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}});
    let picture = || json!({"type": "image", "data": RED_PIXEL_PNG, "mimeType": "image/png"});
    let said = |text: &str| json!({"type": "text", "text": text});
    let argument = |name: &str| {
        let value = request.arguments.as_ref()?.get(name)?;
        value.as_str()
    };
    let (content, failed) = match request.name.as_ref() {
        "test_simple_text" => (json!([said("This is a simple text response for testing.")]), false),
        "test_image_content" => (json!([picture()]), false),
        "test_audio_content" => (
            json!([{"type": "audio", "data": EMPTY_WAV, "mimeType": "audio/wav"}]),
            false,
        ),
        "test_embedded_resource" => {
            let text = "This is an embedded resource content.";
            (json!([resource("test://embedded-resource", "text/plain", text)]), false)
        }
        "test_multiple_content_types" => {
            let text = r#"{"test":"data","value":123}"#;
            let mixed = resource("test://mixed-content-resource", "application/json", text);
            (json!([said("Multiple content types test:"), picture(), mixed]), false)
        }
        "test_error_handling" => (
            json!([said("This tool intentionally returns an error for testing")]),
            true,
        ),
        "test_custom_header" => match argument("value") {
            Some(value) => (json!([said(value)]), false),
            None => return Some(Err(ErrorData::invalid_params("value must be a text", None))),
        },
        "json_schema_2020_12_tool" => {
            let name = argument("name").unwrap_or("world");
            (json!([said(&format!("Hello, {name}!"))]), false)
        }
        "greet" => {
            let name = argument("name").unwrap_or("friend");
            (json!([said(&format!("Hello, {name}!"))]), false)
        }
        _ => return None,
    };
    let answer = |content| {
        if failed {
            CallToolResult::error(content)
        } else {
            CallToolResult::success(content)
        }
    };
    Some(of(content).map(|content| answer(content).into()))
}
