//! Executions: the state of each one while it runs and after its end.

mod tools;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sandcell_sandbox::{
    ByteSize, Code, Failure, Finding, Isolation, MimeBundle, OutputStream, SessionEvent, Signal, TerminalSize,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::policy::bytes_of;
use crate::api::sync::lock;
use crate::execution::advice;
use crate::execution::artifacts::{Artifacts, OutputTrace};
use crate::execution::outcome::Outcome;
use crate::execution::termination::Stop;
use crate::output::{
    Budget, Capture, Marker, PROGRESS_TAIL_BYTES, Part, Rendered, StreamEnds, WINDOW_BYTES, plain_line, preview,
    recognise, render, slice,
};
use crate::records::history::CODE_PREVIEW_CHARS;
use crate::records::spans;
use crate::sandbox::session::Background;
use crate::sandbox::state::Record;
use crate::sandbox::usage::Cost;
use crate::{
    EngineConfig, ExecutionId, ExecutionView, Expiry, Hints, OutputPart, Principal, Progress, RunningView, SandboxId,
    Shown, ShownValue, SkippedBackend, Status, StreamName, StreamSlice,
};
use tools::ToolState;

/// The minimum weight of an execution in the store, in bytes, so that many empty ones are bounded too.
const MIN_WEIGHT_BYTES: u64 = 4096;
/// The multiple of a stream's stored size at which the code is stopped: no caller will read that much.
const PRINT_LIMIT_FACTOR: u64 = 256;
/// The MIME type of the line that a session adds to the text of a table.
const TABLE_LINE_MIME: &str = "text/vnd.sandcell.table";
/// The maximum length of that line, in characters.
const MAX_NOTE_CHARS: usize = 800;
/// The maximum length of the line that replaces a picture, in characters.
const MAX_PICTURE_LINE_CHARS: usize = 200;
/// The maximum stored size of the last value's text, in bytes.
const MAX_RESULT_BYTES: usize = 1 << 20;

/// The maximum number of values of one execution that are kept in every representation.
const MAX_VALUES: usize = 256;
/// The maximum size of these values together, in bytes.
const MAX_VALUE_BYTES: u64 = 32 << 20;

/// A message to the program of a running command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProgramControl {
    Signal(Signal),
    /// Another size of its terminal.
    Resize(TerminalSize),
}

/// One execution.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) id: ExecutionId,
    pub(crate) owner: Principal,
    pub(crate) sandbox_id: SandboxId,
    pub(crate) language: String,
    pub(crate) code: String,
    new_sandbox: bool,
    expiry: Option<Expiry>,
    limits: ViewSettings,
    stop: OnceLock<Stop>,
    stopping: CancellationToken,
    begun: CancellationToken,
    done: CancellationToken,
    delivered: Arc<AtomicBool>,
    unshown: AtomicBool,
    /// The earlier executions of its session.
    background: OnceLock<Background>,
    /// The sender for standard input from calls. Dropping it closes standard input.
    feed: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// The process id of its program inside the sandbox, once that runs.
    pid: OnceLock<u32>,
    /// The sender of signals and sizes to its program.
    controls: Mutex<Option<mpsc::Sender<ProgramControl>>>,
    tools: ToolState,
    /// Signals more output, and the end.
    progressed: Notify,
    live: Mutex<LiveState>,
}

/// The settings for showing an execution.
#[derive(Debug)]
struct ViewSettings {
    inline: usize,
    read_rest: Option<String>,
    /// The number of bytes of one stream after which the code is stopped: far more than is stored.
    printed: u64,
}

