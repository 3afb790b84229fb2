//! What code prints: kept within bounds, cleaned of what a terminal would do, and cut for showing.
//!
//! The three steps are apart: [`Capture`] keeps raw bytes, [`clean`] makes text of them, [`show`] cuts that text
//! to a budget and knows exactly which raw bytes it left out. Bytes from inside are hostile: everything here is
//! bounded, whatever they are.

mod capture;
mod clean;
mod progress;
mod show;
mod slice;

pub(crate) use capture::{Budget, Capture, Ends};
pub(crate) use clean::{plain_line, preview};
pub use progress::Progress;
pub(crate) use progress::{LOOK, recognise};
pub(crate) use show::{Marker, Part, Rendered, WINDOW, render};
pub(crate) use slice::slice;

#[cfg(test)]
mod tests;
