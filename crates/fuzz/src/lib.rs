//! Mutations of a corpus, for the fuzz tests of several crates.
//!
//! No fuzzing engine: these tests run with the stable toolchain, in every test run for a moment and in CI for a minute
//! (`SANDCELL_FUZZ_SECONDS`). A failure prints the seed; `SANDCELL_FUZZ_SEED` starts with it.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a part of tests: they may panic and print; that is how they fail"
)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A source of inputs.
pub struct Mutator {
    state: u64,
    corpus: Vec<Vec<u8>>,
    until: Instant,
    /// The number of inputs so far.
    pub tried: u64,
}

impl Mutator {
    /// Takes the corpus from a folder below `corpus/` of this crate.
    ///
    /// # Panics
    ///
    /// The folder cannot be read, or a variable is no number.
    #[must_use]
    pub fn new(corpus: &str) -> Self {
        let seconds = number("SANDCELL_FUZZ_SECONDS").unwrap_or(2);
        let seed = number("SANDCELL_FUZZ_SEED").unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap()
        });
        println!("fuzz {corpus}: SANDCELL_FUZZ_SEED={seed}");
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(corpus);
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let corpus: Vec<Vec<u8>> = files.into_iter().map(|file| std::fs::read(file).unwrap()).collect();
        assert!(!corpus.is_empty());
        Self {
            state: seed | 1,
            corpus,
            until: Instant::now() + Duration::from_secs(seconds),
            tried: 0,
        }
    }

    /// Returns a number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        // xorshift64*: any generator will do, as long as the seed repeats it.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let high = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(high).unwrap() % most.max(1)
    }

    fn any(&mut self) -> Vec<u8> {
        let index = self.below(self.corpus.len());
        self.corpus[index].clone()
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const INTERESTING_BYTES: [&[u8]; 16] = [
            b"\0",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x80",
            b"-1",
            b"99999999999999999999",
            b"1e999",
            b"null",
            b"\"\"",
            b"[]",
            b"{}",
            b"\xed\xa0\x80",
            b"\\u0000",
            b"\\ud800",
            b"../../..",
            b"\n",
            b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        ];
        let at = self.below(bytes.len() + 1);
        let to = at + self.below(bytes.len() - at + 1).min(64);
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = u8::try_from(self.below(256)).unwrap(),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let copy = bytes[at..to].to_vec();
                let place = self.below(bytes.len() + 1);
                drop(bytes.splice(place..place, copy));
            }
            4 => {
                let other = self.any();
                let from = self.below(other.len() + 1);
                drop(bytes.splice(at..to, other[from..].iter().copied()));
            }
            5 => bytes.truncate(at),
            6 => {
                let other = self.any();
                bytes.extend(other);
            }
            _ => {
                let one = INTERESTING_BYTES[self.below(INTERESTING_BYTES.len())];
                drop(bytes.splice(at..to, one.iter().copied()));
            }
        }
    }
}

/// The inputs, until the time is over.
impl Iterator for Mutator {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if Instant::now() > self.until {
            return None;
        }
        self.tried += 1;
        let mut bytes = self.any();
        for _ in 0..self.below(6) {
            self.mutate(&mut bytes);
        }
        bytes.truncate(1 << 20);
        Some(bytes)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}
