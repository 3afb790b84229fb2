//! A server under attack: runs attacks in its sandboxes and judges the results.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::canary::{self, Canaries};
use sandcell_attacks::{Attack, ExpectedResult, Needs, PRELUDE, Step};
use sandcell_e2e::client::{Answer, Client};
use sandcell_e2e::{DEFAULT_TIMEOUT, is_root, machine, test_dir::TestDir, until};

/// The maximum time in which the kernel ends the processes of a server. After some attacks it frees a million objects.
/// A process that was forgotten lives longer.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// The maximum growth of the server's own memory while a sandbox floods it.
const MAX_SERVER_GROWTH: u64 = 64 << 20;

/// The user that runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerUser {
    /// The user that runs the tests.
    Current,
    /// A user without any privileges; only root can switch to it.
    Ordinary,
}

impl ServerUser {
    /// Returns all users that the server can run as here.
    pub fn all() -> Vec<Self> {
        if is_root() {
            vec![Self::Current, Self::Ordinary]
        } else {
            vec![Self::Current]
        }
    }

    pub fn is_root(self) -> bool {
        self == Self::Current && is_root()
    }

    pub fn name(self) -> &'static str {
        if self.is_root() { "root" } else { "ordinary user" }
    }
}

/// Returns a copy of the program that this user can start: the build folder may be private, a server's place is not.
fn program(place: &TestDir, user: ServerUser) -> PathBuf {
    let built = sandcell_e2e::binary();
    if user == ServerUser::Current {
        return built;
    }
    let copy = place.work().with_file_name("sandcell");
    if !copy.exists() && std::fs::hard_link(&built, &copy).is_err() {
        std::fs::copy(&built, &copy).unwrap();
    }
    copy
}

/// The result of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Held,
    Breach(String),
    /// The attack neither held nor succeeded: it did not run as intended.
    Unclear(String),
}

/// A server, its place, and the surrounding canaries.
pub struct Target {
    pub user: ServerUser,
    pub client: Client,
    pub canary: Canaries,
    place: TestDir,
    words: Value,
    /// The shared sandbox for harmless attacks.
    shared: Option<String>,
    witness: String,
}

impl Target {
    /// Starts a server with these settings and variables.
    pub fn open(user: ServerUser, settings: &str, variables: &[(&str, &str)]) -> Self {
        let place = TestDir::with_settings(settings);
        for name in ["home", "tmp", "data", "work"] {
            user.give(&place.path(name));
        }
        user.give(place.work().parent().unwrap());
        let canary = Canaries::new(user);
        let mut command = server_command(&place, user, &["serve"]);
        command.envs(variables.iter().copied());
        // Containers have no zygotes.
        let native = variables.iter().all(|(name, _)| *name != "SANDCELL_BACKEND");
        let preloaded = std::env::var("SANDCELL_TEST_PRELOAD").ok().filter(|_| native);
        if let Some(modules) = &preloaded {
            command
                .env("SANDCELL_PRELOAD", modules)
                .env("SANDCELL_POOL__WARM_PARENTS", "true");
        }
        let client = Client::start(&mut command);
        if preloaded.is_some() {
            until(DEFAULT_TIMEOUT, "sessions begin as forks of a zygote", || {
                let answer = client.call("create_run_close", json!({"code": "import os\nprint(os.getppid())"}));
                (answer.output().trim() == "0").then_some(())
            });
        }
        let words = canary.words(client.pid(), &place);
        let mut target = Self {
            user,
            client,
            canary,
            place,
            words,
            shared: None,
            witness: String::new(),
        };
        target.witness = target.create();
        target
    }

    fn create(&self) -> String {
        let made = self.client.call("create_sandbox", json!({}));
        assert!(!made.is_error(), "{made:?}\n{}", self.client.log());
        made.data()["sandbox_id"].as_str().unwrap().to_owned()
    }

    fn close(&self, sandbox: &str) {
        let _ = self.client.call("close_sandbox", json!({"sandbox_id": sandbox}));
    }

    /// Returns the data for an attack's code, as Python.
    pub fn head(&self) -> String {
        // The JSON text is in a Python string and read by json, so that true and null are converted.
        format!(
            "import json\nCANARIES = json.loads({:?})\n{PRELUDE}\n",
            self.words.to_string()
        )
    }

