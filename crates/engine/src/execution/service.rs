//! The path of an answer: waiting, cancelling, resetting, giving up, and the record of the end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::join_all;
use sandcell_sandbox::{Code, Failure};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::ids::quote_for_error;
use crate::api::sync::lock;
use crate::execution::outcome::Outcome;
use crate::execution::state::{Execution, error_line};
use crate::execution::store::ExecutionStore;
use crate::execution::termination::{INTERRUPT_GRACE, KILL_TIMEOUT, Stop};
use crate::records::history::Entry;
use crate::records::spans;
use crate::sandbox::sandboxes::Sandboxes;
use crate::sandbox::session::SessionSlot;
use crate::sandbox::state::Record;
use crate::sandbox::usage::Cost;
use crate::{ExecutionId, ExecutionView, Principal, ResetView, Status};

/// The maximum time to end an execution: termination, and the work after it.
const END_TIMEOUT: Duration = INTERRUPT_GRACE
    .saturating_add(KILL_TIMEOUT)
    .saturating_add(Duration::from_secs(2));

/// The executions of an engine.
#[derive(Debug)]
pub(crate) struct Executions {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: ExecutionStore,
}

impl Executions {
    /// Records a call that was refused before anything started. It is part of the history, too.
    pub(crate) fn refuse(&self, principal: &Principal, language: &str, code: &str, failure: &Failure) {
        self.refuse_with_visibility(principal, language, code, failure, true);
    }

    /// Does the same as `refuse`. `shown`: the caller's view contains the row.
    pub(crate) fn refuse_with_visibility(
        &self,
        principal: &Principal,
        language: &str,
        code: &str,
        failure: &Failure,
        shown: bool,
    ) {
        let Ok(execution) = ExecutionId::random() else { return };
        let entry = Entry {
            execution,
            sandbox: None,
            language: &quote_for_error(language),
            status: Status::Error,
            started: SystemTime::now(),
            duration: Duration::ZERO,
            code,
            stdout: "",
            error: Some(&failure.message),
            shown,
        };
        let row = lock(&self.sandboxes.records.history).add(principal, &entry);
        self.sandboxes
            .records
            .observers
            .refused(principal, code, failure, row, shown);
        self.sandboxes.records.metrics.refused(failure.code);
    }

    pub(crate) async fn reset(
        &self,
        principal: &Principal,
        sandbox: Option<&str>,
        language: Option<&str>,
    ) -> Result<ResetView, Failure> {
        let language = language.map(|name| self.sandboxes.language(name)).transpose()?;
        let wanted = language.as_ref().map(|language| language.info().name.as_str());
        let record = match sandbox {
            Some(id) => Some(self.sandboxes.registry.find(principal, id)?.record),
            None => self.sandboxes.registry.existing_default(principal),
        };
        let mut languages = Vec::new();
        if let Some(record) = &record {
            let _alone = record.checkpoints.no_alternatives().await;
            let slots: Vec<(String, Arc<SessionSlot>)> = lock(&record.slots)
                .iter()
                .filter(|((language, _), _)| wanted.is_none_or(|wanted| wanted == language.as_str()))
                .map(|((language, _), slot)| (language.clone(), slot.clone()))
                .collect();
            let ended = join_all(slots.iter().map(|(_, slot)| self.restart(record, slot))).await;
            let ended = slots.into_iter().zip(ended).filter(|(_, ended)| *ended);
            languages.extend(ended.map(|((language, _), _)| language));
            languages.dedup();
        }
        lock(&self.sandboxes.records.history).reset(principal);
        if let Some(history_sink) = &self.sandboxes.records.observers.history_sink {
            history_sink.reset(principal, SystemTime::now());
        }
        Ok(ResetView {
            sandbox_id: record.map(|record| record.id.clone()),
            languages,
        })
    }

    pub(crate) async fn end_session(
        &self,
        principal: &Principal,
        sandbox: &str,
        language: &str,
        name: Option<String>,
    ) -> Result<bool, Failure> {
        let language = self.sandboxes.language(language)?.info().name.clone();
        let record = self.sandboxes.registry.find(principal, sandbox)?.record;
        let _alone = record.checkpoints.no_alternatives().await;
        let key = (language, name);
        let slot = if key.1.is_some() {
            lock(&record.slots).remove(&key)
        } else {
            lock(&record.slots).get(&key).cloned()
        };
        Ok(match slot {
            Some(slot) => self.restart(&record, &slot).await,
            None => false,
        })
    }

    /// Ends the interpreter of a slot. Kills running code first, and waits for other uses, such as an automatic checkpoint.
    async fn restart(&self, record: &Record, slot: &SessionSlot) -> bool {
        let had = loop {
            if let Some(id) = slot.running() {
                if let Ok(execution) = self.store.find(&record.owner, id.as_str()) {
                    self.end(&execution, Stop::Reset).await;
                }
                break true;
            }
            let turn = slot.turn_between_executions().await;
            let Some(mut held) = slot.take() else {
                if turn.is_none() {
                    continue;
                }
                break false;
            };
            // A preloaded interpreter that has run nothing is not reported.
            let has_run = held.cells > 0;
            held.session.halt().await;
            slot.retire(held);
            break has_run;
        };
        // The caller requested the reset, so no result needs to report it.
        drop(slot.take_unreported_loss());
        had
    }

