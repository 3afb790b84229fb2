//! The outcome of an execution for its caller: status, exit code, cause and remedy. Pure.

mod outer;

use std::time::Duration;

use sandcell_sandbox::{CellError, CellStatus, Code, Exit, Failure, Limits, Usage};

use crate::execution::code_error;
use crate::execution::termination::{INTERRUPT_GRACE, KILL_TIMEOUT, Step, Stop};
use crate::sandbox::network::NetworkEvidence;
use crate::sandbox::state::{Terminated, TerminationReason, span};
use crate::{Cause, CodeError, Hints, Phase, Restored, SANDBOX_LOST, Status};

const RESTORED_REMEDY: &str = "correct the code and call again: the next call continues in the restored session";
const FRESH_SESSION_REMEDY: &str = "the next call gets a fresh interpreter; files are still there";

/// The outcome of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended the process.
    pub(crate) signal: Option<u8>,
    pub(crate) error: Option<CodeError>,
    /// The addition of the code's session to the error. The code can forge it, so it is never a remedy.
    pub(crate) hint: Option<String>,
    pub(crate) cause: Option<Cause>,
    pub(crate) state_lost: bool,
    pub(crate) restored: Option<Restored>,
    /// The step in which the execution ended.
    pub(crate) phase: Phase,
}

/// The raw end of the code.
#[derive(Debug)]
pub(crate) enum Ending {
    /// A cell of a session.
    Cell(CellStatus),
    /// A whole program.
    Program(Exit),
    /// The connection to the session or the program was lost.
    Broke(Failure),
    /// It did not end after being killed.
    Abandoned,
    /// It ended before the code started.
    NeverRan,
}

/// The evidence for an outcome.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) ending: Ending,
    /// The reason for the end from outside, if any, and the last step of the termination.
    pub(crate) stop: Option<Stop>,
    pub(crate) step: Step,
    pub(crate) timeout: Duration,
    pub(crate) limits: &'a Limits,
    pub(crate) before: Usage,
    pub(crate) after: Option<Usage>,
    /// The end of the whole sandbox.
    pub(crate) terminated: Option<Terminated>,
    /// True if the session's variables would have stayed for a next call.
    pub(crate) keeps: bool,
    pub(crate) hints: &'a Hints,
    /// The state to which the session was restored after its interpreter died.
    pub(crate) restored: Option<Restored>,
    /// The reason why it was not restored.
    pub(crate) why_lost: Option<String>,
    /// The hosts that it can reach, and the denied connections.
    pub(crate) network: NetworkEvidence,
}

impl Evidence<'_> {
    /// Describes the fate of an ended interpreter's variables, as the end of a sentence.
    fn variables(&self) -> String {
        match (&self.restored, &self.why_lost) {
            _ if !self.keeps => String::new(),
            (Some(_), _) => "; the session was restored".to_owned(),
            (None, Some(why)) => format!("; variables are lost: the session could not be restored, because {why}"),
            (None, None) => "; variables are lost".to_owned(),
        }
    }

    fn after_a_crash(&self) -> &'static str {
        match (self.keeps, &self.restored) {
            (true, Some(_)) => RESTORED_REMEDY,
            (true, None) => FRESH_SESSION_REMEDY,
            (false, _) => "correct the code and run it again",
        }
    }
}

impl Outcome {
    /// The code still runs.
    pub(crate) const fn running() -> Self {
        Self {
            status: Status::Running,
            exit_code: None,
            signal: None,
            error: None,
            hint: None,
            cause: None,
            state_lost: false,
            restored: None,
            phase: Phase::Run,
        }
    }

    /// The call could not be carried out, and this became known after the answer `running`.
    pub(crate) fn refused(failure: Failure) -> Self {
        Self {
            status: Status::Error,
            cause: Some(cause(failure.code, failure.message, failure.remedy)),
            ..Self::running()
        }
    }

