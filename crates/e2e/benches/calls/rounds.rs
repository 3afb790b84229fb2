//! The measurements of each round, row by row.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bare_server;
use crate::packages::Packages;
use crate::statistics::{Estimate, median_of, ratio_of};
use sandcell_e2e::client::Client;
use sandcell_e2e::python;
use sandcell_e2e::test_dir::TestDir;

/// A pause before calls, as of a person who makes one call at a time.
const CALL_INTERVAL: Duration = Duration::from_millis(30);
/// The number of calls without a pause, as from a loop.
const CALLS_IN_A_ROW: u32 = 50;

/// A row of the table.
pub struct Row {
    pub name: String,
    /// The number, and its unit.
    pub value: Estimate,
    pub unit: &'static str,
    /// The row of the comparison, and the ratio.
    pub against: Option<(&'static str, Estimate)>,
    /// The goal: a ratio if the row has one, else a value in the unit. It is the maximum or, for rates, the minimum.
    pub goal: Option<f64>,
}

pub const BARE_INTERPRETER: &str = "a bare interpreter";
pub const EMPTY_TOOL: &str = "an empty tool";
const EMPTY_IN_A_ROW: &str = "an empty tool in a row";
const FRESH_RUN: &str = "`create_run_close` of `print(1)`, made ahead";
const LIBRARY_RUN: &str = "`create_run_close` that loads numpy, pandas and pyplot";
const UV_INSTALL: &str = "`uv venv` and `uv pip install --offline` of numpy, pandas, matplotlib and scikit-learn";

/// The measured rows. Later measurements compare with them.
pub struct Table {
    pub rows: Vec<Row>,
}

/// A quantity measured once a round, in seconds.
struct Measured<'a> {
    name: &'static str,
    against: Option<&'static str>,
    goal: Option<f64>,
    work: Box<dyn FnMut() -> Duration + 'a>,
}

