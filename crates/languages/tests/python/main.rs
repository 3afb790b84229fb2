//! The Python driver from a caller's view: the real interpreter and driver, in a sandbox that isolates nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test says what went wrong by failing"
)]

mod support;

mod advice;
mod basics;
mod data;
mod errors;
mod habits;
mod hostile;
mod interrupts;
mod restore;
mod shell;
mod tools;

/// Starts a session of the machine's Python, or returns from the test if there is none.
macro_rules! python {
    () => {
        match $crate::support::Python::start().await {
            Some(python) => python,
            None => return,
        }
    };
}
pub(crate) use python;

/// A cell's output, value and error must not depend on snapshots: every test of this program runs a second time, with
/// snapshots.
#[test]
fn all_tests_also_pass_with_snapshots() {
    if support::with_snapshots() {
        return;
    }
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .env("SANDCELL_TEST_SNAPSHOTS", "1")
        .env("RUST_TEST_THREADS", "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(!said.contains(" 0 passed"), "nothing ran: {said}");
}
