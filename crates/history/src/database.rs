//! The database file: its form, and every question that is put to it. Blocking; who must not wait uses the writer.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, params};
use sandcell_engine::{KeptPicture, StoredView};

use crate::clock::{moment, now};
use crate::row::{Row, status};

/// The form of the tables; a database with a larger number is a newer sandcell's.
const FORM: i64 = 2;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// The first bytes of every SQLite database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// How long another process that writes is waited for.
pub(crate) const BUSY: Duration = Duration::from_secs(2);

const TABLES: &str = "
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

/// What form 2 has more. Pictures go with their execution.
const PICTURES: &str = "
    CREATE TABLE IF NOT EXISTS pictures (
        execution TEXT NOT NULL REFERENCES executions (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        name TEXT NOT NULL,
        mime TEXT NOT NULL,
        bytes BLOB NOT NULL,
        PRIMARY KEY (execution, number)
    ) STRICT;
";

const COLUMNS: &str = "id, owner, sandbox, language, status, started_ms, timestamp, duration_ms, cpu_ms, peak_bytes, \
    stdout_bytes, stderr_bytes, exit_code, error, cause, code_preview, stdout_preview, shown, code, stdout, stderr, result, \
    traceback";
/// The same without the long texts.
pub(crate) const SHORT: &str = "id, owner, sandbox, language, status, started_ms, timestamp, duration_ms, cpu_ms, peak_bytes, \
    stdout_bytes, stderr_bytes, exit_code, error, cause, code_preview, stdout_preview, shown, '', '', '', NULL, NULL";

/// Why the history cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file could not be made or opened.
    #[error("the history {} cannot be opened", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is none yet.
    #[error("there is no history at {} yet", .0.display())]
    Absent(PathBuf),
    /// It was made by a newer version.
    #[error("the history {} has form {form}, and this sandcell knows form {FORM}", path.display())]
    Newer {
        /// Which.
        path: PathBuf,
        /// Its form.
        form: i64,
    },
    /// Somebody removed or replaced the file while it was open.
    #[error("the history {} was removed while it was open", .0.display())]
    Removed(PathBuf),
    /// Somebody wrote something else there.
    #[error("the history {} was overwritten: it is not a database", .0.display())]
    Overwritten(PathBuf),
    /// SQLite says no: the file is broken, the disk is full, somebody else holds it.
    #[error("the history {} cannot be used", path.display())]
    Sqlite {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

impl HistoryError {
    /// What its operator can do.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Absent(_) => "run something first; `sandcell config` says where data_dir is",
            Self::Newer { .. } => "use the newer sandcell, or another data_dir",
            Self::File { .. } => "check data_dir, its owner and the room on its disk",
            Self::Removed(_) => "a new one is made as soon as it can be",
            Self::Overwritten(_) => "move it away, and a new one is made",
            Self::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                    "the file is broken: move it away, and a new one is made"
                }
                Some(ErrorCode::DiskFull) => "make room on the disk of data_dir, or raise limits.history_mb",
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "end the program that holds it",
                _ => "check data_dir, its owner and the room on its disk",
            },
        }
    }
}

/// Returns true if a file begins like an SQLite database.
fn is_database(file: &File) -> std::io::Result<bool> {
    let mut head = [0; MAGIC.len()];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) => Ok(&head == MAGIC),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Which rows are asked for.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this caller.
    pub owner: Option<String>,
    /// Only of this sandbox.
    pub sandbox: Option<String>,
    /// Only where the code, the output or the error has this text; upper and lower case of ASCII letters are the same.
    pub text: Option<String>,
    /// Only those that ended so.
    pub status: Option<String>,
    /// So many at most, the newest.
    pub most: u32,
}

/// An open database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    path: PathBuf,
    /// The file, to see that it is still the one at `path`. Closed after the connection: closing any descriptor of a file drops
    /// the locks that this process holds on it.
    file: File,
}

