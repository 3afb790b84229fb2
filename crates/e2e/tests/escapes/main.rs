//! The escape suite. Each attack is one file and runs on the real server, as the current user. Under root it also runs
//! as an unprivileged user.
//!
//! Other tests show that each attack is real: `layers` removes the layer that holds it, and here limits are raised. An
//! attack that could not be tried counts as a failure.
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
    reason = "tests may panic and print; that is how they fail. Parts are shared with the suite of layers"
)]

mod canary;
mod containers;
mod enumerated;
mod images;
mod table;
mod target;

use std::collections::BTreeMap;

use sandcell_attacks::{Attack, ExpectedResult, OTHER_LAYERS, Step, classes};
use sandcell_e2e::begin;
use target::{Outcome, ServerUser, Target};

/// Returns the attacks of one class.
fn of(class: &str) -> Vec<Attack> {
    let mut attacks = sandcell_attacks::all().unwrap();
    attacks.retain(|attack| attack.class == class);
    attacks
}

/// Makes these attacks, those with equal limits on one server. Fails with every attack that was not held.
fn attack_all(class: &str, attacks: &[Attack]) {
    attack_all_with(class, attacks, &ServerUser::all(), &[]);
}

/// Makes these attacks on a server with these variables, run by these users.
fn attack_all_with(class: &str, attacks: &[Attack], by: &[ServerUser], variables: &[(&str, &str)]) {
    let mut failures = Vec::new();
    for user in by.iter().copied() {
        let mut groups: BTreeMap<String, Vec<&Attack>> = BTreeMap::new();
        for attack in attacks {
            groups.entry(target::settings(&attack.limits)).or_default().push(attack);
        }
        let (mut tried, mut held, mut skipped) = (0, 0, 0);
        for (settings, attacks) in groups {
            let mut target = Target::open(user, &settings, variables);
            for attack in attacks {
                if let Some(reason) = target.missing(attack) {
                    println!("not tried: {} ({}): {reason}", attack.name, user.name());
                    skipped += 1;
                    continue;
                }
                tried += 1;
                let mut outcome = target.try_out(attack);
                // A breach is final. An attack that did not run as intended, for example on a busy machine, is tried
                // again.
                if let Outcome::Unclear(why) = &outcome {
                    println!("once more: {} ({}): {why}", attack.name, user.name());
                    outcome = target.try_out(attack);
                }
                match outcome {
                    Outcome::Held => held += 1,
                    other => failures.push(format!("{} as {}: {other:?}", attack.name, user.name())),
                }
            }
            if let Some(left) = target.finish() {
                failures.push(format!("as {} something is left: {left}", user.name()));
            }
        }
        println!(
            "{class} as {}: {tried} tried, {held} held, {skipped} not for this user",
            user.name()
        );
    }
    assert!(
        failures.is_empty(),
        "{} not held:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

macro_rules! classes {
    ($($name:ident: $class:literal;)*) => {
        $(#[test]
        fn $name() {
            let _turn = begin!();
            attack_all($class, &of($class));
        })*

        const TESTED_CLASSES: &[&str] = &[$($class),*];
    };
}

classes! {
    the_agent_cannot_be_touched: "agent";
    nothing_crosses_between_two_sandboxes: "crosstalk";
    devices_give_no_way_out: "devices";
    nothing_of_the_server_leaks: "environment";
    the_kernels_surface_is_closed: "kernel";
    the_network_is_out_of_reach: "network";
    no_rights_can_be_gained: "privileges";
    proc_tells_and_changes_nothing: "proc";
    lies_to_the_server_change_nothing: "protocol";
    nothing_can_be_used_up: "resources";
    the_hosts_files_are_out_of_reach: "root";
    odd_sockets_are_refused: "sockets";
    traps_for_the_file_tools_do_not_work: "workspace";
}

#[test]
fn every_class_is_tested_and_there_are_many_attacks_of_many_kinds() {
    assert_eq!(classes().into_iter().collect::<Vec<_>>(), TESTED_CLASSES);
    let attacks = sandcell_attacks::all().unwrap();
    assert!(attacks.len() >= 160, "{}", attacks.len());
    let layers: Vec<&str> = sandcell_jail::plan::NAMESPACE_LEVEL_LAYERS
        .into_iter()
        .chain(OTHER_LAYERS)
        .collect();
    for attack in &attacks {
        for layer in std::iter::once(&attack.layer).chain(&attack.also_off) {
            assert!(layers.contains(layer), "{}: there is no layer {layer}", attack.name);
        }
    }
    for layer in layers {
        assert!(
            attacks.iter().any(|attack| attack.layer == layer),
            "nothing attacks {layer}"
        );
    }
}

/// Makes every attack that is one piece of code, all in one program of the command line.
#[test]
fn the_command_line_stops_the_attacks_too() {
    let _turn = begin!();
    for user in ServerUser::all() {
        let target = Target::open(user, "", &[]);
        let attacks: Vec<Attack> = sandcell_attacks::all()
            .unwrap()
            .into_iter()
            .filter(|attack| attack.is_plain() && !attack.fresh && attack.expect == ExpectedResult::Held)
            .filter(|attack| attack.timeout_s.is_none() && target.missing(attack).is_none())
            .collect();
        let output = run_all(&target, &attacks, &[]);
        let mut failures = Vec::new();
        for attack in &attacks {
            let said = output.get(attack.name).map_or("(nothing)", String::as_str);
            if said != "HELD" {
                failures.push(format!("{} as {}: {said}", attack.name, user.name()));
            }
        }
        if let Some(touched) = target.canary.touched() {
            failures.push(touched.to_owned());
        }
        println!(
            "run as {}: {} tried, {} not held",
            user.name(),
            attacks.len(),
            failures.len()
        );
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        assert!(attacks.len() >= 100, "{}", attacks.len());
    }
}

/// Runs the attacks one after the other in one program. Returns the last line of each.
fn run_all(target: &Target, attacks: &[Attack], options: &[&str]) -> BTreeMap<String, String> {
    let texts: BTreeMap<&str, &str> = attacks
        .iter()
        .map(|attack| match attack.steps.as_slice() {
            [Step::Code { text, .. }] => (attack.name, text.as_str()),
            _ => unreachable!("only plain ones"),
        })
        .collect();
    let program = format!(
        "{}\nANSWER = None\nATTACKS = json.loads({:?})\nBASE = dict(globals())\nfor NAME, TEXT in sorted(ATTACKS.items()):\n    \
         print('@', NAME, flush=True)\n    PID = os.fork()\n    if PID:\n        os.waitpid(PID, 0)\n        continue\n    \
         try:\n        exec(compile(TEXT, NAME, 'exec'), dict(BASE))\n    except BaseException as e:\n        \
         print('unclear:', repr(e))\n    sys.stdout.flush()\n    os._exit(0)\n",
        target.head(),
        serde_json::to_string(&texts).unwrap()
    );
    let file = target.place().write("attacks.py", program);
    let file = file.display().to_string();
    let arguments = [&["run", &file, "--timeout", "120"], options].concat();
    let output = target::server_command(target.place(), target.user, &arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("@ "), "{output:?}");
    let mut found = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        match line.strip_prefix("@ ") {
            Some(next) => name = next.to_owned(),
            None => {
                found.insert(name.clone(), line.to_owned());
            }
        }
    }
    found
}

/// An attack on a limit proves nothing if it is held anyway. With the limit raised, each one must succeed.
#[test]
fn attacks_on_limits_succeed_when_the_limit_is_raised() {
    let _turn = begin!();
    let mut failures = Vec::new();
    let mut groups: BTreeMap<String, Vec<Attack>> = BTreeMap::new();
    for attack in sandcell_attacks::all().unwrap() {
        if attack.raised.is_empty() {
            assert!(
                attack.limits.is_empty() || attack.unproven.is_some(),
                "{} names limits, and neither what raises them nor why nothing does",
                attack.name
            );
            continue;
        }
        groups.entry(target::settings(&attack.raised)).or_default().push(attack);
    }
    let mut tried = 0;
    for (settings, attacks) in groups {
        let mut target = Target::open(ServerUser::Current, &settings, &[]);
        for attack in attacks
            .iter()
            .filter(|attack| target.missing(attack).is_none())
            .collect::<Vec<_>>()
        {
            tried += 1;
            // On a busy machine an attack may not reach the raised limit, so it has a few tries.
            let mut outcomes = (0..5).map(|_| target.try_out(attack));
            if !outcomes.any(|outcome| matches!(outcome, Outcome::Breach(_))) {
                failures.push(format!("{} with more room did not come through", attack.name));
            }
        }
    }
    println!("limits raised: {tried} tried, {} did not come through", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
