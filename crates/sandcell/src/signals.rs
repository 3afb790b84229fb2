//! Signals that ask this process to stop.

use sandcell_sandbox::{Code, Failure};

/// A listener for stop signals. While one exists, the signals do not end the process by themselves.
#[derive(Debug)]
pub(crate) struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    /// The hang-up signal, if it asks the process to stop.
    #[cfg(unix)]
    hangup: Option<tokio::signal::unix::Signal>,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
    #[cfg(windows)]
    pause: tokio::signal::windows::CtrlBreak,
    /// The console's window is closed; Windows allows a few seconds.
    #[cfg(windows)]
    close: tokio::signal::windows::CtrlClose,
    #[cfg(windows)]
    shutdown: tokio::signal::windows::CtrlShutdown,
}

/// The meaning of a hang-up signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnHangUp {
    /// The process ends: its terminal or client is gone.
    Ends,
    /// The process reads the settings again, as servers in the background do.
    Reloads,
}

/// A listener for hang-up signals that request a reload of the settings.
#[derive(Debug)]
pub(crate) struct HangUps {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl HangUps {
    /// Starts to listen if hang-up signals reload the settings; needs a running runtime.
    pub(crate) fn listen(meaning: OnHangUp) -> Self {
        #[cfg(not(unix))]
        let _never_comes = meaning;
        Self {
            #[cfg(unix)]
            signal: match meaning {
                OnHangUp::Ends => None,
                OnHangUp::Reloads => tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok(),
            },
        }
    }

    /// Waits for the next signal; without a signal, waits forever.
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}

impl Stop {
    /// Starts to listen; needs a running runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::listen_but(OnHangUp::Ends)
    }

    /// Starts to listen, with this meaning of a hang-up.
    pub(crate) fn listen_but(meaning: OnHangUp) -> Result<Self, Failure> {
        Self::start(meaning).map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("signals cannot be listened to: {error}"),
                "raise the limit of open files and try again",
            )
        })
    }

    #[cfg(unix)]
    fn start(meaning: OnHangUp) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: match meaning {
                OnHangUp::Ends => Some(signal(SignalKind::hangup())?),
                OnHangUp::Reloads => None,
            },
        })
    }

    #[cfg(windows)]
    fn start(_: OnHangUp) -> std::io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        Ok(Self {
            interrupt: ctrl_c()?,
            pause: ctrl_break()?,
            close: ctrl_close()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// Waits for the next signal and returns its number.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) -> u8 {
        let hang_up = async {
            match &mut self.hangup {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
            _ = hang_up => 1,
        }
    }

    /// Waits for the next event and returns the number of the equivalent Unix signal.
    #[cfg(windows)]
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.pause.recv() => 2,
            _ = self.close.recv() => 1,
            _ = self.shutdown.recv() => 15,
        }
    }
}
