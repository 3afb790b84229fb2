//! Proofs that each layer matters: with exactly one layer left out, the attacks that it holds succeed. A layer that
//! cannot be set up refuses the sandbox.
//!
//! Only in builds with `fault-injection`, where `SANDCELL_TEST_SKIP` names layers to leave out and
//! `SANDCELL_TEST_DISABLE` one that fails.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests may panic and print; that is how they fail. Parts are shared with the escape suite"
)]

mod canary;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use sandcell_attacks::{Attack, Needs};
use sandcell_e2e::begin;
use sandcell_e2e::test_dir::TestDir;
use sandcell_jail::plan::NAMESPACE_LEVEL_LAYERS;
use target::{Outcome, ServerUser, Target, server_command};

/// Layers without which no sandbox can be made, so that no attack can be tried without them.
const NOT_PROVABLE: [(&str, &str); 1] = [(
    "mount_namespace",
    "nothing can be mounted without it, so the sandbox is refused",
)];

/// Layers that cannot be left out alone, because the kernel then refuses others.
const NOT_ALONE: [(&str, &str); 3] = [
    ("mount_namespace", "nothing can be mounted without it"),
    (
        "pid_namespace",
        "the kernel mounts no /proc of a process namespace that is not one's own",
    ),
    (
        "no_new_privileges",
        "without it the kernel takes Landlock's rules and a filter from root's power only",
    ),
];

fn provable() -> Vec<Attack> {
    let of_layers = |attack: &Attack| NAMESPACE_LEVEL_LAYERS.contains(&attack.layer) && attack.unproven.is_none();
    sandcell_attacks::all().unwrap().into_iter().filter(of_layers).collect()
}

/// Held while sandboxes are in the host's network: attacks of two tests would use the same port.
static HOST_NETWORK: Mutex<()> = Mutex::new(());

/// Makes attacks with some layers left out. Returns those with an unexpected outcome.
fn without(user: ServerUser, layers: &BTreeSet<String>, attacks: &[&Attack], wanted: &str) -> Vec<String> {
    let in_host_network = layers.contains("network_namespace");
    let _network = in_host_network.then(|| HOST_NETWORK.lock().unwrap_or_else(PoisonError::into_inner));
    let list = layers.iter().cloned().collect::<Vec<_>>().join(",");
    // A zygote's worker has its own Landlock rules in addition to the agent's, which hold attacks on the agent as well.
    let alone = ("SANDCELL_POOL__WARM_PARENTS", "false");
    let mut target = Target::open(user, "", &[("SANDCELL_TEST_SKIP", &list), alone]);
    let mut failures = Vec::new();
    for attack in attacks {
        let as_wanted = |outcome: &Outcome| match wanted {
            "breach" => matches!(outcome, Outcome::Breach(_)),
            _ => *outcome == Outcome::Held,
        };
        let mut outcome = target.try_out(attack);
        // One breach proves that the attack succeeds. Attacks that must be held have only one try.
        if wanted == "breach" && !as_wanted(&outcome) {
            outcome = target.try_out(attack);
        }
        let good = as_wanted(&outcome);
        if !good {
            failures.push(format!(
                "{} as {} without {list}: {outcome:?}, not {wanted}",
                attack.name,
                user.name()
            ));
        }
    }
    failures
}

