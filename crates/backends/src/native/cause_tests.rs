use super::*;
use crate::native::options::{no_groups, no_own_user};

/// A machine whose root user may do everything.
fn machine() -> HostFacts {
    HostFacts {
        root: true,
        first_user_namespace: true,
        capabilities: u64::MAX,
        kernel: (6, 12),
        landlock_has_scopes: true,
        settings: [
            ("user.max_net_namespaces".to_owned(), 9000),
            ("user.max_user_namespaces".to_owned(), 9000),
        ]
        .into(),
        ..HostFacts::default()
    }
}

fn user() -> HostFacts {
    HostFacts {
        root: false,
        capabilities: 0,
        ..machine()
    }
}

fn container(container: Container) -> HostFacts {
    HostFacts {
        container: Some(container),
        filtered: true,
        // Docker's default capabilities.
        capabilities: 0xa804_25fb,
        proc_covered: ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/sys"]
            .map(str::to_owned)
            .to_vec(),
        proc_read_only: true,
        ..machine()
    }
}

fn failed(step: &str, layer: &str, errno: Errno) -> StepError {
    StepError {
        step: step.to_owned(),
        layer: Some(layer.to_owned()),
        errno: errno.raw_os_error(),
    }
}

const MAKE_STEP: (&str, &str) = ("make namespaces of the launcher", "user_namespace");
const ROOT_STEP: (&str, &str) = ("make the launcher's root", "private_root");
const PROC_STEP: (&str, &str) = ("mount /proc", "private_proc");
const LANDLOCK_STEP: (&str, &str) = ("restrict files with Landlock", "landlock");

#[track_caller]
fn assert_cause((step, layer): (&str, &str), errno: Errno, facts: &HostFacts, cause: &str, remedy: &str) -> Cause {
    let found = explain(&failed(step, layer, errno), facts).expect("a cause");
    assert!(found.cause.contains(cause), "{cause}: {found:?}");
    assert!(found.remedy.contains(remedy), "{remedy}: {found:?}");
    assert!(!found.remedy.contains("sandcell doctor"), "{found:?}");
    let old = facts.kernel < OLDEST_KERNEL;
    assert_eq!(
        found.remedy.contains("or newer"),
        old,
        "a version only where it is the cause: {found:?}"
    );
    found
}

#[test]
fn the_docker_filter_is_named_with_all_options_for_any_first_failure() {
    let docker = container(Container::Docker);
    for (step, errno) in [
        (MAKE_STEP, Errno::PERM),
        // `--cap-add SYS_ADMIN` with Docker's default filter.
        (ROOT_STEP, Errno::PERM),
        (PROC_STEP, Errno::PERM),
        (LANDLOCK_STEP, Errno::OPNOTSUPP),
    ] {
        let facts = HostFacts {
            landlock: (step == LANDLOCK_STEP).then_some(Errno::PERM.raw_os_error()),
            ..docker.clone()
        };
        let found = assert_cause(step, errno, &facts, "", "--security-opt seccomp=unconfined");
        for option in ["apparmor=unconfined", "systempaths=unconfined"] {
            assert!(found.remedy.contains(option), "{found:?}");
        }
        assert!(!found.remedy.contains("sysctl"), "{found:?}");
    }
    assert_cause(
        MAKE_STEP,
        Errno::PERM,
        &docker,
        "the container's filter",
        "isolation_min = \"process\"",
    );
    let labelled = HostFacts {
        selinux: true,
        ..docker
    };
    assert_cause(MAKE_STEP, Errno::PERM, &labelled, "filter", "label=disable");
}

#[test]
fn other_container_runtimes_get_their_own_options() {
    for (manager, option) in [
        (Container::Podman, "unmask=ALL"),
        (Container::Kubernetes, "procMount: Unmasked"),
        (Container::Lxc, "security.nesting=true"),
        (Container::Nspawn, "--system-call-filter="),
        (Container::Service, "RestrictNamespaces="),
    ] {
        assert_cause(
            MAKE_STEP,
            Errno::PERM,
            &container(manager),
            "filter of system calls",
            option,
        );
    }
    assert_cause(MAKE_STEP, Errno::PERM, &container(Container::Sandcell), "", "outside");
}

