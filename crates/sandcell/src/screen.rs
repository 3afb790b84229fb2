//! Terminals that can be written to with escapes.

use std::io::IsTerminal;

/// Returns true for a terminal. A Windows console counts once ANSI colors are enabled; very old ones cannot enable
/// them.
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && anstyle_query::windows::enable_ansi_colors().unwrap_or(true)
}
