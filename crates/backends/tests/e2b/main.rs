//! Tests the E2B back end against a strict fake service.
#![cfg(feature = "e2b")]
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "tests may panic; that is how they fail"
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_backends::e2b::{Debug, E2bBackend, E2bConfig, Internet};
use sandcell_fake_e2b::{API_KEY, Fake, TEMPLATE_NAME};
use sandcell_sandbox::{
    Backend, Cell, CellStatus, Channel, Command, EndReason, Exit, FileError, Level, OutputStream, ProcessEvent,
    Sandbox, SandboxError, SandboxPath, SandboxSpec, Secret, Session, SessionError, SessionEvent, Signal, SignalScope,
    StdinMode, WriteMode, gather,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// A deadline longer than any step here takes.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

fn config(fake: &Fake) -> E2bConfig {
    E2bConfig {
        key: Some(Secret::new(API_KEY)),
        domain: "e2b.app".into(),
        api_url: Some(fake.url.clone()),
        sandbox_url: Some(fake.url.clone()),
        debug: Debug::Off,
        template: TEMPLATE_NAME.into(),
        lifetime: Duration::from_secs(300),
        level: None,
        internet: Internet::Closed,
    }
}

async fn started(fake: &Fake) -> Arc<E2bBackend> {
    E2bBackend::start(config(fake)).await.unwrap()
}

async fn sandbox(backend: &E2bBackend) -> Arc<dyn Sandbox> {
    backend.create(&SandboxSpec::default()).await.unwrap()
}

async fn session(sandbox: &Arc<dyn Sandbox>) -> Box<dyn Session> {
    sandbox.own_sessions().unwrap().open_session("python").await.unwrap()
}

fn cell(code: &str) -> Cell {
    Cell {
        code: code.to_owned(),
        stdin: None,
        number: 1,
        packages: false,
        exact: false,
        execution: None,
    }
}

/// Runs a cell to completion.
async fn run(session: &mut Box<dyn Session>, code: &str) -> (Result<CellStatus, SessionError>, Vec<SessionEvent>) {
    let (sender, mut receiver) = mpsc::channel(1000);
    let outcome = timeout(EVENT_TIMEOUT, session.execute(cell(code), &sender))
        .await
        .unwrap();
    drop(sender);
    let mut events = Vec::new();
    while let Some(event) = receiver.recv().await {
        events.push(event);
    }
    (outcome.map(|outcome| outcome.status), events)
}

fn text(events: &[SessionEvent], wanted: OutputStream) -> String {
    let pieces = events.iter().filter_map(|event| match event {
        SessionEvent::Output { stream, bytes } if *stream == wanted => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    });
    pieces.collect()
}

/// Waits until the service has no sandbox left.
async fn empty(fake: &Fake) {
    for _ in 0..600 {
        if fake.ids().is_empty() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("left: {:?}", fake.ids());
}

#[tokio::test]
async fn a_session_keeps_variables_and_returns_all_output() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    assert_eq!(
        backend.isolation().level,
        Level::Container,
        "it is not E2B's own domain"
    );
    let place = sandbox(&backend).await;
    assert!(
        place
            .isolation()
            .degraded
            .iter()
            .any(|one| one.contains("1024 MB memory, 2 CPU")),
        "{:?}",
        place.isolation()
    );
    let mut session = session(&place).await;
    let (status, events) = run(
        &mut session,
        "import sys\nx = 40\nprint('out')\nprint('err', file=sys.stderr)\nx + 2",
    )
    .await;
    assert_eq!(status.unwrap(), CellStatus::Ok);
    assert_eq!(text(&events, OutputStream::Stdout), "out\n");
    assert_eq!(text(&events, OutputStream::Stderr), "err\n");
    let value = events.iter().find_map(|event| match event {
        SessionEvent::Result(bundle) => Some(bundle.text()),
        _ => None,
    });
    assert_eq!(value.as_deref(), Some("42"));
    let (_, events) = run(&mut session, "display(Picture())\n{'a': x}").await;
    let Some(SessionEvent::Display(picture)) = events.first() else {
        panic!("{events:?}")
    };
    assert!(picture.get("image/png").unwrap().starts_with(b"\x89PNG"));
    let Some(SessionEvent::Result(value)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(value.get("application/json").unwrap().as_ref(), br#"{"a":40}"#);
    let (status, _) = run(&mut session, "1/0").await;
    let Ok(CellStatus::Error(error)) = status else {
        panic!("{status:?}")
    };
    assert_eq!(
        (error.name.as_str(), error.message.as_str()),
        ("ZeroDivisionError", "division by zero")
    );
    assert!(!error.traceback.contains('\u{1b}'));
    assert_eq!(run(&mut session, "sys.exit(3)").await.0.unwrap(), CellStatus::Exit(3));
    assert_eq!(
        text(&run(&mut session, "print(x)").await.1, OutputStream::Stdout),
        "40\n"
    );
    let other = place.own_sessions().unwrap().open_session("cobol").await;
    assert!(other.unwrap_err().to_string().contains("python, javascript"));
    place.close().await.unwrap();
    place.close().await.unwrap();
    assert!(fake.ids().is_empty());
    assert_eq!(fake.internet(), [false]);
    fake.had_no_faults();
}

#[tokio::test]
async fn interrupted_code_keeps_its_variables_and_killed_code_loses_them() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let mut session = session(&place).await;
    run(&mut session, "x = 41").await.0.unwrap();
    let interrupter = session.interrupter();
    let later = tokio::spawn(async move {
        sleep(Duration::from_millis(300)).await;
        interrupter.interrupt().await.unwrap();
    });
    let (status, _) = run(&mut session, "while True: pass").await;
    assert!(matches!(status, Ok(CellStatus::Interrupted(_))), "{status:?}");
    later.await.unwrap();
    assert_eq!(
        text(&run(&mut session, "print(x)").await.1, OutputStream::Stdout),
        "41\n"
    );
    let interrupter = session.interrupter();
    tokio::spawn(async move {
        sleep(Duration::from_millis(300)).await;
        interrupter.kill().await.unwrap();
    });
    let (status, _) = run(&mut session, "while True: pass").await;
    assert!(matches!(status, Ok(CellStatus::Died(_))), "{status:?}");
    drop(session);
    let mut fresh = place.own_sessions().unwrap().open_session("python").await.unwrap();
    let (status, _) = run(&mut fresh, "x").await;
    assert!(matches!(status, Ok(CellStatus::Error(_))), "{status:?}");
    let (status, _) = run(&mut fresh, "import os\nos._exit(1)").await;
    assert!(matches!(status, Ok(CellStatus::Died(_))), "{status:?}");
    fake.had_no_faults();
}

#[tokio::test]
async fn files_are_written_read_and_listed() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let path = |text: &str| SandboxPath::parse(text).unwrap();
    let files = place.files();
    let bytes = Bytes::from((0..=255).collect::<Vec<u8>>());
    assert_eq!(
        files
            .write(&path("a/b c+ä.bin"), bytes.clone(), WriteMode::Replace)
            .await
            .unwrap(),
        256
    );
    assert_eq!(
        files
            .write(&path("a/b c+ä.bin"), bytes.clone(), WriteMode::Append)
            .await
            .unwrap(),
        512
    );
    assert_eq!(
        files
            .write(&path("new"), Bytes::from("x"), WriteMode::Append)
            .await
            .unwrap(),
        1
    );
    let part = files.read(&path("a/b c+ä.bin"), 250, 10).await.unwrap();
    assert_eq!(part.bytes.as_ref(), [250, 251, 252, 253, 254, 255, 0, 1, 2, 3]);
    assert_eq!(part.total, 512);
    let end = files.read(&path("new"), 5, 10).await.unwrap();
    assert!(end.bytes.is_empty());
    let listing = files.list(&path("/home/user"), true, 10).await.unwrap();
    let names: Vec<&str> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "a/b c+ä.bin", "new"]);
    assert_eq!(listing.entries[1].size, 512);
    assert_eq!(listing.entries[1].modified_ms, 1_795_211_240_530);
    let short = files.list(&path("/home/user"), false, 1).await.unwrap();
    assert_eq!((short.entries.len(), short.omitted), (1, 1));
    let missing = files.read(&path("nothing"), 0, 1).await.unwrap_err();
    assert!(matches!(missing, FileError::NotFound { .. }), "{missing:?}");
    let folder = files.read(&path("a"), 0, 1).await.unwrap_err();
    assert!(matches!(folder, FileError::IsDirectory { .. }), "{folder:?}");
    let none = files.list(&path("new"), false, 1).await.unwrap_err();
    assert!(matches!(none, FileError::NotDirectory { .. }), "{none:?}");
    fake.had_no_faults();
}

