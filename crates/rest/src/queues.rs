//! The queues of callers, for clients that send many programs at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandcell_engine::Principal;
use sandcell_sandbox::{Code, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum time that a request waits in the queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of callers above which the queues of idle callers are removed.
const IDLE_CALLERS: usize = 256;

/// The queues of callers, which bound the programs that each caller runs at once.
#[derive(Debug, Default)]
pub(crate) struct CallerQueues(Mutex<HashMap<Principal, Arc<Semaphore>>>);

impl CallerQueues {
    /// Waits until the caller runs fewer than `max_running` programs.
    pub(crate) async fn acquire(
        &self,
        caller: &Principal,
        max_running: usize,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let queue = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() > IDLE_CALLERS {
                all.retain(|_, queue| Arc::strong_count(queue) > 1);
            }
            let queue = all
                .entry(caller.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(max_running)));
            if Arc::strong_count(queue) == 1 {
                // No program runs or waits, so the queue takes over a changed limit.
                *queue = Arc::new(Semaphore::new(max_running));
            }
            Arc::clone(queue)
        };
        match tokio::time::timeout(QUEUE_TIMEOUT, queue.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(Failure::new(
                Code::Busy,
                format!(
                    "{max_running} of your programs were under way for {} s",
                    QUEUE_TIMEOUT.as_secs()
                ),
                "send fewer at once",
            )),
        }
    }
}