#[derive(Debug)]
struct LiveState {
    started: SystemTime,
    began: Option<Instant>,
    stdout: Capture,
    stderr: Capture,
    result: Option<String>,
    result_note: Option<String>,
    artifacts: Artifacts,
    /// The displayed values, if the request keeps them.
    values: Option<Values>,
    /// Lines for pictures that were displayed since the last output.
    pictures: Vec<String>,
    /// True if some of these lines are already in the output.
    pictures_placed: bool,
    missing: Vec<String>,
    notices: Vec<String>,
    state_lost: bool,
    isolation: Arc<Isolation>,
    skipped_backends: Vec<SkippedBackend>,
    findings: Vec<Finding>,
    end: Option<Result<End, Failure>>,
    /// The view of its end, for the first reader. Later readers get a new one. The store has thousands of executions,
    /// and a view repeats all of an execution's shown text.
    drawn: Option<Box<ExecutionView>>,
}

/// Displayed values in every representation, bounded.
#[derive(Debug, Default)]
struct Values {
    all: Vec<ShownValue>,
    bytes: u64,
    dropped: u32,
}

/// The outcome and the cost of an execution.
type End = Arc<(Outcome, Cost)>;

impl Execution {
    pub(crate) fn new(
        config: &EngineConfig,
        record: &Record,
        language: &str,
        code: String,
        new_sandbox: bool,
    ) -> Result<Arc<Self>, Failure> {
        let mut notices = Vec::new();
        let mut state_lost = false;
        if let Some(terminated) = record.params.replaces.as_ref().filter(|_| new_sandbox) {
            notices.push(terminated.replacement_notice());
            state_lost = true;
        }
        let budget = record.output.get_or_init(|| Budget::new(config.output_kept));
        Ok(Arc::new(Self {
            id: ExecutionId::random()?,
            owner: record.owner.clone(),
            sandbox_id: record.id.clone(),
            language: language.to_owned(),
            code,
            new_sandbox,
            expiry: record.expiry(),
            limits: ViewSettings {
                inline: usize::try_from(config.output_inline.as_bytes()).unwrap_or(usize::MAX),
                read_rest: config.hints.read_rest.clone(),
                printed: config.output_kept.as_bytes().saturating_mul(PRINT_LIMIT_FACTOR),
            },
            stop: OnceLock::new(),
            stopping: CancellationToken::new(),
            begun: CancellationToken::new(),
            done: CancellationToken::new(),
            delivered: Arc::default(),
            unshown: AtomicBool::new(false),
            background: OnceLock::new(),
            feed: Mutex::default(),
            pid: OnceLock::new(),
            controls: Mutex::default(),
            tools: ToolState::default(),
            progressed: Notify::new(),
            live: Mutex::new(LiveState {
                started: SystemTime::now(),
                began: None,
                stdout: Capture::new(config.output_kept, Arc::clone(budget)),
                stderr: Capture::new(config.output_kept, Arc::clone(budget)),
                result: None,
                result_note: None,
                artifacts: Artifacts::default(),
                values: None,
                pictures: Vec::new(),
                pictures_placed: false,
                missing: Vec::new(),
                notices,
                state_lost,
                isolation: record.params.planned.clone(),
                skipped_backends: Vec::new(),
                findings: Vec::new(),
                end: None,
                drawn: None,
            }),
        }))
    }

    /// Creates its span, from its admission to its end.
    pub(crate) fn span(&self) -> tracing::Span {
        spans::execution(&self.id, &self.sandbox_id, &self.language)
    }

    /// Ends the execution from outside. The first reason stays.
    pub(crate) fn stop(&self, stop: Stop) {
        if self.stop.set(stop).is_ok() {
            self.stopping.cancel();
        }
    }

    /// Waits until a stop is requested.
    pub(crate) async fn stopped(&self) -> Stop {
        self.stopping.cancelled().await;
        match self.stop.get() {
            Some(stop) => stop.clone(),
            // The reason is set before the signal.
            None => std::future::pending().await,
        }
    }

    /// Returns the requested stop, if any.
    pub(crate) fn stop_requested(&self) -> Option<Stop> {
        self.stop.get().cloned()
    }

    /// Waits until the execution has finished.
    pub(crate) async fn finished(&self) {
        self.done.cancelled().await;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.done.is_cancelled()
    }

