//! How much is kept, and what goes first: what is too old, then the oldest rows of the caller that has most. So a busy
//! caller does not push out a quiet one.

use std::time::Duration;

use rusqlite::{Transaction, params};

use crate::database::{Database, HistoryError};

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Rows.
    pub rows: usize,
    /// How long.
    pub age: Duration,
    /// Bytes of the rows together, nearly.
    pub bytes: u64,
}

impl Retention {
    /// What the file may have: deleting needs room, too, and rows are not all that is in it.
    pub(crate) const fn file_bytes(&self) -> u64 {
        self.bytes.saturating_mul(2).saturating_add(16 << 20)
    }

    /// How far over the bound it may be before it is looked at closely, which costs a look at every row.
    const fn slack(number: u64) -> u64 {
        number / 64
    }
}

/// What there is, as this process knows it. Other processes may write, too, so it is asked anew now and then.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holding {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl Holding {
    pub(crate) fn is_over(&self, keep: &Retention) -> bool {
        let rows = u64::try_from(keep.rows).unwrap_or(u64::MAX);
        self.rows > rows.saturating_add(Retention::slack(rows))
            || self.bytes > keep.bytes.saturating_add(Retention::slack(keep.bytes))
    }
}

impl Database {
    /// Deletes what is too old and too much, and says what is left.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub(crate) fn trim(&mut self, keep: &Retention) -> Result<Holding, HistoryError> {
        let most = Holding {
            rows: u64::try_from(keep.rows).unwrap_or(u64::MAX),
            bytes: keep.bytes,
        };
        let oldest = Self::oldest(keep.age);
        let result = self.change(|it| {
            it.execute("DELETE FROM executions WHERE started_ms < ?1", [oldest])?;
            it.execute(
                "DELETE FROM views WHERE began_ms < ?1 AND owner NOT IN (SELECT owner FROM executions)",
                [oldest],
            )?;
            let mut held = holding(it)?;
            while held.rows > most.rows && held.rows > 0 {
                let (owner, own, next) = heaviest(it, "count(*)")?;
                // Down to where the next one has more, or to what is asked for.
                let surplus = (held.rows - most.rows).min((own - next).max(1));
                drop_oldest(it, &owner, surplus)?;
                held = holding(it)?;
            }
            while held.bytes > most.bytes && held.rows > 0 {
                let (owner, own, next) = heaviest(it, "sum(weight)")?;
                let surplus = (held.bytes - most.bytes).min((own - next).max(1));
                drop_weight(it, &owner, surplus)?;
                held = holding(it)?;
            }
            Ok(held)
        });
        let held = result.map_err(|error| self.failed(error))?;
        let given_back = self.connection().execute_batch("PRAGMA incremental_vacuum(2000)");
        given_back.map_err(|error| self.failed(error))?;
        Ok(held)
    }
}

fn holding(it: &Transaction<'_>) -> rusqlite::Result<Holding> {
    it.prepare("SELECT count(*), coalesce(sum(weight), 0) FROM executions")?
        .query_row([], |row| {
            Ok(Holding {
                rows: positive(row.get(0)?),
                bytes: positive(row.get(1)?),
            })
        })
}

/// The caller that has most of something, how much that is, and how much the next one has.
fn heaviest(it: &Transaction<'_>, what: &str) -> rusqlite::Result<(String, u64, u64)> {
    let sql = format!("SELECT owner, {what} AS own FROM executions GROUP BY owner ORDER BY own DESC LIMIT 2");
    let mut question = it.prepare(&sql)?;
    let mut rows = question.query([])?;
    let Some(first) = rows.next()? else {
        return Err(rusqlite::Error::QueryReturnedNoRows);
    };
    let (owner, own) = (first.get(0)?, positive(first.get(1)?));
    let next = match rows.next()? {
        Some(second) => positive(second.get(1)?),
        None => 0,
    };
    Ok((owner, own, next))
}

fn drop_oldest(it: &Transaction<'_>, owner: &str, rows: u64) -> rusqlite::Result<()> {
    let mut delete = it.prepare(
        "DELETE FROM executions WHERE seq IN \
         (SELECT seq FROM executions WHERE owner = ?1 ORDER BY seq LIMIT ?2)",
    )?;
    delete.execute(params![owner, i64::try_from(rows).unwrap_or(i64::MAX)])?;
    Ok(())
}

/// Deletes the oldest rows until so many bytes are gone: at least one.
fn drop_weight(it: &Transaction<'_>, owner: &str, bytes: u64) -> rusqlite::Result<()> {
    let mut delete = it.prepare(
        "DELETE FROM executions WHERE seq IN (SELECT seq FROM \
         (SELECT seq, sum(weight) OVER (ORDER BY seq) - weight AS before FROM executions WHERE owner = ?1) \
         WHERE before < ?2)",
    )?;
    delete.execute(params![owner, i64::try_from(bytes).unwrap_or(i64::MAX)])?;
    Ok(())
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
