//! Raw bytes as text: the final content of a terminal's screen.
//!
//! Escape sequences vanish, carriage returns leave the last state of a line, other control characters become visible
//! escapes, invalid UTF-8 becomes U+FFFD, and long runs of one line are folded. Every piece of text has the range of
//! its raw bytes, so that a cut can name them exactly.

use crate::admission::policy::bytes_of;

/// The maximum number of equal lines that are not folded.
const MAX_UNFOLDED_LINES: u64 = 20;
/// The maximum size of a piece of text that equals its raw bytes.
const MAX_EXACT_BYTES: usize = 16 * 1024;
/// The maximum size of other pieces, give or take one character. Such a piece is shown as a whole or not at all.
const MAX_OTHER_BYTES: usize = 256;

/// A piece of clean text and the range `start..end` of its raw bytes. Pieces follow each other without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) start: u64,
    pub(super) end: u64,
    /// True if the text equals the raw bytes, so that it can be cut between any two characters.
    pub(super) exact: bool,
}

/// Cleans a part of a stream that starts at byte `base`, and folds runs of lines.
pub(super) fn clean(raw: &[u8], base: u64, sink: &mut dyn FnMut(Piece)) {
    let mut folder = Folder { run: None, sink };
    lines(raw, base, &mut |line| folder.take(line));
    folder.flush();
}

/// Returns the clean text of a part, without folding.
pub(crate) fn plain(raw: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    lines(raw, 0, &mut |line| {
        for piece in line {
            text.push_str(&piece.text);
        }
    });
    text
}

/// Returns the clean text of a part as one line.
pub(crate) fn plain_line(raw: &[u8]) -> String {
    plain(raw).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first `max` characters, with "..." only if there are more.
pub(crate) fn preview(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
    }
}

/// Calls `sink` with the pieces of each line. The line feed belongs to its last piece.
fn lines(raw: &[u8], base: u64, sink: &mut dyn FnMut(Vec<Piece>)) {
    let mut start = base;
    for line in raw.split_inclusive(|byte| *byte == b'\n') {
        let end = start + bytes_of(line.len());
        let pieces = clean_line(line, start, end);
        if !pieces.is_empty() {
            sink(pieces);
        }
        start = end;
    }
}

fn clean_line(line: &[u8], start: u64, end: u64) -> Vec<Piece> {
    let (body, ended) = match line.strip_suffix(b"\n") {
        Some(body) => (body, true),
        None => (line, false),
    };
    let last_kept = body.iter().rposition(|byte| *byte != b'\r').map_or(0, |at| at + 1);
    let body = body.get(..last_kept).unwrap_or_default();
    let visible = body.iter().rposition(|byte| *byte == b'\r').map_or(0, |at| at + 1);
    let segment = body.get(visible..).unwrap_or_default();
    let untouched = visible == 0 && segment.len() + usize::from(ended) == line.len();
    let mut writer = Writer::new(start);
    match std::str::from_utf8(segment) {
        Ok(text) if untouched && (is_plain(segment) || !text.chars().any(needs_care)) => writer.exact(text),
        _ => writer.careful(segment, start + bytes_of(visible)),
    }
    writer.end(ended, end)
}

/// True for control characters except the tab. Line feeds never get here.
const fn needs_care(c: char) -> bool {
    c.is_ascii_control() && c != '\t' || (c >= '\u{80}' && c <= '\u{9f}')
}

/// True if no character needs care. Checks bytes, which is much faster than characters: 0xC2 begins the characters from
/// U+0080 to U+009F, among others.
fn is_plain(text: &[u8]) -> bool {
    !text
        .iter()
        .any(|byte| (*byte < b' ' && *byte != b'\t') || matches!(*byte, 0x7f | 0xc2))
}

/// Cuts the text of one line into pieces.
struct Writer {
    done: Vec<Piece>,
    text: String,
    start: u64,
    exact: bool,
}

/// The position in a terminal's escape sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    /// After ESC.
    Start,
    /// In `ESC [ …`, until a final letter.
    Csi,
    /// In `ESC ] …` and similar sequences, until BEL or ESC \.
    Text,
    /// After the ESC that may end such a text.
    TextEnd,
    /// After `ESC (` and similar sequences: one more character.
    One,
}

