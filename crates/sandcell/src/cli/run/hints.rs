//! Advice after a failed run, on stderr: the hints that MCP clients get, in the words of this command.

use std::io::{self, Write as _};

use sandcell_engine::{ExecutionView, Status};
use sandcell_sandbox::{Code, Failure};

use super::Network;
use crate::cli::output::{self, Style, safe};

/// The maximum number of static-analysis findings shown.
const MAX_FINDINGS: usize = 3;
/// The maximum length of a module's name in a hint, in characters.
const MAX_NAME: usize = 80;

/// Returns the hint for this run: the engine's, or one derived from the last lines of stderr.
pub(super) fn of(view: &ExecutionView, network: Network) -> Option<String> {
    let last_words = || {
        let failed = view.status == Status::Error;
        failed.then(|| from_stderr(&view.language, &view.stderr.text, network))?
    };
    view.hint.clone().or_else(last_words)
}

/// Prints the reason that the program was stopped, if it did not end by itself, and findings about its code if it
/// failed.
pub(super) fn say(view: &ExecutionView, hint: Option<&str>) {
    let style = Style::of(&io::stderr());
    let mut text = String::new();
    for notice in &view.notices {
        text.push_str(&format!("{} {}\n", style.bold("note:"), safe(notice)));
    }
    if let Some(hint) = hint {
        text.push_str(&format!("{} {}\n", style.bold("hint:"), safe(hint)));
    }
    if view.status != Status::Ok {
        for finding in view.findings.iter().take(MAX_FINDINGS) {
            let message = safe(&finding.message);
            text.push_str(&format!("{} line {}: {message}\n", style.bold("advice:"), finding.line));
        }
    }
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = io::stderr().lock().write_all(text.as_bytes());
    if let Some(cause) = &view.cause
        && !matches!(cause.code, Code::CodeFailed | Code::Cancelled)
    {
        // The user of this command is the operator and can allow a host on the command line.
        let remedy = match cause.remedy.contains("network = [") {
            true => "add the host to --network".to_owned(),
            false => cause.remedy.clone(),
        };
        output::failure(&Failure::new(cause.code, cause.message.clone(), remedy));
    }
}

/// Derives a hint from the last lines of stderr: a program without a session has no driver that could explain its
/// error. The program controls this text, so the hint is advice only.
fn from_stderr(language: &str, stderr: &str, network: Network) -> Option<String> {
    let last = stderr.lines().rev().take(40);
    last.clone()
        .find_map(|line| missing_module(language, line))
        .or_else(|| {
            last.clone()
                .any(|line| line.starts_with("EOFError: EOF when reading a line"))
                .then(|| "the program reads standard input, and there is none: sandcell run FILE < INPUT".to_owned())
        })
        .or_else(|| {
            let unreached = network == Network::Absent && last.clone().any(is_unreached);
            unreached.then(|| {
                "the sandbox has no network: name the hosts with --network HOST, or bring the data in with --file"
                    .to_owned()
            })
        })
}

fn missing_module(language: &str, line: &str) -> Option<String> {
    let name = |rest: &str| {
        let name: String = rest.chars().take_while(|c| *c != '\'').take(MAX_NAME).collect();
        (!name.is_empty()).then_some(name)
    };
    if language == "python" {
        let module = name(line.strip_prefix("ModuleNotFoundError: No module named '")?)?;
        let first = module.split('.').next().unwrap_or(&module);
        let package = sandcell_languages::python::distribution(first);
        return Some(format!(
            "{first} is not installed: add --package {package}, or build a base with it: sandcell base build data \
             {package} --use"
        ));
    }
    let module = name(
        line.trim_start_matches("Error: ")
            .strip_prefix("Cannot find module '")?,
    )?;
    let is_package = !module.starts_with(['.', '/']);
    is_package.then(|| format!("{module} is not installed: add --package npm:{module}"))
}

/// Returns true for the messages of Python, Node, curl and the C library about an unreachable host.
fn is_unreached(line: &str) -> bool {
    [
        "Temporary failure in name resolution",
        "Name or service not known",
        "Network is unreachable",
        "getaddrinfo EAI_AGAIN",
        "getaddrinfo ENOTFOUND",
        "Could not resolve host",
        "dial tcp: lookup",
    ]
    .iter()
    .any(|words| line.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_output_of_a_program_leads_to_a_hint() {
        for (language, stderr, network, expected) in [
            (
                "python",
                "Traceback\nModuleNotFoundError: No module named 'pandas'\n",
                Network::Absent,
                Some("--package pandas"),
            ),
            (
                "python",
                "ModuleNotFoundError: No module named 'sklearn.svm'\n",
                Network::Absent,
                Some("--package scikit-learn"),
            ),
            (
                "javascript",
                "Error: Cannot find module 'zod'\nRequire stack:\n",
                Network::Absent,
                Some("--package npm:zod"),
            ),
            ("javascript", "Error: Cannot find module './x'\n", Network::Absent, None),
            (
                "python",
                "EOFError: EOF when reading a line\n",
                Network::Absent,
                Some("< INPUT"),
            ),
            (
                "python",
                "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>\n",
                Network::Absent,
                Some("--network HOST"),
            ),
            (
                "bash",
                "curl: (6) Could not resolve host: example.com\n",
                Network::Absent,
                Some("--network HOST"),
            ),
            (
                "bash",
                "curl: (6) Could not resolve host: example.com\n",
                Network::Given,
                None,
            ),
            ("python", "ZeroDivisionError: division by zero\n", Network::Absent, None),
            ("python", "", Network::Absent, None),
        ] {
            let hint = from_stderr(language, stderr, network);
            assert_eq!(hint.is_some(), expected.is_some(), "{stderr}: {hint:?}");
            let words = expected.unwrap_or_default();
            assert!(hint.unwrap_or_default().contains(words), "{stderr}");
        }
    }
}
