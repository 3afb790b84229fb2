//! Cuts text: head and tail stay, the number of bytes between them is exact, and no character is split.

/// A labelled part of a result's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The label in front; empty for stdout.
    pub(crate) label: &'static str,
    /// The text.
    pub(crate) text: String,
    /// The total bytes, if `text` is already cut.
    pub(crate) total_bytes: u64,
    /// The call that reads the rest, with `{offset}` in it; empty if there is none.
    pub(crate) rest: String,
}

/// Cuts the longest parts until all together have at most `budget` bytes (and their markers).
pub(crate) fn fit(parts: &mut [Part], budget: usize) {
    let share = share(&parts.iter().map(|part| part.text.len()).collect::<Vec<_>>(), budget);
    for part in parts.iter_mut().filter(|part| part.text.len() > share) {
        part.text = cut(&part.text, share, part.total_bytes, &part.rest);
    }
}

/// Returns the maximum share of each part so that all fit. Long parts get the unused shares of short parts.
fn share(lengths: &[usize], budget: usize) -> usize {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let mut left = budget;
    let mut count = sorted.len();
    for length in sorted {
        let equal = left / count.max(1);
        if length > equal {
            return equal;
        }
        left -= length;
        count -= 1;
    }
    budget
}

/// Returns head and tail of a text, with a line between them that states the missing part.
pub(crate) fn cut(text: &str, keep: usize, total_bytes: u64, rest: &str) -> String {
    let head_end = text.floor_char_boundary(keep * 6 / 10);
    let tail_start = text
        .ceil_char_boundary(text.len().saturating_sub(keep - keep * 6 / 10))
        .max(head_end);
    let (head, tail) = (
        text.get(..head_end).unwrap_or_default(),
        text.get(tail_start..).unwrap_or_default(),
    );
    let kept = u64::try_from(head.len() + tail.len()).unwrap_or(u64::MAX);
    let missing = total_bytes.saturating_sub(kept);
    let how = if rest.is_empty() {
        String::new()
    } else {
        format!("; {} reads on", rest.replace("{offset}", &head.len().to_string()))
    };
    format!("{head}\n... {missing} bytes left out{how} ...\n{tail}")
}

/// Returns at most `keep` bytes from the start, with three dots if the text is cut.
pub(crate) fn shorten(text: &str, keep: usize) -> String {
    match text.get(..text.floor_char_boundary(keep)) {
        Some(head) if head.len() < text.len() => format!("{head}..."),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> Part {
        Part {
            label: "",
            text: text.to_owned(),
            total_bytes: u64::try_from(text.len()).unwrap(),
            rest: String::new(),
        }
    }

    #[test]
    fn short_parts_are_left_alone_and_long_ones_share_the_rest() {
        assert_eq!(share(&[10, 10], 100), 100);
        assert_eq!(share(&[10, 1000, 2000], 100), 45);
        let mut parts = vec![part("short"), part(&"x".repeat(1000))];
        fit(&mut parts, 105);
        assert_eq!(parts[0].text, "short");
        assert_eq!(
            parts[1].text,
            format!("{}\n... 900 bytes left out ...\n{}", "x".repeat(60), "x".repeat(40))
        );
    }

    #[test]
    fn a_cut_never_splits_a_character_and_counts_exactly() {
        let text = "ä".repeat(100);
        for keep in 0..200 {
            let cut = cut(&text, keep, 200, "");
            let kept = cut.chars().filter(|c| *c == 'ä').count() * 2;
            assert!(cut.contains(&format!("... {} bytes left out ...", 200 - kept)), "{cut}");
        }
    }

    #[test]
    fn the_marker_says_where_to_read_on() {
        let cut = cut(&"x".repeat(100), 10, 5000, "get_execution(offset={offset})");
        assert_eq!(
            cut,
            "xxxxxx\n... 4990 bytes left out; get_execution(offset=6) reads on ...\nxxxx"
        );
    }
}
