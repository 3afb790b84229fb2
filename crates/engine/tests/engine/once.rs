//! Runs in discarded sandboxes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sandcell_engine::{RunRequest, Status};
use sandcell_sandbox::{ByteSize, Code, SandboxPath};
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, run_of};

fn path(text: &str) -> SandboxPath {
    SandboxPath::parse(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_run_gets_its_files_returns_its_outputs_and_leaves_no_sandbox() {
    let bench = Bench::new();
    let req = RunRequest {
        files: vec![(path("in.csv"), Bytes::from_static(b"1,2"))],
        outputs: vec![path("in.csv"), path("out.json"), path("none.txt")],
        memory: Some(ByteSize::mib(64)),
        ..run_of("print ran\nwrite /home/user/out.json {}\nplot")
    };
    let view = bench.once(req).await.unwrap();
    assert_eq!((view.status, view.stdout.text.as_str()), (Status::Ok, "ran\n"));
    let names: Vec<_> = view
        .artifacts
        .iter()
        .map(|a| (a.name.as_str(), a.mime.as_str(), a.shown))
        .collect();
    assert_eq!(
        names,
        [
            ("plot-1.png", "image/png", true),
            ("in.csv", "text/csv", false),
            ("out.json", "application/json", false)
        ]
    );
    assert_eq!(view.artifacts.iter().map(|a| a.number).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(view.missing_outputs, ["/home/user/none.txt does not exist"]);
    assert!(!view.state_lost);
    assert_eq!(bench.world.specs.lock().unwrap()[0].limits.memory, ByteSize::mib(64));
    bench.world.live_becomes(0).await;
    let later = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(later.artifacts.len(), 3);
    let gone = bench
        .engine
        .status(&bench.me, Some(view.sandbox_id.as_str()))
        .await
        .unwrap_err();
    assert_eq!(gone.code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_answer_does_not_wait_for_the_close_but_the_next_run_waits_for_the_permit() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 1);
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(1);
    let began = tokio::time::Instant::now();
    bench.once(run_of("cell")).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(500));
    assert_eq!(bench.world.live(), 1);
    bench.once(run_of("cell")).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    // A default sandbox, which stays and so leaves no room.
    bench.exec("cell").await;
    let before = tokio::time::Instant::now();
    assert_eq!(bench.once(run_of("cell")).await.unwrap_err().code, Code::LimitReached);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_does_not_close_in_time_is_a_reached_limit() {
    let bench = Bench::with(|config| config.sandboxes_per_caller = 1);
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(4);
    bench.once(run_of("cell")).await.unwrap();
    let before = tokio::time::Instant::now();
    assert_eq!(bench.once(run_of("cell")).await.unwrap_err().code, Code::LimitReached);
    assert_eq!(before.elapsed(), Duration::from_secs(2));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(bench.once(run_of("cell")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_throwaway_sandboxes_too() {
    let bench = Bench::new();
    *bench.world.close_delay.lock().unwrap() = Duration::from_secs(2);
    bench.once(run_of("cell")).await.unwrap();
    bench.engine.shutdown().await;
    assert_eq!(bench.world.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn outputs_that_are_too_large_are_listed_as_missing() {
    let bench = Bench::with(|config| config.file_bytes = ByteSize::bytes(100));
    let req = RunRequest {
        outputs: vec![path("big")],
        ..run_of(&format!("write /home/user/big {}", "x".repeat(101)))
    };
    let view = bench.once(req).await.unwrap();
    assert_eq!(
        view.missing_outputs,
        ["/home/user/big has 101 bytes; at most 100 can be returned"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_total_size_of_outputs_is_bounded() {
    let bench = Bench::with(|config| {
        config.file_bytes = ByteSize::mib(20);
        config.code_bytes = ByteSize::mib(1);
    });
    let file = Bytes::from(vec![b'x'; 17 << 20]);
    let req = RunRequest {
        files: vec![(path("a"), file.clone()), (path("b"), file)],
        outputs: vec![path("a"), path("b")],
        ..run_of("cell")
    };
    let view = bench.once(req).await.unwrap();
    assert_eq!((view.artifacts.len(), view.missing_outputs.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn outputs_are_returned_after_a_failure_but_not_from_a_lost_sandbox() {
    let bench = Bench::new();
    let run = |end: &str| RunRequest {
        outputs: vec![path("a")],
        ..run_of(&format!("write /home/user/a text\n{end}"))
    };
    for end in ["raise E", "die 11", "sleep 100000"] {
        let view = bench.once(run(end)).await.unwrap();
        assert_ne!(view.status, Status::Ok);
        assert_eq!(view.artifacts.len(), 1, "{end}");
        assert!(!view.state_lost, "there was nothing to keep");
        assert!(!view.cause.unwrap().message.contains("variables"), "{end}");
    }
    let view = bench.once(run("oomall")).await.unwrap();
    assert_eq!(view.cause.unwrap().code, Code::OutOfMemory);
    assert_eq!((view.artifacts.len(), view.missing_outputs.len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_input_file_that_cannot_be_written_fails_the_call() {
    let bench = Bench::new();
    let req = RunRequest {
        files: vec![(path("/usr/x"), Bytes::new())],
        ..run_of("cell")
    };
    assert_eq!(bench.once(req).await.unwrap_err().code, Code::DeniedByPolicy);
    bench.world.live_becomes(0).await;
    assert_eq!(bench.world.opened.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_or_abandoned_run_leaves_nothing() {
    let bench = Bench::new();
    let cancel = CancellationToken::new();
    let run = bench
        .engine
        .run_once(&bench.me, run_of("note on\nsleep 20000"), cancel.clone());
    let stop = async {
        bench.world.noted("on").await;
        cancel.cancel();
    };
    let (view, ()) = tokio::join!(run, stop);
    assert_eq!(view.unwrap().status, Status::Cancelled);
    let left = tokio::time::timeout(Duration::from_secs(1), bench.once(run_of("stubborn"))).await;
    assert!(left.is_err());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.world.live(), 0);
    assert_eq!(bench.world.interpreters.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_run_continues_after_the_answer_running_and_its_results_stay() {
    let bench = Bench::new();
    let req = RunRequest {
        wait: Some(Duration::from_secs(1)),
        watch: sandcell_engine::Watch::default(),
        outputs: vec![path("a")],
        ..run_of("sleep 5000\nwrite /home/user/a text")
    };
    let view = bench.once(req).await.unwrap();
    assert_eq!(view.status, Status::Running);
    let done = bench
        .engine
        .execution(&bench.me, view.id.as_str(), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!((done.status, done.artifacts.len()), (Status::Ok, 1));
    bench.world.live_becomes(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_throwaway_run_does_not_touch_the_default_sandbox() {
    let bench = Bench::new();
    bench.exec("set x 1").await;
    assert_eq!(bench.once(run_of("get x")).await.unwrap().status, Status::Error);
    assert_eq!(bench.exec("get x").await.status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_runs_leave_nothing_behind() {
    let bench = Bench::new();
    for n in 0..1000 {
        let view = bench.once(run_of(&format!("print {n}"))).await.unwrap();
        assert_eq!(view.stdout.text, format!("{n}\n"));
        bench.world.live_becomes(0).await;
    }
    assert_eq!(bench.world.interpreters.load(Ordering::SeqCst), 0);
}
