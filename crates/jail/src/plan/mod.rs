//! A jail as data: the steps that make one, in a working order.
//!
//! Making a plan is pure; `steps` carries it out. There are three entry points: [`make`] for a new jail, [`enter`] for
//! a process that joins a finished jail (a worker of a zygote), and [`attach`] for a read-only folder that is added to
//! a running jail (a package layer). All steps after `make` treat the jail's tree as hostile.

mod host;
mod layers;
mod machine;
pub mod without_namespaces;

use std::path::Path;

pub use host::{Folder, Host, Inner, InnerView, Shows, Tree, View};
pub use layers::Layer;
pub use machine::Machine;
pub(crate) use machine::{FOLDERS, IN_PROC};

use crate::masked_paths::MASKED_PATHS;
use crate::paths;
use crate::spec::{INSIDE_ID, Request, Template};

/// The maximum memory of a socket's buffer, in bytes: the kernel's default, which code inside cannot change.
pub(crate) const SOCKET_BUFFER_BYTES: u64 = 212_992;

/// One step of making a jail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each step's own comment says what it does")]
pub enum Step {
    /// Takes the inside user's id, and drops every other group.
    Identity { id: u32, drop_groups: bool },
    /// Makes the process die with the launcher.
    DieWithLauncher,
    /// Mounts a read-only root: the sandbox's top layer above the mount points that were prepared for all sandboxes
    /// ([`skeleton`]).
    Root,
    /// Shows the sandbox's top layer at the place of the root, to make mount points in it.
    TopLayer,
    /// Makes a folder below the new root.
    Folder { path: String },
    /// Makes a symbolic link below the new root.
    Link { path: String, target: String },
    /// Mounts a read-only tree of the host's files.
    Tree { view: View, path: String },
    /// Mounts a read-only root: the sandbox's top layer above the tree of an image. Its mount points replace any entries
    /// of the image at the same paths.
    ImageRoot,
    /// Hides a folder.
    Cover { path: String },
    /// Mounts the private files, and makes the top layer of the root in them. Home, /tmp, /var/tmp and /dev/shm share
    /// one budget.
    Work { bytes: u64, inodes: u64 },
    /// Mounts one folder of the private files at its path.
    WorkFolder {
        name: &'static str,
        path: String,
        mode: u32,
    },
    /// Mounts an operator's folder with a private copy-on-write layer.
    CopyOnWrite {
        source: String,
        path: String,
        number: usize,
    },
    /// Shows the private layer of a copy-on-write mount read-only, so that the agent can list it. Skips a mount that was
    /// skipped.
    MountLayer { layer: Layer },
    /// Mounts the copies of files that are mounted on single files, through a separate overlay.
    Files { source: String },
    /// Mounts a mount within a tree that was just mounted. Skips it if its mount point has disappeared, since the host
    /// may change it.
    Inner {
        tree: String,
        inner: Inner,
        writable: Writable,
    },
    /// Mounts the device nodes, and a private pseudo terminal instance. If the launcher could not make nodes for each
    /// sandbox, only the folder of the nodes is private.
    Devices { own_folder: bool, zeros: Zeros },
    /// Mounts a /proc of its PID namespace. The working folder becomes the one with the files that cover others.
    Proc,
    /// Forbids user namespaces below this one.
    NoUserNamespaces,
    /// Limits inotify instances and watches. The kernel also counts them for the owner of the user namespace. All
    /// sandboxes of an ordinary user have the same owner, so one sandbox must not use them all.
    Watches { instances: u32, watches: u32 },
    /// Limits the buffers of TCP sockets to the size of other sockets' buffers, so that the watchdog knows a socket's
    /// maximum memory.
    SocketBuffers,
    /// Covers a file or folder of /proc, if there is one: with the sandbox's own file of that name, else with nothing.
    MaskProc { name: &'static str },
    /// Writes the files of the top layer that show the processors and memory of the limits.
    Machine { files: Vec<(&'static str, String)> },
    /// Makes /proc/sys read-only.
    ReadOnlySysctl,
    /// Makes the first process's folder in /proc read-only.
    ReadOnlyFirst,
    /// Makes the new root the root, and unmounts the old one.
    Pivot,
    /// Sets the host name.
    HostName { name: &'static str },
    /// Brings up the loopback interface of its network namespace.
    Loopback,
    /// Lowers a resource limit of every process.
    ResourceLimit { resource: Resource, soft: u64, hard: u64 },
    /// Limits the number of cores, if no cgroup limits processor time.
    Cores { count: usize },
    /// Drops all capabilities, from every set.
    Capabilities,
    /// Prevents programs from gaining privileges.
    NoNewPrivileges,
    /// Applies Landlock: restricts reads and writes of files, and blocks signals and abstract sockets to the outside.
    Landlock {
        writable: Vec<String>,
        readable: Vec<String>,
        signals: Signals,
    },
    /// Without namespaces: restricts reads and writes of files, and blocks TCP, signals and abstract sockets to the
    /// outside.
    LandlockWithoutNamespaces(ReachableFiles),
    /// Without a user namespace: takes a separate host id, which only root can do.
    HostIdentity { id: u32 },
    /// Without a PID namespace: makes orphans children of this process.
    AdoptOrphans,
    /// Without a private root: makes the private folders, in a folder of the host.
    OwnFolders { folder: String },
    /// Without a user namespace: drops all capabilities that the process has.
    HeldCapabilities,
    /// Makes the agent undumpable, so that no process can read its memory.
    NotDumpable,
    /// Installs the system-call filter.
    SystemCalls { memory_is_charged: bool },
    /// Installs the rest of the system-call filter, on top of the fork server's.
    RestOfSystemCalls { memory_is_charged: bool },
    /// Installs the system-call filter for sandboxes without namespaces.
    FewerSystemCalls { memory_is_charged: bool },
    /// Drops all capabilities except the one to enter namespaces, which survives exec.
    OnlyEntering,
    /// Installs the filter of a zygote: the system calls of sandboxes, and those that its workers need to enter one.
    SystemCallsOfZygote,
}

/// The write access to a mount within an operator's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writable {
    /// It is read-only.
    No,
    /// It has a private copy-on-write layer, named by the folder's number and the mount's number within it.
    Privately(usize, usize),
}

/// The processes to which a process's Landlock rules let it send signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    /// Processes under the same rules.
    Inside,
    /// All processes of its PID namespace. A worker has separate rules, and the first process must be able to kill it.
    /// Programs that the first process starts have rules that restrict signals.
    ToWorkers,
}

/// The host's files that a sandbox without a private root can reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReachableFiles {
    /// Its private folder.
    pub private: String,
    /// Folders and files that it can read and execute.
    pub readable: Vec<String>,
    /// Devices that it can read and write.
    pub devices: Vec<String>,
    /// Folders and files that only the agent may read.
    pub agent: Vec<String>,
}

/// The device behind `/dev/zero`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// The real device.
    Device,
    /// The device `full`, which reads the same but cannot be mapped. Used if memory that belongs to no process would be
    /// charged to nobody.
    Full,
}

