//! Runs one cell in its session: events, time limit, termination, and installations that the cell requests.

use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandcell_sandbox::{Cell, CellOutcome, CellStatus, Consent, Interrupter, Sandbox, SessionError, SessionEvent};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::execution::install::install_summary;
use crate::execution::job::{END_NOTICE_TIMEOUT, Job, RunReport};
use crate::execution::outcome::Ending;
use crate::execution::termination::{Step, Stop, Termination};
use crate::sandbox::packages::INSTALL_TIMEOUT;
use crate::sandbox::pause::PauseClock;
use crate::sandbox::session::LiveSession;

/// The capacity of the channel for a session's events.
const EVENT_CAPACITY: usize = 64;

impl Job {
    /// Runs a cell, receives its events, and ends it at its deadline or on request.
    pub(super) async fn drive(
        &self,
        live: &mut LiveSession,
        cell: Cell,
        sandbox: &dyn Sandbox,
        deadline: Instant,
    ) -> RunReport {
        let mut began = Instant::now();
        let (execution, record) = (&*self.execution, &*self.record);
        let gentle = live.session.features().interrupt;
        let interrupter = live.session.interrupter();
        let mut termination = Termination::new(interrupter.clone(), gentle, deadline);
        let (sender, mut events) = mpsc::channel::<SessionEvent>(EVENT_CAPACITY);
        let mut timer = pin!(sleep_until(termination.next()));
        let _tools = execution.offer_tools(record);
        let mut pauses = PauseClock::new(record, execution.tools());
        let mut stopped = pin!(execution.stopped());
        let mut sandbox_ended = pin!(record.wait_closing());
        let (mut heard, mut closing) = (false, false);
        // An installation that the cell waits for. It has a separate time limit, which does not count against the
        // cell's.
        let mut installing: Option<(Instant, BoxFuture<'_, Result<String, String>>)> = None;
        let ended = {
            let mut run = live.session.execute(cell, &sender);
            loop {
                tokio::select! {
                    biased;
                    stop = &mut stopped, if !heard => { heard = true; termination.stop(stop); }
                    end = &mut sandbox_ended, if !closing => {
                        closing = true;
                        termination.stop(Stop::SandboxEnded(end));
                    }
                    () = &mut timer, if installing.is_none() || termination.step() != Step::Free => {
                        match pauses.postponement() {
                            Some(paused) if termination.step() == Step::Free => termination.extend(paused),
                            _ => termination.advance(),
                        }
                    }
                    ended = &mut run => break Some(ended),
                    result = async { match &mut installing {
                        Some((_, work)) => work.await,
                        None => std::future::pending().await,
                    } } => {
                        let since = installing.take().map_or(began, |(since, _)| since);
                        termination.extend(since.elapsed());
                        answer_install(&interrupter, result).await;
                    }
                    Some(event) = events.recv() => match event {
                        SessionEvent::Install { packages } if installing.is_none() => {
                            let work = self.install_for_cell(sandbox, packages);
                            installing = Some((Instant::now(), work.boxed()));
                        }
                        SessionEvent::Install { .. } => {
                            let busy = Err("another installation of this session is running".to_owned());
                            answer_install(&interrupter, busy).await;
                        }
                        SessionEvent::Begun => {
                            began = Instant::now();
                            execution.begin();
                            termination.begin(began + self.timeout);
                        }
                        event => { execution.take(event); continue; }
                    },
                }
                if termination.step() == Step::GivenUp {
                    break None;
                }
                if timer.deadline() != termination.next() {
                    timer.as_mut().reset(termination.next());
                }
            }
        };
        // The outcome comes after the last event, which may still be in the channel.
        while let Ok(event) = events.try_recv() {
            execution.take(event);
        }
        RunReport {
            sandbox_failed: matches!(ended, Some(Err(SessionError::Sandbox(_)))),
            ending: match ended {
                Some(Ok(CellOutcome {
                    status: CellStatus::Ended(exit),
                })) => Ending::Program(exit),
                Some(Ok(CellOutcome { status })) => Ending::Cell(status),
                Some(Err(error)) => Ending::Broke(error.into()),
                None => Ending::Abandoned,
            },
            step: termination.step(),
            stop: termination.into_stop(),
            duration: began.elapsed(),
        }
    }

    /// Installs packages for `pip install` in a cell, and returns the cell's answer.
    async fn install_for_cell(&self, sandbox: &dyn Sandbox, packages: Vec<String>) -> Result<String, String> {
        let progress = watch::Sender::new(String::new());
        let work = self
            .executions
            .sandboxes
            .provide(
                &self.record,
                sandbox,
                &self.language.info().name,
                // The user is not asked about requests of code.
                (&packages, &Consent::NotAsked),
                INSTALL_TIMEOUT,
                &progress,
            )
            .await;
        match work {
            Ok(Some(installed)) => Ok(install_summary(&installed, &packages)),
            Ok(None) => Ok("nothing to install".to_owned()),
            Err(failure) => Err(format!("{}; {}", failure.message, failure.remedy)),
        }
    }
}

/// Answers an installation request of a cell. A cell that no longer reads gets no answer.
async fn answer_install(to: &Arc<dyn Interrupter>, result: Result<String, String>) {
    if !matches!(timeout(END_NOTICE_TIMEOUT, to.installed(result)).await, Ok(Ok(()))) {
        tracing::debug!("the answer to an installation could not be delivered to its cell");
    }
}
