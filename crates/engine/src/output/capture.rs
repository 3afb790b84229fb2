//! The raw bytes of one stream: the first three quarters of the bound, the last quarter, and a count of all bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandcell_sandbox::ByteSize;

use crate::admission::policy::bytes_of;

/// The size that each end of a stream may store without the budget.
const FREE_BYTES: usize = 32 << 10;
/// The step in which a capture takes from the budget.
const BUDGET_STEP_BYTES: usize = 1 << 20;

/// The remaining budget of all streams of one sandbox while they run, in bytes.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    /// Creates a budget for one stream of this size.
    pub(crate) fn new(kept: ByteSize) -> Arc<Self> {
        let kept = usize::try_from(kept.as_bytes()).unwrap_or(usize::MAX);
        Arc::new(Self(AtomicUsize::new(kept)))
    }

    /// Takes up to `wanted` bytes and returns the number taken.
    fn take(&self, wanted: usize) -> usize {
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(wanted))
        });
        before.unwrap_or(0).min(wanted)
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Keeps the head and the tail of a stream of any length in bounded memory.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_cap: usize,
    tail_cap: usize,
    total: u64,
    budget: Arc<Budget>,
    /// The bytes taken from the budget, for the head and for the tail.
    taken: [usize; 2],
}

/// Raw bytes for showing: all of a stream, or its two ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamEnds {
    /// The first bytes, from byte 0.
    pub(super) front: Vec<u8>,
    /// The last bytes; empty if `front` is everything.
    pub(super) back: Vec<u8>,
    /// The length of the stream.
    pub(super) total: u64,
    /// Bytes in the middle that were not stored and cannot be read later.
    pub(super) lost: u64,
}

/// A piece of a stream as stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RawSlice {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offset: u64,
    /// The start of the next piece: behind the gap, if this piece ends at one.
    pub(crate) next: u64,
    /// Bytes that are missing between the end of the piece and `next`.
    pub(crate) gap: u64,
}

impl StreamEnds {
    /// Returns the ends of a text that is available as a whole.
    pub(crate) fn whole(text: &str) -> Self {
        Self {
            front: text.as_bytes().to_vec(),
            back: Vec::new(),
            total: bytes_of(text.len()),
            lost: 0,
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.budget.give(self.taken.into_iter().sum());
    }
}

/// Grows the head by doubling while it is small, then by one step at a time. Most streams are a line. If each of
/// thousands began with a large piece of memory that is then cut, the allocator could not reuse the rest.
fn reserve(head: &mut Vec<u8>, more: usize) {
    if head.len() + more <= FREE_BYTES {
        head.reserve(more);
    } else if head.capacity() - head.len() < more {
        head.reserve_exact(more.next_multiple_of(if head.len() < BUDGET_STEP_BYTES {
            FREE_BYTES
        } else {
            BUDGET_STEP_BYTES
        }));
    }
}

impl Capture {
    /// Creates a capture that stores at most this many bytes, and less when the budget is empty.
    pub(crate) fn new(kept: ByteSize, budget: Arc<Budget>) -> Self {
        let kept = usize::try_from(kept.as_bytes()).unwrap_or(usize::MAX);
        let tail_cap = kept / 4;
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_cap: kept.saturating_sub(tail_cap),
            tail_cap,
            total: 0,
            budget,
            taken: [0; 2],
        }
    }

    /// Returns the number of the `wanted` bytes that one end may store.
    fn allowed(&mut self, end: usize, wanted: usize) -> usize {
        let Some(taken) = self.taken.get_mut(end) else { return 0 };
        let short = wanted.saturating_sub(FREE_BYTES + *taken);
        if short > 0 {
            *taken += self.budget.take(short.next_multiple_of(BUDGET_STEP_BYTES));
        }
        wanted.min(FREE_BYTES + *taken)
    }

