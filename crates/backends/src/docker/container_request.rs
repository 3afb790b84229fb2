//! Translates a sandbox specification into the daemon's container request. Pure.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, ImageInspect,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
};
use sandcell_jail::masked_paths::MASKED_PATHS;
use sandcell_sandbox::{HOME, LAYERS, Limits, MountMode, SandboxSpec};

use super::{agent, labels, mount_seed};
use crate::container::agent_program::{AGENT_PATH, Agent};

/// Memory for the agent and the kernel's process structures. It is added to the limit for programs.
const AGENT_MEMORY_BYTES: u64 = 8 << 20;
/// The properties of an image that its containers need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// Its digest. Containers start from the image that was inspected.
    pub(super) id: String,
    /// Its environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// Folders for which the daemon would create volumes without a size limit.
    pub(super) volumes: Vec<String>,
}

impl Image {
    pub(super) fn from_daemon(found: ImageInspect) -> Option<Self> {
        let config = found.config.unwrap_or_default();
        let pairs = config.env.unwrap_or_default();
        Some(Self {
            id: found.id?,
            env: pairs
                .iter()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            volumes: config.volumes.unwrap_or_default(),
        })
    }
}

/// Properties that all containers of a back end share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Common {
    /// The runtime; none: the daemon's default.
    pub(super) runtime: Option<String>,
    /// The operator's folders.
    pub(super) mounts: Vec<sandcell_sandbox::Mount>,
    /// The agent of each container.
    pub(super) agent: &'static Agent,
    /// The cores of the daemon's machine, in thousandths.
    pub(super) cores_milli: u32,
}

/// Returns the request for a sandbox's container.
pub(super) fn body(spec: &SandboxSpec, image: &Image, common: &Common, user: u32) -> ContainerCreateBody {
    let limits = &spec.limits;
    ContainerCreateBody {
        image: Some(image.id.clone()),
        hostname: Some("sandcell".to_owned()),
        user: Some(format!("{user}:{user}")),
        working_dir: Some("/".to_owned()),
        entrypoint: Some(entrypoint(limits, common)),
        cmd: Some(Vec::new()),
        // The agent needs no environment. Programs get the image's variables one by one.
        env: Some(Vec::new()),
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        // The agent needs no grace period, so a daemon that stops need not wait for its containers.
        stop_signal: Some("SIGKILL".to_owned()),
        stop_timeout: Some(0),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When this server ends, the attached stream closes. This closes the agent's stdin, which ends the container.
        stdin_once: Some(true),
        tty: Some(false),
        network_disabled: Some(true),
        labels: Some(labels::of_container()),
        host_config: Some(host(limits, image, common, user)),
        ..ContainerCreateBody::default()
    }
}

/// Memory, processes and cores of an installation container.
const INSTALLER_MEMORY: i64 = 1 << 30;
const INSTALLER_PROCESSES: i64 = 256;
/// The size in bytes of each folder that is not kept.
const INSTALLER_CACHE: u64 = 512 << 20;
/// The root capabilities that a package manager needs, for file owners and modes and for switching users.
const INSTALLER_CAPABILITIES: [&str; 6] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID"];

/// Returns the request for a container in which packages are installed into an image. It runs as root, has a writable
/// root, and has none of the operator's folders. The `caches` folders are not committed.
pub(super) fn installing(image: &Image, common: &Common, caches: &[&str]) -> ContainerCreateBody {
    let spec = SandboxSpec::default();
    let mut body = body(&spec, image, common, 0);
    body.entrypoint = Some(vec![AGENT_PATH.to_owned(), "installing".to_owned()]);
    body.user = Some("0:0".to_owned());
    if let Some(host) = &mut body.host_config {
        let cache = format!("rw,nosuid,nodev,exec,size={INSTALLER_CACHE},nr_inodes=50000");
        let mut folders: HashMap<String, String> = private_folders(&spec.limits, image, common, 0);
        folders.retain(|_, options| options.starts_with("ro,"));
        folders.insert("/tmp".to_owned(), format!("{cache},mode=1777"));
        folders.extend(
            caches
                .iter()
                .map(|path| ((*path).to_owned(), format!("{cache},mode=0755"))),
        );
        host.tmpfs = Some(folders);
        host.mounts = Some(vec![agent::mount(common.agent, true)]);
        host.readonly_rootfs = Some(false);
        host.cap_add = Some(INSTALLER_CAPABILITIES.map(str::to_owned).to_vec());
        host.memory = Some(INSTALLER_MEMORY);
        host.memory_swap = Some(INSTALLER_MEMORY);
        host.pids_limit = Some(INSTALLER_PROCESSES);
        host.nano_cpus = Some(i64::from(common.cores_milli.max(10)) * 1_000_000);
    }
    body
}

fn entrypoint(limits: &Limits, common: &Common) -> Vec<String> {
    let mut words = vec![
        AGENT_PATH.to_owned(),
        "contained".to_owned(),
        limits.memory.as_bytes().to_string(),
        limits.disk.as_bytes().to_string(),
    ];
    words.extend(mount_seed::copied_mounts(&common.mounts).map(|copy| copy.sandbox.clone()));
    words
}

