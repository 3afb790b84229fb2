//! Judges whether the launcher hangs. A launcher that is slow on a loaded machine must not count as hanging: with it
//! end the sandboxes of all callers.
//!
//! If an answer is due and no message arrives, the server sends a ping. The loop that makes sandboxes answers it, so
//! the answer proves that the loop runs. Then the server examines the launcher in `/proc`. Time is counted in looks:
//! fewer are taken on a machine that slept or is too busy for the server itself.
//!
//! There are two judgements. A launcher that only waits is *doubted* first. Another one is started for new sandboxes,
//! and the existing sandboxes go on, since their output does not pass through the launcher. A launcher is *stuck*, and
//! killed, if it is stopped (by a signal from outside), or if it has not run for long.

use std::time::Duration;

use sandcell_jail::launcher::Activity;

/// The interval between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The number of silent looks before a ping: half a second.
const PING_AFTER: u32 = 2;
/// The number of silent looks before an examination: a second.
const EXAMINE_AFTER: u32 = 4;
/// A launcher that this many looks in a row find stopped is stuck.
const STOPPED_LOOKS: u32 = 2;
/// A launcher that this many looks in a row find waiting and inactive is doubted: before two seconds are over.
const DOUBT_LOOKS: u32 = 3;
/// A launcher that this many looks in a row find waiting and inactive is stuck: ten seconds.
const STUCK_LOOKS: u32 = 40;
/// A launcher that runs silently is doubted after this many looks: five seconds.
const DOUBT_SILENCE: u32 = 20;
/// A launcher that runs silently is stuck after this many looks: a minute.
const STUCK_SILENCE: u32 = 240;

/// The result of one look at the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// No action.
    Fine,
    /// Send a ping.
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
    /// The number of looks in a row that found no activity.
    same: u32,
}

impl Liveness {
    /// Records one look. `heard` is true if a message arrived since the last one.
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

    /// Returns the first judgement of each kind, with the number of the silent look that caused it.
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
    fn a_launcher_that_never_runs_is_suspected_early_and_killed_late() {
        let found = judge(|_| Some(Activity::Waits { runs: 7 }), 60);
        assert_eq!(
            found,
            [(2, Judgement::Ask), (7, Judgement::Doubt), (43, Judgement::Stuck)]
        );
    }

    #[test]
    fn a_slow_launcher_is_not_killed_within_a_minute() {
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
    fn an_answer_from_the_launcher_clears_all_suspicion() {
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