    /// Marks the outcome as delivered to the caller.
    pub(crate) fn delivered(&self) {
        self.delivered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Returns the delivered flag, for a reader that does not hold the execution.
    pub(crate) fn delivery(&self) -> Arc<AtomicBool> {
        self.delivered.clone()
    }

    /// Keeps every representation of displayed values.
    pub(crate) fn keep_values(&self) {
        lock(&self.live).values = Some(Values::default());
    }

    /// Returns true if every representation of displayed values is kept.
    pub(crate) fn keeps_values(&self) -> bool {
        lock(&self.live).values.is_some()
    }

    /// Returns the kept values from this number on.
    pub(crate) fn values(&self, from: usize) -> Vec<ShownValue> {
        let live = lock(&self.live);
        let kept = live.values.as_ref().and_then(|values| values.all.get(from..));
        kept.unwrap_or_default().to_vec()
    }

    /// Waits until it has written more than these bytes of stdout and stderr, has shown more than this number of
    /// values, or has finished.
    pub(crate) async fn showed_more(&self, stdout: u64, stderr: u64, values: usize) {
        self.changed_from(|live| {
            let shown = live.values.as_ref().map_or(0, |values| values.all.len());
            (live.stdout.total(), live.stderr.total(), shown) != (stdout, stderr, values)
        })
        .await;
    }

    /// Removes the execution from its caller's view of the history.
    pub(crate) fn hide_from_history(&self) {
        self.unshown.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_shown(&self) -> bool {
        !self.unshown.load(Ordering::Relaxed)
    }

    /// Sets or closes the sender of its standard input.
    pub(crate) fn set_feed(&self, feed: Option<mpsc::Sender<Bytes>>) {
        *lock(&self.feed) = feed;
    }

    /// Returns the sender of its standard input, while that is open.
    pub(crate) fn feed(&self) -> Option<mpsc::Sender<Bytes>> {
        lock(&self.feed).clone()
    }

    /// Sets the sender of signals and sizes to its program.
    pub(crate) fn set_controls(&self, controls: Option<mpsc::Sender<ProgramControl>>) {
        *lock(&self.controls) = controls;
    }

    /// Returns the sender of signals and sizes to its program, while that can receive some.
    pub(crate) fn controls(&self) -> Option<mpsc::Sender<ProgramControl>> {
        lock(&self.controls).clone()
    }

    /// Stores the process id of its program.
    pub(crate) fn set_pid(&self, pid: u32) {
        // A program is started once.
        let _ = self.pid.set(pid);
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid.get().copied()
    }

    /// Marks the start of the code.
    pub(crate) fn begin(&self) {
        let mut live = lock(&self.live);
        live.started = SystemTime::now();
        live.began = Some(Instant::now());
        self.begun.cancel();
    }

    /// Waits until the code has started.
    pub(crate) async fn begun(&self) {
        self.begun.cancelled().await;
    }

    pub(crate) fn set_isolation(&self, isolation: Arc<Isolation>, skipped_backends: Vec<SkippedBackend>) {
        let mut live = lock(&self.live);
        live.isolation = isolation;
        live.skipped_backends = skipped_backends;
    }

    /// Stores the static-analysis findings about its code.
    pub(crate) fn set_findings(&self, findings: Vec<Finding>) {
        lock(&self.live).findings = findings;
    }

    /// Adds a sentence for the start of the result.
    pub(crate) fn notice(&self, text: String, state_lost: bool) {
        let mut live = lock(&self.live);
        live.notices.push(text);
        live.state_lost |= state_lost;
    }

    /// Sets the earlier executions of its session.
    pub(crate) fn follows(&self, before: Background) {
        // An execution begins once.
        let _ = self.background.set(before);
    }

    /// Marks output of earlier executions.
    fn mark_background(&self, bytes: &[u8]) -> Vec<u8> {
        let mark = match self.background.get() {
            Some(Background::Of(id)) => format!("[background output of execution {id}]\n"),
            Some(Background::After(id)) => format!("[background output, written after execution {id} had ended]\n"),
            None => "[background output]\n".to_owned(),
        };
        let end: &[u8] = if bytes.ends_with(b"\n") { b"" } else { b"\n" };
        [mark.as_bytes(), bytes, end, b"[end of background output]\n"].concat()
    }

    /// Records an event of the session.
    pub(crate) fn take(&self, event: SessionEvent) {
        self.record(event);
        self.progressed.notify_waiters();
    }

    fn record(&self, event: SessionEvent) {
        let mut live = lock(&self.live);
        match event {
            SessionEvent::Output { stream, bytes } => {
                if stream == OutputStream::Stdout {
                    live.place_pictures();
                }
                let capture = live.stream(stream);
                capture.push(&bytes);
                if capture.total() > self.limits.printed {
                    self.stop(Stop::Output(self.limits.printed));
                }
            }
            SessionEvent::Background { stream, bytes } => live.stream(stream).push(&self.mark_background(&bytes)),
            SessionEvent::Display(bundle) => match live.shown(&bundle) {
                // Its reader shows the value itself.
                _ if live.values.is_some() => {}
                OutputTrace::Text(text) => {
                    live.place_pictures();
                    live.stdout.push(text.as_bytes());
                    if !text.ends_with('\n') {
                        live.stdout.push(b"\n");
                    }
                }
                OutputTrace::Picture(text) => {
                    let line = preview(&plain_line(text.as_bytes()), MAX_PICTURE_LINE_CHARS);
                    live.pictures.push(format!("[{line}]\n"));
                }
                OutputTrace::None => {}
            },
            SessionEvent::Result(bundle) => {
                live.artifacts.result(&bundle);
                live.keep(&bundle, true);
                live.result_note = bundle
                    .get(TABLE_LINE_MIME)
                    .map(|line| preview(&plain_line(line), MAX_NOTE_CHARS));
                let mut text = bundle.text();
                text.truncate(text.floor_char_boundary(MAX_RESULT_BYTES));
                live.result = Some(text).filter(|text| !text.is_empty());
            }
            SessionEvent::Begun => {}
            // The cell's loop answers this event. The result does not show it.
            SessionEvent::Install { .. } => {}
        }
    }

    pub(crate) fn add_file(&self, name: &str, bytes: Bytes) {
        lock(&self.live).artifacts.file(name, bytes);
    }

    pub(crate) fn add_missing_output(&self, reason: String) {
        lock(&self.live).missing.push(reason);
    }

    /// Finishes the execution. Only the first end counts. `record` runs before waiting readers see the end.
    pub(crate) fn finish(
        &self,
        mut end: Result<(Outcome, Cost), Failure>,
        hints: &Hints,
        record: impl FnOnce(&ExecutionView, Option<&Failure>),
    ) -> bool {
        let (view, failure) = match &mut end {
            Ok((outcome, cost)) => {
                self.settle(outcome);
                let mut view = self.draw(outcome, Some(*cost));
                if outcome.hint.is_none() {
                    outcome.hint = advised(&view, hints);
                    view.hint.clone_from(&outcome.hint);
                }
                (view, None)
            }
            Err(failure) => (self.draw_refused(failure.clone()), Some(failure.clone())),
        };
        {
            let mut live = lock(&self.live);
            if live.end.is_some() {
                return false;
            }
            live.end = Some(end.map(Arc::new));
        }
        record(&view, failure.as_ref());
        if failure.is_none() {
            lock(&self.live).drawn = Some(Box::new(view));
        }
        self.set_feed(None);
        self.set_controls(None);
        self.done.cancel();
        self.progressed.notify_waiters();
        true
    }

    fn settle(&self, outcome: &Outcome) {
        let mut live = lock(&self.live);
        live.state_lost |= outcome.state_lost;
        let dropped = live.artifacts.notice().or_else(|| live.values.as_ref()?.notice());
        live.notices.extend(dropped);
        if live.pictures_placed {
            live.place_pictures();
        }
        live.stdout.settle();
        live.stderr.settle();
    }

    /// Returns the outcome, or the current state.
    pub(crate) fn outcome(&self) -> Result<ExecutionView, Failure> {
        let mut live = lock(&self.live);
        if let Some(drawn) = live.drawn.take() {
            return Ok(*drawn);
        }
        let end = live.end.clone().transpose()?;
        drop(live);
        Ok(match end.as_deref() {
            Some((outcome, cost)) => self.draw(outcome, Some(*cost)),
            None => self.draw(&Outcome::running(), None),
        })
    }

    /// Returns the same for a later reader: a call that could not be carried out is then a failed execution.
    pub(crate) fn view(&self) -> ExecutionView {
        match self.outcome() {
            Ok(view) => view,
            Err(failure) => self.draw_refused(failure),
        }
    }

    fn draw_refused(&self, failure: Failure) -> ExecutionView {
        self.draw(&Outcome::refused(failure), Some(Cost::default()))
    }

    /// Makes the view. All slow work happens without the lock.
    fn draw(&self, outcome: &Outcome, cost: Option<Cost>) -> ExecutionView {
        let (mut view, ends) = {
            let live = lock(&self.live);
            (
                self.sketch(&live, outcome, cost),
                (live.stdout.ends(WINDOW_BYTES), live.stderr.ends(WINDOW_BYTES)),
            )
        };
        let (out_bytes, err_bytes) = (view.stdout.total_bytes, view.stderr.total_bytes);
        let mut texts = self.render(ends, view.result.as_deref(), traceback(&view)).into_iter();
        view.stdout = shown(texts.next(), out_bytes);
        view.stderr = shown(texts.next(), err_bytes);
        if let Some(whole) = view.result.take() {
            let part = texts.next().unwrap_or_default();
            view.result_cut = part.truncated.then(|| bytes_of(whole.len()));
            view.result_edited = part.edited;
            view.result = Some(part.text);
        }
        if let (Some(error), Some(part)) = (&mut view.error, texts.next()) {
            error.traceback = part.text;
        }
        view
    }

    /// Makes the view without its texts.
    fn sketch(&self, live: &LiveState, outcome: &Outcome, cost: Option<Cost>) -> ExecutionView {
        let so_far = live.began.map_or(Duration::ZERO, |began| began.elapsed());
        let cost = cost.unwrap_or(Cost {
            duration: so_far,
            ..Cost::default()
        });
        let total = |total_bytes| Shown {
            total_bytes,
            ..Shown::default()
        };
        ExecutionView {
            id: self.id.clone(),
            sandbox_id: self.sandbox_id.clone(),
            language: self.language.clone(),
            status: outcome.status,
            phase: outcome.phase,
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            started: live.started,
            duration: cost.duration,
            cpu: cost.cpu,
            peak_memory: ByteSize::bytes(cost.peak),
            memory: cost.memory,
            stdout: total(live.stdout.total()),
            stderr: total(live.stderr.total()),
            result: live.result.clone(),
            result_cut: None,
            result_edited: false,
            result_note: live.result_note.clone(),
            error: outcome.error.clone(),
            hint: outcome.hint.clone(),
            cause: outcome.cause.clone(),
            artifacts: live.artifacts.all.clone(),
            missing_outputs: live.missing.clone(),
            state_lost: live.state_lost,
            restored: outcome.restored.clone(),
            new_sandbox: self.new_sandbox,
            expiry: self.expiry,
            notices: live.notices.clone(),
            isolation: live.isolation.clone(),
            skipped_backends: live.skipped_backends.clone(),
            findings: live.findings.clone(),
            tool_calls: self.tool_counts(),
            waiting_for: self.waiting_for(),
        }
    }

    /// Renders stdout and stderr, then result and error if there are any.
    fn render(&self, ends: (StreamEnds, StreamEnds), result: Option<&str>, error: Option<&str>) -> Vec<Rendered> {
        let call = |stream: StreamName| Marker {
            call: self.limits.read_rest.as_ref().map(|call| {
                call.replace("{execution_id}", self.id.as_str())
                    .replace("{stream}", stream.as_str())
            }),
        };
        let part = |ends, head_percent, marker| Part {
            ends,
            head_percent,
            marker,
        };
        // The end of an error is its most useful part; the start of output is.
        let mut parts = vec![
            part(ends.0, 70, call(StreamName::Stdout)),
            part(ends.1, 35, call(StreamName::Stderr)),
        ];
        parts.extend(result.map(|text| part(StreamEnds::whole(text), 70, call(StreamName::Result))));
        parts.extend(error.map(|text| part(StreamEnds::whole(text), 35, Marker::default())));
        render(parts, self.limits.inline)
    }

    /// Reads the progress bar at the end of its output. stderr first, where most libraries draw.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let (err, out) = {
            let live = lock(&self.live);
            (
                live.stderr.end(PROGRESS_TAIL_BYTES),
                live.stdout.end(PROGRESS_TAIL_BYTES),
            )
        };
        recognise(&err).or_else(|| recognise(&out))
    }

