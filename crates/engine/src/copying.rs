//! When sessions may copy themselves in the pauses between cells, so that these copies together leave the processors to those who wait.
//! Without such a copy a cell that could end its interpreter waits for one; nothing is said about that here.
//!
//! Each session bounds what its own copies take, as if it were alone. With sixty of them at work that was all that the machine had: calls
//! took six times as long. The decision taken here: each session in turn. With so many at work that a turn comes once in two seconds, each may
//! copy itself that often, whatever the others do, and sooner than that where nobody calls it until then.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::floor::{GIVE_WAY, processors};
use crate::sync::lock;

/// What a copy takes, with what it makes slower: the fork, the pages that are copied afterwards, the end of the copy before.
const COST: Duration = Duration::from_millis(6);
/// Copies may take one of so many parts of the processors.
const SHARE: u32 = 10;
/// The share of one processor that snapshots of one session may use while its cells are harmless, in hundredths.
const OWN: u32 = 3;
/// Turns that a session which took none for a while may take one right after the other: scripts are short.
const AT_ONCE: u32 = 4;
/// The longest that a session waits for its turn while nobody calls it.
const LONGEST: Duration = Duration::from_secs(30);
/// Sessions are counted for so long: those that are called less often than that are not all seen.
const PERIOD: Duration = Duration::from_secs(4);

/// Whose turn it is.
#[derive(Debug)]
pub(crate) struct Copying {
    state: Mutex<State>,
    /// How long a turn is.
    turn: Duration,
    /// So many sessions keep within the share by themselves.
    few: u32,
}

#[derive(Debug)]
struct State {
    /// The period that is counted, and when it began.
    period: u64,
    began: Instant,
    /// Sessions that were called in it so far, and in the one before.
    now: u32,
    before: u32,
}

impl State {
    fn go_on(&mut self, now: Instant) {
        let over = now.saturating_duration_since(self.began).as_secs() / PERIOD.as_secs();
        if over > 0 {
            self.before = if over == 1 { self.now } else { 0 };
            self.now = 0;
            self.period += over;
            self.began += PERIOD.saturating_mul(u32::try_from(over).unwrap_or(u32::MAX));
        }
    }
}

/// The turns of one session.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The last period in which it was counted.
    period: Option<u64>,
    /// When its next one is, if it takes each as soon as it can.
    next: Option<Instant>,
    /// The one that it waits for since its last cell, unless another cell comes before.
    waits: Option<Instant>,
}

impl Turns {
    fn take(&mut self, at: Instant, interval: Duration) {
        self.next = Some(self.next.map_or(at, |next| next.max(at)) + interval);
    }
}

impl Copying {
    pub(crate) fn new() -> Self {
        Self::of(u32::try_from(processors()).unwrap_or(u32::MAX))
    }

    fn of(processors: u32) -> Self {
        let state = State {
            period: 0,
            began: Instant::now(),
            now: 0,
            before: 0,
        };
        Self {
            state: Mutex::new(state),
            turn: COST * SHARE / processors.max(1),
            few: processors.saturating_mul(100) / (SHARE * OWN),
        }
    }

