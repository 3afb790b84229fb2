//! The back end e2b: its settings, and the languages of its sandboxes.

use std::sync::Arc;

use sandcell_backends::e2b::{self, Debug, E2bBackend, E2bConfig, Internet};
use sandcell_sandbox::{Backend, Failure, Language};

use super::select::BackendContext;

/// Makes the back end, and checks the key with the service.
pub(super) async fn make(context: BackendContext<'_>) -> Result<Arc<dyn Backend>, Failure> {
    let own = context.settings.e2b.clone();
    let config = E2bConfig {
        key: own.key,
        domain: own.domain,
        api_url: own.api_url,
        sandbox_url: own.sandbox_url,
        debug: if own.debug { Debug::On } else { Debug::Off },
        template: own.template,
        lifetime: own.lifetime,
        level: own.level,
        internet: if own.internet { Internet::Open } else { Internet::Closed },
    };
    Ok(E2bBackend::start(config).await?)
}

/// Returns the languages of its sandboxes.
pub(super) fn languages() -> Vec<Arc<dyn Language>> {
    e2b::languages(sandcell_languages::python::analyse)
}
