//! Whole programs: streamed, fed, ended.

use std::time::Duration;

use bytes::Bytes;
use sandcell_engine::{ExecutionView, ProgramRequest, Status, Watch};
use sandcell_sandbox::{Code, Failure, SandboxPath};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, streamed};

fn program(code: &str) -> ProgramRequest {
    ProgramRequest {
        image: None,
        code: code.to_owned(),
        language: "script".to_owned(),
        args: Vec::new(),
        packages: Vec::new(),
        files: Vec::new(),
        outputs: Vec::new(),
        timeout: None,
        memory: None,
        network: Vec::new(),
        consent: sandcell_sandbox::Consent::NotAsked,
        compile_timeout: None,
        progress: tokio::sync::watch::Sender::new(String::new()),
        watch: Watch::default(),
    }
}

/// Runs to the end. Returns the view and the streamed text.
async fn run(bench: &Bench, req: ProgramRequest, input: &[&'static str]) -> (Result<ExecutionView, Failure>, String) {
    streamed(input, |stdin, output| {
        let cancel = CancellationToken::new();
        bench.engine.run_program(&bench.me, req, stdin, output, cancel)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn output_is_streamed_and_counted() {
    let bench = Bench::new();
    let (view, streamed) = run(&bench, program("print one\nprint two"), &[]).await;
    let view = view.unwrap();
    assert_eq!(streamed, "one\ntwo\n");
    assert_eq!((view.status, view.exit_code), (Status::Ok, Some(0)));
    assert_eq!((view.stdout.text.as_str(), view.stdout.total_bytes), ("one\ntwo\n", 8));
    bench.world.live_becomes(0).await;
}

#[tokio::test(start_paused = true)]
async fn arguments_environment_and_folder_reach_the_program() {
    let bench = Bench::new();
    let req = ProgramRequest {
        args: vec!["a b".into(), String::new()],
        ..program("args\nenv FAKE_NUMBER")
    };
    let (_, streamed) = run(&bench, req, &[]).await;
    assert_eq!(streamed, "[\"a b\", \"\"]\nSome(\"0\") /home/user\n");
}

#[tokio::test(start_paused = true)]
async fn standard_input_is_forwarded_until_it_ends() {
    let bench = Bench::new();
    let (view, streamed) = run(&bench, program("cat\nprint end"), &["a", "b", "c", "d", "e", "f"]).await;
    assert_eq!(streamed, "abcdefend\n");
    assert_eq!(view.unwrap().status, Status::Ok);
}

#[tokio::test(start_paused = true)]
async fn the_exit_code_of_the_program_is_returned() {
    let bench = Bench::new();
    let (view, _) = run(&bench, program("exit 3"), &[]).await;
    let view = view.unwrap();
    assert_eq!((view.status, view.exit_code), (Status::Error, Some(3)));
    assert_eq!(view.cause.unwrap().code, Code::CodeFailed);
    let (view, _) = run(&bench, program("signal 11"), &[]).await;
    let view = view.unwrap();
    assert_eq!((view.exit_code, view.cause.unwrap().code), (Some(139), Code::Crashed));
    let (view, _) = run(&bench, program("oom"), &[]).await;
    let view = view.unwrap();
    assert_eq!((view.status, view.exit_code), (Status::Killed, Some(137)));
    assert_eq!(view.cause.unwrap().code, Code::OutOfMemory);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_runs_too_long_is_interrupted_then_killed() {
    let bench = Bench::new();
    let timed = |code: &str| ProgramRequest {
        timeout: Some(Duration::from_secs(3)),
        ..program(code)
    };
    let began = Instant::now();
    let (view, _) = run(&bench, timed("sleep 100000"), &[]).await;
    let view = view.unwrap();
    assert_eq!((view.status, view.exit_code), (Status::Timeout, None));
    assert_eq!(view.cause.unwrap().message, "the code was interrupted after 3 s");
    assert!(began.elapsed() < Duration::from_secs(4));
    let (view, _) = run(&bench, timed("stubborn"), &[]).await;
    let view = view.unwrap();
    assert_eq!(view.status, Status::Timeout);
    assert!(view.cause.unwrap().message.contains("was killed"));
    bench.world.live_becomes(0).await;
}

#[tokio::test(start_paused = true)]
async fn background_processes_do_not_delay_the_end_of_a_program() {
    let bench = Bench::new();
    let began = Instant::now();
    let (view, streamed) = run(&bench, program("daemon\nprint done"), &[]).await;
    assert_eq!(view.unwrap().status, Status::Ok);
    assert_eq!(streamed, "done\ndaemon's last words\n");
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_blocks_the_program_until_its_timeout() {
    let bench = Bench::new();
    let (_feed, stdin) = mpsc::channel(1);
    let (output, _never_read) = mpsc::channel(1);
    let req = ProgramRequest {
        timeout: Some(Duration::from_secs(5)),
        ..program("flood")
    };
    let began = Instant::now();
    let view = bench
        .engine
        .run_program(&bench.me, req, stdin, output, CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(view.status, Status::Timeout);
    assert!(view.stdout.total_bytes < 100_000, "{}", view.stdout.total_bytes);
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_everything_even_after_the_end() {
    let bench = Bench::new();
    let (_feed, stdin) = mpsc::channel(1);
    let (output, mut streamed) = mpsc::channel(1);
    let req = program("print 1\nprint 2\nprint 3\nprint 4");
    let running = bench
        .engine
        .run_program(&bench.me, req, stdin, output, CancellationToken::new());
    let reading = async {
        let mut count = 0;
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            match streamed.recv().await {
                Some(_) => count += 1,
                None => return count,
            }
        }
    };
    let (view, count) = tokio::join!(running, reading);
    assert_eq!((view.unwrap().status, count), (Status::Ok, 4));
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_reader_does_not_stop_the_program() {
    let bench = Bench::new();
    let (_feed, stdin) = mpsc::channel(1);
    let (output, streamed) = mpsc::channel(1);
    drop(streamed);
    let req = program("print 1\nprint 2");
    let view = bench
        .engine
        .run_program(&bench.me, req, stdin, output, CancellationToken::new())
        .await
        .unwrap();
    assert_eq!((view.status, view.stdout.total_bytes), (Status::Ok, 4));
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_program() {
    let bench = Bench::new();
    let (_feed, stdin) = mpsc::channel(1);
    let (output, _streamed) = mpsc::channel(10);
    let cancel = CancellationToken::new();
    let running = bench
        .engine
        .run_program(&bench.me, program("sleep 20000"), stdin, output, cancel.clone());
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    let (view, ()) = tokio::join!(running, stop);
    assert_eq!(view.unwrap().status, Status::Cancelled);
    bench.world.live_becomes(0).await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_sandbox_is_reported_for_a_program() {
    let bench = Bench::new();
    let (view, _) = run(&bench, program("lose"), &[]).await;
    let view = view.unwrap();
    assert_eq!(view.status, Status::Killed);
    assert!(view.cause.unwrap().message.contains("was lost at"));
}

#[tokio::test(start_paused = true)]
async fn input_files_are_written_and_outputs_are_returned() {
    let bench = Bench::new();
    let path = |text: &str| SandboxPath::parse(text).unwrap();
    let req = ProgramRequest {
        files: vec![(path("in"), Bytes::from_static(b"x"))],
        outputs: vec![path("in"), path("out")],
        ..program("write /home/user/out y")
    };
    let (view, _) = run(&bench, req, &[]).await;
    assert_eq!(view.unwrap().artifacts.len(), 2);
    let req = ProgramRequest {
        files: vec![(path("main.script"), Bytes::new())],
        ..program("print x")
    };
    assert_eq!(run(&bench, req, &[]).await.0.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn pictures_shown_by_a_program_are_returned_and_other_files_are_not() {
    let bench = Bench::new();
    let file = |name: &str, bytes: &'static [u8]| (SandboxPath::parse(name).unwrap(), Bytes::from_static(bytes));
    let req = ProgramRequest {
        files: vec![
            file("shown/1.png", b"\x89PNG\r\n\x1a\nrest"),
            file("shown/2.png", b"#!/bin/sh"),
            file("shown/3.jpg", b"\xff\xd8\xffrest"),
        ],
        ..program("print x")
    };
    let (view, _) = run(&bench, req, &[]).await;
    let shown = view.unwrap().artifacts;
    let names: Vec<&str> = shown.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["plot-1.png", "plot-2.jpg"]);
    assert!(shown.iter().all(|one| one.shown));
}
