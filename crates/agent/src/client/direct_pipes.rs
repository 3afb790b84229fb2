//! Direct pipes: they connect the host with one program and bypass the agent.
//!
//! They keep the agent's guarantee about order (`docs/design/protocol.md`, "Order"). Output that was in stdout or
//! stderr when the program wrote to control is delivered before that control message. The program's end is delivered
//! after all of its output.

use std::io;

use bytes::Bytes;
use rustix::io::{Errno, ioctl_fionread};
use sandcell_jail::direct_pipes::DirectPipes;
use sandcell_sandbox::{Channel, ProcessEvent, SandboxError};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};

use super::connection::AgentConnection;
use super::streams::{EVENT_CAPACITY, closed_channel_error};

/// The maximum number of bytes for one read. A pipe holds no more.
const MAX_READ_BYTES: usize = 64 << 10;
/// The size of a read after a short one. Most output of programs is shorter. If a program makes its pipe a packet pipe,
/// a packet is not longer.
const SMALL_READ_BYTES: usize = 4 << 10;

/// The host's ends of the pipes.
#[derive(Debug)]
pub(super) struct NearEnds {
    control: pipe::Sender,
    output: OutputPipes,
}

#[derive(Debug)]
struct OutputPipes {
    stdout: OutputPipe,
    stderr: OutputPipe,
    control: OutputPipe,
}

#[derive(Debug)]
struct OutputPipe {
    channel: Channel,
    /// None after end of file.
    pipe: Option<pipe::Receiver>,
    /// The size of the next read, in bytes.
    read_bytes: usize,
}

/// The receiver of the events was dropped.
struct ReceiverDropped;

impl NearEnds {
    pub(super) fn new(ends: DirectPipes) -> io::Result<Self> {
        let output_pipe = |channel, end| {
            Ok::<_, io::Error>(OutputPipe {
                channel,
                pipe: Some(pipe::Receiver::from_owned_fd(end)?),
                read_bytes: SMALL_READ_BYTES,
            })
        };
        Ok(Self {
            control: pipe::Sender::from_owned_fd(ends.control_in)?,
            output: OutputPipes {
                stdout: output_pipe(Channel::Stdout, ends.stdout)?,
                stderr: output_pipe(Channel::Stderr, ends.stderr)?,
                control: output_pipe(Channel::Control, ends.control_out)?,
            },
        })
    }

    /// Starts a task that delivers the pipes' bytes and the agent's events in order. `received` yields both from then
    /// on. The task ends when the agent's channel closes or when `received` is dropped.
    pub(super) fn start(self, received: &mut mpsc::Receiver<ProcessEvent>) -> PipeHandle {
        let (events, carried) = mpsc::channel(EVENT_CAPACITY);
        let agent_events = std::mem::replace(received, carried);
        let task = tokio::spawn(async move {
            // The task is done: the receiver or the sender of the events was dropped.
            let (Ok(()) | Err(ReceiverDropped)) = self.output.run(agent_events, events).await;
        });
        PipeHandle {
            pipe: Mutex::new(Some(self.control)),
            task: task.abort_handle(),
        }
    }
}

/// The host's handle of a program's direct pipes. Dropping it closes them.
pub(super) struct PipeHandle {
    /// The pipe to the program's control channel. None after `close`. Writers take turns.
    pipe: Mutex<Option<pipe::Sender>>,
    task: tokio::task::AbortHandle,
}

