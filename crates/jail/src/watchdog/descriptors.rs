//! Descriptors of a sandbox without a cgroup: no group is charged for the kernel memory behind them.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Bounds, MAX_PROCESSES, MIN_CHECK_INTERVAL, ProcessSample, REACH_PERCENT, descriptors, is_stopped, number_of, paths,
};
use crate::kernel_files::small_file;

/// The minimum charge for one file watched by epoll. It uses a fifth of that, but a user has a limited number for all
/// programs together.
const WATCH_BYTES: u64 = 1024;
/// The divisor of a user's limit of epoll watches for one sandbox: sixteen sandboxes have half.
const WATCH_DIVISOR: u64 = 32;
const EPOLL_LINK: &str = "anon_inode:[eventpoll]";
/// The number of inotify instances that are not counted (most programs have one), and the maximum memory of one event,
/// including a name of 255 bytes. An instance counts as full, since the kernel does not report the number of events.
const FREE_INSTANCES: u64 = 1;
const EVENT_BYTES: u64 = 512;
const INOTIFY_LINKS: [&str; 2] = ["anon_inode:inotify", "anon_inode:[inotify]"];
/// The charge for a descriptor in flight between two processes: its type is not visible.
const IN_FLIGHT_BYTES: u64 = 4 << 20;
/// The maximum memory that the kernel keeps for the text of an open report file.
const REPORT_BYTES: u64 = 256 << 10;
/// The divisor of the memory limit for an open report about a descriptor. The text has up to 100 bytes for each watched
/// file, which is charged [`WATCH_BYTES`]. The kernel doubles the buffer until the text fits, and keeps the text after
/// the watches are removed.
const REPORT_DIVISOR: u64 = 5;
/// The number of open reports that are not counted. A program that reads reports closes one before it opens the next.
const FREE_REPORTS: u64 = 1;
/// The charge for one end of a pipe: half of the pipe's capacity. Pipes cannot be enlarged in such a sandbox.
const PIPE_END_BYTES: u64 = 32 << 10;
/// The maximum memory of a user's pipes: the kernel's default limit for pipes of normal size. Beyond it, a pipe has two
/// pages, which are charged as its descriptors.
const MAX_PIPE_BYTES: u64 = 64 << 20;
/// The interval between counts, which are expensive.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum interval if a process can add watches, or has many descriptors.
const MAX_BUSY_INTERVAL: Duration = Duration::from_millis(50);
const MANY_DESCRIPTORS: u64 = 256;
/// With less processor time since the last count, in microseconds, the long interval applies.
const MIN_CPU_US: u64 = 20_000;
/// The number of watches that one core can add per millisecond.
const WATCHES_PER_MS: u64 = 2000;

/// The state of a sandbox's descriptors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DescriptorState {
    bytes: u64,
    counted: Option<Instant>,
    /// The processor time of the sandbox at the last count, in microseconds.
    counted_cpu_us: u64,
    /// True if a process watched files by epoll at the last count. The number of open descriptors does not bound that
    /// of watches.
    watching: bool,
    /// True if there was so much that the watching processes are stopped during a count, since they add watches faster
    /// than the count.
    is_large: bool,
    /// The validity of the last count. None before the first.
    valid_for: Option<Duration>,
}

impl DescriptorState {
    /// Returns the memory of files watched by epoll, and other uncharged memory of descriptors. Stops counting above
    /// the limit, since counting takes longer the more there is. Counts again before the memory can have grown to
    /// [`REACH_PERCENT`]. `used` is the sandbox's processor time.
    pub(super) fn bytes(&mut self, used: u64, processes: &[ProcessSample], bounds: Bounds) -> u64 {
        let max_units = bounds.memory / WATCH_BYTES;
        let is_busy = self.watching
            || processes
                .iter()
                .any(|sample| descriptors(sample.living) > MANY_DESCRIPTORS);
        let valid_for = if is_busy {
            let room = (max_units / 100 * REACH_PERCENT).saturating_sub(self.bytes / WATCH_BYTES);
            Duration::from_millis(room / (WATCHES_PER_MS * bounds.cores.max(1)))
                .clamp(MIN_CHECK_INTERVAL, MAX_BUSY_INTERVAL)
        } else {
            COUNT_INTERVAL
        };
        self.valid_for = Some(valid_for);
        // The processor time of unreaped children disappears with them. This only makes the next count earlier.
        let due = self.counted.is_none_or(|counted| {
            let has_worked = used.abs_diff(self.counted_cpu_us) >= MIN_CPU_US;
            counted.elapsed() >= if has_worked { valid_for } else { COUNT_INTERVAL }
        });
        if due {
            let is_large = max_units / 8;
            let mut sum = Count {
                max_units,
                each: watch_units(max_units),
                is_large: if self.is_large { 0 } else { is_large },
                found: 0,
                pipe_ends: 0,
                notifiers: 0,
                reports: 0,
                epolls: Vec::new(),
                channel: bounds.channel.map(socket_link),
            };
            for sample in processes {
                sum.add_process(sample.living);
            }
            sum.found += sum.notifiers.saturating_sub(FREE_INSTANCES) * instance_bytes() / WATCH_BYTES;
            sum.found += sum.reports.saturating_sub(FREE_REPORTS) * (max_units / REPORT_DIVISOR);
            sum.found += sum.pipe_ends.saturating_mul(PIPE_END_BYTES).min(MAX_PIPE_BYTES) / WATCH_BYTES;
            sum.add_watched();
            self.bytes = sum.found.saturating_mul(WATCH_BYTES);
            self.watching = !sum.epolls.is_empty();
            self.is_large = sum.found > is_large;
            self.counted = Some(Instant::now());
            self.counted_cpu_us = used;
        }
        self.bytes
    }