#[test]
fn lxcfs_over_proc_is_named_by_the_files_it_covers() {
    let facts = HostFacts {
        container: Some(Container::Lxc),
        proc_covered: ["/proc/cpuinfo", "/proc/meminfo"].map(str::to_owned).to_vec(),
        ..machine()
    };
    assert_cause(
        PROC_STEP,
        Errno::PERM,
        &facts,
        "(/proc/cpuinfo, /proc/meminfo)",
        "nesting",
    );
    let bare = HostFacts {
        container: None,
        ..facts
    };
    assert_cause(PROC_STEP, Errno::PERM, &bare, "/proc/cpuinfo", "findmnt -R /proc");
}

#[test]
fn a_read_only_proc_is_named_at_the_maps_of_ids_too() {
    let facts = HostFacts {
        proc_read_only: true,
        ..machine()
    };
    assert_cause(
        ("map ids", "user_namespace"),
        Errno::ROFS,
        &facts,
        "/proc is read-only",
        "ProtectKernelTunables=",
    );
    assert_cause(PROC_STEP, Errno::PERM, &facts, "/proc is read-only", "findmnt");
}

#[test]
fn absent_landlock_and_filtered_landlock_are_distinguished() {
    let lacks = |errno: Errno, filtered, kernel| HostFacts {
        landlock: Some(errno.raw_os_error()),
        landlock_has_scopes: false,
        filtered,
        kernel,
        container: filtered.then_some(Container::Nspawn),
        ..machine()
    };
    let assert_cause = |facts: HostFacts, cause: &str, remedy: &str| {
        assert_cause(LANDLOCK_STEP, Errno::OPNOTSUPP, &facts, cause, remedy)
    };
    assert_cause(
        lacks(Errno::PERM, true, (6, 1)),
        "in front of Landlock",
        "landlock_create_ruleset",
    );
    assert_cause(
        lacks(Errno::NOSYS, true, (6, 1)),
        "in front of Landlock",
        "landlock_create_ruleset",
    );
    assert_cause(lacks(Errno::OPNOTSUPP, false, (6, 1)), "not switched on", "lsm=");
    assert_cause(
        lacks(Errno::NOSYS, false, (6, 1)),
        "built without Landlock",
        "CONFIG_SECURITY_LANDLOCK",
    );
    assert_cause(lacks(Errno::NOSYS, false, (5, 10)), "Linux 5.10", "5.13 or newer");
}

#[test]
fn layers_missing_at_the_process_level_are_named() {
    let old = HostFacts {
        landlock_has_scopes: false,
        ..machine()
    };
    let found = explain(
        &failed("look for Landlock (version 4)", "landlock", Errno::OPNOTSUPP),
        &old,
    )
    .unwrap();
    assert!(found.remedy.contains("Linux 6.12 or newer"), "{found:?}");
    let step = (
        "set a separate user id for each sandbox (root lacks CAP_SETUID)",
        "user_namespace",
    );
    assert_cause(step, Errno::PERM, &machine(), "level `process`", "as an ordinary user");
}

#[test]
fn exhausted_namespaces_are_reported_with_the_setting() {
    let mut facts = machine();
    let step = ("make namespaces", "network_namespace");
    let setting = "sysctl -w user.max_net_namespaces=10000";
    assert_cause(
        step,
        Errno::NOSPC,
        &facts,
        "user.max_net_namespaces is 9000, and they are used up",
        setting,
    );
    facts.settings.insert("user.max_net_namespaces".to_owned(), 0);
    let found = assert_cause(step, Errno::NOSPC, &facts, "user.max_net_namespaces is 0", setting);
    assert!(!found.remedy.contains("on the host"), "{found:?}");
    facts.container = Some(Container::Docker);
    assert_cause(step, Errno::NOSPC, &facts, "is 0", "on the host");
    facts
        .settings
        .insert("user.max_net_namespaces".to_owned(), i64::from(i32::MAX));
    assert_cause(step, Errno::NOSPC, &facts, "of a namespace around this one", setting);
    assert_cause(
        ("make namespaces", "mount_namespace"),
        Errno::NOSPC,
        &facts,
        "max_mnt",
        "max_mnt",
    );
    assert_cause(MAKE_STEP, Errno::USERS, &facts, "max_user", "max_user");
}

