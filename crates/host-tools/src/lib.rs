//! Tools of the host for code in sandboxes: MCP servers that the operator has configured, behind one port in each
//! sandbox.
//!
//! Code inside sends HTTP requests to the port (`port.rs`). A request names a server and a tool. The tool must be one that
//! the server lists (`catalogue.rs`), its arguments must match its schema, and the operator's rules (`rules.rs`) decide
//! whether the call is made, refused, or put to a person. `connection.rs` is the client of one MCP server, `value.rs` turns
//! its result into what code gets. `plain.rs` has the form of answers for shells.
//!
//! Both sides are hostile. Code inside can send any bytes: only tools that the rules grant can be reached by any of them.
//! A server's texts and results have a bound each, and never become more than a value inside. Credentials of the servers
//! stay here.
#![forbid(unsafe_code)]

mod catalogue;
mod config;
mod connection;
mod host;
mod http;
mod offer;
mod plain;
mod port;
mod question;
mod rules;
mod servers;
mod stdio;
mod value;
mod work;

pub use catalogue::Tool;
pub use config::{ServerConfig, ServersError, Transport, check_servers, read_servers, valid_server_name};
pub use connection::Connections;
pub use host::{ConfiguredTools, ServerState};
pub use rules::{Decision, Rules};
