//! Drops folders of a search path whose file system does not answer: looking into one could block forever.
//!
//! Only hosts with a network or user-space file system can have such folders. There a thread looks first, and is
//! abandoned if it gets no answer.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::stand_ins::{self, Found};

/// The time in which a folder must answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// The first letters of the types of file systems that depend on another machine or program.
const MAY_WAIT: [&str; 18] = [
    "9p",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "gfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "ocfs",
    "orangefs",
    "smb",
    "virtiofs",
];

/// Folders that did not answer. They are not tried again.
static SILENT_FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Returns the folders that answer, in the same order. Logs each of the others once.
#[must_use]
pub fn answering(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !mounts.lines().any(may_wait) {
        return folders;
    }
    answering_within(folders, ANSWER_DEADLINE, |folder| {
        // The folder may be a link to such a file system.
        let _ = folder.canonicalize();
    })
}

/// Returns the folders of a search path that contain a program of this name. A version manager's shim is replaced by
/// the folder of the program that it would start.
#[must_use]
pub fn with_program(folders: Vec<PathBuf>, name: &str) -> Vec<PathBuf> {
    let real = |folder: PathBuf| match stand_ins::follow(&folder, name, |name| std::env::var(name).ok()) {
        Found::Program => Some(folder),
        Found::StandsFor(program) => program.parent().map(Path::to_owned),
        Found::Nothing => None,
    };
    let absolute = folders.into_iter().filter(|folder| folder.is_absolute());
    absolute.filter_map(real).collect()
}

/// Returns true if the file system of this mount may block its callers.
fn may_wait(mount: &str) -> bool {
    let source = mount.split_once(" - ").map(|(_, source)| source);
    let kind = source.and_then(|source| source.split(' ').next()).unwrap_or_default();
    kind != "fusectl" && MAY_WAIT.iter().any(|name| kind.starts_with(name))
}

fn answering_within(folders: Vec<PathBuf>, deadline: Duration, look: fn(&Path)) -> Vec<PathBuf> {
    let mut silent = SILENT_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut answers = Vec::new();
    let known: Vec<PathBuf> = folders.into_iter().filter(|folder| !silent.contains(folder)).collect();
    let mut left = known.into_iter();
    loop {
        let pending: Vec<PathBuf> = left.collect();
        if pending.is_empty() {
            return answers;
        }
        let (sender, receiver) = channel();
        let looked_at = pending.clone();
        let thread = std::thread::Builder::new().name("search path".to_owned());
        let started = thread.spawn(move || {
            for folder in looked_at {
                look(&folder);
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
        left = pending.into_iter();
        // Without a thread no check is possible, so the rest of the folders is accepted.
        if started.is_err() {
            answers.extend(left);
            return answers;
        }
        for folder in left.by_ref() {
            if receiver.recv_timeout(deadline).is_err() {
                tracing::warn!(
                    "nothing is looked for in {}: its file system does not answer",
                    folder.display()
                );
                silent.push(folder);
                break;
            }
            answers.push(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresponsive_folders_are_skipped_and_the_order_is_kept() {
        let folders = ["/a", "/silent/1", "/b", "/silent/2"].map(PathBuf::from).to_vec();
        let look = |folder: &Path| {
            if folder.starts_with("/silent") {
                std::thread::sleep(Duration::from_secs(3600));
            }
        };
        let found = answering_within(folders.clone(), Duration::from_millis(500), look);
        assert_eq!(found, ["/a", "/b"].map(PathBuf::from));
        // The second call skips the known silent folders.
        let found = answering_within(folders, Duration::from_secs(3600), look);
        assert_eq!(found, ["/a", "/b"].map(PathBuf::from));
        assert_eq!(answering(vec!["/usr".into()]), [PathBuf::from("/usr")]);
    }

    #[test]
    fn only_network_and_fuse_file_systems_get_a_deadline() {
        assert!(may_wait("36 35 0:42 / /home rw - nfs4 server:/home rw"));
        assert!(may_wait("36 35 0:42 / /mnt rw - fuse.sshfs host: rw"));
        assert!(!may_wait("36 35 8:1 / / rw - ext4 /dev/sda1 rw"));
        assert!(!may_wait(
            "36 35 0:42 / /sys/fs/fuse/connections rw - fusectl fusectl rw"
        ));
    }
}
