//! Tests of both ends of a link together. Connections break, and other peers are hostile.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "tests: they may panic; that is how they fail"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use sandcell_link::agent::{self, Limits};
use sandcell_link::host::{self, DialError, End, Options};
use sandcell_link::protocol::{Handshake, Notice, Streams, WINDOW_BYTES};
use sandcell_link::{KEY_BYTES, Key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const SANDBOX: &str = "b7c8";
/// The deadline of each test.
const DEADLINE: Duration = Duration::from_secs(60);

fn key() -> Key {
    Key::new([7; KEY_BYTES])
}

/// An agent's end, and the stream of its agent.
struct Agent {
    address: SocketAddr,
    local: UnixStream,
    thread: JoinHandle<agent::End>,
}

fn start_agent(limits: Limits) -> Agent {
    let listener = agent::listen(0).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let (local, remote) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || agent::run(listener, key(), SANDBOX.to_owned(), remote, limits).unwrap());
    Agent { address, local, thread }
}

async fn connect(address: SocketAddr) -> Result<(host::Halves, host::Handle), End> {
    connect_as(address, key(), SANDBOX, Options::default()).await
}

async fn connect_as(
    address: SocketAddr,
    key: Key,
    sandbox: &str,
    options: Options,
) -> Result<(host::Halves, host::Handle), End> {
    let dial = move || async move { TcpStream::connect(address).await.map_err(DialError::Again) };
    host::connect(dial, key, sandbox, options).await
}

