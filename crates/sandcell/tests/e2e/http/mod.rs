//! `serve --http`, seen by friends and by strangers.

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
// Clients that are slow, gone, or too many.
mod pressure;
// Health, metrics, TLS, and the end.
mod service;
