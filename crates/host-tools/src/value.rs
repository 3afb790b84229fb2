//! Results of tools, as code inside gets them. Nothing in a result is more than data.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use crate::catalogue::{Tool, WRAPPED_NAME, cut};

/// The maximum length of a tool's own error text.
const MAX_ERROR_BYTES: usize = 8 << 10;
/// The maximum number of parts of a result.
const MAX_PARTS: usize = 10_000;

/// Returns the result of a tool as the answer to code.
///
/// # Errors
/// The tool reports an error, or returns too many parts.
pub(crate) fn value_of(tool: &Tool, result: CallToolResult) -> Result<Value, Failure> {
    if result.is_error == Some(true) {
        return Err(Failure::new(
            Code::ToolFailed,
            error_text(&result),
            "correct the call according to the tool's message, or continue without it",
        ));
    }
    if result.content.len() > MAX_PARTS {
        return Err(Failure::new(
            Code::ToolUnavailable,
            format!(
                "the result has {} parts; the maximum is {MAX_PARTS}",
                result.content.len()
            ),
            "ask the tool for less data",
        ));
    }
    if let Some(structured) = result.structured_content {
        let value = match structured {
            Value::Object(mut object) if tool.wraps_results() && object.len() == 1 => {
                object.remove(WRAPPED_NAME).unwrap_or(Value::Object(object))
            }
            other => other,
        };
        return Ok(json!({"kind": "json", "value": value}));
    }
    let mut parts: Vec<Value> = result.content.into_iter().map(part).collect();
    Ok(match parts.len() {
        0 => json!({"kind": "nothing"}),
        1 => parts.pop().unwrap_or(Value::Null),
        _ => json!({"kind": "list", "items": parts}),
    })
}

fn part(block: ContentBlock) -> Value {
    match block {
        ContentBlock::Text(text) => json!({"kind": "text", "text": text.text}),
        ContentBlock::Image(image) => json!({"kind": "image", "mime": image.mime_type, "data": image.data}),
        ContentBlock::Audio(audio) => json!({"kind": "audio", "mime": audio.mime_type, "data": audio.data}),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents {
                uri, mime_type, text, ..
            } => json!({"kind": "resource", "uri": uri, "mime": mime_type, "text": text}),
            ResourceContents::BlobResourceContents {
                uri, mime_type, blob, ..
            } => json!({"kind": "resource", "uri": uri, "mime": mime_type, "data": blob}),
            // A kind that later versions of the protocol add.
            _ => json!({"kind": "nothing"}),
        },
        ContentBlock::ResourceLink(link) => json!({"kind": "link", "uri": link.uri, "name": link.name}),
        _ => json!({"kind": "nothing"}),
    }
}

fn error_text(result: &CallToolResult) -> String {
    let texts: Vec<&str> = result
        .content
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let text = texts.join("\n");
    match (text.trim().is_empty(), &result.structured_content) {
        (false, _) => cut(&text, MAX_ERROR_BYTES),
        (true, Some(value)) => cut(&value.to_string(), MAX_ERROR_BYTES),
        (true, None) => "the tool reported an error without a text".to_owned(),
    }
}
