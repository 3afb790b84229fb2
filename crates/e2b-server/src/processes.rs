//! The table of a sandbox's processes: any number of requests can follow one, and it lives on without them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;

/// The number of events that wait for one follower.
const FOLLOWER_CAPACITY: usize = 16;
/// The maximum time that a process waits for a follower that does not read. After that the follower is dropped.
const SLOW_FOLLOWER: Duration = Duration::from_secs(60);
/// The number of ended processes whose end a late follower still gets.
const MAX_ENDED_PROCESSES: usize = 64;
/// The number of parts of standard input that wait for a process.
pub(crate) const INPUT_CAPACITY: usize = 16;

/// An event of a process.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Output of the stream with this name.
    Data(&'static str, Bytes),
    /// Its end, or the failure that ended it. Nothing follows.
    End(Result<Value, Problem>),
    /// Its sandbox has ended. Nothing follows.
    Gone,
}

/// A process that was started by a request.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    /// The request's program, arguments, variables and folder.
    pub(crate) config: Value,
    /// Its execution in the engine.
    pub(crate) execution: String,
    /// True if its input and output are a terminal.
    pub(crate) in_terminal: bool,
    stdin: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// Cancelled at its end.
    pub(crate) over: CancellationToken,
    followers: Mutex<Followers>,
}

#[derive(Default)]
struct Followers {
    all: Vec<mpsc::Sender<Event>>,
    end: Option<Event>,
}

impl Process {
    pub(crate) fn new(
        (pid, tag): (u32, Option<String>),
        config: Value,
        execution: String,
        stdin: Option<mpsc::Sender<Bytes>>,
        in_terminal: bool,
    ) -> Self {
        Self {
            pid,
            tag,
            config,
            execution,
            in_terminal,
            stdin: Mutex::new(stdin),
            over: CancellationToken::new(),
            followers: Mutex::default(),
        }
    }

    /// Returns the events from now on. After the end there is only the end.
    pub(crate) fn follow(&self) -> mpsc::Receiver<Event> {
        let (sender, events) = mpsc::channel(FOLLOWER_CAPACITY);
        let mut followers = lock(&self.followers);
        match &followers.end {
            // The new channel has room.
            Some(end) => drop(sender.try_send(end.clone())),
            None => followers.all.push(sender),
        }
        events
    }

    /// Sends output to all followers. A follower that does not read makes the process wait.
    pub(crate) async fn tell(&self, event: Event) {
        let followers = lock(&self.followers).all.clone();
        let mut gone = false;
        for follower in followers {
            let sent = tokio::time::timeout(SLOW_FOLLOWER, follower.send(event.clone())).await;
            gone |= !matches!(sent, Ok(Ok(())));
            if sent.is_err() {
                lock(&self.followers).all.retain(|other| !other.same_channel(&follower));
            }
        }
        if gone {
            lock(&self.followers).all.retain(|follower| !follower.is_closed());
        }
    }

    /// Stores the end and sends it to all followers. None: the sandbox has ended.
    pub(crate) async fn end(&self, end: Option<Result<Value, Problem>>) {
        let end = end.map_or(Event::Gone, Event::End);
        *lock(&self.stdin) = None;
        self.over.cancel();
        let followers = {
            let mut followers = lock(&self.followers);
            followers.end = Some(end.clone());
            std::mem::take(&mut followers.all)
        };
        for follower in followers {
            let sending = follower.send(end.clone());
            // A follower that does not read learns of the end when it asks again.
            drop(tokio::time::timeout(SLOW_FOLLOWER, sending).await);
        }
    }

    /// Returns the sender of standard input, while that is open.
    pub(crate) fn stdin(&self) -> Option<mpsc::Sender<Bytes>> {
        lock(&self.stdin).clone()
    }

    pub(crate) fn close_stdin(&self) {
        *lock(&self.stdin) = None;
    }
}

/// The processes of a sandbox.
#[derive(Default)]
pub(crate) struct Processes(Mutex<Table>);

#[derive(Default)]
struct Table {
    running: BTreeMap<u32, Arc<Process>>,
    ended: VecDeque<Arc<Process>>,
}

/// The process that a request means.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

impl Selector {
    fn fits(&self, process: &Process) -> bool {
        match (self.pid, &self.tag) {
            (Some(pid), _) => process.pid == pid,
            (None, Some(tag)) => process.tag.as_ref() == Some(tag),
            (None, None) => false,
        }
    }
}