fn command(argv: &[&str], stdin: StdinMode) -> Command {
    Command {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: [("KEY".to_owned(), "value".to_owned())].into(),
        cwd: "/home/user".into(),
        stands_alone: false,
        stdin,
        control: false,
        terminal: None,
    }
}

#[tokio::test]
async fn programs_are_started_fed_and_ended() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let spawn = |argv: &'static [&'static str], stdin| {
        let place = place.clone();
        async move { place.spawn(command(argv, stdin)).await }
    };
    let said = spawn(&["/bin/sh", "-c", "echo $KEY; echo oops >&2; exit 3"], StdinMode::Null)
        .await
        .unwrap();
    let said = timeout(EVENT_TIMEOUT, gather(said, 1000)).await.unwrap();
    assert_eq!(said.exit, Some(Exit::Code(3)));
    assert_eq!(
        (said.stdout.as_slice(), said.stderr.as_slice()),
        (&b"value\n"[..], &b"oops\n"[..])
    );
    let fed = spawn(&["/bin/cat"], StdinMode::Piped).await.unwrap();
    let handle = fed.handle.clone();
    handle.write(Channel::Stdin, Bytes::from("through")).await.unwrap();
    handle.close(Channel::Stdin).await.unwrap();
    let fed = timeout(EVENT_TIMEOUT, gather(fed, 1000)).await.unwrap();
    assert_eq!(
        (fed.exit, fed.stdout.as_slice()),
        (Some(Exit::Code(0)), &b"through"[..])
    );
    handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
    let endless = spawn(&["/bin/sleep", "100"], StdinMode::Null).await.unwrap();
    endless.handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
    let ended = timeout(EVENT_TIMEOUT, gather(endless, 1000)).await.unwrap();
    assert_eq!(ended.exit, Some(Exit::Signal(9)));
    let trapping = &[
        "/bin/sh",
        "-c",
        "trap 'echo heard; exit 5' INT; echo ready; while :; do sleep 0.1; done",
    ];
    let mut polite = spawn(trapping, StdinMode::Null).await.unwrap();
    let ready = timeout(EVENT_TIMEOUT, polite.events.recv()).await.unwrap();
    assert!(matches!(ready, Some(ProcessEvent::Output { .. })), "{ready:?}");
    polite
        .handle
        .signal(Signal::Interrupt, SignalScope::Group)
        .await
        .unwrap();
    let ended = timeout(EVENT_TIMEOUT, gather(polite, 1000)).await.unwrap();
    assert_eq!(
        (ended.exit, ended.stdout.as_slice()),
        (Some(Exit::Code(5)), &b"heard\n"[..])
    );
    let missing = spawn(&["/no/such/program"], StdinMode::Null).await.unwrap_err();
    assert!(matches!(missing, SandboxError::Spawn { .. }), "{missing:?}");
    fake.had_no_faults();
}