    /// Returns the validity of a count.
    pub(super) fn valid_for(&self) -> Duration {
        self.valid_for.unwrap_or(COUNT_INTERVAL)
    }

    /// Discards the last count after a kill.
    pub(super) fn discard(&mut self) {
        self.bytes = 0;
        self.counted = None;
    }
}

/// A running count over several processes, in units of [`WATCH_BYTES`].
struct Count {
    /// The count stops above this.
    max_units: u64,
    /// The charge for a watched file.
    each: u64,
    /// Above this, the watching processes are stopped.
    is_large: u64,
    found: u64,
    pipe_ends: u64,
    /// The number of open inotify descriptors.
    notifiers: u64,
    /// The number of open reports about descriptors.
    reports: u64,
    /// The epoll instances: process and descriptor number.
    epolls: Vec<(Pid, u32)>,
    /// A socket that does not belong to the sandbox.
    channel: Option<String>,
}

impl Count {
    /// Adds the uncharged memory of a process's descriptors, without its epoll watches.
    fn add_process(&mut self, pid: Pid) {
        let entries = std::fs::read_dir(format!("{}/proc/{}/fd", paths::host(), pid.as_raw_nonzero()))
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_PROCESSES);
        for entry in entries {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            match target.as_os_str().as_bytes() {
                name if name == EPOLL_LINK.as_bytes() => self.epolls.push((pid, number)),
                name if self.channel.as_ref().is_some_and(|channel| name == channel.as_bytes()) => {}
                name if name.starts_with(b"socket:") => {
                    let text = std::fs::read_to_string(report_path(pid, number)).unwrap_or_default();
                    self.found += number_of(&text, "scm_fds:") * IN_FLIGHT_BYTES / WATCH_BYTES;
                }
                name if name.starts_with(b"pipe:") => self.pipe_ends += 1,
                name if INOTIFY_LINKS.iter().any(|known| name == known.as_bytes()) => self.notifiers += 1,
                name if is_report_of_descriptor(name) => self.reports += 1,
                name if name.starts_with(b"/proc/") => self.found += REPORT_BYTES / WATCH_BYTES,
                _ => {}
            }
        }
    }

    /// Adds epoll watches until the maximum is exceeded. Each further report costs the kernel the time to generate all
    /// of it.
    fn add_watched(&mut self) {
        let mut held = None;
        for (pid, number) in self.epolls.clone() {
            if self.found > self.max_units {
                break;
            }
            if held.is_none() && self.found >= self.is_large {
                held = Some(self.stop_watching_processes());
            }
            if let Ok(file) = File::open(report_path(pid, number)) {
                self.add_report(file);
            }
        }
        for pid in held.into_iter().flatten() {
            let _ = kill_process(pid, Signal::CONT);
        }
    }

    /// Stops all processes that watch, and returns them.
    fn stop_watching_processes(&self) -> Vec<Pid> {
        let mut watching: Vec<Pid> = self.epolls.iter().map(|(pid, _)| *pid).collect();
        watching.dedup();
        watching.retain(|pid| !is_stopped(*pid) && kill_process(*pid, Signal::STOP).is_ok());
        watching
    }

    fn add_report(&mut self, report: impl Read) {
        each_line(report, |line| {
            if line.starts_with(b"tfd:") {
                self.found += self.each;
            }
            self.found <= self.max_units
        });
    }
}

