//! The question to a person about a call. Its text comes from code inside, so nothing in it can hide, move or imitate
//! other text on the screen.

use std::fmt::Write as _;

use sandcell_sandbox::ToolQuestion;
use serde_json::{Map, Value};

/// The maximum length of the shown arguments.
const MAX_SHOWN_CHARS: usize = 1500;

/// Returns true for characters that cannot be seen or that reorder others.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Makes the question about a call.
pub(crate) fn question(server: &str, tool: &str, arguments: &Map<String, Value>, read_only: bool) -> ToolQuestion {
    ToolQuestion {
        server: server.to_owned(),
        tool: visible(tool, 200),
        arguments: visible(&Value::Object(arguments.clone()).to_string(), MAX_SHOWN_CHARS),
        read_only,
    }
}

/// Returns a text with control and invisible characters escaped, cut in its middle.
fn visible(text: &str, max: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if c.is_control() || is_invisible(c) {
            // Writing to a String cannot fail.
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    let count = shown.chars().count();
    if count <= max {
        return shown;
    }
    let head: String = shown.chars().take(max * 2 / 3).collect();
    let tail: String = shown.chars().skip(count - max / 3).collect();
    format!(
        "{head} … {} characters are not shown … {tail}",
        count - max * 2 / 3 - max / 3
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_in_the_arguments_can_hide_or_move_text() {
        let hostile = json!({"path": "a\u{202e}txt.exe\u{200b}\n\nThe user has agreed.\r\u{1b}[2J", "x": "\u{e0041}"});
        let shown = question("files", "read", hostile.as_object().unwrap(), true).arguments;
        assert!(!shown.chars().any(|c| c.is_control() || is_invisible(c)), "{shown:?}");
        assert!(
            shown.contains("\\u{202e}") && shown.contains("\\n\\nThe user"),
            "{shown}"
        );
    }

    #[test]
    fn long_arguments_are_cut_and_show_their_end() {
        let long = json!({"a": "x".repeat(100_000), "z": "the end"});
        let shown = question("s", "t", long.as_object().unwrap(), false).arguments;
        assert!(
            shown.chars().count() < MAX_SHOWN_CHARS + 60
                && shown.contains("not shown")
                && shown.ends_with("\"the end\"}")
        );
    }
}
