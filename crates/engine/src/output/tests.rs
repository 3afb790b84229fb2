//! Shown output from a caller's point of view, by example and by property.

use std::sync::Arc;

use proptest::prelude::*;
use sandcell_sandbox::ByteSize;

use super::clean::plain;
use super::*;

fn capture(kept: u64, bytes: &[u8]) -> Capture {
    let mut capture = Capture::new(ByteSize::bytes(kept), Budget::new(ByteSize::bytes(kept)));
    for chunk in bytes.chunks(1000) {
        capture.push(chunk);
    }
    capture
}

fn part(ends: StreamEnds) -> Part {
    Part {
        ends,
        head_percent: 70,
        marker: Marker::default(),
    }
}

fn shown(bytes: &[u8], budget: usize) -> Rendered {
    let ends = capture(1 << 24, bytes).ends(show::WINDOW_BYTES);
    render(vec![part(ends)], budget).remove(0)
}

fn text(bytes: &[u8]) -> String {
    shown(bytes, 20_000).text
}

#[test]
fn short_output_is_shown_as_it_is() {
    let result = shown("tabs\tand ünïcödé\n\nno last line feed".as_bytes(), 20_000);
    assert_eq!(result.text, "tabs\tand ünïcödé\n\nno last line feed");
    assert!(!result.truncated && !result.edited);
}