impl Zeros {
    /// Returns the device to use.
    pub(crate) const fn on(memory_is_charged: bool) -> Self {
        if memory_is_charged { Self::Device } else { Self::Full }
    }

    /// Returns the name of the device node.
    pub(crate) const fn node(self) -> &'static str {
        match self {
            Self::Device => "zero",
            Self::Full => "full",
        }
    }

    /// Returns the minor number of the device node.
    pub(crate) const fn minor(self) -> u32 {
        match self {
            Self::Device => 5,
            Self::Full => 7,
        }
    }
}

/// A resource limit that the kernel enforces for each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
pub enum Resource {
    Core,
    Data,
    FileSize,
    LockedMemory,
    MessageQueues,
    Nice,
    OpenFiles,
    Processes,
    RealTimePriority,
    PendingSignals,
    Stack,
}

impl Step {
    /// Returns the step's name in errors and in the fault loop.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Identity { .. } => "take the inside identity".into(),
            Self::DieWithLauncher => "die with the launcher".into(),
            Self::Root | Self::TopLayer => "make the root".into(),
            Self::Folder { path } => format!("make folder {path}"),
            Self::Link { path, .. } => format!("make link {path}"),
            Self::Tree { path, .. } => format!("mount {path}"),
            Self::ImageRoot => "mount the image".into(),
            Self::Cover { path } => format!("cover {path}"),
            Self::Work { .. } => "mount the private files".into(),
            Self::WorkFolder { path, .. } => format!("mount private {path}"),
            Self::CopyOnWrite { path, .. } => format!("mount copy-on-write {path}"),
            Self::MountLayer { layer } => format!("show the layer {}", layer.name()),
            Self::Files { .. } => "mount copies of files".into(),
            Self::Inner { tree, inner, .. } => format!("mount {tree}/{}", inner.path.display()),
            Self::Devices { .. } => "mount /dev".into(),
            Self::Proc => "mount /proc".into(),
            Self::NoUserNamespaces => "forbid user namespaces".into(),
            Self::Watches { .. } => "limit watches".into(),
            Self::SocketBuffers => "limit buffers of sockets".into(),
            Self::MaskProc { name } => format!("mask /proc/{name}"),
            Self::Machine { .. } => "describe the machine".into(),
            Self::ReadOnlySysctl => "make /proc/sys read-only".into(),
            Self::ReadOnlyFirst => "make /proc/1 read-only".into(),
            Self::Pivot => "change the root".into(),
            Self::HostName { .. } => "set the host name".into(),
            Self::Loopback => "bring up loopback".into(),
            Self::ResourceLimit { resource, .. } => format!("limit {resource:?}"),
            Self::Cores { .. } => "limit cores".into(),
            Self::Capabilities => "drop capabilities".into(),
            Self::NoNewPrivileges => "forbid new privileges".into(),
            Self::Landlock { .. } | Self::LandlockWithoutNamespaces(_) => "restrict files with Landlock".into(),
            Self::HostIdentity { .. } => "take a host identity".into(),
            Self::AdoptOrphans => "take care of orphans".into(),
            Self::OwnFolders { .. } => "make the private folders".into(),
            Self::HeldCapabilities => "drop capabilities".into(),
            Self::NotDumpable => "hide the agent's memory".into(),
            Self::SystemCalls { .. }
            | Self::RestOfSystemCalls { .. }
            | Self::FewerSystemCalls { .. }
            | Self::SystemCallsOfZygote => "restrict system calls".into(),
            Self::OnlyEntering => "drop capabilities".into(),
        }
    }

    /// Returns the isolation layer that is missing when this step fails.
    #[must_use]
    pub fn layer(&self) -> Option<&'static str> {
        match self {
            Self::Identity { .. } | Self::NoUserNamespaces | Self::Watches { .. } => Some("user_namespace"),
            Self::Work { .. }
            | Self::Root
            | Self::TopLayer
            | Self::Tree { .. }
            | Self::ImageRoot
            | Self::Cover { .. }
            | Self::CopyOnWrite { .. }
            | Self::MountLayer { .. }
            | Self::Files { .. }
            | Self::Inner { .. }
            | Self::Devices { .. }
            | Self::Pivot => Some("private_root"),
            Self::Proc | Self::MaskProc { .. } | Self::Machine { .. } | Self::ReadOnlySysctl | Self::ReadOnlyFirst => {
                Some("private_proc")
            }
            Self::HostName { .. } => Some("uts_namespace"),
            Self::Loopback | Self::SocketBuffers => Some("network_namespace"),
            Self::ResourceLimit { .. } | Self::Cores { .. } => Some("resource_limits"),
            Self::Capabilities | Self::HeldCapabilities | Self::OnlyEntering => Some("capabilities"),
            Self::NoNewPrivileges => Some("no_new_privileges"),
            Self::Landlock { .. } | Self::LandlockWithoutNamespaces(_) => Some("landlock"),
            Self::NotDumpable => Some("hidden_agent"),
            Self::SystemCalls { .. }
            | Self::RestOfSystemCalls { .. }
            | Self::FewerSystemCalls { .. }
            | Self::SystemCallsOfZygote => Some("seccomp"),
            Self::DieWithLauncher
            | Self::HostIdentity { .. }
            | Self::AdoptOrphans
            | Self::OwnFolders { .. }
            | Self::Folder { .. }
            | Self::Link { .. }
            | Self::WorkFolder { .. } => None,
        }
    }
}