    /// Returns a line about an unfinished execution.
    pub(crate) fn summary(&self) -> RunningView {
        let began = lock(&self.live).began;
        let ran = began.map_or(Duration::ZERO, |began| began.elapsed());
        RunningView {
            execution_id: self.id.clone(),
            sandbox_id: self.sandbox_id.clone(),
            language: self.language.clone(),
            began: began.is_some(),
            duration_ms: u64::try_from(ran.as_millis()).unwrap_or(u64::MAX),
            code_preview: preview(&self.code, CODE_PREVIEW_CHARS),
        }
    }

    /// Returns the number of bytes that it takes in the store.
    pub(crate) fn weight(&self) -> u64 {
        let live = lock(&self.live);
        let texts = bytes_of(live.result.as_ref().map_or(0, String::len));
        MIN_WEIGHT_BYTES
            + live.stdout.stored_bytes()
            + live.stderr.stored_bytes()
            + live.artifacts.bytes()
            + live.values.as_ref().map_or(0, |values| values.bytes)
            + texts
            + bytes_of(self.code.len())
    }

    /// Waits until it has written more than these bytes of stdout and stderr, or has finished.
    pub(crate) async fn wrote_more(&self, stdout: u64, stderr: u64) {
        self.changed_from(|live| (live.stdout.total(), live.stderr.total()) != (stdout, stderr))
            .await;
    }

