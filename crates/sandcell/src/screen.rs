//! Terminals that can be written to with escapes.

use std::io::IsTerminal;

/// Whether this stream is one. A console of Windows is when it is asked to be, unless it is too old for that.
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && anstyle_query::windows::enable_ansi_colors().unwrap_or(true)
}
