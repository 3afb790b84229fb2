//! `sandcell diff`: the files that a sandbox of a running server has changed since a checkpoint.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::Checkpoints;
use sandcell_sandbox::Failure;
use serde_json::Value;

use super::output;
use super::printed;

/// Shows the files that a sandbox of a running server has changed since a checkpoint, and the changed lines of text files
///
/// SANDCELL_TOKEN is the token of the sandbox's caller, if the server needs one.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The sandbox
    sandbox: String,

    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// The checkpoint; -1 is the one before the last execution
    #[arg(long, value_name = "NAME", default_value = "-1", allow_hyphen_values = true)]
    since: String,

    /// Lists the files without their lines
    #[arg(long)]
    names: bool,

    /// Prints {sandbox_id, checkpoint, files: [{path, kind, bytes, bytes_before, diff}], omitted}
    #[arg(long, conflicts_with = "names")]
    json: bool,
}

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = Checkpoints::new(&args.to, token.as_deref())?;
    let changes = crate::wiring::runtime()?.block_on(client.changes(&args.sandbox, &args.since))?;
    let written = if args.json {
        output::json(&changes)
    } else {
        output::text(&text(&changes, args.names))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

fn text(changes: &Value, names: bool) -> String {
    let mut text = String::new();
    let files = list(changes.get("files"));
    for file in files {
        let field = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or_default();
        let size = |name: &str| file.get(name).and_then(Value::as_u64).unwrap_or_default();
        match field("diff") {
            // The lines are the sandbox's own text.
            diff if !names && !diff.is_empty() => text.push_str(&output::safe(diff)),
            _ => {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    text,
                    "{} {} ({} bytes, before {})",
                    field("kind"),
                    output::safe(field("path")),
                    size("bytes"),
                    size("bytes_before")
                );
            }
        }
    }
    if let Some(more) = changes.get("omitted").and_then(Value::as_u64).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more files");
    }
    if text.is_empty() {
        text.push_str("no file has changed\n");
    }
    text
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
}
