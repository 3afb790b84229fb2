//! What one caller may have together, over all of its sandboxes, and how much processor time its executions may take in an
//! hour: so that a caller cannot get around the limits of one sandbox by having many.
//!
//! The decision taken here: memory and disk are counted as promised, not as used, so what was given can always be had.
//! Processor time is known when an execution has ended; one that runs is not ended for it, so a caller passes the quota
//! by what runs at that moment. What processes use while no execution runs is not counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Code, Failure, Limits};
use tokio::time::Instant;

use crate::Principal;
use crate::sync::lock;

/// Processor time counts for so many minutes.
const MINUTES: u64 = 60;
/// Callers whose processor time is remembered; beyond, the one with the least is forgotten.
const CALLERS: usize = 4096;

/// What one caller may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Memory limits of its sandboxes together.
    pub memory: ByteSize,
    /// Disk limits of its sandboxes together.
    pub disk: ByteSize,
    /// Processor time of its executions in an hour.
    pub cpu: Duration,
}

impl Default for Quota {
    /// As much as its sandboxes may have one by one.
    fn default() -> Self {
        Self {
            memory: ByteSize::bytes(u64::MAX),
            disk: ByteSize::bytes(u64::MAX),
            cpu: Duration::MAX,
        }
    }
}

impl Quota {
    /// Whether so many more sandboxes fit beside those that the caller has.
    pub(crate) fn room<'a>(
        &self,
        held: impl Iterator<Item = &'a Limits> + Clone,
        count: usize,
        more: &Limits,
    ) -> Result<(), Failure> {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let memory = held.clone().map(|limits| limits.memory);
        let disk = held.map(|limits| limits.disk);
        let sum =
            |sizes: &mut dyn Iterator<Item = ByteSize>| sizes.map(ByteSize::as_bytes).fold(0, u64::saturating_add);
        for (what, key, most, used, each) in [
            ("memory", "memory_mb", self.memory, sum(&mut { memory }), more.memory),
            ("disk", "disk_mb", self.disk, sum(&mut { disk }), more.disk),
        ] {
            let wanted = each.as_bytes().saturating_mul(count);
            if wanted > most.as_bytes().saturating_sub(used) {
                return Err(Failure::new(
                    Code::LimitReached,
                    format!(
                        "your sandboxes have {} MiB of {what} together, and {} MiB more would pass the {} MiB that you may \
                         have",
                        ByteSize::bytes(used).as_mib(),
                        ByteSize::bytes(wanted).as_mib(),
                        most.as_mib()
                    ),
                    format!("close a sandbox that you do not need, or ask for less {key}"),
                ));
            }
        }
        Ok(())
    }
}

/// Who used how much processor time lately.
#[derive(Debug)]
pub(crate) struct Processor {
    most: Mutex<Duration>,
    began: Instant,
    /// For each caller, what ended in which minute.
    used: Mutex<HashMap<Principal, VecDeque<(u64, Duration)>>>,
}

impl Processor {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            most: Mutex::new(quota.cpu),
            began: Instant::now(),
            used: Mutex::default(),
        }
    }

    /// Takes another quota, for what was used as well.
    pub(crate) fn change(&self, quota: &Quota) {
        *lock(&self.most) = quota.cpu;
    }

    fn minute(&self) -> u64 {
        self.began.elapsed().as_secs() / 60
    }

    /// Whether the caller may run something now.
    pub(crate) fn may_run(&self, who: &Principal) -> Result<(), Failure> {
        let most = *lock(&self.most);
        if most == Duration::MAX {
            return Ok(());
        }
        let now = self.minute();
        let mut used = lock(&self.used);
        let Some(own) = used.get_mut(who) else {
            return Ok(());
        };
        let sum = forget(own, now);
        if sum < most {
            return Ok(());
        }
        let mut left = sum;
        let free = own.iter().find_map(|(minute, time)| {
            left = left.saturating_sub(*time);
            (left < most).then(|| (minute + MINUTES).saturating_sub(now).max(1))
        });
        Err(Failure::new(
            Code::LimitReached,
            format!(
                "your executions took {} s of processor time in the last hour, and may take {} s",
                sum.as_secs(),
                most.as_secs()
            ),
            format!(
                "wait about {} min; files and variables stay as long as their sandbox does",
                free.unwrap_or(MINUTES)
            ),
        ))
    }

    /// An execution has ended.
    pub(crate) fn charge(&self, who: &Principal, time: Duration) {
        if *lock(&self.most) == Duration::MAX || time.is_zero() {
            return;
        }
        let now = self.minute();
        let mut used = lock(&self.used);
        if used.len() >= CALLERS && !used.contains_key(who) {
            used.retain(|_, own| !forget(own, now).is_zero());
            let least = used
                .iter()
                .min_by_key(|(_, own)| own.iter().map(|(_, time)| *time).sum::<Duration>());
            if let Some(least) = least.map(|(who, _)| who.clone()).filter(|_| used.len() >= CALLERS) {
                used.remove(&least);
            }
        }
        let own = used.entry(who.clone()).or_default();
        match own.back_mut() {
            Some((minute, sum)) if *minute == now => *sum = sum.saturating_add(time),
            _ => {
                let _rest = forget(own, now);
                own.push_back((now, time));
            }
        }
    }
}

