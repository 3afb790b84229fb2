//! The server's end of a zygote: its control channel, which is used while it loads modules.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{Channel, Process, ProcessEvent, ProcessHandle, SandboxError, Signal, SignalScope, Zygote};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;

use super::conversation::Conversation;

/// The capacity of the event queue.
const EVENT_QUEUE_CAPACITY: usize = 16;

/// The maximum number of bytes per event.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// Starts a zygote that sees `folders` at the paths of attached folders.
pub(super) async fn start(
    conversation: Arc<Conversation>,
    number: u64,
    argv: &[String],
    folders: Vec<PathBuf>,
) -> Result<Zygote, SandboxError> {
    let setup = |source: std::io::Error| SandboxError::Setup {
        step: "make the pipes of a zygote".to_owned(),
        source,
    };
    let pipes =
        || -> std::io::Result<(OwnedFd, OwnedFd)> { Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?) };
    let (their_input, our_output) = pipes().map_err(setup)?;
    let (our_input, their_output) = pipes().map_err(setup)?;
    let writer = pipe::Sender::from_owned_fd(our_output).map_err(setup)?;
    let mut reader = pipe::Receiver::from_owned_fd(our_input).map_err(setup)?;
    let ended = conversation
        .start_zygote(number, argv.to_vec(), folders, [their_input, their_output])
        .await?;
    let (sender, events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
    let launcher = Arc::clone(&conversation);
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; MAX_EVENT_BYTES];
        loop {
            let read = tokio::select! {
                read = reader.read(&mut buffer) => read,
                // Its children cannot enter a sandbox of another launcher.
                _ = launcher.unfit() => return,
            };
            let Ok(count @ 1..) = read else { break };
            let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
            let channel = Channel::Control;
            if sender.send(ProcessEvent::Output { channel, bytes }).await.is_err() {
                return;
            }
        }
        // A zygote that is ready to fork has closed its channel, so its end is learnt from the launcher.
        tokio::select! {
            _ = ended => {}
            _ = launcher.unfit() => {}
        }
        drop(sender);
    });
    let handle = ZygoteHandle {
        conversation,
        number,
        writer: Mutex::new(writer),
        reading: reading.abort_handle(),
    };
    Ok(Zygote {
        number,
        process: Process {
            pid: None,
            events,
            handle: Arc::new(handle),
        },
    })
}

#[derive(Debug)]
struct ZygoteHandle {
    conversation: Arc<Conversation>,
    number: u64,
    writer: Mutex<pipe::Sender>,
    reading: AbortHandle,
}

#[async_trait]
impl ProcessHandle for ZygoteHandle {
    async fn write(&self, channel: Channel, bytes: Bytes) -> Result<(), SandboxError> {
        if channel != Channel::Control {
            return Err(SandboxError::Unsupported(format!(
                "writing to {channel:?} of this program"
            )));
        }
        let mut writer = self.writer.lock().await;
        writer.write_all(&bytes).await.map_err(|source| SandboxError::Setup {
            step: "write to a zygote".to_owned(),
            source,
        })
    }

    async fn close(&self, _channel: Channel) -> Result<(), SandboxError> {
        Err(SandboxError::Unsupported("closing a zygote's channel".to_owned()))
    }

    /// Any signal ends the zygote, since there is only one way to end it.
    async fn signal(&self, _signal: Signal, _scope: SignalScope) -> Result<(), SandboxError> {
        self.conversation.stop_zygote(self.number);
        Ok(())
    }
}

impl Drop for ZygoteHandle {
    fn drop(&mut self) {
        self.reading.abort();
        self.conversation.stop_zygote(self.number);
    }
}
