//! Jobs that outlive the calls that started them: image pulls and installations of languages.
//!
//! A call waits for some seconds and then reports the job's progress. The next call for the same job continues to wait.
//! So a client that gives up loses no work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandcell_sandbox::Preparing;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// The maximum wait of one call.
const MAX_CALL_WAIT: Duration = Duration::from_secs(20);
/// The maximum number of concurrent jobs.
const MAX_JOBS: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Running(Preparing),
    Done,
    Failed(String),
}

/// The maximum time that a caller waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitLimit {
    /// As long as one call may wait.
    Call,
    UntilDone,
}

/// The state of a job when a call's wait ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobState {
    Done,
    /// The job is still running.
    Running(Preparing),
    Failed(String),
    /// Not started: this many other jobs are running.
    TooMany(usize),
}

/// Reports a job's progress.
#[derive(Debug, Clone)]
pub(super) struct ProgressReporter(watch::Sender<Stage>);

impl ProgressReporter {
    pub(super) fn report(&self, progress: Preparing) {
        self.0.send_replace(Stage::Running(progress));
    }
}

/// A running job.
#[derive(Debug)]
struct RunningJob {
    number: u64,
    stage: watch::Sender<Stage>,
    stop: Arc<Notify>,
}

/// The running jobs, by name.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: Mutex<HashMap<String, RunningJob>>,
    next: AtomicU64,
}

impl Jobs {
    /// Starts a job that may take at most `max_duration`, or joins the running one, and waits for it. The job runs in a
    /// separate task, so a waiting caller may leave. A job must remove its own partial results.
    pub(super) async fn join<J>(
        self: &Arc<Self>,
        name: &str,
        wait_limit: WaitLimit,
        max_duration: Duration,
        job: impl FnOnce(ProgressReporter) -> J,
    ) -> JobState
    where
        J: Future<Output = Result<(), String>> + Send + 'static,
    {
        let Some(mut stage) = self.begin(name, max_duration, job) else {
            return JobState::TooMany(MAX_JOBS);
        };
        let ended = stage.wait_for(|stage| !matches!(stage, Stage::Running(_)));
        let ended = match wait_limit {
            WaitLimit::Call => timeout(MAX_CALL_WAIT, ended).await,
            // The job itself has a deadline.
            WaitLimit::UntilDone => Ok(ended.await),
        };
        let ended = ended.map(|ended| ended.map(|stage| stage.clone()));
        let seen = match ended {
            Ok(Ok(stage)) => stage,
            Ok(Err(_)) => Stage::Failed("it ended unexpectedly".to_owned()),
            Err(_) => stage.borrow().clone(),
        };
        match seen {
            Stage::Done => JobState::Done,
            Stage::Running(progress) => JobState::Running(progress),
            Stage::Failed(reason) => JobState::Failed(reason),
        }
    }

    fn begin<J>(
        self: &Arc<Self>,
        name: &str,
        max_duration: Duration,
        job: impl FnOnce(ProgressReporter) -> J,
    ) -> Option<watch::Receiver<Stage>>
    where
        J: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = running.get(name) {
            return Some(one.stage.subscribe());
        }
        if running.len() >= MAX_JOBS {
            return None;
        }
        let (sender, stage) = watch::channel(Stage::Running(Preparing::default()));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let job = job(ProgressReporter(sender.clone()));
        let entry = Entry {
            jobs: Arc::clone(self),
            name: name.to_owned(),
            number,
        };
        let stop = Arc::new(Notify::new());
        let one = RunningJob {
            number,
            stage: sender.clone(),
            stop: Arc::clone(&stop),
        };
        running.insert(name.to_owned(), one);
        // Unlock first: a runtime that shuts down drops the task, and with it the entry, inside `spawn`.
        drop(running);
        tokio::spawn(async move {
            let end = tokio::select! {
                end = timeout(max_duration, job) => end,
                () = stop.notified() => return,
            };
            let end = match end {
                Ok(Ok(())) => Stage::Done,
                Ok(Err(reason)) => Stage::Failed(reason),
                Err(_) => Stage::Failed(format!("it took more than {} s", max_duration.as_secs())),
            };
            // A caller that arrives now starts a new job.
            drop(entry);
            sender.send_replace(end);
        });
        Some(stage)
    }

    /// Ends a job if no caller waits for it.
    pub(super) fn abandon(&self, name: &str) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(name).is_some_and(|one| one.stage.receiver_count() == 0)
            && let Some(one) = running.remove(name)
        {
            tracing::info!(work = name, "abandoned");
            one.stop.notify_one();
        }
    }

    /// Returns the progress of a running job.
    pub(super) fn progress(&self, name: &str) -> Option<Preparing> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running.get(name)?.stage.borrow() {
            Stage::Running(progress) => Some(progress.clone()),
            Stage::Done | Stage::Failed(_) => None,
        }
    }
}

