//! Sends mutated bytes from inside to the decoder and to a real client. See `crates/fuzz/README.md`.
#![cfg(feature = "client")]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandcell_agent::client::AgentClient;
use sandcell_agent::protocol::{Decoder, Hello, Kind, OutBuffer};
use sandcell_fuzz::Mutator;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns all frames of a stream cut at these lengths. `None` follows them if the bytes violate the protocol.
fn frames(bytes: &[u8], mut step: impl FnMut() -> usize) -> Vec<Option<(Kind, u32, Vec<u8>)>> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let room = decoder.room();
        let count = rest.len().min(room.len()).min(step().max(1));
        room[..count].copy_from_slice(&rest[..count]);
        decoder.filled(count);
        rest = &rest[count..];
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => found.push(Some((frame.kind, frame.stream, frame.payload.to_vec()))),
                Ok(None) => break,
                Err(_) => {
                    found.push(None);
                    return found;
                }
            }
        }
    }
    found
}

#[test]
fn fuzz_frames_do_not_depend_on_how_the_stream_is_cut() {
    let mut mutator = Mutator::new("agent");
    while let Some(bytes) = mutator.next() {
        let whole = frames(&bytes, || usize::MAX);
        let cut = frames(&bytes, || mutator.below(40));
        assert_eq!(whole, cut);
    }
    println!("{} inputs", mutator.tried);
}

static CLIENT_PANICKED: AtomicBool = AtomicBool::new(false);

#[test]
fn fuzz_a_client_ends_with_a_protocol_error_or_continues() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        CLIENT_PANICKED.store(true, Ordering::SeqCst);
        usual(info);
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut mutator = Mutator::new("agent");
    while let Some(bytes) = mutator.next() {
        runtime.block_on(one(&bytes, mutator.below(3)));
        assert!(!CLIENT_PANICKED.load(Ordering::SeqCst), "a task of the client panicked");
    }
    println!("{} inputs", mutator.tried);
}

/// Runs a client with a request in progress. The agent sends these bytes and then nothing more.
async fn one(bytes: &[u8], request: usize) {
    let (mut ours, theirs) = tokio::io::duplex(1 << 21);
    let mut hello = OutBuffer::default();
    assert!(hello.message(Kind::Hello, 0, &Hello::ours()));
    ours.write_all(hello.pending()).await.unwrap();
    let (reader, writer) = tokio::io::split(theirs);
    let client = AgentClient::connect(reader, writer).await.unwrap();
    let asked = async {
        match request {
            0 => drop(client.ping().await),
            1 => drop(client.usage().await),
            _ => drop(client.closed().await),
        }
    };
    let said = async {
        let mut greeting = [0; 512];
        let _ = ours.read(&mut greeting).await;
        let _ = ours.write_all(bytes).await;
        drop(ours);
    };
    // The stream has ended, so every request must end as well.
    tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(asked, said) })
        .await
        .expect("the client waits for an agent that is gone");
}
