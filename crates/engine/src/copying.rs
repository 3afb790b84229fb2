//! How much of the processors goes into copies that sessions keep of themselves, all of them together.
//!
//! Each session bounds what its own copies take, as if it were alone. With sixty of them at work that was all that the machine had: calls
//! took six times as long. The decision taken here: copies may take a small share of the processors; beyond it sessions keep one
//! only when nobody has called them for a while, the longer the more of them there are.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::floor::{GIVE_WAY, processors};
use crate::sync::lock;

/// What a copy takes, with what it makes slower: the fork, the pages that are copied afterwards, the end of the copy before.
const COST: Duration = Duration::from_millis(6);
/// What all copies together may take, in parts of the processors.
const SHARE: f64 = 0.1;
/// What may be taken ahead, at most.
const ADVANCE: Duration = Duration::from_millis(200);
/// What a session can make at once and in a second: its own bounds, beyond which it is not believed.
const AT_ONCE: f64 = 20.0;
const A_SECOND: f64 = 15.0;
/// The least time that a copy is put off by.
const LEAST: Duration = Duration::from_millis(70);

/// What copies may still take.
#[derive(Debug)]
pub(crate) struct Copying {
    state: Mutex<State>,
    /// Seconds of processor time that are earned in a second.
    rate: f64,
}

#[derive(Debug)]
struct State {
    /// In seconds of processor time.
    left: f64,
    /// Copies that were put off in the last second or so.
    put_off: f64,
    since: Instant,
}

/// What one session has been charged for.
#[derive(Debug)]
pub(crate) struct Charged {
    /// The copies that it was known to have made when this was looked at last.
    copies: u64,
    /// Whether it was charged for one after its last cell, and after the one before. Only the latter is known by now to have been made or not:
    /// what a session says after a cell is read with the next one.
    last: bool,
    before: bool,
    /// Whether it has made the one that it was charged for, when that was looked at last. One that makes none is not charged.
    makes: bool,
    /// How many more it is believed to have made.
    believed: f64,
    since: Instant,
}

impl Charged {
    pub(crate) fn new() -> Self {
        Self {
            copies: 0,
            last: false,
            before: false,
            makes: true,
            believed: AT_ONCE,
            since: Instant::now(),
        }
    }

    /// Whether it was charged for a copy that it has not made.
    fn is_given_back(&mut self, copies: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.believed = (self.believed + passed * A_SECOND).min(AT_ONCE);
        self.since = now;
        let made = copies > self.copies && self.believed >= 1.0;
        self.copies = copies;
        let charged = std::mem::replace(&mut self.before, std::mem::take(&mut self.last));
        if made {
            self.believed -= 1.0;
        }
        if charged || made {
            self.makes = made;
        }
        charged && !made
    }
}

impl Copying {
    pub(crate) fn new() -> Self {
        Self::of(u32::try_from(processors()).unwrap_or(u32::MAX))
    }

    fn of(processors: u32) -> Self {
        let state = State {
            left: ADVANCE.as_secs_f64(),
            put_off: 0.0,
            since: Instant::now(),
        };
        Self {
            state: Mutex::new(state),
            rate: SHARE * f64::from(processors),
        }
    }

    /// How long a session that has made so many copies waits with the next one after its next cell, where more want to run than the processors
    /// have time for, and where not. Asked before each cell: whether it made one shows the next time but one, and what was not done costs nothing.
    pub(crate) fn wait(&self, charged: &mut Charged, copies: u64, crowded: bool, now: Instant) -> Duration {
        let mut state = lock(&self.state);
        let passed = now.saturating_duration_since(state.since).as_secs_f64();
        let given_back = if charged.is_given_back(copies, now) {
            COST
        } else {
            Duration::ZERO
        };
        state.left = (state.left + passed * self.rate + given_back.as_secs_f64()).min(ADVANCE.as_secs_f64());
        state.put_off *= (-passed).exp();
        state.since = now;
        if crowded {
            return GIVE_WAY;
        }
        if state.left < 0.0 {
            // Those that are not called again meanwhile make theirs one after the other.
            state.put_off += 1.0;
            let turn = Duration::try_from_secs_f64(state.put_off * COST.as_secs_f64() / self.rate);
            return turn.unwrap_or(GIVE_WAY).clamp(LEAST, GIVE_WAY);
        }
        if charged.makes {
            charged.last = true;
            state.left -= COST.as_secs_f64();
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of so many sessions, one each so many milliseconds, and how many of them were followed by a copy.
    fn copies(sessions: usize, apart: u64, calls: usize) -> usize {
        let copying = Copying::of(2);
        let mut each: Vec<_> = (0..sessions).map(|_| (Charged::new(), 0, 0)).collect();
        let (mut now, mut all) = (Instant::now(), 0);
        for call in 0..calls {
            now += Duration::from_millis(apart);
            let (charged, known, made) = &mut each[call % sessions];
            let may = copying.wait(charged, *known, false, now).is_zero();
            // What was made after the cell before is heard of with this one.
            *known = *made;
            *made += u64::from(may);
            all += usize::from(may);
        }
        all
    }

    #[test]
    fn a_tenth_of_the_processors_goes_into_copies_however_many_sessions_want_one() {
        // Of ten seconds of two processors, and the advance.
        for sessions in [100, 1000] {
            let copies = copies(sessions, 1, 10_000);
            assert!((360..=375).contains(&copies), "{sessions} sessions: {copies} copies");
        }
    }

    #[test]
    fn what_few_sessions_want_is_never_too_much() {
        assert_eq!(copies(1, 100, 1000), 1000);
        assert_eq!(copies(3, 40, 1000), 1000);
    }

    #[test]
    fn a_session_that_boasts_of_copies_takes_no_more_than_one_can_make() {
        let copying = Copying::of(2);
        let mut boasting = Charged::new();
        let mut now = Instant::now();
        for call in 0..10_000 {
            now += Duration::from_millis(1);
            copying.wait(&mut boasting, call, false, now);
        }
        assert!(copying.wait(&mut Charged::new(), 0, false, now).is_zero());
    }

    #[test]
    fn sessions_that_make_none_take_nothing_from_others() {
        let copying = Copying::of(2);
        let mut now = Instant::now();
        let mut each: Vec<Charged> = (0..10).map(|_| Charged::new()).collect();
        for call in 0..10_000 {
            now += Duration::from_millis(1);
            assert!(copying.wait(&mut each[call % 10], 0, false, now).is_zero());
        }
    }

    #[test]
    fn after_a_burst_all_make_theirs_one_after_the_other_and_under_load_none_is_in_the_way() {
        let copying = Copying::of(2);
        let mut now = Instant::now();
        let burst: Vec<_> = (0..90)
            .map(|_| copying.wait(&mut Charged::new(), 0, false, now))
            .collect();
        assert_eq!(burst.iter().filter(|wait| wait.is_zero()).count(), 34);
        assert!(burst.is_sorted(), "{burst:?}");
        assert_eq!(burst[89].as_millis(), 1680, "56 of 6 ms in a tenth of two processors");
        let mut each: Vec<Charged> = (0..64).map(|_| Charged::new()).collect();
        let mut put_off = Vec::new();
        for call in 0..10_000 {
            now += Duration::from_micros(400);
            let wait = copying.wait(&mut each[call % 64], 0, false, now);
            put_off.extend((!wait.is_zero()).then_some(wait));
        }
        // Each is called again after 26 ms.
        assert!(put_off.iter().all(|wait| *wait >= LEAST), "{put_off:?}");
    }
}
