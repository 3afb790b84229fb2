//! What a call costs, against a bare interpreter of the same machine in the same run: `cargo xtask bench`.
//!
//! Each round measures every row once, so that whatever else the machine does hits all of them. Medians and minimums
//! are shown; ratios are of medians, and only they mean something on another machine. Nothing here passes or fails.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "a measuring program that people start by hand"
)]

#[cfg(target_os = "linux")]
#[path = "../tests/e2e/support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the tests' client; they use the rest of it"
)]
mod support;

#[cfg(target_os = "linux")]
fn main() {
    measure::all();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod measure {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use serde_json::json;

    use crate::support::client::Client;
    use crate::support::place::Place;
    use crate::support::{missing, python};

    /// A row of the table: what is measured, and every reading.
    struct Row {
        name: &'static str,
        /// The row that it is compared with, and the target of the ratio where there is one.
        against: Option<(usize, Option<f64>)>,
        readings: Vec<Duration>,
    }

    impl Row {
        fn new(name: &'static str, against: Option<(usize, Option<f64>)>) -> Self {
            Self {
                name,
                against,
                readings: Vec::new(),
            }
        }

        fn median(&self) -> f64 {
            let mut sorted = self.readings.clone();
            sorted.sort();
            sorted[sorted.len() / 2].as_secs_f64() * 1000.0
        }

        fn minimum(&self) -> f64 {
            self.readings.iter().min().unwrap().as_secs_f64() * 1000.0
        }
    }

    const BARE: usize = 0;
    const EMPTY_CALL: usize = 5;

    pub fn all() {
        if let Some(reason) = missing() {
            println!("nothing measured: {reason}");
            return;
        }
        let rounds = std::env::var("SANDCELL_BENCH_ROUNDS").map_or(40, |text| text.parse().unwrap());
        let place = Place::new();
        let server = Client::start(&mut place.command(&["serve"]));
        server.text("x = 0");
        let cold_place = Place::with_settings("[pool]\nparked = 0\n");
        let cold = Client::start(&mut cold_place.command(&["serve"]));
        let mut rows = vec![
            Row::new("python3 -I -S -c 'print(1)', bare", None),
            Row::new("create_run_close print(1), over MCP", Some((BARE, Some(3.0)))),
            Row::new(
                "the same when no sandbox waits (pool.parked = 0)",
                Some((BARE, Some(3.0))),
            ),
            Row::new("sandcell run print(1)", Some((BARE, None))),
            Row::new("start of serve to answer of initialize", None),
            Row::new("tools/list (an empty call)", None),
            Row::new("execute_code x += 1, same session", Some((EMPTY_CALL, None))),
            Row::new(
                "create_sandbox + first execute_code + close_sandbox",
                Some((BARE, None)),
            ),
        ];
        let program = place.write("one.py", "print(1)").display().to_string();
        for round in 0..=rounds {
            let readings = [
                timed(bare),
                timed(|| once(&server)),
                timed(|| once(&cold)),
                timed(|| run_command(&place, &program)),
                hello(&place),
                timed(|| drop(server.request("tools/list", json!({})))),
                timed(|| assert_eq!(server.run("x += 1").status(), "ok")),
                timed(|| one_sandbox(&server)),
            ];
            // The first round only warms up.
            if round > 0 {
                rows.iter_mut()
                    .zip(readings)
                    .for_each(|(row, reading)| row.readings.push(reading));
            }
        }
        show(&rows, rounds);
    }

    fn timed(work: impl FnOnce()) -> Duration {
        let start = Instant::now();
        work();
        start.elapsed()
    }

    fn bare() {
        let output = Command::new(python().unwrap())
            .args(["-I", "-S", "-c", "print(1)"])
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"1\n");
    }

    fn once(server: &Client) {
        let answer = server.call("create_run_close", json!({"code": "print(1)"}));
        assert_eq!(answer.output().trim(), "1");
    }

    fn run_command(place: &Place, program: &str) {
        let mut command = place.command(&["run", program]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.stdout, b"1\n");
    }

    /// From the start of the process to the answer; its end is not counted.
    fn hello(place: &Place) -> Duration {
        let mut command = place.command(&["serve"]);
        let start = Instant::now();
        let server = Client::start_silent(&mut command);
        server.initialize();
        start.elapsed()
    }

    fn one_sandbox(server: &Client) {
        let id = server.call("create_sandbox", json!({})).data()["sandbox_id"].clone();
        let answer = server.call("execute_code", json!({"code": "print(1)", "sandbox_id": id}));
        assert_eq!(answer.status(), "ok");
        server.call("close_sandbox", json!({"sandbox_id": id}));
    }

    fn show(rows: &[Row], rounds: usize) {
        println!("{rounds} rounds, interleaved; milliseconds");
        println!("{:<54} {:>8} {:>8}  ratio of medians", "", "median", "minimum");
        for row in rows {
            let ratio = row.against.map_or_else(String::new, |(other, target)| {
                let goal = target.map_or_else(String::new, |target| format!(" (goal: at most {target:.0}x)"));
                format!(
                    "{:.2}x of \"{}\"{goal}",
                    row.median() / rows[other].median(),
                    rows[other].name
                )
            });
            println!("{:<54} {:>8.2} {:>8.2}  {ratio}", row.name, row.median(), row.minimum());
        }
    }
}
