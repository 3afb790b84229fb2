//! Resources and prompts of the suite.

use rmcp::model::{
    ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult, Prompt, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceTemplate,
};
use serde_json::{Value, json};

use super::{asks, of, tools::RED_PIXEL_PNG};

pub(super) fn resources() -> Result<Vec<Resource>, ErrorData> {
    of(json!([
        {"uri": "test://static-text", "name": "a text", "description": "Always the same", "mimeType": "text/plain"},
        {"uri": "test://static-binary", "name": "a picture", "description": "One pixel", "mimeType": "image/png"},
    ]))
}

pub(super) fn templates() -> Result<Vec<ResourceTemplate>, ErrorData> {
    of(json!([{
        "uriTemplate": "test://template/{id}/data",
        "name": "data of an id",
        "description": "Tells the id",
        "mimeType": "application/json",
    }]))
}

/// Returns the content of a resource of the suite; none for other resources.
pub(super) fn resource(uri: &str) -> Option<Result<ReadResourceResponse, ErrorData>> {
    let content = match uri {
        "test://static-text" => {
            let text = "This is the content of the static text resource.";
            json!({"uri": uri, "mimeType": "text/plain", "text": text})
        }
        "test://static-binary" => json!({"uri": uri, "mimeType": "image/png", "blob": RED_PIXEL_PNG}),
        _ => {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            json!({"uri": uri, "mimeType": "application/json", "text": text.to_string()})
        }
    };
    Some(of(content).map(|content| ReadResourceResult::new(vec![content]).into()))
}

pub(super) fn prompts() -> Result<Vec<Prompt>, ErrorData> {
    let argument = |name: &str| json!({"name": name, "description": "A text", "required": true});
    of(json!([
        {"name": "test_simple_prompt", "description": "A text"},
        {
            "name": "test_prompt_with_arguments",
            "description": "Tells its arguments",
            "arguments": [argument("arg1"), argument("arg2")],
        },
        {
            "name": "test_prompt_with_embedded_resource",
            "description": "Has a resource in it",
            "arguments": [argument("resourceUri")],
        },
        {"name": "test_prompt_with_image", "description": "Has a picture in it"},
        {"name": "test_input_required_result_prompt", "description": "Wants something from the user first"},
    ]))
}

/// A prompt of the suite; none if it is not one.
pub(super) fn prompt(request: &GetPromptRequestParams) -> Option<Result<GetPromptResponse, ErrorData>> {
    let given = |name: &str| {
        let value = request.arguments.as_ref().and_then(|given| given.get(name));
        value.and_then(Value::as_str).unwrap_or_default()
    };
    let text = |text: &str| json!({"role": "user", "content": {"type": "text", "text": text}});
    let messages = match request.name.as_ref() {
        "test_simple_prompt" => json!([text("This is a simple prompt for testing.")]),
        "test_prompt_with_arguments" => {
            let (first, second) = (given("arg1"), given("arg2"));
            json!([text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))])
        }
        "test_prompt_with_embedded_resource" => {
            let body = "Embedded resource content for testing.";
            let resource = json!({"uri": given("resourceUri"), "mimeType": "text/plain", "text": body});
            let embedded = json!({"role": "user", "content": {"type": "resource", "resource": resource}});
            json!([embedded, text("Please process the embedded resource above.")])
        }
        "test_prompt_with_image" => {
            let picture = json!({"type": "image", "data": RED_PIXEL_PNG, "mimeType": "image/png"});
            json!([{"role": "user", "content": picture}, text("Please analyze the image above.")])
        }
        "test_input_required_result_prompt" => {
            let Some(answer) = asks::response(request.input_responses.as_ref(), "user_context") else {
                let asked = asks::question("What context should the prompt use?", "context");
                return Some(asks::asking([("user_context", asked)]));
            };
            json!([text(&format!("The context: {}", asks::content(answer, "context")))])
        }
        _ => return None,
    };
    Some(of(messages).map(|messages| GetPromptResult::new(messages).into()))
}
