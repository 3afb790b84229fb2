//! Large inputs, and programs that do not read their input.

use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{Channel, Signal, SignalScope, StdinMode};

use super::common::*;

#[tokio::test]
async fn a_program_that_does_not_read_blocks_its_writer_only() {
    let (_server, client) = connect().await;
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
async fn a_large_input_is_echoed_unchanged() {
    let (_server, client) = connect().await;
    let mut wanted = command(&["cat"]);
    wanted.stdin = StdinMode::Piped;
    let mut process = client.spawn(wanted).await.unwrap();
    let input: Vec<u8> = (0..20_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
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
async fn writing_to_a_program_that_has_closed_its_input_is_not_an_error() {
    let (_server, client) = connect().await;
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
