//! The host matrix: hosts that differ from this machine, and the results of the real binary on each.
//!
//! A row is a script in `rows/`. It changes mounts, namespaces, filters, limits or cgroups, then runs `probe.sh`
//! there. Its head states the expected results of `run`, `serve` and `doctor` (`row.rs` has the grammar). Each row is
//! tried as root and as an ordinary user, from one run of these tests as root: the changes need root, the program
//! under test does not. A row with a known failure is marked `# open: reason`; it is counted, and fails as soon as the
//! failure is gone.
#![cfg_attr(target_os = "linux", forbid(unsafe_code))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

#[cfg(target_os = "linux")]
mod outcome;
#[cfg(target_os = "linux")]
mod row;
#[cfg(target_os = "linux")]
mod stage;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    use std::sync::Arc;

    let arguments = libtest_mimic::Arguments::from_args();
    let rows = row::all();
    let mut trials = vec![
        libtest_mimic::Trial::test("at_least_forty_rows_are_there", {
            let number = rows.len();
            move || match number {
                40.. => Ok(()),
                _ => Err(format!("{number} rows").into()),
            }
        }),
        libtest_mimic::Trial::test("a_wrong_outcome_is_told_apart", || outcome::tests().map_err(Into::into)),
        libtest_mimic::Trial::test("a_head_that_cannot_be_read_is_refused", || {
            row::tests().map_err(Into::into)
        }),
    ];
    let stage = Arc::new(stage::Stage::new());
    for (number, row) in rows.into_iter().enumerate() {
        let row = Arc::new(row);
        for user in row::User::ALL.into_iter().filter(|user| row.is_for(*user)) {
            let (stage, row) = (Arc::clone(&stage), Arc::clone(&row));
            let name = format!("{}::{}", row.name, user.name());
            trials.push(libtest_mimic::Trial::test(name, move || {
                stage.judge(&row, number, user).map_err(Into::into)
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // `exit` runs no destructors.
    drop(stage);
    conclusion.exit();
}