/// A generator of numbers that are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Starts a relay that ends each connection after some bytes, in the middle of whatever they are.
async fn flaky_relay(to: SocketAddr, seed: u64, most: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut numbers = Numbers(seed);
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let Ok(mut far) = TcpStream::connect(to).await else {
                continue;
            };
            // Many break within the handshake, and the others within some message.
            let mut limit = || {
                if numbers.next().is_multiple_of(3) {
                    numbers.next() % 200
                } else {
                    numbers.next() % most
                }
            };
            let (up, down) = (limit(), limit());
            tokio::spawn(async move {
                let (mut near_reader, mut near_writer) = near.split();
                let (mut far_reader, mut far_writer) = far.split();
                let mut up_limited = (&mut near_reader).take(up);
                let mut down_limited = (&mut far_reader).take(down);
                tokio::select! {
                    _ = tokio::io::copy(&mut up_limited, &mut far_writer) => {}
                    _ = tokio::io::copy(&mut down_limited, &mut near_writer) => {}
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_doubled_or_mixed_when_connections_break() {
    for (seed, most) in [(1, 40_000), (2, 60_000), (3, 100_000), (4, 300_000), (5, 700_000)] {
        let count = usize::try_from(most).unwrap() * 5;
        let agent = start_agent(Limits::default());
        let relay = flaky_relay(agent.address, seed, most).await;
        let ((mut reader, mut writer), handle) = timeout(DEADLINE, connect(relay)).await.unwrap().unwrap();
        let (down, up) = (Numbers(seed + 10).bytes(count), Numbers(seed + 20).bytes(count));
        let mut local = agent.local.try_clone().unwrap();
        let sent = down.clone();
        let writing = std::thread::spawn(move || local.write_all(&sent).unwrap());
        let mut local = agent.local.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let mut seen = vec![0; count];
            local.read_exact(&mut seen).unwrap();
            seen
        });
        let sent = up.clone();
        let sending = tokio::spawn(async move {
            for piece in sent.chunks(5000) {
                writer.write_all(piece).await.unwrap();
            }
            writer
        });
        let mut seen = vec![0; count];
        timeout(DEADLINE, reader.read_exact(&mut seen)).await.unwrap().unwrap();
        let kept = sending.await.unwrap();
        assert!(seen == down, "what the agent sent arrived otherwise, with seed {seed}");
        let seen = tokio::task::spawn_blocking(|| reading.join().unwrap()).await.unwrap();
        assert!(seen == up, "what the host sent arrived otherwise, with seed {seed}");
        writing.join().unwrap();
        assert!(handle.connections() > 5, "{} connections", handle.connections());
        drop((reader, kept));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_close_after_everything_has_arrived() {
    let agent = start_agent(Limits::default());
    let ((reader, mut writer), handle) = connect(agent.address).await.unwrap();
    writer.write_all(&[1; 100_000]).await.unwrap();
    drop((reader, writer));
    let mut seen = Vec::new();
    let mut local = agent.local;
    local.read_to_end(&mut seen).unwrap();
    assert_eq!(seen.len(), 100_000);
    assert_eq!(agent.thread.join().unwrap(), agent::End::HostClosed);
    assert_eq!(handle.ended().await, End::Closed);

    let agent = start_agent(Limits::default());
    let ((mut reader, _writer), handle) = connect(agent.address).await.unwrap();
    let mut local = agent.local;
    local.write_all(&[2; 100_000]).unwrap();
    drop(local);
    let mut seen = Vec::new();
    timeout(DEADLINE, reader.read_to_end(&mut seen)).await.unwrap().unwrap();
    assert_eq!(seen.len(), 100_000);
    assert_eq!(handle.ended().await, End::AgentClosed);
    assert_eq!(agent.thread.join().unwrap(), agent::End::AgentEnded);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_host_with_the_key_gets_through_and_only_to_its_sandbox() {
    let agent = start_agent(Limits::default());
    let short = Options {
        first: Duration::from_millis(300),
        ..Options::default()
    };
    for (key, sandbox) in [(Key::new([8; KEY_BYTES]), SANDBOX), (key(), "another")] {
        let end = connect_as(agent.address, key, sandbox, short).await.unwrap_err();
        assert!(matches!(&end, End::Unreachable(why) if why.contains("key")), "{end:?}");
    }
    let (first, _handle) = connect(agent.address).await.unwrap();
    // A second host with the key is told that there is one.
    assert_eq!(connect(agent.address).await.unwrap_err(), End::Refused);
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_wait_for_the_first_host_arrive() {
    for _ in 0..300 {
        let mut agent = start_agent(Limits::default());
        agent.local.write_all(b"hello").unwrap();
        let ((mut reader, mut writer), _handle) = connect(agent.address).await.unwrap();
        writer.write_all(b"hi").await.unwrap();
        let mut seen = [0; 5];
        timeout(DEADLINE / 10, reader.read_exact(&mut seen))
            .await
            .unwrap()
            .unwrap();
        let mut seen = [0; 2];
        agent.local.set_read_timeout(Some(DEADLINE / 10)).unwrap();
        agent.local.read_exact(&mut seen).unwrap();
    }
}

/// Reads until the other side ends the connection.
fn is_ended(mut stream: StdStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_connections_disturb_neither_a_link_nor_its_next_connection() {
    let agent = start_agent(Limits::default());
    let relay = flaky_relay(agent.address, 9, 20_000).await;
    let idle: Vec<_> = (0..200).map(|_| StdStream::connect(agent.address).unwrap()).collect();
    let ((mut reader, mut writer), handle) = timeout(DEADLINE, connect(relay)).await.unwrap().unwrap();
    let mut local = agent.local.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut byte = [0; 100];
        while local.read_exact(&mut byte).is_ok() && local.write_all(&byte).is_ok() {}
    });
    // Messages of the host as somebody overheard them: a first one that is right for the key and the sandbox.
    let overheard = Handshake::new(&key(), SANDBOX, true).unwrap().write().unwrap();
    let mut numbers = Numbers(77);
    for turn in 0..300_usize {
        let mut hostile = StdStream::connect(agent.address).unwrap();
        let bytes = match turn % 4 {
            0 => numbers.bytes(turn * 7 % 500),
            1 => vec![0xff; 70],
            2 => overheard.clone(),
            _ => [overheard.clone(), numbers.bytes(60)].concat(),
        };
        let _ = hostile.write_all(&bytes);
        let message = numbers.bytes(100);
        writer.write_all(&message).await.unwrap();
        let mut echoed = [0; 100];
        timeout(DEADLINE, reader.read_exact(&mut echoed))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(echoed.as_slice(), message);
    }
    assert!(handle.connections() > 2, "{} connections", handle.connections());
    let ended = tokio::task::spawn_blocking(|| idle.into_iter().all(is_ended))
        .await
        .unwrap();
    assert!(ended, "connections without a proof stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_that_does_not_read_stops_the_other_one() {
    let agent = start_agent(Limits::default());
    let ((reader, mut writer), _handle) = connect(agent.address).await.unwrap();
    let mut sent = 0;
    let piece = vec![0; 64 << 10];
    while timeout(Duration::from_millis(500), writer.write_all(&piece))
        .await
        .is_ok()
    {
        sent += piece.len();
        assert!(sent < 8 * WINDOW_BYTES, "{sent} bytes are on their way");
    }
    assert!(sent >= WINDOW_BYTES, "{sent}");
    drop(reader);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_host_ends() {
    let limits = Limits {
        first: Some(Duration::from_millis(200)),
        detached: Duration::from_millis(200),
    };
    assert_eq!(start_agent(limits).thread.join().unwrap(), agent::End::Deserted);
    let agent = start_agent(limits);
    // A host that vanishes: its connection breaks, and no other one comes.
    let dials = std::sync::atomic::AtomicU32::new(0);
    let address = agent.address;
    let dial = move || {
        let first = dials.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        async move {
            if !first {
                return Err(DialError::Gone("the Pod is gone".to_owned()));
            }
            let near = TcpStream::connect(address).await.map_err(DialError::Again)?;
            let (ours, theirs) = tokio::io::duplex(1000);
            tokio::spawn(async move {
                let (mut near, mut theirs) = (near, theirs);
                let relaying = tokio::io::copy_bidirectional(&mut near, &mut theirs);
                let _ = timeout(Duration::from_millis(300), relaying).await;
            });
            Ok(ours)
        }
    };
    let (halves, handle) = host::connect(dial, key(), SANDBOX, Options::default()).await.unwrap();
    assert_eq!(handle.ended().await, End::Gone("the Pod is gone".to_owned()));
    assert_eq!(agent.thread.join().unwrap(), agent::End::Deserted);
    drop(halves);
}

/// Plays an agent that proves itself and then says nothing.
async fn fall_silent(mut stream: tokio::io::DuplexStream) {
    let mut handshake = Handshake::new(&key(), SANDBOX, false).unwrap();
    let mut received = Vec::new();
    while !handshake.read(&mut received).unwrap() {
        stream.read_buf(&mut received).await.unwrap();
    }
    stream.write_all(&handshake.write().unwrap()).await.unwrap();
    let mut connection = handshake.finish().unwrap();
    let notice = loop {
        let bytes = std::mem::take(&mut received);
        if let Some(notice) = connection.read(&bytes, &mut Streams::new([0; 16])).unwrap() {
            break notice;
        }
        stream.read_buf(&mut received).await.unwrap();
    };
    let Notice::Resumes(id, _) = notice else {
        panic!("{notice:?}")
    };
    connection.resume(&mut Streams::new(id)).unwrap();
    stream.write_all(connection.outgoing()).await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_comes_is_replaced() {
    let dial = || async {
        let (ours, theirs) = tokio::io::duplex(1000);
        tokio::spawn(fall_silent(theirs));
        Ok::<_, DialError>(ours)
    };
    let (halves, handle) = host::connect(dial, key(), SANDBOX, Options::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(handle.connections(), 3);
    drop(halves);
}
