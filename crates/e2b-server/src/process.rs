//! The service `process.Process`: starts programs and follows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, StatusCode};
use sandcell_engine::{CommandLine, CommandRequest, ExecutionView, Status, Watch};
use sandcell_mcp::{EndpointBody, EndpointRequest, RequestBody, channel_body};
use sandcell_sandbox::{Code, Failure, MAX_TIMEOUT, OutputStream, SessionEvent, Signal, TerminalSize};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call::InSandbox;
use crate::interpreter::is_gone;
use crate::limits::STREAM_CAPACITY;
use crate::paths::path;
use crate::problem::Problem;
use crate::processes::{Event, INPUT_CAPACITY, Process, Selector};
use crate::users::check_user;
use crate::{answer, connect};

/// The tag of the program of a template.
const START_TAG: &str = "start";
/// The number of events of a program that wait for its followers.
const OUTPUT_CAPACITY: usize = 16;
/// The maximum time without a byte of a stream of input.
const INPUT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum time that a request waits until a program takes its standard input.
const INPUT_TIMEOUT: Duration = Duration::from_secs(30);

/// The request to start a program.
#[derive(Debug, Deserialize)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

/// A terminal.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Size,
}

/// The size of a terminal. Newer SDKs leave it out.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default)]
struct Size {
    cols: u16,
    rows: u16,
}

impl Default for Size {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

impl From<Pty> for TerminalSize {
    fn from(pty: Pty) -> Self {
        Self {
            rows: pty.size.rows,
            columns: pty.size.cols,
        }
    }
}

/// A program to start.
#[derive(Debug, Deserialize)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

/// A request about a process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    process: Selector,
    input: Input,
    signal: Option<Value>,
    pty: Option<Pty>,
}

/// Input for a process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// A message of a stream of input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum InputPart {
    Start {
        process: Selector,
    },
    Data {
        #[serde(default)]
        input: Input,
    },
    Keepalive {},
}

/// Answers a call of the service.
pub(crate) async fn answer(
    call: InSandbox,
    method: String,
    request: EndpointRequest<'_>,
) -> Result<Response<EndpointBody>, Problem> {
    let headers = &request.parts.headers;
    let body = match request.body {
        RequestBody::Whole(body) => body,
        RequestBody::Raw(body) => {
            return Ok(match stream_input(&call, headers, body).await {
                Ok(()) => connect::last_answer(&json!({})),
                Err(problem) => connect::failed_stream(&problem),
            });
        }
        RequestBody::Nothing | RequestBody::Stream(_) => return Err(Problem::invalid("the body is missing")),
    };
    match method.as_str() {
        // Clients read the error of a stream in its last message only.
        "Start" | "Connect" => {
            let deadline = connect::deadline(headers).map(|left| Instant::now() + left);
            let process = match method.as_str() {
                "Start" => start(&call, headers, &body).await,
                _ => follow(&call, headers, &body),
            };
            Ok(match process {
                Ok(process) => stream(&process, headers, deadline),
                Err(problem) => connect::failed_stream(&problem),
            })
        }
        _ => {
            connect::check_type(headers, connect::UNARY_TYPE)?;
            let about: About = answer::parse(&body)?;
            unary(&call, &method, about)
                .await
                .map(|value| answer::json(StatusCode::OK, &value))
        }
    }
}

