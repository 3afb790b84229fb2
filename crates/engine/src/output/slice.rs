//! A part of a stream, for a caller that has seen its ends.

use super::capture::Capture;
use super::clean::plain;
use crate::StreamSlice;
use crate::admission::policy::bytes_of;

/// The maximum size of a UTF-8 character, in bytes.
const CHARACTER_BYTES: usize = 4;

/// Reads from `offset` (negative: from the end), or from the next occurrence of `find` after it. `done`: the stream has
/// ended.
pub(crate) fn slice(stream: &Capture, offset: i64, limit: u64, find: Option<&str>, done: bool) -> StreamSlice {
    let total = stream.total();
    let from = match u64::try_from(offset) {
        Ok(offset) => offset.min(total),
        Err(_) => total.saturating_sub(offset.unsigned_abs()),
    };
    let from = match find.map(|needle| stream.find(needle.as_bytes(), from)) {
        None => Some(from),
        Some(found) => found,
    };
    let Some(from) = from else {
        return StreamSlice {
            text: String::new(),
            offset: total,
            next_offset: total,
            total_bytes: total,
            eof: done,
        };
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(CHARACTER_BYTES);
    let mut raw = stream.read(start_of_character(stream, from), limit);
    if raw.gap == 0 && raw.next < total {
        let whole = whole_characters(&raw.bytes);
        raw.next -= bytes_of(raw.bytes.len() - whole);
        raw.bytes.truncate(whole);
    }
    let mut text = plain(&raw.bytes);
    if raw.gap > 0 {
        text.push_str(&format!("\n[... {} bytes were not kept ...]\n", raw.gap));
    }
    StreamSlice {
        text,
        offset: raw.offset,
        next_offset: raw.next,
        total_bytes: total,
        eof: done && raw.next >= total,
    }
}

/// Returns the start of the character at this position.
fn start_of_character(stream: &Capture, at: u64) -> u64 {
    let before = (1..CHARACTER_BYTES).filter_map(|back| at.checked_sub(bytes_of(back)));
    let starts_one = |from: &u64| {
        let found = stream.read(*from, CHARACTER_BYTES);
        let first = found
            .bytes
            .utf8_chunks()
            .next()
            .and_then(|chunk| chunk.valid().chars().next());
        found.offset == *from && first.is_some_and(|c| from + bytes_of(c.len_utf8()) > at)
    };
    { before }.find(starts_one).unwrap_or(at)
}

/// Returns the number of bytes of a cut text that are whole characters, or all of them if that would be zero.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        // Invalid bytes before the end: only the very end may be an unfinished character.
        Err(error) if error.error_len().is_some() => {
            let tail = bytes.len().saturating_sub(3).max(error.valid_up_to());
            let lead = bytes.iter().skip(tail).position(|byte| *byte >= 0xc2);
            match lead.map(|at| tail + at) {
                Some(at) if at > 0 && bytes.get(at..).is_some_and(unfinished) => at,
                Some(_) | None => bytes.len(),
            }
        }
        Ok(_) | Err(_) => bytes.len(),
    }
}

fn unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
