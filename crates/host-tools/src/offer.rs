//! The tools of one sandbox, and the path of a call: the operator's servers, and the functions of the program that made
//! the sandbox.

use std::sync::Arc;

use sandcell_sandbox::{Code, FUNCTIONS_SERVER, Failure, Functions, ToolCall, ToolCaller, ToolRequest};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::catalogue::{Catalogue, Tool, json_bytes};
use crate::connection::Connection;
use crate::question::question;
use crate::rules::Decision;
use crate::servers::{Servers, denied};
use crate::value::value_of;

/// The line about the functions for the code that looks for tools.
const FUNCTIONS_DESCRIPTION: &str = "Functions of the program that made this sandbox";

/// The tools of one sandbox.
#[derive(Debug)]
pub(crate) struct Offer {
    servers: Arc<Servers>,
    functions: Option<Arc<OfferedFunctions>>,
    caller: Arc<dyn ToolCaller>,
}

/// The functions of a program, as tools.
#[derive(Debug)]
pub(crate) struct OfferedFunctions {
    catalogue: Arc<Catalogue>,
    functions: Arc<dyn Functions>,
}

/// A source of tools.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A server of the settings.
    Server(Arc<Connection>),
    /// The functions of the program that made the sandbox.
    Functions(Arc<OfferedFunctions>),
}

/// A call as code inside requests it.
#[derive(Debug)]
pub(crate) struct CallRequest {
    pub(crate) server: String,
    pub(crate) tool: String,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) execution: Option<String>,
}

impl Source {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Server(connection) => &connection.config.name,
            Self::Functions(_) => FUNCTIONS_SERVER,
        }
    }

    pub(crate) fn description(&self) -> &str {
        match self {
            Self::Server(connection) => &connection.config.description,
            Self::Functions(_) => FUNCTIONS_DESCRIPTION,
        }
    }

    /// Returns the tools. Starts the server if needed.
    pub(crate) async fn catalogue(&self) -> Result<Arc<Catalogue>, Failure> {
        match self {
            Self::Server(connection) => Ok(connection.live().await?.catalogue()),
            Self::Functions(offered) => Ok(Arc::clone(&offered.catalogue)),
        }
    }

    /// Decides about the calls of a tool. The program decides itself which functions it offers.
    pub(crate) fn decide(&self, tool: &Tool) -> Decision {
        match self {
            Self::Server(connection) => connection.config.rules.decide(&tool.name, tool.read_only),
            Self::Functions(_) => Decision::Allow,
        }
    }

    /// Calls a tool with checked arguments. Returns the answer to code, and its size before it became that.
    pub(crate) async fn call(
        &self,
        tool: &Tool,
        arguments: Map<String, Value>,
        stopped: impl Future<Output = ()>,
    ) -> Result<(Result<Value, Failure>, usize), Failure> {
        match self {
            Self::Server(connection) => {
                let live = connection.live().await?;
                let result = live
                    .call(&tool.name, arguments, connection.config.timeout, stopped)
                    .await?;
                let bytes = json_bytes(&result);
                Ok((value_of(tool, result), bytes))
            }
            Self::Functions(offered) => {
                let text = tokio::select! {
                    biased;
                    text = offered.functions.call(&tool.name, Value::Object(arguments).to_string()) => text?,
                    () = stopped => return Err(cancelled()),
                };
                let value: Value = serde_json::from_str(&text).map_err(|_| {
                    Failure::new(
                        Code::ToolUnavailable,
                        format!("{} gave no result: it is not JSON", tool.name),
                        "continue without it",
                    )
                })?;
                Ok((Ok(json!({"kind": "json", "value": value})), text.len()))
            }
        }
    }
}

impl Offer {
    pub(crate) fn new(
        servers: Arc<Servers>,
        caller: Arc<dyn ToolCaller>,
        functions: Option<Arc<dyn Functions>>,
    ) -> Self {
        let functions = functions.map(|functions| {
            Arc::new(OfferedFunctions {
                catalogue: Arc::new(Catalogue::of_functions(functions.list())),
                functions,
            })
        });
        Self {
            servers,
            functions,
            caller,
        }
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.servers.max_bytes
    }

    /// Returns the sources of tools that code in the sandbox may use.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let functions = self.functions.iter().cloned().map(Source::Functions);
        let servers = self.servers.of(self.caller.owner()).cloned().map(Source::Server);
        functions.chain(servers).collect()
    }

    /// Returns the source of this name.
    pub(crate) fn find(&self, name: &str) -> Result<Source, Failure> {
        match &self.functions {
            Some(functions) if name == FUNCTIONS_SERVER => Ok(Source::Functions(Arc::clone(functions))),
            _ => {
                let found = self.servers.find(name, Some(self.caller.owner()))?;
                Ok(Source::Server(Arc::clone(found)))
            }
        }
    }

    /// Checks that code may make a call now, before its request is read.
    pub(crate) fn may_call(&self, execution: Option<&str>) -> Result<(), Failure> {
        self.caller.may_call(execution)
    }

    /// Admits a list of tools.
    pub(crate) fn admit_list(&self, execution: Option<&str>) -> Result<(), Failure> {
        self.caller.admit_list(execution)
    }

    /// Makes a call for code inside.
    pub(crate) async fn call(&self, request: CallRequest) -> Result<Value, Failure> {
        let text = serde_json::to_string(&request.arguments).map_err(|error| {
            Failure::invalid(
                format!("the arguments cannot be written as JSON: {error}"),
                "pass other values",
            )
        })?;
        let record = ToolRequest {
            server: name_for_records(&request.server),
            tool: name_for_records(&request.tool),
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
            digest: hex(&Sha256::digest(text.as_bytes())),
        };
        let execution = request.execution.as_deref();
        let refuse = |failure: Failure| {
            self.caller.refused(execution, &record, &failure);
            failure
        };
        if text.len() > self.max_bytes() {
            return Err(refuse(too_large("the arguments are", text.len(), self.max_bytes())));
        }
        let source = self.find(&request.server).map_err(refuse)?;
        let call = self.caller.begin(execution, &record).await?;
        let end = self.call_admitted(call.as_ref(), &source, request).await;
        call.end(end.as_ref().err());
        end
    }

    /// Makes a call that the budget of its execution admits.
    async fn call_admitted(
        &self,
        call: &dyn ToolCall,
        source: &Source,
        request: CallRequest,
    ) -> Result<Value, Failure> {
        let catalogue = tokio::select! {
            biased;
            catalogue = source.catalogue() => catalogue?,
            () = call.stopped() => return Err(cancelled()),
        };
        let tool = catalogue.find(source.name(), &request.tool)?;
        call.found();
        // The rules come before the arguments, and a person is asked about arguments that fit only.
        let decision = source.decide(tool);
        if decision == Decision::Deny {
            return Err(denied(source.name(), &tool.name));
        }
        tool.check(&request.arguments)?;
        if decision == Decision::Ask {
            call.ask(question(source.name(), &tool.name, &request.arguments, tool.read_only))
                .await?;
        }
        call.made();
        let (value, bytes) = source.call(tool, request.arguments, call.stopped()).await?;
        if bytes > self.max_bytes() {
            return Err(too_large("the result is", bytes, self.max_bytes()));
        }
        call.received(u64::try_from(bytes).unwrap_or(u64::MAX))?;
        value
    }
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
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
