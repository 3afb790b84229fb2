//! Records of the engine's work: the history, the sinks for permanent storage, metrics and spans.

pub(crate) mod history;
pub(crate) mod metrics;
pub(crate) mod sinks;
pub(crate) mod spans;

use std::sync::Mutex;

use self::history::History;
use self::metrics::Metrics;
use self::sinks::Observers;

/// The records of an engine.
#[derive(Debug)]
pub(crate) struct Records {
    /// The newest rows of the history, in memory.
    pub(crate) history: Mutex<History>,
    pub(crate) observers: Observers,
    pub(crate) metrics: Metrics,
}
