//! The logs of a sandbox: a line for its creation, and one for each program and piece of code that has ended. They come from
//! the caller's history. Output is not a part of them.

use std::sync::Arc;

use hyper::{Response, StatusCode};
use sandcell_engine::{HistoryQuery, HistoryRecord, SandboxView};
use sandcell_mcp::EndpointBody;
use sandcell_sandbox::{parse_rfc3339, rfc3339_millis};
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::registry::Sandbox;
use crate::{State, answer};

/// The maximum number of lines in one answer.
const MAX_LINES: usize = 1000;
/// The maximum number of rows of the history that one request reads.
const MAX_ROWS: usize = 10_000;
/// The number of rows that are read at once.
const PAGE_ROWS: usize = 100;
/// The levels, the least first.
const LOG_LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Of the first version of the API: each line also as plain text, the oldest line first.
    First,
    Second,
}

/// The lines that a request wants.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    /// Lines from this time on, or up to it if the newest lines come first. In milliseconds since 1970.
    cursor: Option<u64>,
    limit: usize,
    newest_first: bool,
    /// The least level, as its place in [`LOG_LEVELS`].
    level: usize,
    search: String,
}

/// A line of the log.
#[derive(Debug)]
struct Line {
    /// In milliseconds since 1970.
    time: u64,
    level: &'static str,
    message: String,
    fields: Value,
}

impl Query {
    fn parse(query: &str) -> Result<Self, Problem> {
        let mut parsed = Self {
            cursor: None,
            limit: MAX_LINES,
            newest_first: false,
            level: 0,
            search: String::new(),
        };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let invalid = || Problem::invalid(format!("`{name}` has a value that it cannot have"));
            match &*name {
                "start" | "cursor" => parsed.cursor = Some(value.parse().map_err(|_| invalid())?),
                "limit" => parsed.limit = value.parse::<usize>().map_err(|_| invalid())?.min(MAX_LINES),
                "direction" => {
                    parsed.newest_first = match &*value {
                        "forward" => false,
                        "backward" => true,
                        _ => return Err(invalid()),
                    }
                }
                "level" => {
                    parsed.level = LOG_LEVELS
                        .iter()
                        .position(|level| *level == value)
                        .ok_or_else(invalid)?;
                }
                "search" => parsed.search = value.into_owned(),
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn wants(&self, line: &Line) -> bool {
        let in_time = self.cursor.is_none_or(|cursor| match self.newest_first {
            true => line.time <= cursor,
            false => line.time >= cursor,
        });
        let level = LOG_LEVELS.iter().position(|level| *level == line.level);
        in_time && level >= Some(self.level) && line.message.contains(&self.search)
    }
}

/// Answers a request for the logs of a sandbox.
pub(crate) async fn answer(
    state: &Arc<State>,
    sandbox: &Sandbox,
    view: &SandboxView,
    query: &str,
    form: Form,
) -> Result<Response<EndpointBody>, Problem> {
    let query = Query::parse(query)?;
    let mut lines = rows(state, sandbox, &query).await?;
    lines.push(created(view));
    lines.retain(|line| query.wants(line));
    if !query.newest_first {
        lines.reverse();
    }
    lines.truncate(query.limit);
    let entries: Vec<Value> = lines.iter().map(entry).collect();
    let plain = |line: &Line| json!({"timestamp": time(line.time), "line": line.message});
    Ok(answer::json(
        StatusCode::OK,
        &match form {
            Form::First => json!({"logs": lines.iter().map(plain).collect::<Vec<_>>(), "logEntries": entries}),
            Form::Second => json!({"logs": entries}),
        },
    ))
}

/// Returns the lines of the sandbox's history that a request wants, the newest first. Enough for its answer, and at most
/// [`MAX_ROWS`].
async fn rows(state: &Arc<State>, sandbox: &Sandbox, query: &Query) -> Result<Vec<Line>, Problem> {
    let (mut lines, mut read, mut before) = (Vec::new(), 0, None);
    loop {
        let search = HistoryQuery {
            sandbox: Some(sandbox.id.clone()),
            before,
            limit: PAGE_ROWS,
            ..HistoryQuery::default()
        };
        let page = state.engine.search(&sandbox.owner, &search).await?;
        read += page.records.len();
        before = page.records.last().map(|row| row.execution_id.to_string());
        lines.extend(page.records.iter().map(ended).filter(|line| query.wants(line)));
        // The oldest lines come first, so all of them have to be read.
        let is_enough = query.newest_first && lines.len() >= query.limit;
        if !page.more || before.is_none() || is_enough || read >= MAX_ROWS {
            return Ok(lines);
        }
    }
}

fn created(view: &SandboxView) -> Line {
    let time = view.created.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Line {
        time: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        level: "info",
        message: "sandbox created".to_owned(),
        fields: json!({}),
    }
}

fn ended(row: &HistoryRecord) -> Line {
    let began = parse_rfc3339(&row.timestamp).and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let began = began.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let status = row.status.as_str();
    let mut message = format!(
        "{} {status} after {} ms: {}",
        row.language, row.duration_ms, row.code_preview
    );
    if let Some(error) = &row.error {
        message.push_str(" | ");
        message.push_str(error);
    }
    Line {
        time: began.saturating_add(row.duration_ms),
        level: if row.success { "info" } else { "error" },
        message: message.replace(['\n', '\r'], " "),
        fields: json!({"execution": row.execution_id, "language": row.language, "status": status}),
    }
}

fn entry(line: &Line) -> Value {
    json!({
        "timestamp": time(line.time),
        "level": line.level,
        "message": line.message,
        // All values are texts.
        "fields": line.fields,
    })
}

fn time(milliseconds: u64) -> String {
    rfc3339_millis(std::time::UNIX_EPOCH + std::time::Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_selects_lines_by_time_level_and_words() {
        let line = |time, level, message: &str| Line {
            time,
            level,
            message: message.to_owned(),
            fields: json!({}),
        };
        let lines = [
            line(1, "info", "one"),
            line(2, "error", "two"),
            line(3, "info", "three"),
        ];
        let wanted = |query: &str| {
            let query = Query::parse(query).unwrap_or_else(|problem| panic!("{query}: {problem:?}"));
            lines
                .iter()
                .filter(|line| query.wants(line))
                .map(|line| line.time)
                .collect::<Vec<_>>()
        };
        assert_eq!(wanted(""), [1, 2, 3]);
        assert_eq!(wanted("start=2"), [2, 3]);
        assert_eq!(wanted("cursor=2&direction=backward"), [1, 2]);
        assert_eq!(wanted("level=warn"), [2]);
        assert_eq!(wanted("search=hre"), [3]);
        for bad in ["limit=x", "direction=up", "level=loud", "cursor=-1"] {
            assert!(Query::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            Query::parse("limit=5000").map(|query| query.limit).ok(),
            Some(MAX_LINES)
        );
    }
}
