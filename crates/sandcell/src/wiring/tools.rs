//! The host's tools, made from the settings.

use std::sync::Arc;

use sandcell_host_tools::{ConfiguredTools, read_servers};
use sandcell_sandbox::{Failure, HostTools};

use crate::config::Settings;

/// Returns the tools of the settings, for the operator's commands; none where the settings name no server.
pub(crate) fn configured(settings: &Settings) -> Result<Option<ConfiguredTools>, Failure> {
    let servers = read_servers(&settings.tools).map_err(|error| {
        Failure::invalid(
            format!("the settings of [tools]: {error}"),
            "correct the table in the settings",
        )
    })?;
    let max_bytes = usize::try_from(settings.engine.tools.call_size.as_bytes()).unwrap_or(usize::MAX);
    Ok((!servers.is_empty()).then(|| ConfiguredTools::new(servers, max_bytes)))
}

/// Returns the tools for an engine.
pub(super) fn tools(settings: &Settings) -> Result<Option<Arc<dyn HostTools>>, Failure> {
    let tools = configured(settings)?;
    Ok(tools.map(|tools| -> Arc<dyn HostTools> { Arc::new(tools) }))
}