impl Escape {
    /// Returns the state after `c`. None if `c` is visible.
    const fn after(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::None, '\u{1b}') => Self::Start,
            (Self::None, '\u{9b}') => Self::Csi,
            (Self::None, _) => return None,
            (Self::Start, '[') => Self::Csi,
            (Self::Start, ']' | 'P' | 'X' | '^' | '_') => Self::Text,
            (Self::Start, ' '..='/') => Self::One,
            (Self::Start | Self::Csi | Self::One, '\u{1b}') => Self::Start,
            (Self::Csi, ' '..='?') => Self::Csi,
            (Self::Text | Self::TextEnd, '\u{1b}') => Self::TextEnd,
            (Self::Text, '\u{7}' | '\u{9c}') | (Self::TextEnd, '\\') => Self::None,
            (Self::Text | Self::TextEnd, _) => Self::Text,
            (Self::Start | Self::Csi | Self::One, _) => Self::None,
        })
    }
}

impl Writer {
    const fn new(start: u64) -> Self {
        Self {
            done: Vec::new(),
            text: String::new(),
            start,
            exact: true,
        }
    }

    /// Writes text that equals its raw bytes.
    fn exact(&mut self, text: &str) {
        let mut rest = text;
        while rest.len() > MAX_EXACT_BYTES {
            let (piece, more) = rest.split_at(rest.floor_char_boundary(MAX_EXACT_BYTES));
            self.text.push_str(piece);
            self.cut(self.start + bytes_of(piece.len()));
            rest = more;
        }
        self.text.push_str(rest);
    }

    /// Writes text that needs a check of each character. `at` is the segment's offset in the stream.
    fn careful(&mut self, segment: &[u8], mut at: u64) {
        self.exact = false;
        let mut escape = Escape::None;
        for chunk in segment.utf8_chunks() {
            for c in chunk.valid().chars() {
                if self.text.len() >= MAX_OTHER_BYTES {
                    self.cut(at);
                    self.exact = false;
                }
                at += bytes_of(c.len_utf8());
                match escape.after(c) {
                    Some(next) => escape = next,
                    None => self.show(c),
                }
            }
            if !chunk.invalid().is_empty() {
                at += bytes_of(chunk.invalid().len());
                self.text.push('\u{fffd}');
            }
        }
    }

    fn show(&mut self, c: char) {
        match c {
            // A bell has no text. Progress spinners use the backspace to delete their own output.
            '\u{7}' => {}
            '\u{8}' => drop(self.text.pop()),
            c if needs_care(c) => self.text.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => self.text.push(c),
        }
    }

    fn cut(&mut self, end: u64) {
        self.done.push(Piece {
            text: std::mem::take(&mut self.text),
            start: self.start,
            end,
            exact: self.exact,
        });
        self.start = end;
        self.exact = true;
    }

    fn end(mut self, line_feed: bool, end: u64) -> Vec<Piece> {
        if line_feed {
            self.text.push('\n');
        }
        if self.start < end {
            self.cut(end);
        }
        self.done
    }
}

/// A run of lines with the same text.
struct Run {
    first: Piece,
    /// Ends of the copies, while the run is short enough to be shown line by line.
    copies: Vec<(u64, bool)>,
    count: u64,
    end: u64,
}

struct Folder<'a> {
    run: Option<Run>,
    sink: &'a mut dyn FnMut(Piece),
}

impl Folder<'_> {
    fn take(&mut self, mut line: Vec<Piece>) {
        let single = match (line.pop(), line.is_empty()) {
            (Some(piece), true) => piece,
            (last, _) => {
                self.flush();
                line.into_iter().chain(last).for_each(&mut *self.sink);
                return;
            }
        };
        match &mut self.run {
            Some(run) if run.first.text == single.text => {
                run.count += 1;
                run.end = single.end;
                if run.count <= MAX_UNFOLDED_LINES {
                    run.copies.push((single.end, single.exact));
                }
            }
            Some(_) | None => {
                self.flush();
                self.run = Some(Run {
                    copies: Vec::new(),
                    count: 1,
                    end: single.end,
                    first: single,
                });
            }
        }
    }

    fn flush(&mut self) {
        let Some(run) = self.run.take() else { return };
        let (text, mut start) = (run.first.text.clone(), run.first.end);
        (self.sink)(run.first);
        if run.count > MAX_UNFOLDED_LINES {
            (self.sink)(Piece {
                text: format!("[the line above {} more times]\n", run.count - 1),
                start,
                end: run.end,
                exact: false,
            });
            return;
        }
        for (end, exact) in run.copies {
            (self.sink)(Piece {
                text: text.clone(),
                start,
                end,
                exact,
            });
            start = end;
        }
    }
}
