//! Reads an attack's file: the description in its head, and its steps.

use serde_json::Value;

use crate::AttackFile;

/// One attack.
///
/// A file begins with a block of `# key: value` lines. The rest is Python for one sandbox, or is cut by `# in: a`, `#
/// in: b` (the first or the second of two sandboxes) and `# tool: NAME {…}` (a call of that tool, whose answer the
/// next step gets as `ANSWER`).
#[derive(Debug, Clone, PartialEq)]
pub struct Attack {
    /// `class/file`.
    pub name: &'static str,
    /// The folder of the catalogue.
    pub class: &'static str,
    /// The attack's description, as a sentence.
    pub what: &'static str,
    /// The layer that holds it.
    pub layer: &'static str,
    /// Layers that would also hold the attack. All of them are off when the test proves the layer.
    pub also_off: Vec<&'static str>,
    /// The reason that removing the layer does not let the attack through here.
    pub unproven: Option<&'static str>,
    /// The layer that holds instead in a container, where the attack means something else.
    pub otherwise: Option<&'static str>,
    /// The expected result.
    pub expect: ExpectedResult,
    /// The server or machine without which the attack cannot be tried.
    pub needs: Option<Needs>,
    /// True when only a server that runs as root can show that the layer matters.
    pub proof_needs_root: bool,
    /// `limits.KEY = VALUE` of the settings.
    pub limits: Vec<(&'static str, &'static str)>,
    /// The limits with which the attack succeeds.
    pub raised: Vec<(&'static str, &'static str)>,
    /// The attack needs a separate sandbox, closed afterwards.
    pub fresh: bool,
    /// The time limit of each step, in seconds.
    pub timeout_s: Option<f64>,
    /// The check made from outside.
    pub outside: Option<&'static str>,
    /// The code and the calls, in order.
    pub steps: Vec<Step>,
}

/// The result that an attack must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedResult {
    /// The last line reports that the attack was held.
    Held,
    /// The last line reports that the attack was held, or the execution was ended for one of these causes.
    HeldOrCause(Vec<&'static str>),
    /// The execution ends with this cause.
    Cause(&'static str),
    /// Any end is accepted, as long as the server and other sandboxes continue.
    Any,
}

/// The server or machine that an attack needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A server that runs as root.
    Root,
    /// A server that runs as an ordinary user.
    User,
    /// An x86-64 machine.
    X86,
}

/// One step of an attack.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Code runs in a sandbox.
    Code {
        /// True for the second of two sandboxes.
        second: bool,
        /// The Python code.
        text: String,
    },
    /// A client calls a tool.
    Tool {
        /// The name of the tool.
        name: &'static str,
        /// The arguments of the call.
        arguments: Value,
    },
}

/// The part of a file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AttackError {
    /// The file has no code.
    #[error("{attack}: no code")]
    NoCode {
        /// The attack's name.
        attack: &'static str,
    },
    /// A key is missing.
    #[error("{attack}: no `# {key}:`")]
    Missing {
        /// The attack's name.
        attack: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A line has no value, or an unknown key.
    #[error("{attack}: `# {line}` means nothing")]
    Unknown {
        /// The attack's name.
        attack: &'static str,
        /// The line, without `# `.
        line: &'static str,
    },
    /// A value is not one of those that the key may have.
    #[error("{attack}: `# {key}:` cannot be {value}")]
    Value {
        /// The attack's name.
        attack: &'static str,
        /// The key.
        key: &'static str,
        /// The value.
        value: &'static str,
    },
    /// The arguments of a tool's call are not JSON.
    #[error("{attack}: the arguments of {tool}")]
    Arguments {
        /// The attack's name.
        attack: &'static str,
        /// The tool.
        tool: &'static str,
        /// The reason.
        source: serde_json::Error,
    },
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

impl Attack {
    /// Returns true when the attack uses two sandboxes.
    #[must_use]
    pub fn uses_two_sandboxes(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, Step::Code { second: true, .. }))
    }

    /// Returns true when the attack is plain code for one sandbox.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.steps.as_slice(), [Step::Code { .. }])
    }

    /// Reads the head and the steps of a file.
    ///
    /// # Errors
    ///
    /// The head lacks a key, has one that means nothing, or a value that it cannot have.
    pub fn parse(file: &AttackFile) -> Result<Self, AttackError> {
        for line in file.head() {
            if !line.split_once(": ").is_some_and(|(key, _)| HEAD_KEYS.contains(&key)) {
                return Err(AttackError::Unknown {
                    attack: file.name,
                    line,
                });
            }
        }
        let head = Head(file);
        Ok(Self {
            name: file.name,
            class: head.must("class")?,
            what: head.must("attack")?,
            layer: head.must("layer")?,
            also_off: head.list("also_off"),
            unproven: file.value("unproven"),
            otherwise: file.value("containers"),
            expect: expected_result(head.must("expect")?),
            needs: head.convert("needs", |text| match text {
                "root" => Some(Needs::Root),
                "user" => Some(Needs::User),
                "x86_64" => Some(Needs::X86),
                _ => None,
            })?,
            proof_needs_root: file.value("proof") == Some("root"),
            limits: head.pairs("limits")?,
            raised: head.pairs("raised")?,
            fresh: file.value("fresh").is_some(),
            timeout_s: head.convert("timeout", |text| text.parse().ok())?,
            outside: file.value("outside"),
            steps: steps(file)?,
        })
    }
}

