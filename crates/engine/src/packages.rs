//! Packages for sandboxes: who asks, for which sandbox, one installation after the other in each.
//!
//! What is installed and how is the business of [`Packages`]; here the result is shown in the sandbox
//! and noted, so that the next request builds on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{
    CellStatus, Code, Command, Consent, ConsentRequired, Exit, Failure, HOME, Held, Installed, OutputStream, Packages,
    Sandbox, SessionEvent, StdinMode, Usage, Wanted, gather, of_registry,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::cells::{arrive, never_ran, until_stopped};
use crate::core::{Core, Finisher};
use crate::executions::Execution;
use crate::ladder::{Step, Stop};
use crate::meter::Cost;
use crate::network::Reached;
use crate::output::{plain_line, preview};
use crate::policy;
use crate::record::{Record, Visit};
use crate::spans;
use crate::sync::lock;
use crate::verdict::{Ending, Facts, Verdict, judge};
use crate::{ExecutionView, InHistory, InstallRequest, Principal};

/// How long an installation may take when the call does not say.
pub(crate) const INSTALL: Duration = Duration::from_secs(120);

/// How long making packages known in a sandbox may take.
const ARRANGE: Duration = Duration::from_secs(20);
/// What is kept of the words of what does that.
const ARRANGED_MAX: usize = 16 << 10;

/// The maximum size of an installation's report, in bytes.
const REPORT_MAX: usize = 4 << 20;
/// Characters of its error that are shown.
const SAID_MAX: usize = 300;

/// What of a list of packages is one installer's.
struct Order {
    installer: Arc<dyn Packages>,
    packages: Vec<String>,
}

/// What every sandbox starts with of one installer's packages.
pub(crate) type Ground = (Arc<dyn Packages>, Installed);

impl Core {
    pub(crate) async fn install(
        self: &Arc<Self>,
        who: &Principal,
        req: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let wait = req.wait;
        let code = format!("install_package(packages={:?})", req.packages);
        let (language, listed) = (req.language.clone(), req.in_history == InHistory::Shown);
        match self.admit_install(who, req, code.clone()).await {
            Ok(job) => {
                let execution = job.execution.clone();
                tokio::spawn(job.run().instrument(spans::execution(&execution)));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse_and(who, &language, &code, &failure, listed);
                Err(failure)
            }
        }
    }

    async fn admit_install(
        self: &Arc<Self>,
        who: &Principal,
        req: InstallRequest,
        code: String,
    ) -> Result<InstallJob, Failure> {
        let language = self.language(&req.language)?;
        let name = &language.info().name;
        if req.packages.is_empty() {
            self.installer(name)?.check(&req.packages, &req.consent)?;
        }
        self.check_packages(name, &req.packages, &req.consent)?;
        let timeout = match req.timeout {
            None => INSTALL,
            asked => policy::timeout(&self.config(), asked)?,
        };
        let target = self.target(who, req.sandbox_id.as_deref()).await?;
        let execution = Execution::new(&self.config(), &target.record, name, code, target.new)?;
        if req.in_history == InHistory::Unshown {
            execution.unlist();
        }
        self.executions.add(&execution);
        Ok(InstallJob {
            core: self.clone(),
            execution,
            record: target.record,
            visit: target.visit,
            packages: req.packages,
            consent: req.consent,
            timeout,
        })
    }

    /// Whoever installs packages of a language.
    pub(crate) fn installer(&self, language: &str) -> Result<Arc<dyn Packages>, Failure> {
        let packages = self.packages.get();
        let installer = packages.iter().find(|packages| packages.serves(language));
        installer.cloned().ok_or_else(|| {
            Failure::new(
                Code::InvalidArgument,
                format!("packages of {language} cannot be installed here"),
                "use what the language has itself, or write the files that you need",
            )
        })
    }

