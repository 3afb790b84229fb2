//! The writer thread. Events reach it through a bounded queue, so no caller waits for a disk. Events that cannot be
//! written stay in a bounded list, and the thread retries. It counts lost events and writes their number to the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandcell_engine::{Auditor, SecurityEvent};
use tokio::sync::oneshot;

use crate::file::AuditFile;
use crate::line::Entry;
use crate::pace::{COUNT_WINDOW, Pace};

/// The capacity of the queue to the thread, and of the list of events not yet on the disk.
const QUEUE_CAPACITY: usize = 4096;
/// The time for which the thread gathers events before it writes them. A killed server loses at most the events of
/// this time.
const GATHER_INTERVAL: Duration = Duration::from_millis(20);
/// The number of idle polls, one per gathering time, before the thread sleeps until the next event. Waking a sleeping
/// thread costs time of the call that causes the event.
const MAX_IDLE_POLLS: u32 = 10;
/// The time between a failed write and the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// The maximum time between a write and the `fsync` that makes it durable.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time that `close` waits for the last events.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of lines in one write.
const MAX_BATCH_LINES: usize = 256;

#[derive(Debug)]
enum Request {
    Note(Box<Entry>),
    Flush(oneshot::Sender<()>),
}

/// Writes security events on a separate thread, so that calls do not wait for it.
#[derive(Debug)]
pub struct AuditWriter {
    queue: SyncSender<Request>,
    lost: Arc<AtomicU64>,
}

impl AuditWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(file: AuditFile) -> std::io::Result<Self> {
        let (queue, requests) = sync_channel(QUEUE_CAPACITY);
        let lost = Arc::new(AtomicU64::new(0));
        let mut thread_state = WriterThread {
            file,
            pace: Pace::default(),
            pending: VecDeque::new(),
            lost: Arc::clone(&lost),
            failed_at: None,
            unsynced_since: None,
        };
        thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || thread_state.run(&requests))?;
        Ok(Self { queue, lost })
    }
}

#[async_trait]
impl Auditor for AuditWriter {
    fn note(&self, event: SecurityEvent) {
        if self.queue.try_send(Request::Note(Box::new(Entry::of(&event)))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        let sent = self.queue.try_send(Request::Flush(answer)).is_ok();
        if !sent || tokio::time::timeout(CLOSE_TIMEOUT, answered).await.is_err() {
            tracing::warn!("the last events of the audit log could not be written in time");
        }
    }
}

struct WriterThread {
    file: AuditFile,
    pace: Pace,
    pending: VecDeque<Entry>,
    lost: Arc<AtomicU64>,
    /// The time of the last failed write, while writing fails.
    failed_at: Option<Instant>,
    /// The time of the first write since the last `fsync`.
    unsynced_since: Option<Instant>,
}

impl WriterThread {
    fn run(&mut self, requests: &Receiver<Request>) {
        let mut polls_left = 0;
        loop {
            let mut next = match self.next(requests, polls_left > 0) {
                Ok(request) => {
                    polls_left = MAX_IDLE_POLLS;
                    Some(request)
                }
                Err(RecvTimeoutError::Timeout) => {
                    polls_left = polls_left.saturating_sub(1);
                    None
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.write();
                    self.sync();
                    return;
                }
            };
            while let Some(request) = next {
                match request {
                    Request::Note(entry) => self.accept(*entry),
                    Request::Flush(answer) => {
                        let omitted = self.pace.take_omitted(Instant::now());
                        self.pending.extend(omitted);
                        self.write();
                        self.sync();
                        // The receiver may have timed out.
                        let _send_result = answer.send(());
                    }
                }
                if self.pending.len() >= MAX_BATCH_LINES {
                    break;
                }
                next = requests.try_recv().ok();
            }
            let omitted = self.pace.take_expired(Instant::now());
            self.pending.extend(omitted);
            self.write();
            if self
                .unsynced_since
                .is_some_and(|since| since.elapsed() >= SYNC_INTERVAL)
            {
                self.sync();
            }
        }
    }

    /// Returns the first request of a burst, after a pause in which the rest of the burst can arrive.
    fn next(&self, requests: &Receiver<Request>, is_awake: bool) -> Result<Request, RecvTimeoutError> {
        if is_awake && self.failed_at.is_none() {
            thread::sleep(GATHER_INTERVAL);
            return requests.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            });
        }
        let request = requests.recv_timeout(self.wait())?;
        if self.failed_at.is_none() {
            thread::sleep(GATHER_INTERVAL);
        }
        Ok(request)
    }

    /// Returns the time until the next retry, `fsync` or end of a counting window, if no event arrives before it.
    fn wait(&self) -> Duration {
        let retry_in = self.failed_at.map(|at| RETRY_INTERVAL.saturating_sub(at.elapsed()));
        let sync_in = self
            .unsynced_since
            .map(|since| SYNC_INTERVAL.saturating_sub(since.elapsed()));
        [retry_in, sync_in].into_iter().flatten().min().unwrap_or(COUNT_WINDOW)
    }

    fn accept(&mut self, entry: Entry) {
        if !self.pace.admits(&entry) {
            return;
        }
        self.pending.push_back(entry);
        if self.pending.len() > QUEUE_CAPACITY {
            self.pending.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self) {
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return;
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.pending.push_front(Entry::about_log(
                "events_lost",
                format!("{lost} events could not be written in time"),
            ));
        }
        while !self.pending.is_empty() {
            let count = self.pending.len().min(MAX_BATCH_LINES);
            self.pending.make_contiguous();
            let entries: Vec<Entry> = self.pending.drain(..count).collect();
            match self.file.append(&entries) {
                Ok(()) => {
                    if self.failed_at.take().is_some() {
                        tracing::warn!("the audit log is written again");
                    }
                    self.unsynced_since.get_or_insert_with(Instant::now);
                }
                Err(error) => {
                    entries
                        .into_iter()
                        .rev()
                        .for_each(|entry| self.pending.push_front(entry));
                    if self.failed_at.replace(Instant::now()).is_none() {
                        let cause = std::error::Error::source(&error)
                            .map(ToString::to_string)
                            .unwrap_or_default();
                        tracing::error!("{error}: {cause}. Events wait until it can be; check audit.file and its disk");
                    }
                    return;
                }
            }
        }
    }

    fn sync(&mut self) {
        if self.unsynced_since.take().is_none() {
            return;
        }
        if let Err(error) = self.file.sync() {
            tracing::warn!(%error, "the audit log may not be on the disk");
        }
    }
}