/// The head of a file, with the file's name for errors.
struct Head<'a>(&'a AttackFile);

impl Head<'_> {
    fn must(&self, key: &'static str) -> Result<&'static str, AttackError> {
        let attack = self.0.name;
        self.0.value(key).ok_or(AttackError::Missing { attack, key })
    }

    fn list(&self, key: &'static str) -> Vec<&'static str> {
        self.0
            .value(key)
            .map(|text| text.split(", ").collect())
            .unwrap_or_default()
    }

    fn pairs(&self, key: &'static str) -> Result<Vec<(&'static str, &'static str)>, AttackError> {
        let pair = |value: &'static str| {
            value.split_once('=').ok_or(AttackError::Value {
                attack: self.0.name,
                key,
                value,
            })
        };
        self.list(key).into_iter().map(pair).collect()
    }

    fn convert<T>(
        &self,
        key: &'static str,
        convert: impl Fn(&'static str) -> Option<T>,
    ) -> Result<Option<T>, AttackError> {
        let Some(value) = self.0.value(key) else {
            return Ok(None);
        };
        let converted = convert(value).ok_or(AttackError::Value {
            attack: self.0.name,
            key,
            value,
        })?;
        Ok(Some(converted))
    }
}

fn expected_result(text: &'static str) -> ExpectedResult {
    match text.split_once(" or ") {
        Some(("held", causes)) => ExpectedResult::HeldOrCause(causes.split(" or ").collect()),
        _ if text == "held" => ExpectedResult::Held,
        _ if text == "any" => ExpectedResult::Any,
        _ => ExpectedResult::Cause(text),
    }
}

fn steps(file: &AttackFile) -> Result<Vec<Step>, AttackError> {
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
    for line in file.text.lines().skip(file.head().count()) {
        if let Some(which) = line.strip_prefix("# in: ") {
            finish(&mut code, second, &mut steps);
            second = which == "b";
        } else if let Some(call) = line.strip_prefix("# tool: ") {
            finish(&mut code, second, &mut steps);
            let (name, arguments) = call.split_once(' ').unwrap_or((call, ""));
            let arguments = serde_json::from_str(arguments).map_err(|source| AttackError::Arguments {
                attack: file.name,
                tool: name,
                source,
            })?;
            steps.push(Step::Tool { name, arguments });
        } else {
            code.push_str(line);
            code.push('\n');
        }
    }
    finish(&mut code, second, &mut steps);
    if steps.is_empty() {
        return Err(AttackError::NoCode { attack: file.name });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACK_HEAD: &str = "# attack: try it\n# class: a\n# layer: seccomp\n# expect: held or timeout\n";

    fn parse(text: String) -> Result<Attack, AttackError> {
        Attack::parse(&AttackFile {
            name: "a/b",
            text: text.leak(),
        })
    }

    #[test]
    fn a_head_and_its_steps_are_read() {
        let attack = parse(format!(
            "{ATTACK_HEAD}# limits: memory=64, disk=1\n# timeout: 2.5\n\nx = 1\n# tool: read_file {{\"path\": \"x\"}}\n\
             # in: b\nprint(ANSWER)\n"
        ))
        .unwrap();
        assert_eq!(attack.expect, ExpectedResult::HeldOrCause(vec!["timeout"]));
        assert_eq!(attack.limits, [("memory", "64"), ("disk", "1")]);
        assert_eq!(attack.timeout_s, Some(2.5));
        assert!(attack.uses_two_sandboxes() && !attack.is_plain());
        let arguments = serde_json::json!({"path": "x"});
        assert_eq!(
            attack.steps,
            [
                Step::Code {
                    second: false,
                    text: "\nx = 1\n".to_owned()
                },
                Step::Tool {
                    name: "read_file",
                    arguments
                },
                Step::Code {
                    second: true,
                    text: "print(ANSWER)\n".to_owned()
                },
            ]
        );
    }

    #[test]
    fn a_head_that_means_nothing_is_refused() {
        let refused = |text: &str| parse(text.to_owned()).unwrap_err().to_string();
        assert_eq!(refused("# attack: x\n\npass\n"), "a/b: no `# class:`");
        assert_eq!(
            refused(&format!("{ATTACK_HEAD}# colour: red\n\npass\n")),
            "a/b: `# colour: red` means nothing"
        );
        assert_eq!(
            refused(&format!("{ATTACK_HEAD}# needs: luck\n\npass\n")),
            "a/b: `# needs:` cannot be luck"
        );
        assert_eq!(
            refused(&format!("{ATTACK_HEAD}# limits: memory\n\npass\n")),
            "a/b: `# limits:` cannot be memory"
        );
        assert_eq!(
            refused(&format!("{ATTACK_HEAD}# tool: x y\n")),
            "a/b: `# tool: x y` means nothing"
        );
        assert_eq!(
            refused(&format!("{ATTACK_HEAD}\n# tool: read_file {{\n")),
            "a/b: the arguments of read_file"
        );
        assert_eq!(refused(ATTACK_HEAD), "a/b: no code");
    }
}
