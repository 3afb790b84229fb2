use std::process::{Command, Stdio};

use crate::support::place::Place;
use crate::support::{begin, name_of, skip, sources};

/// The script that uses the official SDK.
pub fn script() -> std::path::PathBuf {
    sources().join("crates/sandcell/tests/python_sdk/client.py")
}

/// Runs the script with the official SDK, in one of its modes.
fn client(test: &str, mode: &str) {
    let Some(python) = std::env::var_os("SANDCELL_TEST_MCP_PYTHON") else {
        skip(
            test,
            "no Python with the official MCP SDK (see CONTRIBUTING.md; SANDCELL_TEST_MCP_PYTHON names it)",
        );
        return;
    };
    let place = Place::new();
    let server = place.command(&["serve"]);
    let output = Command::new(python)
        .args(["-I", "-B"])
        .arg(script())
        .arg(mode)
        .arg(server.get_program())
        .args(server.get_args())
        .env_clear()
        .envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(place.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all steps passed"), "{said}");
}

#[test]
fn the_official_client_works_with_the_newest_protocol() {
    let _turn = begin!();
    client(&name_of(the_official_client_works_with_the_newest_protocol), "auto");
}

#[test]
fn the_official_client_works_with_the_handshake_of_old() {
    let _turn = begin!();
    client(&name_of(the_official_client_works_with_the_handshake_of_old), "legacy");
}