/// The layers of the `namespace` level, in the order of reports.
pub const NAMESPACE_LEVEL_LAYERS: [&str; 16] = [
    "user_namespace",
    "mount_namespace",
    "pid_namespace",
    "network_namespace",
    "ipc_namespace",
    "uts_namespace",
    "cgroup_namespace",
    "private_root",
    "private_proc",
    "empty_environment",
    "resource_limits",
    "capabilities",
    "no_new_privileges",
    "landlock",
    "hidden_agent",
    "seccomp",
];

/// The inotify instances of a sandbox that shares its owner. The usual limit of an owner is 128.
const MAX_INOTIFY_INSTANCES: u32 = 8;

/// The number of files and folders that such a sandbox may watch. The usual limit of an owner is at least 8192.
const MAX_INOTIFY_WATCHES: u32 = 1024;

/// The inodes for the mount points of an image's root. They are folders among the private files.
const MAX_IMAGE_MOUNT_POINTS: u64 = 64;

/// Returns the steps of a new jail: the work of its first process, in order, directly after the clone into its
/// namespaces.
#[must_use]
pub fn make(host: &Host, template: &Template, request: &Request) -> Vec<Step> {
    let mut steps = vec![
        Step::Identity {
            id: INSIDE_ID,
            drop_groups: host.root,
        },
        Step::DieWithLauncher,
    ];
    tree_steps(host, request, &mut steps);
    steps.push(Step::Devices {
        own_folder: !host.root,
        zeros: Zeros::on(host.memory_is_charged),
    });
    steps.push(Step::WorkFolder {
        name: "shm",
        path: "/dev/shm".into(),
        mode: 0o1777,
    });
    steps.push(Step::Proc);
    steps.push(Step::NoUserNamespaces);
    // Sandboxes that can be entered share an owner above them.
    if !host.root || template.enterable {
        steps.push(Step::Watches {
            instances: MAX_INOTIFY_INSTANCES,
            watches: MAX_INOTIFY_WATCHES,
        });
    }
    steps.push(Step::SocketBuffers);
    steps.extend(MASKED_PATHS.map(|name| Step::MaskProc { name }));
    steps.extend(IN_PROC.map(|name| Step::MaskProc { name }));
    steps.push(Step::ReadOnlySysctl);
    if host.first_is_reached {
        steps.push(Step::ReadOnlyFirst);
    }
    steps.push(Step::Pivot);
    steps.push(Step::HostName { name: "sandcell" });
    steps.push(Step::Loopback);
    steps.extend(resource_limits(host, request));
    steps.push(Step::Capabilities);
    steps.push(Step::NoNewPrivileges);
    steps.push(landlock(
        host,
        template,
        if template.enterable {
            Signals::ToWorkers
        } else {
            Signals::Inside
        },
    ));
    steps.push(Step::NotDumpable);
    let memory_is_charged = host.memory_is_charged;
    steps.push(if host.first_is_filtered {
        Step::RestOfSystemCalls { memory_is_charged }
    } else {
        Step::SystemCalls { memory_is_charged }
    });
    steps
}

