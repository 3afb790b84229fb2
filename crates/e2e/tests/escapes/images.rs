//! The attacks in a sandbox of a container image, which the native back end makes itself: every attack that is one
//! piece of code, all in one program of the command line.

use std::process::Command;

use crate::target::{ServerUser, Target};
use sandcell_attacks::{Attack, ExpectedResult};
use sandcell_e2e::{begin, name_of, not_required, skip};

/// Attacks with another meaning if the files come from an image.
const OTHER_OUTCOMES: [(&str, &str); 4] = [
    ("environment/user_names", "the image has users of its own"),
    (
        "root/list_root_home",
        "it is the image's own, with nothing of the host's in it",
    ),
    (
        "root/setuid_program",
        "there is no mount at /usr whose options could be read",
    ),
    ("root/who_runs_the_machine", "the image has users of its own"),
];

#[test]
fn a_sandbox_with_an_image_stops_the_attacks_too() {
    fn here() {}
    let _turn = begin!();
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(host), Some(image)) = (get("SANDCELL_TEST_DOCKER_HOST"), get("SANDCELL_TEST_IMAGE")) else {
        skip(&name_of(here), "no Docker daemon for tests (eval \"$(.ci/docker)\")");
        return;
    };
    let target = Target::open(ServerUser::Current, "", &[]);
    let archive = target.place().path("image.tar");
    let saved = Command::new("docker")
        .env("DOCKER_HOST", host)
        .args(["save", "-o"])
        .arg(&archive)
        .arg(image)
        .output();
    if !saved.is_ok_and(|saved| saved.status.success()) {
        not_required(&name_of(here), "the daemon is not ours to talk to");
        return;
    }
    let attacks: Vec<Attack> = sandcell_attacks::all()
        .unwrap()
        .into_iter()
        .filter(|attack| attack.is_plain() && !attack.fresh && attack.expect == ExpectedResult::Held)
        .filter(|attack| attack.timeout_s.is_none() && target.missing(attack).is_none())
        .filter(|attack| !OTHER_OUTCOMES.iter().any(|(name, _)| attack.name == *name))
        .collect();
    let name = format!("docker-archive:{}", archive.display());
    let output = crate::run_all(&target, &attacks, &["--image", &name]);
    let mut failures = Vec::new();
    for attack in &attacks {
        let said = output.get(attack.name).map_or("(nothing)", String::as_str);
        if said != "HELD" {
            failures.push(format!("{}: {said}", attack.name));
        }
    }
    failures.extend(target.canary.touched().map(str::to_owned));
    println!("in an image: {} tried, {} not held", attacks.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(attacks.len() >= 100, "{}", attacks.len());
}
