//! Support of the end-to-end tests: a client, a private place for a test, and checks of the machine.
//!
//! The tests are in `tests/`, the benchmark is in `benches/`. Nothing here depends on the product's internals.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::new_without_default,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "a part of tests: they may panic and print; that is how they fail"
)]

mod binary;
pub mod browser;
pub mod client;
pub mod docker;
pub mod http;
pub mod index;
pub mod machine;
pub mod oci;
pub mod registry;
pub mod test_dir;
pub mod turns;

pub use binary::binary;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A time limit that suffices for every working operation, on a machine that is busy with other tests.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Begins a test that needs working sandboxes: skips it where the machine cannot make any, and takes a shared turn
/// (`alone` for those that measure the machine or fill it).
#[macro_export]
macro_rules! begin {
    () => {
        $crate::begin!($crate::turns::Turn::shared())
    };
    (alone) => {
        $crate::begin!($crate::turns::Turn::alone())
    };
    ($turn:expr) => {{
        fn here() {}
        let name = $crate::name_of(here);
        if let Some(reason) = $crate::missing() {
            $crate::skip(&name, &reason);
            return;
        }
        let turn = $turn;
        $crate::machine::note_earlier_groups();
        turn
    }};
}

/// Returns the test's name from a function defined in it.
pub fn name_of<F>(_: F) -> String {
    std::any::type_name::<F>()
        .trim_start_matches("e2e::")
        .trim_end_matches("::here")
        .to_owned()
}

/// Returns the machine's missing prerequisite for sandboxes; none when it has all. Checked without the product's help.
pub fn missing() -> Option<String> {
    if python().is_none() {
        return Some("no python3 (apt-get install python3)".to_owned());
    }
    if !succeeds(Command::new("unshare").args(["--user", "--map-root-user", "true"])) {
        return Some("user namespaces are not allowed here (sysctl user.max_user_namespaces)".to_owned());
    }
    None
}

/// Returns a real interpreter of the machine, for comparison.
pub fn python() -> Option<PathBuf> {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}

/// Returns the source folder, also if the tests were moved.
pub fn sources() -> PathBuf {
    std::env::var_os("INSTA_WORKSPACE_ROOT").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."),
        PathBuf::from,
    )
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that a test was skipped, with the reason; fails it if no test may be skipped.
pub fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var("SANDCELL_TEST_REQUIRE").as_deref() != Ok("1"),
        "{test} cannot run here: {reason}; SANDCELL_TEST_REQUIRE=1 says that nothing may be skipped"
    );
    count(test, reason);
}

/// Reports that a test was skipped for a feature that no machine is required to have, and counts it as skipped.
pub fn not_required(test: &str, reason: &str) {
    count(test, &format!("not required: {reason}"));
}

fn count(test: &str, reason: &str) {
    println!("skipped: {test}: {reason}");
    if let Some(path) = std::env::var_os("SANDCELL_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes()).unwrap();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Polls until `look` returns something, at most for `limit`.
pub fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a reading is as before, at most for the two seconds within which everything must be gone.
#[track_caller]
pub fn settles<T: PartialEq + std::fmt::Debug>(read: impl Fn() -> T, before: &T) {
    let start = Instant::now();
    let mut now = read();
    while now != *before && start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
        now = read();
    }
    assert_eq!(now, *before, "it does not go back to what it was");
}

/// Returns a reading once it is stable for a moment: the server prepares and cleans up in the background.
#[track_caller]
pub fn settled<T: PartialEq>(read: impl Fn() -> T) -> T {
    let start = Instant::now();
    let mut reading = read();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(5));
        let now = read();
        if now != reading {
            (reading, since) = (now, Instant::now());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it never settles");
    }
    reading
}
