//! Logs. They go to stderr only, since stdout is data.

#[cfg(feature = "otel")]
mod traces;

use std::sync::{Mutex, OnceLock, PoisonError};

use sandcell_sandbox::Failure;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::screen::is_screen;

/// The variable with the log filter. It also applies before settings are read.
const FILTER_VARIABLE: &str = "SANDCELL_LOG";
/// The default log filter.
const DEFAULT_FILTER: &str = "warn";

/// The filter in force, and its source text.
static ACTIVE_FILTER: OnceLock<(reload::Handle<Targets, Registry>, Mutex<String>)> = OnceLock::new();

/// Starts logging. An invalid filter is reported once and the default is used: logs are a convenience.
pub(crate) fn start() {
    let wanted = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let (filter, complaint) = match filter(&wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (Targets::new().with_default(LevelFilter::WARN), Some(error)),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(is_screen(&std::io::stderr()))
        .with_target(false)
        .with_filter(filter);
    let registry = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "otel")]
    let registry = registry.with(traces::layer());
    // A second subscriber in one process is refused, and the first one stays.
    if registry.try_init().is_ok() {
        let _first = ACTIVE_FILTER.set((handle, Mutex::new(wanted.clone())));
    }
    if let Some(error) = complaint {
        tracing::warn!("{FILTER_VARIABLE}={wanted:?} is not a filter ({error}); logging warnings");
    }
}

/// Starts to send traces if the settings name a collector. Call it after the launcher was started: it starts threads.
///
/// # Errors The address cannot be used, or this build has no traces.
pub(crate) fn trace(endpoint: Option<&str>) -> Result<(), Failure> {
    let Some(endpoint) = endpoint else { return Ok(()) };
    #[cfg(feature = "otel")]
    return traces::start(endpoint);
    #[cfg(not(feature = "otel"))]
    Err(Failure::invalid(
        format!("traces.endpoint = {endpoint:?}, and this build has no traces"),
        "leave traces.endpoint out, or build sandcell with --features otel",
    ))
}

/// Sends the last traces, for two seconds at most.
pub(crate) fn finish() {
    #[cfg(feature = "otel")]
    traces::finish();
}

/// Changes the log filter. An invalid filter changes nothing.
pub(crate) fn change(wanted: &str) {
    let Some((handle, last)) = ACTIVE_FILTER.get() else {
        return;
    };
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if *last == wanted {
        return;
    }
    wanted.clone_into(&mut last);
    match filter(wanted) {
        Ok(filter) => {
            if let Err(error) = handle.reload(filter) {
                tracing::warn!(%error, "the log's filter could not be changed");
            }
        }
        Err(error) => tracing::warn!("log = {wanted:?} is not a filter ({error}); it stays as it was"),
    }
}

/// Parses levels by target. Filters on spans would need regular-expression tables of half a megabyte.
fn filter(wanted: &str) -> Result<Targets, ParseError> {
    let wanted = if wanted.is_empty() { DEFAULT_FILTER } else { wanted };
    // The MCP library logs whole requests, which hold code and secrets.
    format!("{wanted},{}", sandcell_mcp::LOG_DIRECTIVE).parse()
}