/// Returns the number of leading steps that depend on the request only by the size of its private files.
pub(crate) fn ahead(steps: &[Step]) -> usize {
    let limits = steps
        .iter()
        .position(|step| matches!(step, Step::ResourceLimit { .. } | Step::Cores { .. }));
    limits.unwrap_or(0)
}

/// Returns the steps of a process that enters a finished jail's namespaces: it locks itself as the jail's first process
/// did.
#[must_use]
pub fn enter(host: &Host, template: &Template, request: &Request) -> Vec<Step> {
    let mut steps = vec![
        Step::Identity {
            id: INSIDE_ID,
            drop_groups: host.root,
        },
        Step::DieWithLauncher,
    ];
    steps.extend(resource_limits(host, request));
    steps.push(Step::Capabilities);
    steps.push(Step::NoNewPrivileges);
    steps.push(landlock(host, template, Signals::Inside));
    steps.push(Step::SystemCalls {
        memory_is_charged: host.memory_is_charged,
    });
    steps
}

/// Returns the steps of a zygote in private namespaces before it executes the interpreter. It sees the trees that
/// sandboxes see, no /proc, and only empty mount points of the operator's folders. It can only enter namespaces whose
/// descriptors it receives.
pub(crate) fn zygote(host: &Host) -> Vec<Step> {
    let host = Host {
        mounts: Vec::new(),
        ..host.clone()
    };
    let request = Request {
        memory: 0,
        cpu_milli: 0,
        processes: 0,
        disk: 64 << 20,
        inodes: 4096,
        fault: None,
    };
    let mut steps = vec![Step::DieWithLauncher];
    tree_steps(&host, &request, &mut steps);
    steps.extend([
        Step::Devices {
            own_folder: !host.root,
            zeros: Zeros::on(host.memory_is_charged),
        },
        Step::WorkFolder {
            name: "shm",
            path: "/dev/shm".into(),
            mode: 0o1777,
        },
        Step::Pivot,
        Step::HostName { name: "sandcell" },
        Step::ResourceLimit {
            resource: Resource::Core,
            soft: 0,
            hard: 0,
        },
        Step::OnlyEntering,
        Step::NoNewPrivileges,
        Step::SystemCallsOfZygote,
    ]);
    steps
}

