//! A fake engine for tests: it answers at once as the code's text requests, and keeps files in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_engine::{
    Artifact, BackendView, Cause, CommandInput, CommandRequest, CreateRequest, EngineConfig, ExecuteRequest,
    ExecutionId, ExecutionView, FileAnswer, HistoryPage, HistoryQuery, HistoryRecord, HistoryView, InstallRequest,
    KeptExecution, KeptPicture, MemoryGrowth, MemoryUse, Principal, ResetView, RunRequest, RunningView, SandboxId,
    SandboxView, SecurityEvent, SessionView, Shown, Status, StdinPart, StreamSlice, Watch,
};
use sandcell_sandbox::{
    ByteSize, Code, Entry, EntryKind, Failure, FileChunk, FileError, Isolation, LanguageInfo, Level, Limits, Listing,
    SandboxPath, Usage, WriteMode,
};
use tokio_util::sync::CancellationToken;

use super::{Host, StreamPart};

pub(crate) const SANDBOX: &str = "sbaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(crate) const EXECUTION: &str = "exbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// See the module.
pub(crate) struct FakeHost {
    pub(crate) config: EngineConfig,
    pub(crate) languages: Vec<LanguageInfo>,
    pub(crate) files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The requests so far, in Rust's debug format.
    pub(crate) asked: Mutex<Vec<String>>,
    /// Executions that were stopped because their call was cancelled.
    pub(crate) stopped: Mutex<Vec<String>>,
    pub(crate) notices: Vec<String>,
    pub(crate) artifacts: Vec<Artifact>,
    /// The hosts that sandboxes may ask to reach.
    pub(crate) network: Vec<String>,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self {
            config: EngineConfig::default(),
            languages: vec![
                LanguageInfo {
                    name: "python".into(),
                    aliases: vec!["py".into()],
                    version: "3.11.2".into(),
                    libraries: vec!["numpy 2.1.0".into(), "pandas 2.2.3".into()],
                    session: true,
                    extensions: vec!["py".into()],
                },
                LanguageInfo {
                    name: "bash".into(),
                    aliases: vec!["sh".into()],
                    version: "5.2".into(),
                    libraries: vec![],
                    session: true,
                    extensions: vec!["sh".into()],
                },
            ],
            files: Mutex::default(),
            network: Vec::new(),
            asked: Mutex::default(),
            stopped: Mutex::default(),
            notices: vec![],
            artifacts: vec![],
        }
    }
}

pub(crate) fn sandbox_id() -> SandboxId {
    SandboxId::parse(SANDBOX).unwrap()
}

pub(crate) fn isolation(degraded: &[&str]) -> Isolation {
    Isolation {
        backend: "native".into(),
        level: Level::Namespace,
        layers: ["user_namespace", "seccomp", "landlock"].map(str::to_owned).to_vec(),
        degraded: degraded.iter().map(|&layer| layer.to_owned()).collect(),
    }
}

