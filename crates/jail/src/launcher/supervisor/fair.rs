//! Shares processor time equally between callers, regardless of the number of busy sandboxes of each. The kernel
//! divides time by cgroup, and each sandbox has one. So the weight of a busy sandbox falls with the number of its
//! caller's busy sandboxes.
//!
//! Weights are updated a few times a second, only while there are sandboxes of several callers and the processors are
//! contended. Without cgroups there are no weights (a process can lower its priority, but not raise it again).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Jail, State, Supervisor};
use crate::paths;

/// The interval between updates with contention and without.
const CONTENDED_INTERVAL: Duration = Duration::from_millis(200);
const UNCONTENDED_INTERVAL: Duration = Duration::from_millis(500);
/// The time for which contention is assumed after it was seen.
const CONTENTION_DURATION: Duration = Duration::from_secs(2);
/// The total weight of a caller's busy sandboxes; also the default weight of a sandbox.
const CALLER_WEIGHT: u32 = 1000;
/// The weight of a sandbox that no call waits for.
const UNAWAITED_WEIGHT: u32 = 50;
/// The maximum time with this weight, in case its maker never ends it.
const MAX_UNAWAITED_TIME: Duration = Duration::from_secs(1);
/// A sandbox that used less than one part in this many of the time since the last update is idle.
const IDLE_DIVISOR: u32 = 50;

/// The state between two updates.
#[derive(Debug)]
pub(super) struct Balance {
    /// The number of processors of this machine.
    cores: u32,
    updated: Option<Instant>,
    contended_until: Option<Instant>,
    /// The processors' times at the last update, in clock ticks: all their time, and their idle time.
    ticks: (u64, u64),
}

/// The load record of one sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// The caller's number. 0 is the first caller, and the default.
    pub(super) caller: u64,
    /// In thousandths of a caller's total.
    weight: u32,
    cpu_us: u64,
    /// Processor time since the last update.
    used_us: u64,
    /// True if it was assigned to a caller since the last update, so its usage is unknown.
    fresh: bool,
    /// The end of its low priority, which it has while no call waits for it. None: normal priority.
    low_priority_until: Option<Instant>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            caller: 0,
            weight: CALLER_WEIGHT,
            cpu_us: 0,
            used_us: 0,
            fresh: true,
            low_priority_until: None,
        }
    }
}

impl Load {
    fn has_low_priority(&self, now: Instant) -> bool {
        self.low_priority_until.is_some_and(|until| now < until)
    }

    fn busy(&self, since: Duration) -> bool {
        self.fresh || u128::from(self.used_us) * u128::from(IDLE_DIVISOR) > since.as_micros()
    }
}

impl Balance {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
        Self {
            cores,
            updated: None,
            contended_until: None,
            ticks: (0, 0),
        }
    }

    fn is_contended(&self) -> bool {
        self.contended_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns true if the machine's processors were mostly busy since the last call.
    fn is_saturated(&mut self) -> bool {
        let stat = std::fs::read_to_string(format!("{}/proc/stat", paths::host())).unwrap_or_default();
        let (all, rest) = ticks(&stat);
        let (all_before, rest_before) = std::mem::replace(&mut self.ticks, (all, rest));
        rest.saturating_sub(rest_before).saturating_mul(4) < all.saturating_sub(all_before)
    }

    fn due(&self, now: Instant) -> bool {
        let pause = if self.is_contended() {
            CONTENDED_INTERVAL
        } else {
            UNCONTENDED_INTERVAL
        };
        self.updated.is_none_or(|at| now.duration_since(at) >= pause)
    }
}

impl Supervisor {
    /// Assigns this sandbox to this caller.
    pub(super) fn assign_owner(&mut self, id: u64, caller: u64) {
        if let Some(load) = self.spares.load_mut(id) {
            load.caller = caller;
            return;
        }
        let Some(jail) = self.jails.get_mut(&id) else { return };
        jail.load.caller = caller;
        jail.load.fresh = true;
        if !self.balance.is_contended() {
            return;
        }
        // Short runs would end before the next update.
        let others = self.jails.values().filter(|jail| jail.load.caller == caller);
        let busy = others.filter(|jail| jail.load.busy(CONTENDED_INTERVAL)).count();
        let weight = weight_of(busy);
        if let Some(jail) = self.jails.get_mut(&id) {
            jail.weigh(weight);
        }
    }

    /// Sets or ends the low priority of this sandbox.
    pub(super) fn set_low_priority(&mut self, id: u64, last: bool) {
        let until = last.then(|| Instant::now() + MAX_UNAWAITED_TIME);
        if let Some(load) = self.spares.load_mut(id) {
            load.low_priority_until = until;
            return;
        }
        let Some(jail) = self.jails.get_mut(&id) else { return };
        jail.load.low_priority_until = until;
        jail.weigh(if last { UNAWAITED_WEIGHT } else { CALLER_WEIGHT });
    }

