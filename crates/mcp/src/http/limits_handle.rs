//! The limits of callers. They may change while the server runs. Each check uses the current limits. A caller above a
//! lowered limit keeps its resources, and gets no more.

use std::sync::{Arc, Mutex, PoisonError};

use super::HttpLimits;

/// The current limits.
#[derive(Debug)]
pub(crate) struct LimitsHandle(Mutex<Arc<HttpLimits>>);

impl LimitsHandle {
    pub(crate) fn new(limits: HttpLimits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Arc::new(limits))))
    }

    pub(crate) fn get(&self) -> Arc<HttpLimits> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, limits: HttpLimits) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }
}

/// A handle that changes the limits from outside.
#[derive(Debug, Clone)]
pub struct HttpControl(pub(super) Arc<LimitsHandle>);

impl HttpControl {
    /// Replaces the limits.
    pub fn change(&self, limits: HttpLimits) {
        self.0.set(limits);
    }
}
