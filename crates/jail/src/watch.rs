//! Looks at memory from outside: the brake inside a control group's hard limit, and the only limit where there is none.
//!
//! A session may keep a frozen copy of itself, which shares its memory until the session writes to it. Nothing is to be
//! ended for what only the copy costs. So a copy that has come to cost much is ended first, when the sandbox uses a good
//! part of its limit, and what it costs otherwise (little) is not counted. One process at most is taken for a copy: what it
//! shares is then counted for whoever it shares it with, and bearing a copy's name gains no more than that little.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Group;
use crate::plan::place;
use crate::wire::Usage;
use files::descriptors;

mod diag;
mod files;
mod held;
pub(crate) mod in_flight;
mod kernel;
mod locks;
mod lost;
mod mappings;
mod own_sockets;
mod sockets;

pub(crate) use lost::{ALARM_INTERVAL, Alarm};
pub use own_sockets::{Charged, OwnSockets};
pub use sockets::holds_sockets;
use sockets::{Scope, in_open_sockets, in_unaccepted, net};

/// Processes that one look takes in at the most.
const MOST: usize = 4096;

/// What a socket's buffer holds at the most, in bytes: the kernel's default, which nothing inside can change.
pub(crate) const SOCKET_BUFFER: u64 = 212_992;

/// What half a pipe, or another open file, holds of the kernel's memory at the most. A user's pipes together have up to
/// 64 MiB in larger buffers; from there on the kernel gives each two pages.
const DESCRIPTOR: u64 = 4096;

/// The name that a session's copy gives itself.
const COPY: &str = "sandcell-copy";
/// From so many tenths of the limit on a copy is looked at.
const COPY_FROM: u64 = 7;
/// The part of the limit that a copy may cost from there on.
const COPY_PART: u64 = 20;

/// Sockets and descriptors that every sandbox may have without their being counted.
const FREE: u64 = 64;

/// How long one that was ended is waited for before another is.
const GIVING_BACK: Duration = Duration::from_millis(100);

/// How fast the processes of one core can take memory, in bytes a second: what the kernel clears at the best.
const RATE: u64 = 3 << 30;
/// What processes may have when the next look comes, in hundredths of the limit: a quarter above it, so that half above
/// it holds when the look itself takes its time.
const REACH: u64 = 125;
/// The longest and the shortest time between two looks.
pub(crate) const EVERY: Duration = Duration::from_millis(50);
/// The same for a sandbox with a control group, whose hard limit holds without us, in which nothing has run for so many looks.
const SELDOM: Duration = Duration::from_millis(200);
const CALM_LOOKS: u32 = 20;
const SHORTEST: Duration = Duration::from_millis(4);
/// What most files of the kernel's that tell of a process or a group fit into, in bytes.
const USUAL_FILE: usize = 4096;
/// How often the tree is walked while new processes keep appearing, before those that are known are ended.
const ROUNDS: usize = 6;

/// What a sandbox without a control group is held to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Memory, in bytes.
    pub(crate) memory: u64,
    /// Whole cores.
    pub(crate) cores: u64,
    /// Processes and threads, where the kernel cannot count those of one sandbox.
    pub(crate) tasks: Option<u64>,
    /// Whether the sandbox's sockets are those of its network namespace.
    pub(crate) own_network: bool,
    /// The socket, by its number, through which the launcher speaks to the visitor's parent. The visitor has it until it is locked, and
    /// what is on the way there is for its siblings.
    pub(crate) channel: Option<u64>,
}

/// From whom all processes of a sandbox descend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Roots {
    /// The first process, to whom orphans come.
    pub(crate) first: Pid,
    /// One that came from outside.
    pub(crate) visitor: Option<Pid>,
}

impl Roots {
    fn descendants(self) -> Vec<Pid> {
        let mut found = descendants(self.first);
        found.extend(self.visitor.into_iter().flat_map(descendants));
        found
    }
}

