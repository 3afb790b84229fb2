//! Prepares the launcher once: a private root with all parts of sandboxes at short names.
//!
//! - **Process:** the launcher, before its event loop. Trials run in short forks, since a process in a user namespace
//!   cannot leave it.
//! - **Started by:** the supervisor: [`prepare`] with its specification, and [`etc_stub::copy`] after the answer.
//! - **Rights:** the launcher's. Here it makes its namespaces and gives up the host's root as its own. As an ordinary
//!   user it also leaves the host's user namespace.
//! - **May:** mount, read the host's files and mount table, make the parent folder of cgroups, move the server's processes into
//!   a leaf cgroup, and remove the cgroups of dead launchers. It sends nothing and starts no process that lives on.
//! - **Ends:** with a [`Prepared`], which every fork of the launcher inherits, or with the error of the first step that
//!   failed. Then the launcher reports it and exits.

pub(super) mod etc_stub;
mod host_trees;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_change};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::base::faults;
use super::base::fork::in_a_fork;
use super::base::host_ids::HOST_IDS;
use super::base::mount_table::MountTable;
use super::base::namespace_layers::{all_namespaces, no_namespaces};
use super::base::prepared::Prepared;
use super::base::private_folders::PrivateFolders;
use super::base::shared_userns;
use crate::cgroup::Groups;
use crate::kernel_files::write_once;
use crate::landlock::WITH_SCOPES;
use crate::own_limits::open_files::OpenFiles;
use crate::paths;
use crate::plan::without_namespaces as process_level_plan;
use crate::plan::{self, Folder, Host, Machine, Tree, View, Zeros};
use crate::spec::{Added, Template};
use crate::steps::{self, attach, devices_from, memory, single_copy_of};
use crate::sys;
use crate::wire::{DescribedError, Report, StepError};
use host_trees::{Owner, Survey};

/// Folders of the host's /usr that are covered, since they may hold an administrator's files.
const COVERED_FOLDERS: [&str; 6] = [
    "/usr/src",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/etc",
    "/usr/local/src",
    "/usr/local/games",
];

/// The layers that a sandbox needs so that a worker can enter it.
const LAYERS_FOR_WORKERS: [&str; 8] = [
    "user_namespace",
    "mount_namespace",
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "uts_namespace",
    "cgroup_namespace",
    "private_root",
];

/// Converts an error to one that names the failed step.
fn step<T>(name: &str, layer: Option<&str>, result: io::Result<T>) -> Result<T, StepError> {
    result.map_err(|error| StepError::new(name, layer, &error))
}

/// This process's original mount namespace and root. Only root can return to them.
struct OriginalRoot {
    namespace: OwnedFd,
    root: OwnedFd,
}

impl OriginalRoot {
    fn open() -> Option<Self> {
        let able = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_CHROOT));
        let open = |path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok();
        able.then_some(())?;
        Some(Self {
            namespace: open("/proc/self/ns/mnt", OFlags::RDONLY)?,
            root: open("/", OFlags::PATH | OFlags::DIRECTORY)?,
        })
    }

    fn restore(&self) -> io::Result<()> {
        let own = rustix::fs::stat("/proc/self/ns/mnt").map(|found| found.st_ino);
        if own
            .is_ok_and(|own| rustix::fs::fstat(&self.namespace).is_ok_and(|original_root| original_root.st_ino == own))
        {
            // If not even a mount namespace could be made, entering one may be refused, too.
            return Ok(());
        }
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
        // This leads to the root of the namespace. A server in a changed root must not see that one.
        rustix::process::fchdir(&self.root)?;
        Ok(rustix::process::chroot(".")?)
    }
}

fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn enter_own_root(root: bool, ids: (u32, u32)) -> Result<(), StepError> {
    own_namespaces(root, ids).map_err(|error| StepError {
        step: "make namespaces of the launcher".to_owned(),
        ..no_namespaces(&error)
    })?;
    step("make the launcher's root", Some("private_root"), own_root())
}

fn prepare_root(root: bool) -> Result<(), StepError> {
    step("prepare the devices", Some("private_root"), devices(root))?;
    step("prepare /etc", Some("private_root"), etc())
}

