//! Branches: new sandboxes that go on from the state of another one.
//!
//! The source keeps its state as for a checkpoint, and its agent writes an image of it
//! ([`Branching`]). Each branch is an ordinary new sandbox with the same limits, network and
//! packages, whose interpreter loads the image. So source and branches end independently of each other.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use sandcell_sandbox::{
    Backend, Branching, Code, Failure, Language, PackageVersion, Sandbox, SandboxError, SandboxSpec, SavedFiles,
    SessionError, StateImage, with_sources,
};

use super::make::{check_sessions, files_bound, keep_sessions, private_folders};
use super::taken::{TakenSession, take_all};
use super::{KeptSession, not_kept, paused, shown, unsupported};
use crate::sandbox::lifecycle::Plan;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::{LiveSession, SessionKey, SessionSlot};
use crate::sandbox::state::{CreateParams, Kind, Record};
use crate::sandbox::usage::read_usage;
use crate::{BranchFrom, CreateRequest, Principal, RewindTo};

/// The part of the source's memory limit that images leave free, so that its next call has memory.
const SPARE_DIVISOR: u64 = 8;
const USE_CHECKPOINTS: &str =
    "the source is unchanged; use checkpoints in it (create_checkpoint, reset_session_state), or alternatives";

/// The state that new sandboxes go on from.
#[derive(Debug)]
pub(crate) struct BranchSource {
    pub(super) image: StateImage,
    /// The session in the image, if there is one.
    pub(super) session: Option<(SessionKey, u32)>,
    pub(super) language: Arc<dyn Language>,
    /// The folders that were attached to the source, in order.
    pub(crate) attached: Vec<PathBuf>,
    pub(crate) packages: Vec<(String, PackageVersion)>,
    /// The executions that had ended.
    pub(super) executions: u64,
    /// The remedy in the error of a sandbox that cannot load the state.
    pub(super) remedy: &'static str,
}

/// The parts of a sandbox that an image contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// The session, if there is one, and the files.
    All,
    Files,
}

impl Sandboxes {
    /// Returns the plan and the parameters of the branches that a request asks for.
    pub(crate) async fn plan_branches(
        self: &Arc<Self>,
        principal: &Principal,
        req: &CreateRequest,
        from: &BranchFrom,
        count: usize,
    ) -> Result<(Plan, CreateParams), Failure> {
        check_options(req)?;
        let record = self.existing(principal, from.sandbox_id.as_deref())?;
        self.registry.check_free(principal, count, &record.params)?;
        let (source, sandbox) = self.branch_source(&record, from.checkpoint.clone(), Parts::All).await?;
        let backend = sandbox.isolation().backend.clone();
        let params = CreateParams {
            kind: Kind::Requested,
            label: req.label.clone(),
            asked: None,
            lifetime: req.lifetime,
            idle: req.idle.unwrap_or(self.config().idle),
            pauses_at_end: req.pauses_at_end,
            replaces: None,
            network: record.network(),
            ..record.params.clone()
        };
        let backends = self.backends.iter().filter(|one| one.name() == backend);
        let plan = plan_of(backends.cloned().collect(), &params, sandbox.base_env().clone(), source);
        Ok((plan, params))
    }

    /// Makes an image of the current state of a sandbox, or of a checkpoint.
    pub(super) async fn branch_source(
        self: &Arc<Self>,
        record: &Arc<Record>,
        checkpoint: Option<String>,
        parts: Parts,
    ) -> Result<(BranchSource, Arc<dyn Sandbox>), Failure> {
        let _alone = record.checkpoints.no_alternatives().await;
        let guard = record.start_use()?;
        let sandbox = record.ready().await?;
        let language = self.language("python")?;
        let of = Arc::clone(record);
        let source = tokio::spawn(async move {
            let _guard = guard;
            let _changing = of.checkpoints.changing.lock().await;
            let _running = of.running().ok_or_else(paused)?;
            let source = make_source(&of, sandbox.as_ref(), checkpoint.as_deref(), parts, language).await?;
            Ok::<_, Failure>((source, sandbox))
        });
        source.await.unwrap_or_else(|_| Err(super::internal()))
    }
}

/// Returns the plan of sandboxes that go on from a state.
pub(super) fn plan_of(
    backends: Vec<Arc<dyn Backend>>,
    params: &CreateParams,
    env: BTreeMap<String, String>,
    source: BranchSource,
) -> Plan {
    Plan {
        backends,
        spec: SandboxSpec {
            limits: params.limits.clone(),
            env,
            network: params.network.clone(),
            image: None,
            caller: None,
            ahead: false,
            entered_by: None,
        },
        turns: None,
        opens: None,
        from: Some(Arc::new(source)),
    }
}

impl BranchSource {
    /// Makes a new sandbox go on from this state.
    pub(crate) async fn arrive(&self, record: &Record, sandbox: &dyn Sandbox) -> Result<(), Failure> {
        let opened = self.language.open_image(sandbox, &self.image).await;
        let session = opened.map_err(|error| self.not_loaded(&error))?;
        let mut live = LiveSession::new(session);
        let slot = match &self.session {
            Some(((_, name), cells)) => {
                live.returned_to(*cells, VecDeque::new());
                match name {
                    Some(name) => SessionSlot::named(record, self.language.as_ref(), name.clone())?,
                    None => SessionSlot::of(record, self.language.as_ref()),
                }
            }
            None => SessionSlot::of(record, self.language.as_ref()),
        };
        slot.put(live);
        Ok(())
    }