    /// Whose each of these packages is: the registry's that it names (`npm:zod`), else the language's own.
    fn orders(&self, language: &str, packages: &[String]) -> Result<Vec<Order>, Failure> {
        let all = self.packages.get();
        let mut orders: Vec<Order> = Vec::new();
        for text in packages {
            let named = all
                .iter()
                .find_map(|installer| Some((installer, of_registry(text, installer.registry())?)));
            let (installer, text) = match named {
                Some((installer, text)) => (installer.clone(), text),
                None => (self.installer(language)?, text.as_str()),
            };
            let same = |order: &&mut Order| order.installer.language() == installer.language();
            match orders.iter_mut().find(same) {
                Some(order) => order.packages.push(text.to_owned()),
                None => orders.push(Order {
                    installer,
                    packages: vec![text.to_owned()],
                }),
            }
        }
        Ok(orders)
    }

    /// Refuses a list of packages that cannot be installed, before anything is made for it.
    pub(crate) fn check_packages(&self, language: &str, packages: &[String], consent: &Consent) -> Result<(), Failure> {
        let orders = self.orders(language, packages)?;
        orders
            .iter()
            .try_for_each(|order| order.installer.check(&order.packages, consent))
    }

    /// What of a call the operator leaves to the user. Without a language, packages are of the one that packages can be
    /// installed for first of all.
    pub(crate) fn consent_required(
        &self,
        language: Option<&str>,
        packages: &[String],
        hosts: &[String],
    ) -> ConsentRequired {
        let first = || {
            let all = self.packages.get();
            all.first().map(|installer| installer.language().to_owned())
        };
        let language = match language {
            Some(name) => self.language(name).ok().map(|found| found.info().name.clone()),
            None => first(),
        };
        let orders = language.and_then(|language| self.orders(&language, packages).ok());
        let of_packages = orders.into_iter().flatten();
        let network = self.network.get();
        ConsentRequired {
            packages: of_packages
                .flat_map(|order| order.installer.consent_required(&order.packages))
                .collect(),
            hosts: network
                .as_ref()
                .as_ref()
                .map_or_else(Vec::new, |network| network.consent_required(hosts)),
        }
    }

    /// Puts packages into a sandbox; none is nothing to do. Requests for one sandbox wait for each other.
    pub(crate) async fn provide(
        &self,
        record: &Record,
        sandbox: &dyn Sandbox,
        language: &str,
        (packages, consent): (&[String], &Consent),
        timeout: Duration,
        progress: &watch::Sender<String>,
    ) -> Result<Option<Installed>, Failure> {
        let orders = self.orders(language, packages)?;
        if orders.is_empty() {
            return Ok(None);
        }
        if !sandbox.takes_packages() && !sandbox.installs_inside() {
            return Err(Failure::invalid(
                "packages cannot be installed in a sandbox of an image: they are made for this machine's interpreter",
                "choose an image that has them, or a sandbox without an image",
            ));
        }
        let (deadline, mut left) = (Instant::now() + timeout, timeout);
        let _turn = record.installing.lock().await;
        let mut all = Installed::default();
        for Order { installer, packages } in orders {
            let wanted = Wanted {
                owner: record.owner.0.to_string(),
                packages,
                held: record.packages(installer.language()),
                timeout: left,
                consent: consent.clone(),
            };
            let mut installed = if sandbox.installs_inside() {
                install_inside(sandbox, installer.as_ref(), &wanted).await?
            } else {
                installer.install(wanted, progress).await?
            };
            if let Some(folder) = &installed.folder {
                installed.notes.extend(show(sandbox, installer.as_ref(), folder).await?);
                let slot = lock(&record.slots).get(installer.language()).cloned();
                if let Some(slot) = slot {
                    slot.shows(folder);
                }
            }
            record.hold(installer.language(), &installed.added);
            lock(&self.history).installed(&record.owner, &installed.added);
            all.added.append(&mut installed.added);
            all.present.append(&mut installed.present);
            all.notes.append(&mut installed.notes);
            left = deadline.saturating_duration_since(Instant::now());
        }
        Ok(Some(all))
    }

    /// What every sandbox starts with, and whose it is.
    pub(crate) fn bases(&self) -> Result<Vec<Ground>, Failure> {
        let mut bases = Vec::new();
        for installer in self.packages.get().iter() {
            bases.extend(installer.base()?.map(|base| (installer.clone(), base)));
        }
        Ok(bases)
    }
}

