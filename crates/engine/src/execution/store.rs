//! The store of executions: all running ones, and the newest finished ones.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use sandcell_sandbox::{Code, Failure};

use crate::api::sync::lock;
use crate::execution::state::Execution;
use crate::{ExecutionId, Principal};

/// The maximum number of one caller's finished executions whose output is stored.
const MAX_CALLER_EXECUTIONS: usize = 256;
/// The maximum size of one caller's stored output and artifacts that were delivered to the caller. The newest execution
/// is stored at any size.
const MAX_CALLER_READ_BYTES: u64 = 8 << 20;
/// The maximum size of one caller's stored output and artifacts, delivered or not.
const MAX_CALLER_BYTES: u64 = 24 << 20;
/// The maximum size of all callers' stored output and artifacts. Beyond it, the caller with the most loses its oldest
/// execution.
const MAX_TOTAL_BYTES: u64 = 128 << 20;
/// The maximum number of all callers' finished executions whose output is stored: the minimum size of each adds up,
/// too.
const MAX_EXECUTIONS: usize = 4096;
/// The maximum number of callers with stored executions. Beyond it, the store forgets the caller that has been idle
/// longest.
const MAX_CALLERS: usize = 1024;
/// The number of one caller's executions whose ids the store remembers after their output is gone.
const MAX_FORGOTTEN_IDS: usize = 1024;
/// The store of executions.
#[derive(Debug, Default)]
pub(crate) struct ExecutionStore {
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    by_id: HashMap<ExecutionId, (u64, Arc<Execution>)>,
    /// Hashes the ids of forgotten executions.
    marks: RandomState,
    finished_lists: BTreeMap<Principal, FinishedList>,
    next: u64,
    finished: usize,
    bytes: u64,
}

/// Finished executions of one caller, oldest first.
#[derive(Debug, Default)]
struct FinishedList {
    order: VecDeque<(ExecutionId, u64)>,
    bytes: u64,
    /// Hashes of their ids: there can be many, and an id is six times as long.
    forgotten: VecDeque<u64>,
    /// The sequence number of the last addition.
    touched: u64,
}

impl ExecutionStore {
    pub(crate) fn add(&self, execution: &Arc<Execution>) {
        let mut store = lock(&self.store);
        store.next += 1;
        let number = store.next;
        store.by_id.insert(execution.id.clone(), (number, execution.clone()));
    }

    pub(crate) fn find(&self, principal: &Principal, id: &str) -> Result<Arc<Execution>, Failure> {
        let store = lock(&self.store);
        let key = ExecutionId(Arc::from(id));
        if let Some((_, execution)) = store.by_id.get(&key).filter(|(_, found)| found.owner == *principal) {
            return Ok(execution.clone());
        }
        if store
            .finished_lists
            .get(principal)
            .is_some_and(|list| list.forgotten.contains(&store.marks.hash_one(&key)))
        {
            return Err(Failure::new(
                Code::Expired,
                format!("the output of execution {key} is no longer stored"),
                "run the code again; get_execution_history still lists it",
            ));
        }
        Err(unknown(id))
    }

    /// Returns the caller's newest unfinished execution.
    pub(crate) fn newest_running(&self, principal: &Principal) -> Option<Arc<Execution>> {
        let store = lock(&self.store);
        let running = store
            .by_id
            .values()
            .filter(|(_, execution)| execution.owner == *principal && !execution.is_finished());
        running
            .max_by_key(|(number, _)| *number)
            .map(|(_, execution)| execution.clone())
    }

    /// Lists the caller's unfinished executions, newest first.
    pub(crate) fn running(&self, principal: &Principal) -> Vec<Arc<Execution>> {
        let mut running: Vec<(u64, Arc<Execution>)> = lock(&self.store)
            .by_id
            .values()
            .filter(|(_, execution)| execution.owner == *principal && !execution.is_finished())
            .cloned()
            .collect();
        running.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        running.into_iter().map(|(_, execution)| execution).collect()
    }

    /// Adds a finished execution to the bounded part of the store.
    pub(crate) fn add_finished(&self, execution: &Execution) {
        let weight = execution.weight();
        let mut store = lock(&self.store);
        store.next += 1;
        let touched = store.next;
        let list = store.finished_lists.entry(execution.owner.clone()).or_default();
        list.order.push_back((execution.id.clone(), weight));
        list.bytes += weight;
        list.touched = touched;
        store.finished += 1;
        store.bytes += weight;
        while store.is_over(&execution.owner) {
            store.forget(&execution.owner);
        }
        while store.bytes > MAX_TOTAL_BYTES {
            let Some(principal) = store.heaviest() else { break };
            store.forget(&principal);
        }
        while store.finished > MAX_EXECUTIONS {
            let Some(principal) = store.busiest() else { break };
            store.forget(&principal);
        }
        while store.finished_lists.len() > MAX_CALLERS {
            let Some(principal) = store.longest_ago() else { break };
            store.forget_all(&principal);
        }
    }
}

/// The failure for an execution that the caller does not have.
pub(crate) fn unknown(id: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no execution '{}'", crate::api::ids::quote_for_error(id)),
        "get_execution_history lists yours",
    )
}

impl Store {
    /// True if a caller's oldest execution must be removed.
    fn is_over(&self, principal: &Principal) -> bool {
        let Some(list) = self.finished_lists.get(principal) else {
            return false;
        };
        let oldest = list.order.front().and_then(|(id, _)| self.by_id.get(id));
        let most = if oldest.is_none_or(|(_, execution)| execution.is_delivered()) {
            MAX_CALLER_READ_BYTES
        } else {
            MAX_CALLER_BYTES
        };
        list.order.len() > MAX_CALLER_EXECUTIONS || list.order.len() > 1 && list.bytes > most
    }

    fn longest_ago(&self) -> Option<Principal> {
        let oldest = self.finished_lists.iter().min_by_key(|(_, list)| list.touched);
        oldest.map(|(principal, _)| principal.clone())
    }

    fn forget_all(&mut self, principal: &Principal) {
        while self
            .finished_lists
            .get(principal)
            .is_some_and(|list| !list.order.is_empty())
        {
            self.forget(principal);
        }
        self.finished_lists.remove(principal);
    }

    fn heaviest(&self) -> Option<Principal> {
        let heaviest = self.finished_lists.iter().max_by_key(|(_, list)| list.bytes);
        heaviest.map(|(principal, _)| principal.clone())
    }

    fn busiest(&self) -> Option<Principal> {
        let busiest = self.finished_lists.iter().max_by_key(|(_, list)| list.order.len());
        busiest.map(|(principal, _)| principal.clone())
    }

    fn forget(&mut self, principal: &Principal) {
        let Some(list) = self.finished_lists.get_mut(principal) else {
            return;
        };
        let Some((id, weight)) = list.order.pop_front() else {
            return;
        };
        list.bytes = list.bytes.saturating_sub(weight);
        if list.forgotten.len() >= MAX_FORGOTTEN_IDS {
            list.forgotten.pop_front();
        }
        list.forgotten.push_back(self.marks.hash_one(&id));
        self.bytes = self.bytes.saturating_sub(weight);
        self.finished = self.finished.saturating_sub(1);
        self.by_id.remove(&id);
    }
}
