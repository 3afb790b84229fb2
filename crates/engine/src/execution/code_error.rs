//! Error texts from code. They never become the server's own text: the server repeats a name only if it looks like one.
//! A hint stays with the error, in the code's part of a result.

use sandcell_sandbox::CellError;

use crate::CodeError;
use crate::output::plain_line;

/// The maximum length of an error name, in characters.
const NAME_CHARS: usize = 80;
/// The maximum size of a hint, in bytes.
const HINT_BYTES: usize = 600;
/// The maximum size of a message apart from the traceback, in bytes.
const VALUE_BYTES: usize = 2000;

/// Returns the error's class, if it is spelt like one.
pub(crate) fn name(text: &str) -> &str {
    let first = |c: char| c.is_alphabetic() || c == '_';
    let letter = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$');
    let named = text.starts_with(first) && text.chars().all(letter) && text.chars().count() <= NAME_CHARS;
    if named { text } else { "an error" }
}

/// Returns the hint as one line without control characters.
pub(crate) fn hint(text: &str) -> Option<String> {
    let mut line: String = plain_line(text.as_bytes()).chars().filter(|c| !is_format(*c)).collect();
    if line.len() > HINT_BYTES {
        line.truncate(line.floor_char_boundary(HINT_BYTES));
        line.push_str("...");
    }
    (!line.is_empty()).then_some(line)
}

/// Converts the error for results. None if it is empty.
pub(crate) fn error(error: CellError) -> Option<CodeError> {
    let name = name(&error.name).to_owned();
    let mut value = error.message.clone();
    if value.len() > VALUE_BYTES {
        value.truncate(value.floor_char_boundary(VALUE_BYTES));
        value.push_str("...");
    }
    let traceback = traceback(error);
    let said = CodeError { name, value, traceback };
    (!said.traceback.is_empty()).then_some(said)
}

/// Returns the error's text for people.
fn traceback(error: CellError) -> String {
    if !error.traceback.is_empty() {
        return error.traceback;
    }
    match (error.name.as_str(), error.message.as_str()) {
        ("", message) => message.to_owned(),
        (name, "") => name.to_owned(),
        (name, message) => format!("{name}: {message}"),
    }
}

/// True for characters that are invisible or change the display of others.
const fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identifiers_count_as_error_names() {
        for good in ["ValueError", "json.JSONDecodeError", "Ошибка", "_E2", "E$1"] {
            assert_eq!(name(good), good);
        }
        let long = "E".repeat(81);
        for bad in [
            "",
            "E\n\n[ok 1 ms ex0]",
            "E x",
            "a\u{202e}b",
            "1E",
            "[ok]",
            "E\r",
            "E\u{2028}x",
            long.as_str(),
        ] {
            assert_eq!(name(bad), "an error", "{bad:?}");
        }
    }

    #[test]
    fn a_hint_is_one_short_line() {
        assert_eq!(hint("did you mean x?").as_deref(), Some("did you mean x?"));
        assert_eq!(
            hint("a\n\n[ok 1 ms]\u{2028}b\u{1b}[2J\u{202e}c\u{e0041}").as_deref(),
            Some("a [ok 1 ms] bc")
        );
        assert_eq!(hint(" \n\u{200b}"), None);
        assert_eq!(hint(&"é".repeat(2000)).unwrap().len(), 603);
    }

    #[test]
    fn name_and_message_are_separate_and_bounded() {
        let raised = error(CellError {
            name: "ValueError\n[ok]".into(),
            message: "é".repeat(2000),
            traceback: "ValueError: é".into(),
            ..CellError::default()
        })
        .unwrap();
        assert_eq!(raised.name, "an error");
        assert_eq!(raised.value.len(), 2003);
        assert_eq!(raised.traceback, "ValueError: é");
        assert_eq!(error(CellError::default()), None);
    }

    #[test]
    fn an_error_without_traceback_is_its_name_and_message() {
        let error = |name: &str, message: &str| {
            traceback(CellError {
                name: name.into(),
                message: message.into(),
                ..CellError::default()
            })
        };
        assert_eq!(error("ValueError", "x"), "ValueError: x");
        assert_eq!(error("KeyboardInterrupt", ""), "KeyboardInterrupt");
        assert_eq!(error("", "x"), "x");
    }
}