async fn unary(call: &InSandbox, method: &str, about: About) -> Result<Value, Problem> {
    let processes = &call.sandbox.processes;
    match method {
        "List" => {
            let view = |process: &Arc<Process>| {
                let mut view = json!({"config": process.config, "pid": process.pid});
                if let (Some(tag), Some(object)) = (&process.tag, view.as_object_mut()) {
                    object.insert("tag".to_owned(), tag.clone().into());
                }
                view
            };
            let listed: Vec<Value> = processes.running().iter().map(view).collect();
            return Ok(json!({"processes": listed}));
        }
        "SendInput" => {
            let process = processes.find(&about.process)?;
            let sent = tokio::time::timeout(INPUT_TIMEOUT, send_input(&process, about.input)).await;
            sent.map_err(|_| {
                let message = "the process does not read its standard input";
                Problem::new(StatusCode::GATEWAY_TIMEOUT, message)
            })??;
        }
        "CloseStdin" => {
            let process = processes.find(&about.process)?;
            if process.in_terminal {
                return Err(Problem::invalid("a terminal cannot be closed: send \\u0004 as `pty`"));
            }
            process.close_stdin();
        }
        "SendSignal" => {
            let process = processes.find(&about.process)?;
            let signal = match about.signal.as_ref() {
                Some(Value::String(name)) if name == "SIGNAL_SIGKILL" => Signal::Kill,
                Some(Value::String(name)) if name == "SIGNAL_SIGTERM" => Signal::Terminate,
                Some(Value::Number(number)) if number.as_u64() == Some(9) => Signal::Kill,
                Some(Value::Number(number)) if number.as_u64() == Some(15) => Signal::Terminate,
                _ => return Err(Problem::invalid("the signal is SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
            };
            let (engine, owner) = (&call.state.engine, &call.sandbox.owner);
            engine.signal_command(owner, &process.execution, signal)?;
        }
        "Update" => {
            let process = processes.find(&about.process)?;
            if !process.in_terminal {
                return Err(Problem::invalid("the process has no terminal"));
            }
            let size = about.pty.ok_or_else(|| Problem::invalid("`pty` is missing"))?;
            let (engine, owner) = (&call.state.engine, &call.sandbox.owner);
            engine.resize_terminal(owner, &process.execution, size.into())?;
        }
        _ => return Err(Problem::new(StatusCode::NOT_FOUND, "the service has no such method")),
    }
    Ok(json!({}))
}

/// Passes input on to a process. Waits while the process does not read, until its end.
async fn send_input(process: &Process, input: Input) -> Result<(), Problem> {
    let text = match (input.pty, input.stdin, process.in_terminal) {
        (Some(text), None, true) | (None, Some(text), false) => text,
        (Some(_), _, false) => return Err(Problem::invalid("the process has no terminal: send `stdin`")),
        (_, Some(_), true) => return Err(Problem::invalid("the process has a terminal: send `pty`")),
        (None, None, _) => String::new(),
    };
    let bytes = STANDARD
        .decode(text)
        .map_err(|_| Problem::invalid("the input is not base64"))?;
    let closed = || Problem::invalid("the standard input of the process is closed");
    let stdin = process.stdin().ok_or_else(closed)?;
    stdin.send(bytes.into()).await.map_err(|_| closed())
}

/// Passes the input of a stream on to the process that its first message names, until the stream or the process ends.
async fn stream_input(call: &InSandbox, headers: &HeaderMap, body: Incoming) -> Result<(), Problem> {
    connect::check_type(headers, connect::STREAM_TYPE)?;
    let deadline = connect::deadline(headers).map(|left| Instant::now() + left);
    let _room = call.sandbox.input_streams.try_acquire().map_err(|_| {
        let message = "too many streams of input are open: end some, or use SendInput";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let mut stream = InputStream {
        body,
        messages: connect::Messages::default(),
    };
    let first = tokio::time::timeout(INPUT_IDLE_TIMEOUT, stream.next()).await;
    let process = match first.map_err(|_| nothing_came())?? {
        Some(InputPart::Start { process }) => call.sandbox.processes.find(&process)?,
        _ => return Err(Problem::invalid("the stream begins with `start`")),
    };
    let pass_on = async {
        while let Some(part) = stream.next().await? {
            match part {
                InputPart::Start { .. } => return Err(Problem::invalid("the stream has a second `start`")),
                InputPart::Data { input } => send_input(&process, input).await?,
                InputPart::Keepalive {} => {}
            }
        }
        Ok(())
    };
    tokio::select! {
        biased;
        passed = pass_on => passed,
        () = process.over.cancelled() => Err(Problem::not_found("the process has ended")),
        () = connect::sleep_until_some(deadline) => {
            let message = "the deadline of the stream has passed";
            Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, message))
        }
    }
}

fn nothing_came() -> Problem {
    let message = "no message came for a minute: send `keepalive`";
    Problem::new(StatusCode::REQUEST_TIMEOUT, message)
}

/// The messages of a stream of input.
struct InputStream {
    body: Incoming,
    messages: connect::Messages,
}

impl InputStream {
    /// Returns the next message; none at the end of the stream.
    async fn next(&mut self) -> Result<Option<InputPart>, Problem> {
        loop {
            if let Some(message) = self.messages.next()? {
                return answer::parse(&message).map(Some);
            }
            let arrived = tokio::time::timeout(INPUT_IDLE_TIMEOUT, self.body.frame()).await;
            match arrived {
                Ok(Some(Ok(frame))) => self.messages.push(&frame.into_data().unwrap_or_default()),
                Ok(None) => return self.messages.check_end().map(|()| None),
                Ok(Some(Err(_))) => return Err(Problem::invalid("the stream broke off")),
                Err(_) => return Err(nothing_came()),
            }
        }
    }
}

/// Returns the process that a request wants to follow.
fn follow(call: &InSandbox, headers: &HeaderMap, body: &[u8]) -> Result<Arc<Process>, Problem> {
    connect::check_type(headers, connect::STREAM_TYPE)?;
    let about: About = connect::message(body)?;
    call.sandbox.processes.find_any(&about.process)
}

/// Starts a program.
async fn start(call: &InSandbox, headers: &HeaderMap, body: &[u8]) -> Result<Arc<Process>, Problem> {
    connect::check_type(headers, connect::STREAM_TYPE)?;
    check_user(headers)?;
    let asked: Start = connect::message(body)?;
    launch(call, asked, lifetime(headers)).await
}

/// Starts the program of a template, as the SDKs start a line for the shell in the background.
pub(crate) async fn start_line(call: &InSandbox, line: &str) -> Result<(), Problem> {
    let asked = Start {
        process: Config {
            cmd: "/bin/bash".to_owned(),
            args: ["-l", "-c", line].map(str::to_owned).to_vec(),
            envs: BTreeMap::new(),
            cwd: None,
        },
        pty: None,
        tag: Some(START_TAG.to_owned()),
        stdin: Some(false),
    };
    launch(call, asked, MAX_TIMEOUT).await.map(drop)
}

async fn launch(call: &InSandbox, asked: Start, timeout: Duration) -> Result<Arc<Process>, Problem> {
    let Config { cmd, args, envs, cwd } = asked.process;
    let config = json!({"cmd": cmd, "args": args, "envs": envs, "cwd": cwd});
    let (input, stdin) = mpsc::channel::<Bytes>(INPUT_CAPACITY);
    let input = Some(input).filter(|_| asked.stdin != Some(false));
    let (output, events) = mpsc::channel(OUTPUT_CAPACITY);
    let watch = Watch::default();
    let request = CommandRequest {
        command: CommandLine::Argv([vec![cmd], args].concat()),
        cwd: path(cwd.as_deref().unwrap_or("."))?,
        env: with_sandbox_id(call, envs),
        sandbox_id: Some(call.sandbox.id.clone()),
        timeout: Some(timeout),
        terminal: asked.pty.map(TerminalSize::from),
        wait: None,
        watch: watch.clone(),
    };
    let (engine, owner) = (Arc::clone(&call.state.engine), call.sandbox.owner.clone());
    // A client that disconnects before the program is in the table ends it: nobody could find it.
    let cancel = CancellationToken::new();
    let unlisted = cancel.clone().drop_guard();
    let mut running = tokio::spawn(async move { engine.run_command(&owner, request, stdin, output, cancel).await });
    let pid = tokio::select! {
        biased;
        pid = watch.started() => pid,
        // It was refused, or it ended without having started.
        ended = &mut running => return Err(not_started(joined(ended)?)),
    };
    let execution = watch.admitted().await.to_string();
    let Some(pid) = pid else {
        return Err(not_started(joined(running.await)?));
    };
    let process = Arc::new(Process::new(
        (pid, asked.tag),
        config,
        execution,
        input,
        asked.pty.is_some(),
    ));
    call.sandbox.processes.add(&process);
    unlisted.disarm();
    tokio::spawn(pump(call.clone(), Arc::clone(&process), events, running));
    Ok(process)
}

/// Adds the variable with the sandbox's id, which is not known before the sandbox exists.
fn with_sandbox_id(call: &InSandbox, mut env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    env.entry("E2B_SANDBOX_ID".to_owned())
        .or_insert_with(|| call.sandbox.id.clone());
    env
}

type Running = tokio::task::JoinHandle<Result<ExecutionView, Failure>>;

fn joined(
    ended: Result<Result<ExecutionView, Failure>, tokio::task::JoinError>,
) -> Result<Result<ExecutionView, Failure>, Problem> {
    ended.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server made a mistake"))
}

fn not_started(ended: Result<ExecutionView, Failure>) -> Problem {
    match ended {
        // The program or its folder; a sandbox that has ended is answered elsewhere.
        Err(failure) if failure.code == Code::NotFound => Problem::invalid(failure.message),
        Err(failure) => failure.into(),
        Ok(view) => match view.cause {
            Some(cause) => Problem::invalid(cause.message),
            None => Problem::invalid("the program was not started"),
        },
    }
}

/// Returns the time limit of a program: the deadline of its request, if there is one.
fn lifetime(headers: &HeaderMap) -> Duration {
    connect::deadline(headers).map_or(MAX_TIMEOUT, |deadline| deadline.min(MAX_TIMEOUT))
}

/// Forwards the output of a program to its followers until it ends.
async fn pump(call: InSandbox, process: Arc<Process>, mut events: mpsc::Receiver<SessionEvent>, running: Running) {
    while let Some(event) = events.recv().await {
        if let SessionEvent::Output { stream, bytes } = event {
            let name = match stream {
                OutputStream::Stdout if process.in_terminal => "pty",
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            process.tell(Event::Data(name, bytes)).await;
        }
    }
    let end = match running.await {
        Ok(end) if is_gone(&call, &end) => {
            call.sandbox.processes.ended(&process);
            // Its followers break off: the sandbox has ended.
            process.end(None).await;
            return;
        }
        Ok(Ok(view)) => ended(&view),
        Ok(Err(failure)) => Err(failure.into()),
        Err(_) => Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server made a mistake",
        )),
    };
    call.sandbox.processes.ended(&process);
    process.end(Some(end)).await;
}

/// Returns the end of a program in the words of `envd`.
fn ended(view: &ExecutionView) -> Result<Value, Problem> {
    if view.status == Status::Timeout {
        return Err(too_late());
    }
    if let Some(signal) = view.signal {
        let status = format!("signal: {}", signal_word(signal));
        return Ok(json!({"exitCode": -1, "exited": false, "status": status, "error": status}));
    }
    let code = match (view.exit_code, view.status) {
        (Some(code), _) => code,
        (None, Status::Ok) => 0,
        (None, _) => 1,
    };
    let status = format!("exit status {code}");
    let mut end = json!({"exitCode": code, "exited": true, "status": status});
    if let (1.., Some(object)) = (code, end.as_object_mut()) {
        object.insert("error".to_owned(), status.into());
    }
    Ok(end)
}

fn too_late() -> Problem {
    Problem::new(StatusCode::GATEWAY_TIMEOUT, "the deadline of the process has passed")
}

fn signal_word(signal: u8) -> String {
    match signal {
        2 => "interrupt".to_owned(),
        6 => "aborted".to_owned(),
        9 => "killed".to_owned(),
        11 => "segmentation fault".to_owned(),
        13 => "broken pipe".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

/// Answers with the events of a process from now on, until the deadline.
fn stream(process: &Arc<Process>, headers: &HeaderMap, deadline: Option<Instant>) -> Response<EndpointBody> {
    let keep_alive = connect::keep_alive(headers);
    let mut events = process.follow();
    let pid = process.pid;
    let (parts, body) = channel_body(STREAM_CAPACITY, None);
    tokio::spawn(async move {
        let mut frame = connect::frame(&json!({"event": {"start": {"pid": pid}}}));
        loop {
            if parts.send(frame).await.is_err() {
                return;
            }
            frame = tokio::select! {
                biased;
                () = parts.closed() => return,
                () = connect::sleep_until_some(deadline) => {
                    let _gone = parts.send(connect::failed(&too_late())).await;
                    return;
                }
                event = events.recv() => match event {
                    Some(Event::Data(name, bytes)) => {
                        connect::frame(&json!({"event": {"data": {name: STANDARD.encode(&bytes)}}}))
                    }
                    Some(Event::End(Ok(end))) => {
                        let _gone = parts.send(connect::frame(&json!({"event": {"end": end}}))).await;
                        let _gone = parts.send(connect::end()).await;
                        return;
                    }
                    Some(Event::Gone) => return parts.break_off().await,
                    Some(Event::End(Err(problem))) => {
                        let _gone = parts.send(connect::failed(&problem)).await;
                        return;
                    }
                    None => {
                        let slow = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the events were not read in time");
                        let _gone = parts.send(connect::failed(&slow)).await;
                        return;
                    }
                },
                () = tokio::time::sleep(keep_alive) => connect::frame(&json!({"event": {"keepalive": {}}})),
            };
        }
    });
    answer::with_body(StatusCode::OK, connect::STREAM_TYPE, body)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn the_deadline_of_the_request_bounds_the_program() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("connect-timeout-ms", HeaderValue::from_static(value));
            lifetime(&headers)
        };
        assert_eq!(with("1500"), Duration::from_millis(1500));
        assert_eq!(with("0"), MAX_TIMEOUT);
        assert_eq!(with("4000000000"), MAX_TIMEOUT);
        assert_eq!(with("99999999999"), MAX_TIMEOUT);
        assert_eq!(with("soon"), MAX_TIMEOUT);
        assert_eq!(lifetime(&HeaderMap::new()), MAX_TIMEOUT);
    }
}