    fn not_loaded(&self, error: &SessionError) -> Failure {
        Failure::new(
            Code::CheckpointUnavailable,
            format!("the state could not go on in a new sandbox: {}", with_sources(error)),
            self.remedy,
        )
    }
}

/// Makes an image of the current state, or of a checkpoint.
async fn make_source(
    record: &Record,
    sandbox: &dyn Sandbox,
    checkpoint: Option<&str>,
    parts: Parts,
    language: Arc<dyn Language>,
) -> Result<BranchSource, Failure> {
    let branching = sandbox.branching().ok_or_else(unsupported)?;
    let saved = sandbox.saved_files().ok_or_else(unsupported)?;
    let mut taken = take_all(record).await?;
    let limit = record.params.limits.memory.as_bytes();
    let (number, mut sessions, executions) = match checkpoint {
        Some(name) => {
            let found = record.checkpoints.find(&RewindTo::Named(name.to_owned()))?;
            if found.automatic {
                return Err(Failure::invalid(
                    format!("'{name}' is an automatic checkpoint, which sandboxes cannot go on from"),
                    "bring it back first (reset_session_state with to), or use a named checkpoint",
                ));
            }
            (found.number, found.sessions, found.executions)
        }
        None => {
            let number = record.checkpoints.next_number();
            let (sessions, kept) = match parts {
                Parts::Files => (Vec::new(), Ok(())),
                Parts::All => {
                    check_sessions(&taken)?;
                    let sessions: Vec<KeptSession> = taken.iter().filter_map(TakenSession::kept).collect();
                    only_one(&sessions)?;
                    (sessions, keep_sessions(&mut taken, number, false).await)
                }
            };
            let folders = private_folders()?;
            let files = match kept {
                Ok(()) => saved
                    .save(number, &folders, files_bound(limit))
                    .await
                    .map_err(Failure::from),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = files {
                drop_state(saved, &mut taken, number).await;
                return Err(failure);
            }
            (number, sessions, record.checkpoints.executions())
        }
    };
    if parts == Parts::Files {
        sessions.clear();
    }
    let used = read_usage(sandbox).await.map_or(limit, |usage| usage.memory);
    let free = limit.saturating_sub(used).saturating_sub(limit / SPARE_DIVISOR);
    let image = make_image(branching, saved, &mut taken, &sessions, number, free).await;
    if checkpoint.is_none() {
        drop_state(saved, &mut taken, number).await;
    }
    let image = image?;
    let attached = match sandbox.attachments() {
        Some(attachments) => attachments.attached().await,
        None => Vec::new(),
    };
    Ok(BranchSource {
        image,
        session: sessions.into_iter().next().map(|session| (session.key, session.cells)),
        language,
        attached,
        packages: record.all_packages(),
        executions,
        remedy: USE_CHECKPOINTS,
    })
}

async fn make_image(
    branching: &dyn Branching,
    saved: &dyn SavedFiles,
    taken: &mut [TakenSession],
    sessions: &[KeptSession],
    number: u32,
    free: u64,
) -> Result<StateImage, Failure> {
    only_one(sessions)?;
    let files = saved.image(number, free).await?;
    // The agent has dropped its own copy of them by now.
    let Some(session) = sessions.first() else {
        return Ok(StateImage { files, memory: None });
    };
    let found = taken.iter_mut().find(|taken| taken.key == session.key);
    let made = match found {
        Some(found) => found.image(number, free, branching).await,
        None => Err("its checkpoint is gone".to_owned()),
    };
    match made.map_err(|why| not_kept(&session.key, &why))? {
        Ok(memory) => Ok(StateImage {
            files,
            memory: Some(memory),
        }),
        // The process that has the image was killed.
        Err(SandboxError::Setup { .. }) => Err(not_kept(&session.key, "the copy of it has ended")),
        Err(error) => Err(error.into()),
    }
}

/// Drops a state that was kept only for an image.
async fn drop_state(saved: &dyn SavedFiles, taken: &mut [TakenSession], number: u32) {
    for session in taken {
        session.drop_checkpoint(number).await;
    }
    if let Err(error) = saved.forget(number).await {
        tracing::debug!(%error, "the files of a branch could not be dropped");
    }
}

fn only_one(sessions: &[KeptSession]) -> Result<(), Failure> {
    if sessions.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> = sessions.iter().map(|session| shown(&session.key)).collect();
    Err(Failure::new(
        Code::CheckpointUnavailable,
        format!(
            "a new sandbox can go on from one session, and this one has {}: {}; nothing was changed",
            sessions.len(),
            names.join(", ")
        ),
        "end the others first (reset_session_state), then call again",
    ))
}

/// Fails if the request has options that branches take from their source.
pub(super) fn check_options(req: &CreateRequest) -> Result<(), Failure> {
    let has_limits = req.memory.is_some() || req.cpus.is_some() || req.disk.is_some();
    let given = [
        ("packages", !req.packages.is_empty()),
        ("env", !req.env.is_empty()),
        ("limits", has_limits),
        ("backend", req.backend.is_some()),
        ("image", req.image.is_some()),
        ("network", !req.network.is_empty()),
        ("key", req.key.is_some()),
        ("functions", !req.functions.is_empty()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(Failure::invalid(
            format!(
                "a state to go on from and {name} cannot be combined: the new sandbox has the back end, packages and limits of \
                     the state"
            ),
            format!("leave {name} out"),
        )),
        None => Ok(()),
    }
}
