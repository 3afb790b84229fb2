//! Calls of tools, read in one go.
//!
//! rmcp's own types try one kind of message after another, each on what was kept of the whole message. Nearly all messages are calls of
//! tools in the plain form that is read here. Everything else, wrong messages among it, is left to rmcp.

use rmcp::model::{
    CallToolRequest, CallToolRequestMethod, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, JsonObject,
    JsonRpcVersion2_0, RequestId, RequestMetaObject,
};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    #[serde(rename = "jsonrpc")]
    _version: JsonRpcVersion2_0,
    id: RequestId,
    #[serde(rename = "method")]
    _method: CallToolRequestMethod,
    params: Params,
}

#[derive(Deserialize)]
struct Params {
    name: String,
    arguments: Option<JsonObject>,
    _meta: Option<JsonObject>,
    #[serde(flatten)]
    others: JsonObject,
}

/// The call that this is; none if it is anything else, or has anything else in it.
pub(super) fn call_of_tool(line: &[u8]) -> Option<ClientJsonRpcMessage> {
    // A list of the fields' values would be taken as well.
    let Message { id, params, .. } = line.starts_with(b"{").then(|| serde_json::from_slice(line).ok())??;
    if !params.others.is_empty() {
        return None;
    }
    let mut call = CallToolRequestParams::new(params.name);
    call.arguments = params.arguments;
    let mut request = CallToolRequest::new(call);
    if let Some(meta) = params._meta {
        request.extensions.insert(RequestMetaObject::from(meta));
    }
    Some(ClientJsonRpcMessage::request(
        ClientRequest::CallToolRequest(request),
        id,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rmcp makes of it, and what is made of it here, with what goes along unseen.
    fn both(line: &str) -> (Option<String>, Option<String>) {
        let shown = |message: ClientJsonRpcMessage| {
            let ClientJsonRpcMessage::Request(request) = &message else {
                return format!("{message:?}");
            };
            let ClientRequest::CallToolRequest(call) = &request.request else {
                return format!("{message:?}");
            };
            let meta = call.extensions.get::<RequestMetaObject>();
            format!("{:?} {:?} {:?} {meta:?}", request.id, call.method, call.params)
        };
        let theirs = serde_json::from_str::<ClientJsonRpcMessage>(line).ok();
        (theirs.map(shown), call_of_tool(line.as_bytes()).map(shown))
    }

    #[test]
    fn a_plain_call_is_what_rmcp_makes_of_it() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"code":"x += 1"}}}"#,
            r#"{"params":{"arguments":{"b":1,"a":[1.5,-0,18446744073709551615,1e300,null,{"z":true,"a":"\u00fc\n"}]},"name":"r\u0075n"},
                "method":"tools/call","id":"seven","jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","id":2.0,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"2.0","id":-3,"method":"tools/call","params":{"name":"","arguments":null,"_meta":null}}"#,
            r#"{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"run","arguments":{"a":1,"a":2},
                "_meta":{"progressToken":"p","io.example/x":[1]}}}"#,
        ] {
            let (theirs, ours) = both(line);
            assert!(ours.is_some(), "{line}");
            assert_eq!(theirs, ours, "{line}");
        }
    }

    #[test]
    fn whatever_is_not_plain_is_left_to_rmcp() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"id":1,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":[]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["run"]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run"},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"run"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","name":"other"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{},"arguments":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","requestState":"s"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","task":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run"}} x"#,
            r#"["2.0",1,"tools/call",{"name":"run"}]"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[null,"run",null]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","_meta":[]}}"#,
            "",
        ] {
            assert!(call_of_tool(line.as_bytes()).is_none(), "{line}");
        }
    }
}
