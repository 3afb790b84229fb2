//! A jail as data: the steps that make one, in the order that works.
//!
//! Making a plan is pure; `steps` carries it out. There are three entry points: [`make`] a jail from nothing,
//! [`enter`] for a process that joins a finished jail (a warmed interpreter), and [`attach`] for a read-only folder that
//! appears in a running jail later (a package layer). Whatever comes after `make` treats the jail's tree as hostile.

mod host;

use std::path::Path;

pub use host::{Folder, Host, Inner, InnerView, Shows, Tree, View};

use crate::masked::MASKED;
use crate::spec::{INSIDE_ID, Request, Template};

/// The launcher's own root: the host below one folder, what sandboxes are made of below another.
pub mod place {
    use std::sync::atomic::{AtomicBool, Ordering};

    /// The host's root, as the launcher sees it: below a folder of its own root, or, where it could not make itself a
    /// root, as it is. One of the two for the whole life of the process.
    #[must_use]
    pub fn host() -> &'static str {
        if AS_IT_IS.load(Ordering::Relaxed) { "" } else { "/host" }
    }

    /// The launcher has no root of its own.
    pub(crate) fn host_is_as_it_is() {
        AS_IT_IS.store(true, Ordering::Relaxed);
    }

    static AS_IT_IS: AtomicBool = AtomicBool::new(false);
    /// Where read-only sources stand, one numbered folder each; these short names are all that a mount table shows.
    pub const LOWER: &str = "/l";
    /// An empty folder, the second lower that an overlay needs.
    pub const NOTHING: &str = "/l/none";
    /// The folders of files that only sandboxes have, numbered, one for each tree.
    pub const ADDED: &str = "/l/added";
    /// Where a folder stands for the moment in which a view of it is made for a running sandbox.
    pub const ATTACHED: &str = "/l/layer";
    /// Where the tree of an image stands while a sandbox is made of it.
    pub const IMAGE: &str = "/l/image";
    /// The device nodes.
    pub const DEVICES: &str = "/l/dev";
    /// Where a sandbox's root is put together, over the mount points and the stub of /etc that all of them have.
    pub const ROOT: &str = "/new";
    /// The stub of /etc.
    pub const ETC: &str = "/new/etc";
    /// Where a sandbox's private files are mounted while it is put together.
    pub const OWN: &str = "/own";
    /// An empty folder of the sandbox's own, to cover folders with: what is locked or watched there stays inside.
    pub const OWN_NOTHING: &str = "/own/none";
    /// An empty file of the sandbox's own, to cover files with.
    pub const OWN_NO_FILE: &str = "/own/nofile";
    /// The files that describe the machine to the sandbox.
    pub const OWN_MACHINE: &str = "/own/machine";
    /// A name of its own for the boot, since the machine's would tell sandboxes that they share one.
    pub const OWN_BOOT_ID: &str = "/own/boot";
    /// Copies of files that are mounted on single files of the host.
    pub const OWN_FILES: &str = "/own/files";
    /// Where package layers appear inside a sandbox.
    pub const LAYERS: &str = "/opt/sandcell";
}