impl Processes {
    pub(crate) fn add(&self, process: &Arc<Process>) {
        lock(&self.0).running.insert(process.pid, Arc::clone(process));
    }

    /// Moves a process to the ended ones.
    pub(crate) fn ended(&self, process: &Arc<Process>) {
        let mut table = lock(&self.0);
        table.running.remove(&process.pid);
        table.ended.push_back(Arc::clone(process));
        if table.ended.len() > MAX_ENDED_PROCESSES {
            table.ended.pop_front();
        }
    }

    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        lock(&self.0).running.values().cloned().collect()
    }

    /// Returns a running process.
    pub(crate) fn find(&self, selector: &Selector) -> Result<Arc<Process>, Problem> {
        let table = lock(&self.0);
        let mut found = table.running.values().rev().filter(|process| selector.fits(process));
        found.next().cloned().ok_or_else(|| unknown(selector))
    }

    /// Returns a process that runs, or that has ended not long ago.
    pub(crate) fn find_any(&self, selector: &Selector) -> Result<Arc<Process>, Problem> {
        if let Ok(running) = self.find(selector) {
            return Ok(running);
        }
        let table = lock(&self.0);
        let mut ended = table.ended.iter().rev().filter(|process| selector.fits(process));
        ended.next().cloned().ok_or_else(|| unknown(selector))
    }
}

fn unknown(selector: &Selector) -> Problem {
    Problem::not_found(match (selector.pid, &selector.tag) {
        (Some(pid), _) => format!("process with pid {pid} not found"),
        (None, Some(tag)) => format!(
            "process with tag {:?} not found",
            tag.chars().take(64).collect::<String>()
        ),
        (None, None) => "the request names no process".to_owned(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn process(pid: u32, tag: Option<&str>) -> Arc<Process> {
        let tag = tag.map(str::to_owned);
        Arc::new(Process::new((pid, tag), json!({}), "ex1".to_owned(), None, false))
    }

    #[tokio::test]
    async fn a_late_follower_gets_the_end_only() {
        let process = process(7, None);
        let mut early = process.follow();
        process.tell(Event::Data("stdout", Bytes::from_static(b"hi"))).await;
        process.end(Some(Ok(json!({"exitCode": 0})))).await;
        assert!(matches!(early.recv().await, Some(Event::Data("stdout", _))));
        assert!(matches!(early.recv().await, Some(Event::End(Ok(_)))));
        assert!(early.recv().await.is_none());
        let mut late = process.follow();
        assert!(matches!(late.recv().await, Some(Event::End(Ok(_)))));
        assert!(late.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_does_not_read_is_dropped() {
        let process = process(7, None);
        let mut stuck = process.follow();
        let mut reader = process.follow();
        let reading = tokio::spawn(async move {
            let mut count = 0;
            while let Some(Event::Data(..)) = reader.recv().await {
                count += 1;
            }
            count
        });
        for _ in 0..=FOLLOWER_CAPACITY {
            process.tell(Event::Data("stdout", Bytes::from_static(b"x"))).await;
        }
        process.end(Some(Ok(json!({})))).await;
        assert_eq!(reading.await.unwrap(), FOLLOWER_CAPACITY + 1);
        let mut got = 0;
        while stuck.recv().await.is_some() {
            got += 1;
        }
        assert_eq!(got, FOLLOWER_CAPACITY);
    }

    #[test]
    fn a_process_is_found_by_its_pid_or_its_tag() {
        let processes = Processes::default();
        let (one, other) = (process(7, Some("a")), process(8, None));
        processes.add(&one);
        processes.add(&other);
        let by = |pid, tag: Option<&str>| Selector {
            pid,
            tag: tag.map(str::to_owned),
        };
        assert_eq!(processes.find(&by(Some(8), None)).unwrap().pid, 8);
        assert_eq!(processes.find(&by(None, Some("a"))).unwrap().pid, 7);
        assert!(processes.find(&by(None, None)).is_err());
        processes.ended(&one);
        assert!(processes.find(&by(Some(7), None)).is_err());
        assert_eq!(processes.find_any(&by(Some(7), None)).unwrap().pid, 7);
        assert_eq!(processes.running().len(), 1);
        for pid in 100..100 + u32::try_from(MAX_ENDED_PROCESSES).unwrap() {
            processes.ended(&process(pid, None));
        }
        assert!(processes.find_any(&by(Some(7), None)).is_err());
    }
}
