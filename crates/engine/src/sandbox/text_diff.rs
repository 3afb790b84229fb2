//! Unified diffs of text files.

use std::time::Duration;

use similar::TextDiff;

/// The maximum size of a file whose lines are compared, in bytes.
pub(crate) const MAX_DIFF_FILE: u64 = 256 << 10;
/// The maximum length of all comparisons of one answer, in bytes.
pub(crate) const MAX_DIFFS: usize = 256 << 10;
/// The time after which lines are compared coarsely.
const DIFF_TIMEOUT: Duration = Duration::from_millis(100);
/// The number of unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Compares the lines of two texts. None: one is no text, or they are the same.
pub(crate) fn unified(path: &str, old: &[u8], new: &[u8]) -> Option<String> {
    let text = |bytes| std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let (old, new) = (text(old)?, text(new)?);
    let lines = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
    let mut diff = lines.unified_diff();
    // A name with a line feed must not look like lines of the comparison.
    let name = path.chars().flat_map(escaped).collect::<String>();
    let (from, to) = (format!("a{name}"), format!("b{name}"));
    let text = diff.context_radius(CONTEXT_LINES).header(&from, &to).to_string();
    (!text.is_empty()).then_some(text)
}

/// Writes a control character out.
fn escaped(character: char) -> impl Iterator<Item = char> {
    let (plain, written) = match character.is_control() {
        true => (None, Some(character.escape_default())),
        false => (Some(character), None),
    };
    plain.into_iter().chain(written.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compared_by_lines_and_other_content_is_not() {
        let diff = unified("/home/user/a", b"one\ntwo\nthree\n", b"one\n2\nthree").unwrap();
        assert_eq!(
            diff,
            "--- a/home/user/a\n+++ b/home/user/a\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n"
        );
        let forged = unified("/a\n@@ -1 +1 @@", b"one", b"two").unwrap();
        assert!(forged.starts_with("--- a/a\\n@@ -1 +1 @@\n+++ b/a\\n@@"), "{forged}");
        assert_eq!(unified("/a", b"\xff", b"x"), None);
        assert_eq!(unified("/a", b"a\0", b"x"), None);
        assert_eq!(unified("/a", b"same", b"same"), None);
    }
}
