//! `serve --http`, seen by friends and by strangers.

// What else an attacker would try.
mod attacks;
// From standard input and output to a server that runs.
mod connect;
// Who is let in.
mod door;
// Tokens of somebody else's authorization server.
mod oauth;
// What belongs to whom.
mod owners;
// What a caller may have together.
mod quota;
// The page: its requests, display in a browser, use and access.
mod accessibility;
mod browser;
mod page;
mod page_work;
// REST resources, and those in the form of SandboxFusion.
mod rest;
mod run_code;
// Two tenants who both want all of it.
mod fair;
// Many clients for long, and the end of the server amid them.
mod soak;
// Clients that are slow, gone, or too many.
mod pressure;
// Health, metrics, TLS, and the end.
mod service;
