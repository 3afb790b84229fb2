//! The thread that writes: events come through a bounded queue, so nobody waits for a disk. What cannot be written waits
//! within a bound and is tried again; what is lost is counted, and the number is written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandcell_engine::{Auditor, SecurityEvent};
use tokio::sync::oneshot;

use crate::file::AuditFile;
use crate::line::Entry;
use crate::pace::Pace;

/// Events that wait for the thread, and those that wait for the disk.
const QUEUE: usize = 4096;
/// How long events are gathered.
const GATHER: Duration = Duration::from_millis(20);
/// How soon a disk that refused is tried again.
const AGAIN: Duration = Duration::from_secs(15);
/// How often the disk is waited for.
const SYNC: Duration = Duration::from_secs(1);
/// How long the end waits.
const CLOSE: Duration = Duration::from_secs(2);
/// Lines that are written together.
const BATCH: usize = 256;

#[derive(Debug)]
enum Request {
    Note(Box<Entry>),
    Flush(oneshot::Sender<()>),
}

/// Writes events behind those who cause them.
#[derive(Debug)]
pub struct AuditDesk {
    queue: SyncSender<Request>,
    lost: Arc<AtomicU64>,
}

impl AuditDesk {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(file: AuditFile) -> std::io::Result<Self> {
        let (queue, requests) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let mut work = Work {
            file,
            pace: Pace::default(),
            pending: VecDeque::new(),
            lost: Arc::clone(&lost),
            failed: None,
            dirty: false,
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
    /// Since when it cannot be written.
    failed: Option<Instant>,
    dirty: bool,
}

impl Work {
    fn run(&mut self, requests: &Receiver<Request>) {
        loop {
            let wait = match (self.pending.is_empty(), self.failed) {
                (true, _) => SYNC,
                (false, None) => GATHER,
                (false, Some(_)) => AGAIN,
            };
            match requests.recv_timeout(wait) {
                Ok(Request::Note(entry)) => {
                    self.take(*entry);
                    // The rest of what is there comes along.
                    if self.failed.is_none() && self.pending.len() == 1 {
                        thread::sleep(GATHER);
                    }
                    if self.pending.len() >= BATCH {
                        self.write();
                    }
                }
                Ok(Request::Flush(answer)) => {
                    let left_out = self.pace.rest(Instant::now());
                    self.pending.extend(left_out);
                    self.write();
                    self.sync();
                    // Whoever asked may have left.
                    let _nobody_waits = answer.send(());
                }
                Err(RecvTimeoutError::Timeout) => {
                    let left_out = self.pace.told(Instant::now());
                    self.pending.extend(left_out);
                    self.write();
                    self.sync();
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.write();
                    self.sync();
                    return;
                }
            }
        }
    }

    fn take(&mut self, entry: Entry) {
        let left_out = self.pace.told(Instant::now());
        self.pending.extend(left_out);
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
                    self.dirty = true;
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
        if !self.dirty {
            return;
        }
        self.dirty = false;
        if let Err(error) = self.file.sync() {
            tracing::warn!(%error, "the audit log may not be on the disk");
        }
    }
}
