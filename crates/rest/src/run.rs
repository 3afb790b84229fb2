//! Runs code in a sandbox that keeps its variables, or once in a fresh sandbox.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use hyper::{Response, StatusCode};
use sandcell_engine::{ExecuteRequest, ExecutionView, RunRequest, Status, Utf8, Watch};
use sandcell_mcp::{EndpointBody, LargeAnswers, holding};
use sandcell_sandbox::{Consent, Failure, OutputStream};
use tokio_util::sync::CancellationToken;

use crate::events::{self, Running};
use crate::model::{Execution, Run, RunCode, RunOnce};
use crate::problem::Problem;
use crate::request::{Call, mebibytes, path, seconds};
use crate::respond;

/// The default maximum bytes of each stream in an answer.
pub(crate) const OUTPUT_BYTES: u64 = 1 << 20;
/// The highest maximum that a request may ask for.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Answers with more output than this count as large.
const LARGE_OUTPUT_BYTES: u64 = 128 << 10;

/// Runs code in a session of a sandbox.
pub(crate) async fn code(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: RunCode = call.json()?;
    let watch = Watch::default();
    let request = ExecuteRequest {
        code: asked.code,
        language: asked
            .language
            .unwrap_or_else(|| call.engine.default_language().to_owned()),
        sandbox_id: Some(call.id().to_owned()),
        stdin: asked.stdin,
        timeout: timeout(asked.timeout_s)?,
        wait: wait(&call, asked.wait_s)?,
        watch: watch.clone(),
        ..ExecuteRequest::default()
    };
    let (engine, caller) = (Arc::clone(call.engine), call.caller.clone());
    let running = async move { engine.execute(&caller, request, CancellationToken::new()).await }.boxed();
    answer(&call, running, watch, asked.max_output_bytes).await
}

/// Runs code once in a fresh sandbox.
pub(crate) async fn once(call: Call<'_>) -> Result<Response<EndpointBody>, Problem> {
    let asked: RunOnce = call.json()?;
    let watch = Watch::default();
    let files = asked.files.into_iter().map(|(name, content)| {
        let bytes = content.bytes(&name)?;
        Ok((path("files", &name)?, bytes))
    });
    let outputs = asked.outputs.iter().map(|name| path("outputs", name));
    let request = RunRequest {
        code: asked.code,
        language: asked
            .language
            .unwrap_or_else(|| call.engine.default_language().to_owned()),
        stdin: asked.stdin,
        packages: asked.packages,
        files: files.collect::<Result<_, Failure>>()?,
        outputs: outputs.collect::<Result<_, _>>()?,
        timeout: timeout(asked.timeout_s)?,
        wait: wait(&call, asked.wait_s)?,
        watch: watch.clone(),
        memory: asked.memory_mb.map(|size| mebibytes("memory_mb", size)).transpose()?,
        network: asked.network,
        consent: Consent::CannotAsk,
    };
    let (engine, caller) = (Arc::clone(call.engine), call.caller.clone());
    let running = async move { engine.run_once(&caller, request, CancellationToken::new()).await }.boxed();
    answer(&call, running, watch, asked.max_output_bytes).await
}

pub(crate) fn timeout(asked: Option<f64>) -> Result<Option<Duration>, Failure> {
    asked.map(|asked| seconds("timeout_s", asked)).transpose()
}

/// Returns the maximum wait for a plain answer. Events are sent at once.
pub(crate) fn wait(call: &Call<'_>, asked: Option<f64>) -> Result<Option<Duration>, Failure> {
    let asked = asked.map(|asked| seconds("wait_s", asked)).transpose()?;
    Ok(asked.filter(|_| !call.wants_events()))
}

/// Waits for the end of an execution, or answers with its events.
pub(crate) async fn answer(
    call: &Call<'_>,
    running: Running,
    watch: Watch,
    max_output: Option<u64>,
) -> Result<Response<EndpointBody>, Problem> {
    let max_bytes = max_output.unwrap_or(OUTPUT_BYTES);
    if max_bytes > MAX_OUTPUT_BYTES {
        let message = format!("`max_output_bytes`: {max_bytes} is more than {MAX_OUTPUT_BYTES}");
        let remedy = "read the rest at /v1/executions/{execution_id}/output";
        return Err(Failure::invalid(message, remedy).into());
    }
    if call.wants_events() {
        return Ok(events::answer(running, watch).await?);
    }
    let view = running.await?;
    answer_with_output(&view, &watch, max_bytes, &call.large).await
}

/// Answers with an execution and its output.
pub(crate) async fn answer_with_output(
    view: &ExecutionView,
    watch: &Watch,
    max_bytes: u64,
    large: &LargeAnswers<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    let shown = view.stdout.total_bytes.min(max_bytes) + view.stderr.total_bytes.min(max_bytes);
    let permit = match shown > LARGE_OUTPUT_BYTES {
        true => Some(
            large
                .permit()
                .await
                .map_err(|busy| Problem::from(busy).with(StatusCode::SERVICE_UNAVAILABLE))?,
        ),
        false => None,
    };
    let (stdout, is_all_out) = text(watch, OutputStream::Stdout, 0, max_bytes);
    let (stderr, is_all_err) = text(watch, OutputStream::Stderr, 0, max_bytes);
    let run = Run {
        stdout,
        stderr,
        execution: Execution::from(view),
        truncated: !(is_all_out && is_all_err),
    };
    let status = match view.status {
        Status::Running => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok(respond::json(status, &run).map(|body| holding(body, permit)))
}

/// Returns up to `max_bytes` bytes of a stream as text, from `offset` on, and true if the stream has no other bytes.
pub(crate) fn text(watch: &Watch, stream: OutputStream, offset: u64, max_bytes: u64) -> (String, bool) {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let Some(part) = watch.output(stream, offset, max_bytes) else {
        return (String::new(), true);
    };
    let mut utf8 = Utf8::default();
    let is_all = part.next_offset >= part.total_bytes && part.offset == offset;
    let mut text = utf8.text(&part.bytes);
    if is_all {
        text.push_str(&utf8.end());
    }
    (text, is_all)
}
