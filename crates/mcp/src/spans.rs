//! Spans of calls, for traces: the tool and the outcome. They hold nothing from the call or its answer.

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use sandcell_engine::TRACE_TARGET;
use tracing::Span;
use tracing::field::Empty;

/// The span of one call, in the trace that the client names.
pub(crate) fn of_call(tool: &'static str, context: &RequestContext<RoleServer>) -> Span {
    let span = tracing::info_span!(
        target: TRACE_TARGET,
        "call",
        otel.kind = "server",
        otel.name = tool,
        mcp.tool = tool,
        failed = Empty,
    );
    #[cfg(feature = "otel")]
    parent::take_over(&span, context);
    #[cfg(not(feature = "otel"))]
    let _names_no_trace = context;
    span
}

#[cfg(feature = "otel")]
mod parent {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    use super::{RequestContext, RoleServer, Span};

    /// W3C's name of the caller's trace context. MCP has it in `_meta`, HTTP in a header.
    const TRACEPARENT: &str = "traceparent";

    /// The client's trace context is trusted, since it affects only the place where spans are shown.
    pub(super) fn take_over(span: &Span, context: &RequestContext<RoleServer>) {
        let in_meta = context.meta.0.get(TRACEPARENT).and_then(|value| value.as_str());
        let in_header = || {
            let parts = context.extensions.get::<hyper::http::request::Parts>()?;
            parts.headers.get(TRACEPARENT)?.to_str().ok()
        };
        if let Some(parent) = in_meta.or_else(in_header).and_then(read) {
            // Without tracing there is no parent to set.
            let _untraced = span.set_parent(Context::new().with_remote_span_context(parent));
        }
    }

    /// Parses `00-TRACE-SPAN-FLAGS` in lower-case hexadecimal. Of later versions, only the fields of the first version
    /// are read.
    pub(super) fn read(text: &str) -> Option<SpanContext> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let sound = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
        if !sound || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
        context.is_valid().then_some(context)
    }

    #[cfg(test)]
    mod tests {
        use super::read;

        #[test]
        fn only_a_valid_traceparent_is_continued() {
            let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            assert!(read(good).unwrap().is_sampled());
            assert!(read("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more").is_some());
            for bad in [
                "",
                "00",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-101",
            ] {
                assert!(read(bad).is_none(), "{bad}");
            }
        }
    }
}
