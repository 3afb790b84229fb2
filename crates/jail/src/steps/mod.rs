//! Carries out the steps of a plan, in a process that was just cloned into its namespaces.
//!
//! All mounts are made by descriptor on a tree that no foreign code has touched. The first step that fails ends the
//! process. Its mounts disappear with its namespaces.

pub(crate) mod enter_program;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind, move_mount, open_tree, unmount,
};
use rustix::process::{Pid, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::kernel_files::write_once;
use crate::landlock;
use crate::masked_paths::{BOOT_ID, MASKED_FOLDERS};
use crate::paths;
use crate::plan::{IN_PROC, SYS_FOLDERS};
use crate::plan::{Inner, InnerView, Layer, Resource, Step, View, Writable, Zeros};
use crate::seccomp;
use crate::sys;
use crate::sys::mount::Attributes;

const PRIVATE_MOUNT_FLAGS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const READ_ONLY: MountAttrFlags = PRIVATE_MOUNT_FLAGS.union(MountAttrFlags::MOUNT_ATTR_RDONLY);

/// Carries out one step.
pub(crate) fn run(step: &Step) -> io::Result<()> {
    match step {
        Step::Identity { id, drop_groups } => take_identity(*id, *drop_groups),
        Step::DieWithLauncher => Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?),
        Step::Root => attach(&overlay(paths::NEW_ROOT, None)?, paths::NEW_ROOT),
        Step::EmptyRoot => attach(&memory(4 << 20, 4096, "0755", PRIVATE_MOUNT_FLAGS)?, paths::NEW_ROOT),
        Step::Folder { path } => make_folders(path),
        Step::Link { path, target } => Ok(rustix::fs::symlink(target.as_str(), below_root(path))?),
        Step::Tree { view, path } => attach(&tree(view)?, &below_root(path)),
        Step::ImageRoot => image_root(),
        Step::Cover { path } => cover_folder(&below_root(path)),
        Step::Work { bytes, inodes } => work(*bytes, *inodes),
        Step::WorkFolder { name, path, mode } => work_folder(name, path, *mode),
        Step::CopyOnWrite { source, path, number } => {
            let layer = Layer {
                folder: *number,
                within: None,
            };
            attach(&copy_on_write(source, &layer.name())?, &below_root(path))
        }
        Step::MountLayer { layer } => mount_layer(*layer),
        Step::Files { source } => files(source),
        Step::Inner { tree, inner, writable } => mount_within(&below_root(tree), inner, *writable),
        Step::Devices { own_folder, zeros } => devices(*own_folder, *zeros),
        Step::Proc => attach(
            &fresh(
                "proc",
                &[],
                PRIVATE_MOUNT_FLAGS.union(MountAttrFlags::MOUNT_ATTR_NOEXEC),
            )?,
            &below_root("/proc"),
        ),
        Step::NoUserNamespaces => write_once(&below_root("/proc/sys/user/max_user_namespaces"), "0"),
        Step::Watches { instances, watches } => limit_watches(*instances, *watches),
        Step::SocketBuffers => socket_buffers(),
        Step::MaskProc { name } => mask_proc(name),
        Step::Machine { files } => machine(files),
        Step::ReadOnlySysctl => read_only("/proc/sys"),
        Step::ReadOnlyFirst => read_only("/proc/1"),
        Step::Pivot => pivot(),
        Step::HostName { name } => Ok(rustix::system::sethostname(name.as_bytes())?),
        Step::Loopback => loopback(),
        Step::ResourceLimit { resource, soft, hard } => lower_limit(*resource, *soft, *hard),
        Step::Cores { count } => limit_cores(*count),
        Step::Capabilities => drop_capabilities(),
        Step::NoNewPrivileges => Ok(rustix::thread::set_no_new_privs(true)?),
        Step::Landlock {
            writable,
            readable,
            signals,
        } => landlock::files(writable, readable, *signals),
        Step::LandlockWithoutNamespaces(files) => landlock::without_namespaces(files),
        Step::HostIdentity { id } => take_identity(*id, true),
        Step::AdoptOrphans => Ok(rustix::process::set_child_subreaper(Some(Pid::INIT))?),
        Step::OwnFolders { folder } => own_folders(folder),
        Step::HeldCapabilities => no_capabilities(),
        Step::NotDumpable => Ok(rustix::process::set_dumpable_behavior(
            rustix::process::DumpableBehavior::NotDumpable,
        )?),
        Step::SystemCalls { memory_is_charged } => sys::misc::install_filter(seccomp::filter(*memory_is_charged)),
        Step::FewerSystemCalls { memory_is_charged } => {
            sys::misc::install_filter(&seccomp::filter_without_namespaces(*memory_is_charged))
        }
        Step::OnlyEntering => only_entering(),
        Step::SystemCallsOfZygote => sys::misc::install_filter(&seccomp::filter_of_zygote()),
    }
}

