use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use sandcell_e2e::test_dir::TestDir;
use sandcell_e2e::{begin, name_of, skip, sources};

/// Returns the Python that has the official SDK; skips the test if there is none.
pub fn sdk(test: &str) -> Option<OsString> {
    let python = std::env::var_os("SANDCELL_TEST_MCP_PYTHON");
    if python.is_none() {
        skip(
            test,
            "no Python with the official MCP SDK (see CONTRIBUTING.md; SANDCELL_TEST_MCP_PYTHON names it)",
        );
    }
    python
}

/// Runs a script of `tests/python_sdk` with these arguments, against a server on standard input and output that this
/// command starts, or against the one at `address`.
pub fn drive(python: &OsStr, script: &str, words: &[&str], server: &Command, address: Option<&str>) {
    let mut client = Command::new(python);
    client
        .args(["-I", "-B"])
        .arg(sources().join("crates/e2e/tests/python_sdk").join(script))
        .args(words)
        .env_clear()
        .envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(server.get_current_dir().unwrap())
        .stdin(Stdio::null());
    match address {
        Some(address) => client.arg(address),
        None => client.arg(server.get_program()).args(server.get_args()),
    };
    let output = client.output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
    assert!(said.contains("all steps passed"), "{said}");
}

/// Runs one mode of the script with the official SDK.
fn client(test: &str, mode: &str) {
    let Some(python) = sdk(test) else { return };
    drive(&python, "client.py", &[mode], &TestDir::new().command(&["serve"]), None);
}

#[test]
fn the_official_client_works_with_the_newest_protocol() {
    let _turn = begin!();
    client(&name_of(the_official_client_works_with_the_newest_protocol), "auto");
}

#[test]
fn the_official_client_works_with_the_old_handshake() {
    let _turn = begin!();
    client(&name_of(the_official_client_works_with_the_old_handshake), "legacy");
}
