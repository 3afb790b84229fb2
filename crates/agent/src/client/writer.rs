//! Sends frames to the agent.
//!
//! A sender writes its frame at once, in its own task, if no other frame waits. Only the bytes that the stream does not
//! take are left to the connection's writer task. So a message costs no task switch, and a cancelled caller never
//! leaves half a frame behind.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::protocol::OutBuffer;

pub(super) struct FrameWriter {
    state: Mutex<State>,
    /// Wakes the writer task.
    work: Notify,
}

struct State {
    /// None after the connection has ended.
    writer: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    buffer: OutBuffer,
    /// True while the writer task waits for the stream. No other task may poll the stream then, or the writer task's
    /// waker would be lost.
    waiting: bool,
}

impl std::fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameWriter").finish_non_exhaustive()
    }
}

impl FrameWriter {
    pub(super) fn new(writer: impl AsyncWrite + Send + 'static) -> Self {
        Self {
            state: Mutex::new(State {
                writer: Some(Box::pin(writer)),
                buffer: OutBuffer::default(),
                waiting: false,
            }),
            work: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic half-way, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the frames that `make` appends.
    pub(super) fn send<T>(&self, make: impl FnOnce(&mut OutBuffer) -> T) -> T {
        let mut state = self.state();
        let made = make(&mut state.buffer);
        if state.writer.is_none() {
            let all = state.buffer.len();
            state.buffer.consume(all);
        }
        if !state.waiting && !state.buffer.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            if !matches!(state.flush(&mut context), Poll::Ready(Ok(()))) {
                self.work.notify_one();
            }
        }
        made
    }

    /// The writer task: writes the remaining bytes, until the stream fails or the connection ends.
    pub(super) async fn run(&self) -> io::Result<()> {
        loop {
            self.work.notified().await;
            std::future::poll_fn(|context| {
                let mut state = self.state();
                let flushed = state.flush(context);
                state.waiting = flushed.is_pending();
                flushed
            })
            .await?;
            if self.state().writer.is_none() {
                return Ok(());
            }
        }
    }

    /// Drops the stream and all unsent bytes.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.writer = None;
        let all = state.buffer.len();
        state.buffer.consume(all);
        drop(state);
        self.work.notify_one();
    }
}

impl State {
    fn flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writer) = &mut self.writer else {
            return Poll::Ready(Ok(()));
        };
        while !self.buffer.is_empty() {
            match writer.as_mut().poll_write(context, self.buffer.pending()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.buffer.consume(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        // Some streams (a TLS connection) keep bytes until they are flushed. A pipe does nothing here.
        writer.as_mut().poll_flush(context)
    }
}
