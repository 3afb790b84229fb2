//! Calls about sandboxes: create, close, status, reset, history, and the shutdown.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::{join, join_all};
use sandcell_sandbox::{Backend, Failure, FunctionSpec, PackageVersion, Sandbox, SandboxSpec, Usage, rfc3339};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::admission::policy;
use crate::api::sync::lock;
use crate::records::history::MAX_VIEW_ROWS;
use crate::records::sinks::{EventKind, SecurityEvent};
use crate::sandbox::functions;
use crate::sandbox::lifecycle::{CLOSE_TIMEOUT, Plan};
use crate::sandbox::packages::INSTALL_TIMEOUT;
use crate::sandbox::registry::{Registry, Reservation};
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::state::{CreateParams, Kind, Record, Terminated, TerminationReason};
use crate::sandbox::usage::read_usage;
use crate::{CreateFrom, CreateRequest, HistoryPage, HistoryQuery, HistoryView, Principal, SandboxId, SandboxView};

/// The number of sandboxes of one call that are made at the same time. The others wait, so that other callers get their
/// turn.
const MAX_CONCURRENT_CREATES: usize = 16;
/// The maximum time that a call waits for a sandbox to close: a little more than the closing may take.
const CLOSE_WAIT_TIMEOUT: Duration = CLOSE_TIMEOUT.saturating_add(Duration::from_secs(1));
/// The maximum time for sandboxes to close during the shutdown. After that the back ends end the rest.
const SHUTDOWN_CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum time for the back ends to do that.
const SHUTDOWN_BACKENDS_TIMEOUT: Duration = Duration::from_secs(2);

impl Sandboxes {
    /// Returns the reason why the named back end does not work here, if known.
    fn absent_backend(&self, req: &CreateRequest) -> Option<Failure> {
        let name = req.backend.as_deref()?;
        let config = self.config();
        let absent = config
            .absent_backends
            .iter()
            .find(|absent| absent.skipped.backend == name)?;
        let skipped = &absent.skipped;
        Some(Failure::new(
            skipped.code,
            skipped.message.clone(),
            skipped.remedy.clone(),
        ))
    }

    pub(crate) async fn create(
        self: &Arc<Self>,
        principal: &Principal,
        req: CreateRequest,
    ) -> Result<Vec<SandboxView>, Failure> {
        let names: Vec<&'static str> = self.backends.iter().map(|backend| backend.name()).collect();
        if let Some(absent) = self.absent_backend(&req) {
            return Err(absent);
        }
        let limits = policy::create(&self.config(), &req, &names)?;
        if let Some(from) = req.from.clone() {
            if req.key.is_some()
                && let Some(record) = self.registry.join(principal, &req)?
            {
                // The state may be gone by now.
                let joined = self.finished(vec![record], false).await?;
                return Ok(self.claim_all(joined));
            }
            let count = usize::try_from(req.count).unwrap_or(usize::MAX);
            let (mut plan, params) = match from {
                CreateFrom::Sandbox(from) => self.plan_branches(principal, &req, &from, count).await?,
                CreateFrom::Saved(from) => self.plan_saved(principal, &req, &from).await?,
            };
            plan.turns = Some(Arc::new(Semaphore::new(MAX_CONCURRENT_CREATES)));
            let made = self.make_all(principal, count, plan, params, &[]).await?;
            return Ok(self.claim_all(made));
        }
        let asked = req.key.is_some().then(|| Arc::new(req.clone()));
        let (packages, consent) = (req.packages, req.consent);
        // The packages belong to the first installer's language.
        let language = self
            .packages
            .get()
            .first()
            .map_or("python", |packages| packages.language())
            .to_owned();
        self.check_packages(&language, &packages, &consent)?;
        let network = self.network_rule(&req.network, &consent)?;
        functions::check(&req.functions)?;
        let planned = self.planned(req.backend.as_deref())?;
        let env = Arc::new(req.env.clone());
        let chosen = |b: &&Arc<dyn Backend>| req.backend.as_ref().is_none_or(|name| b.name() == name);
        req.watch.prepares(self.backends.clone(), req.image.clone());
        let plan = Plan {
            backends: self.backends.iter().filter(chosen).cloned().collect(),
            spec: SandboxSpec {
                limits: limits.clone(),
                env: self.environment(&network, req.env, !req.functions.is_empty()),
                network: network.clone(),
                image: req.image,
                caller: None,
                ahead: false,
                entered_by: None,
            },
            turns: Some(Arc::new(Semaphore::new(MAX_CONCURRENT_CREATES))),
            opens: None,
            from: None,
        };
        let params = CreateParams {
            kind: Kind::Requested,
            label: req.label,
            asked,
            limits,
            lifetime: req.lifetime,
            idle: req.idle.unwrap_or(self.config().idle),
            pauses_at_end: req.pauses_at_end,
            network,
            env,
            planned,
            replaces: None,
        };
        let count = usize::try_from(req.count).unwrap_or(usize::MAX);
        let unclaimed = self.make_all(principal, count, plan, params, &req.functions).await?;
        let progress = watch::Sender::new(String::new());
        let wanted = (packages.as_slice(), &consent);
        let provided = unclaimed.made.iter().map(|(record, sandbox)| {
            self.provide(record, sandbox.as_ref(), &language, wanted, INSTALL_TIMEOUT, &progress)
        });
        join_all(provided).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(self.claim_all(unclaimed))
    }