    /// Returns the reason that an attack cannot be tried here.
    pub fn missing(&self, attack: &Attack) -> Option<&'static str> {
        match attack.needs {
            Some(Needs::Root) if !self.user.is_root() => Some("needs a server that is root"),
            Some(Needs::User) if self.user.is_root() => Some("needs a server that is not root"),
            Some(Needs::X86) if !cfg!(target_arch = "x86_64") => Some("needs an x86-64 machine"),
            _ => None,
        }
    }

    /// Makes one attack.
    pub fn try_out(&mut self, attack: &Attack) -> Outcome {
        let own = attack.fresh || attack.uses_two_sandboxes() || attack.steps.len() > 1;
        let first = match (&self.shared, own) {
            (Some(shared), false) => shared.clone(),
            (None, false) => self
                .shared
                .insert(
                    self.client.call("create_sandbox", json!({})).data()["sandbox_id"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                )
                .clone(),
            (_, true) => self.create(),
        };
        let second = if attack.uses_two_sandboxes() {
            Some(self.create())
        } else {
            None
        };
        let idle = machine::private_memory(self.client.pid());
        forget_peak(self.client.pid());
        let (answer, trouble) = self.run_steps(attack, &first, second.as_deref());
        let mut outcome = judge(attack, &answer, trouble);
        if outcome == Outcome::Held
            && let Some(seen) = self.look_from_outside(attack, &first, &answer, idle)
        {
            outcome = Outcome::Breach(seen);
        }
        if own {
            self.close(&first);
        } else if answer.status() != "ok" || answer.state_lost() {
            self.close(&first);
            self.shared = None;
        }
        if let Some(second) = second {
            self.close(&second);
        }
        outcome
    }

    fn run_steps(&self, attack: &Attack, first: &str, second: Option<&str>) -> (Answer, Option<String>) {
        let mut last = Answer(Value::Null);
        let mut seen: Vec<Value> = Vec::new();
        for (number, step) in attack.steps.iter().enumerate() {
            match step {
                Step::Code {
                    second: in_second,
                    text,
                } => {
                    let sandbox = if *in_second { second.unwrap_or(first) } else { first };
                    let seen = Value::from(seen.clone()).to_string();
                    let code = format!(
                        "{}ANSWERS = json.loads({seen:?})\nANSWER = ANSWERS[-1] if ANSWERS else None\n{text}",
                        self.head()
                    );
                    last = self.client.call(
                        "execute_code",
                        json!({"code": code, "sandbox_id": sandbox, "timeout_s": attack.timeout_s.unwrap_or(20.0)}),
                    );
                    let is_last = number + 1 == attack.steps.len();
                    if !is_last && last.status() != "ok" {
                        let trouble = format!("step {number} ended with {}: {}", last.status(), last.all());
                        return (last, Some(trouble));
                    }
                }
                Step::Tool { name, arguments } => {
                    let mut arguments = arguments.clone();
                    if arguments.get("sandbox_id").is_none() && *name != "get_execution" {
                        arguments["sandbox_id"] = json!(first);
                    }
                    let started = Instant::now();
                    let raw = self
                        .client
                        .request_raw("tools/call", json!({"name": name, "arguments": arguments}));
                    let answer = Answer(raw["result"].clone());
                    seen.push(json!({
                        "is_error": answer.is_error() || raw.get("error").is_some(),
                        "text": answer.all(),
                        "took_ms": u64::try_from(started.elapsed().as_millis()).unwrap(),
                    }));
                }
            }
        }
        (last, None)
    }

    /// Checks the effects that only the machine's owner sees.
    fn look_from_outside(&self, attack: &Attack, sandbox: &str, answer: &Answer, idle: u64) -> Option<String> {
        if let Some(touched) = self.canary.touched() {
            return Some(touched.to_owned());
        }
        if !self.client.noise().is_empty() {
            return Some(format!("stdout of the server carried {:?}", self.client.noise()));
        }
        if attack.expect == ExpectedResult::Any {
            let said = self.client.call(
                "execute_code",
                json!({"code": "print(6 * 7)", "sandbox_id": self.witness}),
            );
            if said.output().trim() != "42" {
                return Some(format!("another sandbox does not answer any more: {said:?}"));
            }
            let again = self
                .client
                .call("execute_code", json!({"code": "print(6 * 7)", "sandbox_id": sandbox}));
            if !again.output().contains("42") {
                return Some(format!("the sandbox is of no use afterwards: {again:?}"));
            }
        }
        match attack.outside {
            None | Some("untouched") => None,
            Some("room") => canary::room(self.user).err(),
            Some("server memory") => {
                let grown =
                    machine::peak_memory(self.client.pid()).saturating_sub(idle.max(resident(self.client.pid(), idle)));
                (grown > MAX_SERVER_GROWTH).then(|| format!("the server grew by {} MiB", grown >> 20))
            }
            Some("no escape") => {
                let text = answer.all();
                text.chars()
                    .any(|c| c.is_control() && c != '\n' && c != '\t')
                    .then(|| format!("{text:?}"))
            }
            Some("gone") => {
                self.close(sandbox);
                gone_within(END_PATIENCE, || find_in_command_lines(&self.canary.marker))
            }
            Some("no spinner") => gone_within(Duration::from_secs(2), || {
                machine::descendants(self.client.pid())
                    .into_iter()
                    .find(spins)
                    .map(|seen| format!("{seen:?}"))
            }),
            Some(other) => panic!("{}: nobody looks at {other}", attack.name),
        }
    }

    /// Ends the server and returns anything that is left of it: processes, control groups, mounts, files.
    pub fn finish(self) -> Option<String> {
        let processes = machine::descendants(self.client.pid());
        drop(self.client);
        let left = || {
            let lives = processes
                .iter()
                .find(|seen| seen.lives())
                .map(|seen| format!("{seen:?} lives: {}", machine::activity(seen.pid)));
            let group = machine::groups_of(&processes).into_iter().next();
            let mount = machine::mounts()
                .into_iter()
                .find(|line| line.contains("sandcell-lure") || line.contains("cell-e2e"));
            let file = self.place.temporary_files().into_iter().next();
            lives
                .or(group.map(|path| path.display().to_string()))
                .or(mount)
                .or(file.map(|path| path.display().to_string()))
        };
        gone_within(END_PATIENCE, left)
    }

    /// Returns the folder of this server, for tests that start another one.
    pub fn place(&self) -> &TestDir {
        &self.place
    }
}

