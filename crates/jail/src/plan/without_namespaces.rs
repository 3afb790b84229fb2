//! The plan of the `process` level, for a host that forbids namespaces. Used only if the operator's isolation floor
//! allows it.
//!
//! Landlock decides which files are accessible. The system-call filter blocks every socket with a name, and every call
//! that changes a file's attributes by path, since Landlock does not check these. A subreaper process replaces the PID
//! namespace. There is no weaker variant: without Landlock's scopes for signals there is no sandbox at this level. The
//! threat model lists the attacks that the level does not stop.

use std::path::Path;

use super::{Host, ReachableFiles, Resource, Step};
use crate::spec::{Request, Template};

/// The layers of the level, in the order of reports.
pub const PROCESS_LEVEL_LAYERS: [&str; 7] = [
    "empty_environment",
    "resource_limits",
    "capabilities",
    "no_new_privileges",
    "landlock",
    "hidden_agent",
    "seccomp",
];

/// The system's programs and libraries, files that they read to work, and files that reveal facts about the machine
/// only.
const READABLE_PATHS: [&str; 37] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/fonts",
    "/etc/matplotlibrc",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/etc/python3",
    "/etc/python3.9",
    "/etc/python3.10",
    "/etc/python3.11",
    "/etc/python3.12",
    "/etc/python3.13",
    "/etc/python3.14",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
];

/// `/dev/zero` is excluded: a shared mapping of it is memory that belongs to no process.
const DEVICE_FILES: [&str; 4] = ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom"];

/// The parameters of one sandbox in addition to its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateFolder {
    /// Its private folder on the host.
    pub folder: String,
    /// Its separate host id, if it has one.
    pub id: Option<u32>,
    /// The number of processes and threads that the owner of its id already has.
    pub others: u64,
}

/// Returns the host's files that a sandbox may read, without missing ones.
pub(crate) fn readable(template: &Template) -> Vec<String> {
    let needed = template.trees.iter().map(|tree| tree.to_string_lossy().into_owned());
    READABLE_PATHS
        .map(str::to_owned)
        .into_iter()
        .chain(needed)
        .filter(|path| Path::new(path).exists())
        .collect()
}

/// Returns the steps of the first process of a sandbox without namespaces, in order. Pure.
#[must_use]
pub fn make(host: &Host, request: &Request, private_folder: &PrivateFolder) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(id) = private_folder.id {
        steps.push(Step::HostIdentity { id });
    }
    steps.push(Step::DieWithLauncher);
    steps.push(Step::AdoptOrphans);
    steps.push(Step::OwnFolders {
        folder: private_folder.folder.clone(),
    });
    steps.extend(
        super::resource_limits(host, request)
            .into_iter()
            .map(|step| match step {
                // The kernel counts all processes of an owner, and here the owner is the operator's user.
                Step::ResourceLimit {
                    resource: Resource::Processes,
                    soft,
                    hard,
                } => Step::ResourceLimit {
                    resource: Resource::Processes,
                    soft: soft.saturating_add(private_folder.others),
                    hard: hard.saturating_add(private_folder.others),
                },
                // The memory of sockets is bounded by their number, so that limit is lower.
                Step::ResourceLimit {
                    resource: Resource::OpenFiles,
                    soft,
                    ..
                } => Step::ResourceLimit {
                    resource: Resource::OpenFiles,
                    soft,
                    hard: soft,
                },
                other => other,
            }),
    );
    steps.push(Step::HeldCapabilities);
    steps.push(Step::NoNewPrivileges);
    steps.push(Step::LandlockWithoutNamespaces(ReachableFiles {
        private: private_folder.folder.clone(),
        readable: host.readable.clone(),
        devices: DEVICE_FILES.map(str::to_owned).to_vec(),
        agent: vec!["/proc".to_owned()],
    }));
    steps.push(Step::NotDumpable);
    steps.push(Step::FewerSystemCalls {
        memory_is_charged: host.memory_is_charged,
    });
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(id: Option<u32>) -> Vec<Step> {
        let request = Request {
            memory: 512 << 20,
            cpu_milli: 1000,
            processes: 128,
            disk: 512 << 20,
            inodes: 50_000,
            fault: None,
        };
        let private_folder = PrivateFolder {
            folder: "/tmp/x/1".to_owned(),
            id,
            others: 300,
        };
        make(&Host::default(), &request, &private_folder)
    }

    #[test]
    fn the_plan_has_every_layer_and_ends_with_the_filter() {
        let steps = steps(None);
        for layer in PROCESS_LEVEL_LAYERS
            .into_iter()
            .filter(|layer| *layer != "empty_environment")
        {
            assert!(steps.iter().any(|step| step.layer() == Some(layer)), "{layer}");
        }
        assert!(matches!(steps.last(), Some(Step::FewerSystemCalls { .. })));
    }

    #[test]
    fn existing_processes_of_the_owner_do_not_reduce_the_process_limit() {
        assert!(steps(None).contains(&Step::ResourceLimit {
            resource: Resource::Processes,
            soft: 429,
            hard: 429,
        }));
    }

    #[test]
    fn a_separate_user_id_is_taken_first_where_possible() {
        assert_eq!(steps(Some(7)).first(), Some(&Step::HostIdentity { id: 7 }));
    }

    #[test]
    fn only_the_agent_reads_all_of_proc() {
        let Some(Step::LandlockWithoutNamespaces(files)) = steps(None)
            .into_iter()
            .find(|step| matches!(step, Step::LandlockWithoutNamespaces(_)))
        else {
            panic!("there are no Landlock rules");
        };
        assert_eq!(files.agent, ["/proc"]);
        assert!(!files.readable.contains(&"/proc".to_owned()));
    }
}
