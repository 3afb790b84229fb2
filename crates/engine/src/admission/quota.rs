//! The quota of one caller: memory and disk over all of its sandboxes, and processor time of its executions in an hour.
//! It prevents a caller from multiplying the limits of one sandbox.
//!
//! The decision taken here: memory and disk count as promised, not as used, so a sandbox can always use its limits.
//! Processor time is known when an execution ends. A running execution is not ended for it, so a caller can exceed the
//! quota by its running executions. Processes that run between executions are not counted.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use sandcell_sandbox::{ByteSize, Code, Failure, Limits};
use tokio::time::Instant;

use crate::api::sync::lock;
use crate::{Principal, Quota};

/// The number of minutes for which processor time counts.
const WINDOW_MINUTES: u64 = 60;
/// The maximum number of callers whose processor time is in memory. Beyond it, the caller with the least is forgotten.
const MAX_CALLERS: usize = 4096;

impl Quota {
    /// Checks that `count` more sandboxes fit in addition to those that the caller has.
    pub(crate) fn check_room<'a>(
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
        for (what, key, max, used, each) in [
            ("memory", "memory_mb", self.memory, sum(&mut { memory }), more.memory),
            ("disk", "disk_mb", self.disk, sum(&mut { disk }), more.disk),
        ] {
            let wanted = each.as_bytes().saturating_mul(count);
            if wanted > max.as_bytes().saturating_sub(used) {
                return Err(Failure::new(
                    Code::LimitReached,
                    format!(
                        "your sandboxes have {} MiB of {what} together, and {} MiB more would pass the {} MiB that you may \
                         have",
                        ByteSize::bytes(used).as_mib(),
                        ByteSize::bytes(wanted).as_mib(),
                        max.as_mib()
                    ),
                    format!("close a sandbox that you do not need, or ask for less {key}"),
                ));
            }
        }
        Ok(())
    }
}

/// The recent processor time of each caller.
#[derive(Debug)]
pub(crate) struct CpuQuota {
    max: Mutex<Duration>,
    began: Instant,
    /// The processor time of each caller, by the minute in which its execution ended.
    used: Mutex<HashMap<Principal, VecDeque<(u64, Duration)>>>,
}

impl CpuQuota {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            max: Mutex::new(quota.cpu),
            began: Instant::now(),
            used: Mutex::default(),
        }
    }

    /// Replaces the quota. It holds for past usage as well.
    pub(crate) fn change(&self, quota: &Quota) {
        *lock(&self.max) = quota.cpu;
    }

    fn minute(&self) -> u64 {
        self.began.elapsed().as_secs() / 60
    }

    /// Checks that the caller may run code now.
    pub(crate) fn may_run(&self, principal: &Principal) -> Result<(), Failure> {
        let max = *lock(&self.max);
        if max == Duration::MAX {
            return Ok(());
        }
        let now = self.minute();
        let mut used = lock(&self.used);
        let Some(own) = used.get_mut(principal) else {
            return Ok(());
        };
        let sum = forget(own, now);
        if sum < max {
            return Ok(());
        }
        let mut left = sum;
        let free = own.iter().find_map(|(minute, time)| {
            left = left.saturating_sub(*time);
            (left < max).then(|| (minute + WINDOW_MINUTES).saturating_sub(now).max(1))
        });
        Err(Failure::new(
            Code::LimitReached,
            format!(
                "your executions took {} s of processor time in the last hour, and may take {} s",
                sum.as_secs(),
                max.as_secs()
            ),
            format!(
                "wait about {} min; files and variables stay as long as their sandbox does",
                free.unwrap_or(WINDOW_MINUTES)
            ),
        ))
    }

    /// Adds the processor time of a finished execution.
    pub(crate) fn charge(&self, principal: &Principal, time: Duration) {
        if *lock(&self.max) == Duration::MAX || time.is_zero() {
            return;
        }
        let now = self.minute();
        let mut used = lock(&self.used);
        if used.len() >= MAX_CALLERS && !used.contains_key(principal) {
            used.retain(|_, own| !forget(own, now).is_zero());
            let least = used
                .iter()
                .min_by_key(|(_, own)| own.iter().map(|(_, time)| *time).sum::<Duration>());
            if let Some(least) = least
                .map(|(principal, _)| principal.clone())
                .filter(|_| used.len() >= MAX_CALLERS)
            {
                used.remove(&least);
            }
        }
        let own = used.entry(principal.clone()).or_default();
        match own.back_mut() {
            Some((minute, sum)) if *minute == now => *sum = sum.saturating_add(time),
            _ => {
                let _rest = forget(own, now);
                own.push_back((now, time));
            }
        }
    }
}

/// Drops entries older than an hour. Returns the sum of the rest: at most one entry for each minute.
fn forget(own: &mut VecDeque<(u64, Duration)>, now: u64) -> Duration {
    own.retain(|(minute, _)| minute + WINDOW_MINUTES > now);
    own.iter()
        .map(|(_, time)| *time)
        .fold(Duration::ZERO, Duration::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::new(name)
    }

    #[tokio::test(start_paused = true)]
    async fn processor_time_is_counted_per_caller_and_expires_after_an_hour() {
        let quota = Quota {
            cpu: Duration::from_secs(10),
            ..Quota::default()
        };
        let processor = CpuQuota::new(&quota);
        processor.charge(&principal("ann"), Duration::from_secs(6));
        assert!(processor.may_run(&principal("ann")).is_ok());
        tokio::time::advance(Duration::from_secs(20 * 60)).await;
        processor.charge(&principal("ann"), Duration::from_secs(6));
        let failure = processor.may_run(&principal("ann")).unwrap_err();
        assert_eq!(failure.code, Code::LimitReached);
        assert!(failure.remedy.contains("40 min"), "{}", failure.remedy);
        assert!(processor.may_run(&principal("bob")).is_ok());
        tokio::time::advance(Duration::from_secs(40 * 60)).await;
        assert!(
            processor.may_run(&principal("ann")).is_ok(),
            "the first six seconds are an hour ago"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_callers_is_bounded_and_the_heaviest_is_not_forgotten() {
        let quota = Quota {
            cpu: Duration::from_secs(10),
            ..Quota::default()
        };
        let processor = CpuQuota::new(&quota);
        processor.charge(&principal("flood"), Duration::from_secs(60));
        for number in 0..MAX_CALLERS + 100 {
            processor.charge(&principal(&number.to_string()), Duration::from_millis(1));
        }
        for _ in 0..200 {
            processor.charge(&principal("flood"), Duration::from_secs(1));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        let used = lock(&processor.used);
        assert!(used.len() <= MAX_CALLERS);
        assert!(used.get(&principal("flood")).is_some_and(|own| own.len() <= 60));
        drop(used);
        assert!(processor.may_run(&principal("flood")).is_err());
        assert!(lock(&processor.used)[&principal("flood")].len() <= 60);
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
        assert!(quota.check_room(held.iter(), 1, &each).is_ok());
        let failure = quota.check_room(held.iter(), 2, &each).unwrap_err();
        assert!(
            failure.message.contains("512 MiB of memory") && failure.message.contains("1024 MiB"),
            "{failure:?}"
        );
        let large = Limits {
            memory: ByteSize::mib(16),
            disk: ByteSize::mib(4096),
            ..Limits::default()
        };
        assert!(
            quota
                .check_room([].iter(), 1, &large)
                .unwrap_err()
                .message
                .contains("disk")
        );
        assert!(Quota::default().check_room(held.iter(), 100_000, &large).is_ok());
    }
}