fn host(limits: &Limits, image: &Image, common: &Common, user: u32) -> HostConfig {
    // The kernel charges files in memory like process memory. The container may have both, and the agent holds
    // processes to their share.
    let memory = limits
        .memory
        .as_bytes()
        .saturating_add(limits.disk.as_bytes())
        .saturating_add(AGENT_MEMORY_BYTES);
    let memory = i64::try_from(memory).unwrap_or(i64::MAX);
    let cpus = limits.cpus.as_milli().clamp(10, common.cores_milli.max(10));
    HostConfig {
        network_mode: Some("none".to_owned()),
        // Otherwise /etc/resolv.conf would show the host's name servers.
        dns: Some(vec!["127.0.0.1".to_owned()]),
        dns_search: Some(vec![".".to_owned()]),
        // This sysctl is per network namespace, and daemons set it to allow every port.
        sysctls: Some(HashMap::from([(
            "net.ipv4.ip_unprivileged_port_start".to_owned(),
            "1024".to_owned(),
        )])),
        masked_paths: Some(masked()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        readonly_rootfs: Some(true),
        auto_remove: Some(true),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        runtime: common.runtime.clone(),
        memory: Some(memory),
        memory_swap: Some(memory),
        nano_cpus: Some(i64::from(cpus) * 1_000_000),
        // The agent does not count against the caller.
        pids_limit: Some(i64::from(limits.processes) + 1),
        ulimits: Some(vec![ResourcesUlimits {
            name: Some("core".to_owned()),
            soft: Some(0),
            hard: Some(0),
        }]),
        // The stream to the agent must not be logged.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        tmpfs: Some(private_folders(limits, image, common, user)),
        mounts: Some(mounts(common)),
        init: Some(false),
        ..HostConfig::default()
    }
}

/// A file of /proc that stays visible: the agent reads it to count socket memory.
const READ_BY_AGENT: &str = "zoneinfo";

/// Returns the paths that tell about the machine or about others, in addition to those that a daemon masks by default.
/// Of /sys only the cgroup stays visible.
fn masked() -> Vec<String> {
    const MASKED_PROC_PATHS: [&str; 8] = [
        "acpi",
        "asound",
        "latency_stats",
        "timer_stats",
        "scsi",
        "sys/kernel/random/boot_id",
        "sys/kernel/pty/nr",
        "sys/user",
    ];
    const MASKED_SYS_PATHS: [&str; 21] = [
        "block",
        "bus",
        "class",
        "dev",
        "devices",
        "firmware",
        "fs/bpf",
        "fs/btrfs",
        "fs/ext4",
        "fs/f2fs",
        "fs/fuse",
        "fs/nfs",
        "fs/pstore",
        "fs/resctrl",
        "fs/selinux",
        "fs/virtiofs",
        "fs/xfs",
        "hypervisor",
        "kernel",
        "module",
        "power",
    ];
    let hidden = MASKED_PATHS.into_iter().filter(|name| *name != READ_BY_AGENT);
    let proc = hidden.chain(MASKED_PROC_PATHS).map(|name| format!("/proc/{name}"));
    let mut paths: Vec<String> = proc
        .chain(MASKED_SYS_PATHS.map(|name| format!("/sys/{name}")))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Returns the writable folders, in memory, and an empty folder for each volume that the image requests.
fn private_folders(limits: &Limits, image: &Image, common: &Common, user: u32) -> HashMap<String, String> {
    let (bytes, inodes) = (limits.disk.as_bytes(), limits.inodes);
    let size = format!("rw,nosuid,nodev,size={bytes},nr_inodes={inodes}");
    let mut folders: HashMap<String, String> = image
        .volumes
        .iter()
        .filter(|path| path.starts_with('/') && path.as_str() != "/")
        .map(|path| {
            let path = path.trim_end_matches('/').to_owned();
            (path, "ro,nosuid,nodev,noexec,size=4096,nr_inodes=2".to_owned())
        })
        .collect();
    let own = format!("{size},exec,mode=0755,uid={user},gid={user}");
    folders.extend(mount_seed::copied_mounts(&common.mounts).map(|copy| (copy.sandbox.clone(), own.clone())));
    folders.extend([
        (HOME.to_owned(), own),
        ("/tmp".to_owned(), format!("{size},exec,mode=1777")),
        (
            "/var/tmp".to_owned(),
            "rw,nosuid,nodev,noexec,size=65536,nr_inodes=16,mode=1777".to_owned(),
        ),
        ("/dev/shm".to_owned(), format!("{size},noexec,mode=1777")),
    ]);
    folders
}

/// Returns an anonymous volume that is removed with its container. Packages appear in it. It belongs to root, so only
/// the daemon can write to it.
fn layers() -> Mount {
    Mount {
        target: Some(LAYERS.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(labels::of_packages()),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

fn mounts(common: &Common) -> Vec<Mount> {
    let mut mounts = vec![agent::mount(common.agent, true), layers()];
    let seen = common.mounts.iter().filter(|mount| mount.mode == MountMode::Ro);
    mounts.extend(seen.map(|own| Mount {
        target: Some(own.sandbox.clone()),
        source: Some(own.host.to_string_lossy().into_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> Common {
        Common {
            runtime: None,
            mounts: vec![],
            agent: Agent::of(std::env::consts::ARCH).unwrap(),
            cores_milli: 2000,
        }
    }

    #[test]
    fn no_option_that_weakens_a_container_is_ever_requested() {
        let image = Image {
            id: "sha256:x".to_owned(),
            ..Image::default()
        };
        let body = body(&SandboxSpec::default(), &image, &common(), 30_001);
        let host = body.host_config.unwrap();
        assert_eq!(host.privileged, Some(false));
        assert_eq!((host.cap_drop, host.cap_add), (Some(vec!["ALL".to_owned()]), None));
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
        assert_eq!(
            (host.network_mode.as_deref(), body.network_disabled),
            (Some("none"), Some(true))
        );
        assert_eq!((host.pid_mode, host.uts_mode, host.userns_mode), (None, None, None));
        assert_eq!((host.binds, host.devices, host.volumes_from), (None, None, None));
        assert_eq!((host.readonly_rootfs, host.auto_remove), (Some(true), Some(true)));
        assert_eq!(body.user.as_deref(), Some("30001:30001"));
        let mounts = host.mounts.unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[1].typ, &mounts[1].source), (Some(MountType::VOLUME), &None));
        assert_eq!(
            (mounts[0].typ, mounts[0].read_only),
            (Some(MountType::VOLUME), Some(true))
        );
    }

    #[test]
    fn an_installing_container_has_minimal_capabilities_and_no_operator_mounts() {
        let image = Image {
            volumes: vec!["/data".to_owned()],
            ..Image::default()
        };
        let mut common = common();
        common.mounts = vec![sandcell_sandbox::Mount {
            host: "/project".into(),
            sandbox: "/mnt/project".to_owned(),
            mode: MountMode::Ro,
            commit: sandcell_sandbox::CommitRule::Never,
        }];
        let body = installing(&image, &common, &["/var/cache/apt"]);
        let host = body.host_config.unwrap();
        assert_eq!((body.user.as_deref(), body.env), (Some("0:0"), Some(Vec::new())));
        assert_eq!(
            (host.network_mode.as_deref(), host.privileged),
            (Some("none"), Some(false))
        );
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        let powers = host.cap_add.unwrap();
        assert!(
            !powers
                .iter()
                .any(|power| power.starts_with("SYS_") || power.starts_with("NET_") || power == "MKNOD")
        );
        assert_eq!(host.mounts.unwrap().len(), 1);
        let mut folders: Vec<String> = host.tmpfs.unwrap().into_keys().collect();
        folders.sort();
        assert_eq!(folders, ["/data", "/tmp", "/var/cache/apt"]);
    }

    #[test]
    fn limits_become_the_settings_of_the_daemon() {
        let image = Image::default();
        let host = body(&SandboxSpec::default(), &image, &common(), 30_000)
            .host_config
            .unwrap();
        let memory = (512 + 512 + 8) << 20;
        assert_eq!((host.memory, host.memory_swap), (Some(memory), Some(memory)));
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_000_000_000), Some(129)));
        let folders = host.tmpfs.unwrap();
        assert!(folders[HOME].contains("size=536870912,nr_inodes=50000"), "{folders:?}");
        assert!(folders[HOME].contains("uid=30000"), "{folders:?}");
        // A daemon refuses more cores than its machine has.
        let mut spec = SandboxSpec::default();
        spec.limits.cpus = sandcell_sandbox::Cpus::milli(64_000);
        let host = body(&spec, &image, &common(), 30_000).host_config.unwrap();
        assert_eq!(host.nano_cpus, Some(2_000_000_000));
    }

    #[test]
    fn image_volumes_become_empty_folders_and_never_replace_ours() {
        let image = Image {
            volumes: ["/data/", "/tmp", HOME, "/", "relative"].map(str::to_owned).to_vec(),
            ..Image::default()
        };
        let folders = private_folders(&Limits::default(), &image, &common(), 1);
        assert!(folders["/data"].starts_with("ro,"));
        assert!(folders["/tmp"].starts_with("rw,") && folders[HOME].starts_with("rw,"));
        assert_eq!(folders.len(), 5);
    }

    #[test]
    fn image_variables_are_kept_and_ours_win() {
        let env = [("PATH", "/opt/x/bin:/bin"), ("HOME", "/root"), ("PYTHON_VERSION", "3")];
        let image = Image {
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..Image::default()
        };
        let mut spec = SandboxSpec::default();
        spec.env.insert("TMPDIR".to_owned(), "/home/user/t".to_owned());
        let env = crate::container::env::environment(&spec, &image.env);
        assert_eq!((env["PATH"].as_str(), env["HOME"].as_str()), ("/opt/x/bin:/bin", HOME));
        assert_eq!(
            (env["PYTHON_VERSION"].as_str(), env["TMPDIR"].as_str()),
            ("3", "/home/user/t")
        );
    }
}
