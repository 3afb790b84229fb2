//! The database file: its schema, and all queries. Every call blocks. Code that must not block uses the writer.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, params};
use sandcell_engine::{StoredPicture, StoredView, ToolCallCount};
use sandcell_sandbox::{from_unix_millis, unix_millis};

use crate::row::{Row, status};

/// The version of the schema. A newer sandcell wrote a database with a larger number.
const SCHEMA_VERSION: i64 = 3;
/// The size of a page in bytes.
const PAGE_BYTES: u64 = 4096;
/// The first bytes of every SQLite database.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The maximum wait for another process that writes.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

const CREATE_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS executions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        sandbox TEXT,
        language TEXT NOT NULL,
        status TEXT NOT NULL,
        started_ms INTEGER NOT NULL,
        timestamp TEXT NOT NULL,
        duration_ms INTEGER NOT NULL,
        cpu_ms INTEGER NOT NULL,
        peak_bytes INTEGER NOT NULL,
        stdout_bytes INTEGER NOT NULL,
        stderr_bytes INTEGER NOT NULL,
        exit_code INTEGER,
        error TEXT,
        cause TEXT,
        code_preview TEXT NOT NULL,
        stdout_preview TEXT NOT NULL,
        shown INTEGER NOT NULL,
        weight INTEGER NOT NULL,
        code TEXT NOT NULL,
        stdout TEXT NOT NULL,
        stderr TEXT NOT NULL,
        result TEXT,
        traceback TEXT
    ) STRICT;
    CREATE INDEX IF NOT EXISTS executions_by_owner ON executions (owner, seq, weight);
    CREATE INDEX IF NOT EXISTS executions_by_time ON executions (started_ms, owner, weight);
    CREATE TABLE IF NOT EXISTS views (
        owner TEXT PRIMARY KEY,
        began_ms INTEGER NOT NULL,
        after_seq INTEGER NOT NULL,
        total INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// The table that version 2 of the schema added. Deleting an execution also deletes its pictures.
const CREATE_PICTURES: &str = "
    CREATE TABLE IF NOT EXISTS pictures (
        execution TEXT NOT NULL REFERENCES executions (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        name TEXT NOT NULL,
        mime TEXT NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY (execution, number)
    ) STRICT;
";

/// The table that version 3 of the schema added: the number of calls of each tool by an execution.
const CREATE_TOOL_CALLS: &str = "
    CREATE TABLE IF NOT EXISTS tool_calls (
        execution TEXT NOT NULL REFERENCES executions (id) ON DELETE CASCADE,
        tool TEXT NOT NULL,
        ok INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        PRIMARY KEY (execution, tool)
    ) STRICT, WITHOUT ROWID;
";

const ALL_COLUMNS: &str = "id, owner, sandbox, language, status, started_ms, timestamp, duration_ms, cpu_ms, peak_bytes, \
    stdout_bytes, stderr_bytes, exit_code, error, cause, code_preview, stdout_preview, shown, code, stdout, stderr, result, \
    traceback";
/// The same columns without the long texts.
pub(crate) const SHORT_COLUMNS: &str = "id, owner, sandbox, language, status, started_ms, timestamp, duration_ms, cpu_ms, peak_bytes, \
    stdout_bytes, stderr_bytes, exit_code, error, cause, code_preview, stdout_preview, shown, '', '', '', NULL, NULL";

/// An error from writing or reading the history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be created or opened.
    #[error("the history {} cannot be opened", path.display())]
    File {
        /// The path of the database.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The database does not exist yet.
    #[error("there is no history at {} yet", .0.display())]
    Absent(PathBuf),
    /// A newer version of sandcell created the database.
    #[error(
        "the history {} has schema version {schema_version}, and this sandcell supports versions up to {SCHEMA_VERSION}",
        path.display()
    )]
    Newer {
        /// The path of the database.
        path: PathBuf,
        /// The version of its schema.
        schema_version: i64,
    },
    /// The file was removed or replaced while it was open.
    #[error("the history {} was removed while it was open", .0.display())]
    Removed(PathBuf),
    /// The file has other content, so it is not a SQLite database.
    #[error("the history {} was overwritten: it is not a database", .0.display())]
    Overwritten(PathBuf),
    /// SQLite returned an error: the file is corrupt, the disk is full, or another process holds the lock.
    #[error("the history {} cannot be used", path.display())]
    Sqlite {
        /// The path of the database.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
}

impl HistoryError {
    /// Returns the operator's possible next step.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Absent(_) => "run some code first; `sandcell config` shows data_dir",
            Self::Newer { .. } => "use the newer sandcell, or another data_dir",
            Self::File { .. } => "check data_dir, its owner and the room on its disk",
            Self::Removed(_) => "none: the next execution creates a new one",
            Self::Overwritten(_) => "move the file away; sandcell then creates a new one",
            Self::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                    "the file is corrupt: move it away; sandcell then creates a new one"
                }
                Some(ErrorCode::DiskFull) => "make room on the disk of data_dir, or raise limits.history_mb",
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "end the program that holds its lock",
                _ => "check data_dir, its owner and the room on its disk",
            },
        }
    }
}

