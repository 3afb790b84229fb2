//! The thread that has the database, and what it is asked through: a bounded queue.
//!
//! Rows are gathered for a moment and written together. What cannot be written waits within a bound and is tried again;
//! beyond the bound the oldest goes. Whoever waits for an answer waits for so long at most.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use sandcell_engine::{
    Finished, HistoryPage, HistoryQuery, HistorySink, KeptExecution, KeptPicture, Principal, StoredView,
};
use tokio::sync::{Semaphore, oneshot};

use crate::clock::{millis, now};
use crate::database::{Database, HistoryError};
use crate::retention::{Holding, Retention};
use crate::row::Row;
use crate::search::search;

/// What waits for the thread: more than a server finishes while a disk is slow.
const QUEUE: usize = 4096;
/// Bytes of rows that wait for the thread.
const QUEUE_BYTES: u64 = 64 << 20;
/// How long rows are gathered. A committed row is not lost, and nothing waits longer than this to be one.
const GATHER: Duration = Duration::from_millis(50);
/// So often the thread looks again, as long after each other, before it sleeps until it is woken.
const ROUNDS: u32 = 4;
/// Rows that are written together.
const BATCH: usize = 512;
/// Bytes of rows that are written together: what is too much is deleted after each, before the file is full.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of rows that wait for a database that cannot be written now.
const PENDING_BYTES: usize = 16 << 20;
/// How soon that is tried again.
const AGAIN: Duration = Duration::from_secs(15);
/// How often rows are looked through for those that are too old, and for what other processes wrote.
const LOOK: Duration = Duration::from_secs(60);
/// How long somebody waits for an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// The time limit of one search. 256 MiB of text take about 1.5 s.
const SEARCH: Duration = Duration::from_secs(4);
/// The time that a search waits for its turn.
const SEARCH_WAIT: Duration = Duration::from_secs(8);
/// Searches at a time, of all callers.
const SEARCHES: usize = 2;

/// Who keeps a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A server, whose operator counts on it: that the database does not work is a warning. It is opened a moment after the start,
    /// whose processors others need.
    Server,
    /// A command that is run for what it prints: that its run is not kept is a warning. It is opened at once, since the command
    /// may end soon, and would wait for it then.
    Command,
}

/// Keeps a history in a database, behind the calls.
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

/// What the thread has not taken yet. It takes all when it was gathered long enough, and looks again for a while: woken for
/// each row it would be in the way of the answer that is just being written.
type Rows = Arc<Mutex<Left>>;

#[derive(Debug, Default)]
struct Left {
    /// In order.
    news: Vec<News>,
    /// The thread looks by itself, soon.
    watched: bool,
}

#[derive(Debug)]
enum News {
    Row(Box<Finished>),
    Reset(String, i64),
}

#[derive(Debug)]
enum Request {
    /// There are rows.
    Rows,
    View {
        owner: String,
        last_n: usize,
        sandbox: Option<String>,
        answer: oneshot::Sender<Option<StoredView>>,
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
    /// True if all rows are in the file.
    Written(oneshot::Sender<bool>),
    Flush(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the thread. The database is opened there, so that nobody waits for a disk.
    ///
    /// # Errors
    /// When there can be no thread.
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

    /// Leaves something for the thread, and wakes it unless it looks by itself.
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

    /// Something does not reach the database; the first time is told.
    fn lose(&self) -> bool {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the history cannot be written as fast as code ends: some of it stays in memory only");
        }
        false
    }
}

#[async_trait]
impl HistorySink for Writer {
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

/// The database, as far as it is there.
#[derive(Debug)]
enum Store {
    Unopened,
    Open(Box<Database>),
    Failed(Instant),
}

/// What the thread has.
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
        // Opened with the first request, or soon: reading what the last server left takes a processor that this one's start needs.
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

    /// Sleeps until it is woken from now on, unless something has come meanwhile.
    fn is_left_something(&self) -> bool {
        let mut left = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        left.watched = !left.news.is_empty();
        left.watched
    }

    /// Takes the rows that have come, if there are any.
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
                // Rows that could not be written are in the engine's memory, which then answers.
                let view = if self.pending.is_empty() {
                    self.with(|database, _| database.view(&owner, last_n, sandbox.as_deref(), oldest, began))
                } else {
                    None
                };
                // Whoever asked may have left.
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
                    // Whoever had it is gone by now, perhaps, and there is no later.
                    self.database = Store::Unopened;
                }
                // What is too old goes, also where nothing is new.
                self.open();
                self.write();
                let _nobody_waits = answer.send(());
            }
        }
    }

    /// Writes what waits.
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

    /// How many rows are written next.
    fn batch(&self) -> usize {
        let mut bytes = 0;
        let fits = self.pending.iter().take(BATCH).take_while(|row| {
            let first = bytes == 0;
            bytes += row.weight();
            first || bytes <= BATCH_BYTES
        });
        fits.count()
    }

    /// Looks through the rows, now and then.
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

    /// Does something with the database, if it works.
    fn with<T>(&mut self, work: impl FnOnce(&mut Database, &mut Holding) -> Result<T, HistoryError>) -> Option<T> {
        self.open();
        if let Store::Open(database) = &self.database
            && let Err(error) = database.check()
        {
            // The log of another file that is there by now must not go with this one's.
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

    /// One warning for each time that it stops working; then memory has to do.
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