/// What was seen of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Processes ended for memory by us.
    pub(crate) kills: u64,
    /// How often everything was ended for too many processes.
    pub(crate) crowds: u64,
    /// Kills by us and by the kernel.
    pub(crate) events: u64,
    /// The most memory seen, in bytes.
    pub(crate) peak: u64,
    /// When the next look is due; none: at once.
    pub(crate) due: Option<Instant>,
    held: held::Held,
    locks: locks::Locks,
    mappings: mappings::Mappings,
    sockets: sockets::Sockets,
    /// Since when those who give memory back are waited for.
    waited: Option<Instant>,
    /// The processor time that the sandbox had used when there was little to be seen, in microseconds.
    calm: Option<u64>,
    reclaim: kernel::Reclaim,
    /// At how many looks in a row nothing had run.
    calm_looks: u32,
    /// The processor time that a sandbox with a control group had used at the last look, in microseconds.
    worked: u64,
    /// What the copy cost at the last look, and by what it can be told that this has not changed.
    copy: Option<(Mark, u64)>,
}

/// What changes when memory that a copy shares is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    copy: Pid,
    used: u64,
    faults: u64,
}

/// One process at one look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    pid: Pid,
    /// Whose folder in /proc tells about it.
    living: Pid,
    bytes: u64,
    tasks: u64,
    /// It had been stopped before we did.
    stopped: bool,
    /// It is a session's copy.
    copy: bool,
    /// It has been ended and gives its memory back, which takes the kernel a while.
    dying: bool,
}

impl Record {
    /// Starts the account: memory that the machine lost before is not charged to this sandbox.
    pub(crate) fn begin(&mut self) {
        self.sockets.begin();
    }

    /// A sandbox with a control group: files and processes are charged together there, so processes are told apart here.
    /// A guardian is in the group and not of the sandbox.
    pub(crate) fn look_at_group(&mut self, group: &Group, first: Pid, guardian: Option<Pid>) {
        let worked = group.cpu_us();
        // Whoever runs has used some time; none was told where it cannot be read.
        if worked > 0 && self.calm == Some(worked) {
            // Nothing ran since there was little.
            self.calm_looks = self.calm_looks.saturating_add(1);
            group.rest();
            self.sockets.rest();
            let wait = if self.calm_looks > CALM_LOOKS { SELDOM } else { EVERY };
            self.due = Some(Instant::now() + wait);
            return;
        }
        self.calm_looks = 0;
        let began = Instant::now();
        let limit = group.memory_limit();
        let from = limit / 10 * COPY_FROM;
        let processes = || {
            let candidates = group.pids().into_iter();
            candidates.filter(|pid| *pid != first && Some(*pid) != guardian)
        };
        // Where there is a guardian no socket can be connected to.
        let scope = match guardian {
            Some(_) => Scope::without_sockets(first, limit),
            None => Scope::of(first, limit),
        };
        let buffers = scope.counts.buffers();
        let charged = group.charged();
        let (used, doubtful) = if charged + buffers > from {
            let unaccepted = if buffers > 0 { in_unaccepted(first) } else { 0 };
            self.look_closer(group, first, unaccepted, worked, processes().collect())
        } else {
            group.widen();
            (0, charged)
        };
        let crowded = self.end_for_files(charged, || processes().collect());
        let pinned = self.look_at_sockets(group, scope, processes);
        let locks = if crowded {
            0
        } else {
            self.locks.bytes(worked, limit, || group.pids())
        };
        if locks > limit / COPY_PART && locks + group.process_memory() > limit {
            self.peak = self.peak.max(locks + group.process_memory());
            if let Some(pid) = processes().max_by_key(|pid| self.locks.of(*pid)) {
                self.end(pid);
            }
        }
        let little = used <= from && used + doubtful <= limit && locks == 0 && pinned == 0;
        self.calm = (little && !crowded).then_some(worked);
        let wait = self.pause_of_group(group, used + doubtful + pinned, worked, began.elapsed());
        self.due = Some(Instant::now() + wait.min(self.sockets.holds()));
    }

