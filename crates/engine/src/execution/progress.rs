//! The progress of a call, for its caller.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sandcell_sandbox::{Backend, OutputStream, Preparing};
use tokio::sync::Notify;

use crate::execution::state::Execution;
use crate::sandbox::lifecycle;
use crate::{ExecutionId, OutputPart, PendingToolCall, Progress, ShownValue};

/// Follows the progress of a call: the preparation of its sandbox, and then its execution. Empty before that.
#[derive(Clone, Default)]
pub struct Watch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    execution: OnceLock<Arc<Execution>>,
    /// Signals that there is an execution.
    admitted: Notify,
    preparing: OnceLock<Prepares>,
    can_ask: AtomicBool,
    answers_at_questions: AtomicBool,
}

type Prepares = Box<dyn Fn() -> Option<Preparing> + Send + Sync>;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Returns the progress bar of the code, if it shows one, else the progress of an image pull or a download that the
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

    /// Returns the execution, if the call has one.
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

    /// Waits until the execution has written more than these bytes of stdout and stderr, or has finished.
    pub async fn wrote_more(&self, stdout: u64, stderr: u64) {
        self.admitted().await;
        if let Some(execution) = self.0.execution.get() {
            execution.wrote_more(stdout, stderr).await;
        }
    }

    /// Returns at most `limit` bytes of a stream of the execution, from `offset`. None while there is no execution.
    #[must_use]
    pub fn output(&self, stream: OutputStream, offset: u64, limit: usize) -> Option<OutputPart> {
        let execution = self.0.execution.get()?;
        Some(execution.output(stream, offset, limit))
    }

    /// Waits until the execution has written more than these bytes of stdout and stderr, has shown more than this number
    /// of values, or has finished.
    pub async fn showed_more(&self, stdout: u64, stderr: u64, values: usize) {
        self.admitted().await;
        if let Some(execution) = self.0.execution.get() {
            execution.showed_more(stdout, stderr, values).await;
        }
    }

    /// Returns the values from this number on that the code has shown so far, if the request keeps them
    /// ([`ExecuteRequest::keep_values`](crate::ExecuteRequest::keep_values)).
    #[must_use]
    pub fn values(&self, from: usize) -> Vec<ShownValue> {
        let execution = self.0.execution.get();
        execution.map(|execution| execution.values(from)).unwrap_or_default()
    }

    /// Waits until a command has started. Returns the process id of its program inside the sandbox, or none if the
    /// execution has ended without one.
    pub async fn started(&self) -> Option<u32> {
        self.admitted().await;
        let execution = self.0.execution.get()?;
        tokio::select! {
            biased;
            () = execution.begun() => {}
            () = execution.finished() => {}
        }
        execution.pid()
    }

    /// Says that the caller passes questions about tool calls on to a person ([`Watch::tool_question`]). Call this before the
    /// request.
    pub fn can_ask(&self) {
        self.0.can_ask.store(true, Ordering::Relaxed);
    }

    /// Says the same as [`Watch::can_ask`], for a caller that needs an answer to its request before it can ask: the request
    /// is answered with status running when a question arises.
    pub fn can_ask_between_requests(&self) {
        self.can_ask();
        self.0.answers_at_questions.store(true, Ordering::Relaxed);
    }

    /// Waits for the next question about a tool call of the execution, with a number above this one.
    pub async fn tool_question(&self, after: u32) -> PendingToolCall {
        self.admitted().await;
        match self.0.execution.get() {
            Some(execution) => execution.tool_question_after(after).await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn follow(&self, execution: &Arc<Execution>) {
        // A watch follows its first execution only.
        if self.0.can_ask.load(Ordering::Relaxed) {
            execution.set_can_ask();
        }
        if self.0.answers_at_questions.load(Ordering::Relaxed) {
            execution.set_answers_at_questions();
        }
        self.0.execution.get_or_init(|| execution.clone());
        self.0.admitted.notify_waiters();
    }

    /// Sets the source of the preparation's progress: these back ends and this image.
    pub(crate) fn prepares(&self, backends: Vec<Arc<dyn Backend>>, image: Option<String>) {
        self.0
            .preparing
            .get_or_init(|| Box::new(move || lifecycle::preparing(&backends, image.as_deref())));
    }
}
