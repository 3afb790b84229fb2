//! How much callers may have, as it may change while the server runs: each look is at what is in force then. A caller that
//! has more than that already keeps it, and gets nothing more.

use std::sync::{Arc, Mutex, PoisonError};

use super::HttpLimits;

/// What is in force.
#[derive(Debug)]
pub(crate) struct LiveLimits(Mutex<Arc<HttpLimits>>);

impl LiveLimits {
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

/// Changes them from outside.
#[derive(Debug, Clone)]
pub struct HttpControl(pub(super) Arc<LiveLimits>);

impl HttpControl {
    /// Puts other limits in force.
    pub fn change(&self, limits: HttpLimits) {
        self.0.set(limits);
    }
}
