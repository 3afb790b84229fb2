//! Questions about tool calls that wait for a person, and the answers.

use hyper::{Response, StatusCode};
use sandcell_engine::ToolDecision;
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::Failure;

use crate::model::{Approval, ApprovalAnswer, ApprovalDecision, Approvals};
use crate::problem::Problem;
use crate::request::Call;
use crate::respond;

/// The maximum number of calls of one answer.
const MAX_CALLS: u32 = 10_000;

/// Lists the questions of the caller's executions.
pub(crate) async fn list(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let pending = call.engine.pending_tool_calls(&call.caller);
    let approvals = pending.iter().map(Approval::from).collect();
    Ok(respond::json(StatusCode::OK, &Approvals { approvals }))
}

/// Answers a question.
pub(crate) async fn answer(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: ApprovalAnswer = call.json()?;
    let number = call.ids.get(1).and_then(|number| number.parse::<u32>().ok());
    let number =
        number.ok_or_else(|| Failure::invalid("the number of the question is not a number", "check the address"))?;
    let decision = match (asked.decision, asked.calls) {
        (ApprovalDecision::Once, None) => ToolDecision::Once,
        (ApprovalDecision::Once, Some(calls)) if (1..=MAX_CALLS).contains(&calls) => ToolDecision::Calls(calls),
        (ApprovalDecision::Run, None) => ToolDecision::Execution,
        (ApprovalDecision::Deny, None) => ToolDecision::Deny,
        (ApprovalDecision::Once, Some(_)) => {
            return Err(Failure::invalid(
                format!("`calls` is not a number from 1 to {MAX_CALLS}"),
                "name the number of calls of this tool that may be made",
            )
            .into());
        }
        (ApprovalDecision::Run | ApprovalDecision::Deny, Some(_)) => {
            return Err(Failure::invalid("`calls` goes with the decision `once` only", "leave calls out").into());
        }
    };
    call.engine
        .answer_tool_call(&call.caller, call.id(), number, decision)?;
    let pending = call.engine.pending_tool_calls(&call.caller);
    let approvals = pending.iter().map(Approval::from).collect();
    Ok(respond::json(StatusCode::OK, &Approvals { approvals }))
}
