//! The answers about sandboxes and back ends. Plain data.

use std::time::{Duration, SystemTime};

use sandcell_sandbox::{Code, Failure, Isolation, LayerReport, LeftOut, Limits, Usage, Variable};
use serde::Serialize;

use crate::{CheckpointView, MemoryGrowth, SandboxId};

/// A live sandbox, as its owner sees it.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// True for the caller's default sandbox.
    pub is_default: bool,
    /// `starting`, `idle`, `busy` or `closing`.
    pub state: &'static str,
    /// The label for people.
    pub label: Option<String>,
    /// The key of the request.
    pub key: Option<String>,
    /// True if the answered call made the sandbox.
    pub made_now: bool,
    /// The time of its creation.
    pub created: SystemTime,
    /// The time of its end if no call comes before.
    pub idle_expires: SystemTime,
    /// The time of its end in any case.
    pub ends: Option<SystemTime>,
    /// Its limits.
    pub limits: Limits,
    /// Its current usage. None if the back end did not answer in time.
    pub usage: Option<Usage>,
    /// The installed packages, the base's included, as `name version`.
    pub packages: Vec<String>,
    /// Its live sessions.
    pub sessions: Vec<SessionView>,
    /// Its checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointView>,
    /// The effects of its last executions on its memory, oldest first. At most ten.
    pub growth: Vec<MemoryGrowth>,
    /// Its isolation.
    pub isolation: Isolation,
    /// Hosts that the sandbox can reach.
    pub network: Vec<String>,
    /// Bytes to and from these hosts.
    pub network_bytes: u64,
    /// Preferred back ends that could not make the sandbox.
    pub skipped_backends: Vec<SkippedBackend>,
}

/// A live session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// The language.
    pub language: String,
    /// The name of the session. None for the language's first session.
    pub name: Option<String>,
    /// The number of cells that have run since the session started.
    pub cells: u32,
    /// True if a cell runs now.
    pub busy: bool,
    /// Its variables, if the call asked for them and the session was not busy.
    pub variables: Option<Vec<Variable>>,
}

/// The answer of a file call, with its sandbox.
#[derive(Debug, Clone)]
pub struct FileAnswer<T> {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// True if the engine made the sandbox for this call.
    pub new_sandbox: bool,
    /// Sentences for the start of the result.
    pub notices: Vec<String>,
    /// The answer itself.
    pub value: T,
}

/// The result of a reset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResetView {
    /// The sandbox. Null if the caller had none.
    pub sandbox_id: Option<SandboxId>,
    /// Languages whose interpreters ended.
    pub languages: Vec<String>,
}

/// A back end from the server's point of view.
#[derive(Debug, Clone)]
pub struct BackendView {
    /// Its name.
    pub name: &'static str,
    /// Its isolation on this machine.
    pub isolation: Isolation,
    /// The report of each layer.
    pub layers: Vec<LayerReport>,
    /// Host mounts that its sandboxes do not show.
    pub left_out: Vec<LeftOut>,
    /// True if a request can name an image.
    pub supports_images: bool,
    /// True if a sandbox without an image shows the programs of this machine.
    pub uses_host_programs: bool,
}

/// The expiry of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// The sandbox ends after this time without a call.
    pub idle: Duration,
    /// The sandbox ends at this time in any case. None: it has no maximum lifetime.
    pub ends: Option<SystemTime>,
    /// The maximum lifetime.
    pub lifetime: Option<Duration>,
}

/// A sandbox that ends soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiryNotice {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Its label for people.
    pub label: Option<String>,
    /// The remaining time.
    pub left: Duration,
    /// The time of its end.
    pub at: SystemTime,
    /// The reason, which also tells if a call extends its life.
    pub why: ExpiryReason,
}

/// The reason for the end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryReason {
    /// The idle limit. A call extends it.
    Idle,
    /// The requested lifetime, regardless of calls.
    Lifetime,
}

/// A sandbox that can reach hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkedSandbox {
    /// The sandbox.
    pub sandbox_id: crate::SandboxId,
    /// The hosts that it can reach until it ends.
    pub hosts: Vec<String>,
    /// True if the current policy would allow all of them to a new sandbox.
    pub still_allowed: bool,
}

/// A preferred back end that did not make the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedBackend {
    /// Its name.
    pub backend: String,
    /// The code of its failure.
    pub code: Code,
    /// A description of the failure.
    pub message: String,
    /// Instructions to make it available.
    pub remedy: String,
}

impl SkippedBackend {
    /// Creates an entry from the failure.
    #[must_use]
    pub fn new(backend: impl Into<String>, failure: Failure) -> Self {
        Self {
            backend: backend.into(),
            code: failure.code,
            message: failure.message,
            remedy: failure.remedy,
        }
    }
}
