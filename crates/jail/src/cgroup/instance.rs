//! Identifies a launcher among all that create cgroups in the same folder, and removes the groups of dead launchers.
//!
//! Launchers in different PID namespaces can share a cgroup folder: two containers, or a server in a container and a
//! command on the host. So a group's name tells only which launcher owns it. The launcher proves that it is alive by a
//! lock on an empty group of that name (see [`claim`]). Version 1 launchers may share the folder of one controller and
//! not of another, so there is one such group for each.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::{FOLDER_PREFIX, Groups, pids_in};
use crate::claim;

/// The number of names tried if another launcher's sweep removes one before it is locked.
const MAX_CLAIM_ATTEMPTS: u32 = 3;

/// This launcher's identity.
#[derive(Debug)]
pub struct Instance {
    name: String,
    claimed: Vec<(String, OwnedFd)>,
}

impl Instance {
    /// Claims an identity in these folders.
    ///
    /// # Errors
    /// The system's error. Nothing remains.
    pub(super) fn claim(groups: &Groups) -> io::Result<Self> {
        let mut attempts = MAX_CLAIM_ATTEMPTS;
        loop {
            attempts -= 1;
            match Self::attempt(groups) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted && attempts > 0 => {}
                other => return other,
            }
        }
    }

    fn attempt(groups: &Groups) -> io::Result<Self> {
        let mut random = [0_u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let mut instance = Self {
            // The process id is for people who look at the folders.
            name: format!(
                "{FOLDER_PREFIX}{}-r{:016x}",
                std::process::id(),
                u64::from_le_bytes(random)
            ),
            claimed: Vec::new(),
        };
        for folder in groups.folders() {
            let path = format!("{folder}/{}", instance.name);
            match claim::make(&path, 0o755) {
                Ok(lock) => instance.claimed.push((path, lock)),
                Err(error) => {
                    instance.remove();
                    return Err(error);
                }
            }
        }
        Ok(instance)
    }

    /// Returns the name of one of its groups.
    #[must_use]
    pub fn group(&self, which: &str) -> String {
        format!("{}-{which}", self.name)
    }

    /// Removes the identity, after its groups are removed. Not done on drop, since forks of the launcher have a copy.
    pub(crate) fn remove(self) {
        for (path, _lock) in &self.claimed {
            let _ = rustix::fs::rmdir(path.as_str());
        }
    }
}

/// Returns the launcher that owns a folder, and true if the folder is one of its groups.
fn launcher_of(name: &str) -> Option<(&str, bool)> {
    let rest = name.strip_prefix(FOLDER_PREFIX)?;
    let mut parts = rest.splitn(3, '-');
    let pid = parts.next()?;
    let random = parts.next()?.strip_prefix('r')?;
    let which = parts.next();
    let hex = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hex && pid.parse::<u32>().is_ok()).then_some(())?;
    let length = FOLDER_PREFIX.len() + pid.len() + "-r".len() + random.len();
    Some((name.get(..length)?, which.is_some()))
}

impl Groups {
    /// Removes the groups of dead launchers, and kills all processes in them. Returns the folders that are still busy,
    /// since a killed process takes a moment to end.
    #[must_use]
    pub fn sweep(&self) -> Vec<String> {
        let mut busy = Vec::new();
        for folder in self.folders() {
            let mut launchers: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let Some((launcher, is_group)) = launcher_of(&name) else {
                    continue;
                };
                let groups = launchers.entry(launcher.to_owned()).or_default();
                if is_group {
                    groups.push(format!("{folder}/{name}"));
                }
            }
            for (launcher, groups) in launchers {
                let claimed = format!("{folder}/{launcher}");
                // A launcher makes its claim before its groups, and removes it after them.
                let judged = claim::owner(&claimed);
                if matches!(judged, claim::Owner::Alive) {
                    continue;
                }
                busy.extend(groups.into_iter().filter(|group| !end(group)));
                let _ = rustix::fs::rmdir(claimed.as_str());
            }
        }
        busy
    }
}

/// Kills the processes in a group, and removes it. Returns false if it is still busy.
fn end(group: &str) -> bool {
    for pid in pids_in(group) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    !matches!(rustix::fs::rmdir(group), Err(Errno::BUSY))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Makes a folder that looks like a cgroup folder without the kernel's files.
    fn parent() -> (tempfile::TempDir, Groups) {
        let tree = tempfile::tempdir().unwrap();
        let folder = tree.path().to_str().unwrap().to_owned();
        (tree, Groups::V2 { folder })
    }

    #[test]
    fn the_name_of_a_cgroup_identifies_its_owner() {
        let launcher = "sandcell-12-r00ff00ff00ff00ff";
        assert_eq!(launcher_of(launcher), Some((launcher, false)));
        for which in ["7", "probe"] {
            assert_eq!(launcher_of(&format!("{launcher}-{which}")), Some((launcher, true)));
        }
        for other in [
            "sandcell-server",
            "sandcell-12-345-6",
            "sandcell-x-r00ff00ff00ff00ff-1",
            "sandcell-12-r00ff-1",
            "docker-12-r00ff00ff00ff00ff-1",
        ] {
            assert_eq!(launcher_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_cgroups_of_a_live_launcher_are_not_removed() {
        let (_tree, groups) = parent();
        let instance = Instance::claim(&groups).unwrap();
        let group = groups.make(&instance.group("1")).unwrap();
        assert_eq!(groups.sweep(), Vec::<String>::new());
        let folder = group.folders().next().unwrap();
        assert!(Path::new(&folder).exists(), "an empty group of a living launcher");
        instance.remove();
        assert_eq!(groups.sweep(), Vec::<String>::new());
        assert!(!Path::new(&folder).exists(), "a group of a dead launcher");
    }

    #[test]
    fn the_claim_of_a_dead_launcher_is_removed_with_its_cgroups() {
        let (tree, groups) = parent();
        let instance = Instance::claim(&groups).unwrap();
        drop(groups.make(&instance.group("1")).unwrap());
        // The kernel releases its locks when it is killed. Its folders stay.
        drop(instance);
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 2);
        assert_eq!(groups.sweep(), Vec::<String>::new());
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_of_other_names_are_left_alone() {
        let (tree, groups) = parent();
        for name in ["sandcell-server", "sandcell-12-345-6", "user.slice"] {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        assert_eq!(groups.sweep(), Vec::<String>::new());
        assert_eq!(std::fs::read_dir(tree.path()).unwrap().count(), 3);
    }
}
