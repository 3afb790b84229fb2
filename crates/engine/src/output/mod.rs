//! The output of code: bounded, cleaned of terminal effects, and cut for answers.
//!
//! The three steps are separate: [`Capture`] stores raw bytes, [`clean`] makes text of them, [`show`] cuts that text to
//! a budget and tracks exactly which raw bytes it left out. Bytes from inside are hostile: everything here is bounded,
//! regardless of the input.

mod capture;
mod clean;
mod progress;
mod show;
mod slice;
mod utf8;

pub(crate) use capture::{Budget, Capture, StreamEnds};
pub(crate) use clean::{plain_line, preview};
pub(crate) use progress::{PROGRESS_TAIL_BYTES, recognise};
pub(crate) use show::{Marker, Part, Rendered, WINDOW_BYTES, render};
pub(crate) use slice::slice;
pub use utf8::Utf8;

#[cfg(test)]
mod tests;
