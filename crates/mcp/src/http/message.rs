//! A look at a message before rmcp gets it: whether it is one, which request it answers to, and what it asks for.

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use serde_json::Value;

use super::refusal::Refusal;
use crate::stdio::scanner::Scanner;
use crate::stdio::transport::{INVALID_REQUEST, parse};

/// What a message asks for, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new session.
    Initialize,
    /// An answer that can have the size of a file.
    Bulk,
    Other,
}

/// What was seen of a message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The id of a request; none for what gets no answer.
    pub(crate) id: Option<Value>,
    pub(crate) kind: Kind,
}

impl Message {
    /// For requests without a body.
    pub(crate) const fn none() -> Self {
        Self {
            id: None,
            kind: Kind::Other,
        }
    }
}

/// Looks at a message; refuses what is none.
pub(crate) fn look(bytes: &[u8]) -> Result<Message, Refusal> {
    let mut scanner = Scanner::default();
    scanner.feed(bytes);
    let refuse = |(code, text): (i32, String)| Refusal::message(code, &text).about(scanner.id().cloned());
    match parse(bytes, &scanner).map_err(refuse)? {
        Some(message) => Ok(Message {
            id: match &message {
                JsonRpcMessage::Request(request) => Some(request.id.clone().into_json_value()),
                JsonRpcMessage::Notification(_) | JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
            },
            kind: kind(&message),
        }),
        None => Err(Refusal::message(INVALID_REQUEST, "the body is empty")),
    }
}

fn kind(message: &ClientJsonRpcMessage) -> Kind {
    let JsonRpcMessage::Request(request) = message else {
        return Kind::Other;
    };
    match &request.request {
        ClientRequest::InitializeRequest(_) => Kind::Initialize,
        ClientRequest::ReadResourceRequest(_) => Kind::Bulk,
        ClientRequest::CallToolRequest(call) if crate::server::is_bulk(&call.params) => Kind::Bulk,
        _ => Kind::Other,
    }
}
