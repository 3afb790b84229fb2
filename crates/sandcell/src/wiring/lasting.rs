//! Who keeps what the engine does for longer than it lives.

use sandcell_engine::Witnesses;

use crate::config::Settings;

/// Those that the settings ask for. One that cannot be had is told and left out: code runs all the same.
pub(crate) fn witnesses(settings: &Settings) -> Witnesses {
    Witnesses {
        keeper: keeper(settings),
        auditor: None,
    }
}

#[cfg(all(unix, feature = "history"))]
fn keeper(settings: &Settings) -> Option<std::sync::Arc<dyn sandcell_engine::Keeper>> {
    use sandcell_history::{Database, Retention, Writer};
    let history = settings.history.as_ref()?;
    let keep = Retention {
        rows: history.rows,
        age: history.age,
        bytes: history.size.as_bytes(),
    };
    match Writer::start(Database::file(&history.folder), keep) {
        Ok(writer) => Some(std::sync::Arc::new(writer)),
        Err(error) => {
            tracing::warn!(%error, "the history is kept in memory only: its thread could not be started");
            None
        }
    }
}

#[cfg(not(all(unix, feature = "history")))]
fn keeper(_settings: &Settings) -> Option<std::sync::Arc<dyn sandcell_engine::Keeper>> {
    None
}
