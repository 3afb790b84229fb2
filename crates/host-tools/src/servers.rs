//! The servers of the settings, and their visibility for callers.

use std::sync::Arc;

use sandcell_sandbox::{Code, Failure};

use crate::catalogue::nearest;
use crate::config::ServerConfig;
use crate::connection::Connection;

/// The servers, and the maximum size of one call's arguments and result.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Arc<Connection>>,
    pub(crate) max_bytes: usize,
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
