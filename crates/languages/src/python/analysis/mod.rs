//! Static analysis of Python code before it runs: its imports and calls, and the parts that will not work in a sandbox.
//!
//! This is advice, never protection: it is easy to write code that passes (14 of 14 well-known tricks pass any list of
//! this kind). The sandbox protects. One decision follows: the source is read as a sequence of tokens, not parsed into
//! a tree. This finds imports, aliases and calls by name with their positions, takes linear time, and even deep nesting
//! cannot exhaust the stack.

mod names;
mod tokens;

use sandcell_sandbox::{Advice, Finding, Severity, is_standard_module};

use names::Names;
pub use names::distribution;
use tokens::{Kind, Token, tokens};

/// The maximum number of findings per source.
const FINDINGS_MAX: usize = 100;
/// The maximum length of an analysed source: the engine refuses longer ones anyway.
const SOURCE_MAX: usize = 4 << 20;

/// Modules whose import the strict profile refuses.
const REFUSED_IMPORTS: [&str; 13] = [
    "os",
    "sys",
    "subprocess",
    "shutil",
    "multiprocessing",
    "socket",
    "ctypes",
    "pickle",
    "marshal",
    "ftplib",
    "telnetlib",
    "http.client",
    "urllib.request",
];
/// Built-in functions whose call the strict profile refuses.
const REFUSED_CALLS: [&str; 7] = [
    "eval",
    "exec",
    "compile",
    "__import__",
    "getattr",
    "setattr",
    "importlib.import_module",
];
/// Calls whose target is only known at run time.
const OPAQUE_CALLS: [&str; 6] = [
    "eval",
    "exec",
    "compile",
    "__import__",
    "importlib.import_module",
    "runpy.run_path",
];
/// Modules and calls that need a network.
const NETWORK_MODULES: [&str; 9] = [
    "requests",
    "httpx",
    "aiohttp",
    "urllib3",
    "urllib.request",
    "http.client",
    "ftplib",
    "smtplib",
    "paramiko",
];
/// Calls that serve until they are ended.
const SERVING_CALLS: [&str; 10] = [
    "app.run",
    "server.serve_forever",
    "httpd.serve_forever",
    "uvicorn.run",
    "socketserver.serve_forever",
    "loop.run_forever",
    "asyncio.get_event_loop.run_forever",
    "tornado.ioloop.IOLoop.current.start",
    "demo.launch",
    "st.run",
];

/// Returns the findings about a source. `advice` describes the sandbox in which it will run.
#[must_use]
pub fn analyse(source: &str, advice: &Advice) -> Vec<Finding> {
    if source.len() > SOURCE_MAX {
        return Vec::new();
    }
    let mut look = Look {
        advice,
        findings: Vec::new(),
        names: Names::default(),
    };
    let (tokens, fault) = tokens(source);
    if let Some(fault) = fault {
        look.add(
            "syntax",
            Severity::Deny,
            fault.line,
            fault.column,
            fault.message.to_owned(),
        );
    }
    let mut rest = tokens.as_slice();
    while !rest.is_empty() {
        let end = rest
            .iter()
            .position(|token| token.kind == Kind::End)
            .unwrap_or(rest.len());
        let (statement, after) = rest.split_at(end);
        look.statement(statement);
        rest = after.get(1..).unwrap_or_default();
    }
    look.findings.sort_by_key(|finding| (finding.line, finding.column));
    look.findings.truncate(FINDINGS_MAX);
    look.findings
}

struct Look<'a> {
    advice: &'a Advice,
    findings: Vec<Finding>,
    names: Names,
}

