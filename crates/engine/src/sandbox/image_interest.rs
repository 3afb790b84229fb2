//! Tracks the callers interested in an image pull. The pull is aborted when the last one gives up. A caller that will
//! retry stays interested, although it does not wait at this moment.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::Principal;
use crate::api::sync::lock;

/// The maximum age of an interest: the waiting time of a call, and the pause until the next one.
const MAX_INTEREST_AGE: Duration = Duration::from_secs(180);
/// The maximum number of entries. Beyond it the oldest is dropped. Its caller loses only the progress of the pull.
const MAX_INTERESTS: usize = 1024;

#[derive(Debug)]
struct Interest {
    image: String,
    principal: Principal,
    until: Instant,
}

/// The callers' interests in images.
#[derive(Debug, Default)]
pub(crate) struct ImageInterests(Mutex<Vec<Interest>>);

impl ImageInterests {
    /// Adds or renews a caller's interest in an image.
    pub(crate) fn add(&self, image: &str, principal: &Principal) {
        let mut interests = lock(&self.0);
        forget(&mut interests, image, principal);
        if interests.len() >= MAX_INTERESTS {
            interests.remove(0);
        }
        interests.push(Interest {
            image: image.to_owned(),
            principal: principal.clone(),
            until: Instant::now() + MAX_INTEREST_AGE,
        });
    }

    /// Ends a caller's interest. Returns true if no other caller is interested in the image.
    pub(crate) fn remove(&self, image: &str, principal: &Principal) -> bool {
        let mut interests = lock(&self.0);
        forget(&mut interests, image, principal);
        interests.iter().all(|interest| interest.image != image)
    }
}

/// Removes expired entries and this one.
fn forget(interests: &mut Vec<Interest>, image: &str, principal: &Principal) {
    let now = Instant::now();
    interests.retain(|interest| interest.until > now && !(interest.image == image && interest.principal == *principal));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_interested_caller_is_reported_and_interests_expire() {
        let interests = ImageInterests::default();
        let (ann, bob) = (Principal("ann".into()), Principal("bob".into()));
        interests.add("a:1", &ann);
        interests.add("a:1", &bob);
        assert!(!interests.remove("a:1", &bob));
        assert!(!interests.remove("a:1", &bob), "ann still does");
        assert!(interests.remove("b:1", &bob));
        tokio::time::advance(MAX_INTEREST_AGE).await;
        assert!(interests.remove("a:1", &bob), "ann never came again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_interests_is_bounded() {
        let interests = ImageInterests::default();
        let ann = Principal("ann".into());
        for number in 0..2 * MAX_INTERESTS {
            interests.add(&number.to_string(), &ann);
        }
        assert_eq!(lock(&interests.0).len(), MAX_INTERESTS);
    }
}
