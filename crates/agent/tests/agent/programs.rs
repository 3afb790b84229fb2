//! Programs: start, streams, order, signals, end.

use bytes::Bytes;
use sandcell_agent::server::ServeEnd;
use sandcell_sandbox::{Channel, Code, Exit, ProcessEvent, SandboxError, Signal, SignalScope, StdinMode};

use super::common::*;

#[tokio::test]
async fn a_program_writes_to_each_stream_and_ends() {
    let (_server, client) = connect().await;
    let said = run(&client, shell("echo out; echo err >&2; exit 7")).await;
    assert_eq!(said.stdout, b"out\n");
    assert_eq!(said.stderr, b"err\n");
    assert_eq!(said.exit, Some(Exit::Code(7)));
}

#[tokio::test]
async fn the_output_of_a_program_arrives_before_its_end() {
    let (_server, client) = connect().await;
    for _ in 0..20 {
        // A child keeps the pipes open, so the agent reports the end before the pipes close.
        let mut process = client
            .spawn(shell("sleep 60 & head -c 50000 /dev/zero; echo -n e >&2; exit 0"))
            .await
            .unwrap();
        let (mut out, mut err) = (0, 0);
        loop {
            match next(&mut process).await {
                ProcessEvent::Output {
                    channel: Channel::Stdout,
                    bytes,
                } => out += bytes.len(),
                ProcessEvent::Output { bytes, .. } => err += bytes.len(),
                ProcessEvent::Exited { exit } => {
                    assert_eq!((exit, out, err), (Exit::Code(0), 50000, 1));
                    break;
                }
                ProcessEvent::Closed { .. } => panic!("the child still has the pipes"),
            }
        }
    }
}

#[tokio::test]
async fn a_program_with_a_required_folder_is_not_started_in_another_one() {
    let (_server, client) = connect().await;
    for (folder, code) in [
        ("/no/such/folder", Code::NotFound),
        ("/etc/passwd", Code::InvalidArgument),
    ] {
        let mut wanted = command(&["pwd"]);
        wanted.cwd = folder.to_owned();
        let stand_in = run(&client, wanted.clone()).await;
        assert_eq!(stand_in.exit, Some(Exit::Code(0)));
        wanted.stands_alone = true;
        let Err(SandboxError::Refused(failure)) = client.spawn(wanted).await else {
            panic!("{folder} was entered");
        };
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.message.contains(folder), "{failure}");
    }
}

#[tokio::test]
async fn standard_input_and_its_end_reach_the_program() {
    let (_server, client) = connect().await;
    let mut wanted = command(&["sort"]);
    wanted.stdin = StdinMode::Piped;
    let mut process = client.spawn(wanted).await.unwrap();
    process
        .handle
        .write(Channel::Stdin, Bytes::from_static(b"b\na\n"))
        .await
        .unwrap();
    process.handle.close(Channel::Stdin).await.unwrap();
    process.handle.close(Channel::Stdin).await.unwrap();
    assert!(
        process
            .handle
            .write(Channel::Stdin, Bytes::from_static(b"c\n"))
            .await
            .is_err()
    );
    let said = all(&mut process).await;
    assert_eq!(said.stdout, b"a\nb\n");
}

#[tokio::test]
async fn a_program_without_input_reads_nothing_and_cannot_be_written_to() {
    let (_server, client) = connect().await;
    let mut process = client.spawn(shell("wc -c; readlink /proc/self/fd/0")).await.unwrap();
    for channel in [Channel::Stdin, Channel::Control, Channel::Stdout] {
        let error = process
            .handle
            .write(channel, Bytes::from_static(b"x"))
            .await
            .unwrap_err();
        assert!(matches!(error, SandboxError::Unsupported(_)));
    }
    assert_eq!(all(&mut process).await.out(), "0\n/dev/null\n");
}

#[tokio::test]
async fn the_program_has_exactly_its_descriptors_environment_folder_and_session() {
    let (_server, client) = connect().await;
    let script = "import os,signal\n\
        print(sorted(int(f) for f in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/'+f)))\n\
        print(dict(os.environ), os.getcwd(), os.getsid(0)==os.getpid(), os.getpgid(0)==os.getpid())\n\
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), [l for l in open('/proc/self/status') if l[:7]=='SigIgn:'])\n";
    for (control, numbers) in [(false, "[0, 1, 2]"), (true, "[0, 1, 2, 3, 4]")] {
        // Python ignores SIGPIPE itself (bit 12) and SIGXFSZ (bit 24); -I keeps the environment out.
        let mut wanted = command(&["python3", "-I", "-S", "-c", script]);
        wanted.env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
        wanted
            .env
            .extend(std::env::var("PYENV_ROOT").map(|root| ("PYENV_ROOT".to_owned(), root)));
        wanted.control = control;
        let Ok(mut process) = client.spawn(wanted).await else {
            return println!("skipped: no python3");
        };
        let said = all(&mut process).await;
        let lines: Vec<String> = said.out().lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with(numbers), "{said:?}");
        assert!(lines[1].contains("} /tmp True True"), "{}", lines[1]);
        assert!(
            lines[2].starts_with("set() ['SigIgn:\\t0000000001001000"),
            "{}",
            lines[2]
        );
    }
    let said = run(&client, command(&["env"])).await;
    assert_eq!(said.out(), "PATH=/usr/local/bin:/usr/bin:/bin\n");
}

