//! Sessions: kept variables, the order of calls, and refusals.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcell_engine::{ExecuteRequest, InHistory, Status, Watch};
use sandcell_sandbox::Code;

use sandcell_testkit::{Bench, code_of};

#[tokio::test(start_paused = true)]
async fn variables_stay_for_the_next_call_of_the_same_sandbox_and_language() {
    let bench = Bench::new();
    let first = bench.exec("set x 42").await;
    assert_eq!((first.status, first.exit_code), (Status::Ok, Some(0)));
    assert!(first.new_sandbox && !first.state_lost && first.notices.is_empty());
    let second = bench.exec("get x\ncell").await;
    assert_eq!(second.result.as_deref(), Some("42"));
    assert_eq!(second.stdout.text, "2\n");
    assert!(!second.new_sandbox);
    assert_eq!(second.sandbox_id, first.sandbox_id);
    assert_ne!(second.id, first.id);
}

#[tokio::test(start_paused = true)]
async fn a_session_takes_its_snapshot_in_a_pause_and_not_between_the_calls_of_a_script() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.exec("cell").await;
    }
    let pauses = std::mem::take(&mut *bench.world.waits.lock().unwrap());
    assert_eq!(pauses, [Duration::from_millis(250); 3]);
}

#[tokio::test(start_paused = true)]
async fn languages_and_sandboxes_do_not_share_variables() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let other = ExecuteRequest {
        language: "other".into(),
        ..code_of("get x")
    };
    assert_eq!(bench.try_exec(other).await.unwrap().status, Status::Error);
    let sandbox = bench.create(1).await.unwrap().remove(0);
    assert_eq!(bench.exec_in(&sandbox, "get x").await.unwrap().status, Status::Error);
}

