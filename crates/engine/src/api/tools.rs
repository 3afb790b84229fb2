//! The ways out of sandboxes, and calls of the host's tools by executions.

use std::sync::Arc;

use sandcell_sandbox::{Failure, HostTools, Network, Packages, ToolQuestion};
use serde::Serialize;

use crate::ExecutionId;

/// The ways out of the sandboxes of an engine.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// Connects sandboxes to allowed hosts.
    pub network: Option<Arc<dyn Network>>,
    /// The installers of packages, one for each kind.
    pub packages: Vec<Arc<dyn Packages>>,
    /// The host's tools.
    pub tools: Option<Arc<dyn HostTools>>,
}

/// The calls of one tool by one execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCallCount {
    /// The tool, as `SERVER.TOOL`. `others` after the first 40 tools.
    pub tool: String,
    /// The number of calls that returned a result.
    pub ok: u32,
    /// The number of calls that failed.
    pub failed: u32,
    /// The number of calls that were not made: the operator's rules, a person or a limit refused them.
    pub refused: u32,
}

/// A call of a tool that waits for a person's approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingToolCall {
    /// The execution that makes the call.
    pub execution_id: ExecutionId,
    /// The number of the question within the execution, from 1.
    pub number: u32,
    /// The question.
    pub question: ToolQuestion,
}

/// A call of a function of the caller's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    /// Its number within the sandbox, from 1.
    pub id: u64,
    /// The function.
    pub name: String,
    /// The arguments, as JSON text of an object.
    pub arguments: String,
}

/// The result of a call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionResult {
    /// The number of the call.
    pub id: u64,
    /// The value as JSON text, or the text of an error.
    pub value: Result<String, String>,
}

/// A person's answer to a question about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolDecision {
    /// The call is made.
    Once,
    /// This call and the next ones of the same tool are made, this number in all.
    Calls(u32),
    /// All calls of the same tool by this execution are made.
    Execution,
    /// The call is not made.
    Deny,
}

impl ToolDecision {
    /// The maximum number of calls that one decision allows.
    const MAX_CALLS: u32 = 10_000;

    /// Reads a decision from its word in requests, `once`, `run` or `deny`, and the number of calls next to `once`.
    ///
    /// # Errors
    /// Another word, or a number of calls that does not go with the word.
    pub fn read(word: &str, calls: Option<u32>) -> Result<Self, Failure> {
        match (word, calls) {
            ("once", None) => Ok(Self::Once),
            ("once", Some(calls)) if (1..=Self::MAX_CALLS).contains(&calls) => Ok(Self::Calls(calls)),
            ("once", Some(_)) => Err(Failure::invalid(
                format!("`calls` is not a number from 1 to {}", Self::MAX_CALLS),
                "name the number of calls of this tool that may be made",
            )),
            ("run", None) => Ok(Self::Execution),
            ("deny", None) => Ok(Self::Deny),
            ("run" | "deny", Some(_)) => Err(Failure::invalid(
                "`calls` goes with the decision `once` only",
                "leave calls out",
            )),
            _ => Err(Failure::invalid(
                "`decision` is not known",
                "`decision` must be once, run or deny",
            )),
        }
    }

    /// Describes the decision for the audit log.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Once => "this call may be made".to_owned(),
            Self::Calls(calls) => format!("{calls} calls of the tool may be made"),
            Self::Execution => "all calls of the tool by this execution may be made".to_owned(),
            Self::Deny => "the call may not be made".to_owned(),
        }
    }
}
