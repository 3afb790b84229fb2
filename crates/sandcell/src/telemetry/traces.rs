//! Traces, by OpenTelemetry's protocol over HTTP, to the collector of the settings. `OTEL_EXPORTER_OTLP_HEADERS` holds
//! headers for the collector, and `OTEL_EXPORTER_OTLP_PROTOCOL=http/json` selects JSON in place of protobuf.
//!
//! Only the spans made for traces are sent: ids, names of tools, languages and back ends, ends and times. Log lines
//! are not sent. The address is known only after settings were read, and threads are allowed only after the launcher
//! was started. So spans are recorded only after `start` was called.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanProcessor};
use sandcell_sandbox::Failure;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::registry::LookupSpan;

/// The time limit for an answer of the collector.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for sending the last spans when the server ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

static TRACES_ENABLED: AtomicBool = AtomicBool::new(false);
static SPAN_PROCESSOR: OnceLock<BatchSpanProcessor> = OnceLock::new();

/// The layer that turns our spans into OpenTelemetry spans, once traces are enabled.
pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    let provider = SdkTracerProvider::builder()
        .with_resource(resource())
        .with_span_processor(DeferredProcessor)
        .build();
    let for_traces = FilterFn::new(|meta| {
        TRACES_ENABLED.load(Ordering::Relaxed) && meta.is_span() && meta.target() == sandcell_engine::TRACE_TARGET
    });
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("sandcell"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_filter(for_traces.with_max_level_hint(LevelFilter::INFO))
}

/// Starts to send spans to this address.
pub(super) fn start(endpoint: &str) -> Result<(), Failure> {
    let wrong = |why: &str| {
        Failure::invalid(
            format!("traces.endpoint = {endpoint:?} {why}"),
            "name a collector's address for traces, such as http://127.0.0.1:4318/v1/traces",
        )
    };
    let url: reqwest::Url = endpoint.parse().map_err(|_| wrong("is not an address"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("must begin with http:// or https://"));
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Post(client().map_err(|error| wrong(&error))?))
        .with_endpoint(endpoint)
        .with_timeout(SEND_TIMEOUT)
        .build()
        .map_err(|error| wrong(&format!("cannot be used: {error}")))?;
    let mut processor = BatchSpanProcessor::builder(exporter).build();
    processor.set_resource(&resource());
    if SPAN_PROCESSOR.set(processor).is_ok() {
        TRACES_ENABLED.store(true, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
    Ok(())
}

/// Sends the remaining spans, within the flush limit.
pub(super) fn finish() {
    if let Some(processor) = SPAN_PROCESSOR.get()
        && let Err(error) = processor.shutdown_with_timeout(FLUSH_TIMEOUT)
    {
        tracing::warn!(%error, "the last traces could not be sent");
    }
}

fn resource() -> Resource {
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "sandcell"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ])
        .build()
}

/// The client has its own runtime, which must not be created inside another.
fn client() -> Result<reqwest::blocking::Client, String> {
    let make = || {
        reqwest::blocking::Client::builder()
            .user_agent(concat!("sandcell/", env!("CARGO_PKG_VERSION")))
            .timeout(SEND_TIMEOUT)
            // Headers hold keys and must go only to the configured address, so redirects are not followed.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| format!("cannot be used: {error}"))
    };
    let made = std::thread::spawn(make).join();
    made.unwrap_or_else(|_| Err("cannot be used: no client could be made".to_owned()))
}

/// Sends from the thread that collects spans.
#[derive(Debug)]
struct Post(reqwest::blocking::Client);

#[async_trait::async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.0.execute(request.try_into()?)?;
        let mut answer = Response::builder().status(response.status());
        if let Some(headers) = answer.headers_mut() {
            headers.extend(response.headers().clone());
        }
        // The collector's answer is unused except for its status.
        Ok(answer.body(Bytes::new())?)
    }
}

/// Passes spans on as soon as a processor exists.
#[derive(Debug)]
struct DeferredProcessor;

impl SpanProcessor for DeferredProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        if let Some(processor) = SPAN_PROCESSOR.get() {
            processor.on_start(span, context);
        }
    }

    fn on_end(&self, span: SpanData) {
        if let Some(processor) = SPAN_PROCESSOR.get() {
            processor.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        SPAN_PROCESSOR.get().map_or(Ok(()), SpanProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        SPAN_PROCESSOR
            .get()
            .map_or(Ok(()), |processor| processor.shutdown_with_timeout(timeout))
    }
}