#[test]
fn settings_that_forbid_user_namespaces_are_named_to_affected_users() {
    for (name, value, cause, remedy) in [
        (
            "kernel.unprivileged_userns_clone",
            0,
            "unprivileged_userns_clone is 0",
            "unprivileged_userns_clone=1",
        ),
        (
            "kernel.apparmor_restrict_unprivileged_userns",
            1,
            "AppArmor denies",
            "docs/guides/hosts.md",
        ),
    ] {
        let mut facts = user();
        facts.settings.insert(name.to_owned(), value);
        for errno in [Errno::PERM, Errno::ACCESS] {
            assert_cause(MAKE_STEP, errno, &facts, cause, remedy);
        }
        let root = HostFacts {
            settings: facts.settings,
            ..machine()
        };
        assert_eq!(
            explain(&failed(MAKE_STEP.0, MAKE_STEP.1, Errno::PERM), &root),
            None,
            "root is not held by {name}"
        );
    }
}

#[test]
fn a_chroot_lost_capabilities_and_other_policies_are_distinguished() {
    let chrooted = HostFacts {
        chrooted: true,
        ..user()
    };
    assert_cause(MAKE_STEP, Errno::PERM, &chrooted, "chroot", "bwrap");
    let bare = HostFacts {
        capabilities: 0,
        ..machine()
    };
    assert_cause(MAKE_STEP, Errno::PERM, &bare, "CAP_SETFCAP", "--user 1000:1000");
    let confined = HostFacts {
        apparmor: Some("docker-default (enforce)".to_owned()),
        container: Some(Container::Docker),
        ..machine()
    };
    assert_cause(
        ROOT_STEP,
        Errno::ACCESS,
        &confined,
        "AppArmor profile docker-default",
        "apparmor=unconfined",
    );
    let selinux = HostFacts {
        selinux: true,
        ..user()
    };
    assert_cause(MAKE_STEP, Errno::PERM, &selinux, "SELinux", "ausearch");
    assert_eq!(explain(&failed(MAKE_STEP.0, MAKE_STEP.1, Errno::PERM), &user()), None);
}

#[test]
fn device_rules_of_a_cgroup_are_named() {
    let step = ("make device nodes", "private_root");
    assert_cause(step, Errno::PERM, &machine(), "device rules", "--device-cgroup-rule");
}

#[test]
fn an_old_kernel_and_one_without_overlay_are_named() {
    let old = HostFacts {
        kernel: (5, 10),
        ..machine()
    };
    assert_cause(
        ("mount /usr", "private_root"),
        Errno::PERM,
        &old,
        "Linux 5.10",
        "5.13 or newer",
    );
    assert_cause(
        ("make device nodes", "private_root"),
        Errno::NOSYS,
        &old,
        "mount_setattr",
        "bullseye-backports",
    );
    assert_cause(
        ("mount /usr", "private_root"),
        Errno::NODEV,
        &machine(),
        "no overlay file system",
        "modprobe overlay",
    );
}

#[test]
fn a_folder_that_cannot_be_id_mapped_is_named() {
    let step = ("prepare the mount /mnt/data", "private_root");
    assert_cause(step, Errno::INVAL, &machine(), "with other ids", "ext4");
}

#[test]
fn outer_limits_are_named_with_their_values() {
    let facts = HostFacts {
        open_files: Some(20),
        file_size: Some(0),
        ..machine()
    };
    for (errno, cause, remedy) in [
        (Errno::MFILE, "(ulimit -Hn) is 20", "LimitNOFILE="),
        (Errno::FBIG, "(ulimit -f) is 0 bytes", "LimitFSIZE="),
        (Errno::NFILE, "fs.file-max", "sysctl -w fs.file-max"),
        (Errno::NOMEM, "no memory is left", "MemoryMax="),
    ] {
        assert_cause(("prepare /etc", "private_root"), errno, &facts, cause, remedy);
    }
}

#[test]
fn root_without_capabilities_is_not_advised_to_become_root() {
    let docker = HostFacts {
        filtered: false,
        ..container(Container::Docker)
    };
    let found = no_own_user(&docker);
    assert!(found.cause.contains("CAP_SYS_ADMIN and CAP_SYS_PTRACE"), "{found:?}");
    assert_eq!(
        found.remedy,
        "start the container with `--cap-add SYS_ADMIN --cap-add SYS_PTRACE`"
    );
    let rootless = HostFacts {
        first_user_namespace: false,
        ..docker
    };
    assert!(no_own_user(&rootless).cause.contains("that of a user namespace"));
    assert!(no_own_user(&user()).remedy.starts_with("run the server as root"));
    assert!(!no_groups(&docker_root()).contains("run as root"));
}

fn docker_root() -> HostFacts {
    container(Container::Docker)
}