/// Makes a detached mount of a new file system.
pub(crate) fn fresh(kind: &str, options: &[(&str, String)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
        }
    }
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Makes a detached mount of a new tmpfs.
pub(crate) fn memory(bytes: u64, inodes: u64, mode: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let options = [
        ("size", bytes.to_string()),
        ("nr_inodes", inodes.to_string()),
        ("mode", mode.to_owned()),
    ];
    fresh("tmpfs", &options, attributes)
}

/// Mounts a detached mount at a path.
pub(crate) fn attach(mount: &OwnedFd, path: &str) -> io::Result<()> {
    Ok(move_mount(
        mount.as_fd(),
        "",
        CWD,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )?)
}

/// Makes a detached copy of the mount at `path` and of the mounts below it.
pub(crate) fn copy_of(path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, path, flags)?)
}

/// Makes a detached copy of one mount, to show it with other ids.
pub(crate) fn single_copy_of(path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    Ok(open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?)
}

fn below_root(path: &str) -> String {
    format!("{}{path}", paths::NEW_ROOT)
}

fn take_identity(id: u32, drop_groups: bool) -> io::Result<()> {
    let user = rustix::process::Uid::from_raw(id);
    let group = rustix::process::Gid::from_raw(id);
    if drop_groups {
        rustix::thread::set_thread_groups(&[])?;
    }
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    Ok(())
}

/// Makes a folder and its parents below the new root, before any foreign code had access to it.
fn make_folders(path: &str) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o755);
    // Most parents exist already.
    match rustix::fs::mkdir(format!("{}{path}", paths::NEW_ROOT), mode) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => return Ok(()),
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mut at = String::from(paths::NEW_ROOT);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at.push('/');
        at.push_str(name);
        match rustix::fs::mkdir(at.as_str(), mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Makes a detached read-only mount of a tree.
fn tree(view: &View) -> io::Result<OwnedFd> {
    match view {
        View::Overlay(source) => overlay(source, None),
        View::OverlayWith { source, below } => overlay(&format!("{source}:{below}"), None),
        View::Bind(source) => {
            let mount = copy_of(source)?;
            let attributes = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_DEV);
            sys::mount::restrict_tree(mount.as_fd(), attributes)?;
            Ok(mount)
        }
    }
}

fn files(source: &str) -> io::Result<()> {
    rustix::fs::mkdir(paths::OWN_FILES, Mode::from_raw_mode(0o755))?;
    attach(&overlay(source, None)?, paths::OWN_FILES)
}

/// Mounts something within a tree. The host's files may have changed since the launcher looked at them, and their owner
/// may have put a link there. So links are not followed, and a missing mount point is skipped.
fn mount_within(tree_path: &str, inner: &Inner, writable: Writable) -> io::Result<()> {
    use rustix::fs::{OFlags, ResolveFlags};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(tree_path, flags | OFlags::DIRECTORY, Mode::empty())?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = match rustix::fs::openat2(&root, &inner.path, flags | OFlags::NOFOLLOW, Mode::empty(), within) {
        Ok(place) => place,
        Err(error) if is_out_of_reach(error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mount = match (&inner.view, writable) {
        (InnerView::Tree(View::Overlay(source)), Writable::Privately(folder, number)) => {
            let layer = Layer {
                folder,
                within: Some(number),
            };
            copy_on_write(source, &layer.name())?
        }
        (InnerView::Tree(view), _) => tree(view)?,
        (InnerView::File(name), _) => copy_of(format!("{}/{name}", paths::OWN_FILES))?,
        (InnerView::Covered, _) => copy_of(if is_folder(&place)? {
            paths::OWN_NOTHING
        } else {
            paths::OWN_NO_FILE
        })?,
    };
    if is_folder(&mount)? != is_folder(&place)? {
        return Ok(());
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount.as_fd(), "", place.as_fd(), "", flags)?)
}

fn is_folder(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_dir())
}