    /// Returns the socket memory that no control group counts. Ends all processes with sockets if it exceeds the limit.
    fn look_at_sockets<T: Iterator<Item = Pid>>(
        &mut self,
        group: &Group,
        scope: Scope,
        programs: impl Fn() -> T,
    ) -> u64 {
        let pinned = self
            .sockets
            .uncharged(scope, || group.process_memory(), || group.pids());
        if pinned == 0 {
            return 0;
        }
        let used = group.process_memory();
        self.peak = self.peak.max(used + pinned);
        if used + pinned > scope.limit {
            let _ended = self.end_holders(programs());
        }
        pinned
    }

    /// Ends all processes with sockets: the process that filled them is unknown, and ending one at a time would let the others continue.
    fn end_holders(&mut self, programs: impl Iterator<Item = Pid>) -> Vec<Pid> {
        let holders: Vec<Pid> = programs.filter(|pid| holds_sockets(*pid)).collect();
        for pid in &holders {
            self.end(*pid);
        }
        holders
    }

    /// Whether somebody who was ended still gives memory back: nobody else is ended for that. It is waited for once until
    /// nobody does any more, or somebody is ended.
    fn is_giving_back(&mut self, processes: &[Seen]) -> bool {
        if !processes.iter().any(|seen| seen.dying) {
            self.waited = None;
            return false;
        }
        self.waited.get_or_insert_with(Instant::now).elapsed() < GIVING_BACK
    }

    /// A sandbox with a control group has ended, and its group is still there.
    pub(crate) fn last_look_at_group(&mut self, group: &Group) {
        self.events = self.kills + group.memory_events();
    }

    /// A sandbox without: its processes are the first one's descendants, orphans included.
    pub(crate) fn look_at_tree(&mut self, roots: Roots, bounds: Bounds) {
        let began = Instant::now();
        let first = roots.first;
        let processes = one_copy(roots.descendants().into_iter().map(Seen::of).collect());
        if self.end_for_files_of(first, &processes) {
            return;
        }
        let outside = self.outside(first, &processes, bounds);
        let all = processes.iter().map(|seen| seen.bytes).sum::<u64>() + outside;
        let copies: u64 = processes.iter().filter(|seen| seen.copy).map(|seen| seen.bytes).sum();
        let mut total = all - copies;
        if all > bounds.memory / 10 * COPY_FROM {
            let cost = self.cost_of_copy(first, &processes, all, bounds.memory);
            // Only a copy that nobody shares its memory with any more costs that much and stays.
            if cost > bounds.memory / COPY_PART {
                total += cost;
            }
        }
        if total > bounds.memory {
            total = self.hold(roots, bounds);
        }
        self.peak = self.peak.max(total);
        self.count_tasks(roots, &processes, bounds);
        self.events = self.kills;
        let now = Instant::now();
        let wait = pause(total, bounds, now - began);
        self.due = Some(now + wait.min(self.held.holds()).min(self.sockets.holds()));
    }

    /// Memory that is no process' own.
    fn outside(&mut self, first: Pid, processes: &[Seen], bounds: Bounds) -> u64 {
        let ticks: u64 = processes.iter().map(|seen| times(seen.pid).ticks).sum();
        // A clock tick is 10 ms.
        let used = ticks * 10_000;
        let living = || processes.iter().map(|seen| seen.living).collect::<Vec<_>>();
        let sockets = if bounds.own_network {
            let scope = Scope::of(first, bounds.memory);
            scope.counts.buffers() + self.sockets.bytes(scope, living)
        } else {
            processes.iter().map(|seen| in_open_sockets(seen.living)).sum()
        };
        let outside = sockets + files::in_descriptors(processes) + self.held.bytes(used, processes, bounds);
        if outside > bounds.memory {
            // Enough is known, and what grows is to be stopped before more is counted.
            return outside;
        }
        let pids = || processes.iter().map(|seen| seen.pid).collect::<Vec<_>>();
        let mapped = self.mappings.bytes(used, bounds.memory, living);
        if mapped > bounds.memory {
            // To look at those closely would take longer than making them does.
            for pid in self.mappings.take() {
                self.end(pid);
            }
            self.peak = self.peak.max(mapped);
            return outside;
        }
        outside + mapped + self.locks.bytes(used, bounds.memory, pids)
    }

