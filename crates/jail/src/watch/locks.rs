//! File locks: memory of the kernel's that is charged to nobody.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::files::within_part;
use super::{MOST, place};

/// What one lock counts as, in bytes. It takes a twentieth of that; but counting very many would be dear.
pub(super) const LOCK: u64 = 4096;
/// How often they are counted at the most.
const EVERY: Duration = Duration::from_millis(500);
/// The same for locks of epoll instances: all of them are in one list, so they grow slowly, and asking is dear.
const EPOLL_EVERY: Duration = Duration::from_secs(20);
/// Without so much processor time since the last count there cannot be many more, in microseconds.
const WORK: u64 = 100_000;

/// What is known of a sandbox's locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    bytes: u64,
    counted: Option<Instant>,
    /// Those of epoll instances, and when they were counted; not where they are counted with what is watched.
    in_epoll: (u64, Option<Instant>),
    /// The processor time that the sandbox had used then, in microseconds.
    at: u64,
}

impl Locks {
    /// What they count as, at most half a second old. `used` is the processor time that the sandbox has used.
    pub(super) fn bytes(&mut self, used: u64, processes: impl Fn() -> Vec<Pid>) -> u64 {
        if self.count(used, || within_part(processes()).map(besides_epoll).sum())
            && self.in_epoll.1.is_none_or(|counted| counted.elapsed() > EPOLL_EVERY)
        {
            let all: u64 = within_part(processes()).map(of).sum();
            self.in_epoll = (all.saturating_sub(self.bytes), Some(Instant::now()));
        }
        self.bytes + self.in_epoll.0
    }

    /// The same without those of epoll instances, if there are many descriptors.
    pub(super) fn bytes_besides_epoll(&mut self, used: u64, processes: impl Fn() -> Vec<Pid>) -> u64 {
        self.count(used, || within_part(processes()).map(besides_epoll).sum());
        self.bytes
    }

    fn count(&mut self, used: u64, count: impl FnOnce() -> u64) -> bool {
        let due = self.counted.is_none_or(|counted| counted.elapsed() > EVERY) && used.abs_diff(self.at) >= WORK;
        if due {
            self.at = used;
            self.counted = Some(Instant::now());
            self.bytes = count();
        }
        due
    }

    /// Somebody was ended; whose locks those were is seen at the next count.
    pub(super) fn forget(&mut self) {
        self.bytes = 0;
        self.in_epoll = (0, None);
        self.at = 0;
    }

    /// Whether there is anything to tell processes apart by.
    pub(super) const fn any(&self) -> bool {
        self.bytes + self.in_epoll.0 > 0
    }
}

/// What the locks of one process count as: those of the files that it has open.
pub(super) fn of(pid: Pid) -> u64 {
    of_those(pid, |_| true)
}

/// The same where what an epoll instance holds is counted with what it watches, which is dear to ask for.
pub(super) fn besides_epoll(pid: Pid) -> u64 {
    if super::descriptors(pid) <= super::FREE {
        return of(pid);
    }
    let folder = format!("{}/proc/{}/fd", place::host(), pid.as_raw_nonzero());
    of_those(pid, |name| !super::held::is_epoll(&Path::new(&folder).join(name)))
}

fn of_those(pid: Pid, counts: impl Fn(&OsStr) -> bool) -> u64 {
    let folder = format!("{}/proc/{}/fdinfo", place::host(), pid.as_raw_nonzero());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let entries = entries.filter(|entry| counts(&entry.file_name()));
    let files = entries.filter_map(|entry| File::open(entry.path()).ok());
    files.map(|file| lines(file) * LOCK).sum()
}

/// The lines about locks in what the kernel tells of a descriptor.
fn lines(mut file: impl Read) -> u64 {
    const WORD: &[u8] = b"\nlock:";
    const WATCHED: &[u8] = b"\ntfd:";
    let mut buffer = [0; 16 << 10];
    // What the last piece ended with may be the beginning of the word.
    let (mut kept, mut found) = (0, 0);
    while let Ok(read) = file.read(buffer.get_mut(kept..).unwrap_or_default()) {
        if read == 0 {
            break;
        }
        let filled = kept + read;
        let text = buffer.get(..filled).unwrap_or_default();
        found += text.windows(WORD.len()).filter(|window| *window == WORD).count();
        // What an epoll instance watches comes after its locks, and can be very much.
        if text.windows(WATCHED.len()).any(|window| window == WATCHED) {
            break;
        }
        kept = filled.min(WORD.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
    u64::try_from(found).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_is_counted_wherever_a_piece_ends() {
        let text = format!(
            "pos:\t0\nflags:\t02\n{}",
            "lock:\t1: POSIX  ADVISORY  WRITE 7 00:2a:13 0 0\n".repeat(5000)
        );
        assert_eq!(lines(text.as_bytes()), 5000);
        struct Dribble<'a>(&'a [u8]);
        impl Read for Dribble<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let take = self.0.len().min(7).min(buffer.len());
                let (now, later) = self.0.split_at(take);
                buffer[..take].copy_from_slice(now);
                self.0 = later;
                Ok(take)
            }
        }
        assert_eq!(lines(Dribble(text.as_bytes())), 5000);
        assert_eq!(lines(&b"pos:\t0\n"[..]), 0);
    }

    #[test]
    fn the_kernel_tells_of_a_lock_as_expected() {
        use std::os::fd::AsRawFd;
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::empty()).unwrap();
        let told = || File::open(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
        assert_eq!(lines(told()), 0);
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(lines(told()), 1);
    }
}
