//! Measurements with a separate load: processor time, throughput, random arrivals, many sandboxes, ends, memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rounds::{BARE_INTERPRETER, Data, Row, Table, bare, once, timed};
use crate::statistics::{Estimate, median, median_of, quantile, random};
use sandcell_e2e::client::Client;
use sandcell_e2e::machine;
use sandcell_e2e::test_dir::TestDir;

/// The number of concurrent calls.
const CONCURRENT_CALLS: usize = 8;
const CALL_COUNT: usize = 200;
/// The pause after a load. The server refills its idle sandboxes meanwhile.
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the duration of a load, in seconds.
fn seconds() -> u64 {
    std::env::var("SANDCELL_BENCH_LOAD_S").map_or(10, |text| text.parse().unwrap())
}

pub fn all(table: &mut Table) {
    let place = TestDir::with_settings("[limits]\nsandboxes_per_caller = 256\nexecutions_per_caller = 256\n");
    let server = Client::start(&mut place.command(&["serve"]));
    (0..20).for_each(|_| once(&server, "print(1)"));
    std::thread::sleep(2 * REFILL_INTERVAL);
    eprintln!("processor time");
    processor_time(table, &server);
    eprintln!("throughput");
    let rate = throughput(table, &server);
    eprintln!("concurrency");
    concurrency(table, &server, rate);
    eprintln!("arrivals at random");
    arrivals(table, &server);
    drop(server);
    eprintln!("sessions");
    sessions(table);
    eprintln!("ends");
    ends(table);
    eprintln!("memory");
    memory(table);
    eprintln!("many sandboxes");
    many(table);
}

fn row(name: String, readings: &[f64], unit: &'static str, goal: Option<f64>) -> Row {
    Row {
        name,
        value: median_of(readings),
        unit,
        against: None,
        goal,
    }
}

