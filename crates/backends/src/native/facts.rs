//! Reads the facts about this host that can prevent sandboxes. Draws no conclusions.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// A container manager or a similar environment in which this program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Docker,
    Podman,
    Kubernetes,
    /// LXC, Incus, LXD, Proxmox.
    Lxc,
    Nspawn,
    /// A sandbox of this program.
    Sandcell,
    /// A systemd unit.
    Service,
}

/// The facts about a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct HostFacts {
    pub(super) container: Option<Container>,
    /// The effective user id is 0.
    pub(super) root: bool,
    /// This process is in the machine's first user namespace.
    pub(super) first_user_namespace: bool,
    /// Effective capabilities, as a bit mask.
    pub(super) capabilities: u64,
    /// A seccomp filter applies to this process.
    pub(super) filtered: bool,
    /// Major and minor version of the kernel.
    pub(super) kernel: (u32, u32),
    /// The error number of a Landlock call; none if Landlock is available.
    pub(super) landlock: Option<i32>,
    /// Landlock can restrict signals, which the `process` level needs.
    pub(super) landlock_has_scopes: bool,
    /// The AppArmor profile that confines this process.
    pub(super) apparmor: Option<String>,
    /// SELinux enforces its policy.
    pub(super) selinux: bool,
    /// The root folder is not the root of the mount namespace.
    pub(super) chrooted: bool,
    /// `/proc` or `/proc/sys` is read-only.
    pub(super) proc_read_only: bool,
    /// The mount points below `/proc`.
    pub(super) proc_covered: Vec<String>,
    /// Kernel settings by their sysctl names.
    pub(super) settings: BTreeMap<String, i64>,
    /// The hard limit of open files; none: unlimited.
    pub(super) open_files: Option<u64>,
    /// The limit of a file's size; none: unlimited.
    pub(super) file_size: Option<u64>,
    /// The hard limit of the stack; none: unlimited.
    pub(super) stack: Option<u64>,
}

/// Settings that can forbid namespaces.
const NAMESPACE_SETTINGS: [&str; 10] = [
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "user.max_user_namespaces",
    "user.max_mnt_namespaces",
    "user.max_pid_namespaces",
    "user.max_net_namespaces",
    "user.max_ipc_namespaces",
    "user.max_uts_namespaces",
    "user.max_cgroup_namespaces",
    "user.max_time_namespaces",
];

impl HostFacts {
    /// Reads all facts. An unreadable fact counts as absent.
    pub(super) fn read() -> Self {
        /// The kernel's fixed inode number of the first user namespace.
        const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let field = |name: &str| {
            let mut lines = status.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let mounts = text("/proc/self/mountinfo");
        let value = |name: &&str| {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            let value = text(&path).split_whitespace().next()?.parse().ok()?;
            Some(((*name).to_owned(), value))
        };
        let hard = |resource| getrlimit(resource).maximum;
        Self {
            container: container(&mounts),
            root: rustix::process::geteuid().is_root(),
            first_user_namespace: rustix::fs::stat("/proc/self/ns/user")
                .is_ok_and(|found| found.st_ino == FIRST_USER_NAMESPACE),
            capabilities: field("CapEff")
                .and_then(|mask| u64::from_str_radix(mask, 16).ok())
                .unwrap_or(0),
            filtered: field("Seccomp") == Some("2"),
            kernel: version(&text("/proc/sys/kernel/osrelease")),
            landlock: sandcell_jail::landlock::refusal(),
            landlock_has_scopes: sandcell_jail::landlock::available() >= sandcell_jail::landlock::WITH_SCOPES,
            apparmor: profile(&text("/proc/self/attr/apparmor/current")),
            selinux: text("/sys/fs/selinux/enforce").trim() == "1",
            chrooted: !mounts.is_empty() && !mount_points(&mounts).any(|(point, _)| point == "/"),
            proc_read_only: proc_read_only(&mounts),
            proc_covered: proc_covered(&mounts),
            settings: NAMESPACE_SETTINGS.iter().filter_map(value).collect(),
            open_files: hard(Resource::Nofile),
            file_size: getrlimit(Resource::Fsize).current,
            stack: hard(Resource::Stack),
        }
    }

    /// Returns true if this process holds the capability with this number.
    pub(super) const fn holds(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }
}

fn container(mounts: &str) -> Option<Container> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let manager = format!(
        "{}{}",
        text("/run/systemd/container"),
        text("/run/host/container-manager")
    );
    let there = |path: &str| Path::new(path).exists();
    if text("/etc/os-release").lines().any(|line| line == "ID=sandcell") {
        Some(Container::Sandcell)
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some(Container::Kubernetes)
    } else if there("/run/.containerenv") || manager.contains("podman") {
        Some(Container::Podman)
    } else if manager.contains("nspawn") {
        Some(Container::Nspawn)
    } else if manager.contains("lxc") || mounts.contains(" fuse.lxcfs ") || there("/dev/.lxc") {
        Some(Container::Lxc)
    } else if there("/.dockerenv") || manager.contains("docker") {
        Some(Container::Docker)
    } else if std::env::var_os("INVOCATION_ID").is_some() {
        Some(Container::Service)
    } else {
        None
    }
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns the AppArmor profile if it confines the process.
fn profile(current: &str) -> Option<String> {
    let name = current.trim_end_matches(['\n', '\0']);
    let confines = !name.is_empty() && name != "unconfined" && !name.ends_with("(unconfined)");
    confines.then(|| name.to_owned())
}

/// Returns mount points and their options.
fn mount_points(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        Some((fields.next()?, fields.next()?))
    })
}

