use std::process::Stdio;

use serde_json::Value;

use crate::support::begin;
use crate::support::place::Place;

#[test]
fn the_doctor_says_what_this_machine_can_isolate() {
    let _turn = begin!(alone);
    let place = Place::new();
    let output = place
        .command(&["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["level"], "namespace", "{report}");
    let layers = report["layers"].as_array().unwrap();
    assert!(layers.len() >= 5, "{report}");
    for layer in layers {
        let state = layer["state"].as_str().unwrap();
        assert!(matches!(state, "active" | "degraded" | "missing"), "{layer}");
        assert_eq!(
            layer["reason"].is_null(),
            state == "active",
            "a reason unless active: {layer}"
        );
        assert_eq!(
            layer["remedy"].is_null(),
            state == "active",
            "a remedy unless active: {layer}"
        );
    }
    let native = report["backends"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "native");
    assert_eq!(native.expect("the native back end")["available"], true, "{report}");
    assert_eq!(report["attacks"]["tried"], report["attacks"]["held"], "{report}");
}

#[test]
fn the_doctor_speaks_to_people_too() {
    let _turn = begin!(alone);
    let place = Place::new();
    let output = place.command(&["doctor"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for word in ["namespace", "seccomp", "landlock", "native"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}

#[test]
fn help_names_every_command() {
    let place = Place::new();
    let output = place.command(&["--help"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for word in ["serve", "run", "demo", "doctor"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}