    /// Too much by the quick count. Everything is stopped, so that nothing grows while it is counted well and as many as
    /// it takes are ended, largest first; then the others go on. Gives back what there was.
    fn hold(&mut self, roots: Roots, bounds: Bounds) -> u64 {
        let first = roots.first;
        let processes = one_copy(freeze(roots));
        let outside = self.outside(first, &processes, bounds);
        let (outside, pinned) = self.with_sockets(first, &processes, outside, bounds);
        // What forked processes still share was counted for each of them; looking closer is dear, so only now.
        let share = |seen: &Seen| proportional_memory(seen.living).unwrap_or(seen.bytes);
        let uncounted = self
            .cost_of_copy(first, &processes, outside, bounds.memory)
            .min(bounds.memory / COPY_PART);
        let total = (processes.iter().map(share).sum::<u64>() + outside).saturating_sub(uncounted);
        let mut ended = Vec::new();
        if total > bounds.memory && pinned > 0 {
            let others = processes
                .iter()
                .filter(|seen| seen.pid != first)
                .copied()
                .collect::<Vec<_>>();
            ended = self.end_holders(programs(&others).iter().map(|seen| seen.living));
        }
        let left = if ended.is_empty() {
            total
        } else {
            total.saturating_sub(pinned)
        };
        ended.extend(self.end_largest(first, &processes, left, bounds));
        for seen in processes
            .iter()
            .filter(|seen| !seen.stopped && !ended.contains(&seen.pid))
        {
            let _ = kill_process(seen.pid, Signal::CONT);
        }
        total
    }

    /// Returns memory outside processes with an exact count of socket memory, and the socket memory alone.
    fn with_sockets(&mut self, first: Pid, processes: &[Seen], outside: u64, bounds: Bounds) -> (u64, u64) {
        let before = self.sockets.kept();
        if before == 0 {
            return (outside, 0);
        }
        let living = || processes.iter().map(|seen| seen.living).collect();
        let pinned = self.sockets.bytes_now(Scope::of(first, bounds.memory), living);
        (outside.saturating_sub(before) + pinned, pinned)
    }

    /// Ends the largest until what is left is allowed; the first process and, while there are others, a copy stay.
    fn end_largest(&mut self, first: Pid, processes: &[Seen], total: u64, bounds: Bounds) -> Vec<Pid> {
        // What lies in sockets and pipes belongs to whoever has most of them.
        let weight = |seen: &Seen| {
            let own = proportional_memory(seen.living).unwrap_or(seen.bytes);
            let locks = self.locks.of(seen.pid);
            let mapped = self.mappings.of(seen.living);
            own + locks + mapped + descriptors(seen.living) * (DESCRIPTOR + SOCKET_BUFFER)
        };
        let others: Vec<Seen> = processes.iter().filter(|seen| seen.pid != first).copied().collect();
        let mut candidates: Vec<(u64, Pid)> = programs(&others).iter().map(|seen| (weight(seen), seen.pid)).collect();
        candidates.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        let (mut left, mut ended) = (total, Vec::new());
        for (weight, pid) in candidates {
            if left <= bounds.memory {
                break;
            }
            self.end(pid);
            ended.push(pid);
            left = left.saturating_sub(weight);
        }
        ended
    }