#[tokio::test]
async fn an_expired_sandbox_is_reported_as_expired() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let mut session = session(&place).await;
    fake.expire_all();
    let (status, _) = run(&mut session, "1").await;
    assert!(
        matches!(
            status,
            Err(SessionError::Sandbox(SandboxError::Gone(EndReason::Expired)))
        ),
        "{status:?}"
    );
    let ended = timeout(EVENT_TIMEOUT, place.ended()).await.unwrap();
    assert_eq!(ended.reason, EndReason::Expired);
    let read = place.files().read(&SandboxPath::home(), 0, 1).await.unwrap_err();
    assert!(read.to_string().contains("expired"), "{read}");
    assert!(place.usage().await.is_err());
    // A new sandbox works.
    let again = sandbox(&backend).await;
    let mut session = again.own_sessions().unwrap().open_session("python").await.unwrap();
    assert!(run(&mut session, "1").await.0.is_ok());
    fake.had_no_faults();
}

#[tokio::test]
async fn a_paused_sandbox_is_woken_with_its_variables() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let mut session = session(&place).await;
    run(&mut session, "x = 41").await.0.unwrap();
    fake.pause_all();
    assert_eq!(
        text(&run(&mut session, "print(x)").await.1, OutputStream::Stdout),
        "41\n"
    );
    fake.had_no_faults();
}