    /// Stores output of the code.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes_of(bytes.len()));
        let held = self.head.len();
        let wanted = self.head_cap.min(held + bytes.len());
        let allowed = self.allowed(0, wanted).max(held);
        if allowed < wanted {
            // Later output belongs to the tail: the head must not have holes.
            self.head_cap = allowed;
        }
        let (first, rest) = bytes.split_at(allowed.min(wanted) - held);
        reserve(&mut self.head, first.len());
        self.head.extend_from_slice(first);
        let wanted = self.tail_cap.min(self.tail.len() + rest.len());
        let allowed = self.allowed(1, wanted).max(self.tail.len());
        self.tail_cap = if allowed < wanted { allowed } else { self.tail_cap };
        // Only the last `tail_cap` bytes can survive, so only those are copied.
        let (_, rest) = rest.split_at(rest.len().saturating_sub(self.tail_cap));
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_cap);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// Returns the number of bytes that were written.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes in memory.
    pub(crate) fn stored_bytes(&self) -> u64 {
        bytes_of(self.head.len() + self.tail.len())
    }

    /// Releases memory reserved for more output.
    pub(crate) fn settle(&mut self) {
        self.head.shrink_to_fit();
        self.tail.shrink_to_fit();
        self.budget.give(std::mem::take(&mut self.taken).into_iter().sum());
    }

    fn tail_start(&self) -> u64 {
        self.total.saturating_sub(bytes_of(self.tail.len()))
    }

    fn lost(&self) -> u64 {
        self.tail_start().saturating_sub(bytes_of(self.head.len()))
    }

    /// Returns the two ends, at most `window` bytes each, or the whole stream if it fits in both.
    pub(crate) fn ends(&self, window: usize) -> StreamEnds {
        let kept = self.head.len() + self.tail.len();
        let lost = self.lost();
        if lost == 0 && kept <= window.saturating_mul(2) {
            return StreamEnds {
                front: self.stored_range(0, kept),
                back: Vec::new(),
                total: self.total,
                lost,
            };
        }
        let front = window.min(self.head.len());
        let back = window.min(kept.saturating_sub(front));
        // The back part must not reach over a gap: text without a marker was written without a gap.
        let back = if lost > 0 { back.min(self.tail.len()) } else { back };
        StreamEnds {
            front: self.stored_range(0, front),
            back: self.stored_range(kept - back, kept),
            total: self.total,
            lost,
        }
    }

    /// Returns at most `limit` bytes of the stream from `offset`. An offset in the gap moves behind it.
    pub(crate) fn read(&self, offset: u64, limit: usize) -> RawSlice {
        let head = bytes_of(self.head.len());
        let (lost, tail_start) = (self.lost(), self.tail_start());
        let offset = match offset.min(self.total) {
            at if lost > 0 && at >= head && at < tail_start => tail_start,
            at => at,
        };
        // The position among the stored bytes, and the end of the part without a gap.
        let (from, stretch) = if lost > 0 && offset < head {
            (offset, head)
        } else if lost > 0 {
            (offset - lost, self.total - lost)
        } else {
            (offset, self.total)
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let end = from
            .saturating_add(limit)
            .min(usize::try_from(stretch).unwrap_or(usize::MAX));
        let bytes = self.stored_range(from, end);
        let next = offset + bytes_of(bytes.len());
        let at_gap = lost > 0 && next == head;
        RawSlice {
            bytes,
            offset,
            next: if at_gap { tail_start } else { next },
            gap: if at_gap { lost } else { 0 },
        }
    }

    /// Returns the first occurrence of `needle` at or after `offset`, among the stored bytes.
    pub(crate) fn find(&self, needle: &[u8], offset: u64) -> Option<u64> {
        let mut at = offset;
        while at < self.total {
            let slice = self.read(at, SEARCH_STEP_BYTES);
            if let Some(found) = position(&slice.bytes, needle) {
                return Some(slice.offset + bytes_of(found));
            }
            if slice.bytes.is_empty() {
                return None;
            }
            // Step back by less than a needle, so that a match across two steps is found.
            let end = slice.offset + bytes_of(slice.bytes.len());
            let again = end.saturating_sub(bytes_of(needle.len().saturating_sub(1)));
            at = if slice.gap > 0 || slice.bytes.len() < SEARCH_STEP_BYTES {
                slice.next
            } else {
                again
            };
        }
        None
    }

    /// Returns the last bytes, at most `most`.
    pub(crate) fn end(&self, most: usize) -> Vec<u8> {
        let kept = self.head.len() + self.tail.len();
        self.stored_range(kept.saturating_sub(most), kept)
    }

    /// Returns bytes by their position among the stored ones.
    fn stored_range(&self, from: usize, to: usize) -> Vec<u8> {
        let cut = |part: &[u8], start: usize| -> Vec<u8> {
            let from = from.saturating_sub(start).min(part.len());
            let to = to.saturating_sub(start).clamp(from, part.len());
            part.get(from..to).unwrap_or_default().to_vec()
        };
        let (one, two) = self.tail.as_slices();
        let mut bytes = cut(&self.head, 0);
        bytes.append(&mut cut(one, self.head.len()));
        bytes.append(&mut cut(two, self.head.len() + one.len()));
        bytes
    }
}

/// The number of bytes in one step of a search. Needles are shorter (checked by the caller).
const SEARCH_STEP_BYTES: usize = 1 << 20;

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(rest) = haystack.get(from..) {
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if haystack.get(at..)?.starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}
