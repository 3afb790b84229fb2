//! The open requests of a connection, and the number of unwritten answers. It bounds the memory that a client can make
//! the server hold by asking without reading.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::RequestId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::limits::{BULK_BYTES, CONTROL_REQUESTS, REQUESTS_IN_FLIGHT, UNWRITTEN_ANSWERS};
use crate::priority::Priority;

/// Semaphores count in `u32`; kibibytes are fine enough.
const SEMAPHORE_UNIT_BYTES: usize = 1024;

/// The accounting of one connection.
pub(crate) struct InFlight {
    open: Mutex<HashMap<RequestId, Option<OwnedSemaphorePermit>>>,
    unwritten: watch::Sender<usize>,
    bulk: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

/// The result of opening a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestAdmission {
    Accepted,
    /// A request with this id is still open.
    Duplicate,
    /// Too many are open.
    Full,
}

/// An answer that is not sent yet; dropped when it is.
pub(crate) struct UnwrittenAnswer {
    in_flight: Arc<InFlight>,
    _bulk: Option<OwnedSemaphorePermit>,
}

impl Drop for UnwrittenAnswer {
    fn drop(&mut self) {
        self.in_flight
            .unwritten
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            unwritten: watch::Sender::new(0),
            bulk: Arc::new(Semaphore::new(BULK_BYTES / SEMAPHORE_UNIT_BYTES)),
            whole: Arc::new(Semaphore::new(1)),
        }
    }
}

impl InFlight {
    fn open(&self) -> MutexGuard<'_, HashMap<RequestId, Option<OwnedSemaphorePermit>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a request.
    pub(crate) fn begin(&self, id: &RequestId, priority: Priority) -> RequestAdmission {
        let most = match priority {
            Priority::Ordinary => REQUESTS_IN_FLIGHT,
            Priority::Control => REQUESTS_IN_FLIGHT + CONTROL_REQUESTS,
        };
        let mut open = self.open();
        if open.contains_key(id) {
            return RequestAdmission::Duplicate;
        }
        if open.len() >= most {
            return RequestAdmission::Full;
        }
        open.insert(id.clone(), None);
        RequestAdmission::Accepted
    }

    /// Closes a request that gets no answer.
    pub(crate) fn forget(&self, id: &RequestId) {
        self.open().remove(id);
    }

    /// Closes a request (if the message answers one) and counts its answer until that is sent.
    pub(crate) fn answer(self: &Arc<Self>, id: Option<&RequestId>) -> UnwrittenAnswer {
        let bulk = id.and_then(|id| self.open().remove(id)).flatten();
        self.unwritten.send_modify(|count| *count += 1);
        UnwrittenAnswer {
            in_flight: Arc::clone(self),
            _bulk: bulk,
        }
    }

    /// Waits for room for a large answer. The room is free again when the answer is sent or the request is closed. The
    /// caller holds the returned permit for a request that is not open.
    async fn reserve(&self, id: &RequestId, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // A request that waits for more while it holds some could deadlock with another one.
        if matches!(self.open().get(id), Some(Some(_))) {
            return None;
        }
        let units = u32::try_from(bytes.min(BULK_BYTES) / SEMAPHORE_UNIT_BYTES).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.bulk).acquire_many_owned(units).await.ok()?;
        match self.open().get_mut(id) {
            Some(slot) => {
                *slot = Some(permit);
                None
            }
            None => Some(permit),
        }
    }

    /// Waits until the client has read enough that the server reads from it again.
    pub(crate) async fn readable(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self
            .unwritten
            .subscribe()
            .wait_for(|count| *count < UNWRITTEN_ANSWERS)
            .await;
    }
}

/// Reserves room for the answer of one request, before the answer is made.
#[derive(Clone, Default)]
pub(crate) struct AnswerRoom(Option<Arc<RoomState>>);