    /// A program that was not started, with the exit code that shells use for it.
    pub(crate) fn not_started(program: &str, source: &std::io::Error) -> Self {
        let program = crate::api::ids::quote_for_error(program);
        let (exit_code, code, message) = match source.kind() {
            std::io::ErrorKind::NotFound => (
                127,
                Code::NotFound,
                format!("there is no program {program} in the sandbox"),
            ),
            _ => (
                126,
                Code::InvalidArgument,
                format!("the program {program} could not be started: {source}"),
            ),
        };
        let remedy = "check its name, its mode and the PATH of the sandbox; install it, or use an image that has it";
        Self {
            status: Status::Error,
            exit_code: Some(exit_code),
            cause: Some(cause(code, message, remedy)),
            ..Self::running()
        }
    }
}

/// Determines the outcome from the evidence.
pub(crate) fn outcome_of(evidence: Evidence<'_>) -> Outcome {
    let lives = match &evidence.ending {
        Ending::Cell(status) => !matches!(status, CellStatus::Died(_)),
        Ending::NeverRan => true,
        Ending::Program(_) | Ending::Broke(_) | Ending::Abandoned => false,
    };
    let lives_on = lives || evidence.restored.is_some();
    let lost = evidence.keeps && (!lives_on || evidence.terminated.is_some());
    let outcome = match (&evidence.stop, &evidence.terminated) {
        // The end of the sandbox is the more important fact for the caller, even if it was noticed before the stop.
        (Some(Stop::SandboxEnded(terminated)), _) | (None, Some(terminated)) if !ended_by_itself(&evidence.ending) => {
            sandbox_ended(terminated, &evidence)
        }
        (Some(Stop::Reset | Stop::SandboxEnded(_)), _) if ended_by_itself(&evidence.ending) => own_end(&evidence),
        (Some(stop), _) => stopped(stop, lives, &evidence),
        (None, _) => own_end(&evidence),
    };
    let outcome = denied_network(outcome, &evidence.network);
    let (error, hint) = match evidence.ending {
        Ending::Cell(CellStatus::Error(error) | CellStatus::Interrupted(error)) => {
            let hint = code_error::hint(&error.hint);
            (code_error::error(error), hint)
        }
        Ending::Cell(_) | Ending::Program(_) | Ending::Broke(_) | Ending::Abandoned | Ending::NeverRan => (None, None),
    };
    Outcome {
        hint,
        error,
        state_lost: lost,
        restored: evidence.restored.filter(|_| evidence.keeps && !lost),
        ..outcome
    }
}

/// Adds denied connections to the cause of failed code: most likely they made it fail.
fn denied_network(outcome: Outcome, network: &NetworkEvidence) -> Outcome {
    let failed = |cause: &Cause| matches!(cause.code, Code::CodeFailed | Code::NetworkDenied);
    match (outcome.cause, network.describe_denials()) {
        (Some(own), Some((message, remedy))) if outcome.status == Status::Error && failed(&own) => Outcome {
            cause: Some(cause(
                Code::NetworkDenied,
                format!("{}; {message}", own.message),
                remedy,
            )),
            ..outcome
        },
        (own, _) => Outcome { cause: own, ..outcome },
    }
}

/// True if the code ended by itself, so that a sandbox that ended right after it is not the cause.
const fn ended_by_itself(ending: &Ending) -> bool {
    match ending {
        Ending::Cell(status) => !matches!(status, CellStatus::Died(_)),
        Ending::Program(exit) => matches!(exit, Exit::Code(_)),
        Ending::Broke(_) | Ending::Abandoned | Ending::NeverRan => false,
    }
}

fn own_end(evidence: &Evidence<'_>) -> Outcome {
    match &evidence.ending {
        Ending::Cell(CellStatus::Ok) => ok(),
        Ending::Cell(CellStatus::Exit(code)) => exited(*code),
        Ending::Cell(CellStatus::Ended(Exit::Code(code))) | Ending::Program(Exit::Code(code)) => {
            exited(i32::from(*code))
        }
        Ending::Cell(CellStatus::Error(error) | CellStatus::Interrupted(error)) => raised(error, evidence),
        Ending::Cell(CellStatus::Died(exit)) => died("the interpreter", *exit, evidence),
        Ending::Cell(CellStatus::Ended(exit)) | Ending::Program(exit) => died("the program", *exit, evidence),
        Ending::Broke(failure) => killed(failure.code, failure.message.clone(), failure.remedy.clone()),
        Ending::Abandoned | Ending::NeverRan => killed(
            Code::Internal,
            "the end of the code was not observed".to_owned(),
            "run it again".to_owned(),
        ),
    }
}

