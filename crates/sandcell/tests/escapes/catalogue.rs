//! The attacks as files: each file's description, and its steps.
//!
//! A file begins with a block of `# key: value` lines; the rest is Python for one sandbox, or is cut by `# in: a`, `#
//! in: b` (the first or the second of two sandboxes) and `# tool: NAME {…}` (a call of that tool, whose answer the
//! next step gets as `ANSWER`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Layers that limit amounts or are outside of the plan, by their names in the files.
pub const OTHER_LAYERS: [&str; 8] = [
    "memory_limit",
    "cpu_limit",
    "process_limit",
    "disk_limit",
    "time_limit",
    "output_limit",
    "file_tools",
    "protocol",
];

/// The code placed before every attack.
pub const PRELUDE: &str = include_str!("attacks/prelude.py");

/// One attack.
#[derive(Debug, Clone)]
pub struct Attack {
    /// `class/file`.
    pub name: String,
    pub class: String,
    /// The attack's description, as a sentence.
    pub what: String,
    /// The layer that holds it.
    pub layer: String,
    /// Layers that would also hold the attack. All of them are off when the test proves the layer.
    pub also_off: Vec<String>,
    /// The reason that removing the layer does not let the attack through here.
    pub unproven: Option<String>,
    /// The layer that holds instead in a container, where the attack means something else.
    pub otherwise: Option<String>,
    pub expect: ExpectedResult,
    pub needs: Option<Needs>,
    /// True when only a server that runs as root can show that the layer matters.
    pub proof_needs_root: bool,
    /// `limits.KEY = VALUE` of the settings.
    pub limits: Vec<(String, String)>,
    /// The limits with which the attack succeeds.
    pub raised: Vec<(String, String)>,
    /// The attack needs a separate sandbox, closed afterwards.
    pub fresh: bool,
    pub timeout_s: Option<f64>,
    /// The check made from outside.
    pub outside: Option<String>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedResult {
    /// The last line reports that the attack was held.
    Held,
    /// The last line reports that the attack was held, or the execution was ended for one of these causes.
    HeldOrCause(Vec<String>),
    /// The execution ends with this cause.
    Cause(String),
    /// Any end is accepted, as long as the server and other sandboxes continue.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A server that runs as root.
    Root,
    /// A server that runs as an ordinary user.
    User,
    /// An x86-64 machine.
    X86,
}

#[derive(Debug, Clone)]
pub enum Step {
    Code { second: bool, text: String },
    Tool { name: String, arguments: Value },
}

impl Attack {
    /// Returns true when the attack uses two sandboxes.
    pub fn meets(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Code { second: true, .. }))
    }

    /// Returns true when the attack is plain code for one sandbox.
    pub fn is_plain(&self) -> bool {
        matches!(self.steps.as_slice(), [Step::Code { .. }])
    }

    fn parse(name: String, text: &str) -> Self {
        let end = text
            .lines()
            .position(|line| !line.starts_with("# "))
            .unwrap_or_else(|| panic!("{name}: no code"));
        let head: Vec<(&str, &str)> = text
            .lines()
            .take(end)
            .map(|line| line[2..].split_once(": ").unwrap_or_else(|| panic!("{name}: {line}")))
            .collect();
        let get = |key: &str| {
            head.iter()
                .find(|(found, _)| *found == key)
                .map(|(_, value)| (*value).to_owned())
        };
        let must = |key: &str| get(key).unwrap_or_else(|| panic!("{name}: no `# {key}:`"));
        let list = |key: &str| -> Vec<String> {
            get(key)
                .map(|text| text.split(", ").map(str::to_owned).collect())
                .unwrap_or_default()
        };
        let pairs = |key: &str| -> Vec<(String, String)> {
            list(key)
                .iter()
                .map(|pair| pair.split_once('=').unwrap_or_else(|| panic!("{name}: {pair}")))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        for (key, _) in &head {
            assert!(HEAD_KEYS.contains(key), "{name}: `# {key}:` means nothing");
        }
        Self {
            class: must("class"),
            what: must("attack"),
            layer: must("layer"),
            also_off: list("also_off"),
            unproven: get("unproven"),
            otherwise: get("containers"),
            expect: expect(&must("expect")),
            needs: get("needs").map(|needs| match needs.as_str() {
                "root" => Needs::Root,
                "user" => Needs::User,
                "x86_64" => Needs::X86,
                _ => panic!("{name}: needs {needs}"),
            }),
            proof_needs_root: get("proof").is_some_and(|user| user == "root"),
            limits: pairs("limits"),
            raised: pairs("raised"),
            fresh: get("fresh").is_some(),
            timeout_s: get("timeout").map(|text| text.parse().unwrap()),
            outside: get("outside"),
            steps: steps(&text.lines().skip(end).collect::<Vec<_>>()),
            name,
        }
    }
}

const HEAD_KEYS: [&str; 16] = [
    "attack",
    "class",
    "layer",
    "expect",
    "also_off",
    "unproven",
    "needs",
    "limits",
    "raised",
    "fresh",
    "timeout",
    "outside",
    "quick",
    "proof",
    "containers",
    "weaker",
];

fn expect(text: &str) -> ExpectedResult {
    match text.split_once(" or ") {
        Some(("held", causes)) => ExpectedResult::HeldOrCause(causes.split(" or ").map(str::to_owned).collect()),
        _ if text == "held" => ExpectedResult::Held,
        _ if text == "any" => ExpectedResult::Any,
        _ => ExpectedResult::Cause(text.to_owned()),
    }
}

fn steps(lines: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut second = false;
    let mut code = String::new();
    let finish = |code: &mut String, second: bool, steps: &mut Vec<Step>| {
        if !code.trim().is_empty() {
            steps.push(Step::Code {
                second,
                text: std::mem::take(code),
            });
        }
        code.clear();
    };
    for line in lines {
        if let Some(which) = line.strip_prefix("# in: ") {
            finish(&mut code, second, &mut steps);
            second = which == "b";
        } else if let Some(call) = line.strip_prefix("# tool: ") {
            finish(&mut code, second, &mut steps);
            let (name, arguments) = call.split_once(' ').unwrap();
            steps.push(Step::Tool {
                name: name.to_owned(),
                arguments: serde_json::from_str(arguments).unwrap(),
            });
        } else {
            code.push_str(line);
            code.push('\n');
        }
    }
    finish(&mut code, second, &mut steps);
    steps
}

/// Returns the folder with the attacks: next to this file, or where the tests were staged for another user.
fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escapes/attacks");
    if own.is_dir() {
        own
    } else {
        PathBuf::from("crates/sandcell/tests/escapes/attacks")
    }
}

/// Returns every attack, by name.
pub fn all() -> Vec<Attack> {
    let folder = folder();
    let mut attacks = Vec::new();
    for class in std::fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
    {
        for file in std::fs::read_dir(class.path()).unwrap().flatten() {
            let path = file.path();
            if path.extension().is_none_or(|extension| extension != "py") {
                continue;
            }
            let name = path
                .strip_prefix(&folder)
                .unwrap()
                .with_extension("")
                .display()
                .to_string();
            attacks.push(Attack::parse(name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    attacks.sort_by(|one, two| one.name.cmp(&two.name));
    attacks
}

/// Returns the attacks of one class.
pub fn of(class: &str) -> Vec<Attack> {
    all().into_iter().filter(|attack| attack.class == class).collect()
}

/// Returns all classes.
pub fn classes() -> BTreeSet<String> {
    all().into_iter().map(|attack| attack.class).collect()
}
