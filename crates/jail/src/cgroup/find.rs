//! Where this process may make control groups.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::{Groups, Instance, field_of, pids_in, read};
use crate::steps::write_once;

/// What the server's own group is called, where it had to make room for groups beside it.
const LEAF: &str = "sandcell-server";
const NEEDED: [&str; 3] = ["memory", "pids", "cpu"];

impl Groups {
    /// Finds where this process may make groups, and claims an identity there. `host` is the path of the host's root as
    /// this process sees it.
    ///
    /// # Errors
    /// Why there is no such place, in words.
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

/// How many processes of this process' own memory group, those below it left out, the kernel has killed for memory. None where
/// that is not counted.
pub(crate) fn own_memory_kills() -> Option<u64> {
    let found = Mounts::of_this_process()?;
    let counted = match (found.folder("memory"), found.v2) {
        (Some(memory), _) => read(&format!("{memory}/memory.oom_control")),
        (None, Some(place)) => read(&format!("{}/memory.events.local", place.own)),
        (None, None) => return None,
    };
    counted.ok().map(|text| field_of(&text, "oom_kill"))
}

/// This process' own group of those that count processes, and all above it that can be seen.
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

/// Our own group of version 2.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    own: String,
    /// The topmost group that is mounted: the machine's, or a container's.
    top: String,
}

impl Place {
    /// A group below which others can be made.
    ///
    /// On version 2 a group with processes of its own cannot hand controllers to groups below it (only the machine's top
    /// can), so our own group serves only if all that is in it is moved into a leaf. That is done where it was handed to us
    /// to manage, in a container, where it has limits (which sandboxes must not get out of), and where nobody else's
    /// processes are in it: whoever logs in, or works in the same window, is not ours to move. Else groups are made above,
    /// as near as can be.
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
        // An earlier server has made room here, or another one is just moving us.
        if own.ends_with(&format!("/{LEAF}"))
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

    /// The group that this one is in, as far as groups are mounted.
    fn above<'a>(&self, folder: &'a str) -> Option<&'a str> {
        if folder == self.top {
            return None;
        }
        Path::new(folder).parent()?.to_str()
    }
}

