//! The executions that can still be asked about: all that run, and the newest of those that are finished.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use sandcell_sandbox::{Code, Failure};

use crate::executions::Execution;
use crate::sync::lock;
use crate::{ExecutionId, Principal};

/// Finished executions of one caller whose output is kept.
const KEPT_EACH: usize = 256;
/// Bytes of output and artifacts of one caller that are kept of what the caller has; the newest execution is, whatever it
/// takes.
const KEPT_BYTES_EACH: u64 = 8 << 20;
/// The same in any case: what the caller does not have yet is kept up to here.
const UNREAD_BYTES_EACH: u64 = 24 << 20;
/// Bytes of output and artifacts of all callers that are kept; the oldest of the caller that has most go first.
const KEPT_BYTES: u64 = 128 << 20;
/// Finished executions of all callers whose output is kept: the least that each takes adds up, too.
const KEPT: usize = 4096;
/// Callers whose executions are kept; beyond that, those who ran something longest ago are forgotten.
const CALLERS: usize = 1024;
/// Executions of one caller that are remembered when their output is not kept any more.
const REMEMBERED: usize = 1024;
/// All executions that can still be asked about.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    by_id: HashMap<ExecutionId, (u64, Arc<Execution>)>,
    /// Makes numbers of ids that were forgotten.
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
    /// Marks of their ids: there can be many, and an id has six times as many bytes.
    forgotten: VecDeque<u64>,
    /// When the last one was put on it, as a number that grows.
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

    /// The caller's newest one that is not finished.
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

    /// All of the caller's that are not finished, newest first.
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

    /// It is over: from now on it counts against what is kept.
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

/// The caller has no such execution.
pub(crate) fn unknown(id: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no execution '{}'", crate::ids::echo(id)),
        "get_execution_history lists yours",
    )
}

impl Store {
    /// Whether a caller's oldest has to go.
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
