//! Records of the engine's work: the history, the sinks for permanent storage, metrics and spans.

pub(crate) mod history;
pub(crate) mod metrics;
pub(crate) mod sinks;
pub(crate) mod spans;
