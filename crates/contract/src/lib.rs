//! The contract of every back end: programs, files, limits, ends. A back end runs it by passing its constructor.
//!
//! The programs are shell and Python one-liners, so a sandbox needs `/bin/sh` and `python3`.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a part of tests: they may panic and print; that is how they fail"
)]

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libtest_mimic::{Arguments, Trial};
use sandcell_sandbox::{
    Backend, ByteSize, ChangeKind, Channel, Code, Command, Cpus, EndReason, EntryKind, Exit, FileError, Limits,
    Process, ProcessEvent, Sandbox, SandboxError, SandboxPath, SandboxSpec, Signal, SignalScope, StdinMode,
    TerminalSize, WriteMode,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// The deadline of each case.
const CASE_TIMEOUT: Duration = Duration::from_secs(15);

type Making = Pin<Box<dyn Future<Output = Arc<dyn Backend>>>>;
type Case = fn(Arc<dyn Backend>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Runs the suite and exits. `without` lists the cases that do not apply to the back end, each with the reason.
pub fn run<F, R>(name: &'static str, without: &[(&str, &str)], more: Vec<Trial>, make: F)
where
    F: Fn() -> R + Send + Sync + Copy + 'static,
    R: Future<Output = Arc<dyn Backend>> + 'static,
{
    run_within(CASE_TIMEOUT, name, without, more, make);
}

/// Runs the suite on a back end whose sandboxes take longer, with this deadline for each case.
pub fn run_within<F, R>(deadline: Duration, name: &'static str, without: &[(&str, &str)], more: Vec<Trial>, make: F)
where
    F: Fn() -> R + Send + Sync + Copy + 'static,
    R: Future<Output = Arc<dyn Backend>> + 'static,
{
    let arguments = Arguments::from_args();
    for (case, reason) in without {
        assert!(
            NAMED_CASES.iter().any(|(known, _)| known == case),
            "there is no case {case}"
        );
        eprintln!("does not apply: {name}::{case}: {reason}");
    }
    let trials = NAMED_CASES
        .iter()
        .filter(|(case, _)| !without.iter().any(|(left_out, _)| left_out == case))
        .map(|(case, body)| {
            Trial::test(format!("{name}::{case}"), move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let making: Making = Box::pin(make());
                    let backend = making.await;
                    let result = timeout(deadline, body(Arc::clone(&backend))).await;
                    backend.shutdown().await;
                    result.map_err(|_| libtest_mimic::Failed::from("the case did not end in time"))
                })
            })
        })
        .chain(more)
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// Runs, in place of the suite, one test that prints the reason and counts as skipped, and exits. Tools that list tests read
/// no other output.
pub fn skip(name: &str, reason: &str) -> ! {
    let line = format!("{name}::every_case: {reason}");
    let said = Trial::test(format!("{name}::every_case"), move || {
        eprintln!("skipped: {line}");
        if let Some(path) = std::env::var_os("SANDCELL_TEST_SKIPS") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{line}")?;
        }
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![said]).exit()
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const NAMED_CASES: &[(&str, Case)] = &[$((stringify!($name), |backend| Box::pin($name(backend)))),*];
    };
}

cases![
    a_program_runs_and_its_output_and_status_are_returned,
    the_home_folder_is_home_user,
    standard_input_reaches_the_program,
    output_is_delivered_before_later_control_bytes,
    a_program_that_does_not_exist_is_an_error,
    a_program_with_a_required_folder_is_not_started_in_another_one,
    signals_end_a_program_and_its_descendants,
    files_are_written_listed_and_read,
    entries_are_described_moved_and_removed,
    special_and_missing_files_are_refused,
    read_only_folders_cannot_be_written,
    a_full_disk_is_reported_as_such,
    too_many_files_are_refused,
    too_many_processes_are_refused,
    excessive_memory_is_refused_or_killed_and_counted,
    usage_counts_running_programs,
    a_program_runs_in_a_terminal,
    a_program_is_reached_on_its_port,
    changes_of_a_folder_are_reported,
    a_paused_sandbox_stands_still,
    many_sandboxes_do_not_mix,
    a_closed_sandbox_is_gone_and_can_be_closed_twice,
    a_dropped_sandbox_ends,
    shutdown_ends_everything,
];

fn spec() -> SandboxSpec {
    SandboxSpec {
        limits: Limits {
            memory: ByteSize::mib(128),
            cpus: Cpus::milli(1000),
            processes: 24,
            disk: ByteSize::mib(16),
            inodes: 500,
        },
        ..SandboxSpec::default()
    }
}

fn command(argv: &[&str], env: &BTreeMap<String, String>) -> Command {
    Command {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: env.clone(),
        cwd: sandcell_sandbox::HOME.to_owned(),
        stands_alone: false,
        stdin: StdinMode::Null,
        control: false,
        terminal: None,
    }
}

#[derive(Debug)]
struct ProcessResult {
    stdout: String,
    stderr: String,
    exit: Exit,
}

async fn collect(mut process: Process) -> ProcessResult {
    let mut seen = ProcessResult {
        stdout: String::new(),
        stderr: String::new(),
        exit: Exit::Code(255),
    };
    // Counts the end of the program and of its two streams.
    let mut ends = 0;
    while ends < 3
        && let Some(event) = process.events.recv().await
    {
        match event {
            ProcessEvent::Output {
                channel: Channel::Stdout,
                bytes,
            } => {
                seen.stdout.push_str(&String::from_utf8_lossy(&bytes));
            }
            ProcessEvent::Output { bytes, .. } => seen.stderr.push_str(&String::from_utf8_lossy(&bytes)),
            ProcessEvent::Closed { .. } => ends += 1,
            ProcessEvent::Exited { exit } => {
                ends += 1;
                seen.exit = exit;
            }
        }
    }
    seen
}

async fn python(sandbox: &dyn Sandbox, code: &str) -> ProcessResult {
    let process = sandbox
        .spawn(command(&["python3", "-I", "-S", "-c", code], sandbox.base_env()))
        .await
        .unwrap();
    collect(process).await
}

async fn a_program_runs_and_its_output_and_status_are_returned(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let process = sandbox
        .spawn(command(
            &["sh", "-c", "echo out; echo err >&2; exit 7"],
            sandbox.base_env(),
        ))
        .await
        .unwrap();
    let seen = collect(process).await;
    assert_eq!(seen.stdout, "out\n");
    assert_eq!(seen.stderr, "err\n");
    assert_eq!(seen.exit, Exit::Code(7));
}

async fn a_program_with_a_required_folder_is_not_started_in_another_one(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let elsewhere = Command {
        cwd: "/no/such/folder".to_owned(),
        stands_alone: true,
        ..command(&["touch", "/tmp/started"], sandbox.base_env())
    };
    let Err(SandboxError::Refused(failure)) = sandbox.spawn(elsewhere).await else {
        panic!("it was started");
    };
    assert_eq!(failure.code, Code::NotFound);
    assert!(failure.message.contains("/no/such/folder"), "{failure}");
    let process = sandbox.spawn(command(&["ls", "/tmp/started"], sandbox.base_env()));
    assert_ne!(collect(process.await.unwrap()).await.exit, Exit::Code(0));
}

async fn the_home_folder_is_home_user(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let script = "pwd; echo $HOME; touch file; ls";
    let process = sandbox.spawn(command(&["sh", "-c", script], sandbox.base_env()));
    let seen = collect(process.await.unwrap()).await;
    assert_eq!(seen.stdout, "/home/user\n/home/user\nfile\n", "{}", seen.stderr);
}

async fn standard_input_reaches_the_program(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let piped = Command {
        stdin: StdinMode::Piped,
        ..command(&["cat"], sandbox.base_env())
    };
    let process = sandbox.spawn(piped).await.unwrap();
    let handle = Arc::clone(&process.handle);
    let text = "line\n".repeat(100_000);
    let writing = tokio::spawn({
        let text = text.clone();
        async move {
            handle.write(Channel::Stdin, Bytes::from(text)).await.unwrap();
            handle.close(Channel::Stdin).await.unwrap();
        }
    });
    let seen = collect(process).await;
    writing.await.unwrap();
    assert_eq!(seen.stdout.len(), text.len());
    assert_eq!(seen.exit, Exit::Code(0));
}

async fn output_is_delivered_before_later_control_bytes(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let code = "import os\nfor i in range(200):\n os.write(1, b'x' * 5000)\n os.write(4, b'c')";
    let with_control = Command {
        control: true,
        terminal: None,
        ..command(&["python3", "-I", "-S", "-c", code], sandbox.base_env())
    };
    let mut process = sandbox.spawn(with_control).await.unwrap();
    let (mut output, mut control) = (0, 0);
    while control < 200
        && let Some(event) = process.events.recv().await
    {
        match event {
            ProcessEvent::Output {
                channel: Channel::Stdout,
                bytes,
            } => output += bytes.len(),
            ProcessEvent::Output {
                channel: Channel::Control,
                bytes,
            } => {
                control += bytes.len();
                assert!(
                    output >= control * 5000,
                    "{control} control bytes came after {output} bytes of output"
                );
            }
            _ => {}
        }
    }
    assert_eq!((output, control), (1_000_000, 200));
}

async fn a_program_that_does_not_exist_is_an_error(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let error = sandbox
        .spawn(command(&["no-such-program"], sandbox.base_env()))
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Spawn { .. }), "{error:?}");
}

