//! The private folders of sandboxes without namespaces: the launcher makes their parent, a subreaper makes and removes
//! the folder of its sandbox.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::Mode;

use super::tree_walk;
use crate::claim;

/// The folder in which private folders are made.
const FOLDERS_PARENT: &str = "/tmp";
const FOLDER_PREFIX: &str = "sandcell-";

/// This launcher's folder for private files. Its lock tells later launchers that it is in use.
pub(in crate::launcher) struct PrivateFolders {
    pub(in crate::launcher) folder: String,
    _lock: OwnedFd,
}

impl PrivateFolders {
    /// Makes the folder, and removes the folders of dead launchers.
    pub(in crate::launcher) fn make(root: bool) -> io::Result<Self> {
        sweep();
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = format!("{FOLDERS_PARENT}/{FOLDER_PREFIX}{name}");
        let lock = claim::make(&folder, 0o700)?;
        if root {
            // Sandboxes have different ids. They must reach their folders, which are closed to each other.
            rustix::fs::chmod(folder.as_str(), Mode::from_raw_mode(0o711))?;
        }
        Ok(Self { folder, _lock: lock })
    }

    /// Returns the private folder of the sandbox whose spare has this process id.
    pub(in crate::launcher) fn folder_of(&self, spare: u32) -> String {
        format!("{}/{spare}", self.folder)
    }

    /// Removes everything.
    pub(in crate::launcher) fn remove(&self) {
        tree_walk::remove(&self.folder);
    }
}

/// Removes the folders of dead launchers, whose lock is free.
fn sweep() {
    let me = rustix::process::geteuid();
    let Ok(entries) = std::fs::read_dir(FOLDERS_PARENT) else {
        return;
    };
    for entry in entries.flatten().take(4096) {
        let name = entry.file_name();
        let Some(random) = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX)) else {
            continue;
        };
        if random.len() != 16 || !random.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let path = format!("{FOLDERS_PARENT}/{FOLDER_PREFIX}{random}");
        if let claim::Owner::Dead(lock) = claim::owner(&path)
            && rustix::fs::fstat(&lock).is_ok_and(|status| status.st_uid == me.as_raw())
        {
            tree_walk::remove(&path);
        }
    }
}
