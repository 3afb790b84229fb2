//! Judges whether the launcher hangs. A launcher that is slow on a loaded machine must not be taken for one that hangs: with it
//! go the sandboxes of all callers.
//!
//! While an answer is due and nothing at all is heard, it is asked to say anything (the loop that makes sandboxes answers, so
//! the answer proves that it turns) and then looked at in `/proc`. Time is counted in looks: on a machine that is too busy for the
//! server itself, or that slept, fewer are taken.
//!
//! Two judgements: a launcher that only waits is *doubted* first. Another one is started for what is to be made, and
//! the sandboxes that it holds go on, since what they say does not pass through it. It is *stuck*, and killed, when it is
//! stopped (somebody has done that), or when it has not run for long.

use std::time::Duration;

use sandcell_jail::launcher::Activity;

/// Between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// After so many silent looks it is asked to say anything: half a second.
const PING_AFTER: u32 = 2;
/// After so many it is looked at: a second.
const EXAMINE_AFTER: u32 = 4;
/// In so many looks in a row a stopped one was stopped.
const STOPPED_LOOKS: u32 = 2;
/// So many looks in a row find it waiting, and it has not run between them: it is doubted before two seconds are over.
const DOUBT_LOOKS: u32 = 3;
/// The same until it is given up: ten seconds.
const STUCK_LOOKS: u32 = 40;
/// One that runs without a word is doubted after five seconds.
const DOUBT_SILENCE: u32 = 20;
/// And given up after a minute.
const STUCK_SILENCE: u32 = 240;

/// The result of one look at the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Nothing.
    Fine,
    /// It is to be asked.
    Ask,
    /// It may hang.
    Doubt,
    /// It hangs.
    Stuck,
}

/// The observations since the launcher's last message.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    silent: u32,
    last: Option<Activity>,
    /// Looks in a row that found it as it was before.
    same: u32,
}

impl Liveness {
    /// One look. `heard` says whether it said anything since the last one.
    pub(super) fn look(&mut self, heard: bool, activity: impl FnOnce() -> Option<Activity>) -> Judgement {
        if heard {
            *self = Self::default();
            return Judgement::Fine;
        }
        self.silent = self.silent.saturating_add(1);
        if self.silent == PING_AFTER {
            return Judgement::Ask;
        }
        if self.silent < EXAMINE_AFTER {
            return Judgement::Fine;
        }
        let found = activity();
        let rests = matches!(found, Some(Activity::Stopped | Activity::Waits { .. }));
        self.same = if rests && self.last == found {
            self.same.saturating_add(1)
        } else {
            u32::from(rests)
        };
        self.last = found;
        if (found == Some(Activity::Stopped) && self.same >= STOPPED_LOOKS)
            || self.same >= STUCK_LOOKS
            || self.silent >= STUCK_SILENCE
        {
            Judgement::Stuck
        } else if (found != Some(Activity::Stopped) && self.same > DOUBT_LOOKS) || self.silent >= DOUBT_SILENCE {
            Judgement::Doubt
        } else {
            Judgement::Fine
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first judgement of each kind, with the number of the silent look that gave it.
    fn judge(activity: impl Fn(u32) -> Option<Activity>, looks: u32) -> Vec<(u32, Judgement)> {
        let mut liveness = Liveness::default();
        let mut found: Vec<(u32, Judgement)> = Vec::new();
        for number in 1..=looks {
            let judgement = liveness.look(false, || activity(number));
            if judgement != Judgement::Fine && found.iter().all(|(_, earlier)| *earlier != judgement) {
                found.push((number, judgement));
            }
        }
        found
    }

    #[test]
    fn a_stopped_launcher_is_stuck_before_two_seconds_are_over() {
        let found = judge(|_| Some(Activity::Stopped), 8);
        assert_eq!(found, [(2, Judgement::Ask), (5, Judgement::Stuck)]);
    }

    #[test]
    fn one_that_waits_without_running_is_doubted_soon_and_killed_late() {
        let found = judge(|_| Some(Activity::Waits { runs: 7 }), 60);
        assert_eq!(
            found,
            [(2, Judgement::Ask), (7, Judgement::Doubt), (43, Judgement::Stuck)]
        );
    }

    #[test]
    fn one_that_is_slow_is_not_killed_before_a_minute() {
        for slow in [
            |number: u32| Some(Activity::Waits { runs: number.into() }),
            |_| Some(Activity::Runs),
            |_| None,
        ] {
            let found = judge(slow, 239);
            assert_eq!(found, [(2, Judgement::Ask), (20, Judgement::Doubt)]);
        }
    }

    #[test]
    fn a_word_from_it_settles_everything() {
        let mut liveness = Liveness::default();
        for _ in 0..100 {
            assert_eq!(liveness.look(false, || None), Judgement::Fine);
            assert_eq!(liveness.look(false, || None), Judgement::Ask);
            assert_eq!(liveness.look(false, || Some(Activity::Stopped)), Judgement::Fine);
            assert_eq!(liveness.look(false, || Some(Activity::Stopped)), Judgement::Fine);
            assert_eq!(liveness.look(true, || Some(Activity::Stopped)), Judgement::Fine);
        }
    }
}