fn proc_read_only(table: &str) -> bool {
    // The last mount at a path is the visible one.
    let read_only = |path: &str| {
        let mut seen = mount_points(table).filter(|(point, _)| *point == path);
        let options = seen.by_ref().last().map(|(_, options)| options);
        options.is_some_and(|options| options.split(',').any(|option| option == "ro"))
    };
    read_only("/proc") || read_only("/proc/sys")
}

fn proc_covered(table: &str) -> Vec<String> {
    // The kernel mounts this one for registered program formats, so it covers nothing.
    let usual = |point: &str| point == "/proc/sys/fs/binfmt_misc";
    let mut covered: Vec<String> = mount_points(table)
        .map(|(point, _)| point)
        .filter(|point| point.starts_with("/proc/") && !usual(point))
        .map(str::to_owned)
        .collect();
    covered.sort();
    covered.dedup();
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER_MOUNT_TABLE: &str = "\
20 1 0:30 / / rw - overlay overlay rw
21 20 0:31 / /proc rw,nosuid - proc proc rw
22 21 0:31 /sys /proc/sys ro,nosuid - proc proc rw
23 21 0:32 / /proc/kcore rw - tmpfs tmpfs rw
24 21 0:33 / /proc/cpuinfo rw - fuse.lxcfs lxcfs rw
25 22 0:34 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
";

    #[test]
    fn mounts_over_proc_are_found_in_the_mount_table() {
        assert_eq!(
            proc_covered(DOCKER_MOUNT_TABLE),
            ["/proc/cpuinfo", "/proc/kcore", "/proc/sys"]
        );
        assert!(proc_read_only(DOCKER_MOUNT_TABLE));
        assert!(!proc_read_only("21 20 0:31 / /proc rw,nosuid - proc proc rw\n"));
        assert!(proc_read_only("21 20 0:31 / /proc ro,nosuid - proc proc rw\n"));
    }

    #[test]
    fn only_a_profile_that_confines_counts() {
        assert_eq!(
            profile("docker-default (enforce)\n").as_deref(),
            Some("docker-default (enforce)")
        );
        for none in ["unconfined\n", "", "sandcell (unconfined)\n"] {
            assert_eq!(profile(none), None, "{none}");
        }
    }

    #[test]
    fn kernel_versions_are_parsed_with_distribution_suffixes() {
        assert_eq!(version("5.10.0-28-amd64\n"), (5, 10));
        assert_eq!(version("6.1.0\n"), (6, 1));
        assert_eq!(version("6.8-rc1"), (6, 8));
    }

    #[test]
    fn the_facts_of_this_host_are_readable() {
        let facts = HostFacts::read();
        assert!(facts.kernel.0 >= 4, "{facts:?}");
        assert_eq!(facts.root, rustix::process::geteuid().is_root());
    }
}