#[tokio::test]
async fn a_busy_service_is_retried_and_makes_one_sandbox() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    let before = fake.asked().len();
    fake.answer_next(&[(429, "Retry-After: 0\r\n"), (503, "Retry-After: 0\r\n")]);
    let _place = sandbox(&backend).await;
    let asked = &fake.asked()[before..];
    let keys: Vec<&String> = asked[..3].iter().map(|(_, key)| key.as_ref().unwrap()).collect();
    assert!(keys[0] == keys[1] && keys[1] == keys[2], "{asked:?}");
    fake.answer_next(&[(503, "Should-Retry: false\r\n")]);
    let refused = backend.create(&SandboxSpec::default()).await.unwrap_err();
    assert!(refused.to_string().contains("503"), "{refused}");
    fake.answer_next(&[(429, "Retry-After: 0\r\n"); 4]);
    let refused = backend.create(&SandboxSpec::default()).await.unwrap_err();
    assert!(refused.to_string().contains("at its limit"), "{refused}");
    assert_eq!(fake.ids().len(), 1);
    fake.had_no_faults();
}

#[tokio::test]
async fn a_wrong_setting_is_named_without_showing_the_key() {
    let fake = Fake::start();
    let wrong = |change: &dyn Fn(&mut E2bConfig)| {
        let mut config = config(&fake);
        change(&mut config);
        config
    };
    for (config, part) in [
        (wrong(&|config| config.key = None), "E2B_API_KEY"),
        (
            wrong(&|config| config.key = Some(Secret::new("e2b_wrong"))),
            "E2B_API_KEY",
        ),
        (
            wrong(&|config| config.key = Some(Secret::new("e2b_\nwrong"))),
            "E2B_API_KEY",
        ),
        (wrong(&|config| config.api_url = Some("nonsense".into())), "E2B_API_URL"),
        (
            wrong(&|config| config.api_url = Some("http://127.0.0.1:1".into())),
            "E2B_API_URL",
        ),
        (wrong(&|config| config.domain = "a/b".into()), "E2B_DOMAIN"),
    ] {
        let error = timeout(EVENT_TIMEOUT, E2bBackend::start(config))
            .await
            .unwrap()
            .unwrap_err();
        let failure = sandcell_sandbox::Failure::from(error);
        assert!(failure.to_string().contains(part), "{failure}");
        assert!(!format!("{failure:?}").contains("e2b_"), "{failure:?}");
    }
    let other = E2bBackend::start(wrong(&|config| config.template = "nonesuch".into()))
        .await
        .unwrap();
    let failure = sandcell_sandbox::Failure::from(other.create(&SandboxSpec::default()).await.unwrap_err());
    assert!(
        failure.message.contains("nonesuch") && failure.remedy.contains("e2b.template"),
        "{failure}"
    );
    assert!(!format!("{other:?} {:?}", config(&fake)).contains(API_KEY));
    fake.had_no_faults();
}