    /// Waits until its state is as wanted, or it has finished.
    async fn changed_from(&self, wanted: impl Fn(&LiveState) -> bool) {
        loop {
            let mut progressed = pin!(self.progressed.notified());
            progressed.as_mut().enable();
            if self.is_finished() || wanted(&lock(&self.live)) {
                return;
            }
            progressed.await;
        }
    }

    /// Returns a part of a stream as the code wrote it.
    pub(crate) fn output(&self, stream: OutputStream, offset: u64, limit: usize) -> OutputPart {
        let done = self.is_finished();
        let mut live = lock(&self.live);
        let capture = live.stream(stream);
        let total = capture.total();
        let part = capture.read(offset, limit);
        OutputPart {
            eof: done && part.next >= total,
            bytes: part.bytes.into(),
            offset: part.offset,
            next_offset: part.next,
            total_bytes: total,
        }
    }

    /// Returns a part of one of its texts.
    pub(crate) fn slice(&self, what: StreamName, offset: i64, limit: u64, find: Option<&str>) -> StreamSlice {
        let done = self.is_finished();
        let live = lock(&self.live);
        match what {
            StreamName::Stdout => slice(&live.stdout, offset, limit, find, done),
            StreamName::Stderr => slice(&live.stderr, offset, limit, find, done),
            StreamName::Result => {
                let result = live.result.clone().unwrap_or_default();
                drop(live);
                slice(&whole(&result), offset, limit, find, done)
            }
            StreamName::Code => {
                drop(live);
                slice(&whole(&self.code), offset, limit, find, true)
            }
        }
    }
}

