//! Programs in a sandbox, through the process service of envd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::{Method, Response};
use sandcell_sandbox::{
    Channel, Command, Exit, Process, ProcessEvent, ProcessHandle, SandboxError, Signal, SignalScope, StdinMode, gather,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::ServiceError;
use super::frames::{Decoder, Frame, encode};
use super::inside::Inside;

const PROCESS_SERVICE: &str = "process.Process";
/// The deadline of a program's start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The capacity of the event queue. While it is full nothing more is read, which in the end blocks the program.
const EVENT_QUEUE_CAPACITY: usize = 64;
/// The interval of keep-alive messages while a program is silent, in seconds.
const PING_INTERVAL_S: &str = "30";

/// Starts a program.
pub(super) async fn spawn(inside: &Arc<Inside>, command: Command) -> Result<Process, SandboxError> {
    if command.control {
        return Err(SandboxError::Unsupported("a control channel of a program".to_owned()));
    }
    let Some((program, arguments)) = command.argv.split_first() else {
        return Err(SandboxError::Unsupported("a program without a name".to_owned()));
    };
    let body = encode(&json!({
        "process": {"cmd": program, "args": arguments, "envs": command.env, "cwd": command.cwd},
        "stdin": command.stdin == StdinMode::Piped,
    }));
    let request = || {
        Ok(inside
            .envd(Method::POST, &[PROCESS_SERVICE, "Start"], &[])?
            .header("Content-Type", "application/connect+json")
            .header("Connect-Protocol-Version", "1")
            .header("Keepalive-Ping-Interval", PING_INTERVAL_S)
            .body(body.clone()))
    };
    let failed = |error: ServiceError| match error {
        ServiceError::Connect(error) if matches!(error.code.as_str(), "invalid_argument" | "not_found") => {
            SandboxError::Spawn {
                program: program.clone(),
                source: std::io::Error::other(error.message),
            }
        }
        other => other.into_sandbox_error(),
    };
    let started = async {
        let mut stream = Stream {
            response: inside.open(request).await?,
            decoder: Decoder::default(),
        };
        // The process id arrives first.
        loop {
            let Some(event) = stream.next().await? else {
                return Err(ServiceError::Garbled("a program ended before it started".to_owned()));
            };
            if let Some(pid) = event.pointer("/start/pid").and_then(Value::as_u64) {
                return Ok((stream, pid));
            }
            if event.get("keepalive").is_none() {
                return Err(ServiceError::Garbled(
                    "a program wrote output before it started".to_owned(),
                ));
            }
        }
    };
    let (stream, pid) = timeout(START_TIMEOUT, started)
        .await
        .unwrap_or(Err(ServiceError::Slow(START_TIMEOUT)))
        .map_err(failed)?;
    let (sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
    let handle = Arc::new(Handle {
        inside: inside.clone(),
        pid,
        over: Arc::default(),
    });
    tokio::spawn(follow(stream, sender, handle.over.clone()));
    Ok(Process {
        pid: u32::try_from(pid).ok(),
        events,
        handle,
    })
}

/// Runs a short program to completion; the error holds its stderr.
pub(super) async fn run(inside: &Arc<Inside>, argv: &[&str], patience: Duration) -> Result<(), ServiceError> {
    let command = Command {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: std::collections::BTreeMap::new(),
        cwd: "/".to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    };
    let process = spawn(inside, command)
        .await
        .map_err(|error| ServiceError::Connection(error.to_string()))?;
    let ended = timeout(patience, gather(process, 4096))
        .await
        .map_err(|_| ServiceError::Slow(patience))?;
    if ended.exit == Some(Exit::Code(0)) {
        return Ok(());
    }
    Err(ServiceError::Status {
        status: 0,
        message: String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
    })
}

/// The events of a process.
struct Stream {
    response: Response,
    decoder: Decoder,
}

impl Stream {
    /// Returns the next event; none at the end.
    async fn next(&mut self) -> Result<Option<Value>, ServiceError> {
        loop {
            match self
                .decoder
                .next()
                .map_err(|error| ServiceError::Garbled(error.to_string()))?
            {
                Some(Frame::Message(mut message)) => {
                    return match message.get_mut("event") {
                        Some(event) => Ok(Some(event.take())),
                        None => Err(ServiceError::Garbled("a message without an event".to_owned())),
                    };
                }
                Some(Frame::End(None)) => return Ok(None),
                Some(Frame::End(Some(error))) => return Err(ServiceError::Connect(error)),
                None => {}
            }
            match self.response.chunk().await.map_err(ServiceError::from_client)? {
                Some(bytes) => self.decoder.push(&bytes),
                None => return Err(ServiceError::Garbled("the stream broke off".to_owned())),
            }
        }
    }
}

/// Forwards the events of a process. The end of the process closes both output streams.
async fn follow(mut stream: Stream, events: mpsc::Sender<ProcessEvent>, over: Arc<AtomicBool>) {
    loop {
        let event = match stream.next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(trouble = %error, "a program could not be followed");
                return;
            }
        };
        let mut said = Vec::new();
        for (key, channel) in [("stdout", Channel::Stdout), ("stderr", Channel::Stderr)] {
            let text = event.pointer(&format!("/data/{key}")).and_then(Value::as_str);
            let bytes = text.and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default();
            if !bytes.is_empty() {
                let bytes = Bytes::from(bytes);
                said.push(ProcessEvent::Output { channel, bytes });
            }
        }
        if let Some(end) = event.get("end") {
            over.store(true, Ordering::Release);
            said.push(ProcessEvent::Exited { exit: exit(end) });
            said.extend([Channel::Stdout, Channel::Stderr].map(|channel| ProcessEvent::Closed { channel }));
        }
        for one in said {
            if events.send(one).await.is_err() {
                return;
            }
        }
    }
}