#[tokio::test]
async fn a_missing_folder_becomes_home() {
    let (_server, client) = connect().await;
    let mut wanted = command(&["pwd"]);
    wanted.cwd = "/no/such/folder".to_owned();
    assert_eq!(run(&client, wanted).await.out(), "/\n");
}

#[tokio::test]
async fn a_failed_start_is_reported_with_the_system_error_number() {
    let (_server, client) = connect().await;
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "no program").unwrap();
    for (program, expected) in [
        ("no-such-program", Some(2)),
        ("/no/such/program", Some(2)),
        ("/tmp", Some(13)),
        (plain.to_str().unwrap(), Some(13)),
        ("", None),
        ("a\0b", None),
    ] {
        let Err(SandboxError::Spawn { program: named, source }) = client.spawn(command(&[program])).await else {
            panic!("{program} was started")
        };
        assert_eq!((named.as_str(), source.raw_os_error()), (program, expected));
    }
    let error = client.spawn(command(&[])).await.unwrap_err();
    assert!(matches!(error, SandboxError::Spawn { .. }));
    let huge = "x".repeat(200_000);
    let Err(SandboxError::Spawn { source, .. }) = client.spawn(command(&["true", &huge])).await else {
        panic!()
    };
    assert_eq!(source.raw_os_error(), Some(7));
    let error = client
        .spawn(command(&["true", &"x".repeat(9 << 20)]))
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::Setup { .. }), "{error}");
    assert_eq!(
        run(&client, command(&["echo", "still there"])).await.out(),
        "still there\n"
    );
}

#[tokio::test]
async fn control_has_a_separate_channel() {
    let (_server, client) = connect().await;
    let mut wanted = shell("while read -r line <&3; do echo \"got $line\" >&4; done; echo end >&4");
    wanted.control = true;
    let mut process = client.spawn(wanted).await.unwrap();
    for word in ["one", "two"] {
        process
            .handle
            .write(Channel::Control, Bytes::from(format!("{word}\n")))
            .await
            .unwrap();
        assert_eq!(
            until(&mut process, Channel::Control, b"\n").await,
            format!("got {word}\n").as_bytes()
        );
    }
    process.handle.close(Channel::Control).await.unwrap();
    let said = all(&mut process).await;
    assert_eq!(
        (said.control.as_slice(), said.exit),
        (b"end\n".as_slice(), Some(Exit::Code(0)))
    );
}

#[tokio::test]
async fn earlier_output_is_delivered_before_later_control() {
    let (_server, client) = connect().await;
    let mut wanted = shell(
        "n=0; while [ $n -lt 300 ]; do n=$((n+1)); head -c 20000 /dev/zero; echo \"e$n\" >&2; echo \"c$n\" >&4; done",
    );
    wanted.control = true;
    let mut process = client.spawn(wanted).await.unwrap();
    let (mut out, mut err, mut control) = (0, Vec::new(), Vec::new());
    loop {
        match next(&mut process).await {
            ProcessEvent::Output {
                channel: Channel::Stdout,
                bytes,
            } => out += bytes.len(),
            ProcessEvent::Output {
                channel: Channel::Stderr,
                bytes,
            } => err.extend_from_slice(&bytes),
            ProcessEvent::Output { bytes, .. } => {
                control.extend_from_slice(&bytes);
                let said = control.iter().filter(|byte| **byte == b'\n').count();
                let heard = err.iter().filter(|byte| **byte == b'\n').count();
                assert!(
                    out >= said * 20000 && heard >= said,
                    "control {said} came before its output"
                );
            }
            ProcessEvent::Exited { .. } => break,
            ProcessEvent::Closed { .. } => {}
        }
    }
    assert_eq!(out, 300 * 20000);
}

#[tokio::test]
async fn a_program_that_reads_its_own_output_does_not_block_control_or_its_end() {
    let (_server, client) = connect().await;
    // The thief takes from the same pipe that the agent reads.
    let mut wanted = shell(
        "cat /proc/self/fd/1 >/dev/null & n=0; while [ $n -lt 200 ]; do n=$((n+1)); echo xxxxxxxx; echo c >&4; done; kill $!",
    );
    wanted.control = true;
    let said = run(&client, wanted).await;
    assert_eq!((said.control.len(), said.exit.is_some()), (400, true));
}

