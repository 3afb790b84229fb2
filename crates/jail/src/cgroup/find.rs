//! Finds a folder in which this process may create cgroups.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{Groups, Instance, field_of, pids_in, read};
use crate::kernel_files::write_once;

/// The name of the leaf for the server's processes, if they have to leave a group that gets subgroups.
const SERVER_LEAF: &str = "sandcell-server";
const NEEDED_CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

impl Groups {
    /// Finds a folder in which this process may create groups, and claims an identity there. `host` is the path of the
    /// host's root in this process's view.
    ///
    /// # Errors
    /// The reason why there is no such folder, in words.
    pub fn find(host: &str) -> Result<(Self, Instance), String> {
        let own = read(&format!("{host}/proc/self/cgroup")).map_err(|error| format!("/proc/self/cgroup: {error}"))?;
        let mounts =
            read(&format!("{host}/proc/self/mountinfo")).map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
        let found = Mounts::parse(&mounts, &own, host);
        match found.v1() {
            Ok(groups) => groups.usable(),
            Err(missing) => match found.v2 {
                Some(place) => Ok(Self::V2 {
                    folder: place.settle(host)?,
                })
                .and_then(Self::usable),
                None => Err(format!("control groups v1 lack {missing}, and v2 is not mounted")),
            },
        }
    }
}

/// Returns the number of processes that the kernel killed for memory in this process's memory group, without subgroups.
/// None if the kernel does not count them.
pub(crate) fn own_memory_kills() -> Option<u64> {
    let found = Mounts::of_this_process()?;
    let counted = match (found.folder("memory"), found.v2) {
        (Some(memory), _) => read(&format!("{memory}/memory.oom_control")),
        (None, Some(place)) => read(&format!("{}/memory.events.local", place.own)),
        (None, None) => return None,
    };
    counted.ok().map(|text| field_of(&text, "oom_kill"))
}

/// Returns this process's group for the process count, and all visible groups above it.
pub(crate) fn own_process_groups() -> Vec<String> {
    let Some(found) = Mounts::of_this_process() else {
        return Vec::new();
    };
    let own = found.folder("pids").or(found.v2.map(|place| place.own));
    let folders = own.iter().flat_map(|own| Path::new(own).ancestors());
    let folders = folders.take_while(|folder| folder.join("pids.current").exists());
    folders
        .filter_map(|folder| folder.to_str().map(str::to_owned))
        .collect()
}

/// This process's group of version 2.
#[derive(Debug, PartialEq, Eq)]
struct GroupInTree {
    own: String,
    /// The topmost mounted group: the machine's, or a container's.
    top: String,
}

impl GroupInTree {
    /// Finds a group in which subgroups can be created.
    ///
    /// On version 2 a group with processes cannot pass controllers to subgroups (only the machine's top group can). So
    /// the own group is usable only if all its processes move to a leaf. They are moved if the group was delegated to
    /// us, is a container's top group, has limits (which sandboxes must not escape), or holds only the server's
    /// processes. Processes of others, such as a login shell in the same group, are not ours to move. Otherwise groups
    /// are created in the nearest usable ancestor.
    fn settle(&self, host: &str) -> Result<String, String> {
        let own = self.own.as_str();
        let mut reasons: Vec<(&str, String)> = Vec::new();
        let mut tried = |folder, how| match offer_controllers(folder, how) {
            Ok(()) => true,
            Err(error) => {
                reasons.retain(|(other, _)| *other != folder);
                reasons.push((folder, error.to_string()));
                false
            }
        };
        if tried(own, Offer::AsItIs) {
            return Ok(self.own.clone());
        }
        // An earlier server has made room here, or another one is moving our processes now.
        if own.ends_with(&format!("/{SERVER_LEAF}"))
            && let Some(parent) = self.above(own)
            && tried(parent, Offer::WhenEmpty)
        {
            return Ok(parent.to_owned());
        }
        let stays = |folder: &str| is_limited(folder) || is_delegated(folder);
        let ours = || own == self.top || stays(own) || only_ours(own, host);
        if ours() && tried(own, Offer::OnceLeft) {
            return Ok(self.own.clone());
        }
        let mut inner = own;
        while !stays(inner)
            && let Some(folder) = self.above(inner)
        {
            if tried(folder, Offer::AsItIs) {
                return Ok(folder.to_owned());
            }
            inner = folder;
        }
        let told = |(folder, why): &(&str, String)| format!("{}: {why}", folder.strip_prefix(host).unwrap_or(folder));
        let reasons: Vec<String> = reasons.iter().map(told).collect();
        Err(format!("no delegated control group v2 ({})", reasons.join("; ")))
    }

