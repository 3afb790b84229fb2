//! Reads the state of a progress bar from the last line of output. Pure.
//!
//! Only lines with the shape of a bar count, so that "3/4 done" in a sentence is no progress.

use sandcell_sandbox::Preparing;

use super::clean::plain;
use crate::Progress;

impl Progress {
    /// Converts the progress of a sandbox's preparation. Bytes are reported in megabytes.
    pub(crate) fn of(preparing: Preparing) -> Self {
        let Preparing { text, done, total } = preparing;
        let text = match total {
            0 => text,
            total => format!("{text}: {} of {} MB", done / BYTES_PER_MB, total / BYTES_PER_MB),
        };
        let number = |number: u64| u32::try_from(number / BYTES_PER_MB).map_or(f64::from(u32::MAX), f64::from);
        Self {
            done: number(done),
            total: (total > 0).then(|| number(total)),
            text: text.chars().take(MAX_TEXT_CHARS).collect(),
        }
    }
}

const BYTES_PER_MB: u64 = 1_000_000;

/// The number of bytes at the end of a stream to search for a bar.
pub(crate) const PROGRESS_TAIL_BYTES: usize = 1024;
const MAX_TEXT_CHARS: usize = 200;

/// Returns the progress at the end of a stream.
pub(crate) fn recognise(tail: &[u8]) -> Option<Progress> {
    let clean = plain(tail);
    let line = clean.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let text: String = line.chars().take(MAX_TEXT_CHARS).collect();
    let (done, total) = counted(line).or_else(|| percent(line))?;
    Some(Progress { done, total, text })
}

/// `35%|███▌   | 7/20 [00:01<00:02]`, `7it [00:01]`, `7/20 [====>...]`, `7/20 ━━━━ 1s`.
fn counted(line: &str) -> Option<(f64, Option<f64>)> {
    let has_bar = is_bar(line);
    for word in line.split([' ', '|']).filter(|word| !word.is_empty()) {
        if let Some((done, total)) = word.split_once('/') {
            let (Some(done), Some(total)) = (number(done), number(total)) else {
                continue;
            };
            if has_bar && total > 1.0 && done <= total {
                return Some((done, Some(total)));
            }
        } else if let Some(done) = word.strip_suffix("it").and_then(number)
            && line.contains(" [")
        {
            return Some((done, None));
        }
    }
    None
}

/// `Downloading: 35%` with a bar next to it.
fn percent(line: &str) -> Option<(f64, Option<f64>)> {
    let (before, _) = line.split_once('%')?;
    let start = before
        .rfind(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or(0, |at| at + 1);
    let start = before.ceil_char_boundary(start);
    let done = number(before.get(start..)?)?;
    (is_bar(line) && done <= 100.0).then_some((done, Some(100.0)))
}

fn is_bar(line: &str) -> bool {
    line.contains("%|")
        || line
            .chars()
            .any(|c| matches!(c, '\u{2580}'..='\u{259f}' | '━' | '╸' | '╺'))
        || line.contains("==")
        || line.contains("##")
        || line.contains("[=")
        || line.contains("[>")
        || line.contains("[#")
        || line.contains("...]")
}

/// `12`, `3.5`, `1.2k`, `4M`.
fn number(text: &str) -> Option<f64> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'k') => (text.get(..at)?, 1e3),
        (at, 'M') => (text.get(..at)?, 1e6),
        (at, 'G') => (text.get(..at)?, 1e9),
        _ => (text, 1.0),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && digits.len() <= 15;
    let value: f64 = plain.then(|| digits.parse().ok()).flatten()?;
    Some(value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> Option<(f64, Option<f64>)> {
        recognise(line.as_bytes()).map(|progress| (progress.done, progress.total))
    }

    #[test]
    fn progress_bars_of_well_known_libraries_are_recognised() {
        for (line, expected) in [
            (
                "\r  5%|▌         | 1/20 [00:00<00:01]\r 35%|███▌      | 7/20 [00:01<00:02,  5.3it/s]",
                (7.0, Some(20.0)),
            ),
            ("epoch 1: 100%|##########| 3/3 [00:00<00:00]\n", (3.0, Some(3.0))),
            (
                "\r 12%|█▏        | 1.20k/10.0k [00:00<00:03, 2.9kB/s]",
                (1200.0, Some(10000.0)),
            ),
            ("\r7it [00:01,  5.00it/s]", (7.0, None)),
            ("\r 5/10 [=====>........] - ETA: 1s", (5.0, Some(10.0))),
            ("\r\u{1b}[1m5/10\u{1b}[0m ━━━━━━━━━━ 1s 3ms/step", (5.0, Some(10.0))),
            ("Working... ━━━━━━━━╸     42% 0:00:03", (42.0, Some(100.0))),
            ("\r[####      ] 40.5%", (40.5, Some(100.0))),
        ] {
            assert_eq!(seen(line), Some(expected), "{line:?}");
        }
    }

    #[test]
    fn other_lines_are_not_progress() {
        for line in [
            "",
            "\n\n",
            "3/4 of the tests passed",
            "accuracy: 97%",
            "date 2024/05",
            "100%",
            "a/b",
            "9/3 ==",
            "NaN/inf ====",
            "99999999999999999999/3 ==",
            "1e9/2e9 ==",
            "it [",
            "%|",
            "/ == ",
        ] {
            assert_eq!(seen(line), None, "{line:?}");
        }
        assert_eq!(recognise(&[0xff, 0xfe, b'%', b'|', 0]), None);
    }
}
