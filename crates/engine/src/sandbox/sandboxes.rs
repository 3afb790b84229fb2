//! The state that all calls about sandboxes share: settings, back ends, languages, the registry and the pool. This module
//! finds or makes the sandbox of a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandcell_sandbox::{
    Backend, Code, Failure, HostTools, Isolation, Language, Limits, Network, NetworkRule, Packages, SandboxSpec,
    TOOLS_PORT, TOOLS_VARIABLE,
};
use tokio_util::sync::CancellationToken;

use crate::admission::caller_number::CallerNumbers;
use crate::admission::quota::CpuQuota;
use crate::admission::scheduler::Scheduler;
use crate::api::ids::quote_for_error;
use crate::api::sync::Replaceable;
use crate::records::{Records, spans};
use crate::sandbox::expiry::ExpiryNotifier;
use crate::sandbox::image_interest::ImageInterests;
use crate::sandbox::lifecycle::{Plan, no_backend, run_lifecycle};
use crate::sandbox::mounts::MountFolders;
use crate::sandbox::network::with_proxy;
use crate::sandbox::pool::Pool;
use crate::sandbox::registry::{Registry, Target};
use crate::sandbox::state::{CreateParams, Kind, Record, Terminated, TerminationReason};
use crate::{AbsentLanguage, EngineConfig, Outside, Principal};

/// The sandboxes of an engine, and the parts that make them.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    pub(crate) config: Replaceable<EngineConfig>,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    pub(crate) languages: Vec<Arc<dyn Language>>,
    pub(crate) packages: Replaceable<Vec<Arc<dyn Packages>>>,
    pub(crate) network: Replaceable<Option<Arc<dyn Network>>>,
    pub(crate) tools: Replaceable<Option<Arc<dyn HostTools>>>,
    pub(crate) records: Records,
    pub(crate) registry: Registry,
    pub(crate) pool: Pool,
    pub(crate) expiry_notifier: ExpiryNotifier,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) caller_numbers: CallerNumbers,
    pub(crate) cpu_quota: CpuQuota,
    pub(crate) image_interests: ImageInterests,
    pub(crate) mount_folders: MountFolders,
    /// Fired when the engine is dropped: sandboxes end.
    pub(crate) down: CancellationToken,
    /// Fired when the engine begins to shut down: no caller waits for an answer any more.
    pub(crate) ending: CancellationToken,
}

impl Sandboxes {
    /// The current settings. A running call keeps the settings that it started with.
    pub(crate) fn config(&self) -> Arc<EngineConfig> {
        self.config.get()
    }

    /// Replaces the settings for later requests. Existing sandboxes keep the settings that they were made with.
    pub(crate) fn change(&self, wanted: EngineConfig, outside: Outside) {
        let Outside {
            network,
            packages,
            tools,
        } = outside;
        let old = self.config();
        let mut config = EngineConfig {
            // Results of the start-up, and values that sized existing stores.
            absent: old.absent.clone(),
            absent_backends: old.absent_backends.clone(),
            history_rows: old.history_rows,
            history_age: old.history_age,
            mounts: old.mounts.clone(),
            ..wanted
        };
        add_network_hint(&mut config, network.as_ref());
        self.registry.change(&config);
        self.scheduler.change(config.executions, config.executions_per_caller);
        self.cpu_quota.change(&config.quota);
        let pool = config.pool.clone();
        // The variable of the tools' port is part of how the programs of idle sandboxes started.
        let has_servers = |tools: &Option<Arc<dyn HostTools>>| tools.as_ref().is_some_and(|tools| tools.has_servers());
        let offered = has_servers(&tools) != has_servers(&self.tools.get());
        let fresh = config.limits != old.limits || pool != old.pool || offered;
        self.config.set(config);
        self.network.set(network);
        self.tools.set(tools);
        self.packages.set(packages);
        if fresh {
            self.pool.change(&pool);
        }
    }

    pub(crate) fn language(&self, name: &str) -> Result<Arc<dyn Language>, Failure> {
        choose(&self.languages, &self.config().absent, name)
    }

    pub(crate) fn create_params(&self, kind: Kind, limits: Limits) -> Result<CreateParams, Failure> {
        Ok(CreateParams {
            kind,
            label: None,
            asked: None,
            limits,
            lifetime: None,
            idle: self.config().idle,
            pauses_at_end: false,
            network: NetworkRule::None,
            env: Arc::default(),
            planned: self.planned(None)?,
            replaces: None,
        })
    }

    /// Returns the planned isolation: that of the first back end, if it can make the sandbox.
    pub(crate) fn planned(&self, backend: Option<&str>) -> Result<Arc<Isolation>, Failure> {
        let fits = |b: &&Arc<dyn Backend>| backend.is_none_or(|name| b.name() == name);
        let first = self.backends.iter().find(fits).ok_or_else(no_backend)?;
        Ok(Arc::new(first.isolation().clone()))
    }

    /// Starts to make the sandbox of a reserved record.
    pub(crate) fn make(self: &Arc<Self>, record: &Arc<Record>, plan: Plan) {
        let span = spans::making(&record.id);
        tokio::spawn(run_lifecycle(self.clone(), record.clone(), plan, span));
    }

