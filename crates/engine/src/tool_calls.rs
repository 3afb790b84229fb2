//! The engine's interface for calls of the host's tools: the questions to a person, the answers, and their record.

use std::time::Duration;

use sandcell_sandbox::{Code, Failure};

use crate::{Engine, EventKind, FunctionCall, FunctionResult, PendingToolCall, Principal, SecurityEvent, ToolDecision};

impl Engine {
    /// Returns the servers whose tools this caller's code may use. Starts none of them.
    #[must_use]
    pub fn tool_servers(&self, principal: &Principal) -> Vec<String> {
        self.executions.sandboxes.tool_servers(principal)
    }

    /// Returns the tool calls of the caller's executions that wait for a person's approval.
    #[must_use]
    pub fn pending_tool_calls(&self, principal: &Principal) -> Vec<PendingToolCall> {
        let running = self.executions.store.running(principal);
        running
            .iter()
            .flat_map(|execution| execution.pending_tool_calls())
            .collect()
    }

    /// Answers a question about a tool call of the caller's execution.
    ///
    /// # Errors
    /// When the caller has no such execution, or the question no longer waits.
    pub fn answer_tool_call(
        &self,
        principal: &Principal,
        execution: &str,
        number: u32,
        decision: ToolDecision,
    ) -> Result<(), Failure> {
        let execution = self.executions.store.find(principal, execution)?;
        if let Some(question) = execution.answer_tool_call(number, decision) {
            self.note(SecurityEvent {
                principal: Some(principal.clone()),
                sandbox: Some(execution.sandbox_id.clone()),
                execution: Some(execution.id.clone()),
                ..SecurityEvent::new(
                    EventKind::UserAsked,
                    format!(
                        "a person was asked about a call of {}.{}: {}",
                        question.server,
                        question.tool,
                        decision.describe()
                    ),
                )
            });
            return Ok(());
        }
        Err(Failure::new(
            Code::NotFound,
            format!(
                "execution {} has no question {number} that waits for an answer",
                execution.id
            ),
            "list the questions that wait; this one was answered or its time is over",
        ))
    }

    /// Delivers results of functions of the caller's program to code in a sandbox, and waits for the next calls: at most
    /// `wait`, and until the sandbox ends. It does not count as using the sandbox.
    ///
    /// # Errors
    /// When the caller has no such sandbox, or made it without functions.
    pub async fn exchange_function_calls(
        &self,
        principal: &Principal,
        sandbox: &str,
        results: Vec<FunctionResult>,
        wait: Duration,
    ) -> Result<Vec<FunctionCall>, Failure> {
        let sandboxes = &self.executions.sandboxes;
        sandboxes
            .exchange_function_calls(principal, sandbox, results, wait)
            .await
    }

    /// Records a security event, if there is an auditor.
    pub fn note(&self, event: SecurityEvent) {
        self.executions.sandboxes.records.observers.note(|| event);
    }
}