    /// For how long after its next cell a session leaves the processors to others before it copies itself; `crowded` where more want to run
    /// than these have time for.
    pub(crate) fn wait(&self, turns: &mut Turns, crowded: bool, now: Instant) -> Duration {
        let sessions = {
            let mut state = lock(&self.state);
            state.go_on(now);
            if turns.period != Some(state.period) {
                turns.period = Some(state.period);
                state.now = state.now.saturating_add(1);
            }
            state.now.max(state.before)
        };
        if sessions <= self.few {
            (turns.next, turns.waits) = (None, None);
            return if crowded { GIVE_WAY } else { Duration::ZERO };
        }
        let interval = self.turn.saturating_mul(sessions);
        if let Some(at) = turns.waits.take()
            && at <= now
        {
            turns.take(at, interval);
        }
        // Turns that were long when there were more sessions are not waited for.
        turns.next = turns.next.map(|next| next.min(now + interval.saturating_mul(AT_ONCE)));
        let ahead = interval.saturating_mul(AT_ONCE - 1);
        let wait = turns.next.map_or(Duration::ZERO, |next| {
            next.saturating_duration_since(now).saturating_sub(ahead)
        });
        let wait = if crowded { wait.max(GIVE_WAY) } else { wait }.min(LONGEST);
        if wait.is_zero() {
            turns.take(now, interval);
        } else {
            turns.waits = Some(now + wait);
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Play {
        copying: Copying,
        now: Instant,
        sessions: Vec<(Turns, Option<Instant>, Vec<Instant>)>,
    }

    impl Play {
        fn new(sessions: usize) -> Self {
            Self {
                copying: Copying::of(2),
                now: Instant::now(),
                sessions: (0..sessions).map(|_| (Turns::default(), None, Vec::new())).collect(),
            }
        }

        /// A call of a session, which makes a copy when it has waited for as long as it was told.
        fn call(&mut self, session: usize) {
            let (turns, due, made) = &mut self.sessions[session];
            made.extend(due.take_if(|due| *due <= self.now));
            *due = Some(self.now + self.copying.wait(turns, false, self.now));
        }

        /// All are called in turn, one each so many milliseconds, for so many seconds.
        fn go_round(&mut self, apart: u64, seconds: u64) {
            for call in 0..usize::try_from(seconds * 1000 / apart).unwrap() {
                self.now += Duration::from_millis(apart);
                self.call(call % self.sessions.len());
            }
        }

        fn copies(&self) -> usize {
            self.sessions.iter().map(|(_, _, made)| made.len()).sum()
        }
    }

    #[test]
    fn a_tenth_of_the_processors_goes_into_copies_however_many_sessions_there_are_and_however_often_they_are_called() {
        for (sessions, apart, most) in [
            (8, 1, 3400),
            (64, 1, 3400),
            (64, 20, 3400),
            (1000, 1, 3400),
            (1000, 6, 5100),
        ] {
            let mut play = Play::new(sessions);
            play.go_round(apart, 100);
            let before = play.copies();
            play.go_round(apart, 100);
            // 0.2 seconds in each.
            let copies = play.copies() - before;
            assert!(
                (2500..=most).contains(&copies),
                "{sessions} sessions, {apart} ms: {copies} copies"
            );
        }
    }

    #[test]
    fn what_few_sessions_want_is_never_too_much() {
        for (sessions, apart) in [(1, 1), (6, 1), (3, 500), (16, 60)] {
            let mut play = Play::new(sessions);
            play.go_round(apart, 60);
            let calls = usize::try_from(60_000 / apart).unwrap();
            assert!(play.copies() + sessions >= calls, "{sessions}: {}", play.copies());
        }
    }

    #[test]
    fn nobody_is_put_off_for_ever_by_others_that_are_called_all_the_time() {
        let mut play = Play::new(65);
        for second in 0..60 {
            for call in 0..2500 {
                play.now += Duration::from_micros(400);
                play.call(call % 64);
            }
            play.call(64);
            assert!(
                second < 4 || play.sessions[64].2.len() >= second / 3,
                "after {second} s"
            );
        }
        for (_, _, made) in &play.sessions {
            let longest = made.windows(2).map(|two| two[1] - two[0]).max().unwrap();
            assert!(longest < Duration::from_secs(4), "{longest:?}");
        }
    }

    #[test]
    fn turns_are_short_again_soon_after_many_sessions_have_become_few() {
        let mut play = Play::new(1000);
        play.go_round(1, 60);
        play.sessions.truncate(10);
        play.go_round(1, 10);
        let before = play.copies();
        play.go_round(1, 10);
        let copies = play.copies() - before;
        assert!(copies >= 300, "{copies} copies of ten sessions in ten seconds");
    }

    #[test]
    fn first_calls_that_come_one_right_after_the_other_have_a_copy_each_however_many_sessions_there_are() {
        let mut play = Play::new(100);
        for session in 0..100 {
            for _ in 0..5 {
                play.now += Duration::from_millis(1);
                play.call(session);
            }
        }
        assert!(play.sessions.iter().all(|(_, _, made)| made.len() == 4));
    }

    #[test]
    fn in_a_crowd_all_wait_and_after_it_none_does() {
        for sessions in [1, 20] {
            let copying = Copying::of(2);
            let mut all: Vec<_> = (0..sessions).map(|_| Turns::default()).collect();
            let now = Instant::now();
            assert!(all.iter_mut().all(|turns| copying.wait(turns, true, now) == GIVE_WAY));
            let later = now + Duration::from_secs(1);
            assert!(all.iter_mut().all(|turns| copying.wait(turns, false, later).is_zero()));
        }
    }
}
