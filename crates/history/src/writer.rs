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
    Finished, HistoryPage, HistoryQuery, Keeper, KeptExecution, KeptPicture, LastingView, Principal,
};
use tokio::sync::{Semaphore, oneshot};

use crate::clock::{millis, now};
use crate::database::{Database, HistoryError};
use crate::retention::{Holding, Retention};
use crate::row::Row;
use crate::search::search;

/// The capacity of the queue to the thread. A server finishes fewer executions while a disk is slow.
const QUEUE: usize = 4096;
/// The maximum total size of queued rows in bytes.
const QUEUE_BYTES: u64 = 64 << 20;
/// The time for which the thread gathers rows before it commits them. A committed row is not lost, so a killed server
/// loses at most the rows of this time.
const GATHER: Duration = Duration::from_millis(50);
/// The number of idle polls, one per gathering time, before the thread sleeps until the next row.
const ROUNDS: u32 = 4;
/// The maximum number of rows in one transaction.
const BATCH: usize = 512;
/// The maximum size of the rows in one transaction. Surplus rows are deleted after each transaction, before the file
/// is full.
const BATCH_BYTES: usize = 1 << 20;
/// The maximum size of the rows that stay in memory while the database cannot be written.
const PENDING_BYTES: usize = 16 << 20;
/// The time between a failure and the next attempt.
const AGAIN: Duration = Duration::from_secs(15);
/// The interval of trims, which find expired rows and count the rows of other processes.
const LOOK: Duration = Duration::from_secs(60);
/// The maximum wait for an answer of the thread.
const ANSWER: Duration = Duration::from_secs(2);
/// The time limit of one search. 256 MiB of text take about 1.5 s.
const SEARCH: Duration = Duration::from_secs(4);
/// The maximum wait for a search permit.
const SEARCH_WAIT: Duration = Duration::from_secs(8);
/// The maximum number of concurrent searches of all callers.
const SEARCHES: usize = 2;

/// The kind of process that writes the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A server. Its operator relies on the history, so the warning about a broken database names the substitute. The database
    /// is opened a moment after the start, because other work needs the processors during the start.
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
    rows: Rows,
    waiting: Arc<AtomicU64>,
    lost: AtomicU64,
    path: PathBuf,
    age: Duration,
    searches: Arc<Semaphore>,
}

/// The rows that the thread has not taken yet. After the gathering time it takes all of them, and then polls for a
/// while. Waking it for each row would delay the answer that the server writes at that moment.
type Rows = Arc<Mutex<Left>>;

#[derive(Debug, Default)]
struct Left {
    /// The rows and resets, in order.
    news: Vec<News>,
    /// True while the thread polls, so it needs no wake-up.
    watched: bool,
}

#[derive(Debug)]
enum News {
    Row(Box<Finished>),
    Reset(String, i64),
}

#[derive(Debug)]
enum Request {
    /// Wakes the thread to take rows.
    Rows,
    View {
        owner: String,
        last_n: usize,
        sandbox: Option<String>,
        answer: oneshot::Sender<Option<LastingView>>,
    },
    Find {
        owner: String,
        id: String,
        answer: oneshot::Sender<Option<Box<KeptExecution>>>,
    },
    Picture {
        owner: String,
        id: String,
        number: u32,
        answer: oneshot::Sender<Option<KeptPicture>>,
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
    pub fn start(path: PathBuf, keep: Retention, whose: Whose) -> std::io::Result<Self> {
        let (queue, requests) = sync_channel(QUEUE);
        let (waiting, rows) = (Arc::new(AtomicU64::new(0)), Rows::default());
        let mut desk = Desk {
            path: path.clone(),
            keep,
            whose,
            database: Store::Unopened,
            pending: VecDeque::new(),
            pending_bytes: 0,
            held: Holding::default(),
            looked: None,
            warned: false,
            began_ms: now(),
            waiting: Arc::clone(&waiting),
            rows: Arc::clone(&rows),
        };
        thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || desk.work(&requests))?;
        Ok(Self {
            queue,
            rows,
            waiting,
            lost: AtomicU64::new(0),
            path,
            age: keep.age,
            searches: Arc::new(Semaphore::new(SEARCHES)),
        })
    }

    fn send(&self, request: Request) -> bool {
        match self.queue.try_send(request) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.lose(),
        }
    }

    /// Queues a row or a reset, and wakes the thread unless it polls. Returns false if the entry was lost.
    fn tell(&self, news: News) -> bool {
        let mut left = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if left.news.len() >= QUEUE {
            return self.lose();
        }
        if !left.watched && !self.send(Request::Rows) {
            return false;
        }
        left.watched = true;
        left.news.push(news);
        let many = left.news.len() == BATCH;
        drop(left);
        if many {
            self.send(Request::Rows);
        }
        true
    }

    /// Counts an entry that does not reach the database, and logs the first one. Returns false.
    fn lose(&self) -> bool {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the history cannot be written as fast as executions end: some of them stay in memory only");
        }
        false
    }
}

