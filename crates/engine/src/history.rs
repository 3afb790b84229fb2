//! What was executed: bounded in rows and age, each caller's view apart.
//!
//! In memory: what lasts is somebody else's to keep ([`crate::Keeper`]), and this answers where nobody does or it cannot be
//! read. A caller's rows can push out another's only when that other has more of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use sandcell_sandbox::Held;

use crate::clock::{rfc3339, rfc3339_millis};
use crate::output::preview;
use crate::policy::bytes_of;
use crate::{ExecutionId, HistoryRecord, HistoryView, Principal, SandboxId, Status};

/// Packages that a view names.
const INSTALLED: usize = 500;
pub(crate) const CODE_PREVIEW: usize = 100;
const STDOUT_PREVIEW: usize = 200;
const ERROR_PREVIEW: usize = 500;
/// Callers that have a view of their own; beyond that the one that began first starts anew.
const CALLERS: usize = 4096;
/// The most rows that one question gets.
pub(crate) const MOST: usize = 50;

/// The rows of all callers.
#[derive(Debug)]
pub(crate) struct History {
    books: BTreeMap<Principal, Book>,
    rows: usize,
    max_rows: usize,
    max_age: Duration,
    began: SystemTime,
}

#[derive(Debug)]
struct Book {
    began: SystemTime,
    total: u64,
    installed: Vec<String>,
    rows: VecDeque<Row>,
}

#[derive(Debug)]
struct Row {
    at: SystemTime,
    /// Rows from before the last reset stay, but are not shown.
    shown: bool,
    record: HistoryRecord,
}

/// A finished or refused execution.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) execution: ExecutionId,
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) language: &'a str,
    pub(crate) status: Status,
    pub(crate) started: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) code: &'a str,
    pub(crate) stdout: &'a str,
    pub(crate) error: Option<&'a str>,
    /// Whether its caller's view shows and counts it. The row is kept in any case.
    pub(crate) shown: bool,
}

impl History {
    pub(crate) fn new(max_rows: usize, max_age: Duration) -> Self {
        Self {
            books: BTreeMap::new(),
            rows: 0,
            max_rows,
            max_age,
            began: SystemTime::now(),
        }
    }

    /// Adds a row, and hands back what it says.
    pub(crate) fn add(&mut self, who: &Principal, entry: &Entry<'_>) -> HistoryRecord {
        let record = HistoryRecord {
            execution_id: entry.execution.clone(),
            sandbox_id: entry.sandbox.clone(),
            language: entry.language.to_owned(),
            status: entry.status,
            timestamp: rfc3339_millis(entry.started),
            success: entry.status == Status::Ok,
            duration_ms: u64::try_from(entry.duration.as_millis()).unwrap_or(u64::MAX),
            code_preview: preview(entry.code, CODE_PREVIEW),
            stdout_preview: preview(entry.stdout, STDOUT_PREVIEW),
            error: entry.error.map(|text| preview(text, ERROR_PREVIEW)),
        };
        let book = self.book(who);
        book.total += u64::from(entry.shown);
        book.rows.push_back(Row {
            at: SystemTime::now(),
            shown: entry.shown,
            record: record.clone(),
        });
        self.rows += 1;
        self.expire();
        while self.rows > self.max_rows && self.drop_one() {}
        record
    }

    /// The newest rows of the caller's view.
    pub(crate) fn view(&mut self, who: &Principal, last_n: usize, sandbox: Option<&str>) -> HistoryView {
        self.expire();
        let book = self.book(who);
        let of = |row: &&Row| match sandbox {
            None => true,
            Some(id) => row.record.sandbox_id.as_ref().is_some_and(|own| own.as_str() == id),
        };
        HistoryView {
            total: match sandbox {
                None => book.total,
                Some(_) => bytes_of(book.rows.iter().filter(|row| row.shown).filter(of).count()),
            },
            session_start: rfc3339(book.began),
            installed_packages: book.installed.clone(),
            records: book
                .rows
                .iter()
                .rev()
                .filter(|row| row.shown)
                .filter(of)
                .take(last_n.clamp(1, MOST))
                .map(|row| row.record.clone())
                .collect(),
        }
    }

    /// Packages were installed.
    pub(crate) fn installed(&mut self, who: &Principal, packages: &[Held]) {
        let book = self.book(who);
        for one in packages {
            let text = format!("{} {}", one.name, one.version);
            if book.installed.len() < INSTALLED && !book.installed.contains(&text) {
                book.installed.push(text);
            }
        }
    }

    /// Starts a new view for the caller. The rows stay.
    pub(crate) fn reset(&mut self, who: &Principal) {
        let book = self.book(who);
        book.began = SystemTime::now();
        book.total = 0;
        book.installed.clear();
        book.rows.iter_mut().for_each(|row| row.shown = false);
    }

    fn book(&mut self, who: &Principal) -> &mut Book {
        if self.books.len() >= CALLERS && !self.books.contains_key(who) {
            let oldest = self.books.iter().min_by_key(|(_, book)| book.began);
            if let Some((key, rows)) = oldest.map(|(key, book)| (key.clone(), book.rows.len())) {
                self.books.remove(&key);
                self.rows = self.rows.saturating_sub(rows);
            }
        }
        let began = self.began;
        self.books.entry(who.clone()).or_insert_with(|| Book {
            began,
            total: 0,
            installed: Vec::new(),
            rows: VecDeque::new(),
        })
    }

