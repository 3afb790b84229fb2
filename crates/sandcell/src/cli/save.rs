//! `sandcell save` and `sandcell saved`: states of sandboxes that outlive a running server.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use sandcell_mcp::Checkpoints;
use sandcell_sandbox::Failure;
use serde_json::Value;

use super::output;
use super::printed;

/// Saves the variables and files of a sandbox of a running server under a name
///
/// They are kept in the server's data_dir. New sandboxes go on from them, also after a restart of the server
/// (`create_sandbox` with from_saved, `POST /v1/saved/NAME/sandboxes`, `Sandbox(saved=NAME)` in Python). A saved state of
/// the same name is replaced.
///
/// SANDCELL_TOKEN is the token of the sandbox's caller, if the server needs one.
#[derive(Debug, Args)]
pub(super) struct SaveArgs {
    /// The sandbox
    sandbox: String,

    /// The name of the saved state: at most 64 of letters, digits, `.`, `_` and `-`
    name: String,

    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// Saves this checkpoint of the sandbox and not its current state
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,

    /// Saves the files without the variables
    #[arg(long)]
    only_files: bool,

    /// Prints {name, created_at, sandbox_id, executions, sessions, packages, bytes, readable}
    #[arg(long)]
    json: bool,
}

/// Lists the saved states of a caller of a running server, or drops one
///
/// SANDCELL_TOKEN is the caller's token, if the server needs one.
#[derive(Debug, Args)]
pub(super) struct SavedArgs {
    /// The server: the address that `sandcell serve --http` prints, or its socket
    #[arg(long, value_name = "URL|unix:PATH")]
    to: String,

    /// Drops the saved state of this name
    #[arg(long, value_name = "NAME")]
    drop: Option<String>,

    /// Prints {saved: [{name, created_at, sandbox_id, executions, sessions, packages, bytes, readable}]}
    #[arg(long, conflicts_with = "drop")]
    json: bool,
}

pub(super) fn save(args: &SaveArgs) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = Checkpoints::new(&args.to, token.as_deref())?;
    let saving = client.save(&args.sandbox, &args.name, args.checkpoint.as_deref(), args.only_files);
    let saved = crate::wiring::runtime()?.block_on(saving)?;
    let written = if args.json {
        output::json(&saved)
    } else {
        output::text(&format!("saved {}", line(&saved)))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

pub(super) fn saved(args: &SavedArgs) -> Result<ExitCode, Failure> {
    let token = super::serve::token()?;
    let client = Checkpoints::new(&args.to, token.as_deref())?;
    let runtime = crate::wiring::runtime()?;
    if let Some(name) = &args.drop {
        runtime.block_on(client.drop_saved(name))?;
        return printed(output::text(&format!("dropped {}\n", output::safe_name(name))).map(|()| ExitCode::SUCCESS));
    }
    let saved = runtime.block_on(client.saved())?;
    let written = if args.json {
        output::json(&saved)
    } else {
        output::text(&text(&saved))
    };
    printed(written.map(|()| ExitCode::SUCCESS))
}

fn text(saved: &Value) -> String {
    let states = saved
        .get("saved")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let mut text: String = states.iter().map(line).collect();
    if text.is_empty() {
        text.push_str("no state is saved\n");
    }
    text
}

/// `analysis  2026-01-31T12:00:00.000Z  12 MB  python  4 executions of sb…`
fn line(one: &Value) -> String {
    let field = |name: &str| output::safe_name(one.get(name).and_then(Value::as_str).unwrap_or_default());
    let number = |name: &str| one.get(name).and_then(Value::as_u64).unwrap_or_default();
    if one.get("readable").and_then(Value::as_bool) == Some(false) {
        return format!("{}  damaged, or of another version of sandcell\n", field("name"));
    }
    let mut line = format!(
        "{}  {}  {} MB",
        field("name"),
        field("created_at"),
        number("bytes").div_ceil(1 << 20)
    );
    for session in one.get("sessions").and_then(Value::as_array).into_iter().flatten() {
        // Writing to a String cannot fail.
        let _ = write!(line, "  {}", output::safe_name(session.as_str().unwrap_or_default()));
    }
    let _ = writeln!(line, "  {} executions of {}", number("executions"), field("sandbox_id"));
    line
}