/// Prepares everything, once.
pub(super) fn prepare(template: Template) -> Result<Prepared, StepError> {
    let ids = own_ids();
    let process_level = |template, error| {
        let missing = StepError::new("make namespaces", Some("user_namespace"), &error);
        without_namespaces(template, ids, missing)
    };
    if !faults::empty_environment(&template, is_environment_empty()) {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let what = "look at the launcher's environment";
        return Err(StepError::new(what, Some("empty_environment"), &error));
    }
    if template.process_level
        && let Err(error) = faults::layer(&template, "user_namespace")
    {
        return process_level(template, error);
    }
    let root = ids.0 == 0 && has_root_capabilities() && in_first_user_namespace();
    let original_root = if root { OriginalRoot::open() } else { None };
    // Without a way back to the host's files, another process tries first.
    if template.process_level
        && original_root.is_none()
        && let Err(error) = trial(root, ids)
    {
        return process_level(template, error);
    }
    let entered = enter_own_root(root, ids);
    let prepared_root = match &entered {
        Ok(()) => prepare_root(root),
        Err(_) => Ok(()),
    };
    if template.process_level
        && let Some(original_root) = original_root
    {
        let possible = match &entered {
            Err(error) => Err(io::Error::from_raw_os_error(error.errno)),
            Ok(()) => in_a_fork(trial_of_a_sandbox),
        };
        if let Err(error) = possible {
            // A half-made root would show neither the host nor a jail.
            let restored = original_root.restore();
            step("go back to the host's files", Some("private_root"), restored)?;
            return process_level(template, error);
        }
    }
    entered?;
    prepared_root?;
    let found = Groups::find(paths::host());
    let leftovers = found.as_ref().map(|(groups, _)| groups.sweep()).unwrap_or_default();
    // Built once here, since each sandbox's first process is a fork of this process.
    let _filter = crate::seccomp::filter(found.is_ok());
    let mut host = Host {
        root,
        memory_is_charged: found.is_ok(),
        first_is_reached: !root && ids.0 == 0,
        machine: Machine::read(),
        ..Host::default()
    };
    let mounts = step("read the mount table", Some("private_root"), MountTable::read())?;
    let covered = covered(&template);
    let mut survey = Survey::new(&mounts, root, &covered, try_mapping_ids);
    step(
        "prepare the system's files",
        Some("private_root"),
        trees(&mut host, &template, &mut survey),
    )?;
    host.covered = covered.iter().copied().map(str::to_owned).collect();
    operators_folders(&mut host, &template, &mut survey)?;
    let (files, mounted) = survey.finish();
    host.files = files;
    step(
        "prepare the mount points",
        Some("private_root"),
        plan::skeleton(&host)
            .iter()
            .try_for_each(steps::run)
            .and_then(|()| set_old_timestamp(paths::EMPTY_FOLDER)),
    )?;
    let landlock_abi = sys::misc::landlock_abi();
    let mut template = template;
    template.enterable &= landlock_abi >= WITH_SCOPES && !faults::any_skipped(&template, &LAYERS_FOR_WORKERS);
    let report = Report {
        root,
        cgroups: found.as_ref().ok().map(|(groups, _)| groups.version().to_owned()),
        cgroups_missing: found.as_ref().err().cloned(),
        landlock_abi,
        enterable: template.enterable,
        namespaces_missing: None,
        left_out: mounted.left_out,
        bound: mounted.bound,
        open_files: OpenFiles::now().most(),
    };
    let (groups, instance) = found.ok().unzip();
    Ok(Prepared {
        host,
        mounts,
        template,
        groups,
        instance,
        leftovers,
        report,
        ids,
        shared_userns: None,
        private_folders: None,
        time_namespaces: rustix::fs::stat(format!("{}/proc/self/ns/time", paths::host())).is_ok(),
    })
}

/// Sets an old modification time on a folder. Attached folders show the time of the empty folder in their overlay. If
/// that equalled the time of the mount point, made in the same moment, programs that cache a folder's content (such as
/// Python's import system) would not look again.
fn set_old_timestamp(folder: &str) -> io::Result<()> {
    let long_ago = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps {
        last_access: long_ago,
        last_modification: long_ago,
    };
    Ok(rustix::fs::utimensat(CWD, folder, &times, AtFlags::empty())?)
}

/// Tries to make namespaces in a separate process, since a half-entered process could not go back.
fn trial(root: bool, ids: (u32, u32)) -> io::Result<()> {
    in_a_fork(|| {
        own_namespaces(root, ids)
            .and_then(|()| own_root())
            .and_then(|()| trial_of_a_sandbox())
    })
}

/// Tries to make a sandbox's namespaces, and the operations that a host may refuse in them: a /proc mount if parts of
/// this /proc are covered, read-only mounts, and overlays, which some kernels lack.
fn trial_of_a_sandbox() -> io::Result<()> {
    sys::misc::unshare(all_namespaces())?;
    in_a_fork(|| {
        let plain = MountAttrFlags::MOUNT_ATTR_NOSUID;
        steps::fresh("proc", &[], plain)?;
        sys::mount::restrict(
            memory(4096, 1, "0755", plain)?.as_fd(),
            sys::mount::Attributes::READ_ONLY,
        )?;
        let lower = format!("{}:{}", paths::EMPTY_FOLDER, paths::DEVICE_FOLDER);
        steps::fresh("overlay", &[("userxattr", String::new()), ("lowerdir", lower)], plain)?;
        Ok(())
    })
}

