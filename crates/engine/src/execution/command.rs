//! Runs programs that need no session, in an existing sandbox. Any number of them run next to each other and to busy
//! sessions.
//!
//! The decision taken here: a command ends with its process group, not with all of its descendants. A process that it
//! detaches (`setsid … &`) lives until its sandbox ends, as after a shell: ending all descendants would also end
//! processes that sessions have detached.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    Code, Command, Failure, ProcessHandle, SandboxError, SessionEvent, Signal, SignalScope, StdinMode, TerminalSize,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admission::policy;
use crate::execution::job::{outcome_without_run, until_stopped, wait_for_sandbox};
use crate::execution::outcome::Outcome;
use crate::execution::program::{SPAWN_TIMEOUT, Streams, conclude_program, follow};
use crate::execution::service::Executions;
use crate::execution::service::Finisher;
use crate::execution::state::{Execution, ProgramControl};
use crate::execution::termination::Stop;
use crate::sandbox::state::{Record, UseGuard};
use crate::sandbox::usage::{Cost, Meter};
use crate::{CommandInput, CommandLine, CommandRequest, ExecutionId, ExecutionView, Principal, StdinPart};

impl CommandLine {
    /// Returns the programs to try, in order.
    fn candidates(self) -> Vec<Vec<String>> {
        match self {
            Self::Argv(argv) => vec![argv],
            Self::Shell(line) => SHELL_NAMES
                .map(|shell| vec![shell.to_owned(), "-c".to_owned(), line.clone()])
                .to_vec(),
        }
    }

    /// Formats the command for a shell, for the history.
    fn line(&self) -> String {
        match self {
            Self::Argv(argv) => quoted(argv),
            Self::Shell(line) => line.clone(),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let (names_none, words) = match self {
            Self::Argv(argv) => (
                argv.first().is_none_or(|program| program.trim().is_empty()),
                argv.as_slice(),
            ),
            Self::Shell(line) => (line.trim().is_empty(), std::slice::from_ref(line)),
        };
        if names_none {
            return Err(Failure::invalid(
                "the command names no program",
                "pass a command line such as \"ls -l\", or argv: the program and its arguments, such as [\"ls\", \"-l\"]",
            ));
        }
        policy::args(words)
    }
}

/// The number of signals and new sizes for a command that wait.
const MAX_CONTROLS: usize = 16;
/// The language name of commands in results and in the history.
const COMMAND_LANGUAGE: &str = "command";
/// The maximum time to wait for the start of the program. The call's own wait begins after it.
const START_TIMEOUT: Duration = Duration::from_secs(3);
const SHELL_NAMES: [&str; 2] = ["bash", "sh"];

impl Executions {
    pub(crate) async fn run_command(
        self: &Arc<Self>,
        principal: &Principal,
        req: CommandRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.command(principal, req, (stdin, output), None, cancel).await
    }

    /// Does the same with input from calls. The output is stored, not streamed.
    pub(crate) async fn start_command(
        self: &Arc<Self>,
        principal: &Principal,
        req: CommandRequest,
        input: CommandInput,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (feed, stdin) = mpsc::channel(1);
        let (output, _) = mpsc::channel(1);
        if let Err(failure) = policy::stdin_part(&input.first) {
            self.refuse(principal, COMMAND_LANGUAGE, &req.command.line(), &failure);
            return Err(failure);
        }
        if !input.first.is_empty() && feed.try_send(input.first).is_err() {
            return Err(Failure::new(Code::Internal, "a new channel is full", "report this"));
        }
        self.command(principal, req, (stdin, output), input.open.then_some(feed), cancel)
            .await
    }