/// Removes a job from the list on drop, also after a panic.
struct Entry {
    jobs: Arc<Jobs>,
    name: String,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut running = self.jobs.running.lock().unwrap_or_else(PoisonError::into_inner);
        // An abandoned job may have a successor of the same name.
        if running.get(&self.name).is_some_and(|one| one.number == self.number) {
            running.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: u64) -> Preparing {
        Preparing {
            text: "working".to_owned(),
            done,
            total: 10,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_job_is_joined_and_its_waiters_see_its_progress() {
        let jobs = Arc::new(Jobs::default());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let first = jobs.join("a", WaitLimit::Call, Duration::from_secs(100), |teller| async move {
            teller.report(at(3));
            gone.await.map_err(|_| "left".to_owned())
        });
        assert_eq!(first.await, JobState::Running(at(3)));
        assert_eq!(jobs.progress("a"), Some(at(3)));
        assert_eq!(jobs.progress("b"), None);
        let second = jobs.join("a", WaitLimit::Call, Duration::from_secs(100), |_| async {
            Err("began twice".to_owned())
        });
        go.send(()).unwrap();
        assert_eq!(second.await, JobState::Done);
        assert_eq!(jobs.progress("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_timed_out_or_panicked_job_ends_and_the_next_call_starts_again() {
        let jobs = Arc::new(Jobs::default());
        let max_duration = Duration::from_secs(5);
        let failed = jobs
            .join("a", WaitLimit::Call, max_duration, |_| async { Err("no".to_owned()) })
            .await;
        assert_eq!(failed, JobState::Failed("no".to_owned()));
        let slow = jobs
            .join("a", WaitLimit::Call, max_duration, |_| std::future::pending())
            .await;
        assert_eq!(slow, JobState::Failed("it took more than 5 s".to_owned()));
        let broken = jobs
            .join("a", WaitLimit::Call, max_duration, |_| async { panic!("on purpose") })
            .await;
        assert_eq!(broken, JobState::Failed("it ended unexpectedly".to_owned()));
        assert_eq!(
            jobs.join("a", WaitLimit::Call, max_duration, |_| async { Ok(()) })
                .await,
            JobState::Done
        );
    }

    /// Sends a message when it is dropped.
    struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().map(|progress| progress.send(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_job_ends_unless_another_caller_waits_and_can_start_again() {
        let jobs = Arc::new(Jobs::default());
        let max_duration = Duration::from_secs(100);
        let (progress, gone) = tokio::sync::oneshot::channel();
        let dropped = Dropped(Some(progress));
        let mut waiting = Box::pin(jobs.join("a", WaitLimit::Call, max_duration, |_| async move {
            let _dropped = dropped;
            std::future::pending().await
        }));
        assert!(futures::poll!(&mut waiting).is_pending());
        jobs.abandon("a");
        assert!(jobs.progress("a").is_some(), "somebody waits");
        drop(waiting);
        jobs.abandon("a");
        assert_eq!(jobs.progress("a"), None);
        // A new job starts before the old one has stopped.
        let again = jobs.join("a", WaitLimit::Call, max_duration, |_| async { Ok(()) });
        assert_eq!(again.await, JobState::Done);
        gone.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_jobs_are_bounded() {
        let jobs = Arc::new(Jobs::default());
        let max_duration = Duration::from_secs(100);
        for number in 0..MAX_JOBS {
            let begun = jobs.begin(&number.to_string(), max_duration, |_| std::future::pending());
            assert!(begun.is_some());
        }
        let more = jobs
            .join("more", WaitLimit::Call, max_duration, |_| async { Ok(()) })
            .await;
        assert_eq!(more, JobState::TooMany(MAX_JOBS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_without_a_deadline_waits_until_the_job_is_done() {
        let jobs = Arc::new(Jobs::default());
        let max_duration = Duration::from_secs(1000);
        let job = |_| async {
            tokio::time::sleep(MAX_CALL_WAIT * 5).await;
            Ok(())
        };
        assert_eq!(
            jobs.join("a", WaitLimit::UntilDone, max_duration, job).await,
            JobState::Done
        );
        let never = |_| std::future::pending();
        let found = jobs.join("a", WaitLimit::UntilDone, max_duration, never).await;
        assert_eq!(found, JobState::Failed("it took more than 1000 s".to_owned()));
    }

    #[test]
    fn a_runtime_shutdown_blocks_no_caller() {
        let (progress, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let handle = runtime.handle().clone();
            drop(runtime);
            let _entered = handle.enter();
            let jobs = Arc::new(Jobs::default());
            let stage = jobs.begin("a", Duration::from_secs(5), |_| std::future::pending());
            progress
                .send((stage.unwrap().has_changed().is_err(), jobs.progress("a")))
                .unwrap();
        });
        assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok((true, None)));
    }
}
