//! How many files this process may have open, and has. Every sandbox takes a few in the server and in the launcher.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More is not asked for, whatever the kernel would give.
const ENOUGH: u64 = 1 << 20;

/// The limits of open files of this process. None: there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// In force.
    pub soft: Option<u64>,
    /// What anybody may raise it to.
    pub hard: Option<u64>,
}

impl OpenFiles {
    /// As they are now.
    #[must_use]
    pub fn now() -> Self {
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current,
            hard: limit.maximum,
        }
    }

    /// Raises both as far as the system allows: the soft limit to the hard one, and where this process may raise that, too, to what the
    /// kernel gives one process (`fs.nr_open`). Returns the limits then in force.
    pub fn raise() -> Self {
        let before = Self::now();
        let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
        let most = most.and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64);
        let set = |limit: Option<u64>| {
            let limit = Rlimit {
                current: limit,
                maximum: limit,
            };
            setrlimit(Resource::Nofile, limit).is_ok()
        };
        let more = most.min(ENOUGH);
        let raised = before.hard.is_some_and(|hard| hard < more) && set(Some(more));
        if !raised && before.soft != before.hard {
            set(before.hard);
        }
        Self::now()
    }

    /// The limit in force as a number.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.soft.unwrap_or(ENOUGH)
    }
}

/// How many descriptors this process has, by its folder of them (`/proc/self/fd`, or where that is).
///
/// # Errors
/// The folder cannot be read.
pub fn count(folder: &str) -> io::Result<u64> {
    // Linux 6.2 and later tell it as the folder's size.
    let size = rustix::fs::stat(folder)?.st_size;
    if let Ok(size @ 1..) = u64::try_from(size) {
        return Ok(size);
    }
    let entries = std::fs::read_dir(folder)?.count();
    // The folder itself was open.
    Ok(u64::try_from(entries.saturating_sub(1)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_descriptors_are_counted() {
        let before = count("/proc/self/fd").unwrap();
        let held: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open and close files meanwhile.
        let after = count("/proc/self/fd").unwrap();
        assert!(after + 20 > before + 50, "{before} and then {after}");
        drop(held);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let raised = OpenFiles::raise();
        assert_eq!(raised.soft, raised.hard);
    }
}
