//! The only function of this crate that takes a lock, and a value that can be replaced while others use it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Takes the lock. Every critical section in this crate leaves its data consistent at each step, so a poisoned lock is
/// no reason to stop serving other callers.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that can be replaced as a whole. A reader keeps the value that it has.
#[derive(Debug)]
pub(crate) struct Replaceable<T>(Mutex<Arc<T>>);

impl<T> Replaceable<T> {
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
