//! Code that does not end well: time-outs, cancelling, crashes, limits, lost sandboxes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandcell_engine::{ExecuteRequest, ExecutionView, Status};
use sandcell_sandbox::{Code, EndReason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, code_of};

fn cause(view: &ExecutionView) -> (Code, &str) {
    let cause = view.cause.as_ref().unwrap();
    (cause.code, cause.message.as_str())
}

async fn timed(bench: &Bench, code: &str, seconds: u64) -> ExecutionView {
    let req = ExecuteRequest {
        timeout: Some(Duration::from_secs(seconds)),
        ..code_of(code)
    };
    bench.try_exec(req).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn code_that_runs_too_long_is_interrupted_and_its_variables_are_kept() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let began = Instant::now();
    let view = bench.exec("print before\nsleep 100000000").await;
    assert!(began.elapsed() < Duration::from_secs(31));
    assert_eq!(
        (view.status, view.state_lost, view.exit_code),
        (Status::Timeout, false, None)
    );
    assert_eq!(
        cause(&view),
        (Code::Timeout, "the code was interrupted after 30 s; variables are kept")
    );
    assert!(view.cause.as_ref().unwrap().remedy.contains("more time"));
    assert_eq!(view.stdout.text, "before\n");
    assert!(view.error.unwrap().traceback.contains("KeyboardInterrupt"));
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
}

#[tokio::test(start_paused = true)]
async fn code_that_ignores_the_interrupt_is_killed_after_two_seconds() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let began = Instant::now();
    let view = timed(&bench, "stubborn", 5).await;
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(7) && took < Duration::from_secs(8),
        "{took:?}"
    );
    assert_eq!((view.status, view.state_lost), (Status::Timeout, true));
    let (code, message) = cause(&view);
    assert_eq!(code, Code::Timeout);
    assert!(
        message.contains("did not stop within 2 s of its interrupt and was killed; variables are lost"),
        "{message}"
    );
    let next = bench.exec("get x").await;
    assert_eq!(next.status, Status::Error);
    assert!(!next.state_lost, "it was said already");
    assert_eq!(next.sandbox_id, view.sandbox_id, "only the session ended");
}

#[tokio::test(start_paused = true)]
async fn an_interpreter_that_survives_a_kill_costs_its_sandbox() {
    let bench = Bench::new();
    let began = Instant::now();
    let view = timed(&bench, "undead", 5).await;
    assert!(began.elapsed() < Duration::from_secs(13));
    assert_eq!((view.status, view.state_lost), (Status::Timeout, true));
    assert!(cause(&view).1.contains("its sandbox was closed"), "{:?}", view.cause);
    let next = bench.exec("cell").await;
    assert!(next.new_sandbox && next.state_lost);
    assert!(next.notices[0].contains("could not be killed"), "{:?}", next.notices);
    bench.world.live_becomes(1).await;
}