async fn signals_end_a_program_and_its_descendants(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    // Images may lack setsid(1).
    let script = "python3 -I -S -c 'import os, time; os.setsid(); time.sleep(1000)' & \
                  trap '' INT TERM; echo ready; while :; do sleep 1000; done";
    let mut process = sandbox
        .spawn(command(&["sh", "-c", script], sandbox.base_env()))
        .await
        .unwrap();
    // A shell writes its own errors in pieces, so the whole line is read.
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        match process.events.recv().await {
            Some(ProcessEvent::Output { bytes, .. }) => line.extend_from_slice(&bytes),
            other => panic!("{other:?} after {}", String::from_utf8_lossy(&line)),
        }
    }
    assert_eq!(String::from_utf8_lossy(&line), "ready\n");
    process
        .handle
        .signal(Signal::Interrupt, SignalScope::Group)
        .await
        .unwrap();
    process.handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
    let ended = collect(process).await;
    assert_eq!(ended.exit, Exit::Signal(9), "{ended:?}");
    // Only the agent and the counting program are left.
    let seen = python(
        &*sandbox,
        "import os\nprint(sum(p.isdigit() for p in os.listdir('/proc')))",
    )
    .await;
    assert_eq!(seen.stdout, "2\n");
}

async fn files_are_written_listed_and_read(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let files = sandbox.files();
    let path = SandboxPath::parse("data/a.bin").unwrap();
    let big = Bytes::from(vec![7_u8; 10 << 20]);
    assert_eq!(
        files.write(&path, big.clone(), WriteMode::Replace).await.unwrap(),
        10 << 20
    );
    assert_eq!(
        files
            .write(&path, Bytes::from_static(b"end"), WriteMode::Append)
            .await
            .unwrap(),
        (10 << 20) + 3
    );
    let chunk = files.read(&path, 0, 10 << 20).await.unwrap();
    assert_eq!((chunk.bytes == big, chunk.total), (true, (10 << 20) + 3));
    let tail = files.read(&path, 10 << 20, 100).await.unwrap();
    assert_eq!(tail.bytes, Bytes::from_static(b"end"));
    let listing = files.list(&SandboxPath::home(), true, 100).await.unwrap();
    let names: Vec<&str> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["data", "data/a.bin"]);
    // Programs see the same file.
    let seen = python(&*sandbox, "import os\nprint(os.path.getsize('data/a.bin'))").await;
    assert_eq!(seen.stdout, "10485763\n");
}