impl Values {
    /// Returns a sentence about dropped values.
    fn notice(&self) -> Option<String> {
        (self.dropped > 0).then(|| {
            format!(
                "{} displayed values were dropped: one execution keeps {MAX_VALUES} with {} MiB together",
                self.dropped,
                MAX_VALUE_BYTES >> 20
            )
        })
    }
}

impl LiveState {
    /// Adds a displayed value.
    fn shown(&mut self, bundle: &MimeBundle) -> OutputTrace {
        self.keep(bundle, false);
        self.artifacts.display(bundle)
    }

    /// Keeps a value for its reader, if there is room.
    fn keep(&mut self, bundle: &MimeBundle, is_result: bool) {
        let (stdout, stderr) = (self.stdout.total(), self.stderr.total());
        let Some(values) = &mut self.values else { return };
        let size = bundle.0.values().map(|part| bytes_of(part.len())).sum::<u64>();
        if values.all.len() >= MAX_VALUES || values.bytes.saturating_add(size) > MAX_VALUE_BYTES {
            values.dropped = values.dropped.saturating_add(1);
            return;
        }
        values.bytes += size;
        values.all.push(ShownValue {
            bundle: bundle.clone(),
            is_result,
            stdout,
            stderr,
        });
    }

    /// Writes the pending picture lines into the output, because text follows: the pictures' place is not the end.
    fn place_pictures(&mut self) {
        if self.pictures.is_empty() {
            return;
        }
        if self.stdout.total() > 0 && self.stdout.end(1) != b"\n" {
            self.stdout.push(b"\n");
        }
        for line in std::mem::take(&mut self.pictures) {
            self.stdout.push(line.as_bytes());
        }
        self.pictures_placed = true;
    }