/// Runs code that prints without end. `kept` is the stored size of its output.
async fn flood(kept: sandcell_sandbox::ByteSize) -> ExecutionView {
    let bench = Bench::with(|config| config.output_kept = kept);
    tokio::time::timeout(Duration::from_secs(3600), async {
        let run = timed(&bench, "flood", 2);
        let tick = async {
            loop {
                // Paused time only advances while no task is ready. A flood is always ready.
                tokio::time::advance(Duration::from_millis(100)).await;
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { view = run => view, () = tick => unreachable!() }
    })
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_output_does_not_keep_code_from_being_interrupted() {
    let view = flood(sandcell_sandbox::ByteSize::mib(16)).await;
    assert_eq!((view.status, view.state_lost), (Status::Timeout, false));
    assert!(view.stdout.total_bytes > 0);
}

#[tokio::test(start_paused = true)]
async fn code_that_prints_far_beyond_the_stored_size_is_stopped_with_a_reason() {
    let view = flood(sandcell_sandbox::ByteSize::bytes(1024)).await;
    let cause = view.cause.unwrap();
    assert_eq!((view.status, cause.code), (Status::Error, Code::OutputLimit));
    assert!(!view.state_lost, "it was only interrupted: {}", cause.message);
    assert!(view.stdout.total_bytes > 64 * 1024);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_also_bounds_an_interpreter_that_does_not_get_ready() {
    let bench = Bench::new();
    *bench.world.open_delay.lock().unwrap() = Duration::from_secs(1000);
    let view = timed(&bench, "cell", 3).await;
    assert_eq!(view.status, Status::Timeout);
    assert!(cause(&view).1.contains("not ready after 3 s"), "{:?}", view.cause);
    let req = ExecuteRequest {
        timeout: Some(Duration::from_secs(3600)),
        ..code_of("cell")
    };
    let failure = bench.try_exec(req).await.unwrap_err();
    assert_eq!(failure.code, Code::LanguageUnavailable);
    assert!(failure.message.contains("30 s"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_reaches_its_wait_limit_is_answered_with_running_and_the_code_continues() {
    let bench = Bench::new();
    let view = bench
        .try_exec(ExecuteRequest {
            wait: Some(Duration::from_secs(5)),
            watch: sandcell_engine::Watch::default(),
            ..code_of("print early\nsleep 20000\nprint late")
        })
        .await
        .unwrap();
    assert_eq!((view.status, view.stdout.text.as_str()), (Status::Running, "early\n"));
    assert_eq!(view.duration, Duration::from_secs(5));
    let id = view.id.as_str();
    let still = bench
        .engine
        .execution(&bench.me, id, Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(still.status, Status::Running);
    let done = bench
        .engine
        .execution(&bench.me, id, Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!((done.status, done.stdout.text.as_str()), (Status::Ok, "early\nlate\n"));
    assert_eq!(done.duration, Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn cancelling_interrupts_at_once_and_keeps_variables() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let cancel = CancellationToken::new();
    let run = bench
        .engine
        .execute(&bench.me, code_of("note on\nsleep 20000"), cancel.clone());
    let stop = async {
        bench.world.noted("on").await;
        cancel.cancel();
    };
    let began = Instant::now();
    let (view, ()) = tokio::join!(run, stop);
    let view = view.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!((view.status, view.state_lost), (Status::Cancelled, false));
    assert_eq!(
        cause(&view),
        (
            Code::Cancelled,
            "the call was cancelled: the code was interrupted; variables are kept"
        )
    );
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_before_its_code_starts_loses_no_state() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let view = bench
        .engine
        .execute(&bench.me, code_of("set x 1"), cancel)
        .await
        .unwrap();
    assert_eq!((view.status, view.state_lost), (Status::Cancelled, false));
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
}

#[tokio::test(start_paused = true)]
async fn the_code_stops_when_its_caller_disconnects() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    let call = bench.try_exec(code_of("note on\nsleep 20000"));
    tokio::select! {
        _ = call => panic!("it ended by itself"),
        () = bench.world.noted("on") => {}
    }
    let began = Instant::now();
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
    assert!(began.elapsed() < Duration::from_secs(1), "the code ran on");
}

#[tokio::test(start_paused = true)]
async fn an_unreported_loss_is_reported_with_the_next_call() {
    let bench = Bench::new();
    let call = bench.try_exec(code_of("note on\nstubborn"));
    tokio::select! {
        _ = call => panic!("it ended by itself"),
        () = bench.world.noted("on") => {}
    }
    let next = bench.exec("cell").await;
    assert!(next.state_lost, "{next:?}");
    assert!(next.notices[0].starts_with("new session: variables of the previous one are gone"));
    assert!(bench.exec("cell").await.notices.is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_the_answer_running_a_disconnect_stops_nothing() {
    let bench = Bench::new();
    let cancel = CancellationToken::new();
    let req = ExecuteRequest {
        wait: Some(Duration::from_secs(1)),
        watch: sandcell_engine::Watch::default(),
        ..code_of("sleep 5000\nprint done")
    };
    let view = bench.engine.execute(&bench.me, req, cancel.clone()).await.unwrap();
    cancel.cancel();
    let done = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!((done.status, done.stdout.text.as_str()), (Status::Ok, "done\n"));
}

#[tokio::test(start_paused = true)]
async fn cancel_ends_the_named_execution_or_the_newest_running_one() {
    let bench = Bench::new();
    let sandbox = bench.create(1).await.unwrap().remove(0);
    let first = bench.start("note a\nsleep 20000", "a").await;
    let second = bench
        .try_exec(ExecuteRequest {
            sandbox_id: Some(sandbox),
            wait: Some(Duration::ZERO),
            watch: sandcell_engine::Watch::default(),
            ..code_of("note b\nsleep 20000")
        })
        .await
        .unwrap();
    bench.world.noted("b").await;
    let ended = bench.engine.cancel(&bench.me, None).await.unwrap();
    assert_eq!((&ended.id, ended.status), (&second.id, Status::Cancelled));
    let ended = bench.engine.cancel(&bench.me, Some(first.id.as_str())).await.unwrap();
    assert_eq!(ended.status, Status::Cancelled);
    let failure = bench.engine.cancel(&bench.me, None).await.unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
    let again = bench.engine.cancel(&bench.me, Some(first.id.as_str())).await.unwrap();
    assert_eq!(again.status, Status::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_queued_call_does_not_affect_the_running_one() {
    let bench = Bench::new();
    let running = bench.start("note on\nset x 1\nsleep 5000", "on").await;
    let waiting = bench.start("note never", "on").await;
    let ended = bench.engine.cancel(&bench.me, Some(waiting.id.as_str())).await.unwrap();
    assert_eq!(ended.status, Status::Cancelled);
    let done = bench
        .engine
        .execution(&bench.me, running.id.as_str(), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(done.status, Status::Ok);
    assert_eq!(bench.exec("get x").await.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn crashes_are_reported_by_kind_and_end_only_the_session() {
    let bench = Bench::new();
    let sandbox = bench.exec("write /home/user/kept text").await.sandbox_id;
    for (script, status, code, exit_code, words) in [
        ("die 11", Status::Error, Code::Crashed, 139, "segmentation fault"),
        ("_exit 3", Status::Error, Code::Crashed, 3, "exit code 3"),
        ("die 9", Status::Killed, Code::Crashed, 137, "SIGKILL"),
        ("oom", Status::Killed, Code::OutOfMemory, 137, "512 MiB"),
        ("forkbomb", Status::Killed, Code::ProcessLimit, 134, "128"),
    ] {
        let view = bench.exec(&format!("set x 1\nprint said\n{script}")).await;
        assert_eq!((view.status, view.exit_code), (status, Some(exit_code)), "{script}");
        let (found, message) = cause(&view);
        assert_eq!(found, code, "{script}");
        assert!(message.contains(words), "{script}: {message}");
        assert!(view.state_lost, "{script}");
        assert_eq!(view.stdout.text, "said\n");
        let next = bench.exec("get x").await;
        assert_eq!((&next.sandbox_id, next.status), (&sandbox, Status::Error), "{script}");
        assert!(!next.state_lost);
    }
    assert!(bench.world.last().files.lock().unwrap().contains_key("/home/user/kept"));
}

#[tokio::test(start_paused = true)]
async fn an_old_refusal_of_memory_does_not_make_a_later_crash_out_of_memory() {
    let bench = Bench::new();
    bench.exec("oom").await;
    assert_eq!(cause(&bench.exec("die 9").await).0, Code::Crashed);
    assert_eq!(cause(&bench.exec("oom").await).0, Code::OutOfMemory);
}

#[tokio::test(start_paused = true)]
async fn errors_and_exits_of_the_code_keep_the_session() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    let view = bench.exec("raise ValueError").await;
    assert_eq!((view.status, view.exit_code), (Status::Error, Some(1)));
    let raised = view.error.clone().unwrap();
    assert_eq!((raised.name.as_str(), raised.value.as_str()), ("ValueError", "boom"));
    assert_eq!(raised.traceback, "line 1\nValueError: boom");
    assert_eq!(cause(&view).0, Code::CodeFailed);
    assert_eq!(
        cause(&bench.exec("raise MemoryError memory").await).0,
        Code::OutOfMemory
    );
    let view = bench.exec("sysexit 7").await;
    assert_eq!((view.status, view.exit_code), (Status::Error, Some(7)));
    assert_eq!(bench.exec("sysexit 0").await.status, Status::Ok);
    assert_eq!(bench.exec("get x").await.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_breaks_the_protocol_ends() {
    let bench = Bench::new();
    let view = bench.exec("forge").await;
    assert_eq!((view.status, view.state_lost), (Status::Killed, true));
    assert_eq!(cause(&view).0, Code::SessionLost);
    assert_eq!(bench.exec("cell").await.stdout.text, "1\n");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_whole_sandbox_is_reported_and_a_new_one_follows() {
    let bench = Bench::new();
    let view = bench.exec("oomall").await;
    assert_eq!((view.status, view.state_lost), (Status::Killed, true));
    let (code, message) = cause(&view);
    assert_eq!(code, Code::OutOfMemory);
    assert!(message.contains("whole sandbox"), "{message}");
    let next = bench.exec("cell").await;
    assert!(next.new_sandbox && next.state_lost);
    assert!(
        next.notices[0].starts_with("new sandbox: the previous one was lost at "),
        "{:?}",
        next.notices
    );
    assert_ne!(next.sandbox_id, view.sandbox_id);
    let third = bench.exec("cell").await;
    assert!(!third.state_lost && third.notices.is_empty(), "it is said once");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_lost_while_idle_is_reported_with_the_next_call() {
    let bench = Bench::new();
    let first = bench.exec("set x 1").await;
    bench.world.last().end(EndReason::LauncherLost);
    // Let its task run.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let failure = bench.exec_in(first.sandbox_id.as_str(), "cell").await.unwrap_err();
    assert_eq!(failure.code, Code::SessionLost);
    let next = bench.exec("get x").await;
    assert!(next.state_lost && next.notices[0].contains("was lost at"));
}

#[tokio::test(start_paused = true)]
async fn closing_a_sandbox_ends_its_running_code() {
    let bench = Bench::new();
    let running = bench.start("note on\nsleep 20000", "on").await;
    bench
        .engine
        .close(&bench.me, running.sandbox_id.as_str())
        .await
        .unwrap();
    let view = bench
        .engine
        .execution(&bench.me, running.id.as_str(), Duration::from_secs(10))
        .await
        .unwrap();
    assert_eq!(view.status, Status::Killed);
    assert!(cause(&view).1.contains("was closed at"), "{:?}", view.cause);
    assert!(!bench.exec("cell").await.state_lost, "its owner closed it");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_sandbox_is_the_cause_even_when_noticed_later() {
    let bench = Bench::new();
    *bench.world.end_delay.lock().unwrap() = Duration::from_millis(200);
    let view = bench.exec("oomall").await;
    assert_eq!((view.status, view.state_lost), (Status::Killed, true));
    assert!(cause(&view).1.contains("whole sandbox"), "{:?}", view.cause);
    assert!(bench.exec("cell").await.new_sandbox);
}

#[tokio::test(start_paused = true)]
async fn an_interpreter_that_does_not_start_in_a_lost_sandbox_is_not_the_cause() {
    let bench = Bench::new();
    bench.world.open_fails.store(true, Ordering::SeqCst);
    *bench.world.open_delay.lock().unwrap() = Duration::from_secs(1);
    let (answer, ()) = tokio::join!(bench.try_exec(code_of("print 1")), async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        bench.world.sandboxes.lock().unwrap()[0].end(EndReason::LauncherKilled);
    });
    let view = answer.unwrap();
    let (code, message) = cause(&view);
    assert_eq!(code, Code::SessionLost);
    assert!(message.contains("killed from outside"), "{message}");
    assert!(!message.contains("did not start"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_interpreter_that_does_not_start_in_a_good_sandbox_is_the_cause() {
    let bench = Bench::new();
    bench.world.open_fails.store(true, Ordering::SeqCst);
    let failure = bench.try_exec(code_of("print 1")).await.unwrap_err();
    assert_eq!(failure.code, Code::LanguageUnavailable);
    assert!(failure.message.contains("it exploded"), "{}", failure.message);
}