/// Returns the server's command line as this user.
pub fn server_command(place: &TestDir, user: ServerUser, arguments: &[&str]) -> Command {
    let template = place.command(arguments);
    let mut command = user.command(&program(place, user));
    command.args(template.get_args());
    command.env_clear().current_dir(place.work());
    for (name, value) in template.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

fn resident(pid: u32, at_least: u64) -> u64 {
    let text = machine::status(pid, "VmRSS").unwrap_or_default();
    let now = text
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024;
    // Resident memory was resident before, or is part of the growth; programs and libraries are neither.
    now.min(at_least + (24 << 20))
}

/// Resets the peak resident size.
fn forget_peak(pid: u32) {
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn spins(seen: &machine::ProcessIdentity) -> bool {
    let ticks = || -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", seen.pid)).ok()?;
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    };
    let before = ticks();
    std::thread::sleep(Duration::from_millis(100));
    matches!((before, ticks()), (Some(before), Some(after)) if after > before + 3)
}

fn find_in_command_lines(marker: &str) -> Option<String> {
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&line).into_owned();
        (text.contains(marker) && !text.contains("json.loads")).then(|| format!("{}: {text}", entry.path().display()))
    })
}

/// Returns the finding that still exists after this time.
fn gone_within(limit: Duration, mut look: impl FnMut() -> Option<String>) -> Option<String> {
    let started = Instant::now();
    loop {
        let seen = look();
        if seen.is_none() || started.elapsed() > limit {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Judges an attack by the execution's text and end.
pub fn judge(attack: &Attack, answer: &Answer, trouble: Option<String>) -> Outcome {
    if let Some(trouble) = trouble {
        return Outcome::Unclear(trouble);
    }
    let text = answer.output();
    if let Some(line) = text.lines().find(|line| line.starts_with("BREACH: ")) {
        return Outcome::Breach(line["BREACH: ".len()..].to_owned());
    }
    let said = text.lines().any(|line| line == "HELD");
    let ended = || Outcome::Unclear(format!("{} {}: {}", answer.status(), answer.cause(), answer.all()));
    match &attack.expect {
        ExpectedResult::Any => Outcome::Held,
        ExpectedResult::Held | ExpectedResult::HeldOrCause(_) if said => Outcome::Held,
        ExpectedResult::HeldOrCause(causes) if causes.iter().any(|cause| *cause == answer.cause()) => Outcome::Held,
        ExpectedResult::Cause(cause) if *cause == answer.cause() => Outcome::Held,
        _ => ended(),
    }
}

/// Returns settings with these limits.
pub fn settings(limits: &[(&str, &str)]) -> String {
    let mut lines = BTreeMap::new();
    for (key, value) in limits {
        let key = match *key {
            "memory" => "memory_mb",
            "disk" => "disk_mb",
            other => other,
        };
        lines.insert(key, *value);
    }
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    if lines.is_empty() {
        String::new()
    } else {
        format!("[limits]\n{}", lines.concat())
    }
}