    async fn command(
        self: &Arc<Self>,
        principal: &Principal,
        req: CommandRequest,
        streams: Streams,
        feed: Option<mpsc::Sender<Bytes>>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch, line) = (req.wait, req.watch.clone(), req.command.line());
        let alone = self
            .sandboxes
            .no_alternatives(principal, req.sandbox_id.as_deref())
            .await;
        let admitted = self.admit_command(principal, req, line.clone(), streams).await;
        drop(alone);
        match admitted {
            Ok(mut job) => {
                let execution = job.execution.clone();
                execution.set_feed(feed);
                let (controls, received) = mpsc::channel(MAX_CONTROLS);
                execution.set_controls(Some(controls));
                job.controls = received;
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(execution.span()));
                let patience = async {
                    match wait {
                        Some(wait) => {
                            // So a start that fails is an error of this call, even if the call does not wait.
                            drop(timeout(START_TIMEOUT, execution.begun()).await);
                            sleep(wait).await;
                        }
                        None => std::future::pending().await,
                    }
                };
                self.answer_within(&execution, patience, cancel).await
            }
            Err(failure) => {
                self.refuse(principal, COMMAND_LANGUAGE, &line, &failure);
                Err(failure)
            }
        }
    }

    /// Sends bytes to a command with open input, and closes the input if requested. All or nothing: while the program
    /// has not taken earlier bytes, it waits for at most `wait`, and then answers `busy`.
    pub(crate) async fn write_stdin(
        &self,
        principal: &Principal,
        id: &str,
        input: StdinPart,
        wait: Duration,
        cancel: CancellationToken,
    ) -> Result<ExecutionId, Failure> {
        policy::stdin_part(&input.bytes)?;
        let execution = self.store.find(principal, id)?;
        if execution.is_finished() {
            return Err(over(&execution.id));
        }
        if !input.bytes.is_empty() {
            let feed = execution.feed().ok_or_else(|| closed(&execution.id))?;
            let place = tokio::select! {
                biased;
                place = timeout(wait, feed.reserve()) => place,
                () = execution.finished() => return Err(over(&execution.id)),
                () = cancel.cancelled() => return Err(Failure::new(
                    Code::Cancelled,
                    "the call was cancelled, and nothing was written",
                    "call again",
                )),
            };
            match place {
                Ok(Ok(permit)) => permit.send(input.bytes),
                Ok(Err(_)) => return Err(closed(&execution.id)),
                Err(_) => return Err(full(&execution.id)),
            }
        }
        if input.close {
            execution.set_feed(None);
        }
        Ok(execution.id.clone())
    }

    async fn admit_command(
        self: &Arc<Self>,
        principal: &Principal,
        req: CommandRequest,
        line: String,
        streams: Streams,
    ) -> Result<CommandJob, Failure> {
        req.command.check()?;
        req.terminal.map_or(Ok(()), terminal_size)?;
        policy::env(&req.env)?;
        let timeout = policy::timeout(&self.sandboxes.config(), req.timeout)?;
        let target = self.sandboxes.target(principal, req.sandbox_id.as_deref()).await?;
        let execution = Execution::new(
            &self.sandboxes.config(),
            &target.record,
            COMMAND_LANGUAGE,
            line,
            target.new,
        )?;
        self.store.add(&execution);
        Ok(CommandJob {
            executions: self.clone(),
            execution,
            record: target.record,
            guard: target.guard,
            timeout,
            req,
            streams,
            controls: mpsc::channel(1).1,
        })
    }

    /// Sends a signal to the program of a running command and to its process group.
    pub(crate) fn signal_command(&self, principal: &Principal, id: &str, signal: Signal) -> Result<(), Failure> {
        self.control_command(principal, id, ProgramControl::Signal(signal))
    }

    /// Gives the terminal of a running command another size.
    pub(crate) fn resize_terminal(&self, principal: &Principal, id: &str, size: TerminalSize) -> Result<(), Failure> {
        terminal_size(size)?;
        self.control_command(principal, id, ProgramControl::Resize(size))
    }

    fn control_command(&self, principal: &Principal, id: &str, control: ProgramControl) -> Result<(), Failure> {
        let execution = self.store.find(principal, id)?;
        let controls = execution.controls().ok_or_else(|| match execution.is_finished() {
            true => ended_before_signal(&execution.id),
            false => Failure::invalid(
                format!("execution {} is not a command", execution.id),
                "only commands receive signals; cancel_execution stops other code",
            ),
        })?;
        match controls.try_send(control) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(ended_before_signal(&execution.id)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Failure::new(
                Code::Busy,
                format!(
                    "execution {} has {MAX_CONTROLS} signals or sizes that wait",
                    execution.id
                ),
                "call again later",
            )),
        }
    }
}

fn terminal_size(size: TerminalSize) -> Result<(), Failure> {
    if size.rows == 0 || size.columns == 0 {
        return Err(Failure::invalid(
            "a terminal has at least one row and one column",
            "pass positive numbers, such as 24 rows and 80 columns",
        ));
    }
    Ok(())
}

fn ended_before_signal(id: &ExecutionId) -> Failure {
    Failure::new(
        Code::Expired,
        format!("execution {id} has ended, so it receives no signal"),
        "get_execution has its result; run_command starts it again",
    )
}

fn over(id: &ExecutionId) -> Failure {
    Failure::new(
        Code::Expired,
        format!("execution {id} has ended, so its input is not read"),
        "get_execution has its result; run_command starts it again",
    )
}

fn closed(id: &ExecutionId) -> Failure {
    Failure::invalid(
        format!("the standard input of execution {id} is closed"),
        "start it by run_command with keep_stdin, and write before close",
    )
}

