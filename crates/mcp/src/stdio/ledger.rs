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
const UNIT: usize = 1024;

/// The accounting of one connection.
pub(crate) struct Ledger {
    open: Mutex<HashMap<RequestId, Option<OwnedSemaphorePermit>>>,
    unwritten: watch::Sender<usize>,
    bulk: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

/// The admission of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Accepted,
    /// A request with this id is still open.
    Duplicate,
    /// Too many are open.
    Full,
}

/// An answer that is not sent yet; dropped when it is.
pub(crate) struct Ticket {
    ledger: Arc<Ledger>,
    _bulk: Option<OwnedSemaphorePermit>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ledger
            .unwritten
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            unwritten: watch::Sender::new(0),
            bulk: Arc::new(Semaphore::new(BULK_BYTES / UNIT)),
            whole: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Ledger {
    fn open(&self) -> MutexGuard<'_, HashMap<RequestId, Option<OwnedSemaphorePermit>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a request.
    pub(crate) fn begin(&self, id: &RequestId, priority: Priority) -> Entry {
        let most = match priority {
            Priority::Ordinary => REQUESTS_IN_FLIGHT,
            Priority::Control => REQUESTS_IN_FLIGHT + CONTROL_REQUESTS,
        };
        let mut open = self.open();
        if open.contains_key(id) {
            return Entry::Duplicate;
        }
        if open.len() >= most {
            return Entry::Full;
        }
        open.insert(id.clone(), None);
        Entry::Accepted
    }

    /// Closes a request that gets no answer.
    pub(crate) fn forget(&self, id: &RequestId) {
        self.open().remove(id);
    }

    /// Closes a request (if the message answers one) and counts its answer until that is sent.
    pub(crate) fn answer(self: &Arc<Self>, id: Option<&RequestId>) -> Ticket {
        let bulk = id.and_then(|id| self.open().remove(id)).flatten();
        self.unwritten.send_modify(|count| *count += 1);
        Ticket {
            ledger: Arc::clone(self),
            _bulk: bulk,
        }
    }

    /// Waits for room for a large answer. The room is free again when the answer is sent or the request is closed. A
    /// request that is not in the ledger holds the room itself.
    async fn reserve(&self, id: &RequestId, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // A request that waits for more while it holds some could deadlock with another one.
        if matches!(self.open().get(id), Some(Some(_))) {
            return None;
        }
        let units = u32::try_from(bytes.min(BULK_BYTES) / UNIT).unwrap_or(u32::MAX);
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
pub(crate) struct Room(Option<Arc<Place>>);

struct Place {
    ledger: Arc<Ledger>,
    id: RequestId,
    /// The answer is no longer wanted when one of them fires.
    over: [CancellationToken; 2],
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Room {
    /// Room in this ledger. `over` fires for a request that is no longer wanted.
    pub(crate) fn new(ledger: &Arc<Ledger>, id: &RequestId, over: [CancellationToken; 2]) -> Self {
        Self(Some(Arc::new(Place {
            ledger: Arc::clone(ledger),
            id: id.clone(),
            over,
            held: Mutex::default(),
        })))
    }

    /// Waits for room for `bytes` bytes, once for each request: later calls are covered by the first. Without room the
    /// answer must not be made.
    pub(crate) async fn take(&self, bytes: usize) -> bool {
        let Some(place) = &self.0 else { return true };
        let taken = |place: &Place| place.held.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if taken(place) {
            return true;
        }
        let permit = place.unless_over(place.ledger.reserve(&place.id, bytes)).await;
        let granted = permit.is_some();
        *place.held.lock().unwrap_or_else(PoisonError::into_inner) = permit.flatten();
        granted
    }

    /// Waits until no other request of the connection has a whole file in memory just for reading it. None if the
    /// answer is no longer wanted.
    pub(crate) async fn whole_file(&self) -> Option<Option<OwnedSemaphorePermit>> {
        let Some(place) = &self.0 else { return Some(None) };
        let turn = Arc::clone(&place.ledger.whole).acquire_owned();
        place.unless_over(turn).await.map(Result::ok)
    }
}

impl Place {
    async fn unless_over<T>(&self, wanted: impl Future<Output = T>) -> Option<T> {
        let [one, other] = &self.over;
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
        let ledger = Arc::new(Ledger::default());
        for id in 0..256 {
            assert_eq!(
                ledger.begin(&RequestId::Number(id), Priority::Ordinary),
                Entry::Accepted
            );
        }
        assert_eq!(
            ledger.begin(&RequestId::Number(3), Priority::Ordinary),
            Entry::Duplicate
        );
        assert_eq!(ledger.begin(&RequestId::Number(300), Priority::Ordinary), Entry::Full);
        assert_eq!(
            ledger.begin(&RequestId::Number(300), Priority::Control),
            Entry::Accepted,
            "what ends something is admitted"
        );
        ledger.forget(&RequestId::Number(300));
        ledger.forget(&RequestId::Number(3));
        assert_eq!(ledger.begin(&RequestId::Number(3), Priority::Ordinary), Entry::Accepted);
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_is_not_listened_to_while_it_does_not_read() {
        let ledger = Arc::new(Ledger::default());
        let mut tickets: Vec<Ticket> = (0..UNWRITTEN_ANSWERS).map(|_| ledger.answer(None)).collect();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), ledger.readable()).await;
        assert!(waited.is_err());
        tickets.pop();
        ledger.readable().await;
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_wait_for_the_ones_before_them_to_leave() {
        let ledger = Arc::new(Ledger::default());
        let ids: Vec<RequestId> = (0..5).map(RequestId::Number).collect();
        for id in &ids {
            ledger.begin(id, Priority::Ordinary);
        }
        for id in &ids[..4] {
            ledger.reserve(id, BULK_BYTES / 4).await;
        }
        let ticket = ledger.answer(Some(&ids[0]));
        // A request that has room does not wait for more.
        assert!(ledger.reserve(&ids[1], BULK_BYTES).await.is_none());
        let fifth = ledger.reserve(&ids[4], BULK_BYTES / 4);
        let mut fifth = std::pin::pin!(fifth);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), &mut fifth).await;
        assert!(waited.is_err());
        drop(ticket);
        fifth.await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_taken_back_does_not_wait_for_room() {
        let ledger = Arc::new(Ledger::default());
        let ids: Vec<RequestId> = (0..2).map(RequestId::Number).collect();
        for id in &ids {
            ledger.begin(id, Priority::Ordinary);
        }
        let over = [CancellationToken::new(), CancellationToken::new()];
        let room = |id| Room::new(&ledger, id, over.clone());
        assert!(room(&ids[0]).take(BULK_BYTES).await);
        let second = room(&ids[1]);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), second.take(1024)).await;
        assert!(waited.is_err());
        over[0].cancel();
        assert!(!second.take(1024).await);
    }
}
