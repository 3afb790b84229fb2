//! Cuts the texts of one result to a common budget: head and tail of each, and a line between them that gives the exact
//! number of left-out bytes and the call that reads them.

use std::collections::VecDeque;

use super::capture::StreamEnds;
use super::clean::{Piece, clean};
use crate::admission::policy::bytes_of;

/// The number of raw bytes processed at each end of a stream. Much more than any budget, so that folding works on
/// complete runs. Bounded, so that showing 16 MiB costs no more than showing two.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

/// The line in place of left-out text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marker {
    /// The call that reads the rest, with the placeholder `{offset}`.
    pub(crate) call: Option<String>,
}

/// One text of a result.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) ends: StreamEnds,
    /// The head's share of the room, in percent.
    pub(crate) head_percent: usize,
    pub(crate) marker: Marker,
}

/// A text cut for showing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) truncated: bool,
    /// True if nothing is left out, but the text is not the raw bytes.
    pub(crate) edited: bool,
    /// The number of raw bytes that the marker replaces.
    pub(crate) left_out: u64,
}

impl Marker {
    fn line(&self, left_out: u64, total: u64, lost: u64, offset: u64) -> String {
        let how = match &self.call {
            Some(call) => format!("read them with {}", call.replace("{offset}", &offset.to_string())),
            None => "print less, or write to a file and read that in parts".to_owned(),
        };
        let lost = match lost {
            0 => String::new(),
            lost => format!(", {lost} of them were not kept"),
        };
        format!("[... {left_out} of {total} bytes left out{lost}; {how} ...]\n")
    }
}

/// Cuts all parts so that their texts together have at most `budget` bytes (or little more than their markers, if the
/// budget is smaller than those).
pub(crate) fn render(parts: Vec<Part>, budget: usize) -> Vec<Rendered> {
    let prepared: Vec<Prepared> = parts.into_iter().map(|part| Prepared::new(part, budget)).collect();
    let wanted: Vec<usize> = prepared.iter().map(|part| part.wanted(budget)).collect();
    let shares = share(&wanted, budget);
    prepared
        .iter()
        .zip(shares)
        .map(|(part, share)| part.render(share))
        .collect()
}

/// Splits the budget: a part that wants less than an even share gets all it wants, and the others split the rest.
fn share(wanted: &[usize], budget: usize) -> Vec<usize> {
    let mut order: Vec<(usize, usize)> = wanted.iter().copied().enumerate().collect();
    order.sort_by_key(|(_, want)| *want);
    let mut shares = vec![0; wanted.len()];
    let (mut left, mut parts) = (budget, order.len());
    for (index, want) in order {
        let given = want.min(left / parts.max(1));
        if let Some(slot) = shares.get_mut(index) {
            *slot = given;
        }
        left -= given;
        parts = parts.saturating_sub(1);
    }
    shares
}

/// A part with as much clean text as any share of the budget could show.
struct Prepared {
    part: Part,
    front: Vec<Piece>,
    back: VecDeque<Piece>,
    /// The length of the clean text if `front` is all of it.
    complete: Option<usize>,
}

impl Prepared {
    fn new(part: Part, budget: usize) -> Self {
        let ends = &part.ends;
        let whole = ends.back.is_empty() && bytes_of(ends.front.len()) == ends.total;
        let (mut front, mut back) = (Collector::new(budget), Collector::new(budget));
        if whole {
            clean(&ends.front, 0, &mut |piece| {
                front.head(&piece);
                back.tail(piece);
            });
        } else {
            clean(without_half_end(&ends.front), 0, &mut |piece| front.head(&piece));
            let tail = without_half_start(&ends.back);
            let start = ends.total.saturating_sub(bytes_of(tail.len()));
            clean(tail, start, &mut |piece| back.tail(piece));
        }
        let complete = (whole && front.all).then_some(front.length);
        Self {
            front: front.pieces.into(),
            back: back.pieces,
            complete,
            part,
        }
    }

    fn wanted(&self, budget: usize) -> usize {
        self.complete.unwrap_or(budget).min(budget)
    }

