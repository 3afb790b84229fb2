//! What a call waits for, as seen from outside.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sandcell_sandbox::{Backend, OutputStream, Preparing};
use tokio::sync::Notify;

use crate::executions::Execution;
use crate::{ExecutionId, Progress};

/// A part of stdout or stderr as the code wrote it. Offsets are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// The bytes. A character can be cut at either end.
    pub bytes: Bytes,
    /// The start of the part: later than asked for where bytes in between were not kept.
    pub offset: u64,
    /// The start of the next part.
    pub next_offset: u64,
    /// All bytes written so far.
    pub total_bytes: u64,
    /// True if nothing comes after this part, now or later.
    pub eof: bool,
}

/// Follows from outside what a call waits for: its execution once there is one, and before that what its sandbox waits
/// for. Empty until then.
#[derive(Clone, Default)]
pub struct Watch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    execution: OnceLock<Arc<Execution>>,
    /// Signals that there is an execution.
    admitted: Notify,
    preparing: OnceLock<Prepares>,
}

type Prepares = Box<dyn Fn() -> Option<Preparing> + Send + Sync>;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// How far the progress bar is that the code shows, if it shows one; else how far an image or a runtime is that the
    /// sandbox waits for.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        let shown = self.0.execution.get().and_then(|execution| execution.progress());
        shown.or_else(|| {
            self.0
                .preparing
                .get()
                .and_then(|preparing| preparing())
                .map(Progress::of)
        })
    }

    /// The execution, once there is one.
    #[must_use]
    pub fn execution_id(&self) -> Option<ExecutionId> {
        self.0.execution.get().map(|execution| execution.id.clone())
    }

    /// Waits until the call has an execution.
    pub async fn admitted(&self) -> ExecutionId {
        loop {
            let mut admitted = pin!(self.0.admitted.notified());
            admitted.as_mut().enable();
            if let Some(id) = self.execution_id() {
                return id;
            }
            admitted.await;
        }
    }

    /// Waits until the execution wrote more than these bytes of stdout and stderr, or is over.
    pub async fn wrote_more(&self, stdout: u64, stderr: u64) {
        self.admitted().await;
        if let Some(execution) = self.0.execution.get() {
            execution.wrote_more(stdout, stderr).await;
        }
    }

    /// At most `limit` bytes of a stream of the execution, from `offset` on. None while there is no execution.
    #[must_use]
    pub fn output(&self, stream: OutputStream, offset: u64, limit: usize) -> Option<OutputPart> {
        let execution = self.0.execution.get()?;
        Some(execution.output(stream, offset, limit))
    }

    pub(crate) fn follow(&self, execution: &Arc<Execution>) {
        // One that follows something already goes on doing that.
        self.0.execution.get_or_init(|| execution.clone());
        self.0.admitted.notify_waiters();
    }

    /// Looks at what sandboxes of these back ends with this image wait for.
    pub(crate) fn prepares(&self, backends: Vec<Arc<dyn Backend>>, image: Option<String>) {
        self.0
            .preparing
            .get_or_init(|| Box::new(move || backends.iter().find_map(|backend| backend.preparing(image.as_deref()))));
    }
}