impl Look<'_> {
    fn add(&mut self, rule: &str, severity: Severity, line: u32, column: u32, message: String) {
        if self.findings.len() < FINDINGS_MAX * 4 {
            self.findings.push(Finding {
                rule: rule.to_owned(),
                severity,
                line,
                column,
                message,
            });
        }
    }

    /// Examines one logical line (or a part of it, between semicolons).
    fn statement(&mut self, statement: &[Token<'_>]) {
        let Some(first) = statement.first() else { return };
        self.notebook(statement, first);
        match first.text {
            "import" => self.import(statement),
            "from" => self.import_from(statement),
            _ => {
                self.alias(statement);
                self.endless(statement);
            }
        }
        self.calls(statement);
        // `if x: import y` and `try: import y` on one line.
        if let Some(colon) = statement.iter().position(|token| token.text == ":" && token.depth == 0)
            && let Some(rest) = statement.get(colon + 1..)
            && let Some(next) = rest.first()
        {
            match next.text {
                "import" => self.import(rest),
                "from" => self.import_from(rest),
                _ => {}
            }
        }
    }

    /// `!command` and `%magic`, which sessions accept like notebooks, but which are not Python: a shell command would
    /// bypass all other rules.
    fn notebook(&mut self, statement: &[Token<'_>], first: &Token<'_>) {
        let shell = statement.iter().zip(statement.iter().skip(1)).find(|(mark, next)| {
            let touches = next.line == mark.line && next.column == mark.column + 1;
            mark.text == "!" && !(next.text.starts_with('=') && touches)
        });
        if let Some((mark, _)) = shell {
            let message = "! runs a command of a shell and is no Python".to_owned();
            self.add("notebook", Severity::Deny, mark.line, mark.column, message);
        } else if first.text.starts_with('%') {
            let message = "% begins a magic of notebooks and is no Python".to_owned();
            self.add("notebook", Severity::Deny, first.line, first.column, message);
        }
    }

    /// `import a.b as c, d`
    fn import(&mut self, statement: &[Token<'_>]) {
        let parts = statement.get(1..).unwrap_or_default().split(|token| token.text == ",");
        for part in parts {
            let dotted = dotted(part);
            let Some(start) = part.first().filter(|_| !dotted.is_empty()) else {
                continue;
            };
            self.imported(&dotted, start);
            match part
                .iter()
                .position(|token| token.text == "as")
                .and_then(|at| part.get(at + 1))
            {
                Some(alias) => self.names.bind(alias.text, &dotted),
                None => {
                    let root = dotted.split('.').next().unwrap_or_default();
                    self.names.bind(root, root);
                }
            }
        }
    }

    /// `from a.b import c as d, e`
    fn import_from(&mut self, statement: &[Token<'_>]) {
        let Some(at) = statement.iter().position(|token| token.text == "import") else {
            return;
        };
        let module = dotted(statement.get(1..at).unwrap_or_default());
        let Some(start) = statement.get(1).filter(|_| !module.is_empty()) else {
            return;
        };
        self.imported(&module, start);
        let names = statement.get(at + 1..).unwrap_or_default();
        for part in names.split(|token| matches!(token.text, "," | "(" | ")")) {
            let Some(name) = part.first().filter(|token| token.kind == Kind::Name) else {
                continue;
            };
            let full = format!("{module}.{}", name.text);
            if REFUSED_IMPORTS.contains(&full.as_str()) {
                self.refuse_import(&full, name);
            }
            let bound = part
                .get(2)
                .filter(|_| part.get(1).is_some_and(|word| word.text == "as"));
            self.names.bind(bound.unwrap_or(name).text, &full);
        }
    }

    fn imported(&mut self, module: &str, at: &Token<'_>) {
        let within = |name: &str| {
            module
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(name) = REFUSED_IMPORTS.iter().find(|name| within(name)) {
            self.refuse_import(name, at);
        }
        let root = module.split('.').next().unwrap_or_default();
        if !self.advice.network && NETWORK_MODULES.iter().any(|name| module == *name || root == *name) {
            let message =
                format!("{module} reaches the network, and this sandbox has none: bring the data in as a file instead");
            self.add("network", Severity::Info, at.line, at.column, message);
        }
        let own = root.is_empty() || root.starts_with('_') || is_standard_module(root);
        let absent = |modules: &std::collections::BTreeSet<String>| !modules.contains(root);
        if !own && self.advice.modules.as_ref().is_some_and(absent) {
            let package = names::distribution(root);
            let message = format!("{root} is not installed here: it comes with the package {package}");
            self.add("missing-import", Severity::Warn, at.line, at.column, message);
        }
    }

    fn refuse_import(&mut self, name: &str, at: &Token<'_>) {
        let message = format!("imports {name}");
        self.add("import", Severity::Deny, at.line, at.column, message);
    }

    /// `e = eval`: a call of the new name counts as a call of the old one.
    fn alias(&mut self, statement: &[Token<'_>]) {
        if let [name, equals, value @ ..] = statement
            && name.kind == Kind::Name
            && equals.text == "="
            && !value.is_empty()
            && value.iter().all(|token| token.kind == Kind::Name || token.text == ".")
        {
            let target = self.names.resolve(&dotted(value));
            self.names.bind(name.text, &target);
        }
    }

    /// Examines every call by a dotted name.
    fn calls(&mut self, statement: &[Token<'_>]) {
        for (at, token) in statement.iter().enumerate() {
            let called = statement.get(at + 1).is_some_and(|next| next.text == "(");
            if token.kind != Kind::Name || !called {
                continue;
            }
            let mut start = at;
            while start >= 2
                && statement.get(start - 1).is_some_and(|token| token.text == ".")
                && statement.get(start - 2).is_some_and(|token| token.kind == Kind::Name)
            {
                start -= 2;
            }
            let before = start
                .checked_sub(1)
                .and_then(|before| statement.get(before))
                .map_or("", |token| token.text);
            // The name in a definition, or an attribute of an unnamed value.
            if matches!(before, "def" | "class" | ".") {
                continue;
            }
            let name = self
                .names
                .resolve(&dotted(statement.get(start..=at).unwrap_or_default()));
            if let Some(first) = statement.get(start) {
                self.called(&name, first);
            }
        }
    }

    fn called(&mut self, name: &str, at: &Token<'_>) {
        let bare = name.strip_prefix("builtins.").unwrap_or(name);
        if REFUSED_CALLS.contains(&bare) {
            self.add("call", Severity::Deny, at.line, at.column, format!("calls {bare}"));
        }
        if OPAQUE_CALLS.contains(&bare) {
            let message =
                format!("{bare} runs or loads what is only known when it runs: nothing of it is looked at here");
            self.add("opaque", Severity::Info, at.line, at.column, message);
        }
        if bare == "input" && !self.advice.stdin {
            let message = "input() will find nothing to read: pass stdin with the call".to_owned();
            self.add("input-without-stdin", Severity::Warn, at.line, at.column, message);
        }
        if SERVING_CALLS.contains(&bare) {
            let message = format!(
                "{bare} serves until it is ended: the call will reach its time-out; start it in a thread or as a child process"
            );
            self.add("blocking", Severity::Warn, at.line, at.column, message);
        }
    }

    /// Recognises only `while True: pass` on one line; other loops may have an exit.
    fn endless(&mut self, statement: &[Token<'_>]) {
        if let [first, second, colon, third, rest @ ..] = statement
            && first.text == "while"
            && matches!(second.text, "True" | "1")
            && colon.text == ":"
            && third.text == "pass"
            && rest.is_empty()
        {
            let message = "this loop never ends".to_owned();
            self.add("blocking", Severity::Warn, first.line, first.column, message);
        }
    }
}

/// Returns the dotted name at the start of these tokens.
fn dotted(tokens: &[Token<'_>]) -> String {
    let mut name = String::new();
    let mut wants_name = true;
    for token in tokens {
        match token.text {
            "." | "..." => {
                name.push_str(token.text);
                wants_name = true;
            }
            "as" | "import" => break,
            text if token.kind == Kind::Name && wants_name => {
                name.push_str(text);
                wants_name = false;
            }
            _ => break,
        }
    }
    name
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
