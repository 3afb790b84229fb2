//! Copies bytes from the host to a program: stdin, and the inward direction of control.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::protocol::{OutBuffer, ProtocolError, ReceiveWindow};

/// The writing end of a program's pipe, and the bytes that the pipe has not taken yet (at most a window).
pub(super) struct InputPump {
    /// None if the program has closed its end, or if the host has sent CLOSE and everything was written.
    pipe: Option<OwnedFd>,
    frames: VecDeque<Vec<u8>>,
    /// The written bytes of the first frame.
    written: usize,
    window: ReceiveWindow,
    /// The host has sent CLOSE.
    closed: bool,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Going,
    /// The program has just closed its end.
    Refused,
}

impl InputPump {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self {
            pipe: Some(pipe),
            frames: VecDeque::new(),
            written: 0,
            window: ReceiveWindow::default(),
            closed: false,
        }
    }

    /// Returns the pipe, while bytes wait for it.
    pub(super) fn polled(&self) -> Option<BorrowedFd<'_>> {
        if self.frames.is_empty() {
            None
        } else {
            self.pipe.as_ref().map(AsFd::as_fd)
        }
    }

    /// Receives bytes of the host. The pipe usually takes them at once.
    pub(super) fn receive(&mut self, bytes: &[u8], credit: impl FnMut(u32)) -> Result<Flow, ProtocolError> {
        if self.closed {
            return Err(ProtocolError::new("data after CLOSE"));
        }
        self.window.receive(bytes.len())?;
        self.frames.push_back(bytes.to_vec());
        Ok(self.write(credit))
    }

    /// Handles the host's CLOSE.
    pub(super) fn close(&mut self) -> Result<(), ProtocolError> {
        if std::mem::replace(&mut self.closed, true) {
            return Err(ProtocolError::new("a second CLOSE"));
        }
        if self.frames.is_empty() {
            self.pipe = None;
        }
        Ok(())
    }

    /// Returns true if no bytes will be written any more.
    pub(super) fn is_over(&self) -> bool {
        self.pipe.is_none()
    }

    /// Writes as many bytes as the pipe takes. Calls `credit` with the amounts to return to the host.
    pub(super) fn write(&mut self, mut credit: impl FnMut(u32)) -> Flow {
        let mut flow = Flow::Going;
        while let Some(frame) = self.frames.front() {
            let rest = frame.get(self.written..).unwrap_or_default();
            let result = match &self.pipe {
                Some(pipe) if !rest.is_empty() => rustix::io::write(pipe, rest),
                // The pipe has no reader. The bytes are dropped, and the host may send (and lose) more.
                _ => Ok(rest.len()),
            };
            match result {
                Ok(count) if count < rest.len() => self.written += count,
                Ok(_) => {
                    let amount = self.window.passed(frame.len());
                    self.frames.pop_front();
                    self.written = 0;
                    amount.into_iter().for_each(&mut credit);
                }
                Err(Errno::AGAIN) => return flow,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.pipe = None;
                    flow = Flow::Refused;
                }
            }
        }
        if self.closed {
            self.pipe = None;
        }
        flow
    }
}

/// Returns a function that sends CREDIT for a channel of a stream.
pub(super) fn credit_sender(out: &mut OutBuffer, stream: u32, channel: u8) -> impl FnMut(u32) {
    move |amount| out.credit(stream, channel, amount)
}