    fn expire(&mut self) {
        let Some(before) = SystemTime::now().checked_sub(self.max_age) else {
            return;
        };
        for book in self.books.values_mut() {
            while book.rows.front().is_some_and(|row| row.at < before) {
                book.rows.pop_front();
                self.rows = self.rows.saturating_sub(1);
            }
        }
    }

    /// Drops the oldest row of the caller that has the most.
    fn drop_one(&mut self) -> bool {
        let Some(book) = self.books.values_mut().max_by_key(|book| book.rows.len()) else {
            return false;
        };
        let dropped = book.rows.pop_front().is_some();
        self.rows = self.rows.saturating_sub(usize::from(dropped));
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(history: &mut History, who: &str, code: &str) {
        add_in(history, who, code, None);
    }

    fn add_in(history: &mut History, who: &str, code: &str, sandbox: Option<&SandboxId>) {
        history.add(
            &Principal::new(who),
            &Entry {
                execution: ExecutionId::random().unwrap(),
                sandbox: sandbox.cloned(),
                language: "python",
                status: Status::Ok,
                started: SystemTime::now(),
                duration: Duration::from_millis(7),
                code,
                stdout: "",
                error: None,
                shown: true,
            },
        );
    }

    fn codes(history: &mut History, who: &str, last_n: usize) -> Vec<String> {
        let view = history.view(&Principal::new(who), last_n, None);
        view.records.into_iter().map(|record| record.code_preview).collect()
    }

    fn history(rows: usize) -> History {
        History::new(rows, Duration::from_secs(3600))
    }

    #[test]
    fn the_total_of_a_sandbox_counts_its_own_executions() {
        let mut history = history(100);
        let id = SandboxId::random().unwrap();
        add(&mut history, "a", "elsewhere");
        for _ in 0..3 {
            add_in(&mut history, "a", "here", Some(&id));
        }
        let view = history.view(&Principal::new("a"), 2, Some(id.as_str()));
        assert_eq!((view.total, view.records.len()), (3, 2));
        assert_eq!(history.view(&Principal::new("a"), 2, None).total, 4);
        history.reset(&Principal::new("a"));
        assert_eq!(history.view(&Principal::new("a"), 2, Some(id.as_str())).total, 0);
    }

    #[test]
    fn the_newest_comes_first_and_last_n_is_clamped() {
        let mut history = history(1000);
        (0..80).for_each(|n| add(&mut history, "a", &n.to_string()));
        assert_eq!(codes(&mut history, "a", 0), ["79"]);
        assert_eq!(codes(&mut history, "a", 2), ["79", "78"]);
        assert_eq!(codes(&mut history, "a", 5000).len(), 50);
        assert_eq!(history.view(&Principal::new("a"), 1, None).total, 80);
    }

    #[test]
    fn callers_do_not_see_each_other() {
        let mut history = history(1000);
        add(&mut history, "a", "mine");
        assert!(codes(&mut history, "b", 10).is_empty());
        assert_eq!(history.view(&Principal::new("b"), 10, None).total, 0);
    }

    #[test]
    fn a_busy_caller_does_not_push_out_a_quiet_one() {
        let mut history = history(10);
        add(&mut history, "quiet", "kept");
        (0..100).for_each(|n| add(&mut history, "busy", &n.to_string()));
        assert_eq!(codes(&mut history, "quiet", 10), ["kept"]);
        assert_eq!(codes(&mut history, "busy", 50).len(), 9);
        assert_eq!(history.rows, 10);
    }

    #[test]
    fn previews_are_cut_at_100_characters_with_dots_only_then() {
        let mut history = history(10);
        add(&mut history, "a", &"ä".repeat(100));
        add(&mut history, "a", &"ä".repeat(101));
        let codes = codes(&mut history, "a", 2);
        assert_eq!(codes[0], format!("{}...", "ä".repeat(100)));
        assert_eq!(codes[1], "ä".repeat(100));
    }

    #[test]
    fn a_reset_starts_a_new_view_and_keeps_the_rows() {
        let mut history = history(10);
        add(&mut history, "a", "old");
        history.reset(&Principal::new("a"));
        assert!(codes(&mut history, "a", 10).is_empty());
        assert_eq!(history.view(&Principal::new("a"), 10, None).total, 0);
        assert_eq!(history.rows, 1);
        add(&mut history, "a", "new");
        assert_eq!(codes(&mut history, "a", 10), ["new"]);
    }

    #[test]
    fn old_rows_go() {
        let mut history = History::new(10, Duration::ZERO);
        add(&mut history, "a", "x");
        std::thread::sleep(Duration::from_millis(2));
        assert!(codes(&mut history, "a", 10).is_empty());
        assert_eq!(history.rows, 0);
    }

    #[test]
    fn thousands_of_callers_are_bounded() {
        let mut history = history(100_000);
        (0..CALLERS + 50).for_each(|n| add(&mut history, &n.to_string(), "x"));
        assert_eq!(history.books.len(), CALLERS);
        assert_eq!(history.rows, CALLERS);
    }
}
