//! Spans for traces: an execution, its sandbox, status and cost. They contain no code, output or results.

use tracing::Span;
use tracing::field::Empty;

use crate::{ExecutionId, SandboxId};

/// The target of all spans for traces.
pub const TRACE_TARGET: &str = "sandcell::trace";

/// Creates the span of an execution, from its admission to its end.
pub(crate) fn execution(execution: &ExecutionId, sandbox: &SandboxId, language: &str) -> Span {
    tracing::info_span!(
        target: TRACE_TARGET,
        "execution",
        execution.id = execution.as_str(),
        sandbox.id = sandbox.as_str(),
        language = language,
        status = Empty,
        cause = Empty,
        cpu_ms = Empty,
        otel.status_code = Empty,
    )
}

/// Records the end of the current span's execution.
pub(crate) fn ended(status: &'static str, cause: Option<&'static str>, cpu: std::time::Duration) {
    let span = Span::current();
    span.record("status", status);
    span.record("cpu_ms", u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX));
    if let Some(cause) = cause {
        span.record("cause", cause);
        span.record("otel.status_code", "ERROR");
    }
}

/// Creates the span for making a sandbox.
pub(crate) fn making(sandbox: &SandboxId) -> Span {
    tracing::info_span!(target: TRACE_TARGET, "make sandbox", sandbox.id = sandbox.as_str())
}