    /// Ends a copy that costs much, which is no kill for memory; or says what it costs.
    fn cost_of_copy(&mut self, first: Pid, processes: &[Seen], used: u64, limit: u64) -> u64 {
        let Some(copy) = processes.iter().find(|seen| seen.copy).map(|seen| seen.pid) else {
            return 0;
        };
        let programs = processes.iter().filter(|seen| !seen.copy);
        let mark = Mark {
            copy,
            used,
            faults: programs.map(|seen| times(seen.pid).faults).sum(),
        };
        if let Some((at, cost)) = self.copy
            && at == mark
        {
            return cost;
        }
        let mut cost = own_memory(copy);
        // A session that just died leaves all that it shared to its copy, which is about to take its place.
        let needed = || {
            let mut others = processes.iter().filter(|seen| !seen.copy && seen.pid != first);
            !others.any(|seen| Seen::of(seen.pid).bytes > 0)
        };
        if cost > limit / COPY_PART && !needed() {
            let _gone = kill_process(copy, Signal::KILL);
            cost = 0;
        }
        self.copy = Some((mark, cost));
        cost
    }

    /// Where only this look counts processes: a few more than allowed come of others' that have ended, far more are ended.
    fn count_tasks(&mut self, roots: Roots, processes: &[Seen], bounds: Bounds) {
        let tasks: u64 = processes.iter().map(|seen| seen.tasks).sum();
        if bounds.tasks.is_some_and(|most| tasks > most + most / 4 + 1) {
            for seen in freeze(roots) {
                if seen.pid == roots.first {
                    let _ = kill_process(seen.pid, Signal::CONT);
                } else {
                    let _ = kill_process(seen.pid, Signal::KILL);
                }
            }
            self.crowds += 1;
        }
    }

    fn end(&mut self, pid: Pid) {
        self.locks.forget();
        self.mappings.forget(pid);
        self.held.forget();
        self.sockets.forget();
        self.waited = None;
        if kill_process(pid, Signal::KILL).is_ok() {
            self.kills += 1;
        }
    }
}

/// When to look again: before what there is can have grown to [`REACH`], and not all the time where a look is dear.
fn pause(total: u64, bounds: Bounds, took: Duration) -> Duration {
    let room = (bounds.memory / 100 * REACH).saturating_sub(total);
    let time = Duration::from_micros(room / (RATE / 1_000_000).saturating_mul(bounds.cores.max(1)).max(1));
    // Near the limit half of a core may go into looking.
    let rest = if room < bounds.memory / 2 { took } else { took * 3 };
    time.clamp(SHORTEST, EVERY).max(rest.min(EVERY))
}

/// Only the first that bears a copy's name is one.
fn one_copy(mut processes: Vec<Seen>) -> Vec<Seen> {
    processes
        .iter_mut()
        .filter(|seen| seen.copy)
        .skip(1)
        .for_each(|seen| seen.copy = false);
    processes
}

/// Those that may be ended for memory: not a copy, unless nobody else is there.
fn programs(processes: &[Seen]) -> Vec<Seen> {
    let only_copies = processes.iter().all(|seen| seen.copy);
    let mut programs = processes.to_vec();
    programs.retain(|seen| only_copies || !seen.copy);
    programs
}

/// Stops a sandbox's processes, the first one too, until a walk finds no new one.
fn freeze(roots: Roots) -> Vec<Seen> {
    let mut known: BTreeMap<i32, bool> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut news = false;
        for pid in roots.descendants() {
            known.entry(pid.as_raw_nonzero().get()).or_insert_with(|| {
                let stopped = is_stopped(pid);
                let _ = kill_process(pid, Signal::STOP);
                news = true;
                stopped
            });
        }
        if !news {
            break;
        }
    }
    let pids = known.into_iter();
    pids.filter_map(|(pid, stopped)| Some((Pid::from_raw(pid)?, stopped)))
        .map(|(pid, stopped)| Seen {
            stopped,
            ..Seen::of(pid)
        })
        .collect()
}