/// Whether systemd says that this group is its owner's to manage.
fn is_delegated(folder: &str) -> bool {
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(folder, name, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Whether somebody has set limits for what is in this group. (systemd bounds processes everywhere.)
fn is_limited(folder: &str) -> bool {
    ["memory.max", "memory.high", "cpu.max"]
        .into_iter()
        .any(|name| read(&format!("{folder}/{name}")).is_ok_and(|text| !text.starts_with("max")))
}

/// Whether nobody is in this group but the server and what it has started.
fn only_ours(folder: &str, host: &str) -> bool {
    let parent_of = |pid| parent_in(&read(&format!("{host}/proc/{pid}/stat")).ok()?);
    let within = read(&format!("{folder}/cgroup.procs")).ok();
    // We are the launcher; the server has started us.
    let server = parent_of(std::process::id());
    within
        .zip(server)
        .is_some_and(|(within, server)| are_ours(&within, server, parent_of))
}

/// Those that cannot be seen from here have the number 0.
fn are_ours(within: &str, server: u32, parent_of: impl Fn(u32) -> Option<u32>) -> bool {
    let above = |pid: u32| std::iter::successors(Some(pid), |pid| parent_of(*pid)).take_while(|pid| *pid > 0);
    within
        .lines()
        .all(|line| line.parse().is_ok_and(|pid| above(pid).any(|pid| pid == server)))
}

fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// How a group comes to hand its controllers on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    AsItIs,
    /// Somebody is moving its processes into a leaf.
    WhenEmpty,
    /// Its processes are moved into a leaf.
    OnceLeft,
}

fn offer_controllers(folder: &str, how: Offer) -> io::Result<()> {
    // Processes may begin in it meanwhile.
    const ATTEMPTS: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(5);
    let there = read(&format!("{folder}/cgroup.controllers"))?;
    for needed in NEEDED {
        if !there.split_whitespace().any(|name| name == needed) {
            return Err(io::Error::other(format!("controller {needed} is not available")));
        }
    }
    let mut attempts = if how == Offer::AsItIs { 1 } else { ATTEMPTS };
    loop {
        if how == Offer::OnceLeft {
            leave(folder)?;
        }
        attempts -= 1;
        match write_once(&format!("{folder}/cgroup.subtree_control"), "+memory +pids +cpu") {
            Err(error) if is(&error, Errno::BUSY) && attempts > 0 => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// Moves all that is in a group into a leaf of it.
fn leave(folder: &str) -> io::Result<()> {
    let leaf = format!("{folder}/{LEAF}");
    match rustix::fs::mkdir(leaf.as_str(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    for pid in pids_in(folder) {
        match write_once(&format!("{leaf}/cgroup.procs"), &pid.as_raw_nonzero().to_string()) {
            // It has ended meanwhile.
            Err(error) if is(&error, Errno::SRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

fn is(error: &io::Error, number: Errno) -> bool {
    error.raw_os_error() == Some(number.raw_os_error())
}

/// What the mount table and the process' own groups say.
pub(super) struct Mounts {
    /// (controllers, folder of our own group) for each version 1 hierarchy.
    v1: Vec<(Vec<String>, String)>,
    /// The topmost mounted group of each of those hierarchies.
    v1_tops: Vec<String>,
    /// Our own group in version 2.
    v2: Option<Place>,
}

impl Mounts {
    /// As this process sees them, where the host's files are at their places.
    fn of_this_process() -> Option<Self> {
        let own = read("/proc/self/cgroup").ok()?;
        Some(Self::parse(&read("/proc/self/mountinfo").ok()?, &own, ""))
    }

    /// This process' own group of version 1 for a controller.
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
            // The launcher sees the host's mounts below its own folder for them.
            let place = if place.starts_with(host) {
                (*place).to_owned()
            } else {
                format!("{host}{place}")
            };
            match right.first() {
                Some(&"cgroup2") => {
                    if let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) {
                        let own = join(&place, root, path);
                        found.v2 = found.v2.or(Some(Place { own, top: place }));
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

    /// Our own group of this controller on version 1, and that of version 2, each with the topmost that is mounted.
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

    const HYBRID: &str = "\
25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn own_groups_are_found_through_mount_roots_and_joint_controllers() {
        let own = "4:memory:/docker/abc/x\n3:pids:/a\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/u";
        let found = Mounts::parse(HYBRID, own, "");
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
            Some(Place {
                own: "/sys/fs/cgroup/unified/u".into(),
                top: "/sys/fs/cgroup/unified".into(),
            })
        );
    }

    #[test]
    fn a_missing_controller_is_named() {
        let own = "4:memory:/\n2:cpu,cpuacct:/";
        assert_eq!(Mounts::parse(HYBRID, own, "").v1(), Err("pids"));
    }

    #[test]
    fn only_the_server_and_what_it_started_are_ours() {
        // 1 starts 10 (a shell), that 20 (the server), that 30 (the launcher).
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

    /// A tree of files that look like groups. In those that are `full` controllers cannot be handed on.
    fn groups(folders: &[(&str, bool)]) -> (tempfile::TempDir, impl Fn(&str) -> String) {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().to_owned();
        let at = move |folder: &str| root.join(folder).to_str().unwrap().to_owned();
        for (folder, full) in folders {
            let folder = tree.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cgroup.controllers"), "cpu memory pids").unwrap();
            // Somebody else's: process 1 is no server's child.
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
        let place = Place {
            own: tree(own),
            top: tree("top"),
        };
        place.settle("")
    }

    #[test]
    fn groups_are_made_where_nobody_elses_process_is_moved() {
        let (_tree, at) = groups(&[
            ("top", false),
            ("top/slice", false),
            ("top/slice/login.scope", true),
            ("top/slice/run.scope", false),
            ("top/slice/run.scope/sandcell-server", true),
        ]);
        assert_eq!(settled(&at, "top/slice/login.scope"), Ok(at("top/slice")));
        assert!(!Path::new(&at("top/slice/login.scope/sandcell-server")).exists());
        // Nor is a leaf made within a leaf.
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
    fn limits_are_never_left() {
        let (_tree, at) = groups(&[("top", false), ("top/slice", false), ("top/slice/a.scope", true)]);
        let limit = |folder: &str, limit: &str| std::fs::write(at(folder) + "/memory.max", limit).unwrap();
        limit("top/slice", "1000000000\n");
        limit("top/slice/a.scope", "max\n");
        assert_eq!(settled(&at, "top/slice/a.scope"), Ok(at("top/slice")));
        limit("top/slice/a.scope", "1000000000\n");
        settled(&at, "top/slice/a.scope").unwrap_err();
    }

    #[test]
    fn each_place_that_was_tried_is_named_once() {
        let (_tree, at) = groups(&[("top", true), ("top/slice", true), ("top/slice/a.scope", true)]);
        let said = settled(&at, "top/slice/a.scope").unwrap_err();
        for folder in ["top", "top/slice", "top/slice/a.scope"] {
            let named = format!("{}: ", at(folder));
            assert_eq!(said.matches(&named).count(), 1, "{said}");
        }
    }
}
