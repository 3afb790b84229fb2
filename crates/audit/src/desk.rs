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
use crate::pace::{Pace, WINDOW};

/// The capacity of the queue to the thread, and of the list of events not yet on the disk.
const QUEUE: usize = 4096;
/// The time for which the thread gathers events before it writes them. A killed server loses at most the events of
/// this time.
const GATHER: Duration = Duration::from_millis(20);
/// The number of idle polls, one per gathering time, before the thread sleeps until the next event. Waking a sleeping
/// thread costs time of the call that causes the event.
const ROUNDS: u32 = 10;
/// The time between a failed write and the next attempt.
const AGAIN: Duration = Duration::from_secs(15);
/// The maximum time between a write and the `fsync` that makes it durable.
const SYNC: Duration = Duration::from_secs(1);
/// The maximum time that `close` waits for the last events.
const CLOSE: Duration = Duration::from_secs(2);
/// The maximum number of lines in one write.
const BATCH: usize = 256;

#[derive(Debug)]
enum Request {
    Note(Box<Entry>),
    Flush(oneshot::Sender<()>),
}

/// Writes security events on a separate thread, so that calls do not wait for it.
#[derive(Debug)]
pub struct AuditDesk {
    queue: SyncSender<Request>,
    lost: Arc<AtomicU64>,
}

impl AuditDesk {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(file: AuditFile) -> std::io::Result<Self> {
        let (queue, requests) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let mut work = Work {
            file,
            pace: Pace::default(),
            pending: VecDeque::new(),
            lost: Arc::clone(&lost),
            failed: None,
            dirty: None,
        };
        thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || work.run(&requests))?;
        Ok(Self { queue, lost })
    }
}

#[async_trait]
impl Auditor for AuditDesk {
    fn note(&self, event: SecurityEvent) {
        if self.queue.try_send(Request::Note(Box::new(Entry::of(&event)))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn close(&self) {
        let (answer, answered) = oneshot::channel();
        let sent = self.queue.try_send(Request::Flush(answer)).is_ok();
        if !sent || tokio::time::timeout(CLOSE, answered).await.is_err() {
            tracing::warn!("the last events of the audit log could not be written in time");
        }
    }
}

struct Work {
    file: AuditFile,
    pace: Pace,
    pending: VecDeque<Entry>,
    lost: Arc<AtomicU64>,
    /// The time of the last failed write, while writing fails.
    failed: Option<Instant>,
    /// The time of the first write since the last `fsync`.
    dirty: Option<Instant>,
}

impl Work {
    fn run(&mut self, requests: &Receiver<Request>) {
        let mut rounds = 0;
        loop {
            let mut next = match self.next(requests, rounds > 0) {
                Ok(request) => {
                    rounds = ROUNDS;
                    Some(request)
                }
                Err(RecvTimeoutError::Timeout) => {
                    rounds = rounds.saturating_sub(1);
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
                    Request::Note(entry) => self.take(*entry),
                    Request::Flush(answer) => {
                        let left_out = self.pace.rest(Instant::now());
                        self.pending.extend(left_out);
                        self.write();
                        self.sync();
                        // The receiver may have timed out.
                        let _nobody_waits = answer.send(());
                    }
                }
                if self.pending.len() >= BATCH {
                    break;
                }
                next = requests.try_recv().ok();
            }
            let left_out = self.pace.told(Instant::now());
            self.pending.extend(left_out);
            self.write();
            if self.dirty.is_some_and(|since| since.elapsed() >= SYNC) {
                self.sync();
            }
        }
    }

    /// Returns the first request of a burst, after a pause in which the rest of the burst can arrive.
    fn next(&self, requests: &Receiver<Request>, is_awake: bool) -> Result<Request, RecvTimeoutError> {
        if is_awake && self.failed.is_none() {
            thread::sleep(GATHER);
            return requests.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            });
        }
        let request = requests.recv_timeout(self.wait())?;
        if self.failed.is_none() {
            thread::sleep(GATHER);
        }
        Ok(request)
    }

    /// Returns the time until the next retry, `fsync` or end of a counting window, if no event arrives before it.
    fn wait(&self) -> Duration {
        let failed = self.failed.map(|at| AGAIN.saturating_sub(at.elapsed()));
        let dirty = self.dirty.map(|since| SYNC.saturating_sub(since.elapsed()));
        [failed, dirty].into_iter().flatten().min().unwrap_or(WINDOW)
    }

    fn take(&mut self, entry: Entry) {
        if !self.pace.admits(&entry) {
            return;
        }
        self.pending.push_back(entry);
        if self.pending.len() > QUEUE {
            self.pending.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self) {
        if self.failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            self.pending.push_front(Entry::own(
                "events_lost",
                format!("{lost} events could not be written in time"),
            ));
        }
        while !self.pending.is_empty() {
            let count = self.pending.len().min(BATCH);
            self.pending.make_contiguous();
            let entries: Vec<Entry> = self.pending.drain(..count).collect();
            match self.file.append(&entries) {
                Ok(()) => {
                    if self.failed.take().is_some() {
                        tracing::warn!("the audit log is written again");
                    }
                    self.dirty.get_or_insert_with(Instant::now);
                }
                Err(error) => {
                    entries
                        .into_iter()
                        .rev()
                        .for_each(|entry| self.pending.push_front(entry));
                    if self.failed.replace(Instant::now()).is_none() {
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
        if self.dirty.take().is_none() {
            return;
        }
        if let Err(error) = self.file.sync() {
            tracing::warn!(%error, "the audit log may not be on the disk");
        }
    }
}