fn ok() -> Outcome {
    Outcome {
        status: Status::Ok,
        exit_code: Some(0),
        ..Outcome::running()
    }
}

fn exited(code: i32) -> Outcome {
    if code == 0 {
        return ok();
    }
    Outcome {
        status: Status::Error,
        exit_code: Some(code),
        cause: Some(cause(
            Code::CodeFailed,
            format!("the code ended with exit code {code}"),
            "see its output for the reason",
        )),
        ..Outcome::running()
    }
}

/// Returns the outcome of code that raised an error. The driver's error class names the limit, if any.
fn raised(error: &CellError, evidence: &Evidence<'_>) -> Outcome {
    let limits = evidence.limits;
    let hit = evidence
        .after
        .is_some_and(|after| after.memory_events > evidence.before.memory_events);
    let name = code_error::name(&error.name);
    // Python without memory reports only the name of the error.
    let class = if error.name == "MemoryError" {
        "memory"
    } else {
        error.class.as_str()
    };
    let (code, message, remedy) = match class {
        "memory" => (
            Code::OutOfMemory,
            format!("{name}: the sandbox may use {} MiB of memory", limits.memory.as_mib()),
            evidence.hints.more_memory.clone(),
        ),
        // A killed process caused the code's own error: a child that it waited for, or a worker of a pool.
        "" if hit => (
            Code::OutOfMemory,
            format!(
                "a process of the code was ended for memory: the sandbox may use {} MiB; then the code raised {name}",
                limits.memory.as_mib()
            ),
            evidence.hints.more_memory.clone(),
        ),
        "disk" => (
            Code::DiskFull,
            format!(
                "{name}: the sandbox may hold {} MiB in {} files",
                limits.disk.as_mib(),
                limits.inodes
            ),
            evidence.hints.more_disk.clone(),
        ),
        "processes" => {
            let outer = evidence.after.and_then(|after| outer::refused(&after, limits.processes));
            (
                Code::ProcessLimit,
                format!(
                    "{name}: the sandbox may have {} processes and threads{}",
                    limits.processes,
                    outer.as_ref().map_or("", |outer| outer.reason.as_str())
                ),
                outer.map_or("start fewer at once, and wait for those that have ended", |outer| outer.remedy).to_owned(),
            )
        }
        "network" if evidence.network.hosts.is_empty() => (
            Code::NetworkDenied,
            format!("{name}: the sandbox has no network"),
            evidence.hints.bring_data.clone(),
        ),
        "network" => (
            Code::NetworkDenied,
            format!(
                "{name}: the sandbox reaches {} and nothing else, and only through its proxy",
                evidence.network.hosts.join(", ")
            ),
            "use a client that supports HTTP_PROXY and HTTPS_PROXY (most do), or SOCKS 5 at 127.0.0.1:3128; names are not \
             resolved inside"
                .to_owned(),
        ),
        "package" => (
            Code::PackageFailed,
            "a package could not be installed; the error says why".to_owned(),
            "check the package's name and version, or do without it".to_owned(),
        ),
        "compile" => (
            Code::CodeFailed,
            // A driver cannot report this class: the message is the server's.
            match error.message.as_str() {
                "" => "the code did not compile, so it did not run".to_owned(),
                message => format!("the code did not compile, so it did not run: {message}"),
            },
            "the compiler's messages name the lines; correct them and run it again".to_owned(),
        ),
        "stdin" => (
            Code::CodeFailed,
            format!("{name}: the code reads standard input, and there is none"),
            evidence.hints.give_stdin.clone(),
        ),
        "no_stdin" => (
            Code::CodeFailed,
            format!("{name}: the code reads standard input, and this back end has none"),
            "put the values into the code, or write them into a file and read that".to_owned(),
        ),
        _ => (
            Code::CodeFailed,
            format!("the code raised {name}"),
            if evidence.keeps {
                "correct the code and run it again; what ran before the error has had its effect, and variables are kept"
            } else {
                "correct the code and run it again"
            }
            .to_owned(),
        ),
    };
    Outcome {
        phase: match error.class.as_str() {
            "compile" => Phase::Compile,
            _ => Phase::Run,
        },
        status: Status::Error,
        exit_code: Some(1),
        cause: Some(cause(code, message, remedy)),
        ..Outcome::running()
    }
}

