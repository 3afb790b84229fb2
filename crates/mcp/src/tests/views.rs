//! Views of the engine, as tests of texts need them.

use std::time::{Duration, UNIX_EPOCH};

use sandcell_engine::{Cause, ExecutionId, ExecutionView, HistoryRecord, SandboxId, Shown, Status, StoredExecution};
use sandcell_sandbox::{ByteSize, Code, Isolation, Level};

use super::UNKNOWN_EXECUTION;

const SANDBOX_ID: &str = "sbaaaaaaaaaaaaaaaaaaaaaaaaaa";

pub(crate) fn sandbox_id() -> SandboxId {
    SandboxId::parse(SANDBOX_ID).unwrap()
}

pub(crate) fn isolation(degraded: &[&str]) -> Isolation {
    Isolation {
        backend: "native".into(),
        level: Level::Namespace,
        memory: None,
        layers: ["user_namespace", "seccomp", "landlock"].map(str::to_owned).to_vec(),
        degraded: degraded.iter().map(|&layer| layer.to_owned()).collect(),
    }
}

/// An execution that printed `hello`.
pub(crate) fn view() -> ExecutionView {
    ExecutionView {
        id: ExecutionId::parse(UNKNOWN_EXECUTION).unwrap(),
        sandbox_id: sandbox_id(),
        language: "python".into(),
        status: Status::Ok,
        phase: sandcell_engine::Phase::Run,
        findings: Vec::new(),
        tool_calls: Vec::new(),
        waiting_for: Vec::new(),
        exit_code: Some(0),
        signal: None,
        started: UNIX_EPOCH,
        duration: Duration::from_millis(12),
        cpu: Duration::from_millis(10),
        peak_memory: ByteSize::bytes(12_345_678),
        memory: None,
        stdout: shown("hello\n"),
        stderr: Shown::default(),
        result: None,
        result_cut: None,
        result_edited: false,
        result_note: None,
        error: None,
        hint: None,
        cause: None,
        artifacts: vec![],
        missing_outputs: vec![],
        state_lost: false,
        restored: None,
        new_sandbox: false,
        expiry: None,
        notices: vec![],
        isolation: isolation(&[]).into(),
        skipped_backends: vec![],
    }
}

pub(crate) fn shown(text: &str) -> Shown {
    Shown {
        text: text.into(),
        total_bytes: u64::try_from(text.len()).unwrap(),
        truncated: false,
        edited: false,
    }
}

pub(crate) fn cause(code: Code, message: &str, remedy: &str) -> Option<Cause> {
    Some(Cause {
        code,
        message: message.into(),
        remedy: remedy.into(),
    })
}

/// An execution as in the lasting history.
pub(crate) fn kept(code: &str) -> StoredExecution {
    StoredExecution {
        record: HistoryRecord {
            execution_id: ExecutionId::parse(UNKNOWN_EXECUTION).unwrap(),
            sandbox_id: Some(sandbox_id()),
            language: "python".into(),
            status: Status::Ok,
            timestamp: "2026-11-21T00:35:07.123Z".into(),
            success: true,
            duration_ms: 12,
            code_preview: code.into(),
            stdout_preview: String::new(),
            error: None,
        },
        code: code.into(),
        stdout: String::new(),
        stderr: String::new(),
        result: None,
        traceback: None,
        cause: None,
        exit_code: None,
        cpu_ms: 1,
        peak_memory_bytes: 1,
        stdout_bytes: 0,
        stderr_bytes: 0,
        pictures: Vec::new(),
        tool_calls: Vec::new(),
    }
}
