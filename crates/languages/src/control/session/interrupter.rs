//! Control of a running cell from another task.

use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use sandcell_sandbox::{Channel, Interrupter, SandboxError, Signal, SignalScope};
use serde_json::json;
use tokio::time::timeout;

use super::super::frame::encode;
use super::Link;

/// The time for announcing an interrupt before the signal is sent anyway.
const ANNOUNCE_MAX: Duration = Duration::from_millis(300);
/// The delay between an interrupt and the nudge.
const NUDGE_DELAY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct DriverInterrupter(pub(super) Weak<Link>);

#[async_trait]
impl Interrupter for DriverInterrupter {
    /// Announces the interrupt on the control channel first: a driver that has not begun the cell yet ignores the
    /// signal, and finds the announcement when it begins. A cell that is over is not interrupted.
    ///
    /// An interpreter that records a signal just before it begins a blocking call sleeps on. So it gets a nudge
    /// (SIGURG) a moment later, which ends the call and has no effect on code that has handled the signal.
    async fn interrupt(&self) -> Result<(), SandboxError> {
        let Some(link) = self.0.upgrade() else {
            return Ok(());
        };
        let mut interrupted = None;
        if let Ok(running) = timeout(ANNOUNCE_MAX, link.running.lock()).await {
            let Some(nonce) = running.as_ref() else {
                return Ok(());
            };
            let frame = encode(&json!({"type": "interrupt", "nonce": nonce}), &[]);
            // Many interrupts without a read may have filled the pipe; then the signal suffices.
            if let Ok(Err(error)) = timeout(ANNOUNCE_MAX, link.handle.write(Channel::Control, frame)).await {
                tracing::debug!(%error, "an interrupt could not be announced");
            }
            interrupted = Some(nonce.clone());
        }
        link.handle.signal(Signal::Interrupt, SignalScope::Group).await?;
        if !link.handed_over {
            return Ok(());
        }
        drop(link);
        tokio::time::sleep(NUDGE_DELAY).await;
        let Some(link) = self.0.upgrade() else {
            return Ok(());
        };
        let over = timeout(ANNOUNCE_MAX, link.running.lock())
            .await
            .is_ok_and(|running| interrupted.is_some() && *running != interrupted);
        if over {
            return Ok(());
        }
        link.handle.signal(Signal::Nudge, SignalScope::Group).await
    }

    async fn installed(&self, result: Result<String, String>) -> Result<(), SandboxError> {
        let Some(link) = self.0.upgrade() else {
            return Ok(());
        };
        let running = link.running.lock().await;
        let Some(nonce) = running.as_ref() else {
            return Ok(());
        };
        let (ok, text) = result.map_or_else(|text| (false, text), |text| (true, text));
        let frame = encode(
            &json!({"type": "installed", "nonce": nonce, "ok": ok, "text": text}),
            &[],
        );
        link.handle.write(Channel::Control, frame).await
    }

    async fn kill(&self) -> Result<(), SandboxError> {
        let Some(link) = self.0.upgrade() else {
            return Ok(());
        };
        if let Some(pid) = link.snapshot.pid() {
            match link.handle.kill_but(pid).await {
                Ok(()) => return Ok(()),
                Err(error) => tracing::debug!(%error, "a copy could not be spared"),
            }
        }
        link.handle.signal(Signal::Kill, SignalScope::Tree).await
    }

    async fn end(&self) -> Result<(), SandboxError> {
        match self.0.upgrade() {
            Some(link) => {
                link.snapshot.forget();
                link.handle.signal(Signal::Kill, SignalScope::Tree).await
            }
            None => Ok(()),
        }
    }
}
