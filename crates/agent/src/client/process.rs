//! Programs: start, input, signals.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Channel, Code, Command, Failure, Process, ProcessHandle, SandboxError, Signal, SignalScope, StdinMode, TerminalSize,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::connection::{AgentConnection, AskError};
use super::direct_pipes::{NearEnds, PipeHandle};
use super::streams::{Credit, EVENT_CAPACITY, ProgramStream, Stream, closed_channel_error};
use crate::protocol::{
    EmptyReply, ErrorCode, HEIRS_FEATURE, KEPT_HEIRS_FEATURE, KeptReply, MAX_DATA, ReceiveWindow, Request, SpawnReply,
    TERMINAL_FEATURE, WireError, channel_number,
};

/// Starts a program. With `direct_pipes`, its output and its control channel bypass the agent.
pub(super) async fn spawn(
    agent: &Arc<AgentConnection>,
    command: Command,
    direct_pipes: Option<NearEnds>,
) -> Result<Process, SandboxError> {
    let program = command.argv.first().cloned().unwrap_or_default();
    let piped = command.stdin == StdinMode::Piped || command.terminal.is_some();
    let control = command.control;
    let request = Request::Spawn {
        argv: command.argv,
        env: command.env,
        cwd: command.cwd.clone(),
        stands_alone: command.stands_alone,
        stdin: command.stdin,
        control: command.control,
        lane: direct_pipes.is_some(),
        terminal: command.terminal,
    };
    if command.terminal.is_some() && !agent.has(TERMINAL_FEATURE) {
        return Err(SandboxError::Unsupported("terminals".to_owned()));
    }
    begin(agent, request, direct_pipes, piped, control)
        .await
        .map_err(|error| spawn_error(program, &command.cwd, error))
}

/// Adopts a worker, which enters from outside, as a program.
pub(super) async fn adopt(
    agent: &Arc<AgentConnection>,
    direct_pipes: Option<NearEnds>,
) -> Result<Process, SandboxError> {
    let request = Request::Adopt {
        lane: direct_pipes.is_some(),
    };
    begin(agent, request, direct_pipes, false, true)
        .await
        .map_err(|error| spawn_error("a zygote".to_owned(), "", error))
}

async fn begin(
    agent: &Arc<AgentConnection>,
    request: Request,
    direct_pipes: Option<NearEnds>,
    piped: bool,
    control: bool,
) -> Result<Process, AskError> {
    let (events, mut received) = mpsc::channel(EVENT_CAPACITY);
    let (answer, answered) = oneshot::channel();
    let stdin = piped.then(Arc::<Credit>::default);
    let control = (control && direct_pipes.is_none()).then(Arc::<Credit>::default);
    let stream = ProgramStream {
        answer: Some(answer),
        events,
        waiting: std::collections::VecDeque::new(),
        stdout: direct_pipes.is_none().then(ReceiveWindow::default),
        stderr: direct_pipes.is_none().then(ReceiveWindow::default),
        control: control.as_ref().map(|_| ReceiveWindow::default()),
        ends: 1,
        stdin: stdin.clone(),
        control_in: control.clone(),
    };
    let open = agent.open(&request, Stream::Program(Box::new(stream))).await;
    let open = open.map_err(AskError::Sandbox)?;
    let id = open.id;
    let reply: SpawnReply = open.answer(answered, &request).await?;
    let pipe_handle = direct_pipes.map(|near_ends| near_ends.start(&mut received));
    let handle = AgentProcess {
        agent: Arc::clone(agent),
        id,
        stdin: stdin.map(InputChannel::new),
        control: control.map(InputChannel::new),
        pipe_handle,
    };
    Ok(Process {
        pid: u32::try_from(reply.pid).ok(),
        events: received,
        handle: Arc::new(handle),
    })
}

fn spawn_error(program: String, cwd: &str, error: AskError) -> SandboxError {
    let error = match error {
        AskError::Sandbox(error) => return error,
        AskError::Refused(error) => error,
    };
    if error.code == ErrorCode::Unsupported {
        return SandboxError::Unsupported(error.message);
    }
    if error.code == ErrorCode::Limit {
        let message: String = error.message.chars().take(300).collect();
        let remedy = "wait until programs in the sandbox have ended, or end some, and call again";
        return SandboxError::Refused(Box::new(Failure::new(Code::LimitReached, message, remedy)));
    }
    let source = system_error(&error);
    if error.kind.as_deref() == Some("cwd") {
        return cwd_error(cwd, &source);
    }
    SandboxError::Spawn { program, source }
}

/// Returns the error for a working folder that cannot be entered.
fn cwd_error(cwd: &str, error: &std::io::Error) -> SandboxError {
    use std::io::ErrorKind;
    let (code, why) = match error.kind() {
        ErrorKind::NotFound => (Code::NotFound, "does not exist"),
        ErrorKind::NotADirectory => (Code::InvalidArgument, "is not a folder"),
        ErrorKind::PermissionDenied => (Code::DeniedByPolicy, "may not be entered by the sandbox's own user"),
        _ => (Code::InvalidArgument, "cannot be entered"),
    };
    SandboxError::Refused(Box::new(Failure::new(
        code,
        format!("the working folder {cwd} {why}; the program was not started"),
        "make the folder first, or pass a cwd that exists; relative paths start at /home/user",
    )))
}

/// Returns the system's error from inside, with its number where the number alone identifies the failure.
fn system_error(error: &WireError) -> std::io::Error {
    let number = error.errno.filter(|number| (1..4096).contains(number));
    match (number, error.kind.as_deref()) {
        (Some(number), Some("exec" | "fork" | "pipe")) => std::io::Error::from_raw_os_error(number),
        (Some(number), _) => {
            let message: String = error.message.chars().take(300).collect();
            std::io::Error::new(std::io::Error::from_raw_os_error(number).kind(), message)
        }
        (None, _) => std::io::Error::other(error.message.chars().take(300).collect::<String>()),
    }
}

