//! Output of commands: data to stdout, messages to stderr, and failures in a single format.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use sandcell_sandbox::Failure;

use crate::screen::is_screen;

/// The result of a command that printed data.
pub(crate) type Printed = io::Result<ExitCode>;

/// Prints a failure on stderr: the problem, then the remedy.
pub(crate) fn failure(failure: &Failure) {
    let style = Style::of(&io::stderr());
    let mut text = format!("{} {} [{}]\n", style.red("error:"), failure.message, failure.code);
    if !failure.remedy.is_empty() {
        text.push_str(&format!("{} {}\n", style.bold("  fix:"), failure.remedy));
    }
    // A closed stderr is ignored: there is no other place for the message.
    let _nobody_listens = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a line on stderr.
#[cfg(feature = "bridge")]
pub(crate) fn note(text: &str) {
    // A closed stream is ignored.
    let _nobody_reads = writeln!(io::stderr(), "{text}");
}

/// Prints a tip below an error of clap.
pub(crate) fn tip(text: &str) {
    let style = Style::of(&io::stderr());
    let _nobody_listens = writeln!(io::stderr().lock(), "\n  {} {text}", style.green("tip:"));
}

/// Prints a failure on stderr as one line of JSON, for programs.
pub(crate) fn failure_json(failure: &Failure) {
    let line = serde_json::to_string(failure).unwrap_or_else(|_| format!("{{\"code\":\"{}\"}}", failure.code));
    let _nobody_listens = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a JSON document on stdout.
pub(crate) fn json(value: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Prints text on stdout, as it is.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Colours, if they are enabled: on a terminal, unless `NO_COLOR` is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    /// Returns the style for this stream.
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            on: !refused && is_screen(stream),
        }
    }

    /// No colours.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { on: false }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }
}

/// Makes text from inside a sandbox safe for a terminal: control characters other than line feed and tab are shown as
/// escapes, and so are those that change the direction of text.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => safe.push(character),
            _ if character.is_control() || changes_direction(character) => safe.extend(character.escape_default()),
            _ => safe.push(character),
        }
    }
    safe
}

/// Returns true for characters that reorder the text around them, or end a line for some terminals.
const fn changes_direction(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// The same for a name, which stays in its line.
#[cfg(feature = "bridge")]
pub(crate) fn safe_name(text: &str) -> String {
    safe(text).replace('\n', "\\n").replace('\t', "\\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_sandbox_cannot_control_the_terminal() {
        assert_eq!(safe("a\u{1b}[2Jb\tc\n\r"), "a\\u{1b}[2Jb\tc\n\\r");
        assert_eq!(safe("a\u{202e}txt.exe é"), "a\\u{202e}txt.exe é");
    }
}
