//! The example under the contract that every back end keeps, as far as something that isolates nothing can.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program"
)]

#[cfg(target_os = "linux")]
fn main() {
    use std::sync::Arc;

    use sandcell_example_local::{LocalBackend, become_agent_if_asked};
    use sandcell_sandbox::{Backend, Code, Failure, Level};

    become_agent_if_asked();
    // Whatever floor an operator can set, only `none` lets it start; the default is `namespace`.
    for floor in [
        Level::Microvm,
        Level::Gvisor,
        Level::Container,
        Level::Namespace,
        Level::Process,
    ] {
        let refused = Failure::from(LocalBackend::start(floor).unwrap_err());
        assert_eq!(refused.code, Code::IsolationUnavailable, "{refused}");
    }
    let no_limits = "this back end enforces no limits";
    let without = [
        ("the_home_folder_is_home_user", "it has no separate root folder"),
        (
            "signals_end_a_program_and_its_descendants",
            "a detached process is not found without a PID namespace",
        ),
        ("read_only_folders_cannot_be_written", "every folder is writable"),
        ("a_full_disk_is_reported_as_such", no_limits),
        ("too_many_files_are_refused", no_limits),
        ("too_many_processes_are_refused", no_limits),
        ("excessive_memory_is_refused_or_killed_and_counted", no_limits),
        ("usage_counts_running_programs", no_limits),
        (
            "a_program_is_reached_on_its_port",
            "it shares the loopback address of the host",
        ),
        (
            "a_paused_sandbox_stands_still",
            "its processes cannot be stopped together without a PID namespace",
        ),
    ];
    sandcell_contract::run("local", &without, Vec::new(), || async {
        let backend: Arc<dyn Backend> = LocalBackend::start(Level::None).unwrap();
        backend
    });
}

#[cfg(not(target_os = "linux"))]
fn main() {}
