//! Descriptors of a sandbox without a control group: what they hold of the kernel's memory is charged to nobody.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Bounds, MOST, REACH, SHORTEST, Seen, descriptors, is_stopped, locks, number_of, place};

/// What one file watched by epoll counts as. It takes a fifth of that; but a user has so many for all programs together.
const WATCH: u64 = 1024;
const EPOLL: &str = "anon_inode:[eventpoll]";
/// What a descriptor counts as that is on the way between two processes: nobody sees what it is.
const ON_THE_WAY: u64 = 4 << 20;
/// What an open report of the kernel's keeps of its text at the most.
const REPORT: u64 = 256 << 10;
/// How often they are counted, which is dear.
const EVERY: Duration = Duration::from_millis(500);
/// The same at the most where a process can add to what it watches, or has many descriptors.
const SOON: Duration = Duration::from_millis(50);
const MANY: u64 = 256;
/// Without so much processor time since the last count there is no hurry, in microseconds.
const WORK: u64 = 20_000;
/// How many watches one core adds in a millisecond.
const RATE: u64 = 2000;

/// What is known of a sandbox's descriptors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    bytes: u64,
    counted: Option<Instant>,
    /// The processor time that the sandbox had used then, in microseconds.
    at: u64,
    /// Whether anybody watched files by epoll then. How many is not bounded by the descriptors that are open.
    watching: bool,
    /// How long a count holds; none before the first.
    holds: Option<Duration>,
}

impl Held {
    /// What files watched by epoll hold, and what else descriptors hold that is charged to nobody. More than the limit is not
    /// counted to its end: that takes the longer the more there is. It is counted again before it can have grown to
    /// [`REACH`]. `used` is the processor time that the sandbox has used.
    pub(super) fn bytes(&mut self, used: u64, processes: &[Seen], bounds: Bounds) -> u64 {
        let most = bounds.memory / WATCH;
        let soon = self.watching || processes.iter().any(|seen| descriptors(seen.living) > MANY);
        let holds = if soon {
            let room = (most / 100 * REACH).saturating_sub(self.bytes / WATCH);
            Duration::from_millis(room / (RATE * bounds.cores.max(1))).clamp(SHORTEST, SOON)
        } else {
            EVERY
        };
        self.holds = Some(holds);
        // Processor time of children that nobody waits for vanishes with them: it only makes a count come sooner.
        let due = self.counted.is_none_or(|counted| {
            let worked = used.abs_diff(self.at) >= WORK;
            counted.elapsed() >= if worked { holds } else { EVERY }
        });
        if due {
            // One that has many already is faster than whoever counts.
            let hold = self.bytes / WATCH > most / 8;
            let mut sum = Watched::default();
            for seen in processes {
                sum.add(seen.living, most, hold);
            }
            self.bytes = sum.count.saturating_mul(WATCH);
            self.watching = sum.epolls > 0;
            self.counted = Some(Instant::now());
            self.at = used;
        }
        self.bytes
    }

    /// How long a count holds.
    pub(super) fn holds(&self) -> Duration {
        self.holds.unwrap_or(EVERY)
    }

    /// Somebody was ended; what is left is seen at the next count.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
        self.counted = None;
    }
}

/// What is counted of several processes.
#[derive(Default)]
struct Watched {
    /// In units of [`WATCH`].
    count: u64,
    epolls: u64,
}

impl Watched {
    /// Adds what a process watches by epoll, and what else its descriptors hold that is charged to nobody, until there is
    /// more than `most`. With `hold`, one that watches anything stands still meanwhile.
    fn add(&mut self, pid: Pid, most: u64, hold: bool) {
        let proc = format!("{}/proc/{}", place::host(), pid.as_raw_nonzero());
        let entries = std::fs::read_dir(format!("{proc}/fd"))
            .into_iter()
            .flatten()
            .flatten()
            .take(MOST);
        let info = |name: &OsStr| format!("{proc}/fdinfo/{}", name.display());
        let mut epolls = Vec::new();
        for entry in entries {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            match target.as_os_str().as_bytes() {
                name if name == EPOLL.as_bytes() => epolls.push(entry.file_name()),
                name if name.starts_with(b"socket:") => {
                    let text = std::fs::read_to_string(info(&entry.file_name())).unwrap_or_default();
                    self.count += number_of(&text, "scm_fds:") * ON_THE_WAY / WATCH;
                }
                name if name.starts_with(b"/proc/") => self.count += REPORT / WATCH,
                _ => {}
            }
        }
        let held = hold && !epolls.is_empty() && !is_stopped(pid) && kill_process(pid, Signal::STOP).is_ok();
        for name in epolls {
            self.epolls += 1;
            let room = most.saturating_sub(self.count);
            let Ok(file) = std::fs::File::open(info(&name)) else {
                continue;
            };
            let mut seen = 0;
            let more = |line: &[u8]| {
                seen += match line {
                    line if line.starts_with(b"tfd:") => 1,
                    line if line.starts_with(b"lock:") => locks::LOCK / WATCH,
                    _ => 0,
                };
                seen <= room
            };
            each_line(file, more);
            self.count = self.count.saturating_add(seen);
        }
        if held {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// Calls `more` with the beginning of each line until it says that it is enough. Nothing long is kept.
fn each_line(file: impl Read, mut more: impl FnMut(&[u8]) -> bool) {
    let mut lines = BufReader::with_capacity(16 << 10, file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && more(&line) {
        line.clear();
    }
}

pub(super) fn is_epoll(descriptor: &Path) -> bool {
    std::fs::read_link(descriptor).is_ok_and(|target| target.as_os_str() == EPOLL)
}
