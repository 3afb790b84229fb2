//! The Python driver as a caller meets it: the real interpreter and driver, in a sandbox that isolates nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a test says what went wrong by failing"
)]

mod support;

mod basics;
mod data;
mod errors;
mod habits;
mod hostile;
mod interrupts;

/// Starts a session of the machine's Python, or leaves the test if there is none.
macro_rules! python {
    () => {
        match $crate::support::Python::start().await {
            Some(python) => python,
            None => return,
        }
    };
}
pub(crate) use python;
