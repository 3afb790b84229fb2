//! Requests that are admitted even when a caller has reached its limit: those that end something, and those that report
//! a state. Without them a caller could not leave a state that its own requests have caused.

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};

use crate::limits::ABOUT_BYTES;

/// Tools that end something or report a state.
const CONTROL_TOOLS: [&str; 4] = [
    "close_sandbox",
    "stop_sandbox",
    "cancel_execution",
    "get_sandbox_status",
];

/// The admission class of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Ordinary,
    /// Admitted beyond the bound of ordinary requests, within [`CONTROL_REQUESTS`](crate::limits::CONTROL_REQUESTS).
    Control,
}

impl Priority {
    /// Returns the priority of a message of this length in bytes. A long message is never a control message, since it
    /// would hold much memory.
    pub(crate) fn of(message: &ClientJsonRpcMessage, bytes: usize) -> Self {
        let JsonRpcMessage::Request(request) = message else {
            return Self::Ordinary;
        };
        let is_control = match &request.request {
            ClientRequest::CallToolRequest(call) => is_control_tool(&call.params.name),
            ClientRequest::PingRequest(_) | ClientRequest::CancelTaskRequest(_) => true,
            _ => false,
        };
        Self::within(is_control, bytes)
    }

    /// The same for a message that was not read further than as JSON.
    #[cfg(any(feature = "bridge", test))]
    pub(crate) fn of_json(message: &serde_json::Value, bytes: usize) -> Self {
        use serde_json::Value;
        let is_control = match message.get("method").and_then(Value::as_str) {
            Some("tools/call") => message
                .pointer("/params/name")
                .and_then(Value::as_str)
                .is_some_and(is_control_tool),
            Some(method) => matches!(method, "ping" | "tasks/cancel"),
            None => false,
        };
        Self::within(is_control, bytes)
    }

    const fn within(is_control: bool, bytes: usize) -> Self {
        if is_control && bytes <= ABOUT_BYTES {
            Self::Control
        } else {
            Self::Ordinary
        }
    }
}

fn is_control_tool(name: &str) -> bool {
    CONTROL_TOOLS.contains(&name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_that_end_something_have_priority_and_others_do_not() {
        let call = |name: &str| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}});
        let method = |name: &str| json!({"jsonrpc": "2.0", "id": 1, "method": name});
        for (message, priority) in [
            (call("close_sandbox"), Priority::Control),
            (call("stop_sandbox"), Priority::Control),
            (call("cancel_execution"), Priority::Control),
            (call("get_sandbox_status"), Priority::Control),
            (method("ping"), Priority::Control),
            (call("execute_code"), Priority::Ordinary),
            (call("create_sandbox"), Priority::Ordinary),
            (method("tools/list"), Priority::Ordinary),
        ] {
            let typed: ClientJsonRpcMessage = serde_json::from_value(message.clone()).unwrap();
            assert_eq!(Priority::of(&typed, 100), priority, "{message}");
            assert_eq!(Priority::of_json(&message, 100), priority, "{message}");
            assert_eq!(Priority::of(&typed, 1 << 20), Priority::Ordinary, "{message}");
        }
    }
}
