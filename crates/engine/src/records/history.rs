//! The history in memory: bounded in rows and age, with a separate view for each caller.
//!
//! A [`crate::HistorySink`] stores rows permanently. This history answers where there is none, or where it cannot be
//! read. When the rows are full, the caller with the most rows loses its oldest one.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use sandcell_sandbox::{Failure, PackageVersion, rfc3339, rfc3339_millis};

use crate::admission::policy::bytes_of;
use crate::output::preview;
use crate::{ExecutionId, HistoryPage, HistoryQuery, HistoryRecord, HistoryView, Principal, SandboxId, Status};

/// The maximum number of packages in one view.
const MAX_INSTALLED_PACKAGES: usize = 500;
pub(crate) const CODE_PREVIEW_CHARS: usize = 100;
const STDOUT_PREVIEW_CHARS: usize = 200;
const ERROR_PREVIEW_CHARS: usize = 500;
/// The maximum number of callers with a view. Beyond it, the view that began first is dropped.
const MAX_CALLERS: usize = 4096;
/// The maximum number of rows of one answer.
pub(crate) const MAX_VIEW_ROWS: usize = 50;

/// The maximum number of rows of one page of a search.
const MAX_PAGE_ROWS: usize = 100;
/// The maximum number of words of one search, and of characters of each.
const MAX_WORDS: usize = 8;
const MAX_WORD_CHARS: usize = 200;

impl HistoryQuery {
    /// Checks the bounds.
    ///
    /// # Errors
    /// When the search has too many words, or one is too long.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.words.len() > MAX_WORDS {
            let message = format!("the search has {} words", self.words.len());
            return Err(Failure::invalid(message, format!("use at most {MAX_WORDS} words")));
        }
        if self.words.iter().any(|word| word.chars().count() > MAX_WORD_CHARS) {
            let remedy = format!("use words of at most {MAX_WORD_CHARS} characters");
            return Err(Failure::invalid("a word of the search is too long", remedy));
        }
        Ok(())
    }

    /// Returns the number of rows of a page.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.limit.clamp(1, MAX_PAGE_ROWS)
    }

    /// Checks a row's preview against the query.
    fn matches(&self, record: &HistoryRecord) -> bool {
        let sandbox = record.sandbox_id.as_ref().map(SandboxId::as_str);
        let texts = [
            record.execution_id.as_str(),
            sandbox.unwrap_or_default(),
            &record.language,
            record.status.as_str(),
            &record.code_preview,
            &record.stdout_preview,
            record.error.as_deref().unwrap_or_default(),
        ]
        .map(str::to_ascii_lowercase);
        let has = |word: &String| {
            let word = word.to_ascii_lowercase();
            texts.iter().any(|text| text.contains(&word))
        };
        self.sandbox.as_deref().is_none_or(|wanted| sandbox == Some(wanted))
            && { self.language.as_ref() }.is_none_or(|wanted| record.language == *wanted)
            && self.status.is_none_or(|wanted| record.status == wanted)
            && self.words.iter().all(has)
    }
}

/// The rows of all callers.
#[derive(Debug)]
pub(crate) struct History {
    callers: BTreeMap<Principal, CallerHistory>,
    rows: usize,
    max_rows: usize,
    max_age: Duration,
    began: SystemTime,
}

#[derive(Debug)]
struct CallerHistory {
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
    /// True if its caller's view shows and counts it. The row is stored in any case.
    pub(crate) shown: bool,
}

impl History {
    pub(crate) fn new(max_rows: usize, max_age: Duration) -> Self {
        Self {
            callers: BTreeMap::new(),
            rows: 0,
            max_rows,
            max_age,
            began: SystemTime::now(),
        }
    }