/// Returns the outcome of an unexpected end of the process. The counters show if a limit was the reason.
fn died(what: &str, exit: Exit, evidence: &Evidence<'_>) -> Outcome {
    let after = evidence.after.unwrap_or(evidence.before);
    let for_memory = after.memory_events > evidence.before.memory_events;
    let for_processes = after.process_events > evidence.before.process_events;
    let (exit_code, how) = match exit {
        Exit::Code(code) => (i32::from(code), format!("ended with exit code {code}")),
        Exit::Signal(signal) => (128 + i32::from(signal), format!("was ended by {}", signal_name(signal))),
    };
    let by_signal = matches!(exit, Exit::Signal(_));
    // An interpreter that cannot allocate may end by itself, without a counted kill.
    let memory = evidence.limits.memory.as_bytes();
    let starved = exit == Exit::Code(1) && after.memory_peak >= memory - memory / 8;
    let for_memory = for_memory || starved;
    let lost = evidence.variables();
    let outer = outer::behind(&after, memory).filter(|_| for_memory && !starved);
    let refused = outer::refused(&after, evidence.limits.processes);
    let outcome = match (by_signal || starved, for_memory, for_processes) {
        (true, true, _) => killed(
            Code::OutOfMemory,
            format!(
                "{what} {}: the sandbox may use {} MiB, and its peak was {} MiB{}{lost}",
                if starved {
                    "ended because memory was refused"
                } else {
                    "was killed for memory"
                },
                evidence.limits.memory.as_mib(),
                after.memory_peak >> 20,
                outer.as_ref().map_or("", |outer| outer.reason.as_str())
            ),
            outer.map_or_else(|| evidence.hints.more_memory.clone(), |outer| outer.remedy.to_owned()),
        ),
        (true, false, true) => killed(
            Code::ProcessLimit,
            format!(
                "{what} {how} after new processes were refused: the sandbox may have {}{}{lost}",
                evidence.limits.processes,
                refused.as_ref().map_or("", |outer| outer.reason.as_str())
            ),
            refused.map_or("start fewer at once", |outer| outer.remedy).to_owned(),
        ),
        (false, ..) | (true, false, false) => Outcome {
            status: if exit == Exit::Signal(9) {
                Status::Killed
            } else {
                Status::Error
            },
            cause: Some(cause(
                Code::Crashed,
                format!("{what} {how}{lost}"),
                evidence.after_a_crash(),
            )),
            ..Outcome::running()
        },
    };
    Outcome {
        exit_code: Some(exit_code),
        signal: match exit {
            Exit::Signal(signal) => Some(signal),
            Exit::Code(_) => None,
        },
        ..outcome
    }
}

