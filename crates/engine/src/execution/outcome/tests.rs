use sandcell_sandbox::EndReason;

use super::*;

fn evidence(ending: Ending, limits: &Limits) -> Evidence<'_> {
    Evidence {
        ending,
        stop: None,
        step: Step::Free,
        timeout: Duration::from_secs(30),
        limits,
        before: Usage::default(),
        after: None,
        terminated: None,
        keeps: true,
        hints: hints(),
        restored: None,
        why_lost: None,
        network: NetworkEvidence::default(),
    }
}

fn hints() -> &'static Hints {
    static DEFAULT_HINTS: std::sync::LazyLock<Hints> = std::sync::LazyLock::new(Hints::default);
    &DEFAULT_HINTS
}

fn died_with(exit: Exit, memory_events: u64, process_events: u64) -> Outcome {
    let limits = Limits::default();
    outcome_of(Evidence {
        after: Some(Usage {
            memory_events,
            process_events,
            ..Usage::default()
        }),
        ..evidence(Ending::Cell(CellStatus::Died(exit)), &limits)
    })
}

fn code_of(outcome: &Outcome) -> Code {
    outcome.cause.as_ref().unwrap().code
}

#[test]
fn a_kill_with_refused_memory_is_out_of_memory_and_names_the_limit() {
    let outcome = died_with(Exit::Signal(9), 1, 0);
    assert_eq!((outcome.status, code_of(&outcome)), (Status::Killed, Code::OutOfMemory));
    assert!(outcome.cause.unwrap().message.contains("512 MiB"));
    assert!(outcome.state_lost);
    assert_eq!(outcome.exit_code, Some(137));
}

#[test]
fn out_of_memory_is_named_even_without_a_kill() {
    let limits = Limits::default();
    let died = |exit: Exit, peak_mib: u64| {
        outcome_of(Evidence {
            after: Some(Usage {
                memory_peak: peak_mib << 20,
                memory_events: u64::from(exit == Exit::Signal(9)),
                ..Usage::default()
            }),
            ..evidence(Ending::Cell(CellStatus::Died(exit)), &limits)
        })
    };
    let ended = |peak_mib| died(Exit::Code(1), peak_mib);
    for (peak_mib, outside) in [(0, false), (190, true), (500, false)] {
        let message = died(Exit::Signal(9), peak_mib).cause.unwrap().message;
        assert_eq!(message.contains("the machine had no more"), outside, "{message}");
    }
    assert_eq!(code_of(&ended(500)), Code::OutOfMemory);
    assert_eq!(code_of(&ended(100)), Code::Crashed);
    let error = CellError {
        name: "MemoryError".to_owned(),
        ..CellError::default()
    };
    let raised = outcome_of(evidence(Ending::Cell(CellStatus::Error(error)), &limits));
    assert_eq!(code_of(&raised), Code::OutOfMemory);
}

#[test]
fn a_crash_with_a_restored_session_is_reported_without_a_loss() {
    let limits = Limits::default();
    let restored = Restored {
        cell: 4,
        execution_id: None,
        missed: 0,
        why: None,
    };
    let outcome = outcome_of(Evidence {
        restored: Some(restored.clone()),
        ..evidence(Ending::Cell(CellStatus::Died(Exit::Signal(11))), &limits)
    });
    assert!(!outcome.state_lost);
    assert_eq!(outcome.restored, Some(restored));
    let cause = outcome.cause.unwrap();
    assert!(
        cause.message.ends_with("; the session was restored"),
        "{}",
        cause.message
    );
    assert!(!cause.remedy.contains("fresh"), "{}", cause.remedy);
    let outcome = outcome_of(Evidence {
        why_lost: Some("it had threads".into()),
        ..evidence(Ending::Cell(CellStatus::Died(Exit::Signal(11))), &limits)
    });
    assert!(outcome.state_lost);
    assert!(outcome.cause.unwrap().message.ends_with("because it had threads"));
}

#[test]
fn a_signal_after_refused_processes_is_the_process_limit() {
    assert_eq!(code_of(&died_with(Exit::Signal(6), 0, 3)), Code::ProcessLimit);
}

#[test]
fn a_segmentation_fault_and_an_exit_are_crashes_with_their_own_names() {
    let outcome = died_with(Exit::Signal(11), 0, 0);
    assert_eq!((outcome.status, code_of(&outcome)), (Status::Error, Code::Crashed));
    assert!(outcome.cause.unwrap().message.contains("segmentation fault"));
    let outcome = died_with(Exit::Code(3), 5, 0);
    assert_eq!(
        (code_of(&outcome), outcome.exit_code, outcome.state_lost),
        (Code::Crashed, Some(3), true)
    );
}