impl Database {
    /// The file in a data folder.
    #[must_use]
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join("history.db")
    }

    /// Opens the database for writing, and makes it if there is none. `bytes` bounds its file.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn open(path: &Path, bytes: u64) -> Result<Self, HistoryError> {
        create(path).map_err(|source| HistoryError::File {
            path: path.to_owned(),
            source,
        })?;
        let database = Self::connect(path)?;
        let form = database.form()?;
        database.told(database.prepare(form, bytes))?;
        Ok(database)
    }

    /// Leaves the log of changes as it is at the end: putting it into the database waits for the disk, for which a command that ends has no time.
    /// What stands in it counts all the same, and the next server or command that looks at the history puts it there.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub(crate) fn leave_log(&self) -> Result<(), HistoryError> {
        let set = self
            .connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        self.told(set).map(|_| ())
    }

    /// Opens a database that is there.
    ///
    /// # Errors
    /// [`HistoryError`], also when there is none.
    pub fn open_existing(path: &Path) -> Result<Self, HistoryError> {
        if !path.exists() {
            return Err(HistoryError::Absent(path.to_owned()));
        }
        let database = Self::connect(path)?;
        if database.form()? == 0 {
            return Err(HistoryError::Absent(path.to_owned()));
        }
        Ok(database)
    }

    fn connect(path: &Path) -> Result<Self, HistoryError> {
        let failed = |source| HistoryError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let empty = file.metadata().map_err(failed)?.len() == 0;
        // SQLite would lay a log that was left over what is there.
        if !empty && !is_database(&file).map_err(failed)? {
            return Err(HistoryError::Overwritten(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY)?;
            // Foreign tables and triggers in a file that somebody else made are not trusted with functions.
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

    /// Checks that the file is still there and still a database. SQLite itself would go on writing where nobody reads it again.
    ///
    /// # Errors
    /// [`HistoryError::Removed`], [`HistoryError::Overwritten`], or the disk does not answer.
    pub(crate) fn check(&self) -> Result<(), HistoryError> {
        let failed = |source| HistoryError::File {
            path: self.path.clone(),
            source,
        };
        let own = self.file.metadata().map_err(failed)?;
        let removed = match std::fs::metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) != (own.dev(), own.ino()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed(error)),
        };
        if removed {
            return Err(HistoryError::Removed(self.path.clone()));
        }
        if is_database(&self.file).map_err(failed)? {
            Ok(())
        } else {
            Err(HistoryError::Overwritten(self.path.clone()))
        }
    }

    fn told<T>(&self, result: Result<T, rusqlite::Error>) -> Result<T, HistoryError> {
        result.map_err(|source| HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        })
    }

    fn form(&self) -> Result<i64, HistoryError> {
        let form = self.told(
            self.connection
                .pragma_query_value(None, "user_version", |row| row.get(0)),
        )?;
        if form > FORM {
            return Err(HistoryError::Newer {
                path: self.path.clone(),
                form,
            });
        }
        Ok(form)
    }

    fn prepare(&self, form: i64, bytes: u64) -> Result<(), rusqlite::Error> {
        let it = &self.connection;
        if form == 0 {
            // Has an effect before the first table only.
            it.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        it.pragma_update(None, "journal_mode", "WAL")?;
        // What a process committed survives its death; what the machine's own death takes is at most the last commits.
        it.pragma_update(None, "synchronous", "NORMAL")?;
        it.pragma_update(None, "journal_size_limit", 1 << 20)?;
        it.pragma_update(None, "secure_delete", "FAST")?;
        let pages = i64::try_from(bytes / PAGE).unwrap_or(i64::MAX).max(64);
        it.pragma_update(None, "max_page_count", pages)?;
        if form < FORM {
            // Another process may do the same at this moment.
            it.execute_batch(&format!(
                "BEGIN IMMEDIATE; {TABLES} {PICTURES} PRAGMA user_version = {FORM}; COMMIT;"
            ))?;
        }
        Ok(())
    }

    /// Writes rows, and begins the views of callers that have none.
    ///
    /// # Errors
    /// [`HistoryError`]; nothing was written then.
    pub(crate) fn add(&mut self, rows: &[Row], began_ms: i64) -> Result<(), HistoryError> {
        let result = self.change(|it| {
            let mut insert = it.prepare(&format!(
                "INSERT OR IGNORE INTO executions ({COLUMNS}, weight) VALUES \
                 (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24)"
            ))?;
            let mut count = it.prepare(
                "INSERT INTO views (owner, began_ms, after_seq, total) VALUES (?1, ?2, 0, 1) \
                 ON CONFLICT (owner) DO UPDATE SET total = total + 1",
            )?;
            let mut picture = it.prepare(
                "INSERT OR IGNORE INTO pictures (execution, number, name, mime, bytes) VALUES (?1, ?2, ?3, ?4, ?5)",
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
                if new > 0 && row.shown {
                    count.execute(params![row.owner, began_ms])?;
                }
            }
            Ok(())
        });
        self.told(result)
    }

    /// Begins a new view for a caller, after all rows that there are.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub(crate) fn reset(&mut self, owner: &str, at_ms: i64) -> Result<(), HistoryError> {
        let result = self.change(|it| {
            it.execute(
                "INSERT INTO views (owner, began_ms, after_seq, total) \
                 VALUES (?1, ?2, (SELECT coalesce(max(seq), 0) FROM executions), 0) ON CONFLICT (owner) DO UPDATE SET \
                 began_ms = excluded.began_ms, after_seq = excluded.after_seq, total = 0",
                params![owner, at_ms],
            )?;
            Ok(())
        });
        self.told(result)
    }

    /// A caller's view.
    ///
    /// # Errors
    /// [`HistoryError`].
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
                "SELECT {SHORT} FROM executions WHERE owner = ?1 AND shown AND seq > ?2 AND started_ms >= ?3 \
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
                began: moment(began),
                records,
            })
        };
        self.told(ask())
    }

    /// The rows that a filter lets through, newest first; without their long texts unless `whole`.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn list(&self, filter: &Filter, whole: bool) -> Result<Vec<Row>, HistoryError> {
        let columns = if whole { COLUMNS } else { SHORT };
        let ask = || {
            let mut rows = self.connection.prepare(&format!(
                "SELECT {columns} FROM executions WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR sandbox = ?2) \
                 AND (?3 IS NULL OR status = ?3) AND (?4 IS NULL OR code LIKE ?4 ESCAPE '\\' \
                 OR stdout LIKE ?4 ESCAPE '\\' OR stderr LIKE ?4 ESCAPE '\\' OR result LIKE ?4 ESCAPE '\\' \
                 OR error LIKE ?4 ESCAPE '\\') ORDER BY seq DESC LIMIT ?5"
            ))?;
            let text = filter.text.as_deref().map(pattern);
            let rows = rows.query_map(
                params![filter.owner, filter.sandbox, filter.status, text, filter.most],
                read,
            )?;
            let mut rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
            if whole {
                for row in &mut rows {
                    row.pictures = self.pictures(&row.execution_id)?;
                }
            }
            Ok(rows)
        };
        self.told(ask())
    }

    /// One row, by its id.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn find(&self, id: &str) -> Result<Option<Row>, HistoryError> {
        let sql = format!("SELECT {COLUMNS} FROM executions WHERE id = ?1");
        let ask = || {
            let mut row = self.connection.query_row(&sql, [id], read).optional()?;
            if let Some(row) = &mut row {
                row.pictures = self.pictures(id)?;
            }
            Ok(row)
        };
        self.told(ask())
    }

    /// The ids that begin with this text, at most so many.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn ids_beginning(&self, text: &str, most: u32) -> Result<Vec<String>, HistoryError> {
        let ask = || {
            let sql = "SELECT id FROM executions WHERE substr(id, 1, length(?1)) = ?1 ORDER BY seq DESC LIMIT ?2";
            let mut rows = self.connection.prepare(sql)?;
            rows.query_map(params![text, most], |row| row.get(0))?.collect()
        };
        self.told(ask())
    }

    /// The pictures of an execution, in order. A file of the first form, which nobody has written to since, has none.
    fn pictures(&self, id: &str) -> rusqlite::Result<Vec<KeptPicture>> {
        if !self.connection.table_exists(None, "pictures")? {
            return Ok(Vec::new());
        }
        let mut rows = self
            .connection
            .prepare("SELECT number, name, mime, bytes FROM pictures WHERE execution = ?1 ORDER BY number")?;
        rows.query_map([id], picture)?.collect()
    }

    /// One picture of an execution, if that is this owner's and not older than this.
    pub(crate) fn picture(
        &self,
        id: &str,
        number: u32,
        (owner, oldest): (&str, i64),
    ) -> Result<Option<KeptPicture>, HistoryError> {
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
        self.told(ask())
    }

    /// Deletes these rows, and says how many there were. What views count stays.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn forget(&mut self, ids: &[String]) -> Result<usize, HistoryError> {
        self.told(self.connection.pragma_update(None, "secure_delete", true))?;
        let result = self.change(|it| {
            let mut delete = it.prepare("DELETE FROM executions WHERE id = ?1")?;
            ids.iter().try_fold(0, |sum, id| Ok(sum + delete.execute([id])?))
        });
        let gone = self.told(result)?;
        // What was deleted is not left in the log of changes.
        let emptied = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        self.told(emptied)?;
        Ok(gone)
    }

    /// Makes a change as a whole, or not at all.
    pub(crate) fn change<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        // Takes the lock at once: a lock that is taken later can only fail, not wait.
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

    pub(crate) fn failed(&self, source: rusqlite::Error) -> HistoryError {
        HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    /// Rows from before this are not shown, even if they are not deleted yet.
    pub(crate) fn oldest(age: Duration) -> i64 {
        now().saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Makes an empty file that nobody else can read, which SQLite then takes over with its rights. One that is there stays.
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

/// Numbers of the database have a sign.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A text as a pattern of LIKE that finds it anywhere.
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

fn picture(row: &rusqlite::Row<'_>) -> rusqlite::Result<KeptPicture> {
    let bytes: Vec<u8> = row.get(3)?;
    Ok(KeptPicture {
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
    })
}
