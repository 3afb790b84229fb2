//! Logs: to stderr only, since stdout is data.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// The variable that says what is logged.
const VARIABLE: &str = "SANDCELL_LOG";

/// Starts logging. A filter that does not parse is said once and the default is used: logs are a convenience.
pub(crate) fn start() {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let (filter, complaint) = match EnvFilter::builder().parse(if wanted.is_empty() { "warn" } else { &wanted }) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("warn"), Some(error)),
    };
    // The MCP library logs whole requests, which hold code and secrets.
    let quiet: Option<Directive> = sandcell_mcp::LOG_DIRECTIVE.parse().ok();
    let filter = match quiet {
        Some(directive) => filter.add_directive(directive),
        None => EnvFilter::new("off"),
    };
    // A second subscriber in one process is refused; the first one stays, which is what is wanted.
    let _already_started = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .with_env_filter(filter)
        .try_init();
    if let Some(error) = complaint {
        tracing::warn!("{VARIABLE}={wanted:?} is not a filter ({error}); logging warnings");
    }
}