/// The handle of a started program.
struct AgentProcess {
    agent: Arc<AgentConnection>,
    id: u32,
    stdin: Option<InputChannel>,
    control: Option<InputChannel>,
    pipe_handle: Option<PipeHandle>,
}

/// A channel to a program. Writers take turns, so the bytes of one write stay together.
struct InputChannel {
    credit: Arc<Credit>,
    closed: Mutex<bool>,
}

impl InputChannel {
    fn new(credit: Arc<Credit>) -> Self {
        Self {
            credit,
            closed: Mutex::new(false),
        }
    }
}

impl std::fmt::Debug for AgentProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentProcess")
            .field("stream", &self.id)
            .finish_non_exhaustive()
    }
}

impl AgentProcess {
    /// Sends a request whose answer is empty.
    async fn request_done(&self, step: &str, request: &Request) -> Result<(), SandboxError> {
        let _done: EmptyReply = self.agent.ask(request).await.map_err(|error| match error {
            AskError::Sandbox(error) => error,
            AskError::Refused(error) => SandboxError::Setup {
                step: step.to_owned(),
                source: system_error(&error),
            },
        })?;
        Ok(())
    }

    fn input_channel(&self, channel: Channel) -> Result<&InputChannel, SandboxError> {
        let input_channel = match channel {
            Channel::Stdin => self.stdin.as_ref(),
            Channel::Control => self.control.as_ref(),
            Channel::Stdout | Channel::Stderr => None,
        };
        input_channel.ok_or_else(|| SandboxError::Unsupported(format!("writing to {channel:?} of this program")))
    }
}

#[async_trait]
impl ProcessHandle for AgentProcess {
    /// Writes to a channel of the program. Bytes for a program that has ended or has closed its end are dropped. The
    /// program's events report its end.
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError> {
        if let (Channel::Control, Some(pipe_handle)) = (channel, &self.pipe_handle) {
            return pipe_handle.write(&self.agent, &bytes).await;
        }
        let input_channel = self.input_channel(channel)?;
        let closed = input_channel.closed.lock().await;
        if *closed {
            return Err(closed_channel_error(channel));
        }
        for piece in bytes.chunks(MAX_DATA) {
            if self.agent.has_ended() {
                return Err(self.agent.error());
            }
            if !input_channel.credit.spend(piece.len()).await {
                return if self.agent.has_ended() {
                    Err(self.agent.error())
                } else {
                    Ok(())
                };
            }
            self.agent
                .writer
                .send(|out| out.data(self.id, channel_number(channel), piece));
        }
        Ok(())
    }

    async fn close(&self, channel: Channel) -> Result<(), SandboxError> {
        if let (Channel::Control, Some(pipe_handle)) = (channel, &self.pipe_handle) {
            pipe_handle.close().await;
            return Ok(());
        }
        let input_channel = self.input_channel(channel)?;
        let mut closed = input_channel.closed.lock().await;
        if self.agent.has_ended() {
            return Err(self.agent.error());
        }
        if !std::mem::replace(&mut *closed, true) {
            self.agent
                .writer
                .send(|out| out.close(self.id, channel_number(channel)));
        }
        Ok(())
    }

    async fn signal(&self, signal: Signal, scope: SignalScope) -> Result<(), SandboxError> {
        let request = Request::Signal {
            process: self.id,
            signal,
            scope,
            spare: None,
        };
        self.request_done("agent signal", &request).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), SandboxError> {
        let request = Request::Resize { process: self.id, size };
        self.request_done("agent resize", &request).await
    }

    fn has_heirs(&self) -> bool {
        self.agent.has(HEIRS_FEATURE)
    }

    async fn kill_but(&self, heir: i32) -> Result<(), SandboxError> {
        let request = Request::Signal {
            process: self.id,
            signal: Signal::Kill,
            scope: SignalScope::Tree,
            spare: Some(heir),
        };
        self.request_done("agent signal", &request).await
    }

    fn keeps_heirs(&self) -> bool {
        self.agent.has(KEPT_HEIRS_FEATURE)
    }

    async fn keep(&self, heir: i32, expendable: bool) -> Result<(), SandboxError> {
        let request = Request::Keep {
            process: self.id,
            pid: heir,
            expendable,
        };
        self.request_done("agent keep", &request).await
    }

    async fn kept(&self) -> Result<Vec<i32>, SandboxError> {
        let request = Request::Kept { process: self.id };
        let reply: KeptReply = self.agent.ask(&request).await.map_err(AskError::into_sandbox)?;
        Ok(reply.pids)
    }

    async fn order_image(&self, heir: i32, drop: bool) -> Result<(), SandboxError> {
        let request = Request::Image {
            process: self.id,
            pid: heir,
            drop,
        };
        self.request_done("agent image", &request).await
    }

    async fn release(&self, heir: i32) -> Result<(), SandboxError> {
        let request = Request::Release {
            process: self.id,
            pid: heir,
        };
        self.request_done("agent release", &request).await
    }

    async fn succeed(&self, heir: i32) -> Result<(), SandboxError> {
        if !self.has_heirs() {
            return Err(SandboxError::Unsupported("heirs of a program".to_owned()));
        }
        if let Some(Stream::Program(program)) = self.agent.table().streams.get_mut(&self.id) {
            program.ends = program.ends.saturating_add(1);
        }
        let request = Request::Succeed { process: self.id, heir };
        self.request_done("agent succeed", &request).await
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.agent.give_up(self.id);
    }
}
