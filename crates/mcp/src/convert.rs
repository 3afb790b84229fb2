//! Converts this crate's types to rmcp's. ARCHITECTURE.md lists the modules that may name rmcp's types.

use rmcp::model::{
    CallToolResult, CompleteRequestParams, CompleteResult, CompletionInfo, ContentBlock, ErrorCode, ErrorData,
    GetPromptResult, MetaObject, PaginatedRequestParams, Prompt as McpPrompt, PromptArgument, PromptMessage,
    ReadResourceResult, Reference, Resource, ResourceContents, ResourceTemplate, Role, Tool as McpTool,
    ToolAnnotations,
};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use crate::answer::{Answer, Block};
use crate::completion::{CompletionQuery, Completions};
use crate::prompts::{Argument, Prompt};
use crate::resources::{Body, Content};
use crate::schema;
use crate::tools::{Effect, Tool};

/// The maximum bytes of an address that an error repeats. Longer addresses cannot be this server's.
const REPEATED_URI_BYTES: usize = 4096;

/// A tool as `tools/list` shows it. Hints that equal the default are left out.
pub(crate) fn tool(tool: &Tool) -> McpTool {
    let reaches = tool.fields.iter().any(|field| field.name == "network" && !field.hidden);
    let hints = ToolAnnotations::new().open_world(reaches);
    let hints = match tool.effect {
        Effect::Reads => hints.read_only(true),
        Effect::ChangesSandbox => hints.destructive(false),
        Effect::Removes => hints.destructive(true),
    };
    let mut listed = McpTool::new(tool.name, tool.description.clone(), schema::input(&tool.fields)).annotate(hints);
    if let Some(Value::Object(output)) = &tool.output {
        listed = listed.with_raw_output_schema(output.clone().into());
    }
    listed
}

/// The answer of a tool.
pub(crate) fn result(answer: Answer) -> CallToolResult {
    let content = answer.blocks.into_iter().map(block).collect();
    let mut result = if answer.failed {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    };
    result.structured_content = answer.structured;
    if !answer.meta.is_empty() {
        result.meta = Some(MetaObject(answer.meta));
    }
    result
}

fn block(block: Block) -> ContentBlock {
    match block {
        Block::Text(text) => ContentBlock::text(text),
        Block::Image { mime, base64 } => ContentBlock::image(base64, mime),
        Block::Link(link) => {
            let mut resource = Resource::new(link.uri, link.name).with_size(link.size);
            if let Some(mime) = link.mime {
                resource = resource.with_mime_type(mime);
            }
            ContentBlock::resource_link(resource)
        }
    }
}

/// Converts the content of a resource.
pub(crate) fn resource(uri: &str, content: Content) -> ReadResourceResult {
    let contents = match content.body {
        Body::Text(text) => ResourceContents::text(text, uri),
        Body::Base64(blob) => ResourceContents::blob(blob, uri),
    };
    ReadResourceResult::new(vec![contents.with_mime_type(content.mime)])
}

/// Returns the templates of resource addresses.
pub(crate) fn resource_templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new("sandcell://{sandbox_id}/{+path}", "file").with_description("A file of a live sandbox"),
        ResourceTemplate::new("sandcell://executions/{execution_id}/{n}", "execution file")
            .with_description("A picture or output of an execution; outlives its sandbox"),
    ]
}

/// A prompt as `prompts/list` shows it.
pub(crate) fn prompt(prompt: &Prompt) -> McpPrompt {
    let argument = |argument: &Argument| {
        PromptArgument::new(argument.name)
            .with_description(argument.description)
            .with_required(argument.required)
    };
    let arguments = prompt.arguments.iter().map(argument).collect();
    McpPrompt::new(prompt.name, Some(prompt.description), Some(arguments)).with_title(prompt.title)
}

/// Converts the text of a prompt.
pub(crate) fn prompt_text(prompt: &Prompt, text: String) -> GetPromptResult {
    GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]).with_description(prompt.description)
}

/// Returns the argument that is being typed, or none for an unknown reference.
pub(crate) fn typed(request: &CompleteRequestParams) -> Option<CompletionQuery<'_>> {
    let of = match &request.r#ref {
        Reference::Resource(template) => template.uri.as_str(),
        Reference::Prompt(prompt) => prompt.name.as_str(),
        _ => return None,
    };
    let name = request.argument.name.as_str();
    let within = if name == "n" { "execution_id" } else { "sandbox_id" };
    let given = request
        .context
        .as_ref()
        .and_then(|context| context.get_argument(within));
    Some(CompletionQuery {
        of,
        name,
        value: &request.argument.value,
        within: given.map(String::as_str),
    })
}

/// Converts completions.
pub(crate) fn completed(completed: Completions) -> CompleteResult {
    let more = completed.total > completed.values.len();
    let total = u32::try_from(completed.total).ok();
    // The values are already cut to the protocol's maximum, so this cannot fail.
    CompleteResult::new(CompletionInfo::with_pagination(completed.values, total, more).unwrap_or_default())
}

/// An invalid request, explained for the model and for authors of clients.
pub(crate) fn misuse(code: ErrorCode, message: &str, remedy: &str) -> ErrorData {
    let data = json!({"code": Code::InvalidArgument, "message": message, "remedy": remedy});
    ErrorData::new(code, format!("{message}; {remedy}"), Some(data))
}

/// Refuses a cursor. Lists are sent whole, so the server never issued one.
pub(crate) fn whole_list(page: Option<&PaginatedRequestParams>) -> Result<(), ErrorData> {
    if page.is_none_or(|page| page.cursor.is_none()) {
        return Ok(());
    }
    Err(misuse(
        ErrorCode::INVALID_PARAMS,
        "this cursor was not given by this server",
        "ask without a cursor: the list comes whole",
    ))
}

/// Converts an internal failure outside of tools.
pub(crate) fn panicked(failure: &Failure) -> ErrorData {
    ErrorData::internal_error(failure.message.clone(), None)
}

/// Converts the failure of a resource to a JSON-RPC error. MCP demands that the error repeats the resource's address.
pub(crate) fn resource_error(uri: &str, failure: &Failure) -> ErrorData {
    let text = format!("{}: {} ({})", failure.code, failure.message, failure.remedy);
    let mut data = json!({"code": failure.code, "message": failure.message, "remedy": failure.remedy});
    if let Some(object) = data.as_object_mut().filter(|_| uri.len() <= REPEATED_URI_BYTES) {
        object.insert("uri".to_owned(), uri.into());
    }
    let data = Some(data);
    match failure.code {
        Code::NotFound | Code::Expired => ErrorData::resource_not_found(text, data),
        Code::Internal => ErrorData::internal_error(text, data),
        _ => ErrorData::invalid_params(text, data),
    }
}