fn stopped(stop: &Stop, lives: bool, evidence: &Evidence<'_>) -> Outcome {
    let variables = match (evidence.keeps, lives) {
        (true, true) => "; variables are kept".to_owned(),
        (true, false) | (false, _) => evidence.variables(),
    };
    let time = span(evidence.timeout);
    let how = match (&evidence.ending, evidence.step) {
        (Ending::NeverRan, _) => String::new(),
        (Ending::Abandoned, _) | (_, Step::GivenUp) => format!(
            "was still running {} after being killed, so its sandbox was closed",
            span(KILL_TIMEOUT)
        ),
        (_, Step::Free | Step::Interrupted) => format!("was interrupted{variables}"),
        (_, Step::Killed) if matches!(stop, Stop::Reset | Stop::SandboxEnded(_)) => format!("was killed{variables}"),
        (_, Step::Killed) => format!(
            "did not stop within {} of its interrupt and was killed{variables}",
            span(INTERRUPT_GRACE)
        ),
    };
    let more_time = evidence.hints.more_time.as_str();
    let (status, code, message, remedy) = match stop {
        Stop::Output(bytes) => (
            Status::Error,
            Code::OutputLimit,
            format!("the code printed more than {} MiB and {how}", bytes >> 20),
            "print less, or write into a file and read parts of it",
        ),
        Stop::Timeout if matches!(evidence.ending, Ending::NeverRan) => (
            Status::Timeout,
            Code::Timeout,
            format!("the interpreter was not ready after {time}"),
            more_time,
        ),
        Stop::Timeout if evidence.step <= Step::Interrupted => (
            Status::Timeout,
            Code::Timeout,
            format!("the code was interrupted after {time}{variables}"),
            more_time,
        ),
        Stop::Timeout => (
            Status::Timeout,
            Code::Timeout,
            format!("the code ran for {time} and {how}"),
            more_time,
        ),
        Stop::Cancelled | Stop::Reset | Stop::SandboxEnded(_) => {
            let why = if matches!(stop, Stop::Reset) {
                "the session was reset"
            } else {
                "the call was cancelled"
            };
            let how = if how.is_empty() {
                "did not start".to_owned()
            } else {
                how
            };
            (
                Status::Cancelled,
                Code::Cancelled,
                format!("{why}: the code {how}"),
                "run it again if it is still needed",
            )
        }
    };
    Outcome {
        status,
        cause: Some(cause(code, message, remedy)),
        ..Outcome::running()
    }
}

/// Returns the outcome of code whose sandbox ended while it ran.
fn sandbox_ended(terminated: &Terminated, evidence: &Evidence<'_>) -> Outcome {
    let code = match terminated.why {
        TerminationReason::Closed => Code::Cancelled,
        TerminationReason::Idle(_)
        | TerminationReason::Lifetime
        | TerminationReason::Lost(_)
        | TerminationReason::Unresponsive
        | TerminationReason::RanWhilePaused
        | TerminationReason::Shutdown => terminated.code(),
    };
    let limit = match code {
        Code::OutOfMemory => format!(" (it may use {} MiB)", evidence.limits.memory.as_mib()),
        Code::DiskFull => format!(
            " (it may hold {} MiB in {} files)",
            evidence.limits.disk.as_mib(),
            evidence.limits.inodes
        ),
        _ => String::new(),
    };
    let rest = if evidence.keeps {
        format!("; {SANDBOX_LOST}")
    } else {
        String::new()
    };
    let remedy = match code {
        Code::OutOfMemory => evidence.hints.more_memory.as_str(),
        Code::DiskFull => "write less, delete files sooner, or make a sandbox with a larger disk_mb",
        _ if evidence.keeps => "call again without sandbox_id for a new default sandbox, or use create_sandbox",
        _ => "run it again",
    };
    killed(
        code,
        format!("the whole sandbox {}{limit}{rest}", terminated.description()),
        remedy.to_owned(),
    )
}

fn killed(code: Code, message: String, remedy: String) -> Outcome {
    Outcome {
        status: Status::Killed,
        cause: Some(cause(code, message, remedy)),
        ..Outcome::running()
    }
}

fn cause(code: Code, message: String, remedy: impl Into<String>) -> Cause {
    Cause {
        code,
        message,
        remedy: remedy.into(),
    }
}

/// Returns the name of a signal. The numbers are Linux's, on every host.
fn signal_name(signal: u8) -> String {
    let known = match signal {
        2 => "SIGINT, an interrupt",
        4 => "SIGILL, an illegal instruction",
        6 => "SIGABRT, an abort",
        7 => "SIGBUS, a bus error",
        8 => "SIGFPE, an arithmetic error",
        9 => "SIGKILL, from inside the sandbox or by the system for want of memory around it",
        11 => "SIGSEGV, a segmentation fault",
        13 => "SIGPIPE, a broken pipe",
        15 => "SIGTERM, a request to end",
        24 => "SIGXCPU, the processor time limit",
        25 => "SIGXFSZ, the file size limit",
        31 => "SIGSYS, a system call that is not allowed",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests;
