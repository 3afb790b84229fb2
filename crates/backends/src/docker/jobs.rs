//! Jobs that outlive the calls that started them: image pulls and installations of languages.
//!
//! A call waits for some seconds and then reports the job's progress. The next call for the same job goes on waiting.
//! So a client that gives up loses no work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandcell_sandbox::Preparing;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// The maximum wait of one call.
const WAIT: Duration = Duration::from_secs(20);
/// The maximum number of concurrent jobs.
const WORKS: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Running(Preparing),
    Done,
    Failed(String),
}

/// The maximum time that a caller waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as one call may wait.
    Call,
    UntilDone,
}

/// The state of a job when a call's wait ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Done,
    /// The job is still running.
    Running(Preparing),
    Failed(String),
    /// Not started: this many other jobs are running.
    TooMany(usize),
}

/// Reports a job's progress.
#[derive(Debug, Clone)]
pub(super) struct Teller(watch::Sender<Stage>);

impl Teller {
    pub(super) fn say(&self, progress: Preparing) {
        self.0.send_replace(Stage::Running(progress));
    }
}

/// A running job.
#[derive(Debug)]
struct Running {
    number: u64,
    stage: watch::Sender<Stage>,
    stop: Arc<Notify>,
}

/// The running jobs, by name.
#[derive(Debug, Default)]
pub(super) struct Works {
    running: Mutex<HashMap<String, Running>>,
    next: AtomicU64,
}

impl Works {
    /// Starts a job that may take at most `most`, or joins the running one, and waits for it. The job runs in a
    /// separate task, so a waiting caller may leave. A job must remove its own partial results.
    pub(super) async fn join<W>(
        self: &Arc<Self>,
        name: &str,
        patience: Patience,
        most: Duration,
        work: impl FnOnce(Teller) -> W,
    ) -> Found
    where
        W: Future<Output = Result<(), String>> + Send + 'static,
    {
        let Some(mut stage) = self.begin(name, most, work) else {
            return Found::TooMany(WORKS);
        };
        let over = stage.wait_for(|stage| !matches!(stage, Stage::Running(_)));
        let over = match patience {
            Patience::Call => timeout(WAIT, over).await,
            // The job itself has a deadline.
            Patience::UntilDone => Ok(over.await),
        };
        let over = over.map(|over| over.map(|stage| stage.clone()));
        let seen = match over {
            Ok(Ok(stage)) => stage,
            Ok(Err(_)) => Stage::Failed("it broke off".to_owned()),
            Err(_) => stage.borrow().clone(),
        };
        match seen {
            Stage::Done => Found::Done,
            Stage::Running(progress) => Found::Running(progress),
            Stage::Failed(reason) => Found::Failed(reason),
        }
    }

    fn begin<W>(
        self: &Arc<Self>,
        name: &str,
        most: Duration,
        work: impl FnOnce(Teller) -> W,
    ) -> Option<watch::Receiver<Stage>>
    where
        W: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = running.get(name) {
            return Some(one.stage.subscribe());
        }
        if running.len() >= WORKS {
            return None;
        }
        let (sender, stage) = watch::channel(Stage::Running(Preparing::default()));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let work = work(Teller(sender.clone()));
        let entry = Entry {
            works: Arc::clone(self),
            name: name.to_owned(),
            number,
        };
        let stop = Arc::new(Notify::new());
        let one = Running {
            number,
            stage: sender.clone(),
            stop: Arc::clone(&stop),
        };
        running.insert(name.to_owned(), one);
        // Unlock first: a runtime that shuts down drops the task, and with it the entry, inside `spawn`.
        drop(running);
        tokio::spawn(async move {
            let end = tokio::select! {
                end = timeout(most, work) => end,
                () = stop.notified() => return,
            };
            let end = match end {
                Ok(Ok(())) => Stage::Done,
                Ok(Err(reason)) => Stage::Failed(reason),
                Err(_) => Stage::Failed(format!("it took more than {} s", most.as_secs())),
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
            tracing::info!(work = name, "given up");
            one.stop.notify_one();
        }
    }

    /// Returns the progress of a running job.
    pub(super) fn told(&self, name: &str) -> Option<Preparing> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running.get(name)?.stage.borrow() {
            Stage::Running(progress) => Some(progress.clone()),
            Stage::Done | Stage::Failed(_) => None,
        }
    }
}