    /// Measures processor use and updates the weights, if due.
    pub(super) fn balance(&mut self, now: Instant) {
        if !self.balance.due(now) || self.prepared.groups.is_none() {
            return;
        }
        let mut callers = self.jails.values().map(|jail| jail.load.caller);
        let first = callers.next();
        let several = callers.any(|caller| Some(caller) != first);
        let since = self
            .balance
            .updated
            .replace(now)
            .map_or(UNCONTENDED_INTERVAL, |at| now.duration_since(at));
        if !several {
            // A single caller has no competitor.
            self.balance.contended_until = None;
            for jail in self.jails.values_mut().filter(|jail| !jail.load.has_low_priority(now)) {
                jail.weigh(CALLER_WEIGHT);
            }
            return;
        }
        for jail in self.jails.values_mut() {
            jail.read_load();
        }
        let used: u64 = self.jails.values().map(|jail| jail.load.used_us).sum();
        let half = since.as_micros() * u128::from(self.balance.cores) / 2;
        // If this server may use only a part of the machine, its sandboxes' usage is decisive; otherwise the machine's.
        if self.balance.is_saturated() || u128::from(used) > half {
            self.balance.contended_until = Some(now + CONTENTION_DURATION);
        }
        if self.balance.is_contended() {
            let mut busy: BTreeMap<u64, usize> = BTreeMap::new();
            for jail in self.jails.values().filter(|jail| jail.load.busy(since)) {
                *busy.entry(jail.load.caller).or_default() += 1;
            }
            for jail in self.jails.values_mut().filter(|jail| !jail.load.has_low_priority(now)) {
                let busy_ones = busy.get(&jail.load.caller).copied().unwrap_or(0);
                let weight = if jail.load.busy(since) {
                    weight_of(busy_ones)
                } else {
                    weight_of(busy_ones + 1)
                };
                // There may be very many idle sandboxes, and their weight matters only once they start to work.
                let near = jail.load.weight / 2 <= weight && weight <= jail.load.weight.saturating_mul(2);
                if jail.load.busy(since) || !near {
                    jail.weigh(weight);
                }
            }
        }
        for jail in self.jails.values_mut() {
            jail.load.fresh = false;
        }
    }
}

impl Jail {
    /// Starts the creation of the sandbox with this load record.
    pub(super) fn begin_with(&mut self, load: Load) {
        self.load = load;
        if load.has_low_priority(Instant::now()) {
            self.weigh(UNAWAITED_WEIGHT);
        }
    }

    fn read_load(&mut self) {
        if let (Some(group), State::Running { .. }) = (&self.group, &self.state) {
            let cpu_us = group.cpu_us();
            // The processor time of its creation is charged to no caller.
            self.load.used_us = if self.load.fresh {
                0
            } else {
                cpu_us.saturating_sub(self.load.cpu_us)
            };
            self.load.cpu_us = cpu_us;
        } else {
            self.load.used_us = 0;
        }
    }

    fn weigh(&mut self, weight: u32) {
        if self.load.weight == weight {
            return;
        }
        // A group in removal cannot be weighed, and need not be.
        if self.group.as_ref().is_some_and(|group| group.weigh(weight).is_ok()) {
            self.load.weight = weight;
        }
    }
}

/// Returns the weight of each busy sandbox if a caller has `busy` of them.
fn weight_of(busy: usize) -> u32 {
    CALLER_WEIGHT / u32::try_from(busy.max(1)).unwrap_or(CALLER_WEIGHT).min(CALLER_WEIGHT)
}

/// Parses `/proc/stat`: the total time of all processors, and their idle time.
fn ticks(stat: &str) -> (u64, u64) {
    let numbers = stat
        .lines()
        .next()
        .into_iter()
        .flat_map(|line| line.split_whitespace().skip(1));
    let numbers: Vec<u64> = numbers.map_while(|text| text.parse().ok()).collect();
    // Guests' time comes last. It is also part of users' time.
    let all = numbers.iter().take(8).sum();
    let rest = numbers.iter().skip(3).take(2).sum();
    (all, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_a_callers_busy_sandboxes_add_up_to_one() {
        assert_eq!([0, 1, 2, 16, 1000].map(weight_of), [1000, 1000, 500, 62, 1]);
        assert_eq!(weight_of(1_000_000), 1);
    }

    #[test]
    fn a_sandbox_with_little_use_is_idle_and_a_new_one_is_busy() {
        let second = Duration::from_secs(1);
        let load = |used_us, fresh| Load {
            used_us,
            fresh,
            ..Load::default()
        };
        assert!(load(0, true).busy(second));
        assert!(!load(20_000, false).busy(second));
        assert!(load(20_001, false).busy(second));
    }

    #[test]
    fn idle_time_includes_waiting_for_devices() {
        let stat = "cpu  10 20 30 400 50 6 7 8 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(ticks(stat), (531, 450));
        assert_eq!(ticks(""), (0, 0));
    }
}
