//! The thread that owns the database, and the bounded queue of requests to it.
//!
//! The thread gathers rows for a moment and writes them together. Rows that cannot be written stay in a bounded list,
//! and the thread retries. If the list is full, the oldest row is dropped. Every wait for an answer has a time limit.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use sandcell_engine::{
    FinishedExecution, HistoryPage, HistoryQuery, HistorySink, Principal, StoredExecution, StoredPicture, StoredView,
};
use sandcell_sandbox::unix_millis;
use tokio::sync::{Semaphore, oneshot};

use crate::database::{Database, HistoryError};
use crate::retention::{HistorySize, Retention};
use crate::row::Row;
use crate::search::search;

/// The capacity of the queue to the thread. A server finishes fewer executions while a disk is slow.
const QUEUE_CAPACITY: usize = 4096;
/// The maximum total size of queued rows in bytes.
const MAX_QUEUE_BYTES: u64 = 64 << 20;
/// The time for which the thread gathers rows before it commits them. A committed row is not lost, so a killed server
/// loses at most the rows of this time.
const GATHER_INTERVAL: Duration = Duration::from_millis(50);
/// The number of idle polls, one per gathering time, before the thread sleeps until the next row.
const MAX_IDLE_POLLS: u32 = 4;
/// The maximum number of rows in one transaction.
const MAX_BATCH_ROWS: usize = 512;
/// The maximum size of the rows in one transaction. Surplus rows are deleted after each transaction, before the file
/// is full.
const MAX_BATCH_BYTES: usize = 1 << 20;
/// The maximum size of the rows that stay in memory while the database cannot be written.
const MAX_PENDING_BYTES: usize = 16 << 20;
/// The time between a failure and the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The interval of trims, which find expired rows and count the rows of other processes.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum wait for an answer of the thread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of one search. 256 MiB of text take about 1.5 s.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(4);
/// The maximum wait for a search permit.
const SEARCH_PERMIT_TIMEOUT: Duration = Duration::from_secs(8);
/// The maximum number of concurrent searches of all callers.
const MAX_SEARCHES: usize = 2;

/// The kind of process that writes the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterRole {
    /// A server. Its operator relies on the history, so the warning about a broken database names the substitute. The
    /// database is opened a moment after the start, because other work needs the processors during the start.
    Server,
    /// A command. The user runs it for its output, so the warning about a broken database says only that this run is
    /// not in the history. The database is opened at once, because the command may end soon and would wait for the
    /// opening then.
    Command,
}

/// Writes the history to a database, on a separate thread.
#[derive(Debug)]
pub struct Writer {
    queue: SyncSender<Request>,
    rows: SharedRowQueue,
    waiting: Arc<AtomicU64>,
    lost: AtomicU64,
    path: PathBuf,
    age: Duration,
    searches: Arc<Semaphore>,
}

/// The rows that the thread has not taken yet. After the gathering time it takes all of them, and then polls for a
/// while. Waking it for each row would delay the answer that the server writes at that moment.
type SharedRowQueue = Arc<Mutex<RowQueue>>;

#[derive(Debug, Default)]
struct RowQueue {
    /// The rows and resets, in order.
    entries: Vec<QueueEntry>,
    /// True while the thread polls, so it needs no wake-up.
    is_polling: bool,
}

#[derive(Debug)]
enum QueueEntry {
    Row(Box<FinishedExecution>),
    Reset(String, i64),
}

#[derive(Debug)]
enum Request {
    /// Wakes the thread to take rows.
    TakeRows,
    View {
        owner: String,
        last_n: usize,
        sandbox: Option<String>,
        answer: oneshot::Sender<Option<StoredView>>,
    },
    Find {
        owner: String,
        id: String,
        answer: oneshot::Sender<Option<Box<StoredExecution>>>,
    },
    Picture {
        owner: String,
        id: String,
        number: u32,
        answer: oneshot::Sender<Option<StoredPicture>>,
    },
    /// Asks for a write of all pending rows. The answer is true if all rows are in the file.
    Written(oneshot::Sender<bool>),
    Flush(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the thread. The thread opens the database, so the caller does not wait for a disk.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(path: PathBuf, keep: Retention, role: WriterRole) -> std::io::Result<Self> {
        let (queue, requests) = sync_channel(QUEUE_CAPACITY);
        let (waiting, rows) = (Arc::new(AtomicU64::new(0)), SharedRowQueue::default());
        let mut thread_state = WriterThread {
            path: path.clone(),
            keep,
            role,
            database: DatabaseState::Unopened,
            pending: VecDeque::new(),
            pending_bytes: 0,
            size: HistorySize::default(),
            last_trim: None,
            warned: false,
            began_ms: unix_millis(SystemTime::now()),
            waiting: Arc::clone(&waiting),
            rows: Arc::clone(&rows),
        };
        thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || thread_state.work(&requests))?;
        Ok(Self {
            queue,
            rows,
            waiting,
            lost: AtomicU64::new(0),
            path,
            age: keep.age,
            searches: Arc::new(Semaphore::new(MAX_SEARCHES)),
        })
    }

