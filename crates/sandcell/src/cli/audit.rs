//! `sandcell audit`: the security audit log.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use sandcell_audit::{AuditError, Report, verify};
use sandcell_sandbox::{Code, Failure};
use serde_json::json;

use super::{output, printed};
use crate::config::Settings;

/// Checks the security audit log
///
/// `serve` and `token` write it (`audit.file`): one JSON object a line, each with the hash of the line before.
#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Finds lines that were changed, removed or inserted; exits with 1 if there are any
    Verify {
        /// The log file; by default the one of the settings
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,

        /// A hash that the log must contain, such as the last hash of an earlier check, stored out of an attacker's
        /// reach. Detects a log whose end was cut off
        #[arg(long, value_name = "HASH")]
        hash: Option<String>,

        /// Prints {ok, lines, first, last, last_at, last_hash, has_hash, fault_count, faults: [{file, line, what}]}
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &AuditArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let AuditCommand::Verify { file, hash, json } = &args.command;
    let set = || settings.audit.as_ref().map(|audit| audit.file.clone());
    let path = file.clone().or_else(set).ok_or_else(|| {
        Failure::new(
            Code::NotFound,
            "no audit log is written",
            "set audit.enabled and data_dir, or name a log with --file",
        )
    })?;
    let report = verify(&path, hash.as_deref()).map_err(failure)?;
    let ok = report.fault_count == 0 && report.has_hash != Some(false);
    let written = if *json {
        output::json(&as_json(&report, ok))
    } else {
        output::text(&as_text(&report))
    };
    let code = if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    printed(written.map(|()| code))
}

fn as_json(report: &Report, ok: bool) -> serde_json::Value {
    let faults: Vec<_> = report
        .faults
        .iter()
        .map(|fault| json!({"file": fault.path, "line": fault.line, "what": fault.what}))
        .collect();
    json!({
        "ok": ok,
        "lines": report.lines,
        "first": report.first,
        "last": report.last,
        "last_at": report.last_at,
        "last_hash": report.last_hash,
        "has_hash": report.has_hash,
        "fault_count": report.fault_count,
        "faults": faults,
    })
}

fn as_text(report: &Report) -> String {
    let mut text = format!(
        "{} lines in order, number {} to {}, the last of {}\nlast hash: {}\n",
        report.lines, report.first, report.last, report.last_at, report.last_hash
    );
    for fault in &report.faults {
        text.push_str(&format!("{}:{}: {}\n", fault.path.display(), fault.line, fault.what));
    }
    if report.fault_count > 0 {
        text.push_str(&format!("BROKEN: {} faults\n", report.fault_count));
    }
    match report.has_hash {
        Some(false) => {
            text.push_str("BROKEN: the hash that was asked for is not in it; lines at the end are missing\n")
        }
        Some(true) => text.push_str("the hash that was asked for is in it\n"),
        None => {}
    }
    text
}

fn failure(error: AuditError) -> Failure {
    let mut message = error.to_string();
    let mut code = Code::Internal;
    if let AuditError::File { source, .. } = &error {
        message = format!("{message}: {source}");
        if source.kind() == std::io::ErrorKind::NotFound {
            code = Code::NotFound;
        }
    }
    Failure::new(code, message, "check audit.file; the first `serve` or `token` makes it")
}
