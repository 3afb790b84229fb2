//! Installs packages in a sandbox as an execution. Its output lists the packages.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{CellStatus, Consent, Failure, Installed, OutputStream, PackageVersion, SessionEvent, Usage};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admission::policy;
use crate::execution::job::{outcome_without_run, until_stopped, wait_for_sandbox};
use crate::execution::outcome::{Ending, Evidence, Outcome, outcome_of};
use crate::execution::service::Executions;
use crate::execution::service::Finisher;
use crate::execution::state::Execution;
use crate::execution::termination::{Step, Stop};
use crate::sandbox::network::NetworkEvidence;
use crate::sandbox::packages::INSTALL_TIMEOUT;
use crate::sandbox::state::{Record, UseGuard};
use crate::sandbox::usage::Cost;
use crate::{ExecutionView, InHistory, InstallRequest, Principal};

impl Executions {
    pub(crate) async fn install(
        self: &Arc<Self>,
        principal: &Principal,
        req: InstallRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let wait = req.wait;
        let code = format!("install_package(packages={:?})", req.packages);
        let (language, listed) = (req.language.clone(), req.in_history == InHistory::Shown);
        match self.admit_install(principal, req, code.clone()).await {
            Ok(job) => {
                let execution = job.execution.clone();
                tokio::spawn(job.run().instrument(execution.span()));
                self.answer(&execution, wait, cancel).await
            }
            Err(failure) => {
                self.refuse_with_visibility(principal, &language, &code, &failure, listed);
                Err(failure)
            }
        }
    }

    async fn admit_install(
        self: &Arc<Self>,
        principal: &Principal,
        req: InstallRequest,
        code: String,
    ) -> Result<InstallJob, Failure> {
        let language = self.sandboxes.language(&req.language)?;
        let name = &language.info().name;
        if req.packages.is_empty() {
            self.sandboxes.installer(name)?.check(&req.packages, &req.consent)?;
        }
        self.sandboxes.check_packages(name, &req.packages, &req.consent)?;
        let timeout = match req.timeout {
            None => INSTALL_TIMEOUT,
            asked => policy::timeout(&self.sandboxes.config(), asked)?,
        };
        let target = self.sandboxes.target(principal, req.sandbox_id.as_deref()).await?;
        let execution = Execution::new(&self.sandboxes.config(), &target.record, name, code, target.new)?;
        if req.in_history == InHistory::Unshown {
            execution.hide_from_history();
        }
        self.store.add(&execution);
        Ok(InstallJob {
            executions: self.clone(),
            execution,
            record: target.record,
            guard: target.guard,
            packages: req.packages,
            consent: req.consent,
            timeout,
        })
    }
}

/// One installation in progress.
struct InstallJob {
    executions: Arc<Executions>,
    execution: Arc<Execution>,
    record: Arc<Record>,
    guard: UseGuard,
    packages: Vec<String>,
    consent: Consent,
    timeout: Duration,
}

impl InstallJob {
    async fn run(self) {
        let finisher = Finisher {
            executions: self.executions.clone(),
            execution: self.execution.clone(),
            throwaway: None,
        };
        let began = Instant::now();
        let end = match self.work().await {
            Ok(outcome) => Ok(outcome),
            Err(Ok(stop)) => Ok(outcome_without_run(
                &self.executions.sandboxes,
                &self.record,
                stop,
                self.timeout,
                true,
            )),
            Err(Err(failure)) => Err(failure),
        };
        let cost = Cost {
            duration: began.elapsed(),
            ..Cost::default()
        };
        drop(self.guard);
        finisher.finish(end.map(|outcome| (outcome, cost)));
    }

    async fn work(&self) -> Result<Outcome, Result<Stop, Failure>> {
        let sandbox = wait_for_sandbox(&self.execution, &self.record).await?;
        self.execution
            .set_isolation(self.record.isolation(sandbox.as_ref()), self.record.skipped_backends());
        self.execution.begin();
        let progress = watch::Sender::new(String::new());
        let work = self.executions.sandboxes.provide(
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
            let text = install_summary(&installed, &self.packages);
            self.execution.take(SessionEvent::Output {
                stream: OutputStream::Stdout,
                bytes: Bytes::from(text),
            });
        }
        Ok(outcome_of(Evidence {
            ending: Ending::Cell(CellStatus::Ok),
            stop: None,
            step: Step::Free,
            timeout: self.timeout,
            limits: &self.record.params.limits,
            before: Usage::default(),
            after: None,
            terminated: None,
            keeps: true,
            hints: &self.executions.sandboxes.config().hints,
            restored: None,
            why_lost: None,
            network: NetworkEvidence::default(),
        }))
    }
}

/// Returns the text for the caller.
pub(crate) fn install_summary(installed: &Installed, asked: &[String]) -> String {
    let name = |text: &String| {
        let text = text.trim();
        // The registry's name may stand before the package name.
        let text = text
            .split_once(':')
            .filter(|(registry, _)| registry.bytes().all(|b| b.is_ascii_lowercase()))
            .map_or(text, |(_, rest)| rest);
        // After the first character, an `@` begins a version in npm's syntax.
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
    let (own, more): (Vec<&PackageVersion>, Vec<&PackageVersion>) = installed
        .added
        .iter()
        .partition(|one| names.contains(&one.name.to_lowercase().replace(['_', '.'], "-")));
    let list = |held: &[&PackageVersion]| {
        // A package that the sandbox already had is known by its name only.
        let text = |one: &&PackageVersion| format!("{} {}", one.name, one.version).trim_end().to_owned();
        let texts: Vec<String> = held.iter().map(text).collect();
        texts.join(", ")
    };
    let mut lines = Vec::new();
    if !own.is_empty() {
        lines.push(format!("installed {}", list(&own)));
    }
    if !more.is_empty() {
        lines.push(format!("dependencies: {}", list(&more)));
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
    fn requested_packages_are_listed_first() {
        let held = |name: &str| PackageVersion {
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
        let expected = "installed scikit-learn 1.0\ndependencies: six 1.0\nalready there: numpy 1.0\nnote\n";
        assert_eq!(install_summary(&installed, &asked), expected);
    }
}
