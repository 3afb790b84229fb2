//! Forwarded ports.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use sandcell_agent::protocol::MAX_CONNECTIONS;
use sandcell_sandbox::{Connection, Forward};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::common::{TEST_TIMEOUT, connect, run, shell};

async fn accept(forward: &mut Forward) -> Box<dyn Connection> {
    let next = tokio::time::timeout(TEST_TIMEOUT, forward.accept());
    next.await.expect("a connection in time").expect("an open port")
}

fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_flow_both_ways_and_each_direction_closes_separately() {
    let (_server, client) = connect().await;
    let mut forward = client.forward(0, "test").await.unwrap();
    let port = forward.port;
    let there: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
        .collect();
    let sent = there.clone();
    let inside = std::thread::spawn(move || {
        let mut stream = dial(port);
        let mut writing = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            writing.write_all(&sent).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        writer.join().unwrap();
        back
    });
    let mut connection = accept(&mut forward).await;
    let mut got = Vec::new();
    connection.read_to_end(&mut got).await.unwrap();
    assert!(got == there, "what came out is what went in");
    // The other way is still open.
    connection.write_all(&got).await.unwrap();
    connection.shutdown().await.unwrap();
    assert!(inside.join().unwrap() == there);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_does_not_block_other_connections() {
    let (_server, client) = connect().await;
    let mut forward = client.forward(0, "test").await.unwrap();
    let mut flood = dial(forward.port);
    flood.set_nonblocking(true).unwrap();
    let _unread = accept(&mut forward).await;
    let mut written = 0;
    // The kernel's buffers, a window and the buffer between the tasks take this much. Then the writer must stop.
    for _ in 0..200 {
        match flood.write(&[0; 65536]) {
            Ok(count) => written += count,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    }
    assert!(
        written < 12_000_000,
        "{written} bytes went into a connection without a reader"
    );
    assert_eq!(run(&client, shell("echo alive")).await.out(), "alive\n");
    let second = dial(forward.port);
    let mut connection = accept(&mut forward).await;
    connection.write_all(b"hello").await.unwrap();
    let mut got = [0; 5];
    (&second).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_and_more_wait_for_a_free_one() {
    let (_server, client) = connect().await;
    let mut forward = client.forward(0, "test").await.unwrap();
    let mut inside: Vec<TcpStream> = (0..MAX_CONNECTIONS + 3).map(|_| dial(forward.port)).collect();
    let mut outside = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        outside.push(accept(&mut forward).await);
    }
    let more = tokio::time::timeout(std::time::Duration::from_millis(200), forward.accept());
    assert!(more.await.is_err(), "one more than there are places");
    inside.remove(0);
    let mut first = outside.remove(0);
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).await.unwrap();
    drop(first);
    let _next = accept(&mut forward).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_dropped_is_closed_with_its_connections() {
    let (_server, client) = connect().await;
    let mut forward = client.forward(0, "test").await.unwrap();
    let port = forward.port;
    let mut stream = dial(port);
    let _connection = accept(&mut forward).await;
    drop(forward);
    let mut byte = [0];
    assert!(
        matches!(stream.read(&mut byte), Ok(0) | Err(_)),
        "the connection is over"
    );
    client.ping().await.unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is closed");
    // A port in use and a port of another address are errors. The agent continues.
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().port();
    assert!(client.forward(taken, "test").await.is_err());
    client.ping().await.unwrap();
}
