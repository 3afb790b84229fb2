//! The tool calls of an execution, and the questions about them.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sandcell_sandbox::ToolQuestion;

use super::Execution;
use crate::sandbox::state::Record;
use crate::sandbox::tools::{ToolUse, ToolUseGuard};
use crate::{PendingToolCall, ToolCallCount, ToolDecision};

/// The state of an execution for its tool calls.
#[derive(Debug, Default)]
pub(super) struct ToolState {
    /// True if somebody can be asked about them.
    can_ask: Arc<AtomicBool>,
    /// True if a caller that waits for the execution gets an answer when a question arises.
    answers_at_questions: AtomicBool,
    /// The calls, from the moment when the execution can make some.
    calls: OnceLock<Arc<ToolUse>>,
}

impl Execution {
    /// Returns the number of calls of each tool so far.
    pub(super) fn tool_counts(&self) -> Vec<ToolCallCount> {
        self.tools.calls.get().map(|calls| calls.counts()).unwrap_or_default()
    }

    /// Says that somebody can be asked about its tool calls.
    pub(crate) fn set_can_ask(&self) {
        self.tools.can_ask.store(true, Ordering::Relaxed);
    }

    /// Says that a caller that waits for it gets an answer when a question about a tool call arises.
    pub(crate) fn set_answers_at_questions(&self) {
        self.tools.answers_at_questions.store(true, Ordering::Relaxed);
    }

    /// Waits for a question that ends the wait of a caller. Waits forever if no question does.
    pub(crate) async fn question_for_caller(&self) {
        if self.tools.answers_at_questions.load(Ordering::Relaxed) {
            self.tool_question_after(0).await;
        } else {
            std::future::pending().await
        }
    }

    /// Lets its code call tools until the guard is dropped. None if the sandbox offers none.
    pub(crate) fn offer_tools<'a>(&self, record: &'a Record) -> Option<ToolUseGuard<'a>> {
        let limits = record.tools.limits()?;
        if limits.answered_elsewhere {
            self.set_can_ask();
        }
        let tools = self.tools.calls.get_or_init(|| {
            ToolUse::new(
                self.id.clone(),
                limits.clone(),
                self.tools.can_ask.clone(),
                self.stopping.child_token(),
            )
        });
        self.progressed.notify_waiters();
        Some(ToolUseGuard::new(record, tools.clone()))
    }

    /// Returns the names of the tools whose calls wait for a person.
    pub(super) fn waiting_for(&self) -> Vec<String> {
        self.tools
            .calls
            .get()
            .map(|calls| calls.waiting_for())
            .unwrap_or_default()
    }

    /// Returns its tool calls, if it can make some.
    pub(crate) fn tools(&self) -> Option<Arc<ToolUse>> {
        self.tools.calls.get().cloned()
    }

    /// Returns the questions about its tool calls that wait for an answer.
    pub(crate) fn pending_tool_calls(&self) -> Vec<PendingToolCall> {
        self.tools.calls.get().map(|tools| tools.pending()).unwrap_or_default()
    }

    /// Answers a question about a tool call, and returns it. None if it no longer waits.
    pub(crate) fn answer_tool_call(&self, number: u32, decision: ToolDecision) -> Option<ToolQuestion> {
        self.tools.calls.get()?.answer(number, decision)
    }

    /// Waits for a question about a tool call with a number above this one. Waits forever if there is none before the end.
    pub(crate) async fn tool_question_after(&self, number: u32) -> PendingToolCall {
        loop {
            let mut progressed = pin!(self.progressed.notified());
            progressed.as_mut().enable();
            if let Some(tools) = self.tools.calls.get() {
                return tools.question_after(number).await;
            }
            progressed.await;
        }
    }
}
