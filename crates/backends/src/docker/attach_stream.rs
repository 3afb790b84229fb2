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
const TAIL: usize = 1000;

/// The state of a stream that others than its reader see.
#[derive(Debug)]
pub(super) struct Line {
    /// Turns true when the stream ends or loses its reader.
    over: watch::Sender<bool>,
    said: Mutex<VecDeque<u8>>,
}

impl Line {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            over: watch::Sender::new(false),
            said: Mutex::default(),
        })
    }

    /// Waits until the stream ends.
    pub(super) async fn ended(&self) {
        let mut over = self.over.subscribe();
        // The sender lives as long as this borrow.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Returns the end of the agent's stderr.
    pub(super) fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = said.iter().copied().collect();
        super::connect::one_line(&String::from_utf8_lossy(&bytes))
    }

    fn hear(&self, bytes: &[u8]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(bytes);
        let surplus = said.len().saturating_sub(TAIL);
        said.drain(..surplus);
    }
}

/// Reads the agent's stdout as bytes.
pub(super) struct Reader {
    output: Output,
    piece: Bytes,
    line: Arc<Line>,
}

impl Reader {
    pub(super) fn new(output: Output, line: Arc<Line>) -> Self {
        Self {
            output,
            piece: Bytes::new(),
            line,
        }
    }
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(self.output.as_mut().poll_next(context)) {
                Some(Ok(LogOutput::StdOut { message })) => self.piece = message,
                Some(Ok(LogOutput::StdErr { message })) => self.line.hear(&message),
                Some(Ok(LogOutput::StdIn { .. })) => {}
                Some(Ok(LogOutput::Console { .. })) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the daemon's stream has lost its labels",
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

impl Drop for Reader {
    fn drop(&mut self) {
        self.piece.advance(self.piece.len());
        self.line.over.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn stdout_is_the_stream_and_stderr_is_remembered() {
        let line = Line::new();
        let piece = |text: &'static str| Bytes::from_static(text.as_bytes());
        let output: Vec<Result<LogOutput, Error>> = vec![
            Ok(LogOutput::StdOut { message: piece("ab") }),
            Ok(LogOutput::StdErr {
                message: piece("oh\nno"),
            }),
            Ok(LogOutput::StdOut { message: piece("") }),
            Ok(LogOutput::StdOut { message: piece("cde") }),
        ];
        let mut reader = Reader::new(Box::pin(futures::stream::iter(output)), line.clone());
        let mut first = [0; 1];
        reader.read_exact(&mut first).await.unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!((first[0], rest.as_str(), line.said().as_str()), (b'a', "bcde", "oh no"));
        assert!(!*line.over.borrow());
        drop(reader);
        line.ended().await;
    }

    #[tokio::test]
    async fn only_the_end_of_stderr_is_kept() {
        let line = Line::new();
        line.hear(&[b'x'; 5000]);
        line.hear(b"end");
        assert_eq!(line.said.lock().unwrap().len(), TAIL);
        assert!(line.said().ends_with("end") || line.said().len() <= 400);
    }
}