#[tokio::test(start_paused = true)]
async fn a_language_is_found_by_its_aliases_in_any_case() {
    let bench = Bench::new();
    for name in ["script", "S", "scr", " SCRIPT "] {
        let req = ExecuteRequest {
            language: name.into(),
            ..code_of("cell")
        };
        assert_eq!(bench.try_exec(req).await.unwrap().language, "script");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_language_is_refused_with_the_known_ones_and_makes_no_sandbox() {
    let bench = Bench::new();
    let req = ExecuteRequest {
        language: "cobol\n".repeat(50),
        ..code_of("cell")
    };
    let failure = bench.try_exec(req).await.unwrap_err();
    assert_eq!(failure.code, Code::LanguageUnavailable);
    assert!(failure.remedy.contains("script, other"), "{failure}");
    assert!(failure.message.len() < 150, "{failure}");
    assert_eq!(bench.world.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_code_and_bad_times_are_refused_and_nothing_is_lost() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let long = "#".repeat((1 << 20) + 1);
    for code in ["", " \n\t", "print a\0b", &long] {
        let failure = bench.try_exec(code_of(code)).await.unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
    }
    for timeout in [Duration::ZERO, Duration::from_secs(3601)] {
        let req = ExecuteRequest {
            timeout: Some(timeout),
            ..code_of("cell")
        };
        assert_eq!(bench.try_exec(req).await.unwrap_err().code, Code::InvalidArgument);
    }
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
}

#[tokio::test(start_paused = true)]
async fn standard_input_reaches_the_cell() {
    let bench = Bench::new();
    let req = ExecuteRequest {
        stdin: Some("a line".into()),
        ..code_of("stdin")
    };
    assert_eq!(bench.try_exec(req).await.unwrap().stdout.text, "Some(\"a line\")\n");
    assert_eq!(bench.exec("stdin").await.stdout.text, "None\n");
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_session_run_in_the_order_they_came() {
    let bench = Bench::new();
    bench.start("note on\nsleep 5000\nset log a", "on").await;
    let next = |code: &'static str| bench.exec(code);
    let (b, c, d) = tokio::join!(next("set log b\ncell"), next("get log\ncell"), next("cell"));
    assert_eq!(c.result.as_deref(), Some("b"));
    assert_eq!(
        (b.stdout.text, c.stdout.text, d.stdout.text),
        ("2\n".into(), "3\n".into(), "4\n".into())
    );
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_queue_are_refused_as_busy() {
    let bench = Bench::with(|config| config.queue = 2);
    bench.start("note on\nsleep 5000", "on").await;
    let queued = || ExecuteRequest {
        wait: Some(Duration::ZERO),
        watch: sandcell_engine::Watch::default(),
        ..code_of("cell")
    };
    assert_eq!(bench.try_exec(queued()).await.unwrap().status, Status::Running);
    assert_eq!(bench.try_exec(queued()).await.unwrap().status, Status::Running);
    let failure = bench.try_exec(queued()).await.unwrap_err();
    assert_eq!(failure.code, Code::Busy);
    let other = ExecuteRequest {
        language: "other".into(),
        ..queued()
    };
    assert!(bench.try_exec(other).await.is_ok(), "another session has its own line");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(bench.try_exec(queued()).await.is_ok(), "the line moves on");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_run_in_parallel_and_never_mix_output() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 40);
    let ids = bench.create(40).await.unwrap();
    let runs = ids.iter().enumerate().map(|(n, id)| {
        let code = format!("print from {n}\nsleep 1000\nprint again {n}");
        let bench = &bench;
        async move { bench.exec_in(id, &code).await.unwrap() }
    });
    let began = tokio::time::Instant::now();
    for (n, view) in futures::future::join_all(runs).await.into_iter().enumerate() {
        assert_eq!(view.stdout.text, format!("from {n}\nagain {n}\n"));
    }
    assert!(began.elapsed() < Duration::from_secs(2), "they waited for each other");
}

#[tokio::test(start_paused = true)]
async fn a_short_call_does_not_query_usage() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    let asked = bench.world.usage_asked.load(Ordering::SeqCst);
    for _ in 0..20 {
        assert_eq!(bench.exec("get x").await.peak_memory.as_mib(), 9);
    }
    assert_eq!(bench.world.usage_asked.load(Ordering::SeqCst), asked);
}

#[tokio::test(start_paused = true)]
async fn a_long_call_reports_its_cpu_time_and_peak_memory() {
    let bench = Bench::new();
    bench.exec("cpu 5000").await;
    let view = bench.exec("sleep 2000\ncpu 1500").await;
    assert_eq!(view.cpu, Duration::from_millis(1500));
    assert_eq!(view.duration, Duration::from_millis(2000));
    assert_eq!(view.peak_memory.as_mib(), 9);
}

#[tokio::test(start_paused = true)]
async fn an_interpreter_that_does_not_start_is_an_error_and_the_next_call_tries_again() {
    let bench = Bench::new();
    bench.world.open_fails.store(true, Ordering::SeqCst);
    let failure = bench.try_exec(code_of("cell")).await.unwrap_err();
    assert_eq!(failure.code, Code::LanguageUnavailable);
    assert!(failure.message.contains("it exploded"), "{failure}");
    bench.world.open_fails.store(false, Ordering::SeqCst);
    assert_eq!(bench.exec("cell").await.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn reset_forgets_variables_and_keeps_files() {
    let bench = Bench::new();
    bench.exec("set x 1\nwrite /home/user/a text").await;
    let reset = bench.engine.reset(&bench.me, None, None).await.unwrap();
    assert_eq!(reset.languages, ["script"]);
    let view = bench.exec("get x").await;
    assert_eq!(view.status, Status::Error);
    assert!(!view.state_lost && view.notices.is_empty(), "the caller asked for it");
    assert!(bench.world.last().files.lock().unwrap().contains_key("/home/user/a"));
}

#[tokio::test(start_paused = true)]
async fn reset_ends_running_code_of_the_named_language_only() {
    let bench = Bench::new();
    let other = |code: &str| ExecuteRequest {
        language: "other".into(),
        ..code_of(code)
    };
    bench.try_exec(other("set x 1")).await.unwrap();
    let running = bench.start("note on\nsleep 10000", "on").await;
    let reset = bench.engine.reset(&bench.me, None, Some("s")).await.unwrap();
    assert_eq!(reset.languages, ["script"]);
    let ended = bench
        .engine
        .execution(&bench.me, running.id.as_str(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!((ended.status, ended.state_lost), (Status::Cancelled, true));
    assert!(ended.cause.unwrap().message.contains("reset"));
    assert_eq!(bench.try_exec(other("get x")).await.unwrap().status, Status::Ok);
    assert!(bench.exec("cell").await.notices.is_empty());
}

#[tokio::test(start_paused = true)]
async fn reset_without_a_sandbox_makes_none() {
    let bench = Bench::new();
    let reset = bench.engine.reset(&bench.me, None, None).await.unwrap();
    assert_eq!((reset.sandbox_id, reset.languages.len()), (None, 0));
    assert_eq!(bench.world.made.load(Ordering::SeqCst), 0);
    let failure = bench.engine.reset(&bench.me, None, Some("cobol")).await.unwrap_err();
    assert_eq!(failure.code, Code::LanguageUnavailable);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_panics_ends_with_an_answer_and_the_next_call_works() {
    let bench = Bench::new();
    let failure = bench.try_exec(code_of("panic")).await.unwrap_err();
    assert_eq!(failure.code, Code::Internal);
    assert_eq!(bench.exec("cell").await.stdout.text, "1\n");
}

#[tokio::test(start_paused = true)]
async fn a_cell_without_a_memory_reading_is_not_reported_as_low_on_memory() {
    let bench = Bench::new();
    let first = bench.exec("sleep 1000").await;
    bench.world.usage_hangs.store(true, Ordering::SeqCst);
    let unread = bench.exec("sleep 20000").await;
    assert_eq!((unread.status, unread.memory), (Status::Ok, None));
    bench.world.usage_hangs.store(false, Ordering::SeqCst);
    let last = bench.exec("sleep 1000").await;
    let status = bench
        .engine
        .status(&bench.me, Some(first.sandbox_id.as_str()))
        .await
        .unwrap();
    let measured: Vec<_> = status[0].growth.iter().map(|one| one.execution_id.clone()).collect();
    assert_eq!(measured, [first.id, last.id]);
}

#[tokio::test(start_paused = true)]
async fn named_sessions_have_variables_of_their_own_and_end_alone() {
    let bench = Bench::new();
    let named = |name: &str, code: &str| ExecuteRequest {
        session: Some(name.to_owned()),
        ..code_of(code)
    };
    let sandbox = bench.exec("set x 1").await.sandbox_id.to_string();
    bench.try_exec(named("a", "set x 2")).await.unwrap();
    bench.try_exec(named("b-2_c", "set x 3")).await.unwrap();
    let read = async |name: Option<&str>| {
        let req = match name {
            Some(name) => named(name, "get x"),
            None => code_of("get x"),
        };
        bench.try_exec(req).await.unwrap().result
    };
    assert_eq!(read(None).await.as_deref(), Some("1"));
    assert_eq!(read(Some("a")).await.as_deref(), Some("2"));
    assert_eq!(read(Some("b-2_c")).await.as_deref(), Some("3"));
    let views = bench.engine.status(&bench.me, Some(&sandbox)).await.unwrap();
    let names: Vec<_> = views[0]
        .sessions
        .iter()
        .map(|session| session.name.as_deref())
        .collect();
    assert_eq!(names, [None, Some("a"), Some("b-2_c")]);
    let end = async |name| {
        bench
            .engine
            .end_session(&bench.me, &sandbox, "script", name)
            .await
            .unwrap()
    };
    assert!(end(Some("a")).await);
    assert!(!end(Some("a")).await, "it had ended");
    assert_eq!(read(Some("a")).await, None);
    assert_eq!(read(None).await.as_deref(), Some("1"));
    assert!(end(None).await);
    assert_eq!(read(None).await, None);
    assert_eq!(read(Some("b-2_c")).await.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn names_of_sessions_are_checked_and_their_number_is_bounded() {
    let bench = Bench::new();
    let named = |name: String| ExecuteRequest {
        session: Some(name),
        ..code_of("cell")
    };
    for name in ["", "A", "a b", "ä", &"n".repeat(65)] {
        let failure = bench.try_exec(named(name.to_owned())).await.unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument, "{name}");
    }
    for number in 0..64 {
        bench.try_exec(named(format!("s{number}"))).await.unwrap();
    }
    let failure = bench.try_exec(named("one-more".to_owned())).await.unwrap_err();
    assert_eq!(failure.code, Code::LimitReached, "{failure}");
    bench.try_exec(named("s7".to_owned())).await.unwrap();
    bench.exec("cell").await;
}

#[tokio::test(start_paused = true)]
async fn shown_values_are_kept_for_a_reader_that_asks_and_are_then_no_output() {
    let bench = Bench::new();
    let watch = Watch::default();
    let code = "print before\ndisplay shown\nprint after\nset x 42\nget x";
    let view = bench
        .try_exec(ExecuteRequest {
            keep_values: true,
            watch: watch.clone(),
            ..code_of(code)
        })
        .await
        .unwrap();
    assert_eq!(view.stdout.text, "before\nafter\n");
    let values = watch.values(0);
    let seen: Vec<_> = values
        .iter()
        .map(|value| (value.bundle.text(), value.is_result, value.stdout))
        .collect();
    assert_eq!(seen, [("shown".to_owned(), false, 7), ("42".to_owned(), true, 13)]);
    assert_eq!(watch.values(1).len(), 1);
    assert!(watch.values(9).is_empty());
    let plain = bench.exec("display shown").await;
    assert_eq!(plain.stdout.text, "shown\n");
}

#[tokio::test(start_paused = true)]
async fn an_unshown_execution_is_not_in_the_callers_history() {
    let bench = Bench::new();
    bench.exec("print shown").await;
    bench
        .try_exec(ExecuteRequest {
            in_history: InHistory::Unshown,
            ..code_of("print unshown")
        })
        .await
        .unwrap();
    let history = bench.engine.history(&bench.me, 10, None).await.unwrap();
    let codes: Vec<&str> = history
        .records
        .iter()
        .map(|record| record.code_preview.as_str())
        .collect();
    assert_eq!(codes, ["print shown"]);
}
