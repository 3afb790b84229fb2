//! The store of executions: all running ones, and the newest finished ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use sandcell_sandbox::{Code, Failure};

use crate::executions::Execution;
use crate::sync::lock;
use crate::{ExecutionId, Principal};

/// The maximum number of one caller's finished executions whose output is stored.
const KEPT_EACH: usize = 256;
/// The maximum size of one caller's stored output and artifacts that were delivered to the caller. The newest execution
/// is stored at any size.
const KEPT_BYTES_EACH: u64 = 8 << 20;
/// The maximum size of one caller's stored output and artifacts, delivered or not.
const UNREAD_BYTES_EACH: u64 = 24 << 20;
/// The maximum size of all callers' stored output and artifacts. Beyond it, the caller with the most loses its oldest
/// execution.
const KEPT_BYTES: u64 = 128 << 20;
/// The maximum number of all callers' finished executions whose output is stored: the minimum size of each adds up,
/// too.
const KEPT: usize = 4096;
/// The maximum number of callers with stored executions. Beyond it, the store forgets the caller that has been idle
/// longest.
const CALLERS: usize = 1024;
/// The number of one caller's executions whose ids the store remembers after their output is gone.
const REMEMBERED: usize = 1024;
/// The store of executions.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    by_id: HashMap<ExecutionId, (u64, Arc<Execution>)>,
    /// Hashes the ids of forgotten executions.
    marks: RandomState,
    shelves: BTreeMap<Principal, Shelf>,
    next: u64,
    finished: usize,
    bytes: u64,
}

/// Finished executions of one caller, oldest first.
#[derive(Debug, Default)]
struct Shelf {
    order: VecDeque<(ExecutionId, u64)>,
    bytes: u64,
    /// Hashes of their ids: there can be many, and an id is six times as long.
    forgotten: VecDeque<u64>,
    /// The sequence number of the last addition.
    touched: u64,
}

impl Executions {
    pub(crate) fn add(&self, execution: &Arc<Execution>) {
        let mut store = lock(&self.store);
        store.next += 1;
        let number = store.next;
        store.by_id.insert(execution.id.clone(), (number, execution.clone()));
    }

    pub(crate) fn find(&self, who: &Principal, id: &str) -> Result<Arc<Execution>, Failure> {
        let store = lock(&self.store);
        let key = ExecutionId(Arc::from(id));
        if let Some((_, execution)) = store.by_id.get(&key).filter(|(_, found)| found.owner == *who) {
            return Ok(execution.clone());
        }
        if store
            .shelves
            .get(who)
            .is_some_and(|shelf| shelf.forgotten.contains(&store.marks.hash_one(&key)))
        {
            return Err(Failure::new(
                Code::Expired,
                format!("the output of execution {key} is not kept any more"),
                "run the code again; get_execution_history still lists it",
            ));
        }
        Err(unknown(id))
    }

    /// Returns the caller's newest unfinished execution.
    pub(crate) fn newest_running(&self, who: &Principal) -> Option<Arc<Execution>> {
        let store = lock(&self.store);
        let running = store
            .by_id
            .values()
            .filter(|(_, execution)| execution.owner == *who && !execution.is_finished());
        running
            .max_by_key(|(number, _)| *number)
            .map(|(_, execution)| execution.clone())
    }

    /// Lists the caller's unfinished executions, newest first.
    pub(crate) fn running(&self, who: &Principal) -> Vec<Arc<Execution>> {
        let mut running: Vec<(u64, Arc<Execution>)> = lock(&self.store)
            .by_id
            .values()
            .filter(|(_, execution)| execution.owner == *who && !execution.is_finished())
            .cloned()
            .collect();
        running.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        running.into_iter().map(|(_, execution)| execution).collect()
    }

    /// Adds a finished execution to the bounded part of the store.
    pub(crate) fn shelve(&self, execution: &Execution) {
        let weight = execution.weight();
        let mut store = lock(&self.store);
        store.next += 1;
        let touched = store.next;
        let shelf = store.shelves.entry(execution.owner.clone()).or_default();
        shelf.order.push_back((execution.id.clone(), weight));
        shelf.bytes += weight;
        shelf.touched = touched;
        store.finished += 1;
        store.bytes += weight;
        while store.is_over(&execution.owner) {
            store.forget(&execution.owner);
        }
        while store.bytes > KEPT_BYTES {
            let Some(who) = store.heaviest() else { break };
            store.forget(&who);
        }
        while store.finished > KEPT {
            let Some(who) = store.busiest() else { break };
            store.forget(&who);
        }
        while store.shelves.len() > CALLERS {
            let Some(who) = store.longest_ago() else { break };
            store.forget_all(&who);
        }
    }
}

/// The failure for an execution that the caller does not have.
pub(crate) fn unknown(id: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no execution '{}'", crate::ids::echo(id)),
        "get_execution_history lists yours",
    )
}

impl Store {
    /// True if a caller's oldest execution must be removed.
    fn is_over(&self, who: &Principal) -> bool {
        let Some(shelf) = self.shelves.get(who) else {
            return false;
        };
        let oldest = shelf.order.front().and_then(|(id, _)| self.by_id.get(id));
        let most = if oldest.is_none_or(|(_, execution)| execution.is_delivered()) {
            KEPT_BYTES_EACH
        } else {
            UNREAD_BYTES_EACH
        };
        shelf.order.len() > KEPT_EACH || shelf.order.len() > 1 && shelf.bytes > most
    }

    fn longest_ago(&self) -> Option<Principal> {
        let oldest = self.shelves.iter().min_by_key(|(_, shelf)| shelf.touched);
        oldest.map(|(who, _)| who.clone())
    }

    fn forget_all(&mut self, who: &Principal) {
        while self.shelves.get(who).is_some_and(|shelf| !shelf.order.is_empty()) {
            self.forget(who);
        }
        self.shelves.remove(who);
    }

    fn heaviest(&self) -> Option<Principal> {
        let heaviest = self.shelves.iter().max_by_key(|(_, shelf)| shelf.bytes);
        heaviest.map(|(who, _)| who.clone())
    }

    fn busiest(&self) -> Option<Principal> {
        let busiest = self.shelves.iter().max_by_key(|(_, shelf)| shelf.order.len());
        busiest.map(|(who, _)| who.clone())
    }

    fn forget(&mut self, who: &Principal) {
        let Some(shelf) = self.shelves.get_mut(who) else { return };
        let Some((id, weight)) = shelf.order.pop_front() else {
            return;
        };
        shelf.bytes = shelf.bytes.saturating_sub(weight);
        if shelf.forgotten.len() >= REMEMBERED {
            shelf.forgotten.pop_front();
        }
        shelf.forgotten.push_back(self.marks.hash_one(&id));
        self.bytes = self.bytes.saturating_sub(weight);
        self.finished = self.finished.saturating_sub(1);
        self.by_id.remove(&id);
    }
}
