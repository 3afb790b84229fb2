//! Direct pipes: they connect the host with one program and bypass the agent.
//!
//! They keep the agent's guarantee about order (`docs/design/protocol.md`, "Order"). Output that was in stdout or
//! stderr when the program wrote to control is delivered before that control message. The program's end is delivered
//! after all of its output.

use std::io;

use bytes::Bytes;
use rustix::io::{Errno, ioctl_fionread};
use sandcell_jail::lane::Lane;
use sandcell_sandbox::{Channel, ProcessEvent, SandboxError};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};

use super::link::Link;
use super::process::{EVENTS, after_close};

/// The maximum number of bytes for one read. A pipe holds no more.
const PIECE: usize = 64 << 10;
/// The size of a read after a short one. Most output of programs is shorter. If a program makes its pipe a packet pipe,
/// a packet is not longer.
const FIRST: usize = 4 << 10;

/// The host's ends of the pipes.
#[derive(Debug)]
pub(super) struct Near {
    control: pipe::Sender,
    outward: Outward,
}

#[derive(Debug)]
struct Outward {
    stdout: Way,
    stderr: Way,
    control: Way,
}

#[derive(Debug)]
struct Way {
    channel: Channel,
    /// None after end of file.
    pipe: Option<pipe::Receiver>,
    /// The size of the next read, in bytes.
    room: usize,
}

/// The receiver of the events was dropped.
struct Left;

impl Near {
    pub(super) fn new(lane: Lane) -> io::Result<Self> {
        let way = |channel, end| {
            Ok::<_, io::Error>(Way {
                channel,
                pipe: Some(pipe::Receiver::from_owned_fd(end)?),
                room: FIRST,
            })
        };
        Ok(Self {
            control: pipe::Sender::from_owned_fd(lane.control_in)?,
            outward: Outward {
                stdout: way(Channel::Stdout, lane.stdout)?,
                stderr: way(Channel::Stderr, lane.stderr)?,
                control: way(Channel::Control, lane.control_out)?,
            },
        })
    }

    /// Starts a task that delivers the pipes' bytes and the agent's events in order. `received` yields both from then
    /// on. The task ends when the agent's channel closes or when `received` is dropped.
    pub(super) fn carry(self, received: &mut mpsc::Receiver<ProcessEvent>) -> Past {
        let (events, carried) = mpsc::channel(EVENTS);
        let told = std::mem::replace(received, carried);
        let task = tokio::spawn(async move {
            // The task is done: the receiver or the sender of the events was dropped.
            let (Ok(()) | Err(Left)) = self.outward.run(told, events).await;
        });
        Past {
            pipe: Mutex::new(Some(self.control)),
            task: task.abort_handle(),
        }
    }
}

/// The host's handle of a program's direct pipes. Dropping it closes them.
pub(super) struct Past {
    /// The pipe to the program's control channel. None after `close`. Writers take turns.
    pipe: Mutex<Option<pipe::Sender>>,
    task: tokio::task::AbortHandle,
}