/// Removes a job from the list on drop, also after a panic.
struct Entry {
    works: Arc<Works>,
    name: String,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut running = self.works.running.lock().unwrap_or_else(PoisonError::into_inner);
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
    async fn a_long_work_is_joined_and_its_waiters_are_told_how_far_it_is() {
        let works = Arc::new(Works::default());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let first = works.join("a", Patience::Call, Duration::from_secs(100), |teller| async move {
            teller.say(at(3));
            gone.await.map_err(|_| "left".to_owned())
        });
        assert_eq!(first.await, Found::Running(at(3)));
        assert_eq!(works.told("a"), Some(at(3)));
        assert_eq!(works.told("b"), None);
        let second = works.join("a", Patience::Call, Duration::from_secs(100), |_| async {
            Err("began twice".to_owned())
        });
        go.send(()).unwrap();
        assert_eq!(second.await, Found::Done);
        assert_eq!(works.told("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_time_outs_and_panics_end_a_work_and_the_next_call_begins_anew() {
        let works = Arc::new(Works::default());
        let most = Duration::from_secs(5);
        let failed = works
            .join("a", Patience::Call, most, |_| async { Err("no".to_owned()) })
            .await;
        assert_eq!(failed, Found::Failed("no".to_owned()));
        let slow = works.join("a", Patience::Call, most, |_| std::future::pending()).await;
        assert_eq!(slow, Found::Failed("it took more than 5 s".to_owned()));
        let broken = works
            .join("a", Patience::Call, most, |_| async { panic!("on purpose") })
            .await;
        assert_eq!(broken, Found::Failed("it broke off".to_owned()));
        assert_eq!(
            works.join("a", Patience::Call, most, |_| async { Ok(()) }).await,
            Found::Done
        );
    }

    /// Sends a message when it is dropped.
    struct Dropped(Option<tokio::sync::oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().map(|told| told.send(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_work_that_is_given_up_ends_unless_somebody_waits_and_may_begin_again() {
        let works = Arc::new(Works::default());
        let most = Duration::from_secs(100);
        let (told, gone) = tokio::sync::oneshot::channel();
        let dropped = Dropped(Some(told));
        let mut waiting = Box::pin(works.join("a", Patience::Call, most, |_| async move {
            let _dropped = dropped;
            std::future::pending().await
        }));
        assert!(futures::poll!(&mut waiting).is_pending());
        works.abandon("a");
        assert!(works.told("a").is_some(), "somebody waits");
        drop(waiting);
        works.abandon("a");
        assert_eq!(works.told("a"), None);
        // A new job starts before the old one has stopped.
        let again = works.join("a", Patience::Call, most, |_| async { Ok(()) });
        assert_eq!(again.await, Found::Done);
        gone.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_only_so_many_at_once() {
        let works = Arc::new(Works::default());
        let most = Duration::from_secs(100);
        for number in 0..WORKS {
            let begun = works.begin(&number.to_string(), most, |_| std::future::pending());
            assert!(begun.is_some());
        }
        let more = works.join("more", Patience::Call, most, |_| async { Ok(()) }).await;
        assert_eq!(more, Found::TooMany(WORKS));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_the_time_waits_until_it_is_done() {
        let works = Arc::new(Works::default());
        let most = Duration::from_secs(1000);
        let work = |_| async {
            tokio::time::sleep(WAIT * 5).await;
            Ok(())
        };
        assert_eq!(works.join("a", Patience::UntilDone, most, work).await, Found::Done);
        let never = |_| std::future::pending();
        let found = works.join("a", Patience::UntilDone, most, never).await;
        assert_eq!(found, Found::Failed("it took more than 1000 s".to_owned()));
    }

    #[test]
    fn a_runtime_that_shuts_down_holds_nobody_up() {
        let (told, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let handle = runtime.handle().clone();
            drop(runtime);
            let _entered = handle.enter();
            let works = Arc::new(Works::default());
            let stage = works.begin("a", Duration::from_secs(5), |_| std::future::pending());
            told.send((stage.unwrap().has_changed().is_err(), works.told("a")))
                .unwrap();
        });
        assert_eq!(seen.recv_timeout(Duration::from_secs(20)), Ok((true, None)));
    }
}
