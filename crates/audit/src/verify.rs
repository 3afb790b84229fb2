//! Checks a log: each line's hash, link and number.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::file::{AuditError, AuditFile, MAX_LINE_BYTES};
use crate::line::{ChainEnd, GENESIS_HASH, check};

/// The maximum number of faults reported in detail.
const MAX_DETAILED_FAULTS: usize = 20;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of valid lines in the right place.
    pub lines: u64,
    /// The number of the first line. It is above 1 after older lines were deleted by rotation.
    pub first: u64,
    /// The number of the last line.
    pub last: u64,
    /// The time of the last line.
    pub last_at: String,
    /// The hash of the last line. Kept elsewhere, it proves later that no earlier line was changed or cut off.
    pub last_hash: String,
    /// True if the log contains the expected hash. None if the caller expected no hash.
    pub has_hash: Option<bool>,
    /// The first faults.
    pub faults: Vec<Fault>,
    /// The number of all faults.
    pub fault_count: u64,
}

/// A fault in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub path: PathBuf,
    /// The line in the file, counted from 1.
    pub line: u64,
    /// A description of the fault.
    pub what: String,
}

/// Checks the log at `path` and its rotated file. `expected` is a hash that the log must contain.
///
/// # Errors
/// The log cannot be read.
pub fn verify(path: &Path, expected: Option<&str>) -> Result<Report, AuditError> {
    let mut report = Report {
        has_hash: expected.map(|hash| hash == GENESIS_HASH),
        ..Report::default()
    };
    let mut end: Option<ChainEnd> = None;
    let rotated = AuditFile::rotated_path(path);
    for (file, may_be_absent) in [(rotated.as_path(), true), (path, false)] {
        let wrap_error = |source| AuditError::File {
            path: file.to_owned(),
            source,
        };
        match File::open(file) {
            Ok(opened) => verify_file(file, opened, &mut end, expected, &mut report).map_err(wrap_error)?,
            Err(error) if may_be_absent && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrap_error(error)),
        }
    }
    if let Some(end) = end {
        report.last = end.n;
        report.last_hash = end.hash;
    }
    Ok(report)
}

fn verify_file(
    path: &Path,
    file: File,
    end: &mut Option<ChainEnd>,
    expected: Option<&str>,
    report: &mut Report,
) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let mut number = 0;
    loop {
        let mut bytes = Vec::new();
        if reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(());
        }
        number += 1;
        let whole = bytes.pop() == Some(b'\n');
        let text = String::from_utf8_lossy(&bytes);
        let line = if whole { check(&text) } else { None };
        let what = match (&line, end.as_ref()) {
            (None, _) if !whole => Some("the line is not finished, or too long".to_owned()),
            (None, _) => Some("the line was changed: its hash is another one".to_owned()),
            (Some(line), Some(end)) if line.prev != end.hash || line.n != end.n + 1 => Some(format!(
                "lines between number {} and number {} were removed or inserted",
                end.n, line.n
            )),
            (Some(line), None) if line.n == 1 && line.prev != GENESIS_HASH => {
                Some("the first line does not begin a chain".to_owned())
            }
            (Some(_), _) => None,
        };
        match what {
            None => report.lines += 1,
            Some(what) => {
                report.fault_count += 1;
                if report.faults.len() < MAX_DETAILED_FAULTS {
                    report.faults.push(Fault {
                        path: path.to_owned(),
                        line: number,
                        what,
                    });
                }
            }
        }
        let Some(line) = line else {
            // The fault breaks the chain here: the next line has no end to compare with.
            *end = None;
            continue;
        };
        if report.first == 0 {
            report.first = line.n;
        }
        report.last_at = line.at;
        if expected == Some(line.hash.as_str()) {
            report.has_hash = Some(true);
        }
        *end = Some(ChainEnd {
            n: line.n,
            hash: line.hash,
        });
    }
}
