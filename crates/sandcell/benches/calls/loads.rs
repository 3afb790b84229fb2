//! What needs a load of its own: processor time, throughput, arrivals at random, many sandboxes, memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rounds::{BARE, Row, Table, bare, once, timed};
use crate::statistics::{Estimate, median, median_of, quantile, random};
use crate::support::client::Client;
use crate::support::machine;
use crate::support::place::Place;

/// How many calls are under way at once.
const IN_FLIGHT: usize = 8;
const RUNS: usize = 100;

/// How long each load lasts, in seconds; it is the same for what it is compared with.
fn seconds() -> u64 {
    std::env::var("SANDCELL_BENCH_LOAD_S").map_or(10, |text| text.parse().unwrap())
}

pub fn all(table: &mut Table) {
    let place = Place::with_settings("[limits]\nsandboxes_per_caller = 256\nexecutions_per_caller = 256\n");
    let server = Client::start(&mut place.command(&["serve"]));
    once(&server, "print(1)");
    eprintln!("processor time");
    processor_time(table, &server);
    eprintln!("throughput");
    let rate = throughput(table, &server);
    eprintln!("arrivals at random");
    arrivals(table, &server, rate * 0.7);
    drop(server);
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

/// One number is no distribution: its interval is itself.
fn once_against(value: f64, other: f64) -> (Estimate, (&'static str, Estimate)) {
    let exact = |value| Estimate {
        value,
        low: value,
        high: value,
    };
    (exact(value), (BARE, exact(value / other)))
}

/// Processor time of a process and of those it has waited for, in milliseconds.
fn times(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = text.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: u64 = fields.skip(11).take(4).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 * 1000.0 / rustix::param::clock_ticks_per_second() as f64
}

/// The server, its launcher and all that they have waited for. The launcher is the server's child that has children.
fn all_times(server: &Client) -> f64 {
    let below = machine::descendants(server.pid());
    times(server.pid()) + below.iter().map(|seen| times(seen.pid)).sum::<f64>()
}

fn processor_time(table: &mut Table, server: &Client) {
    let spent = |work: &dyn Fn(), read: &dyn Fn() -> f64| {
        let before = read();
        for _ in 0..RUNS {
            work();
        }
        // Those that wait are made anew, and count.
        std::thread::sleep(Duration::from_secs(1));
        (read() - before) / RUNS as f64
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

/// Seconds of processor time of this process' children that it has waited for.
fn of_children() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields = text.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: u64 = fields.skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// How often a second, with so many under way at once.
fn rate(work: impl Fn() + Sync) -> f64 {
    let done = AtomicUsize::new(0);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds());
    std::thread::scope(|scope| {
        for _ in 0..IN_FLIGHT {
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

fn throughput(table: &mut Table, server: &Client) -> f64 {
    let own = rate(|| once(server, "print(1)"));
    let other = rate(bare);
    let (value, against) = once_against(own, other);
    table.rows.push(Row {
        name: format!("fresh runs a second, {IN_FLIGHT} under way, for {} s", seconds()),
        value,
        unit: "/s",
        against: Some(against),
        goal: Some(1.0),
    });
    own
}

/// Calls that come at random, as of many people who know nothing of each other.
fn arrivals(table: &mut Table, server: &Client, rate: f64) {
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let start = Instant::now();
    let mut due = Duration::ZERO;
    let mut readings = Vec::new();
    std::thread::scope(|scope| {
        let mut calls = Vec::new();
        while due < Duration::from_secs(seconds()) {
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
    let bare = median(&table.bare);
    for (part, name, goal) in [(0.5, "median", None), (0.99, "99 of 100 within", Some(1.0))] {
        let (value, against) = once_against(quantile(&readings, part), bare);
        table.rows.push(Row {
            name: format!("fresh runs that come at random, at 70 % of that rate: {name}"),
            value,
            unit: "ms",
            against: Some(against),
            goal,
        });
    }
}

/// The proportional share of memory of a process, in MiB.
fn share(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    kib.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
        .unwrap_or(0.0)
        / 1024.0
}

fn memory(table: &mut Table) {
    const WAITING: usize = 20;
    let held = |settings: &str, waiting: usize| {
        let place = Place::with_settings(settings);
        let server = Client::start(&mut place.command(&["serve"]));
        // Two processes each: the agent and the interpreter.
        crate::support::until(crate::support::PATIENCE, "sandboxes wait", || {
            let below = machine::descendants(server.pid());
            (below.iter().filter(|seen| seen.name.starts_with("python")).count() == waiting).then_some(())
        });
        std::thread::sleep(Duration::from_millis(500));
        let below = machine::descendants(server.pid());
        (
            share(server.pid()),
            below.iter().map(|seen| share(seen.pid)).sum::<f64>(),
        )
    };
    let (server, none) = held("[pool]\nparked = 0\n", 0);
    let (_, some) = held(&format!("[pool]\nparked = {WAITING}\n"), WAITING);
    let each = (some - none) / WAITING as f64;
    table.rows.push(row(
        "memory of a waiting sandbox, proportional share".to_owned(),
        &[each],
        "MiB",
        Some(2.0),
    ));
    table.rows.push(row(
        "memory of the server with an empty pool, proportional share".to_owned(),
        &[server],
        "MiB",
        Some(20.0),
    ));
}

/// Many sandboxes in one call, each of which then answers.
fn many(table: &mut Table) {
    for (count, goal) in [(100, 300.0), (1000, 2000.0)] {
        let place = Place::with_settings("[limits]\nsandboxes_per_caller = 1000\nsandboxes = 1000\n");
        let server = Client::start(&mut place.command(&["serve"]));
        let mut ids = Vec::new();
        let made = timed(|| {
            let answer = server.call("create_sandbox", json!({"count": count}));
            ids.extend(answer.data()["sandbox_ids"].as_array().unwrap().clone());
        });
        assert_eq!(ids.len(), count);
        let next = AtomicUsize::new(0);
        let answered = timed(|| {
            std::thread::scope(|scope| {
                for _ in 0..IN_FLIGHT {
                    scope.spawn(|| {
                        while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                            let answer = server.call("execute_code", json!({"code": "print(1)", "sandbox_id": id}));
                            assert_eq!(answer.status(), "ok");
                        }
                    });
                }
            });
        });
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        table.rows.push(row(
            format!("`create_sandbox` with `count` = {count}"),
            &[ms(made)],
            "ms",
            None,
        ));
        table.rows.push(row(
            format!("the same, and each of the {count} has answered"),
            &[ms(made) + ms(answered)],
            "ms",
            Some(goal),
        ));
    }
}
