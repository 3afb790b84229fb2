//! Checks a log: every line's hash, every link, every number.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::file::{AuditError, AuditFile, LINE};
use crate::line::{End, NOTHING, check};

/// Faults that are told one by one.
const TOLD: usize = 20;

/// What checking found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Lines that are whole and in their place.
    pub lines: u64,
    /// The number of the first line: above 1 where older ones were put away.
    pub first: u64,
    /// The number of the last line.
    pub last: u64,
    /// When that was written.
    pub last_at: String,
    /// Its hash: kept elsewhere, it shows later that nothing before it was changed or cut off.
    pub last_hash: String,
    /// Whether the hash that was asked for is in the log. None: none was.
    pub has_hash: Option<bool>,
    /// What is wrong: the first ones.
    pub faults: Vec<Fault>,
    /// How much is wrong in all.
    pub fault_count: u64,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Which file.
    pub path: PathBuf,
    /// Which line of it, from 1.
    pub line: u64,
    /// What.
    pub what: String,
}

/// Checks the log at `path`, with the part that was put aside. `expected` is a hash that must be in it.
///
/// # Errors
/// When it cannot be read.
pub fn verify(path: &Path, expected: Option<&str>) -> Result<Report, AuditError> {
    let mut report = Report {
        has_hash: expected.map(|hash| hash == NOTHING),
        ..Report::default()
    };
    let mut end: Option<End> = None;
    let aside = AuditFile::put_aside(path);
    for (file, may_be_absent) in [(aside.as_path(), true), (path, false)] {
        let told = |source| AuditError::File {
            path: file.to_owned(),
            source,
        };
        match File::open(file) {
            Ok(opened) => one(file, opened, &mut end, expected, &mut report).map_err(told)?,
            Err(error) if may_be_absent && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
        }
    }
    if let Some(end) = end {
        report.last = end.n;
        report.last_hash = end.hash;
    }
    Ok(report)
}

fn one(path: &Path, file: File, end: &mut Option<End>, expected: Option<&str>, report: &mut Report) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    let mut number = 0;
    loop {
        let mut bytes = Vec::new();
        if reader.by_ref().take(LINE).read_until(b'\n', &mut bytes)? == 0 {
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
            (Some(line), None) if line.n == 1 && line.prev != NOTHING => {
                Some("the first line does not begin a chain".to_owned())
            }
            (Some(_), _) => None,
        };
        match what {
            None => report.lines += 1,
            Some(what) => {
                report.fault_count += 1;
                if report.faults.len() < TOLD {
                    report.faults.push(Fault {
                        path: path.to_owned(),
                        line: number,
                        what,
                    });
                }
            }
        }
        let Some(line) = line else {
            // What follows is compared with what follows it.
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
        *end = Some(End {
            n: line.n,
            hash: line.hash,
        });
    }
}