    fn render(&self, budget: usize) -> Rendered {
        if self.complete.is_some_and(|length| length <= budget) {
            return Rendered {
                text: self.front.iter().map(|piece| piece.text.as_str()).collect(),
                truncated: false,
                edited: self.front.iter().any(|piece| !piece.exact),
                left_out: 0,
            };
        }
        let (total, lost) = (self.part.ends.total, self.part.ends.lost);
        let marker = &self.part.marker;
        // The marker's longest form, and a line feed before it.
        let reserve = marker.line(total, total, lost, total).len() + 1;
        let room = budget.saturating_sub(reserve);
        let (mut text, head_end) = self.take_head(room.saturating_mul(self.part.head_percent) / 100);
        let (tail, tail_start) = self.take_tail(room.saturating_sub(text.len()));
        let left_out = tail_start.unwrap_or(total).saturating_sub(head_end);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&marker.line(left_out, total, lost, head_end));
        text.push_str(&tail);
        Rendered {
            text,
            truncated: true,
            edited: false,
            left_out,
        }
    }

    /// Returns at most `room` bytes from the start, and their end in the stream.
    fn take_head(&self, room: usize) -> (String, u64) {
        let (mut text, mut end) = (String::new(), 0);
        for piece in &self.front {
            let left = room.saturating_sub(text.len());
            if piece.text.len() <= left {
                text.push_str(&piece.text);
                end = piece.end;
                continue;
            }
            if piece.exact {
                let cut = piece
                    .text
                    .get(..piece.text.floor_char_boundary(left))
                    .unwrap_or_default();
                text.push_str(cut);
                end = piece.start + bytes_of(cut.len());
            }
            break;
        }
        (text, end)
    }

    /// Returns at most `room` bytes from the end, and their start in the stream. None if nothing fits.
    fn take_tail(&self, room: usize) -> (String, Option<u64>) {
        let (mut parts, mut length, mut start) = (Vec::new(), 0, None);
        for piece in self.back.iter().rev() {
            let left = room.saturating_sub(length);
            if piece.text.len() <= left {
                parts.push(piece.text.as_str());
                length += piece.text.len();
                start = Some(piece.start);
                continue;
            }
            if piece.exact {
                let from = piece.text.ceil_char_boundary(piece.text.len() - left);
                let cut = piece.text.get(from..).unwrap_or_default();
                if !cut.is_empty() {
                    parts.push(cut);
                    start = Some(piece.start + bytes_of(from));
                }
            }
            break;
        }
        parts.reverse();
        (parts.concat(), start)
    }
}

/// The pieces at one end, as many as a budget can need.
struct Collector {
    pieces: VecDeque<Piece>,
    length: usize,
    budget: usize,
    all: bool,
}

impl Collector {
    const fn new(budget: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            length: 0,
            budget,
            all: true,
        }
    }

    fn head(&mut self, piece: &Piece) {
        if self.length > self.budget {
            self.all = false;
            return;
        }
        self.length += piece.text.len();
        self.pieces.push_back(piece.clone());
    }

    fn tail(&mut self, piece: Piece) {
        self.length += piece.text.len();
        self.pieces.push_back(piece);
        while let Some(first) = self.pieces.front()
            && self.length - first.text.len() > self.budget
        {
            self.length -= first.text.len();
            self.pieces.pop_front();
        }
    }
}

/// Removes the first bytes of a character whose end is cut off.
fn without_half_end(bytes: &[u8]) -> &[u8] {
    let lead = bytes.iter().rev().take(4).position(|byte| byte & 0xc0 != 0x80);
    let Some(back) = lead else { return bytes };
    let at = bytes.len() - back - 1;
    let needs = match bytes.get(at) {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    if needs > back + 1 {
        bytes.get(..at).unwrap_or_default()
    } else {
        bytes
    }
}

/// Removes the last bytes of a character whose start is cut off.
fn without_half_start(bytes: &[u8]) -> &[u8] {
    let skip = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    bytes.get(skip..).unwrap_or_default()
}