#[tokio::test]
async fn older_services_and_programs_are_understood() {
    let fake = Fake::start();
    fake.be_older("0.3.0");
    let backend = started(&fake).await;
    let place = sandbox(&backend).await;
    let mut session = session(&place).await;
    assert!(run(&mut session, "1").await.0.is_ok());
    let path = SandboxPath::parse("x.txt").unwrap();
    place
        .files()
        .write(&path, Bytes::from("old"), WriteMode::Replace)
        .await
        .unwrap();
    assert_eq!(place.files().read(&path, 0, 9).await.unwrap().bytes.as_ref(), b"old");
    fake.had_no_faults();
}

#[tokio::test]
async fn departed_callers_and_dropped_handles_leave_nothing_behind() {
    let fake = Fake::start();
    let backend = started(&fake).await;
    for wait_ms in [0, 1, 2, 4, 8, 16] {
        let spec = SandboxSpec::default();
        let making = backend.create(&spec);
        drop(timeout(Duration::from_millis(wait_ms), making).await);
    }
    empty(&fake).await;
    drop(sandbox(&backend).await);
    empty(&fake).await;
    let kept = sandbox(&backend).await;
    backend.shutdown().await;
    assert!(fake.ids().is_empty());
    assert_eq!(kept.ended().await.reason, EndReason::Closed);
    fake.had_no_faults();
}

#[tokio::test]
async fn a_sandbox_is_kept_alive_while_its_handle_exists() {
    let fake = Fake::start();
    let config = E2bConfig {
        lifetime: Duration::from_secs(1),
        ..config(&fake)
    };
    let backend = E2bBackend::start(config).await.unwrap();
    let place = sandbox(&backend).await;
    for _ in 0..600 {
        if fake.kept_alive() >= 2 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(fake.kept_alive() >= 2);
    // Usage is read in the background and arrives soon.
    for _ in 0..600 {
        if place.usage().await.unwrap().memory == 77_000_000 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(place.usage().await.unwrap().memory, 77_000_000);
    // The back end notices the end without a call.
    fake.expire_all();
    let ended = timeout(EVENT_TIMEOUT, place.ended()).await.unwrap();
    assert_eq!(ended.reason, EndReason::Expired);
    fake.had_no_faults();
}

#[tokio::test]
async fn a_sandbox_without_the_service_ends_its_contexts() {
    let fake = Fake::start();
    fake.be_bare();
    let config = E2bConfig {
        key: None,
        debug: Debug::On,
        ..config(&fake)
    };
    let backend = E2bBackend::start(config).await.unwrap();
    assert!(
        backend
            .isolation()
            .degraded
            .iter()
            .any(|one| one.contains("debug mode"))
    );
    let (one, two) = (sandbox(&backend).await, sandbox(&backend).await);
    let (mut first, mut second) = (session(&one).await, session(&two).await);
    run(&mut first, "x = 41").await.0.unwrap();
    let (status, _) = run(&mut second, "x").await;
    assert!(
        matches!(status, Ok(CellStatus::Error(_))),
        "they share no variables: {status:?}"
    );
    assert_eq!(fake.contexts(), 2);
    drop(first);
    one.close().await.unwrap();
    assert_eq!(fake.contexts(), 1);
    // A session that was not dropped ends with its sandbox.
    backend.shutdown().await;
    assert_eq!(fake.contexts(), 0);
    assert!(fake.asked().is_empty(), "there is no service: {:?}", fake.asked());
    drop(second);
    fake.had_no_faults();
}
