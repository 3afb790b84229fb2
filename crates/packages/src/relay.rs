//! The host's end of the installer's way out: connections to a port inside, carried over the control channel of one program
//! there, each handed to the broker as a stream. The frames are described in `inside/relay.py`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use sandcell_broker::Index;
use sandcell_sandbox::{
    Channel, Command, HOME, Process, ProcessEvent, ProcessHandle, Sandbox, SandboxError, StdinMode,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

const RELAY: &str = include_str!("inside/relay.py");
/// How long the program may take to say its port.
const START: Duration = Duration::from_secs(20);
/// Connections at once; uv opens 50 at most.
const CONNECTIONS: usize = 256;
/// Connections of one installation.
const CONNECTIONS_IN_ALL: usize = 100_000;
/// Bytes of one frame from inside.
const FRAME_MAX: usize = 64 << 10;
/// Bytes of one connection that wait in each direction.
const WINDOW: usize = 256 << 10;
/// Set in a connection's number where a frame says what was taken of it.
const TAKEN: u32 = 1 << 31;

/// A running relay. Dropping it closes the way out.
#[derive(Debug)]
pub(crate) struct Relay {
    /// The port inside.
    pub(crate) port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A frame of the control channel.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    connection: u32,
    data: Bytes,
}

fn encode(connection: u32, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + data.len());
    frame.extend_from_slice(&connection.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_le_bytes());
    frame.extend_from_slice(data);
    frame.freeze()
}

/// The next whole frame of what has come. An error for one that is longer than any of ours.
fn decode(buffer: &mut BytesMut) -> Result<Option<Frame>, ()> {
    let Some((head, _)) = buffer.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let [a, b, c, d, e, f, g, h] = *head;
    let size = usize::try_from(u32::from_le_bytes([e, f, g, h])).map_err(drop)?;
    if size > FRAME_MAX {
        return Err(());
    }
    if buffer.len() < 8 + size {
        return Ok(None);
    }
    buffer.advance(8);
    Ok(Some(Frame {
        connection: u32::from_le_bytes([a, b, c, d]),
        data: buffer.split_to(size).freeze(),
    }))
}

impl Relay {
    /// Starts it in a sandbox with this interpreter.
    pub(crate) async fn start(sandbox: &dyn Sandbox, python: &str, index: Arc<Index>) -> Result<Self, SandboxError> {
        let argv = [python, "-I", "-S", "-B", "-c", RELAY].map(str::to_owned).to_vec();
        let mut process = sandbox
            .spawn(Command {
                argv,
                env: sandbox.base_env().clone(),
                cwd: HOME.to_owned(),
                stdin: StdinMode::Null,
                control: true,
            })
            .await?;
        let mut buffer = BytesMut::new();
        let broken = || SandboxError::Protocol("the package relay did not say its port".to_owned());
        let first = timeout(START, first_frame(&mut process, &mut buffer)).await;
        let first = first.map_err(|_| broken())?.ok_or_else(broken)?;
        let port = std::str::from_utf8(&first.data).ok().and_then(|text| text.parse().ok());
        let port = port.filter(|_| first.connection == 0).ok_or_else(broken)?;
        let task = tokio::spawn(carry(process, buffer, index));
        Ok(Self { port, task })
    }
}

async fn first_frame(process: &mut Process, buffer: &mut BytesMut) -> Option<Frame> {
    loop {
        match process.events.recv().await? {
            ProcessEvent::Output {
                channel: Channel::Control,
                bytes,
            } => {
                buffer.extend_from_slice(&bytes);
                if let Some(frame) = decode(buffer).ok()? {
                    return Some(frame);
                }
            }
            ProcessEvent::Exited { .. } => return None,
            ProcessEvent::Output { .. } | ProcessEvent::Closed { .. } => {}
        }
    }
}

