//! Carries out the steps of a plan, in a process that was just cloned into its namespaces.
//!
//! All mounts are made by descriptor on a tree that no foreign code has touched. The first step that fails ends the
//! process. Its mounts disappear with its namespaces.

pub(crate) mod enter_program;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, mount_bind, mount_bind_recursive,
    move_mount, open_tree, unmount,
};
use rustix::process::{Pid, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::kernel_files::write_once;
use crate::landlock;
use crate::masked_paths::{BOOT_ID, MASKED_FOLDERS};
use crate::paths;
use crate::plan::{FOLDERS, IN_PROC};
use crate::plan::{Inner, InnerView, Layer, Resource, Step, View, Writable, Zeros};
use crate::seccomp;
use crate::sys;
use crate::sys::mount::Attributes;

const PRIVATE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const READ_ONLY: MountFlags = PRIVATE.union(MountFlags::RDONLY);

/// Carries out one step.
pub(crate) fn run(step: &Step) -> io::Result<()> {
    match step {
        Step::Identity { id, drop_groups } => take_identity(*id, *drop_groups),
        Step::DieWithLauncher => Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?),
        Step::Root => mount_layers(&[paths::TOP_LAYER, paths::NEW_ROOT], paths::NEW_ROOT),
        Step::TopLayer => Ok(mount_bind(paths::TOP_LAYER, paths::NEW_ROOT)?),
        Step::Folder { path } => make_folders(path),
        Step::Link { path, target } => Ok(rustix::fs::symlink(target.as_str(), below_root(path))?),
        Step::Tree { view, path } => mount_tree(view, &below_root(path)),
        // The top layer is mounted there with the mount points made so far.
        Step::ImageRoot => mount_layers(&[paths::NEW_ROOT, paths::IMAGE_TREE], paths::NEW_ROOT),
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
        Step::Proc => mount_proc(),
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
        Step::RestOfSystemCalls { memory_is_charged } => {
            sys::misc::install_filter(seccomp::filter_of_first_process(*memory_is_charged))
        }
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

/// Mounts a new file system. The kernel takes at most a page of options, which are all ours and short.
fn mount_new(kind: &str, path: &str, flags: MountFlags, options: &str) -> io::Result<()> {
    Ok(mount("none", path, kind, flags, CString::new(options)?.as_c_str())?)
}

/// Mounts a read-only overlay of layers, the top one first.
fn mount_layers(layers: &[&str], path: &str) -> io::Result<()> {
    let options = format!("userxattr,lowerdir={}", layers.join(":"));
    mount_new("overlay", path, READ_ONLY, &options)
}

/// Mounts a read-only view of a tree.
fn mount_tree(view: &View, path: &str) -> io::Result<()> {
    match view {
        View::Overlay(source) => mount_layers(&[paths::EMPTY_FOLDER, source], path),
        View::OverlayWith { source, below } => mount_layers(&[paths::EMPTY_FOLDER, source, below], path),
        View::Bind(_) => attach(&tree(view)?, path),
    }
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
    mount_layers(&[paths::EMPTY_FOLDER, source], paths::OWN_FILES)
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
        (InnerView::Covered, _) => {
            let cover = if is_folder(&place)? {
                paths::NO_FOLDER
            } else {
                paths::NO_FILE
            };
            copy_of(format!("{}/{cover}", paths::COVERS))?
        }
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
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
    } else {
        options.push(("lowerdir", format!("{}:{source}", paths::EMPTY_FOLDER)));
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_RDONLY
    };
    fresh("overlay", &options, attributes)
}

/// Binds one of the sandbox's own files over `path`. The restrictions of its mount hold there as well.
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
    let [folder, file] = [paths::NO_FOLDER, paths::NO_FILE].map(|name| format!("{}/{name}", paths::COVERS));
    match cover_either(path, &folder, &file) {
        Err(_) if matches!(rustix::fs::stat(path), Err(error) if is_out_of_reach(error)) => Ok(()),
        done => done,
    }
}

/// Returns true if the sandbox's user cannot reach a path. Any other error is a failure.
fn is_out_of_reach(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
}

/// The space for the top layer of the root and the private folders, in bytes (a page for each file) and in inodes.
const TOP_LAYER_BYTES: u64 = 64 << 10;
const TOP_LAYER_INODES: u64 = 40;

