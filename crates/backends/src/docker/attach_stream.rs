//! Demultiplexes a container's attached stream into the agent's stdout and stderr.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::{Buf, Bytes};
use futures::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// The bytes of the agent's stderr that are kept. It states there why it does not serve.
const MAX_STDERR_BYTES: usize = 1000;

/// The state of a stream that others than its reader see.
#[derive(Debug)]
pub(super) struct AttachState {
    /// Turns true when the stream ends or loses its reader.
    ended_flag: watch::Sender<bool>,
    stderr_tail: Mutex<VecDeque<u8>>,
}

impl AttachState {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            ended_flag: watch::Sender::new(false),
            stderr_tail: Mutex::default(),
        })
    }

    /// Waits until the stream ends.
    pub(super) async fn ended(&self) {
        let mut ended_flag = self.ended_flag.subscribe();
        // The sender lives as long as this borrow.
        let _ = ended_flag.wait_for(|ended_flag| *ended_flag).await;
    }

    /// Returns the end of the agent's stderr.
    pub(super) fn stderr_tail(&self) -> String {
        let stderr_tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = stderr_tail.iter().copied().collect();
        super::connect::one_line(&String::from_utf8_lossy(&bytes))
    }

    fn keep_stderr(&self, bytes: &[u8]) {
        let mut stderr_tail = self.stderr_tail.lock().unwrap_or_else(PoisonError::into_inner);
        stderr_tail.extend(bytes);
        let surplus = stderr_tail.len().saturating_sub(MAX_STDERR_BYTES);
        stderr_tail.drain(..surplus);
    }
}

/// Reads the agent's stdout as bytes.
pub(super) struct StdoutReader {
    output: Output,
    piece: Bytes,
    attach_state: Arc<AttachState>,
}

impl StdoutReader {
    pub(super) fn new(output: Output, attach_state: Arc<AttachState>) -> Self {
        Self {
            output,
            piece: Bytes::new(),
            attach_state,
        }
    }
}

impl AsyncRead for StdoutReader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(self.output.as_mut().poll_next(context)) {
                Some(Ok(LogOutput::StdOut { message })) => self.piece = message,
                Some(Ok(LogOutput::StdErr { message })) => self.attach_state.keep_stderr(&message),
                Some(Ok(LogOutput::StdIn { .. })) => {}
                Some(Ok(LogOutput::Console { .. })) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the daemon's stream has an invalid frame header",
                    )));
                }
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.piece.len().min(into.remaining());
        into.put_slice(&self.piece.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl Drop for StdoutReader {
    fn drop(&mut self) {
        self.piece.advance(self.piece.len());
        self.attach_state.ended_flag.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn stdout_is_the_stream_and_stderr_is_remembered() {
        let attach_state = AttachState::new();
        let piece = |text: &'static str| Bytes::from_static(text.as_bytes());
        let output: Vec<Result<LogOutput, Error>> = vec![
            Ok(LogOutput::StdOut { message: piece("ab") }),
            Ok(LogOutput::StdErr {
                message: piece("oh\nno"),
            }),
            Ok(LogOutput::StdOut { message: piece("") }),
            Ok(LogOutput::StdOut { message: piece("cde") }),
        ];
        let mut reader = StdoutReader::new(Box::pin(futures::stream::iter(output)), attach_state.clone());
        let mut first = [0; 1];
        reader.read_exact(&mut first).await.unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!(
            (first[0], rest.as_str(), attach_state.stderr_tail().as_str()),
            (b'a', "bcde", "oh no")
        );
        assert!(!*attach_state.ended_flag.borrow());
        drop(reader);
        attach_state.ended().await;
    }

    #[tokio::test]
    async fn only_the_end_of_stderr_is_kept() {
        let attach_state = AttachState::new();
        attach_state.keep_stderr(&[b'x'; 5000]);
        attach_state.keep_stderr(b"end");
        assert_eq!(attach_state.stderr_tail.lock().unwrap().len(), MAX_STDERR_BYTES);
        assert!(attach_state.stderr_tail().ends_with("end") || attach_state.stderr_tail().len() <= 400);
    }
}
