//! sandcell as an MCP server. The only crate that knows MCP.
//!
//! A call comes in as a line of JSON (`stdio`), is checked against the tool's fields (`arguments`, `schema`), asks the
//! engine (`host`), and goes out as content blocks (`content`, `answer`, `wire`). What code prints is never mixed with
//! what the server says: the last text block of a result is the server's alone.
#![forbid(unsafe_code)]

mod answer;
mod arguments;
mod content;
mod host;
mod instructions;
mod limits;
mod resources;
mod schema;
mod server;
mod stdio;
#[cfg(test)]
mod tests;
mod time;
mod tools;
mod wire;

pub use content::execution_object;
pub use server::{ServerOptions, UnknownTool};
pub use stdio::{ServeError, serve_stdio};

/// How a caller reads on in a cut stream: what the engine puts into its markers (`Hints::read_rest`).
pub const READ_REST: &str = "get_execution(execution_id=\"{execution_id}\", stream=\"{stream}\", offset={offset})";

/// What every log filter must have: rmcp writes whole requests and results (code, output, secrets) to its log.
pub const LOG_DIRECTIVE: &str = "rmcp=off";
