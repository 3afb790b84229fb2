//! Keeps the messages of failing tests and prints them again at the end, after all other output.

/// The maximum number of messages kept.
const MAX_MESSAGES: usize = 12;
/// A message that is longer is cut, in lines and in characters a line.
const MAX_LINES: usize = 20;
const MAX_LINE_CHARS: usize = 2000;

/// The messages of panics, in the order in which they were seen, each once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Panics {
    all: Vec<String>,
    /// The message that is being read.
    open: Option<Vec<String>>,
}

impl Panics {
    /// Reads a line printed by a test program or by cargo-nextest (which indents the output of tests).
    pub fn see(&mut self, line: &str) {
        let line = line.trim();
        if let Some(head) = head(line) {
            self.close();
            self.open = Some(vec![head]);
        } else if ends(line) {
            self.close();
        } else if let Some(lines) = &mut self.open
            && lines.len() < MAX_LINES
        {
            lines.push(line.chars().take(MAX_LINE_CHARS).collect());
        }
    }

    /// Each as it was said, without the stack.
    pub fn take(&mut self) -> Vec<String> {
        self.close();
        std::mem::take(&mut self.all)
    }

    fn close(&mut self) {
        let Some(lines) = self.open.take() else {
            return;
        };
        let text = lines.join("\n").trim_end().to_owned();
        if self.all.len() < MAX_MESSAGES && !self.all.contains(&text) {
            self.all.push(text);
        }
    }
}

/// The first line of a message, without the number of the thread: the same test says the same again.
fn head(line: &str) -> Option<String> {
    let (thread, place) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
    let name = thread.rsplit_once("' (").map_or(thread, |(name, _)| name);
    Some(format!("'{}' at {place}", name.trim_end_matches('\'')))
}

/// Returns true when this line follows the end of a message.
fn ends(line: &str) -> bool {
    const END_MARKS: [&str; 10] = [
        "stack backtrace:",
        "note: run with `RUST_BACKTRACE",
        "PASS [",
        "FAIL [",
        "SLOW [",
        "────",
        "failures:",
        "test result: ",
        "---- ",
        "Summary [",
    ];
    END_MARKS.iter().any(|end| line.starts_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Vec<String> {
        let mut panics = Panics::default();
        text.lines().for_each(|line| panics.see(line));
        panics.take()
    }

    #[test]
    fn messages_of_failing_tests_are_stored_without_the_stack() {
        let text = "failures:\n\n---- contract::rows stdout ----\n\nthread 'contract::rows' (7) panicked at tests/mod.rs:117:5:\n\
            native: a row: left\n\n  right\nstack backtrace:\n   0: rust_begin_unwind\n             at /rustc/core.rs:5:1\n\
            note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.\n\n\nfailures:\n    contract::rows\n";
        let said = "'contract::rows' at tests/mod.rs:117:5:\nnative: a row: left\n\nright";
        assert_eq!(seen(text), [said]);
        // The same as cargo-nextest shows it, twice, and from another thread.
        let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
        assert_eq!(seen(&format!("{indented}{}", indented.replace("(7)", "(8)"))), [said]);
        assert_eq!(
            seen("thread 'main' panicked at a.rs:1:1:\nno\nPASS [ 0.1s] b"),
            ["'main' at a.rs:1:1:\nno"]
        );
    }

    #[test]
    fn long_text_is_cut() {
        let one = |number: usize| format!("thread 'a' panicked at b.rs:{number}:1:\n{}", "line\n".repeat(100));
        let all = seen(&(0..100).map(one).collect::<String>());
        assert_eq!((all.len(), all[0].lines().count()), (MAX_MESSAGES, MAX_LINES));
        assert!(seen("test a::b ... ok\ntest result: ok. 1 passed").is_empty());
    }
}