/// Returns true if a file begins like an SQLite database.
fn is_database(file: &File) -> std::io::Result<bool> {
    let mut head = [0; SQLITE_MAGIC.len()];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) => Ok(&head == SQLITE_MAGIC),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Selects rows. None means no restriction.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Selects executions of this caller.
    pub owner: Option<String>,
    /// Selects executions in this sandbox.
    pub sandbox: Option<String>,
    /// Selects executions with this text in the code, the output, the result or the error. The case of ASCII letters
    /// is ignored.
    pub text: Option<String>,
    /// Selects executions with this status.
    pub status: Option<String>,
    /// The maximum number of rows. The newest are returned.
    pub max_rows: u32,
}

/// An open database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
    /// The file, for comparison with the file at `path`. It is closed after the connection, because closing any
    /// descriptor of a file releases this process's locks on it.
    file: File,
}

impl Database {
    /// Returns the path of the database in a data folder.
    #[must_use]
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join("history.db")
    }

    /// Opens the database for writing, and creates it if it does not exist. `bytes` is the maximum size of the file.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn open(path: &Path, bytes: u64) -> Result<Self, HistoryError> {
        create(path).map_err(|source| HistoryError::File {
            path: path.to_owned(),
            source,
        })?;
        let database = Self::connect(path)?;
        let schema_version = database.schema_version()?;
        database.wrap_error(database.prepare(schema_version, bytes))?;
        Ok(database)
    }

    /// Disables the checkpoint of the write-ahead log on close. A checkpoint waits for the disk, and a command at its
    /// end has no time for that. Readers see the rows in the log anyway, and the next server or command that opens the
    /// history writes them into the database.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub(crate) fn skip_checkpoint_on_close(&self) -> Result<(), HistoryError> {
        let set = self
            .connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        self.wrap_error(set).map(|_| ())
    }

    /// Opens an existing database.
    ///
    /// # Errors
    /// [`HistoryError::Absent`] if there is no database, or any other [`HistoryError`].
    pub fn open_existing(path: &Path) -> Result<Self, HistoryError> {
        if !path.exists() {
            return Err(HistoryError::Absent(path.to_owned()));
        }
        let database = Self::connect(path)?;
        if database.schema_version()? == 0 {
            return Err(HistoryError::Absent(path.to_owned()));
        }
        Ok(database)
    }

    fn connect(path: &Path) -> Result<Self, HistoryError> {
        let file_error = |source| HistoryError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(file_error)?;
        let empty = file.metadata().map_err(file_error)?.len() == 0;
        // SQLite would apply a remaining write-ahead log to the other content of the file.
        if !empty && !is_database(&file).map_err(file_error)? {
            return Err(HistoryError::Overwritten(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            // Another user may have created the file, so its tables and triggers must not call functions.
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.pragma_update(None, "foreign_keys", true)?;
            Ok(connection)
        };
        let connection = open().map_err(|source| HistoryError::Sqlite {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            file,
        })
    }

    /// Checks that the file still exists and is still a database. Without this check, SQLite would write to a deleted
    /// file.
    ///
    /// # Errors
    /// [`HistoryError::Removed`], [`HistoryError::Overwritten`], or an error of the disk.
    pub(crate) fn check(&self) -> Result<(), HistoryError> {
        let file_error = |source| HistoryError::File {
            path: self.path.clone(),
            source,
        };
        let own = self.file.metadata().map_err(file_error)?;
        let removed = match std::fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) != (own.dev(), own.ino()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(file_error(error)),
        };
        if removed {
            return Err(HistoryError::Removed(self.path.clone()));
        }
        if is_database(&self.file).map_err(file_error)? {
            Ok(())
        } else {
            Err(HistoryError::Overwritten(self.path.clone()))
        }
    }

    fn wrap_error<T>(&self, result: Result<T, rusqlite::Error>) -> Result<T, HistoryError> {
        result.map_err(|source| HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        })
    }

    fn schema_version(&self) -> Result<i64, HistoryError> {
        let schema_version = self.wrap_error(
            self.connection
                .pragma_query_value(None, "user_version", |row| row.get(0)),
        )?;
        if schema_version > SCHEMA_VERSION {
            return Err(HistoryError::Newer {
                path: self.path.clone(),
                schema_version,
            });
        }
        Ok(schema_version)
    }

    fn prepare(&self, schema_version: i64, bytes: u64) -> Result<(), rusqlite::Error> {
        let it = &self.connection;
        if schema_version == 0 {
            // This setting only has an effect before the first table exists.
            it.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        it.pragma_update(None, "journal_mode", "WAL")?;
        // A commit survives the death of the process. A crash of the machine loses at most the last commits.
        it.pragma_update(None, "synchronous", "NORMAL")?;
        it.pragma_update(None, "journal_size_limit", 1 << 20)?;
        it.pragma_update(None, "secure_delete", "FAST")?;
        let pages = i64::try_from(bytes / PAGE_BYTES).unwrap_or(i64::MAX).max(64);
        it.pragma_update(None, "max_page_count", pages)?;
        if schema_version < SCHEMA_VERSION {
            // Another process may do the same at the same time.
            it.execute_batch(&format!(
                "BEGIN IMMEDIATE; {CREATE_TABLES} {CREATE_PICTURES} {CREATE_TOOL_CALLS} \
                 PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            ))?;
        }
        Ok(())
    }

    /// Writes rows, and begins a view for each caller without one.
    ///
    /// # Errors
    /// See [`HistoryError`]. On an error, nothing was written.
    pub(crate) fn add(&mut self, rows: &[Row], began_ms: i64) -> Result<(), HistoryError> {
        let result = self.in_transaction(|it| {
            let mut insert = it.prepare(&format!(
                "INSERT OR IGNORE INTO executions ({ALL_COLUMNS}, weight) VALUES \
                 (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24)"
            ))?;
            let mut count = it.prepare(
                "INSERT INTO views (owner, began_ms, after_seq, total) VALUES (?1, ?2, 0, 1) \
                 ON CONFLICT (owner) DO UPDATE SET total = total + 1",
            )?;
            let mut picture = it.prepare(
                "INSERT OR IGNORE INTO pictures (execution, number, name, mime, bytes) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?;
            let mut calls = it.prepare(
                "INSERT OR IGNORE INTO tool_calls (execution, tool, ok, failed, refused) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?;
            for row in rows {
                let new = insert.execute(params![
                    row.execution_id,
                    row.owner,
                    row.sandbox_id,
                    row.language,
                    row.status.as_str(),
                    row.started_ms,
                    row.timestamp,
                    signed(row.duration_ms),
                    signed(row.cpu_ms),
                    signed(row.peak_memory_bytes),
                    signed(row.stdout_bytes),
                    signed(row.stderr_bytes),
                    row.exit_code,
                    row.error,
                    row.cause,
                    row.code_preview,
                    row.stdout_preview,
                    row.shown,
                    row.code,
                    row.stdout,
                    row.stderr,
                    row.result,
                    row.traceback,
                    i64::try_from(row.weight()).unwrap_or(i64::MAX),
                ])?;
                for one in row.pictures.iter().filter(|_| new > 0) {
                    picture.execute(params![row.execution_id, one.number, one.name, one.mime, &*one.bytes])?;
                }
                for one in row.tool_calls.iter().filter(|_| new > 0) {
                    calls.execute(params![row.execution_id, one.tool, one.ok, one.failed, one.refused])?;
                }
                if new > 0 && row.shown {
                    count.execute(params![row.owner, began_ms])?;
                }
            }
            Ok(())
        });
        self.wrap_error(result)
    }

    /// Begins a new view for a caller. It contains only rows after the existing ones.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub(crate) fn reset(&mut self, owner: &str, at_ms: i64) -> Result<(), HistoryError> {
        let result = self.in_transaction(|it| {
            it.execute(
                "INSERT INTO views (owner, began_ms, after_seq, total) \
                 VALUES (?1, ?2, (SELECT coalesce(max(seq), 0) FROM executions), 0) ON CONFLICT (owner) DO UPDATE SET \
                 began_ms = excluded.began_ms, after_seq = excluded.after_seq, total = 0",
                params![owner, at_ms],
            )?;
            Ok(())
        });
        self.wrap_error(result)
    }

    /// Returns the view of a caller: its executions since the last reset.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub(crate) fn view(
        &self,
        owner: &str,
        last_n: usize,
        sandbox: Option<&str>,
        oldest_ms: i64,
        began_ms: i64,
    ) -> Result<StoredView, HistoryError> {
        let ask = || {
            let view = self
                .connection
                .prepare("SELECT began_ms, after_seq, total FROM views WHERE owner = ?1")?
                .query_row([owner], |row| {
                    Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
                })
                .optional()?;
            let (began, after, total) = view.unwrap_or((began_ms, 0, 0));
            let mut rows = self.connection.prepare(&format!(
                "SELECT {SHORT_COLUMNS} FROM executions WHERE owner = ?1 AND shown AND seq > ?2 AND started_ms >= ?3 \
                 AND (?4 IS NULL OR sandbox = ?4) ORDER BY seq DESC LIMIT ?5"
            ))?;
            let limit = i64::try_from(last_n).unwrap_or(i64::MAX);
            let rows = rows.query_map(params![owner, after, oldest_ms, sandbox, limit], read)?;
            let mut records = Vec::new();
            for row in rows {
                records.extend(row?.record());
            }
            Ok(StoredView {
                total: u64::try_from(total).unwrap_or(0),
                began: from_unix_millis(began),
                records,
            })
        };
        self.wrap_error(ask())
    }

    /// Returns the rows that match a filter, newest first. Without `whole`, their long texts are empty.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn list(&self, filter: &Filter, whole: bool) -> Result<Vec<Row>, HistoryError> {
        let columns = if whole { ALL_COLUMNS } else { SHORT_COLUMNS };
        let ask = || {
            let mut rows = self.connection.prepare(&format!(
                "SELECT {columns} FROM executions WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR sandbox = ?2) \
                 AND (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR code LIKE ?4 ESCAPE '\\' \
                 OR stdout LIKE ?4 ESCAPE '\\' OR stderr LIKE ?4 ESCAPE '\\' OR result LIKE ?4 ESCAPE '\\' \
                 OR error LIKE ?4 ESCAPE '\\') ORDER BY seq DESC LIMIT ?5"
            ))?;
            let text = filter.text.as_deref().map(pattern);
            let rows = rows.query_map(
                params![filter.owner, filter.sandbox, filter.status, text, filter.max_rows],
                read,
            )?;
            let mut rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
            if whole {
                for row in &mut rows {
                    row.pictures = self.pictures(&row.execution_id)?;
                    row.tool_calls = self.tool_calls(&row.execution_id)?;
                }
            }
            Ok(rows)
        };
        self.wrap_error(ask())
    }

    /// Returns the row with this id.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn find(&self, id: &str) -> Result<Option<Row>, HistoryError> {
        let sql = format!("SELECT {ALL_COLUMNS} FROM executions WHERE id = ?1");
        let ask = || {
            let mut row = self.connection.query_row(&sql, [id], read).optional()?;
            if let Some(row) = &mut row {
                row.pictures = self.pictures(id)?;
                row.tool_calls = self.tool_calls(id)?;
            }
            Ok(row)
        };
        self.wrap_error(ask())
    }

    /// Returns at most `max_rows` ids that begin with this text.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn ids_beginning(&self, text: &str, max_rows: u32) -> Result<Vec<String>, HistoryError> {
        let ask = || {
            let sql = "SELECT id FROM executions WHERE substr(id, 1, length(?1)) = ?1 ORDER BY seq DESC LIMIT ?2";
            let mut rows = self.connection.prepare(sql)?;
            rows.query_map(params![text, max_rows], |row| row.get(0))?.collect()
        };
        self.wrap_error(ask())
    }

    fn pictures(&self, id: &str) -> rusqlite::Result<Vec<StoredPicture>> {
        let sql = "SELECT number, name, mime, bytes FROM pictures WHERE execution = ?1 ORDER BY number";
        self.parts("pictures", sql, id, picture)
    }

    fn tool_calls(&self, id: &str) -> rusqlite::Result<Vec<ToolCallCount>> {
        let sql = "SELECT tool, ok, failed, refused FROM tool_calls WHERE execution = ?1 ORDER BY tool";
        self.parts("tool_calls", sql, id, |row| {
            Ok(ToolCallCount {
                tool: row.get(0)?,
                ok: row.get(1)?,
                failed: row.get(2)?,
                refused: row.get(3)?,
            })
        })
    }

    /// Returns the rows of an execution in another table. A database with an older schema lacks the table until the next
    /// write.
    fn parts<T>(
        &self,
        table: &str,
        sql: &str,
        id: &str,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        if !self.connection.table_exists(None, table)? {
            return Ok(Vec::new());
        }
        self.connection.prepare(sql)?.query_map([id], read)?.collect()
    }

    /// Returns one picture of an execution, if the execution belongs to `owner` and is not older than `oldest`.
    pub(crate) fn picture(
        &self,
        id: &str,
        number: u32,
        (owner, oldest): (&str, i64),
    ) -> Result<Option<StoredPicture>, HistoryError> {
        let ask = || {
            if !self.connection.table_exists(None, "pictures")? {
                return Ok(None);
            }
            let mut rows = self.connection.prepare(
                "SELECT number, name, mime, bytes FROM pictures WHERE execution = ?1 AND number = ?2 \
                 AND EXISTS (SELECT 1 FROM executions WHERE id = ?1 AND owner = ?3 AND started_ms >= ?4)",
            )?;
            rows.query_row(params![id, number, owner, oldest], picture).optional()
        };
        self.wrap_error(ask())
    }

    /// Deletes these rows and returns their number. The totals of views stay unchanged.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn forget(&mut self, ids: &[String]) -> Result<usize, HistoryError> {
        self.wrap_error(self.connection.pragma_update(None, "secure_delete", true))?;
        let result = self.in_transaction(|it| {
            let mut delete = it.prepare("DELETE FROM executions WHERE id = ?1")?;
            ids.iter().try_fold(0, |sum, id| Ok(sum + delete.execute([id])?))
        });
        let deleted = self.wrap_error(result)?;
        // Deleted content must not remain in the write-ahead log.
        let emptied = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        self.wrap_error(emptied)?;
        Ok(deleted)
    }

    /// Runs `work` in a transaction: all of its changes are made, or none.
    pub(crate) fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        // Takes the write lock first. Upgrading a read lock later can only fail, not wait.
        let it = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let made = work(&it)?;
        it.commit()?;
        Ok(made)
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn sqlite_error(&self, source: rusqlite::Error) -> HistoryError {
        HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    /// Returns the start time before which rows are hidden, even if they are not deleted yet.
    pub(crate) fn oldest(age: Duration) -> i64 {
        unix_millis(SystemTime::now()).saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Creates an empty file that only its owner can read. SQLite keeps these permissions. An existing file stays
/// unchanged.
fn create(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Converts to the signed integers of SQLite.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a LIKE pattern that matches the text anywhere.
pub(crate) fn pattern(text: &str) -> String {
    let mut pattern = String::from("%");
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('%');
    pattern
}

fn picture(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredPicture> {
    let bytes: Vec<u8> = row.get(3)?;
    Ok(StoredPicture {
        number: row.get(0)?,
        name: row.get(1)?,
        mime: row.get(2)?,
        size: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        bytes: bytes.into(),
    })
}

pub(crate) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let whole = |at: usize| -> rusqlite::Result<u64> { Ok(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0)) };
    let state: String = row.get(4)?;
    Ok(Row {
        execution_id: row.get(0)?,
        owner: row.get(1)?,
        sandbox_id: row.get(2)?,
        language: row.get(3)?,
        status: status(&state).ok_or(rusqlite::Error::InvalidColumnType(
            4,
            "status".to_owned(),
            rusqlite::types::Type::Text,
        ))?,
        started_ms: row.get(5)?,
        timestamp: row.get(6)?,
        duration_ms: whole(7)?,
        cpu_ms: whole(8)?,
        peak_memory_bytes: whole(9)?,
        stdout_bytes: whole(10)?,
        stderr_bytes: whole(11)?,
        exit_code: row.get(12)?,
        error: row.get(13)?,
        cause: row.get(14)?,
        code_preview: row.get(15)?,
        stdout_preview: row.get(16)?,
        shown: row.get(17)?,
        code: row.get(18)?,
        stdout: row.get(19)?,
        stderr: row.get(20)?,
        result: row.get(21)?,
        traceback: row.get(22)?,
        pictures: Vec::new(),
        tool_calls: Vec::new(),
    })
}