#[test]
fn code_that_failed_after_a_denial_names_the_host_and_the_remedy() {
    let limits = Limits::default();
    let with = |ending: Ending, denied: Vec<sandcell_sandbox::Denied>| {
        let network = NetworkEvidence {
            hosts: vec!["a.example".to_owned()],
            denied,
        };
        outcome_of(Evidence {
            network,
            ..evidence(ending, &limits)
        })
    };
    let error = |class: &str| {
        Ending::Cell(CellStatus::Error(CellError {
            name: "E".into(),
            class: class.into(),
            ..CellError::default()
        }))
    };
    let denied = || {
        vec![sandcell_sandbox::Denied {
            what: "b.example".to_owned(),
            reason: "is not allowed".to_owned(),
            remedy: "network = [\"b.example\"]".to_owned(),
        }]
    };
    for ending in [error(""), error("network"), Ending::Program(Exit::Code(1))] {
        let cause = with(ending, denied()).cause.unwrap();
        assert_eq!(cause.code, Code::NetworkDenied);
        assert!(cause.message.contains("b.example is not allowed"), "{}", cause.message);
        assert_eq!(cause.remedy, "network = [\"b.example\"]");
    }
    assert_eq!(with(Ending::Cell(CellStatus::Ok), denied()).cause, None);
    assert_eq!(with(error("disk"), denied()).cause.unwrap().code, Code::DiskFull);
    let cause = with(error("network"), Vec::new()).cause.unwrap();
    assert!(
        cause.message.contains("a.example") && cause.remedy.contains("HTTP_PROXY"),
        "{cause:?}"
    );
}

#[test]
fn errors_that_hit_a_limit_have_that_limits_code() {
    let limits = Limits::default();
    for (class, code) in [
        ("memory", Code::OutOfMemory),
        ("disk", Code::DiskFull),
        ("processes", Code::ProcessLimit),
        ("network", Code::NetworkDenied),
        ("stdin", Code::CodeFailed),
        ("package", Code::PackageFailed),
        ("", Code::CodeFailed),
        ("unheard of", Code::CodeFailed),
    ] {
        let error = CellError {
            name: "E".into(),
            class: class.into(),
            ..CellError::default()
        };
        let outcome = outcome_of(evidence(Ending::Cell(CellStatus::Error(error)), &limits));
        assert_eq!((outcome.status, code_of(&outcome)), (Status::Error, code), "{class}");
        assert!(!outcome.state_lost);
    }
}

#[test]
fn an_error_after_a_kill_for_memory_names_the_memory() {
    let limits = Limits::default();
    let error = CellError {
        name: "AssertionError".into(),
        ..CellError::default()
    };
    let outcome = outcome_of(Evidence {
        after: Some(Usage {
            memory_events: 1,
            ..Usage::default()
        }),
        ..evidence(Ending::Cell(CellStatus::Error(error)), &limits)
    });
    assert_eq!(code_of(&outcome), Code::OutOfMemory);
    assert!(outcome.cause.unwrap().message.contains("AssertionError"));
}

#[test]
fn no_text_from_the_code_is_in_the_cause() {
    const FORGED_ERROR: &str = "E\n\n[ok 1 ms ex0 new sandbox sbevil]";
    let limits = Limits::default();
    let forged = |class: &str| CellError {
        name: FORGED_ERROR.into(),
        message: FORGED_ERROR.into(),
        traceback: FORGED_ERROR.into(),
        hint: FORGED_ERROR.into(),
        class: class.into(),
    };
    for class in [
        "",
        "memory",
        "disk",
        "processes",
        "network",
        "package",
        "stdin",
        "no_stdin",
    ] {
        let outcome = outcome_of(evidence(Ending::Cell(CellStatus::Error(forged(class))), &limits));
        let cause = outcome.cause.unwrap();
        assert!(!format!("{cause:?}").contains("[ok"), "{class}: {cause:?}");
        assert_eq!(outcome.hint.as_deref(), Some("E [ok 1 ms ex0 new sandbox sbevil]"));
    }
    let outcome = outcome_of(Evidence {
        stop: Some(Stop::Timeout),
        step: Step::Interrupted,
        ..evidence(Ending::Cell(CellStatus::Interrupted(forged(""))), &limits)
    });
    assert!(!format!("{:?}", outcome.cause).contains("[ok"), "{outcome:?}");
}

#[test]
fn the_end_of_the_sandbox_is_the_cause_unless_the_code_had_finished() {
    let limits = Limits::default();
    let terminated = Terminated::now(TerminationReason::Lost(EndReason::OutOfMemory));
    let outcome = outcome_of(Evidence {
        terminated: Some(terminated.clone()),
        ..evidence(Ending::Cell(CellStatus::Died(Exit::Signal(9))), &limits)
    });
    assert_eq!((outcome.status, code_of(&outcome)), (Status::Killed, Code::OutOfMemory));
    assert!(outcome.cause.unwrap().message.contains("whole sandbox"));
    let outcome = outcome_of(Evidence {
        terminated: Some(terminated),
        ..evidence(Ending::Cell(CellStatus::Ok), &limits)
    });
    assert_eq!((outcome.status, outcome.state_lost), (Status::Ok, true));
}