    /// Returns the parent group, if it is mounted.
    fn above<'a>(&self, folder: &'a str) -> Option<&'a str> {
        if folder == self.top {
            return None;
        }
        Path::new(folder).parent()?.to_str()
    }
}

/// Returns true if systemd has delegated this group to its owner.
fn is_delegated(folder: &str) -> bool {
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(folder, name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Returns true if the group has limits. The process limit does not count, since systemd sets it everywhere.
fn is_limited(folder: &str) -> bool {
    ["memory.max", "memory.high", "cpu.max"]
        .into_iter()
        .any(|name| read(&format!("{folder}/{name}")).is_ok_and(|text| !text.starts_with("max")))
}

/// Returns true if the group holds only the server and its descendants.
fn only_ours(folder: &str, host: &str) -> bool {
    let parent_of = |pid| parent_in(&read(&format!("{host}/proc/{pid}/stat")).ok()?);
    let within = read(&format!("{folder}/cgroup.procs")).ok();
    // This process is the launcher. Its parent is the server.
    let server = parent_of(std::process::id());
    within
        .zip(server)
        .is_some_and(|(within, server)| are_ours(&within, server, parent_of))
}

/// Processes that are invisible from here have the number 0.
fn are_ours(within: &str, server: u32, parent_of: impl Fn(u32) -> Option<u32>) -> bool {
    let above = |pid: u32| std::iter::successors(Some(pid), |pid| parent_of(*pid)).take_while(|pid| *pid > 0);
    within
        .lines()
        .all(|line| line.parse().is_ok_and(|pid| above(pid).any(|pid| pid == server)))
}

fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The way in which a group becomes able to pass on its controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    AsItIs,
    /// Another process is moving its processes to a leaf.
    WhenEmpty,
    /// This process moves its processes to a leaf.
    OnceLeft,
}

fn offer_controllers(folder: &str, how: Offer) -> io::Result<()> {
    // New processes may appear in it meanwhile.
    const MAX_MOVE_ATTEMPTS: u32 = 20;
    const RETRY_INTERVAL: Duration = Duration::from_millis(5);
    let there = read(&format!("{folder}/cgroup.controllers"))?;
    for needed in NEEDED_CONTROLLERS {
        if !there.split_whitespace().any(|name| name == needed) {
            return Err(io::Error::other(format!("controller {needed} is not available")));
        }
    }
    let mut attempts = if how == Offer::AsItIs { 1 } else { MAX_MOVE_ATTEMPTS };
    loop {
        if how == Offer::OnceLeft {
            move_to_leaf(folder)?;
        }
        attempts -= 1;
        match write_once(&format!("{folder}/cgroup.subtree_control"), "+memory +pids +cpu") {
            Err(error) if is(&error, Errno::BUSY) && attempts > 0 => std::thread::sleep(RETRY_INTERVAL),
            other => return other,
        }
    }
}

/// Moves all processes of a group to its leaf.
fn move_to_leaf(folder: &str) -> io::Result<()> {
    let leaf = format!("{folder}/{SERVER_LEAF}");
    match rustix::fs::mkdir(leaf.as_str(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    for pid in pids_in(folder) {
        match write_once(&format!("{leaf}/cgroup.procs"), &pid.as_raw_nonzero().to_string()) {
            // The process has ended meanwhile.
            Err(error) if is(&error, Errno::SRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

/// The content of the mount table and of `/proc/self/cgroup`.
pub(super) struct Mounts {
    /// The controllers and the folder of this process's group, for each version 1 hierarchy.
    v1: Vec<(Vec<String>, String)>,
    /// The topmost mounted group of each hierarchy in `v1`.
    v1_tops: Vec<String>,
    /// This process's group in version 2.
    v2: Option<GroupInTree>,
}

impl Mounts {
    /// Reads them for this process, whose root is the host's.
    fn of_this_process() -> Option<Self> {
        let own = read("/proc/self/cgroup").ok()?;
        Some(Self::parse(&read("/proc/self/mountinfo").ok()?, &own, ""))
    }

    /// Returns this process's version 1 group for a controller.
    fn folder(&self, name: &str) -> Option<String> {
        let has = |(controllers, _): &&(Vec<String>, String)| controllers.iter().any(|controller| controller == name);
        self.v1.iter().find(has).map(|(_, folder)| folder.clone())
    }

    pub(super) fn parse(mountinfo: &str, own: &str, host: &str) -> Self {
        let mut found = Self {
            v1: Vec::new(),
            v1_tops: Vec::new(),
            v2: None,
        };
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let left: Vec<&str> = left.split_whitespace().collect();
            let right: Vec<&str> = right.split_whitespace().collect();
            let (Some(root), Some(place)) = (left.get(3), left.get(4)) else {
                continue;
            };
            // The launcher mounts the host's root at another path.
            let place = if place.starts_with(host) {
                (*place).to_owned()
            } else {
                format!("{host}{place}")
            };
            match right.first() {
                Some(&"cgroup2") => {
                    if let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) {
                        let own = join(&place, root, path);
                        found.v2 = found.v2.or(Some(GroupInTree { own, top: place }));
                    }
                }
                Some(&"cgroup") => {
                    let options: Vec<String> = right
                        .get(2)
                        .map(|text| text.split(',').map(str::to_owned).collect())
                        .unwrap_or_default();
                    let path = own.lines().find_map(|line| {
                        let mut parts = line.splitn(3, ':').skip(1);
                        let names = parts.next()?;
                        let path = parts.next()?;
                        names
                            .split(',')
                            .any(|name| !name.is_empty() && options.iter().any(|o| o == name))
                            .then_some(path)
                    });
                    if let Some(path) = path {
                        found.v1.push((options, join(&place, root, path)));
                        found.v1_tops.push(place);
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Returns this process's version 1 group for this controller, and its version 2 group, each with the topmost
    /// mounted group.
    pub(super) fn own_groups(&self, controller: &str) -> Vec<(&str, &str)> {
        let v1 = self.v1.iter().zip(&self.v1_tops);
        let v1 = v1.filter(|((controllers, _), _)| controllers.iter().any(|name| name == controller));
        let v2 = self.v2.iter().map(|place| (place.own.as_str(), place.top.as_str()));
        v1.map(|((_, folder), top)| (folder.as_str(), top.as_str()))
            .chain(v2)
            .collect()
    }

    fn v1(&self) -> Result<Groups, &'static str> {
        let of = |name: &'static str| self.folder(name).ok_or(name);
        Ok(Groups::V1 {
            memory: of("memory")?,
            pids: of("pids")?,
            cpu: of("cpu")?,
            cpuacct: of("cpuacct")?,
        })
    }
}

fn join(place: &str, root: &str, path: &str) -> String {
    let path = if root == "/" {
        path
    } else {
        path.strip_prefix(root).unwrap_or("")
    };
    format!("{place}/{}", path.trim_start_matches('/'))
        .trim_end_matches('/')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_MOUNTS: &str = "\
25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn own_cgroups_are_found_through_mount_roots_and_joint_controllers() {
        let own = "4:memory:/docker/abc/x\n3:pids:/a\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/u";
        let found = Mounts::parse(HYBRID_MOUNTS, own, "");
        assert_eq!(
            found.v1(),
            Ok(Groups::V1 {
                memory: "/sys/fs/cgroup/memory/x".into(),
                pids: "/sys/fs/cgroup/pids/a".into(),
                cpu: "/sys/fs/cgroup/cpu,cpuacct".into(),
                cpuacct: "/sys/fs/cgroup/cpu,cpuacct".into(),
            })
        );
        assert_eq!(
            found.v2,
            Some(GroupInTree {
                own: "/sys/fs/cgroup/unified/u".into(),
                top: "/sys/fs/cgroup/unified".into(),
            })
        );
    }

    #[test]
    fn a_missing_controller_is_named() {
        let own = "4:memory:/\n2:cpu,cpuacct:/";
        assert_eq!(Mounts::parse(HYBRID_MOUNTS, own, "").v1(), Err("pids"));
    }

    #[test]
    fn only_the_server_and_its_descendants_count_as_own_processes() {
        // 1 starts 10 (a shell), 10 starts 20 (the server), and 20 starts 30 (the launcher).
        let parents = |pid| match pid {
            1 => Some(0),
            10 => Some(1),
            20 => Some(10),
            30 => Some(20),
            _ => None,
        };
        let ours = |within: &str, server| are_ours(within, server, parents);
        assert!(ours("20\n30\n", 20));
        assert!(!ours("10\n20\n30\n", 20), "a shell that somebody works in");
        assert!(!ours("99\n20\n", 20), "one that has ended");
        assert!(!ours("0\n20\n", 20), "one that cannot be seen");
        assert!(
            ours("1\n10\n30\n", 1),
            "a server that is the first process of a container"
        );
    }

    /// Makes a tree of files that look like groups. Groups that are `full` cannot pass on controllers.
    fn groups(folders: &[(&str, bool)]) -> (tempfile::TempDir, impl Fn(&str) -> String) {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().to_owned();
        let at = move |folder: &str| root.join(folder).to_str().unwrap().to_owned();
        for (folder, full) in folders {
            let folder = tree.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup.controllers"), "cpu memory pids").unwrap();
            // Another owner's process: process 1 is not a child of the server.
            std::fs::write(folder.join("cgroup.procs"), "1\n").unwrap();
            let control = folder.join("cgroup.subtree_control");
            if *full {
                std::fs::create_dir(control).unwrap();
            } else {
                std::fs::write(control, "").unwrap();
            }
        }
        (tree, at)
    }

    fn settled(tree: &impl Fn(&str) -> String, own: &str) -> Result<String, String> {
        let place = GroupInTree {
            own: tree(own),
            top: tree("top"),
        };
        place.settle("")
    }

    #[test]
    fn cgroups_are_made_without_moving_foreign_processes() {
        let (_tree, at) = groups(&[
            ("top", false),
            ("top/slice", false),
            ("top/slice/login.scope", true),
            ("top/slice/run.scope", false),
            ("top/slice/run.scope/sandcell-server", true),
        ]);
        assert_eq!(settled(&at, "top/slice/login.scope"), Ok(at("top/slice")));
        assert!(!Path::new(&at("top/slice/login.scope/sandcell-server")).exists());
        // No leaf is made within a leaf either.
        let beside = at("top/slice/run.scope");
        assert_eq!(settled(&at, "top/slice/run.scope/sandcell-server"), Ok(beside));

        let (_tree, at) = groups(&[
            ("top", true),
            ("top/app.slice", false),
            ("top/app.slice/editor.scope", true),
        ]);
        assert_eq!(settled(&at, "top/app.slice/editor.scope"), Ok(at("top/app.slice")));
    }

    #[test]
    fn an_outer_limit_is_never_escaped() {
        let (_tree, at) = groups(&[("top", false), ("top/slice", false), ("top/slice/a.scope", true)]);
        let limit = |folder: &str, limit: &str| std::fs::write(at(folder) + "/memory.max", limit).unwrap();
        limit("top/slice", "1000000000\n");
        limit("top/slice/a.scope", "max\n");
        assert_eq!(settled(&at, "top/slice/a.scope"), Ok(at("top/slice")));
        limit("top/slice/a.scope", "1000000000\n");
        settled(&at, "top/slice/a.scope").unwrap_err();
    }

    #[test]
    fn each_tried_folder_is_named_once() {
        let (_tree, at) = groups(&[("top", true), ("top/slice", true), ("top/slice/a.scope", true)]);
        let said = settled(&at, "top/slice/a.scope").unwrap_err();
        for folder in ["top", "top/slice", "top/slice/a.scope"] {
            let named = format!("{}: ", at(folder));
            assert_eq!(said.matches(&named).count(), 1, "{said}");
        }
    }
}