/// A read-only folder to add to a running jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The source in the launcher's root.
    pub source: String,
    /// The mount point inside: one of those prepared below [`paths::PACKAGE_LAYERS`].
    pub path: String,
}

/// The maximum number of attached folders in one jail. Their mount points are made with the jail.
pub const MAX_ATTACHMENTS: usize = 16;

/// Returns the attachment of folder number `number`. None if there are no more mount points.
#[must_use]
pub fn attach(source: &str, number: usize) -> Option<Attachment> {
    (number < MAX_ATTACHMENTS).then(|| Attachment {
        source: source.to_owned(),
        path: format!("{}/{number}", paths::PACKAGE_LAYERS),
    })
}

/// Returns true if a path is in a private writable folder.
fn is_private(path: &str) -> bool {
    ["/home/user", "/tmp", "/var/tmp"]
        .iter()
        .any(|folder| Path::new(path).starts_with(folder))
}

fn tree_steps(host: &Host, request: &Request, steps: &mut Vec<Step>) {
    let mount_points = match host.shows {
        Shows::System => 0,
        Shows::Image => MAX_IMAGE_MOUNT_POINTS,
    };
    steps.push(Step::Work {
        bytes: request.disk,
        inodes: request.inodes.saturating_add(mount_points),
    });
    steps.push(Step::Machine {
        files: host.machine.files(request.memory, request.cpu_milli),
    });
    match host.shows {
        Shows::System => system_steps(host, steps),
        Shows::Image => image_steps(host, steps),
    }
}

/// Adds the root of an image. Its mount points are made first, since the image is read-only afterwards.
fn image_steps(host: &Host, steps: &mut Vec<Step>) {
    let folder = |path: &str| Step::Folder { path: path.to_owned() };
    steps.push(Step::TopLayer);
    steps.extend(["/proc", "/sys", "/dev", "/home/user", "/tmp", "/var/tmp"].map(folder));
    steps.extend((0..MAX_ATTACHMENTS).map(|number| folder(&format!("{}/{number}", paths::PACKAGE_LAYERS))));
    let outside = host.mounts.iter().filter(|mount| !is_private(&mount.tree.path));
    steps.extend(outside.map(|mount| folder(&mount.tree.path)));
    steps.push(Step::ImageRoot);
    steps.extend(files_of_their_own(host));
    private_folders(steps);
    operators_folders(host, steps);
}

fn private_folders(steps: &mut Vec<Step>) {
    for (name, path, mode) in [
        ("home", "/home/user", 0o755),
        ("tmp", "/tmp", 0o1777),
        ("vartmp", "/var/tmp", 0o1777),
    ] {
        steps.push(Step::WorkFolder {
            name,
            path: path.into(),
            mode,
        });
    }
}

/// Returns the steps that mount a read-only tree with the mounts within it.
fn show(tree: &Tree) -> Vec<Step> {
    let (view, path) = (tree.view.clone(), tree.path.clone());
    let mut steps = vec![Step::Folder { path: path.clone() }, Step::Tree { view, path }];
    steps.extend(inner_steps(tree, |_| Writable::No));
    steps
}

fn inner_steps(tree: &Tree, writable: impl Fn(usize) -> Writable) -> impl Iterator<Item = Step> {
    tree.inner.iter().enumerate().map(move |(number, inner)| Step::Inner {
        tree: tree.path.clone(),
        inner: inner.clone(),
        writable: writable(number),
    })
}

