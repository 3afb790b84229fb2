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
    let nobody_holds = "nobody holds limits here";
    let without = [
        ("its_home_is_where_every_sandbox_has_it", "it has no root of its own"),
        (
            "signals_end_a_program_and_all_it_started",
            "what detaches itself is not found again without a process namespace",
        ),
        ("what_is_outside_cannot_be_written", "nothing is outside"),
        ("a_full_disk_is_told_as_such", nobody_holds),
        ("too_many_processes_are_refused", nobody_holds),
        ("too_much_memory_is_refused_or_ended_and_counted", nobody_holds),
        ("usage_counts_what_runs", nobody_holds),
    ];
    sandcell_contract::run("local", &without, Vec::new(), || async {
        let backend: Arc<dyn Backend> = LocalBackend::start(Level::None).unwrap();
        backend
    });
}

#[cfg(not(target_os = "linux"))]
fn main() {}