struct RoomState {
    in_flight: Arc<InFlight>,
    id: RequestId,
    /// The answer is no longer wanted when one of them fires.
    cancelled: [CancellationToken; 2],
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl AnswerRoom {
    /// Returns the room for the answer of this request. One of `cancelled` fires when the request is no longer wanted.
    pub(crate) fn new(in_flight: &Arc<InFlight>, id: &RequestId, cancelled: [CancellationToken; 2]) -> Self {
        Self(Some(Arc::new(RoomState {
            in_flight: Arc::clone(in_flight),
            id: id.clone(),
            cancelled,
            held: Mutex::default(),
        })))
    }

    /// Waits for room for `bytes` bytes, once for each request: later calls are covered by the first. Without room the
    /// answer must not be made.
    pub(crate) async fn take(&self, bytes: usize) -> bool {
        let Some(state) = &self.0 else { return true };
        let taken = |state: &RoomState| state.held.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if taken(state) {
            return true;
        }
        let permit = state.unless_cancelled(state.in_flight.reserve(&state.id, bytes)).await;
        let granted = permit.is_some();
        *state.held.lock().unwrap_or_else(PoisonError::into_inner) = permit.flatten();
        granted
    }

    /// Waits until no other request of the connection has a whole file in memory just for reading it. None if the
    /// answer is no longer wanted.
    pub(crate) async fn whole_file(&self) -> Option<Option<OwnedSemaphorePermit>> {
        let Some(state) = &self.0 else { return Some(None) };
        let turn = Arc::clone(&state.in_flight.whole).acquire_owned();
        state.unless_cancelled(turn).await.map(Result::ok)
    }
}

impl RoomState {
    async fn unless_cancelled<T>(&self, wanted: impl Future<Output = T>) -> Option<T> {
        let [one, other] = &self.cancelled;
        tokio::select! {
            biased;
            () = one.cancelled() => None,
            () = other.cancelled() => None,
            value = wanted => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_bounded_and_ids_are_not_reused_while_open() {
        let in_flight = Arc::new(InFlight::default());
        for id in 0..256 {
            assert_eq!(
                in_flight.begin(&RequestId::Number(id), Priority::Ordinary),
                RequestAdmission::Accepted
            );
        }
        assert_eq!(
            in_flight.begin(&RequestId::Number(3), Priority::Ordinary),
            RequestAdmission::Duplicate
        );
        assert_eq!(
            in_flight.begin(&RequestId::Number(300), Priority::Ordinary),
            RequestAdmission::Full
        );
        assert_eq!(
            in_flight.begin(&RequestId::Number(300), Priority::Control),
            RequestAdmission::Accepted,
            "what ends something is admitted"
        );
        in_flight.forget(&RequestId::Number(300));
        in_flight.forget(&RequestId::Number(3));
        assert_eq!(
            in_flight.begin(&RequestId::Number(3), Priority::Ordinary),
            RequestAdmission::Accepted
        );
    }

    #[tokio::test(start_paused = true)]
    async fn input_is_not_read_while_the_client_does_not_read_output() {
        let in_flight = Arc::new(InFlight::default());
        let mut unwritten_answers: Vec<UnwrittenAnswer> =
            (0..UNWRITTEN_ANSWERS).map(|_| in_flight.answer(None)).collect();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), in_flight.readable()).await;
        assert!(waited.is_err());
        unwritten_answers.pop();
        in_flight.readable().await;
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_wait_until_earlier_ones_are_sent() {
        let in_flight = Arc::new(InFlight::default());
        let ids: Vec<RequestId> = (0..5).map(RequestId::Number).collect();
        for id in &ids {
            in_flight.begin(id, Priority::Ordinary);
        }
        for id in &ids[..4] {
            in_flight.reserve(id, BULK_BYTES / 4).await;
        }
        let unwritten_answer = in_flight.answer(Some(&ids[0]));
        // A request that has room does not wait for more.
        assert!(in_flight.reserve(&ids[1], BULK_BYTES).await.is_none());
        let fifth = in_flight.reserve(&ids[4], BULK_BYTES / 4);
        let mut fifth = std::pin::pin!(fifth);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), &mut fifth).await;
        assert!(waited.is_err());
        drop(unwritten_answer);
        fifth.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_does_not_wait_for_room() {
        let in_flight = Arc::new(InFlight::default());
        let ids: Vec<RequestId> = (0..2).map(RequestId::Number).collect();
        for id in &ids {
            in_flight.begin(id, Priority::Ordinary);
        }
        let cancelled = [CancellationToken::new(), CancellationToken::new()];
        let room = |id| AnswerRoom::new(&in_flight, id, cancelled.clone());
        assert!(room(&ids[0]).take(BULK_BYTES).await);
        let second = room(&ids[1]);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), second.take(1024)).await;
        assert!(waited.is_err());
        cancelled[0].cancel();
        assert!(!second.take(1024).await);
    }
}
