//! What the launcher prepares once: a root of its own, with everything that sandboxes are made of at short names.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, OpenTreeFlags, mount_change, open_tree};

use crate::cgroup::Groups;
use crate::plan::{Host, place};
use crate::spec::Template;
use crate::steps::{DEVICES, attach, copy_of, device_folder, devices_from, memory, write_once};
use crate::sys;
use crate::wire::{Report, StepError};

/// Folders of the host's /usr that are covered: what an administrator put there is nobody's business.
const COVERED: [&str; 6] = [
    "/usr/src",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/etc",
    "/usr/local/src",
    "/usr/local/games",
];

/// Everything prepared.
pub(super) struct Prepared {
    pub(super) host: Host,
    pub(super) template: Template,
    pub(super) groups: Option<Groups>,
    /// Folders of dead launchers that could not be removed yet.
    pub(super) leftovers: Vec<String>,
    pub(super) report: Report,
    /// This process' own ids on the host; what sandboxes run as when it is not root.
    pub(super) ids: (u32, u32),
}

/// Names the step that failed.
fn step<T>(name: &str, layer: Option<&str>, result: io::Result<T>) -> Result<T, StepError> {
    result.map_err(|error| StepError {
        step: name.to_owned(),
        layer: layer.map(str::to_owned),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })
}

/// Prepares everything, once.
pub(super) fn prepare(template: Template) -> Result<Prepared, StepError> {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let root = ids.0 == 0 && holds_admin();
    step(
        "look at the launcher's environment",
        Some("empty_environment"),
        empty_environment(&template),
    )?;
    step(
        "make namespaces of the launcher",
        Some("user_namespace"),
        own_namespaces(root, ids),
    )?;
    step("make the launcher's root", Some("private_root"), own_root())?;
    let found = Groups::find(place::HOST);
    let leftovers = found
        .as_ref()
        .map(|groups| groups.sweep(place::HOST))
        .unwrap_or_default();
    let mut host = Host {
        root,
        memory_is_charged: found.is_ok(),
        ..Host::default()
    };
    step("prepare the devices", Some("private_root"), devices(root))?;
    step("prepare /etc", Some("private_root"), etc())?;
    step(
        "prepare the system's files",
        Some("private_root"),
        trees(&mut host, &template),
    )?;
    for mount in &template.mounts {
        let source = format!("{}/m{}", place::LOWER, host.mounts.len());
        let path = format!("{}{}", place::HOST, mount.host.display());
        step(
            &format!("prepare the mount {}", mount.host.display()),
            None,
            bind(&path, &source),
        )?;
        host.mounts.push((source, mount.sandbox.clone(), mount.copy_on_write));
    }
    let report = Report {
        root,
        cgroups: found.as_ref().ok().map(|groups| groups.version().to_owned()),
        cgroups_missing: found.as_ref().err().cloned(),
        landlock_abi: sys::misc::landlock_abi(),
    };
    Ok(Prepared {
        host,
        template,
        groups: found.ok(),
        leftovers,
        report,
        ids,
    })
}

/// The first process of every sandbox is a copy of this one, and shows what environment it was started with.
fn empty_environment(template: &Template) -> io::Result<()> {
    let named = |list: &Option<String>| {
        let has = |list: &str| list.split(',').any(|name| name == "empty_environment");
        cfg!(feature = "fault-injection") && list.as_deref().is_some_and(has)
    };
    let empty = std::fs::read("/proc/self/environ")?.is_empty();
    if named(&template.disabled) || !(empty || named(&template.skipped)) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(())
}

/// Root without the right to mount (a container) works as an ordinary user does.
fn holds_admin() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

fn own_namespaces(root: bool, (user, group): (u32, u32)) -> io::Result<()> {
    if root {
        sys::misc::unshare(libc::CLONE_NEWNS)?;
    } else {
        sys::misc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        write_once("/proc/self/setgroups", "deny")?;
        write_once("/proc/self/uid_map", &format!("{user} {user} 1"))?;
        write_once("/proc/self/gid_map", &format!("{group} {group} 1"))?;
    }
    Ok(mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?)
}