    fn send(&self, request: Request) -> bool {
        match self.queue.try_send(request) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.count_lost(),
        }
    }

    /// Queues a row or a reset, and wakes the thread unless it polls. Returns false if the entry was lost.
    fn enqueue(&self, entry: QueueEntry) -> bool {
        let mut queue_state = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if queue_state.entries.len() >= QUEUE_CAPACITY {
            return self.count_lost();
        }
        if !queue_state.is_polling && !self.send(Request::TakeRows) {
            return false;
        }
        queue_state.is_polling = true;
        queue_state.entries.push(entry);
        let many = queue_state.entries.len() == MAX_BATCH_ROWS;
        drop(queue_state);
        if many {
            self.send(Request::TakeRows);
        }
        true
    }

    /// Counts an entry that does not reach the database, and logs the first one. Returns false.
    fn count_lost(&self) -> bool {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the history cannot be written as fast as executions end: some of them stay in memory only");
        }
        false
    }
}

#[async_trait]
impl HistorySink for Writer {
    fn record(&self, row: FinishedExecution) {
        let weight = Row::weight_of(&row);
        let heavy = self.waiting.fetch_add(weight, Ordering::Relaxed) > MAX_QUEUE_BYTES;
        let queued = if heavy {
            self.count_lost()
        } else {
            self.enqueue(QueueEntry::Row(Box::new(row)))
        };
        if !queued {
            self.waiting.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    fn reset(&self, who: &Principal, at: SystemTime) {
        self.enqueue(QueueEntry::Reset(who.0.to_string(), unix_millis(at)));
    }

    async fn view(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Option<StoredView> {
        let (answer, answered) = oneshot::channel();
        let request = Request::View {
            owner: who.0.to_string(),
            last_n,
            sandbox: sandbox.map(str::to_owned),
            answer,
        };
        if !self.send(request) {
            return None;
        }
        tokio::time::timeout(ANSWER_TIMEOUT, answered).await.ok()?.ok()?
    }

    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Option<HistoryPage> {
        let permit = Arc::clone(&self.searches).acquire_owned();
        let permit = tokio::time::timeout(SEARCH_PERMIT_TIMEOUT, permit).await.ok()?.ok()?;
        let (answer, written) = oneshot::channel();
        let is_sent = self.send(Request::Written(answer));
        if !is_sent || !tokio::time::timeout(ANSWER_TIMEOUT, written).await.ok()?.ok()? {
            return None;
        }
        let (path, owner, query) = (self.path.clone(), Arc::clone(&who.0), query.clone());
        let oldest = Database::oldest(self.age);
        let work = move || {
            let _permit = permit;
            search(&path, &owner, &query, oldest, SEARCH_TIMEOUT)
        };
        let found = tokio::task::spawn_blocking(work).await.ok()?;
        found
            .inspect_err(|error| tracing::warn!(%error, "the history could not be searched"))
            .ok()
    }

    async fn find(&self, who: &Principal, id: &str) -> Option<StoredExecution> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Find {
            owner: who.0.to_string(),
            id: id.to_owned(),
            answer,
        };
        if !self.send(request) {
            return None;
        }
        let found = tokio::time::timeout(ANSWER_TIMEOUT, answered).await.ok()?.ok()?;
        found.map(|kept| *kept)
    }

    async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<StoredPicture> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Picture {
            owner: who.0.to_string(),
            id: id.to_owned(),
            number,
            answer,
        };
        if !self.send(request) {
            return None;
        }
        tokio::time::timeout(ANSWER_TIMEOUT, answered).await.ok()?.ok()?
    }

    async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.send(Request::Flush(answer)) && tokio::time::timeout(ANSWER_TIMEOUT, answered).await.is_err() {
            tracing::warn!("the last rows of the history could not be written in time");
        }
    }
}

