//! Descriptors of a sandbox without a control group: what they hold of the kernel's memory is charged to nobody.

use std::ffi::OsStr;
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
/// Descriptors of a process that are not looked at.
const FEW: u64 = 8;
/// How often they are counted, which is dear, in sandboxes that could have many.
const EVERY: Duration = Duration::from_millis(500);
/// The same at the most where a process has so many descriptors that it could have very many.
const SOON: Duration = Duration::from_millis(50);
const MANY: u64 = 256;
/// How many watches one core adds in a millisecond.
const RATE: u64 = 2000;

/// What is known of a sandbox's descriptors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    bytes: u64,
    counted: Option<Instant>,
    /// How long a count holds.
    pub(super) holds: Duration,
}

impl Held {
    /// What files watched by epoll hold, and what else descriptors hold that is charged to nobody. More than the limit is not
    /// counted to its end: that takes the longer the more there is. It is counted again before it can have grown to
    /// [`REACH`].
    pub(super) fn bytes(&mut self, processes: &[Seen], bounds: Bounds) -> u64 {
        let most = bounds.memory / WATCH;
        let many = processes.iter().any(|seen| descriptors(seen.living) > MANY);
        self.holds = if many {
            let room = (most / 100 * REACH).saturating_sub(self.bytes / WATCH);
            Duration::from_millis(room / (RATE * bounds.cores.max(1))).clamp(SHORTEST, SOON)
        } else {
            EVERY
        };
        if self.counted.is_none_or(|counted| counted.elapsed() >= self.holds) {
            let mut watches = 0_u64;
            for seen in processes {
                watches = watches.saturating_add(watches_of(seen.living, most.saturating_sub(watches)));
            }
            self.bytes = watches.saturating_mul(WATCH);
            self.counted = Some(Instant::now());
        }
        self.bytes
    }
}

/// How many files a process watches by epoll, in units of [`WATCH`] and together with what else its descriptors hold
/// that is charged to nobody; counted until there are more than `most`. One that could have more than `most` watches
/// stands still meanwhile: it is faster than whoever counts.
fn watches_of(pid: Pid, most: u64) -> u64 {
    let open = descriptors(pid);
    if open <= FEW {
        return 0;
    }
    let proc = format!("{}/proc/{}", place::host(), pid.as_raw_nonzero());
    let entries = std::fs::read_dir(format!("{proc}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .take(MOST);
    let info = |name: &OsStr| std::fs::read_to_string(format!("{proc}/fdinfo/{}", name.display())).unwrap_or_default();
    let (mut epolls, mut watches) = (Vec::new(), 0_u64);
    for entry in entries {
        match std::fs::read_link(entry.path()).unwrap_or_default() {
            target if target.as_os_str() == EPOLL => epolls.push(entry.file_name()),
            target if target.as_os_str().as_bytes().starts_with(b"socket:") => {
                watches += number_of(&info(&entry.file_name()), "scm_fds:") * ON_THE_WAY / WATCH;
            }
            target if target.is_absolute() && is_of_proc(&entry.path()) => watches += REPORT / WATCH,
            _ => {}
        }
    }
    let could = u64::try_from(epolls.len()).unwrap_or(u64::MAX).saturating_mul(open);
    let held = could > most && !is_stopped(pid) && kill_process(pid, Signal::STOP).is_ok();
    for name in epolls {
        if watches > most {
            break;
        }
        let info = info(&name);
        let lines = info.lines().map(|line| match line {
            line if line.starts_with("tfd:") => 1,
            line if line.starts_with("lock:") => locks::LOCK / WATCH,
            _ => 0,
        });
        watches = watches.saturating_add(lines.sum());
    }
    if held {
        let _ = kill_process(pid, Signal::CONT);
    }
    watches
}

fn is_of_proc(descriptor: &Path) -> bool {
    const PROC: u64 = 0x9fa0;
    rustix::fs::statfs(descriptor).is_ok_and(|found| u64::try_from(found.f_type) == Ok(PROC))
}

pub(super) fn is_epoll(descriptor: &Path) -> bool {
    std::fs::read_link(descriptor).is_ok_and(|target| target.as_os_str() == EPOLL)
}
