//! Floods and those who do not take what they asked for.

use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{Channel, Exit, ProcessEvent, Signal, SignalScope, StdinMode};

use super::common::*;

/// This process's memory now, in bytes.
fn memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_gigabyte_passes_through_little_memory() {
    let (client, _server) = connect().await;
    let mut process = client
        .spawn(command(&["head", "-c", "1073741824", "/dev/zero"]))
        .await
        .unwrap();
    let before = memory();
    let (mut total, mut most) = (0_usize, 0);
    loop {
        match next(&mut process).await {
            ProcessEvent::Output { bytes, .. } => {
                total += bytes.len();
                most = most.max(memory());
            }
            ProcessEvent::Exited { exit } => {
                assert_eq!(exit, Exit::Code(0));
                break;
            }
            ProcessEvent::Closed { .. } => {}
        }
    }
    assert_eq!(total, 1 << 30);
    assert!(
        most.saturating_sub(before) < 64 << 20,
        "grew by {} bytes",
        most - before
    );
}

#[tokio::test]
async fn who_does_not_take_his_events_stops_his_own_program_only() {
    let (client, _server) = connect().await;
    let mut idle = Vec::new();
    for flood in ["yes", "yes >&2", "while :; do echo x; echo y >&2; done"] {
        idle.push(client.spawn(shell(flood)).await.unwrap());
    }
    for round in 0..200 {
        let said = run(&client, command(&["echo", &round.to_string()])).await;
        assert_eq!(said.out(), format!("{round}\n"));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = memory();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        memory().saturating_sub(before) < 4 << 20,
        "a stalled flood goes on growing"
    );
    // A late reader still gets everything in order.
    let process = &mut idle[0];
    let mut total = Vec::new();
    while total.len() < 8 << 20 {
        let ProcessEvent::Output { bytes, .. } = next(process).await else {
            panic!()
        };
        total.extend_from_slice(&bytes);
    }
    assert!(total.chunks_exact(2).all(|line| line == b"y\n"));
}

#[tokio::test]
async fn a_program_that_does_not_read_blocks_its_writer_only() {
    let (client, _server) = connect().await;
    let mut deaf = shell("sleep 1000");
    deaf.stdin = StdinMode::Piped;
    deaf.control = true;
    let deaf = client.spawn(deaf).await.unwrap();
    for channel in [Channel::Stdin, Channel::Control] {
        let write = deaf.handle.write(channel, Bytes::from(vec![b'x'; 8 << 20]));
        assert!(
            tokio::time::timeout(Duration::from_millis(200), write).await.is_err(),
            "it was swallowed"
        );
    }
    assert_eq!(run(&client, command(&["echo", "hello"])).await.out(), "hello\n");
    deaf.handle.signal(Signal::Kill, SignalScope::Group).await.unwrap();
}

#[tokio::test]
async fn a_large_input_goes_through_and_comes_back_whole() {
    let (client, _server) = connect().await;
    let mut wanted = command(&["cat"]);
    wanted.stdin = StdinMode::Piped;
    let mut process = client.spawn(wanted).await.unwrap();
    let input: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (handle, bytes) = (std::sync::Arc::clone(&process.handle), Bytes::from(input.clone()));
    let writer = tokio::spawn(async move {
        handle.write(Channel::Stdin, bytes).await.unwrap();
        handle.close(Channel::Stdin).await.unwrap();
    });
    let said = all(&mut process).await;
    writer.await.unwrap();
    assert!(said.stdout == input, "{} bytes came back", said.stdout.len());
}

#[tokio::test]
async fn writing_to_a_program_that_has_closed_its_input_is_no_error() {
    let (client, _server) = connect().await;
    let mut wanted = shell("exec <&-; echo closed; sleep 1000");
    wanted.stdin = StdinMode::Piped;
    let mut process = client.spawn(wanted).await.unwrap();
    until(&mut process, Channel::Stdout, b"closed\n").await;
    process
        .handle
        .write(Channel::Stdin, Bytes::from(vec![b'x'; 8 << 20]))
        .await
        .unwrap();
    process.handle.close(Channel::Stdin).await.unwrap();
}

#[tokio::test]
async fn single_bytes_do_not_pile_up_as_objects() {
    let (client, _server) = connect().await;
    let script = "import os\nwhile True:\n os.write(1, b'a'); os.write(2, b'b')";
    let mut wanted = command(&["python3", "-I", "-S", "-c", script]);
    wanted.env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
    let Ok(mut process) = client.spawn(wanted).await else {
        return println!("skipped: no python3");
    };
    next(&mut process).await;
    let before = memory();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(memory().saturating_sub(before) < 8 << 20);
}