#[async_trait]
impl Keeper for Writer {
    fn keep(&self, row: Finished) {
        let weight = Row::weight_of(&row);
        let heavy = self.waiting.fetch_add(weight, Ordering::Relaxed) > QUEUE_BYTES;
        let told = if heavy {
            self.lose()
        } else {
            self.tell(News::Row(Box::new(row)))
        };
        if !told {
            self.waiting.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    fn reset(&self, who: &Principal, at: SystemTime) {
        self.tell(News::Reset(who.0.to_string(), millis(at)));
    }

    async fn view(&self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> Option<LastingView> {
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
        tokio::time::timeout(ANSWER, answered).await.ok()?.ok()?
    }

    async fn search(&self, who: &Principal, query: &HistoryQuery) -> Option<HistoryPage> {
        let place = Arc::clone(&self.searches).acquire_owned();
        let place = tokio::time::timeout(SEARCH_WAIT, place).await.ok()?.ok()?;
        let (answer, written) = oneshot::channel();
        let is_sent = self.send(Request::Written(answer));
        if !is_sent || !tokio::time::timeout(ANSWER, written).await.ok()?.ok()? {
            return None;
        }
        let (path, owner, query) = (self.path.clone(), Arc::clone(&who.0), query.clone());
        let oldest = Database::oldest(self.age);
        let work = move || {
            let _place = place;
            search(&path, &owner, &query, oldest, SEARCH)
        };
        let found = tokio::task::spawn_blocking(work).await.ok()?;
        found
            .inspect_err(|error| tracing::warn!(%error, "the history could not be searched"))
            .ok()
    }

    async fn find(&self, who: &Principal, id: &str) -> Option<KeptExecution> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Find {
            owner: who.0.to_string(),
            id: id.to_owned(),
            answer,
        };
        if !self.send(request) {
            return None;
        }
        let found = tokio::time::timeout(ANSWER, answered).await.ok()?.ok()?;
        found.map(|kept| *kept)
    }

    async fn picture(&self, who: &Principal, id: &str, number: u32) -> Option<KeptPicture> {
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
        tokio::time::timeout(ANSWER, answered).await.ok()?.ok()?
    }

    async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        if self.send(Request::Flush(answer)) && tokio::time::timeout(ANSWER, answered).await.is_err() {
            tracing::warn!("the last rows of the history could not be written in time");
        }
    }
}

/// The state of the database.
#[derive(Debug)]
enum Store {
    Unopened,
    Open(Box<Database>),
    Failed(Instant),
}

/// The state of the thread.
struct Desk {
    path: PathBuf,
    keep: Retention,
    whose: Whose,
    database: Store,
    /// Rows that are not written yet, oldest first.
    pending: VecDeque<Row>,
    pending_bytes: usize,
    held: Holding,
    looked: Option<Instant>,
    warned: bool,
    began_ms: i64,
    waiting: Arc<AtomicU64>,
    rows: Rows,
}

impl Desk {
    fn work(&mut self, requests: &Receiver<Request>) {
        // A server opens the database with the first request, or after the gathering time: reading the data of the
        // last server takes a processor that the start needs.
        if self.whose == Whose::Command {
            self.open();
        }
        let mut due = Some(Instant::now() + GATHER);
        let mut rounds = 0;
        loop {
            let wait = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()));
            match requests.recv_timeout(wait) {
                Ok(Request::Rows) if due.is_none() => {
                    due = Some(Instant::now() + GATHER);
                    rounds = ROUNDS;
                }
                Ok(request) => {
                    self.gather();
                    self.answer(request);
                }
                Err(RecvTimeoutError::Timeout) => {
                    rounds = if self.gather() {
                        ROUNDS
                    } else {
                        rounds.saturating_sub(1)
                    };
                    self.write();
                    self.look();
                    due = if !self.pending.is_empty() {
                        rounds = 0;
                        Some(Instant::now() + AGAIN)
                    } else if rounds > 0 {
                        Some(Instant::now() + GATHER)
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
            if rounds == 0 {
                if self.is_left_something() {
                    due = Some(Instant::now() + GATHER);
                    rounds = ROUNDS;
                } else if self.pending.is_empty() {
                    due = None;
                }
            }
        }
    }

    /// Stops polling if no entries are queued. Returns true if there are some, and polling continues.
    fn is_left_something(&self) -> bool {
        let mut left = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        left.watched = !left.news.is_empty();
        left.watched
    }

    /// Takes all queued rows. Returns true if there were any.
    fn gather(&mut self) -> bool {
        let news = std::mem::take(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner).news);
        let found = !news.is_empty();
        for one in news {
            let done = match one {
                News::Row(done) => done,
                News::Reset(owner, at_ms) => {
                    self.write();
                    self.with(|database, _| database.reset(&owner, at_ms));
                    continue;
                }
            };
            self.waiting.fetch_sub(Row::weight_of(&done), Ordering::Relaxed);
            let row = Row::of(*done);
            self.pending_bytes += row.weight();
            self.pending.push_back(row);
            while self.pending_bytes > PENDING_BYTES && self.pending.len() > 1 {
                self.write();
                if let Some(oldest) = self.pending.pop_front() {
                    self.pending_bytes = self.pending_bytes.saturating_sub(oldest.weight());
                }
            }
            if self.pending.len() >= BATCH || self.pending_bytes >= BATCH_BYTES {
                self.write();
            }
        }
        found
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Rows => {}
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
                let _nobody_waits = answer.send(view);
            }
            Request::Find { owner, id, answer } => {
                self.write();
                let oldest = Database::oldest(self.keep.age);
                let row = self.with(|database, _| database.find(&id)).flatten();
                let own = row.filter(|row| row.owner == owner && row.started_ms >= oldest);
                let _nobody_waits = answer.send(own.and_then(Row::into_kept).map(Box::new));
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
                let _nobody_waits = answer.send(found.flatten());
            }
            Request::Written(answer) => {
                self.open();
                self.write();
                let is_open = matches!(self.database, Store::Open(_));
                let _nobody_waits = answer.send(is_open && self.pending.is_empty());
            }
            Request::Flush(answer) => {
                if !self.pending.is_empty() && matches!(self.database, Store::Failed(_)) {
                    // The process that held the lock may have ended, and there is no later attempt.
                    self.database = Store::Unopened;
                }
                // Opening deletes expired rows, even if there are no new ones.
                self.open();
                self.write();
                let _nobody_waits = answer.send(());
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
            let written = self.with(|database, held| {
                database.add(&rows, began)?;
                let bytes: usize = rows.iter().map(Row::weight).sum();
                held.rows += u64::try_from(rows.len()).unwrap_or(u64::MAX);
                held.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
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
            if self.held.is_over(&self.keep) {
                self.trim();
            }
        }
    }

    /// Returns the number of rows in the next transaction.
    fn batch(&self) -> usize {
        let mut bytes = 0;
        let fits = self.pending.iter().take(BATCH).take_while(|row| {
            let first = bytes == 0;
            bytes += row.weight();
            first || bytes <= BATCH_BYTES
        });
        fits.count()
    }

    /// Trims the database if the last trim is long enough ago.
    fn look(&mut self) {
        if self.looked.is_none_or(|last| last.elapsed() >= LOOK) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.looked = Some(Instant::now());
        let keep = self.keep;
        self.with(|database, held| {
            *held = database.trim(&keep)?;
            Ok(())
        });
    }

    /// Runs `work` on the database. Returns None if the database does not work.
    fn with<T>(&mut self, work: impl FnOnce(&mut Database, &mut Holding) -> Result<T, HistoryError>) -> Option<T> {
        self.open();
        if let Store::Open(database) = &self.database
            && let Err(error) = database.check()
        {
            // Another file is at the path now. Closing this connection must not delete that file's write-ahead log.
            let _ = database.leave_log();
            self.failed(&error);
            self.database = Store::Unopened;
            self.open();
        }
        let Store::Open(database) = &mut self.database else {
            return None;
        };
        match work(database, &mut self.held) {
            Ok(done) => Some(done),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn open(&mut self) {
        match &self.database {
            Store::Open(_) => return,
            Store::Failed(at) if at.elapsed() < AGAIN => return,
            Store::Failed(_) | Store::Unopened => {}
        }
        let keep = self.keep;
        let opened = Database::open(&self.path, keep.file_bytes()).and_then(|mut database| {
            if self.whose == Whose::Command {
                database.leave_log()?;
            }
            let held = database.trim(&keep)?;
            Ok((database, held))
        });
        match opened {
            Ok((database, held)) => {
                self.held = held;
                self.looked = Some(Instant::now());
                self.database = Store::Open(Box::new(database));
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Marks the database as failed. Logs one warning per outage. Until the database works again, the engine's
    /// in-memory history answers.
    fn failed(&mut self, error: &HistoryError) {
        self.database = Store::Failed(Instant::now());
        if self.warned {
            return;
        }
        self.warned = true;
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let (cause, remedy) = (cause.unwrap_or_default(), error.remedy());
        match self.whose {
            Whose::Server => tracing::warn!(
                "{error}{cause}. Executions go on, and the history is kept in memory only until it can be written. To mend it: {remedy}"
            ),
            Whose::Command => {
                tracing::warn!("{error}{cause}. This run is not kept in the history. To mend it: {remedy}")
            }
        }
    }
}
