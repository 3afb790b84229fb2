//! Runs several pieces of code, each from the same state of a sandbox, one after another.
//!
//! The state is a checkpoint, and so is the state that each piece leaves. So a caller keeps one of them by returning to
//! its checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandcell_sandbox::{Code, Failure, Variable};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::policy;
use crate::api::sync::lock;
use crate::execution::job::SessionMode;
use crate::execution::service::Executions;
use crate::execution::termination::Stop;
use crate::sandbox::state::Record;
use crate::{
    AlternativeView, AlternativesRequest, AlternativesView, ExecuteRequest, ExecutionView, Principal, RewindTo, Status,
    VariableChange, VariableChangeKind,
};

/// The maximum number of alternatives in one call. All their checkpoints are kept.
const MAX_ALTERNATIVES: usize = 6;
/// The maximum number of changed files in the answer, for each alternative.
const MAX_CHANGES: usize = 50;
/// The name of the common state's checkpoint, and the beginning of those of alternatives.
const BASE_NAME: &str = "before-alternatives";
const NAME_PREFIX: &str = "alternative-";
/// The least time that is worth starting an alternative.
const MIN_TIME: Duration = Duration::from_millis(100);

impl Executions {
    /// Runs in a separate task: the sandbox returns to the common state even if the caller disconnects.
    pub(crate) async fn try_alternatives(
        self: &Arc<Self>,
        principal: &Principal,
        req: AlternativesRequest,
        cancel: CancellationToken,
    ) -> Result<AlternativesView, Failure> {
        let (executions, principal) = (Arc::clone(self), principal.clone());
        let cancel = cancel.child_token();
        let _cancels_when_dropped = cancel.clone().drop_guard();
        let work = tokio::spawn(async move { executions.try_all(&principal, req, cancel).await });
        work.await.unwrap_or_else(|_| {
            Err(Failure::new(
                Code::Internal,
                "the alternatives failed in the server",
                "try again; the log of the server has the reason",
            ))
        })
    }

    async fn try_all(
        self: &Arc<Self>,
        principal: &Principal,
        req: AlternativesRequest,
        cancel: CancellationToken,
    ) -> Result<AlternativesView, Failure> {
        if !(2..=MAX_ALTERNATIVES).contains(&req.codes.len()) {
            return Err(Failure::invalid(
                format!("{} alternatives were given", req.codes.len()),
                format!("give 2 to {MAX_ALTERNATIVES}"),
            ));
        }
        let language = self.sandboxes.language(&req.language)?.info().name.clone();
        for code in &req.codes {
            policy::code(&self.sandboxes.config(), code)?;
        }
        let limit = policy::timeout(&self.sandboxes.config(), req.timeout)?;
        let target = self.sandboxes.target(principal, req.sandbox_id.as_deref()).await?;
        let record = Arc::clone(&target.record);
        let _alone = record.checkpoints.begin_alternatives().await;
        let made = self
            .sandboxes
            .checkpoint_of(&record, Some(BASE_NAME.to_owned()))
            .await?;
        let (base, mut dropped) = (made.checkpoint, made.dropped);
        let _pin = Pin::new(&record, &base.name);
        let before = variables(&record, &language).await;
        let until = req.wait.map(|wait| Instant::now() + wait);
        let mut alternatives = Vec::with_capacity(req.codes.len());
        for (code, number) in req.codes.into_iter().zip(1..) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if cancel.is_cancelled() || left.is_some_and(|left| left < MIN_TIME) {
                alternatives.push(AlternativeView::default());
                continue;
            }
            let request = ExecuteRequest {
                code,
                language: language.clone(),
                sandbox_id: Some(record.id.to_string()),
                timeout: Some(left.map_or(limit, |left| left.min(limit))),
                ..ExecuteRequest::default()
            };
            let execution = self.run_to_end(principal, request, cancel.child_token()).await;
            let tried = match execution {
                Ok(execution) => {
                    let name = format!("{NAME_PREFIX}{number}");
                    self.inspect(&record, execution, (&base.name, name), &before, &mut dropped)
                        .await
                }
                Err(failure) => AlternativeView {
                    not_kept: Some(failure.message),
                    ..AlternativeView::default()
                },
            };
            alternatives.push(tried);
            // Whatever happened, the next one begins in the common state.
            let back = self
                .sandboxes
                .rewind_of(&record, &RewindTo::Named(base.name.clone()))
                .await;
            back.map_err(|failure| Failure {
                message: format!(
                    "alternative {number} was the last that ran, and its state could not be left: {}",
                    failure.message
                ),
                ..failure
            })?;
        }
        for one in &mut alternatives {
            if one.checkpoint.take_if(|name| !record.checkpoints.has(name)).is_some() {
                one.not_kept = Some("its state was dropped to make room for later ones".to_owned());
            }
        }
        dropped.retain(|name| !name.starts_with(NAME_PREFIX) && name != BASE_NAME);
        Ok(AlternativesView {
            sandbox_id: record.id.clone(),
            base,
            alternatives,
            dropped,
        })
    }

    async fn run_to_end(
        self: &Arc<Self>,
        principal: &Principal,
        request: ExecuteRequest,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let execution = self
            .execute_now(principal, request, SessionMode::Variables, None, cancel)
            .await?;
        if execution.status != Status::Running {
            return Ok(execution);
        }
        // Nobody answers its question about a call of a tool.
        let running = self.store.find(principal, execution.id.as_str())?;
        Ok(self.end(&running, Stop::Cancelled).await)
    }

    /// Describes what an execution has changed since the common state, and keeps its state under a name.
    async fn inspect(
        self: &Arc<Self>,
        record: &Arc<Record>,
        execution: ExecutionView,
        (base, name): (&str, String),
        before: &[Variable],
        dropped: &mut Vec<String>,
    ) -> AlternativeView {
        let after = variables(record, &execution.language).await;
        let files = self.sandboxes.changes_since(record, base, MAX_CHANGES).await;
        let (checkpoint, not_kept) = match self.sandboxes.checkpoint_of(record, Some(name.clone())).await {
            Ok(made) => {
                dropped.extend(made.dropped);
                (Some(name), None)
            }
            Err(failure) => (None, Some(failure.message)),
        };
        AlternativeView {
            execution: Some(execution),
            checkpoint,
            not_kept,
            variables: changes(before, &after),
            // Without the list the result is still of use.
            files: files.unwrap_or_default(),
        }
    }
}

