//! `sandcell diff`: the files that a sandbox of a running server has changed since a checkpoint, and in copy-on-write mounts.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::Checkpoints;
use sandcell_sandbox::Failure;
use serde_json::Value;

use super::output;
use super::printed;

/// Shows the files that a sandbox of a running server has changed, and the changed lines of text files
///
/// Private files are compared with those of a checkpoint, and files of copy-on-write mounts with those of this machine.
/// `sandcell commit` applies the latter.
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

    /// Shows only the files of copy-on-write mounts
    #[arg(long, conflicts_with = "since")]
    mounts: bool,

    /// Lists the files without their lines
    #[arg(long)]
    names: bool,

    /// Prints {sandbox_id, checkpoint, files: [{path, kind, bytes, bytes_before, diff}], omitted, mounts: {files, omitted}}
    #[arg(long, conflicts_with = "names")]
    json: bool,
}

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = Checkpoints::new(&args.to, token.as_deref())?;
    let since = (!args.mounts).then_some(args.since.as_str());
    let changes = crate::wiring::runtime()?.block_on(client.changes(&args.sandbox, since))?;
    let written = if args.json {
        output::json(&changes)
    } else {
        output::text(&text(&changes, args.names))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

fn text(changes: &Value, names: bool) -> String {
    let mut text = String::new();
    let mounts = changes.get("mounts").unwrap_or(&Value::Null);
    for part in [changes, mounts] {
        for file in list(part.get("files")) {
            add_file(&mut text, file, names);
        }
        if let Some(more) = part.get("omitted").and_then(Value::as_u64).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} more files");
        }
    }
    if text.is_empty() {
        text.push_str("no file has changed\n");
    }
    text
}

fn add_file(text: &mut String, file: &Value, names: bool) {
    let field = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or_default();
    let size = |name: &str| file.get(name).and_then(Value::as_u64).unwrap_or_default();
    match field("diff") {
        // The lines are the sandbox's own text.
        diff if !names && !diff.is_empty() => text.push_str(&output::safe(diff)),
        _ => {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{} {} ({}{} bytes, before {})",
                field("kind"),
                output::safe_name(field("path")),
                entry_type(file),
                size("bytes"),
                size("bytes_before")
            );
        }
    }
}

/// Returns the type of an entry of a mount, if it is not simply a file.
fn entry_type(file: &Value) -> String {
    let of = |side: &str| file.get(side)?.get("type")?.as_str();
    match (of("now"), of("before")) {
        (Some(now), Some(before)) if now != before => format!("{now} instead of a {before}, "),
        (Some(one), _) | (None, Some(one)) if one != "file" => format!("{one}, "),
        _ => String::new(),
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
}
