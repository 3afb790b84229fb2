//! The results of the three commands, read from their files in the work folder.

use std::path::Path;

use serde_json::Value;

use crate::row::{Command, End, Expected};

/// A command's results.
#[derive(Debug, Default)]
pub(crate) struct CommandResult {
    /// None when the command never ended.
    status: Option<i32>,
    out: String,
    err: String,
}

impl CommandResult {
    pub(crate) fn read(folder: &Path, command: Command) -> Self {
        let text = |end: &str| {
            let bytes = std::fs::read(folder.join(format!("{}.{end}", command.name()))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Self {
            status: text("status").trim().parse().ok(),
            out: text("out"),
            err: text("err"),
        }
    }

    /// Returns a summary for people.
    fn summary(&self, command: Command) -> String {
        let status = self
            .status
            .map_or_else(|| "never ended".to_owned(), |status| format!("status {status}"));
        let out = match command {
            Command::Run => self.out.clone(),
            Command::Serve => {
                let answers = [2, 3].into_iter().filter_map(|id| self.answer(id));
                answers.map(|answer| answer["result"]["content"].to_string()).collect()
            }
            Command::Doctor => self.reasons(),
        };
        let cut = |text: &str| text.trim().chars().take(700).collect::<String>();
        format!(
            "{status}\n      stdout: {}\n      stderr: {}",
            cut(&out),
            cut(&self.err)
        )
    }

    /// Returns the doctor's failures, each with its remedy.
    fn reasons(&self) -> String {
        let failures = self.failures(Command::Doctor);
        let told = failures.iter().filter(|failure| !failure.message.starts_with("HELD"));
        let cut = |text: &str| text.chars().take(160).collect::<String>();
        told.map(|failure| format!("\n        {} -> {}", cut(&failure.message), cut(&failure.remedy)))
            .collect()
    }

    /// Returns the differences from the expected results; none when there are none.
    pub(crate) fn differs(&self, command: Command, expected: &Expected) -> Option<String> {
        let failures = self.failures(command);
        let good = self.good(command);
        let mut wrong = Vec::new();
        match &expected.end {
            End::Ok if !good => wrong.push("it did not work".to_owned()),
            End::Ok => {}
            _ if good => wrong.push("it worked".to_owned()),
            // The dynamic loader failed; the program printed nothing.
            End::Dies if !failures.is_empty() || !self.out.is_empty() => wrong.push("it started".to_owned()),
            End::Dies => {}
            // doctor reports causes, not codes.
            End::Refused(code)
                if command != Command::Doctor && !failures.iter().any(|failure| &failure.code == code) =>
            {
                wrong.push(format!("its code is not {code}"));
            }
            End::Refused(_) => {}
        }
        if self.err.contains("panicked at") {
            wrong.push("it panicked".to_owned());
        }
        for part in &expected.cause {
            if !failures.iter().any(|failure| failure.message.contains(part)) {
                wrong.push(format!("no cause has {part:?}"));
            }
        }
        for part in &expected.remedy {
            if !failures.iter().any(|failure| failure.remedy.contains(part)) {
                wrong.push(format!("no remedy has {part:?}"));
            }
        }
        for part in &expected.says {
            if !self.out.contains(part) && !self.err.contains(part) {
                wrong.push(format!("nothing says {part:?}"));
            }
        }
        if command == Command::Doctor
            && expected.end == End::Refused("isolation_unavailable".to_owned())
            && self.all_layers_are_active()
        {
            wrong.push("every layer is shown as active although none can be given".to_owned());
        }
        let name = command.name();
        (!wrong.is_empty()).then(|| format!("{name}: {}: {}", wrong.join("; "), self.summary(command)))
    }

    /// Returns true when code ran, or for doctor, when all is well.
    fn good(&self, command: Command) -> bool {
        match command {
            Command::Run => self.status == Some(0) && self.out == "1\n",
            Command::Serve => {
                self.status == Some(0)
                    && self
                        .answer(2)
                        .is_some_and(|answer| answer["result"]["isError"] == false)
                    && self.answer(3).is_some_and(|answer| {
                        answer["result"]["content"][0]["text"]
                            .as_str()
                            .is_some_and(|text| text.contains("result: 2"))
                    })
            }
            Command::Doctor => {
                self.status == Some(0)
                    && serde_json::from_str::<Value>(&self.out).is_ok_and(|report| report["ok"] == true)
            }
        }
    }

    /// Returns the answer to a request of the probe.
    fn answer(&self, id: u64) -> Option<Value> {
        let mut answers = self
            .out
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        answers.find(|answer| answer["id"] == id)
    }

    /// Returns the reported failures.
    fn failures(&self, command: Command) -> Vec<Failure> {
        let mut found = Vec::new();
        // Any command may fail before it does anything: `error: MESSAGE [CODE]` and `  fix: REMEDY`
        for line in self.err.lines() {
            if let Some(message) = line.strip_prefix("error: ") {
                let (message, code) = message.rsplit_once(" [").unwrap_or((message, ""));
                found.push(Failure::new(code.trim_end_matches(']'), message, ""));
            } else if let Some(remedy) = line.trim_start().strip_prefix("fix: ")
                && let Some(last) = found.last_mut()
            {
                remedy.clone_into(&mut last.remedy);
            }
        }
        match command {
            Command::Run => {}
            Command::Serve => {
                for answer in [2, 3].into_iter().filter_map(|id| self.answer(id)) {
                    let error = &answer["result"]["_meta"]["sandcell/error"];
                    let cause = &answer["result"]["_meta"]["sandcell/execution"]["cause"];
                    found.extend([error, cause].into_iter().filter_map(Failure::of));
                }
            }
            Command::Doctor => {
                let report: Value = serde_json::from_str(&self.out).unwrap_or_default();
                collect(&report, &mut found);
            }
        }
        found
    }

    fn all_layers_are_active(&self) -> bool {
        let report: Value = serde_json::from_str(&self.out).unwrap_or_default();
        let layers = report["layers"].as_array().cloned().unwrap_or_default();
        !layers.is_empty() && layers.iter().all(|layer| layer["state"] == "active")
    }
}

#[derive(Debug)]
struct Failure {
    code: String,
    message: String,
    remedy: String,
}

impl Failure {
    fn new(code: &str, message: &str, remedy: &str) -> Self {
        Self {
            code: code.to_owned(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    fn of(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        value
            .is_object()
            .then(|| Self::new(text("code"), text("message"), text("remedy")))
    }
}

/// Collects every reason, message or detail of a report with its remedy.
fn collect(value: &Value, found: &mut Vec<Failure>) {
    match value {
        Value::Object(fields) => {
            for key in ["reason", "message", "detail"] {
                if let Some(reason) = fields.get(key).and_then(Value::as_str) {
                    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
                    found.push(Failure::new(text("code"), reason, text("remedy")));
                }
            }
            fields.values().for_each(|value| collect(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}

/// Checks that wrong results are detected.
pub(crate) fn tests() -> Result<(), String> {
    let expected = |end| Expected {
        end,
        cause: vec!["mount /usr".to_owned()],
        remedy: Vec::new(),
        says: Vec::new(),
    };
    let refused = || expected(End::Refused("isolation_unavailable".to_owned()));
    let seen = |status, out: &str, err: &str| CommandResult {
        status: Some(status),
        out: out.to_owned(),
        err: err.to_owned(),
    };
    let told = "error: mount /usr: EINVAL [isolation_unavailable]\n  fix: none\n";
    let right = seen(125, "", told).differs(Command::Run, &refused());
    if let Some(differs) = right {
        return Err(differs);
    }
    let layers = r#"{"ok": false, "layers": [{"state": "active"}], "problems": [{"message": "mount /usr: EINVAL"}]}"#;
    let wrong = [
        (seen(0, "1\n", told), Command::Run, refused()),
        (
            seen(125, "", "error: mount /usr: EINVAL [internal]\n"),
            Command::Run,
            refused(),
        ),
        (
            seen(125, "", "error: something [isolation_unavailable]\n"),
            Command::Run,
            refused(),
        ),
        (
            seen(101, "", "thread panicked at mount /usr"),
            Command::Run,
            expected(End::Dies),
        ),
        (seen(125, "", told), Command::Run, expected(End::Ok)),
        (seen(1, layers, ""), Command::Doctor, refused()),
        (CommandResult::default(), Command::Serve, expected(End::Ok)),
    ];
    for (seen, command, expected) in wrong {
        if seen.differs(command, &expected).is_none() {
            return Err(format!("{seen:?} was taken for {expected:?}"));
        }
    }
    Ok(())
}