    /// Makes sandboxes, or joins the one with the same key.
    async fn make_all(
        self: &Arc<Self>,
        principal: &Principal,
        count: usize,
        plan: Plan,
        params: CreateParams,
        functions: &[FunctionSpec],
    ) -> Result<UnclaimedSandboxes<'_>, Failure> {
        let reserve = |registry: &Registry| registry.join_or_reserve(principal, count, &params);
        let (records, made_now) = match self.registry.retry_while_closing(principal, reserve).await? {
            Reservation::Joined(record) => (vec![record], false),
            Reservation::Reserved(records) => (records, true),
        };
        if made_now {
            for record in &records {
                record.tools.set_functions(functions.to_vec());
                self.make(record, plan.clone());
            }
        }
        self.finished(records, made_now).await
    }

    /// Waits until sandboxes are made.
    async fn finished(&self, records: Vec<Arc<Record>>, made_now: bool) -> Result<UnclaimedSandboxes<'_>, Failure> {
        let mut unclaimed = UnclaimedSandboxes {
            sandboxes: self,
            records,
            made: Vec::new(),
            made_now,
        };
        // Wait for all of them even when one fails, so that the first failure in order is the answer.
        let made = join_all(unclaimed.records.iter().map(|record| record.ready())).await;
        let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
        unclaimed.made = unclaimed.records.iter().cloned().zip(made).collect();
        Ok(unclaimed)
    }

    /// Marks sandboxes as delivered to their caller.
    fn claim_all(&self, mut unclaimed: UnclaimedSandboxes<'_>) -> Vec<SandboxView> {
        let records = std::mem::take(&mut unclaimed.records);
        for record in &records {
            self.registry.claim(record);
        }
        // The usage of a fresh sandbox is not worth a query for each.
        let view = |record: &Arc<Record>| SandboxView {
            made_now: unclaimed.made_now,
            ..self.view(record, record.usage())
        };
        records.iter().map(view).collect()
    }

    pub(crate) async fn close(&self, principal: &Principal, id: &str) -> Result<SandboxId, Failure> {
        let record = self.registry.find(principal, id)?.record;
        self.registry
            .begin_close(&record, &Terminated::now(TerminationReason::Closed));
        if timeout(CLOSE_WAIT_TIMEOUT, record.wait_ended()).await.is_err() {
            tracing::warn!(sandbox = %record.id, "the sandbox is still closing");
        }
        Ok(record.id.clone())
    }

    pub(crate) fn set_lifetime(&self, principal: &Principal, id: &str, left: Duration) -> Result<SystemTime, Failure> {
        policy::lifetime(Some(left))?;
        let record = self.registry.find(principal, id)?.record;
        Ok(record.set_time_left(left))
    }

    pub(crate) async fn status(&self, principal: &Principal, id: Option<&str>) -> Result<Vec<SandboxView>, Failure> {
        let Some(id) = id else {
            let records = self.registry.of(principal);
            return Ok(join_all(records.iter().map(|record| self.inspect(record))).await);
        };
        // The guard ends here: a status call does not make the sandbox busy.
        let record = self.registry.find(principal, id)?.record;
        self.measure_checkpoints(&record).await;
        let mut view = self.inspect(&record).await;
        for session in &mut view.sessions {
            let key = (session.language.clone(), session.name.clone());
            let slot = lock(&record.slots).get(&key).cloned();
            // The interpreters of a paused sandbox do not answer.
            if let Some(slot) = slot
                && let Some(running) = record.running()
            {
                session.variables = slot.variables(running).await;
            }
        }
        Ok(vec![view])
    }

    /// Formats a package: `numpy 2.1.0`, or `zod 3.25.0 (javascript)` for a language that is not the first.
    fn shown(&self, (language, held): &(String, PackageVersion)) -> String {
        let first = self
            .packages
            .get()
            .first()
            .is_some_and(|packages| packages.language() == language);
        let of = if first { String::new() } else { format!(" ({language})") };
        format!("{} {}{of}", held.name, held.version)
    }

    async fn inspect(&self, record: &Arc<Record>) -> SandboxView {
        let usage = match record.live() {
            Some(sandbox) => read_usage(sandbox.as_ref()).await,
            None => None,
        };
        self.view(record, usage)
    }

    fn view(&self, record: &Record, usage: Option<Usage>) -> SandboxView {
        let live = record.live();
        let isolation = live.map_or_else(|| (*record.params.planned).clone(), |live| live.isolation().clone());
        let sessions = lock(&record.slots).values().filter_map(|slot| slot.view()).collect();
        let now = Instant::now();
        let expiry = record.deadlines();
        SandboxView {
            id: record.id.clone(),
            is_default: self.registry.is_default(record),
            state: record.state_word(),
            label: record.params.label.clone(),
            key: record.key().map(str::to_owned),
            made_now: false,
            created: record.created,
            idle_expires: SystemTime::now() + expiry.idle.saturating_duration_since(now),
            ends: record.lifetime().map(|lifetime| record.created + lifetime),
            limits: record.params.limits.clone(),
            usage,
            packages: record.all_packages().iter().map(|held| self.shown(held)).collect(),
            sessions,
            checkpoints: record.checkpoints.views(),
            growth: record.growth(),
            isolation,
            network: record.network().into_hosts(),
            network_bytes: record.route().map_or(0, |route| route.bytes()),
            skipped_backends: record.skipped_backends(),
        }
    }

    pub(crate) async fn history(
        &self,
        principal: &Principal,
        last_n: usize,
        sandbox: Option<&str>,
    ) -> Result<HistoryView, Failure> {
        let mut view = lock(&self.records.history).view(principal, last_n, sandbox);
        // Packages belong to sandboxes, which do not outlive the server. So the list of packages is from this server's
        // memory.
        if let Some(history_sink) = &self.records.observers.history_sink
            && let Some(stored) = history_sink
                .view(principal, last_n.clamp(1, MAX_VIEW_ROWS), sandbox)
                .await
        {
            view.total = stored.total;
            view.session_start = rfc3339(stored.began);
            view.records = stored.records;
        }
        if let Some(id) = sandbox
            && view.records.is_empty()
        {
            self.registry.find(principal, id)?;
        }
        Ok(view)
    }

    pub(crate) async fn search(&self, principal: &Principal, query: &HistoryQuery) -> Result<HistoryPage, Failure> {
        query.check()?;
        let Some(history_sink) = &self.records.observers.history_sink else {
            return Ok(lock(&self.records.history).search(principal, query));
        };
        if let Some(page) = history_sink.search(principal, query).await {
            return Ok(page);
        }
        // Memory has the newest rows only.
        let page = lock(&self.records.history).search(principal, query);
        Ok(HistoryPage {
            complete: false,
            ..page
        })
    }

    pub(crate) async fn shutdown(&self) {
        let records = self.registry.close();
        let waiting = self.pool.close();
        for record in &records {
            self.registry
                .begin_close(record, &Terminated::now(TerminationReason::Shutdown));
        }
        self.ending.cancel();
        self.backends.iter().for_each(|backend| backend.begin_shutdown());
        let all = join_all(records.iter().map(|record| record.wait_ended()));
        let in_time = timeout(SHUTDOWN_CLOSE_TIMEOUT, join(all, waiting)).await.is_ok();
        if !in_time {
            // Closing many sandboxes takes long. The back ends end them, and warn if they cannot.
            tracing::debug!("some sandboxes did not close in time; the back ends end them");
        }
        let backends = async {
            let all = join_all(self.backends.iter().map(|backend| backend.shutdown()));
            if timeout(SHUTDOWN_BACKENDS_TIMEOUT, all).await.is_err() {
                tracing::warn!("a back end did not shut down in time");
            }
        };
        if in_time {
            // The history stores finished rows meanwhile.
            join(backends, self.records.observers.close_history()).await;
        } else {
            backends.await;
        }
        self.records
            .observers
            .note(|| SecurityEvent::new(EventKind::ServerStopped, "all sandboxes were ended".to_owned()));
        join(
            self.records.observers.close_history(),
            self.records.observers.close_audit(),
        )
        .await;
    }
}

/// Sandboxes whose caller may have disconnected, or of a call that could not make all of its sandboxes. They are
/// closed, unless another caller has asked for them by key.
struct UnclaimedSandboxes<'a> {
    sandboxes: &'a Sandboxes,
    records: Vec<Arc<Record>>,
    /// The same, with their sandboxes once they are made.
    made: Vec<(Arc<Record>, Arc<dyn Sandbox>)>,
    /// False if another call made it.
    made_now: bool,
}

impl Drop for UnclaimedSandboxes<'_> {
    fn drop(&mut self) {
        for record in &self.records {
            self.sandboxes.registry.release_claim(record);
        }
    }
}
