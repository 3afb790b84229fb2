//! The MCP sessions of one caller. Each caller has a separate manager, so another's session id is simply unknown. This
//! module adds the bound that rmcp's manager lacks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};

use super::limits_handle::LimitsHandle;

/// The idle time after which a session may be ended to make room for a new one.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// The sessions of one caller.
#[derive(Debug)]
pub(crate) struct Sessions {
    inner: LocalSessionManager,
    activity: Mutex<HashMap<SessionId, SessionActivity>>,
    limits: Arc<LimitsHandle>,
}

#[derive(Debug)]
struct SessionActivity {
    last: Instant,
    /// Requests that are open.
    calls: usize,
    /// Open streams for messages that the server initiates. An idle stream does not keep a session.
    streams: usize,
}

impl SessionActivity {
    const fn open(&mut self, kind: UseKind) -> &mut usize {
        match kind {
            UseKind::Call => &mut self.calls,
            UseKind::Stream => &mut self.streams,
        }
    }
}

/// The kinds of use of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseKind {
    Call,
    Stream,
}

/// A request or stream of a session in progress. The session does not count as abandoned while this exists.
#[derive(Debug)]
pub(crate) struct UseGuard {
    sessions: Arc<Sessions>,
    id: SessionId,
    kind: UseKind,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        if let Some(activity) = self.sessions.activity().get_mut(&self.id) {
            let open = activity.open(self.kind);
            *open = open.saturating_sub(1);
            activity.last = Instant::now();
        }
    }
}

impl Sessions {
    /// Takes the number of sessions and their idle time from the current limits.
    pub(crate) fn new(limits: Arc<LimitsHandle>) -> Self {
        let mut inner = LocalSessionManager::default();
        // rmcp would fix the value at the start of a session.
        inner.session_config.keep_alive = None;
        Self {
            inner,
            activity: Mutex::default(),
            limits,
        }
    }

    fn activity(&self) -> MutexGuard<'_, HashMap<SessionId, SessionActivity>> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.activity().len()
    }

    /// Begins a request or a stream of a session; none if this caller has no such session.
    pub(crate) fn enter(self: &Arc<Self>, id: &str, kind: UseKind) -> Option<UseGuard> {
        let mut all = self.activity();
        let (id, activity) = all.get_key_value(id).map(|(id, _)| id.clone()).and_then(|id| {
            let activity = all.get_mut(&id)?;
            Some((id, activity))
        })?;
        *activity.open(kind) += 1;
        activity.last = Instant::now();
        Some(UseGuard {
            sessions: Arc::clone(self),
            id,
            kind,
        })
    }

    /// Makes room for one more session. If necessary, ends the session that was abandoned longest ago. Returns false if
    /// all are in use.
    pub(crate) async fn make_room(&self) -> bool {
        if self.count() < self.limits.get().sessions_per_caller {
            return true;
        }
        let oldest = {
            let activity = self.activity();
            let abandoned = activity.iter().filter(|(_, activity)| {
                activity.calls + activity.streams == 0 && activity.last.elapsed() >= ABANDONED_AFTER
            });
            abandoned
                .min_by_key(|(_, activity)| activity.last)
                .map(|(id, _)| id.clone())
        };
        match oldest {
            Some(id) => self.close_session(&id).await.is_ok(),
            None => false,
        }
    }
}

impl Sessions {
    fn idle(&self) -> Vec<SessionId> {
        let most = self.limits.get().session_idle;
        let activity = self.activity();
        let idle = activity
            .iter()
            .filter(|(_, activity)| activity.calls == 0 && activity.last.elapsed() >= most);
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Ends sessions that were idle for longer than the current limit, in the background.
    pub(crate) fn end_idle(self: &Arc<Self>) {
        for id in self.idle() {
            let sessions = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = sessions.close_session(&id).await {
                    tracing::debug!(%error, "an idle session");
                }
            });
        }
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.inner.create_session().await?;
        let activity = SessionActivity {
            last: Instant::now(),
            calls: 0,
            streams: 0,
        };
        self.activity().insert(id.clone(), activity);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.activity().remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.resume(id, last_event_id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HttpLimits;

    #[tokio::test]
    async fn sessions_are_bounded_and_those_in_use_are_not_ended() {
        let sessions = Arc::new(Sessions::new(LimitsHandle::new(HttpLimits {
            sessions_per_caller: 2,
            ..HttpLimits::for_tests()
        })));
        let (first, _transport) = sessions.create_session().await.unwrap();
        assert!(sessions.make_room().await);
        let (second, _transport) = sessions.create_session().await.unwrap();
        assert!(!sessions.make_room().await, "none is abandoned");
        let long_ago = Instant::now().checked_sub(ABANDONED_AFTER * 2).unwrap();
        for activity in sessions.activity().values_mut() {
            activity.last = long_ago;
        }
        let visit = sessions.enter(&first, UseKind::Call).unwrap();
        assert!(sessions.make_room().await);
        assert!(sessions.enter(&first, UseKind::Stream).is_some());
        assert!(sessions.enter(&second, UseKind::Call).is_none(), "it made room");
        drop(visit);
        assert!(sessions.enter("no such session", UseKind::Call).is_none());
        assert_eq!(sessions.count(), 1);
    }
    #[tokio::test]
    async fn idle_sessions_end_by_the_current_limits_unless_a_call_is_running() {
        let limits = LimitsHandle::new(HttpLimits::for_tests());
        let sessions = Arc::new(Sessions::new(Arc::clone(&limits)));
        let (called, _transport) = sessions.create_session().await.unwrap();
        let (heard, _transport) = sessions.create_session().await.unwrap();
        let _call = sessions.enter(&called, UseKind::Call).unwrap();
        let _stream = sessions.enter(&heard, UseKind::Stream).unwrap();
        assert!(sessions.idle().is_empty());
        limits.set(HttpLimits {
            session_idle: Duration::ZERO,
            ..HttpLimits::for_tests()
        });
        assert_eq!(sessions.idle(), [heard]);
        sessions.end_idle();
        while sessions.count() > 1 {
            tokio::task::yield_now().await;
        }
        assert!(sessions.has_session(&called).await.unwrap());
    }
}