/// Has the sandbox install what is wanted by its own programs.
async fn install_inside(
    sandbox: &dyn Sandbox,
    installer: &dyn Packages,
    wanted: &Wanted,
) -> Result<Installed, Failure> {
    let both = async {
        let resolve = installer.resolve_inside(&wanted.packages, &wanted.consent)?;
        let printed = run_inside(sandbox, resolve).await?;
        let (install, mut installed) = installer.install_inside(&wanted.packages, &wanted.consent, &printed)?;
        if let Some(argv) = install {
            installed.notes.extend(left_alone(&run_inside(sandbox, argv).await?));
        }
        Ok(installed)
    };
    timeout(wanted.timeout, both).await.unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Timeout,
            format!(
                "the installation took longer than {} s and was stopped",
                wanted.timeout.as_secs()
            ),
            "raise timeout_s, or install fewer packages at once",
        ))
    })
}

/// The output of an installer that ran inside the sandbox.
async fn run_inside(sandbox: &dyn Sandbox, argv: Vec<String>) -> Result<Vec<u8>, Failure> {
    let command = Command {
        argv,
        env: sandbox.base_env().clone(),
        cwd: HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
    };
    let process = sandbox.spawn(command).await?;
    let done = gather(process, REPORT_MAX).await;
    if done.exit == Some(Exit::Code(0)) {
        return Ok(done.stdout);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    Err(Failure::new(
        Code::PackageFailed,
        format!(
            "the installation failed in the sandbox, which says: {}",
            plain_line(preview(last, SAID_MAX).as_bytes())
        ),
        "check the names and versions; the sandbox needs a network and its own pip or npm",
    ))
}

/// Their folders, in the order in which they are shown.
pub(crate) fn folders(bases: &[Ground]) -> Vec<PathBuf> {
    bases.iter().filter_map(|(_, base)| base.folder.clone()).collect()
}

/// Shows a folder of packages in a sandbox and makes them known there; says which names were left alone.
pub(crate) async fn show(
    sandbox: &dyn Sandbox,
    installer: &dyn Packages,
    folder: &Path,
) -> Result<Option<String>, Failure> {
    let place = sandbox.attach(folder).await?;
    match installer.arrange(&place) {
        Some(argv) => arrange(sandbox, argv).await,
        None => Ok(None),
    }
}

/// Runs what makes packages known in a sandbox, and says which names it left alone. What it does and prints is in the hands of
/// the code there, which can only spoil its own packages.
async fn arrange(sandbox: &dyn Sandbox, argv: Vec<String>) -> Result<Option<String>, Failure> {
    let command = Command {
        argv,
        env: sandbox.base_env().clone(),
        cwd: HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
    };
    let process = sandbox.spawn(command).await?;
    let done = timeout(ARRANGE, gather(process, ARRANGED_MAX)).await.ok();
    let done = done.filter(|done| done.exit == Some(Exit::Code(0))).ok_or_else(|| {
        Failure::new(
            Code::PackageFailed,
            "the packages are there, but could not be linked into node_modules of the home folder",
            "look whether node_modules can be written and the disk is not full, and install them again",
        )
    })?;
    Ok(left_alone(&done.stdout))
}

/// Returns a note that lists the skipped names, given one name a line.
fn left_alone(printed: &[u8]) -> Option<String> {
    let names: Vec<String> = printed
        .split(|&byte| byte == b'\n')
        .filter(|name| !name.is_empty())
        .take(20)
        .map(plain_line)
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "left alone, since node_modules of the home folder has something of that name: {}",
            names.join(", ")
        )
    })
}

/// One installation on its way.
struct InstallJob {
    core: Arc<Core>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    visit: Visit,
    packages: Vec<String>,
    consent: Consent,
    timeout: Duration,
}