    /// Finishes an execution: publishes its outcome, stores it and records it.
    pub(crate) fn finish(&self, execution: &Execution, end: Result<(Outcome, Cost), Failure>) {
        let first = execution.finish(end, &self.sandboxes.config().hints, |view, failure| {
            let error = failure.map(|failure| failure.message.as_str());
            let entry = Entry {
                execution: execution.id.clone(),
                sandbox: Some(execution.sandbox_id.clone()),
                language: &execution.language,
                status: view.status,
                started: view.started,
                duration: view.duration,
                code: &execution.code,
                stdout: &view.stdout.text,
                error: error.or_else(|| error_line(view)),
                shown: execution.is_shown(),
            };
            let row = lock(&self.sandboxes.records.history).add(&execution.owner, &entry);
            self.sandboxes
                .records
                .observers
                .ended(&execution.owner, &execution.code, view, row, execution.is_shown());
            let cause = failure
                .map(|failure| failure.code)
                .or(view.cause.as_ref().map(|cause| cause.code));
            spans::ended(
                view.status.as_str(),
                cause.map(sandcell_sandbox::Code::as_str),
                view.cpu,
            );
            self.sandboxes
                .records
                .metrics
                .ended(view.status, cause, view.duration, view.cpu);
            self.sandboxes.cpu_quota.charge(&execution.owner, view.cpu);
        });
        if first {
            self.store.add_finished(execution);
        }
        self.sandboxes.pool.call_ended();
    }

    /// Waits for the end of an execution on behalf of its caller: at most `wait`, and until `cancel` fires.
    pub(crate) async fn answer(
        &self,
        execution: &Arc<Execution>,
        wait: Option<Duration>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let patience = async {
            match wait {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        self.answer_within(execution, patience, cancel).await
    }

    /// Does the same as `answer`, until `patience` is ready.
    pub(crate) async fn answer_within(
        &self,
        execution: &Arc<Execution>,
        patience: impl Future<Output = ()>,
        cancel: CancellationToken,
    ) -> Result<ExecutionView, Failure> {
        let mut caller = CancelOnDrop {
            execution,
            present: true,
        };
        tokio::select! {
            biased;
            () = execution.finished() => {}
            () = cancel.cancelled() => {
                execution.stop(Stop::Cancelled);
                // Termination is bounded, so this wait is too.
                execution.finished().await;
            }
            () = execution.question_for_caller() => {}
            () = patience => {}
        }
        caller.present = false;
        if execution.is_finished() {
            execution.delivered();
        }
        execution.outcome()
    }

    /// Ends an execution for its caller and waits for its end.
    pub(crate) async fn end(&self, execution: &Execution, stop: Stop) -> ExecutionView {
        execution.stop(stop);
        self.wait(execution, END_TIMEOUT).await
    }

    /// Waits for the end of an execution. Returns its current state if that takes longer than `wait`.
    pub(crate) async fn wait(&self, execution: &Execution, wait: Duration) -> ExecutionView {
        if !execution.is_finished() && !wait.is_zero() {
            let news = async {
                tokio::select! {
                    biased;
                    () = execution.finished() => {}
                    () = execution.question_for_caller() => {}
                }
            };
            // A time-out is not an error: the view reports the state.
            drop(timeout(wait, news).await);
        }
        if execution.is_finished() {
            execution.delivered();
        }
        execution.view()
    }
}

/// The waiting caller. Dropping it cancels the execution.
struct CancelOnDrop<'a> {
    execution: &'a Execution,
    present: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.present {
            self.execution.stop(Stop::Cancelled);
        }
    }
}

/// Guarantees that an execution ends, even if its task panics.
pub(crate) struct Finisher {
    pub(crate) executions: Arc<Executions>,
    pub(crate) execution: Arc<Execution>,
    /// The sandbox, if it is for this run only.
    pub(crate) throwaway: Option<Arc<Record>>,
}

impl Finisher {
    pub(crate) fn finish(self, end: Result<(Outcome, Cost), Failure>) {
        self.dispose();
        self.executions.finish(&self.execution, end);
    }

    /// Discards the sandbox. Its task closes it; the answer does not wait for that.
    fn dispose(&self) {
        if let Some(record) = &self.throwaway {
            self.executions.sandboxes.discard(record);
        }
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        self.dispose();
        if !self.execution.is_finished() {
            let failure = Failure::new(
                Code::Internal,
                "the task that ran the code ended unexpectedly",
                "run it again; the server's log has details",
            );
            self.executions.finish(&self.execution, Err(failure));
        }
    }
}