/// A file system mounted with what limits it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each step's own comment says what it does")]
pub enum Step {
    /// Takes the inside user's id, and drops every other group.
    Identity { id: u32, drop_groups: bool },
    /// Dies when the launcher dies.
    DieWithLauncher,
    /// A read-only root of the mount points that were prepared once for all ([`skeleton`]), through an overlay of its own.
    Root,
    /// An empty root in memory.
    EmptyRoot,
    /// A folder below the new root.
    Folder { path: String },
    /// A symbolic link below the new root.
    Link { path: String, target: String },
    /// A read-only tree of the host's files.
    Tree { view: View, path: String },
    /// The tree of an image as the root, with the mount points that were made so far over it: whatever an image has in their
    /// place, they are folders of ours.
    ImageRoot,
    /// Hides a folder.
    Cover { path: String },
    /// The private writable files: home, /tmp, /var/tmp and /dev/shm share one budget.
    Work { bytes: u64, inodes: u64 },
    /// One folder of the private files at its place.
    WorkFolder {
        name: &'static str,
        path: String,
        mode: u32,
    },
    /// An operator's folder with a private copy-on-write layer.
    CopyOnWrite {
        source: String,
        path: String,
        number: usize,
    },
    /// The copies of files that are mounted on single files, through an overlay of the sandbox's own.
    Files { source: String },
    /// A mount within a tree that was just shown, unless its mount point is no longer there: the host may have changed it.
    Inner {
        tree: String,
        inner: Inner,
        writable: Writable,
    },
    /// The device nodes, and pseudo terminals of its own. Where the launcher could not make nodes for each sandbox,
    /// at least the folder they stand in is the sandbox's own.
    Devices { own_folder: bool, zeros: Zeros },
    /// A /proc of its own process namespace.
    Proc,
    /// No user namespaces below this one.
    NoUserNamespaces,
    /// At most this many inotify instances. The kernel counts them for the owner of the user namespace as well, who is
    /// the same for all sandboxes of an ordinary user: one must not take them all.
    Watches { instances: u32, watches: u32 },
    /// Buffers of TCP sockets do not grow beyond those of others, so that the watcher knows what a socket can hold.
    SocketBuffers,
    /// Hides a file or folder of /proc, if there is one.
    MaskProc { name: &'static str },
    /// Processors and memory are what the limits allow, in files of the sandbox's own over those of /proc and in /sys.
    Machine { files: Vec<(&'static str, String)> },
    /// /proc/sys cannot be written.
    ReadOnlySysctl,
    /// Nor can what /proc has of the first process.
    ReadOnlyFirst,
    /// The new root becomes the root; the old one goes.
    Pivot,
    /// The host name.
    HostName { name: &'static str },
    /// The loopback interface of its own network namespace.
    Loopback,
    /// A limit on every process, lowered only.
    ResourceLimit { resource: Resource, soft: u64, hard: u64 },
    /// At most this many cores, where no control group holds processor time.
    Cores { count: usize },
    /// All capabilities go, from every set.
    Capabilities,
    /// No program can gain rights.
    NoNewPrivileges,
    /// Landlock: which files may be read and written, and no signals or abstract sockets outwards.
    Landlock {
        writable: Vec<String>,
        readable: Vec<String>,
        signals: Signals,
    },
    /// Without namespaces: which files may be read and written, no TCP, no signals or abstract sockets outwards.
    Fence(Fence),
    /// Without a user namespace: takes an id of its own on the host, which only root can do.
    HostIdentity { id: u32 },
    /// Without a process namespace: who is orphaned becomes this process' child.
    AdoptOrphans,
    /// Without a root of its own: the private folders, in one of the host's.
    OwnFolders { folder: String },
    /// Without a user namespace: what there is of capabilities goes.
    HeldCapabilities,
    /// Nobody may look into the agent.
    NotDumpable,
    /// The system-call filter.
    SystemCalls { memory_is_charged: bool },
    /// The system-call filter where no namespace stands behind it.
    FewerSystemCalls { memory_is_charged: bool },
    /// All capabilities go but the one by which namespaces are entered, which stays when a program is executed.
    OnlyEntering,
    /// The filter of a warmed parent: what sandboxes may call, and what its children need to enter one.
    CallsOfParent,
}

/// Whether a mount within an operator's folder can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writable {
    /// It is read-only.
    No,
    /// It has a private copy-on-write layer, named by the number of the folder and of the mount within it.
    Privately(usize, usize),
}

/// Whom a process' Landlock rules let it send signals to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    /// Whoever is under the same rules.
    Inside,
    /// Everybody of its process namespace: a child of a warmed parent brings rules of its own, and the first process must
    /// be able to end it. What the first process starts is under rules that hold signals.
    ToVisitors,
}

/// What of the host's files a sandbox without a root of its own reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fence {
    /// Its private folder.
    pub private: String,
    /// Folders and files that can be read, and run.
    pub readable: Vec<String>,
    /// Devices that can be read and written.
    pub devices: Vec<String>,
    /// What only the agent may read.
    pub agent: Vec<String>,
}

/// What `/dev/zero` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// The device.
    Device,
    /// The device `full`, which reads the same but cannot be mapped: where memory that belongs to no process would be
    /// charged to nobody.
    Full,
}