/// The state of the database.
#[derive(Debug)]
enum DatabaseState {
    Unopened,
    Open(Box<Database>),
    Failed(Instant),
}

/// The state of the thread.
struct WriterThread {
    path: PathBuf,
    keep: Retention,
    role: WriterRole,
    database: DatabaseState,
    /// Rows that are not written yet, oldest first.
    pending: VecDeque<Row>,
    pending_bytes: usize,
    size: HistorySize,
    last_trim: Option<Instant>,
    warned: bool,
    began_ms: i64,
    waiting: Arc<AtomicU64>,
    rows: SharedRowQueue,
}

impl WriterThread {
    fn work(&mut self, requests: &Receiver<Request>) {
        // A server opens the database with the first request, or after the gathering time: reading the data of the
        // last server takes a processor that the start needs.
        if self.role == WriterRole::Command {
            self.open();
        }
        let mut due = Some(Instant::now() + GATHER_INTERVAL);
        let mut polls_left = 0;
        loop {
            let wait = due.map_or(TRIM_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
            match requests.recv_timeout(wait) {
                Ok(Request::TakeRows) if due.is_none() => {
                    due = Some(Instant::now() + GATHER_INTERVAL);
                    polls_left = MAX_IDLE_POLLS;
                }
                Ok(request) => {
                    self.gather();
                    self.answer(request);
                }
                Err(RecvTimeoutError::Timeout) => {
                    polls_left = if self.gather() {
                        MAX_IDLE_POLLS
                    } else {
                        polls_left.saturating_sub(1)
                    };
                    self.write();
                    self.trim_if_due();
                    due = if !self.pending.is_empty() {
                        polls_left = 0;
                        Some(Instant::now() + RETRY_INTERVAL)
                    } else if polls_left > 0 {
                        Some(Instant::now() + GATHER_INTERVAL)
                    } else {
                        None
                    };
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.gather();
                    self.write();
                    return;
                }
            }
            if polls_left == 0 {
                if self.keep_polling() {
                    due = Some(Instant::now() + GATHER_INTERVAL);
                    polls_left = MAX_IDLE_POLLS;
                } else if self.pending.is_empty() {
                    due = None;
                }
            }
        }
    }

    /// Stops polling if no entries are queued. Returns true if there are some, and polling continues.
    fn keep_polling(&self) -> bool {
        let mut queue_state = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        queue_state.is_polling = !queue_state.entries.is_empty();
        queue_state.is_polling
    }

    /// Takes all queued rows. Returns true if there were any.
    fn gather(&mut self) -> bool {
        let entries = std::mem::take(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner).entries);
        let found = !entries.is_empty();
        for one in entries {
            let done = match one {
                QueueEntry::Row(done) => done,
                QueueEntry::Reset(owner, at_ms) => {
                    self.write();
                    self.with(|database, _| database.reset(&owner, at_ms));
                    continue;
                }
            };
            self.waiting.fetch_sub(Row::weight_of(&done), Ordering::Relaxed);
            let row = Row::of(*done);
            self.pending_bytes += row.weight();
            self.pending.push_back(row);
            while self.pending_bytes > MAX_PENDING_BYTES && self.pending.len() > 1 {
                self.write();
                if let Some(oldest) = self.pending.pop_front() {
                    self.pending_bytes = self.pending_bytes.saturating_sub(oldest.weight());
                }
            }
            if self.pending.len() >= MAX_BATCH_ROWS || self.pending_bytes >= MAX_BATCH_BYTES {
                self.write();
            }
        }
        found
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::TakeRows => {}
            Request::View {
                owner,
                last_n,
                sandbox,
                answer,
            } => {
                self.write();
                let (oldest, began) = (Database::oldest(self.keep.age), self.began_ms);
                // The engine's in-memory history has the rows that could not be written, so it answers instead.
                let view = if self.pending.is_empty() {
                    self.with(|database, _| database.view(&owner, last_n, sandbox.as_deref(), oldest, began))
                } else {
                    None
                };
                // The receiver may have timed out.
                let _send_result = answer.send(view);
            }
            Request::Find { owner, id, answer } => {
                self.write();
                let oldest = Database::oldest(self.keep.age);
                let row = self.with(|database, _| database.find(&id)).flatten();
                let own = row.filter(|row| row.owner == owner && row.started_ms >= oldest);
                let _send_result = answer.send(own.and_then(Row::into_stored).map(Box::new));
            }
            Request::Picture {
                owner,
                id,
                number,
                answer,
            } => {
                self.write();
                let oldest = Database::oldest(self.keep.age);
                let found = self.with(|database, _| database.picture(&id, number, (&owner, oldest)));
                let _send_result = answer.send(found.flatten());
            }
            Request::Written(answer) => {
                self.open();
                self.write();
                let is_open = matches!(self.database, DatabaseState::Open(_));
                let _send_result = answer.send(is_open && self.pending.is_empty());
            }
            Request::Flush(answer) => {
                if !self.pending.is_empty() && matches!(self.database, DatabaseState::Failed(_)) {
                    // The process that held the lock may have ended, and there is no later attempt.
                    self.database = DatabaseState::Unopened;
                }
                // Opening deletes expired rows, even if there are no new ones.
                self.open();
                self.write();
                let _send_result = answer.send(());
            }
        }
    }

    /// Writes the pending rows.
    fn write(&mut self) {
        while !self.pending.is_empty() {
            let count = self.batch();
            self.pending.make_contiguous();
            let rows: Vec<Row> = self.pending.drain(..count).collect();
            let began = self.began_ms;
            let written = self.with(|database, size| {
                database.add(&rows, began)?;
                let bytes: usize = rows.iter().map(Row::weight).sum();
                size.rows += u64::try_from(rows.len()).unwrap_or(u64::MAX);
                size.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
                Ok(())
            });
            if written.is_none() {
                rows.into_iter().rev().for_each(|row| self.pending.push_front(row));
                return;
            }
            self.pending_bytes = self.pending.iter().map(Row::weight).sum();
            if self.warned {
                tracing::info!("the history is written again");
                self.warned = false;
            }
            if self.size.is_over(&self.keep) {
                self.trim();
            }
        }
    }

    /// Returns the number of rows in the next transaction.
    fn batch(&self) -> usize {
        let mut bytes = 0;
        let fits = self.pending.iter().take(MAX_BATCH_ROWS).take_while(|row| {
            let first = bytes == 0;
            bytes += row.weight();
            first || bytes <= MAX_BATCH_BYTES
        });
        fits.count()
    }

    /// Trims the database if the last trim is long enough ago.
    fn trim_if_due(&mut self) {
        if self.last_trim.is_none_or(|last| last.elapsed() >= TRIM_INTERVAL) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.last_trim = Some(Instant::now());
        let keep = self.keep;
        self.with(|database, size| {
            *size = database.trim(&keep)?;
            Ok(())
        });
    }

    /// Runs `work` on the database. Returns None if the database does not work.
    fn with<T>(&mut self, work: impl FnOnce(&mut Database, &mut HistorySize) -> Result<T, HistoryError>) -> Option<T> {
        self.open();
        if let DatabaseState::Open(database) = &self.database
            && let Err(error) = database.check()
        {
            // Another file is at the path now. Closing this connection must not delete that file's write-ahead log.
            let _ = database.skip_checkpoint_on_close();
            self.failed(&error);
            self.database = DatabaseState::Unopened;
            self.open();
        }
        let DatabaseState::Open(database) = &mut self.database else {
            return None;
        };
        match work(database, &mut self.size) {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn open(&mut self) {
        match &self.database {
            DatabaseState::Open(_) => return,
            DatabaseState::Failed(at) if at.elapsed() < RETRY_INTERVAL => return,
            DatabaseState::Failed(_) | DatabaseState::Unopened => {}
        }
        let keep = self.keep;
        let opened = Database::open(&self.path, keep.file_bytes()).and_then(|mut database| {
            if self.role == WriterRole::Command {
                database.skip_checkpoint_on_close()?;
            }
            let size = database.trim(&keep)?;
            Ok((database, size))
        });
        match opened {
            Ok((database, size)) => {
                self.size = size;
                self.last_trim = Some(Instant::now());
                self.database = DatabaseState::Open(Box::new(database));
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Marks the database as failed. Logs one warning per outage. Until the database works again, the engine's
    /// in-memory history answers.
    fn failed(&mut self, error: &HistoryError) {
        self.database = DatabaseState::Failed(Instant::now());
        if self.warned {
            return;
        }
        self.warned = true;
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let (cause, remedy) = (cause.unwrap_or_default(), error.remedy());
        match self.role {
            WriterRole::Server => tracing::warn!(
                "{error}{cause}. Executions go on, and the history is kept in memory only until it can be written. To mend it: {remedy}"
            ),
            WriterRole::Command => {
                tracing::warn!("{error}{cause}. This run is not kept in the history. To mend it: {remedy}")
            }
        }
    }
}