    const fn stream(&mut self, stream: OutputStream) -> &mut Capture {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

/// Wraps a text in a capture.
fn whole(text: &str) -> Capture {
    let mut capture = Capture::new(ByteSize::bytes(u64::MAX), Budget::new(ByteSize::bytes(u64::MAX)));
    capture.push(text.as_bytes());
    capture
}

fn shown(part: Option<Rendered>, total_bytes: u64) -> Shown {
    let part = part.unwrap_or_default();
    Shown {
        text: part.text,
        total_bytes,
        truncated: part.truncated,
        edited: part.edited,
    }
}

fn traceback(view: &ExecutionView) -> Option<&str> {
    view.error.as_ref().map(|error| error.traceback.as_str())
}

/// Returns the error line for the history: the traceback's last line, else the server's message.
pub(crate) fn error_line(view: &ExecutionView) -> Option<&str> {
    let last = traceback(view).and_then(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
    let cause = || view.cause.as_ref().map(|cause| cause.message.as_str());
    match view.status {
        Status::Ok | Status::Running => None,
        Status::Error => last.or_else(cause),
        Status::Timeout | Status::Cancelled | Status::Killed => cause().or(last),
    }
}

/// Returns advice for a failure that only a sandbox has.
fn advised(view: &ExecutionView, hints: &Hints) -> Option<String> {
    let failed = view.status != Status::Ok;
    let named = view
        .cause
        .as_ref()
        .is_some_and(|cause| cause.code == Code::ProcessLimit);
    if named || !failed && view.stderr.text.is_empty() {
        return None;
    }
    let error = traceback(view).unwrap_or_default();
    advice::find(failed, &[&view.stderr.text, &view.stdout.text, error], hints)
}
