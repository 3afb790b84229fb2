//! The usage of an execution: measured with as few queries to the back end as possible, and without a delay for the
//! code.

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Sandbox, Usage};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::sandbox::network::{NetworkEvidence, denied_so_far};
use crate::sandbox::state::Record;
use crate::{ExecutionId, MemoryGrowth, MemoryUse};

/// The maximum time to read a sandbox's usage.
const USAGE_TIMEOUT: Duration = Duration::from_millis(500);
/// Successful cells shorter than this are not measured: the query would take longer.
const MIN_MEASURED_DURATION: Duration = Duration::from_millis(5);

/// The usage of an execution.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) duration: Duration,
    pub(crate) cpu: Duration,
    pub(crate) peak: u64,
    pub(crate) memory: Option<MemoryUse>,
}

impl Cost {
    /// Computes the cost from two readings. The first is missing for a new sandbox.
    pub(crate) fn between(before: Option<Usage>, after: Option<Usage>, duration: Duration) -> Self {
        let before = before.unwrap_or_default();
        let after = after.unwrap_or(before);
        Self {
            duration,
            cpu: Duration::from_micros(after.cpu_us.saturating_sub(before.cpu_us)),
            peak: after.memory_peak,
            memory: None,
        }
    }
}

/// Measures the usage of a cell with few queries, and none before its code starts.
pub(crate) struct Meter {
    known: Option<Usage>,
    asked: Option<JoinHandle<Option<Usage>>>,
    /// The number of denied connections before the execution.
    denied: u64,
}

impl Meter {
    /// Starts the measurement. The first reading is the last known one, or one that is taken while the code already
    /// runs.
    pub(crate) fn start(record: &Record, sandbox: &Arc<dyn Sandbox>, fresh: bool) -> Self {
        let known = record.usage();
        let asked = (fresh || known.is_none()).then(|| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move { read_usage(sandbox.as_ref()).await })
        });
        Self {
            known,
            asked,
            denied: denied_so_far(record),
        }
    }

    /// Returns the network evidence of the execution.
    pub(crate) fn reached(&self, record: &Record) -> NetworkEvidence {
        NetworkEvidence::of(record, self.denied)
    }

    /// Returns the usage before and after, and the cost between them.
    pub(crate) async fn stop(
        self,
        id: &ExecutionId,
        record: &Record,
        sandbox: &Arc<dyn Sandbox>,
        duration: Duration,
        well: bool,
    ) -> (Usage, Option<Usage>, Cost) {
        let asked = match self.asked {
            Some(reading) => reading.await.ok().flatten(),
            None => None,
        };
        let mut before = asked.or(self.known).unwrap_or_default();
        if let Some(known) = self.known.or_else(|| asked.map(|_| Usage::default())) {
            // Events before the last reading are not this cell's. Later ones may be, even if they came before its first
            // reading.
            before.memory_events = known.memory_events;
            before.process_events = known.process_events;
        }
        if well && duration < MIN_MEASURED_DURATION && (asked.is_some() || self.known.is_some()) {
            let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
            record.remember_usage(Usage {
                cpu_us: before.cpu_us.saturating_add(micros),
                ..before
            });
            let cost = Cost {
                duration,
                cpu: duration,
                peak: before.memory_peak,
                memory: None,
            };
            record.record_growth(MemoryGrowth {
                execution_id: id.clone(),
                memory: None,
                peak: None,
            });
            return (before, Some(before), cost);
        }
        let after = read_usage(sandbox.as_ref()).await;
        if let Some(after) = after {
            record.remember_usage(after);
        }
        let mut cost = Cost::between(Some(before), after, duration);
        cost.memory = after.map(|after| MemoryUse {
            before: ByteSize::bytes(before.memory),
            after: ByteSize::bytes(after.memory),
            limit: record.params.limits.memory,
        });
        // A failed reading is no evidence of a short run. The next execution includes this one's effect.
        if cost.memory.is_some() {
            record.record_growth(MemoryGrowth {
                execution_id: id.clone(),
                memory: cost.memory,
                peak: (cost.peak > before.memory_peak).then(|| ByteSize::bytes(cost.peak)),
            });
        }
        (before, after, cost)
    }
}

/// Returns the current usage of a sandbox. None if the back end does not answer in time.
pub(crate) async fn read_usage(sandbox: &dyn Sandbox) -> Option<Usage> {
    timeout(USAGE_TIMEOUT, sandbox.usage()).await.ok()?.ok()
}