async fn entries_are_described_moved_and_removed(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let files = sandbox.files();
    let path = |text: &str| SandboxPath::parse(text).unwrap();
    assert!(files.make_folder(&path("a/b/c")).await.unwrap());
    assert!(!files.make_folder(&path("a/b/c")).await.unwrap());
    files
        .write(&path("a/f"), Bytes::from_static(b"12345"), WriteMode::Replace)
        .await
        .unwrap();
    assert!(matches!(
        files.make_folder(&path("a/f")).await.unwrap_err(),
        FileError::Exists { .. }
    ));
    let code = "import os\nos.chmod('a/f', 0o640); os.symlink('a/f', 'link')\nprint(os.getuid(), os.getgid())";
    let ids = python(&*sandbox, code).await.stdout;
    let file = files.entry(&path("a/f")).await.unwrap();
    assert_eq!((file.name.as_str(), file.kind, file.size), ("f", EntryKind::File, 5));
    assert_eq!((file.mode, format!("{} {}\n", file.user, file.group)), (0o640, ids));
    assert!(file.modified_ms > 1_700_000_000_000, "{file:?}");
    let folder = files.entry(&path("a/b")).await.unwrap();
    assert_eq!((folder.kind, folder.mode), (EntryKind::Folder, 0o755));
    let link = files.entry(&path("link")).await.unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (EntryKind::Link, Some("a/f")));
    let listed = files.list(&path("a"), false, 10).await.unwrap();
    assert_eq!(listed.entries[1], file);

    files.rename(&path("a/f"), &path("a/b/g")).await.unwrap();
    files.rename(&path("a/b"), &path("moved")).await.unwrap();
    assert_eq!(files.read(&path("moved/g"), 0, 9).await.unwrap().bytes, "12345");

    for gone in ["link", "moved/g", "moved", "a"] {
        files.remove(&path(gone)).await.unwrap();
    }
    for (missing, operation) in [("moved", "remove"), ("moved", "entry"), ("moved", "rename")] {
        let error = match operation {
            "remove" => files.remove(&path(missing)).await.unwrap_err(),
            "entry" => files.entry(&path(missing)).await.unwrap_err(),
            _ => files.rename(&path(missing), &path("x")).await.unwrap_err(),
        };
        assert!(matches!(error, FileError::NotFound { .. }), "{operation}: {error:?}");
    }
    let code = "import os\nos.mkdir('tree'); os.chdir('tree')\nfor i in range(100):\n os.mkdir('deep'); open('f', 'w').close(); os.chdir('deep')";
    assert_eq!(python(&*sandbox, code).await.exit, Exit::Code(0));
    files.remove(&path("tree")).await.unwrap();
    let left = files.list(&SandboxPath::home(), true, 10).await.unwrap();
    assert_eq!(left.entries, []);
}

