//! Inspects a message before rmcp gets it: its validity, its request id, and its kind.

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use serde_json::Value;

use super::rejection::Rejection;
use crate::priority::Priority;
use crate::stdio::scanner::Scanner;
use crate::stdio::transport::{INVALID_REQUEST, parse};

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new session.
    Initialize,
    /// An answer that can have the size of a file.
    Bulk,
    Other,
}

/// The inspected parts of a message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The id of a request. None for messages that get no answer.
    pub(crate) id: Option<Value>,
    pub(crate) kind: Kind,
    pub(crate) priority: Priority,
}

impl Message {
    /// For requests without a body.
    pub(crate) const fn none() -> Self {
        Self {
            id: None,
            kind: Kind::Other,
            priority: Priority::Ordinary,
        }
    }
}

/// Inspects a message; refuses invalid ones.
pub(crate) fn look(bytes: &[u8]) -> Result<Message, Rejection> {
    let mut scanner = Scanner::default();
    scanner.feed(bytes);
    let refuse = |(code, text): (i32, String)| Rejection::message(code, &text).about(scanner.id().cloned());
    match parse(bytes, &scanner).map_err(refuse)? {
        Some(message) => Ok(Message {
            id: match &message {
                JsonRpcMessage::Request(request) => Some(request.id.clone().into_json_value()),
                JsonRpcMessage::Notification(_) | JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => None,
            },
            kind: kind(&message),
            priority: Priority::of(&message, bytes.len()),
        }),
        None => Err(Rejection::message(INVALID_REQUEST, "the body is empty")),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn oversized_ids_and_metadata_are_refused() {
        let long = "x".repeat(300 << 10);
        let many = vec![json!({"": 0}); 10_000];
        let meta = |meta: Value| json!({"name": "execute_code", "arguments": {"code": long}, "_meta": meta});
        for (id, method, params, taken) in [
            (json!(1), "tools/call", meta(json!({})), true),
            (
                json!("x".repeat(1000)),
                "tools/call",
                meta(json!({"progressToken": "t"})),
                true,
            ),
            (json!(1), "ping", json!({"_meta": {"x": "x".repeat(10_000)}}), true),
            (json!(1), "tools/call", meta(json!({"progressToken": long})), false),
            (json!(1), "tools/call", meta(json!({"x": {"y": long}})), false),
            (
                json!(1),
                "tools/call",
                json!({"name": "x", "arguments": {"x": many}}),
                false,
            ),
            (json!(long), "tools/call", json!({"name": "x"}), false),
            (json!(1), "ping", json!({"x": long}), false),
            (json!(1), "no/such/method", json!({"x": long}), false),
        ] {
            let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            let seen = look(message.to_string().as_bytes());
            assert_eq!(seen.is_ok(), taken, "{method} {:?}", seen.err());
        }
        let note = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": long}});
        assert!(look(note.to_string().as_bytes()).is_err());
    }
}