/// Drops what is more than an hour ago; gives the rest together. At most an entry for each minute is left.
fn forget(own: &mut VecDeque<(u64, Duration)>, now: u64) -> Duration {
    own.retain(|(minute, _)| minute + MINUTES > now);
    own.iter()
        .map(|(_, time)| *time)
        .fold(Duration::ZERO, Duration::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> Principal {
        Principal::new(name)
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_is_each_callers_own_and_comes_back_after_an_hour() {
        let quota = Quota {
            cpu: Duration::from_secs(10),
            ..Quota::default()
        };
        let processor = Processor::new(&quota);
        processor.charge(&who("ann"), Duration::from_secs(6));
        assert!(processor.may_run(&who("ann")).is_ok());
        tokio::time::advance(Duration::from_secs(20 * 60)).await;
        processor.charge(&who("ann"), Duration::from_secs(6));
        let failure = processor.may_run(&who("ann")).unwrap_err();
        assert_eq!(failure.code, Code::LimitReached);
        assert!(failure.remedy.contains("40 min"), "{}", failure.remedy);
        assert!(processor.may_run(&who("bob")).is_ok());
        tokio::time::advance(Duration::from_secs(40 * 60)).await;
        assert!(
            processor.may_run(&who("ann")).is_ok(),
            "the first six seconds are an hour ago"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_and_who_used_most_is_not_forgotten() {
        let quota = Quota {
            cpu: Duration::from_secs(10),
            ..Quota::default()
        };
        let processor = Processor::new(&quota);
        processor.charge(&who("flood"), Duration::from_secs(60));
        for number in 0..CALLERS + 100 {
            processor.charge(&who(&number.to_string()), Duration::from_millis(1));
        }
        for _ in 0..200 {
            processor.charge(&who("flood"), Duration::from_secs(1));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        let used = lock(&processor.used);
        assert!(used.len() <= CALLERS);
        assert!(used.get(&who("flood")).is_some_and(|own| own.len() <= 60));
        drop(used);
        assert!(processor.may_run(&who("flood")).is_err());
        assert!(lock(&processor.used)[&who("flood")].len() <= 60);
    }

    #[test]
    fn memory_and_disk_are_counted_as_promised() {
        let quota = Quota {
            memory: ByteSize::mib(1024),
            disk: ByteSize::mib(2048),
            ..Quota::default()
        };
        let each = Limits {
            memory: ByteSize::mib(512),
            disk: ByteSize::mib(512),
            ..Limits::default()
        };
        let held = [each.clone()];
        assert!(quota.room(held.iter(), 1, &each).is_ok());
        let failure = quota.room(held.iter(), 2, &each).unwrap_err();
        assert!(
            failure.message.contains("512 MiB of memory") && failure.message.contains("1024 MiB"),
            "{failure:?}"
        );
        let large = Limits {
            memory: ByteSize::mib(16),
            disk: ByteSize::mib(4096),
            ..Limits::default()
        };
        assert!(quota.room([].iter(), 1, &large).unwrap_err().message.contains("disk"));
        assert!(Quota::default().room(held.iter(), 100_000, &large).is_ok());
    }
}