#[test]
fn escape_sequences_vanish() {
    assert_eq!(text(b"\x1b[1;31mred\x1b[0m plain\n"), "red plain\n");
    assert_eq!(text(b"\x1b]0;title\x07shown\n"), "shown\n");
    assert_eq!(
        text(b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b(Bok\x1b7\n"),
        "link ok\n"
    );
    assert_eq!(
        text(b"an open one ends with its line \x1b]x\nnext\n").lines().count(),
        2
    );
}

#[test]
fn other_control_characters_become_visible() {
    assert_eq!(text(b"a\x00b\x01c\x7f\n"), "a\\x00b\\x01c\\x7f\n");
    assert_eq!(text("c1 \u{85}\n".as_bytes()), "c1 \\x85\n");
    assert_eq!(text(b"bell\x07 typo\x08o\n"), "bell typo\n");
}

#[test]
fn invalid_utf8_is_shown_lossily() {
    assert_eq!(text(b"a\xff\xfeb\xe2\x82\n"), "a\u{fffd}\u{fffd}b\u{fffd}\n");
}

#[test]
fn a_progress_bar_leaves_its_last_state() {
    assert_eq!(text(b"10%\r20%\r100%\ndone\n"), "100%\ndone\n");
    assert_eq!(text(b"10%\r20%\r"), "20%");
    assert_eq!(text(b"dos\r\nlines\r\n"), "dos\nlines\n");
    let bar: String = (0..200_000).map(|n| format!("\r{n} of 200000")).collect();
    let result = shown(bar.as_bytes(), 20_000);
    assert!(result.text.ends_with("199999 of 200000"), "{}", result.text.len());
}

#[test]
fn runs_of_more_than_20_identical_lines_are_folded() {
    assert_eq!(text("same\n".repeat(20).as_bytes()), "same\n".repeat(20));
    let folded = text(format!("before\n{}after\n", "same\n".repeat(50)).as_bytes());
    assert_eq!(folded, "before\nsame\n[the line above 49 more times]\nafter\n");
    for edited in ["same\n".repeat(50).as_str(), "a\x1b[1mb", "10%\r20%", "\r\n"] {
        let result = shown(edited.as_bytes(), 20_000);
        assert!(result.edited && !result.truncated, "{edited:?}");
    }
    assert!(!shown("same\n".repeat(20).as_bytes(), 20_000).edited);
}

#[test]
fn long_output_keeps_its_ends_and_the_exact_number_of_missing_bytes() {
    let lines: String = (0..10_000).map(|n| format!("line {n}\n")).collect();
    let result = shown(lines.as_bytes(), 2000);
    assert!(result.truncated && result.text.len() <= 2000);
    let (head, rest) = result.text.split_once("[... ").unwrap();
    let (said, tail) = rest.split_once(" ...]\n").unwrap();
    assert!(lines.starts_with(head.trim_end_matches('\n')));
    assert!(lines.ends_with(tail));
    let said: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(said, result.left_out);
    let shown_bytes = u64::try_from(head.trim_end_matches('\n').len() + tail.len()).unwrap();
    let missing = u64::try_from(lines.len()).unwrap() - said;
    // The line feed before the marker is either the text's own or was added.
    assert!(
        missing == shown_bytes || missing == shown_bytes + 1,
        "{missing} {shown_bytes}"
    );
}

#[test]
fn the_marker_names_the_call_that_reads_the_rest() {
    let text = "x".repeat(5000);
    let ends = capture(1 << 24, text.as_bytes()).ends(show::WINDOW_BYTES);
    let marker = Marker {
        call: Some("get_execution(execution_id=\"ex1\", offset={offset})".into()),
    };
    let part = Part {
        ends,
        head_percent: 75,
        marker,
    };
    let result = render(vec![part], 1000).remove(0);
    let head = result.text.bytes().take_while(|b| *b == b'x').count();
    assert!(result.text.contains(&format!("offset={head})")), "{}", result.text);
}

#[test]
fn bytes_beyond_the_stored_size_are_counted_and_reported() {
    let mut capture = Capture::new(ByteSize::bytes(1000), Budget::new(ByteSize::bytes(1000)));
    for _ in 0..10_000 {
        capture.push(&[b'a'; 1000]);
        assert!(capture.stored_bytes() <= 1000);
    }
    assert_eq!(capture.total(), 10_000_000);
    let result = render(vec![part(capture.ends(show::WINDOW_BYTES))], 500).remove(0);
    assert!(result.text.contains("9999000 of them were not kept"), "{}", result.text);
}

#[test]
fn several_texts_share_one_budget_and_short_ones_stay_whole() {
    let long = capture(1 << 24, "out\nput\n".repeat(9000).as_bytes()).ends(show::WINDOW_BYTES);
    let parts = vec![
        part(long.clone()),
        part(long),
        part(StreamEnds::whole("42")),
        part(StreamEnds::whole("ValueError: x")),
    ];
    let rendered = render(parts, 4000);
    let total: usize = rendered.iter().map(|r| r.text.len()).sum();
    assert!(total <= 4000 && total > 3000, "{total}");
    assert_eq!(rendered[2].text, "42");
    assert_eq!(rendered[3].text, "ValueError: x");
    assert!(rendered[0].truncated && rendered[1].truncated);
}

#[test]
fn a_stream_is_read_in_parts_and_searched() {
    let lines: String = (0..500).map(|n| format!("line {n}\n")).collect();
    let capture = capture(1 << 20, lines.as_bytes());
    let at = lines.find("line 400").unwrap();
    assert_eq!(capture.find(b"line 400", 0), Some(u64::try_from(at).unwrap()));
    assert_eq!(capture.find(b"line 400", u64::try_from(at + 1).unwrap()), None);
    let slice = capture.read(u64::try_from(at).unwrap(), 8);
    assert_eq!((slice.bytes.as_slice(), slice.gap), (b"line 400".as_slice(), 0));
}

#[test]
fn reading_skips_bytes_that_were_not_stored() {
    let bytes: Vec<u8> = (0..10_000_u32).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
    let capture = capture(1000, &bytes);
    let slice = capture.read(700, 500);
    assert_eq!((slice.bytes.len(), slice.next, slice.gap), (50, 9750, 9000));
    let slice = capture.read(5000, 500);
    assert_eq!((slice.offset, slice.bytes.len(), slice.next), (9750, 250, 10_000));
    assert_eq!(slice.bytes, bytes[9750..]);
    assert_eq!(capture.read(99_999, 500).bytes, b"");
}

#[test]
fn previews_have_dots_only_when_longer() {
    assert_eq!(preview("abc", 3), "abc");
    assert_eq!(preview("äöüß", 3), "äöü...");
    assert_eq!(preview("", 3), "");
}

/// Hostile and ordinary output.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-z ]{0,40}\n".prop_map(String::into_bytes),
        2 => "\\PC{0,30}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => (0_usize..60).prop_map(|n| b"again\n".repeat(n)),
        1 => "(\\[[0-9;]{0,4}m)?[a-z]{0,5}(\r[0-9]{1,3}%){0,5}\r?\n?".prop_map(String::into_bytes),
        1 => "\x1b[\\[\\]P(][0-9;]{0,3}[a-z\x07]?".prop_map(String::into_bytes),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn shown_text_keeps_to_its_budget_and_has_no_control_characters(bytes in output(), kept in 0_u64..3000, budget in 200_usize..3000) {
        let ends = capture(kept, &bytes).ends(500);
        let result = render(vec![part(ends)], budget).remove(0);
        prop_assert!(result.text.len() <= budget, "{} > {budget}", result.text.len());
        prop_assert!(result.text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()));
        prop_assert_eq!(result.truncated, result.text.contains(" bytes left out"));
    }

    #[test]
    fn cleaning_is_idempotent(bytes in output()) {
        let once = plain(&bytes);
        prop_assert_eq!(plain(once.as_bytes()), once);
    }

    #[test]
    fn a_cut_never_splits_a_character_and_its_count_is_exact(lines in proptest::collection::vec("[a-zäß€𝄞]{1,60}", 1..100), budget in 200_usize..2000) {
        // Numbered, so that no run of equal lines is folded.
        let text: String = lines.iter().enumerate().map(|(n, line)| format!("{n} {line}\n")).collect();
        let result = shown(text.as_bytes(), budget);
        let lossy = result.text.contains(char::REPLACEMENT_CHARACTER);
        prop_assert!(!lossy);
        if !result.truncated {
            prop_assert_eq!(result.text, text);
            return Ok(());
        }
        let (head, rest) = result.text.split_once("[... ").unwrap();
        let (_, tail) = rest.split_once(" ...]\n").unwrap();
        let head = if text.starts_with(head) { head } else { head.strip_suffix('\n').unwrap() };
        prop_assert!(text.starts_with(head) && text.ends_with(tail));
        let sum = head.len() + tail.len() + usize::try_from(result.left_out).unwrap();
        // A head that was cut right before its line feed got the marker's line feed, which reads the same.
        prop_assert!(sum == text.len() || (sum == text.len() + 1 && head.ends_with('\n')), "{sum} {}", text.len());
    }

    #[test]
    fn the_stored_head_and_tail_are_exact_parts_of_the_stream(bytes in proptest::collection::vec(any::<u8>(), 0..4000), kept in 0_u64..3000, step in 1_usize..700) {
        let capture = capture(kept, &bytes);
        prop_assert!(capture.stored_bytes() <= kept);
        prop_assert_eq!(capture.total(), u64::try_from(bytes.len()).unwrap());
        let mut at = 0;
        while at < capture.total() {
            let slice = capture.read(at, step);
            let from = usize::try_from(slice.offset).unwrap();
            prop_assert_eq!(&slice.bytes[..], &bytes[from..from + slice.bytes.len()]);
            prop_assert!(slice.next > at);
            at = slice.next;
        }
    }

    #[test]
    fn a_search_finds_the_same_as_a_plain_search(bytes in "[ab]{0,300}", needle in "[ab]{1,4}", from in 0_usize..300) {
        let capture = capture(1 << 20, bytes.as_bytes());
        let expected = bytes.get(from..).and_then(|rest| rest.find(&needle)).map(|at| u64::try_from(at + from).unwrap());
        prop_assert_eq!(capture.find(needle.as_bytes(), u64::try_from(from).unwrap()), expected);
    }

    #[test]
    fn shares_never_exceed_the_budget(sizes in proptest::collection::vec(0_usize..9000, 1..5), budget in 300_usize..9000) {
        let parts = sizes.iter().map(|n| part(StreamEnds::whole(&"x".repeat(*n)))).collect();
        let total: usize = render(parts, budget).iter().map(|r| r.text.len()).sum();
        // A share that is smaller than its marker is the one exception.
        prop_assert!(total <= budget + 4 * 130, "{total} > {budget}");
    }
}

#[test]
fn streams_of_one_sandbox_share_a_storage_budget_and_release_it() {
    let kept = ByteSize::mib(4);
    let budget = Budget::new(kept);
    let flood = vec![b'x'; 1 << 20];
    let mut streams: Vec<Capture> = (0..24).map(|_| Capture::new(kept, Arc::clone(&budget))).collect();
    for stream in &mut streams {
        for _ in 0..8 {
            stream.push(&flood);
        }
        stream.push(b"the end");
    }
    let all: u64 = streams.iter().map(Capture::stored_bytes).sum();
    // The budget's 4 MiB, and the free part of each stream.
    assert!(all <= (4 << 20) + 24 * (64 << 10), "{all}");
    for stream in &streams {
        assert_eq!(stream.total(), (8 << 20) + 7);
        assert_eq!(stream.end(7), b"the end");
    }
    drop(streams);
    let mut alone = Capture::new(kept, budget);
    for _ in 0..8 {
        alone.push(&flood);
    }
    assert!(
        alone.stored_bytes() >= (4 << 20) - (1 << 20),
        "{}",
        alone.stored_bytes()
    );
}
