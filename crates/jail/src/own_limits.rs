//! Limits that somebody else has set for this process, as far as it can live with them.

use rustix::process::{Resource, getrlimit, setrlimit};

/// A stack of this size is enough for whatever the launcher and its forks do.
const STACK: u64 = 8 << 20;

/// Makes a file that may not grow an error instead of a signal that kills, and raises the limit of the stack as far as is
/// allowed. The programs of sandboxes get the default action again, and limits of their own.
pub fn withstand_limits() {
    let _ = crate::sys::signalfd::ignore(libc::SIGXFSZ);
    let mut stack = getrlimit(Resource::Stack);
    if stack.current.is_some_and(|now| now < STACK) {
        // Root may raise both, others the lower one. The stack of a process grows up to what the limit is at that moment.
        let most = stack.maximum.map_or(STACK, |most| most.min(STACK));
        stack.current = Some(STACK);
        stack.maximum = stack.maximum.map(|most| most.max(STACK));
        if setrlimit(Resource::Stack, stack).is_err() {
            stack = getrlimit(Resource::Stack);
            stack.current = Some(most);
            let _ = setrlimit(Resource::Stack, stack);
        }
    }
}
