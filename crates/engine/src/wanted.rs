//! Who wants which image that is being brought here, so that one caller who gives up ends it only when nobody else wants it:
//! somebody who was told to come again does, though he does not wait at this moment.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::Principal;
use crate::sync::lock;

/// So long after it was last said a wish counts: as long as a call waits, and the time until the next one.
const LASTS: Duration = Duration::from_secs(180);
/// Wishes that are remembered. Beyond that the oldest are forgotten, whose owners lose nothing but what was brought so far.
const MOST: usize = 1024;

#[derive(Debug)]
struct Wish {
    image: String,
    who: Principal,
    until: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Wanted(Mutex<Vec<Wish>>);

impl Wanted {
    /// Somebody wants an image.
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

    /// He has it, or gives it up; whether nobody else wants it.
    pub(crate) fn unwish(&self, image: &str, who: &Principal) -> bool {
        let mut wishes = lock(&self.0);
        forget(&mut wishes, image, who);
        wishes.iter().all(|wish| wish.image != image)
    }
}

/// What is over, and this one.
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
