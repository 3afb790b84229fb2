//! The watchers of a sandbox: they keep changes of folders until a request fetches them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use sandcell_engine::FolderWatch;
use sandcell_sandbox::{FileChange, SandboxPath};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::problem::Problem;

/// The maximum number of watchers of a sandbox.
const MAX_WATCHERS: usize = 64;
/// The maximum number and size of the changes of a watcher that wait to be fetched. Later ones are dropped.
const MAX_WAITING: usize = 10_000;
const MAX_WAITING_BYTES: usize = 256 << 10;

/// A folder to watch.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) folder: SandboxPath,
    pub(crate) recursive: bool,
    /// True if changes come with a description of the changed entry.
    pub(crate) include_entry: bool,
}

/// The watchers of a sandbox.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Watcher>>);

struct Watcher {
    watched: Watched,
    changes: Arc<Mutex<Waiting>>,
    /// Ends its task.
    _end: DropGuard,
}

#[derive(Default)]
struct Waiting {
    changes: VecDeque<FileChange>,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, change: FileChange) {
        let bytes = self.bytes.saturating_add(change.name.len());
        if self.changes.len() < MAX_WAITING && bytes <= MAX_WAITING_BYTES {
            self.bytes = bytes;
            self.changes.push_back(change);
        }
    }
}

impl Watchers {
    /// Refuses another watcher if there are too many.
    pub(crate) fn check_room(&self) -> Result<(), Problem> {
        check_room(&lock(&self.0))
    }

    /// Adds a watcher under this id.
    pub(crate) fn add(&self, id: &str, watched: Watched, watch: FolderWatch) -> Result<(), Problem> {
        let mut all = lock(&self.0);
        check_room(&all)?;
        let changes = Arc::<Mutex<Waiting>>::default();
        let end = CancellationToken::new();
        let watcher = Watcher {
            watched,
            changes: Arc::clone(&changes),
            _end: end.clone().drop_guard(),
        };
        all.insert(id.to_owned(), watcher);
        tokio::spawn(keep(watch, changes, end));
        Ok(())
    }

    /// Returns the changes since the last call, and what is watched.
    pub(crate) fn take(&self, id: &str) -> Result<(Watched, VecDeque<FileChange>), Problem> {
        let all = lock(&self.0);
        let watcher = all.get(id).ok_or_else(|| unknown(id))?;
        let waiting = std::mem::take(&mut *lock(&watcher.changes));
        Ok((watcher.watched.clone(), waiting.changes))
    }

    /// Ends a watcher.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Problem> {
        match lock(&self.0).remove(id) {
            Some(_) => Ok(()),
            None => Err(unknown(id)),
        }
    }
}

fn check_room(all: &HashMap<String, Watcher>) -> Result<(), Problem> {
    if all.len() < MAX_WATCHERS {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        format!("the sandbox has {MAX_WATCHERS} watchers: remove some"),
    ))
}

/// Keeps the changes of a folder until the watcher or the folder ends.
async fn keep(mut watch: FolderWatch, changes: Arc<Mutex<Waiting>>, end: CancellationToken) {
    loop {
        let change = tokio::select! {
            biased;
            () = end.cancelled() => return,
            change = watch.next() => change,
        };
        let Some(change) = change else { return };
        lock(&changes).add(change);
    }
}

fn unknown(id: &str) -> Problem {
    let id: String = id.chars().take(64).filter(char::is_ascii_graphic).collect();
    Problem::not_found(format!("watcher with id {id} not found"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