impl Zeros {
    /// What it has to be.
    pub(crate) const fn on(memory_is_charged: bool) -> Self {
        if memory_is_charged { Self::Device } else { Self::Full }
    }

    /// The node that stands in its place.
    pub(crate) const fn node(self) -> &'static str {
        match self {
            Self::Device => "zero",
            Self::Full => "full",
        }
    }

    /// That node's number.
    pub(crate) const fn minor(self) -> u32 {
        match self {
            Self::Device => 5,
            Self::Full => 7,
        }
    }
}

/// A limit that the kernel keeps for each process.
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
    /// The step's name in errors and in the fault loop.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Identity { .. } => "take the inside identity".into(),
            Self::DieWithLauncher => "die with the launcher".into(),
            Self::Root | Self::EmptyRoot => "make the root".into(),
            Self::Folder { path } => format!("make folder {path}"),
            Self::Link { path, .. } => format!("make link {path}"),
            Self::Tree { path, .. } => format!("mount {path}"),
            Self::ImageRoot => "mount the image".into(),
            Self::Cover { path } => format!("cover {path}"),
            Self::Work { .. } => "mount the private files".into(),
            Self::WorkFolder { path, .. } => format!("mount private {path}"),
            Self::CopyOnWrite { path, .. } => format!("mount copy-on-write {path}"),
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
            Self::Landlock { .. } | Self::Fence(_) => "restrict files with Landlock".into(),
            Self::HostIdentity { .. } => "take a host identity".into(),
            Self::AdoptOrphans => "take care of orphans".into(),
            Self::OwnFolders { .. } => "make the private folders".into(),
            Self::HeldCapabilities => "drop capabilities".into(),
            Self::NotDumpable => "hide the agent's memory".into(),
            Self::SystemCalls { .. } | Self::FewerSystemCalls { .. } | Self::CallsOfParent => {
                "restrict system calls".into()
            }
            Self::OnlyEntering => "drop capabilities".into(),
        }
    }

    /// The isolation layer that is missing when this step fails.
    #[must_use]
    pub fn layer(&self) -> Option<&'static str> {
        match self {
            Self::Identity { .. } | Self::NoUserNamespaces | Self::Watches { .. } => Some("user_namespace"),
            Self::Root
            | Self::EmptyRoot
            | Self::Tree { .. }
            | Self::ImageRoot
            | Self::Cover { .. }
            | Self::CopyOnWrite { .. }
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
            Self::Landlock { .. } | Self::Fence(_) => Some("landlock"),
            Self::NotDumpable => Some("hidden_agent"),
            Self::SystemCalls { .. } | Self::FewerSystemCalls { .. } | Self::CallsOfParent => Some("seccomp"),
            Self::DieWithLauncher
            | Self::HostIdentity { .. }
            | Self::AdoptOrphans
            | Self::OwnFolders { .. }
            | Self::Folder { .. }
            | Self::Link { .. }
            | Self::Work { .. }
            | Self::WorkFolder { .. } => None,
        }
    }
}