/// Returns the charge for a watched file, in units of [`WATCH_BYTES`], if a sandbox may have `max_units` of these. If a
/// user may watch few files, a sandbox reaches its share before its memory limit.
fn watch_units(max_units: u64) -> u64 {
    static MOST_OF_USER: OnceLock<u64> = OnceLock::new();
    let of_user = MOST_OF_USER.get_or_init(|| {
        let text = small_file(&format!("{}/proc/sys/fs/epoll/max_user_watches", paths::host()));
        text.trim().parse().unwrap_or(u64::MAX)
    });
    max_units.div_ceil((of_user / WATCH_DIVISOR).max(1)).max(1)
}

/// Returns true for the path of a descriptor's report: `/proc/PID/fdinfo/NUMBER`, or a thread's.
fn is_report_of_descriptor(name: &[u8]) -> bool {
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').collect();
    matches!(parts.as_slice(), [b"", b"proc", .., b"fdinfo", _])
}

/// Returns the maximum memory of the events of one inotify instance, in bytes.
fn instance_bytes() -> u64 {
    static MAX_QUEUED_EVENTS: OnceLock<u64> = OnceLock::new();
    let events = MAX_QUEUED_EVENTS.get_or_init(|| {
        let text = small_file(&format!("{}/proc/sys/fs/inotify/max_queued_events", paths::host()));
        text.trim().parse().unwrap_or(16_384)
    });
    events.saturating_mul(EVENT_BYTES)
}

/// Returns the link target of this socket's descriptors.
pub(super) fn socket_link(number: u64) -> String {
    format!("socket:[{number}]")
}

/// Returns the path of the kernel's report about a descriptor.
pub(super) fn report_path(pid: Pid, number: u32) -> String {
    format!("{}/proc/{}/fdinfo/{number}", paths::host(), pid.as_raw_nonzero())
}

/// Calls `more` with the beginning of each line until it returns false. Keeps no long text.
fn each_line(file: impl Read, mut more: impl FnMut(&[u8]) -> bool) {
    let mut lines = BufReader::with_capacity(16 << 10, file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) && more(&line) {
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use rustix::fs::fstat;

    use super::*;
    use crate::wire::{pair, send};

    #[test]
    fn descriptors_in_transit_count_except_those_sent_to_workers() {
        paths::host_is_as_it_is();
        let (ours, theirs) = pair().unwrap();
        let (own, other) = (fstat(&theirs).unwrap().st_ino, fstat(&ours).unwrap().st_ino);
        for _ in 0..3 {
            send(ours.as_fd(), &"enter", &[ours.as_fd(); 8]).unwrap();
        }
        // A program with no other descriptors.
        let mut sleep = std::process::Command::new("sleep");
        let mut worker = sleep.arg("60").stdin(theirs).stdout(Stdio::null()).spawn().unwrap();
        let found = |channel: Option<u64>| {
            let mut count = Count {
                max_units: u64::MAX,
                each: 1,
                is_large: u64::MAX,
                found: 0,
                pipe_ends: 0,
                notifiers: 0,
                reports: 0,
                epolls: Vec::new(),
                channel: channel.map(socket_link),
            };
            count.add_process(Pid::from_child(&worker));
            count.found * WATCH_BYTES
        };
        let counts = [None, Some(other), Some(own)].map(found);
        worker.kill().unwrap();
        worker.wait().unwrap();
        assert_eq!(counts, [24 * IN_FLIGHT_BYTES, 24 * IN_FLIGHT_BYTES, 0]);
    }

    #[test]
    fn descriptor_reports_are_distinguished_from_others() {
        let is_one = |name: &str| is_report_of_descriptor(name.as_bytes());
        assert!(is_one("/proc/7/fdinfo/3") && is_one("/proc/7/task/9/fdinfo/3 (deleted)"));
        assert!(!is_one("/proc/7/fdinfo") && !is_one("/proc/7/maps") && !is_one("/home/user/fdinfo/3"));
    }

    #[test]
    fn each_end_of_a_pipe_counts_as_half_of_it() {
        paths::host_is_as_it_is();
        let ends = |child: &std::process::Child| {
            let mut count = Count {
                max_units: u64::MAX,
                each: 1,
                is_large: u64::MAX,
                found: 0,
                pipe_ends: 0,
                notifiers: 0,
                reports: 0,
                epolls: Vec::new(),
                channel: None,
            };
            count.add_process(Pid::from_child(child));
            count.pipe_ends
        };
        let start = |output: Stdio| {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").stdin(Stdio::piped()).stdout(output).spawn().unwrap()
        };
        let mut programs = [start(Stdio::null()), start(Stdio::piped())];
        let counts = programs.each_ref().map(ends);
        for program in &mut programs {
            program.kill().unwrap();
            program.wait().unwrap();
        }
        assert_eq!(counts[1] - counts[0], 1, "{counts:?}");
    }
}
