//! Programs next to sessions: streamed, fed, ended, and independent of each other.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sandcell_engine::{CommandLine, CommandRequest, ExecutionView, Principal, Status, Watch};
use sandcell_sandbox::{Code, Failure, SandboxPath, Signal, WriteMode};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use sandcell_testkit::{Bench, streamed};

/// A command that runs a script of the scripted world.
fn command(words: &[&str]) -> CommandRequest {
    CommandRequest {
        command: CommandLine::Argv(words.iter().map(|&word| word.to_owned()).collect()),
        cwd: SandboxPath::parse("/home/user").unwrap(),
        env: BTreeMap::new(),
        sandbox_id: None,
        timeout: None,
        terminal: None,
        wait: None,
        watch: Watch::default(),
    }
}

async fn put(bench: &Bench, path: &str, script: &str) {
    let path = SandboxPath::parse(path).unwrap();
    let bytes = Bytes::copy_from_slice(script.as_bytes());
    let written = bench
        .engine
        .write_file(&bench.me, None, &path, bytes, WriteMode::Replace);
    written.await.unwrap();
}

/// Runs to the end. Returns the view and the streamed text.
async fn run(bench: &Bench, req: CommandRequest, input: &[&'static str]) -> (Result<ExecutionView, Failure>, String) {
    streamed(input, |stdin, output| {
        let cancel = CancellationToken::new();
        bench.engine.run_command(&bench.me, req, stdin, output, cancel)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn commands_wait_neither_for_each_other_nor_for_a_busy_session() {
    let bench = Bench::new();
    put(&bench, "/home/user/wait", "sleep 1000\nprint done").await;
    let busy = bench.start("note busy\nsleep 60000", "busy").await;
    let began = Instant::now();
    let one = || run(&bench, command(&["sh", "/home/user/wait"]), &[]);
    let (a, b, c) = tokio::join!(one(), one(), one());
    for (view, streamed) in [a, b, c] {
        let view = view.unwrap();
        assert_eq!((view.status, view.exit_code), (Status::Ok, Some(0)));
        assert_eq!((streamed.as_str(), view.stdout.text.as_str()), ("done\n", "done\n"));
        assert_eq!(view.sandbox_id, busy.sandbox_id);
    }
    // The paused clock only advances when all tasks wait.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let still = bench
        .engine
        .execution(&bench.me, busy.id.as_str(), Duration::ZERO)
        .await;
    assert_eq!(still.unwrap().status, Status::Running);
}

#[tokio::test(start_paused = true)]
async fn arguments_folder_variables_and_input_reach_the_program() {
    let bench = Bench::new();
    put(&bench, "/tmp/show", "args\nenv OWN\ncat").await;
    let req = CommandRequest {
        cwd: SandboxPath::parse("/tmp").unwrap(),
        env: BTreeMap::from([("OWN".to_owned(), "a b".to_owned())]),
        ..command(&["sh", "/tmp/show", "x y", ""])
    };
    let (view, streamed) = run(&bench, req, &["in", "put"]).await;
    assert_eq!(streamed, "[\"x y\", \"\"]\nSome(\"a b\") /tmp\ninput");
    assert_eq!(view.unwrap().language, "command");
    let history = bench.engine.history(&bench.me, 1, None).await.unwrap();
    assert_eq!(history.records[0].code_preview, "sh /tmp/show 'x y' ''");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_runs_too_long_is_ended_and_the_session_lives_on() {
    let bench = Bench::new();
    bench.exec("set x 42").await;
    put(&bench, "/home/user/hangs", "print begun\nstubborn").await;
    let req = CommandRequest {
        timeout: Some(Duration::from_secs(3)),
        ..command(&["sh", "/home/user/hangs"])
    };
    let (view, streamed) = run(&bench, req, &[]).await;
    let view = view.unwrap();
    assert_eq!((view.status, streamed.as_str()), (Status::Timeout, "begun\n"));
    assert_eq!(bench.exec("get x").await.result.as_deref(), Some("42"));
}

#[tokio::test(start_paused = true)]
async fn the_exit_code_is_reported_and_the_call_can_answer_before_the_end() {
    let bench = Bench::new();
    put(&bench, "/home/user/fails", "exit 3").await;
    put(&bench, "/home/user/slow", "sleep 5000\nprint late").await;
    let (view, _) = run(&bench, command(&["sh", "/home/user/fails"]), &[]).await;
    assert_eq!(view.unwrap().exit_code, Some(3));
    let (output, _streamed) = mpsc::channel(4);
    let req = CommandRequest {
        wait: Some(Duration::ZERO),
        ..command(&["sh", "/home/user/slow"])
    };
    let (_feed, stdin) = mpsc::channel(1);
    let started = bench
        .engine
        .run_command(&bench.me, req, stdin, output, CancellationToken::new());
    let started = started.await.unwrap();
    assert_eq!(started.status, Status::Running);
    let ended = bench
        .engine
        .execution(&bench.me, started.id.as_str(), Duration::from_secs(60))
        .await;
    assert_eq!(ended.unwrap().stdout.text, "late\n");
}

#[tokio::test(start_paused = true)]
async fn bad_requests_and_foreign_sandboxes_are_refused() {
    let bench = Bench::new();
    let sandbox = bench.create(1).await.unwrap().remove(0);
    let long = "x".repeat(1 << 20);
    let nul = "a\0b";
    for words in [&[][..], &[""], &["  "], &["sh", nul], &["sh", &long]] {
        let (refused, _) = run(&bench, command(words), &[]).await;
        assert_eq!(refused.unwrap_err().code, Code::InvalidArgument, "{words:.20?}");
    }
    let variable = CommandRequest {
        env: BTreeMap::from([("A=B".to_owned(), String::new())]),
        ..command(&["sh"])
    };
    assert_eq!(
        run(&bench, variable, &[]).await.0.unwrap_err().code,
        Code::InvalidArgument
    );
    let stranger = Principal::new("somebody else");
    let foreign = CommandRequest {
        sandbox_id: Some(sandbox),
        ..command(&["sh"])
    };
    let (output, _streamed) = mpsc::channel(1);
    let (_feed, stdin) = mpsc::channel(1);
    let refused = bench
        .engine
        .run_command(&stranger, foreign, stdin, output, CancellationToken::new());
    assert_eq!(refused.await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_signal_reaches_a_running_command_only() {
    let bench = Bench::new();
    put(&bench, "/home/user/hangs", "print begun\nstubborn").await;
    let watch = Watch::default();
    let req = CommandRequest {
        watch: watch.clone(),
        ..command(&["sh", "/home/user/hangs"])
    };
    let signals = async {
        assert_eq!(watch.started().await, Some(7), "the id of the process");
        let id = watch.admitted().await.to_string();
        let stranger = Principal::new("stranger");
        let send = |who, signal| bench.engine.signal_command(who, &id, signal);
        assert_eq!(send(&stranger, Signal::Kill).unwrap_err().code, Code::NotFound);
        send(&bench.me, Signal::Terminate).unwrap();
        send(&bench.me, Signal::Kill).unwrap();
        id
    };
    let ((view, _), id) = tokio::join!(run(&bench, req, &[]), signals);
    let view = view.unwrap();
    assert_eq!((view.exit_code, view.signal), (Some(137), Some(9)));
    let late = bench.engine.signal_command(&bench.me, &id, Signal::Kill).unwrap_err();
    assert_eq!(late.code, Code::Expired, "{late}");
    let cell = bench.exec("cell").await;
    let no_command = bench.engine.signal_command(&bench.me, cell.id.as_str(), Signal::Kill);
    assert!(no_command.is_err());
}