fn files_of_their_own(host: &Host) -> Option<Step> {
    host.files.clone().map(|source| Step::Files { source })
}

fn operators_folders(host: &Host, steps: &mut Vec<Step>) {
    for (number, Folder { tree, copy_on_write }) in host.mounts.iter().enumerate() {
        match &tree.view {
            View::Overlay(source) if *copy_on_write => {
                let (source, path) = (source.clone(), tree.path.clone());
                steps.push(Step::Folder { path: path.clone() });
                steps.push(Step::CopyOnWrite { source, path, number });
                steps.extend(inner_steps(tree, |inner| Writable::Privately(number, inner)));
                steps.extend(layers::all(tree, number).map(|(layer, _)| Step::MountLayer { layer }));
            }
            _ => steps.extend(show(tree)),
        }
    }
}

/// Returns the steps that make the mount points and links of every sandbox's root, once.
pub(crate) fn skeleton(host: &Host) -> Vec<Step> {
    let folder = |path: &str| Step::Folder { path: path.to_owned() };
    let mut steps: Vec<Step> = [
        "/usr", "/etc", "/home", "/tmp", "/var", "/proc", "/sys", "/dev", "/opt", "/mnt",
    ]
    .map(folder)
    .to_vec();
    steps.extend(["/home/user", "/var/tmp", paths::PACKAGE_LAYERS].map(folder));
    steps.extend((0..MAX_ATTACHMENTS).map(|number| folder(&format!("{}/{number}", paths::PACKAGE_LAYERS))));
    steps.extend(
        host.mounts
            .iter()
            .enumerate()
            .flat_map(|(number, folder)| layers::places(folder, number)),
    );
    // Node searches for packages in each parent folder of a program, even of one in /tmp.
    steps.push(Step::Link {
        path: "/node_modules".to_owned(),
        target: "home/user/node_modules".to_owned(),
    });
    steps.extend(host.links.iter().map(|(path, target)| Step::Link {
        path: path.clone(),
        target: target.clone(),
    }));
    let mounts = host.mounts.iter().map(|mount| &mount.tree);
    let shown = host.trees.iter().chain(mounts).map(|tree| &tree.path);
    // A path through a link belongs to another tree.
    let linked = |path: &str| host.links.iter().any(|(link, _)| Path::new(path).starts_with(link));
    let needed = shown.filter(|path| !is_private(path) && !linked(path));
    steps.extend(needed.map(|path| folder(path)));
    steps
}

fn system_steps(host: &Host, steps: &mut Vec<Step>) {
    steps.push(Step::Root);
    // A tree below a private folder (a virtual environment in /tmp) is mounted after that folder, which would hide it.
    steps.extend(files_of_their_own(host));
    let (late, early): (Vec<_>, Vec<_>) = host.trees.iter().partition(|tree| is_private(&tree.path));
    steps.extend(early.into_iter().flat_map(show));
    steps.extend(host.covered.iter().map(|path| Step::Cover { path: path.clone() }));
    private_folders(steps);
    steps.extend(late.into_iter().flat_map(show));
    operators_folders(host, steps);
}

/// Returns the steps of an agent in a container made by others, before it serves. It locks itself and all its
/// descendants, as far as an unprivileged process can. The container provides namespaces, files and cgroups. `memory`
/// and `disk` are its limits for all processes and files, in bytes.
pub(crate) fn contained(memory: u64, disk: u64, processes: Option<u64>) -> Vec<Step> {
    let limit = |resource, soft, hard| Step::ResourceLimit { resource, soft, hard };
    let (data, file) = (memory.saturating_mul(2), disk.saturating_add(64 << 20));
    let counted = processes.map(|most| limit(Resource::Processes, most, most));
    let mut steps = vec![
        limit(Resource::Core, 0, 0),
        limit(Resource::Data, data, data),
        limit(Resource::FileSize, file, file),
        limit(Resource::LockedMemory, 64 << 10, 64 << 10),
        limit(Resource::MessageQueues, 819_200, 819_200),
        limit(Resource::Nice, 0, 0),
        limit(Resource::OpenFiles, 1024, 4096),
        limit(Resource::RealTimePriority, 0, 0),
        limit(Resource::PendingSignals, 1024, 1024),
        limit(Resource::Stack, 8 << 20, 64 << 20),
        Step::HeldCapabilities,
        Step::NoNewPrivileges,
        Step::NotDumpable,
        Step::SystemCalls {
            memory_is_charged: true,
        },
    ];
    steps.splice(..0, counted);
    steps
}