/// Makes a detached overlay of a source: read-only, or with a private upper folder (`(upper, work)`).
pub(crate) fn overlay(source: &str, upper: Option<(&str, &str)>) -> io::Result<OwnedFd> {
    // The kernel refuses a single lower layer, so a read-only overlay gets an additional empty folder. It is the first
    // layer: the file system then reports the size and free space of that folder, not of the host's disk.
    let mut options = vec![("userxattr", String::new())];
    let attributes = if let Some((upper, work)) = upper {
        options.push(("lowerdir", source.to_owned()));
        options.push(("upperdir", upper.to_owned()));
        options.push(("workdir", work.to_owned()));
        PRIVATE_MOUNT_FLAGS
    } else {
        options.push(("lowerdir", format!("{}:{source}", paths::EMPTY_FOLDER)));
        READ_ONLY
    };
    fresh("overlay", &options, attributes)
}

/// Mounts two read-only layers as the root: the mount points made so far above, the image below.
fn image_root() -> io::Result<()> {
    let options = [
        ("userxattr", String::new()),
        ("lowerdir", format!("{}:{}", paths::NEW_ROOT, paths::IMAGE_TREE)),
    ];
    attach(&fresh("overlay", &options, READ_ONLY)?, paths::NEW_ROOT)
}

/// Mounts a read-only, noexec view of `source` over itself. Bind mounts of it inherit these restrictions.
fn restricted(source: &str) -> io::Result<()> {
    let mount = copy_of(source)?;
    sys::mount::restrict_tree(
        mount.as_fd(),
        Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_EXEC),
    )?;
    attach(&mount, source)
}

/// Binds `source`, which is [`restricted`], over `path`. This is a single call, since there are some forty of them.
fn cover(source: &str, path: &str) -> io::Result<()> {
    Ok(mount_bind(source, path)?)
}

/// Covers `path` with the likelier one of the empty folder and the empty file. Tries the other one on a mismatch.
fn cover_either(path: &str, likely: &str, other: &str) -> io::Result<()> {
    match cover(likely, path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => cover(other, path),
        done => done,
    }
}

/// Covers a host folder, unless the path is out of reach for all processes inside.
fn cover_folder(path: &str) -> io::Result<()> {
    match cover_either(path, paths::OWN_NOTHING, paths::OWN_NO_FILE) {
        Err(_) if matches!(rustix::fs::stat(path), Err(error) if is_out_of_reach(error)) => Ok(()),
        done => done,
    }
}

/// Returns true if the sandbox's user cannot reach a path. Any other error is a failure.
fn is_out_of_reach(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
}

/// The space for the files that describe the machine, in bytes: a page each.
const OF_MACHINE: u64 = 64 << 10;

/// Mounts the private files. Makes the empty folder and the empty file that cover hidden paths.
fn work(bytes: u64, inodes: u64) -> io::Result<()> {
    attach(
        &memory(
            bytes.saturating_add(OF_MACHINE),
            inodes.saturating_add(40),
            "0755",
            PRIVATE_MOUNT_FLAGS,
        )?,
        paths::PRIVATE_FILES,
    )?;
    rustix::fs::mkdir(paths::OWN_NOTHING, Mode::from_raw_mode(0o555))?;
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(paths::OWN_NO_FILE, flags, Mode::from_raw_mode(0o444))?;
    restricted(paths::OWN_NOTHING)?;
    restricted(paths::OWN_NO_FILE)
}

fn work_folder(name: &str, path: &str, mode: u32) -> io::Result<()> {
    let source = format!("{}/{name}", paths::PRIVATE_FILES);
    rustix::fs::mkdir(source.as_str(), Mode::from_raw_mode(0o700))?;
    rustix::fs::chmod(source.as_str(), Mode::from_raw_mode(mode))?;
    attach(&copy_of(&source)?, &below_root(path))
}

/// Makes a detached mount of a folder with a private copy-on-write layer of this name.
fn copy_on_write(source: &str, name: &str) -> io::Result<OwnedFd> {
    let upper = format!("{}/{name}", paths::PRIVATE_FILES);
    let work = format!("{}/{name}.work", paths::PRIVATE_FILES);
    for folder in [&upper, &work] {
        rustix::fs::mkdir(folder.as_str(), Mode::from_raw_mode(0o755))?;
    }
    overlay(source, Some((&upper, &work)))
}

