//! Questions about tool calls that wait for a person, and the answers.

use hyper::{Response, StatusCode};
use sandcell_engine::ToolDecision;
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::Failure;

use crate::model::{Approval, ApprovalAnswer, Approvals};
use crate::problem::Problem;
use crate::request::Call;
use crate::respond;

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
    let decision = ToolDecision::read(asked.decision.as_str(), asked.calls)?;
    call.engine
        .answer_tool_call(&call.caller, call.id(), number, decision)?;
    let pending = call.engine.pending_tool_calls(&call.caller);
    let approvals = pending.iter().map(Approval::from).collect();
    Ok(respond::json(StatusCode::OK, &Approvals { approvals }))
}