pub fn all(rounds: usize) -> Table {
    let place = TestDir::new();
    let server = Client::start(&mut place.command(&["serve"]));
    server.text("x = 0");
    let none_place = TestDir::with_settings("[pool]\nparked = 0\n");
    let none_waits = Client::start(&mut none_place.command(&["serve"]));
    let alone_place = TestDir::with_settings("[pool]\nparked = 0\nwarm_parents = false\n");
    let cold = Client::start(&mut alone_place.command(&["serve"]));
    let bare_server = bare_server::client();
    let mut echo = Echo::start();
    let program = place.write("one.py", "print(1)").display().to_string();
    let data = Data::here().as_ref().map(Loaded::start);
    let packages = Packages::here();

    let mut measured = vec![
        Measured::new("`python3 -I -S -c 'print(1)'`, bare", None, None, || timed(bare)),
        Measured::new("an empty tool of a bare MCP server", None, None, || {
            std::thread::sleep(CALL_INTERVAL);
            timed(|| drop(bare_server.call("empty", json!({}))))
        }),
        Measured::new(EMPTY_IN_A_ROW, None, None, || {
            each_of(CALLS_IN_A_ROW, || drop(bare_server.call("empty", json!({}))))
        }),
        Measured::new("a line through a pipe and back (`cat`)", None, None, || {
            timed(|| echo.once())
        }),
        Measured::new(FRESH_RUN, Some(BARE_INTERPRETER), Some(0.1), || {
            std::thread::sleep(CALL_INTERVAL);
            timed(|| once(&server, "print(1)"))
        }),
        Measured::new(
            "the same, nothing made ahead (`pool.parked = 0`)",
            Some(BARE_INTERPRETER),
            Some(0.7),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| once(&none_waits, "print(1)"))
            },
        ),
        Measured::new(
            "the same, with an interpreter of its own (`pool.warm_parents = false`)",
            Some(BARE_INTERPRETER),
            Some(1.5),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| once(&cold, "print(1)"))
            },
        ),
        Measured::new(
            "`execute_code` of `x += 1` in a session",
            Some(EMPTY_TOOL),
            Some(2.0),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| assert_eq!(server.run("x += 1").status(), "ok"))
            },
        ),
        Measured::new("the same in a row", Some(EMPTY_IN_A_ROW), Some(2.0), || {
            each_of(CALLS_IN_A_ROW, || assert_eq!(server.run("x += 1").status(), "ok"))
        }),
        Measured::new("`tools/list`", Some(EMPTY_TOOL), None, || {
            std::thread::sleep(CALL_INTERVAL);
            timed(|| drop(server.request("tools/list", json!({}))))
        }),
        Measured::new(
            "`create_sandbox`, first `execute_code`, `close_sandbox`",
            Some(BARE_INTERPRETER),
            None,
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| one_sandbox(&server))
            },
        ),
        Measured::new(
            "`sandcell run` of `print(1)`, the whole command",
            Some(BARE_INTERPRETER),
            None,
            || timed(|| run_command(&place, &program)),
        ),
        Measured::new(
            "start of `sandcell serve` to the answer of `initialize`",
            None,
            Some(10.0),
            || hello(&place),
        ),
        Measured::new(
            "rival: an MCP server that runs it as a plain process",
            Some(BARE_INTERPRETER),
            None,
            || timed(|| assert_eq!(bare_server.call("run", json!({"code": "print(1)"})).all(), "1\n")),
        ),
    ];
    if bubblewrap().is_some_and(|mut command| succeeds(&mut command)) {
        measured.push(Measured::new(
            "rival: bubblewrap, its namespaces only",
            Some(BARE_INTERPRETER),
            None,
            || timed(|| assert_eq!(bubblewrap().unwrap().output().unwrap().stdout, b"1\n")),
        ));
    }
    if let Some(image) = docker_image() {
        measured.push(Measured::new(
            "rival: `docker run --rm --network none`",
            Some(BARE_INTERPRETER),
            None,
            move || timed(|| assert_eq!(docker(&image).output().unwrap().stdout, b"1\n")),
        ));
    }
    if let Some(data) = &data {
        measured.push(Measured::new(LIBRARY_RUN, Some(BARE_INTERPRETER), None, || {
            timed(|| once(&data.plain, Data::IMPORT_CODE))
        }));
        measured.push(Measured::new(
            "the same with the three in `preload`",
            Some(FRESH_RUN),
            Some(1.5),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| once(&data.ahead, Data::IMPORT_CODE))
            },
        ));
        measured.push(Measured::new(
            "the same once more, against loading them",
            Some(LIBRARY_RUN),
            Some(0.002),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| once(&data.ahead, Data::IMPORT_CODE))
            },
        ));
    }
    if let Some(packages) = &packages {
        measured.push(Measured::new(UV_INSTALL, None, None, || timed(|| packages.by_uv())));
        measured.push(Measured::new(
            "a sandbox that has them, from the store",
            Some(UV_INSTALL),
            Some(0.05),
            || {
                std::thread::sleep(CALL_INTERVAL);
                timed(|| packages.by_sandbox())
            },
        ));
    }
    let readings = run(&mut measured, rounds);
    let of = |against| match against {
        BARE_INTERPRETER => &readings[0],
        EMPTY_TOOL => &readings[1],
        named => &readings[measured.iter().position(|other| other.name == named).unwrap()],
    };
    let rows = measured
        .iter()
        .zip(&readings)
        .map(|(measured, own)| Row {
            name: measured.name.to_owned(),
            value: median_of(own),
            unit: "ms",
            against: measured.against.map(|against| (against, ratio_of(own, of(against)))),
            goal: measured.goal,
        })
        .collect();
    Table { rows }
}

fn run(measured: &mut [Measured<'_>], rounds: usize) -> Vec<Vec<f64>> {
    let mut readings = vec![Vec::with_capacity(rounds); measured.len()];
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for (row, own) in measured.iter_mut().zip(&mut readings) {
            let reading = (row.work)().as_secs_f64() * 1000.0;
            // The first round only warms up.
            if round > 0 {
                own.push(reading);
            }
        }
    }
    readings
}

impl<'a> Measured<'a> {
    fn new(
        name: &'static str,
        against: Option<&'static str>,
        goal: Option<f64>,
        work: impl FnMut() -> Duration + 'a,
    ) -> Self {
        Self {
            name,
            against,
            goal,
            work: Box::new(work),
        }
    }
}

pub fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Returns the mean duration of `count` consecutive runs.
fn each_of(count: u32, mut work: impl FnMut()) -> Duration {
    timed(|| (0..count).for_each(|_| work())) / count
}

