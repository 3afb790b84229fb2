//! The host's tools, made from the settings.

use std::sync::Arc;

use sandcell_host_tools::{ConfiguredTools, Connections, read_servers};
use sandcell_sandbox::{Failure, HostTools};

use crate::config::Settings;

/// Returns the tools of the settings, for the operator's commands; none where the settings name no server.
pub(crate) fn configured(settings: &Settings) -> Result<Option<ConfiguredTools>, Failure> {
    let tools = read(settings, &Connections::default())?;
    Ok(Some(tools).filter(ConfiguredTools::has_servers))
}

/// Returns the tools for an engine. Without a server, sandboxes can still have functions of the program that makes them.
pub(super) fn tools(settings: &Settings, connections: &Connections) -> Result<Arc<dyn HostTools>, Failure> {
    Ok(Arc::new(read(settings, connections)?))
}

fn read(settings: &Settings, connections: &Connections) -> Result<ConfiguredTools, Failure> {
    let servers = read_servers(&settings.tools).map_err(|error| {
        Failure::invalid(
            format!("the settings of [tools]: {error}"),
            "correct the table in the settings",
        )
    })?;
    let max_bytes = usize::try_from(settings.engine.tools.call_size.as_bytes()).unwrap_or(usize::MAX);
    Ok(ConfiguredTools::new(servers, max_bytes, connections))
}
