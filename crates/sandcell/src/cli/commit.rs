//! `sandcell commit`: applies the changes of a sandbox of a running server to folders of this machine.
//!
//! The server applies them. This command proves with a permit that the operator asks for it.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::{Checkpoints, Permits};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::output;
use super::printed;
use crate::config::Settings;

/// Applies what a sandbox of a running server has changed in copy-on-write mounts to the folders of this machine
///
/// Only mounts with `commit = "ask"` take changes. Run it as the user of the server, on the server's machine and with the
/// server's settings. A file that has changed on this machine since the sandbox was made is refused by name. The exit
/// status is 1 if a change was refused or could not be listed; that of a dry run is 0.
///
/// SANDCELL_TOKEN is the token of the sandbox's caller, if the server needs one.
#[derive(Debug, Args)]
pub(super) struct CommitArgs {
    /// The sandbox
    sandbox: String,

    /// Files and folders to apply, as the sandbox sees them (/mnt/project/src); all changes if there is none
    #[arg(value_name = "PATH")]
    paths: Vec<String>,

    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// Shows what would be applied and refused, and changes nothing
    #[arg(long)]
    dry_run: bool,

    /// Applies nothing unless the changes are exactly those of the dry run with this fingerprint, made with the same paths and
    /// options
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "dry_run")]
    expect: Option<String>,

    /// Overwrites files that have changed on this machine since the sandbox was made. A file that the sandbox has removed and
    /// that has changed on this machine is removed only if PATH names it
    #[arg(long)]
    force: bool,

    /// Prints {sandbox_id, dry_run, fingerprint, applied: [{path, kind, bytes}], refused: [{path, kind, code, reason}], unchanged, omitted}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &CommitArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = Checkpoints::new(&args.to, token.as_deref())?;
    let body = json!({"paths": args.paths, "force": args.force, "dry_run": args.dry_run, "expect": args.expect});
    let permits = match (args.dry_run, &settings.data_dir) {
        (true, _) => None,
        (false, Some(folder)) => Some(Permits::new(folder)),
        (false, None) => return Err(settings.data_problem().unwrap_or_else(no_data_folder)),
    };
    let commit = client.commit(&args.sandbox, &body, permits.as_ref());
    let result = crate::wiring::runtime()?.block_on(commit)?;
    let refused = list(&result, "refused");
    let omitted = result.get("omitted").and_then(Value::as_u64).unwrap_or_default();
    let code = match (refused.is_empty() && omitted == 0) || args.dry_run {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    };
    let written = if args.json {
        output::json(&result)
    } else {
        output::text(&text(&result))
    };
    printed(written.map(|()| code))
}

fn text(result: &Value) -> String {
    let mut text = String::new();
    let dry_run = result.get("dry_run").and_then(Value::as_bool).unwrap_or_default();
    let (applied, refused) = (list(result, "applied"), list(result, "refused"));
    for change in applied {
        // Names are the sandbox's own text.
        let _ = writeln!(
            text,
            "{} {}",
            field(change, "kind"),
            output::safe_name(field(change, "path"))
        );
    }
    for change in refused {
        let (path, reason) = (
            output::safe_name(field(change, "path")),
            output::safe_name(field(change, "reason")),
        );
        let _ = writeln!(text, "refused {path}: {reason} [{}]", field(change, "code"));
    }
    let number = |name: &str| result.get(name).and_then(Value::as_u64).unwrap_or_default();
    if let omitted @ 1.. = number("omitted") {
        let _ = writeln!(
            text,
            "{omitted} further changes could not be listed: there are too many, or their folder cannot be read"
        );
    }
    let verb = if dry_run { "would be applied" } else { "applied" };
    let _ = writeln!(
        text,
        "{} changes {verb}, {} refused, {} needed no change",
        applied.len(),
        refused.len(),
        number("unchanged")
    );
    let fingerprint = result.get("fingerprint").and_then(Value::as_str);
    if let Some(fingerprint) = fingerprint.filter(|_| !applied.is_empty()) {
        let _ = writeln!(
            text,
            "fingerprint {fingerprint} (--expect {fingerprint} applies nothing else)"
        );
    }
    if refused.iter().any(|change| field(change, "code") == "conflict") {
        text.push_str(
            "--force overwrites the files of this machine that conflict; compare them first (sandcell diff --mounts)\n",
        );
    }
    text
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    let items = value.get(name).and_then(Value::as_array);
    items.map_or(&[][..], Vec::as_slice)
}

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn no_data_folder() -> Failure {
    Failure::new(
        Code::InvalidArgument,
        "no data folder is known, so the server cannot tell that the operator asks",
        "set SANDCELL_DATA_DIR to the data folder of the server",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_line_feed_stays_in_one_line() {
        let result = json!({
            "dry_run": false,
            "applied": [{"path": "/mnt/p/a\nrefused /mnt/p/b", "kind": "created", "bytes": 1}],
            "refused": [{"path": "/mnt/p/c", "kind": "modified", "code": "conflict", "reason": "it has changed"}],
            "unchanged": 2,
            "omitted": 0,
        });
        let text = text(&result);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("refused /mnt/p/c: it has changed [conflict]"), "{text}");
        assert!(
            text.contains("1 changes applied, 1 refused, 2 needed no change"),
            "{text}"
        );
    }
}