impl InstallJob {
    async fn run(self) {
        let finisher = Finisher {
            core: self.core.clone(),
            execution: self.execution.clone(),
            throwaway: None,
        };
        let began = Instant::now();
        let end = match self.work().await {
            Ok(verdict) => Ok(verdict),
            Err(Ok(stop)) => Ok(never_ran(&self.core, &self.record, stop, self.timeout, true)),
            Err(Err(failure)) => Err(failure),
        };
        let cost = Cost {
            duration: began.elapsed(),
            ..Cost::default()
        };
        drop(self.visit);
        finisher.finish(end.map(|verdict| (verdict, cost)));
    }

    async fn work(&self) -> Result<Verdict, Result<Stop, Failure>> {
        let sandbox = arrive(&self.execution, &self.record).await?;
        self.execution
            .isolated_by(self.record.isolation(sandbox.as_ref()), self.record.passed());
        self.execution.begin();
        let progress = watch::Sender::new(String::new());
        let work = self.core.provide(
            &self.record,
            sandbox.as_ref(),
            &self.execution.language,
            (&self.packages, &self.consent),
            self.timeout,
            &progress,
        );
        let done = until_stopped(&self.execution, &self.record, None, work)
            .await
            .map_err(Ok)?
            .map_err(Err)?;
        if let Some(installed) = done {
            let text = told(&installed, &self.packages);
            self.execution.take(SessionEvent::Output {
                stream: OutputStream::Stdout,
                bytes: Bytes::from(text),
            });
        }
        Ok(judge(Facts {
            ending: Ending::Cell(CellStatus::Ok),
            stop: None,
            step: Step::Free,
            timeout: self.timeout,
            limits: &self.record.birth.limits,
            before: Usage::default(),
            after: None,
            gone: None,
            keeps: true,
            hints: &self.core.config().hints,
            restored: None,
            why_lost: None,
            network: Reached::default(),
        }))
    }
}

/// What the caller reads.
pub(crate) fn told(installed: &Installed, asked: &[String]) -> String {
    let name = |text: &String| {
        let text = text.trim();
        // What stands before it is the registry's name.
        let text = text
            .split_once(':')
            .filter(|(registry, _)| registry.bytes().all(|b| b.is_ascii_lowercase()))
            .map_or(text, |(_, rest)| rest);
        // After the first character an `@` begins a version of npm's.
        let cut = text.get(1..).and_then(|rest| rest.find('@')).map(|place| place + 1);
        let bare = cut
            .and_then(|place| text.get(..place))
            .unwrap_or(text)
            .split(['[', '<', '>', '=', '!', '~', ';', ' '])
            .next()
            .unwrap_or_default();
        bare.to_lowercase().replace(['_', '.'], "-")
    };
    let names: Vec<String> = asked.iter().map(name).collect();
    let (own, more): (Vec<&Held>, Vec<&Held>) = installed
        .added
        .iter()
        .partition(|one| names.contains(&one.name.to_lowercase().replace(['_', '.'], "-")));
    let list = |held: &[&Held]| {
        // A package that a sandbox had of itself is known by its name only.
        let text = |one: &&Held| format!("{} {}", one.name, one.version).trim_end().to_owned();
        let texts: Vec<String> = held.iter().map(text).collect();
        texts.join(", ")
    };
    let mut lines = Vec::new();
    if !own.is_empty() {
        lines.push(format!("installed {}", list(&own)));
    }
    if !more.is_empty() {
        lines.push(format!("with what they need: {}", list(&more)));
    }
    if !installed.present.is_empty() {
        lines.push(format!(
            "already there: {}",
            list(&installed.present.iter().collect::<Vec<_>>())
        ));
    }
    lines.extend(installed.notes.iter().cloned());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_told_first() {
        let held = |name: &str| Held {
            name: name.into(),
            version: "1.0".into(),
        };
        let installed = Installed {
            folder: None,
            added: vec![held("six"), held("scikit-learn")],
            present: vec![held("numpy")],
            reused: false,
            notes: vec!["note".into()],
        };
        let asked = ["Scikit_Learn[x]>=1".to_owned(), "numpy".to_owned()];
        let expected = "installed scikit-learn 1.0\nwith what they need: six 1.0\nalready there: numpy 1.0\nnote\n";
        assert_eq!(told(&installed, &asked), expected);
    }
}
