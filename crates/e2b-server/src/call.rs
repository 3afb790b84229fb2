//! A call into a sandbox.

use std::sync::Arc;

use crate::State;
use crate::registry::Sandbox;

/// The sandbox of a request, and the server.
#[derive(Clone)]
pub(crate) struct InSandbox {
    pub(crate) state: Arc<State>,
    pub(crate) sandbox: Arc<Sandbox>,
}
