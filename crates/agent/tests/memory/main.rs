//! Measures the host's memory under floods. A separate process that runs one test at a time, so that other tests do not
//! distort the numbers.
#![cfg(all(target_os = "linux", feature = "client"))]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]
#![expect(dead_code, reason = "the other tests use more of the common part")]

#[path = "../agent/common.rs"]
mod common;

use std::time::Duration;

use common::*;
use sandcell_sandbox::{Exit, ProcessEvent};

static ONE_TEST_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns this process's memory, in bytes.
fn memory() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn a_gigabyte_is_transferred_in_bounded_memory() {
    let (_server, client) = connect().await;
    let _alone = ONE_TEST_AT_A_TIME.lock().await;
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
async fn a_reader_that_stalls_blocks_only_its_own_program() {
    let (_server, client) = connect().await;
    let _alone = ONE_TEST_AT_A_TIME.lock().await;
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
        "a stalled flood keeps growing"
    );
    // A late reader still receives everything in order.
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
async fn single_bytes_do_not_pile_up_as_objects() {
    let (_server, client) = connect().await;
    let _alone = ONE_TEST_AT_A_TIME.lock().await;
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
