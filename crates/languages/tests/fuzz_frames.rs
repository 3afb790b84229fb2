//! Fuzzes the decoder of a driver's control channel with mutated bytes. See `crates/fuzz/README.md`.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test"
)]

use sandcell_fuzz::Mutator;
use sandcell_languages::control::{Decoder, Frame, FrameError};

fn frames(bytes: &[u8], mut step: impl FnMut() -> usize) -> Vec<Result<Frame, FrameError>> {
    let mut decoder = Decoder::default();
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(step().max(1)));
        decoder.push(now);
        rest = later;
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => found.push(Ok(frame)),
                Ok(None) => break,
                Err(error) => {
                    found.push(Err(error));
                    return found;
                }
            }
        }
    }
    found
}

#[test]
fn fuzz_frames_do_not_depend_on_how_the_stream_is_cut() {
    let mut mutator = Mutator::new("driver");
    while let Some(bytes) = mutator.next() {
        let whole = frames(&bytes, || usize::MAX);
        let cut = frames(&bytes, || mutator.below(40));
        assert_eq!(whole, cut);
    }
    println!("{} inputs", mutator.tried);
}