async fn a_program_runs_in_a_terminal(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let mut process = sandbox
        .spawn(Command {
            terminal: Some(TerminalSize { rows: 30, columns: 90 }),
            ..command(
                &["sh", "-c", "test -t 1 && stty size; read word; echo got $word"],
                sandbox.base_env(),
            )
        })
        .await
        .unwrap();
    let size = TerminalSize { rows: 40, columns: 77 };
    process.handle.resize(size).await.unwrap();
    let typed = Bytes::from_static(b"hi\n");
    process.handle.write(Channel::Stdin, typed).await.unwrap();
    let mut said = String::new();
    while let Some(event) = process.events.recv().await {
        match event {
            ProcessEvent::Output { bytes, .. } => said.push_str(&String::from_utf8_lossy(&bytes)),
            ProcessEvent::Exited { exit } => {
                assert_eq!(exit, Exit::Code(0));
                break;
            }
            ProcessEvent::Closed { .. } => {}
        }
    }
    assert!(said.contains("30 90") || said.contains("40 77"), "{said:?}");
    assert!(said.contains("got hi"), "{said:?}");
    sandbox.close().await.unwrap();
}

async fn a_program_is_reached_on_its_port(backend: Arc<dyn Backend>) {
    const SERVER_CODE: &str = "import socket\n\
        s = socket.create_server(('127.0.0.1', 8000))\n\
        print('ready', flush=True)\n\
        c, _ = s.accept()\n\
        c.sendall(c.recv(100).upper())";
    let sandbox = backend.create(&spec()).await.unwrap();
    let refused = sandbox.open_port(8000).await.unwrap_err();
    assert!(
        matches!(&refused, SandboxError::Refused(failure) if failure.code == Code::NotFound),
        "{refused:?}"
    );
    let mut server = sandbox
        .spawn(command(&["python3", "-c", SERVER_CODE], sandbox.base_env()))
        .await
        .unwrap();
    while !matches!(server.events.recv().await, Some(ProcessEvent::Output { .. })) {}
    let mut connection = sandbox.open_port(8000).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"HELLO");
    sandbox.close().await.unwrap();
}

