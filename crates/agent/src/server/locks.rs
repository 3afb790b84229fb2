//! File locks of a container's processes: memory of the kernel's that no control group counts.
//!
//! They are read from what the kernel tells of open files. A process that has closed itself to others of its user is not
//! seen; then only the time that locking takes holds it.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::process_table;

/// What one lock counts as, in bytes. It takes a twentieth of that; but counting very many would be dear.
const LOCK: u64 = 4096;
/// How often they are counted at the most, and without so much processor time since then there cannot be many more.
const EVERY: Duration = Duration::from_millis(500);
const WORK_US: u64 = 100_000;
/// Open files of one process that are looked at: as many as it may have.
const FILES: usize = 4096;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Locks {
    counted: Option<Instant>,
    /// The processor time that the container had used then, in microseconds.
    at: u64,
    bytes: u64,
    holder: Option<Pid>,
}

impl Locks {
    /// What all of them count as, at most half a second old, and who has most. `used` is the processor time used so far.
    pub(super) fn count(&mut self, used: impl FnOnce() -> u64) -> (u64, Option<Pid>) {
        if self.counted.is_none_or(|counted| counted.elapsed() > EVERY) {
            self.counted = Some(Instant::now());
            let used = used();
            if used.abs_diff(self.at) >= WORK_US {
                self.at = used;
                self.read();
            }
        }
        (self.bytes, self.holder)
    }

    /// Somebody was ended; whose locks those were is seen at the next count.
    pub(super) fn forget(&mut self) {
        *self = Self {
            counted: self.counted,
            ..Self::default()
        };
    }

    fn read(&mut self) {
        (self.bytes, self.holder) = (0, None);
        let Ok(table) = process_table::read() else { return };
        let mut most = 0;
        let living = table.entries.iter().filter(|entry| !entry.is_dead());
        for pid in living.filter_map(|entry| entry.id()) {
            let own = of(pid);
            self.bytes = self.bytes.saturating_add(own);
            if own > most {
                most = own;
                self.holder = Some(pid);
            }
        }
    }
}

fn of(pid: Pid) -> u64 {
    let folder = std::fs::read_dir(format!("/proc/{}/fdinfo", pid.as_raw_nonzero()));
    let entries = folder.into_iter().flatten().flatten().take(FILES);
    let files = entries.filter_map(|entry| File::open(entry.path()).ok());
    files
        .map(|file| lines(file).saturating_mul(LOCK))
        .fold(0, u64::saturating_add)
}

/// The lines about locks in what the kernel tells of an open file.
fn lines(mut file: impl Read) -> u64 {
    const WORD: &[u8] = b"\nlock:";
    let mut buffer = [0; 16 << 10];
    // What the last piece ended with may be the beginning of the word.
    let (mut kept, mut found) = (0, 0_u64);
    while let Ok(read) = file.read(buffer.get_mut(kept..).unwrap_or_default()) {
        if read == 0 {
            break;
        }
        let filled = kept + read;
        let text = buffer.get(..filled).unwrap_or_default();
        let seen = text.windows(WORD.len()).filter(|window| *window == WORD).count();
        found = found.saturating_add(u64::try_from(seen).unwrap_or(u64::MAX));
        kept = filled.min(WORD.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_of_a_process_are_counted() {
        let own = rustix::process::getpid();
        let before = of(own);
        let file = rustix::fs::memfd_create("locked", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(of(own), before + LOCK);
        let many = "lock:\t1: POSIX  ADVISORY  WRITE 7 00:2a:13 0 0\n".repeat(5000);
        assert_eq!(lines(format!("pos:\t0\n{many}").as_bytes()), 5000);
    }
}