fn is_stopped(pid: Pid) -> bool {
    let stat = small_file(&format!("{}/proc/{}/stat", place::host(), pid.as_raw_nonzero()));
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

impl Seen {
    fn of(pid: Pid) -> Self {
        let (living, status) = status_of(pid);
        Self {
            pid,
            living,
            bytes: private_memory_in(&status),
            tasks: number_of(&status, "Threads:"),
            stopped: false,
            dying: !status.is_empty() && !status.contains("\nVmRSS:") && !has_ended(&status),
            copy: status
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("Name:"))
                .is_some_and(|name| name.trim() == COPY),
        }
    }
}

/// What a sandbox without a control group uses.
pub(crate) fn usage(first: u32, visitor: Option<Pid>) -> Usage {
    let Some(first) = i32::try_from(first).ok().and_then(Pid::from_raw) else {
        return Usage::default();
    };
    let mut usage = Usage::default();
    for seen in one_copy(
        Roots { first, visitor }
            .descendants()
            .into_iter()
            .map(Seen::of)
            .collect(),
    ) {
        usage.memory += if seen.copy { own_memory(seen.living) } else { seen.bytes };
        let times = times(seen.pid);
        usage.processes += times.threads;
        // A clock tick is 10 ms on every architecture that is supported.
        usage.cpu_us += times.ticks * 10_000;
    }
    usage.memory_peak = usage.memory;
    usage
}

/// A process and all that descend from it. In a process namespace orphans descend from the first process.
pub(crate) fn descendants(first: Pid) -> Vec<Pid> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        found.extend(children(pid));
        if found.len() > MOST {
            break;
        }
    }
    found
}

/// The children of a process, of all its threads.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let number = pid.as_raw_nonzero();
    let tasks = format!("{}/proc/{number}/task", place::host());
    let of = |text: String| {
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    // Two links more than it has threads; most processes have one.
    if rustix::fs::stat(tasks.as_str()).is_ok_and(|found| found.st_nlink == 3) {
        return of(small_file(&format!("{tasks}/{number}/children")));
    }
    let mut found = Vec::new();
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(of(children));
    }
    found
}

/// What the kernel tells of a process, and under which number: another thread's where the first has ended and others go on.
fn status_of(pid: Pid) -> (Pid, String) {
    let of = |pid: Pid| small_file(&format!("{}/proc/{}/status", place::host(), pid.as_raw_nonzero()));
    let status = of(pid);
    if !has_ended(&status) || number_of(&status, "Threads:") < 2 {
        return (pid, status);
    }
    let tasks = std::fs::read_dir(format!("{}/proc/{}/task", place::host(), pid.as_raw_nonzero()));
    let others = tasks.into_iter().flatten().flatten().filter_map(|task| {
        let other = Pid::from_raw(task.file_name().to_str()?.parse().ok()?)?;
        Some((other, of(other)))
    });
    let mut living = others.filter(|(_, status)| !has_ended(status));
    living.next().unwrap_or((pid, status))
}

fn has_ended(status: &str) -> bool {
    status.contains("\nState:\tZ") || status.contains("\nState:\tX")
}