#[tokio::test]
async fn signals_reach_the_group_and_an_ended_program_is_not_an_error() {
    let (_server, client) = connect().await;
    let mut process = client
        .spawn(shell(
            "trap 'echo int; exit 3' INT; echo ready; while :; do sleep 0.05; done",
        ))
        .await
        .unwrap();
    until(&mut process, Channel::Stdout, b"ready\n").await;
    process
        .handle
        .signal(Signal::Interrupt, SignalScope::Group)
        .await
        .unwrap();
    let said = all(&mut process).await;
    assert_eq!((said.out().as_str(), said.exit), ("int\n", Some(Exit::Code(3))));
    for scope in [SignalScope::Group, SignalScope::Tree] {
        process.handle.signal(Signal::Kill, scope).await.unwrap();
    }
    let mut process = client.spawn(command(&["sleep", "1000"])).await.unwrap();
    process
        .handle
        .signal(Signal::Terminate, SignalScope::Tree)
        .await
        .unwrap();
    assert_eq!(all(&mut process).await.exit, Some(Exit::Signal(15)));
}

#[tokio::test]
async fn a_killed_tree_takes_children_in_other_sessions_along() {
    let (_server, client) = connect().await;
    let mut process = client
        .spawn(shell("setsid sh -c 'echo $$; exec sleep 1000' & wait"))
        .await
        .unwrap();
    let pid = until(&mut process, Channel::Stdout, b"\n").await;
    let pid: i32 = String::from_utf8(pid).unwrap().trim().parse().unwrap();
    assert!(lives(pid));
    process.handle.signal(Signal::Kill, SignalScope::Tree).await.unwrap();
    assert_eq!(all(&mut process).await.exit, Some(Exit::Signal(9)));
    eventually("the child's end", || !lives(pid)).await;
}

#[tokio::test]
async fn dropping_the_handle_kills_the_program_and_its_children() {
    let (_server, client) = connect().await;
    let mut process = client.spawn(shell("sleep 1000 & echo $! $$; wait")).await.unwrap();
    let line = String::from_utf8(until(&mut process, Channel::Stdout, b"\n").await).unwrap();
    let pids: Vec<i32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let second = std::sync::Arc::clone(&process.handle);
    drop(process);
    assert!(pids.iter().all(|pid| lives(*pid)), "a clone of the handle is left");
    drop(second);
    eventually("their end", || !pids.iter().any(|pid| lives(*pid))).await;
}

#[tokio::test]
async fn a_cancelled_start_leaves_no_program() {
    let (_server, client) = connect().await;
    let marker = format!("31{}", std::process::id());
    for _ in 0..50 {
        let start = client.spawn(command(&["sleep", &marker]));
        drop(tokio::time::timeout(std::time::Duration::from_micros(200), start).await);
    }
    client.ping().await.unwrap();
    eventually("the end of all", || {
        !std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| line == format!("sleep\0{marker}\0").as_bytes())
        })
    })
    .await;
}

#[tokio::test]
async fn many_programs_run_at_once_and_too_many_are_refused() {
    let (_server, client) = connect().await;
    let mut processes = Vec::new();
    let refused = loop {
        match client.spawn(command(&["cat", "/dev/null"])).await {
            Ok(process) => processes.push(process),
            Err(error) => break error,
        }
    };
    assert_eq!(processes.len(), 128);
    assert!(
        matches!(&refused, SandboxError::Refused(failure) if failure.code == Code::LimitReached),
        "{refused:?}"
    );
    processes.pop();
    assert_eq!(run(&client, command(&["echo", "again"])).await.out(), "again\n");
}

#[tokio::test]
async fn the_agent_and_its_programs_end_when_the_host_disconnects() {
    let (server, client) = connect().await;
    let mut process = client.spawn(shell("echo $$; exec sleep 1000")).await.unwrap();
    let pid: i32 = String::from_utf8(until(&mut process, Channel::Stdout, b"\n").await)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    drop(client);
    assert!(lives(pid), "the program's handle keeps the connection");
    drop(process);
    let end = tokio::task::spawn_blocking(|| server.join()).await.unwrap();
    assert!(matches!(end, ServeEnd::HostClosed), "{end:?}");
    eventually("the program's end", || !lives(pid)).await;
}

#[tokio::test]
async fn every_open_handle_sees_the_end_of_the_connection() {
    let (_server, client) = connect().await;
    let mut wanted = command(&["sleep", "1000"]);
    wanted.stdin = StdinMode::Piped;
    let mut process = client.spawn(wanted).await.unwrap();
    let writer = std::sync::Arc::clone(&process.handle);
    let stuck = tokio::spawn(async move { writer.write(Channel::Stdin, Bytes::from(vec![0; 4 << 20])).await });
    let watcher = client.clone();
    let closed = tokio::spawn(async move { watcher.closed().await });
    tokio::task::yield_now().await;
    client.close();
    assert!(matches!(stuck.await.unwrap(), Err(SandboxError::Gone(_))));
    closed.await.unwrap();
    assert_eq!(process.events.recv().await, None);
    assert!(matches!(client.usage().await, Err(SandboxError::Gone(_))));
    assert!(matches!(
        client.spawn(command(&["true"])).await,
        Err(SandboxError::Gone(_))
    ));
    assert!(matches!(
        process.handle.signal(Signal::Kill, SignalScope::Tree).await,
        Err(SandboxError::Gone(_))
    ));
}