    /// Returns the plan for a sandbox with limits only.
    pub(crate) fn plain_plan(&self, limits: Limits) -> Plan {
        self.plan_with(limits, NetworkRule::None)
    }

    fn plan_with(&self, limits: Limits, network: NetworkRule) -> Plan {
        Plan {
            spec: SandboxSpec {
                limits,
                env: self.environment(&network, BTreeMap::new(), false),
                network,
                image: None,
                caller: None,
                ahead: false,
                entered_by: None,
            },
            backends: self.backends.clone(),
            turns: None,
            opens: None,
            from: None,
        }
    }

    /// Returns the variables of a sandbox's programs: those of the caller, and the addresses of the ports.
    pub(crate) fn environment(
        &self,
        network: &NetworkRule,
        mut env: BTreeMap<String, String>,
        has_functions: bool,
    ) -> BTreeMap<String, String> {
        let has_servers = || {
            self.tools
                .get()
                .as_ref()
                .as_ref()
                .is_some_and(|tools| tools.has_servers())
        };
        if has_functions || has_servers() {
            env.insert(TOOLS_VARIABLE.to_owned(), format!("http://127.0.0.1:{TOOLS_PORT}"));
        }
        with_proxy(network, env)
    }

    /// Returns the sandbox of a call: the named one, or the default one. Makes the default one if needed.
    pub(crate) async fn target(self: &Arc<Self>, principal: &Principal, id: Option<&str>) -> Result<Target, Failure> {
        if let Some(id) = id {
            return self.registry.find(principal, id);
        }
        let limits = self.config().limits.clone();
        let params = self.create_params(Kind::Default, limits.clone())?;
        let default = |registry: &Registry| registry.default(principal, params.clone());
        let target = self.registry.retry_while_closing(principal, default).await?;
        if target.new {
            self.make(&target.record, self.plain_plan(limits));
        }
        Ok(target)
    }

    /// Makes a sandbox for one run.
    pub(crate) async fn throwaway(
        self: &Arc<Self>,
        principal: &Principal,
        label: &str,
        limits: Limits,
        network: NetworkRule,
        image: Option<String>,
        opens: Option<Arc<dyn Language>>,
    ) -> Result<Target, Failure> {
        let params = CreateParams {
            label: Some(label.to_owned()),
            network: network.clone(),
            ..self.create_params(Kind::Throwaway, limits.clone())?
        };
        let reserve = |registry: &Registry| registry.reserve(principal, 1, &params);
        let mut records = self.registry.retry_while_closing(principal, reserve).await?;
        let record = records
            .pop()
            .ok_or_else(|| Failure::new(Code::Internal, "no place was reserved", "try again"))?;
        let mut plan = self.plan_with(limits, network);
        plan.spec.image = image;
        plan.opens = opens;
        self.make(&record, plan);
        Ok(Target {
            guard: record.start_use()?,
            record,
            new: true,
        })
    }

    /// Discards the sandbox of one run. Its task closes it.
    pub(crate) fn discard(&self, record: &Record) {
        self.registry
            .begin_close(record, &Terminated::now(TerminationReason::Closed));
    }
}

/// Adds the reachable hosts to the advice about data.
pub(crate) fn add_network_hint(config: &mut EngineConfig, network: Option<&Arc<dyn Network>>) {
    if let Some(network) = network {
        let some: Vec<&str> = network.allowed().iter().take(5).map(String::as_str).collect();
        config.hints.bring_data.push_str(&format!(
            "; a sandbox made with network = [\"HOST\"] can reach hosts that the operator allows (such as {})",
            some.join(", ")
        ));
    }
}

/// Finds the language of this name or alias. The failure for an absent language contains installation instructions. The
/// failure for an unknown name suggests a similar one.
fn choose(here: &[Arc<dyn Language>], absent: &[AbsentLanguage], name: &str) -> Result<Arc<dyn Language>, Failure> {
    let asked = name.trim().to_lowercase();
    let fits =
        |name: &str, aliases: &[String]| name == asked || aliases.iter().any(|alias| alias.to_lowercase() == asked);
    if let Some(language) = here.iter().find(|l| fits(&l.info().name, &l.info().aliases)) {
        return Ok(language.clone());
    }
    let names: Vec<&str> = here.iter().map(|language| language.info().name.as_str()).collect();
    let available = match names.as_slice() {
        [] => "no language is available: `sandcell languages` on the host shows how to install one".to_owned(),
        names => format!("available are: {}", names.join(", ")),
    };
    if let Some(known) = absent.iter().find(|known| fits(&known.name, &known.aliases)) {
        return Err(Failure::new(
            Code::LanguageUnavailable,
            known.failure.message.clone(),
            format!("{}; {available}", known.failure.remedy),
        ));
    }
    let aliases = here.iter().flat_map(|language| &language.info().aliases);
    let near = names
        .iter()
        .copied()
        .chain(aliases.map(String::as_str))
        // Comparing a very long name takes long, and no language has one.
        .filter(|_| asked.len() <= 64)
        .map(|known| (strsim::jaro_winkler(known, &asked), known))
        .filter(|(nearness, _)| *nearness > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    Err(Failure::new(
        Code::LanguageUnavailable,
        format!("the language '{}' is not available here", quote_for_error(name)),
        match near {
            Some((_, near)) => format!("did you mean '{near}'? {available}"),
            None => available,
        },
    ))
}
