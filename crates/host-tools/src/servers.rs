//! The servers together, and the path of one call.

use std::sync::Arc;

use sandcell_sandbox::{Code, Failure, ToolCall, ToolCaller, ToolRequest};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::catalogue::{json_bytes, nearest};
use crate::config::ServerConfig;
use crate::connection::Connection;
use crate::question::question;
use crate::rules::Decision;
use crate::value::value_of;

/// The servers, and the maximum size of one call's arguments and result.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Arc<Connection>>,
    pub(crate) max_bytes: usize,
}

/// A call as code inside requests it.
#[derive(Debug)]
pub(crate) struct CallRequest {
    pub(crate) server: String,
    pub(crate) tool: String,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) execution: Option<String>,
}

impl Servers {
    /// Returns the servers that this caller's code may use.
    pub(crate) fn of<'a>(&'a self, caller: &'a str) -> impl Iterator<Item = &'a Arc<Connection>> {
        self.all
            .iter()
            .filter(move |connection| may_use(&connection.config, caller))
    }

    /// Returns a server. None as caller means the operator.
    pub(crate) fn find(&self, name: &str, caller: Option<&str>) -> Result<&Arc<Connection>, Failure> {
        let visible = |config: &ServerConfig| caller.is_none_or(|caller| may_use(config, caller));
        let mut known = self.all.iter().filter(|connection| visible(&connection.config));
        let near = || {
            let names = self.all.iter().filter(|connection| visible(&connection.config));
            nearest(name, names.map(|connection| connection.config.name.as_str()))
        };
        known.find(|connection| connection.config.name == name).ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                format!(
                    "there is no server {:?} of tools{}",
                    name.chars().take(80).collect::<String>(),
                    near()
                ),
                "tools.list() lists the tools of all servers",
            )
        })
    }

    /// Makes a call for code inside.
    pub(crate) async fn call(&self, caller: &dyn ToolCaller, request: CallRequest) -> Result<Value, Failure> {
        let text = Value::Object(request.arguments.clone()).to_string();
        let record = ToolRequest {
            server: name_for_records(&request.server),
            tool: name_for_records(&request.tool),
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            digest: hex(&Sha256::digest(text.as_bytes())),
        };
        let execution = request.execution.as_deref();
        let refuse = |failure: Failure| {
            caller.refused(execution, &record, &failure);
            failure
        };
        if text.len() > self.max_bytes {
            return Err(refuse(too_large("the arguments are", text.len(), self.max_bytes)));
        }
        let connection = self.find(&request.server, Some(caller.owner())).map_err(refuse)?;
        let call = caller.begin(execution, &record).await?;
        let end = self.call_admitted(call.as_ref(), connection, request).await;
        call.end(end.as_ref().err());
        end
    }

    /// Makes a call that the budget of its execution admits.
    async fn call_admitted(
        &self,
        call: &dyn ToolCall,
        connection: &Arc<Connection>,
        request: CallRequest,
    ) -> Result<Value, Failure> {
        let config = &connection.config;
        let live = tokio::select! {
            biased;
            live = connection.live() => live?,
            () = call.stopped() => return Err(cancelled()),
        };
        let catalogue = live.catalogue();
        let tool = catalogue.find(&config.name, &request.tool)?;
        call.found();
        // The rules come before the arguments, and a person is asked about arguments that fit only.
        let decision = config.rules.decide(&tool.name, tool.read_only);
        if decision == Decision::Deny {
            return Err(denied(&config.name, &tool.name));
        }
        tool.check(&request.arguments)?;
        if decision == Decision::Ask {
            call.ask(question(&config.name, &tool.name, &request.arguments, tool.read_only))
                .await?;
        }
        let result = live
            .call(&tool.name, request.arguments, config.timeout, call.stopped())
            .await?;
        let bytes = json_bytes(&result);
        if bytes > self.max_bytes {
            return Err(too_large("the result is", bytes, self.max_bytes));
        }
        call.received(u64::try_from(bytes).unwrap_or(u64::MAX))?;
        value_of(tool, result)
    }
}

fn may_use(config: &ServerConfig, caller: &str) -> bool {
    config.callers.is_empty() || config.callers.iter().any(|one| one == caller)
}

pub(crate) fn denied(server: &str, tool: &str) -> Failure {
    Failure::new(
        Code::ToolDenied,
        format!("the operator does not allow calls of {server}.{tool}"),
        "continue without it",
    )
}

fn cancelled() -> Failure {
    Failure::new(
        Code::Cancelled,
        "the execution that made this call was stopped",
        "run the code again",
    )
}

fn too_large(what: &str, bytes: usize, max: usize) -> Failure {
    Failure::new(
        Code::LimitReached,
        format!("{what} larger than the maximum: {bytes} of {max} bytes"),
        "pass or ask for less data; the operator can raise limits.tool_call_mb",
    )
}

/// Returns a name from inside as records hold it.
fn name_for_records(name: &str) -> String {
    name.chars().take(128).flat_map(char::escape_debug).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