pub fn bare() {
    let mut command = Command::new(python().unwrap());
    command.args(["-I", "-S", "-c", "print(1)"]).env_clear();
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.stdout, b"1\n");
}

pub fn once(server: &Client, code: &str) {
    let answer = server.call("create_run_close", json!({"code": code}));
    assert_eq!(answer.output().trim(), "1", "{answer:?}");
}

fn run_command(place: &TestDir, program: &str) {
    let mut command = place.command(&["run", program]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.stdout, b"1\n");
}

/// Measures the time from the start of the process to the answer. The end of the process does not count.
fn hello(place: &TestDir) -> Duration {
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

/// A process that echoes its input.
struct Echo(Child);

impl Echo {
    fn start() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn once(&mut self) {
        let line = *b"{\"code\": \"x += 1\"}\n";
        let mut back = [0; 19];
        self.0.stdin.as_mut().unwrap().write_all(&line).unwrap();
        self.0.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        assert_eq!(line, back);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.stdout == b"1\n")
}

fn bubblewrap() -> Option<Command> {
    let python = python()?;
    let mut command = Command::new("bwrap");
    command.args([
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
        "--proc",
        "/proc",
    ]);
    command.args([
        "--dev",
        "/dev",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ]);
    command.arg(python).args(["-I", "-S", "-c", "print(1)"]).env_clear();
    command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    Some(command)
}

/// Returns an image with Python that this machine already has; nothing is pulled.
fn docker_image() -> Option<String> {
    let listed = Command::new("docker")
        .args(["images", "--format", "{{.Repository}}:{{.Tag}}", "python"])
        .output()
        .ok()?;
    let image = String::from_utf8(listed.stdout).ok()?.lines().next()?.to_owned();
    succeeds(&mut docker(&image)).then_some(image)
}

fn docker(image: &str) -> Command {
    let mut command = Command::new("docker");
    command.args([
        "run",
        "--rm",
        "--network",
        "none",
        image,
        "python3",
        "-I",
        "-S",
        "-c",
        "print(1)",
    ]);
    command.stdin(Stdio::null());
    command
}

/// The source of the data libraries: a base, which `SANDCELL_BENCH_BASE` names and which was built in the data folder
/// `SANDCELL_BENCH_DATA`, or an interpreter's own packages, `SANDCELL_TEST_DATA_PYTHON`.
pub struct Data {
    /// The setting that gives sandboxes the libraries.
    setting: String,
    folder: Option<PathBuf>,
}

impl Data {
    pub const IMPORT_CODE: &'static str = "import numpy, pandas, matplotlib.pyplot\nprint(1)";

    pub fn here() -> Option<Self> {
        let variable = |name| std::env::var(name).ok();
        if let (Some(base), Some(folder)) = (variable("SANDCELL_BENCH_BASE"), variable("SANDCELL_BENCH_DATA")) {
            return Some(Self {
                setting: format!("base = {base:?}\n"),
                folder: Some(folder.into()),
            });
        }
        let python = variable("SANDCELL_TEST_DATA_PYTHON")?;
        Some(Self {
            setting: format!("python = {python:?}\n"),
            folder: None,
        })
    }

    /// Settings for sandboxes that have loaded them before they are asked for.
    fn preloaded(&self) -> String {
        let setting = &self.setting;
        format!("{setting}preload = [\"numpy\", \"pandas\", \"matplotlib.pyplot\"]\n")
    }
}

/// Servers whose sandboxes have the data libraries.
struct Loaded {
    ahead: Client,
    plain: Client,
    _places: [TestDir; 2],
}

impl Loaded {
    fn start(data: &Data) -> Self {
        let places = [data.preloaded(), data.setting.clone()].map(|settings| TestDir::with_settings(&settings));
        let start = |place: &TestDir| {
            let mut command = place.command(&["serve"]);
            if let Some(folder) = &data.folder {
                command.env("SANDCELL_DATA_DIR", folder);
            }
            Client::start(&mut command)
        };
        let ahead = start(&places[0]);
        // Modules are loaded after the start.
        std::thread::sleep(Duration::from_secs(10));
        Self {
            ahead,
            plain: start(&places[1]),
            _places: places,
        }
    }
}