/// Returns the steps of an agent in a container that installs system packages: the steps of [`contained`] that leave
/// root its power over files. No caller's code runs in such a container.
pub(crate) fn installing() -> Vec<Step> {
    let limit = |resource, soft, hard| Step::ResourceLimit { resource, soft, hard };
    vec![
        limit(Resource::Core, 0, 0),
        limit(Resource::MessageQueues, 819_200, 819_200),
        limit(Resource::OpenFiles, 1024, 4096),
        Step::NoNewPrivileges,
        Step::NotDumpable,
        Step::SystemCalls {
            memory_is_charged: true,
        },
    ]
}

/// Returns the memory that the watchdog counts in addition to the data of one process at its limit, in bytes: its page
/// tables and its snapshot's (a 512th each), the first process, and open files. A program that continues after a memory
/// error must not be killed for these.
const fn uncounted(memory: u64) -> u64 {
    memory / 64 + (1 << 20)
}

pub(crate) fn resource_limits(host: &Host, request: &Request) -> Vec<Step> {
    let limit = |resource, soft, hard| Step::ResourceLimit { resource, soft, hard };
    // Private writable memory of one process. With cgroups this only turns a single absurd allocation into a clean
    // error in the program. Without them it is the limit of one process.
    let data = if host.memory_is_charged {
        request.memory.saturating_mul(2)
    } else {
        request.memory.saturating_sub(uncounted(request.memory))
    };
    // Cgroups charge the memory of descriptors. Without cgroups, a user may have as many descriptors in flight as one
    // of its processes may have open. Beyond that, no process with the same limit can pass any.
    let open_files = if host.memory_is_charged { 4096 } else { 1024 };
    let mut steps = vec![
        limit(Resource::Core, 0, 0),
        limit(Resource::Data, data, data),
        // Slightly above the disk limit, so that a full disk is reported as such.
        limit(
            Resource::FileSize,
            request.disk.saturating_add(64 << 20),
            request.disk.saturating_add(64 << 20),
        ),
        limit(Resource::LockedMemory, 64 << 10, 64 << 10),
        limit(Resource::MessageQueues, 819_200, 819_200),
        limit(Resource::Nice, 0, 0),
        limit(Resource::OpenFiles, 1024, open_files),
        limit(
            Resource::Processes,
            u64::from(request.processes) + 1,
            u64::from(request.processes) + 1,
        ),
        limit(Resource::RealTimePriority, 0, 0),
        limit(Resource::PendingSignals, 1024, 1024),
        limit(Resource::Stack, 8 << 20, 64 << 20),
    ];
    if !host.memory_is_charged {
        let cores = usize::try_from(request.cpu_milli.div_ceil(1000)).unwrap_or(1);
        steps.push(Step::Cores { count: cores.max(1) });
    }
    steps
}

fn landlock(host: &Host, template: &Template, signals: Signals) -> Step {
    let mut readable: Vec<String> = match host.shows {
        Shows::System => ["/usr", "/etc", "/proc", "/sys", paths::PACKAGE_LAYERS]
            .map(str::to_owned)
            .to_vec(),
        // An image has files at any path. All mounts belong to the image or to the sandbox.
        Shows::Image => vec!["/".to_owned()],
    };
    if host.shows == Shows::System {
        readable.extend(host.trees.iter().map(|tree| tree.path.clone()));
        readable.extend(host.copied.iter().cloned());
    }
    let mut writable: Vec<String> = ["/home/user", "/tmp", "/var/tmp", "/dev", "/proc"]
        .map(str::to_owned)
        .to_vec();
    for mount in &template.mounts {
        let list = if mount.copy_on_write {
            &mut writable
        } else {
            &mut readable
        };
        list.push(mount.sandbox.clone());
    }
    // In sorted order, a folder precedes all paths below it. A rule for the folder covers them, including mounts.
    readable.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
    readable.dedup_by(|lower, upper| Path::new(lower).starts_with(&*upper));
    Step::Landlock {
        writable,
        readable,
        signals,
    }
}

#[cfg(test)]
mod tests;
