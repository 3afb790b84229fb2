//! The configured servers, for an engine and for the operator's commands.

use std::sync::Arc;

use sandcell_sandbox::{Failure, Forward, Functions, HostTools, ToolCaller, ToolPort, with_sources};
use serde_json::{Map, Value};

use crate::catalogue::Tool;
use crate::config::ServerConfig;
use crate::connection::Connections;
use crate::offer::{Offer, Source};
use crate::port::{ServedPort, serve};
use crate::rules::Decision;
use crate::servers::{Servers, denied};

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
    /// Makes the tools of these servers. Starts none of them. Servers that `connections` knows keep running. `max_bytes`
    /// bounds one call's arguments, and its result.
    #[must_use]
    pub fn new(servers: Vec<ServerConfig>, max_bytes: usize, connections: &Connections) -> Self {
        Self {
            servers: Arc::new(Servers {
                all: servers.into_iter().map(|server| connections.of(server)).collect(),
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
                    tools: Err(with_sources(&error)),
                },
            }
        });
        futures::future::join_all(states).await
    }

    /// Calls a tool for the operator. No person is asked. The same checks of arguments apply as for calls by code.
    ///
    /// # Errors
    /// The tool is unknown or denied, its arguments do not fit, or the call fails.
    pub async fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> Result<Value, Failure> {
        let source = Source::Server(Arc::clone(self.servers.find(server, None)?));
        let catalogue = source.catalogue().await?;
        let tool = catalogue.find(server, tool)?;
        if source.decide(tool) == Decision::Deny {
            return Err(denied(server, &tool.name));
        }
        tool.check(&arguments)?;
        let (value, _bytes) = source.call(tool, arguments, std::future::pending()).await?;
        value
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
