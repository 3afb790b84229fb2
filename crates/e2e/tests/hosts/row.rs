//! Rows: scripts, and the expectations in their heads.
//!
//! The head is the first block of comments. Lines of the form `# KEY: VALUE` count, the others describe the row:
//!
//! | key | value |
//! |---|---|
//! | `run`, `serve`, `doctor` | the outcome; `ordinary run` and so on where an ordinary user gets another |
//! | `only` | `root` or `ordinary` |
//! | `open`, `ordinary open` | the reason that the row fails today |
//!
//! An outcome is `ok`, `refused CODE` or `dies`, each with any number of `cause="…"`, `remedy="…"` (parts of the
//! message and of the remedy) and `says="…"` (anywhere in the output). `serve` and `doctor` default to the outcome of
//! `run`.

use std::path::{Path, PathBuf};

/// The user that runs the program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Root,
    Ordinary,
}

impl User {
    pub(crate) const ALL: [Self; 2] = [Self::Root, Self::Ordinary];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "ordinary_user",
        }
    }
}

/// A command's expected results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) end: End,
    pub(crate) cause: Vec<String>,
    pub(crate) remedy: Vec<String>,
    pub(crate) says: Vec<String>,
}

/// The expected end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Code runs.
    Ok,
    /// A failure with this code.
    Refused(String),
    /// The program does not even start.
    Dies,
}

/// The three commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Run,
    Serve,
    Doctor,
}

impl Command {
    pub(crate) const ALL: [Self; 3] = [Self::Run, Self::Serve, Self::Doctor];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Serve => "serve",
            Self::Doctor => "doctor",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) script: PathBuf,
    lines: Vec<(String, String)>,
}

impl Row {
    fn read(script: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(script).map_err(|error| error.to_string())?;
        let row = Self {
            name: script.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            script: script.to_owned(),
            lines: head(&text)?,
        };
        for user in User::ALL.into_iter().filter(|user| row.is_for(*user)) {
            for command in Command::ALL {
                row.expected(user, command)?;
            }
        }
        Ok(row)
    }

    fn line(&self, key: &str) -> Option<&str> {
        let mut lines = self.lines.iter().filter(|(known, _)| known == key);
        lines.next().map(|(_, value)| value.as_str())
    }

    /// Returns a line that may differ for an ordinary user.
    fn line_for(&self, user: User, key: &str) -> Option<&str> {
        let own = match user {
            User::Root => None,
            User::Ordinary => self.line(&format!("ordinary {key}")),
        };
        own.or_else(|| self.line(key))
    }

    pub(crate) fn is_for(&self, user: User) -> bool {
        match self.line("only") {
            None => true,
            Some("root") => user == User::Root,
            Some(_) => user == User::Ordinary,
        }
    }

    /// Returns the reason that the row fails today.
    pub(crate) fn open(&self, user: User) -> Option<&str> {
        self.line_for(user, "open").filter(|reason| *reason != "no")
    }

    pub(crate) fn expected(&self, user: User, command: Command) -> Result<Expected, String> {
        let own = match user {
            User::Root => None,
            User::Ordinary => self
                .line(&format!("ordinary {}", command.name()))
                .or_else(|| self.line("ordinary run")),
        };
        let line = own
            .or_else(|| self.line(command.name()))
            .or_else(|| self.line("run"))
            .ok_or_else(|| format!("{}: no line `# run: …`", self.name))?;
        outcome(line).map_err(|error| format!("{}: {error}", self.name))
    }
}

/// Returns the pairs of the first block of comments.
fn head(text: &str) -> Result<Vec<(String, String)>, String> {
    const HEAD_KEYS: [&str; 5] = ["run", "serve", "doctor", "only", "open"];
    let mut pairs = Vec::new();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        let Some((key, value)) = line.trim_start_matches(['#', ' ']).split_once(": ") else {
            continue;
        };
        if HEAD_KEYS.contains(&key.strip_prefix("ordinary ").unwrap_or(key)) {
            pairs.push((key.to_owned(), value.trim().to_owned()));
        } else if key.split(' ').count() < 3 && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == ' ') {
            return Err(format!("`{key}:` is none of {HEAD_KEYS:?}"));
        }
    }
    Ok(pairs)
}

/// Parses `refused CODE cause="…" remedy="…"`.
fn outcome(line: &str) -> Result<Expected, String> {
    let (end, mut rest) = match line.split_once(' ').unwrap_or((line, "")) {
        ("ok", rest) => (End::Ok, rest),
        ("dies", rest) => (End::Dies, rest),
        ("refused", rest) => {
            let (code, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            if code.is_empty() || code.contains('=') {
                return Err(format!("`refused` without a code: {line}"));
            }
            (End::Refused(code.to_owned()), rest)
        }
        (word, _) => return Err(format!("`{word}` is none of ok, refused, dies")),
    };
    let mut expected = Expected {
        end,
        cause: Vec::new(),
        remedy: Vec::new(),
        says: Vec::new(),
    };
    while !rest.trim().is_empty() {
        let (key, tail) = rest
            .trim_start()
            .split_once("=\"")
            .ok_or_else(|| format!("not `key=\"…\"`: {rest}"))?;
        let (value, tail) = tail
            .split_once('"')
            .ok_or_else(|| format!("no closing quote: {rest}"))?;
        let list = match key {
            "cause" => &mut expected.cause,
            "remedy" => &mut expected.remedy,
            "says" => &mut expected.says,
            _ => return Err(format!("`{key}` is none of cause, remedy, says")),
        };
        list.push(value.to_owned());
        rest = tail;
    }
    Ok(expected)
}

/// Returns every row, by name.
pub(crate) fn all() -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts/rows");
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut scripts: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "sh"));
    scripts.sort();
    scripts.iter().map(|script| Row::read(script).unwrap()).collect()
}

/// Checks that heads are parsed correctly, and that invalid outcomes are refused.
pub(crate) fn tests() -> Result<(), String> {
    let read = outcome(r#"refused isolation_unavailable cause="a mount" cause="/usr" remedy="umount""#)?;
    let code = End::Refused("isolation_unavailable".to_owned());
    if read.end != code || read.cause != ["a mount", "/usr"] || read.remedy != ["umount"] || !read.says.is_empty() {
        return Err(format!("{read:?}"));
    }
    for wrong in [
        "",
        "okay",
        "refused",
        r#"refused cause="x""#,
        r#"ok cause="x"#,
        r#"ok because="x""#,
        "ok now",
    ] {
        if let Ok(read) = outcome(wrong) {
            return Err(format!("`{wrong}` was read as {read:?}"));
        }
    }
    if head("# run: ok\n# rnu: ok\n").is_ok() {
        return Err("a misspelt key was taken for a description".to_owned());
    }
    Ok(())
}