/// Reads how a process ended. The JSON may omit zeros.
fn exit(end: &Value) -> Exit {
    let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    let status = end.get("status").and_then(Value::as_str).unwrap_or_default();
    let exited = end.get("exited").and_then(Value::as_bool).unwrap_or(false);
    match status.strip_prefix("signal: ") {
        Some(signal) if !exited => Exit::Signal(match signal.split(' ').next().unwrap_or_default() {
            "interrupt" => 2,
            "aborted" => 6,
            "segmentation" => 11,
            "terminated" => 15,
            _ => 9,
        }),
        Some(_) | None => Exit::Code(u8::try_from(code.rem_euclid(256)).unwrap_or(u8::MAX)),
    }
}

#[derive(Debug)]
struct Handle {
    inside: Arc<Inside>,
    pid: u64,
    over: Arc<AtomicBool>,
}

impl Handle {
    async fn call(&self, method: &str, mut body: Value) -> Result<(), SandboxError> {
        if let Some(object) = body.as_object_mut() {
            object.insert("process".to_owned(), json!({"pid": self.pid}));
        }
        match self.inside.call(PROCESS_SERVICE, method, &body).await {
            Ok(_) => Ok(()),
            // The process has ended already.
            Err(ServiceError::Connect(error)) if error.code == "not_found" => Ok(()),
            Err(error) => Err(error.into_sandbox_error()),
        }
    }
}

#[async_trait]
impl ProcessHandle for Handle {
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError> {
        if channel != Channel::Stdin {
            return Err(SandboxError::Unsupported("a control channel of a program".to_owned()));
        }
        self.call("SendInput", json!({"input": {"stdin": STANDARD.encode(bytes)}}))
            .await
    }

    async fn close(&self, channel: Channel) -> Result<(), SandboxError> {
        if channel != Channel::Stdin || self.over.load(Ordering::Acquire) {
            return Ok(());
        }
        self.call("CloseStdin", json!({})).await
    }

    async fn signal(&self, signal: Signal, _scope: SignalScope) -> Result<(), SandboxError> {
        if self.over.load(Ordering::Acquire) {
            return Ok(());
        }
        let name = match signal {
            // The service cannot send these signals, so a program in the sandbox sends them.
            Signal::Interrupt | Signal::Nudge => {
                let pid = self.pid.to_string();
                let option = if signal == Signal::Interrupt { "-INT" } else { "-URG" };
                let script = "kill \"$1\" \"$2\"";
                let sent = run(
                    &self.inside,
                    &["/bin/sh", "-c", script, "sh", option, &pid],
                    START_TIMEOUT,
                )
                .await;
                return match sent {
                    Ok(()) | Err(ServiceError::Status { status: 0, .. }) => Ok(()),
                    Err(error) => Err(error.into_sandbox_error()),
                };
            }
            Signal::Terminate => "SIGNAL_SIGTERM",
            Signal::Kill => "SIGNAL_SIGKILL",
        };
        self.call("SendSignal", json!({"signal": name})).await
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.over.load(Ordering::Acquire) || self.inside.has_ended().is_some() {
            return;
        }
        let (inside, pid) = (self.inside.clone(), self.pid);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let body = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
                if let Err(error) = inside.call(PROCESS_SERVICE, "SendSignal", &body).await {
                    tracing::debug!(trouble = %error, "a program could not be ended; it ends with its sandbox");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_event_without_zero_fields_is_parsed() {
        for (end, expected) in [
            (json!({"exited": true, "status": "exit status 0"}), Exit::Code(0)),
            (
                json!({"exitCode": 3, "exited": true, "status": "exit status 3"}),
                Exit::Code(3),
            ),
            (json!({"exitCode": -1, "status": "signal: killed"}), Exit::Signal(9)),
            (
                json!({"exitCode": -1, "status": "signal: segmentation fault (core dumped)"}),
                Exit::Signal(11),
            ),
            (json!({}), Exit::Code(0)),
        ] {
            assert_eq!(exit(&end), expected, "{end}");
        }
    }
}
