//! Routes of executions: get, follow, read output and files, cancel.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use hyper::{Response, StatusCode};
use sandcell_engine::{Engine, ExecutionView, Principal, Status, Utf8, Watch};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{Code, Failure, OutputStream};

use crate::model::{Executions, FinishedExecution, OutputText, RunningExecution};
use crate::problem::Problem;
use crate::request::{Call, seconds};
use crate::run::{self, OUTPUT_BYTES};
use crate::{events, respond};

/// The default number of finished executions in an answer.
const DEFAULT_FINISHED: usize = 10;
/// The longest wait of a request that reads the state of an execution.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// The default number of output bytes in an answer.
const PART_BYTES: u64 = 256 << 10;
const MAX_PART_BYTES: u64 = 1 << 20;

/// Lists the caller's executions.
pub(crate) async fn list(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let limit = call.query.value("limit", "a whole number")?.unwrap_or(DEFAULT_FINISHED);
    let running = call.engine.running(&call.caller);
    let history = call.engine.history(&call.caller, limit, None).await?;
    let executions = Executions {
        running: running.iter().map(RunningExecution::from).collect(),
        finished: history.records.iter().map(FinishedExecution::from).collect(),
        total: history.total,
    };
    Ok(respond::json(StatusCode::OK, &executions))
}

/// Returns an execution, or its events from the first one on. The execution runs on after the client has left.
pub(crate) async fn get(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let wait = match call.query.value("wait_s", "a number of seconds")? {
        Some(wait) => seconds("wait_s", wait)?.min(MAX_WAIT),
        None => Duration::ZERO,
    };
    let watch = Watch::default();
    call.engine.watch(&call.caller, call.id(), &watch)?;
    if call.wants_events() {
        let running = wait_for_end(Arc::clone(call.engine), call.caller.clone(), call.id().to_owned());
        return Ok(events::answer(running.boxed(), watch).await?);
    }
    let view = call.engine.execution(&call.caller, call.id(), wait).await?;
    run::answer_with_output(&view, &watch, OUTPUT_BYTES, &call.large).await
}

/// Waits for the end of an execution that another request started.
async fn wait_for_end(engine: Arc<Engine>, caller: Principal, id: String) -> Result<ExecutionView, Failure> {
    loop {
        let view = engine.execution(&caller, &id, MAX_WAIT).await?;
        if view.status != Status::Running {
            return Ok(view);
        }
    }
}

/// Ends an execution.
pub(crate) async fn cancel(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let watch = Watch::default();
    call.engine.watch(&call.caller, call.id(), &watch)?;
    let view = call.engine.cancel(&call.caller, Some(call.id())).await?;
    run::answer_with_output(&view, &watch, OUTPUT_BYTES, &call.large).await
}

/// Returns a part of an execution's output.
pub(crate) async fn output(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let watch = Watch::default();
    call.engine.watch(&call.caller, call.id(), &watch)?;
    let stream = match call.query.text("stream") {
        None | Some("stdout") => OutputStream::Stdout,
        Some("stderr") => OutputStream::Stderr,
        Some(_) => {
            let failure = Failure::invalid("`stream` is no stream", "give stdout or stderr");
            return Err(failure.into());
        }
    };
    let offset: i64 = call.query.value("offset", "a whole number")?.unwrap_or(0);
    let limit: u64 = call
        .query
        .value("limit", "a whole number from 0 on")?
        .unwrap_or(PART_BYTES);
    let limit = usize::try_from(limit.clamp(4, MAX_PART_BYTES)).unwrap_or(usize::MAX);
    let total = watch.output(stream, 0, 0).map_or(0, |part| part.total_bytes);
    let from = match u64::try_from(offset) {
        Ok(offset) => offset,
        Err(_) => total.saturating_sub(offset.unsigned_abs()),
    };
    let part = watch.output(stream, from, limit).ok_or_else(|| {
        let message = "the execution has no output yet";
        Failure::new(Code::NotFound, message, "ask again when it runs")
    })?;
    let mut utf8 = Utf8::default();
    let mut text = utf8.text(&part.bytes);
    // Dropped bytes can follow the part. The next part then begins after them, at a later offset than requested.
    let mut next_offset = part.offset + u64::try_from(part.bytes.len()).unwrap_or(0);
    if part.eof || part.next_offset > next_offset || text.is_empty() {
        text.push_str(&utf8.end());
    } else {
        // A character that is cut is sent with the next part.
        next_offset -= utf8.held();
    }
    let answer = OutputText {
        text,
        offset: part.offset,
        next_offset,
        total_bytes: part.total_bytes,
        eof: part.eof,
    };
    Ok(respond::json(StatusCode::OK, &answer))
}

/// Returns the bytes of a picture or a file of an execution.
pub(crate) async fn file(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let number = call.ids.get(1).and_then(|number| number.parse().ok());
    let number = number.unwrap_or(u32::MAX);
    let found = call.engine.artifact(&call.caller, call.id(), number).await?;
    let file = found.ok_or_else(|| {
        let message = "the execution has no file with this number";
        Failure::new(Code::NotFound, message, "`files` of the execution lists them")
    })?;
    Ok(respond::bytes(StatusCode::OK, respond::BYTES_TYPE, file.bytes))
}
