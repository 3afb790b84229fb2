//! Counting tests: reads the summary lines of cargo-nextest and of the standard harness.

use std::collections::BTreeSet;

use crate::panics::Panics;

/// The maximum number of failures that may be the machine's fault, and are retried.
const SECOND_CHANCES: usize = 3;

/// The results of the tests so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    /// Each as `test: reason`.
    pub skipped: BTreeSet<String>,
    /// Tests that the standard harness counts as left out.
    pub ignored: u64,
    /// True when at least one summary line was seen.
    pub seen: bool,
    /// The failed tests not yet taken for a retry, by name, as the standard harness reports them.
    failing: BTreeSet<String>,
    /// Tests that failed amid the others and passed when they ran again.
    pub flaky: BTreeSet<String>,
    /// The messages of failed tests, retries included.
    pub panics: Panics,
}

impl Tally {
    /// Reads a line: the numbers of a summary, or the message of a failing test.
    pub fn see(&mut self, line: &str) {
        self.panics.see(line);
        if let Some(rest) = line.trim_start().strip_prefix("Summary [") {
            self.see_nextest(rest);
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.see_libtest(rest);
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failing.insert(name.to_owned());
        }
    }

    /// The tests that failed and may run a second time: a few that drive a whole server, whose time a busy machine may
    /// have taken. An attack that came through once has come through, however often it is stopped afterwards.
    pub fn take_second_chances(&mut self) -> Vec<String> {
        self.take_second_chances_of(|name| name.contains("::") && !name.contains("tests::"))
    }

    /// The same among tests for which `driving` says that they drive a whole server.
    pub fn take_second_chances_of(&mut self, driving: impl Fn(&String) -> bool) -> Vec<String> {
        let failing = std::mem::take(&mut self.failing);
        let all = u64::try_from(failing.len()).is_ok_and(|number| number == self.failed);
        if !all || failing.len() > SECOND_CHANCES || !failing.iter().all(driving) {
            return Vec::new();
        }
        failing.into_iter().collect()
    }

    /// They passed when they ran again.
    pub fn passed_again(&mut self, names: Vec<String>, whose: &str) {
        let number = u64::try_from(names.len()).unwrap_or(0);
        self.failed = self.failed.saturating_sub(number);
        self.passed += number;
        self.flaky
            .extend(names.into_iter().map(|name| format!("{name}{whose}")));
    }

    /// `   1.2s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 2 skipped`
    fn see_nextest(&mut self, rest: &str) {
        let Some((_, counts)) = rest.split_once(": ") else {
            return;
        };
        self.seen = true;
        for part in counts.split(", ") {
            match number_and_word(part) {
                Some((number, "passed")) => self.passed += number,
                Some((number, "failed" | "timed" | "exec")) => self.failed += number,
                // Those are filtered out, not skipped for a reason.
                _ => {}
            }
        }
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
    fn see_libtest(&mut self, rest: &str) {
        let Some((_, counts)) = rest.split_once(". ") else {
            return;
        };
        self.seen = true;
        for part in counts.split("; ") {
            match number_and_word(part) {
                Some((number, "passed")) => self.passed += number,
                Some((number, "failed")) => self.failed += number,
                Some((number, "ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Takes what the tests themselves wrote down as skipped: lines of `test: reason`. They count as passed in the
    /// harness, which has no word for it.
    pub fn skip(&mut self, whose: &str, lines: &str) {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            if self.skipped.insert(format!("{line}{whose}")) {
                self.passed = self.passed.saturating_sub(1);
            }
        }
    }

    /// The one line at the end.
    pub fn summary(&self) -> String {
        let skipped = u64::try_from(self.skipped.len()).unwrap_or(u64::MAX);
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            skipped.saturating_add(self.ignored)
        )
    }
}

fn number_and_word(part: &str) -> Option<(u64, &str)> {
    let mut words = part.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_nextest_is_read() {
        let mut tally = Tally::default();
        tally.see(
            "     Summary [   5.123s] 14 tests run: 10 passed (2 slow, 1 flaky), 3 failed, 1 timed out, 5 skipped",
        );
        assert_eq!((tally.passed, tally.failed), (10, 4));
        tally.see("     Summary [   0.123s] 1 test run: 1 passed, 0 skipped");
        assert_eq!(tally.summary(), "11 passed, 4 failed, 0 skipped");
    }

    #[test]
    fn a_summary_of_the_standard_harness_is_read() {
        let mut tally = Tally::default();
        tally.see("test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.10s");
        assert_eq!(tally.summary(), "3 passed, 2 failed, 1 skipped");
        assert!(tally.seen);
    }

    #[test]
    fn a_test_that_skipped_itself_is_not_counted_as_passed() {
        let mut tally = Tally::default();
        tally.see("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        tally.skip(" (ordinary user)", "demo::it_runs: no python3\n");
        assert_eq!(tally.summary(), "2 passed, 0 failed, 1 skipped");
        assert!(tally.skipped.contains("demo::it_runs: no python3 (ordinary user)"));
    }

    #[test]
    fn a_few_server_tests_may_retry_and_attacks_may_not() {
        let line = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s";
        let failed = |name: &str| {
            let mut tally = Tally::default();
            tally.see(&format!("test {name} ... FAILED"));
            tally.see(line);
            tally
        };
        let mut tally = failed("restore::a_large_session");
        let again = tally.take_second_chances();
        assert_eq!(again, ["restore::a_large_session"]);
        tally.passed_again(again, " (ordinary user)");
        assert_eq!(tally.summary(), "4 passed, 0 failed, 0 skipped");
        assert!(tally.flaky.contains("restore::a_large_session (ordinary user)"));
        assert!(failed("nothing_can_be_used_up").take_second_chances().is_empty());
        assert!(failed("verdict::tests::names").take_second_chances().is_empty());
        let mut unknown = Tally::default();
        unknown.see(line);
        assert!(unknown.take_second_chances().is_empty());
    }

    #[test]
    fn other_lines_are_left_alone() {
        let mut tally = Tally::default();
        tally.see("test session::state ... ok");
        assert_eq!(tally, Tally::default());
    }
}