/// Protects the common state from being dropped to make room.
struct Pin<'a>(&'a Record);

impl<'a> Pin<'a> {
    fn new(record: &'a Record, name: &str) -> Self {
        record.checkpoints.pin(Some(name));
        Self(record)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.checkpoints.pin(None);
    }
}

/// Returns the variables of the language's first session. Empty if there is none.
async fn variables(record: &Arc<Record>, language: &str) -> Vec<Variable> {
    let slot = lock(&record.slots).get(&(language.to_owned(), None)).cloned();
    match (slot, record.running()) {
        (Some(slot), Some(running)) => slot.variables(running).await.unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn changes(before: &[Variable], after: &[Variable]) -> Vec<VariableChange> {
    let old: BTreeMap<&str, &Variable> = before.iter().map(|one| (one.name.as_str(), one)).collect();
    let is_there = |name: &str| after.iter().any(|one| one.name == name);
    let changed = after.iter().filter_map(|one| {
        let change = match old.get(one.name.as_str()) {
            None => VariableChangeKind::Created,
            Some(old) if *old != one => VariableChangeKind::Modified,
            Some(_) => return None,
        };
        Some((change, one))
    });
    let removed = before.iter().filter(|one| !is_there(&one.name));
    let all = changed.chain(removed.map(|one| (VariableChangeKind::Removed, one)));
    all.map(|(change, variable)| VariableChange {
        change,
        variable: variable.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_named_by_kind() {
        let variable = |name: &str, preview: &str| Variable {
            name: name.to_owned(),
            kind: "int".to_owned(),
            shape: String::new(),
            bytes: 28,
            preview: preview.to_owned(),
        };
        let before = [variable("a", "1"), variable("b", "1"), variable("c", "1")];
        let after = [variable("a", "1"), variable("b", "2"), variable("d", "1")];
        let found: Vec<_> = changes(&before, &after)
            .into_iter()
            .map(|one| (one.variable.name, one.change))
            .collect();
        assert_eq!(
            found,
            [
                ("b".to_owned(), VariableChangeKind::Modified),
                ("d".to_owned(), VariableChangeKind::Created),
                ("c".to_owned(), VariableChangeKind::Removed),
            ]
        );
    }
}