/// Shows the private layer of a copy-on-write mount, read-only: the kernel forbids changes of a layer while it is mounted.
fn mount_layer(layer: Layer) -> io::Result<()> {
    let upper = match copy_of(format!("{}/{}", paths::PRIVATE_FILES, layer.name())) {
        // The mount point has disappeared from the host's folder.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        upper => upper?,
    };
    let attributes = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_DEV);
    sys::mount::restrict_tree(upper.as_fd(), attributes.and(Attributes::NO_EXEC))?;
    attach(&upper, &format!("{}/{}", below_root(&layer.path()), paths::UPPER_LAYER))
}

/// Makes the home folder and the temporary folder of a sandbox without a private root. Changes to the home folder.
fn own_folders(folder: &str) -> io::Result<()> {
    for (name, mode) in [("home", 0o755), ("tmp", 0o700)] {
        rustix::fs::mkdir(format!("{folder}/{name}"), Mode::from_raw_mode(mode))?;
    }
    Ok(rustix::process::chdir(format!("{folder}/home"))?)
}

/// The devices of every sandbox: name, major, minor.
pub(crate) const DEVICE_NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Makes the entries of a device folder other than the nodes.
pub(crate) fn device_folder(folder: impl AsFd) -> io::Result<()> {
    for name in ["pts", "shm"] {
        rustix::fs::mkdirat(&folder, name, Mode::from_raw_mode(0o755))?;
    }
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        rustix::fs::symlinkat(target, &folder, name)?;
    }
    Ok(())
}

/// Fills a device folder with bind mounts of another folder's nodes.
pub(crate) fn devices_from(source: &str, folder: &str, zeros: Zeros) -> io::Result<()> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    device_folder(rustix::fs::open(folder, flags, Mode::empty())?)?;
    for (name, ..) in DEVICE_NODES {
        let path = format!("{folder}/{name}");
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(path.as_str(), flags, Mode::from_raw_mode(0o666))?;
        let node = if name == "zero" { zeros.node() } else { name };
        attach(&copy_of(format!("{source}/{node}"))?, &path)?;
    }
    Ok(())
}

fn devices(own_folder: bool, zeros: Zeros) -> io::Result<()> {
    if own_folder {
        let folder = memory(64 << 10, 64, "0755", MountAttrFlags::MOUNT_ATTR_NOSUID)?;
        attach(&folder, &below_root("/dev"))?;
        devices_from(paths::DEVICE_FOLDER, &below_root("/dev"), zeros)?;
        // The nodes and the folder are restricted in place, since a copy would be additional mounts.
        let folder = open_tree(CWD, below_root("/dev"), OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        sys::mount::restrict_tree(folder.as_fd(), Attributes::NO_SUID.and(Attributes::NO_EXEC))?;
        sys::mount::restrict(folder.as_fd(), Attributes::READ_ONLY)?;
    } else {
        attach(&copy_of(paths::DEVICE_FOLDER)?, &below_root("/dev"))?;
    }
    terminals()
}

/// Mounts the device folder that was made for this jail, and its private terminals.
pub(crate) fn own_devices(mount: &OwnedFd) -> io::Result<()> {
    attach(mount, &below_root("/dev"))?;
    terminals()
}

fn terminals() -> io::Result<()> {
    let options = [
        ("newinstance", String::new()),
        ("ptmxmode", "0666".into()),
        ("mode", "0620".into()),
        ("max", "64".into()),
    ];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);
    attach(&fresh("devpts", &options, attributes)?, &below_root("/dev/pts"))
}

fn limit_watches(instances: u32, watches: u32) -> io::Result<()> {
    for (name, most) in [("max_inotify_instances", instances), ("max_inotify_watches", watches)] {
        write_once(&below_root(&format!("/proc/sys/user/{name}")), &most.to_string())?;
    }
    Ok(())
}

fn socket_buffers() -> io::Result<()> {
    let max_bytes = crate::plan::SOCKET_BUFFER_BYTES;
    for (name, usual) in [("tcp_rmem", 131_072), ("tcp_wmem", 16_384)] {
        let path = below_root(&format!("/proc/sys/net/ipv4/{name}"));
        match write_once(&path, &format!("4096 {usual} {max_bytes}")) {
            // A kernel without TCP has no such sockets.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn mask_proc(name: &str) -> io::Result<()> {
    let path = below_root(&format!("/proc/{name}"));
    if name == BOOT_ID {
        return own_boot_id(&path);
    }
    let (likely, other) = if MASKED_FOLDERS.contains(&name) {
        (paths::OWN_NOTHING, paths::OWN_NO_FILE)
    } else {
        (paths::OWN_NO_FILE, paths::OWN_NOTHING)
    };
    match cover_either(&path, likely, other) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&path),
        done => done,
    }
}

