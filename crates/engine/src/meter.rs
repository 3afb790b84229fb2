//! What an execution uses: measured with as few questions as can be, and none in its way.

use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Sandbox, Usage};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::ExecutionId;
use crate::network::{Reached, denied_so_far};
use crate::record::Record;

/// How long a reading of what a sandbox uses may take.
const USAGE: Duration = Duration::from_millis(500);
/// Cells that went well in less than this are not worth a question to the back end: it would take longer.
const QUICK: Duration = Duration::from_millis(5);

/// Memory of a sandbox around one execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Before it.
    pub before: ByteSize,
    /// After it.
    pub after: ByteSize,
    /// What the sandbox may use.
    pub limit: ByteSize,
}

/// What an execution did to the memory of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// Which one.
    pub execution_id: ExecutionId,
    /// None where it ran for less than 5 ms and was not measured: the next one's has what it added.
    pub memory: Option<MemoryUse>,
    /// The most that the sandbox used meanwhile; none where it had used as much before.
    pub peak: Option<ByteSize>,
}

/// What an execution used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) duration: Duration,
    pub(crate) cpu: Duration,
    pub(crate) peak: u64,
    pub(crate) memory: Option<MemoryUse>,
}

impl Cost {
    /// From two readings, the first of which may be missing when the sandbox was new.
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

/// Measures what a cell uses, with as few questions as can be and none in its way.
pub(crate) struct Meter {
    known: Option<Usage>,
    asked: Option<JoinHandle<Option<Usage>>>,
    /// What the network had denied before.
    denied: u64,
}

impl Meter {
    /// The reading from before: the last one, or one that is taken while the code already runs.
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

    /// What the code ran into on its way out.
    pub(crate) fn reached(&self, record: &Record) -> Reached {
        Reached::of(record, self.denied)
    }

    /// What was used: before, after, and the cost between them.
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
            // Events before the last reading are not this cell's; those since then may be, however soon they came.
            before.memory_events = known.memory_events;
            before.process_events = known.process_events;
        }
        if well && duration < QUICK && (asked.is_some() || self.known.is_some()) {
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
            record.grew(MemoryGrowth {
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
            limit: record.birth.limits.memory,
        });
        // What could not be read is not said to have been too short for it; the next one's has what it added.
        if cost.memory.is_some() {
            record.grew(MemoryGrowth {
                execution_id: id.clone(),
                memory: cost.memory,
                peak: (cost.peak > before.memory_peak).then(|| ByteSize::bytes(cost.peak)),
            });
        }
        (before, after, cost)
    }
}

/// What a sandbox uses now; none if it cannot be asked in time.
pub(crate) async fn read_usage(sandbox: &dyn Sandbox) -> Option<Usage> {
    timeout(USAGE, sandbox.usage()).await.ok()?.ok()
}