impl PipeHandle {
    /// Writes to the program's control channel. Bytes for a program that has ended or has closed its end are dropped,
    /// as they are when they pass through the agent.
    pub(super) async fn write(&self, agent: &AgentConnection, bytes: &Bytes) -> Result<(), SandboxError> {
        let mut bytes: &[u8] = bytes;
        let turn = self.pipe.lock().await;
        let Some(pipe) = turn.as_ref() else {
            return Err(closed_channel_error(Channel::Control));
        };
        while !bytes.is_empty() {
            if agent.has_ended() {
                return Err(agent.error());
            }
            match pipe.try_write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::select! {
                        ready = pipe.writable() => if ready.is_err() { return Ok(()) },
                        _ = agent.closed() => {}
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

impl Drop for PipeHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl OutputPipes {
    async fn run(
        mut self,
        mut agent_events: mpsc::Receiver<ProcessEvent>,
        events: mpsc::Sender<ProcessEvent>,
    ) -> Result<(), ReceiverDropped> {
        loop {
            tokio::select! {
                biased;
                event = agent_events.recv() => {
                    let Some(event) = event else { return Ok(()) };
                    if matches!(event, ProcessEvent::Exited { .. }) {
                        for pipe in [&mut self.stdout, &mut self.stderr, &mut self.control] {
                            pipe.deliver(pipe.available(), &events).await?;
                        }
                    }
                    send(&events, event).await?;
                }
                () = self.control.ready() => {
                    // Control is read first. Its bytes were written after the output that must precede them.
                    let said = self.control.read();
                    self.stdout.deliver_ready(&events).await?;
                    self.stderr.deliver_ready(&events).await?;
                    self.control.deliver_read(said, &events).await?;
                }
                () = self.stdout.ready() => self.stdout.deliver_ready(&events).await?,
                () = self.stderr.ready() => self.stderr.deliver_ready(&events).await?,
            }
        }
    }
}

impl OutputPipe {
    async fn ready(&self) {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        // The next read reports the error again.
        drop(pipe.readable().await);
    }

    /// Returns the number of bytes in the pipe. If the system cannot count them, returns the maximum, so the pipe is
    /// read until it is empty.
    fn available(&self) -> usize {
        let available = self.pipe.as_ref().map(ioctl_fionread);
        available.map_or(0, |count| {
            count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    /// Delivers `missing` bytes, or fewer if the pipe has fewer.
    async fn deliver(
        &mut self,
        mut missing: usize,
        events: &mpsc::Sender<ProcessEvent>,
    ) -> Result<(), ReceiverDropped> {
        while missing > 0 {
            let found = self.read();
            let ReadResult::Output(bytes) = &found else {
                return self.deliver_read(found, events).await;
            };
            missing = missing.saturating_sub(bytes.len());
            self.deliver_read(found, events).await?;
        }
        Ok(())
    }

    async fn deliver_ready(&mut self, events: &mpsc::Sender<ProcessEvent>) -> Result<(), ReceiverDropped> {
        let found = self.read();
        let rest = if found.is_output() { self.available() } else { 0 };
        self.deliver_read(found, events).await?;
        self.deliver(rest, events).await
    }

    /// Reads once. After a full read the next one offers room for a whole pipe.
    fn read(&mut self) -> ReadResult {
        let Some(pipe) = &self.pipe else {
            return ReadResult::Empty;
        };
        let mut buffer = Vec::with_capacity(self.read_bytes);
        loop {
            return match read(pipe, &mut buffer) {
                Ok(count) if count > 0 => {
                    let is_full = buffer.len() == buffer.capacity();
                    self.read_bytes = if is_full { MAX_READ_BYTES } else { SMALL_READ_BYTES };
                    ReadResult::Output(Bytes::from(buffer))
                }
                Err(Errno::AGAIN) => ReadResult::Empty,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => ReadResult::End,
            };
        }
    }

    async fn deliver_read(
        &mut self,
        found: ReadResult,
        events: &mpsc::Sender<ProcessEvent>,
    ) -> Result<(), ReceiverDropped> {
        let channel = self.channel;
        match found {
            ReadResult::Output(bytes) => send(events, ProcessEvent::Output { channel, bytes }).await,
            ReadResult::Empty => Ok(()),
            ReadResult::End => {
                self.pipe = None;
                send(events, ProcessEvent::Closed { channel }).await
            }
        }
    }
}

/// The result of one read.
enum ReadResult {
    Output(Bytes),
    Empty,
    /// End of file, or a read error.
    End,
}

impl ReadResult {
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

async fn send(events: &mpsc::Sender<ProcessEvent>, event: ProcessEvent) -> Result<(), ReceiverDropped> {
    events.send(event).await.map_err(|_| ReceiverDropped)
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
    async fn output_is_delivered_before_control_even_if_the_runtime_is_not_yet_notified() {
        for _ in 0..50 {
            let (near, far) = DirectPipes::make().unwrap();
            let (near_ends, far) = (NearEnds::new(near).unwrap(), Arc::new(far));
            let (_telling, mut seen) = mpsc::channel(1);
            let (signal, signalled) = pipe::pipe().unwrap();
            let program = Arc::clone(&far);
            let writing = tokio::spawn(async move {
                signalled.readable().await.unwrap();
                rustix::io::write(&program.stdout, b"42").unwrap();
                rustix::io::write(&program.control_out, b"done").unwrap();
            });
            let handle = near_ends.start(&mut seen);
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
            drop(handle);
        }
    }

    /// A program can make its own pipe a packet pipe. Then each read returns one packet, and the system drops the bytes
    /// that do not fit.
    #[tokio::test]
    async fn packets_arrive_whole_and_in_order_with_later_messages() {
        let (near, far) = DirectPipes::make().unwrap();
        let near_ends = NearEnds::new(near).unwrap();
        let (_telling, mut seen) = mpsc::channel(1);
        rustix::fs::fcntl_setfl(&far.stdout, OFlags::DIRECT).unwrap();
        let handle = near_ends.start(&mut seen);
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
        drop(handle);
    }

    #[tokio::test]
    async fn large_output_arrives_whole_and_then_its_end() {
        let (near, far) = DirectPipes::make().unwrap();
        let near_ends = NearEnds::new(near).unwrap();
        let (_telling, mut seen) = mpsc::channel(1);
        let handle = near_ends.start(&mut seen);
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
                    assert!(!closed.contains(&channel), "{channel:?} continues after its end");
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
        drop(handle);
    }
}
