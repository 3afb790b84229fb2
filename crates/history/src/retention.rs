//! The limits of the history, and the order of deletion: first expired rows, then the oldest rows of the caller with
//! the most. A busy caller therefore does not push out a quiet one.

use std::time::Duration;

use rusqlite::{Transaction, params};

use crate::database::{Database, HistoryError};

/// The limits of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The maximum number of rows.
    pub rows: usize,
    /// The maximum age of a row.
    pub age: Duration,
    /// The approximate maximum size of all rows in bytes.
    pub bytes: u64,
}

impl Retention {
    /// Returns the maximum size of the file. Deleting needs free space, and the file contains more than rows.
    pub(crate) const fn file_bytes(&self) -> u64 {
        self.bytes.saturating_mul(2).saturating_add(16 << 20)
    }

    /// Returns the excess that is tolerated before a trim, because a trim reads every row.
    const fn tolerated_excess(number: u64) -> u64 {
        number / 64
    }
}

/// The size of the history as this process knows it. Other processes may also write, so a trim refreshes it from time
/// to time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistorySize {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl HistorySize {
    pub(crate) fn is_over(&self, limits: &Retention) -> bool {
        let rows = u64::try_from(limits.rows).unwrap_or(u64::MAX);
        self.rows > rows.saturating_add(Retention::tolerated_excess(rows))
            || self.bytes > limits.bytes.saturating_add(Retention::tolerated_excess(limits.bytes))
    }
}

impl Database {
    /// Deletes expired and surplus rows, and returns the remaining size.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub(crate) fn trim(&mut self, limits: &Retention) -> Result<HistorySize, HistoryError> {
        let max_size = HistorySize {
            rows: u64::try_from(limits.rows).unwrap_or(u64::MAX),
            bytes: limits.bytes,
        };
        let oldest = Self::oldest(limits.age);
        let result = self.in_transaction(|it| {
            it.execute("DELETE FROM executions WHERE started_ms < ?1", [oldest])?;
            it.execute(
                "DELETE FROM views WHERE began_ms < ?1 AND owner NOT IN (SELECT owner FROM executions)",
                [oldest],
            )?;
            let size = current_size(it)?;
            if size.rows > max_size.rows {
                for (owner, rows) in surplus(shares(it, "count(*)")?, size.rows - max_size.rows) {
                    drop_oldest(it, &owner, rows)?;
                }
            }
            let size = current_size(it)?;
            if size.bytes > max_size.bytes {
                let mut over = size.bytes - max_size.bytes;
                // Only whole rows are deleted, so the limit may be reached before every caller lost its share.
                for (owner, bytes) in surplus(shares(it, "sum(weight)")?, over) {
                    over = over.saturating_sub(drop_weight(it, &owner, bytes.min(over))?);
                    if over == 0 {
                        break;
                    }
                }
            }
            current_size(it)
        });
        let size = result.map_err(|error| self.sqlite_error(error))?;
        let vacuumed = self.connection().execute_batch("PRAGMA incremental_vacuum(2000)");
        vacuumed.map_err(|error| self.sqlite_error(error))?;
        Ok(size)
    }
}

fn current_size(it: &Transaction<'_>) -> rusqlite::Result<HistorySize> {
    it.prepare("SELECT count(*), coalesce(sum(weight), 0) FROM executions")?
        .query_row([], |row| {
            Ok(HistorySize {
                rows: positive(row.get(0)?),
                bytes: positive(row.get(1)?),
            })
        })
}

/// Returns each caller's share, measured by the SQL expression `what`, largest first.
fn shares(it: &Transaction<'_>, what: &str) -> rusqlite::Result<Vec<(String, u64)>> {
    let sql = format!("SELECT owner, {what} AS own FROM executions GROUP BY owner ORDER BY own DESC, owner");
    let mut question = it.prepare(&sql)?;
    let shares = question.query_map([], |row| Ok((row.get(0)?, positive(row.get(1)?))))?;
    shares.collect()
}

/// Returns the amount that each of the largest callers loses, so that all of them have equal shares afterwards and the
/// amounts add up to `over`. Each query reads every row, so one query computes all amounts: hundreds of callers with
/// equal shares are usual.
fn surplus(shares: Vec<(String, u64)>, over: u64) -> Vec<(String, u64)> {
    let nexts = shares.iter().skip(1).map(|(_, own)| *own).chain([0]);
    let (mut giver_count, mut given) = (0, 0);
    let mut level = 0;
    for ((_, own), next) in shares.iter().zip(nexts) {
        (giver_count, given, level) = (giver_count + 1, given + (own - next) * (giver_count + 1), next);
        if given >= over {
            break;
        }
    }
    // The callers keep the excess of the last step. If it does not divide evenly, the last ones keep one more each.
    let spare = given.saturating_sub(over);
    level += spare / giver_count.max(1);
    let even = giver_count - spare % giver_count.max(1);
    let gives = shares.into_iter().zip(0..giver_count).map(|((owner, own), number)| {
        let keeps = level + u64::from(number >= even);
        (owner, own.saturating_sub(keeps))
    });
    gives.filter(|(_, gives)| *gives > 0).collect()
}

fn drop_oldest(it: &Transaction<'_>, owner: &str, rows: u64) -> rusqlite::Result<()> {
    let mut delete = it.prepare(
        "DELETE FROM executions WHERE seq IN \
         (SELECT seq FROM executions WHERE owner = ?1 ORDER BY seq LIMIT ?2)",
    )?;
    delete.execute(params![owner, i64::try_from(rows).unwrap_or(i64::MAX)])?;
    Ok(())
}

/// Deletes the oldest rows, at least one, until their total size reaches `bytes`. Returns the size of the deleted
/// rows.
fn drop_weight(it: &Transaction<'_>, owner: &str, bytes: u64) -> rusqlite::Result<u64> {
    let mut delete = it.prepare(
        "DELETE FROM executions WHERE seq IN (SELECT seq FROM \
         (SELECT seq, sum(weight) OVER (ORDER BY seq) - weight AS before FROM executions WHERE owner = ?1) \
         WHERE before < ?2) RETURNING weight",
    )?;
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let deleted = delete.query_map(params![owner, bytes], |row| Ok(positive(row.get(0)?)))?;
    deleted.sum()
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(shares: &[u64], over: u64) -> Vec<u64> {
        let named = shares.iter().enumerate();
        let given = surplus(named.map(|(n, own)| (n.to_string(), *own)).collect(), over);
        given.into_iter().map(|(_, gives)| gives).collect()
    }

    #[test]
    fn the_callers_with_most_rows_lose_rows_first() {
        assert_eq!(given(&[10, 3, 1], 4), [4]);
        assert_eq!(given(&[10, 8, 1], 6), [4, 2]);
        assert_eq!(given(&[5, 5, 5], 4), [2, 1, 1]);
        assert_eq!(given(&[5, 5, 5], 1), [1]);
        assert_eq!(given(&[2, 1], 3), [2, 1]);
        assert_eq!(given(&[2, 1], 9), [2, 1], "there is no more");
        assert_eq!(given(&[], 1), [0; 0]);
    }
}
