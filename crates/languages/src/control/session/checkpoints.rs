//! Checkpoints: snapshots that are kept, so that the session can return to them at any later time.
//!
//! A checkpoint that becomes the session is used up. So it makes another copy of itself before anything else.

use std::time::Duration;

use sandcell_sandbox::{Channel, Exit, ProcessEvent, SessionError, Signal, SignalScope};
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::frame::{Decoder, Frame, encode};
use super::super::snapshot_state::reason;
use super::restore::RESTORE_MAX;
use super::{Aftermath, Arc, DriverSession};

/// The deadline for making a checkpoint.
const CHECKPOINT_MAX: Duration = Duration::from_secs(10);
/// The deadline for measuring all checkpoints. Without an answer, their sizes are unknown.
const MEASURE_MAX: Duration = Duration::from_secs(2);
/// The deadline for the end of a killed interpreter.
const KILL_MAX: Duration = Duration::from_secs(5);

/// A kept snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checkpoint {
    pub(super) pid: i32,
    expendable: bool,
}

/// The reason why a snapshot becomes the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The interpreter died. The files are newer than the snapshot.
    Resume,
    /// A caller asked for it. The files are those of the checkpoint.
    Rewind,
    /// The interpreter is in another sandbox, and has loaded an image. The files are those of the image.
    Branch,
}

impl Order {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Rewind => "rewind",
            Self::Branch => "branch",
        }
    }
}

impl DriverSession {
    pub(super) async fn make_checkpoint(
        &mut self,
        number: u32,
        expendable: bool,
    ) -> Result<Result<(), String>, SessionError> {
        let answer = |nonce: &str, frame| match frame {
            Frame::Kept {
                nonce: of, pid, why, ..
            } if of == nonce => Some((pid, why)),
            _ => None,
        };
        let asked = self.ask_gently(json!({"type": "checkpoint"}), CHECKPOINT_MAX, answer);
        let Some((pid, why)) = asked.await? else {
            let why = match self.untold.is_some() || self.over.is_some() {
                true => "it has ended".to_owned(),
                false => format!("it did not answer within {} s", CHECKPOINT_MAX.as_secs()),
            };
            return Ok(Err(why));
        };
        let Some(pid) = pid else {
            return Ok(Err(
                reason(&why).unwrap_or_else(|| "no copy of it could be made".to_owned())
            ));
        };
        Ok(self.keep(number, Checkpoint { pid, expendable }).await)
    }

    async fn keep(&mut self, number: u32, checkpoint: Checkpoint) -> Result<(), String> {
        match self.link.handle.keep(checkpoint.pid, checkpoint.expendable).await {
            Ok(()) => {
                self.checkpoints.insert(number, checkpoint);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, "a checkpoint could not be kept");
                Err("the copy of it was gone; one that costs much is given up when memory runs short".to_owned())
            }
        }
    }

    /// Forgets the checkpoints that were ended from outside.
    pub(super) async fn refresh_checkpoints(&mut self) {
        match self.link.handle.kept().await {
            Ok(kept) => self.checkpoints.retain(|_, checkpoint| kept.contains(&checkpoint.pid)),
            Err(error) => tracing::debug!(%error, "the checkpoints of a session are unknown"),
        }
    }

    pub(super) async fn measure_checkpoints(&mut self) -> Result<Vec<(u32, u64)>, SessionError> {
        if self.checkpoints.is_empty() {
            return Ok(Vec::new());
        }
        let (numbers, pids): (Vec<u32>, Vec<i32>) = {
            let all = self.checkpoints.iter();
            all.map(|(number, checkpoint)| (*number, checkpoint.pid)).unzip()
        };
        let answer = |nonce: &str, frame| match frame {
            Frame::Measured { nonce: of, bytes } if of == nonce => Some(bytes),
            _ => None,
        };
        let question = json!({"type": "measure", "pids": pids});
        let sizes = self
            .ask_gently(question, MEASURE_MAX, answer)
            .await?
            .unwrap_or_default();
        Ok(numbers.into_iter().zip(sizes).collect())
    }

    pub(super) async fn release_checkpoint(&mut self, number: u32) {
        let Some(checkpoint) = self.checkpoints.remove(&number) else {
            return;
        };
        if let Err(error) = self.link.handle.release(checkpoint.pid).await {
            tracing::debug!(%error, "a checkpoint could not be ended");
        }
        if self.over.is_some() || self.untold.is_some() {
            return;
        }
        // It may have been the session's current snapshot.
        let frame = encode(&json!({"type": "released", "pid": checkpoint.pid}), &[]);
        if let Err(error) = self.link.handle.write(Channel::Control, frame).await {
            tracing::debug!(%error, "the message about a released checkpoint could not be sent to its session");
        }
    }

    /// Kills the interpreter and waits for its end.
    pub(super) async fn end_interpreter(&mut self) {
        if self.over.is_some() {
            return;
        }
        self.link.snapshot.forget();
        if let Err(error) = self.link.handle.signal(Signal::Kill, SignalScope::Tree).await {
            tracing::debug!(%error, "an interpreter could not be killed");
        }
        let deadline = Instant::now() + KILL_MAX;
        while self.untold.is_none() {
            let Ok(Some(event)) = timeout_at(deadline, self.events.recv()).await else {
                break;
            };
            // It may have died in the middle of a frame.
            if matches!(
                &event,
                ProcessEvent::Output {
                    channel: Channel::Control,
                    ..
                }
            ) {
                continue;
            }
            if let Err(error) = self.take_between(event) {
                tracing::debug!(%error, "a killed interpreter wrote something else than frames");
            }
        }
        self.over = Some(self.untold.take().unwrap_or(Exit::Signal(9)));
        self.aftermath = Aftermath::Over { why: None };
    }

    pub(super) async fn rewind_to(&mut self, number: u32) -> Result<(), SessionError> {
        self.end_interpreter().await;
        let gone = || SessionError::Protocol("its checkpoint is gone".to_owned());
        let Some(Checkpoint { pid, .. }) = self.checkpoints.get(&number).copied() else {
            return Err(gone());
        };
        self.decoder = Decoder::default();
        let link = Arc::clone(&self.link);
        link.handle.succeed(pid).await?;
        let resumed = timeout(RESTORE_MAX, self.resume(Order::Rewind, pid, None)).await;
        let silent = || SessionError::Protocol("its checkpoint did not answer in time".to_owned());
        if let Err(error) = resumed.unwrap_or_else(|_| Err(silent())) {
            return Err(self.broken(error.to_string()).await);
        }
        (self.over, self.untold) = (None, None);
        Ok(())
    }

    /// Takes the checkpoint that becomes the session, if this process is one.
    pub(super) fn take_used(&mut self, pid: i32) -> Option<(u32, bool)> {
        let used = self.checkpoints.iter().find(|(_, checkpoint)| checkpoint.pid == pid);
        let (number, Checkpoint { expendable, .. }) = used.map(|(number, checkpoint)| (*number, *checkpoint))?;
        self.checkpoints.remove(&number);
        Some((number, expendable))
    }

    /// Keeps the copy of a checkpoint that has become the session.
    pub(super) async fn keep_again(&mut self, used: Option<(u32, bool)>, pid: Option<i32>) {
        let Some((number, expendable)) = used else { return };
        match pid {
            Some(pid) => {
                if let Err(why) = self.keep(number, Checkpoint { pid, expendable }).await {
                    tracing::debug!(why, "a checkpoint was lost");
                }
            }
            None => tracing::debug!("a checkpoint was lost: it could not copy itself"),
        }
    }
}
