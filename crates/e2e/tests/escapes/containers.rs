//! The same attacks in containers. A daemon's containers expose other details than native sandboxes. An attack on such
//! a detail is marked `# containers:`, with the layer that holds instead.

use crate::target::ServerUser;
use sandcell_attacks::Attack;
use sandcell_e2e::turns::Turn;
use sandcell_e2e::{name_of, skip};

/// The classes of a normal test run. The others (`crosstalk`, `protocol`, `resources`, `workspace`) take minutes;
/// `SANDCELL_TEST_SIEGE=all` runs them, too.
const DEFAULT_CLASSES: [&str; 9] = [
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
const LONG_CLASSES: [&str; 4] = ["crosstalk", "protocol", "resources", "workspace"];

fn attack_classes(test: &str, classes: &[&str]) {
    attack_classes_with(test, classes, |_| true);
}

/// Makes only the attacks for which `is_meant` is true.
fn attack_classes_with(test: &str, classes: &[&str], is_meant: impl Fn(&Attack) -> bool) {
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
        let attacks: Vec<Attack> = crate::of(class)
            .into_iter()
            .filter(|attack| attack.otherwise.is_none() && is_meant(attack))
            .collect();
        crate::attack_all_with(
            &format!("{class} in containers"),
            &attacks,
            &[ServerUser::Current],
            &variables,
        );
    }
}

#[test]
fn containers_stop_the_attacks_too() {
    fn here() {}
    attack_classes(&name_of(here), &DEFAULT_CLASSES);
    if std::env::var("SANDCELL_TEST_SIEGE").as_deref() == Ok("all") {
        attack_classes(&name_of(here), &LONG_CLASSES);
    }
}

/// The agent inside the container enforces these limits. For a native sandbox the watchdog outside does.
#[test]
fn sockets_and_huge_pages_in_containers_hold_no_memory_beyond_the_limit() {
    fn here() {}
    attack_classes_with(&name_of(here), &["resources"], |attack| {
        let names = [
            "resources/memory_in_sockets",
            "resources/memory_in_messages_of",
            "resources/memory_of_huge_pages",
        ];
        names.iter().any(|name| attack.name.starts_with(name))
    });
}

#[test]
fn every_class_runs_in_containers_and_few_attacks_are_left_out() {
    let left_out = sandcell_attacks::all()
        .unwrap()
        .into_iter()
        .filter(|attack| attack.otherwise.is_some());
    assert_eq!(left_out.count(), 22);
    let made: std::collections::BTreeSet<&str> = DEFAULT_CLASSES.into_iter().chain(LONG_CLASSES).collect();
    assert_eq!(made, sandcell_attacks::classes());
}