    /// Adds a row and returns its content.
    pub(crate) fn add(&mut self, principal: &Principal, entry: &Entry<'_>) -> HistoryRecord {
        let record = HistoryRecord {
            execution_id: entry.execution.clone(),
            sandbox_id: entry.sandbox.clone(),
            language: entry.language.to_owned(),
            status: entry.status,
            timestamp: rfc3339_millis(entry.started),
            success: entry.status == Status::Ok,
            duration_ms: u64::try_from(entry.duration.as_millis()).unwrap_or(u64::MAX),
            code_preview: preview(entry.code, CODE_PREVIEW_CHARS),
            stdout_preview: preview(entry.stdout, STDOUT_PREVIEW_CHARS),
            error: entry.error.map(|text| preview(text, ERROR_PREVIEW_CHARS)),
        };
        let caller_history = self.caller_history(principal);
        caller_history.total += u64::from(entry.shown);
        caller_history.rows.push_back(Row {
            at: SystemTime::now(),
            shown: entry.shown,
            record: record.clone(),
        });
        self.rows += 1;
        self.expire();
        while self.rows > self.max_rows && self.drop_one() {}
        record
    }

    /// Returns the newest rows of the caller's view.
    pub(crate) fn view(&mut self, principal: &Principal, last_n: usize, sandbox: Option<&str>) -> HistoryView {
        self.expire();
        let caller_history = self.caller_history(principal);
        let of = |row: &&Row| match sandbox {
            None => true,
            Some(id) => row.record.sandbox_id.as_ref().is_some_and(|own| own.as_str() == id),
        };
        HistoryView {
            total: match sandbox {
                None => caller_history.total,
                Some(_) => bytes_of(caller_history.rows.iter().filter(|row| row.shown).filter(of).count()),
            },
            session_start: rfc3339(caller_history.began),
            installed_packages: caller_history.installed.clone(),
            records: caller_history
                .rows
                .iter()
                .rev()
                .filter(|row| row.shown)
                .filter(of)
                .take(last_n.clamp(1, MAX_VIEW_ROWS))
                .map(|row| row.record.clone())
                .collect(),
        }
    }

    /// Returns a page of the caller's view. Only previews are available here.
    pub(crate) fn search(&mut self, principal: &Principal, query: &HistoryQuery) -> HistoryPage {
        self.expire();
        let mut found = HistoryPage {
            records: Vec::new(),
            total: 0,
            more: false,
            complete: query.words.is_empty(),
        };
        let mut reached = query.before.is_none();
        for row in self.caller_history(principal).rows.iter().rev().filter(|row| row.shown) {
            if query.matches(&row.record) {
                found.total += 1;
                if reached && found.records.len() < query.rows() {
                    found.records.push(row.record.clone());
                } else {
                    found.more |= reached;
                }
            }
            reached = reached || query.before.as_deref() == Some(row.record.execution_id.as_str());
        }
        found
    }

    /// Records installed packages.
    pub(crate) fn installed(&mut self, principal: &Principal, packages: &[PackageVersion]) {
        let caller_history = self.caller_history(principal);
        for one in packages {
            let text = format!("{} {}", one.name, one.version);
            if caller_history.installed.len() < MAX_INSTALLED_PACKAGES && !caller_history.installed.contains(&text) {
                caller_history.installed.push(text);
            }
        }
    }

    /// Starts a new view for the caller. The rows stay.
    pub(crate) fn reset(&mut self, principal: &Principal) {
        let caller_history = self.caller_history(principal);
        caller_history.began = SystemTime::now();
        caller_history.total = 0;
        caller_history.installed.clear();
        caller_history.rows.iter_mut().for_each(|row| row.shown = false);
    }

