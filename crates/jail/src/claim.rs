//! Folders that belong to a process for as long as it lives: it holds a lock on each.
//!
//! A process id in a name proves nothing to a reader in another PID namespace, where it names somebody else. The lock is
//! kept by the kernel, is the same for every process, mount and control group namespace, and ends with its holder however
//! that ends. Whoever gets the lock knows that the owner is dead.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, fstat, open, stat};
use rustix::io::Errno;

/// The owner of a folder, as its lock tells.
#[derive(Debug)]
pub(crate) enum Owner {
    /// It lives, or nothing can be said.
    Alive,
    /// It has ended. Nobody else judges while this lock is held.
    Dead(OwnedFd),
    /// There is no such folder.
    Absent,
}

fn lock(path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Makes a folder and claims it for this process.
///
/// # Errors
/// What the system said. `Interrupted` when somebody took the folder for a dead owner's before it was locked: another
/// name will do.
pub(crate) fn make(path: &str, mode: u32) -> io::Result<OwnedFd> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?;
    let taken = || io::Error::from(io::ErrorKind::Interrupted);
    let locked = match lock(path) {
        Ok(locked) => locked,
        Err(Errno::NOENT | Errno::WOULDBLOCK) => return Err(taken()),
        Err(error) => {
            let _ = rustix::fs::rmdir(path);
            return Err(error.into());
        }
    };
    // It may have been removed between the two, and the lock be one on nothing.
    match (fstat(&locked), stat(path)) {
        (Ok(held), Ok(there)) if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino) => Ok(locked),
        _ => Err(taken()),
    }
}

/// Looks whether the owner of a claimed folder lives.
pub(crate) fn owner(path: &str) -> Owner {
    match lock(path) {
        Ok(locked) => Owner::Dead(locked),
        Err(Errno::NOENT) => Owner::Absent,
        Err(_) => Owner::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_dead_once_its_lock_is_gone() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("owned").to_str().unwrap().to_owned();
        assert!(matches!(owner(&path), Owner::Absent));
        let held = make(&path, 0o755).unwrap();
        assert!(matches!(owner(&path), Owner::Alive));
        drop(held);
        let judged = owner(&path);
        assert!(matches!(judged, Owner::Dead(_)));
        assert!(matches!(owner(&path), Owner::Alive), "two sweep at once");
    }

    #[test]
    fn what_cannot_be_locked_is_taken_for_alive() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("link").to_str().unwrap().to_owned();
        std::os::unix::fs::symlink(tree.path(), &path).unwrap();
        assert!(matches!(owner(&path), Owner::Alive));
        make(&path, 0o755).unwrap_err();
    }
}