fn full(id: &ExecutionId) -> Failure {
    Failure::new(
        Code::Busy,
        format!("execution {id} has not read the earlier data; none of this data was written"),
        "call again with the same data, or cancel_execution",
    )
}

fn quoted(argv: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    argv.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// One command in progress.
struct CommandJob {
    executions: Arc<Executions>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    guard: UseGuard,
    timeout: Duration,
    req: CommandRequest,
    streams: Streams,
    /// The signals and sizes that callers send.
    controls: mpsc::Receiver<ProgramControl>,
}

impl CommandJob {
    async fn run(self) {
        let (executions, execution, record, limit) = (
            self.executions.clone(),
            self.execution.clone(),
            self.record.clone(),
            self.timeout,
        );
        let finisher = Finisher {
            executions: executions.clone(),
            execution,
            throwaway: None,
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(stop)) => Ok((
                outcome_without_run(&executions.sandboxes, &record, stop, limit, false),
                Cost::default(),
            )),
            Err(Err(failure)) => Err(failure),
        };
        finisher.finish(end);
    }

    async fn work(self) -> Result<(Outcome, Cost), Result<Stop, Failure>> {
        let Self {
            executions,
            execution,
            record,
            guard,
            timeout: limit,
            req,
            streams: (stdin, output),
            controls,
        } = self;
        let _guard = guard;
        let sandbox = wait_for_sandbox(&execution, &record).await?;
        execution.set_isolation(record.isolation(sandbox.as_ref()), record.skipped_backends());
        let entering = until_stopped(
            &execution,
            &record,
            None,
            executions.sandboxes.scheduler.acquire(&record.owner),
        );
        let _permit = entering.await.map_err(Ok)?;
        executions.sandboxes.cpu_quota.may_run(&record.owner).map_err(Err)?;
        let mut env = sandbox.base_env().clone();
        env.extend(req.env);
        let deadline = Instant::now() + limit;
        let mut candidates = req.command.candidates().into_iter().peekable();
        let process = loop {
            let argv = candidates.next().unwrap_or_default();
            let command = Command {
                argv,
                env: env.clone(),
                cwd: req.cwd.as_str().to_owned(),
                stands_alone: true,
                stdin: StdinMode::Piped,
                control: false,
                terminal: req.terminal,
            };
            let starting = timeout(SPAWN_TIMEOUT, sandbox.spawn(command));
            let started = until_stopped(&execution, &record, Some(deadline), starting)
                .await
                .map_err(Ok)?;
            match started {
                Ok(Ok(process)) => break process,
                Ok(Err(SandboxError::Spawn { source, .. }))
                    if source.kind() == ErrorKind::NotFound && candidates.peek().is_some() => {}
                Ok(Err(SandboxError::Spawn { program, source })) if source.kind() != ErrorKind::WouldBlock => {
                    return Ok((Outcome::not_started(&program, &source), Cost::default()));
                }
                Ok(Err(error)) => return Err(Err(error.into())),
                Err(_) => return Err(Err(crate::sandbox::files::too_slow("the command could not be started"))),
            }
        };
        if let Some(pid) = process.pid {
            execution.set_pid(pid);
        }
        execution.begin();
        let meter = Meter::start(&record, &sandbox, true);
        let streams = (stdin, output);
        let forwarding = forward_controls(process.handle.clone(), controls);
        let ran = tokio::select! {
            biased;
            ran = follow(process, streams, &execution, &record, deadline, SignalScope::Group) => ran,
            never = forwarding => match never {},
        };
        Ok(conclude_program(
            &executions.sandboxes,
            (&execution, &record),
            ran,
            meter,
            &sandbox,
            limit,
        )
        .await)
    }
}

/// Forwards signals and sizes to a program. Never ends: the end of the program ends it.
async fn forward_controls(handle: Arc<dyn ProcessHandle>, mut controls: mpsc::Receiver<ProgramControl>) -> Infallible {
    while let Some(control) = controls.recv().await {
        let done = match control {
            ProgramControl::Signal(signal) => handle.signal(signal, SignalScope::Group).await,
            ProgramControl::Resize(size) => handle.resize(size).await,
        };
        if let Err(error) = done {
            tracing::debug!(%error, "{control:?} did not reach its program");
        }
    }
    drop(handle);
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let line = |words: &[&str]| quoted(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["ls", "-l", "/tmp/a"]), "ls -l /tmp/a");
        assert_eq!(
            line(&["echo", "a b", "", "it's", "$HOME"]),
            r"echo 'a b' '' 'it'\''s' '$HOME'"
        );
    }
}
