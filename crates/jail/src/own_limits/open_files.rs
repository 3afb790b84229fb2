//! The number of files that this process has open, and its limit. Every sandbox needs several in the server and in the
//! launcher.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest limit that is requested, even if the kernel allows more.
const MAX_REQUESTED_FILES: u64 = 1 << 20;

/// The limits of open files of this process. None means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The maximum to which a process may raise it.
    pub hard: Option<u64>,
}

impl OpenFiles {
    /// Returns the current limits.
    #[must_use]
    pub fn now() -> Self {
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current,
            hard: limit.maximum,
        }
    }

    /// Raises both limits as far as the system allows. Raises the soft limit to the hard one. If this process may raise
    /// the hard limit too, raises both to the kernel's maximum (`fs.nr_open`). Returns the limits then in force.
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
        let more = most.min(MAX_REQUESTED_FILES);
        let raised = before.hard.is_some_and(|hard| hard < more) && set(Some(more));
        if !raised && before.soft != before.hard {
            set(before.hard);
        }
        Self::now()
    }

    /// Returns the limit in force as a number.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.soft.unwrap_or(MAX_REQUESTED_FILES)
    }
}

/// Returns the number of descriptors in a folder of descriptors (`/proc/self/fd`, or its path elsewhere).
///
/// # Errors
/// The folder cannot be read.
pub fn count(folder: &str) -> io::Result<u64> {
    // Linux 6.2 and later report the number as the folder's size.
    let size = rustix::fs::stat(folder)?.st_size;
    if let Ok(size @ 1..) = u64::try_from(size) {
        return Ok(size);
    }
    let entries = std::fs::read_dir(folder)?.count();
    // The descriptor of the folder itself is in the list.
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
