//! Connections of the host to ports inside, terminals, and watched folders.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use bytes::Bytes;
use sandcell_agent::protocol::MAX_CONNECTIONS;
use sandcell_sandbox::{
    ChangeKind, Channel, Code, Exit, FileChange, FileWatch, SandboxError, SandboxPath, TerminalSize, WriteMode,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::common::{TEST_TIMEOUT, all, command, connect, shell};

fn listener(address: impl Into<SocketAddr>) -> (TcpListener, u16) {
    let listener = TcpListener::bind(address.into()).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A program that returns what it gets, upper-cased, and closes then.
fn echo(listener: TcpListener) -> std::thread::JoinHandle<()> {
    use std::io::{Read as _, Write as _};
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        stream.write_all(&got.to_ascii_uppercase()).unwrap();
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_reaches_programs_on_both_loopback_addresses() {
    let (_server, client) = connect().await;
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        (Ipv4Addr::UNSPECIFIED, 0).into(),
        (Ipv6Addr::LOCALHOST, 0).into(),
    ] {
        let (listener, port) = listener(address);
        let program = echo(listener);
        let mut connection = client.open(port).await.unwrap();
        let sent = b"a few bytes ".repeat(100_000);
        let (mut reading, mut writing) = tokio::io::split(&mut connection);
        let (_, got) = tokio::join!(
            async {
                writing.write_all(&sent).await.unwrap();
                writing.shutdown().await.unwrap();
            },
            async {
                let mut got = Vec::new();
                reading.read_to_end(&mut got).await.unwrap();
                got
            }
        );
        assert!(got == sent.to_ascii_uppercase(), "{address}");
        program.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_without_a_program_is_named_and_too_many_connections_are_refused() {
    let (_server, client) = connect().await;
    let (closed, port) = listener((Ipv4Addr::LOCALHOST, 0));
    drop(closed);
    match client.open(port).await.unwrap_err() {
        SandboxError::Refused(failure) => {
            assert_eq!(failure.code, Code::NotFound);
            assert!(failure.message.contains(&format!("port {port}")), "{failure:?}");
        }
        other => panic!("{other:?}"),
    }
    let (_held, port) = listener((Ipv4Addr::LOCALHOST, 0));
    let mut connections = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        connections.push(client.open(port).await.unwrap());
    }
    match client.open(port).await.unwrap_err() {
        SandboxError::Refused(failure) => assert_eq!(failure.code, Code::LimitReached),
        other => panic!("{other:?}"),
    }
    // A dropped connection makes room, and ports that lead to the host are not affected.
    connections.pop();
    let forward = client.forward(0, "test").await.unwrap();
    drop(forward);
    let again = tokio::time::timeout(TEST_TIMEOUT, async {
        loop {
            if let Ok(again) = client.open(port).await {
                return again;
            }
            tokio::task::yield_now().await;
        }
    });
    drop(again.await.expect("room in time"));
    client.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_leads_to_the_host_is_no_program() {
    let (_server, client) = connect().await;
    let forward = client.forward(0, "test").await.unwrap();
    let refused = client.open(forward.port).await.unwrap_err();
    assert!(refused.to_string().contains("leads out of the sandbox"), "{refused}");
    drop(forward);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_accepts_nothing_delays_nothing_else() {
    let (_server, client) = connect().await;
    let socket = shortest_queue();
    let port = socket.1;
    // The queue of the listener is full after a few connections.
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.open(port).await.map(drop) })
        })
        .collect();
    let pinged = tokio::time::timeout(std::time::Duration::from_secs(2), client.ping()).await;
    assert!(pinged.is_ok());
    let mut late = 0;
    for one in waiting {
        late += u32::from(
            one.await
                .unwrap()
                .is_err_and(|error| error.to_string().contains("accepts no connection")),
        );
    }
    assert!(late > 0);
}

/// A listener with the shortest queue.
fn shortest_queue() -> (std::os::fd::OwnedFd, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&socket, 0).unwrap();
    let bound = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, bound.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_ends_ends_its_connection() {
    let (_server, client) = connect().await;
    let (listener, port) = listener((Ipv4Addr::LOCALHOST, 0));
    let mut connection = client.open(port).await.unwrap();
    drop(listener.accept().unwrap());
    let mut got = Vec::new();
    let read = tokio::time::timeout(TEST_TIMEOUT, connection.read_to_end(&mut got)).await;
    assert_eq!(read.expect("an end in time").unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_in_a_terminal_sees_its_size_and_input() {
    let (_server, client) = connect().await;
    let size = |rows, columns| TerminalSize { rows, columns };
    let mut shell = client
        .spawn(sandcell_sandbox::Command {
            terminal: Some(size(31, 99)),
            ..shell(
                "test -t 0 && test -t 1 && test -t 2 && stty size; read line; stty size; echo got $line >&2; exit 7",
            )
        })
        .await
        .unwrap();
    let first = shell.events.recv().await;
    let closed = sandcell_sandbox::ProcessEvent::Closed {
        channel: Channel::Stderr,
    };
    assert_eq!(first, Some(closed), "a terminal has no stderr");
    shell.handle.resize(size(40, 77)).await.unwrap();
    let input = Bytes::from_static(b"hello\n");
    shell.handle.write(Channel::Stdin, input).await.unwrap();
    let mut said = String::new();
    let mut exit = None;
    while let Ok(Some(event)) = tokio::time::timeout(TEST_TIMEOUT, shell.events.recv()).await {
        match event {
            sandcell_sandbox::ProcessEvent::Output { channel, bytes } => {
                assert_eq!(channel, Channel::Stdout);
                said.push_str(&String::from_utf8_lossy(&bytes));
            }
            sandcell_sandbox::ProcessEvent::Exited { exit: found } => exit = Some(found),
            sandcell_sandbox::ProcessEvent::Closed { .. } => break,
        }
    }
    assert!(said.contains("40 77") && said.contains("got hello"), "{said:?}");
    if exit.is_none() {
        let last = tokio::time::timeout(TEST_TIMEOUT, shell.events.recv()).await;
        exit = match last {
            Ok(Some(sandcell_sandbox::ProcessEvent::Exited { exit })) => Some(exit),
            _ => None,
        };
    }
    assert_eq!(exit, Some(Exit::Code(7)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_output_of_a_program_in_a_terminal_precedes_its_end() {
    let (_server, client) = connect().await;
    let in_terminal = |script: &str| sandcell_sandbox::Command {
        terminal: Some(TerminalSize { rows: 24, columns: 80 }),
        ..shell(script)
    };
    for _ in 0..20 {
        let mut process = client.spawn(in_terminal("seq 20000")).await.unwrap();
        let mut said = Vec::new();
        while let Some(event) = process.events.recv().await {
            match event {
                sandcell_sandbox::ProcessEvent::Output { bytes, .. } => said.extend_from_slice(&bytes),
                sandcell_sandbox::ProcessEvent::Exited { .. } => break,
                sandcell_sandbox::ProcessEvent::Closed { .. } => {}
            }
        }
        assert!(said.ends_with(b"20000\r\n"), "{}", said.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_without_a_terminal_has_no_size() {
    let (_server, client) = connect().await;
    let mut cat = client.spawn(command(&["sleep", "0.2"])).await.unwrap();
    let size = TerminalSize { rows: 1, columns: 1 };
    assert!(cat.handle.resize(size).await.is_err());
    assert_eq!(all(&mut cat).await.exit, Some(Exit::Code(0)));
}

/// Receives changes until this one.
async fn until(watch: &mut FileWatch, kind: ChangeKind, name: &str) -> Vec<FileChange> {
    let mut seen = Vec::new();
    loop {
        let next = tokio::time::timeout(TEST_TIMEOUT, watch.next()).await;
        let change = next.unwrap_or_else(|_| panic!("{kind:?} {name} did not come: {seen:?}"));
        let change = change.expect("the watch goes on");
        let last = change.kind == kind && change.name == name;
        seen.push(change);
        if last {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_watched_folder_arrive_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, client) = connect().await;
    let files = client.files();
    let at = |name: &str| SandboxPath::parse(folder.path().join(name).to_str().unwrap()).unwrap();
    let mut watch = files.watch(&at("."), false).await.unwrap();
    let mut deep = files.watch(&at("."), true).await.unwrap();
    let bytes = || Bytes::from_static(b"1");
    files.write(&at("a"), bytes(), WriteMode::Replace).await.unwrap();
    files.write(&at("a"), bytes(), WriteMode::Replace).await.unwrap();
    files
        .write(&at("sub/deep/b"), bytes(), WriteMode::Replace)
        .await
        .unwrap();
    files.rename(&at("a"), &at("c")).await.unwrap();
    files.remove(&at("c")).await.unwrap();
    let names = |changes: Vec<FileChange>| -> Vec<(ChangeKind, String)> {
        changes.into_iter().map(|change| (change.kind, change.name)).collect()
    };
    let seen = names(until(&mut watch, ChangeKind::Remove, "c").await);
    let expected = [
        (ChangeKind::Create, "a"),
        (ChangeKind::Write, "a"),
        (ChangeKind::Write, "a"),
        (ChangeKind::Create, "sub"),
        (ChangeKind::Rename, "a"),
        (ChangeKind::Create, "c"),
        (ChangeKind::Remove, "c"),
    ];
    assert_eq!(seen, expected.map(|(kind, name)| (kind, name.to_owned())));
    let seen = names(until(&mut deep, ChangeKind::Remove, "c").await);
    for expected in ["sub", "sub/deep", "sub/deep/b"] {
        let expected = (ChangeKind::Create, expected.to_owned());
        assert_eq!(seen.iter().filter(|change| **change == expected).count(), 1, "{seen:?}");
    }
    // The end of the folder is the end of its watches.
    folder.close().unwrap();
    let ended = tokio::time::timeout(TEST_TIMEOUT, async { while watch.next().await.is_some() {} }).await;
    assert!(ended.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_reported_under_its_new_name_only() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("a/deep")).unwrap();
    let (_server, client) = connect().await;
    let path = SandboxPath::parse(folder.path().to_str().unwrap()).unwrap();
    let mut watch = client.files().watch(&path, true).await.unwrap();
    let inside = |name: &str| folder.path().join(name);
    std::fs::rename(inside("a"), inside("b")).unwrap();
    until(&mut watch, ChangeKind::Create, "b").await;
    std::fs::write(inside("b/deep/x"), "").unwrap();
    let seen = until(&mut watch, ChangeKind::Create, "b/deep/x").await;
    assert!(!seen.iter().any(|change| change.name.starts_with('a')), "{seen:?}");
    // What was moved out is not reported any more.
    std::fs::rename(inside("b"), outside.path().join("b")).unwrap();
    until(&mut watch, ChangeKind::Rename, "b").await;
    std::fs::write(outside.path().join("b/deep/y"), "").unwrap();
    std::fs::write(inside("last"), "").unwrap();
    let seen = until(&mut watch, ChangeKind::Create, "last").await;
    assert!(!seen.iter().any(|change| change.name.contains('y')), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_not_read_loses_changes_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, client) = connect().await;
    let path = SandboxPath::parse(folder.path().to_str().unwrap()).unwrap();
    let mut watch = client.files().watch(&path, false).await.unwrap();
    let long = "n".repeat(200);
    for number in 0..30_000 {
        std::fs::write(folder.path().join(format!("{long}{}", number % 50)), "x").unwrap();
    }
    client.ping().await.unwrap();
    let mut seen = 0;
    let lost = tokio::time::timeout(TEST_TIMEOUT, async {
        while let Some(change) = watch.next().await {
            seen += 1;
            if change.kind == ChangeKind::Overflow {
                return true;
            }
        }
        false
    });
    assert!(lost.await.expect("an overflow in time"), "after {seen} changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_folders_are_watched_and_only_so_many() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (_server, client) = connect().await;
    let at = |name: &str| SandboxPath::parse(folder.path().join(name).to_str().unwrap()).unwrap();
    for name in ["file", "missing"] {
        assert!(client.files().watch(&at(name), false).await.is_err(), "{name}");
    }
    let mut watches = Vec::new();
    let refused = loop {
        match client.files().watch(&at("."), false).await {
            Ok(watch) => watches.push(watch),
            Err(error) => break error,
        }
        assert!(watches.len() < 1000, "the number of watches has no bound");
    };
    assert!(refused.to_string().contains("watched already"), "{refused}");
    drop(watches);
    let again = tokio::time::timeout(TEST_TIMEOUT, async {
        while client.files().watch(&at("."), false).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    again.await.expect("room in time");
}
