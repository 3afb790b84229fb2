//! The limits that others have set for this program's own processes, the server and the launcher: adapts to them,
//! raises them where allowed, and reports which one is the nearest.

pub mod oom;
pub mod open_files;
pub mod outer;

use rustix::process::{Resource, getrlimit, setrlimit};

/// A stack size that is enough for the launcher and its forks.
const STACK_BYTES: u64 = 8 << 20;

/// Turns a write beyond the file size limit into an error instead of a deadly signal, and raises the stack limit as far
/// as allowed. The programs of sandboxes get the default action again, and separate limits.
pub fn withstand_limits() {
    let _ = crate::sys::signalfd::ignore(libc::SIGXFSZ);
    let mut stack = getrlimit(Resource::Stack);
    if stack.current.is_some_and(|now| now < STACK_BYTES) {
        // Root may raise both limits, others only the soft one. The kernel reads the limit when the stack grows.
        let most = stack.maximum.map_or(STACK_BYTES, |most| most.min(STACK_BYTES));
        stack.current = Some(STACK_BYTES);
        stack.maximum = stack.maximum.map(|most| most.max(STACK_BYTES));
        if setrlimit(Resource::Stack, stack).is_err() {
            stack = getrlimit(Resource::Stack);
            stack.current = Some(most);
            let _ = setrlimit(Resource::Stack, stack);
        }
    }
}
