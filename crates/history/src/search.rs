//! Searches the long texts of a caller's rows, in pages. Each search has its own connection and a deadline, so it
//! never delays the writer thread.
//!
//! The one decision: a search reads rows in windows, newest first, and checks the deadline between windows. If it does
//! not reach all rows, the result reports that (`complete`).

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params, params_from_iter};
use sandcell_engine::{HistoryPage, HistoryQuery};

use crate::database::{BUSY_TIMEOUT, SHORT_COLUMNS, pattern, read};

/// The number of rows in one window. A row has at most about 2 MiB of text, and few rows have that much.
const WINDOW_ROWS: i64 = 64;
/// The columns that a word can match, short ones first.
const TEXT_COLUMNS: [&str; 10] = [
    "id",
    "coalesce(sandbox, '')",
    "language",
    "status",
    "coalesce(error, '')",
    "code",
    "stdout",
    "stderr",
    "coalesce(result, '')",
    "coalesce(traceback, '')",
];

/// A running search.
struct Search<'a> {
    connection: &'a Connection,
    owner: &'a str,
    query: &'a HistoryQuery,
    oldest_ms: i64,
}

/// Finds the matching rows of `owner` in the database at `path`. Stops after `time_limit`.
///
/// # Errors
/// SQLite cannot read the database.
pub(crate) fn search(
    path: &Path,
    owner: &str,
    query: &HistoryQuery,
    oldest_ms: i64,
    time_limit: Duration,
) -> Result<HistoryPage, rusqlite::Error> {
    // Only SQLite opens the file here: closing any other descriptor of it would release this process's locks on it.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    let search = Search {
        connection: &connection,
        owner,
        query,
        oldest_ms,
    };
    search.run(time_limit)
}

impl Search<'_> {
    fn run(&self, time_limit: Duration) -> Result<HistoryPage, rusqlite::Error> {
        let began = Instant::now();
        let after = self.view_begins_after()?;
        let cursor = self.cursor()?;
        let (mut wanted, mut total, mut more, mut complete) = (Vec::new(), 0_u64, false, true);
        let mut upper = i64::MAX;
        while let Some(lower) = self.window(after, upper)? {
            if upper < i64::MAX && began.elapsed() >= time_limit {
                complete = false;
                break;
            }
            for seq in self.matches(lower, upper)? {
                total += 1;
                if seq >= cursor {
                    continue;
                }
                if wanted.len() < self.query.rows() {
                    wanted.push(seq);
                } else {
                    more = true;
                }
            }
            upper = lower;
        }
        let mut statement = self
            .connection
            .prepare(&format!("SELECT {SHORT_COLUMNS} FROM executions WHERE seq = ?1"))?;
        let mut records = Vec::new();
        for seq in wanted {
            let row = statement.query_row([seq], read).optional()?;
            records.extend(row.and_then(|row| row.record()));
        }
        Ok(HistoryPage {
            records,
            total,
            more,
            complete,
        })
    }

    fn view_begins_after(&self) -> Result<i64, rusqlite::Error> {
        let sql = "SELECT after_seq FROM views WHERE owner = ?1";
        let after = self
            .connection
            .query_row(sql, [self.owner], |row| row.get(0))
            .optional()?;
        Ok(after.unwrap_or(0))
    }

    /// Returns the sequence number that all rows of the page are below. If the cursor's row was deleted, there are no
    /// older rows, because the oldest rows are deleted first.
    fn cursor(&self) -> Result<i64, rusqlite::Error> {
        let Some(id) = &self.query.before else {
            return Ok(i64::MAX);
        };
        let sql = "SELECT seq FROM executions WHERE id = ?1 AND owner = ?2";
        let seq = self
            .connection
            .query_row(sql, params![id, self.owner], |row| row.get(0))
            .optional()?;
        Ok(seq.unwrap_or(0))
    }

    /// Returns the lowest sequence number of the next window, which contains only rows below `upper`.
    fn window(&self, after: i64, upper: i64) -> Result<Option<i64>, rusqlite::Error> {
        let sql = "SELECT min(seq) FROM (SELECT seq FROM executions WHERE owner = ?1 AND seq > ?2 AND seq < ?3 \
                   ORDER BY seq DESC LIMIT ?4)";
        self.connection
            .query_row(sql, params![self.owner, after, upper, WINDOW_ROWS], |row| row.get(0))
    }

    /// Returns the matching rows of a window, newest first.
    fn matches(&self, lower: i64, upper: i64) -> Result<Vec<i64>, rusqlite::Error> {
        let mut sql =
            "SELECT seq FROM executions WHERE owner = ? AND seq >= ? AND seq < ? AND shown AND started_ms >= ?"
                .to_owned();
        let mut values = vec![
            Value::Text(self.owner.to_owned()),
            Value::Integer(lower),
            Value::Integer(upper),
            Value::Integer(self.oldest_ms),
        ];
        let status = self.query.status.map(|status| status.as_str().to_owned());
        for (column, wanted) in [
            ("sandbox", self.query.sandbox.clone()),
            ("language", self.query.language.clone()),
            ("status", status),
        ] {
            if let Some(wanted) = wanted {
                sql.push_str(&format!(" AND {column} = ?"));
                values.push(Value::Text(wanted));
            }
        }
        for word in &self.query.words {
            let conditions: Vec<String> = TEXT_COLUMNS
                .iter()
                .map(|text| format!("{text} LIKE ? ESCAPE '\\'"))
                .collect();
            sql.push_str(&format!(" AND ({})", conditions.join(" OR ")));
            values.extend(TEXT_COLUMNS.iter().map(|_| Value::Text(pattern(word))));
        }
        sql.push_str(" ORDER BY seq DESC");
        let mut statement = self.connection.prepare(&sql)?;
        statement
            .query_map(params_from_iter(values), |row| row.get(0))?
            .collect()
    }
}