/// Returns true if each sandbox can have a different id without a user namespace. If root cannot assign ids, this is an
/// error, so that code never runs as root. "Root" of a user namespace made by others is an ordinary user.
fn can_take_ids(user: u32) -> io::Result<bool> {
    use rustix::thread::CapabilitySet;
    if user != 0 {
        return Ok(false);
    }
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN | CapabilitySet::KILL;
    let held = rustix::thread::capabilities(None)?.effective.contains(needed);
    let maps = std::fs::read_to_string("/proc/self/uid_map")?;
    let lines = maps.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    let (first, last) = HOST_IDS;
    let covers = |(inside, _, count): (u32, u32, u32)| inside <= first && last <= inside.saturating_add(count);
    let (mut all, mut real_root) = (false, false);
    for line in lines {
        all |= covers(line);
        real_root |= line.0 == 0 && line.1 == 0;
    }
    match (held && all, real_root) {
        (true, _) => Ok(true),
        (false, false) => Ok(false),
        (false, true) => Err(DescribedError {
            what: "root lacks CAP_SETUID, CAP_SETGID, CAP_CHOWN or CAP_KILL, or its ids are too few; run the server as an \
                   ordinary user"
                .to_owned(),
            errno: libc::EPERM,
        }
        .into()),
    }
}

/// Prepares the `process` level.
fn without_namespaces(template: Template, ids: (u32, u32), missing: StepError) -> Result<Prepared, StepError> {
    paths::host_is_as_it_is();
    let landlock_abi = sys::misc::landlock_abi();
    if landlock_abi < WITH_SCOPES {
        let what = format!("without namespaces version {WITH_SCOPES} is needed, this kernel has {landlock_abi}");
        let error = DescribedError {
            what,
            errno: libc::EOPNOTSUPP,
        };
        return Err(StepError::new("look for Landlock", Some("landlock"), &error.into()));
    }
    if let Some(mount) = template.mounts.first() {
        return Err(StepError {
            layer: Some("mount_namespace".to_owned()),
            ..StepError::new(
                &format!(
                    "show the folder {} (the process level has no mounts)",
                    mount.host.display()
                ),
                None,
                &io::Error::from_raw_os_error(missing.errno),
            )
        });
    }
    let found = Groups::find(paths::host());
    let leftovers = found.as_ref().map(|(groups, _)| groups.sweep()).unwrap_or_default();
    let root = step("set a separate user id for each sandbox", None, can_take_ids(ids.0))?;
    let private_folders = step("make a folder for private files", None, PrivateFolders::make(root))?;
    let template = Template {
        enterable: false,
        ..template
    };
    let host = Host {
        root,
        memory_is_charged: found.is_ok(),
        readable: process_level_plan::readable(&template),
        ..Host::default()
    };
    let report = Report {
        root,
        cgroups: found.as_ref().ok().map(|(groups, _)| groups.version().to_owned()),
        cgroups_missing: found.as_ref().err().cloned(),
        landlock_abi,
        enterable: false,
        namespaces_missing: Some(missing),
        left_out: Vec::new(),
        bound: Vec::new(),
        open_files: OpenFiles::now().most(),
    };
    let (groups, instance) = found.ok().unzip();
    Ok(Prepared {
        host,
        // The process level attaches no folders.
        mounts: MountTable::default(),
        template,
        groups,
        instance,
        leftovers,
        report,
        ids,
        shared_userns: None,
        private_folders: Some(private_folders),
        time_namespaces: false,
    })
}

/// The first process of every sandbox is a copy of this process and shows its initial environment.
fn is_environment_empty() -> bool {
    std::fs::read("/proc/self/environ").is_ok_and(|environment| environment.is_empty())
}