/// A single number has no distribution, so its confidence interval is the number.
fn once_against(value: f64, other: f64) -> (Estimate, (&'static str, Estimate)) {
    let exact = |value| Estimate {
        value,
        low: value,
        high: value,
    };
    (exact(value), (BARE_INTERPRETER, exact(value / other)))
}

/// Returns the processor time of a process and of its reaped children, in milliseconds.
fn times(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = text.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: u64 = fields.skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 * 1000.0 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the processor time of the server, its launcher and all their reaped children. The launcher is the server's
/// child that has children.
fn all_times(server: &Client) -> f64 {
    let below = machine::descendants(server.pid());
    times(server.pid()) + below.iter().map(|seen| times(seen.pid)).sum::<f64>()
}

fn processor_time(table: &mut Table, server: &Client) {
    let spent = |work: &dyn Fn(), read: &dyn Fn() -> f64| {
        let before = read();
        for _ in 0..CALL_COUNT {
            work();
        }
        // The server replaces the used idle sandboxes, and that work counts.
        std::thread::sleep(Duration::from_secs(1));
        (read() - before) / CALL_COUNT as f64
    };
    let own = spent(&|| once(server, "print(1)"), &|| all_times(server));
    let children = || {
        let used = of_children();
        used * 1000.0
    };
    let other = spent(&bare, &children);
    let (value, against) = once_against(own, other);
    table.rows.push(Row {
        name: "processor time of one fresh run, over all processes".to_owned(),
        value,
        unit: "ms",
        against: Some(against),
        goal: Some(0.7),
    });
}

/// Returns the processor time of this process' reaped children, in seconds.
fn of_children() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = text.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: u64 = fields.skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the rate per second of `in_flight` concurrent calls over `length`.
fn rate(in_flight: usize, length: Duration, work: impl Fn() + Sync) -> f64 {
    let done = AtomicUsize::new(0);
    let start = Instant::now();
    let end = start + length;
    std::thread::scope(|scope| {
        for _ in 0..in_flight {
            scope.spawn(|| {
                while Instant::now() < end {
                    work();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// Runs long enough that delayed costs of a load fall into the measurement: the kernel frees groups and namespaces
/// later.
fn throughput(table: &mut Table, server: &Client) -> f64 {
    let length = Duration::from_secs(6 * seconds());
    // The machine's speed changes within a minute. So half of the comparison runs before the measurement, half after
    // it.
    let half = || {
        std::thread::sleep(REFILL_INTERVAL);
        rate(CONCURRENT_CALLS, length / 4, bare)
    };
    let before = half();
    let own = rate(CONCURRENT_CALLS, length, || once(server, "print(1)"));
    let other = f64::midpoint(before, half());
    let (value, against) = once_against(own, other);
    table.rows.push(Row {
        name: format!(
            "fresh runs a second, {CONCURRENT_CALLS} under way, for {} s",
            length.as_secs()
        ),
        value,
        unit: "/s",
        against: Some(against),
        goal: Some(1.0),
    });
    own
}

/// Measures other concurrencies, as a fraction of the throughput with eight.
fn concurrency(table: &mut Table, server: &Client, eight: f64) {
    for in_flight in [1, 2, 4, 16, 64] {
        let own = rate(in_flight, Duration::from_secs(seconds()), || once(server, "print(1)"));
        let name = format!("the same with {in_flight} under way ({:.2} of that)", own / eight);
        table.rows.push(row(name, &[own], "/s", None));
    }
}

/// Measures calls to many sessions in turn, with and without session snapshots.
fn sessions(table: &mut Table) {
    const SESSION_COUNT: usize = 64;
    const CALLS_AT_ONCE: usize = 4;
    let reached = |restore: bool| {
        let limits = format!("[limits]\nsandboxes_per_caller = {SESSION_COUNT}\n");
        let place = TestDir::with_settings(&format!("{limits}[sessions]\nrestore = {restore}\n"));
        let server = Client::start(&mut place.command(&["serve"]));
        let made = server.call("create_sandbox", json!({"count": SESSION_COUNT}));
        let ids = made.data()["sandbox_ids"].as_array().unwrap().clone();
        let call = |code: &str, session: usize| {
            let answer = server.call(
                "execute_code",
                json!({"code": code, "sandbox_id": ids[session % SESSION_COUNT]}),
            );
            assert_eq!(answer.status(), "ok", "{answer:?}");
        };
        (0..SESSION_COUNT).for_each(|session| call("x = 0", session));
        std::thread::sleep(REFILL_INTERVAL);
        let next = AtomicUsize::new(0);
        rate(CALLS_AT_ONCE, Duration::from_secs(seconds()), || {
            call("x += 1", next.fetch_add(1, Ordering::Relaxed));
        })
    };
    let (with, without) = (reached(true), reached(false));
    let name = format!(
        "calls of `x += 1` a second, {SESSION_COUNT} sessions in turn, {CALLS_AT_ONCE} under way ({:.2} of what it is without copies of sessions)",
        with / without
    );
    table.rows.push(row(name, &[with], "/s", None));
}

/// Measures the caller's cost of closing a sandbox, and the remaining lifetime of the processes inside.
fn ends(table: &mut Table) {
    const CLOSE_COUNT: usize = 10;
    let place = TestDir::with_settings("[pool]\nparked = 0\n");
    let server = Client::start(&mut place.command(&["serve"]));
    let start = |code: &str| {
        let id = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
        assert_eq!(answer.status(), "ok", "{answer:?}");
        id
    };
    let close = |id| {
        let closed = server.call("close_sandbox", json!({"sandbox_id": id}));
        assert!(!closed.is_error(), "{closed:?}");
    };
    let sleepers = "import subprocess\nall = [subprocess.Popen(['sleep', '600']) for _ in range(100)]";
    let (mut closing, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..CLOSE_COUNT {
        let id = start("x = 1");
        closing.push(timed(|| close(id)).as_secs_f64() * 1000.0);
        let id = start(sleepers);
        // The launcher also has spare processes for future sandboxes, each in a separate namespace.
        let mut namespaces: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for seen in machine::descendants(server.pid()) {
            namespaces
                .entry(namespace(&seen.pid.to_string()))
                .or_default()
                .insert(seen);
        }
        let inside = namespaces.into_values().max_by_key(BTreeSet::len).unwrap_or_default();
        assert!(inside.len() > 100, "{inside:?}");
        gone.push(timed(|| {
            close(id);
            while inside.iter().any(machine::ProcessIdentity::lives) {
                std::thread::yield_now();
            }
        }));
    }
    table.rows.push(row("`close_sandbox`".to_owned(), &closing, "ms", None));
    let gone: Vec<f64> = gone.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
    let name = "closing a sandbox of 100 processes until none of them lives".to_owned();
    table.rows.push(row(name, &gone, "ms", Some(50.0)));
}

/// Returns the PID namespace of a process.
fn namespace(pid: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Measures random arrivals, as from many independent users, in parts. The machine's capacity is measured again before
/// each part: it changes within a minute, and above the capacity the queue grows without end.
fn arrivals(table: &mut Table, server: &Client) {
    const PART_COUNT: u64 = 5;
    let length = Duration::from_secs(seconds().max(10)) * 2 / u32::try_from(PART_COUNT).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let (mut readings, mut others) = (Vec::new(), Vec::new());
    for _ in 0..PART_COUNT {
        let rate = 0.7 * rate(CONCURRENT_CALLS, length / 2, || once(server, "print(1)"));
        std::thread::sleep(REFILL_INTERVAL);
        others.extend((0..20).map(|_| timed(bare).as_secs_f64() * 1000.0));
        let start = Instant::now();
        let mut due = Duration::ZERO;
        std::thread::scope(|scope| {
            let mut calls = Vec::new();
            while due < length {
                due += Duration::from_secs_f64(-(1.0 - random(&mut state)).ln() / rate);
                std::thread::sleep((start + due).saturating_duration_since(Instant::now()));
                let began = start + due;
                calls.push(scope.spawn(move || {
                    once(server, "print(1)");
                    began.elapsed().as_secs_f64() * 1000.0
                }));
            }
            readings.extend(calls.into_iter().map(|call| call.join().unwrap()));
        });
    }
    for (part, name, goal) in [(0.5, "median", None), (0.99, "99 of 100 within", Some(1.0))] {
        let (value, against) = once_against(quantile(&readings, part), median(&others));
        table.rows.push(Row {
            name: format!("fresh runs that come at random, at 70 % load: {name}"),
            value,
            unit: "ms",
            against: Some(against),
            goal,
        });
    }
}

/// Returns a process' proportional share of memory, in MiB.
fn share(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    kib.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1024.0
}

/// Returns the memory charged to the control groups of these processes, in MiB; none without control groups.
fn charged(processes: &BTreeSet<machine::ProcessIdentity>) -> Option<f64> {
    let files = machine::groups_of(processes).into_iter().filter_map(|group| {
        let read = |name| std::fs::read_to_string(group.join(name)).ok();
        read("memory.usage_in_bytes").or_else(|| read("memory.current"))
    });
    let bytes: f64 = files.map(|text| text.trim().parse::<f64>().unwrap()).sum();
    (bytes > 0.0).then_some(bytes / f64::from(1 << 20))
}

/// The memory of one server and its idle sandboxes, in MiB.
struct ServerMemory {
    server: f64,
    shares: f64,
    charged: Option<f64>,
}

impl ServerMemory {
    fn with(settings: &str, waiting: usize, modules: bool) -> Self {
        let place = TestDir::with_settings(settings);
        let server = Client::start(&mut place.command(&["serve"]));
        // Each idle sandbox has two processes: the agent and the interpreter.
        sandcell_e2e::until(sandcell_e2e::DEFAULT_TIMEOUT, "sandboxes wait", || {
            let below = machine::descendants(server.pid());
            (below.iter().filter(|seen| seen.name.starts_with("python")).count() >= waiting).then_some(())
        });
        // Modules are loaded after the start.
        std::thread::sleep(Duration::from_secs(if modules { 10 } else { 1 }));
        let below = machine::descendants(server.pid());
        Self {
            server: share(server.pid()),
            shares: below.iter().map(|seen| share(seen.pid)).sum::<f64>(),
            charged: charged(&below),
        }
    }
}

fn memory(table: &mut Table) {
    const IDLE_COUNT: usize = 20;
    let none = ServerMemory::with("[pool]\nparked = 0\n", 0, false);
    let some = ServerMemory::with(&format!("[pool]\nparked = {IDLE_COUNT}\n"), IDLE_COUNT, false);
    let each = |some: f64, none: f64| (some - none) / IDLE_COUNT as f64;
    let mut mib = |name: &str, value: f64, goal: f64| {
        table.rows.push(row(name.to_owned(), &[value], "MiB", Some(goal)));
    };
    mib(
        "memory of a waiting sandbox, proportional share",
        each(some.shares, none.shares),
        2.0,
    );
    if let Some(charged) = some.charged {
        let charged = each(charged, none.charged.unwrap_or(0.0));
        mib("the same, charged to its control group", charged, 2.0);
    }
    mib(
        "memory of the server with an empty pool, proportional share",
        none.server,
        20.0,
    );
    if let Some(settings) = with_data_python() {
        let with = |parked: usize| format!("{settings}[pool]\nparked = {parked}\n");
        let none = ServerMemory::with(&with(0), 0, true);
        let some = ServerMemory::with(&with(IDLE_COUNT), IDLE_COUNT, true);
        mib(
            "memory of one that waits with numpy, pandas and pyplot, proportional share",
            each(some.shares, none.shares),
            3.0,
        );
        if let Some(charged) = some.charged {
            let charged = each(charged, none.charged.unwrap_or(0.0));
            mib("the same, charged to its control group", charged, 3.0);
        }
    }
}

/// Returns settings for interpreters that have loaded the data libraries from their own folders, where a zygote finds
/// them.
fn with_data_python() -> Option<String> {
    let python = std::env::var("SANDCELL_TEST_DATA_PYTHON").ok()?;
    Some(format!(
        "python = {python:?}\npreload = [\"numpy\", \"pandas\", \"matplotlib.pyplot\"]\n"
    ))
}

/// Measures the creation of many sandboxes in one call, and the first answer of each.
fn many(table: &mut Table) {
    const LIMIT_SETTINGS: &str = "[limits]\nsandboxes_per_caller = 1000\nsandboxes = 1000\n";
    let mut load = |settings: &str, ahead: bool, count: usize, what: &str, code: &str, goal: Option<f64>| {
        let parked = if ahead { count } else { 0 };
        let place = TestDir::with_settings(&format!("{settings}{LIMIT_SETTINGS}[pool]\nparked = {parked}\n"));
        let before = if parked == 1000 { settled() } else { 0.0 };
        let server = Client::start(&mut place.command(&["serve"]));
        wait_for(&server, parked);
        if parked == 1000 {
            let name = format!("memory that the machine has less for each of {count} that wait{what}");
            let each = (before - available()) / parked as f64;
            table.rows.push(row(name, &[each], "MiB", Some(3.4)));
        }
        let [made, answered] = create_and_ask(&server, count, code);
        let made_when = if ahead { "made ahead" } else { "made when asked for" };
        let name = format!("`create_sandbox` with `count` = {count}, {made_when}{what}");
        table.rows.push(row(name, &[made], "ms", None));
        let name = format!("the same, and each of the {count} has answered");
        table.rows.push(row(name, &[made + answered], "ms", goal));
    };
    for (count, goal) in [(10, None), (100, Some(300.0)), (1000, Some(2000.0))] {
        for ahead in [false, true] {
            load("", ahead, count, "", "print(1)", goal);
        }
    }
    if let Some(settings) = with_data_python()
        && available() > 12_000.0
    {
        let what = ", with numpy, pandas and pyplot";
        load(&settings, true, 1000, what, Data::IMPORT_CODE, Some(5000.0));
    }
}

/// Waits until this many sandboxes are idle and no further process appears.
fn wait_for(server: &Client, parked: usize) {
    let processes = || machine::descendants(server.pid()).len();
    sandcell_e2e::until(Duration::from_secs(120), "sandboxes wait", || {
        (processes() >= 2 * parked).then_some(())
    });
    let mut before = 0;
    while before != processes() {
        before = processes();
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Returns the available memory of this machine, in MiB.
fn available() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    kib.unwrap().trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// Returns the available memory once the kernel has reclaimed the last server's memory.
fn settled() -> f64 {
    let mut before = 0.0;
    loop {
        std::thread::sleep(2 * REFILL_INTERVAL);
        let now = available();
        if now - before < 8.0 {
            return now;
        }
        before = now;
    }
}

/// Returns the duration of the creation, and the time until each sandbox had answered, in milliseconds.
fn create_and_ask(server: &Client, count: usize, code: &str) -> [f64; 2] {
    let mut ids = Vec::new();
    let made = timed(|| {
        let answer = server.call("create_sandbox", json!({"count": count}));
        let made = answer.data()["sandbox_ids"].as_array();
        ids.extend(made.unwrap_or_else(|| panic!("{answer:?}")).clone());
    });
    assert_eq!(ids.len(), count);
    let next = AtomicUsize::new(0);
    let answered = timed(|| {
        std::thread::scope(|scope| {
            for _ in 0..CONCURRENT_CALLS {
                scope.spawn(|| {
                    while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let answer = server.call("execute_code", json!({"code": code, "sandbox_id": id}));
                        assert_eq!(answer.status(), "ok", "{answer:?}");
                    }
                });
            }
        });
    });
    [made, answered].map(|time| time.as_secs_f64() * 1000.0)
}
