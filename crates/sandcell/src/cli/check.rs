//! `sandcell check`: reports findings about a Python file, without running it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use sandcell_engine::Analysis;
use sandcell_sandbox::{Advice, Failure, Finding, Severity};
use serde_json::json;

use super::{output, printed};
use crate::config::Settings;
use crate::wiring;

/// The maximum number of entries of a folder that are searched for modules.
const MAX_MODULE_ENTRIES: usize = 20_000;

/// Checks a Python file without running it: missing packages, network use, input without answers, and more
///
/// The findings are advice, not protection: code can be written so that this check finds nothing. The sandbox
/// protects. The exit status is 1 where the profile `strict` would not run the file.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file; `-` for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The profile; by default the setting `analysis`
    #[arg(long, value_enum, value_name = "P")]
    profile: Option<Profile>,

    /// Prints {ok, findings: [{rule, severity, line, column, message}]}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    Off,
    Advisory,
    Strict,
}

pub(super) fn run(args: &CheckArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let profile = args.profile.unwrap_or(match settings.engine.analysis {
        Analysis::Off => Profile::Off,
        Analysis::Advisory => Profile::Advisory,
        Analysis::Strict => Profile::Strict,
    });
    let source = source(&args.file, settings.engine.code_bytes.as_bytes())?;
    let found = wiring::languages(settings);
    let modules = found
        .python
        .as_ref()
        .map(|python| modules(&python.runtime().site, &args.file));
    let advice = Advice {
        network: false,
        stdin: false,
        modules,
    };
    let mut findings = match profile {
        Profile::Off => Vec::new(),
        Profile::Advisory | Profile::Strict => sandcell_languages::python::analyse(&source, &advice),
    };
    if profile == Profile::Advisory {
        findings.retain(|finding| finding.severity != Severity::Deny || finding.rule == "syntax");
    }
    let ok = findings.iter().all(|finding| finding.severity != Severity::Deny);
    let shown = if args.json {
        output::json(&json!({"ok": ok, "findings": findings}))
    } else {
        output::text(&lines(&args.file, &findings))
    };
    printed(shown.map(|()| if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn source(file: &Path, limit: u64) -> Result<String, Failure> {
    let unreadable = |reason: String| {
        Failure::invalid(
            format!("{} cannot be checked: {reason}", file.display()),
            "name a Python file in UTF-8 of at most the size that can be run",
        )
    };
    let mut bytes = Vec::new();
    let bound = limit.saturating_add(1);
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(bound).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(bound).read_to_end(&mut bytes))
    };
    match read {
        Ok(read) if u64::try_from(read).is_ok_and(|read| read <= limit) => {
            String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8".to_owned()))
        }
        Ok(_) => Err(unreadable(format!("it has more than {limit} bytes"))),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Returns the importable modules: those of the interpreter's packages, and those next to the file.
fn modules(site: &[PathBuf], file: &Path) -> BTreeSet<String> {
    let near = file.parent().map(|folder| {
        if folder == Path::new("") {
            Path::new(".")
        } else {
            folder
        }
    });
    let folders = site.iter().map(PathBuf::as_path).chain(near);
    let mut modules = BTreeSet::new();
    for folder in folders {
        let Ok(listed) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in listed.take(MAX_MODULE_ENTRIES).filter_map(Result::ok) {
            let path = entry.path();
            let module = match path.extension().and_then(OsStr::to_str) {
                None | Some("py" | "so") => path.file_name().and_then(OsStr::to_str),
                Some(_) => None,
            };
            // `_x.cpython-311-x86_64-linux-gnu.so` is the module `_x`.
            modules.extend(module.and_then(|name| name.split('.').next()).map(str::to_owned));
        }
    }
    modules
}

fn lines(file: &Path, findings: &[Finding]) -> String {
    let name = file.display();
    let line = |finding: &Finding| {
        let severity = match finding.severity {
            Severity::Info => "info",
            Severity::Warn => "warning",
            Severity::Deny => "refused",
        };
        let message = output::safe(&finding.message);
        format!(
            "{name}:{}:{}: {severity}: {message} [{}]\n",
            finding.line, finding.column, finding.rule
        )
    };
    if findings.is_empty() {
        return format!("{name}: nothing was noticed\n");
    }
    findings.iter().map(line).collect()
}
