//! Makes a snapshot the session, after a crash or for a return to a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandcell_sandbox::{Channel, EndReason, OutputStream, ProcessEvent, SandboxError, SessionError, SessionEvent};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::frame::{Decoder, Frame};
use super::checkpoints::Order;
use super::{DriverSession, pass};

/// The deadline for a snapshot to become the session.
pub(super) const RESTORE_MAX: Duration = Duration::from_secs(2);

impl DriverSession {
    /// Makes the snapshot the session, after the interpreter's end. Returns the last cell that the snapshot includes,
    /// with the reason if it is outdated. The error holds the reason why the session is over.
    pub(super) async fn restore(
        &mut self,
        to: &mpsc::Sender<SessionEvent>,
    ) -> Result<(u32, Option<String>), Option<String>> {
        let (pid, old) = self.link.snapshot.take()?;
        // The interpreter may have died in the middle of a frame.
        self.decoder = Decoder::default();
        let link = Arc::clone(&self.link);
        let resumed = timeout(RESTORE_MAX, async {
            if let Err(error) = link.handle.succeed(pid).await {
                tracing::debug!(%error, "a copy could not be called");
                return Err("the copy of it was gone; one that costs much is given up when memory runs short");
            }
            self.resume(Order::Resume, pid, Some(to)).await.map_err(|error| {
                tracing::debug!(%error, "a session could not be restored");
                "the copy of it did not answer as it should"
            })
        });
        let resumed = resumed.await;
        resumed
            .unwrap_or(Err("the copy of it did not answer in time"))
            .map(|cell| (cell, old))
            .map_err(|why| Some(why.to_owned()))
    }

    /// Resumes the snapshot and waits for its answer. Output in the meantime still belongs to the cell, if one ran.
    pub(super) async fn resume(
        &mut self,
        order: Order,
        pid: i32,
        to: Option<&mpsc::Sender<SessionEvent>>,
    ) -> Result<u32, SessionError> {
        let link = Arc::clone(&self.link);
        let used = self.take_used(pid);
        let keep = if used.is_some() { " keep" } else { "" };
        let word = format!("\nsandcell-{} {}{keep}\n", order.word(), self.nonce_base);
        let mut write = link.handle.write(Channel::Control, Bytes::from(word));
        let mut written = false;
        loop {
            tokio::select! {
                result = &mut write, if !written => {
                    result?;
                    written = true;
                }
                event = self.events.recv() => match event {
                    Some(ProcessEvent::Output { channel: Channel::Control, bytes }) => {
                        self.decoder.push(&bytes);
                        while let Some(frame) = self.next_frame()? {
                            if let Frame::Resumed { nonce, cell, kept } = frame
                                && nonce == self.nonce_base
                            {
                                self.keep_again(used, kept).await;
                                return Ok(cell);
                            }
                        }
                    }
                    Some(ProcessEvent::Output { channel, bytes }) => {
                        let stream = if channel == Channel::Stderr { OutputStream::Stderr } else { OutputStream::Stdout };
                        match to {
                            Some(to) => pass(to, SessionEvent::Output { stream, bytes }).await,
                            None => self.keep_late(stream, &bytes),
                        }
                    }
                    Some(ProcessEvent::Closed { .. }) => self.open = self.open.saturating_sub(1),
                    Some(ProcessEvent::Exited { .. }) => {
                        return Err(SessionError::Protocol("the copy has ended, too".to_owned()));
                    }
                    None => return Err(SandboxError::Gone(EndReason::AgentLost).into()),
                },
            }
        }
    }
}
