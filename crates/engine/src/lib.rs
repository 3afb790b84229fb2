//! Who may run what, and where: sandboxes and their owners, sessions, executions and their history.
//!
//! This is the library for Rust programs that want sandboxes without MCP: make an [`Engine`] from back ends and
//! languages, then call its methods with a [`Principal`]. It knows nothing of MCP, the command line, or how a
//! back end works.
#![forbid(unsafe_code)]

pub mod api;