async fn changes_of_a_folder_are_reported(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let files = sandbox.files();
    let path = |text: &str| SandboxPath::parse(text).unwrap();
    files.make_folder(&path("watched")).await.unwrap();
    let mut watch = files.watch(&path("watched"), true).await.unwrap();
    let bytes = Bytes::from_static(b"1");
    files
        .write(&path("watched/deep/a"), bytes, WriteMode::Replace)
        .await
        .unwrap();
    python(sandbox.as_ref(), "open('watched/by-program', 'w').write('1')").await;
    let mut missing = vec!["deep", "deep/a", "by-program"];
    while !missing.is_empty() {
        let change = watch.next().await.expect("the watch goes on");
        if change.kind == ChangeKind::Create {
            missing.retain(|name| *name != change.name);
        }
    }
    sandbox.close().await.unwrap();
}

async fn a_paused_sandbox_stands_still(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let mut counting = sandbox
        .spawn(command(
            &["sh", "-c", "while :; do echo x; sleep 0.05; done"],
            sandbox.base_env(),
        ))
        .await
        .unwrap();
    assert!(counting.events.recv().await.is_some());
    sandbox.pause().await.unwrap();
    // What was written before may still be on its way.
    let pause = Duration::from_millis(500);
    while timeout(pause, counting.events.recv()).await.is_ok() {}
    assert!(timeout(pause, counting.events.recv()).await.is_err(), "it stands still");
    sandbox.resume().await.unwrap();
    assert!(counting.events.recv().await.is_some(), "it goes on");
    sandbox.close().await.unwrap();
}

async fn special_and_missing_files_are_refused(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let code = "import os\nos.mkfifo('fifo'); os.symlink('/proc/self/environ', 'link'); os.symlink('loop', 'loop')";
    assert_eq!(python(&*sandbox, code).await.exit, Exit::Code(0));
    for (path, wanted) in [
        ("fifo", "NotRegular"),
        ("/dev/full", "NotRegular"),
        ("link", "NotRegular"),
        ("loop", "LinkLoop"),
        ("/nothing", "NotFound"),
        ("/tmp", "IsDirectory"),
    ] {
        let error = sandbox
            .files()
            .read(&SandboxPath::parse(path).unwrap(), 0, 10)
            .await
            .unwrap_err();
        assert!(format!("{error:?}").starts_with(wanted), "{path}: {error:?}");
    }
}

async fn read_only_folders_cannot_be_written(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let path = SandboxPath::parse("/usr/lib/x").unwrap();
    let error = sandbox
        .files()
        .write(&path, Bytes::from_static(b"x"), WriteMode::Replace)
        .await
        .unwrap_err();
    assert!(
        matches!(error, FileError::ReadOnly { .. } | FileError::Denied { .. }),
        "{error:?}"
    );
}

async fn a_full_disk_is_reported_as_such(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let path = SandboxPath::parse("big").unwrap();
    let error = sandbox
        .files()
        .write(&path, Bytes::from(vec![0_u8; 10 << 20]), WriteMode::Append);
    error.await.unwrap();
    let error = sandbox
        .files()
        .write(&path, Bytes::from(vec![0_u8; 7 << 20]), WriteMode::Append)
        .await
        .unwrap_err();
    assert!(matches!(error, FileError::DiskFull { .. }), "{error:?}");
}

async fn too_many_files_are_refused(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let code = "import errno\ntry:\n for i in range(1000): open(f'/tmp/{i}', 'w')\nexcept OSError as e:\n print(i > 400, e.errno == errno.ENOSPC)";
    assert_eq!(python(&*sandbox, code).await.stdout, "True True\n");
}