/// Mounts the private files. Makes the top layer of the root with the empty folder and the empty file that cover others.
fn work(bytes: u64, inodes: u64) -> io::Result<()> {
    let bytes = bytes.saturating_add(TOP_LAYER_BYTES);
    let inodes = inodes.saturating_add(TOP_LAYER_INODES);
    let options = format!("size={bytes},nr_inodes={inodes},mode=0755");
    mount_new("tmpfs", paths::PRIVATE_FILES, PRIVATE, &options)?;
    let folder = |name: &str, mode| rustix::fs::mkdir(in_top_layer(name).as_str(), Mode::from_raw_mode(mode));
    folder("", 0o755)?;
    for name in FOLDERS {
        folder(name, 0o755)?;
    }
    folder(&format!("proc/{}", paths::NO_FOLDER), 0o555)?;
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let empty = in_top_layer(&format!("proc/{}", paths::NO_FILE));
    rustix::fs::open(empty.as_str(), flags, Mode::from_raw_mode(0o444))?;
    Ok(())
}

fn in_top_layer(name: &str) -> String {
    format!("{}/{name}", paths::TOP_LAYER)
}

/// Writes the files that describe the machine, and a random boot id: the machine's would reveal that two sandboxes share
/// a machine.
fn machine(files: &[(&'static str, String)]) -> io::Result<()> {
    for (name, text) in files {
        std::fs::write(in_top_layer(name), text)?;
    }
    std::fs::write(in_top_layer("proc/boot_id"), random_id()?)
}

/// Returns a random id in the kernel's format of a boot id.
fn random_id() -> io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    // The version and the variant of a random UUID.
    let bits = u128::from_be_bytes(random) & !(0xF000 << 64) & !(0xC000 << 48) | (0x4000 << 64) | (0x8000 << 48);
    let id = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| id.get(range).unwrap_or_default());
    Ok(parts.join("-") + "\n")
}

fn work_folder(name: &str, path: &str, mode: u32) -> io::Result<()> {
    let source = format!("{}/{name}", paths::PRIVATE_FILES);
    rustix::fs::mkdir(source.as_str(), Mode::from_raw_mode(0o700))?;
    rustix::fs::chmod(source.as_str(), Mode::from_raw_mode(mode))?;
    Ok(mount_bind(source.as_str(), below_root(path).as_str())?)
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
        mount_bind(format!("{source}/{node}").as_str(), path.as_str())?;
    }
    Ok(())
}

fn devices(own_folder: bool, zeros: Zeros) -> io::Result<()> {
    if own_folder {
        let path = below_root("/dev");
        mount_new("tmpfs", &path, MountFlags::NOSUID, "size=64k,nr_inodes=64,mode=0755")?;
        devices_from(paths::DEVICE_FOLDER, &path, zeros)?;
        // The nodes and the folder are restricted in place, since a copy would be additional mounts.
        let folder = open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
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
    let options = "newinstance,ptmxmode=0666,mode=0620,max=64";
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount_new("devpts", &below_root("/dev/pts"), flags, options)
}

/// Mounts a /proc. The working folder becomes the one that it hides.
fn mount_proc() -> io::Result<()> {
    let path = below_root("/proc");
    rustix::process::chdir(path.as_str())?;
    mount_new("proc", &path, PRIVATE | MountFlags::NOEXEC, "")
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

/// Covers a file or folder of /proc. The working folder has the covers.
fn mask_proc(name: &str) -> io::Result<()> {
    let path = below_root(&format!("/proc/{name}"));
    let covered = if name == BOOT_ID {
        cover("boot_id", &path)
    } else if IN_PROC.contains(&name) {
        cover(name, &path)
    } else if MASKED_FOLDERS.contains(&name) {
        cover_either(&path, paths::NO_FOLDER, paths::NO_FILE)
    } else {
        cover_either(&path, paths::NO_FILE, paths::NO_FOLDER)
    };
    match covered {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&path),
        done => done,
    }
}

/// Returns an error if the path exists.
fn missing(path: &str) -> io::Result<()> {
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a folder read-only by a mount of itself, with the covers below it.
fn read_only(path: &str) -> io::Result<()> {
    let path = below_root(path);
    mount_bind_recursive(path.as_str(), path.as_str())?;
    let attributes = Attributes::READ_ONLY.and(Attributes::NO_SUID).and(Attributes::NO_EXEC);
    sys::mount::restrict_at(&path, attributes.and(Attributes::NO_DEV))
}

/// Makes the new root the root. It is mounted read-only.
fn pivot() -> io::Result<()> {
    rustix::process::chdir(paths::NEW_ROOT)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_has_the_kernels_format_and_differs_each_time() {
        let [one, other] = [(), ()].map(|()| random_id().unwrap());
        assert_ne!(one, other);
        for id in [one, other] {
            let parts: Vec<&str> = id.trim_end().split('-').collect();
            assert_eq!(
                parts.iter().map(|part| part.len()).collect::<Vec<_>>(),
                [8, 4, 4, 4, 12]
            );
            assert!(id.ends_with('\n') && parts.concat().bytes().all(|byte| byte.is_ascii_hexdigit()));
            assert!(
                parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']),
                "{id}"
            );
        }
    }
}
