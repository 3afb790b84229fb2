//! The same attacks in containers. A daemon's containers differ from native sandboxes in what they show of themselves;
//! each attack that asks for just that is named here, with what holds instead.

use crate::catalogue::{self, Attack};
use crate::field::Who;
use crate::support::turns::Turn;
use crate::support::{name_of, skip};

/// Those that are made in a whole run of the tests. The others (`crosstalk`, `protocol`, `resources`, `workspace`) take
/// minutes; `SANDCELL_TEST_SIEGE=all` makes them, too.
const USUAL: [&str; 9] = [
    "agent",
    "devices",
    "environment",
    "kernel",
    "network",
    "privileges",
    "proc",
    "root",
    "sockets",
];
const LONG: [&str; 4] = ["crosstalk", "protocol", "resources", "workspace"];

/// Attacks that mean something else in a container.
const OTHERWISE: [(&str, &str); 18] = [
    (
        "crosstalk/free_space_of_the_host",
        "the image's file system is the daemon's own; nothing in it can be written",
    ),
    ("crosstalk/lock_a_folder", "there is no /opt/sandcell"),
    ("crosstalk/name_of_the_boot", "it is hidden, not replaced"),
    (
        "environment/groups",
        "without a user namespace the number is the host's; nobody there has it",
    ),
    (
        "environment/id_map",
        "the daemon's containers share the host's users, which each result says",
    ),
    ("environment/user_namespace", "the same"),
    ("environment/user_names", "the image does not know the sandbox's user"),
    (
        "proc/audit_id",
        "the daemon starts containers without one, and numbers whoever takes one",
    ),
    (
        "proc/change_settings",
        "what is hidden is /dev/null, which takes every write and keeps none",
    ),
    (
        "proc/more_user_namespaces",
        "the number is hidden, and the system-call filter refuses to make one",
    ),
    (
        "root/control_groups",
        "the container's own can be read; the agent reads its use there",
    ),
    (
        "root/device_on_writable_mount",
        "devices are refused by the container's control group, and nobody may make any",
    ),
    (
        "root/list_root_home",
        "it is the image's own, with nothing of the host's in it",
    ),
    (
        "root/mount_table_tells_paths",
        "the daemon's own mounts are told, with its folder",
    ),
    ("root/own_setuid_program", "no-new-privileges holds, not a mount option"),
    ("root/setuid_program", "the same"),
    ("root/sys_is_absent", "its folders are there and empty"),
    ("root/who_runs_the_machine", "the image has users of its own"),
];

fn siege(test: &str, classes: &[&str]) {
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(host), Some(image)) = (get("SANDCELL_TEST_DOCKER_HOST"), get("SANDCELL_TEST_IMAGE")) else {
        skip(test, "no Docker daemon for tests (eval \"$(.ci/docker)\")");
        return;
    };
    let _turn = Turn::shared();
    let variables = [
        ("SANDCELL_BACKEND", "docker"),
        ("SANDCELL_DOCKER__HOST", host.as_str()),
        ("SANDCELL_DOCKER__IMAGE", image.as_str()),
        ("SANDCELL_DOCKER__PULL", "never"),
    ];
    for class in classes {
        let attacks: Vec<Attack> = catalogue::of(class)
            .into_iter()
            .filter(|attack| !OTHERWISE.iter().any(|(name, _)| attack.name == *name))
            .collect();
        crate::besiege_with(&format!("{class} in containers"), &attacks, &[Who::Current], &variables);
    }
}

#[test]
fn containers_hold_as_well() {
    fn here() {}
    siege(&name_of(here), &USUAL);
    if std::env::var("SANDCELL_TEST_SIEGE").as_deref() == Ok("all") {
        siege(&name_of(here), &LONG);
    }
}

#[test]
fn every_attack_that_is_left_out_exists_and_every_class_is_made() {
    let attacks = catalogue::all();
    for (name, reason) in OTHERWISE {
        assert!(!reason.is_empty());
        assert!(
            attacks.iter().any(|attack| attack.name == name),
            "there is no attack {name}"
        );
    }
    let made: std::collections::BTreeSet<String> = USUAL.into_iter().chain(LONG).map(str::to_owned).collect();
    assert_eq!(made, catalogue::classes());
}