impl Past {
    /// Writes to the program's control channel. Bytes for a program that has ended or has closed its end are dropped,
    /// as they are when they pass through the agent.
    pub(super) async fn write(&self, link: &Link, bytes: &Bytes) -> Result<(), SandboxError> {
        let mut bytes: &[u8] = bytes;
        let turn = self.pipe.lock().await;
        let Some(pipe) = turn.as_ref() else {
            return Err(after_close(Channel::Control));
        };
        while !bytes.is_empty() {
            if link.has_ended() {
                return Err(link.error());
            }
            match pipe.try_write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::select! {
                        ready = pipe.writable() => if ready.is_err() { return Ok(()) },
                        _ = link.closed() => {}
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    pub(super) async fn close(&self) {
        self.pipe.lock().await.take();
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Outward {
    async fn run(
        mut self,
        mut told: mpsc::Receiver<ProcessEvent>,
        events: mpsc::Sender<ProcessEvent>,
    ) -> Result<(), Left> {
        loop {
            tokio::select! {
                biased;
                event = told.recv() => {
                    let Some(event) = event else { return Ok(()) };
                    if matches!(event, ProcessEvent::Exited { .. }) {
                        for way in [&mut self.stdout, &mut self.stderr, &mut self.control] {
                            way.pass(way.standing(), &events).await?;
                        }
                    }
                    send(&events, event).await?;
                }
                () = self.control.ready() => {
                    // Control is read first. Its bytes were written after the output that must precede them.
                    let said = self.control.read();
                    self.stdout.pass_ready(&events).await?;
                    self.stderr.pass_ready(&events).await?;
                    self.control.hand_on(said, &events).await?;
                }
                () = self.stdout.ready() => self.stdout.pass_ready(&events).await?,
                () = self.stderr.ready() => self.stderr.pass_ready(&events).await?,
            }
        }
    }
}

impl Way {
    async fn ready(&self) {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        // The next read reports the error again.
        drop(pipe.readable().await);
    }

    /// Returns the number of bytes in the pipe. If the system cannot count them, returns the maximum, so the pipe is
    /// read until it is empty.
    fn standing(&self) -> usize {
        let standing = self.pipe.as_ref().map(ioctl_fionread);
        standing.map_or(0, |count| {
            count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    /// Delivers `missing` bytes, or fewer if the pipe has fewer.
    async fn pass(&mut self, mut missing: usize, events: &mpsc::Sender<ProcessEvent>) -> Result<(), Left> {
        while missing > 0 {
            let found = self.read();
            let Found::Output(bytes) = &found else {
                return self.hand_on(found, events).await;
            };
            missing = missing.saturating_sub(bytes.len());
            self.hand_on(found, events).await?;
        }
        Ok(())
    }

    async fn pass_ready(&mut self, events: &mpsc::Sender<ProcessEvent>) -> Result<(), Left> {
        let found = self.read();
        let rest = if found.is_output() { self.standing() } else { 0 };
        self.hand_on(found, events).await?;
        self.pass(rest, events).await
    }

    /// Reads once. After a full read the next one offers room for a whole pipe.
    fn read(&mut self) -> Found {
        let Some(pipe) = &self.pipe else {
            return Found::Nothing;
        };
        let mut buffer = Vec::with_capacity(self.room);
        loop {
            return match read(pipe, &mut buffer) {
                Ok(count) if count > 0 => {
                    let is_full = buffer.len() == buffer.capacity();
                    self.room = if is_full { PIECE } else { FIRST };
                    Found::Output(Bytes::from(buffer))
                }
                Err(Errno::AGAIN) => Found::Nothing,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => Found::End,
            };
        }
    }

    async fn hand_on(&mut self, found: Found, events: &mpsc::Sender<ProcessEvent>) -> Result<(), Left> {
        let channel = self.channel;
        match found {
            Found::Output(bytes) => send(events, ProcessEvent::Output { channel, bytes }).await,
            Found::Nothing => Ok(()),
            Found::End => {
                self.pipe = None;
                send(events, ProcessEvent::Closed { channel }).await
            }
        }
    }
}

/// The result of one read.
enum Found {
    Output(Bytes),
    Nothing,
    /// End of file, or a read error.
    End,
}

impl Found {
    const fn is_output(&self) -> bool {
        matches!(self, Self::Output(_))
    }
}

/// Reads the available bytes. It always asks the system. The runtime may not have noticed new bytes yet and would
/// report an empty pipe, even for bytes that must precede others. If the read is short, the pipe is empty, and the
/// runtime waits again.
fn read(pipe: &pipe::Receiver, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let mut found = None;
    let known = pipe.try_io(|| {
        let read = rustix::io::read(pipe, rustix::buffer::spare_capacity(buffer));
        found = Some(read);
        match read {
            Ok(count) if count > 0 && buffer.len() < buffer.capacity() => Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    });
    // The closure has stored the result. This value was only for the runtime.
    drop(known);
    found.unwrap_or_else(|| rustix::io::read(pipe, rustix::buffer::spare_capacity(buffer)))
}

async fn send(events: &mpsc::Sender<ProcessEvent>, event: ProcessEvent) -> Result<(), Left> {
    events.send(event).await.map_err(|_| Left)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::*;

    /// One poll of the runtime finds a signal and a first frame. The task with the signal writes output and a second
    /// frame before the frames are delivered. At that moment the runtime has not noticed the output.
    #[tokio::test]
    async fn output_comes_before_control_also_when_the_runtime_has_not_heard_of_it() {
        for _ in 0..50 {
            let (near, far) = Lane::make().unwrap();
            let (near, far) = (Near::new(near).unwrap(), Arc::new(far));
            let (_telling, mut seen) = mpsc::channel(1);
            let (signal, signalled) = pipe::pipe().unwrap();
            let program = Arc::clone(&far);
            let writing = tokio::spawn(async move {
                signalled.readable().await.unwrap();
                rustix::io::write(&program.stdout, b"42").unwrap();
                rustix::io::write(&program.control_out, b"done").unwrap();
            });
            let past = near.carry(&mut seen);
            // Both tasks wait now.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            signal.try_write(b"!").unwrap();
            rustix::io::write(&far.control_out, b"begun").unwrap();
            writing.await.unwrap();
            let mut order = Vec::new();
            while order
                .iter()
                .map(|(_, bytes): &(Channel, Bytes)| bytes.len())
                .sum::<usize>()
                < 11
            {
                if let Some(ProcessEvent::Output { channel, bytes }) = seen.recv().await {
                    order.push((channel, bytes));
                }
            }
            let stdout = order.iter().position(|(channel, _)| *channel == Channel::Stdout);
            let done = order.iter().position(|(_, bytes)| bytes.ends_with(b"done"));
            assert!(stdout < done, "{order:?}");
            drop(past);
        }
    }

    /// A program can make its own pipe a packet pipe. Then each read returns one packet, and the system drops the bytes
    /// that do not fit.
    #[tokio::test]
    async fn packets_arrive_whole_and_before_what_was_said_after_them() {
        let (near, far) = Lane::make().unwrap();
        let near = Near::new(near).unwrap();
        let (_telling, mut seen) = mpsc::channel(1);
        rustix::fs::fcntl_setfl(&far.stdout, OFlags::DIRECT).unwrap();
        let past = near.carry(&mut seen);
        for round in 0..3_usize {
            for size in [2000, 4096, 1, 3000] {
                assert_eq!(rustix::io::write(&far.stdout, &vec![b'x'; size]).unwrap(), size);
            }
            rustix::io::write(&far.control_out, b"done").unwrap();
            let mut before = 0;
            loop {
                let event = tokio::time::timeout(Duration::from_secs(10), seen.recv()).await;
                match event.expect("everything arrives") {
                    Some(ProcessEvent::Output {
                        channel: Channel::Stdout,
                        bytes,
                    }) => before += bytes.len(),
                    Some(ProcessEvent::Output {
                        channel: Channel::Control,
                        ..
                    }) => break,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(before, 2000 + 4096 + 1 + 3000, "round {round}");
        }
        drop(past);
    }

    #[tokio::test]
    async fn much_arrives_whole_and_its_end_comes_last() {
        let (near, far) = Lane::make().unwrap();
        let near = Near::new(near).unwrap();
        let (_telling, mut seen) = mpsc::channel(1);
        let past = near.carry(&mut seen);
        let sizes = [1, 4095, 4096, 4097, 60_000, 65_536, 300_000, 1];
        let writing = std::thread::spawn(move || {
            let far = far;
            for end in [&far.stdout, &far.control_out] {
                for size in sizes {
                    let data = vec![b'x'; size];
                    let mut rest = &data[..];
                    while !rest.is_empty() {
                        rest = &rest[rustix::io::write(end, rest).unwrap()..];
                    }
                }
            }
        });
        let (mut output, mut control, mut closed) = (0, 0, Vec::new());
        while closed.len() < 3 {
            match tokio::time::timeout(Duration::from_secs(10), seen.recv())
                .await
                .unwrap()
            {
                Some(ProcessEvent::Output { channel, bytes }) => {
                    assert!(!closed.contains(&channel), "{channel:?} goes on after its end");
                    match channel {
                        Channel::Stdout => output += bytes.len(),
                        _ => control += bytes.len(),
                    }
                }
                Some(ProcessEvent::Closed { channel }) => closed.push(channel),
                other => panic!("{other:?}"),
            }
        }
        let all: usize = sizes.iter().sum();
        assert_eq!((output, control), (all, all));
        writing.join().unwrap();
        drop(past);
    }
}
