//! The small implementation of regular expressions under the name that dependencies know.
#![forbid(unsafe_code)]

pub use regex_lite::*;
