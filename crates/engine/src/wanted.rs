//! Tracks the callers interested in an image pull. The pull is aborted when the last one gives up. A caller that will
//! retry stays interested, although it does not wait at this moment.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::Principal;
use crate::sync::lock;

/// The maximum age of an interest: the waiting time of a call, and the pause until the next one.
const LASTS: Duration = Duration::from_secs(180);
/// The maximum number of entries. Beyond it the oldest is dropped. Its caller loses only the progress of the pull.
const MOST: usize = 1024;

#[derive(Debug)]
struct Wish {
    image: String,
    who: Principal,
    until: Instant,
}

/// The callers' interests in images.
#[derive(Debug, Default)]
pub(crate) struct Wanted(Mutex<Vec<Wish>>);

impl Wanted {
    /// Adds or renews a caller's interest in an image.
    pub(crate) fn wish(&self, image: &str, who: &Principal) {
        let mut wishes = lock(&self.0);
        forget(&mut wishes, image, who);
        if wishes.len() >= MOST {
            wishes.remove(0);
        }
        wishes.push(Wish {
            image: image.to_owned(),
            who: who.clone(),
            until: Instant::now() + LASTS,
        });
    }

    /// Ends a caller's interest. Returns true if no other caller is interested in the image.
    pub(crate) fn unwish(&self, image: &str, who: &Principal) -> bool {
        let mut wishes = lock(&self.0);
        forget(&mut wishes, image, who);
        wishes.iter().all(|wish| wish.image != image)
    }
}

/// Removes expired entries and this one.
fn forget(wishes: &mut Vec<Wish>, image: &str, who: &Principal) {
    let now = Instant::now();
    wishes.retain(|wish| wish.until > now && !(wish.image == image && wish.who == *who));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_who_wants_an_image_is_told_so_and_wishes_do_not_last() {
        let wanted = Wanted::default();
        let (ann, bob) = (Principal("ann".into()), Principal("bob".into()));
        wanted.wish("a:1", &ann);
        wanted.wish("a:1", &bob);
        assert!(!wanted.unwish("a:1", &bob));
        assert!(!wanted.unwish("a:1", &bob), "ann still does");
        assert!(wanted.unwish("b:1", &bob));
        tokio::time::advance(LASTS).await;
        assert!(wanted.unwish("a:1", &bob), "ann never came again");
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_are_remembered() {
        let wanted = Wanted::default();
        let ann = Principal("ann".into());
        for number in 0..2 * MOST {
            wanted.wish(&number.to_string(), &ann);
        }
        assert_eq!(lock(&wanted.0).len(), MOST);
    }
}