    fn caller_history(&mut self, principal: &Principal) -> &mut CallerHistory {
        if self.callers.len() >= MAX_CALLERS && !self.callers.contains_key(principal) {
            let oldest = self
                .callers
                .iter()
                .min_by_key(|(_, caller_history)| caller_history.began);
            if let Some((key, rows)) = oldest.map(|(key, caller_history)| (key.clone(), caller_history.rows.len())) {
                self.callers.remove(&key);
                self.rows = self.rows.saturating_sub(rows);
            }
        }
        let began = self.began;
        self.callers.entry(principal.clone()).or_insert_with(|| CallerHistory {
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
        for caller_history in self.callers.values_mut() {
            while caller_history.rows.front().is_some_and(|row| row.at < before) {
                caller_history.rows.pop_front();
                self.rows = self.rows.saturating_sub(1);
            }
        }
    }

    /// Drops the oldest row of the caller that has the most.
    fn drop_one(&mut self) -> bool {
        let Some(caller_history) = self
            .callers
            .values_mut()
            .max_by_key(|caller_history| caller_history.rows.len())
        else {
            return false;
        };
        let dropped = caller_history.rows.pop_front().is_some();
        self.rows = self.rows.saturating_sub(usize::from(dropped));
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(history: &mut History, principal: &str, code: &str) {
        add_in(history, principal, code, None);
    }

    fn add_in(history: &mut History, principal: &str, code: &str, sandbox: Option<&SandboxId>) {
        history.add(
            &Principal::new(principal),
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

    fn codes(history: &mut History, principal: &str, last_n: usize) -> Vec<String> {
        let view = history.view(&Principal::new(principal), last_n, None);
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
    fn the_newest_row_is_first_and_last_n_is_clamped() {
        let mut history = history(1000);
        (0..80).for_each(|n| add(&mut history, "a", &n.to_string()));
        assert_eq!(codes(&mut history, "a", 0), ["79"]);
        assert_eq!(codes(&mut history, "a", 2), ["79", "78"]);
        assert_eq!(codes(&mut history, "a", 5000).len(), 50);
        assert_eq!(history.view(&Principal::new("a"), 1, None).total, 80);
    }

    #[test]
    fn a_search_pages_through_all_matching_rows_of_its_caller() {
        let mut history = history(1000);
        (0..120).for_each(|n| {
            add(
                &mut history,
                "a",
                &format!("{} {n}", if n % 2 == 0 { "EVEN" } else { "odd" }),
            )
        });
        add(&mut history, "b", "even of another");
        let (principal, mut query) = (Principal::new("a"), HistoryQuery::default());
        query.words = vec!["even".to_owned(), "1".to_owned()];
        query.limit = 10;
        let mut seen = Vec::new();
        loop {
            let page = history.search(&principal, &query);
            assert_eq!((page.total, page.complete), (15, false), "previews only");
            seen.extend(page.records.iter().map(|record| record.code_preview.clone()));
            query.before = page.records.last().map(|record| record.execution_id.to_string());
            if !page.more {
                break;
            }
        }
        assert_eq!(seen.len(), 15);
        assert_eq!((seen[0].as_str(), seen[14].as_str()), ("EVEN 118", "EVEN 10"));
        query.before = Some(format!("ex{}", "a".repeat(26)));
        assert_eq!(history.search(&principal, &query).records, []);
        let all = HistoryQuery {
            limit: 5000,
            ..HistoryQuery::default()
        };
        let page = history.search(&principal, &all);
        assert_eq!(
            (page.records.len(), page.total, page.more, page.complete),
            (100, 120, true, true)
        );
        query.words = vec!["x".to_owned(); 9];
        assert!(query.check().is_err());
        query.words = vec!["x".repeat(201)];
        assert!(query.check().is_err());
    }

    #[test]
    fn callers_do_not_see_each_other() {
        let mut history = history(1000);
        add(&mut history, "a", "mine");
        assert!(codes(&mut history, "b", 10).is_empty());
        assert_eq!(history.view(&Principal::new("b"), 10, None).total, 0);
    }

    #[test]
    fn a_busy_caller_does_not_evict_the_rows_of_a_quiet_one() {
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
    fn old_rows_are_removed() {
        let mut history = History::new(10, Duration::ZERO);
        add(&mut history, "a", "x");
        std::thread::sleep(Duration::from_millis(2));
        assert!(codes(&mut history, "a", 10).is_empty());
        assert_eq!(history.rows, 0);
    }

    #[test]
    fn thousands_of_callers_are_bounded() {
        let mut history = history(100_000);
        (0..MAX_CALLERS + 50).for_each(|n| add(&mut history, &n.to_string(), "x"));
        assert_eq!(history.callers.len(), MAX_CALLERS);
        assert_eq!(history.rows, MAX_CALLERS);
    }
}
