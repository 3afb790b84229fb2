//! The one way this crate takes a lock, and what may be replaced while others look at it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Takes the lock. Every critical section here leaves its data whole at each step, so a panic elsewhere while it
/// was held is no reason to stop serving others.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that may be replaced as a whole. Who has it in hand keeps what it was.
#[derive(Debug)]
pub(crate) struct Live<T>(Mutex<Arc<T>>);

impl<T> Live<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Arc::new(value)))
    }

    pub(crate) fn get(&self) -> Arc<T> {
        lock(&self.0).clone()
    }

    pub(crate) fn set(&self, value: T) {
        *lock(&self.0) = Arc::new(value);
    }
}
