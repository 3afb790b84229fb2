//! Sinks for records that outlive the engine.

use std::sync::Arc;

use sandcell_engine::{Auditor, HistorySink, Observers, SecurityEvent};

use crate::config::Settings;

/// The kind of process whose executions are recorded.
#[derive(Debug, Clone, Copy)]
enum ProcessKind {
    Command,
    Server,
}

/// Returns the observers of a command's executions. An observer that fails is reported and left out; code runs
/// nevertheless.
pub(crate) fn command_observers(settings: &Settings) -> Observers {
    Observers {
        history_sink: history_sink(settings, ProcessKind::Command),
        auditor: None,
    }
}

/// Returns the observers of a server's executions and security events.
pub(crate) fn server_observers(settings: &Settings) -> Observers {
    Observers {
        history_sink: history_sink(settings, ProcessKind::Server),
        auditor: auditor(settings),
    }
}

/// Records an event of a command. A failure to record it is reported; the event itself stands.
pub(crate) fn note(settings: &Settings, event: SecurityEvent) {
    #[cfg(unix)]
    if let Some(audit) = &settings.audit
        && let Err(error) = sandcell_audit::AuditFile::new(audit.file.clone(), audit.size.as_bytes()).note(&event)
    {
        let cause = std::error::Error::source(&error)
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!("{error}: {cause}. {} is not in it", event.kind.as_str());
    }
    #[cfg(not(unix))]
    let _unused = (settings, event);
}

#[cfg(all(unix, feature = "history"))]
fn history_sink(settings: &Settings, kind: ProcessKind) -> Option<Arc<dyn HistorySink>> {
    use sandcell_history::{Database, Retention, Writer, WriterRole};
    let role = match kind {
        ProcessKind::Command => WriterRole::Command,
        ProcessKind::Server => WriterRole::Server,
    };
    let history = settings.history.as_ref()?;
    let retention = Retention {
        rows: history.rows,
        age: history.age,
        bytes: history.size.as_bytes(),
    };
    match Writer::start(Database::file(&history.folder), retention, role) {
        Ok(writer) => Some(Arc::new(writer)),
        Err(error) => {
            tracing::warn!(%error, "the history is in memory only: its thread could not be started");
            None
        }
    }
}

#[cfg(not(all(unix, feature = "history")))]
fn history_sink(_settings: &Settings, _kind: ProcessKind) -> Option<Arc<dyn HistorySink>> {
    None
}

#[cfg(unix)]
fn auditor(settings: &Settings) -> Option<Arc<dyn Auditor>> {
    use sandcell_audit::{AuditFile, AuditWriter};
    let audit = settings.audit.as_ref()?;
    match AuditWriter::start(AuditFile::new(audit.file.clone(), audit.size.as_bytes())) {
        Ok(writer) => Some(Arc::new(writer)),
        Err(error) => {
            tracing::error!(%error, "the audit log is not written: its thread could not be started");
            None
        }
    }
}

#[cfg(not(unix))]
fn auditor(_settings: &Settings) -> Option<Arc<dyn Auditor>> {
    None
}