/// Carries frames until the program ends or breaks the rules.
async fn carry(mut process: Process, mut buffer: BytesMut, index: Arc<Index>) {
    let mut open: HashMap<u32, Way> = HashMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    let (ended, mut ends) = mpsc::channel::<u32>(CONNECTIONS);
    let mut known = HashSet::new();
    loop {
        let event = tokio::select! {
            event = process.events.recv() => event,
            Some(connection) = ends.recv() => {
                open.remove(&connection);
                while tasks.try_join_next().is_some() {}
                continue;
            }
        };
        match event {
            Some(ProcessEvent::Output {
                channel: Channel::Control,
                bytes,
            }) => buffer.extend_from_slice(&bytes),
            Some(ProcessEvent::Output { .. } | ProcessEvent::Closed { .. }) => continue,
            Some(ProcessEvent::Exited { .. }) | None => return,
        }
        loop {
            let frame = match decode(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(()) => return,
            };
            let number = frame.connection & !TAKEN;
            if frame.connection & TAKEN != 0 {
                if let (Some(way), Some(taken)) = (open.get(&number), frame.data.first_chunk::<4>()) {
                    let taken = usize::try_from(u32::from_le_bytes(*taken)).unwrap_or(0);
                    // More than was sent would be a lie that grows the window.
                    way.window
                        .add_permits(taken.min(WINDOW.saturating_sub(way.window.available_permits())));
                }
                continue;
            }
            // The first bytes come in any order. Known numbers that are not open any more are over.
            if !frame.data.is_empty() && known.insert(number) {
                if open.len() >= CONNECTIONS || known.len() > CONNECTIONS_IN_ALL {
                    return;
                }
                let (ours, theirs) = tokio::io::duplex(WINDOW);
                let (read, write) = tokio::io::split(ours);
                let window = Arc::new(Semaphore::new(WINDOW));
                let way = Way {
                    write,
                    window: window.clone(),
                };
                open.insert(number, way);
                tasks.spawn(index.clone().serve(theirs));
                tasks.spawn(inwards(number, read, process.handle.clone(), window, ended.clone()));
            }
            // A connection that is over is answered no more.
            let Some(way) = open.get_mut(&number) else { continue };
            let over = if frame.data.is_empty() {
                way.write.shutdown().await.is_err()
            } else {
                way.write.write_all(&frame.data).await.is_err()
            };
            if over {
                open.remove(&number);
            }
        }
    }
}

/// An open connection.
struct Way {
    /// Towards the broker.
    write: WriteHalf<DuplexStream>,
    /// Bytes that may be sent in before more were taken there.
    window: Arc<Semaphore>,
}

/// What the broker answers, on its way in.
async fn inwards(
    number: u32,
    mut from: ReadHalf<DuplexStream>,
    to: Arc<dyn ProcessHandle>,
    window: Arc<Semaphore>,
    ended: mpsc::Sender<u32>,
) {
    let mut buffer = vec![0; 60 << 10];
    while let Ok(count) = from.read(&mut buffer).await {
        let part = buffer.get(..count).unwrap_or_default();
        let Ok(room) = window.acquire_many(u32::try_from(count).unwrap_or(0)).await else {
            break;
        };
        room.forget();
        if to.write(Channel::Control, encode(number, part)).await.is_err() || count == 0 {
            break;
        }
    }
    let _ = ended.send(number).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_long_ones_refused() {
        let mut buffer = BytesMut::from(&encode(7, b"abc")[..]);
        buffer.extend_from_slice(&encode(8, b""));
        buffer.extend_from_slice(&[1, 0]);
        assert_eq!(decode(&mut buffer).unwrap().unwrap().data, "abc");
        assert_eq!(decode(&mut buffer).unwrap().unwrap().connection, 8);
        assert_eq!(decode(&mut buffer), Ok(None));
        let mut long = BytesMut::from(&[0, 0, 0, 0, 0, 0, 0, 1][..]);
        assert_eq!(decode(&mut long), Err(()));
    }
}