/// Covers the boot id with a random one from the kernel in the same format.
fn own_boot_id(path: &str) -> io::Result<()> {
    match std::fs::read_to_string(below_root("/proc/sys/kernel/random/uuid")) {
        Ok(id) => std::fs::write(paths::OWN_BOOT_ID, id)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return missing(path),
        Err(error) => return Err(error),
    }
    restricted(paths::OWN_BOOT_ID)?;
    cover(paths::OWN_BOOT_ID, path)
}

/// Covers the files of /proc that describe the machine, and mounts a /sys. The source folder is restricted once; all
/// bind mounts of it inherit that.
fn machine(files: &[(&'static str, String)]) -> io::Result<()> {
    let own = |name: &str| format!("{}/{name}", paths::OWN_MACHINE);
    for folder in std::iter::once("").chain(SYS_FOLDERS) {
        rustix::fs::mkdir(own(folder).as_str(), Mode::from_raw_mode(0o755))?;
    }
    for (name, text) in files {
        std::fs::write(own(name), text)?;
    }
    restricted(paths::OWN_MACHINE)?;
    for name in IN_PROC {
        match cover(&own(name), &below_root(&format!("/proc/{name}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&below_root(&format!("/proc/{name}")))?,
            done => done?,
        }
    }
    cover(&own("sys"), &below_root("/sys"))
}

/// Returns an error if the path exists.
fn missing(path: &str) -> io::Result<()> {
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(error.into()),
    }
}

fn read_only(path: &str) -> io::Result<()> {
    let path = below_root(path);
    let mount = copy_of(&path)?;
    sys::mount::restrict(
        mount.as_fd(),
        Attributes::READ_ONLY
            .and(Attributes::NO_SUID)
            .and(Attributes::NO_EXEC)
            .and(Attributes::NO_DEV),
    )?;
    attach(&mount, &path)
}

fn pivot() -> io::Result<()> {
    rustix::process::chdir(paths::NEW_ROOT)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    let root = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    sys::mount::restrict(root.as_fd(), Attributes::READ_ONLY)
}

fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    sys::misc::loopback_up(socket.as_fd())
}

/// Limits are only lowered: a hard limit that is already lower stays.
fn lower_limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    use rustix::process::Resource as Kernel;
    let resource = match resource {
        Resource::Core => Kernel::Core,
        Resource::Data => Kernel::Data,
        Resource::FileSize => Kernel::Fsize,
        Resource::LockedMemory => Kernel::Memlock,
        Resource::MessageQueues => Kernel::Msgqueue,
        Resource::Nice => Kernel::Nice,
        Resource::OpenFiles => Kernel::Nofile,
        Resource::Processes => Kernel::Nproc,
        Resource::RealTimePriority => Kernel::Rtprio,
        Resource::PendingSignals => Kernel::Sigpending,
        Resource::Stack => Kernel::Stack,
    };
    let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let maximum = hard.min(most);
    rustix::process::setrlimit(
        resource,
        Rlimit {
            current: Some(soft.min(maximum)),
            maximum: Some(maximum),
        },
    )?;
    Ok(())
}

/// Restricts the process to some of the allowed cores, from a random one on, so that sandboxes spread over the machine.
fn limit_cores(count: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut random = [0_u8; 2];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let start = usize::from(u16::from_le_bytes(random)) % cores.len().max(1);
    let mut chosen = CpuSet::new();
    for core in cores.iter().cycle().skip(start).take(count.min(cores.len())) {
        chosen.set(*core);
    }
    Ok(sched_setaffinity(None, &chosen)?)
}

fn drop_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that the kernel does not know ends the list.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    no_capabilities()
}

/// Drops all capabilities except the one to enter namespaces below its own, which survives exec.
fn only_entering() -> io::Result<()> {
    let kept = CapabilitySet::SYS_ADMIN;
    rustix::thread::clear_ambient_capability_set()?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if capability == kept {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: kept,
        },
    )?;
    Ok(rustix::thread::configure_capability_in_ambient_set(kept, true)?)
}

fn no_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )?;
    Ok(())
}
