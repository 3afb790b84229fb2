//! Signals that ask this process to stop.

use sandcell_sandbox::{Code, Failure};

/// A listener for them. While one exists, the signals do not end the process by themselves.
#[derive(Debug)]
pub(crate) struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hangup: tokio::signal::unix::Signal,
}

impl Stop {
    /// Starts to listen; needs a running runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::start().map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("signals cannot be listened to: {error}"),
                "raise the limit of open files and try again",
            )
        })
    }

    #[cfg(unix)]
    fn start() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    #[cfg(not(unix))]
    #[expect(clippy::unnecessary_wraps, reason = "the other systems can fail here")]
    fn start() -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next one and says its number.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
            _ = self.hangup.recv() => 1,
        }
    }

    /// Waits for the next one and says its number.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) -> u8 {
        match tokio::signal::ctrl_c().await {
            Ok(()) => 2,
            Err(_) => std::future::pending().await,
        }
    }
}
