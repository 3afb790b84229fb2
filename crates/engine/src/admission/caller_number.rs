//! Numbers of callers, for back ends, which do not know principals.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Principal;

/// The number of the first caller, and of sandboxes without a reported number.
const FIRST_CALLER_NUMBER: u64 = 0;

/// The callers so far.
#[derive(Debug, Default)]
pub(crate) struct CallerNumbers {
    first: OnceLock<Principal>,
    several: AtomicBool,
    numbers: RandomState,
}

impl CallerNumbers {
    /// Returns the number of this caller. None while there is only one caller: then back ends need no numbers.
    pub(crate) fn number(&self, principal: &Principal) -> Option<u64> {
        if self.first.get_or_init(|| principal.clone()) != principal {
            self.several.store(true, Ordering::Relaxed);
            // One in 2^63 callers has the number of another. The two then only share a machine.
            return Some(self.numbers.hash_one(principal).max(FIRST_CALLER_NUMBER + 1));
        }
        self.several.load(Ordering::Relaxed).then_some(FIRST_CALLER_NUMBER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_caller_has_no_number_until_there_is_another_one() {
        let callers = CallerNumbers::default();
        let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| Principal(name.into()));
        assert_eq!([callers.number(&ann), callers.number(&ann)], [None, None]);
        let bobs = callers.number(&bob);
        assert!(bobs.is_some_and(|number| number != FIRST_CALLER_NUMBER));
        assert_ne!(callers.number(&eve), bobs);
        assert_eq!(
            [callers.number(&bob), callers.number(&ann)],
            [bobs, Some(FIRST_CALLER_NUMBER)]
        );
    }
}
