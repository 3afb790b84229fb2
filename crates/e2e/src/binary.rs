//! The program under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The variable with the program under test. `cargo xtask test` sets it.
const BINARY_VARIABLE: &str = "SANDCELL_TEST_BIN";

/// The features of the program that these tests need, in addition to the default ones.
const PROGRAM_FEATURES: [(&str, bool); 2] = [
    ("fault-injection", cfg!(feature = "fault-injection")),
    ("otel", cfg!(feature = "otel")),
];

/// Returns the program under test: the one that `SANDCELL_TEST_BIN` names, else the one that cargo builds now.
///
/// Cargo names a program only to tests of the same package. A program found in the target folder could be older than the
/// sources, so cargo is asked for it, once in each test process; nextest has one for each test, so set the variable for it.
pub fn binary() -> PathBuf {
    static BINARY_PATH: OnceLock<PathBuf> = OnceLock::new();
    BINARY_PATH
        .get_or_init(|| std::env::var_os(BINARY_VARIABLE).map_or_else(build, PathBuf::from))
        .clone()
}

fn build() -> PathBuf {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--package", "sandcell", "--bin", "sandcell"]);
    // Cargo sets these for a test; a nested cargo that sees them rebuilds the crates that depend on them.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    for (feature, _) in PROGRAM_FEATURES.iter().filter(|(_, needed)| *needed) {
        command.args(["--features", feature]);
    }
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .current_dir(super::sources())
        .stdin(Stdio::null())
        .output();
    let failed = |reason: String| -> ! {
        panic!("the program under test could not be built ({BINARY_VARIABLE} can name one): {command:?}: {reason}")
    };
    let output = output.unwrap_or_else(|error| failed(error.to_string()));
    if !output.status.success() {
        failed(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    executable(&String::from_utf8_lossy(&output.stdout)).unwrap_or_else(|| failed("cargo names no program".to_owned()))
}

/// Returns the program that cargo's messages name.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "sandcell")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let library = r#"{"reason":"compiler-artifact","target":{"name":"sandcell_mcp"},"executable":null}"#;
        let script = r#"{"reason":"compiler-artifact","target":{"name":"sandcell"},"executable":null}"#;
        let program = r#"{"reason":"compiler-artifact","target":{"name":"sandcell"},"executable":"/t/debug/sandcell"}"#;
        let messages = format!("{library}\nno json\n{script}\n{program}\n");
        assert_eq!(executable(&messages), Some(PathBuf::from("/t/debug/sandcell")));
        assert_eq!(executable(library), None);
    }
}
