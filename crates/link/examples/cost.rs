//! Measures a link on the loopback device, and a bare connection in the same run:
//! `cargo run --release -p sandcell-link --all-features --example cost`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement: it may panic, and it prints"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sandcell_link::agent::{self, Limits};
use sandcell_link::host::{self, DialError, Options};
use sandcell_link::{KEY_BYTES, Key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SANDBOX: &str = "cost";
/// The round trips that are measured, and the bytes of each.
const ROUNDS: usize = 2000;
const MESSAGE_BYTES: usize = 100;
/// The bytes that go there and come back at once, and the pieces that they are sent in.
const STREAM_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 64 << 10;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let key = || Key::new([7; KEY_BYTES]);
    let listener = agent::listen(0).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let (local, remote) = UnixStream::pair().unwrap();
    std::thread::spawn(move || agent::run(listener, key(), SANDBOX.to_owned(), remote, Limits::default()));
    std::thread::spawn(move || echo(local));
    let dial = move || async move {
        let stream = TcpStream::connect(address).await.map_err(DialError::Again)?;
        stream.set_nodelay(true).map_err(DialError::Again)?;
        Ok::<_, DialError>(stream)
    };
    let linked = host::connect(dial, key(), SANDBOX, Options::default()).await;
    let ((mut reader, mut writer), _handle) = linked.unwrap();
    measure("link", &mut reader, &mut writer).await;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (bare, _) = listener.accept().unwrap();
    bare.set_nodelay(true).unwrap();
    std::thread::spawn(move || echo(bare));
    let (mut reader, mut writer) = tokio::io::split(stream);
    measure("bare connection", &mut reader, &mut writer).await;
}

/// Sends back what it receives.
fn echo(mut stream: impl Read + Write) {
    let mut buffer = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

async fn measure(name: &str, reader: &mut (impl AsyncReadExt + Unpin), writer: &mut (impl AsyncWriteExt + Unpin)) {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        writer.write_all(&[1; MESSAGE_BYTES]).await.unwrap();
        reader.read_exact(&mut [0; MESSAGE_BYTES]).await.unwrap();
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let began = Instant::now();
    let sending = async {
        for _ in 0..STREAM_BYTES / PIECE_BYTES {
            writer.write_all(&[1; PIECE_BYTES]).await.unwrap();
        }
    };
    let receiving = async {
        let mut seen = 0;
        let mut buffer = vec![0; PIECE_BYTES];
        while seen < STREAM_BYTES {
            seen += reader.read(&mut buffer).await.unwrap();
        }
    };
    tokio::join!(sending, receiving);
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{name}: a round trip of {MESSAGE_BYTES} bytes takes {:?} (median); {:.0} MB/s there and back",
        times[ROUNDS / 2],
        64.0 / seconds
    );
}