/// An execution that printed `hello`.
pub(crate) fn view() -> ExecutionView {
    ExecutionView {
        id: ExecutionId::parse(EXECUTION).unwrap(),
        sandbox_id: sandbox_id(),
        language: "python".into(),
        status: Status::Ok,
        phase: sandcell_engine::Phase::Run,
        findings: Vec::new(),
        exit_code: Some(0),
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

fn growth() -> Vec<MemoryGrowth> {
    let of = |before: u64, after: u64| MemoryUse {
        before: ByteSize::mib(before),
        after: ByteSize::mib(after),
        limit: ByteSize::mib(512),
    };
    let row = |memory, peak| MemoryGrowth {
        execution_id: ExecutionId::parse(EXECUTION).unwrap(),
        memory,
        peak,
    };
    vec![
        row(Some(of(8, 48)), Some(ByteSize::mib(50))),
        row(None, None),
        row(Some(of(48, 40)), None),
    ]
}

fn sandbox() -> SandboxView {
    SandboxView {
        id: sandbox_id(),
        is_default: true,
        state: "idle",
        label: Some("a label".into()),
        key: None,
        made_now: true,
        created: SystemTime::now() - Duration::from_secs(600),
        idle_expires: SystemTime::now() + Duration::from_secs(1800),
        ends: None,
        limits: Limits::default(),
        usage: Some(Usage {
            memory: 40 << 20,
            memory_peak: 50 << 20,
            cpu_us: 2_500_000,
            processes: 3,
            disk: 1 << 20,
            inodes: 12,
            memory_events: 0,
            process_events: 0,
            ..Usage::default()
        }),
        packages: vec!["numpy 2.1.0".into()],
        sessions: vec![SessionView {
            language: "python".into(),
            cells: 3,
            busy: false,
            variables: None,
        }],
        growth: growth(),
        isolation: isolation(&["cgroup: not delegated"]),
        network: Vec::new(),
        network_bytes: 0,
        skipped_backends: vec![],
    }
}

impl FakeHost {
    fn ask(&self, what: impl std::fmt::Debug) {
        self.asked.lock().unwrap().push(format!("{what:?}"));
    }

    fn file_answer<T>(&self, value: T) -> FileAnswer<T> {
        FileAnswer {
            sandbox_id: sandbox_id(),
            new_sandbox: false,
            notices: self.notices.clone(),
            value,
        }
    }

    fn file(&self, path: &SandboxPath) -> Result<Vec<u8>, Failure> {
        let path = path.as_str().to_owned();
        let file = self.files.lock().unwrap().get(&path).cloned();
        file.ok_or_else(|| FileError::NotFound { path }.into())
    }

    async fn run(&self, code: &str, cancel: CancellationToken) -> Result<ExecutionView, Failure> {
        match code {
            "panic" => panic!("a mistake in the server"),
            "hang" => {
                cancel.cancelled().await;
                self.stopped.lock().unwrap().push(code.to_owned());
                Ok(ExecutionView {
                    status: Status::Cancelled,
                    ..view()
                })
            }
            "sleep" => {
                tokio::time::sleep(Duration::from_millis(2500)).await;
                Ok(view())
            }
            "later" => {
                tokio::time::sleep(Duration::from_millis(1200)).await;
                Ok(ExecutionView {
                    status: Status::Running,
                    ..view()
                })
            }
            "" => Err(Failure::invalid("`code` is empty", "give the code to run")),
            code => Ok(ExecutionView {
                stdout: shown(code),
                artifacts: self.artifacts.clone(),
                ..view()
            }),
        }
    }
}

/// An execution as in the lasting history.
pub(crate) fn kept(code: &str) -> KeptExecution {
    KeptExecution {
        record: HistoryRecord {
            execution_id: ExecutionId::parse(EXECUTION).unwrap(),
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
    }
}

#[async_trait]
impl Host for FakeHost {
    fn config(&self) -> Arc<EngineConfig> {
        Arc::new(self.config.clone())
    }

    fn languages(&self) -> Vec<LanguageInfo> {
        self.languages.clone()
    }

    fn default_language(&self) -> &str {
        let names = || self.languages.iter().map(|language| language.name.as_str());
        names()
            .find(|name| *name == "python")
            .or(names().next())
            .unwrap_or("python")
    }

    fn counts(&self) -> sandcell_engine::Counts {
        sandcell_engine::Counts::default()
    }

    fn capacity(&self) -> Option<sandcell_sandbox::Capacity> {
        None
    }

    fn backends(&self) -> Vec<BackendView> {
        vec![BackendView {
            name: "native",
            isolation: isolation(&[]),
            left_out: Vec::new(),
            layers: vec![],
            supports_images: false,
            uses_host_programs: true,
        }]
    }

    async fn execute(
        &self,
        _: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.ask(&request);
        self.run(&request.code, cancel).await
    }

    async fn execute_alone(
        &self,
        _: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.asked.lock().unwrap().push(format!("alone: {request:?}"));
        self.run(&request.code, cancel).await
    }

    async fn run_once(
        &self,
        _: &Principal,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.ask(&request);
        let view = self.run(&request.code, cancel).await?;
        Ok(ExecutionView {
            new_sandbox: true,
            ..view
        })
    }

    async fn start_command(
        &self,
        _: &Principal,
        request: CommandRequest,
        input: CommandInput,
        _: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.ask((&request, &input));
        Ok(ExecutionView {
            language: "command".into(),
            ..view()
        })
    }

    async fn write_stdin(
        &self,
        _: &Principal,
        id: &str,
        part: StdinPart,
        wait: Duration,
        _: CancellationToken,
    ) -> Result<ExecutionId, Failure> {
        self.ask((id, &part, wait));
        ExecutionId::parse(id)
            .ok_or_else(|| Failure::new(Code::NotFound, format!("there is no execution {id}"), "look"))
    }

    fn package_languages(&self) -> Vec<String> {
        vec!["python".into()]
    }

    fn consent_required(
        &self,
        _: Option<&str>,
        packages: &[String],
        hosts: &[String],
    ) -> sandcell_sandbox::ConsentRequired {
        let asked = |all: &[String]| all.iter().filter(|one| one.starts_with("ask-")).cloned().collect();
        sandcell_sandbox::ConsentRequired {
            packages: asked(packages),
            hosts: asked(hosts),
        }
    }

    fn network_allowed(&self) -> Vec<String> {
        self.network.clone()
    }

    async fn install(
        &self,
        _who: &Principal,
        request: InstallRequest,
        _cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        if request.packages.iter().any(|package| package.starts_with('-')) {
            return Err(Failure::new(
                Code::PackageNotAllowed,
                "options are not taken",
                "pass names",
            ));
        }
        Ok(ExecutionView {
            stdout: shown(&format!("installed {}\n", request.packages.join(", "))),
            ..view()
        })
    }

    async fn create(&self, _: &Principal, request: CreateRequest) -> Result<Vec<SandboxView>, Failure> {
        self.ask(&request);
        if request.label.as_deref() == Some("slow") {
            tokio::time::sleep(Duration::from_millis(300)).await;
            self.ask("made");
        }
        Ok((0..request.count).map(|_| sandbox()).collect())
    }

    fn expiring(&self, _: &Principal) -> sandcell_engine::ExpiryNotices {
        sandcell_engine::ExpiryNotices::default()
    }

    async fn close(&self, _: &Principal, id: &str) -> Result<SandboxId, Failure> {
        SandboxId::parse(id).ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                format!("there is no sandbox {id}"),
                "get_sandbox_status lists yours",
            )
        })
    }

    async fn status(&self, _: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        Ok(if id.is_some() {
            vec![sandbox()]
        } else {
            vec![sandbox(), sandbox()]
        })
    }

    async fn execution(&self, _: &Principal, id: &str, wait: Duration) -> Result<ExecutionView, Failure> {
        self.ask((id, wait));
        match id {
            EXECUTION => Ok(ExecutionView {
                artifacts: self.artifacts.clone(),
                ..view()
            }),
            _ => Err(Failure::new(
                Code::NotFound,
                "there is no execution with that id",
                "get_execution_history lists yours",
            )),
        }
    }

    fn running(&self, _: &Principal) -> Vec<RunningView> {
        Vec::new()
    }

    async fn kept(&self, _: &Principal, id: &str) -> Result<KeptExecution, Failure> {
        Err(Failure::new(
            Code::NotFound,
            format!("there is no execution {id}"),
            "look",
        ))
    }

    async fn picture(&self, _: &Principal, _: &str, _: u32) -> Option<KeptPicture> {
        None
    }

    fn watch(&self, _who: &Principal, _id: &str, _watch: &Watch) -> Result<(), Failure> {
        Ok(())
    }

    async fn stream(&self, _: &Principal, _: &str, part: StreamPart) -> Result<StreamSlice, Failure> {
        self.ask(&part);
        Ok(StreamSlice {
            text: "part of it\n".into(),
            offset: 100,
            next_offset: 111,
            total_bytes: 5000,
            eof: false,
        })
    }

    async fn cancel(&self, _: &Principal, id: Option<&str>) -> Result<ExecutionView, Failure> {
        self.ask(id);
        Ok(ExecutionView {
            status: Status::Cancelled,
            cause: cause(
                Code::Cancelled,
                "the code was interrupted by cancel_execution",
                "variables are still there; call execute_code again",
            ),
            ..view()
        })
    }

    async fn list_files(
        &self,
        _: &Principal,
        _: Option<&str>,
        path: &SandboxPath,
        recursive: bool,
        max: usize,
    ) -> Result<FileAnswer<Listing>, Failure> {
        self.ask((path, recursive, max));
        let entry = |name: &str, kind, size| Entry {
            name: name.into(),
            kind,
            target: (kind == EntryKind::Link).then(|| "data.csv".to_owned()),
            size,
            modified_ms: 1_795_221_307_123,
        };
        Ok(self.file_answer(Listing {
            entries: vec![
                entry("data.csv", EntryKind::File, 1234),
                entry("odd\nname", EntryKind::Link, 5),
                entry("src", EntryKind::Folder, 4096),
            ],
            omitted: 7,
        }))
    }

    async fn read_file(
        &self,
        _: &Principal,
        _: Option<&str>,
        path: &SandboxPath,
        offset: u64,
        len: u64,
    ) -> Result<FileAnswer<FileChunk>, Failure> {
        self.ask(("read_file", path.as_str(), offset));
        assert!(len <= self.config.file_bytes.as_bytes(), "one call moves {len} bytes");
        let file = self.file(path)?;
        let start = usize::try_from(offset).unwrap().min(file.len());
        let end = start
            .saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
            .min(file.len());
        Ok(self.file_answer(FileChunk {
            bytes: Bytes::copy_from_slice(&file[start..end]),
            total: u64::try_from(file.len()).unwrap(),
        }))
    }

    async fn write_file(
        &self,
        _: &Principal,
        _: Option<&str>,
        path: &SandboxPath,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<FileAnswer<u64>, Failure> {
        let mut files = self.files.lock().unwrap();
        let file = files.entry(path.as_str().to_owned()).or_default();
        if mode == WriteMode::Replace {
            file.clear();
        }
        file.extend_from_slice(&bytes);
        let size = u64::try_from(file.len()).unwrap();
        Ok(self.file_answer(size))
    }

    fn note(&self, _: SecurityEvent) {}

    async fn history(&self, _: &Principal, last_n: usize, sandbox: Option<&str>) -> Result<HistoryView, Failure> {
        self.ask((last_n, sandbox));
        let record = |status, error: Option<&str>| HistoryRecord {
            execution_id: ExecutionId::parse(EXECUTION).unwrap(),
            sandbox_id: error.is_none().then(sandbox_id),
            language: "python".into(),
            status,
            timestamp: "2026-11-21T00:35:07.123Z".into(),
            success: status == Status::Ok,
            duration_ms: 12,
            code_preview: "x = 1\nprint(x)".into(),
            stdout_preview: "1\n".into(),
            error: error.map(str::to_owned),
        };
        Ok(HistoryView {
            total: 2,
            session_start: "2026-11-21T00:00:00.000Z".into(),
            installed_packages: vec![],
            records: vec![record(Status::Ok, None), record(Status::Error, Some("NameError: y"))],
        })
    }

    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        let view = self.history(who, query.rows(), query.sandbox.as_deref()).await?;
        Ok(HistoryPage {
            total: view.total,
            records: view.records,
            more: false,
            complete: true,
        })
    }

    async fn reset(&self, _: &Principal, sandbox: Option<&str>, language: Option<&str>) -> Result<ResetView, Failure> {
        self.ask((sandbox, language));
        Ok(ResetView {
            sandbox_id: Some(sandbox_id()),
            languages: vec!["python".into()],
        })
    }
}