/// A file of the kernel's, which is short as a rule: asking for its size, as the standard library does, would cost as much as
/// reading it, and a look at many processes has to be quick. Empty if it cannot be read.
pub(crate) fn small_file(path: &str) -> String {
    let Ok(file) = std::fs::File::open(path) else {
        return String::new();
    };
    let mut text = Vec::with_capacity(USUAL_FILE);
    // What does not fit into the buffer comes with further reads, which need not fill it.
    if file.take(u64::MAX).read_to_end(&mut text).is_err() {
        return String::new();
    }
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Page tables of a process, in bytes.
fn tables_of(pid: Pid) -> u64 {
    number_of(&status_of(pid).1, "VmPTE:") * 1024
}

fn private_memory_in(status: &str) -> u64 {
    ["RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:"]
        .iter()
        .map(|name| number_of(status, name))
        .sum::<u64>()
        * 1024
}

/// Memory that goes back to the system when the process ends, in bytes. Dear to ask for.
fn own_memory(pid: Pid) -> u64 {
    let rollup = std::fs::read_to_string(format!("{}/proc/{}/smaps_rollup", place::host(), pid.as_raw_nonzero()))
        .unwrap_or_default();
    (number_of(&rollup, "Private_Clean:") + number_of(&rollup, "Private_Dirty:")) * 1024
}

/// A process' own memory and its share of what it has in common with others, in bytes. None if the kernel does not
/// tell (then the process counts in full).
fn proportional_memory(pid: Pid) -> Option<u64> {
    let proc = format!("{}/proc/{}", place::host(), pid.as_raw_nonzero());
    let rollup = std::fs::read_to_string(format!("{proc}/smaps_rollup")).ok()?;
    let status = std::fs::read_to_string(format!("{proc}/status")).ok()?;
    let tables = number_of(&status, "VmPTE:");
    let shares: u64 = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]
        .iter()
        .map(|name| number_of(&rollup, name))
        .sum();
    // A kernel that does not split the shares up says nothing that helps here.
    (number_of(&rollup, "Pss_Anon:") > 0).then_some((shares + tables) * 1024)
}

/// The number of a line such as `VmPTE:  4 kB`.
fn number_of(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// What a process has used and done so far.
struct Times {
    threads: u32,
    /// Processor time, that of its reaped children included, in clock ticks.
    ticks: u64,
    /// How often it touched memory that it did not have yet, or wrote to what it shared.
    faults: u64,
}

fn times(pid: Pid) -> Times {
    let stat = small_file(&format!("{}/proc/{}/stat", place::host(), pid.as_raw_nonzero()));
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| {
            rest.split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect()
        })
        .unwrap_or_default();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    Times {
        threads: u32::try_from(field(17)).unwrap_or(u32::MAX),
        ticks: fields.iter().skip(11).take(4).sum(),
        faults: field(7),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_at_most_is_only_ended_for_memory_when_nobody_else_is_there() {
        let seen = |pid, copy| Seen {
            pid: Pid::from_raw(pid).unwrap(),
            living: Pid::from_raw(pid).unwrap(),
            bytes: 100,
            tasks: 1,
            stopped: false,
            copy,
            dying: false,
        };
        let pids = |processes: Vec<Seen>| -> Vec<i32> {
            let processes = one_copy(processes);
            programs(&processes).iter().map(|seen| seen.pid.as_raw_pid()).collect()
        };
        assert_eq!(pids(vec![seen(5, false), seen(6, true), seen(7, false)]), [5, 7]);
        assert_eq!(pids(vec![seen(6, true)]), [6]);
        assert_eq!(pids(vec![seen(6, true), seen(7, true)]), [7]);
    }

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let bounds = Bounds {
            memory: 128 << 20,
            cores: 1,
            tasks: None,
            own_network: true,
            channel: None,
        };
        let none = Duration::ZERO;
        let pauses: Vec<Duration> = [0, 64 << 20, 128 << 20, 512 << 20]
            .map(|total| pause(total, bounds, none))
            .to_vec();
        assert!(pauses.windows(2).all(|pair| pair[1] <= pair[0]), "{pauses:?}");
        assert!(pauses[2] < Duration::from_millis(15), "{pauses:?}");
        assert_eq!(pauses[3], SHORTEST);
        // A look that is dear is not made all the time.
        assert!(pause(512 << 20, bounds, Duration::from_millis(10)) >= Duration::from_millis(10));
        assert!(pause(0, bounds, Duration::from_millis(10)) >= Duration::from_millis(30));
    }

    #[test]
    fn kernel_reports_are_read_by_name() {
        let status = "VmPeak:\t  900 kB\nRssAnon:\t     120 kB\nRssShmem:\t 8 kB\nVmPTE:\t 4 kB\n";
        assert_eq!(number_of(status, "RssAnon:"), 120);
        assert_eq!(number_of(status, "VmSwap:"), 0);
    }
}
