//! Notifications outside of answers: MCP log messages that warn before a sandbox ends.
//!
//! In the protocols with a handshake, clients that have set a level get them at any time. In the newest protocol, a
//! call that asks for a level gets them while it is answered, since the protocol permits no others.
#![expect(
    deprecated,
    reason = "MCP replaces log messages by nothing yet, and clients show them"
)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProtocolVersion};
use rmcp::service::{Peer, RequestContext};
use sandcell_engine::{ExecutionId, ExpiryNotice, ExpiryNotices, ExpiryReason, Watch};
use sandcell_sandbox::rfc3339;
use serde_json::json;
use tokio::task::AbortHandle;

use crate::limits::ANNOUNCE_DELAY;
use crate::time::rough;

/// The level of messages about ends.
const EXPIRY_LEVEL: LoggingLevel = LoggingLevel::Warning;

/// The log subscription of one connection, in the protocols with a handshake. Dropping it ends its task.
#[derive(Debug, Default)]
pub(crate) struct LogSubscription {
    level: Arc<Mutex<Option<LoggingLevel>>>,
    task: Mutex<Option<AbortHandle>>,
}

impl LogSubscription {
    /// Sets the level of messages that the client wants, and starts the notifications.
    pub(crate) fn set_level(&self, level: LoggingLevel, peer: &Peer<RoleServer>, soon: impl FnOnce() -> ExpiryNotices) {
        *lock(&self.level) = Some(level);
        let mut running = lock(&self.task);
        if running.is_none() {
            let task = tokio::spawn(notify_connection(peer.clone(), soon(), Arc::clone(&self.level)));
            *running = Some(task.abort_handle());
        }
    }
}

impl Drop for LogSubscription {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

/// Notifies one connection until it is gone.
async fn notify_connection(peer: Peer<RoleServer>, mut soon: ExpiryNotices, level: Arc<Mutex<Option<LoggingLevel>>>) {
    loop {
        let expiring = soon.next().await;
        let wanted = lock(&level).is_some_and(is_wanted);
        if wanted && peer.notify_logging_message(message(&expiring)).await.is_err() {
            return;
        }
    }
}

/// Notifies a call of the newest protocol that asks for it, as long as it is polled. `sending` marks each message as in
/// transit. Never ends.
pub(crate) async fn notify_call(
    context: &RequestContext<RoleServer>,
    soon: &tokio::sync::Mutex<ExpiryNotices>,
    sending: impl Fn(bool),
) {
    if context.meta.log_level().is_some_and(is_wanted) {
        // Each call gets its own notifications, independent of other calls of the client.
        let mut soon = soon.lock().await;
        loop {
            let expiring = soon.next().await;
            sending(true);
            let sent = context.peer.notify_logging_message(message(&expiring)).await;
            sending(false);
            if sent.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

/// Sends the execution's id once to a client that asked for no progress: should the client give the call up, it can
/// find the execution by this id. `sending` marks the message as in transit. Never ends.
pub(crate) async fn announce(
    context: &RequestContext<RoleServer>,
    log: &LogSubscription,
    watch: &Watch,
    sending: impl Fn(bool),
) {
    let level = match context.meta.protocol_version() {
        Some(version) if version >= ProtocolVersion::V_2026_07_28 => context.meta.log_level(),
        // With a handshake the server decides until the client has set a level.
        _ => Some(lock(&log.level).unwrap_or(LoggingLevel::Info)),
    };
    let is_wanted = matches!(level, Some(LoggingLevel::Debug | LoggingLevel::Info));
    if is_wanted && context.meta.get_progress_token().is_none() {
        tokio::time::sleep(ANNOUNCE_DELAY).await;
        if let Some(id) = watch.execution_id() {
            sending(true);
            // A client that has disconnected needs no id.
            let _sent = context.peer.notify_logging_message(running(&id)).await;
            sending(false);
        }
    }
    std::future::pending().await
}

fn running(id: &ExecutionId) -> LoggingMessageNotificationParam {
    let data = json!({
        "code": "running",
        "execution_id": id,
        "message": format!("execution {id} is running"),
        "remedy": format!("if this call is cut off: get_execution(execution_id=\"{id}\")"),
    });
    LoggingMessageNotificationParam::new(LoggingLevel::Info, data).with_logger("sandcell")
}

/// Returns true if messages about ends pass this level.
const fn is_wanted(level: LoggingLevel) -> bool {
    match level {
        LoggingLevel::Debug | LoggingLevel::Info | LoggingLevel::Notice | LoggingLevel::Warning => true,
        LoggingLevel::Error | LoggingLevel::Critical | LoggingLevel::Alert | LoggingLevel::Emergency => false,
    }
}

fn message(expiring: &ExpiryNotice) -> LoggingMessageNotificationParam {
    let id = expiring.sandbox_id.as_str();
    let named = match &expiring.label {
        Some(label) => format!("{id} ({label})"),
        None => id.to_owned(),
    };
    let (why, remedy) = match expiring.why {
        ExpiryReason::Idle => ("nothing was called in it", "any call in it extends that time"),
        ExpiryReason::Lifetime => (
            "its lifetime ends then, even if it is in use",
            "read_file saves what is needed; create_sandbox makes another with a longer lifetime_s",
        ),
    };
    let left = rough(expiring.left);
    let data = json!({
        "code": "expires_soon",
        "sandbox_id": id,
        "ends_at": rfc3339(expiring.at),
        "ends_in_s": expiring.left.as_secs(),
        "message": format!("sandbox {named} ends in {left} with its variables and files: {why}"),
        "remedy": remedy,
    });
    LoggingMessageNotificationParam::new(EXPIRY_LEVEL, data).with_logger("sandcell")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