async fn too_many_processes_are_refused(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let code = "import os, time\nn = 0\ntry:\n for i in range(200):\n  if os.fork() == 0:\n   time.sleep(100)\n  n += 1\nexcept BlockingIOError: pass\nprint(n <= 24, n >= 15, flush=True)\nos.killpg(0, 9)";
    let seen = python(&*sandbox, code).await;
    assert_eq!(seen.stdout, "True True\n", "{}", seen.stderr);
}

async fn excessive_memory_is_refused_or_killed_and_counted(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let code = "parts = []\nwhile True:\n parts.append(bytearray(8 << 20))";
    let seen = python(&*sandbox, code).await;
    let refused = seen.stderr.contains("MemoryError");
    assert!(
        refused || seen.exit == Exit::Signal(9),
        "{:?} {}",
        seen.exit,
        seen.stderr
    );
    if !refused {
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while sandbox.usage().await.unwrap().memory_events == 0 {
            assert!(std::time::Instant::now() < deadline, "the kill was not counted");
        }
    }
    assert_eq!(python(&*sandbox, "print(1)").await.stdout, "1\n");
}

async fn usage_counts_running_programs(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let before = sandbox.usage().await.unwrap();
    let code = "x = bytearray(40 << 20)\nsum(range(3_000_000))\nopen('f', 'wb').write(b'x' * (2 << 20))\nprint('ready', flush=True)\nimport time; time.sleep(1000)";
    let mut process = sandbox
        .spawn(command(&["python3", "-I", "-S", "-c", code], sandbox.base_env()))
        .await
        .unwrap();
    assert!(matches!(process.events.recv().await, Some(ProcessEvent::Output { .. })));
    let usage = sandbox.usage().await.unwrap();
    assert!(usage.memory > before.memory + (30 << 20), "{usage:?}");
    assert!(usage.cpu_us > before.cpu_us, "{usage:?}");
    assert!(usage.disk >= 2 << 20 && usage.disk < 4 << 20, "{usage:?}");
    assert!(usage.processes >= 2, "{usage:?}");
}

async fn many_sandboxes_do_not_mix(backend: Arc<dyn Backend>) {
    let mut tasks = Vec::new();
    for number in 0..20 {
        let backend = Arc::clone(&backend);
        tasks.push(tokio::spawn(async move {
            let sandbox = backend.create(&spec()).await.unwrap();
            let path = SandboxPath::parse("n").unwrap();
            sandbox
                .files()
                .write(&path, Bytes::from(number.to_string()), WriteMode::Replace)
                .await
                .unwrap();
            let seen = python(&*sandbox, "print(open('n').read() * 3)").await;
            assert_eq!(seen.stdout, format!("{number}{number}{number}\n"));
            sandbox.close().await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn a_closed_sandbox_is_gone_and_can_be_closed_twice(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    sandbox.close().await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!(sandbox.ended().await.reason, EndReason::Closed);
    let error = sandbox.spawn(command(&["true"], sandbox.base_env())).await.unwrap_err();
    assert!(matches!(error, SandboxError::Gone(EndReason::Closed)), "{error:?}");
}

async fn a_dropped_sandbox_ends(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let mut process = sandbox
        .spawn(command(&["sh", "-c", "echo here; sleep 1000"], sandbox.base_env()))
        .await
        .unwrap();
    assert!(matches!(process.events.recv().await, Some(ProcessEvent::Output { .. })));
    drop(sandbox);
    while process.events.recv().await.is_some() {}
}

async fn shutdown_ends_everything(backend: Arc<dyn Backend>) {
    let sandbox = backend.create(&spec()).await.unwrap();
    let mut process = sandbox
        .spawn(command(&["sh", "-c", "echo here; sleep 1000"], sandbox.base_env()))
        .await
        .unwrap();
    assert!(matches!(process.events.recv().await, Some(ProcessEvent::Output { .. })));
    backend.shutdown().await;
    while process.events.recv().await.is_some() {}
    assert!(backend.create(&spec()).await.is_err());
}
