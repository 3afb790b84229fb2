use std::process::Stdio;

use serde_json::{Value, json};

use sandcell_e2e::begin;
use sandcell_e2e::test_dir::TestDir;
use sandcell_fake_e2b::{API_KEY, Fake};

#[test]
fn doctor_reports_the_isolation_of_this_machine() {
    let _turn = begin!(alone);
    let place = TestDir::new();
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
fn doctor_has_readable_text_output() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let output = place.command(&["doctor"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for word in ["namespace", "seccomp", "landlock", "native"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}

#[test]
fn help_names_every_command() {
    let place = TestDir::new();
    let output = place.command(&["--help"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    for word in ["serve", "run", "demo", "doctor"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
}

/// Returns the doctor's reports with these settings: the JSON for programs, and the text for people.
pub(crate) fn ill(place: &TestDir, change: &dyn Fn(&mut std::process::Command)) -> (Value, String) {
    let said = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        change(&mut command);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    (
        serde_json::from_str(&said(&["doctor", "--json"])).unwrap(),
        said(&["doctor"]),
    )
}

/// Checks that both reports give the reason and the remedy.
#[track_caller]
pub(crate) fn says(told: &(Value, String), row: &Value, reason: &str, remedy: &str) {
    let of = |field: &str| row[field].as_str().unwrap_or_default();
    let message = format!("{}{}", of("reason"), of("message"));
    assert!(message.contains(reason), "{reason}: {row}");
    assert!(of("remedy").contains(remedy), "{remedy}: {row}");
    assert!(told.1.contains(reason) && told.1.contains(remedy), "{}", told.1);
    assert!(!told.1.contains("attack was not held"), "{}", told.1);
    assert_eq!((&told.0["ok"], &told.0["attacks"]["tried"]), (&json!(false), &json!(0)));
}

#[test]
fn wrong_keys_addresses_and_ports_are_named_with_a_remedy() {
    let _turn = begin!();
    let place = TestDir::new();
    let fake = Fake::start();
    let e2b = |key: &'static str, url: String| {
        move |command: &mut std::process::Command| {
            command.envs([
                ("INTERPRETER_TYPE", "e2b"),
                ("E2B_API_KEY", key),
                ("E2B_API_URL", url.as_str()),
            ]);
        }
    };
    let told = ill(&place, &e2b("", String::new()));
    says(&told, &told.0["backends"][0], "there is no API key", "E2B_API_KEY");
    let told = ill(&place, &e2b("e2b_wrong", fake.url.clone()));
    says(&told, &told.0["backends"][0], "API key", "E2B_API_KEY");
    let told = ill(&place, &e2b(API_KEY, "http://127.0.0.1:9".to_owned()));
    says(&told, &told.0["backends"][0], "cannot be reached", "E2B_API_URL");
    for (host, reason) in [
        ("tcp://127.0.0.1", "needs a name and a port"),
        ("unix:///no/such.sock", "no Docker daemon at unix:///no/such.sock"),
        ("/var/run/docker.sock", "kind that this build does not have"),
    ] {
        let told = ill(&place, &|command| {
            command.envs([("SANDCELL_BACKEND", "docker"), ("DOCKER_HOST", host)]);
        });
        says(&told, &told.0["backends"][0], reason, "DOCKER_HOST");
    }
    // No address is configured, and no daemon listens at a usual one. The test skips this check on machines with a
    // daemon.
    if !std::path::Path::new("/var/run/docker.sock").exists()
        && !std::path::Path::new("/run/podman/podman.sock").exists()
    {
        let told = ill(&place, &|command| {
            command.env("SANDCELL_BACKEND", "docker");
        });
        says(
            &told,
            &told.0["backends"][0],
            "nor where others usually listen",
            "start Docker",
        );
    }
}

#[test]
fn a_missing_runtime_or_package_is_named_with_its_install_command() {
    let _turn = begin!();
    let place = TestDir::new();
    let told = ill(&place, &|command| {
        command.env("SANDCELL_PYTHON", "/no/such/python");
    });
    says(&told, &told.0["python"], "/no/such/python", "python");
    let told = ill(&place, &|command| {
        command.env("SANDCELL_BASE", "data");
    });
    says(&told, &told.0["problems"][0], "no base called data", "base build");
    let told = ill(&place, &|command| {
        command.env("SANDCELL_NETWORK__ALLOW", "http://x/y");
    });
    says(&told, &told.0["problems"][0], "http://x/y", "network.allow");
}

#[test]
fn a_client_configured_with_a_missing_program_is_named() {
    let _turn = begin!(alone);
    let place = TestDir::new();
    let cursor = place.path("home/.cursor");
    std::fs::create_dir(&cursor).unwrap();
    let entry = json!({"mcpServers": {"sandcell": {"command": "/gone/sandcell", "args": ["serve"]}}});
    std::fs::write(cursor.join("mcp.json"), entry.to_string()).unwrap();
    let installed = place
        .command(&["install", "claude-desktop"])
        .stdin(Stdio::null())
        .output();
    assert!(installed.unwrap().status.success());
    let output = place
        .command(&["doctor", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |client: &str| {
        let rows = report["clients"].as_array().unwrap();
        rows.iter().find(|row| row["client"] == client).unwrap().clone()
    };
    assert_eq!(row("Claude Desktop")["available"], true, "{report}");
    let cursor = row("Cursor");
    assert_eq!(cursor["available"], false, "{cursor}");
    assert!(
        cursor["reason"].as_str().unwrap().contains("/gone/sandcell"),
        "{cursor}"
    );
    assert!(
        cursor["remedy"].as_str().unwrap().contains("sandcell install cursor"),
        "{cursor}"
    );
}
