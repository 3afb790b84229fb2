//! The back end e2b, and the languages of its sandboxes.

use std::sync::Arc;

use sandcell_backends::e2b::{self, E2bBackend, E2bConfig};
use sandcell_sandbox::{Backend, Failure, Language};

use super::select::BackendContext;
use crate::config::{ConfigError, value_in};

/// Makes the back end, and checks the key with the service.
pub(super) async fn make(context: BackendContext<'_>) -> Result<Arc<dyn Backend>, Failure> {
    let config = E2bConfig::read(value_in(&context.settings.values)).map_err(ConfigError::from)?;
    Ok(E2bBackend::start(config).await?)
}

/// Returns the languages of its sandboxes.
pub(super) fn languages() -> Vec<Arc<dyn Language>> {
    e2b::languages(sandcell_languages::python::analyse)
}
