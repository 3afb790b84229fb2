//! Names and users of containers that no other container has.

/// The host user ids of sandboxes. Each sandbox has a different one, so the kernel's per-user counts (watches, pipes,
/// queues) are per sandbox. They lie below 65,536, since rootless daemons map no more.
const FIRST_USER: u32 = 30_000;
const USER_COUNT: u32 = 30_000;

/// Returns the user id of the n-th sandbox.
pub(crate) fn user(number: u32) -> u32 {
    FIRST_USER + number % USER_COUNT
}

/// Returns a random number to count users from.
pub(crate) fn first_number() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness two servers may start with the same user ids and share some.
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes)
}

/// Returns a unique part of a name.
pub(crate) fn token() -> String {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        // A name that is in use is refused, so a collision is harmless.
        Err(_) => format!("{}", std::process::id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_differ_and_stay_in_their_range() {
        assert_eq!(
            (user(0), user(29_999), user(30_000), user(u32::MAX)),
            (30_000, 59_999, 30_000, 47_295)
        );
    }
}
