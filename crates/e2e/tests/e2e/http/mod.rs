//! `serve --http`, from the view of authorized callers and of strangers.

// Further attacks on the HTTP server.
mod attacks;
// The proxy from standard input and output to a running server.
mod connect;
// Authentication.
mod authentication;
// Tokens of another authorization server.
mod oauth;
// Ownership of sandboxes, executions and streams.
mod owners;
// The quota of a caller.
mod quota;
// The page: its requests, display in a browser, use and access.
mod accessibility;
mod browser;
mod page;
mod page_approvals;
mod page_work;
// REST resources, and those in the form of SandboxFusion.
mod rest;
mod run_code;
// E2B's API: with E2B's SDKs, and with bad requests.
mod e2b_server;
// Ports of programs in sandboxes, on this machine.
mod forward;
// Fairness between two tenants that both use all capacity.
mod fair;
// Many clients for a long time, and the end of the server meanwhile.
mod soak;
// Slow, vanished, and too many clients.
mod pressure;
// Health, metrics, TLS, and the end.
mod service;