/// The layers of the `namespace` level, in the order of reports.
pub const LAYERS: [&str; 16] = [
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

/// Inotify instances of a sandbox that shares its owner's; the usual limit of an owner is 128.
const WATCHES: u32 = 8;

/// Files and folders that such a sandbox may watch; the usual limit of an owner is 8192 at the least.
const WATCHED: u32 = 1024;

/// A jail from nothing: what its first process does, in order, from right after it was cloned into its namespaces.
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
    // Sandboxes that can be entered have a common owner above them.
    if !host.root || template.enterable {
        steps.push(Step::Watches {
            instances: WATCHES,
            watches: WATCHED,
        });
    }
    steps.push(Step::SocketBuffers);
    steps.extend(MASKED.map(|name| Step::MaskProc { name }));
    steps.push(Step::Machine {
        files: host.machine.files(request.memory, request.cpu_milli),
    });
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
            Signals::ToVisitors
        } else {
            Signals::Inside
        },
    ));
    steps.push(Step::NotDumpable);
    steps.push(Step::SystemCalls {
        memory_is_charged: host.memory_is_charged,
    });
    steps
}

/// How many steps of a jail's plan need of the request no more than how large its private files may become.
pub(crate) fn ahead(steps: &[Step]) -> usize {
    let limits = steps
        .iter()
        .position(|step| matches!(step, Step::ResourceLimit { .. } | Step::Cores { .. }));
    limits.unwrap_or(0)
}

/// What a process does that enters a finished jail's namespaces: it locks itself as the jail's first process did.
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

/// What a warmed parent's process does in namespaces of its own before it becomes the interpreter. It sees the trees that
/// sandboxes see, no /proc and of the operator's folders only where they would be, and can only enter namespaces that it is
/// handed.
pub(crate) fn parent(host: &Host) -> Vec<Step> {
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
        Step::CallsOfParent,
    ]);
    steps
}

/// A read-only folder that appears in a running jail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The source in the launcher's root.
    pub source: String,
    /// The mount point inside, one of those prepared below [`place::LAYERS`].
    pub path: String,
}

/// How many folders can appear in one jail; their mount points are prepared when it is made.
pub const ATTACHMENTS: usize = 16;

/// Where the `number`th attached folder appears, or none if there are no more mount points.
#[must_use]
pub fn attach(source: &str, number: usize) -> Option<Attachment> {
    (number < ATTACHMENTS).then(|| Attachment {
        source: source.to_owned(),
        path: format!("{}/{number}", place::LAYERS),
    })
}

/// Folders that are the sandbox's own and can be written.
fn is_private(path: &str) -> bool {
    ["/home/user", "/tmp", "/var/tmp"]
        .iter()
        .any(|folder| Path::new(path).starts_with(folder))
}

fn tree_steps(host: &Host, request: &Request, steps: &mut Vec<Step>) {
    match host.shows {
        Shows::System => system_steps(host, request, steps),
        Shows::Image => image_steps(host, request, steps),
    }
}

/// A root of an image. Its mount points are made first, since nothing can be made in it afterwards.
fn image_steps(host: &Host, request: &Request, steps: &mut Vec<Step>) {
    let folder = |path: &str| Step::Folder { path: path.to_owned() };
    steps.push(Step::EmptyRoot);
    steps.extend(["/proc", "/sys", "/dev", "/home/user", "/tmp", "/var/tmp"].map(folder));
    steps.extend((0..ATTACHMENTS).map(|number| folder(&format!("{}/{number}", place::LAYERS))));
    let outside = host.mounts.iter().filter(|mount| !is_private(&mount.tree.path));
    steps.extend(outside.map(|mount| folder(&mount.tree.path)));
    steps.push(Step::ImageRoot);
    steps.push(Step::Work {
        bytes: request.disk,
        inodes: request.inodes,
    });
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

/// A read-only tree at its place, with what is mounted within it.
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
            }
            _ => steps.extend(show(tree)),
        }
    }
}