fn prove(user: ServerUser) {
    let attacks = provable();
    let mut open: BTreeMap<BTreeSet<String>, Vec<&Attack>> = BTreeMap::new();
    let mut closed: BTreeMap<BTreeSet<String>, Vec<&Attack>> = BTreeMap::new();
    for attack in &attacks {
        if !user.is_root() && (attack.proof_needs_root || attack.needs == Some(Needs::Root))
            || user.is_root() && attack.needs == Some(Needs::User)
        {
            continue;
        }
        let also_off: BTreeSet<String> = attack.also_off.iter().map(|layer| (*layer).to_owned()).collect();
        let mut all = also_off.clone();
        all.insert(attack.layer.to_owned());
        open.entry(all).or_default().push(attack);
        // With all layers active, the escape suite shows that the attack is held.
        if !also_off.is_empty() {
            closed.entry(also_off).or_default().push(attack);
        }
    }
    let (mut failures, mut shown) = (Vec::new(), 0);
    for (layers, attacks) in &closed {
        failures.extend(without(user, layers, attacks, "held"));
    }
    let mut proved = BTreeSet::new();
    for (layers, attacks) in &open {
        let failed = without(user, layers, attacks, "breach");
        shown += attacks.len() - failed.len();
        proved.extend(attacks.iter().map(|attack| attack.layer));
        failures.extend(failed);
    }
    println!(
        "layers as {}: {shown} attacks come through without the layer that holds them",
        user.name()
    );
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
    if sandcell_e2e::is_root() == user.is_root() && sandcell_e2e::is_root() {
        for layer in NAMESPACE_LEVEL_LAYERS {
            let reason = NOT_PROVABLE.iter().find(|(name, _)| *name == layer);
            assert_eq!(proved.contains(layer), reason.is_none(), "{layer}");
            if let Some((name, reason)) = reason {
                println!("not provable here: {name}: {reason}");
            }
        }
    }
}

#[test]
fn switching_any_layer_off_lets_attacks_through() {
    let _turn = begin!();
    prove(ServerUser::Current);
}

#[test]
fn switching_any_layer_off_lets_attacks_through_as_an_ordinary_user() {
    let _turn = begin!();
    if !sandcell_e2e::is_root() {
        println!("the other test was made as one");
        return;
    }
    prove(ServerUser::Ordinary);
}

/// Runs a program with this variable. Returns its exit status and all output.
fn run(user: ServerUser, variable: &str, layer: &str) -> (Option<i32>, String) {
    let place = TestDir::new();
    for name in ["home", "tmp", "data", "work"] {
        user.give(&place.path(name));
    }
    user.give(place.work().parent().unwrap());
    let program = place.write("canary.py", "print('the canary sings')");
    let output = server_command(&place, user, &["run", &program.display().to_string(), "--json"])
        .env(variable, layer)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (output.status.code(), text)
}

#[track_caller]
fn is_refused(layer: &str, user: ServerUser, (status, text): &(Option<i32>, String)) {
    assert_eq!(*status, Some(125), "{layer} as {}: {text}", user.name());
    assert!(
        text.contains("isolation_unavailable"),
        "{layer} as {}: {text}",
        user.name()
    );
    assert!(
        !text.contains("the canary sings"),
        "{layer} as {}: it ran: {text}",
        user.name()
    );
    assert!(text.contains("remedy"), "{layer} as {}: {text}", user.name());
}

#[test]
fn a_layer_that_fails_refuses_to_run_anything() {
    let _turn = begin!();
    for user in ServerUser::all() {
        for layer in NAMESPACE_LEVEL_LAYERS {
            let outcome = run(user, "SANDCELL_TEST_DISABLE", layer);
            is_refused(layer, user, &outcome);
            assert!(outcome.1.contains(layer), "{layer} is not named: {}", outcome.1);
        }
        println!(
            "{} layers as {}: each one that fails refuses",
            NAMESPACE_LEVEL_LAYERS.len(),
            user.name()
        );
    }
}

#[test]
fn layers_that_cannot_be_left_out_alone_refuse_to_run_anything() {
    let _turn = begin!();
    for user in ServerUser::all() {
        for (layer, reason) in NOT_ALONE {
            is_refused(layer, user, &run(user, "SANDCELL_TEST_SKIP", layer));
            println!("not alone: {layer}: {reason}");
        }
    }
}

#[test]
fn with_nothing_left_out_the_program_runs() {
    let _turn = begin!();
    for user in ServerUser::all() {
        let (status, text) = run(user, "SANDCELL_TEST_SKIP", "");
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("the canary sings"), "{text}");
    }
}
