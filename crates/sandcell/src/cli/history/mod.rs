//! `sandcell history`: the executions by the data folder's user on this machine, for its operator.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use sandcell_engine::{EventKind, SecurityEvent, StoredPicture};
use sandcell_history::{Database, Filter, HistoryError, Row};
use sandcell_sandbox::{Code, Failure};
use serde_json::{Value, json};

use super::{output, printed};
use crate::config::Settings;
use crate::wiring::sinks;

/// The maximum number of executions in a notebook.
const MAX_NOTEBOOK_CELLS: u32 = 2000;
/// The maximum number of ids that are listed for an ambiguous prefix.
const MAX_CANDIDATES: u32 = 5;

/// Shows the stored executions, newest first
///
/// Without a command: a list. It contains all callers: `stdio` (MCP clients that start the server themselves), `cli`
/// (`sandcell run`), `anonymous` and `token:ID` (HTTP).
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct HistoryArgs {
    #[command(subcommand)]
    command: Option<HistoryCommand>,

    #[command(flatten)]
    filters: ExecutionFilter,

    /// Prints a list of {execution_id, owner, sandbox_id, language, status, timestamp, duration_ms, cpu_ms,
    /// peak_memory_mb, stdout_bytes, stderr_bytes, exit_code, code_preview, stdout_preview, error, cause}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum HistoryCommand {
    /// Shows one stored execution: code, output, cost
    Show {
        /// The id, a prefix of it, or `last` for the newest
        #[arg(default_value = "last")]
        id: String,

        /// Prints one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Writes executions as a Jupyter notebook that runs again: those with these ids, or those that match the filters,
    /// oldest first
    Export {
        /// Their ids, written as for `show`
        #[arg(value_name = "ID")]
        ids: Vec<String>,

        #[command(flatten)]
        filters: ExecutionFilter,

        /// The file to write; without: stdout
        #[arg(short, long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Deletes executions from the history
    Forget {
        /// Their ids, written as for `show`
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
struct ExecutionFilter {
    /// Only executions of this caller
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Only executions of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,

    /// Only executions whose code, output or error contains this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,

    /// Only executions with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<Ending>,

    /// The maximum number of executions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    last: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ending {
    Ok,
    Error,
    Timeout,
    Cancelled,
    Killed,
}

impl ExecutionFilter {
    fn filter(&self) -> Filter {
        let word = |ending: Ending| ending.to_possible_value().map(|word| word.get_name().to_owned());
        Filter {
            owner: self.owner.clone(),
            sandbox: self.sandbox.clone(),
            text: self.search.clone(),
            status: self.status.and_then(word),
            max_rows: self.last,
        }
    }
}

pub(super) fn run(args: &HistoryArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let folder = settings.data_dir.as_deref().ok_or_else(|| {
        Failure::new(
            Code::InvalidArgument,
            "the history has no folder",
            "set data_dir or SANDCELL_DATA_DIR",
        )
    })?;
    let database = Database::open_existing(&Database::file(folder));
    match &args.command {
        None => {
            let rows = match database {
                Ok(database) => database.list(&args.filters.filter(), false).map_err(failure)?,
                // An absent file means that nothing ran yet, unless the data folder is unusable.
                Err(HistoryError::Absent(_)) => settings.data_problem().map_or(Ok(Vec::new()), Err)?,
                Err(error) => return Err(failure(error)),
            };
            let written = if args.json {
                output::json(&rows.iter().map(summary).collect())
            } else {
                output::text(&list(&rows))
            };
            printed(written.map(|()| ExitCode::SUCCESS))
        }
        Some(HistoryCommand::Show { id, json }) => {
            let row = find(&database.map_err(failure)?, id)?;
            let written = if *json {
                output::json(&whole(&row))
            } else {
                output::text(&story(&row))
            };
            printed(written.map(|()| ExitCode::SUCCESS))
        }
        Some(HistoryCommand::Export { ids, filters, out }) => {
            let rows = wanted(&database.map_err(failure)?, ids, filters)?;
            export(rows, out.as_deref())
        }
        Some(HistoryCommand::Forget { ids }) => {
            let mut database = database.map_err(failure)?;
            let ids = once(ids, |id| whole_id(&database, id))?;
            let count = database.forget(&ids).map_err(failure)?;
            if count > 0 {
                let detail = format!("{count} rows, of {}", ids.join(" "));
                sinks::note(settings, SecurityEvent::new(EventKind::HistoryForgotten, detail));
            }
            printed(output::text(&format!("{count} deleted\n")).map(|()| ExitCode::SUCCESS))
        }
    }
}

/// Returns the row of an id, of a prefix of one, or of `last`.
fn find(database: &Database, text: &str) -> Result<Row, Failure> {
    let id = whole_id(database, text)?;
    database.find(&id).map_err(failure)?.ok_or_else(|| unknown(text))
}

/// Returns the id with this prefix, if there is exactly one.
fn whole_id(database: &Database, text: &str) -> Result<String, Failure> {
    let found = match text {
        "last" => database.ids_beginning("", 1),
        _ => database.ids_beginning(text, MAX_CANDIDATES),
    };
    let found = found.map_err(failure)?;
    match found.as_slice() {
        [] => Err(unknown(text)),
        [id] => Ok(id.clone()),
        _ => Err(Failure::invalid(
            format!("more than one execution begins with '{}'", output::safe(text)),
            format!("write more of the id: {}", found.join(", ")),
        )),
    }
}

fn unknown(text: &str) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("there is no execution '{}' in the history", output::safe(text)),
        "`sandcell history` lists them, and `last` means the newest",
    )
}

/// Returns the complete ids in the given order, without duplicates.
fn once(ids: &[String], whole: impl Fn(&str) -> Result<String, Failure>) -> Result<Vec<String>, Failure> {
    let mut ids = ids.iter().map(|id| whole(id)).collect::<Result<Vec<_>, _>>()?;
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    Ok(ids)
}

/// Returns the rows of the notebook, oldest first.
fn wanted(database: &Database, ids: &[String], filters: &ExecutionFilter) -> Result<Vec<Row>, Failure> {
    let mut rows = if ids.is_empty() {
        let mut filter = filters.filter();
        filter.max_rows = filter.max_rows.min(MAX_NOTEBOOK_CELLS);
        database.list(&filter, true).map_err(failure)?
    } else {
        once(ids, |id| whole_id(database, id))?
            .iter()
            .map(|id| find(database, id))
            .collect::<Result<Vec<_>, _>>()?
    };
    if ids.is_empty() {
        rows.reverse();
    }
    if rows.is_empty() {
        return Err(Failure::new(
            Code::NotFound,
            "no execution matches these filters",
            "loosen the filters; `sandcell history` lists executions",
        ));
    }
    Ok(rows)
}

fn export(rows: Vec<Row>, out: Option<&Path>) -> Result<ExitCode, Failure> {
    let rows: Vec<_> = rows.into_iter().filter_map(Row::into_stored).collect();
    let notebook = sandcell_mcp::notebook(&rows);
    let Some(path) = out else {
        return printed(output::json(&notebook).map(|()| ExitCode::SUCCESS));
    };
    let write = || {
        let mut file = std::fs::File::create(path)?;
        serde_json::to_writer_pretty(&mut file, &notebook)?;
        file.write_all(b"\n")
    };
    write().map_err(|error| {
        Failure::invalid(
            format!("{} cannot be written: {error}", path.display()),
            "choose another --out",
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: HistoryError) -> Failure {
    let remedy = error.remedy();
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        message = format!("{message}: {source}");
    }
    let code = match error {
        HistoryError::Absent(_) => Code::NotFound,
        HistoryError::Newer { .. }
        | HistoryError::File { .. }
        | HistoryError::Removed(_)
        | HistoryError::Overwritten(_)
        | HistoryError::Sqlite { .. } => Code::Internal,
    };
    Failure::new(code, message, remedy)
}

/// Returns mebibytes with one decimal digit.
fn mebibytes(bytes: u64) -> f64 {
    let tenths = bytes.saturating_mul(10) >> 20;
    f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
}

fn summary(row: &Row) -> Value {
    json!({
        "execution_id": row.execution_id,
        "owner": row.owner,
        "sandbox_id": row.sandbox_id,
        "language": row.language,
        "status": row.status,
        "timestamp": row.timestamp,
        "duration_ms": row.duration_ms,
        "cpu_ms": row.cpu_ms,
        "peak_memory_mb": mebibytes(row.peak_memory_bytes),
        "stdout_bytes": row.stdout_bytes,
        "stderr_bytes": row.stderr_bytes,
        "exit_code": row.exit_code,
        "code_preview": row.code_preview(),
        "stdout_preview": row.stdout_preview(),
        "error": row.error,
        "cause": row.cause,
    })
}

fn whole(row: &Row) -> Value {
    let mut value = summary(row);
    if let Value::Object(fields) = &mut value {
        fields.extend([
            ("code".to_owned(), json!(row.code)),
            ("stdout".to_owned(), json!(row.stdout)),
            ("stderr".to_owned(), json!(row.stderr)),
            ("result".to_owned(), json!(row.result)),
            ("traceback".to_owned(), json!(row.traceback)),
            ("pictures".to_owned(), json!(row.pictures)),
            ("tool_calls".to_owned(), json!(row.tool_calls)),
        ]);
    }
    value
}

fn list(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "nothing is in the history\n".to_owned();
    }
    let line = |row: &Row| {
        let first = row
            .code_preview()
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        format!(
            "{}  {}  {:<9}  {:>8}  {:<10}  {:<10}  {}\n",
            row.execution_id,
            row.timestamp,
            row.status.as_str(),
            format!("{} ms", row.duration_ms),
            output::safe(&row.owner),
            output::safe(&row.language),
            output::safe(first),
        )
    };
    rows.iter().map(line).collect()
}

fn story(row: &Row) -> String {
    let mut text = format!(
        "{}  {}  {}  {}  {}\nran {} ms, used {} ms of processor time and at most {:.1} MiB of memory, wrote {} bytes to stdout and {} to stderr\n",
        row.execution_id,
        row.timestamp,
        output::safe(&row.owner),
        output::safe(&row.language),
        row.status.as_str(),
        row.duration_ms,
        row.cpu_ms,
        mebibytes(row.peak_memory_bytes),
        row.stdout_bytes,
        row.stderr_bytes,
    );
    let parts = [
        ("sandbox", row.sandbox_id.as_deref()),
        ("cause", row.cause.as_deref()),
        ("error", row.error.as_deref()),
        ("code", Some(row.code.as_str())),
        ("stdout", Some(row.stdout.as_str())),
        ("stderr", Some(row.stderr.as_str())),
        ("result", row.result.as_deref()),
        ("traceback", row.traceback.as_deref()),
    ];
    for (name, part) in parts {
        let Some(part) = part.filter(|part| !part.is_empty()) else {
            continue;
        };
        text.push_str(&format!("\n{name}:\n{}\n", output::safe(part.trim_end_matches('\n'))));
    }
    let picture = |one: &StoredPicture| format!("{} ({} KB)", output::safe(&one.name), one.size.div_ceil(1024));
    let pictures: Vec<String> = row.pictures.iter().map(picture).collect();
    if !pictures.is_empty() {
        let pictures = pictures.join(", ");
        text.push_str(&format!("\npictures: {pictures}: `sandcell history export` has them\n"));
    }
    if !row.tool_calls.is_empty() {
        text.push_str("\ntool calls:\n");
    }
    for one in &row.tool_calls {
        let counts = format!("{} ok, {} failed, {} refused", one.ok, one.failed, one.refused);
        text.push_str(&format!("{}: {counts}\n", output::safe(&one.tool)));
    }
    text
}
