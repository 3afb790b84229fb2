//! Wrong tokens, by source address. Guessing a token is infeasible; the throttle keeps attempts from filling the log
//! and taking the server's time. Senders of a valid token are never slowed down, even if others at the same address
//! are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of wrong tokens of one address that are answered as such, in this time.
const MAX_WRONG_TOKENS: u32 = 30;
const THROTTLE_WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered.
const MAX_ADDRESSES: usize = 4096;

/// The recent senders of wrong tokens.
#[derive(Debug, Default)]
pub(crate) struct AuthThrottle(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl AuthThrottle {
    /// Counts a wrong token; after too many, returns the time to wait.
    pub(crate) fn count_wrong_token(&self, from: IpAddr) -> Result<(), Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&from) {
            all.retain(|_, (since, _)| now.duration_since(*since) < THROTTLE_WINDOW);
            if all.len() >= MAX_ADDRESSES {
                return Err(THROTTLE_WINDOW);
            }
        }
        let (since, count) = all.entry(from).or_insert((now, 0));
        let passed = now.duration_since(*since);
        if passed >= THROTTLE_WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        if *count > MAX_WRONG_TOKENS {
            return Err(THROTTLE_WINDOW.saturating_sub(passed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_attempts_are_counted_for_each_address_in_bounded_memory() {
        let auth_throttle = AuthThrottle::default();
        let one = IpAddr::from([10, 0, 0, 1]);
        assert!((0..MAX_WRONG_TOKENS).all(|_| auth_throttle.count_wrong_token(one).is_ok()));
        assert!(auth_throttle.count_wrong_token(one).is_err());
        assert!(auth_throttle.count_wrong_token(IpAddr::from([10, 0, 0, 2])).is_ok());
        for n in 0..10_000_u32 {
            let _counted = auth_throttle.count_wrong_token(IpAddr::from(n.to_be_bytes()));
        }
        assert!(auth_throttle.0.lock().unwrap().len() <= MAX_ADDRESSES);
    }
}