/// A root in memory with the host's below one folder. `/usr` is only where it is mounted for a moment.
fn own_root() -> io::Result<()> {
    let root = memory(64 << 20, 65536, "0755", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    attach(&root, "/usr")?;
    rustix::process::chdir("/usr")?;
    let folder = |name: &str| rustix::fs::mkdir(name, Mode::from_raw_mode(0o755));
    for name in ["host", "l", "l/none", "l/dev", "l/etc", "new", "work"] {
        folder(name)?;
    }
    rustix::process::pivot_root(".", "host")?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// The device folder. As an ordinary user the nodes are the host's own; as root each sandbox gets nodes of its own,
/// made by [`private_devices`], so that locks on them stay inside.
fn devices(root: bool) -> io::Result<()> {
    let folder = place::DEVICES;
    if root {
        return Ok(());
    }
    devices_from(&format!("{}/dev", place::HOST), folder)
}

/// Device nodes for one sandbox, in this process' own mount namespace. Only root can make them.
pub(super) fn private_devices() -> io::Result<()> {
    let folder = place::DEVICES;
    attach(
        &memory(64 << 10, 64, "0755", MountAttrFlags::MOUNT_ATTR_NOSUID)?,
        folder,
    )?;
    device_folder(folder)?;
    for (name, major, minor) in DEVICES {
        let path = format!("{folder}/{name}");
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(
            CWD,
            path.as_str(),
            kind,
            Mode::from_raw_mode(0o666),
            rustix::fs::makedev(major, minor),
        )?;
        rustix::fs::chmod(path.as_str(), Mode::from_raw_mode(0o666))?;
    }
    Ok(())
}

/// The stub of /etc: nothing in it tells who runs the machine.
fn etc() -> io::Result<()> {
    let write = |name: &str, text: &str| std::fs::write(format!("{}/{name}", place::ETC), text);
    write(
        "passwd",
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    )?;
    write("group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")?;
    write("hosts", "127.0.0.1 localhost sandcell\n::1 localhost\n")?;
    write("hostname", "sandcell\n")?;
    write("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")?;
    write("resolv.conf", "# no network\n")?;
    write("os-release", "NAME=sandcell\nID=sandcell\nPRETTY_NAME=sandcell\n")?;
    for name in ["ld.so.cache", "mime.types", "services", "protocols"] {
        let source = format!("{}/etc/{name}", place::HOST);
        if let Ok(bytes) = std::fs::read(source) {
            std::fs::write(format!("{}/{name}", place::ETC), bytes)?;
        }
    }
    // A mount point: see `trees`.
    std::fs::create_dir(format!("{}/alternatives", place::ETC))?;
    Ok(())
}

/// The host's /usr and what else the interpreter needs.
fn trees(host: &mut Host, template: &Template) -> io::Result<()> {
    let mut wanted = vec!["/usr".to_owned()];
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("{}/{name}", place::HOST);
        match rustix::fs::lstat(path.as_str()) {
            Ok(found) if rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink() => {
                let target = std::fs::read_link(&path)?;
                let target = target.to_string_lossy().trim_start_matches('/').to_owned();
                host.links.push((format!("/{name}"), target));
            }
            Ok(_) => wanted.push(format!("/{name}")),
            Err(_) => {}
        }
    }
    for tree in &template.trees {
        wanted.push(tree.to_string_lossy().into_owned());
    }
    // Debian chooses libraries (BLAS, for one) and programs by links here.
    if std::fs::metadata(format!("{}/etc/alternatives", place::HOST)).is_ok_and(|found| found.is_dir()) {
        wanted.push("/etc/alternatives".to_owned());
    }
    for path in wanted {
        let source = format!("{}/{}", place::LOWER, host.trees.len());
        bind(&format!("{}{path}", place::HOST), &source)?;
        host.trees.push((source, path));
    }
    for path in COVERED {
        let needed = template.trees.iter().any(|tree| tree.starts_with(path));
        if !needed && std::fs::metadata(format!("{}{path}", place::HOST)).is_ok_and(|found| found.is_dir()) {
            host.covered.push(path.to_owned());
        }
    }
    Ok(())
}

/// The host's folder at a short name in the launcher's root.
fn bind(from: &str, to: &str) -> io::Result<()> {
    let source = std::fs::metadata(from)?;
    if !source.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    rustix::fs::mkdir(to, Mode::from_raw_mode(0o755))?;
    attach(&copy_of(from)?, to)
}

/// A detached copy of one mount, for showing it with other ids.
pub(super) fn single_copy_of(path: &str) -> io::Result<OwnedFd> {
    Ok(open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?)
}

/// Shows an operator's folder, in this process' own mount namespace, with its owner's id as the sandbox's.
pub(super) fn show_as(source: &str, user_namespace: &OwnedFd) -> io::Result<()> {
    let mount = single_copy_of(source)?;
    sys::mount::map_ids(mount.as_fd(), user_namespace.as_fd())?;
    attach(&mount, source)
}