/// The mount points and links of every sandbox's root, made once, where roots are put together.
pub(crate) fn skeleton(host: &Host) -> Vec<Step> {
    let folder = |path: &str| Step::Folder { path: path.to_owned() };
    let mut steps: Vec<Step> = [
        "/usr", "/etc", "/home", "/tmp", "/var", "/proc", "/sys", "/dev", "/opt", "/mnt",
    ]
    .map(folder)
    .to_vec();
    steps.extend(["/home/user", "/var/tmp", place::LAYERS].map(folder));
    steps.extend((0..ATTACHMENTS).map(|number| folder(&format!("{}/{number}", place::LAYERS))));
    // Node looks for packages in each folder above a program, also above one in /tmp.
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
    // What is reached through a link lies in another tree.
    let linked = |path: &str| host.links.iter().any(|(link, _)| Path::new(path).starts_with(link));
    let needed = shown.filter(|path| !is_private(path) && !linked(path));
    steps.extend(needed.map(|path| folder(path)));
    steps
}

fn system_steps(host: &Host, request: &Request, steps: &mut Vec<Step>) {
    steps.push(Step::Root);
    steps.push(Step::Work {
        bytes: request.disk,
        inodes: request.inodes,
    });
    // A tree below a private folder (a virtual environment in /tmp) comes after that folder, which would hide it.
    steps.extend(files_of_their_own(host));
    let (late, early): (Vec<_>, Vec<_>) = host.trees.iter().partition(|tree| is_private(&tree.path));
    steps.extend(early.into_iter().flat_map(show));
    steps.extend(host.covered.iter().map(|path| Step::Cover { path: path.clone() }));
    private_folders(steps);
    steps.extend(late.into_iter().flat_map(show));
    operators_folders(host, steps);
}

/// What an agent does that somebody else put into a container, before it serves: it locks itself, and with it all that it
/// starts, as far as a process without rights can. Namespaces, files and control groups are the container's; `memory` and
/// `disk` are what all processes and files together may have there, in bytes.
pub(crate) fn contained(memory: u64, disk: u64) -> Vec<Step> {
    let limit = |resource, soft, hard| Step::ResourceLimit { resource, soft, hard };
    let (data, file) = (memory.saturating_mul(2), disk.saturating_add(64 << 20));
    vec![
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
    ]
}

/// What a container's agent does to itself that installs system packages: those steps of [`contained`] that leave root
/// its powers over files. There is no code of a caller's in such a container.
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

/// What the watcher counts beside the data of one process that has all it may, in bytes: its page tables and its copy's (a 512th
/// each), the first process, open files. A program that goes on after an error for memory is not to be ended for that.
const fn uncounted(memory: u64) -> u64 {
    memory / 64 + (1 << 20)
}

pub(crate) fn resource_limits(host: &Host, request: &Request) -> Vec<Step> {
    let limit = |resource, soft, hard| Step::ResourceLimit { resource, soft, hard };
    // Private writable memory of one process. With control groups this only turns a single absurd allocation into a
    // clean error in the program; without them it is what holds one process.
    let data = if host.memory_is_charged {
        request.memory.saturating_mul(2)
    } else {
        request.memory.saturating_sub(uncounted(request.memory))
    };
    // What descriptors hold is charged with control groups. Without, a user has as many on the way between processes as
    // one of them may have open; beyond that nobody with the same limit can pass any.
    let open_files = if host.memory_is_charged { 4096 } else { 1024 };
    let mut steps = vec![
        limit(Resource::Core, 0, 0),
        limit(Resource::Data, data, data),
        // A little above the disk, so that a full disk is told as such.
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
        Shows::System => ["/usr", "/etc", "/proc", "/sys", place::LAYERS]
            .map(str::to_owned)
            .to_vec(),
        // An image has its files anywhere; all that is mounted is the image's or the sandbox's own.
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
    // Sorted, a folder stands before what lies below it; a rule on the folder holds there too, whatever is mounted.
    readable.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
    readable.dedup_by(|lower, upper| Path::new(lower).starts_with(&*upper));
    Step::Landlock {
        writable,
        readable,
        signals,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