/// Returns true if root has the capabilities to make sandboxes as root. Without one of them (in a container) it works
/// as an ordinary user does.
fn has_root_capabilities() -> bool {
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::MKNOD
        | CapabilitySet::KILL;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Returns false for root of a user namespace (a rootless container). It can mount, but cannot make device nodes or map
/// ids, so it works as an ordinary user does.
fn in_first_user_namespace() -> bool {
    // The kernel has used this inode number since namespaces have numbers.
    const FIRST_NAMESPACE_INODE: u64 = 0xEFFF_FFFD;
    rustix::fs::stat("/proc/self/ns/user").is_ok_and(|found| found.st_ino == FIRST_NAMESPACE_INODE)
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

/// Makes a root in memory, with the host's root below one folder. `/usr` is only a temporary mount point.
fn own_root() -> io::Result<()> {
    let root = memory(64 << 20, 65536, "0755", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
    attach(&root, "/usr")?;
    rustix::process::chdir("/usr")?;
    let folder = |name: &str| rustix::fs::mkdir(name, Mode::from_raw_mode(0o755));
    for name in [
        "host", "l", "l/none", "l/dev", "l/layer", "l/image", "l/added", "new", "new/etc", "own",
    ] {
        folder(name)?;
    }
    rustix::process::pivot_root(".", "host")?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// Makes the device folder. An ordinary user's sandboxes use the host's nodes. As root each sandbox gets separate nodes
/// from [`private_devices`](super::base::devices::private_devices), so that locks on them stay inside.
fn devices(root: bool) -> io::Result<()> {
    let folder = paths::DEVICE_FOLDER;
    if root {
        return Ok(());
    }
    devices_from(&format!("{}/dev", paths::host()), folder, Zeros::Device)
}

/// Makes the stub of /etc. It reveals nothing about the machine's users.
fn etc() -> io::Result<()> {
    let write = |name: &str, text: &str| std::fs::write(format!("{}/{name}", paths::ETC_STUB), text);
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
        let source = format!("{}/etc/{name}", paths::host());
        if let Ok(bytes) = std::fs::read(source) {
            std::fs::write(format!("{}/{name}", paths::ETC_STUB), bytes)?;
        }
    }
    Ok(())
}

/// Prepares the host's /usr and all else that interpreters need.
fn trees(host: &mut Host, template: &Template, survey: &mut Survey<'_>) -> io::Result<()> {
    let mut wanted = vec!["/usr".to_owned()];
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = format!("{}/{name}", paths::host());
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
        let path = tree.to_string_lossy().into_owned();
        if host.copied.iter().any(|copied| tree.starts_with(copied)) {
            // It is part of that copy.
        } else if etc_stub::is_small(tree) {
            host.copied.push(path);
        } else {
            wanted.push(path);
        }
    }
    for path in wanted {
        host.trees.push(survey.tree(Path::new(&path), Owner::System)?);
    }
    template.added.iter().try_for_each(|added| add(&mut host.trees, added))
}

/// Adds a file to the innermost tree that contains its path. Skips files on a mount within that tree or in a bound
/// tree: sandboxes work without them.
fn add(trees: &mut [Tree], added: &Added) -> io::Result<()> {
    let holds = |tree: &Tree| added.path.starts_with(&tree.path);
    let innermost = trees.iter_mut().enumerate().filter(|(_, tree)| holds(tree));
    let Some((number, tree)) = innermost.max_by_key(|(_, tree)| tree.path.len()) else {
        // Outside of the host's trees, only package folders can hold added files.
        return match added.path.starts_with(paths::PACKAGE_LAYERS) {
            true => write_added(
                Path::new(&format!("{}{}", paths::NEW_ROOT, added.path.display())),
                &added.text,
            ),
            false => Ok(()),
        };
    };
    let Ok(name) = added.path.strip_prefix(&tree.path) else {
        return Ok(());
    };
    let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    let (source, below) = match &tree.view {
        View::Overlay(source) => (source.clone(), format!("{}/{number}", paths::ADDED_FILES)),
        View::OverlayWith { source, below } => (source.clone(), below.clone()),
        View::Bind(_) => return Ok(()),
    };
    if !plain || tree.inner.iter().any(|inner| name.starts_with(&inner.path)) {
        return Ok(());
    }
    write_added(&Path::new(&below).join(name), &added.text)?;
    tree.view = View::OverlayWith { source, below };
    Ok(())
}

/// Writes a file and its parent folders. A script becomes executable.
fn write_added(file: &Path, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    std::fs::write(file, text)?;
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    Ok(rustix::fs::chmod(file, Mode::from_raw_mode(mode))?)
}

/// Returns the folders that are covered in all sandboxes of this template.
fn covered(template: &Template) -> Vec<&'static str> {
    let needed = |path: &str| template.trees.iter().any(|tree| tree.starts_with(path));
    COVERED_FOLDERS.into_iter().filter(|path| !needed(path)).collect()
}

/// Prepares the operator's folders, and the mounts below them.
fn operators_folders(host: &mut Host, template: &Template, survey: &mut Survey<'_>) -> Result<(), StepError> {
    for mount in &template.mounts {
        let tree = step(
            &format!("prepare the mount {}", mount.host.display()),
            None,
            survey.tree(&mount.host, Owner::Operator),
        )?;
        host.mounts.push(Folder {
            tree: Tree {
                path: mount.sandbox.clone(),
                ..tree
            },
            copy_on_write: mount.copy_on_write,
        });
    }
    Ok(())
}

fn try_mapping_ids(source: &str) -> io::Result<()> {
    let ids = format!("0 {} 1", HOST_IDS.0);
    let namespace = shared_userns::make_userns(&ids, &ids)?;
    sys::mount::map_ids(single_copy_of(source)?.as_fd(), namespace.as_fd())
}
