//! Programs that need no session, in a sandbox that is there: any number run next to each other and to busy sessions.
//!
//! The decision taken here: a command is ended with its process group, not with everything that it may have started. What
//! detaches itself lives on, as behind a shell, until its sandbox ends; a sweep would reach what sessions left running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{Command, Failure, SandboxPath, SessionEvent, SignalScope, StdinMode};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::cells::{arrive, never_ran, until_stopped};
use crate::core::{Core, Finisher};
use crate::executions::Execution;
use crate::ladder::Stop;
use crate::meter::{Cost, Meter};
use crate::policy;
use crate::program::{SPAWN, Streams, follow, judge_program};
use crate::record::{Record, Visit};
use crate::spans;
use crate::verdict::Verdict;
use crate::{ExecutionView, Principal, Watch};

/// Run a program that needs no session in a sandbox that is there, next to whatever runs in it.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    /// The program (a path, or a name that is looked up in the sandbox's PATH) and its arguments.
    pub argv: Vec<String>,
    /// Its working folder.
    pub cwd: SandboxPath,
    /// Variables besides those of the sandbox, which they replace by name.
    pub env: BTreeMap<String, String>,
    /// The sandbox; none means the caller's default one, made when needed.
    pub sandbox_id: Option<String>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The time until the call answers `running`. None waits until the end.
    pub wait: Option<Duration>,
    /// Filled once the execution is admitted.
    pub watch: Watch,
}

/// The language name of commands in results and in the history.
const COMMAND: &str = "command";

impl Core {
    pub(crate) async fn run_command(
        self: &Arc<Self>,
        who: &Principal,
        req: CommandRequest,
        stdin: mpsc::Receiver<Bytes>,
        output: mpsc::Sender<SessionEvent>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let (wait, watch, line) = (req.wait, req.watch.clone(), command_line(&req.argv));
        match self.admit_command(who, req, line.clone(), (stdin, output)).await {
            Ok(job) => {
                let execution = job.execution.clone();
                watch.follow(&execution);
                tokio::spawn(job.run().instrument(spans::execution(&execution)));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse(who, COMMAND, &line, &failure);
                Err(failure)
            }
        }
    }

    async fn admit_command(
        self: &Arc<Self>,
        who: &Principal,
        req: CommandRequest,
        line: String,
        streams: Streams,
    ) -> Result<CommandJob, Failure> {
        if req.argv.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(Failure::invalid(
                "the command names no program",
                "pass the program and its arguments, such as [\"ls\", \"-l\"]",
            ));
        }
        policy::args(&req.argv)?;
        policy::env(&req.env)?;
        let timeout = policy::timeout(&self.config(), req.timeout)?;
        let target = self.target(who, req.sandbox_id.as_deref()).await?;
        let execution = Execution::new(&self.config(), &target.record, COMMAND, line, target.new)?;
        self.executions.add(&execution);
        Ok(CommandJob {
            core: self.clone(),
            execution,
            record: target.record,
            visit: target.visit,
            timeout,
            req,
            streams,
        })
    }
}

/// The command as a shell would take it, for the history.
fn command_line(argv: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    argv.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// One command on its way.
struct CommandJob {
    core: Arc<Core>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    visit: Visit,
    timeout: Duration,
    req: CommandRequest,
    streams: Streams,
}

impl CommandJob {
    async fn run(self) {
        let (core, execution, record, limit) = (
            self.core.clone(),
            self.execution.clone(),
            self.record.clone(),
            self.timeout,
        );
        let finisher = Finisher {
            core: core.clone(),
            execution,
            throwaway: None,
        };
        let end = match self.work().await {
            Ok(done) => Ok(done),
            Err(Ok(stop)) => Ok((never_ran(&core, &record, stop, limit, false), Cost::default())),
            Err(Err(failure)) => Err(failure),
        };
        finisher.finish(end);
    }

    async fn work(self) -> Result<(Verdict, Cost), Result<Stop, Failure>> {
        let Self {
            core,
            execution,
            record,
            visit,
            timeout: limit,
            req,
            streams: (stdin, output),
        } = self;
        let _visit = visit;
        let sandbox = arrive(&execution, &record).await?;
        execution.isolated_by(record.isolation(sandbox.as_ref()), record.passed());
        let entering = until_stopped(&execution, &record, None, core.floor.enter(&record.owner));
        let _place = entering.await.map_err(Ok)?;
        core.processor.may_run(&record.owner).map_err(Err)?;
        let mut env = sandbox.base_env().clone();
        env.extend(req.env);
        let command = Command {
            argv: req.argv,
            env,
            cwd: req.cwd.as_str().to_owned(),
            stdin: StdinMode::Piped,
            control: false,
        };
        let deadline = Instant::now() + limit;
        let starting = timeout(SPAWN, sandbox.spawn(command));
        let started = until_stopped(&execution, &record, Some(deadline), starting)
            .await
            .map_err(Ok)?;
        let process = match started {
            Ok(process) => process.map_err(|error| Err(error.into()))?,
            Err(_) => return Err(Err(crate::files::too_slow("the command could not be started"))),
        };
        execution.begin();
        let meter = Meter::start(&record, &sandbox, true);
        let streams = (stdin, output);
        let ran = follow(process, streams, &execution, &record, deadline, SignalScope::Group).await;
        Ok(judge_program(&core, (&execution, &record), ran, meter, &sandbox, limit).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let line = |words: &[&str]| command_line(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(line(&["ls", "-l", "/tmp/a"]), "ls -l /tmp/a");
        assert_eq!(
            line(&["echo", "a b", "", "it's", "$HOME"]),
            r"echo 'a b' '' 'it'\''s' '$HOME'"
        );
    }
}
