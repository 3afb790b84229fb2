//! Shows the progress of an operation on stderr. A terminal gets one line that changes. Other outputs get a line for
//! each step, and further lines at intervals. `indicatif` is no shorter: it prints nothing where stderr is not a
//! terminal, and those lines need the text and the bar as well.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use sandcell_sandbox::Preparing;

use super::output::safe;
use crate::screen::is_screen;

/// The interval between lines for one step, where stderr is not a terminal.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Characters of the bar.
const BAR_WIDTH: u64 = 20;

/// A progress display; see the module.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
    /// The last line printed and its time, where stderr is not a terminal.
    told: Option<(String, Instant)>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            told: None,
        }
    }

    pub(super) fn show(&mut self, at: &Preparing) {
        let step = text(at);
        let mut err = io::stderr().lock();
        // An unwritable stderr does not stop the operation.
        if is_screen(&err) {
            let _nobody_listens = write!(err, "\r\u{1b}[K{:>3} s  {step}", self.began.elapsed().as_secs());
        } else if is_new(self.told.as_ref(), &at.text) {
            self.told = Some((at.text.clone(), Instant::now()));
            let _nobody_listens = writeln!(err, "{step}");
        }
        let _nobody_listens = err.flush();
    }

    pub(super) fn clear(&self) {
        let mut err = io::stderr().lock();
        if is_screen(&err) {
            let _nobody_listens = write!(err, "\r\u{1b}[K");
        }
    }
}

/// Returns true when this step deserves a new line, where stderr is not a terminal.
fn is_new(told: Option<&(String, Instant)>, step: &str) -> bool {
    told.is_none_or(|(last, at)| last != step || at.elapsed() > REPEAT_INTERVAL)
}

/// Formats a step: `pulling alpine:3.20  ██████░░░░  12 of 40 MB`.
fn text(at: &Preparing) -> String {
    // Text from outside may hold anything.
    let what: String = safe(&at.text).chars().filter(|one| *one != '\n').take(80).collect();
    if at.total == 0 {
        return what;
    }
    let full = at.done.min(at.total).saturating_mul(BAR_WIDTH) / at.total;
    let bar: String = (0..BAR_WIDTH)
        .map(|place| if place < full { '█' } else { '░' })
        .collect();
    let (done, total) = (at.done / 1_000_000, at.total / 1_000_000);
    format!("{what}  {bar}  {done} of {total} MB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_lines_are_printed_for_each_step_and_rarely_otherwise() {
        let told = ("downloading".to_owned(), Instant::now());
        assert!(is_new(None, "downloading") && is_new(Some(&told), "storing"));
        assert!(!is_new(Some(&told), "downloading"));
        let long_ago = Instant::now().checked_sub(2 * REPEAT_INTERVAL);
        assert!(is_new(Some(&(told.0, long_ago.unwrap())), "downloading"));
    }

    #[test]
    fn a_progress_bar_is_as_full_as_its_numbers() {
        let at = |done, total| Preparing {
            text: "pulling a\u{1b}[2J".to_owned(),
            done,
            total,
        };
        assert_eq!(text(&at(0, 0)), "pulling a\\u{1b}[2J");
        let half = text(&at(20_000_000, 40_000_000));
        assert!(
            half.contains(&format!("{}{}", "█".repeat(10), "░".repeat(10))),
            "{half}"
        );
        assert!(half.ends_with("20 of 40 MB"), "{half}");
        let over = text(&at(u64::MAX, 40_000_000));
        assert!(over.contains(&"█".repeat(20)), "{over}");
    }
}
