//! The languages of the code interpreter, which are independent of this machine's.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandcell_sandbox::{
    Advice, Code, Command, Failure, Finding, HOME, Language, LanguageInfo, Program, Sandbox, SandboxPath, Session,
    SessionError, StdinMode,
};

use super::NAME;

/// A language of the code interpreter.
struct InterpreterLanguage {
    name: &'static str,
    aliases: &'static [&'static str],
    extension: &'static str,
    /// The command that runs a file; empty if there is none.
    runs: &'static [&'static str],
    /// A cell that does nothing.
    nothing: &'static str,
}

const INTERPRETER_LANGUAGES: &[InterpreterLanguage] = &[
    InterpreterLanguage {
        name: "python",
        aliases: &["py", "python3"],
        extension: "py",
        runs: &["python3"],
        nothing: "pass",
    },
    InterpreterLanguage {
        name: "javascript",
        aliases: &["js", "node"],
        extension: "js",
        runs: &["node"],
        nothing: "undefined",
    },
    InterpreterLanguage {
        name: "typescript",
        aliases: &["ts"],
        extension: "ts",
        runs: &[],
        nothing: "undefined",
    },
    InterpreterLanguage {
        name: "bash",
        aliases: &["sh"],
        extension: "sh",
        runs: &["bash"],
        nothing: ":",
    },
    InterpreterLanguage {
        name: "r",
        aliases: &[],
        extension: "R",
        runs: &["Rscript"],
        nothing: "invisible(NULL)",
    },
    InterpreterLanguage {
        name: "java",
        aliases: &[],
        extension: "java",
        runs: &["java"],
        nothing: ";",
    },
];

/// Returns true if the code interpreter supports the language.
pub(super) fn has(language: &str) -> bool {
    INTERPRETER_LANGUAGES.iter().any(|known| known.name == language)
}

/// Returns a cell of the language that does nothing.
pub(super) fn nothing(language: &str) -> &'static str {
    let known = INTERPRETER_LANGUAGES.iter().find(|known| known.name == language);
    known.map_or("", |known| known.nothing)
}

/// Returns the names of all languages.
pub(super) fn names() -> String {
    INTERPRETER_LANGUAGES
        .iter()
        .map(|known| known.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Analyses code before it runs.
pub type Analyse = fn(&str, &Advice) -> Vec<Finding>;

/// Returns the languages of this back end's sandboxes, whatever this machine has. `python` analyses Python code.
#[must_use]
pub fn languages(python: Analyse) -> Vec<Arc<dyn Language>> {
    let make = |known: &'static InterpreterLanguage| {
        let language: Arc<dyn Language> = Arc::new(RemoteLanguage {
            info: LanguageInfo {
                name: known.name.to_owned(),
                aliases: known.aliases.iter().map(|&alias| alias.to_owned()).collect(),
                version: String::new(),
                session: true,
                extensions: vec![known.extension.to_owned()],
                libraries: Vec::new(),
            },
            known,
            analyse: (known.name == "python").then_some(python),
        });
        language
    };
    INTERPRETER_LANGUAGES.iter().map(make).collect()
}

/// A language that exists only in remote sandboxes.
struct RemoteLanguage {
    info: LanguageInfo,
    known: &'static InterpreterLanguage,
    analyse: Option<Analyse>,
}

impl std::fmt::Debug for RemoteLanguage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RemoteLanguage").field(&self.info.name).finish()
    }
}

#[async_trait]
impl Language for RemoteLanguage {
    fn info(&self) -> &LanguageInfo {
        &self.info
    }

    fn program(&self, code: &str, args: &[String], env: &BTreeMap<String, String>) -> Result<Program, Failure> {
        if self.known.runs.is_empty() {
            return Err(Failure::new(
                Code::LanguageUnavailable,
                format!("the back end {NAME} runs {} in sessions only", self.info.name),
                "run it with execute_code",
            ));
        }
        let path = format!("{HOME}/.sandcell-program.{}", self.known.extension);
        let file = SandboxPath::parse(&path)
            .map_err(|error| Failure::new(Code::Internal, format!("{path} is not a path: {error}"), "report this"))?;
        let words = self.known.runs.iter().map(|&word| word.to_owned());
        Ok(Program {
            files: vec![(file, Bytes::copy_from_slice(code.as_bytes()))],
            compile: None,
            run: Command {
                argv: words.chain(std::iter::once(path)).chain(args.iter().cloned()).collect(),
                env: env.clone(),
                cwd: HOME.to_owned(),
                stands_alone: false,
                stdin: StdinMode::Null,
                control: false,
                terminal: None,
            },
            pictures: None,
        })
    }

    fn analyse(&self, code: &str, advice: &Advice) -> Vec<Finding> {
        self.analyse.map(|analyse| analyse(code, advice)).unwrap_or_default()
    }

    async fn open(&self, _sandbox: Arc<dyn Sandbox>) -> Result<Box<dyn Session>, SessionError> {
        Err(SessionError::Start {
            language: self.info.name.clone(),
            reason: format!("only sandboxes of the back end {NAME} have it"),
        })
    }
}
