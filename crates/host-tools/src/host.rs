//! The configured servers, for an engine and for the operator's commands.

use std::sync::Arc;

use sandcell_sandbox::{Failure, Forward, Functions, HostTools, ToolCaller, ToolPort};
use serde_json::{Map, Value};

use crate::catalogue::Tool;
use crate::config::ServerConfig;
use crate::connection::{Connection, chain};
use crate::offer::Offer;
use crate::port::{ServedPort, serve};
use crate::rules::Decision;
use crate::servers::{Servers, denied};
use crate::value::value_of;

/// The configured servers.
#[derive(Debug)]
pub struct ConfiguredTools {
    pub(crate) servers: Arc<Servers>,
}

/// The state of a server, for the operator.
#[derive(Debug)]
pub struct ServerState {
    /// Its name.
    pub name: String,
    /// Its tools with the decision about each, or the reason why it cannot be used.
    pub tools: Result<Vec<(Arc<Tool>, Decision)>, String>,
    /// The number of tools that are not offered, because their names or schemas are too long or there are too many.
    pub left_out: usize,
    /// The tools whose schemas cannot be used.
    pub unusable: Vec<String>,
}

impl ConfiguredTools {
    /// Makes the tools of these servers. Starts none of them. `max_bytes` bounds one call's arguments, and its result.
    #[must_use]
    pub fn new(servers: Vec<ServerConfig>, max_bytes: usize) -> Self {
        Self {
            servers: Arc::new(Servers {
                all: servers.into_iter().map(Connection::new).map(Arc::new).collect(),
                max_bytes,
            }),
        }
    }

    /// Starts all servers and returns their tools, for the operator.
    pub async fn states(&self) -> Vec<ServerState> {
        let states = self.servers.all.iter().map(|connection| async move {
            let name = connection.config.name.clone();
            match connection.try_start().await {
                Ok(live) => {
                    let catalogue = live.catalogue();
                    let unusable = catalogue.tools.values().filter(|tool| !tool.has_usable_schema());
                    ServerState {
                        name,
                        left_out: catalogue.left_out,
                        unusable: unusable.map(|tool| tool.name.clone()).collect(),
                        tools: Ok(catalogue
                            .tools
                            .values()
                            .map(|tool| (tool.clone(), connection.config.rules.decide(&tool.name, tool.read_only)))
                            .collect()),
                    }
                }
                Err(error) => ServerState {
                    name,
                    left_out: 0,
                    unusable: Vec::new(),
                    tools: Err(chain(&error)),
                },
            }
        });
        futures::future::join_all(states).await
    }

    /// Calls a tool for the operator, who needs no approval. The arguments are checked as for code.
    ///
    /// # Errors
    /// The tool is unknown or denied, its arguments do not fit, or the call fails.
    pub async fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> Result<Value, Failure> {
        let connection = self.servers.find(server, None)?;
        let live = connection.live().await?;
        let catalogue = live.catalogue();
        let tool = catalogue.find(server, tool)?;
        if connection.config.rules.decide(&tool.name, tool.read_only) == Decision::Deny {
            return Err(denied(server, &tool.name));
        }
        tool.check(&arguments)?;
        let time = connection.config.timeout;
        let result = live.call(&tool.name, arguments, time, std::future::pending()).await?;
        value_of(tool, result)
    }
}

impl HostTools for ConfiguredTools {
    fn servers(&self, caller: &str) -> Vec<String> {
        self.servers
            .of(caller)
            .map(|connection| connection.config.name.clone())
            .collect()
    }

    fn has_servers(&self) -> bool {
        !self.servers.all.is_empty()
    }

    fn open(
        &self,
        forward: Forward,
        caller: Arc<dyn ToolCaller>,
        functions: Option<Arc<dyn Functions>>,
    ) -> Box<dyn ToolPort> {
        let offer = Offer::new(Arc::clone(&self.servers), caller, functions);
        Box::new(ServedPort::new(serve(offer, forward)))
    }
}
