//! A connection with a byte budget and an idle time-out. It breaks off when the budget is used up, or when no bytes
//! moved for the time-out.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The idle time after which a connection breaks off.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// A connection with a byte budget.
pub(crate) struct Counted<S> {
    stream: S,
    budget: Arc<AtomicU64>,
    /// Records that the budget is used up.
    on_used_up: Box<dyn Fn() + Send + Sync>,
    last_activity: Instant,
    idle: Pin<Box<Sleep>>,
}

impl<S> Counted<S> {
    pub(crate) fn new(stream: S, budget: Arc<AtomicU64>, on_used_up: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            stream,
            budget,
            on_used_up,
            last_activity: Instant::now(),
            idle: Box::pin(sleep(IDLE_TIMEOUT)),
        }
    }

    /// Subtracts bytes from the budget. Returns an error if it is used up.
    fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.last_activity = Instant::now();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let take = |budget: u64| Some(budget.saturating_sub(bytes));
        let before = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if before.is_ok_and(|before| before >= bytes) {
            return Ok(());
        }
        (self.on_used_up)();
        Err(io::Error::other("the bytes of this sandbox are used up"))
    }

    /// Returns an error if the connection was idle for too long.
    fn check_idle(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.idle.as_mut().poll(context).is_ready() {
            let end = self.last_activity + IDLE_TIMEOUT;
            if Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.idle.as_mut().reset(end);
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(self.count(buffer.filled().len().saturating_sub(before))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => match self.check_idle(context) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.count(written)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
