//! Long calls as tasks. A client with the tasks extension gets a task instead of waiting, polls it, and finds the whole
//! result in it. For other clients `wait_s` and `get_execution` do the same.
//!
//! The decision taken here: a call that finishes within a second is answered directly, so that clients do not poll for
//! a quick result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{CallToolResponse, CallToolResult, CreateTaskResult, ErrorData, GetTaskResult};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use sandcell_engine::Watch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::answer::Answer;
use crate::convert;
use crate::limits::PROGRESS_INTERVAL;

/// The run time after which a call becomes a task.
const TASK_THRESHOLD: Duration = Duration::from_secs(1);
/// The maximum number of tasks of one caller, including tasks that have ended. A result has at most a megabyte.
const MAX_TASKS: usize = 32;
/// The time that results are kept after their end. It is longer than the longest execution.
const TTL_MS: u64 = 2 * 3600 * 1000;
const POLL_MS: u64 = 1000;
/// The tools whose calls can take long.
const LONG_TOOLS: [&str; 3] = ["execute_code", "create_run_close", "install_package"];

/// The tasks of one caller.
pub(crate) struct Tasks {
    manager: TaskManager,
    permits: Arc<Semaphore>,
    /// The ids of all tasks, each with its permit, until the task is removed.
    kept: Mutex<Vec<(String, OwnedSemaphorePermit)>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            manager: TaskManager::new(),
            permits: Arc::new(Semaphore::new(MAX_TASKS)),
            kept: Mutex::default(),
        }
    }
}

/// A call that runs in the background.
pub(crate) struct Job {
    pub(crate) answer: JoinHandle<Answer>,
    /// Stops it.
    pub(crate) cancel: CancellationToken,
    pub(crate) watch: Watch,
    /// The answer if the task breaks down.
    pub(crate) broken: Answer,
}

impl Tasks {
    /// Returns a permit if a call of this tool may become a task. A call without a permit is an ordinary call.
    pub(crate) fn permit(&self, tool: &str) -> Option<OwnedSemaphorePermit> {
        if !LONG_TOOLS.contains(&tool) {
            return None;
        }
        self.kept().retain(|(id, _)| self.manager.get_task(id).is_ok());
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(String, OwnedSemaphorePermit)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job for a moment, then makes it a task. Cancelling the call before that stops the job.
    pub(crate) async fn follow(
        &self,
        mut job: Job,
        permit: OwnedSemaphorePermit,
        cancelled_by_client: &CancellationToken,
    ) -> CallToolResponse {
        let stop_if_left = job.cancel.clone().drop_guard();
        tokio::select! {
            biased;
            answer = &mut job.answer => return convert::result(answer.unwrap_or(job.broken)).into(),
            () = cancelled_by_client.cancelled() => {
                job.cancel.cancel();
                let answer = job.answer.await;
                return convert::result(answer.unwrap_or(job.broken)).into();
            }
            () = tokio::time::sleep(TASK_THRESHOLD) => {}
        }
        // From here on the task holds the job.
        let _still_running = stop_if_left.disarm();
        let options = TaskOptions::default()
            .with_ttl_ms(TTL_MS)
            .with_poll_interval_ms(POLL_MS);
        let task = self.manager.spawn(options, |task| Box::pin(run(job, task)));
        self.kept().push((task.task_id.clone(), permit));
        CreateTaskResult::new(task).into()
    }

    /// Returns the state of a task.
    pub(crate) fn get(&self, id: &str) -> Result<GetTaskResult, ErrorData> {
        self.manager.get_task(id).map(GetTaskResult::new)
    }

    /// Stops a task.
    pub(crate) fn cancel(&self, id: &str) -> Result<(), ErrorData> {
        self.manager.cancel_task(id)
    }

    /// Answers to questions of a task: none of ours asks any.
    pub(crate) fn update(&self, id: &str) -> Result<(), ErrorData> {
        self.manager.update_task(id, [])
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.manager.shutdown();
    }
}

async fn run(mut job: Job, task: TaskContext) -> Result<CallToolResult, TaskExit> {
    // Also when the task is dropped.
    let _stop = job.cancel.clone().drop_guard();
    let mut tick = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            biased;
            answer = &mut job.answer => return Ok(convert::result(answer.unwrap_or(job.broken))),
            () = task.cancelled(), if !job.cancel.is_cancelled() => {
                job.cancel.cancel();
                // Waits, so that the job has ended before the task reports it.
                let _answer = (&mut job.answer).await;
                return Err(TaskExit::Cancelled);
            }
            _ = tick.tick() => if let Some(bar) = job.watch.progress() {
                task.set_status_message(bar.text);
            },
        }
    }
}
